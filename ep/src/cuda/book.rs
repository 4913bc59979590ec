//! Which addresses are memory that CUDA devices have handed out.
//!
//! Looked at by copies, which must know what they may hand to a kernel and what the driver would have to stage. Regions
//! are few and large, as an allocator above asks for them, so a sorted list is searched.

use std::ops::Range;
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
}

/// The regions that are allocated, of every device.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// In order of their addresses; none overlap.
    entries: RwLock<Vec<Entry>>,
}

impl Book {
    pub(super) fn enter(&self, start: usize, bytes: usize, home: Home) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let at = entries.partition_point(|entry| entry.range.start < start);
        entries.insert(at, Entry { range: start..start + bytes, home });
    }

    pub(super) fn strike(&self, start: usize) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        if let Ok(at) = entries.binary_search_by_key(&start, |entry| entry.range.start) {
            entries.remove(at);
        }
    }

    /// Whose memory lies at `address`; `None` for memory that no device has handed out.
    pub(super) fn home(&self, address: usize) -> Option<Home> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let at = entries.partition_point(|entry| entry.range.start <= address);
        let entry = entries.get(at.checked_sub(1)?)?;
        entry.range.contains(&address).then_some(entry.home)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_region_around_it() {
        let book = Book::default();
        book.enter(0x2000, 0x100, Home::Host);
        book.enter(0x1000, 0x100, Home::Device(1));
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
}
