//! Pass: removes steps whose results nobody needs, from the last step to the first. A step is needed if a later needed step reads what it
//! writes, or if it writes a fetch or a parameter, unless a step in between overwrites all of it.
//!
//! A block is needed if one of its steps is; then so is its condition. A step in a block may not run, so it ends no need for what was written
//! before. The end of a loop needs what the needed steps of the loop read: in its next round. That is known only once the loop was looked
//! at, so the pass repeats until it finds no further step.

use crate::ir::program::{Program, ValueRole, Work};

/// The numbers of the steps that are kept, ascending.
pub(super) fn kept_steps(program: &Program) -> Vec<usize> {
    let begins = begins_of_loops(program);
    let mut kept = vec![false; program.steps.len()];
    loop {
        let again = kept_by(program, &begins, &kept);
        let is_complete = begins.is_empty() || again == kept;
        kept = again;
        if is_complete {
            return (0..kept.len()).filter(|&number| kept[number]).collect();
        }
    }
}

/// A block, from its end.
struct Block {
    end: usize,
    otherwise: Option<usize>,
    is_needed: bool,
}

/// Which steps are kept, if those of loops that `before` names are.
fn kept_by(program: &Program, begins: &[(usize, usize)], before: &[bool]) -> Vec<bool> {
    let mut live: Vec<bool> =
        program.values.iter().map(|value| matches!(value.role, ValueRole::Parameter(_))).collect();
    program.fetches.iter().for_each(|fetch| live[fetch.value.0] = true);
    let mut kept = vec![false; program.steps.len()];
    let mut blocks: Vec<Block> = Vec::new();
    let mut loops = begins.iter().rev().peekable();
    for (number, step) in program.steps.iter().enumerate().rev() {
        match step.work {
            Work::End => {
                blocks.push(Block { end: number, otherwise: None, is_needed: false });
                if let Some(&(begin, _)) = loops.next_if(|(_, end)| *end == number) {
                    let steps = (begin..number).filter(|&number| before[number]).map(|number| &program.steps[number]);
                    steps.flat_map(|step| step.inputs()).for_each(|input| live[input.value.0] = true);
                }
            }
            Work::Else => blocks.iter_mut().next_back().into_iter().for_each(|block| block.otherwise = Some(number)),
            Work::If | Work::While => {
                let Some(block) = blocks.pop().filter(|block| block.is_needed) else { continue };
                [Some(number), block.otherwise, Some(block.end)]
                    .into_iter()
                    .flatten()
                    .for_each(|mark| kept[mark] = true);
                step.inputs().for_each(|input| live[input.value.0] = true);
                blocks.iter_mut().next_back().into_iter().for_each(|block| block.is_needed = true);
            }
            Work::Call(..) | Work::Copy | Work::Fill(_) => {
                let Some(output) = step.output().filter(|output| live[output.value.0]) else { continue };
                if blocks.is_empty() && program.is_whole(output.value, &output.layout) {
                    live[output.value.0] = false;
                }
                step.inputs().for_each(|input| live[input.value.0] = true);
                kept[number] = true;
                blocks.iter_mut().next_back().into_iter().for_each(|block| block.is_needed = true);
            }
        }
    }
    kept
}

/// The first and the last step of each loop, by the last one.
fn begins_of_loops(program: &Program) -> Vec<(usize, usize)> {
    let (mut open, mut loops) = (Vec::new(), Vec::new());
    for (number, step) in program.steps.iter().enumerate() {
        match step.work {
            Work::If | Work::While => open.push(number),
            Work::End => {
                let begin = open.pop().filter(|&begin| program.steps[begin].work == Work::While);
                loops.extend(begin.map(|begin| (begin, number)));
            }
            _ => {}
        }
    }
    loops
}
