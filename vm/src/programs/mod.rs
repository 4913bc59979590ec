//! Programs on an engine: recorded or parsed once, compiled, and run many times.
//!
//! Layer: uses all other layers; no folder uses it.
//!
//! The crate `streamvm-program` records and compiles, without an engine. An [`Executable`] here is a compiled program whose kernels were
//! found. Each run is one instruction, a function over feeds, parameters, fetches and the arena: so order, waits, poison, backpressure
//! and the race detector hold for runs as for any function.

mod executable;
mod fetches;

use streamvm_instructions::{Error, Tensor};
use streamvm_program::{CompileOptions, Program, Recorder, compile, record};

pub use crate::programs::executable::Executable;
pub use crate::programs::fetches::Fetches;
use crate::vm::Vm;

impl Vm {
    /// Runs `f`, and returns the program of the calls that it makes on the tensors that it gets from the [`Recorder`]. Nothing is
    /// computed, and the engine is not used: calls on other tensors run as always.
    ///
    /// ```
    /// use streamvm::program::CompileOptions;
    /// use streamvm::{DType, DeviceId, Vm};
    ///
    /// # fn main() -> Result<(), streamvm::Error> {
    /// let vm = Vm::builder().build()?;
    /// let w = vm.full(DeviceId::cpu(0), DType::F32, &[2, 2], 0.5)?;
    /// let program = vm.record("layer", |r| {
    ///     let x = r.feed("x", DeviceId::cpu(0), DType::F32, &[3, 2])?;
    ///     let w = r.parameter("w", &w)?;
    ///     r.fetch("y", &x.matmul(&w)?.relu()?)
    /// })?;
    /// let layer = vm.compile(&program, &[("w", &w)], &CompileOptions::default())?;
    /// for step in 0..3 {
    ///     let x = vm.full(DeviceId::cpu(0), DType::F32, &[3, 2], step)?;
    ///     let y = layer.run(&[("x", &x)])?; // returns at once
    ///     assert_eq!(y["y"].to_vec::<f32>()?, [step as f32; 6]);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of `f`: among them [`ProgramError`](streamvm_instructions::ProgramError) for calls that cannot be recorded. A name that is
    /// empty or was given twice.
    pub fn record(
        &self,
        name: impl Into<String>,
        f: impl FnOnce(&Recorder) -> Result<(), Error>,
    ) -> Result<Program, Error> {
        record(name, f)
    }

    /// Compiles a program for this engine. `parameters` are the tensors that its parameters stand for; runs read and write them. Blocks
    /// for as long as compiling takes; submits nothing.
    ///
    /// # Errors
    /// The program is not well formed, or cannot be compiled; an op has no kernel for a dtype; the engine has no such device. A
    /// parameter is missing, unknown, named twice, or does not fit the program.
    pub fn compile(
        &self,
        program: &Program,
        parameters: &[(&str, &Tensor)],
        options: &CompileOptions,
    ) -> Result<Executable, Error> {
        Executable::new(&self.engine, compile(program, options)?, parameters)
    }
}
