//! Completion: publishes instructions that devices have finished, with their outcomes, and returns their node boxes.
//!
//! It serves the streams whose devices run commands later. A thread that completes holds the completion lock, asks every device how far its
//! streams have come, and takes the instructions that are over. It decides the outcomes of those that one poll takes in program order.
//!
//! The completion lock is the exclusive right to complete. It is held while operations of callers are looked at, captures are dropped, spans end and failures are logged, so no other
//! thread may wait for it: the completion thread alone takes it; in inline mode, the holder of the run lock; in simulated mode, the thread that steps.
//!
//! Invariant: when the outcome of an instruction is decided, everything that it depends on has an outcome. Streams are queried until none
//! has advanced, and an instruction is never over before what it waited for.
//!
//! Between two pieces of an instruction with blocks, it finds out when the condition was copied to the host, and lets the stream's context go on.
//!
//! The thread (`engine/completion_thread.rs`) blocks on an event that a caller waits for, and parks while no caller waits.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;
use streamvm_ep::{self as ep, LateCause, Operation, ProgramStep};
use streamvm_instructions::{Cause, Failure};
use streamvm_stream::{Point, StreamId};

use crate::execute::backpressure::PassCounter;
use crate::execute::environment::Environment;
use crate::execute::run;
use crate::progress::in_flight::InFlight;
use crate::progress::stream_state::StreamState;
use crate::queue::node::{NodeBox, NodeList};
use crate::sync::parker::Parker;
use crate::sync::{AtomicU64, Mutex, Ordering, unpoisoned};
use crate::tasks::counters::Ended;
use crate::tasks::events::{DeviceTimes, Passed};
use crate::tasks::task::Task;
use crate::tasks::timeline::Timeline;

/// The completion of one engine.
pub(crate) struct Completion {
    state: Mutex<CompletionState>,
    /// Where its thread parks.
    pub(crate) parker: Arc<Parker>,
    /// Bytes that passed instructions no longer keep. Written by the holder of the completion lock.
    pub(crate) retired_bytes: AtomicU64,
}

/// The state under the completion lock.
#[derive(Default)]
struct CompletionState {
    /// Failures that devices reported for commands whose outcomes are not decided yet, by (stream, number).
    late: HashMap<(u32, u64), (LateCause, Option<ProgramStep>)>,
    /// The root cause of each lost device.
    lost: HashMap<ep::DeviceId, Arc<Failure>>,
    /// Operations whose commands are queued and have not passed, in the order of each stream.
    operations: HashMap<StreamId, VecDeque<Queued>>,
    /// Tasks that are over on their devices, in the order in which they were taken.
    finished: Vec<(NodeBox<Task>, Arc<StreamState>)>,
    pass_counter: PassCounter,
    /// In an engine that is traced: when devices ran instructions whose ends are not published yet, by (stream, number).
    times: HashMap<(u32, u64), DeviceTimes>,
}

/// An operation that has queued its commands on a stream.
struct Queued {
    seq: u64,
    operation: Box<dyn Operation>,
    /// The error that a look at it has returned.
    failed: Option<ep::FnError>,
}

impl Completion {
    pub(crate) fn new() -> Completion {
        Completion { state: Mutex::default(), parker: Arc::new(Parker::new()), retired_bytes: AtomicU64::new(0) }
    }

    /// Publishes what devices have finished. Returns whether there was anything.
    pub(crate) fn poll(&self, env: &Environment) -> bool {
        let mut state = unpoisoned(self.state.lock());
        // Until no stream advances: if an instruction is seen as over, so is everything that it waited for.
        while launched_streams(env).fold(false, |further, (_, in_flight)| in_flight.query() | further) {}
        for (device, error) in env.lent_streams.lost() {
            launched_streams(env)
                .filter(|(other, _)| other.key.device == device)
                .for_each(|(_, other)| other.lose(error.clone()));
        }
        for (stream_state, in_flight) in launched_streams(env) {
            if in_flight.is_in_doubt() {
                stream_state.context.parker.wake();
            }
            if let Some(error) = in_flight.lost() {
                let device = stream_state.key.device;
                env.lent_streams.lose(device, &error);
                launched_streams(env)
                    .filter(|(other, _)| other.key.device == device)
                    .for_each(|(_, other)| other.lose(error.clone()));
            }
        }
        // A task is taken only once everything that it waited for has passed, and so has an outcome. That holds for tasks of a lost device,
        // too.
        let ready = |task: &Task| first_open_wait(task, env).is_none();
        let mut any = false;
        loop {
            for (stream_state, in_flight) in launched_streams(env) {
                while let Some(task) = in_flight.take(ready) {
                    state.finished.push((task, stream_state.clone()));
                }
            }
            if state.finished.is_empty() {
                return any | state.decide_conditions(env) | state.look_at_operations(env);
            }
            any = true;
            // After the tasks are taken: a device reports a failure before it reports the instruction as over, so none is missed.
            state.collect_failures(env);
            self.finish(&mut state, env);
        }
    }

