//! Pass: neighbouring elementwise steps that run together, block by block.
//!
//! All steps of a group compute one block of elements, then the next, on several threads. The conditions:
//! * Each step is an elementwise call that cannot fail for a value, a fill, or a copy between views without gaps, and all of them write the same
//!   shape, of more elements than a block.
//! * Where a step of the group writes memory, all steps of the group use that memory through the same view. So what a step reads in one block
//!   was written in the same block.
//!
//! What a group uses must not share memory with anything else that it uses: some blocks are computed to the end before others have begun.
//! Therefore values live for the whole group. A value that only one group uses, always whole, needs no memory of its full size: it exists one
//! block at a time, in *scratch memory*.

use std::ops::Range;

use hashbrown::HashMap;
use streamvm_ep::{Access, Layout, Shape};

use crate::compile::in_place::Shares;
use crate::ir::program::{Operand, Program, Step, ValueId, ValueRole, Work};
use crate::plan::compiled::FusedSteps;
use crate::plan::mutant::Mutant;
use crate::plan::options::CompileOptions;

/// The most steps of a group. It bounds scratch memory, and the pairs of operands that are compared with each other.
const MOST_STEPS: usize = 64;

/// The most elements of a block: 64 values of 8 bytes are then 4 MiB of scratch memory, the most that a sequence takes.
const MOST_BLOCK: usize = 8_192;

/// Groups, and the values in scratch memory.
#[derive(Debug)]
pub(super) struct Fused {
    /// The groups; their steps are positions in the order in which the steps run.
    pub(super) groups: Vec<FusedSteps>,
    /// For each value its piece of scratch memory, if it has one.
    pub(super) scratch: Vec<Option<usize>>,
}

/// No steps run together.
pub(super) fn none(program: &Program) -> Fused {
    Fused { groups: Vec::new(), scratch: vec![None; program.values.len()] }
}

/// Finds the groups, each within one of the `segments`; extends the lifetimes of the values that they use. `kept` has the numbers of the steps in
/// the order in which they run, and segments and lifetimes are ranges of positions in it.
pub(super) fn find(
    program: &Program,
    kept: &[usize],
    segments: impl Iterator<Item = Range<usize>>,
    lifetimes: &mut [Range<usize>],
    shares: &Shares,
    options: &CompileOptions,
) -> Fused {
    let block = options.block.clamp(1, MOST_BLOCK);
    let mut fused = none(program);
    let mut fetched = vec![false; program.values.len()];
    program.fetches.iter().for_each(|fetch| fetched[fetch.value.0] = true);
    for segment in segments {
        let mut position = segment.start;
        while position < segment.end {
            let end = end_of_group(program, &kept[position..segment.end], shares, (block, options)) + position;
            if end < position + 2 {
                position += 1;
                continue;
            }
            let group = position..end;
            let scratch = &mut fused.scratch;
            give_scratch(program, &kept[group.clone()], &group, lifetimes, &fetched, scratch);
            let operands = kept[group.clone()].iter().flat_map(|&number| &program.steps[number].operands);
            for operand in operands.filter(|operand| scratch[operand.value.0].is_none()) {
                let life = &mut lifetimes[operand.value.0];
                *life = life.start.min(group.start)..life.end.max(group.end);
            }
            fused.groups.push(FusedSteps { steps: group, block });
            position = end;
        }
    }
    fused
}

/// How the steps of a group use the memory of a value.
struct Seen {
    layout: Layout,
    element: usize,
    /// Whether all of them use this view.
    one_view: bool,
    written: bool,
}

/// How many of the first steps can run together.
fn end_of_group(
    program: &Program,
    kept: &[usize],
    shares: &Shares,
    (block, options): (usize, &CompileOptions),
) -> usize {
    let mut shape: Option<Shape> = None;
    let mut seen: HashMap<ValueId, Seen> = HashMap::new();
    for (place, &number) in kept.iter().enumerate().take(MOST_STEPS) {
        let step = &program.steps[number];
        let Some(output) = step.output().filter(|_| is_fusable(program, step)) else { return place };
        let expected = *shape.get_or_insert(*output.layout.shape());
        if *output.layout.shape() != expected || expected.elements() <= block {
            return place;
        }
        for operand in &step.operands {
            let element = program.value(operand.value).dtype.size();
            let first = Seen { layout: operand.layout, element, one_view: true, written: false };
            let seen = seen.entry(shares[operand.value.0]).or_insert(first);
            seen.one_view &= (seen.layout, seen.element) == (operand.layout, element);
            seen.written |= operand.access.writes();
            if seen.written && !seen.one_view && !options.has(Mutant::FusedOverViews) {
                return place;
            }
        }
    }
    kept.len().min(MOST_STEPS)
}

fn is_fusable(program: &Program, step: &Step) -> bool {
    match &step.work {
        Work::Call(op, _) => {
            let dtype = program.value(step.operands[op.key_input()].value).dtype;
            op.is_elementwise() && !op.refuses_elements(dtype)
        }
        // Copies with gaps are left to the kernel, which chooses the order of axes.
        Work::Copy => step.operands.iter().all(|operand| operand.layout.is_contiguous()),
        Work::Fill(_) => true,
        Work::Function(_) | Work::If | Work::Else | Work::While | Work::End => false,
    }
}

/// Gives pieces of scratch memory to the values that only this group uses.
fn give_scratch(
    program: &Program,
    kept: &[usize],
    group: &Range<usize>,
    lifetimes: &[Range<usize>],
    fetched: &[bool],
    scratch: &mut [Option<usize>],
) {
    let steps = || kept.iter().map(|&number| &program.steps[number]);
    let mut refused = HashMap::new();
    for step in steps() {
        let output = step.output().map(|output| output.value);
        for operand in &step.operands {
            // A step that updates a value would read and write one piece of scratch memory, which is not allowed.
            let updates = operand.access == Access::Read && Some(operand.value) == output;
            let whole = operand.layout == Layout::contiguous(program.value(operand.value).shape);
            *refused.entry(operand.value).or_insert(false) |= updates || !whole;
        }
    }
    let fits = |operand: &Operand| {
        let (value, life) = (program.value(operand.value), &lifetimes[operand.value.0]);
        value.role == ValueRole::Computed
            && !fetched[operand.value.0]
            && group.start <= life.start
            && life.end <= group.end
            && !refused.get(&operand.value).copied().unwrap_or(true)
    };
    let (mut free, mut pieces) = (Vec::new(), 0);
    for (position, step) in group.clone().zip(steps()) {
        if let Some(output) = step.output().filter(|output| fits(output) && scratch[output.value.0].is_none()) {
            scratch[output.value.0] = Some(free.pop().unwrap_or_else(|| {
                pieces += 1;
                pieces - 1
            }));
        }
        // After the output has its piece, so that it gets another one than the inputs. A value that is an input twice ends once.
        for (place, operand) in step.operands.iter().enumerate() {
            let again = step.operands[..place].iter().any(|before| before.value == operand.value);
            if let Some(piece) = scratch[operand.value.0].filter(|_| !again)
                && lifetimes[operand.value.0].end == position + 1
            {
                free.push(piece);
            }
        }
    }
}
