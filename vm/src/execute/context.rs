//! Thread contexts: each runs the instructions of one stream (a *strand*), or of all streams of a device that one thread launches.
//!
//! A context keeps one queue per stream and runs any stream whose head is ready. It waits for no dependence in place, so a stream that
//! waits does not delay others. The threads of a device leave a strand when its head is not ready; a thread that launches parks when none of
//! its heads is.
//!
//! [`Context`] is the logic: [`Context::step`] runs at most [`TURN`] ready instructions of each stream. It blocks in two cases only: on a
//! stream whose device can no longer tell how far the stream is, it waits until that stream is done ([`launch::record_tail`]); and when a run of a program fails, it waits
//! until what another device runs for it is done ([`lent_streams`](crate::execute::lent_streams)).
//! [`ContextHandle`] is what other threads see. The threads are in `engine/strand_thread.rs` and
//! `engine/context_thread.rs`; a waiting caller may help (`engine/help.rs`).
//!
//! Invariant: a context is used under a lock only: its run lock, or in simulated mode the lock of the stepping thread.

mod helping;
mod operations;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use streamvm_ep as ep;
use streamvm_instructions::Cause;
use streamvm_stream::Point;
use streamvm_stream::mutant::Mutant;

use crate::dispatch::context_handle::ContextHandle;
use crate::dispatch::strand::{Served, Strand};
use crate::execute::backpressure::PassCounter;
use crate::execute::environment::Environment;
use crate::execute::locked_context::{LockedContext, Opened};
use crate::execute::poll_pace::PollPace;
use crate::execute::stream_runner::Runner;
use crate::execute::{launch, run};
use crate::progress::in_flight::{InFlight, RecordState};
use crate::progress::stream_state::StreamState;
use crate::progress::waiters::Wake;
use crate::queue::node::{NodeBox, NodeList};
use crate::sync::panics::panic_text;
use crate::sync::parker::Parker;
use crate::sync::{Mutex, spin, unpoisoned};
use crate::tasks::task::{Action, Task};
use operations::Paused;

/// The most instructions of one stream that run before those of the next stream: enough that switching costs nothing, few enough that a stream
/// with short work waits only microseconds.
const TURN: usize = 64;

/// Node boxes of passed instructions that a context collects before it returns them in one batch.
const RETIRED: usize = 64;

/// One stream as its context runs it.
struct ContextStream {
    stream_state: Arc<StreamState>,
    runner: Runner,
    queue: NodeList<Task>,
    /// The task that was launched up to the condition of a block, or whose function has started `operation`. The tasks of the queue come after it.
    paused: Option<NodeBox<Task>>,
    /// On a stream that polls: what the paused task waits for.
    operation: Option<Box<dyn ep::Operation>>,
}

impl ContextStream {
    fn new(stream_state: Arc<StreamState>, stream: Box<dyn ep::Stream>) -> ContextStream {
        let (runner, queue) = (Runner::new(stream), NodeList::new());
        ContextStream { stream_state, runner, queue, paused: None, operation: None }
    }

    /// Whether an operation of the stream is to be polled.
    fn polls(&self) -> bool {
        self.operation.is_some()
    }
}

/// The logic of one context. The holder of the run lock runs it: its thread, a caller that helps, or, in inline mode, the submitter. In
/// simulated mode the thread that steps the engine runs it.
pub(crate) struct Context {
    handle: Arc<ContextHandle>,
    /// Where streams opened for this context are put.
    opened: Arc<Mutex<Vec<Opened>>>,
    /// The streams that it runs.
    streams: Vec<ContextStream>,
    /// Stream number -> index into `streams`.
    indices: Vec<Option<usize>>,
    retired: NodeList<Task>,
    /// Whether a thread of its own serves the context. That thread is bound to devices that keep state per thread.
    has_thread: bool,
    /// The stream that ran last, and its current task: the one that fails if a backend panics outside of an instruction's own panic
    /// handler.
    current_stream: usize,
    current: Option<NodeBox<Task>>,
    pass_counter: PassCounter,
    /// Whether the next round polls the inbox at once: the last round took many tasks, or did not empty the queue of a stream.
    pub(crate) poll_inbox_next: bool,
    /// Whether a caller has helped since the thread last asked.
    helped: bool,
    /// Whether an operation has ended since [`Context::has_run_code`] was last called.
    has_polled: bool,
}

