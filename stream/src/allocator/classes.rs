//! The two-level segregated free lists.
//!
//! Source: Masmano, Ripoll, Crespo, Real, "TLSF: a New Dynamic Memory Allocator for Real-Time Systems", ECRTS 2004. The first level
//! is the power of two; the second divides each power into [`SECOND`] equal classes. One bit per list says whether it has a block,
//! so two bit scans find the next class with a block, whatever the number of blocks. Sizes are counted in granules (multiples of
//! the alignment), so every small size has a class of its own.
//!
//! Invariant: the record of a block is in the list of its size exactly while the block is free, and a bit is set exactly while its
//! list is not empty. Lists are last in, first out, as the block that was freed last is the most likely to be in caches.

use super::records::{NONE, Records};

/// Classes per power of two, as a power of two. The width of a class is at most 1/32 of its smallest size, the paper's usual
/// choice. Narrower classes would mean more lists to search; wider ones would put more blocks into a list that are too small for
/// the request.
const SECOND_BITS: u32 = 5;
/// Classes per power of two.
pub(super) const SECOND: usize = 1 << SECOND_BITS;
/// Powers of two that a granule count can have; counts below [`SECOND`] share the first.
const FIRST: usize = (usize::BITS - SECOND_BITS + 1) as usize;

/// A size class: first level and second level in one number, growing with size.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Class(u16);

impl Class {
    /// The class whose list holds free blocks of this many granules.
    pub(super) fn of(granules: usize) -> Class {
        if granules < SECOND {
            return Class(granules as u16);
        }
        let top = granules.ilog2();
        let first = (top - SECOND_BITS + 1) as usize;
        let second = (granules >> (top - SECOND_BITS)) & (SECOND - 1);
        Class((first * SECOND + second) as u16)
    }

    /// The next smaller class; sizes are never zero, so each size's class has one.
    pub(super) fn before(self) -> Class {
        Class(self.0.saturating_sub(1))
    }

    fn first(self) -> usize {
        self.0 as usize / SECOND
    }

    fn second(self) -> usize {
        self.0 as usize % SECOND
    }
}

/// Heads and bitmaps of the lists; the links are in the records.
#[derive(Debug)]
pub(super) struct FreeLists {
    /// Bit f: some list of the power of two f is not empty.
    first: u64,
    /// Bit s of element f: list (f, s) is not empty.
    second: [u32; FIRST],
    heads: Box<[u32; FIRST * SECOND]>,
    /// The number of records in all lists.
    len: usize,
}

impl FreeLists {
    pub(super) fn new() -> FreeLists {
        FreeLists { first: 0, second: [0; FIRST], heads: Box::new([NONE; FIRST * SECOND]), len: 0 }
    }

    /// The number of free blocks.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The first record of a list, or [`NONE`].
    pub(super) fn head(&self, class: Class) -> u32 {
        self.heads[class.0 as usize]
    }

    /// The smallest class after `class` that has a block.
    pub(super) fn next_after(&self, class: Class) -> Option<Class> {
        let first = class.first();
        // Two shifts keep the amount of each below the width, also for the last class of a level.
        let rest = self.second[first] & ((u32::MAX << class.second()) << 1);
        if rest != 0 {
            return Some(Class((first * SECOND) as u16 + rest.trailing_zeros() as u16));
        }
        let rest = self.first & ((u64::MAX << first) << 1);
        if rest == 0 {
            return None;
        }
        let first = rest.trailing_zeros() as usize;
        Some(Class((first * SECOND) as u16 + self.second[first].trailing_zeros() as u16))
    }

    /// Adds a record at the head of the list of its size.
    pub(super) fn push(&mut self, records: &mut Records, index: u32) {
        let class = Class::of(records[index].granules);
        self.len += 1;
        let head = std::mem::replace(&mut self.heads[class.0 as usize], index);
        records[index].previous_free = NONE;
        records[index].next_free = head;
        if head == NONE {
            self.second[class.first()] |= 1 << class.second();
            self.first |= 1 << class.first();
        } else {
            records[head].previous_free = index;
        }
    }

    /// Removes a record from the list of its size. Must be called before the size changes.
    pub(super) fn remove(&mut self, records: &mut Records, index: u32) {
        self.len -= 1;
        let (previous, next) = (records[index].previous_free, records[index].next_free);
        if next != NONE {
            records[next].previous_free = previous;
        }
        if previous != NONE {
            records[previous].next_free = next;
            return;
        }
        let class = Class::of(records[index].granules);
        self.heads[class.0 as usize] = next;
        if next == NONE {
            self.second[class.first()] &= !(1 << class.second());
            if self.second[class.first()] == 0 {
                self.first &= !(1 << class.first());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_sizes_have_a_class_each() {
        for granules in 1..SECOND * 2 {
            assert_eq!(Class::of(granules).0 as usize, granules);
        }
    }

    #[test]
    fn classes_grow_with_size_and_are_at_most_one_thirty_second_wide() {
        let mut start = 1usize;
        for granules in 1..1 << 16 {
            let (a, b) = (Class::of(granules), Class::of(granules + 1));
            assert!(b == a || b.0 == a.0 + 1, "{granules}");
            if a != b {
                assert!((granules - start) * SECOND <= start, "class of {start} reaches to {granules}");
                start = granules + 1;
            }
        }
        assert!((Class::of(usize::MAX).0 as usize) < FIRST * SECOND);
    }

    #[test]
    fn next_after_finds_every_class_in_order_of_size() {
        let sizes = [1usize, 2, 31, 32, 63, 64, 65, 66, 1000, 1 << 20, (1 << 20) + (1 << 16), isize::MAX as usize];
        let (mut records, mut lists) = (Records::new(), FreeLists::new());
        for granules in sizes {
            let index = records.take().unwrap();
            records[index].granules = granules;
            lists.push(&mut records, index);
        }
        let mut found = vec![];
        let mut class = Class(0);
        while let Some(next) = lists.next_after(class) {
            found.push(next);
            class = next;
        }
        let mut classes: Vec<Class> = sizes.iter().map(|&granules| Class::of(granules)).collect();
        classes.dedup();
        assert_eq!(found, classes);
    }

    #[test]
    fn removing_the_last_block_of_a_class_clears_its_bits() {
        let (mut records, mut lists) = (Records::new(), FreeLists::new());
        let taken: Vec<u32> = (0..3).map(|_| records.take().unwrap()).collect();
        for &index in &taken {
            records[index].granules = 100;
            lists.push(&mut records, index);
        }
        assert_eq!(lists.head(Class::of(100)), taken[2]);
        for index in [taken[1], taken[2], taken[0]] {
            assert!(lists.next_after(Class(0)).is_some());
            lists.remove(&mut records, index);
        }
        assert_eq!(lists.next_after(Class(0)), None);
        assert_eq!(lists.first, 0);
    }
}
