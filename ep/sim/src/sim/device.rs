//! A simulated device: memory of the machine's heap, reported to the detector, and handles to the machine's queues.

use std::ptr::without_provenance_mut;
use std::sync::Arc;
use std::time::Instant;

use streamvm_ep::{
    Accounts, Device, DeviceInfo, Error, EventId, EventPool, Label, LateFailure, MemoryKind, Region, Stream,
};

use crate::races::{Finding, FindingKind};
use crate::sim::machine::{EventRecord, SimMachine};
use crate::sim::memory::ALIGNMENT;
use crate::sim::stream::SimStream;

/// Device `sim:<index>` of a simulated machine.
///
/// It maps and unmaps its regions with the detector itself. Fresh memory is poison, not zero.
#[derive(Debug)]
pub(super) struct SimDevice {
    index: u32,
    machine: Arc<SimMachine>,
}

impl SimDevice {
    pub(super) fn new(index: u32, machine: Arc<SimMachine>) -> SimDevice {
        SimDevice { index, machine }
    }

    fn recorded(&self, event: EventId) -> Result<EventRecord, Error> {
        self.machine.record(event)?.ok_or(Error::EventNotRecorded { event, device: self.id() })
    }

    /// Orders the calling thread after the event record, which it has seen passed.
    fn seen(&self, record: &EventRecord) {
        let detector = &self.machine.detector;
        detector.acquire(detector.this_thread(), &record.moment);
    }
}

// SAFETY: regions are zeroed blocks of the machine's heap, in memory of the host. An event is reported once the machine has passed its place in the
// queue; commands run in the order of the queue.
unsafe impl Device for SimDevice {
    fn accounts(&self) -> &Accounts {
        &self.machine.accounts[self.index as usize]
    }

    fn info(&self) -> DeviceInfo {
        let name = format!("simulated device (seed {})", self.machine.config.seed);
        DeviceInfo { id: self.id(), name, units: 1, memory_limit: self.machine.config.memory_limit }
    }

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    fn allocate(&self, kind: MemoryKind, bytes: usize) -> Result<Region, Error> {
        let requested = bytes as u64;
        self.accounts().charge(kind, requested)?;
        if bytes == 0 {
            return Ok(Region::new(without_provenance_mut(ALIGNMENT), 0, kind, self.id()));
        }
        let Some(base) = self.machine.heap.allocate(bytes) else {
            return Err(self.accounts().refuse(kind, requested));
        };
        let number = self.accounts().of(kind).allocations;
        let name = format!("{} {kind} memory #{number}", self.id());
        self.machine.detector.map(base.addr()..base.addr() + bytes, &name, kind);
        Ok(Region::new(base, bytes, kind, self.id()))
    }

    unsafe fn free(&self, region: Region) {
        if region.bytes() > 0 {
            // A region from elsewhere breaks the caller's guarantee; it is leaked.
            let Some(block) = self.machine.heap.remove(region.base().addr()) else { return };
            let detector = &self.machine.detector;
            let actor = detector.this_thread();
            let label = Label::new(u32::MAX, region.base().addr() as u64, "free");
            if let Some(offset) = self.machine.heap.overrun(&block) {
                let detail = format!("something wrote beside the region, at byte {offset} counted from its start");
                let finding = Finding::new(FindingKind::OutOfBounds, &label, "look at the region's bands", detail);
                detector.report_at(finding, block.range());
            }
            // Before the block is dropped, because then its addresses can be allocated again.
            detector.unmap(block.range(), actor, &label);
        }
        self.accounts().give_back(region.kind(), region.bytes() as u64);
    }

    fn create_stream(&self) -> Result<Box<dyn Stream>, Error> {
        Ok(Box::new(SimStream::new(self.index, Arc::clone(&self.machine))))
    }

    fn events(&self) -> &EventPool {
        &self.machine.events
    }

    fn query(&self, event: EventId) -> Result<bool, Error> {
        let record = self.recorded(event)?;
        let passed = self.machine.has_passed(record.place);
        if passed {
            self.seen(&record);
        }
        Ok(passed)
    }

    fn wait(&self, event: EventId, deadline: Option<Instant>) -> Result<bool, Error> {
        let record = self.recorded(event)?;
        let passed = self.machine.run_until(record.place, deadline);
        if passed {
            self.seen(&record);
        }
        Ok(passed)
    }

    fn take_failures(&self) -> Vec<LateFailure> {
        self.machine.take_failures(self.index)
    }
}
