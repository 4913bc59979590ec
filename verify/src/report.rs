//! What the verifier found: plain data, for programs as JSON and for people as text.

use serde::Serialize;

use crate::trace::Point;

/// Most entries that a list keeps; the rest is counted. More than that is one mistake seen many times.
const KEPT: usize = 1000;

/// A list that keeps its first 1000 entries and counts all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listed<T> {
    /// How many there are.
    pub total: u64,
    /// The first ones.
    pub first: Vec<T>,
}

impl<T> Default for Listed<T> {
    fn default() -> Listed<T> {
        Listed { total: 0, first: Vec::new() }
    }
}

impl<T> Listed<T> {
    pub(crate) fn add(&mut self, entry: impl FnOnce() -> T) {
        self.total += 1;
        if self.first.len() < KEPT {
            self.first.push(entry());
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }
}

/// What a trace holds and what is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Streams.
    pub streams: u64,
    /// Instructions.
    pub instructions: u64,
    /// Times that the host itself touched memory.
    pub host_accesses: u64,
    /// Waits that a device makes.
    pub device_waits: u64,
    /// Waits that hold an instruction back.
    pub host_waits: u64,
    /// Records of events.
    pub records: u64,
    /// Pairs that must be ordered: the later one reads or writes bytes after the earlier one, or was asked to wait.
    /// Pairs on one stream count; pairs that follow from others do not.
    pub dependences: u64,
    /// The trace has its last line, so nothing is missing.
    pub complete: bool,
    /// Uses that are recorded as their hull, from the first byte to the last, because they have very many pieces.
    pub hulls: u64,
    /// Dependences that nothing orders: races.
    pub missing: Listed<Missing>,
    /// Pairs that nothing orders and that the trace cannot decide: one of the two is recorded as its hull, from its first to its last
    /// byte, and they may have no byte in common. `bytes` is the most that they share.
    pub undecided: Listed<Missing>,
    /// Waits in a circle: deadlocks.
    pub cycles: Listed<Cycle>,
    /// What is wrong by itself.
    pub faults: Listed<Fault>,
    /// Waits that could go. Slow, not wrong.
    pub excess: Excess,
    /// Records that nobody waited for. Cheap, not wrong.
    pub unused_records: Listed<UnusedRecord>,
}

impl Report {
    /// Whether every dependence that the trace can decide is ordered, nothing waits in a circle, and nothing else is wrong. Excess
    /// waits and unused records are not wrong, and [undecided](Report::undecided) pairs do not count.
    pub fn is_ok(&self) -> bool {
        self.missing.is_empty() && self.cycles.is_empty() && self.faults.is_empty()
    }
}

/// Where something stands in the trace and in the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The line of the trace.
    pub line: u64,
    /// The instruction's point; null for what the host does.
    pub point: Option<Point>,
    /// The stream's name, or `host`.
    pub stream: String,
    /// What runs.
    pub op: String,
    /// Where the caller issued it.
    pub site: String,
}

/// Why two must be ordered.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Dependence {
    /// The second reads what the first writes.
    ReadAfterWrite,
    /// The second writes what the first wrote.
    WriteAfterWrite,
    /// The second writes what the first reads.
    WriteAfterRead,
    /// The second gives memory back to its device that the first touches.
    GivenBack,
    /// The program asked for it: a barrier, a sync, an explicit wait.
    Asked,
}

/// Bytes that two have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// How many.
    pub total: u64,
    /// The address of the first one; 0 for a variable.
    pub address: u64,
    /// The life that the second belongs to; null where memory is given back.
    pub life: Option<u64>,
    /// Where the life's memory is.
    pub place: String,
    /// The first belongs to a former life of these bytes: a race across reuse.
    pub reused: bool,
}

/// Two instructions that must be ordered and are not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// Why they must be ordered.
    pub dependence: Dependence,
    /// The earlier one in the program.
    pub first: Place,
    /// The later one, which may start before the first is over.
    pub second: Place,
    /// What they have in common; null for [`Dependence::Asked`].
    pub bytes: Option<Bytes>,
}

/// Instructions that wait for each other: each for the next, the last for the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cycle {
    /// The instructions.
    pub places: Vec<Place>,
}

/// Something wrong by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// Where.
    pub at: Place,
    /// What.
    #[serde(flatten)]
    pub kind: FaultKind,
}

/// What can be wrong by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub enum FaultKind {
    /// A wait by an event that was not recorded before it: a device takes it as met.
    NeverRecorded {
        /// The event.
        event: u64,
        /// What should be waited for.
        point: Point,
    },
    /// A wait by an event whose last record does not show the point.
    WrongEvent {
        /// The event.
        event: u64,
        /// What should be waited for.
        point: Point,
        /// What the event shows.
        shows: Point,
    },
    /// A wait for a point that is never submitted.
    WaitForNothing {
        /// The point.
        point: Point,
    },
    /// An order to come after a point that is submitted later, or never.
    OrderedAfterNothing {
        /// The point.
        point: Point,
    },
    /// A record of a point that is never submitted.
    RecordOfNothing {
        /// The event.
        event: u64,
        /// The point.
        point: Point,
    },
    /// A use of memory whose life is over, or the end of a life that is over.
    AfterFree {
        /// The life.
        life: u64,
    },
    /// A use of bytes that are not the life's.
    OutOfBounds {
        /// The life.
        life: u64,
        /// First address used.
        start: u64,
        /// Behind the last.
        end: u64,
    },
    /// A read of bytes that nothing has written in this life.
    NeverWritten {
        /// The life.
        life: u64,
        /// The first such address; 0 for a variable, which is never found so.
        address: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// A life begins in memory of another that has not ended.
    TwoOwners {
        /// The new life.
        life: u64,
        /// The other.
        other: u64,
    },
    /// Memory of a life that has not ended is given back to its device.
    GivenBackAlive {
        /// The life.
        life: u64,
    },
}

/// Waits that could go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Excess {
    /// Waits whose removal, of each alone, leaves every dependence ordered. Removing several may not: two may stand for
    /// each other.
    pub waits: Listed<ExcessWait>,
    /// Waits that were not tried because it would take too long.
    pub not_tried: u64,
}

/// A wait that could go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExcessWait {
    /// What waits.
    pub at: Place,
    /// What it waits for.
    #[serde(rename = "for")]
    pub target: Place,
    /// Whether it is a host wait.
    pub by_host: bool,
    /// Why it could go.
    pub reason: Reason,
}

/// Why a wait could go.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// What else the instruction comes after comes after it.
    Implied,
    /// It orders something, and no dependence needs that.
    NotNeeded,
}

/// A record that nobody waited for before the event was recorded again or the trace ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnusedRecord {
    /// The line of the trace.
    pub line: u64,
    /// The event.
    pub event: u64,
    /// What it marked.
    pub point: Point,
    /// The stream's name.
    pub stream: String,
}
