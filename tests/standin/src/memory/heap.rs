//! All allocated memory, by address.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::allocation::{Allocation, Home, Span};
use super::arena::{Arena, pages};

/// Addresses of each device: far more than any test allocates, and a small part of the address space of a process.
const DEVICE_ADDRESSES: usize = 1 << 38;

/// Addresses of pinned memory.
const PINNED_ADDRESSES: usize = 1 << 36;

/// A device address is a multiple of 256 but not of 512, so that code which relies on a larger alignment than the driver promises fails.
const STEP: usize = 512;

/// See [`STEP`].
const SHIFT: usize = 256;

/// Why addresses are not in a live allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// They were freed; the name of the allocation.
    Freed(String),
    /// They exceed an allocation; its name.
    OutOfBounds(String),
    /// They belong to the driver, but were never allocated.
    NeverGiven,
    /// They do not belong to the driver: host memory.
    Host,
}

/// The memory of all devices, and pinned memory. It is used only under the driver's memory lock.
#[derive(Debug)]
pub(crate) struct Heap {
    devices: Vec<Arena>,
    pinned: Arena,
    /// The addresses by which kernels access write-combined memory, at the same offsets as the memory has in `pinned`.
    mapped: Arena,
    live: BTreeMap<usize, Arc<Allocation>>,
    /// First address → end and name of a freed allocation; removed when its addresses are allocated again.
    freed: BTreeMap<usize, (usize, String)>,
    given: u64,
    /// Whether device memory keeps which of its bytes have values.
    keeps_valued: bool,
}

impl Heap {
    /// An empty heap; `None` if the system cannot reserve the addresses. `keeps_valued`: whether device memory keeps which of its bytes have values.
    pub(crate) fn new(devices: usize, keeps_valued: bool) -> Option<Heap> {
        let devices = (0..devices).map(|_| Arena::reserve(DEVICE_ADDRESSES)).collect::<Option<_>>()?;
        let (pinned, mapped) = (Arena::reserve(PINNED_ADDRESSES)?, Arena::reserve(PINNED_ADDRESSES)?);
        Some(Heap { devices, pinned, mapped, live: BTreeMap::new(), freed: BTreeMap::new(), given: 0, keeps_valued })
    }

    /// Allocates memory and fills it with poison. `None` if the machine has no more.
    pub(crate) fn allocate(&mut self, home: Home, context: u64, bytes: usize) -> Option<Arc<Allocation>> {
        let live = &self.live;
        let taken = |piece: &Range<usize>| {
            let below = live.range(..piece.end).next_back();
            below.map(|(_, allocation)| allocation.range.end).filter(|&end| end > piece.start)
        };
        let number = self.given + 1;
        let new = match home {
            Home::Device(device) => {
                let range = self.devices.get_mut(device)?.piece(bytes, STEP, SHIFT, taken)?;
                Allocation::device(device, context, range, number, self.keeps_valued)?
            }
            Home::Pinned(_) | Home::Combined(_) => {
                let range = self.pinned.piece(bytes, 1 << 12, 0, taken)?;
                self.pinned.open(pages(&range)).then_some(())?;
                Allocation::pinned(home, context, range, number)?
            }
            Home::Host => return None,
        };
        self.given = number;
        let met: Vec<usize> = self.freed.range(..new.range.end).rev().take(2).map(|(&start, _)| start).collect();
        for start in met {
            if self.freed[&start].0 > new.range.start {
                self.freed.remove(&start);
            }
        }
        let new = Arc::new(new);
        self.live.insert(new.range.start, Arc::clone(&new));
        Some(new)
    }

    /// Removes the allocation that starts at `address`.
    pub(crate) fn free(&mut self, address: usize) -> Option<Arc<Allocation>> {
        let gone = self.live.remove(&address)?;
        self.freed.insert(address, (gone.range.end, gone.to_string()));
        Some(gone)
    }

    /// Makes the addresses of freed pinned memory inaccessible. Call it once no command uses the memory.
    pub(crate) fn close(&self, gone: &Allocation) {
        if gone.home.is_pinned() {
            self.pinned.close(pages(&gone.range));
        }
    }

    /// The allocation that starts at `address`.
    pub(crate) fn starting_at(&self, address: usize) -> Option<&Arc<Allocation>> {
        self.live.get(&address)
    }

