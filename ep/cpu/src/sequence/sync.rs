//! The atomics of this folder, in one place, so that loom can check the code that ships.

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
