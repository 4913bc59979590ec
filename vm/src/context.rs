//! Thread contexts: workers that run the instructions of streams of one device.
//!
//! A context keeps one queue per stream and runs any stream whose head is ready; it never blocks in place, so a stream
//! that waits for another holds up nobody else on the same thread. It parks only when no head is ready.
//!
//! [`Context`] is the logic: [`Context::step`] does all the work there is, and never waits. [`ContextShared`] is what
//! others see. The thread is in `context_thread.rs`; a caller that waits may take a turn
//! in its place (`help.rs`), so both work under the driver's lock.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use streamvm_ep as ep;
use streamvm_instructions::Cause;
use streamvm_stream::Point;

use crate::context_shared::{ContextShared, Opened};
use crate::entry::StreamEntry;
use crate::flight::{Flight, Shown};
use crate::intake::Intake;
use crate::job::{Job, Task};
use crate::launch;
use crate::ring::Drain;
use crate::room::Looks;
use crate::run;
use crate::runner::Runner;
use crate::shared::Shared;
use crate::sleep::Sleeper;
use crate::slot::{Chain, Slot};
use crate::spin;
use crate::sync::{Ordering, unpoisoned};
use crate::waiters::Wake;

/// How many instructions of one stream run before the next stream has its turn. Large enough that changing over costs
/// nothing, small enough that a stream with short work waits for microseconds.
const TURN: usize = 64;

/// Slots that a context keeps before it gives them back in one batch.
const RETIRED: usize = 64;

/// One stream as its context runs it.
struct Lane {
    entry: Arc<StreamEntry>,
    runner: Runner,
    queue: Chain<Job>,
}

/// The logic of one context. Whoever holds its driver lock has the turn: its thread, a caller that helps, or, in inline mode, who
/// submits.
pub(crate) struct Context {
    shared: Arc<ContextShared>,
    /// Where single instructions come out.
    drain: Option<Drain<Job>>,
    lanes: Vec<Lane>,
    /// Stream number -> lane.
    index: Vec<Option<usize>>,
    retired: Chain<Job>,
    /// Whether its thread is its own, for devices that keep state for each thread.
    has_thread: bool,
    /// The lane that ran last, and the job of it that is being run: what fails if a backend panics where no
    /// instruction catches it.
    lane_in_hand: usize,
    in_hand: Option<Slot<Job>>,
    looks: Looks,
    /// Whether there may be as much to take in as if it had not looked at all: the last round brought many jobs, or a lane did not
    /// come to the end of its queue.
    pub(crate) lags: bool,
    /// A caller has had a turn since the thread last asked.
    helped: bool,
}

impl Context {
    pub(crate) fn new(shared: Arc<ContextShared>) -> Context {
        Context {
            drain: shared.intake.as_ref().and_then(Intake::drain),
            shared,
            lanes: Vec::new(),
            index: Vec::new(),
            retired: Chain::new(),
            has_thread: false,
            lane_in_hand: 0,
            in_hand: None,
            looks: Looks::default(),
            lags: false,
            helped: false,
        }
    }

    /// One that a thread of its own serves.
    pub(crate) fn with_thread(shared: Arc<ContextShared>) -> Context {
        Context { has_thread: true, ..Context::new(shared) }
    }

    /// Does what can be done now; returns whether anything was.
    pub(crate) fn step(&mut self, vm: &Shared) -> bool {
        self.work(true, vm)
    }

    /// [`Context::step`], with or without a look into the inbox.
    pub(crate) fn work(&mut self, looks: bool, vm: &Shared) -> bool {
        self.surviving(vm, |context| {
            let taken = if looks { context.take_in() } else { 0 };
            context.lags = taken >= spin::FEW;
            let mut progress = false;
            for lane in 0..context.lanes.len() {
                let done = context.run_turn(lane, TURN, vm);
                progress |= done > 0;
                context.lags |= done == TURN;
            }
            progress
        })
    }

    /// Runs the next instruction of one stream if it is ready. Returns whether anything was done.
    pub(crate) fn step_lane(&mut self, lane: usize, vm: &Shared) -> bool {
        self.surviving(vm, |context| context.run_turn(lane, 1, vm) > 0)
    }

