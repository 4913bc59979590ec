//! Faults: every kind of fault, at every kind of instruction, on every type of stream, on a CPU and on a device that runs
//! later, judged by what is promised.
//!
//! A [`Cell`] is one fault at one instruction. It is played on an engine of its own: a healthy start, the subject with
//! its dependent, independent work, then, with the faults stopped, new work. Safety: nothing wrong is ever read as right,
//! and who fails is told so each time it asks. Liveness: every wait ends, what is independent completes, and after the
//! faults have stopped the same streams work again, unless their device is lost. Nothing leaks: captures are dropped,
//! memory and events come back. The detector is on, and must find nothing.

mod judge;
mod scene;
mod table;

pub use judge::{Outcome, play};
pub use scene::{Kind, Scene, kinds};
pub use table::{Cell, cells, report};
