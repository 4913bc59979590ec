//! The index space of a group, divided into blocks, and the parts of operands in each block.

use smallvec::SmallVec;
use streamvm_ep::{Access, DType, Layout, MAX_RANK, Operand, SequenceMemory, SequenceOperand, SequenceWork, Shape};

/// A step, with the parts of its operands in each block.
#[derive(Debug)]
pub(super) struct BlockStep {
    pub(super) work: SequenceWork,
    pub(super) operands: Vec<BlockOperand>,
}

/// An operand, and its part in each block.
#[derive(Debug)]
pub(super) struct BlockOperand {
    pub(super) memory: SequenceMemory,
    pub(super) dtype: DType,
    pub(super) access: Access,
    /// Whether it gives no slices, because its step reads and writes it at once.
    pub(super) shared: bool,
    /// The layouts of a full block, and of the last block of the divided axis, which may be shorter.
    pub(super) layouts: [Layout; 2],
    /// Byte strides of the axes up to the divided one; unused in scratch memory.
    pub(super) steps: SmallVec<[usize; 3]>,
}

/// The index space of a group, as few axes as possible, and how it is divided: a block has one index on each axis before the *divided*
/// one, up to `length` indices on the divided axis, and all indices on the axes after it.
#[derive(Debug)]
pub(super) struct Blocks {
    axes: SmallVec<[usize; 3]>,
    divided: usize,
    length: usize,
    /// How many blocks one round over the divided axis has.
    per_round: usize,
    pub(super) count: usize,
}

/// The parts of the operands in one block, and where they are.
pub(super) struct BlockMemory<'a> {
    pub(super) buffers: &'a [Operand<'a>],
    pub(super) scratch: *mut u8,
    /// The first index of the block on each axis up to the divided one.
    pub(super) index: SmallVec<[usize; 3]>,
    /// It is the last block of its round, which may be shorter.
    pub(super) is_last: bool,
}

impl BlockOperand {
    /// Makes `operand` the part of this one in a block. `only_moves`: it is the part in another block already, of the same layout.
    ///
    /// # Safety
    ///
    /// * The buffers of `block` fit those that the step was checked with, no slice of a written one exists, and no other call for the same block runs at the same
    ///   time.
    /// * The scratch memory of `block` has the bytes that the group needs; nothing else uses it during the call.
    /// * If it `only_moves`, `operand` is as this function left it, whatever has used it since.
    /// * `operand` is not used once the memory of the buffers or the scratch memory is gone.
    #[inline]
    pub(super) unsafe fn place(&self, operand: &mut Operand, block: &BlockMemory<'_>, only_moves: bool) {
        let base = match self.memory {
            SequenceMemory::Scratch(_) if only_moves => return,
            SequenceMemory::Scratch(offset) => block.scratch.wrapping_add(offset),
            SequenceMemory::Buffer { index, offset } => {
                let offset = block.index.iter().zip(&self.steps).fold(offset, |sum, (at, step)| sum + at * step);
                block.buffers[index].ptr().wrapping_add(offset)
            }
        };
        let layout = &self.layouts[usize::from(block.is_last)];
        match only_moves {
            // SAFETY: a block of a view lies within the view, which `Buffers::add` has found to lie within its buffer; the caller
            // guarantees that the operand of the call is a contiguous view of as many bytes, written if a step writes. The maker of that
            // operand guarantees that the bytes are alive, initialised, and used by this call alone. Calls for other blocks touch none of
            // the bytes that this one writes, by the invariant of the [group](super::group). A piece of scratch memory has the bytes of a block of
            // the widest dtype.
            true => unsafe { operand.move_to(base) },
            // SAFETY: as above.
            false => unsafe { operand.set(base, self.dtype, layout, self.access) },
        }
        if self.shared {
            operand.set_shared();
        }
    }
}

