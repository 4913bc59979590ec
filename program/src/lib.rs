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
//! * Steps may lie in blocks that a condition of the program decides about: [`Recorder::while_true`], [`Recorder::if_true`],
//!   [`Recorder::if_else`]. A recording may call other programs ([`Recorder::call`]) and functions ([`Recorder::call_fn`]), and has critical sections
//!   ([`Recorder::begin_section`]).
//! * [`memory`] plans offsets of buffers by lifetime; it also works alone.
//!
//! ```
//! use streamvm_ep::{DType, DeviceId};
//! use streamvm_program::{CompileOptions, compile, record};
//!
//! # fn main() -> Result<(), streamvm_instructions::Error> {
//! let program = record("twice", |r| {
//!     let x = r.feed("x", DeviceId::cpu(0), DType::F32, &[4])?;
//!     r.fetch("y", &(&x + &x)?)
//! })?;
//! let compiled = compile(&program, &CompileOptions::default())?;
//! assert_eq!((compiled.steps().len(), compiled.arena_bytes()), (1, 0));
//! # Ok(())
//! # }
//! ```
//!
//! A recording belongs to the thread that began it; programs and compiled programs are `Send + Sync`. The crate starts no thread and has no
//! `unsafe`.
#![deny(unsafe_code)]

mod compile;
mod ir;
pub mod memory;
mod plan;
mod record;
mod show;
mod text;

pub use compile::{compile, compile_reporting};
pub use ir::dims::{BoundedDim, Dim, MOST_DIMS, Sizes, VaryingId};
pub use ir::formula::{Formula, VaryingLayout};
pub use ir::function::{FunctionCode, FunctionOrder, StepFunction};
#[doc(hidden)]
pub use ir::given::in_order;
pub use ir::program::{Operand, Port, Program, Step, StepOrder, Value, ValueId, ValueRole, Work};
pub use ir::section::StepSection;
pub use plan::compiled::{
    ArenaPlan, BufferRole, Compiled, CompiledBuffer, CompiledStep, FusedBy, FusedSteps, Located, OtherPart, OtherRole,
    Segment, SegmentBranch, SegmentUse, Storage,
};
pub use plan::costs::Costs;
#[doc(hidden)]
pub use plan::mutant::Mutant;
pub use plan::options::CompileOptions;
pub use record::bounded::record_bounded;
#[doc(hidden)]
pub use record::bounded::record_bounded_at;
pub use record::recorder::{Recorder, record};
pub use record::results::Results;
pub use record::steps::Steps;
pub use show::dependences::{Dependence, DependenceKind};
pub use show::edges::{Edge, KeptBy};
pub use show::places::ValuePlace;
pub use show::trace::PassReport;
