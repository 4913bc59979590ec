//! Slots and chains: where instructions live, and how they are handed from thread to thread.
//!
//! A [`Slot`] owns one reusable cell on the heap. Slots are linked through their cells, so that a [`Chain`] of any
//! length moves in O(1) and moving it allocates nothing. Whoever holds a slot may touch its cell, and nobody else
//! can: the type is the proof. A free slot keeps the capacity of the vectors inside it.
//!
//! Invariants, which this file, `inbox.rs`, `ring.rs` and `berth.rs` alone can break:
//! * A cell is owned by exactly one of: a `Slot`, a `Chain` that links it, an `Inbox` that links it, a `Ring`, a `Berth`.
//! * What a chain has pushed leaves it at the front only, an inbox fills none but a fresh chain, and what is appended to a chain
//!   has it forget what it pushed: so of a chain with as many cells, the last `AHEAD` are the last that were pushed, as far as
//!   they are known.
//! * `next` of the last cell of a chain is null; the batch fields mean something only while a cell is the first of a
//!   batch in an inbox.

#![allow(unsafe_code, reason = "cells are owned through raw pointers, because a list needs two of each")]

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

/// A linked cell. On pairs of lines of its own, so that two cells in flight share none: processors fetch the other line of a pair
/// too. Measured on 2 cores, ns, medians of 7 runs in turns, on lines / on pairs: one a submission, chain 86 / 81, random 137 / 131.
#[repr(C, align(128))]
pub(crate) struct Cell<T> {
    pub(crate) next: *mut Cell<T>,
    /// The address of the cell [`AHEAD`] places behind this one, or 0. While it lies in an inbox as a batch of its own: of the
    /// batch that was put in so many before it. Only ever fetched.
    pub(crate) ahead: usize,
    pub(crate) batch: Batch<T>,
    value: T,
}

#[cfg(all(test, loom))]
impl<T> Cell<T> {
    pub(crate) fn value(&self) -> &T {
        &self.value
    }
}

/// What the first cell of a batch says about the batch while it lies in an inbox.
///
/// `last` and `len` are apart on purpose. Beside each other, as in a chain, they would be copied by one wide load, which
/// cannot take its value from the two narrow stores that have just been made: it would wait until both, and every store
/// before them, have reached the cache.
#[repr(C)]
pub(crate) struct Batch<T> {
    pub(crate) last: *mut Cell<T>,
    pub(crate) next: *mut Cell<T>,
    pub(crate) len: usize,
}

/// Owns one cell that is linked to nothing.
pub(crate) struct Slot<T> {
    cell: NonNull<Cell<T>>,
    owns: PhantomData<Box<Cell<T>>>,
}

// SAFETY: a slot is the only owner of its cell, like a box.
unsafe impl<T: Send> Send for Slot<T> {}

impl<T> Slot<T> {
    /// A new cell: the only call here that allocates.
    pub(crate) fn new(value: T) -> Slot<T> {
        let batch = Batch { next: ptr::null_mut(), last: ptr::null_mut(), len: 0 };
        let cell = Box::leak(Box::new(Cell { next: ptr::null_mut(), ahead: 0, batch, value }));
        Slot { cell: NonNull::from(cell), owns: PhantomData }
    }

    /// Gives the cell up without dropping it.
    pub(crate) fn into_raw(self) -> *mut Cell<T> {
        let cell = self.cell.as_ptr();
        std::mem::forget(self);
        cell
    }

    /// The owner of a cell that was given up.
    ///
    /// # Safety
    /// `cell` came from [`Slot::into_raw`], and nothing else owns it.
    pub(crate) unsafe fn from_raw(cell: *mut Cell<T>) -> Slot<T> {
        // SAFETY: what `into_raw` gave was not null.
        Slot { cell: unsafe { NonNull::new_unchecked(cell) }, owns: PhantomData }
    }
}

impl<T> Deref for Slot<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the slot owns the cell, which lives until the slot is dropped.
        unsafe { &self.cell.as_ref().value }
    }
}

