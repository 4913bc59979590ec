//! Programs on an engine: recorded or parsed once, compiled, and run many times.
//!
//! Layer: uses `vm.rs`, `ticket.rs`, `engine`, `program_cache`, `submit` and `sync`; is used by no other folder.
//!
//! | what | of what | by whom, when |
//! |---|---|---|
//! | recorded | the calls of a closure, as a program | [`Vm::record`], without running them (`streamvm-program`) |
//! | compiled | a program, as segments over planned memory | [`Vm::compile`], a pure function (`program/src/compile`) |
//! | prepared | each segment with steps | its device (`Device::prepare`), once `program_cache/load.rs` has found the kernels |
//! | cached | a compiled program with its prepared segments | [`Vm::compiled`] and [`Jit`], in the engine (`program_cache/cache.rs`) |
//! | run | an [`Executable`], which is such a program with its parameters | [`Executable::run`]: one instruction for each segment, which a stream executes (`Stream::execute`) |
//!
//! A [`Jit`] looks for a program of its closure by the shapes, dtypes and places of the feeds, and records and compiles the closure where there is none.
//!
//! The instructions of a run are functions over feeds, parameters, fetches and arenas, and copies. So order, waits, poison, backpressure and the race
//! detector hold for runs as for any instruction. If the whole program is one kernel call on a CPU, a run submits that call (`program_cache/only_kernel.rs`).

mod apart;
mod executable;
mod fetches;
mod jit;
mod parts;
mod sizes;
mod watch;

use std::sync::Arc;

use streamvm_ep::Site;
use streamvm_instructions::{Error, Tensor};
use streamvm_program::{CompileOptions, Program, Recorder, compile, record, record_bounded};

use crate::engine::core::Engine;
use crate::program_cache::key::Query;
use crate::program_cache::loaded::LoadedProgram;
pub use crate::programs::executable::Executable;
pub use crate::programs::fetches::Fetches;
pub use crate::programs::jit::Jit;
pub use crate::programs::watch::{StepTime, Watch, WatchedStep};
use crate::sync::fork::refuse_in_child;
use crate::vm::Vm;

impl Vm {
    /// Runs `f`, and returns the program of the calls that it makes on the tensors that it gets from the [`Recorder`]. Nothing is
    /// computed, and the engine is not used: calls on other tensors run as always. The thread is on lane 0 until `f` returns.
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
    /// Those of `f`: among them [`ProgramError`](streamvm_instructions::ProgramError) for calls that cannot be recorded. Names that are
    /// empty, have spaces, or were given twice.
    #[track_caller]
    pub fn record(
        &self,
        name: impl Into<String>,
        f: impl FnOnce(&Recorder) -> Result<(), Error>,
    ) -> Result<Program, Error> {
        record(name, f)
    }

    /// Records a program of which some feeds have axes of any size up to a bound. It is compiled once, for the bounds, which also decide how much memory a run
    /// has; each run has the sizes of its feeds, and a run with other sizes compiles nothing.
    ///
    /// `f` is called several times, each time for other sizes (up to 13 times for two bounded sizes): the tensors have the sizes of that call, and what it computes
    /// of them by sums, products and quotients may be a shape, or where a slice ends. All calls must record the same steps.
    ///
    /// ```
    /// use streamvm::program::{CompileOptions, Dim};
    /// use streamvm::{DType, DeviceId, Vm};
    ///
    /// # fn main() -> Result<(), streamvm::Error> {
    /// let (vm, cpu) = (Vm::builder().build()?, DeviceId::cpu(0));
    /// let program = vm.record_bounded("sums", |r| {
    ///     let x = r.bounded_feed("x", cpu, DType::F32, &[Dim::up_to("batch", 8), Dim::up_to("length", 16), 2.into()])?;
    ///     let [batch, length, _] = x.shape().dims()[..] else { unreachable!("it has three axes") };
    ///     r.fetch("y", &x.reshape(&[batch * length, 2])?.sum(&[1])?)
    /// })?;
    /// let sums = vm.compile(program, &[], &CompileOptions::default())?;
    /// for (batch, length) in [(1, 16), (8, 3)] {
    ///     let x = vm.ones(cpu, DType::F32, &[batch, length, 2])?;
    ///     assert_eq!(sums.run(&[("x", &x)])?["y"].to_vec::<f32>()?, vec![2.0; batch * length]);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of `f`, and of [`record_bounded`](streamvm_program::record_bounded()).
    #[track_caller]
    pub fn record_bounded(
        &self,
        name: impl Into<String>,
        f: impl Fn(&Recorder) -> Result<(), Error>,
    ) -> Result<Program, Error> {
        record_bounded(name, f)
    }

