//! Stalls: what blocks the engine when nothing passes.
//!
//! A [`StallReport`] names, for each stream with pending work, its oldest instruction that has not passed, what that is
//! doing and what it waits for. A waiter that has seen nothing pass for [`VmBuilder::stall_after`] logs one, once for
//! each standstill; nobody else looks at a clock, so nothing is polled while nobody waits. A waiter that runs what it waits for itself
//! looks at none meanwhile.
//!
//! Instructions belong to whoever runs or holds them, so a report cannot look at them. Instead:
//! * A thread context writes down what it is about to run ([`Running`]): a few plain stores of one line that nobody
//!   else writes, kept consistent by a version, as in a sequence lock.
//! * A thread context or the scheduler that falls asleep writes down the instructions that it cannot go on with
//!   ([`Board`]). That is off the hot path: such a sleeper registers with the streams it waits for anyway.
//! * What a pool has called and waits for its handle is kept in a table ([`Incomplete`]), until the handle is used.
//!
//! What a context runs, or cannot go on with, is never wiped: what is written down counts only while its point has not passed,
//! and only if it is the oldest of its stream, or none is. So old notes do no harm, and a report made while work goes on is only
//! out of date.
//!
//! [`VmBuilder::stall_after`]: crate::VmBuilder::stall_after

use std::borrow::Cow;
use std::panic::Location;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use hashbrown::HashMap;
use smallvec::SmallVec;
use streamvm_instructions::Deadline;
use streamvm_stream::{Point, StreamId};

use crate::entry::StreamEntry;
use crate::job::Job;
use crate::progress::Unordered;
use crate::shared::Shared;
use crate::site::AtomicSite;
use crate::stall_report::{StallReport, StallState, StalledInstruction};
use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, fence, unpoisoned};

/// How long a waiter sees nothing pass before it says so, unless the engine was set up otherwise: longer than any
/// sensible instruction, short enough to help whoever looks at a program that hangs.
pub(crate) const STALL_AFTER: Duration = Duration::from_secs(30);

/// Open waits of an instruction that are written down, those that are looked at next first: there may be thousands.
const MOST_WAITS: usize = 8;

/// Words of a name that are written down, of 8 bytes each; what is longer is cut off.
const WORDS: usize = 3;

/// What a thread context runs, as reports see it. Written by who has its turn alone.
#[derive(Debug, Default)]
pub(crate) struct Running(CachePadded<Note>);

#[derive(Debug, Default)]
struct Note {
    /// Odd while the rest is being written.
    version: AtomicU64,
    seq: AtomicU64,
    /// The number that reports show: [`Job::number`]. Written on unordered streams alone; on an ordered one it is `seq`.
    number: AtomicU64,
    /// The stream in the lower half, the length of the name in the upper.
    stream_and_length: AtomicU64,
    site: AtomicSite,
    name: [AtomicU64; WORDS],
    /// Where the last name lay, if it is a constant of the program: the same again need not be copied. Read by the
    /// writer alone.
    constant: AtomicUsize,
}

/// The asynchronous functions of a pool that were called and are not over, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Incomplete(Mutex<HashMap<u64, Noted>>);

impl Incomplete {
    /// Writes down that `job` waits for its handle.
    pub(crate) fn begin(&self, job: &Job) {
        let noted = Noted::of(job);
        unpoisoned(self.0.lock()).insert(job.point.seq, noted);
    }

    /// Its handle was used.
    pub(crate) fn end(&self, job: &Job) {
        unpoisoned(self.0.lock()).remove(&job.point.seq);
    }

    fn has(&self, noted: &Noted) -> bool {
        unpoisoned(self.0.lock()).contains_key(&noted.point.seq)
    }

    fn find(&self, point: Point) -> Option<Noted> {
        unpoisoned(self.0.lock()).get(&point.seq).filter(|noted| noted.point == point).cloned()
    }

