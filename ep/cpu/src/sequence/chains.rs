//! Which steps of a group are a chain: each reads what the one before it wrote, so that the value between them can stay in registers
//! ([`chain`]).
//!
//! A result is stored if it lies in a buffer, or if a step behind the next one reads it from scratch memory. The next step takes it from registers.

use std::ops::Range;

use smallvec::SmallVec;
use streamvm_ep::{DType, Layout, Op, Operand, SequenceMemory, SequenceWork};
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
}

#[derive(Copy, Clone, Debug)]
struct ChainLink {
    work: LinkWork,
    other: Source,
    /// The operand that the result is stored in.
    stored: Option<usize>,
}

/// The other operand of a link.
#[derive(Copy, Clone, Debug)]
enum Source {
    /// The other operand of the previous link, which is still in registers. Links of unary ops have this, too, and ignore it.
    Same,
    Value,
    Elements(usize),
    Single(usize),
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
        let (dtype, op, inputs, output) = linkable(&steps[first])?;
        let mut held = Held::default();
        let begin = held.source(&inputs[0], 0)?;
        let (work, other) = match inputs {
            [_] => (LinkWork::of_one(op)?, Source::Same),
            [_, right] => (LinkWork::of_two(op, true)?, held.source(right, 1)?),
            _ => return None,
        };
        held.note_written(output);
        let mut links = vec![
            ChainLink { work: LinkWork::Take, other: begin, stored: None },
            ChainLink { work, other, stored: None },
        ];
        let mut operands = steps[first].operands.len();
        let mut end = first + 1;
        while let Some(step) = steps.get(end)
            && let Some(link) = following(&steps[end - 1], step, dtype, operands, &mut held)
        {
            // The next step has the value in registers.
            set_stored(&mut links, steps, (end - 1, end + 1), operands - 1);
            links.push(link);
            operands += step.operands.len();
            end += 1;
        }
        if end - first < 2 {
            return None;
        }
        set_stored(&mut links, steps, (end - 1, end), operands - 1);
        Some(Chain { steps: first..end, dtype, links: links.into() })
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
        let link = |link: &ChainLink| Link {
            work: link.work,
            other: match link.other {
                Source::Value => OtherOperand::Value,
                Source::Same => OtherOperand::Same,
                Source::Elements(operand) => OtherOperand::Elements(operands[operand].ptr()),
                Source::Single(operand) => OtherOperand::Single(operands[operand].ptr()),
            },
            to: link.stored.map_or(std::ptr::null_mut(), |operand| operands[operand].ptr()),
        };
        let links: SmallVec<[Link; 16]> = self.links.iter().map(link).collect();
        let length = operands.last().map_or(0, |output| output.layout().elements());
        // SAFETY: outputs and `Elements` are contiguous parts with as many elements as the last output, `Single` have one element, all of the chain's dtype and aligned.
        // The caller guarantees that they may be used. Operands that share bytes, one of them written, are the same view, which the group has checked.
        unsafe { chain::run(self.dtype, &links, length) };
        true
    }

    /// The bytes that it takes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.links)
    }
}

/// The dtype, the op, the inputs and the output of a step, if its kernel is ours and over one dtype that has chains.
fn linkable(step: &BlockStep) -> Option<(DType, Op, &[BlockOperand], &BlockOperand)> {
    let SequenceWork::Kernel(kernel, _) = &step.work else { return None };
    let (output, inputs) = step.operands.split_last()?;
    let is_one_dtype = inputs.iter().all(|input| input.dtype == output.dtype) && kernel.dtype == output.dtype;
    (is_one_dtype && is_own(kernel) && chain::has_chains(output.dtype) && is_contiguous(output) && !inputs.is_empty())
        .then_some((output.dtype, kernel.op, inputs, output))
}

/// The link of `step`, if it goes on with the result of `before`. `first` is the number of its first operand.
fn following<'s>(
    before: &BlockStep,
    step: &'s BlockStep,
    dtype: DType,
    first: usize,
    held: &mut Held<'s>,
) -> Option<ChainLink> {
    let value = before.operands.last()?;
    let (own, op, inputs, output) = linkable(step)?;
    if own != dtype {
        return None;
    }
    let is_value = |input| is_same(input, value);
    let (work, other) = match inputs {
        [input] if is_value(input) => (LinkWork::of_one(op)?, Source::Same),
        [left, right] => match (is_value(left), is_value(right)) {
            (true, true) => (LinkWork::of_two(op, true)?, held.value()),
            (true, false) => (LinkWork::of_two(op, true)?, held.source(right, first + 1)?),
            (false, true) => (LinkWork::of_two(op, false)?, held.source(left, first)?),
            (false, false) => return None,
        },
        _ => return None,
    };
    held.note_written(output);
    Some(ChainLink { work, other, stored: None })
}

/// The other operand of the last link so far that has one, as long as it stays in registers.
#[derive(Default)]
struct Held<'s> {
    operand: Option<&'s BlockOperand>,
}

impl<'s> Held<'s> {
    /// The operand of this number, if its part in a block is elements one behind the other, or one element for all.
    fn source(&mut self, input: &'s BlockOperand, number: usize) -> Option<Source> {
        let is_single = |layout: &Layout| layout.strides().iter().all(|stride| *stride == 0);
        if self.operand.is_some_and(|held| is_same(held, input)) {
            return Some(Source::Same);
        }
        let source = if is_contiguous(input) {
            Source::Elements(number)
        } else if input.layouts.iter().all(is_single) {
            Source::Single(number)
        } else {
            return None;
        };
        self.operand = Some(input);
        Some(source)
    }

    /// The value of the chain.
    fn value(&mut self) -> Source {
        self.operand = None;
        Source::Value
    }

    /// Notes the output of a link, which may be written over what is in registers.
    fn note_written(&mut self, output: &BlockOperand) {
        if self.operand.is_some_and(|held| held.memory == output.memory) {
            self.operand = None;
        }
    }
}

/// Whether both are the same part of the same memory.
fn is_same(one: &BlockOperand, other: &BlockOperand) -> bool {
    (one.memory, one.layouts, &one.steps) == (other.memory, other.layouts, &other.steps)
}

fn is_contiguous(operand: &BlockOperand) -> bool {
    operand.layouts.iter().all(Layout::is_contiguous)
}

/// Decides whether the last link stores its result. The result is that of the step at `place`; its operand has the number `output` in the chain. Steps before `readers`
/// take it from registers.
fn set_stored(links: &mut [ChainLink], steps: &[BlockStep], (place, readers): (usize, usize), output: usize) {
    if let (Some(last), Some(result)) = (links.last_mut(), steps[place].operands.last()) {
        last.stored = is_needed(result.memory, &steps[readers.min(steps.len())..]).then_some(output);
    }
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
