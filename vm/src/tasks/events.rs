//! What the threads of an engine note of the instructions that they run, for a trace with times ([`VmBuilder::trace`](crate::VmBuilder::trace)).
//!
//! Each thread context and worker has a list of its own ([`Events`]), as it has counters for profiles: the thread that runs it writes, and the thread that writes
//! the trace competes for the lock, a hundred times a second, to swap the list for an empty one. So a list keeps its memory, and to note an instruction mostly allocates nothing.

use std::borrow::Cow;
use std::sync::Arc;
use std::thread::ThreadId;

use smallvec::SmallVec;
use streamvm_ep::{ProgramStep, Site};
use streamvm_instructions::{Failure, Kind};
use streamvm_stream::Point;

use crate::sync::{Mutex, unpoisoned};
use crate::tasks::counters::Ended;
use crate::tasks::task::Task;

/// How many entries a list keeps for the thread that writes the trace. More are left out of the trace, which is logged: the disk is too slow.
pub(crate) const MOST: usize = 1 << 18;

/// Entries in the order in which they were noted.
#[derive(Default)]
pub(crate) struct Events<L>(Mutex<L>);

/// A list of what has happened.
pub(crate) trait List: Default {
    /// The number of its entries.
    fn len(&self) -> usize;
}

impl<L: List> Events<L> {
    /// Notes something, if there is room.
    #[inline]
    pub(crate) fn add(&self, add: impl FnOnce(&mut L)) {
        let mut list = unpoisoned(self.0.lock());
        if list.len() < MOST {
            add(&mut list);
        }
    }

    /// Swaps the list for an empty one, and tells whether some entries may have been left out.
    pub(crate) fn swap(&self, list: &mut L) -> bool {
        debug_assert_eq!(list.len(), 0, "an empty list takes the place of the other");
        std::mem::swap(&mut *unpoisoned(self.0.lock()), list);
        list.len() >= MOST
    }

    /// Takes all entries, and tells whether some may have been left out.
    pub(crate) fn take(&self) -> (L, bool) {
        let mut list = L::default();
        let is_full = self.swap(&mut list);
        (list, is_full)
    }
}

impl<T> List for Vec<T> {
    fn len(&self) -> usize {
        self.len()
    }
}

/// What all threads have noted between two looks.
#[derive(Default, Clone)]
pub(crate) struct Noted {
    /// The instructions that were run, launched or skipped, with the names of the threads.
    pub(crate) ran: Vec<(String, RanList)>,
    /// What the host has seen devices finish.
    pub(crate) passed: Vec<Passed>,
    /// When callers were blocked.
    pub(crate) blocked: Vec<Blocked>,
    /// What callers have submitted.
    pub(crate) submissions: Vec<Submission>,
}

impl Noted {
    /// The number of its entries.
    pub(crate) fn len(&self) -> usize {
        let ran: usize = self.ran.iter().map(|(_, list)| list.len()).sum();
        ran + self.passed.len() + self.blocked.len() + self.submissions.len()
    }

    /// Whether an instruction has ended.
    pub(crate) fn ends_something(&self) -> bool {
        !(self.ran.is_empty() && self.passed.is_empty())
    }

    /// Whether an instruction itself has failed.
    pub(crate) fn fails(&self) -> bool {
        let ran = self.ran.iter().any(|(_, list)| list.notes.iter().any(|note| note.outcome == Ended::Failed));
        ran || self.passed.iter().any(|passed| passed.outcome == Ended::Failed)
    }
}

/// The host has seen that a device has finished an instruction. Times are in nanoseconds since the engine was built, as in all events.
#[derive(Clone)]
pub(crate) struct Passed {
    pub(crate) point: Point,
    pub(crate) at: u64,
    pub(crate) outcome: Ended,
    /// The failure that it passes on.
    pub(crate) root: Option<Arc<Failure>>,
    /// When the device ran it, by the device's clock.
    pub(crate) device: Option<DeviceTimes>,
}

/// When a device ran an instruction, by its own clock.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceTimes {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// A time of the host before the start.
    pub(crate) launched: u64,
    /// The zero by the clock of the host: it was between these two times, which may be before the engine was built.
    pub(crate) zero: [i64; 2],
}