    fn any(&self) -> Option<Noted> {
        unpoisoned(self.0.lock()).values().next().cloned()
    }
}

/// The name of a job, which mostly is a constant of the program.
fn name_of(job: &Job) -> Cow<'static, str> {
    job.own_name().map_or(job.what.into(), |name| name.to_owned().into())
}

/// An instruction that somebody wrote down.
#[derive(Clone, Debug)]
struct Noted {
    point: Point,
    number: u64,
    what: Cow<'static, str>,
    site: &'static Location<'static>,
}

impl Noted {
    fn of(job: &Job) -> Noted {
        Noted { point: job.point, number: job.number(), what: name_of(job), site: job.site }
    }
}

impl Running {
    /// Writes down that `job` is about to run.
    pub(crate) fn begin(&self, job: &Job) {
        let note = &*self.0;
        let (name, constant) = match job.own_name() {
            None => (job.what, job.what.as_ptr().addr()),
            Some(name) => (name, 0),
        };
        let length = (name.len() as u64).min(u64::from(u32::MAX));
        let stream_and_length = u64::from(job.point.stream.0) | length << 32;
        let same_name = constant != 0
            && note.constant.load(Ordering::Relaxed) == constant
            && note.stream_and_length.load(Ordering::Relaxed) >> 32 == length;
        let version = note.version.load(Ordering::Relaxed);
        note.version.store(version + 1, Ordering::Relaxed);
        // The odd version comes before all that follows, for whoever reads any of it.
        fence(Ordering::Release);
        note.seq.store(job.point.seq, Ordering::Relaxed);
        if job.point.stream.is_unordered() {
            note.number.store(job.number(), Ordering::Relaxed);
        }
        note.stream_and_length.store(stream_and_length, Ordering::Relaxed);
        note.site.store(job.site);
        if !same_name {
            let mut bytes = [0; WORDS * 8];
            let kept = name.len().min(bytes.len());
            bytes[..kept].copy_from_slice(&name.as_bytes()[..kept]);
            for (word, bytes) in note.name.iter().zip(bytes.as_chunks::<8>().0) {
                word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
            }
            note.constant.store(constant, Ordering::Relaxed);
        }
        note.version.store(version + 2, Ordering::Release);
    }

    /// What was written down last; `None` if nothing was, or if the context is writing just now.
    fn last(&self) -> Option<Noted> {
        let note = &*self.0;
        let version = note.version.load(Ordering::Acquire);
        let (seq, number) = (note.seq.load(Ordering::Relaxed), note.number.load(Ordering::Relaxed));
        let stream_and_length = note.stream_and_length.load(Ordering::Relaxed);
        let site = note.site.load();
        let mut bytes = [0; WORDS * 8];
        for (word, bytes) in note.name.iter().zip(bytes.as_chunks_mut::<8>().0) {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        // All loads above come before the second look at the version.
        fence(Ordering::Acquire);
        if version % 2 == 1 || note.version.load(Ordering::Relaxed) != version {
            return None;
        }
        let length = (stream_and_length >> 32) as usize;
        let kept = &bytes[..length.min(bytes.len())];
        let mut what = String::from_utf8_lossy(kept).trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned();
        if length > kept.len() {
            what.push('…');
        }
        let stream = StreamId((stream_and_length & u64::from(u32::MAX)) as u32);
        let number = if stream.is_unordered() { number } else { seq };
        Some(Noted { point: Point::new(stream, seq), number, what: what.into(), site: site? })
    }
}

/// An instruction that whoever holds it cannot go on with.
struct Head {
    noted: Noted,
    waits: SmallVec<[Point; 2]>,
}

/// The instructions that one thread could not go on with when it fell asleep.
#[derive(Default)]
pub(crate) struct Board {
    heads: Mutex<Vec<Head>>,
}

impl Board {
    /// Writes down the first instruction of each queue, in place of what was written before.
    pub(crate) fn write<'a>(&self, jobs: impl Iterator<Item = &'a Job>) {
        let mut heads = unpoisoned(self.heads.lock());
        heads.clear();
        heads
            .extend(jobs.map(|job| Head { noted: Noted::of(job), waits: job.open_waits().take(MOST_WAITS).collect() }));
    }

