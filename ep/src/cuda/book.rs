//! The book of memory that CUDA devices have handed out, by address.
//!
//! Copies use it to find out which memory a kernel may access and which the driver would have to stage. Regions are few and large,
//! because an allocator above requests them, so a sorted list is searched.
//!
//! Kernels may access write-combined memory at another address than the host's. Then a kernel gets that address ([`Book::to_kernels`]).
//! The driver's own copies accept either.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

/// The owner of the memory at an address.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Home {
    /// Memory of the device with this index.
    Device(usize),
    /// Page-locked memory of the host, accessible to every device.
    Host,
}

#[derive(Clone, Debug)]
struct Entry {
    range: Range<usize>,
    home: Home,
    /// The offset, wrapping, from the host's address to that of kernels; 0 if they are the same.
    shift: usize,
}

/// The allocated regions of all devices.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// Sorted by address; they do not overlap.
    entries: RwLock<Vec<Entry>>,
    /// The number of regions with an offset. While it is 0, addresses for kernels need no lookup.
    shifted: AtomicUsize,
}

impl Book {
    /// Adds a region, with the address at which kernels access its first byte.
    pub(super) fn enter(&self, start: usize, bytes: usize, home: Home, to_kernels: usize) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let at = entries.partition_point(|entry| entry.range.start < start);
        let shift = to_kernels.wrapping_sub(start);
        // Relaxed: a thread that uses the memory gets its address after this, by a synchronising operation.
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

    /// The owner of the memory at `address`; `None` for memory that no device has handed out.
    pub(super) fn home(&self, address: usize) -> Option<Home> {
        self.find(address, |entry| entry.home)
    }

    /// The address at which kernels access the memory at `address`.
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
        assert_eq!(book.shifted.load(Ordering::Relaxed), 0, "no region has an offset");
    }
}
