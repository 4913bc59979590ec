//! The order of accesses: reports streams and the host to the race detector.
//!
//! Each stream is an actor. All threads of the host are *one* actor: a driver does not see how threads order themselves, and order that it
//! cannot see must not lead to findings. So everything that one thread has observed to have passed counts as observed by all threads. This
//! may miss a race, but reports no false one. The accesses of the host to pinned memory are not seen either; memory that the host can write
//! counts as written.

use std::ops::Range;

use streamvm_ep::{Access, Label, MemoryKind};
use streamvm_sim::races::{ActorId, Detector, Moment, Touch};

use crate::memory::{Allocation, Home};
use crate::values::findings::{Findings, Kind};

/// The detector, and the actor of the host.
#[derive(Debug)]
pub(crate) struct Order {
    detector: Detector,
    host: ActorId,
    enabled: bool,
    unwritten: bool,
}

impl Order {
    /// An empty order. `unwritten`: reading memory that was never written is a finding; `enabled`: are there findings at all?
    pub(crate) fn new(enabled: bool, unwritten: bool) -> Order {
        let detector = Detector::new();
        let host = detector.thread_actor("the host");
        Order { detector, host, enabled, unwritten }
    }

    /// Adds the actor of a new stream.
    pub(crate) fn stream(&self, name: &str) -> ActorId {
        self.detector.actor(name)
    }

    /// Orders the next command of the stream after everything that the host has done and observed.
    pub(crate) fn given_by_host(&self, stream: ActorId) {
        let given = self.detector.release(self.host);
        self.detector.acquire(stream, &given);
    }

    /// The clock of all commands of the stream so far, for others to be ordered after.
    pub(crate) fn mark(&self, stream: ActorId) -> Moment {
        self.detector.release(stream)
    }

    /// Orders the next command of the stream after `moment`.
    pub(crate) fn after(&self, stream: ActorId, moment: &Moment) {
        self.detector.acquire(stream, moment);
    }

    /// Notes that the host has observed that `moment` has passed.
    pub(crate) fn seen_by_host(&self, moment: &Moment) {
        self.detector.acquire(self.host, moment);
    }

    /// Reports the accesses of a command of the stream.
    pub(crate) fn touch(&self, findings: &Findings, stream: ActorId, label: &Label, touches: &[Touch]) {
        if self.enabled {
            self.detector.access(stream, label, touches);
            self.tell(findings);
        }
    }

    /// Reports an allocation.
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

    /// Reports that the host frees memory. This is a finding unless the host has observed that all uses of the memory have passed.
    pub(crate) fn unmap(&self, findings: &Findings, allocation: &Allocation, call: &str) {
        self.detector.unmap(allocation.range.clone(), self.host, &label(0, allocation.number, call));
        if self.enabled {
            self.tell(findings);
        } else {
            self.detector.take_findings();
        }
    }

    /// Forwards the findings of the detector.
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

/// The label of a command: its stream, its number on the stream, and its driver call.
pub(crate) fn label(stream: u32, number: u64, call: &str) -> Label {
    Label::new(stream, number, call)
}
