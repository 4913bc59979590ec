//! The one door to atomics, locks and parking, so that loom can run the same code.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

#[cfg(loom)]
pub(crate) use loom::thread::{Thread, current, park};
#[cfg(not(loom))]
pub(crate) use std::thread::{Thread, current, park};

use std::sync::{LockResult, PoisonError};

/// Takes what a lock guards even if a thread panicked while it held it. The engine runs no user code under its locks,
/// and each guarded value is consistent between any two statements that touch it.
pub(crate) fn unpoisoned<T>(locked: LockResult<T>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}
