//! The dependence patterns of Task Bench (Slaughter et al., "Task Bench: A Parameterized Benchmark for Evaluating Parallel Runtime
//! Performance", SC 2020, arXiv 1908.05790), written anew from their description.
//!
//! A graph has rows of tasks, one row a step. A task reads the outputs of tasks of the row before, as its [`pattern`] names them. It checks
//! that each input is the right one, runs a kernel of a given length, and writes its own output; [`board`] has the outputs and the task.
//! The figure of an engine is its METG(50 %), the *minimum effective task granularity*: the smallest task, as wall time × cores / tasks,
//! at which the engine still reaches half of the peak rate of floating-point operations. [`metg`] finds it.
//!
//! [`streamvm`] runs graphs on streamvm in five ways, two of them as programs: of a row (`programs.rs`), and of many rows
//! (`graph_programs.rs`). [`native`] runs them on OpenMP tasks, StarPU and MPI, whose drivers
//! `native/taskbench.sh` builds. These have the same patterns, task and kernel in `native/taskbench.h`; a test compares the inputs that
//! both sides name. The search is on this side alone: a driver runs one graph at a time and answers with its seconds.
//!
//! [`engine`] lists the engines, [`run`] measures them in turn, and [`report`] prints and writes what came out.

pub mod board;
pub mod engine;
pub mod error;
mod graph_programs;
pub mod kernel;
pub mod metg;
pub mod native;
pub mod pattern;
mod programs;
pub mod report;
pub mod run;
pub mod streamvm;
