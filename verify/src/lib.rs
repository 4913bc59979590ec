//! The independent verifier of streamvm's traces.
//!
//! An engine run with `VmBuilder::record` writes down what it decided: every instruction with the bytes it touches, its
//! waits, the events recorded for them, and what the host has seen to pass. This crate reads such a trace and finds out
//! from scratch which instructions conflict and whether the waits order them. It shares no code with the engine, only the
//! format (`docs/trace.md`), so a mistake in one is not repeated in the other.
//!
//! ```
//! use streamvm_verify::{Trace, verify};
//!
//! // Stream 1 writes the bytes that stream 0 reads, and nothing orders the two.
//! let text = r#"{"streamvm_trace":1}
//! {"stream":{"id":0,"name":"compute"}}
//! {"stream":{"id":1,"name":"h2d"}}
//! {"life":{"id":1,"place":"cpu:0","kind":"device","base":4096,"bytes":64}}
//! {"instruction":{"at":[1,1],"op":"copy","site":"a.rs:1:1","uses":[{"life":1,"access":"write","runs":[[4096,4160]]}]}}
//! {"instruction":{"at":[0,1],"op":"relu","site":"a.rs:2:1","uses":[{"life":1,"access":"read","runs":[[4096,4160]]}]}}
//! {"end":{"lines":6}}
//! "#;
//! let report = verify(&Trace::read(text.as_bytes())?)?;
//! assert!(!report.is_ok());
//! assert_eq!(report.missing.total, 1);
//!
//! // With a wait it is fine.
//! let mended = text.replace(r#""op":"relu""#, r#""op":"relu","waits":[{"point":[1,1],"by":"device"}]"#);
//! assert!(verify(&Trace::read(mended.as_bytes())?)?.is_ok());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! How it works: [`Trace::read`] checks the text; [`Closure`] computes for every instruction which others come before it
//! (vector clocks over the streams and the host); `dependences` walks over the bytes and finds each pair that must be
//! ordered; [`verify()`] compares the two, and tries for each wait whether it could go.
#![deny(unsafe_code)]

mod closure;
mod cycles;
mod dependences;
mod events;
mod excess;
mod graph;
mod lines;
mod pieces;
mod read;
mod report;
mod text;
mod trace;
mod verify;

pub use closure::{Closure, TooLarge};
pub use read::{Limits, ReadError};
pub use report::{
    Bytes, Cycle, Dependence, Excess, ExcessWait, Fault, FaultKind, Listed, Missing, Place, Reason, Report,
    UnusedRecord,
};
pub use trace::{Point, Trace};
pub use verify::verify;