/// A time in which a caller was blocked.
#[derive(Clone)]
pub(crate) struct Blocked {
    pub(crate) why: Why,
    pub(crate) thread: ThreadId,
    /// The name of the thread.
    pub(crate) name: Box<str>,
    pub(crate) site: Site,
    pub(crate) began: u64,
    pub(crate) ended: u64,
}

/// Why a caller was blocked.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// Until an instruction had passed.
    Result(Point),
    /// Until a time limit, or until nothing could go on.
    InVain,
    /// Until fewer instructions were pending.
    Room,
    /// Until the device had given memory, or some was free.
    Memory,
    /// Until the critical section of another thread had ended.
    Section,
}

impl Why {
    /// What the caller waited for.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Why::Result(_) | Why::InVain => "a result",
            Why::Room => "room",
            Why::Memory => "memory",
            Why::Section => "a section",
        }
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Why::Result(_) | Why::InVain => "wait",
            Why::Room => "wait for room",
            Why::Memory => "wait for memory",
            Why::Section => "wait for a section",
        }
    }
}

/// A list, or a single instruction, that a thread has submitted.
#[derive(Clone)]
pub(crate) struct Submission {
    pub(crate) thread: ThreadId,
    /// The name of the thread.
    pub(crate) name: Arc<str>,
    pub(crate) site: Site,
    /// The place of its first instruction in program order.
    pub(crate) first: u64,
    /// How many instructions it has.
    pub(crate) count: u64,
    /// When the thread had the submission lock, after what blocked it.
    pub(crate) began: u64,
    /// When its instructions were on their way.
    pub(crate) ended: u64,
}

/// The instructions that a thread has run, launched or skipped, in the order of their ends.
#[derive(Default, Clone)]
pub(crate) struct RanList {
    notes: Vec<RanNote>,
    /// What they waited for, one after the other.
    waited: Vec<Point>,
    /// The names of those whose names are no constants.
    names: Vec<Box<str>>,
    /// The failures that others pass on.
    roots: Vec<Arc<Failure>>,
    /// The steps of those that have run a program.
    steps: Vec<StepTime>,
    /// How many of these belong to the next instruction.
    new_steps: u32,
}

/// When a step of a program ran.
#[derive(Copy, Clone, Debug)]
pub(crate) struct StepTime {
    pub(crate) step: ProgramStep,
    pub(crate) began: u64,
    pub(crate) ended: u64,
}

/// An instruction in a list, without what the list has apart.
#[derive(Clone)]
struct RanNote {
    point: Point,
    order: u64,
    /// `None` if it is the next of the names.
    name: Option<&'static str>,
    site: Site,
    submitted: u64,
    /// [`NEVER`] if it has no action, or was skipped.
    began: u64,
    ended: u64,
    overwrites: u32,
    waited: u32,
    steps: u32,
    outcome: Ended,
}

/// No time.
const NEVER: u64 = u64::MAX;

/// An instruction that a thread has run, or launched on a device.
pub(crate) struct Ran {
    pub(crate) point: Point,
    /// Its position in program order.
    pub(crate) order: u64,
    pub(crate) name: Name,
    pub(crate) site: Site,
    pub(crate) submitted: u64,
    /// When its action began; `None` if it has none, or was skipped.
    pub(crate) began: Option<u64>,
    pub(crate) ended: u64,
    pub(crate) outcome: Ended,
    /// The failure that it passes on.
    pub(crate) root: Option<Arc<Failure>>,
    /// The steps that it has run.
    pub(crate) steps: Vec<StepTime>,
    /// What it waited for.
    pub(crate) waited: SmallVec<[Point; 2]>,
    /// Which of the first 32 of these it waited for only because it overwrites what they use, one bit each.
    pub(crate) overwrites: u32,
}

/// When an instruction was submitted, when its action began, if it has, and when it ended.
pub(crate) struct Times {
    pub(crate) submitted: u64,
    pub(crate) began: Option<u64>,
    pub(crate) ended: u64,
}

impl List for RanList {
    fn len(&self) -> usize {
        self.notes.len() + self.steps.len()
    }
}

