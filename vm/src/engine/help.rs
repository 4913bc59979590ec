//! Helping: a waiting caller takes the run lock of a context and runs the tasks that it waits for.
//!
//! Waking a parked thread takes microseconds, and with one core two context switches; a built-in kernel of a few elements takes
//! nanoseconds. So a caller that waits for a point, and finds the run lock of that stream's context free, runs the tasks of
//! the stream up to that point in its own thread, at most one turn of them (`TURN` in `execute/context.rs`).
//!
//! Invariants:
//! * **A caller that helps runs no function of any caller**, because it may hold locks that the function takes; functions that promise to take none are the exception
//!   (`InlineFn::helpable`), whose operations it polls for a while, too. Each stream
//!   knows the number of its last submitted instruction that has other code of a caller; until that has passed, no caller helps. Calls of
//!   registered ops are such instructions, those with spans for a subscriber of `tracing`, and so are runs of compiled programs with a function or a registered op among their steps. Kernels that a caller has put in the
//!   place of built-in ones (`VmBuilder::kernels`) may run here; they promise to take no lock of a caller (`KernelFn`). As in any call, the logger may run in the calling thread, so may the panic hook for a kernel that panics, and so
//!   may callbacks if no thread can be started for them.
//! * **One thread runs a stream at a time, in order**, because running requires the run lock. When a thread of the engine wants the lock it
//!   sets a flag, which stops further callers: the thread waits for at most the caller that holds the lock and those that had read the flag
//!   just before.
//! * **No task is forgotten.** A helping caller may take in tasks that it does not run. A thread sees them before it parks
//!   ([`Context::prepare_park`](crate::execute::context::Context::prepare_park)) or leaves the strand
//!   ([`Context::leave`](crate::execute::context::Context::leave)), both of which check under the same lock.
//! * **A thread sees the end of the engine.** For every task that a caller can run here, its strand is queued or served, or is about to be
//!   queued by the thread that made the task ready; so a thread looks at it, and then whether the engine may end.
//! * **A caller with a deadline does not help**, because a kernel cannot be interrupted. No caller helps a stream whose device
//!   runs commands later.

use crate::engine::core::Engine;
use crate::progress::stream_state::StreamState;
use crate::sync::{Ordering, engine_thread};

impl Engine {
    /// Runs tasks of the stream `stream_state` up to number `seq`, at most one turn of them, if the calling thread may help and the run
    /// lock is free. Returns whether `seq` has passed. Does not block on the run lock.
    pub(crate) fn help(&self, stream_state: &StreamState, seq: u64) -> bool {
        if stream_state.in_flight.is_some()
            || stream_state.may_hold_code()
            || stream_state.context.wants_run_lock.load(Ordering::Relaxed)
        {
            return false;
        }
        let Some(locked) = self.threads.runner_of(stream_state.id) else { return false };
        let Ok(mut guard) = locked.run_lock.try_lock() else { return false };
        let Some(context) = guard.as_mut() else { return false };
        // A logger that a kernel calls must not wait for this engine: the thread counts as one of the engine's meanwhile.
        let here = engine_thread::visit();
        context.help(stream_state, seq, self);
        drop(here);
        stream_state.has_passed(seq)
    }
}