    /// Decides the outcomes of the tasks that are over, in program order, and publishes them.
    fn finish(&self, state: &mut CompletionState, env: &Environment) {
        let mut finished = std::mem::take(&mut state.finished);
        finished.sort_by_key(|(task, _)| task.order);
        let mut returned = NodeList::new();
        let traced = env.timeline.as_ref().map(|timeline| (timeline, timeline.now()));
        for (mut task, stream_state) in finished.drain(..) {
            state.decide(&task, &stream_state, env);
            let (outcome, root) =
                if traced.is_some() || env.has_spans() { run::ended(&task, env) } else { (Ended::Fine, None) };
            if outcome == Ended::Failed {
                run::tell_failed(&mut task);
            }
            if let Some((timeline, at)) = traced {
                let device = state.times.remove(&(task.point.stream.0, task.point.seq));
                timeline.completion.add(|list| list.push(Passed { point: task.point, at, outcome, root, device }));
            }
            let (seq, bytes) = (task.point.seq, task.bytes);
            if stream_state.in_flight.as_ref().is_some_and(|in_flight| in_flight.runs_on(seq)) {
                task.cold().into_iter().for_each(|cold| cold.span.end());
                std::mem::forget(task);
            } else {
                run::clear(&mut task);
                returned.push(task);
            }
            self.retired_bytes.fetch_add(bytes, Ordering::Release);
            stream_state.pass(seq);
            if let Some(in_flight) = &stream_state.in_flight {
                in_flight.release_events(seq);
            }
            env.backpressure.note_passed(env, &mut state.pass_counter);
        }
        env.returned.push(&mut returned);
        state.finished = finished;
    }
}

impl CompletionState {
    /// Looks at the operations whose commands may run now: those that are the first in flight on their stream, and wait for nothing else. Returns whether a device was lost.
    fn look_at_operations(&mut self, env: &Environment) -> bool {
        let mut any = false;
        for (stream_state, in_flight) in launched_streams(env) {
            self.take_operations(stream_state, in_flight);
            let Some(queued) = self.operations.get_mut(&stream_state.id).and_then(VecDeque::front_mut) else {
                continue;
            };
            let runs = |task: &Task| task.point.seq == queued.seq && first_open_wait(task, env).is_none();
            if queued.failed.is_none()
                && in_flight.with_first(runs) == Some(true)
                && let Err(error) = run::look(&mut *queued.operation, false)
            {
                match run::loses_device(error) {
                    Ok(reason) => {
                        run::lose_devices(&reason, stream_state, env);
                        any = true;
                    }
                    Err(error) => queued.failed = Some(error),
                }
            }
        }
        any
    }

    /// Takes the operations that were queued on a stream since the last call.
    fn take_operations(&mut self, stream_state: &StreamState, in_flight: &InFlight) {
        if in_flight.is_watched() {
            let queued = |(point, operation): (Point, _)| Queued { seq: point.seq, operation, failed: None };
            let taken = in_flight.take_operations().into_iter().map(queued);
            self.operations.entry(stream_state.id).or_default().extend(taken);
        }
    }

    /// The error of the operation of a task that its device has passed, if there is one. It is looked at once more, and dropped.
    fn end_operation(&mut self, task: &Task, stream_state: &StreamState) -> Option<ep::FnError> {
        // It may have been queued since the last look.
        self.take_operations(stream_state, stream_state.in_flight.as_ref()?);
        let queued =
            self.operations.get_mut(&task.point.stream)?.pop_front_if(|queued| queued.seq == task.point.seq)?;
        let Queued { mut operation, failed, .. } = queued;
        // A device that is lost has not passed it, and its failure is that of the task.
        let is_lost =
            stream_state.in_flight.as_ref().is_some_and(|in_flight| in_flight.lost_before(task.point.seq).is_some());
        let failed = failed.or_else(|| if is_lost { None } else { run::look(&mut *operation, true).err() });
        run::caught(|| drop(operation));
        failed
    }

