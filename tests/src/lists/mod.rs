//! Random instruction lists on devices of every kind at once: no list may make a device or the host access an address that it does not own.
//!
//! Layer: uses `support`; is used by the program `lists`, which the suite `cuda_programs` runs.
//!
//! Main types: a [`Scene`] has tensors and instructions over them, each a [`Drawn`]; a [`Model`] computes the values of the tensors;
//! [`judge()`] runs the scene of a seed and gives a [`Census`].
//!
//! A seed draws a few tensors, in every kind of memory of two CPU devices, two CUDA devices, two simulated devices and the host. It draws
//! instructions of every kind over them, on streams of every type of every device, whether they are valid or not. Each instruction is given
//! in four ways:
//!
//! * as a line of text to [`InstructionList::parse`](streamvm::InstructionList::parse);
//! * by [`InstructionList::push`](streamvm::InstructionList::push), which must refuse exactly the instructions that the parser refuses;
//! * by the call of an [`InstructionsBuilder`](streamvm::InstructionsBuilder) for its operation, whose printed list must then parse;
//! * as a part of a list of all accepted instructions, which is submitted and runs to its end: in the pushed form, in the built form, and
//!   without functions also printed and parsed.
//!
//! If every instruction has passed, every tensor must hold what [`Model`] computes for the list, one instruction after the other.
//!
//! The driver below checks addresses: the device memory of the driver that stands in for NVIDIA's faults when the host touches it, and the
//! driver looks up every address that its devices are told to access. A fault ends the process, so callers run this in a separate process.

mod drawn;
mod give;
mod judge;
mod model;

pub use drawn::{Drawn, Scene, What};
pub use judge::{Census, judge};
pub use model::Model;
