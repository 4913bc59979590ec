//! Execution of tasks: the scheduler, the thread contexts, the workers and the completion.
//!
//! Layer: uses `observe`, `progress`, `dispatch`, `tasks`, `queue` and `sync`; is used by `submit`, `program_cache`, `functions`
//! and `engine`, which owns the threads. Every function takes an [`Environment`](environment::Environment), which holds neither the threads nor the submission lock.
//!
//! A task takes one of three paths:
//!
//! 1. A task of an ordered stream without host waits goes from the submitter straight to the thread context of its stream, while the
//!    scheduler holds nothing back on that stream.
//! 2. A task with host waits goes to the [`Scheduler`](scheduler::Scheduler). The scheduler holds back the task, and everything after it
//!    on the same ordered stream, until the points that it waits for have passed, and then dispatches it.
//! 3. A task of an unordered stream goes to the pool of its workers once its dependences are satisfied; a [`Worker`](worker::Worker) runs
//!    it.
//!
//! A [`Context`](context::Context) keeps one queue per stream and runs any stream whose head is ready. On streams whose device runs
//! commands later, a task is [launched](launch), and [`Completion`](completion::Completion) publishes that it has passed.
//!
//! Steps of a program that another device runs than the instruction's are on [lent streams](lent_streams).
//!
//! Invariants:
//! * Tasks of an ordered stream run in the order of their numbers.
//! * At any time one side may dispatch an ordered stream: the scheduler while it holds tasks of that stream, else the submitters.
//! * A task publishes that it has passed only after its captures are dropped.
//! * Only the holder of the run lock of a [`LockedContext`](locked_context::LockedContext) runs the context.

pub(crate) mod backpressure;
pub(crate) mod completion;
pub(crate) mod context;
pub(crate) mod environment;
pub(crate) mod launch;
pub(crate) mod lent_streams;
pub(crate) mod locked_context;
pub(crate) mod poll_pace;
pub(crate) mod run;
pub(crate) mod scheduler;
pub(crate) mod section_gate;
pub(crate) mod stall;
pub(crate) mod stream_runner;
pub(crate) mod worker;
