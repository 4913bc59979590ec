//! The one door to atomics, locks, threads and parking, so that loom and shuttle run the code that ships: loom every
//! interleaving of one protocol under the memory model (`make loom`), shuttle drawn schedules of a whole engine (`make
//! shuttle`).
//!
//! What never waits for another thread in between two of these (`Arc`, `OnceLock`) may come from the standard library.

#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Condvar, Mutex, MutexGuard},
    thread::{Builder, JoinHandle, Thread, current, park, park_timeout, yield_now},
    thread_local,
};

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Condvar, Mutex, MutexGuard},
    thread::{Builder, JoinHandle, Thread, current, park, yield_now},
};
/// Loom's own takes no `const` block, and no model is about what a thread keeps for itself.
#[cfg(loom)]
pub(crate) use std::thread_local;

#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Condvar, Mutex, MutexGuard},
    thread::{Builder, JoinHandle, Thread, current, park, park_timeout, yield_now},
    thread_local,
};

use std::sync::{LockResult, PoisonError};

/// Loom knows no time.
#[cfg(loom)]
pub(crate) fn park_timeout(_: std::time::Duration) {
    park();
}

/// Takes what a lock guards even if a thread panicked while it held it. The engine runs no user code under its locks,
/// and each guarded value is consistent between any two statements that touch it.
pub(crate) fn unpoisoned<T>(locked: LockResult<T>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}
