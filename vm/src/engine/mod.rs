//! The engine: owns threads and memory, and starts and ends the threads, all but that for callbacks ([`progress`](crate::progress)).
//!
//! Layer: uses `program_cache`, `submit`, `execute`, `observe`, `progress`, `dispatch`, `tasks`, `queue` and `sync`; is used by the public
//! API (`vm.rs`, `builder.rs`, `ticket.rs`, `critical_section.rs`, `functions`, `programs`).
//!
//! * [`Engine`](core::Engine) is one engine: an [`Environment`](crate::execute::environment::Environment) with its threads,
//!   devices and memory.
//! * [`Handle`](handle::Handle) leads from a tensor to its engine; it holds the submission lock and outlives the engine.
//! * [`owners`] keeps what owns memory that is not the engine's.
//! * [`submission`] runs the two passes of `submit` under that lock. Outside of it, it removes what stops a submission: it opens
//!   streams ([`open_stream`]), finds memory ([`oom_recovery`]), and waits while the queue is full.
//! * [`wait`] blocks callers until points have passed; a caller may run tasks meanwhile ([`help`]). Callbacks and futures wait as a
//!   [`RegisteredCallback`](registered_callback::RegisteredCallback).
//! * [`threads`] starts threads; `*_thread.rs` have their bodies, [`park`] how two of them wait for points. The thread of the trace writes it as it comes, or keeps it in a [`flight_recorder`]. [`simulated`] steps all of them in one thread instead.

pub(crate) mod affinity;
pub(crate) mod completion_thread;
pub(crate) mod context_thread;
pub(crate) mod core;
pub(crate) mod cuda;
pub(crate) mod flight_recorder;
pub(crate) mod handle;
pub(crate) mod help;
pub(crate) mod lane_priorities;
pub(crate) mod oom_recovery;
pub(crate) mod open_stream;
pub(crate) mod owners;
pub(crate) mod park;
pub(crate) mod policies;
pub(crate) mod profile;
pub(crate) mod registered_callback;
pub(crate) mod scheduler_thread;
pub(crate) mod simulated;
pub(crate) mod strand_thread;
pub(crate) mod submission;
pub(crate) mod threads;
pub(crate) mod trace_out;
pub(crate) mod trace_thread;
pub(crate) mod wait;
pub(crate) mod worker_sets;
pub(crate) mod worker_thread;
