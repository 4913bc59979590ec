//! Faults: every kind of fault, at every kind of instruction, on every type of stream, on a CPU, a simulated device and a CUDA device, with
//! checks of the engine's guarantees. Runs of compiled programs, with a loop and a branch, are instructions, too.
//!
//! Layer: uses `support`; is used by the suite `faults`.
//!
//! Main types: a [`Cell`] is one fault at one instruction; [`play`] runs it and gives an [`Outcome`]; [`report`] makes the table of all
//! cells.
//!
//! Each cell runs on its own engine: a healthy start, the subject with its dependent, independent work, then, with the faults stopped, new
//! work. The checks:
//!
//! * Safety: no wrong value is ever read without an error, and a failed tensor returns the error at every read.
//! * Liveness: every wait ends, independent work completes, and after the faults have stopped the same streams work again, unless their
//!   device is lost.
//! * No leaks: captures are dropped, memory and events are freed.
//! * The race detector is on, and must find nothing.

mod judge;
mod scene;
mod table;

pub use judge::{Outcome, play};
pub use scene::{Kind, Scene, kinds};
pub use table::{Cell, What, cells, report};
