//! The capability table: how a stream shows that its points have passed, and how one stream waits for another.
//!
//! The table is data, so that backends need no method that answers "unsupported". It is keyed by class, which is (stream type,
//! device kind), and every pair of classes has an entry. A new backend fills in its rows. Which memory a stream reaches depends on the
//! kind of its device too: `streamvm-instructions` decides that (`tensor/reach.rs`), by [`StreamClass::run_by`].

use streamvm_ep::DeviceKind;

use crate::{StreamKey, StreamType};

/// The key of the table: the type of a stream and the kind of its device.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct StreamClass {
    /// The stream's type.
    pub stream_type: StreamType,
    /// The kind of the stream's device.
    pub device: DeviceKind,
}

const KINDS: [DeviceKind; DeviceKind::ALL.len()] = DeviceKind::ALL;
const CLASSES: usize = KINDS.len() * StreamType::ALL.len();

impl StreamClass {
    /// The class of a stream.
    pub fn of(key: &StreamKey) -> StreamClass {
        StreamClass { stream_type: key.stream_type, device: key.device.kind }
    }

    /// The runner of the stream's instructions, whose addresses they use.
    pub fn run_by(self) -> RunBy {
        match (self.stream_type, self.device) {
            (StreamType::Barrier | StreamType::Workers | StreamType::Critical, _) | (_, DeviceKind::Cpu) => RunBy::Host,
            (_, DeviceKind::Cuda | DeviceKind::Sim) => RunBy::Device,
        }
    }

    /// Whether the stream can neither wait on a device nor be waited for there: it has threads of its own, or threads of the host run it
    /// for a device that is not a CPU.
    fn is_of_host(self) -> bool {
        let own = matches!(self.stream_type, StreamType::Barrier | StreamType::Workers);
        own || (self.run_by() == RunBy::Host && self.device != DeviceKind::Cpu)
    }

    fn index(self) -> usize {
        self.device as usize * StreamType::ALL.len() + self.stream_type.index()
    }

    fn all() -> impl Iterator<Item = StreamClass> {
        KINDS
            .into_iter()
            .flat_map(|device| StreamType::ALL.into_iter().map(move |stream_type| StreamClass { stream_type, device }))
    }
}

/// The runner of the instructions of a stream.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum RunBy {
    /// Threads of the host run the streams of CPU devices, and the barriers, workers and critical sections of every device.
    Host,
    /// The stream's device, which is not a CPU, runs the instructions some time after they were launched.
    Device,
}

/// The side that waits until a point of another stream has passed.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum WaitKind {
    /// The waiting stream's device, or its thread context, waits.
    Device,
    /// The scheduler holds the waiting stream's next instruction back.
    Host,
}

/// How a stream shows that a point has passed.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Shows {
    /// By its timeline, exactly, for every sequence number.
    Number,
    /// By events only, at the points where an event was recorded.
    Event,
}

/// Where a stream that shows its points by events records events without a request by the program.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum RecordRule {
    /// Only where an instruction must wait for a point.
    OnNeed,
    /// Behind every instruction. Otherwise, a later wait for a copy might find only the record behind the copy that was prefetched
    /// after it.
    BehindEach,
}

/// The capability table. [`Capabilities::standard`] is right for the devices of this workspace; a test or a new backend may change
/// entries. Any pair may be made stricter: [`WaitKind::Host`] is possible everywhere.
#[derive(Clone, Debug)]
pub struct Capabilities {
    waits: [[WaitKind; CLASSES]; CLASSES],
    shows: [Shows; CLASSES],
    records: [RecordRule; CLASSES],
    pinned_only: [bool; KINDS.len()],
}

impl Capabilities {
    /// Returns the table for CPU, CUDA and simulated devices.
    ///
    /// | source → target | wait |
    /// |---|---|
    /// | to or from a barrier stream, workers, or critical sections of a device that is not a CPU | host |
    /// | CPU → CPU | device: the target's thread context reads the source's timeline |
    /// | CUDA → CUDA, sim → sim | device: by event |
    /// | anything else | host |
    ///
    /// CUDA devices copy only from and to pinned memory.
    pub fn standard() -> Capabilities {
        let mut table = Capabilities {
            waits: [[WaitKind::Host; CLASSES]; CLASSES],
            shows: [Shows::Number; CLASSES],
            records: [RecordRule::OnNeed; CLASSES],
            pinned_only: KINDS.map(|kind| kind == DeviceKind::Cuda),
        };
        for source in StreamClass::all() {
            let by_event = source.run_by() == RunBy::Device;
            let copies = matches!(source.stream_type, StreamType::HostToDevice | StreamType::DeviceToHost);
            if by_event {
                table.shows[source.index()] = Shows::Event;
                if copies {
                    table.records[source.index()] = RecordRule::BehindEach;
                }
            }
            for target in StreamClass::all() {
                let host = [source, target].iter().any(|class| class.is_of_host());
                if source.device == target.device && !host {
                    table.set_wait(source, target, WaitKind::Device);
                }
            }
        }
        table
    }

