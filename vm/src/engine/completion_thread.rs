//! The completion thread: drives [`Completion::poll`](crate::execute::completion::Completion::poll), which publishes what devices
//! have finished.
//!
//! While a thread waits for an instruction on a stream whose device runs commands later, the completion thread blocks on
//! the oldest event of that stream that has not completed. So it does while a stream waits for the condition of a block. Otherwise it parks,
//! so an idle engine polls no device.

use std::time::{Duration, Instant};

use streamvm_ep as ep;

use crate::engine::park::ParkAttempt;
use crate::execute::completion::{first_open_wait, launched_streams};
use crate::execute::environment::Environment;
use crate::sync::engine_thread;
use crate::sync::panics::guarded;

/// How long the completion thread blocks on the event of one stream before it polls all streams again.
const SLICE: Duration = Duration::from_micros(200);

/// The body of the completion thread; returns when the engine is over.
pub(crate) fn serve(env: &Environment) {
    engine_thread::enter();
    let completion = &env.completion;
    completion.parker.belongs_here();
    let mut turns = 0usize;
    loop {
        if completion.poll(env) {
            continue;
        }
        if env.may_end() {
            env.wake_all();
            return;
        }
        let awaited: Vec<_> = launched_streams(env)
            .filter_map(|(stream_state, in_flight)| Some((in_flight, in_flight.awaited(stream_state.passed())?)))
            .collect();
        if !awaited.is_empty() {
            // Round robin over the streams, so that a slow stream does not delay the waiters of the others.
            turns = turns.wrapping_add(1);
            let (in_flight, event) = awaited[turns % awaited.len()];
            if let Err(error) = guarded(|| in_flight.device.wait(event, Instant::now().checked_add(SLICE)))
                && !matches!(error, ep::Error::StaleEvent { .. })
            {
                in_flight.fail_query(error);
            }
            continue;
        }
        sleep(env);
    }
}

/// Parks until there is an event to block on, or until the next task of a stream can pass.
fn sleep(env: &Environment) {
    let mut attempt = ParkAttempt::new(env, &env.completion.parker);
    for (stream_state, in_flight) in launched_streams(env) {
        if in_flight.awaited(stream_state.passed()).is_some() || in_flight.has_undecided_condition() {
            attempt.found_work();
        }
        // A task that is over on its device passes once every point that it waited for has passed: wake up for the first of these.
        match in_flight.if_first_is_over(|task| first_open_wait(task, env)) {
            None => {}
            Some(Some(point)) => attempt.wake_at(point),
            Some(None) => attempt.found_work(),
        }
    }
    attempt.sleep();
}
