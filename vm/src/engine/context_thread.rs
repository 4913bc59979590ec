//! The thread of a thread context: runs tasks, spins for a while when there are none, then parks.
//!
//! * The thread holds the run lock for one round at a time, so that a waiting caller can help between two rounds
//!   ([`help`](crate::engine::help)).
//! * While callers help, the thread keeps spinning: if it parked, each submission would have to wake it by a system call.

use std::sync::Arc;

use crate::execute::context::Context;
use crate::execute::environment::Environment;
use crate::execute::locked_context::LockedContext;
use crate::execute::poll_pace::PollPace;
use crate::sync::spin::{self, Spin};
use crate::sync::{MutexGuard, Ordering, engine_thread, unpoisoned};

/// The body of the thread of a context; returns when the engine is over.
pub(crate) fn serve(locked: Arc<LockedContext>, env: &Environment) {
    engine_thread::enter();
    locked.handle.parker.belongs_here();
    debug_assert!(
        env.contexts.all().iter().any(|known| Arc::ptr_eq(known, &locked.handle)),
        "a thread that is not listed is not woken for the end"
    );
    *unpoisoned(locked.run_lock.lock()) = Some(Context::with_thread(&locked));
    let mut next = Next::default();
    while round(&locked, env, &mut next) {}
    let context = unpoisoned(locked.run_lock.lock()).take();
    env.wake_all();
    drop(context);
}

/// What one round tells the next.
pub(crate) struct Next {
    /// The next round checks the inbox.
    pub(crate) checks_inbox: bool,
    /// The last task that ran was a function, or an operation has ended, and a caller was waiting. That caller probably submits the next function and
    /// waits again, so the thread polls its inbox at once, without first reading that a caller waits: one cache line less
    /// (`docs/adr/waiting-callers.md`). For other tasks the thread does not, because the waiting caller can mostly run those itself.
    pub(crate) waited: bool,
    /// How often it polls operations.
    pace: PollPace,
}

impl Default for Next {
    fn default() -> Next {
        Next { checks_inbox: true, waited: false, pace: PollPace::default() }
    }
}

/// Runs tasks, or, when none is ready, spins for new ones and then parks. Returns false when the engine is over.
fn round(locked: &LockedContext, env: &Environment, next: &mut Next) -> bool {
    let mut guard = acquire_run_lock(locked);
    let Some(context) = guard.as_mut() else { return false };
    let worked = context.work(next.checks_inbox, env);
    let waits = somebody_waits(env);
    next.checks_inbox = context.poll_inbox_next || waits;
    if worked {
        next.pace.restart();
        next.waited = waits && context.has_run_code();
        return true;
    }
    context.give_back(env);
    if context.polls() {
        context.note_heads();
        drop(guard);
        next.checks_inbox = true;
        next.pace.pause();
        return true;
    }
    if env.may_end() {
        return false;
    }
    let holds = context.holds();
    drop(guard);
    next.checks_inbox = true;
    if finds_work(locked, env, holds, next.waited, || false) {
        return true;
    }
    let mut guard = acquire_run_lock(locked);
    let Some(context) = guard.as_mut() else { return false };
    if !context.is_ready(env) {
        let park = context.prepare_park(env);
        drop(guard);
        park.sleep(&locked.handle.parker, env);
    }
    true
}

/// Takes the run lock; blocks while a caller that helps holds it. If the lock is taken, the thread sets a flag first, so
/// that no further caller helps: otherwise callers could pass the lock from one to the next before this thread has woken.
pub(crate) fn acquire_run_lock(locked: &LockedContext) -> MutexGuard<'_, Option<Context>> {
    if let Ok(guard) = locked.run_lock.try_lock() {
        return guard;
    }
    locked.handle.wants_run_lock.store(true, Ordering::Relaxed);
    let guard = unpoisoned(locked.run_lock.lock());
    locked.handle.wants_run_lock.store(false, Ordering::Relaxed);
    guard
}

/// Spins until there is work to do, or until the spin is used up; returns whether there is work. `holds` says whether the
/// context has tasks that have not run, or a stream whose device runs commands later. `waited` is [`Next::waited`]. Returns false early
/// if `gives_up` returns true, which is a relaxed load.
pub(crate) fn finds_work(
    locked: &LockedContext,
    env: &Environment,
    mut holds: bool,
    waited: bool,
    gives_up: impl Fn() -> bool,
) -> bool {
    let mut spin = Spin::new(spin::CONTEXT);
    let is_urgent = || waited || somebody_waits(env);
    loop {
        // A check of an empty inbox takes its cache line away from the next submitter, so it happens only now and then.
        let checks_inbox = spin.is_nth(spin::INBOX_EVERY) || is_urgent();
        if checks_inbox && !locked.handle.inbox.is_empty() {
            return true;
        }
        if (holds || checks_inbox)
            && let Ok(mut guard) = locked.run_lock.try_lock()
            && let Some(context) = guard.as_mut()
        {
            if context.has_ready_head(env) {
                return true;
            }
            if context.was_helped() {
                (spin, holds) = (Spin::new(spin::CONTEXT), context.holds());
            }
        }
        let spin_check = || is_urgent() && !locked.handle.inbox.is_empty();
        if gives_up() || !spin.turn(spin_check) {
            return false;
        }
    }
}

/// Whether a caller spins for an instruction: a context then polls its inbox at every turn of its own spin.
#[inline]
pub(crate) fn somebody_waits(env: &Environment) -> bool {
    env.waiting.load(Ordering::Relaxed) > 0
}
