//! The scheduler thread: steps the [`Scheduler`], spins for a while when there is nothing to do, then parks.

use crate::execute::environment::Environment;
use crate::execute::scheduler::Scheduler;
use crate::progress::waiters::Wake;
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
///
/// The thread announces that it parks, then checks its inbox and registers with every such point; a push or a passing that these
/// checks miss finds the announcement and wakes the thread.
fn sleep(scheduler: &Scheduler, env: &Environment) {
    scheduler.note_held(env);
    env.scheduler.prepare_park();
    let mut asleep = env.to_scheduler.is_surely_empty() && !env.may_end();
    let mut registered = Vec::new();
    for point in scheduler.blocked() {
        let Some(stream_state) = env.streams.get(point.stream) else { continue };
        match stream_state.when_passed(point.seq, Wake::Parker(env.scheduler.clone())) {
            Ok(id) => registered.push((point, id)),
            Err(_) => asleep = false,
        }
    }
    if asleep {
        env.scheduler.sleep();
    } else {
        env.scheduler.cancel_park();
    }
    for (point, id) in registered {
        if let Some(stream_state) = env.streams.get(point.stream) {
            stream_state.forget(point.seq, id);
        }
    }
}