impl RanList {
    /// Adds a step of the task that is added next.
    pub(crate) fn add_step(&mut self, step: ProgramStep, [began, ended]: [u64; 2]) {
        self.steps.push(StepTime { step, began, ended });
        self.new_steps += 1;
    }

    /// Adds a task that the thread has just run, launched or skipped.
    pub(crate) fn add(
        &mut self,
        task: &Task,
        Times { submitted, began, ended }: Times,
        outcome: Ended,
        root: Option<Arc<Failure>>,
    ) {
        debug_assert_eq!(root.is_some(), outcome == Ended::PassedOn, "a failure is passed on");
        self.roots.extend(root);
        let own = task.own_name();
        self.names.extend(own.map(Box::from));
        let waited = task.waited();
        self.waited.extend_from_slice(waited);
        self.notes.push(RanNote {
            point: task.point,
            order: task.order,
            name: if own.is_some() { None } else { Some(task.what) },
            site: task.site,
            submitted,
            began: began.unwrap_or(NEVER),
            ended,
            overwrites: if waited.is_empty() { 0 } else { overwrites(task) },
            waited: waited.len() as u32,
            steps: std::mem::take(&mut self.new_steps),
            outcome,
        });
    }

    /// Removes all instructions, and keeps the memory of the list.
    pub(crate) fn clear(&mut self) {
        self.notes.clear();
        self.waited.clear();
        self.names.clear();
        self.roots.clear();
        self.steps.clear();
    }

    /// Whether its memory is little enough to keep it for what may come.
    pub(crate) fn is_handy(&self) -> bool {
        let RanList { notes, waited, names, roots, steps, .. } = self;
        let all = [notes.capacity(), waited.capacity(), names.capacity(), roots.capacity(), steps.capacity()];
        all.into_iter().all(|capacity| capacity <= MOST / 4)
    }

    /// Takes all instructions out, and keeps the memory of the list.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(Ran)) {
        let (mut waited, mut names, mut roots) = (&self.waited[..], self.names.drain(..), self.roots.drain(..));
        let mut steps = &self.steps[..];
        for note in self.notes.drain(..) {
            let (own, rest) = waited.split_at(note.waited as usize);
            waited = rest;
            let (own_steps, rest) = steps.split_at(note.steps as usize);
            steps = rest;
            let RanNote { point, order, site, submitted, ended, overwrites, outcome, .. } = note;
            let name = note.name.map(Name::Constant).or_else(|| names.next().map(Name::Own));
            each(Ran {
                point,
                order,
                name: name.unwrap_or(Name::Constant("")),
                site,
                submitted,
                began: Some(note.began).filter(|began| *began != NEVER),
                ended,
                outcome,
                root: if outcome == Ended::PassedOn { roots.next() } else { None },
                steps: own_steps.to_vec(),
                waited: SmallVec::from_slice(own),
                overwrites,
            });
        }
        drop((names, roots));
        self.waited.clear();
        self.steps.clear();
    }
}

/// [`Ran::overwrites`]: what it waited for and does not read.
fn overwrites(task: &Task) -> u32 {
    // These wait for order alone.
    if matches!(task.what, "wait" | "hostwait" | "barrier" | "sync" | "begin" | "end") {
        return 0;
    }
    let waited = task.waited().iter().take(32).enumerate();
    waited.fold(0, |bits, (place, point)| bits | u32::from(task.reads().all(|read| read != *point)) << place)
}

/// The name of an instruction.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Name {
    Constant(&'static str),
    Own(Box<str>),
}

impl Name {
    /// The name of an instruction that is being submitted.
    pub(crate) fn of(kind: &Kind) -> Name {
        match kind {
            Kind::Call { op, .. } => Name::Constant(op.name()),
            Kind::Copy => Name::Constant("copy"),
            Kind::Fill(_) => Name::Constant("fill"),
            Kind::Function { name: Cow::Borrowed(name), .. } => Name::Constant(name),
            kind => Name::Own(kind.name().into()),
        }
    }

