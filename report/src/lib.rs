//! Why was this stream idle? Reads a trace that an engine of streamvm has written, and tells.
//!
//! [`Recording`] is what a trace tells of instructions and threads; [`Report`] is what follows from it: how each stream spent its time, the longest causes of idle time, and the critical
//! path. Both are plain values; [`Report`] has a text form, and serde's for JSON.

#![forbid(unsafe_code)]

mod compare;
mod critical;
mod idle;
mod recording;
mod report;
mod text;

pub use compare::Comparison;
pub use recording::{ReadError, Recording};
pub use report::{Cause, Copies, Critical, Group, Idle, Place, Queue, Report, StreamTime};
