//! Stall detection: reports what blocks the engine when nothing passes.
//!
//! A [`StallReport`] names, for each stream with pending instructions, the oldest one that has not passed, what it is doing and what it
//! waits for. A waiter that has seen nothing pass for [`VmBuilder::stall_after`] logs a report, once per stall. No other thread reads the
//! clock, so nothing is polled while no thread waits. A waiter that helps does not read the clock meanwhile.
//!
//! The notes that reports are made from are in [`notes`](crate::tasks::notes).
//!
//! [`VmBuilder::stall_after`]: crate::VmBuilder::stall_after

use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use streamvm_ep::ProgramStep;
use streamvm_instructions::Deadline;
use streamvm_stream::Point;

use crate::execute::environment::Environment;
use crate::observe::stall_report::{StallReport, StallState, StalledInstruction};
use crate::progress::stream_state::StreamState;
use crate::progress::unordered::Unordered;
use crate::sync::{AtomicU64, Ordering};
use crate::tasks::notes::{Board, Noted};
use crate::tasks::timeline::Cause;

/// Default time without progress after which a waiter logs a report: longer than any sensible instruction, short enough to help a user
/// whose program hangs.
pub(crate) const STALL_AFTER: Duration = Duration::from_secs(30);

/// What the message of a timeout says where nothing is left to wait for.
const PASSED: &str = "the work has passed just after that";

/// The stall state of one engine.
pub(crate) struct Stall {
    after: Duration,
    /// Notes of what the scheduler holds back.
    pub(crate) held: Board,
    /// The stall that was logged last: the value of `progress` then, plus one.
    logged: AtomicU64,
}

impl Stall {
    /// `after` is the time without progress after which a waiter logs a report.
    pub(crate) fn new(after: Duration) -> Stall {
        Stall { after, held: Board::default(), logged: AtomicU64::new(0) }
    }
}

impl Environment {
    /// How much has passed so far, over all streams. Any progress changes the number.
    fn progress(&self) -> u64 {
        self.streams.iter().fold(0, |sum: u64, stream_state| sum.wrapping_add(stream_state.passed()))
    }

    /// See [`Vm::stall_report`](crate::Vm::stall_report).
    pub(crate) fn stall_report(&self) -> StallReport {
        if self.fork.is_child() {
            return StallReport::new(Vec::new(), 0, (Vec::new(), 0));
        }
        let pending = |stream_state: &StreamState| {
            let passed = stream_state.passed();
            (stream_state.submitted() > passed)
                .then(|| (Point::new(stream_state.id, passed + 1), stream_state.submitted() - passed))
        };
        let stalled = self.streams.iter().filter_map(|stream_state| {
            let (point, pending) = pending(stream_state)?;
            match stream_state.unordered() {
                Some(unordered) => self.look_at_workers(stream_state, unordered, pending),
                None => Some(self.look_at(stream_state, point, pending)),
            }
        });
        StallReport::new(stalled.collect(), self.backpressure.blocked(), self.section_gate.report())
    }

    /// What a wait for `point` waits for, for the message of a timeout: the oldest pending instruction of an ordered stream, which holds up
    /// those after it; on workers, the instruction itself.
    pub(crate) fn waited_for(&self, point: Point) -> String {
        let Some(stream_state) = self.streams.get(point.stream) else { return PASSED.to_owned() };
        if let Some(unordered) = stream_state.unordered() {
            let workers = unordered.pool.iter().flat_map(|pool| &pool.contexts).chain([&stream_state.context]);
            let running = workers.filter_map(|worker| worker.running.last()).find(|noted| noted.point == point);
            let incomplete = unordered.pool.as_ref().and_then(|pool| pool.incomplete.find(point));
            let found: Found = match (incomplete, running) {
                (Some(noted), _) => (Some(noted), StallState::Incomplete, SmallVec::new()),
                (None, Some(noted)) => (Some(noted), StallState::Running, SmallVec::new()),
                (None, None) => return self.not_begun(stream_state, unordered),
            };
            return self.describe(stream_state, point, 1, found).in_words();
        }
        let (passed, submitted) = (stream_state.passed(), stream_state.submitted());
        if submitted <= passed {
            return PASSED.to_owned();
        }
        self.look_at(stream_state, Point::new(stream_state.id, passed + 1), submitted - passed).in_words()
    }

