//! Sites in one word: every task has one, and reports read that of a running task at any time.

#![allow(unsafe_code, reason = "a shared reference in a pointer with a tag")]

use std::panic::Location;
use std::ptr::{self, NonNull};

use streamvm_ep::{Site, TextSite};

use crate::sync::{AtomicPtr, Ordering};

/// The bit that is set in the address of a place in a text, and clear in that of a line of Rust.
const TEXT: usize = 1;

const _: () = assert!(align_of::<Location<'static>>() > TEXT && align_of::<TextSite>() > TEXT, "the bit is free");

/// A [`Site`] in one word: the address of its line or place, and which of both it is.
#[derive(Copy, Clone, Debug)]
pub(crate) struct PackedSite(NonNull<()>);

// SAFETY: it stands for a shared reference to what lives as long as the process and is never written.
unsafe impl Send for PackedSite {}
// SAFETY: as above.
unsafe impl Sync for PackedSite {}

impl From<Site> for PackedSite {
    fn from(site: Site) -> PackedSite {
        PackedSite(match site {
            Site::Rust(location) => NonNull::from(location).cast(),
            Site::Text(place) => NonNull::from(place).cast().map_addr(|address| address | TEXT),
        })
    }
}

impl PackedSite {
    /// The site.
    pub(crate) fn get(self) -> Site {
        let pointer = self.0.as_ptr();
        if pointer.addr() & TEXT == 0 {
            // SAFETY: without the bit, the pointer was made from a `&'static Location`, which nobody writes.
            Site::Rust(unsafe { &*pointer.cast_const().cast() })
        } else {
            // SAFETY: with the bit, the pointer was made from a `&'static TextSite`, which nobody writes.
            Site::Text(unsafe { &*pointer.cast_const().map_addr(|address| address & !TEXT).cast() })
        }
    }
}

/// An atomic site: one thread writes it with every instruction, and any thread may read it at any time.
///
/// The store is relaxed. crossbeam's `AtomicCell` is sequentially consistent, and its store, a locked instruction on x86-64, took 3
/// % of the time of a short instruction.
#[derive(Debug)]
pub(crate) struct AtomicSite(AtomicPtr<()>);

impl Default for AtomicSite {
    fn default() -> AtomicSite {
        AtomicSite(AtomicPtr::new(ptr::null_mut()))
    }
}

impl AtomicSite {
    /// Stores a site. Relaxed: the caller provides the ordering.
    pub(crate) fn store(&self, site: PackedSite) {
        self.0.store(site.0.as_ptr(), Ordering::Relaxed);
    }

    /// The site stored last, `None` before the first. Relaxed, as [`AtomicSite::store`].
    pub(crate) fn load(&self) -> Option<Site> {
        NonNull::new(self.0.load(Ordering::Relaxed)).map(|pointer| PackedSite(pointer).get())
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
            site.store(stored.into());
            assert_eq!(site.load(), Some(stored));
        }
    }
}
