//! What the threads of an engine note of the instructions that they run, for a trace with times ([`VmBuilder::trace`](crate::VmBuilder::trace)).
//!
//! Each thread context and worker has a list of its own ([`Events`]), as it has counters for profiles: the thread that runs it writes, and the thread that writes
//! the trace competes for the lock, a hundred times a second. The completion has a list, too, of what devices have finished, and callers that were blocked share one. Submissions tell
//! [`MemoryUse`] of memory, which keeps sums and no list.

use std::borrow::Cow;
use std::fmt;
use std::thread::ThreadId;
use std::time::Instant;

use smallvec::SmallVec;
use streamvm_ep::Site;
use streamvm_instructions::Kind;
use streamvm_stream::Point;

use crate::sync::{Mutex, Receiver, Sender, channel, unpoisoned};
use crate::tasks::counters::{Ended, Stamp};
use crate::tasks::memory_use::MemoryUse;
use crate::tasks::task::Task;

/// What an engine that is traced has in common.
pub(crate) struct Timeline {
    /// The time that all others count from.
    zero: Instant,
    /// What the completion has seen.
    pub(crate) completion: Events,
    /// When callers were blocked.
    pub(crate) callers: Events,
    /// What memory is in use, as submissions tell.
    pub(crate) memory: Mutex<MemoryUse>,
    /// Who wants to see the trace.
    pub(crate) asks: Asks,
    /// What messages call its output.
    pub(crate) name: String,
}

/// Who wants a trace to be written, now.
#[derive(Default)]
pub(crate) struct Asks(Mutex<Asked>);

/// What the thread that writes the trace is asked for.
#[derive(Default)]
pub(crate) struct Asked {
    /// Why the engine itself wants the trace.
    pub(crate) cause: Cause,
    /// Callers that wait for the outcome, or the text of an error.
    pub(crate) callers: Vec<Sender<Result<(), String>>>,
    /// Whether nobody will answer any more.
    is_over: bool,
}

/// Why an engine writes the trace of what has happened lately: the greater, the worse.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) enum Cause {
    #[default]
    Nothing,
    Stall,
    Failure,
    Panic,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::Nothing => "a call",
            Cause::Stall => "a stall",
            Cause::Failure => "a failure",
            Cause::Panic => "a panic",
        })
    }
}

impl Asks {
    /// Asks for the trace for a reason of the engine.
    pub(crate) fn ask(&self, cause: Cause) {
        let mut asked = unpoisoned(self.0.lock());
        asked.cause = asked.cause.max(cause);
    }

    /// Asks for the trace, and returns where the outcome will be; nothing will be there if the thread that writes has ended.
    pub(crate) fn ask_and_wait(&self) -> Receiver<Result<(), String>> {
        let (sender, receiver) = channel();
        let mut asked = unpoisoned(self.0.lock());
        if !asked.is_over {
            asked.callers.push(sender);
        }
        receiver
    }

    /// Takes what was asked for; nothing is answered after the call that says so.
    pub(crate) fn take(&self, is_over: bool) -> Asked {
        let mut asked = unpoisoned(self.0.lock());
        std::mem::replace(&mut *asked, Asked { is_over, ..Asked::default() })
    }

    /// The thread that writes holds this: nobody waits for an answer of a thread that has ended.
    pub(crate) fn until_dropped(&self) -> Answers<'_> {
        Answers(self)
    }
}

/// See [`Asks::until_dropped`].
pub(crate) struct Answers<'a>(&'a Asks);

impl Drop for Answers<'_> {
    fn drop(&mut self) {
        drop(self.0.take(true));
    }
}

/// Events in the order in which a thread has noted them.
#[derive(Default)]
pub(crate) struct Events(Mutex<Vec<Event>>);

/// How many events a thread keeps for the one that writes. More are left out of the trace, which is logged: the disk is too slow.
const MOST: usize = 1 << 18;

/// Something that has happened. Times are in nanoseconds since the engine was built.
#[derive(Clone)]
pub(crate) enum Event {
    /// An instruction was run, launched or skipped.
    Ran(Ran),
    /// The host has seen that a device has finished an instruction.
    Passed { point: Point, at: u64, outcome: Ended },
    /// A caller was blocked.
    Blocked(Blocked),
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
    pub(crate) fn text(self) -> &'static str {
        match self {
            Why::Result(_) | Why::InVain => "wait",
            Why::Room => "wait for room",
            Why::Memory => "wait for memory",
            Why::Section => "wait for a section",
        }
    }
}

/// An instruction that a thread has run, or launched on a device.
#[derive(Clone)]
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
    /// What it waited for.
    pub(crate) waited: SmallVec<[Point; 2]>,
    /// Which of the first 32 of these it waited for only because it overwrites what they use, one bit each.
    pub(crate) overwrites: u32,
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

impl Event {
    /// Whether it is the failure of an instruction itself.
    pub(crate) fn is_failure(&self) -> bool {
        let (Event::Ran(Ran { outcome, .. }) | Event::Passed { outcome, .. }) = self else { return false };
        *outcome == Ended::Failed
    }
}

impl Events {
    pub(crate) fn add(&self, event: Event) {
        let mut events = unpoisoned(self.0.lock());
        if events.len() < MOST {
            events.push(event);
        }
    }

    /// Takes all events, and tells whether some may have been left out.
    pub(crate) fn take(&self) -> (Vec<Event>, bool) {
        let events = std::mem::take(&mut *unpoisoned(self.0.lock()));
        let is_full = events.len() >= MOST;
        (events, is_full)
    }
}

impl Timeline {
    /// The time counts from now. `name` is what messages call the output.
    pub(crate) fn new(name: String) -> Timeline {
        let (completion, callers, memory, asks) = Default::default();
        Timeline { zero: Instant::now(), completion, callers, memory, asks, name }
    }

    /// The time in nanoseconds.
    pub(crate) fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    /// What a thread notes of a task that it has just run, launched or skipped.
    pub(crate) fn ran(&self, task: &Task, stamp: Stamp, outcome: Ended) -> Event {
        Event::Ran(Ran {
            point: task.point,
            order: task.order,
            name: match task.own_name() {
                Some(name) => Name::Own(name.into()),
                None => Name::Constant(task.what),
            },
            site: task.site,
            submitted: self.at(stamp.submitted),
            began: stamp.started.map(|started| self.at(started)),
            ended: self.now(),
            outcome,
            waited: SmallVec::from_slice(task.waited()),
            overwrites: overwrites(task),
        })
    }

    /// Notes that this thread was blocked, from `began` until now.
    pub(crate) fn blocked(&self, why: Why, site: Site, began: u64) {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("a thread").into();
        let ended = self.now();
        self.callers.add(Event::Blocked(Blocked { why, thread: thread.id(), name, site, began, ended }));
    }

    fn at(&self, time: Instant) -> u64 {
        // Wraps after 584 years.
        time.saturating_duration_since(self.zero).as_nanos() as u64
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use streamvm_stream::StreamId;

    use super::*;

    #[test]
    fn a_list_that_nobody_takes_is_bounded_and_tells_so() {
        let events = Events::default();
        let passed = |seq| Event::Passed { point: Point::new(StreamId(0), seq), at: seq, outcome: Ended::Fine };
        (0..MOST as u64 + 3).for_each(|seq| events.add(passed(seq)));
        let (taken, is_full) = events.take();
        assert_eq!((taken.len(), is_full), (MOST, true));
        events.add(passed(1));
        assert!(matches!(events.take(), (taken, false) if taken.len() == 1));
    }
}