impl Blocks {
    /// Divides the index space of `shape`, in which all `layouts` lie, into blocks of at most `block` elements.
    pub(super) fn new<'a>(shape: &Shape, layouts: impl Iterator<Item = &'a Layout> + Clone, block: usize) -> Blocks {
        let mut axes: SmallVec<[usize; 3]> = SmallVec::new();
        for (axis, &size) in shape.dims().iter().enumerate().filter(|(_, size)| **size != 1) {
            let before = (0..axis).rev().find(|&before| shape.dims()[before] != 1);
            let even = |layout: &Layout, before: usize| layout.strides()[before] == layout.strides()[axis] * size;
            match (before, axes.last_mut()) {
                (Some(before), Some(last)) if layouts.clone().all(|layout| even(layout, before)) => *last *= size,
                _ => axes.push(size),
            }
        }
        if axes.is_empty() {
            axes.push(1);
        }
        // The outermost axis whose slice at one index fits into a block.
        let behind = |axis: usize| axes[axis + 1..].iter().product::<usize>();
        let divided = (0..axes.len()).find(|&axis| behind(axis) <= block).unwrap_or(axes.len() - 1);
        let length = (block / behind(divided).max(1)).clamp(1, axes[divided].max(1));
        let per_round = axes[divided].div_ceil(length);
        let elements: usize = axes.iter().product();
        let count = if elements == 0 { 0 } else { axes[..divided].iter().product::<usize>() * per_round };
        Blocks { axes, divided, length, per_round, count }
    }

    /// The elements of a block of full length.
    pub(super) fn elements(&self) -> usize {
        self.length * self.axes[self.divided + 1..].iter().product::<usize>()
    }

    /// The first index of a block on each axis up to the divided one, and whether it is the last of its round.
    pub(super) fn index(&self, block: usize) -> (SmallVec<[usize; 3]>, bool) {
        let in_round = block % self.per_round;
        let mut round = block / self.per_round;
        let mut index = SmallVec::from_elem(0, self.divided + 1);
        index[self.divided] = in_round * self.length;
        for axis in (0..self.divided).rev() {
            index[axis] = round % self.axes[axis];
            round /= self.axes[axis];
        }
        (index, in_round + 1 == self.per_round)
    }

    /// The parts of an operand in the blocks. `layout` is its view, broadcast to the shape of the group.
    pub(super) fn operand(&self, operand: &SequenceOperand, memory: SequenceMemory, layout: &Layout) -> BlockOperand {
        let SequenceOperand { dtype, access, .. } = *operand;
        let strides = self.strides(layout);
        let divided_size = self.axes[self.divided];
        let tail = divided_size - (self.per_round.saturating_sub(1) * self.length).min(divided_size);
        let part = |length: usize| {
            let mut dims = [1; MAX_RANK];
            let rank = self.axes.len() - self.divided;
            dims[..rank].copy_from_slice(&self.axes[self.divided..]);
            dims[0] = length;
            let shape = Shape::new(&dims[..rank]);
            let shape = shape.unwrap_or_else(|_| unreachable!("a block is not larger than the shape of the group"));
            match memory {
                SequenceMemory::Scratch(_) => Layout::contiguous(shape),
                SequenceMemory::Buffer { .. } => Layout::with_strides(shape, &strides[self.divided..], 0)
                    .unwrap_or_else(|_| unreachable!("a block does not reach further than the view")),
            }
        };
        let memory = match memory {
            SequenceMemory::Buffer { index, offset } => {
                SequenceMemory::Buffer { index, offset: offset + layout.offset() * dtype.size() }
            }
            scratch => scratch,
        };
        let steps = strides[..=self.divided].iter().map(|stride| stride * dtype.size()).collect();
        let layouts = [part(self.length.min(divided_size)), part(tail)];
        BlockOperand { memory, dtype, access, shared: false, layouts, steps }
    }

    /// The strides of a view on the axes, of which each is made of one or more axes of the view.
    fn strides(&self, layout: &Layout) -> SmallVec<[usize; 3]> {
        let mut strides = SmallVec::from_elem(0, self.axes.len());
        if self.count == 0 {
            return strides;
        }
        let (mut axis, mut filled) = (self.axes.len(), usize::MAX);
        for (&size, &stride) in layout.shape().dims().iter().zip(layout.strides()).rev().filter(|(size, _)| **size != 1)
        {
            if axis == self.axes.len() || filled >= self.axes[axis] {
                axis -= 1;
                (strides[axis], filled) = (stride, 1);
            }
            filled *= size;
        }
        strides
    }
}