    /// How `target` waits for a point of `source`.
    pub fn wait(&self, source: StreamClass, target: StreamClass) -> WaitKind {
        self.waits[source.index()][target.index()]
    }

    /// Sets how `target` waits for a point of `source`.
    pub fn set_wait(&mut self, source: StreamClass, target: StreamClass, wait: WaitKind) {
        self.waits[source.index()][target.index()] = wait;
    }

    /// Makes every wait a host wait, so that the scheduler decides all order across streams.
    pub fn host_waits_only(mut self) -> Capabilities {
        self.waits = [[WaitKind::Host; CLASSES]; CLASSES];
        self
    }

    /// Whether copies by devices of this kind cannot reach pageable memory, so that copies of pageable memory must be staged.
    pub fn pinned_only(&self, kind: DeviceKind) -> bool {
        self.pinned_only[kind as usize]
    }

    /// Sets whether copies by devices of this kind cannot reach pageable memory.
    pub fn set_pinned_only(&mut self, kind: DeviceKind, pinned_only: bool) {
        self.pinned_only[kind as usize] = pinned_only;
    }

    /// How streams of this class show their points.
    pub fn shows(&self, class: StreamClass) -> Shows {
        self.shows[class.index()]
    }

    /// Where streams of this class record events without a request.
    pub fn records(&self, class: StreamClass) -> RecordRule {
        self.records[class.index()]
    }
}

impl Default for Capabilities {
    fn default() -> Self {
        Capabilities::standard()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(stream_type: StreamType, device: DeviceKind) -> StreamClass {
        StreamClass { stream_type, device }
    }

    #[test]
    fn every_class_has_its_own_index() {
        let mut seen: Vec<usize> = StreamClass::all().map(StreamClass::index).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..CLASSES).collect::<Vec<_>>());
    }

    #[test]
    fn the_standard_table_says_who_waits_how() {
        use DeviceKind::{Cpu, Cuda, Sim};
        use StreamType::{Barrier, Compute, Critical, HostToDevice, Workers};
        let table = Capabilities::standard();
        assert_eq!(table.wait(class(HostToDevice, Cuda), class(Compute, Cuda)), WaitKind::Device);
        assert_eq!(table.wait(class(HostToDevice, Cpu), class(Compute, Cpu)), WaitKind::Device);
        assert_eq!(table.wait(class(Compute, Cpu), class(Compute, Cuda)), WaitKind::Host);
        assert_eq!(table.wait(class(Compute, Cuda), class(Compute, Cpu)), WaitKind::Host);
        assert_eq!(table.wait(class(Compute, Cuda), class(Compute, Sim)), WaitKind::Host);
        assert_eq!(table.wait(class(Barrier, Cpu), class(Compute, Cpu)), WaitKind::Host);
        assert_eq!(table.wait(class(Compute, Cpu), class(Barrier, Cpu)), WaitKind::Host);
        assert_eq!(table.wait(class(Workers, Cpu), class(Compute, Cpu)), WaitKind::Host);
        assert_eq!(table.wait(class(Workers, Cpu), class(Workers, Cpu)), WaitKind::Host);
        assert_eq!(table.wait(class(Compute, Cpu), class(Critical, Cpu)), WaitKind::Device);
        assert_eq!(table.wait(class(Critical, Cpu), class(Compute, Cuda)), WaitKind::Host);
        assert_eq!(table.wait(class(Critical, Cuda), class(Compute, Cuda)), WaitKind::Host);
        assert_eq!(table.shows(class(Critical, Cuda)), Shows::Number);
        assert_eq!(table.shows(class(Workers, Cuda)), Shows::Number);
        assert_eq!(table.shows(class(Compute, Cpu)), Shows::Number);
        assert_eq!(table.shows(class(Compute, Cuda)), Shows::Event);
        assert_eq!(table.shows(class(Barrier, Cuda)), Shows::Number);
        assert_eq!(table.records(class(HostToDevice, Cuda)), RecordRule::BehindEach);
        assert_eq!(table.records(class(Compute, Cuda)), RecordRule::OnNeed);
        assert_eq!([Cpu, Cuda, Sim].map(|kind| table.pinned_only(kind)), [false, true, false]);
        assert_eq!(table.records(class(HostToDevice, Cpu)), RecordRule::OnNeed);
    }

    #[test]
    fn host_waits_only_leaves_no_device_wait() {
        let table = Capabilities::standard().host_waits_only();
        for source in StreamClass::all() {
            for target in StreamClass::all() {
                assert_eq!(table.wait(source, target), WaitKind::Host);
            }
        }
    }
}
