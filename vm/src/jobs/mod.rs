//! Job plans on an engine: runs of several executables, submitted in the order of a plan.
//!
//! Layer: uses `vm.rs`, `ticket.rs`, `programs`, `engine`, `submit` and `sync`; is used by no other folder.
//!
//! The crate `streamvm-program` plans, without an engine ([`JobPlan`]). [`Jobs`] here is a plan with its executables. A run of it submits one
//! run for each job, on the lane of the job's stage; such a run is one instruction for each segment of the job's program. Order, waits, failures
//! and backpressure are those of runs of programs: a job waits for the jobs whose values it reads, and stages overlap as streams do.

mod planned;
mod results;

use streamvm_instructions::Error;
use streamvm_program::JobPlan;

pub use crate::jobs::planned::Jobs;
pub use crate::jobs::results::JobResults;
use crate::programs::Executable;
use crate::sync::fork::refuse_in_child;
use crate::vm::Vm;

impl Vm {
    /// Gives the programs of a plan their executables, which are found by the names of their programs. Submits nothing, and does not block.
    ///
    /// ```
    /// use streamvm::program::{CompileOptions, Pipeline, PipelineStage};
    /// use streamvm::{DType, DeviceId, Vm};
    ///
    /// # fn main() -> Result<(), streamvm::Error> {
    /// let vm = Vm::builder().build()?;
    /// let cpu = DeviceId::cpu(0);
    /// // Two stages: a value that one fetches is fed to the other under the same name.
    /// let first = vm.record("first", |r| {
    ///     let x = r.feed("x", cpu, DType::F32, &[2, 3])?;
    ///     r.fetch("h", &(&x + &x)?)
    /// })?;
    /// let second = vm.record("second", |r| r.fetch("y", &r.feed("h", cpu, DType::F32, &[2, 3])?.neg()?))?;
    /// let first = vm.compile(&first, &[], &CompileOptions::default())?;
    /// let second = vm.compile(&second, &[], &CompileOptions::default())?;
    ///
    /// let stages = [&first, &second].map(|stage| PipelineStage::new(stage.compiled()));
    /// let plan = Pipeline::new(stages).result("y").fthenb(4)?;
    /// let jobs = vm.jobs(&plan, &[&first, &second])?;
    /// let x = vm.ones(cpu, DType::F32, &[8, 3])?; // four micro-batches of two rows
    /// let run = jobs.run(&[("x", &x)])?; // returns at once
    /// assert_eq!(run[("y", 3)].to_vec::<f32>()?, [-2.0; 6]);
    /// assert_eq!(run.joined("y")?.shape().dims(), [8, 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::JobPlan`]: an executable is missing, given twice, of no program of the plan, compiled from another program than the planned one,
    /// or by another engine; two executables of a stage have different tensors for parameters of one name; a run would need more memory in one
    /// place than its memory limit, or than the device has ([`JobPlanError::TooMuchMemory`](streamvm_instructions::JobPlanError::TooMuchMemory)).
    /// A CUDA device without a memory limit is asked how much it has, for which it is opened.
    pub fn jobs(&self, plan: &JobPlan, executables: &[&Executable]) -> Result<Jobs, Error> {
        refuse_in_child(self.engine.handle.fork)?;
        Jobs::new(&self.engine, plan, executables)
    }
}
