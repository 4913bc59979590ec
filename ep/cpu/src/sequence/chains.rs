//! Which steps of a group are a chain: each reads what the one before it wrote, so that the value between them can stay in registers
//! ([`chain`]).
//!
//! A result is stored if it lies in a buffer, or if a step after the next one reads it from scratch memory. The next step takes it from registers.

use std::ops::Range;

use smallvec::SmallVec;
use streamvm_ep::backend::NumberElement;
use streamvm_ep::{DType, Layout, Op, Operand, Scalar, SequenceMemory, SequenceWork};
use streamvm_kernels::chain::{Link, LinkWork, OtherOperand};
use streamvm_kernels::{chain, is_own};

use crate::sequence::group_blocks::{BlockOperand, BlockStep};

/// Steps that are computed together. Operands are numbered through all of its steps.
#[derive(Debug)]
pub(super) struct Chain {
    /// The places of its steps in the group.
    pub(super) steps: Range<usize>,
    dtype: DType,
    links: Box<[ChainLink]>,
    /// The numbers that links read, as elements. They lie on the heap, so they stay where they are if the chain moves.
    numbers: Box<[NumberElement]>,
}

#[derive(Copy, Clone, Debug)]
struct ChainLink {
    work: LinkWork,
    operand: LinkOperand,
}

/// What a link reads or writes; any where it does neither.
#[derive(Copy, Clone, Debug)]
enum LinkOperand {
    /// The operand of this number.
    Operand(usize),
    /// The number of this index among those of the chain.
    Number(usize),
}

/// A step that a chain may have: what it computes, of which inputs.
struct Linkable<'s> {
    dtype: DType,
    op: Op,
    tensors: &'s [BlockOperand],
    /// The only number among the inputs, and whether it is the left one of two.
    number: Option<(Scalar, bool)>,
}

/// A part of a group. The group runs its parts one after the other in each block: a step runs by its kernel, a chain in registers.
#[derive(Debug)]
pub(super) enum GroupItem {
    /// The step at this place.
    Step(usize),
    Chain(Chain),
}

/// Divides the steps of a group into chains, as long as possible, and steps that run by themselves.
pub(super) fn items(steps: &[BlockStep]) -> Vec<GroupItem> {
    let mut items = Vec::new();
    let mut next = 0;
    while next < steps.len() {
        match Chain::beginning_at(steps, next) {
            Some(chain) => {
                next = chain.steps.end;
                items.push(GroupItem::Chain(chain));
            }
            None => {
                items.push(GroupItem::Step(next));
                next += 1;
            }
        }
    }
    items
}

impl Chain {
    /// The longest chain that begins with this step; `None` if it would be that step alone.
    fn beginning_at(steps: &[BlockStep], first: usize) -> Option<Chain> {
        let Linkable { dtype, op, tensors, number } = linkable(&steps[first])?;
        let take = match source(&tensors[0])? {
            OtherOperand::Single => LinkWork::TakeSingle,
            _ => LinkWork::Take,
        };
        let mut numbers = Vec::new();
        // The right operand of the first step, which an op of one operand ignores, has the number 1.
        let link = match (tensors, number) {
            ([_], Some(number)) => with_number(op, number, dtype, &mut numbers)?,
            ([_], None) => ChainLink { work: LinkWork::of_one(op)?, operand: LinkOperand::Operand(1) },
            ([_, right], None) => {
                ChainLink { work: LinkWork::of_two(op, true, source(right)?)?, operand: LinkOperand::Operand(1) }
            }
            _ => return None,
        };
        let mut links = vec![ChainLink { work: take, operand: LinkOperand::Operand(0) }, link];
        let mut operands = steps[first].operands.len();
        let mut end = first + 1;
        while let Some(step) = steps.get(end)
            && let Some(link) = following(&steps[end - 1], step, dtype, operands, &mut numbers)
        {
            // The next step has the value in registers.
            links.extend(stored(steps, (end - 1, end + 1), operands - 1));
            links.push(link);
            operands += step.operands.len();
            end += 1;
        }
        if end - first < 2 {
            return None;
        }
        links.extend(stored(steps, (end - 1, end), operands - 1));
        Some(Chain { steps: first..end, dtype, links: links.into(), numbers: numbers.into() })
    }

    /// Computes the chain over a block, whose parts are `operands`, those of all steps in order. Returns false, with nothing done, if one of them is not aligned: the
    /// kernel of its step says so.
    ///
    /// # Safety
    ///
    /// * `operands` are those of the steps that the chain was made of, in one block, and may be used as these steps use them. No slices of them exist.
    #[inline]
    pub(super) unsafe fn run(&self, operands: &[Operand]) -> bool {
        if !operands.iter().all(Operand::is_aligned) {
            return false;
        }
        let link = |link: &ChainLink| {
            let elements = match link.operand {
                LinkOperand::Operand(operand) => operands[operand].ptr(),
                LinkOperand::Number(number) => self.numbers[number].address().cast_mut(),
            };
            Link { work: link.work, elements }
        };
        let links: SmallVec<[Link; 32]> = self.links.iter().map(link).collect();
        let length = operands.last().map_or(0, |output| output.layout().elements());
        // SAFETY: outputs and [elements](OtherOperand::Elements) are contiguous parts with as many elements as the last output, single ones have one element, all of the chain's dtype and aligned.
        // The caller guarantees that they may be used; numbers are elements of the dtype, which are read alone. Operands that share bytes, one of them written, are the same view, which the group has checked.
        unsafe { chain::run(self.dtype, &links, length) };
        true
    }

