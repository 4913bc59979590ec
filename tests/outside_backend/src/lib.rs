//! A kind of device that streamvm does not know: memory of the host under another name, with the kernels of CPUs.
//!
//! The engine takes it for a device that runs commands later over memory of its own. Each command has run when its call returns, so an event has passed
//! as soon as it is recorded.

use std::alloc::{Layout as HeapLayout, alloc_zeroed, dealloc};
use std::ptr::without_provenance_mut;
use std::sync::Arc;

use streamvm::ep::kernels;
use streamvm_ep::{
    Accounts, Device, DeviceId, DeviceKind, Error, EventId, EventPool, KernelCall, KernelRegistry, KindError, KindInfo,
    MemoryKind, OpStates, Operand, Region, Scalar, Stream,
};

/// Alignment of every region, in bytes: the least that a device may have.
const ALIGNMENT: usize = 64;

/// The kind of these devices, which is registered at the first call.
///
/// # Errors
///
/// Another crate has registered the name with another record.
pub fn kind() -> Result<DeviceKind, KindError> {
    DeviceKind::register("outside", KindInfo { runs_functions: true, ..KindInfo::default() })
}

/// The kernels of these devices.
pub fn register_kernels(kind: DeviceKind) -> KernelRegistry {
    let mut registry = KernelRegistry::empty();
    kernels::register(&mut registry, kind);
    registry
}

/// A device of the kind.
#[derive(Debug)]
pub struct OutsideDevice {
    accounts: Accounts,
    events: Arc<EventPool>,
    states: Arc<OpStates>,
}

impl OutsideDevice {
    /// The device of this id, whose regions have at most `limit` bytes together.
    pub fn new(id: DeviceId, limit: Option<u64>) -> OutsideDevice {
        OutsideDevice {
            accounts: Accounts::new(id, limit),
            events: Arc::default(),
            states: Arc::new(OpStates::new(id)),
        }
    }
}

// SAFETY: regions are zeroed allocations of the process's own, which `free` gives back, and the host can access all of them. Commands complete within
// their calls, so before any record.
unsafe impl Device for OutsideDevice {
    fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    fn allocate(&self, kind: MemoryKind, bytes: usize) -> Result<Region, Error> {
        self.accounts.charge(kind, bytes as u64)?;
        let base = match HeapLayout::from_size_align(bytes, ALIGNMENT) {
            Ok(layout) if bytes > 0 => {
                // SAFETY: the size is not 0.
                unsafe { alloc_zeroed(layout) }
            }
            Ok(_) => without_provenance_mut(ALIGNMENT),
            Err(_) => std::ptr::null_mut(),
        };
        if base.is_null() {
            return Err(self.accounts.refuse(kind, bytes as u64));
        }
        Ok(Region::new(base, bytes, kind, self.id()))
    }

    unsafe fn free(&self, region: Region) {
        if let Ok(layout) = HeapLayout::from_size_align(region.bytes(), ALIGNMENT)
            && region.bytes() > 0
        {
            // SAFETY: the caller guarantees that the region came from `allocate`, which used the same layout, and that nothing uses it any longer.
            unsafe { dealloc(region.base(), layout) };
        }
        self.accounts.give_back(region.kind(), region.bytes() as u64);
    }

    fn create_stream(&self) -> Result<Box<dyn Stream>, Error> {
        Ok(Box::new(OutsideStream {
            device: self.id(),
            events: Arc::clone(&self.events),
            states: Arc::clone(&self.states),
        }))
    }

    fn events(&self) -> &EventPool {
        &self.events
    }

    fn query(&self, event: EventId) -> Result<bool, Error> {
        passed(&self.events, event, self.id()).map(|()| true)
    }
}

/// # Errors
///
/// The event was not recorded, or is stale.
fn passed(events: &EventPool, event: EventId, device: DeviceId) -> Result<(), Error> {
    if events.is_recorded(event)? { Ok(()) } else { Err(Error::EventNotRecorded { event, device }) }
}

struct OutsideStream {
    device: DeviceId,
    events: Arc<EventPool>,
    states: Arc<OpStates>,
}

// SAFETY: each command runs within its call, by kernels and functions that take operands of any lifetime and check their accesses.
unsafe impl Stream for OutsideStream {
    fn launch(&mut self, call: &mut KernelCall<'_, 'static>) -> Result<(), Error> {
        if call.kernel.device != self.device.kind {
            return Err(Error::WrongDevice { kernel: call.kernel.device, device: self.device });
        }
        call.mark_overlapping_shared()?;
        Ok(call.run(Some(&self.states))?)
    }

    fn copy(&mut self, source: &Operand<'static>, target: &mut Operand<'static>) -> Result<(), Error> {
        kernels::copy(source, target)
    }

    fn fill(&mut self, target: &mut Operand<'static>, value: Scalar) -> Result<(), Error> {
        kernels::fill(target, value)
    }

    fn record(&mut self, event: EventId) -> Result<(), Error> {
        self.events.record(event)
    }

    fn wait(&mut self, event: EventId) -> Result<(), Error> {
        passed(&self.events, event, self.device)
    }

    fn synchronize(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
