//! The independent verifier of streamvm's traces.
//!
//! An engine that was built with `VmBuilder::record` writes a trace of its decisions: every instruction with the bytes that it
//! touches, its waits, the events recorded for them, and the points that the host saw pass. This crate reads such a trace and
//! computes from scratch which instructions conflict, and whether the waits order them. It shares only the format (`docs/trace.md`)
//! with the engine, and no code, so that a mistake in one is not repeated in the other.
//!
//! ```
//! use streamvm_verify::{Trace, verify};
//!
//! // Stream 1 writes the bytes that stream 0 reads, and nothing orders the two.
//! let text = r#"{"streamvm_trace":1}
//! {"stream":{"id":0,"name":"compute"}}
//! {"stream":{"id":1,"name":"h2d"}}
//! {"life":{"id":1,"place":"cpu:0","kind":"device","base":4096,"bytes":64}}
//! {"instruction":{"at":[1,1],"op":"copy","location":"a.rs:1:1","uses":[{"life":1,"access":"write","runs":[[4096,4160]]}]}}
//! {"instruction":{"at":[0,1],"op":"relu","location":"a.rs:2:1","uses":[{"life":1,"access":"read","runs":[[4096,4160]]}]}}
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
//! How it works:
//! 1. [`Trace::read`] parses and checks the text.
//! 2. [`Closure`] computes which instructions come before each instruction (vector clocks over the streams and the host).
//! 3. `dependences` goes through the bytes and finds each pair that must be ordered.
//! 4. [`verify()`] compares the two, and checks for each wait whether it could be removed.
//!
//! Each folder is a layer, and imports only the folders below it: `checks`, then `graph`, `report` and `trace` at the bottom.
#![deny(unsafe_code)]

mod checks;
mod graph;
mod report;
mod trace;
mod verify;

pub use graph::closure::{Closure, TooLarge};
pub use report::{
    Bytes, Cycle, Dependence, Excess, ExcessWait, Fault, FaultKind, Listed, Missing, Place, Reason, Report,
    UnusedRecord,
};
pub use trace::read::{Limits, ReadError};
pub use trace::{Point, Trace};
pub use verify::verify;
