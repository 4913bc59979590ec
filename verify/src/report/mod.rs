//! The result of the verifier: plain data, written as JSON for programs and as text for people.
//!
//! Layer: uses `trace`; is used by `graph`, `checks` and [`verify()`](crate::verify()).
//!
//! Main types: a [`Report`] has a [`Listed`] of each kind of finding, and its `Display` is the text; `naming::Naming` makes the
//! [`Place`] of a finding.

pub(crate) mod naming;
mod text;

use serde::Serialize;

use crate::trace::Point;

/// The most entries that a list keeps; further entries are only counted, as so many are mostly one mistake seen many times.
const KEPT: usize = 1000;

/// A list that keeps its first 1000 entries and counts all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listed<T> {
    /// The number of all entries.
    pub total: u64,
    /// The first entries.
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

    /// Whether the list has no entries.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }
}

/// The contents of a trace, and the faults in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The number of streams.
    pub streams: u64,
    /// The number of instructions.
    pub instructions: u64,
    /// The number of accesses to memory by the host itself.
    pub host_accesses: u64,
    /// The number of waits by a device.
    pub device_waits: u64,
    /// The number of waits that hold an instruction back.
    pub host_waits: u64,
    /// The number of records of events.
    pub records: u64,
    /// The number of pairs that must be ordered: the later instruction reads or writes bytes after the earlier one, or was asked to
    /// wait for it. Pairs on one stream count; pairs that other pairs imply do not.
    pub dependences: u64,
    /// Whether the trace has its last line, so that nothing is missing.
    pub complete: bool,
    /// The line in the middle of which the file ends, if it does; it is not judged.
    pub cut_line: Option<u64>,
    /// The number of uses that are recorded by their hull, from the first byte to the last, because they have very many pieces.
    pub hulls: u64,
    /// Dependences without an order: races.
    pub missing: Listed<Missing>,
    /// Pairs without an order that the trace cannot decide: one of the two is recorded by its hull, from its first to its last
    /// byte, and the two may have no byte in common. `bytes` is the most that they may share.
    pub undecided: Listed<Missing>,
    /// Instructions that wait for each other in a cycle: deadlocks.
    pub cycles: Listed<Cycle>,
    /// Lines that are wrong by themselves.
    pub faults: Listed<Fault>,
    /// Waits that could be removed. They are slow, but not wrong.
    pub excess: Excess,
    /// Records that no wait used. They cost little, and are not wrong.
    pub unused_records: Listed<UnusedRecord>,
}

impl Report {
    /// Whether the trace is [complete](Report::complete), holds something to judge, and is [in order](Report::is_in_order).
    pub fn is_ok(&self) -> bool {
        self.complete && !self.is_empty() && self.is_in_order()
    }

    /// Whether the trace has neither an instruction nor an access of the host, so that nothing was judged.
    pub fn is_empty(&self) -> bool {
        self.instructions == 0 && self.host_accesses == 0
    }

    /// Whether every dependence in what is there that the trace can decide is ordered, there is no cycle, and no fault. Excess waits and
    /// unused records are not wrong, and [undecided](Report::undecided) pairs do not count.
    pub fn is_in_order(&self) -> bool {
        self.missing.is_empty() && self.cycles.is_empty() && self.faults.is_empty()
    }
}

/// A position in the trace and in the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The line of the trace.
    pub line: u64,
    /// The instruction's point; null for an action of the host.
    pub point: Option<Point>,
    /// The stream's name, or `host`.
    pub stream: String,
    /// The op or the name of what runs.
    pub op: String,
    /// The caller's source location.
    pub location: String,
}

/// The reason why two instructions must be ordered.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Dependence {
    /// The second reads what the first writes.
    ReadAfterWrite,
    /// The second writes what the first wrote.
    WriteAfterWrite,
    /// The second writes what the first reads.
    WriteAfterRead,
    /// The second returns memory that the first touches to its device.
    GivenBack,
    /// The program asked for the order: a barrier, a sync, or an explicit wait.
    Asked,
}

