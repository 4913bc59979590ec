//! Traces in the format of Perfetto: TrackEvent packets of the protobuf message `Trace`, which <https://ui.perfetto.dev> and its `trace_processor` open.
//!
//! [`TraceWriter`] writes tracks, slices, arrows between slices, and counters. The crate `streamvm-report` reads them.
//!
//! ```
//! use streamvm_trace::{Argument, Slice, TraceWriter};
//!
//! let mut trace = Vec::new();
//! let mut writer = TraceWriter::new(&mut trace, "a program")?;
//! let device = writer.track("cpu:0", None)?;
//! let stream = writer.track("compute", Some(device))?;
//! let line = [("line", Argument::Text(writer.text("a.rs:3:9")))];
//! writer.slice(&Slice { track: stream, name: "add", begin: 1_000, end: 3_500, arguments: &line, leaves: Some(7), enters: &[] })?;
//! writer.finish()?;
//! assert!(trace.len() < 200);
//! # Ok::<(), std::io::Error>(())
//! ```

#![forbid(unsafe_code)]

mod protobuf;
mod writer;

pub use writer::{Argument, Slice, Text, TraceWriter, Track};
