//! An atomic site: one thread writes it with every instruction, and any thread may read it at any time.
//!
//! The store is relaxed. crossbeam's `AtomicCell` is sequentially consistent, and its store, a locked instruction on x86-64, took 3
//! % of the time of a short instruction.

#![allow(unsafe_code, reason = "a site from the pointer that it was stored as")]

use std::ptr::{self, NonNull};

use streamvm_ep::Site;

use crate::sync::{AtomicPtr, Ordering};

/// The caller's site, or none.
#[derive(Debug)]
pub(crate) struct AtomicSite(AtomicPtr<()>);

impl Default for AtomicSite {
    fn default() -> AtomicSite {
        AtomicSite(AtomicPtr::new(ptr::null_mut()))
    }
}

impl AtomicSite {
    /// Stores a site. Relaxed: the caller provides the ordering.
    pub(crate) fn store(&self, site: Site) {
        self.0.store(site.into_raw().as_ptr(), Ordering::Relaxed);
    }

    /// The site stored last, `None` before the first. Relaxed, as [`AtomicSite::store`].
    pub(crate) fn load(&self) -> Option<Site> {
        let pointer = NonNull::new(self.0.load(Ordering::Relaxed))?;
        // SAFETY: `store` alone writes the pointer, and not null.
        Some(unsafe { Site::from_raw(pointer) })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_last_stored_site_is_loaded() {
        let (site, here) = (AtomicSite::default(), Site::caller());
        assert_eq!(site.load(), None);
        for stored in [here, Site::in_text("a.svm", 1, 2, Some(here)), here] {
            site.store(stored);
            assert_eq!(site.load(), Some(stored));
        }
    }
}
