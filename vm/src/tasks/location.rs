//! An atomic source location: one thread writes it with every instruction, and any thread may read it at any time.
//!
//! The store is relaxed. crossbeam's `AtomicCell` is sequentially consistent, and its store, a locked instruction on x86-64, took 3
//! % of the time of a short instruction.

#![allow(unsafe_code, reason = "a shared reference behind an atomic pointer")]

use std::panic::Location;
use std::ptr;

use crate::sync::{AtomicPtr, Ordering};

/// The caller's source location, or none.
#[derive(Debug)]
pub(crate) struct AtomicLocation(AtomicPtr<Location<'static>>);

impl Default for AtomicLocation {
    fn default() -> AtomicLocation {
        AtomicLocation(AtomicPtr::new(ptr::null_mut()))
    }
}

impl AtomicLocation {
    /// Stores a location. Relaxed: the caller provides the ordering.
    pub(crate) fn store(&self, location: &'static Location<'static>) {
        self.0.store(ptr::from_ref(location).cast_mut(), Ordering::Relaxed);
    }

    /// The location stored last, `None` before the first. Relaxed, as [`AtomicLocation::store`].
    pub(crate) fn load(&self) -> Option<&'static Location<'static>> {
        let location = self.0.load(Ordering::Relaxed);
        // SAFETY: the pointer is null or was made from a `&'static` reference, whose target is never written.
        unsafe { location.as_ref() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_last_stored_location_is_loaded() {
        let (location, here) = (AtomicLocation::default(), Location::caller());
        assert_eq!(location.load(), None);
        location.store(here);
        assert_eq!(location.load(), Some(here));
    }
}