    /// Says that an instruction on workers has not begun, and what the workers do instead. Its name is in its task alone, which no note shows.
    fn not_begun(&self, stream_state: &StreamState, unordered: &Unordered) -> String {
        let pending = stream_state.open_points().count() as u64;
        let other = self.look_at_workers(stream_state, unordered, pending).filter(|other| other.what.is_some());
        let other = other.map_or_else(String::new, |other| format!("; {}", other.in_words()));
        format!("an instruction of {} has not begun{other}", stream_state.key)
    }

    /// Describes the oldest pending instruction of an ordered stream.
    fn look_at(&self, stream_state: &StreamState, point: Point, pending: u64) -> StalledInstruction {
        let open = |waits: SmallVec<[Point; 2]>| waits.into_iter().filter(|point| !self.streams.has_passed(*point));
        if let Some((noted, step)) = paused(stream_state, point) {
            let found = (Some(noted), StallState::Condition, SmallVec::new());
            return StalledInstruction { condition: Some(step), ..self.describe(stream_state, point, pending, found) };
        }
        if let Some((noted, waited)) = launched(stream_state, point) {
            return self.describe(
                stream_state,
                point,
                pending,
                (Some(noted), StallState::Launched, open(waited).collect()),
            );
        }
        let running = stream_state.context.running.last();
        let found: Found = match running {
            Some(noted) if noted.point == point => (Some(noted), StallState::Running, SmallVec::new()),
            other => {
                let waiting = stream_state.context.heads.find(point).map(|found| (found, StallState::Waiting));
                let held = || self.stall.held.find(point).map(|found| (found, StallState::HeldBack));
                match (waiting.or_else(held), other) {
                    (Some(((noted, waits), state)), _) => (Some(noted), state, open(waits).collect()),
                    (None, Some(other)) if !self.streams.has_passed(other.point) => {
                        (None, StallState::Queued, SmallVec::from_slice(&[other.point]))
                    }
                    (None, _) => match self.behind(stream_state) {
                        behind if behind.is_empty() => (None, StallState::Ready, behind),
                        behind => (None, StallState::Queued, behind),
                    },
                }
            }
        };
        self.describe(stream_state, point, pending, found)
    }

    /// The points of the instructions that the threads of the strand of `stream_state` run, if the strand waits for one of these threads.
    fn behind(&self, stream_state: &StreamState) -> SmallVec<[Point; 2]> {
        let Some(strand) = stream_state.context.as_strand().filter(|strand| strand.is_queued()) else {
            return SmallVec::new();
        };
        let beside = |other: &&Arc<StreamState>| {
            other.context.as_strand().is_some_and(|other| Arc::ptr_eq(other.group(), strand.group()))
        };
        let running = self.streams.iter().filter(beside).filter_map(|other| other.context.running.last());
        running.map(|noted| noted.point).filter(|point| !self.streams.has_passed(*point)).collect()
    }

    /// Describes one pending instruction of an unordered stream, which has no oldest one: one that a worker runs; else one whose handle was
    /// not used yet; else any.
    fn look_at_workers(
        &self,
        stream_state: &StreamState,
        unordered: &Unordered,
        pending: u64,
    ) -> Option<StalledInstruction> {
        let workers = unordered.pool.iter().flat_map(|pool| &pool.contexts).chain([&stream_state.context]);
        let is_open =
            |noted: &Noted| noted.point.stream == stream_state.id && !stream_state.has_passed(noted.point.seq);
        let incomplete = unordered.pool.as_ref().map(|pool| &pool.incomplete);
        // A worker has left an instruction that waits for its handle, but its last note may still name it.
        let has_left = |noted: &Noted| incomplete.is_some_and(|incomplete| incomplete.has(noted));
        let mut running = workers.filter_map(|worker| worker.running.last());
        let running =
            running.find(|noted| is_open(noted) && !has_left(noted)).map(|noted| (noted, StallState::Running));
        let incomplete = || Some((incomplete?.any().filter(is_open)?, StallState::Incomplete));
        let (noted, state) = match running.or_else(incomplete) {
            Some((noted, state)) => (Some(noted), state),
            None => (None, StallState::Waiting),
        };
        let point = noted.as_ref().map(|noted| noted.point).or_else(|| stream_state.open_points().next())?;
        Some(self.describe(stream_state, point, pending, (noted, state, SmallVec::new())))
    }

