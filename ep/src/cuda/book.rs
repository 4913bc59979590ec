//! Which addresses are memory that CUDA devices have handed out.
//!
//! Looked at by copies, which must know what they may hand to a kernel and what the driver would have to stage. Regions
//! are few and large, as an allocator above asks for them, so a sorted list is searched.
//!
//! A driver may have kernels reach write-combined memory by another address than the host, and then no kernel is given the
//! host's ([`Book::to_kernels`]). The driver's own copies take either.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

/// Whose memory an address is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Home {
    /// Memory of the device of this index.
    Device(usize),
    /// Page-locked memory of the host, which every device reaches under its address.
    Host,
}

#[derive(Clone, Debug)]
struct Entry {
    range: Range<usize>,
    home: Home,
    /// What kernels add to an address in it, wrapping: 0 where they reach it by the same.
    shift: usize,
}

/// The regions that are allocated, of every device.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// In order of their addresses; none overlap.
    entries: RwLock<Vec<Entry>>,
    /// How many of them have a shift: while there are none, no kernel's addresses are looked at.
    shifted: AtomicUsize,
}

impl Book {
    /// A region, and the address by which kernels reach its first byte.
    pub(super) fn enter(&self, start: usize, bytes: usize, home: Home, to_kernels: usize) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let at = entries.partition_point(|entry| entry.range.start < start);
        let shift = to_kernels.wrapping_sub(start);
        // Who uses the memory has been told of it behind this.
        self.shifted.fetch_add(usize::from(shift != 0), Ordering::Relaxed);
        entries.insert(at, Entry { range: start..start + bytes, home, shift });
    }

    pub(super) fn strike(&self, start: usize) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        if let Ok(at) = entries.binary_search_by_key(&start, |entry| entry.range.start) {
            let gone = entries.remove(at);
            self.shifted.fetch_sub(usize::from(gone.shift != 0), Ordering::Relaxed);
        }
    }

    /// Whose memory lies at `address`; `None` for memory that no device has handed out.
    pub(super) fn home(&self, address: usize) -> Option<Home> {
        self.find(address, |entry| entry.home)
    }

    /// The address by which kernels reach what lies at `address`.
    #[inline]
    pub(super) fn to_kernels(&self, address: usize) -> usize {
        if self.shifted.load(Ordering::Relaxed) == 0 {
            return address;
        }
        address.wrapping_add(self.find(address, |entry| entry.shift).unwrap_or(0))
    }

    fn find<T>(&self, address: usize, what: impl FnOnce(&Entry) -> T) -> Option<T> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let at = entries.partition_point(|entry| entry.range.start <= address);
        let entry = entries.get(at.checked_sub(1)?)?;
        entry.range.contains(&address).then(|| what(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_region_around_it() {
        let book = Book::default();
        book.enter(0x2000, 0x100, Home::Host, 0x2000);
        book.enter(0x1000, 0x100, Home::Device(1), 0x1000);
        for (address, home) in [
            (0xfff, None),
            (0x1000, Some(Home::Device(1))),
            (0x10ff, Some(Home::Device(1))),
            (0x1100, None),
            (0x2080, Some(Home::Host)),
            (0x2100, None),
        ] {
            assert_eq!(book.home(address), home, "{address:#x}");
        }
        book.strike(0x1000);
        assert_eq!(book.home(0x1000), None);
        assert_eq!(book.home(0x2000), Some(Home::Host));
    }

    #[test]
    fn kernels_are_told_where_they_reach_what_the_host_has_elsewhere() {
        let book = Book::default();
        book.enter(0x1000, 0x100, Home::Device(0), 0x1000);
        for (there, within) in [(0x9000, 0x9080), (0x400, 0x480)] {
            book.enter(0x2000, 0x100, Home::Host, there);
            let asked = [0x1080, 0x2000, 0x2080, 0x2100, 0].map(|address| book.to_kernels(address));
            assert_eq!(asked, [0x1080, there, within, 0x2100, 0]);
            book.strike(0x2000);
            assert_eq!(book.to_kernels(0x2080), 0x2080);
        }
        assert_eq!(book.shifted.load(Ordering::Relaxed), 0, "nothing to look for");
    }
}