    /// Runs what lies on one stream up to number `seq`, no more than a turn of it, while it is ready.
    pub(crate) fn help(&mut self, entry: &StreamEntry, seq: u64, vm: &Shared) {
        self.helped = true;
        self.surviving(vm, |context| {
            context.take_in();
            let Some(lane) = context.index.get(entry.id.index()).copied().flatten() else { return false };
            let left = seq.saturating_sub(entry.passed()) as usize;
            let ran = context.run_turn(lane, left.min(TURN), vm);
            let helped = &context.shared.helped;
            helped.store(helped.load(Ordering::Relaxed) + ran as u64, Ordering::Relaxed);
            ran > 0
        });
    }

    /// Whether the last instruction that it ran has a caller's code, and nothing that was submitted behind it has any.
    pub(crate) fn has_run_code(&self) -> bool {
        self.lanes.get(self.lane_in_hand).is_some_and(|lane| lane.entry.has_passed_code())
    }

    /// Whether a caller has had a turn since this was last asked.
    pub(crate) fn was_helped(&mut self) -> bool {
        std::mem::take(&mut self.helped)
    }

    /// Does `work`. What runs an instruction catches its panics; if a backend panics anywhere else, the instruction in
    /// hand fails, and the thread lives on: nothing behind it may hang.
    fn surviving(&mut self, vm: &Shared, work: impl FnOnce(&mut Context) -> bool) -> bool {
        catch_unwind(AssertUnwindSafe(|| work(self))).unwrap_or_else(|payload| {
            self.bury(run::panic_text(payload), vm);
            true
        })
    }

    #[cold]
    fn bury(&mut self, text: String, vm: &Shared) {
        log::error!("thread context {}: a backend panicked ({text}); the instruction in hand fails", self.shared.name);
        let Some(mut job) = self.in_hand.take() else {
            return;
        };
        let entry = &self.lanes[self.lane_in_hand].entry;
        if entry.has_passed(job.point.seq) {
            return;
        }
        if !vm.failures.is_known(job.point) {
            vm.failures.fail(job.order, Arc::new(run::failure(&job, entry, Cause::Panic(text))));
        }
        match &entry.flight {
            Some(flight) => {
                run::tally(&mut job, vm, &self.shared);
                let (seq, records) = (job.point.seq, job.records());
                flight.add(job);
                // Who waits for the record waits for the number instead.
                if records {
                    flight.note_record(seq, Err(()));
                }
            }
            None => {
                run::finish(&mut job, entry, vm, &self.shared);
                vm.room.announce(vm, &mut self.looks);
                self.retired.push(job);
            }
        }
    }

    /// How many streams it runs.
    pub(crate) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Runs jobs in the order given, each until it has passed, whatever their waits: the caller has run everything
    /// before them.
    pub(crate) fn run_in_order(&mut self, mut jobs: Chain<Job>, vm: &Shared) {
        while let Some(mut job) = jobs.pop() {
            let lane = self.lane_of(&job);
            let seq = job.point.seq;
            if let Some(more) = job.has_more() {
                more.all_waited();
            }
            self.lane_in_hand = lane;
            self.run(job, vm);
            let Lane { entry, runner, .. } = &mut self.lanes[lane];
            if let Some(flight) = &entry.flight {
                launch::prove(flight, seq, runner.stream());
                vm.completion.poll(vm);
            }
        }
        self.give_back(vm);
    }

    /// Takes what was sent into the queues of its streams; returns how many that were. What is all for one of them, and knows what to
    /// fetch ahead, goes there as it is. Measured on 2 cores, ns, medians of 7 runs in turns, one by one / as it is: independent in
    /// lists 61 / 53, fan over two lanes 132 / 119. What knows nothing ahead is told by being queued anew.
    pub(crate) fn take_in(&mut self) -> usize {
        debug_assert_eq!(self.drain.is_some(), self.shared.intake.is_some(), "a context has the end of its ring");
        let mut jobs = match (&mut self.drain, &self.shared.intake) {
            (Some(drain), Some(intake)) => intake.take(drain, &self.shared.inbox),
            _ => self.shared.inbox.take(),
        };
        let taken = jobs.len();
        if jobs.knows_ahead()
            && let Some(lane) = self.lane_of_all(&jobs)
        {
            self.lanes[lane].queue.append(&mut jobs);
            return taken;
        }
        while let Some(job) = jobs.pop() {
            let lane = self.lane_of(&job);
            self.lanes[lane].queue.push(job);
        }
        taken
    }

