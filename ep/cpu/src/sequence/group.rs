//! Groups: elementwise steps of one shape that run together, block by block.
//!
//! All steps compute the first block of elements, then all compute the next. So what one step writes is still in the processor's cache
//! when the next one reads it, and a value that no step outside the group reads never goes to memory: each thread keeps one block of it, in
//! *scratch memory*. Light steps that hand on their results keep these in registers ([`chains`](super::chains)). Blocks are divided among threads as large kernels are.
//!
//! The result is the same as that of the steps one after the other, because each element of an output depends on the elements at the same
//! index only. [`Group::new`] checks what that needs:
//!
//! * Every step is an elementwise kernel, a copy or a fill, and all outputs have one shape, to which the inputs broadcast.
//! * Of two operands that share bytes, one of them written, both are exactly the same view.
//! * No two indices of an output reach the same byte.
//! * A block in scratch memory is written before it is read.
//!
//! Invariant: because of the second and third, two blocks never touch the same byte, unless both read it. So threads that compute
//! different blocks do not race.

use std::cell::Cell;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use streamvm_ep::backend::sequence::check_steps;
use streamvm_ep::{
    Access, DType, Error, Layout, Operand, SequenceError, SequenceMemory, SequenceOperand, SequenceStep, SequenceWork,
    Shape,
};
use streamvm_kernels::{is_own, parallel};

use crate::sequence::chains::{self, GroupItem};
use crate::sequence::group_blocks::{BlockMemory, BlockOperand, BlockStep, Blocks};
use crate::sequence::run_work::run_work;

/// The most scratch memory of a thread, in bytes. A thread keeps it.
const MOST_SCRATCH: usize = 4 << 20;

/// A checked group.
#[derive(Debug)]
pub(super) struct Group {
    /// The number of the first step.
    first: usize,
    steps: Vec<BlockStep>,
    /// The parts that the group runs one after the other in each block.
    items: Vec<GroupItem>,
    blocks: Blocks,
    /// Whether all kernels are ours, which leave their operands as they are. A kernel of the caller may exchange its operands, so each block sets them anew.
    leaves_operands: bool,
    /// What a block costs, in the units of [`parallel`].
    work: usize,
    /// The size of the scratch memory of a thread, in bytes.
    scratch_bytes: usize,
}

/// A page of 4 KiB. Pieces of scratch memory begin at pages: a load whose address differs from that of a store just before it by little more
/// than a multiple of 4 KiB waits for that store.
#[derive(Copy, Clone)]
#[repr(align(4096))]
#[expect(dead_code, reason = "the bytes are used through the address of the pages")]
struct Page([u8; 4096]);

/// Memory that a thread keeps from run to run, so that a run allocates nothing.
#[derive(Default)]
struct Kept {
    /// Scratch memory, of the largest size so far.
    scratch: Vec<Page>,
    /// Room for the operands of all steps of a group; empty between runs.
    operands: Vec<Operand<'static>>,
}

thread_local! {
    static KEPT: Cell<Kept> = const { Cell::new(Kept { scratch: Vec::new(), operands: Vec::new() }) };
}

impl Group {
    /// Checks `steps`, of which the first has the number `first`. Their operands lie within their buffers.
    ///
    /// # Errors
    /// [`SequenceError::Group`].
    pub(super) fn new(first: usize, steps: Vec<SequenceStep>, block: usize) -> Result<Group, SequenceError> {
        let shape = check_steps(first, steps.iter())?;
        check_overlaps(first, &steps)?;
        check_scratch(first, &steps, shape)?;
        let strides: Vec<Vec<Layout>> = steps.iter().map(|step| wide_layouts(step, &shape)).collect();
        let blocks = Blocks::new(&shape, strides.iter().flatten(), block.max(1));
        let piece = blocks.elements().saturating_mul(widest(&steps)).saturating_add(size_of::<Page>() - 1);
        let piece = piece / size_of::<Page>() * size_of::<Page>();
        let pieces = steps.iter().flat_map(|step| &step.operands).map(pieces_up_to).max().unwrap_or(0);
        let scratch_bytes = piece.saturating_mul(pieces);
        if scratch_bytes > MOST_SCRATCH {
            let what = format!(
                "{pieces} pieces of scratch memory for blocks of {} elements are more than {MOST_SCRATCH} bytes; use smaller blocks",
                blocks.elements()
            );
            return Err(SequenceError::Group { step: first, what });
        }
        let mut work: usize = 0;
        let mut prepared = Vec::with_capacity(steps.len());
        for (step, layouts) in steps.into_iter().zip(&strides) {
            let shared = step.shared_operands(first + prepared.len())?;
            work = work.saturating_add(blocks.elements().saturating_mul(work_of_element(&step.work)));
            let operand = |((operand, layout), &shared): ((&SequenceOperand, &Layout), &bool)| {
                let memory = match operand.memory {
                    SequenceMemory::Scratch(number) => SequenceMemory::Scratch(number * piece),
                    buffer => buffer,
                };
                BlockOperand { shared, ..blocks.operand(operand, memory, layout) }
            };
            let operands = step.operands.iter().zip(layouts).zip(&shared).map(operand).collect();
            prepared.push(BlockStep { work: step.work, operands });
        }
        let items = chains::items(&prepared);
        let leaves_operands = prepared.iter().all(|step| match &step.work {
            SequenceWork::Kernel(kernel, _) => is_own(kernel),
            _ => true,
        });
        Ok(Group { first, steps: prepared, items, blocks, leaves_operands, work, scratch_bytes })
    }

