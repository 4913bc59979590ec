//! Launching: hands work to a stream whose device runs it later, with the waits and records around it.
//!
//! A device wait names a record on another stream. If another thread context makes that record, it must be *launched* before the wait,
//! because drivers treat a wait for an event that is not recorded yet as already satisfied. If a wait or a record fails, the wait falls
//! back to the source's timeline: the thread context holds the instruction until the source has provably passed.
//!
//! An instruction with blocks is launched in pieces: its stream launches nothing else until the condition of the next block is known
//! ([`await_condition`]).

use streamvm_ep::{self as ep, ProgramStep};
use streamvm_stream::Point;

use crate::execute::environment::Environment;
use crate::execute::run::{self, Rest};
use crate::execute::stream_runner::Runner;
use crate::progress::condition_wait::ConditionWait;
use crate::progress::in_flight::{InFlight, RecordState};
use crate::progress::stream_state::StreamState;
use crate::queue::node::NodeBox;
use crate::sync::panics::guarded;
use crate::tasks::task::{Action, ColdFields, Task};

/// Launches the action of `task`, or skips it. A mark has no action. Returns the operation that it has started, which has to queue its commands yet.
pub(crate) fn launch_or_skip(
    task: &mut Task,
    stream_state: &StreamState,
    in_flight: &InFlight,
    runner: &mut Runner,
    env: &Environment,
) -> Option<Box<dyn ep::Operation>> {
    if task.action == Action::Mark {
        return None;
    }
    if let Some(error) = in_flight.lost() {
        run::refuse(task, stream_state, error, &env.failures);
        return None;
    }
    match run::run_or_skip(task, stream_state, runner, env) {
        None => None,
        Some(Rest::Operation(operation)) => Some(operation),
        Some(Rest::Deferred(_)) => unreachable!("deferred functions run on workers"),
    }
}

/// Puts `task`, which was launched or skipped, in flight, and makes the record after it. A mark, which is not an instruction, is returned instead.
pub(crate) fn put_in_flight(
    mut task: NodeBox<Task>,
    stream_state: &StreamState,
    in_flight: &InFlight,
    stream: &mut dyn ep::Stream,
    env: &Environment,
) -> Option<NodeBox<Task>> {
    let seq = task.point.seq;
    if task.action == Action::Mark {
        record(in_flight, seq, stream);
        task.clear();
        return Some(task);
    }
    let records = task.records();
    // Before any thread can see it pass.
    if let Some(observer) = &env.observer {
        observer.passes(stream_state.id, seq);
    }
    in_flight.add(task);
    if records {
        record(in_flight, seq, stream);
    }
    None
}

/// Makes the stream wait for the condition of a block: `task` has queued everything up to the copy of that condition. If no event can be recorded
/// after the copy, blocks until the stream is done.
pub(crate) fn await_condition(task: &Task, step: ProgramStep, in_flight: &InFlight, stream: &mut dyn ep::Stream) {
    let event = record_event(in_flight, stream);
    let is_recorded = event.is_some();
    in_flight.begin_condition(ConditionWait::new(task, step, event));
    if !is_recorded {
        prove(in_flight, in_flight.launched(), stream);
    }
}

/// Removes the waits of a head that are satisfied: its point has passed, or its record was handed to the device to wait for.
#[inline(never)]
pub(crate) fn remove_satisfied_waits(
    cold: &mut ColdFields,
    stream_state: &StreamState,
    stream: &mut dyn ep::Stream,
    env: &Environment,
) {
    let ColdFields { device_waits, waited, by_event, by_number, .. } = cold;
    if stream_state.in_flight.is_none() {
        // Stops at the first open wait: all must pass, and each check reads a cache line of another core.
        let met = device_waits.iter().take_while(|point| env.streams.has_passed(**point)).count();
        let met = device_waits.drain(..met);
        if env.keeps_waited {
            waited.extend(met);
        }
        return;
    }
    device_waits.retain(|point| {
        let open = !env.streams.has_passed(*point);
        if open && !*by_number && wait_by_event(*point, stream_state, stream, env, by_number) {
            waited.insert(*by_event, *point);
            *by_event += 1;
            return false;
        }
        let met = env.streams.has_passed(*point);
        if met {
            waited.push(*point);
        }
        !met
    });
}

