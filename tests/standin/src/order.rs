//! What is ordered after what: the race detector, told of streams and of the host.
//!
//! Streams are actors. All threads of the host are *one* actor: a driver does not see how threads order themselves among
//! each other, and what it cannot see must not be a finding. So what any thread has seen to be over counts as seen by
//! all, and a race may be missed that way; none is made up. How the host itself reads and writes pinned memory is not
//! seen either; memory that the host can write counts as written.

use std::ops::Range;

use streamvm_ep::races::{ActorId, Detector, Moment, Touch};
use streamvm_ep::{Access, Label, MemoryKind};

use crate::findings::{Findings, Kind};
use crate::memory::{Allocation, Home};

/// The detector and the actor that the host is.
#[derive(Debug)]
pub(crate) struct Order {
    detector: Detector,
    host: ActorId,
    enabled: bool,
    unwritten: bool,
}

impl Order {
    /// Knows nothing yet. `unwritten`: reading what was never written is a finding; `enabled`: anything is.
    pub(crate) fn new(enabled: bool, unwritten: bool) -> Order {
        let detector = Detector::new();
        let host = detector.thread_actor("the host");
        Order { detector, host, enabled, unwritten }
    }

    /// A new stream.
    pub(crate) fn stream(&self, name: &str) -> ActorId {
        self.detector.actor(name)
    }

    /// What the stream gets next comes after all that the host has done and seen.
    pub(crate) fn given_by_host(&self, stream: ActorId) {
        let given = self.detector.release(self.host);
        self.detector.acquire(stream, &given);
    }

    /// Everything on the stream so far, for others to come after.
    pub(crate) fn mark(&self, stream: ActorId) -> Moment {
        self.detector.release(stream)
    }

    /// What the stream gets next comes after `moment`.
    pub(crate) fn after(&self, stream: ActorId, moment: &Moment) {
        self.detector.acquire(stream, moment);
    }

    /// The host has seen that `moment` is over.
    pub(crate) fn seen_by_host(&self, moment: &Moment) {
        self.detector.acquire(self.host, moment);
    }

    /// A command of the stream will touch memory.
    pub(crate) fn access(
        &self,
        findings: &Findings,
        stream: ActorId,
        label: &Label,
        touches: &[(Range<usize>, Access)],
    ) {
        let touches: Vec<Touch> =
            touches.iter().map(|(range, access)| Touch::new([range.clone()], *access, None)).collect();
        self.touch(findings, stream, label, &touches);
    }

    /// Like [`access`](Order::access), of bytes with gaps between.
    pub(crate) fn touch(&self, findings: &Findings, stream: ActorId, label: &Label, touches: &[Touch]) {
        if self.enabled {
            self.detector.access(stream, label, touches);
            self.tell(findings);
        }
    }

    /// Memory is given out.
    pub(crate) fn map(&self, allocation: &Allocation) {
        let (kind, writable) = match allocation.home {
            Home::Device(_) => (MemoryKind::Device, false),
            Home::Pinned(_) | Home::Combined(_) => (MemoryKind::Pinned, true),
            Home::Host => (MemoryKind::Pageable, true),
        };
        self.detector.map(allocation.range.clone(), &allocation.to_string(), kind);
        if writable || !self.unwritten {
            let label = label(0, 0, "the allocation");
            let whole = Touch::new([allocation.range.clone()], Access::Write, None);
            self.detector.access(self.host, &label, &[whole]);
        }
    }

    /// The host gives memory back: a finding, unless it has seen that everything which uses it is over.
    pub(crate) fn unmap(&self, findings: &Findings, allocation: &Allocation, call: &str) {
        self.detector.unmap(allocation.range.clone(), self.host, &label(0, allocation.number, call));
        if self.enabled {
            self.tell(findings);
        } else {
            self.detector.take_findings();
        }
    }

    /// Passes on what the detector has found.
    fn tell(&self, findings: &Findings) {
        for finding in self.detector.take_findings() {
            let mut text = format!("{} #{}, {}", finding.second.what, finding.second.seq, finding.second_did);
            if let Some(first) = &finding.first {
                text.push_str(&format!("; before it {} #{}, {}", first.what, first.seq, finding.first_did));
            }
            let Range { start, end } = finding.bytes;
            text.push_str(&format!("; at bytes {start}..{end} of {}", finding.memory));
            findings.add(Kind::Order(finding.kind.name()), text);
        }
    }
}

/// The label of a command: which stream, which of its commands, which driver call.
pub(crate) fn label(stream: u32, number: u64, call: &str) -> Label {
    Label::new(stream, number, call)
}
