//! The scheduler thread: steps the [`Scheduler`], spins for a while when there is nothing to do, then parks.

use crate::engine::park::ParkAttempt;
use crate::execute::environment::Environment;
use crate::execute::scheduler::Scheduler;
use crate::sync::engine_thread;
use crate::sync::spin::{self, Spin};

/// The body of the scheduler thread; returns when the engine is over.
pub(crate) fn serve(env: &Environment) {
    engine_thread::enter();
    env.scheduler.belongs_here();
    let mut scheduler = Scheduler::new();
    loop {
        let incoming = env.to_scheduler.take();
        if scheduler.step(incoming, env) {
            continue;
        }
        if env.may_end() {
            env.wake_all();
            return;
        }
        let mut spin = Spin::new(spin::SCHEDULER);
        while !scheduler.is_ready(env) && spin.turn(|| false) {}
        if !scheduler.is_ready(env) {
            sleep(&scheduler, env);
        }
    }
}

/// Parks until tasks are sent to the scheduler, or a point has passed for which the head of a held-back stream waits.
fn sleep(scheduler: &Scheduler, env: &Environment) {
    scheduler.note_held(env);
    let mut attempt = ParkAttempt::new(env, &env.scheduler);
    if !env.to_scheduler.is_surely_empty() {
        attempt.found_work();
    }
    scheduler.blocked().for_each(|point| attempt.wake_at(point));
    attempt.sleep();
}
