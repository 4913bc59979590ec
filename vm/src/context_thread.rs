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
    let mut looks = true;
    while round(&shared, &vm, &mut looks) {}
    let context = unpoisoned(shared.driver.lock()).take();
    vm.wake_all();
    drop(context);
}

/// Works, or looks for work and sleeps; returns false when the engine is over. `looks` says whether there may be something in the inbox.
fn round(shared: &ContextShared, vm: &Shared, looks: &mut bool) -> bool {
    let mut driver = take_turn(shared);
    let Some(context) = driver.as_mut() else { return false };
    let worked = context.work(*looks, vm);
    *looks = context.lags || somebody_waits(vm);
    if worked {
        return true;
    }
    context.give_back(vm);
    if vm.is_over() {
        return false;
    }
    let holds = context.holds();
    drop(driver);
    *looks = true;
    if finds_work(shared, vm, holds) {
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
fn finds_work(shared: &ContextShared, vm: &Shared, mut holds: bool) -> bool {
    let mut spin = Spin::new(spin::CONTEXT);
    loop {
        // Each look into an empty inbox takes its line away from whoever pushes next.
        let looks_in = spin.is_nth(spin::INBOX_EVERY) || somebody_waits(vm);
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
        let glance = || somebody_waits(vm) && !shared.seems_empty();
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
