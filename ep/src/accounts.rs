//! The counts of a device's memory, and its limit.
//!
//! Invariant: a region's bytes are counted from before they are allocated until after they are
//! freed, so that the counts never say less than what is in use, and the limit is never passed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::device::DeviceId;
use crate::error::Error;
use crate::memory::{MemoryKind, MemoryStats};

/// What is in use of each kind of memory of one device. Thread safe; each call holds a short lock.
#[derive(Debug)]
pub(crate) struct Accounts {
    device: DeviceId,
    limit: Option<u64>,
    kinds: Mutex<[MemoryStats; MemoryKind::ALL.len()]>,
}

impl Accounts {
    /// Nothing in use; at most `limit` bytes over all kinds.
    pub(crate) fn new(device: DeviceId, limit: Option<u64>) -> Accounts {
        let empty = MemoryStats { limit, ..MemoryStats::default() };
        Accounts { device, limit, kinds: Mutex::new([empty; MemoryKind::ALL.len()]) }
    }

    /// The counts of one kind.
    pub(crate) fn of(&self, kind: MemoryKind) -> MemoryStats {
        self.lock()[kind as usize]
    }

    /// Counts a region of `bytes` bytes as allocated.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] past the limit.
    pub(crate) fn charge(&self, kind: MemoryKind, bytes: u64) -> Result<(), Error> {
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

    /// Takes a charge of memory that the machine did not give back out of the counts; the error that
    /// says so.
    pub(crate) fn refuse(&self, kind: MemoryKind, bytes: u64) -> Error {
        let mut kinds = self.lock();
        let account = &mut kinds[kind as usize];
        account.in_use -= bytes;
        account.regions -= 1;
        account.allocations -= 1;
        let in_use = kinds.iter().map(|account| account.in_use).sum();
        self.out_of_memory(kind, bytes, in_use, None)
    }

    /// A charged region of `bytes` bytes has been freed.
    pub(crate) fn give_back(&self, kind: MemoryKind, bytes: u64) {
        let mut kinds = self.lock();
        let account = &mut kinds[kind as usize];
        account.in_use -= bytes;
        account.regions -= 1;
    }

    fn lock(&self) -> MutexGuard<'_, [MemoryStats; MemoryKind::ALL.len()]> {
        // No code here panics half way through a change, so a poisoned lock guards whole counts.
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn out_of_memory(&self, kind: MemoryKind, requested: u64, in_use: u64, limit: Option<u64>) -> Error {
        Error::OutOfMemory { device: self.device, kind, requested, in_use, limit }
    }
}
