//! The thread of a context: works, spins a little, sleeps.
//!
//! It has the driver's lock for one round at a time, so that a caller that waits can have a turn between two ([`help`](crate::help)).
//! While callers do, it does not fall asleep: they would have to wake it with each submission.

use std::sync::Arc;

use crate::context::Context;
use crate::context_shared::ContextShared;
use crate::engine_thread;
use crate::shared::Shared;
use crate::spin::{self, Spin};
use crate::sync::{MutexGuard, Ordering, unpoisoned};

/// The body of a context's thread; ends when the engine is over.
pub(crate) fn serve(shared: Arc<ContextShared>, vm: Arc<Shared>) {
    engine_thread::enter();
    shared.sleeper.belongs_here();
    *unpoisoned(shared.driver.lock()) = Some(Context::with_thread(shared.clone()));
    let mut next = Next { looks: true, waited: false };
    while round(&shared, &vm, &mut next) {}
    let context = unpoisoned(shared.driver.lock()).take();
    vm.wake_all();
    drop(context);
}

/// What a round leaves for the next.
struct Next {
    /// There may be something to take in.
    looks: bool,
    /// When a function had run last, a caller was waiting: it may submit the next one and wait again, and a look that waits until it is seen to
    /// do so waits for one line more. Other instructions such a caller runs itself, if nobody is quicker.
    /// Measured on 2 cores, ns, medians of 11 runs in turns, submit and wait for a function without / with it: 271 / 240.
    waited: bool,
}

/// Works, or looks for work and sleeps; returns false when the engine is over.
fn round(shared: &ContextShared, vm: &Shared, next: &mut Next) -> bool {
    let mut driver = take_turn(shared);
    let Some(context) = driver.as_mut() else { return false };
    let worked = context.work(next.looks, vm);
    let waits = somebody_waits(vm);
    next.looks = context.lags || waits;
    if worked {
        next.waited = waits && context.has_run_code();
        return true;
    }
    context.give_back(vm);
    if vm.is_over() {
        return false;
    }
    let holds = context.holds();
    drop(driver);
    next.looks = true;
    if finds_work(shared, vm, holds, next.waited) {
        return true;
    }
    let mut driver = take_turn(shared);
    let Some(context) = driver.as_mut() else { return false };
    if !context.is_ready(vm) {
        let bed = context.lie_down(vm);
        drop(driver);
        bed.sleep(&shared.sleeper, vm);
    }
    true
}

/// Takes the turn, after the caller that has it, if one does. Callers that help one after the other would take it from each other before
/// this thread has woken.
fn take_turn(shared: &ContextShared) -> MutexGuard<'_, Option<Context>> {
    if let Ok(turn) = shared.driver.try_lock() {
        return turn;
    }
    shared.wants_turn.store(true, Ordering::Relaxed);
    let turn = unpoisoned(shared.driver.lock());
    shared.wants_turn.store(false, Ordering::Relaxed);
    turn
}

/// Looks for work for a while. `holds` says whether the context has taken something in that has not run.
fn finds_work(shared: &ContextShared, vm: &Shared, mut holds: bool, waited: bool) -> bool {
    let mut spin = Spin::new(spin::CONTEXT);
    let is_urgent = || waited || somebody_waits(vm);
    loop {
        // Each look into an empty inbox takes its line away from whoever pushes next.
        let looks_in = spin.is_nth(spin::INBOX_EVERY) || is_urgent();
        if looks_in && !shared.seems_empty() {
            return true;
        }
        if (holds || looks_in)
            && let Ok(mut driver) = shared.driver.try_lock()
            && let Some(context) = driver.as_mut()
        {
            if context.has_ready_head(vm) {
                return true;
            }
            if context.was_helped() {
                (spin, holds) = (Spin::new(spin::CONTEXT), context.holds());
            }
        }
        let glance = || is_urgent() && !shared.seems_empty();
        if !spin.turn(glance) {
            return false;
        }
    }
}

/// Whether a caller waits for anything: then a context looks into its inbox as often as it can.
#[inline]
fn somebody_waits(vm: &Shared) -> bool {
    vm.waiting.load(Ordering::Relaxed) > 0
}