impl Context {
    pub(crate) fn new(locked: &LockedContext) -> Context {
        Context {
            handle: locked.handle.clone(),
            opened: locked.opened.clone(),
            streams: Vec::new(),
            indices: Vec::new(),
            retired: NodeList::new(),
            has_thread: false,
            current_stream: 0,
            current: None,
            pass_counter: PassCounter::default(),
            poll_inbox_next: false,
            helped: false,
            has_polled: false,
        }
    }

    /// A context that a thread of its own serves.
    pub(crate) fn with_thread(locked: &LockedContext) -> Context {
        Context { has_thread: true, ..Context::new(locked) }
    }

    /// Runs at most [`TURN`] ready instructions of each stream. Returns whether there was any.
    pub(crate) fn step(&mut self, env: &Environment) -> bool {
        self.work(true, env)
    }

    /// [`Context::step`], with or without a poll of the inbox.
    pub(crate) fn work(&mut self, polls_inbox: bool, env: &Environment) -> bool {
        self.surviving(env, |context| {
            let taken = if polls_inbox { context.take_in() } else { 0 };
            context.poll_inbox_next = taken >= spin::FEW;
            let mut progress = false;
            for index in 0..context.streams.len() {
                let done = context.run_turn(index, TURN, env);
                progress |= done > 0;
                context.poll_inbox_next |= done == TURN;
            }
            progress
        })
    }

    /// Runs the next instruction of one stream if it is ready. Returns whether anything was done.
    pub(crate) fn step_stream(&mut self, index: usize, env: &Environment) -> bool {
        self.surviving(env, |context| context.run_turn(index, 1, env) > 0)
    }

    /// Whether a function that callers may not run was the last instruction that ran, and none is submitted after it, or an operation has ended since the last call.
    pub(crate) fn has_run_code(&mut self) -> bool {
        let has_polled = std::mem::take(&mut self.has_polled);
        has_polled || self.streams.get(self.current_stream).is_some_and(|stream| stream.stream_state.has_passed_code())
    }

    /// Does `work`, and survives its panics. The code that runs an instruction catches panics of that instruction. If a backend panics
    /// elsewhere, the current task fails and the thread goes on, because everything after the task would hang otherwise.
    fn surviving(&mut self, env: &Environment, work: impl FnOnce(&mut Context) -> bool) -> bool {
        catch_unwind(AssertUnwindSafe(|| work(self))).unwrap_or_else(|payload| {
            self.fail_current(panic_text(payload), env);
            true
        })
    }

    #[cold]
    fn fail_current(&mut self, text: String, env: &Environment) {
        log::error!(
            "thread context {}: a backend panicked outside of an instruction ({text}); the current instruction fails",
            self.handle.name
        );
        let Some(mut task) = self.current.take() else {
            return;
        };
        let stream_state = &self.streams[self.current_stream].stream_state;
        if stream_state.has_passed(task.point.seq) {
            return;
        }
        if !env.failures.is_known(task.point) {
            env.failures.fail(task.order, Arc::new(run::failure(&task, stream_state, Cause::Panic(text))));
        }
        match &stream_state.in_flight {
            Some(in_flight) => {
                run::count_op(&mut task, env, &self.handle, None);
                let (seq, records) = (task.point.seq, task.records());
                in_flight.add(task);
                // Waiters for the record wait for the number instead.
                if records {
                    in_flight.note_record(seq, Err(()));
                }
            }
            None => {
                run::finish(&mut task, stream_state, env, &self.handle);
                env.backpressure.note_passed(env, &mut self.pass_counter);
                self.retired.push(task);
            }
        }
    }