impl<T> DerefMut for Slot<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the slot owns the cell, and `self` is borrowed for as long as the reference lives.
        unsafe { &mut self.cell.as_mut().value }
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        // SAFETY: the cell came from a box that was leaked, and this slot is its only owner.
        drop(unsafe { Box::from_raw(self.cell.as_ptr()) });
    }
}

/// Slots in a row, first to last.
pub(crate) struct Chain<T> {
    pub(crate) first: *mut Cell<T>,
    pub(crate) last: *mut Cell<T>,
    pub(crate) len: usize,
    /// The last cells that were pushed, each at its number of pushes, which count on for ever; null before, and where it was
    /// forgotten.
    recent: [*mut Cell<T>; AHEAD],
    pushes: usize,
    pub(crate) owns: PhantomData<Box<Cell<T>>>,
}

/// How far ahead cells are fetched. Of 2, 4 and 8, which were measured, none was quicker than 4, and 8 fetches for longer
/// than a short batch lasts.
pub(crate) const AHEAD: usize = 4;

// SAFETY: a chain is the only owner of its cells, like a vector of boxes.
unsafe impl<T: Send> Send for Chain<T> {}

impl<T> Chain<T> {
    /// No slots.
    pub(crate) const fn new() -> Chain<T> {
        let (first, last, recent) = (ptr::null_mut(), ptr::null_mut(), [ptr::null_mut(); AHEAD]);
        Chain { first, last, len: 0, recent, pushes: 0, owns: PhantomData }
    }

    /// How many slots there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// Adds a slot behind the last.
    #[inline]
    pub(crate) fn push(&mut self, slot: Slot<T>) {
        let cell = slot.into_raw();
        if self.last.is_null() {
            self.first = cell;
        } else {
            // SAFETY: the chain owns its last cell.
            unsafe { (*self.last).next = cell };
        }
        let recent = &mut self.recent[self.pushes % AHEAD];
        if self.len >= AHEAD && !recent.is_null() {
            // SAFETY: pushed `AHEAD` pushes ago, so one of the last `AHEAD` cells of a chain that has as many: the chain
            // owns it.
            unsafe { (**recent).ahead = cell.addr() };
        }
        *recent = cell;
        self.pushes = self.pushes.wrapping_add(1);
        self.last = cell;
        self.len += 1;
    }

    /// Adds all slots of another chain behind the last, in the time of one.
    #[inline]
    pub(crate) fn append(&mut self, other: &mut Chain<T>) {
        let (first, last, len) = other.take_parts();
        if first.is_null() {
            return;
        }
        if self.last.is_null() {
            self.first = first;
        } else {
            // SAFETY: the chain owns its last cell.
            unsafe { (*self.last).next = first };
        }
        self.last = last;
        self.len += len;
        self.recent = [ptr::null_mut(); AHEAD];
    }

