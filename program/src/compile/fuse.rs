//! Pass: neighbouring elementwise steps that run together: block by block on a CPU, as one kernel on a CUDA device.
//!
//! On a CPU all steps of a group compute one block of elements, then the next, on several threads. On a CUDA device each thread computes all steps for
//! one element, then for another. The conditions:
//! * Each step is an elementwise call that cannot fail for a value, a fill, or a copy between views without gaps, and all of them write the same
//!   shape; on a CPU it has more elements than a block.
//! * Where a step of the group writes memory, all steps of the group use that memory through the same view. So what a step reads in one block
//!   was written in the same block.
//!
//! What a group uses must not share memory with anything else that it uses: some blocks are computed to the end before others have begun.
//! Therefore values live for the whole group. A value that only one group uses, always whole, needs no memory of its full size: on a CPU it exists one
//! block at a time, in *scratch memory*. A kernel has it in registers, and does not store it. Such a value has its place in the arena all the same,
//! from its own first step to its last: where a driver refuses the kernel, the steps run one by one, and the plan is the same on every machine.

use std::ops::Range;

use hashbrown::{HashMap, HashSet};
use streamvm_ep::{Access, DeviceKind, Fusion, Layout, MOST_FUSED_VIEWS};

use crate::compile::in_place::Shares;
use crate::ir::dims::VaryingId;
use crate::ir::program::{Operand, Program, Step, ValueId, ValueRole, Work};
use crate::plan::compiled::{FusedBy, FusedSteps};
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

/// Finds the groups, each within one of the `segments`, which come with the kind of their device; extends the lifetimes of the values that the groups
/// use. `kept` has the numbers of the steps in the order in which they run, and segments and lifetimes are ranges of positions in it.
pub(super) fn find(
    program: &Program,
    kept: &[usize],
    segments: impl Iterator<Item = (DeviceKind, Range<usize>)>,
    lifetimes: &mut [Range<usize>],
    shares: &Shares,
    options: &CompileOptions,
) -> Fused {
    let block = options.block.clamp(1, MOST_BLOCK);
    let mut fused = none(program);
    let mut fetched = vec![false; program.values.len()];
    program.fetches.iter().for_each(|fetch| fetched[fetch.value.0] = true);
    for (kind, segment) in segments {
        let fusion = kind.info().fusion;
        let bounds = match fusion {
            Fusion::Blocks => Bounds { elements: block, views: usize::MAX },
            Fusion::Kernels => Bounds { elements: 0, views: MOST_FUSED_VIEWS },
            Fusion::None => continue,
        };
        let mut position = segment.start;
        while position < segment.end {
            let end = end_of_group(program, &kept[position..segment.end], shares, bounds, options) + position;
            if end < position + 2 {
                position += 1;
                continue;
            }
            let group = position..end;
            let inner = inner_values(program, &kept[group.clone()], &group, lifetimes, &fetched);
            let operands = kept[group.clone()].iter().flat_map(|&number| &program.steps[number].operands);
            for operand in operands.filter(|operand| !inner.contains(&operand.value)) {
                let life = &mut lifetimes[operand.value.0];
                *life = life.start.min(group.start)..life.end.max(group.end);
            }
            let by = if fusion == Fusion::Blocks {
                give_scratch(program, &kept[group.clone()], &group, lifetimes, &inner, &mut fused.scratch);
                FusedBy::Blocks(block)
            } else {
                FusedBy::Kernel { unstored: inner }
            };
            fused.groups.push(FusedSteps { steps: group, by });
            position = end;
        }
    }
    fused
}

/// How the steps of a group use the memory of a value.
struct Seen<'p> {
    view: (&'p Layout, Option<VaryingId>),
    element: usize,
    /// Whether all of them use this view.
    one_view: bool,
    written: bool,
}

/// What bounds a group.
#[derive(Copy, Clone)]
struct Bounds {
    /// Its shape has more elements than this.
    elements: usize,
    /// The most views of memory that its steps use.
    views: usize,
}