    /// Number of streams that it runs.
    pub(crate) fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Runs tasks in the given order, each until it has passed, without checking its waits: the caller has run everything before them.
    pub(crate) fn run_in_order(&mut self, mut tasks: NodeList<Task>, env: &Environment) {
        while let Some(mut task) = tasks.pop() {
            let index = self.index_of_stream(&task);
            let seq = task.point.seq;
            if let Some(cold) = task.cold() {
                cold.all_waited();
            }
            self.current_stream = index;
            self.run(task, env);
            if self.streams[index].stream_state.in_flight.is_some() {
                self.await_launched(index, seq, env);
            }
        }
        self.give_back(env);
    }

    /// Blocks until a stream whose device runs commands later has passed `seq`, which was launched last.
    #[inline(never)]
    fn await_launched(&mut self, index: usize, seq: u64, env: &Environment) {
        let mut resumed = false;
        loop {
            let ContextStream { stream_state, runner, paused, .. } = &mut self.streams[index];
            let Some(in_flight) = &stream_state.in_flight else { return };
            let launched = if paused.is_some() { in_flight.launched() } else { seq };
            if in_flight.is_watched() {
                // The commands of an operation may wait for ever, until a look at it finds that it has failed.
                launch::record_tail(in_flight, runner.stream());
                let mut pace = PollPace::default();
                while !(stream_state.has_passed(seq) || in_flight.is_in_doubt()) {
                    env.completion.poll(env);
                    pace.pause();
                }
            }
            // A task that its device's loss has stopped is not over, even if the stream can be waited for again.
            if !(resumed && in_flight.lost().is_some()) {
                launch::prove(in_flight, launched, runner.stream());
            }
            env.completion.poll(env);
            let Some(failed) = in_flight.take_condition() else { return };
            self.resume(failed, env);
            resumed = true;
        }
    }

    /// Moves all sent tasks into the queues of their streams, and returns their number.
    ///
    /// If all tasks are for one stream and have prefetch hints, the whole list is appended to its queue
    /// (`docs/adr/hot-path.md`). Tasks without prefetch hints are queued one by one, which gives them hints.
    pub(crate) fn take_in(&mut self) -> usize {
        let mut tasks = self.handle.inbox.take();
        let taken = tasks.len();
        if tasks.knows_ahead()
            && let Some(index) = self.index_of_all(&tasks)
        {
            self.streams[index].queue.append(&mut tasks);
            return taken;
        }
        while let Some(task) = tasks.pop() {
            let index = self.index_of_stream(&task);
            self.streams[index].queue.push(task);
        }
        taken
    }

    /// The stream of all tasks that were taken, if that is certain without a look at each. Tasks of a stream arrive in the order of their
    /// numbers, without gaps. So if the first and the last are of one stream, and their numbers span as many instructions as there are
    /// tasks, no other task is between. A mark bears the number of another instruction, so it proves nothing.
    fn index_of_all(&mut self, tasks: &NodeList<Task>) -> Option<usize> {
        let (first, last) = (tasks.front()?, tasks.back()?);
        let marks = first.action == Action::Mark || last.action == Action::Mark;
        let between = last.point.seq.wrapping_sub(first.point.seq);
        let all = first.point.stream == last.point.stream && between == tasks.len() as u64 - 1;
        let found = (all && !marks).then(|| self.index_of_stream(first));
        debug_assert!(
            found.is_none() || tasks.iter().all(|task| task.point.stream == first.point.stream),
            "of one stream"
        );
        found
    }

    #[inline]
    fn index_of_stream(&mut self, task: &Task) -> usize {
        let stream = task.point.stream.index();
        match self.indices.get(stream) {
            Some(Some(index)) => *index,
            _ => self.add_opened(stream),
        }
    }

