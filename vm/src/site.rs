//! A caller's source line that one thread writes with every instruction and another may read at any time.
//!
//! A plain store and a plain load: crossbeam's `AtomicCell` is sequentially consistent, and its store, a locked
//! instruction on x86-64, was 3 % of what a short instruction costs.

#![allow(unsafe_code, reason = "a shared reference behind an atomic pointer")]

use std::panic::Location;
use std::ptr;

use crate::sync::{AtomicPtr, Ordering};

/// A line, or none.
#[derive(Debug)]
pub(crate) struct AtomicSite(AtomicPtr<Location<'static>>);

impl Default for AtomicSite {
    fn default() -> AtomicSite {
        AtomicSite(AtomicPtr::new(ptr::null_mut()))
    }
}

impl AtomicSite {
    /// Relaxed: what orders it stands around it.
    pub(crate) fn store(&self, site: &'static Location<'static>) {
        self.0.store(ptr::from_ref(site).cast_mut(), Ordering::Relaxed);
    }

    /// Relaxed, as [`AtomicSite::store`]. `None` if nothing was stored yet.
    pub(crate) fn load(&self) -> Option<&'static Location<'static>> {
        let site = self.0.load(Ordering::Relaxed);
        // SAFETY: null, or made from a shared reference that is valid for good, whose target nobody ever writes.
        unsafe { site.as_ref() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_stored_last_is_loaded() {
        let (site, here) = (AtomicSite::default(), Location::caller());
        assert_eq!(site.load(), None);
        site.store(here);
        assert_eq!(site.load(), Some(here));
    }
}