    /// The lane of all that was taken in, if that can be told without a look at each: a stream's instructions come in the order of
    /// their numbers, without gaps, so those from the first to the last are here, and nothing else is if there are as many. A mark
    /// has another's number.
    fn lane_of_all(&mut self, jobs: &Chain<Job>) -> Option<usize> {
        let (first, last) = (jobs.front()?, jobs.back()?);
        let marks = first.task == Task::Mark || last.task == Task::Mark;
        let between = last.point.seq.wrapping_sub(first.point.seq);
        let all = first.point.stream == last.point.stream && between == jobs.len() as u64 - 1;
        let found = (all && !marks).then(|| self.lane_of(first));
        debug_assert!(
            found.is_none() || jobs.iter().all(|job| job.point.stream == first.point.stream),
            "of one stream"
        );
        found
    }

    #[inline]
    fn lane_of(&mut self, job: &Job) -> usize {
        let stream = job.point.stream.index();
        match self.index.get(stream) {
            Some(Some(lane)) => *lane,
            _ => self.open_lane_of(stream),
        }
    }

    #[cold]
    fn open_lane_of(&mut self, stream: usize) -> usize {
        for Opened { entry, stream } in unpoisoned(self.shared.opened.lock()).drain(..) {
            let id = entry.id.index();
            if self.index.len() <= id {
                self.index.resize(id + 1, None);
            }
            if let Some(flight) = entry.flight.as_ref().filter(|_| self.has_thread) {
                bind(flight);
            }
            self.index[id] = Some(self.lanes.len());
            self.lanes.push(Lane { entry, runner: Runner::new(stream), queue: Chain::new() });
        }
        // A stream is opened before its first job is sent, so the number is there now.
        self.index.get(stream).copied().flatten().unwrap_or_else(|| unreachable!("stream {stream} was never opened"))
    }

    /// Runs up to `most` instructions of one stream, while its head is ready. Returns how many times something was done.
    fn run_turn(&mut self, lane: usize, most: usize, vm: &Shared) -> usize {
        for done in 0..most {
            let Lane { entry, runner, queue } = &mut self.lanes[lane];
            if let Some(flight) = &entry.flight
                && flight.needs_attention()
            {
                launch::record_tail(flight, runner.stream());
                continue;
            }
            let Some(head) = queue.front_mut() else {
                return done;
            };
            if let Some(more) = head.has_more()
                && !more.device_waits.is_empty()
            {
                // Waits that are met are not looked at again.
                launch::settle_waits(more, entry, runner.stream(), vm);
                if !more.device_waits.is_empty() {
                    return done;
                }
            }
            if let Some(job) = queue.pop() {
                if let Some(next) = queue.front() {
                    next.fetch_views();
                }
                self.lane_in_hand = lane;
                self.run(job, vm);
            }
        }
        most
    }

    /// Runs a job of the lane in hand.
    #[inline]
    fn run(&mut self, job: Slot<Job>, vm: &Shared) {
        let Lane { entry, runner, .. } = &mut self.lanes[self.lane_in_hand];
        let job = self.in_hand.insert(job);
        self.shared.running.begin(job);
        if entry.flight.is_some() {
            // What fails late is told by these numbers.
            let Point { stream: id, seq } = job.point;
            if vm.tells_ops {
                let what = job.name().into();
                runner.stream().begin(&ep::Label {
                    stream: id.0,
                    seq,
                    what,
                    site: job.site,
                    lives: Arc::default(),
                    actor: None,
                });
            } else {
                runner.stream().number(id.0, seq);
            }
        }
        if let Some(monitor) = &vm.monitor {
            monitor.starts(job, entry, runner.stream());
        }
        if entry.flight.is_some() {
            return self.launch(vm);
        }
        run::run(job, entry, runner, vm, &self.shared);
        vm.room.announce(vm, &mut self.looks);
        if let Some(job) = self.in_hand.take() {
            self.retired.push(job);
        }
        if self.retired.len() >= RETIRED {
            self.give_back(vm);
        }
    }

    /// Launches the job in hand, whose device runs it later.
    #[inline(never)]
    fn launch(&mut self, vm: &Shared) {
        let Lane { entry, runner, .. } = &mut self.lanes[self.lane_in_hand];
        let (Some(flight), Some(job)) = (&entry.flight, &mut self.in_hand) else { return };
        let raw = job.task == Task::Raw;
        launch::carry_out(job, entry, flight, runner, vm);
        if raw && job.task != Task::Raw && self.has_thread {
            // It was not skipped, and all of the caller's has run: the function, the drops of its captures and of its error.
            bind(flight);
        }
        if let Some(job) = &mut self.in_hand {
            run::tally(job, vm, &self.shared);
        }
        if let Some(job) = self.in_hand.take()
            && let Some(mark) = launch::hand_over(job, entry, flight, runner.stream(), vm)
        {
            self.retired.push(mark);
        }
    }

