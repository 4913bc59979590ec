//! The completion thread: drives [`Completion::poll`](crate::execute::completion::Completion::poll), which publishes what devices
//! have finished.
//!
//! While a thread waits for an instruction on a stream whose device runs commands later, the completion thread blocks on
//! the oldest event of that stream that has not completed. While no thread waits, it parks, so an idle engine polls no device.

use std::time::{Duration, Instant};

use streamvm_ep as ep;

use crate::execute::completion::{launched_streams, open};
use crate::execute::environment::Environment;
use crate::progress::waiters::Wake;
use crate::sync::engine_thread;

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
        if env.is_over() {
            env.wake_all();
            return;
        }
        let awaited: Vec<_> = launched_streams(env)
            .filter_map(|(entry, in_flight)| Some((in_flight, in_flight.awaited(entry.passed())?)))
            .collect();
        if !awaited.is_empty() {
            // Round robin over the streams, so that a slow stream does not delay the waiters of the others.
            turns = turns.wrapping_add(1);
            let (in_flight, event) = awaited[turns % awaited.len()];
            if let Err(error) = in_flight.device.wait(event, Instant::now().checked_add(SLICE))
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
///
/// The thread announces that it parks first, and checks every stream after that: a demand, launch or record that this check
/// misses finds the announcement and wakes the thread.
fn sleep(env: &Environment) {
    let completion = &env.completion;
    completion.parker.prepare_park();
    let mut asleep = !env.is_over();
    let mut registered = Vec::new();
    for (entry, in_flight) in launched_streams(env) {
        asleep &= in_flight.awaited(entry.passed()).is_none();
        // A task that is over on its device passes once every point that it waited for has passed: wake up for the first of these.
        let Some(open) = in_flight.over(|task| open(task, env)) else { continue };
        let Some((point, entry)) = open.and_then(|point| Some((point, env.streams.get(point.stream)?))) else {
            asleep = false;
            continue;
        };
        match entry.when_passed(point.seq, Wake::Parker(completion.parker.clone())) {
            Ok(id) => registered.push((entry, point.seq, id)),
            Err(_) => asleep = false,
        }
    }
    if asleep {
        completion.parker.sleep()
    } else {
        completion.parker.cancel_park()
    }
    for (entry, seq, id) in registered {
        entry.forget(seq, id);
    }
}
