//! Programs of a script: defined once, recorded, and run.
//!
//! A block is recorded where it stands, on tensors that stand for its inputs and parameters. So whatever cannot be part of a program is
//! found before anything runs, in every mode. The names of the script that the block uses are captured at that place: a later `let` of
//! such a name does not change the program.
//!
//! A run emits the statements of the block in a scope of their own ([`enter`], [`leave`]), or is one call of the executable that was
//! compiled from the recording ([`run_inputs`], [`bind_results`]).
//!
//! [`enter`]: crate::emit::Emitter::enter
//! [`leave`]: crate::emit::Emitter::leave
//! [`run_inputs`]: crate::emit::Emitter::run_inputs
//! [`bind_results`]: crate::emit::Emitter::bind_results
//!
//! A block may run programs that are defined before it. Their recordings become part of its own ([`Recorder::call`](crate::base::engine::Recorder::call)),
//! and their parameters are parameters of it.
//!
//! Several names of the script may be views of one storage. In the program they are views of one parameter, which is that storage, so that
//! a write through one of them is seen through the others, as it is outside of programs.

mod allowed;
mod captured;
pub(crate) mod not_compiled;
mod record;
mod run;

use std::collections::HashMap;
use std::sync::Arc;

use crate::base::engine::{Program, Tensor};
use crate::emit::Binding;
use crate::syntax::ast::ProgramBlock;

/// Most steps of one program; a `repeat` counts each of its rounds. A person reads a plan of some hundred steps, and recording ten
/// thousand takes milliseconds.
pub const MAX_STEPS: usize = 10_000;

/// Most steps of all programs of a script together, and of all its `run` statements together, each of which counts once; there, a statement
/// without a step, an input and a result count as a step. It bounds the time and the memory of a check, and the list of `streamvm check`,
/// whatever a script of a megabyte holds.
pub const MAX_ALL_STEPS: usize = 100_000;

/// A parameter of a program.
#[derive(Debug)]
pub struct Parameter {
    /// The name of the script by which the block uses it first.
    pub name: String,
    /// The tensor: a whole storage.
    pub tensor: Tensor,
    /// Does a step write it?
    pub is_written: bool,
}

/// A program of a script.
#[derive(Debug)]
pub struct Defined {
    /// The program as written.
    pub block: Arc<ProgramBlock>,
    /// The recording.
    pub program: Program,
    /// What a run counts for the bound of all runs.
    pub weight: usize,
    /// The parameters, in the order of the recording.
    pub parameters: Vec<Parameter>,
    /// What the names from outside stand for.
    captured: HashMap<String, Binding>,
}