    #[cold]
    fn add_opened(&mut self, stream: usize) -> usize {
        // Binding the thread is a call of the driver, and its failure is logged: neither may happen under the lock.
        let opened = std::mem::take(&mut *unpoisoned(self.opened.lock()));
        for Opened { stream_state, stream } in opened {
            let id = stream_state.id.index();
            if self.indices.len() <= id {
                self.indices.resize(id + 1, None);
            }
            if let Some(in_flight) = stream_state.in_flight.as_ref().filter(|_| self.has_thread) {
                bind(in_flight);
            }
            self.indices[id] = Some(self.streams.len());
            self.streams.push(ContextStream::new(stream_state, stream));
        }
        // A stream is added to `opened` before its first task is sent, so it is in `streams` now.
        self.indices.get(stream).copied().flatten().unwrap_or_else(|| unreachable!("stream {stream} was never opened"))
    }

    /// Takes up to `most` steps on one stream, while its head is ready: a step runs an instruction, launches the next piece of one, or makes a
    /// demanded record. Returns the number of steps.
    fn run_turn(&mut self, index: usize, most: usize, env: &Environment) -> usize {
        for done in 0..most {
            let ContextStream { stream_state, runner, queue, paused, .. } = &mut self.streams[index];
            if let Some(in_flight) = &stream_state.in_flight
                && in_flight.needs_attention()
            {
                launch::record_tail(in_flight, runner.stream());
                continue;
            }
            if paused.is_some() {
                match self.go_on(index, env) {
                    Paused::GoesOn => continue,
                    // Where callers step the engine, a poll is a step: no other part may be able to take one.
                    Paused::Polled if !env.threaded => return done + 1,
                    Paused::Polled | Paused::Waits => return done,
                }
            }
            let Some(head) = queue.front_mut() else {
                return done;
            };
            if let Some(cold) = head.cold()
                && !cold.device_waits.is_empty()
            {
                // Removes the waits that are satisfied, so that they are not checked again.
                launch::remove_satisfied_waits(cold, stream_state, runner.stream(), env);
                if !cold.device_waits.is_empty() {
                    return done;
                }
            }
            if let Some(mut task) = queue.pop() {
                if env.planted.is(Mutant::StreamReordered)
                    && task.point.seq.is_multiple_of(2)
                    && let Some(next) = queue.front_mut()
                {
                    task.swap_work(next);
                }
                self.current_stream = index;
                self.run(task, env);
            }
        }
        most
    }

    /// Runs a task of the current stream.
    #[inline]
    fn run(&mut self, task: NodeBox<Task>, env: &Environment) {
        let ContextStream { stream_state, runner, .. } = &mut self.streams[self.current_stream];
        let task = self.current.insert(task);
        self.handle.running.begin(task);
        if stream_state.in_flight.is_some() {
            // The device reports late failures by these numbers.
            let Point { stream: id, seq } = task.point;
            if env.tells_ops {
                let what = task.name().into();
                runner.stream().begin(&ep::Label {
                    stream: id.0,
                    seq,
                    what,
                    step: None,
                    site: task.site,
                    allocations: Arc::default(),
                    actor: None,
                });
            } else {
                runner.stream().number(id.0, seq);
            }
        }
        if let Some(observer) = &env.observer {
            observer.starts(task, stream_state, runner.stream());
        }
        if stream_state.in_flight.is_some() {
            return self.launch(env);
        }
        if let Some(operation) = run::run(task, stream_state, runner, env, &self.handle) {
            return self.keep_operation(operation, env);
        }
        self.retire_current(env);
    }

    /// Collects the node box of the current task, which has passed.
    #[inline]
    fn retire_current(&mut self, env: &Environment) {
        env.backpressure.note_passed(env, &mut self.pass_counter);
        if let Some(task) = self.current.take() {
            self.retired.push(task);
        }
        if self.retired.len() >= RETIRED {
            self.give_back(env);
        }
    }

