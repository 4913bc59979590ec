//! The map from addresses to the allocations of CUDA devices.
//!
//! A stream looks up the addresses of a copy, to find out which memory a kernel may access and which the driver would have to stage.
//! Allocations are few and large, because an allocator above requests them, so the map is a sorted list.
//!
//! Kernels may access write-combined memory at another address than the host's. Then a kernel gets that address
//! ([`AddressMap::kernel_address`]). The driver's own copies accept either.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

/// The owner of the memory at an address.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// Memory of the device with this index.
    Device(usize),
    /// Page-locked memory of the host, accessible to every device.
    Host,
}

/// One allocation of a device.
#[derive(Clone, Debug)]
struct Allocation {
    range: Range<usize>,
    owner: Owner,
    /// The offset, wrapping, from the host's address to that of kernels; 0 if they are the same.
    kernel_offset: usize,
}

/// The allocations of all devices.
#[derive(Debug, Default)]
pub(crate) struct AddressMap {
    /// Sorted by address; they do not overlap.
    allocations: RwLock<Vec<Allocation>>,
    /// The number of allocations with an offset. While it is 0, addresses for kernels need no lookup.
    with_offset: AtomicUsize,
}

impl AddressMap {
    /// Adds an allocation, with the address at which kernels access its first byte.
    pub(crate) fn insert(&self, start: usize, bytes: usize, owner: Owner, kernel_address: usize) {
        let mut allocations = self.allocations.write().unwrap_or_else(PoisonError::into_inner);
        let at = allocations.partition_point(|allocation| allocation.range.start < start);
        let kernel_offset = kernel_address.wrapping_sub(start);
        // Relaxed: a thread that uses the memory gets its address after this, by a synchronising operation.
        self.with_offset.fetch_add(usize::from(kernel_offset != 0), Ordering::Relaxed);
        allocations.insert(at, Allocation { range: start..start + bytes, owner, kernel_offset });
    }

    /// Removes the allocation that starts at `start`.
    pub(crate) fn remove(&self, start: usize) {
        let mut allocations = self.allocations.write().unwrap_or_else(PoisonError::into_inner);
        if let Ok(at) = allocations.binary_search_by_key(&start, |allocation| allocation.range.start) {
            let removed = allocations.remove(at);
            self.with_offset.fetch_sub(usize::from(removed.kernel_offset != 0), Ordering::Relaxed);
        }
    }

    /// The owner of the memory at `address`; `None` for memory that no device has handed out.
    pub(crate) fn owner(&self, address: usize) -> Option<Owner> {
        self.find(address, |allocation| allocation.owner)
    }

    /// The address at which kernels access the memory at `address`.
    #[inline]
    pub(crate) fn kernel_address(&self, address: usize) -> usize {
        if self.with_offset.load(Ordering::Relaxed) == 0 {
            return address;
        }
        address.wrapping_add(self.find(address, |allocation| allocation.kernel_offset).unwrap_or(0))
    }

    fn find<T>(&self, address: usize, what: impl FnOnce(&Allocation) -> T) -> Option<T> {
        let allocations = self.allocations.read().unwrap_or_else(PoisonError::into_inner);
        let at = allocations.partition_point(|allocation| allocation.range.start <= address);
        let allocation = allocations.get(at.checked_sub(1)?)?;
        allocation.range.contains(&address).then(|| what(allocation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_allocation_around_it() {
        let map = AddressMap::default();
        map.insert(0x2000, 0x100, Owner::Host, 0x2000);
        map.insert(0x1000, 0x100, Owner::Device(1), 0x1000);
        for (address, owner) in [
            (0xfff, None),
            (0x1000, Some(Owner::Device(1))),
            (0x10ff, Some(Owner::Device(1))),
            (0x1100, None),
            (0x2080, Some(Owner::Host)),
            (0x2100, None),
        ] {
            assert_eq!(map.owner(address), owner, "{address:#x}");
        }
        map.remove(0x1000);
        assert_eq!(map.owner(0x1000), None);
        assert_eq!(map.owner(0x2000), Some(Owner::Host));
    }

    #[test]
    fn memory_that_kernels_access_at_another_address_has_an_offset() {
        let map = AddressMap::default();
        map.insert(0x1000, 0x100, Owner::Device(0), 0x1000);
        for (there, within) in [(0x9000, 0x9080), (0x400, 0x480)] {
            map.insert(0x2000, 0x100, Owner::Host, there);
            let asked = [0x1080, 0x2000, 0x2080, 0x2100, 0].map(|address| map.kernel_address(address));
            assert_eq!(asked, [0x1080, there, within, 0x2100, 0]);
            map.remove(0x2000);
            assert_eq!(map.kernel_address(0x2080), 0x2080);
        }
        assert_eq!(map.with_offset.load(Ordering::Relaxed), 0, "no allocation has an offset");
    }
}
