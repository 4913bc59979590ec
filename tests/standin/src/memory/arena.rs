//! A reserved range of the address space, which is handed out in pieces.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::{null_mut, with_exposed_provenance_mut};

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};

/// The bytes of new memory: no small number, no 0 and no NaN that a test would expect.
pub(crate) const POISON: u8 = 0xA5;

/// The unit in which access is changed, in bytes.
const PAGE: usize = 4096;

/// A range of addresses that the host cannot access, except for pieces that were opened.
#[derive(Debug)]
pub(super) struct Arena {
    range: Range<usize>,
    /// The first address that the next piece may have.
    next: usize,
}

impl Arena {
    /// Reserves addresses. A machine that limits them gets a smaller range; `None` if not even 1 MiB is available.
    pub(super) fn reserve(mut wanted: usize) -> Option<Arena> {
        while wanted >= 1 << 20 {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: a new mapping, at an address that the system chooses.
            let mapped = unsafe { mmap_anonymous(null_mut(), wanted, ProtFlags::empty(), flags) };
            if let Ok(start) = mapped {
                let start = start.expose_provenance();
                return Some(Arena { range: start..start + wanted, next: start });
            }
            wanted /= 2;
        }
        None
    }

    /// The first address of the range.
    pub(super) fn start(&self) -> usize {
        self.range.start
    }

    /// Is the address in the range?
    pub(super) fn contains(&self, address: usize) -> bool {
        self.range.contains(&address)
    }

    /// Finds a piece of addresses that begins at a multiple of `step`, plus `shift`, with a gap before it. At the end of the range the
    /// search starts again from its beginning; `taken` returns the end of the memory in use that overlaps a piece, if any.
    pub(super) fn piece(
        &mut self,
        bytes: usize,
        step: usize,
        shift: usize,
        taken: impl Fn(&Range<usize>) -> Option<usize>,
    ) -> Option<Range<usize>> {
        let mut wrapped = false;
        loop {
            let start = (self.next + PAGE).next_multiple_of(step) + shift;
            let end = start.checked_add(bytes)?.checked_add(PAGE)?;
            if end > self.range.end {
                if wrapped {
                    return None;
                }
                wrapped = true;
                self.next = self.range.start;
                continue;
            }
            let piece = start..start + bytes;
            match taken(&piece) {
                Some(end) => self.next = end,
                None => {
                    self.next = piece.end;
                    return Some(piece);
                }
            }
        }
    }

    /// Lets the host read and write whole pages.
    pub(super) fn open(&self, pages: Range<usize>) -> bool {
        let start: *mut c_void = with_exposed_provenance_mut(pages.start);
        // SAFETY: the pages lie in the range, which this arena owns, and no reference to them exists yet.
        unsafe { mprotect(start, pages.len(), MprotectFlags::READ | MprotectFlags::WRITE) }.is_ok()
    }

    /// Returns the memory of whole pages to the system and makes them inaccessible.
    pub(super) fn close(&self, pages: Range<usize>) {
        let start: *mut c_void = with_exposed_provenance_mut(pages.start);
        // SAFETY: the pages lie in the range, which this arena owns, and their contents are no longer needed.
        let emptied = unsafe { madvise(start, pages.len(), Advice::LinuxDontNeed) };
        // SAFETY: the pages lie in the range, which this arena owns. A program that still uses them has a defect, which the fault shows.
        let closed = unsafe { mprotect(start, pages.len(), MprotectFlags::empty()) };
        // After a failure the memory stays in use or accessible, so the check is weaker, but nothing else depends on it.
        let _ = (emptied, closed);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let start: *mut c_void = with_exposed_provenance_mut(self.range.start);
        // SAFETY: `reserve` mapped the range, and the arena is dropped only when no reference into it exists.
        let _ = unsafe { munmap(start, self.range.len()) };
    }
}

/// The pages that contain `range`.
pub(super) fn pages(range: &Range<usize>) -> Range<usize> {
    range.start / PAGE * PAGE..range.end.next_multiple_of(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_do_not_meet_and_lie_where_they_should() {
        let mut arena = Arena::reserve(1 << 20).unwrap();
        let one = arena.piece(100, 512, 256, |_| None).unwrap();
        let two = arena.piece(100, 512, 256, |_| None).unwrap();
        assert_eq!((one.start % 512, two.start % 512), (256, 256));
        assert!(one.end + PAGE <= two.start && arena.contains(two.start) && !arena.contains(arena.range.end));
        assert_eq!(arena.piece(1 << 21, 512, 0, |_| None), None);
    }

    #[test]
    fn a_stretch_that_is_used_up_starts_again_after_what_is_in_use() {
        let mut arena = Arena::reserve(1 << 20).unwrap();
        let first = arena.piece(200 << 10, PAGE, 0, |_| None).unwrap();
        let rest: Vec<_> = (0..4).map(|_| arena.piece(200 << 10, PAGE, 0, |_| None).unwrap()).collect();
        assert!(rest[3].end < arena.range.end);
        let in_use = first.clone();
        let taken = |piece: &Range<usize>| (piece.start < in_use.end && in_use.start < piece.end).then_some(in_use.end);
        let again = arena.piece(200 << 10, PAGE, 0, taken).unwrap();
        assert_eq!(again, rest[0]);
    }
}