    /// The bytes that it takes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.links) + size_of_val(&*self.numbers)
    }
}

/// A step, if its kernel is ours and over one dtype that has chains, and one input at most is a number.
fn linkable(step: &BlockStep) -> Option<Linkable<'_>> {
    let SequenceWork::Kernel(kernel, params) = &step.work else { return None };
    let (output, tensors) = step.operands.split_last()?;
    let is_one_dtype = tensors.iter().all(|input| input.dtype == output.dtype) && kernel.dtype == output.dtype;
    let numbers = params.numbers();
    let is_linkable = is_one_dtype
        && is_own(kernel)
        && chain::has_chains(output.dtype)
        && is_contiguous(output)
        && !tensors.is_empty()
        && numbers.len() <= 1;
    let number = numbers.iter().next().map(|(input, value)| (value, input == 0));
    is_linkable.then_some(Linkable { dtype: output.dtype, op: kernel.op, tensors, number })
}

/// The link of an op of a number and the value that is in registers.
fn with_number(
    op: Op,
    (value, on_left): (Scalar, bool),
    dtype: DType,
    numbers: &mut Vec<NumberElement>,
) -> Option<ChainLink> {
    let work = LinkWork::of_two(op, !on_left, OtherOperand::Single)?;
    numbers.push(NumberElement::new(value, dtype)?);
    Some(ChainLink { work, operand: LinkOperand::Number(numbers.len() - 1) })
}

/// The link of `step`, if it goes on with the result of `before`. `first` is the number of its first operand; a number of the step is added to `numbers`.
fn following(
    before: &BlockStep,
    step: &BlockStep,
    dtype: DType,
    first: usize,
    numbers: &mut Vec<NumberElement>,
) -> Option<ChainLink> {
    let value = before.operands.last()?;
    let Linkable { dtype: own, op, tensors, number } = linkable(step)?;
    if own != dtype {
        return None;
    }
    let is_value = |input| is_same(input, value);
    match (tensors, number) {
        ([input], Some(number)) if is_value(input) => with_number(op, number, dtype, numbers),
        ([input], None) if is_value(input) => {
            Some(ChainLink { work: LinkWork::of_one(op)?, operand: LinkOperand::Operand(first) })
        }
        ([left, right], None) => {
            let (on_left, other, operand) = match (is_value(left), is_value(right)) {
                (true, true) => (true, OtherOperand::Value, first),
                (true, false) => (true, source(right)?, first + 1),
                (false, true) => (false, source(left)?, first),
                (false, false) => return None,
            };
            Some(ChainLink { work: LinkWork::of_two(op, on_left, other)?, operand: LinkOperand::Operand(operand) })
        }
        _ => None,
    }
}

/// How a link reads this operand, if its part in a block is elements one after the other, or one element for all.
fn source(input: &BlockOperand) -> Option<OtherOperand> {
    let is_still = |(size, stride): (&usize, &usize)| *size == 1 || *stride == 0;
    let is_single = |layout: &Layout| layout.shape().dims().iter().zip(layout.strides()).all(is_still);
    if is_contiguous(input) {
        Some(OtherOperand::Elements)
    } else {
        input.layouts.iter().all(is_single).then_some(OtherOperand::Single)
    }
}

/// Whether both are the same part of the same memory.
fn is_same(one: &BlockOperand, other: &BlockOperand) -> bool {
    (one.memory, one.layouts, &one.steps) == (other.memory, other.layouts, &other.steps)
}

fn is_contiguous(operand: &BlockOperand) -> bool {
    operand.layouts.iter().all(Layout::is_contiguous)
}

/// The link that stores the result of the step at `place`, if it must be stored. Its operand has the number `output` in the chain. Steps before `readers`
/// take it from registers.
fn stored(steps: &[BlockStep], (place, readers): (usize, usize), output: usize) -> Option<ChainLink> {
    let result = steps[place].operands.last()?;
    let is_needed = is_needed(result.memory, &steps[readers.min(steps.len())..]);
    is_needed.then_some(ChainLink { work: LinkWork::Store, operand: LinkOperand::Operand(output) })
}

/// Whether a result in this memory must be stored, if only these steps could read it from there.
fn is_needed(memory: SequenceMemory, steps: &[BlockStep]) -> bool {
    if let SequenceMemory::Buffer { .. } = memory {
        return true;
    }
    // Scratch memory is used for one result after the other. A step reads its inputs before it writes.
    let uses = steps.iter().flat_map(|step| &step.operands).find(|operand| operand.memory == memory);
    uses.is_some_and(|operand| operand.access.reads())
}

#[cfg(test)]
#[path = "chains_tests.rs"]
mod tests;
