//! Helping: a caller that waits runs what it waits for itself, if it may.
//!
//! A thread that sleeps takes microseconds to be woken, and with one core two switches; a built-in kernel of a few elements takes
//! nanoseconds. So a caller that waits, and finds the turn of the context free, takes it: it runs the instructions of the stream that it
//! waits for, up to the one that it waits for, in its own thread, as the context's thread would have.
//!
//! Invariants:
//! * Never a caller's code: whoever waits may hold locks that the code takes. A stream knows the number of its last instruction
//!   that has any; below that nothing is run here. Kernels are all the engine's own. What remains is what any call may do in its
//!   caller's thread: log, for a kernel that panics call the panic hook, and call back where no thread can be started for callbacks.
//! * Who has the driver's lock has the turn, so a stream is run by one thread at a time, in order. The context's thread has it when it
//!   wants it, once the caller that has it is done, and those who had looked just before: other streams of the context are kept waiting by
//!   a turn or two.
//! * Nothing is left to be found: what was taken in and not run is seen by the context's thread before it sleeps, as
//!   [`Context::lie_down`](crate::context::Context::lie_down) looks under the same lock. Nor does the thread sleep through the end of the
//!   engine: whatever is ready here, it is awake for, or about to be woken for by whoever made it ready.
//! * A caller with a deadline does not help: a kernel is not interrupted. Nor does anyone for a device that runs by itself.

use crate::engine_thread;
use crate::entry::StreamEntry;
use crate::shared::Shared;
use crate::sync::Ordering;

impl Shared {
    /// Runs the instructions of a stream up to `seq`, if that may be done here and now. Returns whether it has passed.
    pub(crate) fn help(&self, entry: &StreamEntry, seq: u64) -> bool {
        if entry.flight.is_some() || entry.may_hold_code() || entry.context.wants_turn.load(Ordering::Relaxed) {
            return false;
        }
        let Ok(mut driver) = entry.context.driver.try_lock() else { return false };
        let Some(context) = driver.as_mut() else { return false };
        // What a logger does must not wait for this thread.
        let here = engine_thread::visit();
        context.help(entry, seq, self);
        drop(here);
        entry.has_passed(seq)
    }
}