    fn find(&self, point: Point) -> Option<(Noted, SmallVec<[Point; 2]>)> {
        let heads = unpoisoned(self.heads.lock());
        let head = heads.iter().find(|head| head.noted.point == point)?;
        Some((head.noted.clone(), head.waits.clone()))
    }
}

/// What one engine knows about standing still.
pub(crate) struct Stall {
    after: Duration,
    /// What the scheduler holds back.
    pub(crate) held: Board,
    /// The standstill that was logged last, by how much had passed, plus one.
    logged: AtomicU64,
}

impl Stall {
    /// Waiters report after so long without progress.
    pub(crate) fn new(after: Duration) -> Stall {
        Stall { after, held: Board::default(), logged: AtomicU64::new(0) }
    }
}

impl Shared {
    /// How much has passed so far, over all streams: another number after any progress.
    fn progress(&self) -> u64 {
        self.streams.iter().fold(0, |sum: u64, entry| sum.wrapping_add(entry.passed()))
    }

    /// See [`Vm::stall_report`](crate::Vm::stall_report).
    pub(crate) fn stall_report(&self) -> StallReport {
        if self.handle.fork.is_child() {
            return StallReport::new(Vec::new(), 0);
        }
        let pending = |entry: &StreamEntry| {
            let passed = entry.passed();
            (entry.submitted() > passed).then(|| (Point::new(entry.id, passed + 1), entry.submitted() - passed))
        };
        let stalled = self.streams.iter().filter_map(|entry| {
            let (point, pending) = pending(entry)?;
            match entry.unordered() {
                Some(unordered) => self.look_at_workers(entry, unordered, pending),
                None => Some(self.look_at(entry, point, pending)),
            }
        });
        StallReport::new(stalled.collect(), self.room.blocked())
    }

    /// What is known of the oldest pending instruction of a stream.
    fn look_at(&self, entry: &StreamEntry, point: Point, pending: u64) -> StalledInstruction {
        let open = |waits: SmallVec<[Point; 2]>| waits.into_iter().filter(|point| !self.streams.has_passed(*point));
        if let Some((noted, waited)) = launched(entry, point) {
            return self.describe(entry, point, pending, (Some(noted), StallState::Launched, open(waited).collect()));
        }
        let running = entry.context.running.last();
        let found: Found = match running {
            Some(noted) if noted.point == point => (Some(noted), StallState::Running, SmallVec::new()),
            other => {
                let waiting = entry.context.heads.find(point).map(|found| (found, StallState::Waiting));
                let held = || self.stall.held.find(point).map(|found| (found, StallState::HeldBack));
                match (waiting.or_else(held), other) {
                    (Some(((noted, waits), state)), _) => (Some(noted), state, open(waits).collect()),
                    (None, Some(other)) if !self.streams.has_passed(other.point) => {
                        (None, StallState::Queued, SmallVec::from_slice(&[other.point]))
                    }
                    (None, _) => (None, StallState::Ready, SmallVec::new()),
                }
            }
        };
        self.describe(entry, point, pending, found)
    }

