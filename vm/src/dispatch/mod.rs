//! Queues of ready tasks, and the wake-up of the threads that run them.
//!
//! Layer: uses `tasks`, `queue` and `sync`; is used by `progress`, `execute`, `submit`, `program_cache`, `engine` and
//! `functions`. Nothing in here runs a task.
//!
//! * A [`ContextHandle`](context_handle::ContextHandle) is what other threads see of a thread context: its queue and its parker.
//!   [`DispatchBatches`](batch::DispatchBatches) collects tasks for several contexts and pushes each batch at once.
//! * A [`Strand`](strand::Strand) is a thread context of one stream without a thread of its own; the threads of a
//!   [`ThreadGroup`](thread_group::ThreadGroup) serve the strands of one device.
//! * A [`Pool`](pool::Pool) has the queues of the workers that run an unordered stream, with the [`IdleSet`](idle_set::IdleSet) of
//!   parked workers and the [`UrgentQueue`](urgent_queue::UrgentQueue) for deletions of variables.
//! * [`DependenceNodes`](dependence_node::DependenceNodes) count the open dependences of the tasks of unordered streams.
//! * A [`DeferredFunction`](deferred_function::DeferredFunction) is a function that completes later than it returns.

pub(crate) mod batch;
pub(crate) mod context_handle;
pub(crate) mod contexts;
pub(crate) mod deferred_function;
pub(crate) mod dependence_node;
pub(crate) mod function_outcome;
pub(crate) mod idle_set;
pub(crate) mod pool;
pub(crate) mod strand;
pub(crate) mod thread_group;
pub(crate) mod urgent_queue;
