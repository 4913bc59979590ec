//! Why was this stream idle? Reads a trace that an engine of streamvm has written, and tells.
//!
//! [`Recording`] is what a trace tells of instructions and threads; [`Report`] is what follows from it: how each stream spent its time, the longest causes of idle time, and the critical
//! path. Both are plain values; [`Report`] has a text form, and serde's for JSON. [`Packets`] reads a trace as the messages of Perfetto.
//!
//! ```no_run
//! use streamvm_report::{Recording, Report};
//!
//! let file = std::io::BufReader::new(std::fs::File::open("a.pftrace")?);
//! let report = Report::of(&Recording::read(file)?);
//! println!("{report}");
//! for idle in report.idle.iter().filter(|idle| idle.stream == "compute@cpu:0:0") {
//!     println!("{} ns: {idle}", idle.ns);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod compare;
mod critical;
mod idle;
mod memory;
pub mod packets;
mod page;
mod pools;
mod reader;
mod reading;
mod recording;
mod report;
mod text;
mod waits;

pub use compare::{Change, Comparison, MemoryChange};
pub use memory::{Memory, Owner};
pub use page::write_page;
pub use reader::Packets;
pub use reading::ReadError;
pub use recording::Recording;
pub use report::{Cause, Clock, Copies, Critical, Group, Host, Idle, Pending, Place, Queue, Report, StreamTime};
pub use text::without_controls;
pub use waits::{ImpliedWaits, Waits};