    fn describe(&self, stream_state: &StreamState, point: Point, pending: u64, found: Found) -> StalledInstruction {
        let (noted, state, waits) = found;
        let named = waits.iter().filter_map(|wait| Some((*wait, self.streams.get(wait.stream)?)));
        let waits_for =
            named.map(|(wait, stream_state)| (stream_state.key, self.number_of(stream_state, wait))).collect();
        let seq = noted.as_ref().map_or_else(|| self.number_of(stream_state, point), |noted| noted.number);
        let (what, site) = noted.map(|noted| (noted.what.into_owned(), noted.site)).unzip();
        let thread = (state == StallState::Running).then(|| self.thread_of(stream_state, point)).flatten();
        let noted = stream_state.step_note.as_ref().filter(|_| state == StallState::Running);
        let (stream, condition, step) = (stream_state.key, None, noted.and_then(|noted| noted.step()));
        StalledInstruction { stream, seq, pending, what, site, state, thread, waits_for, condition, step }
    }

    /// The name of the thread that runs an instruction.
    fn thread_of(&self, stream_state: &StreamState, point: Point) -> Option<String> {
        if let Some(strand) = stream_state.context.as_strand() {
            return strand.last_thread().map(|thread| thread.name.clone());
        }
        let pool = stream_state.unordered().and_then(|unordered| unordered.pool.as_ref());
        let mut workers = pool.into_iter().flat_map(|pool| &pool.contexts).chain([&stream_state.context]);
        let worker = workers.find(|worker| worker.running.last().is_some_and(|noted| noted.point == point));
        worker.map(|worker| worker.name.clone())
    }

    /// The number that reports show for an instruction that has not passed; 0 for one on workers that no note names.
    fn number_of(&self, stream_state: &StreamState, point: Point) -> u64 {
        let Some(unordered) = stream_state.unordered() else { return point.seq };
        let pool = unordered.pool.as_ref();
        let workers = pool.into_iter().flat_map(|pool| &pool.contexts).chain([&stream_state.context]);
        let running = workers.filter_map(|worker| worker.running.last()).find(|noted| noted.point == point);
        let incomplete = || pool?.incomplete.find(point);
        running.or_else(incomplete).map_or(0, |noted| noted.number)
    }
}

/// What is known of an instruction: its note, its state, and the points that it waits for.
type Found = (Option<Noted>, StallState, SmallVec<[Point; 2]>);

/// The note of an instruction that was launched and has not passed, and the points that the device waits for.
fn launched(stream_state: &StreamState, point: Point) -> Option<(Noted, SmallVec<[Point; 2]>)> {
    let in_flight = stream_state.in_flight.as_ref().filter(|in_flight| in_flight.launched() >= point.seq)?;
    let first = in_flight.with_first(|task| (Noted::of(task), SmallVec::from_slice(task.waited())));
    first.filter(|(noted, _)| noted.point == point)
}

/// The note of an instruction that waits for a condition, and the step that begins the block.
fn paused(stream_state: &StreamState, point: Point) -> Option<(Noted, ProgramStep)> {
    let found = stream_state.in_flight.as_ref()?.with_condition(|wait| (wait.noted.clone(), wait.step))?;
    (found.0.point == point).then_some(found)
}

/// One waiter's stall timer. The waiter makes it before it first blocks, and asks it before and after each block.
pub(crate) struct Watch {
    /// When to check for progress next; `None` if the time is out of range.
    next: Option<Instant>,
    progress: u64,
}

impl Watch {
    pub(crate) fn new(env: &Environment) -> Watch {
        Watch { next: Instant::now().checked_add(env.stall.after), progress: env.progress() }
    }

    /// How long to block at most, given this deadline; `None` for no limit.
    pub(crate) fn nap(&self, deadline: Option<Deadline>) -> Option<Duration> {
        let until = match (self.next, deadline.map(|deadline| deadline.at())) {
            (Some(next), Some(deadline)) => Some(next.min(deadline)),
            (next, deadline) => next.or(deadline),
        };
        until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Whether it is time to check for progress.
    pub(crate) fn is_due(&self) -> bool {
        self.next.is_some_and(|next| Instant::now() >= next)
    }

    /// When it is time, checks for progress, and logs a report if there was none. The caller must hold no lock, because loggers are user
    /// code.
    pub(crate) fn look(&mut self, env: &Environment) {
        if !self.is_due() {
            return;
        }
        self.next = Instant::now().checked_add(env.stall.after);
        let before = std::mem::replace(&mut self.progress, env.progress());
        // Of several waiters in one stall, only the first logs it.
        if before == self.progress && env.stall.logged.swap(before.wrapping_add(1), Ordering::Relaxed) != before + 1 {
            let report = env.stall_report();
            log::warn!("no instruction has passed for {:?} while a thread waits: {report}", env.stall.after);
            if let Some(timeline) = &env.timeline {
                timeline.asks.ask(Cause::Stall);
            }
        }
    }
}
