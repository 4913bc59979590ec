//! Random instruction lists on devices of every kind at once: no list leads anybody to an address that is not theirs.
//!
//! A seed draws a few tensors, in every kind of memory of two CPU devices, two CUDA devices, two simulated devices and the host, and
//! instructions of every kind over them on streams of every type of every device, whether that makes sense or not. Each instruction is
//! offered in four ways:
//!
//! * as a line of text to [`InstructionList::parse`](streamvm::InstructionList::parse);
//! * by [`InstructionList::push`](streamvm::InstructionList::push), which must refuse exactly what the reader of texts refuses;
//! * by the call of an [`InstructionsBuilder`](streamvm::InstructionsBuilder) that is made for it, whose list must then parse;
//! * as a part of a list of all that was accepted, which is submitted and runs to its end: in the form that was pushed and in the
//!   form that was built, and what has no code also printed and parsed.
//!
//! Where every instruction has passed, every tensor holds what [`Model`] computes for the list, one instruction after the other.
//!
//! The judge of addresses is the driver below: device memory of the driver that stands in for NVIDIA's faults when the host
//! touches it, and what its devices are told to touch it looks up. A fault ends the process, so who calls this runs it in one of its own.

mod drawn;
mod give;
mod judge;
mod model;

pub use drawn::{Drawn, Scene, What};
pub use judge::{Census, judge};
pub use model::Model;
