//! The buffers of a list; a thread keeps those of its last list for its next one.

use std::cell::Cell;
use std::mem;

use streamvm_ep::PinnedRefs;

use crate::list::instruction::Instruction;
use crate::list::kind::BLANK;
use crate::tensor::uses::Uses;

#[derive(Default)]
pub(super) struct Buffers {
    /// Storage for instructions. Those from `len` on are blank: dropping them does nothing.
    pub(super) places: Vec<Instruction>,
    pub(super) len: usize,
    /// The end of the uses of the instructions. Uses after it are left from a call whose iterator panicked.
    pub(super) end_of_uses: u32,
    /// Whether a device other than a CPU makes a copy of the list.
    pub(super) copies_by_devices: bool,
    /// The capacity for uses, while no list has these buffers.
    pub(super) room: PinnedRefs<Uses>,
}

impl Buffers {
    pub(super) fn instructions(&self) -> &[Instruction] {
        &self.places[..self.len]
    }

    /// Returns the position of the next instruction's uses, after those of the last instruction. Removes uses after that
    /// position.
    #[inline]
    pub(super) fn cut(&self, uses: &mut PinnedRefs<Uses>) -> u32 {
        let end = self.end_of_uses;
        if uses.as_slice().len() != end as usize {
            uses.truncate(end as usize);
        }
        end
    }

    /// The first blank instruction.
    #[inline]
    pub(super) fn blank(&mut self) -> &mut Instruction {
        if self.len == self.places.len() {
            self.grow();
        }
        &mut self.places[self.len]
    }

    #[cold]
    fn grow(&mut self) {
        self.places.resize_with((2 * self.len).max(4), Instruction::blank);
    }

    /// Drops the instructions from `len` on, first to last, and leaves them blank.
    pub(super) fn truncate(&mut self, len: usize) {
        // The length is set first: if the drop of a capture panics, the remaining instructions are no longer part of the list.
        let before = mem::replace(&mut self.len, len);
        for place in &mut self.places[len..before] {
            if place.kind.holds_something() {
                place.kind = BLANK;
            }
        }
    }
}

/// The longest list whose buffers a thread keeps, in instructions with four uses each: about 1 MB.
pub(super) const KEPT: usize = 4096;

thread_local! {
    /// The emptied buffers of this thread's last list: capacity, and blank instructions, which hold nothing of any engine.
    pub(super) static SPARE: Cell<Option<Box<Buffers>>> = const { Cell::new(None) };
}