/// Whether the wait was handed to the device. If the device refuses it, the wait falls back to the timeline.
fn wait_by_event(
    point: Point,
    stream_state: &StreamState,
    stream: &mut dyn ep::Stream,
    env: &Environment,
    by_number: &mut bool,
) -> bool {
    let source = env.streams.get(point.stream).and_then(|source| device_source(stream_state, source));
    let Some(RecordState::By(event)) = source.map(|source| source.record_of(point.seq)) else {
        return false;
    };
    match guarded(|| stream.wait(event)) {
        Ok(()) => true,
        // The event was released between the look-up and the wait, so the point has passed.
        Err(_) if env.streams.has_passed(point) => false,
        Err(error) => {
            log::warn!("{}: waiting for {event} failed ({error}); held until its source has passed", stream_state.key);
            *by_number = true;
            false
        }
    }
}

/// Whether `point`, an open wait of `head`, could be satisfied now.
pub(crate) fn is_met(head: &Task, stream_state: &StreamState, point: Point, env: &Environment) -> bool {
    let source = env.streams.get(point.stream);
    env.streams.has_passed(point)
        || source
            .and_then(|source| by_event(head, stream_state, source))
            .is_some_and(|source| matches!(source.record_of(point.seq), RecordState::By(_)))
}

/// The source's list in flight, if the device of `head` can wait for the source's events.
pub(crate) fn by_event<'a>(head: &Task, stream_state: &StreamState, source: &'a StreamState) -> Option<&'a InFlight> {
    if head.waits_by_number() { None } else { device_source(stream_state, source) }
}

/// A stream waits for another by event if both run commands later and their devices are of one kind.
fn device_source<'a>(stream_state: &StreamState, source: &'a StreamState) -> Option<&'a InFlight> {
    let like = stream_state.in_flight.is_some() && stream_state.key.device.kind == source.key.device.kind;
    source.in_flight.as_ref().filter(|_| like)
}

/// Records an event after everything launched, because a waiter asks for it. If the record fails, blocks until the stream is done; if that
/// fails, too, nothing can be proven any more and the device counts as lost.
#[inline(never)]
pub(crate) fn record_tail(in_flight: &InFlight, stream: &mut dyn ep::Stream) {
    let seq = in_flight.launched();
    if in_flight.is_in_doubt() || !record(in_flight, seq, stream) {
        prove(in_flight, seq, stream);
    }
}

/// Blocks until everything up to `seq` is over, or the device is lost.
pub(crate) fn prove(in_flight: &InFlight, seq: u64, stream: &mut dyn ep::Stream) {
    match guarded(|| stream.synchronize()) {
        Ok(()) => in_flight.prove(seq),
        Err(error) => in_flight.lose(error),
    }
}

/// Records an event after `seq`, the last number launched. Returns false if that failed.
fn record(in_flight: &InFlight, seq: u64, stream: &mut dyn ep::Stream) -> bool {
    let event = record_event(in_flight, stream);
    in_flight.note_record(seq, event.ok_or(()));
    event.is_some()
}

/// Records an event; `None` if that failed. A loss of the device is noted.
fn record_event(in_flight: &InFlight, stream: &mut dyn ep::Stream) -> Option<ep::EventId> {
    let event = in_flight.device.events().acquire();
    let Err(error) = guarded(|| stream.record(event)) else { return Some(event) };
    log::warn!("recording an event on {} failed: {error}", in_flight.device.id());
    if let Err(error) = in_flight.device.events().release(event) {
        log::error!("an event was lost: {error}");
    }
    if matches!(error, ep::Error::DeviceLost { .. }) {
        in_flight.lose(error);
    }
    None
}