    /// Collects what devices report of commands that are over.
    fn collect_failures(&mut self, env: &Environment) {
        for device in env.devices.iter() {
            // The first failure of an instruction counts; a program has a command for each step.
            for late in device.take_failures() {
                self.late.entry((late.stream, late.seq)).or_insert((late.cause, late.step));
            }
            let observer = env.observer.as_ref().filter(|observer| observer.traces());
            if observer.is_none() && env.timeline.is_none() {
                continue;
            }
            // Steps of a program on a lent stream have the number of an instruction of another device, whose clock is another one.
            let is_own = |time: &ep::InstructionTime| {
                env.streams.get(StreamId(time.stream)).is_some_and(|stream| stream.key.device == device.id())
            };
            let times: Vec<ep::InstructionTime> = device.take_times().into_iter().filter(is_own).collect();
            if let Some(timeline) = &env.timeline {
                times.iter().for_each(|time| self.ran(time, timeline, env));
            }
            if let Some(observer) = observer {
                observer.ran(times);
            }
        }
    }

    /// Keeps when a device ran an instruction, or a part of it, until the end of the instruction is published.
    fn ran(&mut self, time: &ep::InstructionTime, timeline: &Timeline, env: &Environment) {
        let &ep::InstructionTime { stream, seq, start, end, launched, zero } = time;
        if env.streams.has_passed(Point::new(StreamId(stream), seq)) {
            return;
        }
        let (zero, launched) = (zero.map(|zero| timeline.signed(zero)), timeline.at(launched));
        let part = DeviceTimes { start, end, launched, zero };
        let times = self.times.entry((stream, seq)).or_insert(part);
        let first = if start < times.start { part } else { *times };
        *times = DeviceTimes { end: times.end.max(end), ..first };
    }

    /// Lets the instructions go on whose conditions were copied to the host. Everything that such an instruction has waited for has an outcome
    /// now, so its context finds out whether an input has failed; whether a command of its own has failed is told here. Returns whether there
    /// was one.
    fn decide_conditions(&mut self, env: &Environment) -> bool {
        let copied =
            |(stream_state, in_flight)| Some((stream_state, in_flight, InFlight::copied_condition(in_flight)?));
        let copied: SmallVec<[(&Arc<StreamState>, &InFlight, Point); 4]> =
            launched_streams(env).filter_map(copied).collect();
        if copied.is_empty() {
            return false;
        }
        self.collect_failures(env);
        for (stream_state, in_flight, point) in copied {
            in_flight.decide_condition(self.late.contains_key(&(point.stream.0, point.seq)));
            stream_state.context.parker.wake();
        }
        true
    }

    fn decide(&mut self, task: &Task, stream_state: &StreamState, env: &Environment) {
        let late = self.late.remove(&(task.point.stream.0, task.point.seq));
        let operation = self.end_operation(task, stream_state);
        // Everything that the task reads has an outcome now, and more of it may have failed than was known at the launch. The first failure
        // in the order of its uses counts, as if no device ran commands later.
        if let Some(root) = env.failures.poison(task.reads()) {
            return env.failures.pass_on(task.point, task.order, root);
        }
        if env.failures.is_known(task.point) {
            return;
        }
        if let Some(error) = operation {
            return run::fail_operation(error, task, stream_state, env);
        }
        let cause = match late {
            Some((cause, step)) => late_cause(cause, step),
            None => {
                let Some(error) =
                    stream_state.in_flight.as_ref().and_then(|in_flight| in_flight.lost_before(task.point.seq))
                else {
                    return;
                };
                if let Some(root) = self.lost.get(&stream_state.key.device) {
                    return env.failures.pass_on(task.point, task.order, root.clone());
                }
                Cause::Device(error)
            }
        };
        let failure = Arc::new(run::failure(task, stream_state, cause));
        if let Cause::Device(ep::Error::DeviceLost { device, .. }) = failure.cause {
            self.lost.insert(device, failure.clone());
        }
        env.failures.fail(task.order, failure);
    }
}

/// The cause of a failure that a device has reported late.
fn late_cause(cause: LateCause, step: Option<ProgramStep>) -> Cause {
    let cause = match cause {
        LateCause::Device(error) => Cause::Device(error),
        LateCause::Function(text) => Cause::Function(text),
        LateCause::Panic(text) => Cause::Panic(text),
    };
    match (step, cause) {
        // A lost device is no failure of the step, and the engine looks for this cause.
        (None, cause) | (_, cause @ Cause::Device(ep::Error::DeviceLost { .. })) => cause,
        (Some(step), cause) => Cause::Step { step, error: cause.to_string() },
    }
}

/// The first point that `task` waited for and that has not passed.
pub(crate) fn first_open_wait(task: &Task, env: &Environment) -> Option<Point> {
    task.waited().iter().copied().find(|point| !env.streams.has_passed(*point))
}

/// The streams whose devices run commands later.
pub(crate) fn launched_streams(env: &Environment) -> impl Iterator<Item = (&Arc<StreamState>, &InFlight)> {
    env.streams
        .iter()
        .filter_map(|stream_state| stream_state.in_flight.as_ref().map(|in_flight| (stream_state, in_flight)))
}