    pub(crate) fn text(&self) -> &str {
        match self {
            Name::Constant(text) => text,
            Name::Own(text) => text,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use streamvm_ep::DeviceId;
    use streamvm_instructions::Cause;
    use streamvm_stream::{StreamId, StreamKey, StreamType};

    use super::*;

    fn failure(number: u64) -> Failure {
        let key = StreamKey::new(DeviceId::cpu(0), StreamType::Compute, 0);
        let (point, what, site) = (Point::new(StreamId(0), number), String::new(), Site::caller());
        Failure { point, number, stream: key, what, site, cause: Cause::Function(String::new()) }
    }

    fn ran(list: &mut RanList) -> Vec<(u64, String, Vec<u64>)> {
        let mut all = Vec::new();
        list.drain(|ran| {
            let waited = ran.waited.iter().map(|point| point.seq).collect();
            all.push((ran.point.seq, ran.name.text().to_owned(), waited));
        });
        all
    }

    #[test]
    fn a_list_that_nobody_takes_is_bounded_and_tells_so() {
        let events = Events::<Vec<u32>>::default();
        (0..MOST as u32 + 3).for_each(|number| events.add(|list| list.push(number)));
        let (taken, is_full) = events.take();
        assert_eq!((taken.len(), taken.last(), is_full), (MOST, Some(&(MOST as u32 - 1)), true));
        events.add(|list| list.push(1));
        assert_eq!(events.take(), (vec![1], false));
    }

    #[test]
    fn instructions_have_the_names_and_waits_that_were_theirs() {
        let events = Events::<RanList>::default();
        let add = |seq: u64, own: Option<&str>, waited: &[u64]| {
            let mut task = Task::empty();
            (task.point, task.what) = (Point::new(StreamId(0), seq), "constant");
            if own.is_some() || !waited.is_empty() {
                let cold = task.cold_mut();
                cold.name = own.map(Box::from);
                cold.waited.extend(waited.iter().map(|seq| Point::new(StreamId(1), *seq)));
            }
            let times = Times { submitted: 1, began: seq.is_multiple_of(2).then_some(2), ended: 3 };
            events.add(|list| list.add(&task, times, Ended::Fine, None));
        };
        let expected = |rows: &[(u64, &str, &[u64])]| -> Vec<(u64, String, Vec<u64>)> {
            rows.iter().map(|(seq, name, waited)| (*seq, (*name).to_owned(), waited.to_vec())).collect()
        };
        add(1, None, &[]);
        add(2, Some("own"), &[7, 8, 9]);
        add(3, None, &[10]);
        add(4, Some("another"), &[]);
        let mut list = RanList::default();
        assert!(!events.swap(&mut list));
        let all: &[(u64, &str, &[u64])] =
            &[(1, "constant", &[]), (2, "own", &[7, 8, 9]), (3, "constant", &[10]), (4, "another", &[])];
        assert_eq!(ran(&mut list.clone()), expected(all));
        let mut began = Vec::new();
        list.drain(|ran| began.push(ran.began));
        assert_eq!(began, [None, Some(2), None, Some(2)]);
        // Each that passes on a failure has its own.
        for seq in 10..14 {
            let mut task = Task::empty();
            task.point = Point::new(StreamId(0), seq);
            let root = (seq % 2 == 0).then(|| Arc::new(failure(seq)));
            let outcome = if root.is_some() { Ended::PassedOn } else { Ended::Failed };
            let times = Times { submitted: 1, began: None, ended: 3 };
            events.add(|list| list.add(&task, times, outcome, root));
        }
        events.swap(&mut list);
        let mut roots = Vec::new();
        list.drain(|ran| roots.push((ran.point.seq, ran.root.map(|root| root.number))));
        assert_eq!(roots, [(10, Some(10)), (11, None), (12, Some(12)), (13, None)]);
        // The list is used again.
        add(5, Some("third"), &[1]);
        events.swap(&mut list);
        assert_eq!(ran(&mut list), expected(&[(5, "third", &[1])]));
        assert_eq!(list.len(), 0);
    }

    #[test]
    fn an_instruction_in_a_list_is_small() {
        assert!(size_of::<RanNote>() <= 88, "{} bytes: the documentation tells 30 MB", size_of::<RanNote>());
    }
}