    /// The number of steps.
    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    /// The parts that the group runs one after the other in each block.
    #[cfg(test)]
    pub(super) fn items(&self) -> &[GroupItem] {
        &self.items
    }

    /// The numbers of its steps.
    pub(super) fn steps(&self) -> Range<usize> {
        self.first..self.first + self.len()
    }

    /// The bytes that the group takes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        let of_step = |step: &BlockStep| size_of::<BlockStep>() + step.operands.len() * size_of::<BlockOperand>();
        let of_item = |item: &GroupItem| match item {
            GroupItem::Step(_) => size_of::<GroupItem>(),
            GroupItem::Chain(chain) => size_of::<GroupItem>() + chain.heap_bytes(),
        };
        self.steps.iter().map(of_step).sum::<usize>() + self.items.iter().map(of_item).sum::<usize>()
    }

    /// Runs all steps on all blocks, with as many threads as kernels of the calling thread may use. After an error, the blocks after the one
    /// that failed may be left out.
    ///
    /// # Errors
    /// [`SequenceError::Step`] of the first block that failed.
    ///
    /// # Safety
    ///
    /// * `buffers` fit the buffers that the steps were checked with: contiguous, of the same sizes, written where a step writes.
    /// * No slice of a written one exists.
    pub(super) unsafe fn run(&self, buffers: &[Operand]) -> Result<(), SequenceError> {
        let failed: Mutex<Option<(usize, SequenceError)>> = Mutex::new(None);
        parallel::ranges(self.blocks.count, self.work, |range| {
            let mut kept = KEPT.take();
            let pages = self.scratch_bytes / size_of::<Page>();
            if kept.scratch.len() < pages {
                kept.scratch.resize(pages, Page([0; 4096]));
            }
            // SAFETY: the caller guarantees the first two; the scratch memory has the bytes that the group needs, is aligned to a page,
            // is initialised, and belongs to this thread alone, which uses it for this call only. Other threads compute other blocks.
            let result =
                unsafe { self.run_blocks(range, buffers, kept.scratch.as_mut_ptr().cast(), &mut kept.operands) };
            if let Err((block, step, error)) = result {
                let error = SequenceError::Step { step, error };
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                if failed.as_ref().is_none_or(|(other, _)| block < *other) {
                    *failed = Some((block, error));
                }
            }
            kept.operands.clear();
            KEPT.set(kept);
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    /// Runs all steps on these blocks, one block after the other, up to the first error, which comes with the numbers of its block and its step.
    /// `operands` is room for the operands of all steps: from block to block mostly their addresses alone change.
    ///
    /// # Safety
    ///
    /// * As for [`run`](Group::run).
    /// * `scratch` are `scratch_bytes` initialised bytes, aligned to a page, which nothing else uses during the call.
    /// * No other call for the same blocks runs at the same time.
    unsafe fn run_blocks(
        &self,
        range: Range<usize>,
        buffers: &[Operand],
        scratch: *mut u8,
        operands: &mut Vec<Operand<'static>>,
    ) -> Result<(), (usize, usize, Error)> {
        operands.clear();
        operands.resize_with(self.steps.iter().map(|step| step.operands.len()).sum(), Operand::blank);
        // Whether the operands have the layouts of a last block; not known before the first block.
        let mut set_for: Option<bool> = None;
        for block in range {
            let (index, is_last) = self.blocks.index(block);
            let memory = BlockMemory { buffers, scratch, index, is_last };
            let only_moves = self.leaves_operands && set_for == Some(is_last);
            set_for = Some(is_last);
            let described = self.steps.iter().flat_map(|step| &step.operands);
            for (operand, described) in operands.iter_mut().zip(described) {
                // SAFETY: the caller guarantees the first two, and says when only the addresses change. The operands are used by the steps of this block alone, which
                // cannot keep them, because kernels take operands of any lifetime; `run` clears them.
                unsafe { described.place(operand, &memory, only_moves) };
            }
            let mut rest = &mut operands[..];
            for item in &self.items {
                let steps = match item {
                    GroupItem::Step(place) => *place..place + 1,
                    GroupItem::Chain(chain) => chain.steps.clone(),
                };
                let count = self.steps[steps.clone()].iter().map(|step| step.operands.len()).sum();
                let (of_item, behind) = rest.split_at_mut(count);
                rest = behind;
                if let GroupItem::Chain(chain) = item {
                    // SAFETY: the caller guarantees it; this function makes no slice of them.
                    if unsafe { chain.run(of_item) } {
                        continue;
                    }
                }
                self.run_steps(steps, of_item).map_err(|(place, error)| (block, self.first + place, error))?;
            }
        }
        Ok(())
    }

    /// Runs the steps at these places over `operands`, one after the other, up to the first error, which comes with the place of its step.
    #[inline]
    fn run_steps(&self, places: Range<usize>, mut operands: &mut [Operand]) -> Result<(), (usize, Error)> {
        for place in places {
            let step = &self.steps[place];
            let (of_step, behind) = operands.split_at_mut(step.operands.len());
            operands = behind;
            run_work(&step.work, of_step, None).map_err(|error| (place, error))?;
        }
        Ok(())
    }
}

/// Checks that operands that share bytes, one of them written, are the same view.
fn check_overlaps(first: usize, steps: &[SequenceStep]) -> Result<(), SequenceError> {
    let all = || steps.iter().enumerate().flat_map(|(place, step)| step.operands.iter().map(move |it| (place, it)));
    for (place, output) in all().filter(|(_, operand)| operand.access.writes()) {
        for (other_place, other) in all() {
            if !output.is_same_view(other) && output.overlaps(other) {
                let what = format!("step {} uses the bytes that it writes through another view", first + other_place);
                return Err(SequenceError::Group { step: first + place, what });
            }
        }
    }
    Ok(())
}

/// Checks that operands in scratch memory are whole, and that each piece is written before it is read, with the same dtype.
fn check_scratch(first: usize, steps: &[SequenceStep], shape: Shape) -> Result<(), SequenceError> {
    let mut written: Vec<Option<DType>> = Vec::new();
    for (place, step) in steps.iter().enumerate() {
        for operand in &step.operands {
            let SequenceMemory::Scratch(number) = operand.memory else { continue };
            let refused = |what: String| Err(SequenceError::Group { step: first + place, what });
            if operand.layout != Layout::contiguous(shape) {
                return refused(format!("piece {number} of scratch memory is used through a view of a part"));
            }
            if number >= steps.len() {
                return refused(format!(
                    "there are {} steps, and it uses piece {number} of scratch memory",
                    steps.len()
                ));
            }
            if written.len() <= number {
                written.resize(number + 1, None);
            }
            match operand.access {
                Access::Write if step.operands.iter().any(|it| it.access.reads() && it.memory == operand.memory) => {
                    return refused(format!("it reads and writes piece {number} of scratch memory"));
                }
                Access::Write => written[number] = Some(operand.dtype),
                _ if written[number] != Some(operand.dtype) => {
                    return refused(format!(
                        "it reads piece {number} of scratch memory, which holds no {}",
                        operand.dtype
                    ));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// The views of the operands, with inputs broadcast to the shape of the group.
fn wide_layouts(step: &SequenceStep, shape: &Shape) -> Vec<Layout> {
    let wide = |operand: &SequenceOperand| operand.layout.broadcast_to(shape);
    let wide = step.operands.iter().map(wide);
    wide.map(|layout| layout.unwrap_or_else(|_| unreachable!("`check_steps` has checked the shapes"))).collect()
}

/// How many pieces of scratch memory there must be for this operand.
fn pieces_up_to(operand: &SequenceOperand) -> usize {
    match operand.memory {
        SequenceMemory::Scratch(number) => number + 1,
        SequenceMemory::Buffer { .. } => 0,
    }
}

fn widest(steps: &[SequenceStep]) -> usize {
    steps.iter().flat_map(|step| &step.operands).map(|operand| operand.dtype.size()).max().unwrap_or(1)
}

/// What a step costs for each element, in the units of [`parallel`].
fn work_of_element(work: &SequenceWork) -> usize {
    match work {
        SequenceWork::Kernel(kernel, _) => parallel::of_element(kernel.op),
        _ => parallel::LIGHT,
    }
}

#[cfg(test)]
#[path = "group_tests.rs"]
mod tests;
