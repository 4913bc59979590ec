//! The only module that imports atomics, locks, threads and parking, so that loom and shuttle can run the code that ships.
//!
//! Layer: uses no other folder; is used by all of them.
//!
//! * Loom (`make loom`) tries every interleaving of one protocol under the memory model.
//! * Shuttle (`make shuttle`) runs a whole engine under random schedules.
//!
//! Types that never block between two of these operations (`Arc`, `OnceLock`) may come from the standard library.

pub(crate) mod engine_thread;
pub(crate) mod fork;
pub(crate) mod panics;
pub(crate) mod parker;
pub(crate) mod spin;

#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::mpsc::{Receiver, Sender, channel},
    sync::{Condvar, Mutex, MutexGuard},
    thread::{Builder, JoinHandle, Thread, ThreadId, current, park, park_timeout, yield_now},
    thread_local,
};

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::mpsc::{Receiver, Sender, channel},
    sync::{Condvar, Mutex, MutexGuard},
    thread::{Builder, JoinHandle, Thread, ThreadId, current, park, yield_now},
};
/// Loom's `thread_local` takes no `const` block, and no loom model depends on thread-local state.
#[cfg(loom)]
pub(crate) use std::thread_local;

#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::mpsc::{Receiver, Sender, channel},
    sync::{Condvar, Mutex, MutexGuard},
    thread::{Builder, JoinHandle, Thread, ThreadId, current, park, park_timeout, yield_now},
    thread_local,
};

use std::sync::{LockResult, PoisonError};

/// Loom does not model time, so this parks without a limit.
#[cfg(loom)]
pub(crate) fn park_timeout(_: std::time::Duration) {
    park();
}

/// The guard of a lock, even if a thread panicked while it held the lock. That is sound here because the engine runs no user code
/// under its locks, and each guarded value is consistent between any two statements that modify it.
pub(crate) fn unpoisoned<T>(locked: LockResult<T>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}
