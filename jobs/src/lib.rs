//! Job plans: an order of runs of several compiled programs, for pipelines of stages and for micro-batches.
//!
//! ```text
//!   Pipeline ── in_order, fthenb, one_f_one_b ──▶ JobPlanBuilder ── finish ──▶ JobPlan ──▶ Jobs ── run ──▶ JobResults
//! ```
//!
//! A *job* is one run of a program on a *stage*, for one micro-batch or once for the whole batch. Jobs hand each other *values*: a fetch
//! of one job is the feed of the same name of other jobs of its micro-batch. A plan is plain data, tied to no engine; what makes it is a
//! pure function. [`Jobs`] is a plan with its executables: a run of it submits one run for each job, on the lane of the job's stage. Order, waits, failures
//! and backpressure are those of runs of programs: a job waits for the jobs whose values it reads, and stages overlap as streams do.
//!
//! The crate uses nothing but what everybody has of [`streamvm`].
//!
//! | file | idea |
//! |---|---|
//! | `programs` | what a plan knows of a compiled program |
//! | `builder` | a plan by hand: programs, stages, and the jobs of each stage in their order |
//! | `schedule` | the orders of pipelines: FThenB, 1F1B |
//! | `links` | which job makes what a job needs, and the checks of names, shapes and dtypes |
//! | `timeline` | when each job can start, or which stages wait for each other for ever |
//! | `peaks` | how many micro-batches and bytes are alive at once |
//! | `job_plan` | the plan |
//! | `text` | the plan for people |
//! | `jobs` | a plan with its executables, and its runs |
//! | `results` | the results of a run |
//! | `error` | why a plan cannot be made, or cannot run with what it is given |
//!
//! # Example
//!
//! ```
//! use streamvm::program::CompileOptions;
//! use streamvm::{DType, DeviceId, Vm};
//! use streamvm_jobs::{Jobs, Pipeline, PipelineStage};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let vm = Vm::builder().build()?;
//! let cpu = DeviceId::cpu(0);
//! // Two stages: a value that one fetches is fed to the other under the same name.
//! let first = vm.record("first", |r| {
//!     let x = r.feed("x", cpu, DType::F32, &[2, 3])?;
//!     r.fetch("h", &(&x + &x)?)
//! })?;
//! let second = vm.record("second", |r| r.fetch("y", &r.feed("h", cpu, DType::F32, &[2, 3])?.neg()?))?;
//! let first = vm.compile(&first, &[], &CompileOptions::default())?;
//! let second = vm.compile(&second, &[], &CompileOptions::default())?;
//!
//! let stages = [&first, &second].map(|stage| PipelineStage::new(stage.compiled()));
//! let plan = Pipeline::new(stages).result("y").fthenb(4)?;
//! let jobs = Jobs::new(&vm, &plan, &[&first, &second])?;
//! let x = vm.ones(cpu, DType::F32, &[8, 3])?; // four micro-batches of two rows
//! let run = jobs.run(&[("x", &x)])?; // returns at once
//! assert_eq!(run[("y", 3)].to_vec::<f32>()?, [-2.0; 6]);
//! assert_eq!(run.joined("y")?.shape().dims(), [8, 3]);
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]

/// Runs the programs of the page about jobs as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/job-plans.md")]
struct PageOfJobs;

mod builder;
mod error;
mod job_plan;
mod jobs;
mod links;
mod peaks;
mod programs;
mod results;
mod schedule;
#[cfg(test)]
mod tests;
mod text;
mod timeline;

pub use builder::JobPlanBuilder;
pub use error::{BlockedStage, JobPlanError};
pub use job_plan::{Accumulator, Job, JobFeed, JobInput, JobPlan, JobStage, JobValue, StagePeak};
pub use jobs::Jobs;
pub use programs::{JobPort, JobProgram, PlaceBytes};
pub use results::JobResults;
pub use schedule::{Pipeline, PipelineStage};
