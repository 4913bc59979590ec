//! How a stream shows that its points have passed, and how one stream waits for another.
//!
//! Both follow from the class of a stream, which is its type and the kind of its device: the record of the kind
//! ([`KindInfo`](streamvm_ep::KindInfo)) says who runs the commands. Which memory a stream reaches depends on the record too:
//! `streamvm-instructions` decides that (`tensor/reach.rs`).

use streamvm_ep::{DeviceKind, RunBy};

use crate::{StreamKey, StreamType};

/// What streams are told apart by: the type of a stream and the kind of its device.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct StreamClass {
    /// The stream's type.
    pub stream_type: StreamType,
    /// The kind of the stream's device.
    pub device: DeviceKind,
}

impl StreamClass {
    /// The class of a stream.
    pub fn of(key: &StreamKey) -> StreamClass {
        StreamClass { stream_type: key.stream_type, device: key.device.kind }
    }

    /// The runner of the stream's instructions, whose addresses they use: threads of the host run the barriers, workers and critical sections of
    /// every device.
    #[inline]
    pub fn run_by(self) -> RunBy {
        match self.stream_type {
            StreamType::Barrier | StreamType::Workers | StreamType::Critical => RunBy::Host,
            _ => self.device.info().run_by,
        }
    }

    /// Whether the stream can neither wait on a device nor be waited for there: it has threads of its own, or threads of the host run it
    /// for a device that runs its other streams itself.
    fn is_of_host(self) -> bool {
        let own = matches!(self.stream_type, StreamType::Barrier | StreamType::Workers);
        own || (self.run_by() == RunBy::Host && !self.device.is_run_by_host())
    }
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
    /// After every instruction. Otherwise, a later wait for a copy might find only the record after the copy that was prefetched
    /// after it.
    BehindEach,
}

/// What an engine makes of the records of kinds. It may only be stricter than they are: [`WaitKind::Host`] is possible everywhere, and any copy can
/// be staged.
#[derive(Clone, Debug, Default)]
pub struct Capabilities {
    host_waits_only: bool,
    /// A bit for each kind whose copies are staged though its record does not ask for it.
    staged: u64,
}

const _: () = assert!(DeviceKind::MOST <= u64::BITS as usize);

impl Capabilities {
    /// Returns what the records say.
    ///
    /// | source → target | wait |
    /// |---|---|
    /// | to or from a barrier stream, workers, or critical sections of a device that runs its other streams itself | host |
    /// | within a kind that threads of the host run, such as CPUs | device: the target's thread context reads the source's timeline |
    /// | within a kind that runs commands itself, such as CUDA devices | device: by event |
    /// | from one kind to another | host |
    pub fn standard() -> Capabilities {
        Capabilities::default()
    }

    /// How `target` waits for a point of `source`.
    pub fn wait(&self, source: StreamClass, target: StreamClass) -> WaitKind {
        let by_host = self.host_waits_only || source.device != target.device;
        if by_host || source.is_of_host() || target.is_of_host() { WaitKind::Host } else { WaitKind::Device }
    }

    /// Makes every wait a host wait, so that the scheduler decides all order across streams.
    pub fn host_waits_only(mut self) -> Capabilities {
        self.host_waits_only = true;
        self
    }

    /// Whether copies by devices of this kind cannot reach pageable memory, so that copies of pageable memory must be staged.
    pub fn pinned_only(&self, kind: DeviceKind) -> bool {
        kind.info().pinned_only || self.staged >> kind.index() & 1 == 1
    }

    /// Has copies of pageable memory by devices of this kind staged, whatever its record says.
    pub fn stage(&mut self, kind: DeviceKind) {
        self.staged |= 1 << kind.index();
    }

    /// How streams of this class show their points.
    pub fn shows(&self, class: StreamClass) -> Shows {
        match class.run_by() {
            RunBy::Host => Shows::Number,
            RunBy::Device => Shows::Event,
        }
    }

    /// Where streams of this class record events without a request.
    #[inline]
    pub fn records(&self, class: StreamClass) -> RecordRule {
        // A record that is made later comes after later work of the stream, which for collectives waits for other ranks.
        let each =
            matches!(class.stream_type, StreamType::HostToDevice | StreamType::DeviceToHost | StreamType::Collective);
        if each && class.run_by() == RunBy::Device { RecordRule::BehindEach } else { RecordRule::OnNeed }
    }
}

#[cfg(test)]
mod tests {
    use streamvm_ep::KindInfo;

