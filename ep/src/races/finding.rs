//! What was found: one paragraph for people, fields for programs.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use crate::label::Label;

/// Findings past this number are counted and not kept: one defect repeats itself, and each finding holds labels.
const KEPT: usize = 1000;

/// Findings that are remembered to be told once. When there are more, the same may be told again.
const SEEN: usize = 64 * KEPT;

/// What kind of defect was found.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FindingKind {
    /// Two accesses of the same bytes, one of them a write, with nothing that orders one after the other.
    Conflict,
    /// Memory used in a new life before an access of an earlier life is known to be over, or the other way round.
    ReuseRace,
    /// A conflict with a host thread: it touched the memory before the device was known to be through with it.
    HostTooEarly,
    /// A read of bytes that nothing has written in this life of the memory.
    NeverWritten,
    /// An access of memory whose life is over, or that has gone back to the driver.
    AfterFree,
    /// Memory given back to the driver while something may still be using it.
    FreedInUse,
    /// A wait for an event that no stream has recorded: it would order nothing.
    NeverRecorded,
    /// Code whose results depend on bytes that it does not declare to read.
    UndeclaredRead,
    /// Code that changed bytes of an operand that it declares to read only.
    UndeclaredWrite,
    /// An access outside of the bytes that belong to the operand, the life or the region.
    OutOfBounds,
    /// A copy of a device that touches pageable memory, which no driver does asynchronously.
    PageableCopy,
    /// An access of bytes that no driver has handed out.
    UnknownMemory,
}

impl FindingKind {
    /// A short name, such as `"reuse race"`.
    pub const fn name(self) -> &'static str {
        match self {
            FindingKind::Conflict => "conflict",
            FindingKind::ReuseRace => "reuse race",
            FindingKind::HostTooEarly => "host too early",
            FindingKind::NeverWritten => "never written",
            FindingKind::AfterFree => "after free",
            FindingKind::FreedInUse => "freed in use",
            FindingKind::NeverRecorded => "never recorded",
            FindingKind::UndeclaredRead => "undeclared read",
            FindingKind::UndeclaredWrite => "undeclared write",
            FindingKind::OutOfBounds => "out of bounds",
            FindingKind::PageableCopy => "pageable copy",
            FindingKind::UnknownMemory => "unknown memory",
        }
    }

    /// What to do about it.
    const fn advice(self) -> &'static str {
        match self {
            FindingKind::Conflict => "make one wait for the other",
            FindingKind::ReuseRace => "make the first access of the new life wait for every access of the old one",
            FindingKind::HostTooEarly => "let the thread wait until the stream has passed its access",
            FindingKind::NeverWritten => "write the bytes before, or order the write before this read",
            FindingKind::AfterFree => "keep the memory alive until its last access has been issued",
            FindingKind::FreedInUse => "give memory back only when every access of it is known to have passed",
            FindingKind::NeverRecorded => "record the event before anything waits for it",
            FindingKind::UndeclaredRead => "declare read access, or write all of what is declared to be written",
            FindingKind::UndeclaredWrite => "declare write access",
            FindingKind::OutOfBounds => "stay within the operand",
            FindingKind::PageableCopy => "stage the data through pinned memory",
            FindingKind::UnknownMemory => "tell the detector which memory the driver has handed out",
        }
    }
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One defect. `Display` gives a paragraph that names both instructions and both source lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What kind of defect.
    pub kind: FindingKind,
    /// The instruction reported first, where the defect is between two.
    pub first: Option<Label>,
    /// What `first` did and who did it, such as `"write on compute@sim:0:0"`; empty without `first`.
    pub first_did: String,
    /// The instruction that showed the defect.
    pub second: Label,
    /// What `second` did and who did it.
    pub second_did: String,
    /// The memory, such as `"sim:0 device memory #3"`; empty if the defect is about none.
    pub memory: String,
    /// The first bytes that it is about, counted from the start of `memory`.
    pub bytes: Range<usize>,
    /// Anything else that helps; may be empty.
    pub detail: String,
}

impl Finding {
    /// A finding about one instruction alone.
    pub fn new(kind: FindingKind, label: &Label, did: impl Into<String>, detail: impl Into<String>) -> Finding {
        Finding {
            kind,
            first: None,
            first_did: String::new(),
            second: label.clone(),
            second_did: did.into(),
            memory: String::new(),
            bytes: 0..0,
            detail: detail.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, {}", self.kind, self.second, self.second_did)?;
        if let Some(first) = &self.first {
            write!(f, "; before it {first}, {}", self.first_did)?;
        }
        if !self.memory.is_empty() {
            write!(f, "; at bytes {}..{} of {}", self.bytes.start, self.bytes.end, self.memory)?;
        }
        if !self.detail.is_empty() {
            write!(f, "; {}", self.detail)?;
        }
        write!(f, ": {}", self.kind.advice())
    }
}

/// The findings so far: each (kind, pair of instructions) once, and a bounded number of them.
#[derive(Debug, Default)]
pub(super) struct Findings {
    kept: Vec<Finding>,
    seen: HashSet<(FindingKind, Option<Label>, Label)>,
    not_kept: u64,
}

impl Findings {
    pub(super) fn add(&mut self, finding: Finding) {
        let what = (finding.kind, finding.first.clone(), finding.second.clone());
        if self.seen.contains(&what) {
            return;
        }
        if self.kept.len() >= KEPT {
            self.not_kept += 1;
            return;
        }
        if self.seen.len() >= SEEN {
            self.seen.clear();
        }
        self.seen.insert(what);
        self.kept.push(finding);
    }

    pub(super) fn all(&self) -> Vec<Finding> {
        self.kept.clone()
    }

    /// The findings since the last take. What was taken is still not found a second time.
    pub(super) fn take(&mut self) -> Vec<Finding> {
        std::mem::take(&mut self.kept)
    }

    pub(super) fn not_kept(&self) -> u64 {
        self.not_kept
    }
}