    /// Takes the first slot, and fetches what every instruction touches of those behind it.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Slot<T>> {
        self.pop_and_fetch(LINES)
    }

    /// Takes the first slot, and fetches so many lines of those behind it, [`LINES`] at least.
    #[inline(always)]
    pub(crate) fn pop_and_fetch(&mut self, lines: usize) -> Option<Slot<T>> {
        let mut cell = NonNull::new(self.first)?;
        // SAFETY: the chain owns the cell, so it is alive and nobody else touches it.
        let links = unsafe { cell.as_mut() };
        self.first = std::mem::replace(&mut links.next, ptr::null_mut());
        let ahead = std::mem::replace(&mut links.ahead, 0);
        if self.first.is_null() {
            self.last = ptr::null_mut();
        }
        self.len -= 1;
        fetch_cell(self.first.addr(), lines);
        if ahead != 0 {
            fetch_cell(ahead, lines);
        }
        Some(Slot { cell, owns: PhantomData })
    }

    /// Looks at the first slot.
    pub(crate) fn front(&self) -> Option<&T> {
        // SAFETY: the pointer is null or a cell that the chain owns, and `self` is borrowed while the reference lives.
        unsafe { self.first.as_ref() }.map(|cell| &cell.value)
    }

    /// Whether the first slot knows the one that is taken some places later.
    pub(crate) fn knows_ahead(&self) -> bool {
        // SAFETY: as for the first.
        unsafe { self.first.as_ref() }.is_some_and(|cell| cell.ahead != 0)
    }

    /// Looks at each slot, first to last.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        // SAFETY: each pointer is null or a cell that the chain owns, and `self` is borrowed while the references live.
        let first = unsafe { self.first.as_ref() };
        // SAFETY: as above.
        std::iter::successors(first, |cell| unsafe { cell.next.as_ref() }).map(|cell| &cell.value)
    }

    /// Looks at the last slot.
    pub(crate) fn back(&self) -> Option<&T> {
        // SAFETY: as for the first.
        unsafe { self.last.as_ref() }.map(|cell| &cell.value)
    }

    /// Looks at the first slot.
    pub(crate) fn front_mut(&mut self) -> Option<&mut T> {
        // SAFETY: the pointer is null or a cell that the chain owns, and `self` is borrowed while the reference lives.
        unsafe { self.first.as_mut() }.map(|cell| &mut cell.value)
    }

    /// Gives up the cells without dropping them: (first, last, length). The chain is empty afterwards.
    #[inline]
    pub(crate) fn take_parts(&mut self) -> (*mut Cell<T>, *mut Cell<T>, usize) {
        let parts = (self.first, self.last, self.len);
        self.first = ptr::null_mut();
        self.last = ptr::null_mut();
        self.len = 0;
        parts
    }
}

/// Asks for the lines at an address, to write to them. Cells travel between cores, so the first write to each
/// line waits for the other core; asked for ahead, the waits overlap with the work on the cells before.
#[inline]
pub(crate) fn fetch(address: usize, lines: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in 0..lines {
        let address = address.wrapping_add(line * 64);
        // SAFETY: a prefetch of any address is allowed, and changes nothing that the program sees. Processors without
        // this instruction take it for one that does nothing.
        unsafe { std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags)) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (address, lines);
}

/// Asks for so many lines of a cell: [`LINES`], [`LINES_WITH_READS`] or [`LINES_WITH_MORE`].
#[inline(always)]
fn fetch_cell(address: usize, lines: usize) {
    fetch(address, LINES);
    if lines > LINES {
        fetch(address.wrapping_add(LINES * 64), LINES_WITH_READS - LINES);
        if lines > LINES_WITH_READS {
            fetch(address.wrapping_add(LINES_WITH_READS * 64), LINES_WITH_MORE - LINES_WITH_READS);
        }
    }
}

/// Lines of a cell that every instruction touches: the links, and the fields that every job has (`job.rs` holds to it).
pub(crate) const LINES: usize = 2;

/// Lines that an instruction touches which reads several things.
pub(crate) const LINES_WITH_READS: usize = 4;

/// Lines that an instruction touches which has more: those before, other reads, a kernel, and what it is shown of memory.
pub(crate) const LINES_WITH_MORE: usize = 7;

/// Where a cell's value starts, behind its links.
pub(crate) const fn value_offset<T>() -> usize {
    std::mem::offset_of!(Cell<T>, value)
}

impl<T> Default for Chain<T> {
    fn default() -> Self {
        Chain::new()
    }
}

