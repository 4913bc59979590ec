//! The device that wraps another one and injects faults.

use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use streamvm_ep::{
    Accounts, CommandSequence, Device, DeviceInfo, Error, EventId, EventPool, InstructionTime, LateFailure, MemoryKind,
    Prepared, Priority, Region, Segment, SequenceError, Stream, StreamUse,
};

use crate::faults::plan::FaultPlan;
use crate::faults::rule::{CallSite, Fault, Point};
use crate::faults::stream::FaultyStream;

/// A device that fails as its [`FaultPlan`] says, and otherwise behaves as the device that it wraps: same id, same memory, same events.
#[derive(Debug)]
pub struct FaultyDevice {
    inner: Arc<dyn Device>,
    plan: Arc<FaultPlan>,
}

impl FaultyDevice {
    /// Wraps `inner` with the faults of `plan`. Use it instead of `inner`: the plan does not see calls that bypass it.
    pub fn wrap(inner: Arc<dyn Device>, plan: &Arc<FaultPlan>) -> Arc<dyn Device> {
        Arc::new(FaultyDevice { inner, plan: Arc::clone(plan) })
    }

    /// Injects the fault of the plan for a call that belongs to no instruction; returns an error if the call must not be made.
    fn at(&self, point: Point, memory: Option<(MemoryKind, usize)>) -> Result<(), Error> {
        let device = self.id();
        let call = CallSite { point, device, kind: memory.map(|(kind, _)| kind), label: None, place: 0 };
        match self.plan.at(&call) {
            None | Some(Fault::Late | Fault::Hold(_)) => {}
            Some(Fault::Error) => return Err(Error::Injected(format!("{point} on {device}"))),
            Some(Fault::With(error)) => return Err(error),
            Some(Fault::OutOfMemory) => {
                let in_use = MemoryKind::ALL.map(|kind| self.memory(kind).in_use).iter().sum();
                let (kind, bytes) = memory.unwrap_or((MemoryKind::Device, 0));
                return Err(Error::OutOfMemory { device, kind, requested: bytes as u64, in_use, limit: None });
            }
            Some(Fault::Panic) => resume_unwind(Box::new(format!("injected panic at {point} on {device}"))),
            Some(Fault::Lost) => self.plan.lose(device, &format!("injected at {point}")),
            Some(Fault::Stall(gate)) => {
                gate.arrive();
                gate.wait_open(None, || false);
            }
        }
        self.plan.check(device)
    }

    fn pool(&self) -> usize {
        pool_of(&*self.inner)
    }

    fn is_lost(&self) -> bool {
        self.plan.is_lost(self.id())
    }

    fn check_recorded(&self, event: EventId) -> Result<(), Error> {
        if self.events().is_recorded(event)? {
            Ok(())
        } else {
            Err(Error::EventNotRecorded { event, device: self.id() })
        }
    }
}

/// The identity of a device's event pool: ids are unique within one pool.
pub(super) fn pool_of(device: &dyn Device) -> usize {
    std::ptr::from_ref(device.events()).addr()
}

// SAFETY: regions are those of the wrapped device. A command that a gate holds back has already run there, or never runs; events are reported later
// than by the wrapped device, or as lost.
unsafe impl Device for FaultyDevice {
    fn accounts(&self) -> &Accounts {
        self.inner.accounts()
    }

    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn alignment(&self) -> usize {
        self.inner.alignment()
    }

    fn allocate(&self, kind: MemoryKind, bytes: usize) -> Result<Region, Error> {
        // The engine allocates memory under a lock, and queued functions are code of the caller.
        let _later = self.plan.without_draining();
        self.at(Point::Allocate, Some((kind, bytes)))?;
        self.inner.allocate(kind, bytes)
    }

    unsafe fn free(&self, region: Region) {
        if self.is_lost() {
            self.plan.drain(self.id());
            // Queries order this thread after everything that was queued, for a device that detects races.
            for end in self.plan.ends(self.id()) {
                let _ = self.inner.query(end);
            }
        }
        // SAFETY: the caller has the same duties as the callee's.
        unsafe { self.inner.free(region) }
    }

    fn create_stream(&self) -> Result<Box<dyn Stream>, Error> {
        self.create_stream_for(StreamUse::Kernels, Priority::Normal)
    }

    fn create_stream_for(&self, stream_use: StreamUse, priority: Priority) -> Result<Box<dyn Stream>, Error> {
        self.at(Point::CreateStream, None)?;
        let inner = Arc::new(Mutex::new(self.inner.create_stream_for(stream_use, priority)?));
        self.plan.add_stream(&self.inner, &inner);
        // The device may have been lost meanwhile; then nothing may be queued on the stream.
        self.plan.check(self.id())?;
        Ok(Box::new(FaultyStream::new(Arc::clone(&self.inner), inner, Arc::clone(&self.plan))))
    }

    fn bind_thread(&self) -> Result<(), Error> {
        self.inner.bind_thread()
    }

    fn events(&self) -> &EventPool {
        self.inner.events()
    }

    fn query(&self, event: EventId) -> Result<bool, Error> {
        self.at(Point::Query, None)?;
        if self.plan.holders(self.pool(), event).is_empty() {
            self.inner.query(event)
        } else {
            self.check_recorded(event).map(|()| false)
        }
    }

    fn wait(&self, event: EventId, deadline: Option<Instant>) -> Result<bool, Error> {
        self.at(Point::HostWait, None)?;
        for gate in self.plan.holders(self.pool(), event) {
            self.check_recorded(event)?;
            if !gate.wait_open(deadline, || self.is_lost()) {
                return Ok(false);
            }
        }
        self.plan.check(self.id())?;
        let passed = self.inner.wait(event, deadline);
        self.plan.check(self.id())?;
        passed
    }

    fn take_failures(&self) -> Vec<LateFailure> {
        let mut failures = self.inner.take_failures();
        failures.extend(self.plan.take_late_failures(self.id()));
        failures
    }

    fn prepare(&self, segment: Segment) -> Result<Box<dyn Prepared>, SequenceError> {
        if self.id().kind.is_run_by_host() {
            return self.inner.prepare(segment);
        }
        // The plan sees each command, so they are queued one by one.
        Ok(Box::new(CommandSequence::of_segment(self.id().kind, segment, None)?))
    }

    fn stop_loops(&self) {
        self.inner.stop_loops();
    }

    fn take_times(&self) -> Vec<InstructionTime> {
        self.inner.take_times()
    }
}