    use super::*;

    const CPU: DeviceKind = DeviceKind::CPU;
    const CUDA: DeviceKind = DeviceKind::CUDA;
    const SIM: DeviceKind = DeviceKind::SIM;

    fn class(stream_type: StreamType, device: DeviceKind) -> StreamClass {
        StreamClass { stream_type, device }
    }

    #[test]
    fn the_standard_table_says_who_waits_how() {
        use StreamType::{Barrier, Compute, Critical, HostToDevice, Workers};
        let table = Capabilities::standard();
        assert_eq!(table.wait(class(HostToDevice, CUDA), class(Compute, CUDA)), WaitKind::Device);
        assert_eq!(table.wait(class(HostToDevice, CPU), class(Compute, CPU)), WaitKind::Device);
        assert_eq!(table.wait(class(Compute, CPU), class(Compute, CUDA)), WaitKind::Host);
        assert_eq!(table.wait(class(Compute, CUDA), class(Compute, CPU)), WaitKind::Host);
        assert_eq!(table.wait(class(Compute, CUDA), class(Compute, SIM)), WaitKind::Host);
        assert_eq!(table.wait(class(Barrier, CPU), class(Compute, CPU)), WaitKind::Host);
        assert_eq!(table.wait(class(Compute, CPU), class(Barrier, CPU)), WaitKind::Host);
        assert_eq!(table.wait(class(Workers, CPU), class(Compute, CPU)), WaitKind::Host);
        assert_eq!(table.wait(class(Workers, CPU), class(Workers, CPU)), WaitKind::Host);
        assert_eq!(table.wait(class(Compute, CPU), class(Critical, CPU)), WaitKind::Device);
        assert_eq!(table.wait(class(Critical, CPU), class(Compute, CUDA)), WaitKind::Host);
        assert_eq!(table.wait(class(Critical, CUDA), class(Compute, CUDA)), WaitKind::Host);
        assert_eq!(table.shows(class(Critical, CUDA)), Shows::Number);
        assert_eq!(table.shows(class(Workers, CUDA)), Shows::Number);
        assert_eq!(table.shows(class(Compute, CPU)), Shows::Number);
        assert_eq!(table.shows(class(Compute, CUDA)), Shows::Event);
        assert_eq!(table.shows(class(Barrier, CUDA)), Shows::Number);
        assert_eq!(table.records(class(HostToDevice, CUDA)), RecordRule::BehindEach);
        assert_eq!(table.records(class(Compute, CUDA)), RecordRule::OnNeed);
        assert_eq!([CPU, CUDA, SIM].map(|kind| table.pinned_only(kind)), [false, true, false]);
        assert_eq!(table.records(class(HostToDevice, CPU)), RecordRule::OnNeed);
    }

    #[test]
    fn a_kind_from_elsewhere_waits_and_copies_as_its_record_says() {
        let record = KindInfo { pinned_only: true, ..KindInfo::default() };
        let later = DeviceKind::register("waitslater", record).unwrap();
        let hosted = DeviceKind::register("waitshosted", *CPU.info()).unwrap();
        let table = Capabilities::standard();
        for stream_type in StreamType::ALL {
            for other in StreamType::ALL {
                for (mine, like) in [(later, CUDA), (hosted, CPU)] {
                    let (source, target) = (class(stream_type, mine), class(other, mine));
                    assert_eq!(table.wait(source, target), table.wait(class(stream_type, like), class(other, like)));
                    assert_eq!(table.shows(source), table.shows(class(stream_type, like)));
                    assert_eq!(table.records(source), table.records(class(stream_type, like)));
                    assert_eq!(table.wait(source, class(other, like)), WaitKind::Host);
                }
            }
        }
        assert_eq!([later, hosted].map(|kind| table.pinned_only(kind)), [true, false]);
    }

    #[test]
    fn an_engine_may_stage_the_copies_of_a_kind_that_need_not_be() {
        let mut table = Capabilities::standard();
        table.stage(SIM);
        assert_eq!([CPU, CUDA, SIM].map(|kind| table.pinned_only(kind)), [false, true, true]);
    }

    #[test]
    fn host_waits_only_leaves_no_device_wait() {
        let table = Capabilities::standard().host_waits_only();
        for source in StreamType::ALL {
            for target in StreamType::ALL {
                assert_eq!(table.wait(class(source, CPU), class(target, CPU)), WaitKind::Host);
            }
        }
    }
}
