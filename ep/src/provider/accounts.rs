//! The memory counters of a device, and its limit.
//!
//! Invariant: the bytes of a region are counted from before its allocation until after it is freed. So the counters never show less than
//! what is in use, and the limit is never exceeded.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::errors::error::Error;
use crate::names::device_id::DeviceId;
use crate::names::memory_kind::MemoryKind;
use crate::provider::memory::MemoryStats;

/// The memory in use on one device, by kind. Thread-safe; each call takes a lock for a short time.
#[derive(Debug)]
pub struct Accounts {
    device: DeviceId,
    limit: Option<u64>,
    kinds: Mutex<[MemoryStats; MemoryKind::ALL.len()]>,
}

impl Accounts {
    /// Counters at 0, with at most `limit` bytes over all kinds.
    pub fn new(device: DeviceId, limit: Option<u64>) -> Accounts {
        let empty = MemoryStats { limit, ..MemoryStats::default() };
        Accounts { device, limit, kinds: Mutex::new([empty; MemoryKind::ALL.len()]) }
    }

    /// The device that they count for.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// The most bytes over all kinds; `None` if there is no limit.
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// The counters of one kind.
    pub fn of(&self, kind: MemoryKind) -> MemoryStats {
        self.lock()[kind as usize]
    }

    /// Counts a region of `bytes` bytes as allocated.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] if the limit would be exceeded.
    pub fn charge(&self, kind: MemoryKind, bytes: u64) -> Result<(), Error> {
        let mut kinds = self.lock();
        let in_use: u64 = kinds.iter().map(|account| account.in_use).sum();
        if let Some(limit) = self.limit
            && in_use.saturating_add(bytes) > limit
        {
            return Err(self.out_of_memory(kind, bytes, in_use, Some(limit)));
        }
        let account = &mut kinds[kind as usize];
        account.in_use += bytes;
        account.peak = account.peak.max(account.in_use);
        account.regions += 1;
        account.allocations += 1;
        Ok(())
    }

    /// Undoes a charge for memory that the machine did not give. Returns the error for the caller.
    pub fn refuse(&self, kind: MemoryKind, bytes: u64) -> Error {
        let mut kinds = self.lock();
        let account = &mut kinds[kind as usize];
        account.in_use -= bytes;
        account.regions -= 1;
        account.allocations -= 1;
        let in_use = kinds.iter().map(|account| account.in_use).sum();
        self.out_of_memory(kind, bytes, in_use, None)
    }

    /// Uncounts a region of `bytes` bytes that has been freed.
    pub fn give_back(&self, kind: MemoryKind, bytes: u64) {
        let mut kinds = self.lock();
        let account = &mut kinds[kind as usize];
        account.in_use -= bytes;
        account.regions -= 1;
    }

    fn lock(&self) -> MutexGuard<'_, [MemoryStats; MemoryKind::ALL.len()]> {
        // No code here panics while the counters are inconsistent, so a poisoned lock guards valid counters.
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn out_of_memory(&self, kind: MemoryKind, requested: u64, in_use: u64, limit: Option<u64>) -> Error {
        Error::OutOfMemory { device: self.device, kind, requested, in_use, limit }
    }
}
