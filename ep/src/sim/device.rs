//! A simulated device: memory of the world's heap, reported to the detector, and handles to the world's queues.

use std::ptr::without_provenance_mut;
use std::sync::Arc;
use std::time::Instant;

use crate::call::label::Label;
use crate::errors::error::Error;
use crate::names::device_id::DeviceId;
use crate::names::event_id::EventId;
use crate::names::memory_kind::MemoryKind;
use crate::provider::device::{Device, DeviceInfo, LateFailure};
use crate::provider::event_pool::EventPool;
use crate::provider::memory::{MemoryStats, Region};
use crate::provider::stream::Stream;
use crate::races::{Finding, FindingKind};
use crate::sim::memory::ALIGNMENT;
use crate::sim::stream::SimStream;
use crate::sim::world::{Mark, SimWorld};

/// Device `sim:<index>` of a world.
///
/// It maps and unmaps its regions with the detector itself. Fresh memory is poison, not zero.
#[derive(Debug)]
pub(super) struct SimDevice {
    index: u32,
    world: Arc<SimWorld>,
}

impl SimDevice {
    pub(super) fn new(index: u32, world: Arc<SimWorld>) -> SimDevice {
        SimDevice { index, world }
    }

    fn accounts(&self) -> &crate::provider::accounts::Accounts {
        &self.world.accounts[self.index as usize]
    }

    fn recorded(&self, event: EventId) -> Result<Mark, Error> {
        self.world.mark(event)?.ok_or(Error::EventNotRecorded { event, device: self.id() })
    }

    /// Orders the calling thread after the record `mark`, which it has seen passed.
    fn seen(&self, mark: &Mark) {
        let detector = &self.world.detector;
        detector.acquire(detector.this_thread(), &mark.moment);
    }
}

impl Device for SimDevice {
    fn id(&self) -> DeviceId {
        DeviceId::sim(self.index)
    }

    fn info(&self) -> DeviceInfo {
        let name = format!("simulated device (seed {})", self.world.config.seed);
        DeviceInfo { id: self.id(), name, units: 1, memory_limit: self.world.config.memory_limit }
    }

    fn memory(&self, kind: MemoryKind) -> MemoryStats {
        self.accounts().of(kind)
    }

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    fn host_accessible(&self) -> bool {
        false
    }

    fn allocate(&self, kind: MemoryKind, bytes: usize) -> Result<Region, Error> {
        let requested = bytes as u64;
        self.accounts().charge(kind, requested)?;
        if bytes == 0 {
            return Ok(Region::new(without_provenance_mut(ALIGNMENT), 0, kind, self.id()));
        }
        let Some(base) = self.world.heap.allocate(bytes) else {
            return Err(self.accounts().refuse(kind, requested));
        };
        let number = self.accounts().of(kind).allocations;
        let name = format!("{} {kind} memory #{number}", self.id());
        self.world.detector.map(base.addr()..base.addr() + bytes, &name, kind);
        Ok(Region::new(base, bytes, kind, self.id()))
    }

    unsafe fn free(&self, region: Region) {
        if region.bytes() > 0 {
            // A region from elsewhere breaks the caller's guarantee; it is leaked.
            let Some(block) = self.world.heap.remove(region.base().addr()) else { return };
            let detector = &self.world.detector;
            let actor = detector.this_thread();
            let label = Label::new(u32::MAX, region.base().addr() as u64, "free");
            if let Some(offset) = self.world.heap.overrun(&block) {
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
        Ok(Box::new(SimStream::new(self.index, Arc::clone(&self.world))))
    }

    fn events(&self) -> &EventPool {
        &self.world.events
    }

    fn query(&self, event: EventId) -> Result<bool, Error> {
        let mark = self.recorded(event)?;
        let passed = self.world.has_passed(mark.place);
        if passed {
            self.seen(&mark);
        }
        Ok(passed)
    }

    fn wait(&self, event: EventId, deadline: Option<Instant>) -> Result<bool, Error> {
        let mark = self.recorded(event)?;
        let passed = self.world.run_until(mark.place, deadline);
        if passed {
            self.seen(&mark);
        }
        Ok(passed)
    }

    fn take_failures(&self) -> Vec<LateFailure> {
        self.world.take_failures(self.index)
    }
}
