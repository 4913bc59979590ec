//! Findings of the detector: one paragraph as text, and fields for programs.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use streamvm_ep::Label;

/// The number of findings to keep; more are only counted. One defect tends to repeat itself, and each finding holds labels.
const MAX_FINDINGS: usize = 1000;

/// The number of findings to remember so that each is reported once. Beyond it, a finding may be reported again.
const MAX_SEEN: usize = 64 * MAX_FINDINGS;

/// The kind of defect.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FindingKind {
    /// Two accesses of the same bytes, one of them a write, without an order between them.
    Conflict,
    /// Accesses of two allocations of the same memory without an order between them.
    ReuseRace,
    /// A conflict with a host thread, which accessed the memory before the device was known to have finished with it.
    HostTooEarly,
    /// A read of bytes that no access has written in this allocation.
    NeverWritten,
    /// An access to memory whose allocation has ended, or that was returned to the driver.
    AfterFree,
    /// Memory that was returned to the driver while an access to it may be outstanding.
    FreedInUse,
    /// A wait for an event that no stream has recorded: it would order nothing.
    NeverRecorded,
    /// Code whose results depend on bytes that it does not declare to read.
    UndeclaredRead,
    /// Code that changed bytes of an operand that it declares only to read.
    UndeclaredWrite,
    /// An access outside of the bytes of the operand, the allocation or the region.
    OutOfBounds,
    /// A device copy of pageable memory, which no driver does asynchronously.
    PageableCopy,
    /// An access to bytes that no driver has handed out.
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

    /// How to fix it.
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

/// One defect. `Display` prints a paragraph that names both instructions and both sites.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The kind of defect.
    pub kind: FindingKind,
    /// The earlier instruction, if the defect is between two.
    pub first: Option<Label>,
    /// The access of `first` and its actor, such as `"write on compute@sim:0:0"`; empty without `first`.
    pub first_did: String,
    /// The instruction at which the defect was found.
    pub second: Label,
    /// The access of `second` and its actor.
    pub second_did: String,
    /// The memory, such as `"sim:0 device memory #3"`; empty if the defect is not about memory.
    pub memory: String,
    /// The first affected bytes, counted from the start of `memory`.
    pub bytes: Range<usize>,
    /// More details; may be empty.
    pub detail: String,
}

impl Finding {
    /// A finding about a single instruction.
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

/// The findings so far: each (kind, pair of instructions) once, and a limited number of them.
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
        if self.kept.len() >= MAX_FINDINGS {
            self.not_kept += 1;
            return;
        }
        if self.seen.len() >= MAX_SEEN {
            self.seen.clear();
        }
        self.seen.insert(what);
        self.kept.push(finding);
    }

    pub(super) fn all(&self) -> Vec<Finding> {
        self.kept.clone()
    }

    /// The findings since the last call. Findings that were returned are not reported again.
    pub(super) fn take(&mut self) -> Vec<Finding> {
        std::mem::take(&mut self.kept)
    }

    pub(super) fn not_kept(&self) -> u64 {
        self.not_kept
    }
}