impl<T> Drop for Chain<T> {
    fn drop(&mut self) {
        while let Some(slot) = self.pop() {
            drop(slot);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn values(chain: &mut Chain<u32>) -> Vec<u32> {
        std::iter::from_fn(|| chain.pop().map(|slot| *slot)).collect()
    }

    #[test]
    fn a_chain_is_first_in_first_out() {
        let mut chain = Chain::new();
        (0..5).for_each(|i| chain.push(Slot::new(i)));
        assert_eq!(chain.len(), 5);
        assert_eq!(chain.front(), Some(&0));
        assert_eq!(values(&mut chain), [0, 1, 2, 3, 4]);
        assert!(chain.is_empty());
        chain.push(Slot::new(9));
        assert_eq!(values(&mut chain), [9]);
    }

    /// Each cell's address, and the one that it knows ahead of it, first to last.
    fn links(chain: &Chain<u32>) -> Vec<(usize, usize)> {
        let mut links = Vec::new();
        let mut cell = chain.first;
        // SAFETY: null or a cell that the chain owns; nothing changes it meanwhile.
        while let Some(known) = unsafe { cell.as_ref() } {
            links.push((cell.addr(), known.ahead));
            cell = known.next;
        }
        links
    }

    /// Pushes, pops, hands over and takes back, drawn from a seed. A cell that a chain has pushed knows the cell that was
    /// pushed four later, if it was still there then, and no other; under Miri a write to a cell that has gone shows, too.
    #[test]
    fn a_cell_knows_the_one_that_is_taken_four_later() {
        let inbox = crate::inbox::Inbox::new();
        let (mut chain, mut kept) = (Chain::new(), Chain::new());
        let (mut known, mut appended) = (0, 0);
        let mut drawn = 1_u64;
        for value in 0..if cfg!(miri) { 300 } else { 20_000 } {
            drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            match drawn >> 59 {
                0 => inbox.push(&mut chain),
                1 => chain = inbox.take(),
                2 => kept = std::mem::take(&mut chain),
                3 => drop(std::mem::take(&mut kept)),
                4 => {
                    let len = chain.len() + kept.len();
                    appended += kept.len();
                    chain.append(&mut kept);
                    assert_eq!((chain.len(), kept.len(), kept.is_empty()), (len, 0, true));
                }
                5..=14 => drop(chain.pop()),
                _ => chain.push(Slot::new(value)),
            }
            let links = links(&chain);
            assert_eq!(
                (links.len(), links.last().map(|(last, _)| *last)),
                (chain.len(), Some(chain.last.addr()).filter(|last| *last != 0))
            );
            for (place, (_, ahead)) in links.iter().enumerate().filter(|(_, (_, ahead))| *ahead != 0) {
                assert_eq!(links.get(place + AHEAD).map(|(address, _)| *address), Some(*ahead), "step {value}");
                known += 1;
            }
        }
        assert!(known > 0 && appended > 0, "{known} were known ahead, {appended} were appended");
    }

    /// Put into an inbox one by one, cells know as much as if they had been put in together; around a batch they do not know.
    #[test]
    fn cells_that_came_singly_know_those_ahead() {
        let inbox = crate::inbox::Inbox::new();
        let single = |value| inbox.push_one(Slot::new(value));
        (0..10).for_each(single);
        let mut all = inbox.take();
        let known = |chain: &Chain<u32>| -> Vec<Option<usize>> {
            let links = links(chain);
            let place = |ahead: usize| links.iter().position(|(address, _)| *address == ahead);
            links.iter().map(|(_, ahead)| place(*ahead)).collect()
        };
        let of_ten: Vec<Option<usize>> = (0..10).map(|place| (place < 6).then_some(place + 4)).collect();
        assert_eq!(known(&all), of_ten);
        assert_eq!(values(&mut all), (0..10).collect::<Vec<_>>());
        let mut batch = Chain::new();
        (6..8).for_each(|value| batch.push(Slot::new(value)));
        (0..6).for_each(single);
        inbox.push(&mut batch);
        (8..14).for_each(single);
        let mut all = inbox.take();
        let ahead = |place| matches!(place, 0 | 1 | 8 | 9).then_some(place + 4);
        assert_eq!(known(&all), (0..14).map(ahead).collect::<Vec<_>>());
        assert_eq!(values(&mut all), (0..14).collect::<Vec<_>>());
    }

    #[test]
    fn dropping_a_chain_drops_each_value_once() {
        let counted = Arc::new(());
        let mut chain = Chain::new();
        (0..10).for_each(|_| chain.push(Slot::new(counted.clone())));
        drop(chain.pop());
        assert_eq!(Arc::strong_count(&counted), 10);
        drop(chain);
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