    /// One of the pending instructions of an unordered stream, none of which is the oldest: one that a worker runs, if there is, or
    /// else one whose handle was not used.
    fn look_at_workers(&self, entry: &StreamEntry, unordered: &Unordered, pending: u64) -> Option<StalledInstruction> {
        let workers = unordered.pool.iter().flat_map(|pool| &pool.contexts).chain([&entry.context]);
        let is_open = |noted: &Noted| noted.point.stream == entry.id && !entry.has_passed(noted.point.seq);
        let incomplete = unordered.pool.as_ref().map(|pool| &pool.incomplete);
        // A worker has left what waits for its handle, but that may still be what it noted last.
        let has_left = |noted: &Noted| incomplete.is_some_and(|incomplete| incomplete.has(noted));
        let mut running = workers.filter_map(|worker| worker.running.last());
        let running =
            running.find(|noted| is_open(noted) && !has_left(noted)).map(|noted| (noted, StallState::Running));
        let incomplete = || Some((incomplete?.any().filter(is_open)?, StallState::Incomplete));
        let (noted, state) = match running.or_else(incomplete) {
            Some((noted, state)) => (Some(noted), state),
            None => (None, StallState::Waiting),
        };
        let point = noted.as_ref().map(|noted| noted.point).or_else(|| entry.open_points().next())?;
        Some(self.describe(entry, point, pending, (noted, state, SmallVec::new())))
    }

    fn describe(&self, entry: &StreamEntry, point: Point, pending: u64, found: Found) -> StalledInstruction {
        let (noted, state, waits) = found;
        let named = waits.iter().filter_map(|wait| Some((*wait, self.streams.get(wait.stream)?)));
        let waits_for = named.map(|(wait, entry)| (entry.key, self.number_of(entry, wait))).collect();
        let seq = noted.as_ref().map_or_else(|| self.number_of(entry, point), |noted| noted.number);
        let (what, site) = noted.map(|noted| (noted.what.into_owned(), noted.site)).unzip();
        StalledInstruction { stream: entry.key, seq, pending, what, site, state, waits_for }
    }

    /// The number for people of an instruction that has not passed; 0 for one on workers that nobody who can be asked has noted.
    fn number_of(&self, entry: &StreamEntry, point: Point) -> u64 {
        let Some(unordered) = entry.unordered() else { return point.seq };
        let pool = unordered.pool.as_ref();
        let workers = pool.into_iter().flat_map(|pool| &pool.contexts).chain([&entry.context]);
        let running = workers.filter_map(|worker| worker.running.last()).find(|noted| noted.point == point);
        let incomplete = || pool?.incomplete.find(point);
        running.or_else(incomplete).map_or(0, |noted| noted.number)
    }
}

/// What is known of an instruction: what it is, what it is doing, what it waits for.
type Found = (Option<Noted>, StallState, SmallVec<[Point; 2]>);

/// What is known of an instruction that its device was given and has not finished, and what the device waits for.
fn launched(entry: &StreamEntry, point: Point) -> Option<(Noted, SmallVec<[Point; 2]>)> {
    let flight = entry.flight.as_ref().filter(|flight| flight.launched() >= point.seq)?;
    let first = flight.with_first(|job| (Noted::of(job), SmallVec::from_slice(job.waited())));
    first.filter(|(noted, _)| noted.point == point)
}

/// One waiter's look at the clock: made before it first sleeps, asked before each sleep and after it.
pub(crate) struct Watch {
    /// When to look whether anything has passed; `None` for a time too far away to name.
    next: Option<Instant>,
    progress: u64,
}

impl Watch {
    pub(crate) fn new(vm: &Shared) -> Watch {
        Watch { next: Instant::now().checked_add(vm.stall.after), progress: vm.progress() }
    }

