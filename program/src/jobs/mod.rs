//! Job plans: an order of runs of several compiled programs, for pipelines of stages and for micro-batches.
//!
//! Layer: uses `ir` and `plan`; is used by no other folder.
//!
//! ```text
//!   Pipeline ── in_order, fthenb, one_f_one_b ──▶ JobPlanBuilder ── finish ──▶ JobPlan ──▶ an engine submits its jobs
//! ```
//!
//! A *job* is one run of a program on a *stage*, for one micro-batch or once for the whole batch. Jobs hand each other *values*: a fetch
//! of one job is the feed of the same name of other jobs of its micro-batch. A plan is plain data, tied to no engine; what makes it is a
//! pure function.
//!
//! | file | idea |
//! |---|---|
//! | [`programs`] | what a plan knows of a compiled program |
//! | [`builder`] | a plan by hand: programs, stages, and the jobs of each stage in their order |
//! | [`schedule`] | the orders of pipelines: FThenB, 1F1B |
//! | [`links`] | which job makes what a job needs, and the checks of names, shapes and dtypes |
//! | [`timeline`] | when each job can start, or which stages wait for each other for ever |
//! | [`peaks`] | how many micro-batches and bytes are alive at once |
//! | [`job_plan`] | the plan |
//! | [`text`] | the plan for people |

pub(crate) mod builder;
pub(crate) mod job_plan;
mod links;
mod peaks;
pub(crate) mod programs;
pub(crate) mod schedule;
#[cfg(test)]
mod tests;
mod text;
mod timeline;