/// How many of the first steps can run together.
fn end_of_group(program: &Program, kept: &[usize], shares: &Shares, bounds: Bounds, options: &CompileOptions) -> usize {
    let mut first_output: Option<&Operand> = None;
    let mut seen: HashMap<ValueId, Seen<'_>> = HashMap::new();
    let mut views = HashSet::new();
    for (place, &number) in kept.iter().enumerate().take(MOST_STEPS) {
        let step = &program.steps[number];
        let is_large = |output: &&Operand| output.layout.elements() > bounds.elements;
        let output = step.output().filter(is_large).filter(|_| is_fusable(program, step));
        let Some(output) = output else { return place };
        if !program.have_one_shape(first_output.get_or_insert(output), output) {
            return place;
        }
        views.extend(step.operands.iter().map(|operand| (shares[operand.value.0], view(operand))));
        if views.len() > bounds.views {
            return place;
        }
        for operand in &step.operands {
            let element = program.value(operand.value).dtype.size();
            let first = Seen { view: view(operand), element, one_view: true, written: false };
            let seen = seen.entry(shares[operand.value.0]).or_insert(first);
            seen.one_view &= (seen.view, seen.element) == (view(operand), element);
            seen.written |= operand.access.writes();
            if seen.written && !seen.one_view && !options.has(Mutant::FusedOverViews) {
                return place;
            }
        }
    }
    kept.len().min(MOST_STEPS)
}

/// The layout of an operand for the bounds, with its formulas: two operands are the same view of a value, whatever the sizes, if both are equal.
fn view(operand: &Operand) -> (&Layout, Option<VaryingId>) {
    (&operand.layout, operand.varying)
}

fn is_fusable(program: &Program, step: &Step) -> bool {
    match &step.work {
        Work::Call(op, params) => {
            let dtype = program.value(step.operands[op.key_input()].value).dtype;
            op.is_elementwise() && !params.refuses_elements(*op, dtype)
        }
        // Copies with gaps are left to the kernel, which chooses the order of axes, and copies between devices to these: a kernel of one may not reach the memory of the other.
        Work::Copy => {
            let mut devices = step.operands.iter().filter_map(|operand| program.value(operand.value).place.device());
            let first = devices.find(|device| !device.kind.is_run_by_host());
            step.operands.iter().all(|operand| program.is_contiguous(operand))
                && devices.all(|device| device.kind.is_run_by_host() || Some(device) == first)
        }
        Work::Fill(_) => true,
        Work::Function(_) | Work::If | Work::Else | Work::While | Work::End => false,
        Work::Touch(_) | Work::SectionBegin(_) | Work::SectionEnd(_) => false,
    }
}

/// The values that only this group uses, always whole.
fn inner_values(
    program: &Program,
    kept: &[usize],
    group: &Range<usize>,
    lifetimes: &[Range<usize>],
    fetched: &[bool],
) -> Vec<ValueId> {
    let steps = || kept.iter().map(|&number| &program.steps[number]);
    let mut refused = HashMap::new();
    for step in steps() {
        let output = step.output().map(|output| output.value);
        for operand in &step.operands {
            // A step that updates a value would read and write one piece of scratch memory, which is not allowed.
            let updates = operand.access == Access::Read && Some(operand.value) == output;
            let value = program.value(operand.value);
            let whole = *operand.layout == Layout::contiguous(value.shape) && operand.varying == value.varying;
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
    let mut inner: Vec<ValueId> = Vec::new();
    for output in steps().filter_map(Step::output).filter(|output| fits(output)) {
        if !inner.contains(&output.value) {
            inner.push(output.value);
        }
    }
    inner
}

/// Gives pieces of scratch memory to the `inner` values of a group.
fn give_scratch(
    program: &Program,
    kept: &[usize],
    group: &Range<usize>,
    lifetimes: &[Range<usize>],
    inner: &[ValueId],
    scratch: &mut [Option<usize>],
) {
    let steps = kept.iter().map(|&number| &program.steps[number]);
    let (mut free, mut pieces) = (Vec::new(), 0);
    for (position, step) in group.clone().zip(steps) {
        let is_inner = |output: &&Operand| inner.contains(&output.value) && scratch[output.value.0].is_none();
        if let Some(output) = step.output().filter(is_inner) {
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