    /// How long to sleep at most, with this deadline; `None` for as long as it takes.
    pub(crate) fn nap(&self, deadline: Option<Deadline>) -> Option<Duration> {
        let until = match (self.next, deadline.map(|deadline| deadline.at())) {
            (Some(next), Some(deadline)) => Some(next.min(deadline)),
            (next, deadline) => next.or(deadline),
        };
        until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Whether it is time to look.
    pub(crate) fn is_due(&self) -> bool {
        self.next.is_some_and(|next| Instant::now() >= next)
    }

    /// Looks whether anything has passed, when it is time, and logs a report if nothing has. Call it without locks:
    /// loggers are user code.
    pub(crate) fn look(&mut self, vm: &Shared) {
        if !self.is_due() {
            return;
        }
        self.next = Instant::now().checked_add(vm.stall.after);
        let before = std::mem::replace(&mut self.progress, vm.progress());
        // Of several waiters at one standstill, the first to look says so.
        if before == self.progress && vm.stall.logged.swap(before.wrapping_add(1), Ordering::Relaxed) != before + 1 {
            log::warn!("nothing has passed for {:?}, and somebody waits: {}", vm.stall.after, vm.stall_report());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[track_caller]
    fn job(stream: u32, seq: u64, what: &'static str, name: Option<&str>) -> Job {
        let mut job = Job::empty();
        (job.point, job.what, job.site) = (Point::new(StreamId(stream), seq), what, Location::caller());
        if let Some(name) = name {
            job.more().name = Some(name.into());
        }
        job
    }

    #[test]
    fn what_runs_is_read_back_as_it_was_written_down() {
        let running = Running::default();
        assert!(running.last().is_none(), "nothing was");
        let long = "a name that is longer than what is kept of it";
        let names = [("add", None), ("add", None), ("function", Some("mine")), ("function", Some("yours"))];
        for (seq, (what, name)) in names.into_iter().chain([("fn", Some(long)), ("add", None)]).enumerate() {
            running.begin(&job(7, seq as u64, what, name));
            let noted = running.last().expect("something was");
            let expected = if name == Some(long) { "a name that is longer th…" } else { name.unwrap_or(what) };
            assert_eq!((noted.point, noted.what.as_ref()), (Point::new(StreamId(7), seq as u64), expected));
            assert_eq!(noted.site.file(), file!());
        }
    }

    #[test]
    fn a_name_that_is_cut_within_a_character_loses_all_of_it() {
        let running = Running::default();
        running.begin(&job(0, 1, "", Some("twenty-three bytes long é and more")));
        assert_eq!(running.last().map(|noted| noted.what), Some("twenty-three bytes long …".into()));
        running.begin(&job(0, 1, "", Some("exactly 23 bytes long..é and more")));
        assert_eq!(running.last().map(|noted| noted.what), Some("exactly 23 bytes long..…".into()));
    }

    /// A reader never sees parts of two instructions as one.
    #[test]
    fn a_reader_beside_the_writer_sees_whole_notes() {
        let running = Running::default();
        let names = ["one", "three", "a much longer name..."];
        let seen = AtomicU64::new(0);
        let mut torn = None;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut round = 0;
                while seen.load(Ordering::Relaxed) < 200_000 {
                    let which = round % 3;
                    running.begin(&job(which as u32, which as u64, names[which], None));
                    round += 1;
                }
            });
            while seen.load(Ordering::Relaxed) < 200_000 {
                if let Some(noted) = running.last() {
                    seen.fetch_add(1, Ordering::Relaxed);
                    let which = noted.point.seq as usize;
                    if (noted.point.stream.0 as usize, noted.what.as_ref()) != (which, names[which]) {
                        torn = Some((noted.point, noted.what));
                    }
                }
            }
        });
        assert_eq!(torn, None, "a mixture of two instructions");
    }

    #[test]
    fn a_board_holds_what_was_written_last() {
        let board = Board::default();
        let (mut first, second) = (job(1, 5, "add", None), job(2, 9, "fn", Some("mine")));
        first.more().device_waits.push(Point::new(StreamId(2), 9));
        board.write([&first, &second].into_iter());
        let (noted, waits) = board.find(first.point).expect("it was written down");
        assert_eq!((noted.what.as_ref(), waits.as_slice()), ("add", &[Point::new(StreamId(2), 9)][..]));
        assert_eq!(board.find(second.point).map(|(noted, _)| noted.what), Some("mine".into()));
        board.write(std::iter::once(&second));
        assert!(board.find(first.point).is_none());
    }
}