/// The bytes that two instructions have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// The number of bytes.
    pub total: u64,
    /// The address of the first byte; 0 for a variable.
    pub address: u64,
    /// The life (one allocation of memory, or a variable) that the second uses; null where memory is returned to its device.
    pub life: Option<u64>,
    /// The place of the life's memory.
    pub place: String,
    /// Whether the first used an earlier life of these bytes: then the race is across a reuse of memory.
    pub reused: bool,
}

/// Two instructions that must be ordered, but are not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// The reason why they must be ordered.
    pub dependence: Dependence,
    /// The earlier instruction in program order.
    pub first: Place,
    /// The later instruction, which may start before the first has passed.
    pub second: Place,
    /// The bytes that they have in common; null for [`Dependence::Asked`].
    pub bytes: Option<Bytes>,
}

/// Instructions that wait for each other: each for the next, and the last for the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cycle {
    /// The instructions.
    pub places: Vec<Place>,
}

/// A line that is wrong by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The position of the fault.
    pub at: Place,
    /// The kind of the fault.
    #[serde(flatten)]
    pub kind: FaultKind,
}

/// The kinds of faults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub enum FaultKind {
    /// A wait by an event that was not recorded before it. A device takes such a wait as satisfied.
    NeverRecorded {
        /// The event.
        event: u64,
        /// The point that the wait names.
        point: Point,
    },
    /// A wait by an event whose last record does not cover the point that the wait names.
    WrongEvent {
        /// The event.
        event: u64,
        /// The point that the wait names.
        point: Point,
        /// The point that the event marks.
        shows: Point,
    },
    /// A wait for a point that is never submitted.
    WaitForNothing {
        /// The point.
        point: Point,
    },
    /// An instruction that the program ordered after a point that is submitted later, or never.
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
    /// A use of a life that has ended, or a second end of a life.
    AfterFree {
        /// The life.
        life: u64,
    },
    /// A use of bytes outside the memory of its life.
    OutOfBounds {
        /// The life.
        life: u64,
        /// The first address that is used.
        start: u64,
        /// The address after the last one that is used.
        end: u64,
    },
    /// A read of bytes that were never written during this life.
    NeverWritten {
        /// The life.
        life: u64,
        /// The first such address. Never of a variable, as reads of variables are not checked for this.
        address: u64,
        /// The number of such bytes.
        bytes: u64,
    },
    /// A life begins in memory of another life that has not ended.
    TwoOwners {
        /// The new life.
        life: u64,
        /// The other life.
        other: u64,
    },
    /// Memory of a life that has not ended is returned to its device.
    GivenBackAlive {
        /// The life.
        life: u64,
    },
}

/// The waits that could be removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Excess {
    /// Waits of which each alone could be removed, with every dependence still ordered. Removing several may lose order, as two
    /// waits may each imply the other's order.
    pub waits: Listed<ExcessWait>,
    /// The number of waits that were not checked, because it would take too long.
    pub not_tried: u64,
}

/// A wait that could be removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExcessWait {
    /// The instruction that waits.
    pub at: Place,
    /// The instruction that it waits for.
    #[serde(rename = "for")]
    pub target: Place,
    /// Whether it is a host wait.
    pub by_host: bool,
    /// Why it could be removed.
    pub reason: Reason,
}

/// The reason why a wait could be removed.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Another predecessor of the waiting instruction is the awaited instruction, or comes after it.
    Implied,
    /// The wait adds order, but no dependence needs that order.
    NotNeeded,
}

/// A record that no wait used before the event was recorded again or the trace ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnusedRecord {
    /// The line of the trace.
    pub line: u64,
    /// The event.
    pub event: u64,
    /// The point that it marked.
    pub point: Point,
    /// The stream's name.
    pub stream: String,
}
