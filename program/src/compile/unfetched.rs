//! Pass: removes steps whose results are not needed, from the last step to the first. A step is needed if a later needed step reads what it
//! writes, or if it writes a fetch or a parameter, unless a step in between overwrites all of it. A function is needed in any case, because it may
//! do anything, and so are the begin and the end of a critical section.
//!
//! A block is needed if one of its steps is, such as a function; then so is its condition. A step in a block might be skipped, so earlier writes of the same value
//! stay needed. In a loop, the order of steps does not say which step reads which write: each step that writes a needed value is needed,
//! because a later round may read it.

use std::ops::Range;

use crate::compile::lists::Lists;
use crate::compile::value_uses::{ValueUse, written};
use crate::ir::program::{Program, ValueId, ValueRole, Work};
use crate::plan::mutant::Mutant;
use crate::plan::options::CompileOptions;

/// Which of its effects a program is kept for.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum For {
    /// Its fetches, and what outlives a run: written parameters, what functions do, critical sections.
    Everything,
    /// Its fetches alone, and collectives, in which other ranks take part.
    Fetches,
}

/// The numbers of the steps that are kept, ascending. `uses` has what each step uses.
pub(super) fn kept_steps(program: &Program, uses: &Lists<ValueUse>, options: &CompileOptions) -> Vec<usize> {
    kept_for(For::Everything, program, uses, options)
}

/// [`kept_steps`] of a program that is for that much. Of one that is for its fetches, no step that begins or ends a critical section is kept.
pub(super) fn kept_for(
    purpose: For,
    program: &Program,
    uses: &Lists<ValueUse>,
    options: &CompileOptions,
) -> Vec<usize> {
    let blocks = Blocks::of(program);
    let all = purpose == For::Everything;
    let mut live: Vec<bool> =
        program.values.iter().map(|value| all && matches!(value.role, ValueRole::Parameter(_))).collect();
    program.fetches.iter().for_each(|fetch| live[fetch.value.0] = true);
    let mut kept = vec![false; program.steps.len()];
    let mut end = program.steps.len();
    while end > 0 {
        let number = end - 1;
        if let Some(begin) = blocks.begin_of_loop(number) {
            keep_of_loop(program, (&blocks, uses), (begin..end, purpose), &mut live, &mut kept);
            end = begin;
            continue;
        }
        end = number;
        let step = &program.steps[number];
        if step.work.is_mark() {
            // A step of the block has kept it, with its condition.
            continue;
        }
        let is_section = step.work.section().is_some();
        if is_section && (!all || options.has(Mutant::SectionDropped)) {
            continue;
        }
        // The other ranks of a collective have it in any case.
        let is_effect = all && step.has_effect() || step.is_collective();
        if !is_effect && !is_section && !written(&uses[number]).any(|value| live[value.0]) {
            continue;
        }
        for output in step.outputs() {
            let whole = program.is_whole(output) || options.has(Mutant::NeededStepRemoved);
            if blocks.around(number).is_none() && whole {
                live[output.value.0] = false;
            }
        }
        blocks.keep(uses, number, &mut kept, |value| live[value.0] = true);
    }
    (0..kept.len()).filter(|&number| kept[number]).collect()
}

/// Keeps the functions of a loop, and the steps that write what is needed after it, or by kept steps of the loop.
fn keep_of_loop(
    program: &Program,
    (blocks, uses): (&Blocks, &Lists<ValueUse>),
    (steps, purpose): (Range<usize>, For),
    live: &mut [bool],
    kept: &mut [bool],
) {
    let is_effect = |number: usize| purpose == For::Everything && program.steps[number].has_effect();
    for number in steps.clone().filter(|&number| is_effect(number)) {
        blocks.keep(uses, number, kept, |value| live[value.0] = true);
    }
    let mut writers: Vec<(usize, usize)> =
        steps.flat_map(|number| written(&uses[number]).map(move |value| (value.0, number))).collect();
    writers.sort_unstable();
    let of = |value: usize| {
        let first = writers.partition_point(|(written, _)| *written < value);
        writers[first..].iter().take_while(move |(written, _)| *written == value).map(|(_, number)| *number)
    };
    let mut needed: Vec<usize> = writers.iter().map(|(value, _)| *value).filter(|value| live[*value]).collect();
    needed.dedup();
    while let Some(value) = needed.pop() {
        for number in of(value) {
            blocks.keep(uses, number, kept, |value| {
                if !std::mem::replace(&mut live[value.0], true) {
                    needed.push(value.0);
                }
            });
        }
    }
}

/// Which steps lie in which blocks. A block is known by the step that begins it. The tables are empty for a program without blocks.
struct Blocks {
    /// For each step the innermost block around it; for the steps that begin and end a block, the one around that block.
    around: Vec<Option<usize>>,
    /// For each step that begins a block, its `else` and its end.
    marks: Vec<[Option<usize>; 2]>,
    /// For each step that ends a loop which lies in no other loop, the step that begins it.
    loops: Vec<Option<usize>>,
}

impl Blocks {
    fn of(program: &Program) -> Blocks {
        let has_blocks = program.steps.iter().any(|step| step.work.is_mark());
        let count = if has_blocks { program.steps.len() } else { 0 };
        let mut blocks = Blocks { around: vec![None; count], marks: vec![[None; 2]; count], loops: vec![None; count] };
        let (mut open, mut loops): (Vec<usize>, usize) = (Vec::new(), 0);
        for (number, step) in program.steps.iter().enumerate().take(count) {
            match step.work {
                Work::If | Work::While => {
                    blocks.around[number] = open.last().copied();
                    open.push(number);
                    loops += usize::from(step.work == Work::While);
                }
                Work::Else => open.last().into_iter().for_each(|&begin| blocks.marks[begin][0] = Some(number)),
                Work::End => {
                    let Some(begin) = open.pop() else { continue };
                    blocks.marks[begin][1] = Some(number);
                    if program.steps[begin].work == Work::While {
                        loops -= 1;
                        blocks.loops[number] = (loops == 0).then_some(begin);
                    }
                }
                Work::Call(..)
                | Work::Copy
                | Work::Fill(_)
                | Work::Function(_)
                | Work::Touch(_)
                | Work::SectionBegin(_)
                | Work::SectionEnd(_) => {
                    blocks.around[number] = open.last().copied();
                }
            }
        }
        blocks
    }

    /// The innermost block around a step.
    fn around(&self, number: usize) -> Option<usize> {
        self.around.get(number).copied().flatten()
    }

    /// Where the loop begins that a step ends and that lies in no other loop.
    fn begin_of_loop(&self, number: usize) -> Option<usize> {
        self.loops.get(number).copied().flatten()
    }

    /// Keeps a step and the blocks around it; calls `needs` with each value that these read.
    fn keep(&self, uses: &Lists<ValueUse>, number: usize, kept: &mut [bool], mut needs: impl FnMut(ValueId)) {
        let mut next = Some(number);
        while let Some(number) = next.filter(|&number| !std::mem::replace(&mut kept[number], true)) {
            uses[number].iter().filter(|it| it.access.reads()).for_each(|it| needs(it.value));
            let marks = self.marks.get(number).into_iter().flatten().flatten();
            marks.for_each(|&mark| kept[mark] = true);
            next = self.around(number);
        }
    }
}
