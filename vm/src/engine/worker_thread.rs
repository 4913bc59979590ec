//! The thread of a worker: steps the [`Worker`], spins for a while when there is nothing to run, then parks in the idle set.

use crate::execute::environment::Environment;
use crate::execute::worker::{TURN, Worker};
use crate::sync::spin::{self, Spin};
use crate::sync::{Ordering, engine_thread};

/// The body of the thread of a worker; returns when the engine is over.
pub(crate) fn serve(mut worker: Worker, env: &Environment) {
    engine_thread::enter();
    worker.context().parker.belongs_here();
    loop {
        if worker.step(TURN, env) {
            continue;
        }
        worker.give_back(env);
        if env.may_end() {
            env.wake_all();
            return;
        }
        let mut spin = Spin::new(spin::CONTEXT);
        loop {
            let waited_for = || env.waiting.load(Ordering::Relaxed) > 0;
            let checks = spin.is_nth(spin::INBOX_EVERY) || waited_for();
            // Only the inbox is polled at each pause: the queues are written all the time by workers that work.
            let spin_check = || waited_for() && worker.inbox_has_tasks();
            if (checks && worker.is_ready()) || env.may_end() || !spin.turn(spin_check) {
                break;
            }
        }
        if !worker.is_ready() {
            worker.sleep(env);
        }
    }
}
