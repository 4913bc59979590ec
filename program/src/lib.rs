//! Programs: instructions that are recorded once, compiled, and run many times.
//!
//! ```text
//!   record ── eager calls and lists ──▶ Program ──▶ compile: small passes ──▶ Compiled ──▶ an engine runs it
//!                text ── parse ────────────▲                                     buffers, offsets, steps
//! ```
//!
//! * A [`Program`] is plain data: values, steps over them, and names for *feeds* (inputs given at each run), *fetches* (results) and
//!   *parameters* (tensors that outlive a run).
//! * [`record`] makes one from eager calls: tensors that a [`Recorder`] hands out belong to the recording, so calls on them are
//!   written down instead of executed.
//! * [`compile`](compile()) is a pure function from a program to a [`Compiled`]: it needs no engine and no device.
//!
//! No thread, no `unsafe`.
#![deny(unsafe_code)]

mod compile;
mod ir;
pub mod memory;
mod plan;
mod record;
mod show;
mod text;

pub use compile::{compile, compile_reporting};
pub use ir::program::{Operand, Port, Program, Step, Value, ValueId, ValueRole, Work};
pub use plan::compiled::{BufferRole, Compiled, CompiledBuffer, CompiledStep, FusedSteps, Located, Storage};
pub use plan::options::CompileOptions;
pub use record::recorder::{Recorder, record};
pub use show::dependences::{Dependence, DependenceKind};
pub use show::places::ValuePlace;
pub use show::trace::PassReport;