    /// These bytes, if they lie in one live allocation.
    pub(crate) fn find(&self, range: Range<usize>) -> Result<Span, Missing> {
        if let Some((_, allocation)) = self.live.range(..=range.start).next_back()
            && range.start < allocation.range.end
        {
            if range.end > allocation.range.end {
                return Err(Missing::OutOfBounds(allocation.to_string()));
            }
            return Ok(Span { allocation: Arc::clone(allocation), range });
        }
        if let Some((_, (end, name))) = self.freed.range(..=range.start).next_back()
            && range.start < *end
        {
            return Err(Missing::Freed(name.clone()));
        }
        let arenas = self.devices.iter().chain([&self.pinned]);
        let ours = arenas.into_iter().any(|arena| arena.contains(range.start));
        Err(if ours { Missing::NeverGiven } else { Missing::Host })
    }

    /// The address by which kernels access the host's `address`, for memory of this home.
    pub(crate) fn to_kernels(&self, home: Home, address: usize) -> usize {
        match home {
            Home::Combined(_) => self.mapped.start().wrapping_add(address.wrapping_sub(self.pinned.start())),
            Home::Device(_) | Home::Pinned(_) | Home::Host => address,
        }
    }

    /// The allocated address for an address of a kernel; `None` if kernels access that memory by another address.
    pub(crate) fn of_kernels(&self, address: usize) -> Option<usize> {
        let mapped = self.mapped.contains(address);
        let given =
            if mapped { self.pinned.start().wrapping_add(address.wrapping_sub(self.mapped.start())) } else { address };
        match self.find(given..given) {
            Ok(span) if matches!(span.allocation.home, Home::Combined(_)) != mapped => None,
            // A missing address is left to the caller, which looks it up and reports it.
            Ok(_) | Err(_) => Some(given),
        }
    }

    /// The live allocations.
    pub(crate) fn live(&self) -> impl Iterator<Item = &Arc<Allocation>> {
        self.live.values()
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Freed(what) => write!(f, "{what} has been given back; keep it until its last use has passed"),
            Missing::OutOfBounds(what) => write!(f, "past the end of {what}; stay within it"),
            Missing::NeverGiven => f.write_str("the driver has not given these addresses out"),
            Missing::Host => {
                f.write_str("this is memory of the host that is not pinned; stage it through pinned memory")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::POISON;

    #[test]
    fn addresses_of_a_device_are_translated_and_lead_nowhere_themselves() {
        let mut heap = Heap::new(1, false).unwrap();
        let given = heap.allocate(Home::Device(0), 1, 100).unwrap();
        assert_eq!(given.range.start % 512, 256);
        let span = heap.find(given.range.start + 10..given.range.start + 20).unwrap();
        assert_ne!(span.ptr().addr(), span.range.start);
        // SAFETY: the byte belongs to the allocation, which is alive.
        assert_eq!(unsafe { span.ptr().read() }, POISON);
    }

    #[test]
    fn addresses_are_told_apart() {
        let mut heap = Heap::new(1, false).unwrap();
        let given = heap.allocate(Home::Device(0), 1, 100).unwrap();
        let start = given.range.start;
        assert!(matches!(heap.find(start + 90..start + 101), Err(Missing::OutOfBounds(_))));
        assert_eq!(heap.find(start - 8..start).unwrap_err(), Missing::NeverGiven);
        let local = 0u64;
        assert_eq!(heap.find((&raw const local).addr()..(&raw const local).addr() + 8).unwrap_err(), Missing::Host);
        heap.free(start).unwrap();
        assert!(matches!(heap.find(start..start + 1), Err(Missing::Freed(name)) if name.contains("#1")));
        assert!(heap.free(start).is_none());
    }

    #[test]
    fn what_was_given_back_is_not_given_out_again_at_once() {
        let mut heap = Heap::new(1, false).unwrap();
        for home in [Home::Device(0), Home::Pinned(0), Home::Combined(0)] {
            let starts: Vec<usize> = (0..4)
                .map(|_| {
                    let given = heap.allocate(home, 1, 5000).unwrap();
                    let gone = heap.free(given.range.start).unwrap();
                    heap.close(&gone);
                    gone.range.start
                })
                .collect();
            assert!(starts.windows(2).all(|pair| pair[0] < pair[1]), "{starts:x?}");
        }
    }
}