    /// Compiles a program for this engine, each time; [`Vm::compiled`] keeps what it has compiled. The executable shares the program: of a `&Program` it takes
    /// a copy, of a `Program` or an `Arc<Program>` none.
    ///
    /// `parameters` are the tensors that its parameters stand for; runs read and write them. Blocks for as long as compiling takes; submits
    /// nothing.
    ///
    /// # Errors
    /// The program is not well formed, or cannot be compiled; an op has no kernel for a dtype; the engine has no such device. A
    /// parameter is missing, unknown, named twice, or does not fit the program; or one tensor is bound to two parameters of which the program
    /// writes one ([`ProgramError::Shared`](streamvm_instructions::ProgramError::Shared)).
    #[track_caller]
    pub fn compile(
        &self,
        program: impl Into<Arc<Program>>,
        parameters: &[(&str, &Tensor)],
        options: &CompileOptions,
    ) -> Result<Executable, Error> {
        refuse_in_child(self.engine.handle.fork)?;
        let compiled = compile(program, options);
        let (loaded, site) = (compiled.and_then(|compiled| LoadedProgram::new(&self.engine, compiled)), Site::caller());
        log_reasons(&self.engine);
        let loaded = loaded.map_err(|error| error.called_from(site))?;
        Executable::new(&self.engine, Arc::new(loaded), parameters, site).map_err(|error| error.called_from(site))
    }

    /// [`Vm::compile`], unless the engine has compiled an equal program with equal options before and still has the result.
    ///
    /// Programs are equal if all of their content is, source lines and [scopes](crate::scope) included; it does not matter which recording made them. The tensors of
    /// the parameters are bound anew by each call, so an equal program with other weights is found, too, and the cache keeps no tensor alive.
    /// The least recently used programs are dropped beyond [`VmBuilder::max_cached_programs`](crate::VmBuilder::max_cached_programs) and
    /// [`VmBuilder::max_cached_program_bytes`](crate::VmBuilder::max_cached_program_bytes); executables that were made of them still work.
    /// [`Stats::programs`](crate::Stats::programs) counts hits, misses and evictions.
    ///
    /// Takes time in proportion to the program to find it. Blocks for as long as compiling takes if the program is not found, or while
    /// another thread compiles it. Several threads may call it at once. Submits nothing.
    ///
    /// ```
    /// use streamvm::program::{CompileOptions, Program};
    /// use streamvm::{DType, DeviceId, Vm};
    ///
    /// # fn main() -> Result<(), streamvm::Error> {
    /// let vm = Vm::builder().build()?;
    /// let doubled = |rows: usize| {
    ///     vm.record("doubled", |r| {
    ///         let x = r.feed("x", DeviceId::cpu(0), DType::F32, &[rows])?;
    ///         r.fetch("y", &(&x + &x)?)
    ///     })
    /// };
    /// for rows in [3, 5, 3] {
    ///     let executable = vm.compiled(&doubled(rows)?, &[], &CompileOptions::default())?;
    ///     let x = vm.ones(DeviceId::cpu(0), DType::F32, &[rows])?;
    ///     assert_eq!(executable.run(&[("x", &x)])?["y"].to_vec::<f32>()?, vec![2.0; rows]);
    /// }
    /// let counted = vm.stats().programs;
    /// assert_eq!((counted.hits, counted.misses), (1, 2));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Vm::compile`]. A program that cannot be compiled is not kept.
    #[track_caller]
    pub fn compiled(
        &self,
        program: impl Into<Arc<Program>>,
        parameters: &[(&str, &Tensor)],
        options: &CompileOptions,
    ) -> Result<Executable, Error> {
        refuse_in_child(self.engine.handle.fork)?;
        let program = &program.into();
        let load = || LoadedProgram::new(&self.engine, compile(program.clone(), options)?);
        let loaded = self.engine.programs.get_or_load(Query::Program { program, options }, load);
        log_reasons(&self.engine);
        let site = Site::caller();
        let made = loaded.and_then(|loaded| Executable::new(&self.engine, loaded, parameters, site));
        made.map_err(|error| error.called_from(site))
    }
}

/// Logs why devices made no fused kernels for a program that was just loaded.
fn log_reasons(engine: &Engine) {
    engine.devices.iter().for_each(|device| device.log_reasons());
}
