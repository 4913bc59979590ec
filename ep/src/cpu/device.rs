//! The CPU device: memory and its accounting.
//!
//! Invariant: a region's bytes are counted from before they are allocated until after they are
//! freed, so that the counts never say less than what is in use, and the limit is never passed.

use std::alloc::{Layout as HeapLayout, alloc_zeroed, dealloc};
use std::ptr::without_provenance_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::cpu::stream::CpuStream;
use crate::device::{Device, DeviceId, DeviceInfo, LateFailure};
use crate::error::Error;
use crate::event::{EventId, EventPool};
use crate::memory::{MemoryKind, MemoryStats, Region};
use crate::stream::Stream;

/// Alignment of every region in bytes: one cache line, and the widest vector register.
const ALIGNMENT: usize = 64;

/// How a CPU device is set up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuConfig {
    /// Most bytes that may be allocated from the device, over all memory kinds; `None` for no limit.
    pub memory_limit: Option<u64>,
}

/// The processor that runs this program, as a device.
#[derive(Debug)]
pub struct CpuDevice {
    id: DeviceId,
    config: CpuConfig,
    accounts: Mutex<[MemoryStats; MemoryKind::ALL.len()]>,
    events: Arc<EventPool>,
}

impl CpuDevice {
    /// The device `cpu:<index>`, with no memory allocated.
    pub fn new(index: u32, config: CpuConfig) -> CpuDevice {
        let empty = MemoryStats { limit: config.memory_limit, ..MemoryStats::default() };
        CpuDevice {
            id: DeviceId::cpu(index),
            config,
            accounts: Mutex::new([empty; MemoryKind::ALL.len()]),
            events: Arc::new(EventPool::new()),
        }
    }

    fn accounts(&self) -> MutexGuard<'_, [MemoryStats; MemoryKind::ALL.len()]> {
        // No code here panics half way through a change, so a poisoned lock guards whole counts.
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a region of `bytes` bytes as allocated, or says why not.
    fn charge(&self, kind: MemoryKind, bytes: u64) -> Result<(), Error> {
        let mut accounts = self.accounts();
        let in_use: u64 = accounts.iter().map(|account| account.in_use).sum();
        if let Some(limit) = self.config.memory_limit
            && in_use.saturating_add(bytes) > limit
        {
            return Err(self.out_of_memory(kind, bytes, in_use, Some(limit)));
        }
        let account = &mut accounts[kind as usize];
        account.in_use += bytes;
        account.peak = account.peak.max(account.in_use);
        account.regions += 1;
        account.allocations += 1;
        Ok(())
    }

    /// Takes a charge of memory that the machine did not give back out of the counts.
    fn refuse(&self, kind: MemoryKind, bytes: u64) -> Error {
        let mut accounts = self.accounts();
        let account = &mut accounts[kind as usize];
        account.in_use -= bytes;
        account.regions -= 1;
        account.allocations -= 1;
        let in_use = accounts.iter().map(|account| account.in_use).sum();
        self.out_of_memory(kind, bytes, in_use, None)
    }

    fn out_of_memory(&self, kind: MemoryKind, requested: u64, in_use: u64, limit: Option<u64>) -> Error {
        Error::OutOfMemory { device: self.id, kind, requested, in_use, limit }
    }
}

impl Device for CpuDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            id: self.id,
            name: format!("CPU ({})", std::env::consts::ARCH),
            units: std::thread::available_parallelism().map_or(1, |cores| cores.get()),
            memory_limit: self.config.memory_limit,
        }
    }

    fn memory(&self, kind: MemoryKind) -> MemoryStats {
        self.accounts()[kind as usize]
    }

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    fn host_accessible(&self) -> bool {
        true
    }

    fn allocate(&self, kind: MemoryKind, bytes: usize) -> Result<Region, Error> {
        let requested = bytes as u64;
        self.charge(kind, requested)?;
        if bytes == 0 {
            let nowhere = without_provenance_mut(ALIGNMENT);
            return Ok(Region::new(nowhere, 0, kind, self.id));
        }
        let Ok(layout) = HeapLayout::from_size_align(bytes, ALIGNMENT) else {
            return Err(self.refuse(kind, requested));
        };
        // SAFETY: the size is not 0.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            return Err(self.refuse(kind, requested));
        }
        Ok(Region::new(base, bytes, kind, self.id))
    }

    unsafe fn free(&self, region: Region) {
        if region.bytes() > 0 {
            // `allocate` made a layout of the same size, so this is one too; if not, leak.
            let Ok(layout) = HeapLayout::from_size_align(region.bytes(), ALIGNMENT) else {
                return;
            };
            // SAFETY: the caller promises that the region came from `allocate`, which used the same
            // layout, and that nothing uses it any more; a region is freed once, as it is moved.
            unsafe { dealloc(region.base(), layout) };
        }
        let mut accounts = self.accounts();
        let account = &mut accounts[region.kind() as usize];
        account.in_use -= region.bytes() as u64;
        account.regions -= 1;
    }

    fn create_stream(&self) -> Result<Box<dyn Stream>, Error> {
        Ok(Box::new(CpuStream::new(self.id, Arc::clone(&self.events))))
    }

    fn events(&self) -> &EventPool {
        &self.events
    }

    fn query(&self, event: EventId) -> Result<bool, Error> {
        // What was recorded has passed: every command is over when its call returns.
        if self.events.is_recorded(event)? { Ok(true) } else { Err(Error::EventNotRecorded { event, device: self.id }) }
    }

    fn wait(&self, event: EventId, _: Option<Instant>) -> Result<bool, Error> {
        self.query(event)
    }

    fn take_failures(&self) -> Vec<LateFailure> {
        Vec::new()
    }
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