    /// Goes on with the paused task of the current stream, whose next condition is known. If the task has `failed`, nothing more is launched.
    #[cold]
    fn resume(&mut self, failed: bool, env: &Environment) {
        let Some(task) = self.streams[self.current_stream].paused.take() else { return };
        self.handle.running.begin(self.current.insert(task));
        if failed { self.finish_launch(env) } else { self.launch(env) }
    }

    /// Launches the current task, or its next piece; its device runs it later.
    #[inline(never)]
    fn launch(&mut self, env: &Environment) {
        let ContextStream { stream_state, runner, paused, .. } = &mut self.streams[self.current_stream];
        let (Some(in_flight), Some(task)) = (&stream_state.in_flight, &mut self.current) else { return };
        let raw = task.action == Action::Raw;
        let operation = launch::launch_or_skip(task, stream_state, in_flight, runner, env);
        if raw && task.action != Action::Raw && self.has_thread {
            // The raw function was not skipped. Bound only now, after all of the caller's code has run, including the drops of its captures
            // and its error: that code may have changed the thread's device state.
            bind(in_flight);
        }
        if let Some(operation) = operation {
            return self.keep_queuing(operation, env);
        }
        if let Some(step) = runner.take_condition() {
            launch::await_condition(task, step, in_flight, runner.stream());
            *paused = self.current.take();
            return;
        }
        self.finish_launch(env);
    }

    /// Puts the current task, of which nothing is left to launch, in flight.
    fn finish_launch(&mut self, env: &Environment) {
        let ContextStream { stream_state, runner, .. } = &mut self.streams[self.current_stream];
        let Some(in_flight) = &stream_state.in_flight else { return };
        if let Some(task) = &mut self.current {
            if task.action == Action::Segment {
                // The rest of a run that is not launched: its drop may wait for steps on another device, which no other thread may do.
                run::drop_function(task);
            }
            run::count_op(task, env, &self.handle, None);
        }
        if let Some(task) = self.current.take()
            && let Some(mark) = launch::put_in_flight(task, stream_state, in_flight, runner.stream(), env)
        {
            self.retired.push(mark);
        }
    }

    /// Returns the node boxes of passed instructions to the submitters.
    pub(crate) fn give_back(&mut self, env: &Environment) {
        env.returned.push(&mut self.retired);
    }