    /// Gives the slots of what has passed back to the submitters.
    pub(crate) fn give_back(&mut self, vm: &Shared) {
        vm.returned.push(&mut self.retired);
    }

    /// What heads wait for that only a timeline tells.
    pub(crate) fn held_by(&self) -> impl Iterator<Item = Point> + '_ {
        self.blocked().map(|(_, _, point)| point)
    }

    /// Whether something can be done now.
    pub(crate) fn is_ready(&self, vm: &Shared) -> bool {
        !self.shared.seems_empty() || self.has_ready_head(vm)
    }

    /// Whether something was taken in that has not run.
    pub(crate) fn holds(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.queue.is_empty() || lane.entry.flight.is_some())
    }

    /// Whether something that was taken in can be done now: a caller that had a turn may have left heads that wait for nothing.
    pub(crate) fn has_ready_head(&self, vm: &Shared) -> bool {
        self.lanes.iter().any(|Lane { entry, queue, .. }| {
            let head_is_ready = |head: &Job| match head.first_device_wait() {
                None => true,
                Some(point) => launch::is_met(head, entry, point, vm),
            };
            entry.flight.as_ref().is_some_and(Flight::needs_attention) || queue.front().is_some_and(head_is_ready)
        })
    }

    /// What the heads wait for: the first open wait of each.
    fn blocked(&self) -> impl Iterator<Item = (&Lane, &Job, Point)> + '_ {
        self.lanes.iter().filter_map(|lane| {
            let head = lane.queue.front()?;
            Some((lane, head, head.first_device_wait()?))
        })
    }

    /// Writes down, for reports, what cannot be run yet.
    pub(crate) fn note_heads(&self) {
        self.shared.heads.write(self.lanes.iter().filter_map(|lane| lane.queue.front()));
    }

    /// Makes ready to sleep until there may be something to do. Every way to become ready leads to a wake: a job that is sent, a
    /// passed point that a head waits for, the end of the engine. All under one hold of the driver's lock: what a caller has taken in
    /// before is among the heads here, what it takes in later was pushed when the sleeper was announced.
    pub(crate) fn lie_down(&mut self, vm: &Shared) -> Bed {
        self.give_back(vm);
        self.note_heads();
        let sleeper = &self.shared.sleeper;
        sleeper.prepare();
        let mut asleep = self.shared.is_surely_empty(vm.handle) && !vm.is_over();
        let mut registered = Vec::new();
        asleep &= !self.lanes.iter().any(|lane| lane.entry.flight.as_ref().is_some_and(Flight::surely_needs_attention));
        for (lane, head, point) in self.blocked() {
            let Some(entry) = vm.streams.get(point.stream) else { continue };
            if let Some(source) = launch::by_event(head, &lane.entry, entry) {
                match source.when_shown(point.seq, sleeper) {
                    Shown::NotYet => continue,
                    Shown::By(_) => {
                        asleep = false;
                        continue;
                    }
                    Shown::ByNumber => {}
                }
            }
            match entry.when_passed(point.seq, Wake::Sleeper(sleeper.clone())) {
                Ok(id) => registered.push((point, id)),
                Err(_) => asleep = false,
            }
        }
        Bed { asleep, registered }
    }
}

/// A context's thread that is about to sleep.
#[must_use = "the thread has announced that it sleeps"]
pub(crate) struct Bed {
    /// Nothing was there to be done.
    asleep: bool,
    /// Where the sleeper is registered.
    registered: Vec<(Point, u64)>,
}

impl Bed {
    /// Sleeps until woken, unless there was something to do. The driver's lock is not held.
    pub(crate) fn sleep(self, sleeper: &Sleeper, vm: &Shared) {
        if self.asleep {
            sleeper.sleep();
        } else {
            sleeper.cancel();
        }
        for (point, id) in self.registered {
            if let Some(entry) = vm.streams.get(point.stream) {
                entry.forget(point.seq, id);
            }
        }
    }
}

/// Sets up what the device keeps for the thread that launches its commands, which is this one.
fn bind(flight: &Flight) {
    if let Err(error) = flight.device.bind_thread() {
        // Its commands do without, or fail for the same reason and say so.
        log::warn!("the thread that launches for {} was not bound: {error}", flight.device.id());
    }
}