    /// The points that the heads wait for.
    pub(crate) fn held_by(&self) -> impl Iterator<Item = Point> + '_ {
        self.blocked().map(|(_, _, point)| point)
    }

    /// Whether a step could do anything now.
    pub(crate) fn is_ready(&self, env: &Environment) -> bool {
        !self.handle.inbox.is_empty() || self.has_ready_head(env)
    }

    /// Whether a task was taken in and has not run, or a stream's device runs commands later.
    pub(crate) fn holds(&self) -> bool {
        self.streams.iter().any(|stream| !stream.queue.is_empty() || stream.stream_state.in_flight.is_some())
    }

    /// Whether a task that was taken in can run now: a caller that helped may have left ready heads.
    pub(crate) fn has_ready_head(&self, env: &Environment) -> bool {
        self.streams.iter().any(|ContextStream { stream_state, queue, paused, operation, .. }| {
            let head_is_ready = |head: &Task| match head.first_device_wait() {
                None => true,
                Some(point) => launch::is_met(head, stream_state, point, env),
            };
            stream_state.in_flight.as_ref().is_some_and(InFlight::calls_context)
                || operation.is_some()
                || (paused.is_none() && queue.front().is_some_and(head_is_ready))
        })
    }

    /// Whether operations are to be polled.
    pub(crate) fn polls(&self) -> bool {
        self.streams.iter().any(ContextStream::polls)
    }

    /// The first open wait of each head.
    fn blocked(&self) -> impl Iterator<Item = (&ContextStream, &Task, Point)> + '_ {
        self.streams.iter().filter(|stream| stream.paused.is_none()).filter_map(|stream| {
            let head = stream.queue.front()?;
            Some((stream, head, head.first_device_wait()?))
        })
    }

    /// Notes the heads of the queues for stall reports.
    pub(crate) fn note_heads(&self) {
        let heads = self.streams.iter().filter_map(|stream| match &stream.paused {
            Some(task) if stream.polls() => Some(&**task),
            _ => stream.queue.front(),
        });
        self.handle.heads.write(heads);
    }

    /// The thread that serves the strand `strand`, which is this context, leaves it. If there is something to do, the thread stays, and gets
    /// its right back. The caller holds the run lock for the whole call.
    ///
    /// A caller that helps may take in tasks that it does not run, and may run the head, before this call or after it. Before: the heads
    /// checked here include those tasks. After: the tasks were pushed after the state changed, or are after a head for which the strand is
    /// registered, so their pusher or that point queues the strand.
    pub(crate) fn leave(&mut self, strand: &Strand, served: Served, env: &Environment) -> Option<Served> {
        self.give_back(env);
        self.note_heads();
        if self.has_ready_head(env) {
            return Some(served);
        }
        let Some(point) = self.blocked().next().map(|(_, _, point)| point) else {
            return strand.leave_idle(served, || self.handle.inbox.is_surely_empty());
        };
        let Some(source) = env.streams.get(point.stream) else { return Some(served) };
        strand.leave_blocked(served, || source.when_passed(point.seq, Wake::Strand(self.handle.clone())).is_ok())
    }

    /// Prepares to park: announces the parker, then looks for work once more. The caller holds the run lock for the whole call.
    ///
    /// No wake-up is lost, because everything that makes the context ready after the announcement wakes the parker: a task that is sent, a
    /// point that a head waits for, a condition of a block, and the end of the engine. Tasks that a helping caller took in before this call are among the heads
    /// checked here; tasks that one takes in later were sent after the announcement.
    pub(crate) fn prepare_park(&mut self, env: &Environment) -> ParkToken {
        self.give_back(env);
        self.note_heads();
        let parker = &self.handle.parker;
        parker.prepare_park();
        let mut asleep = self.handle.inbox.is_surely_empty() && !env.may_end();
        let mut registered = Vec::new();
        asleep &= !self
            .streams
            .iter()
            .any(|stream| stream.stream_state.in_flight.as_ref().is_some_and(InFlight::surely_calls_context));
        for (stream, head, point) in self.blocked() {
            let Some(stream_state) = env.streams.get(point.stream) else { continue };
            if let Some(source) = launch::by_event(head, &stream.stream_state, stream_state) {
                match source.when_recorded(point.seq, parker) {
                    RecordState::NotYet => continue,
                    RecordState::By(_) => {
                        asleep = false;
                        continue;
                    }
                    RecordState::ByNumber => {}
                }
            }
            match stream_state.when_passed(point.seq, Wake::Parker(parker.clone())) {
                Ok(id) => registered.push((point, id)),
                Err(_) => asleep = false,
            }
        }
        ParkToken { asleep, registered }
    }
}

/// A context's thread that has announced that it will park.
#[must_use = "the thread has announced that it sleeps"]
pub(crate) struct ParkToken {
    /// Whether the look after the announcement found no work.
    asleep: bool,
    /// Where the parker is registered, with the number of the registration.
    registered: Vec<(Point, u64)>,
}

impl ParkToken {
    /// Parks until woken, unless there was work; then removes the registrations. The caller must not hold the run lock.
    pub(crate) fn sleep(self, parker: &Parker, env: &Environment) {
        if self.asleep {
            parker.sleep();
        } else {
            parker.cancel_park();
        }
        for (point, id) in self.registered {
            if let Some(stream_state) = env.streams.get(point.stream) {
                stream_state.forget(point.seq, id);
            }
        }
    }
}

/// Binds the calling thread, which launches the commands, to the device's per-thread state.
fn bind(in_flight: &InFlight) {
    if let Err(error) = in_flight.device.bind_thread() {
        // Commands run without the binding, or fail for the same reason and report it.
        log::warn!("the thread that launches for {} was not bound: {error}", in_flight.device.id());
    }
}
