//! Which loops of a sequence a stream may launch as a whole, with all blocks in them.

use std::ops::Range;

use crate::sequence::blocks::{Bodies, Part, Test};

/// A loop that is part of no other one, as a stream may capture it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct BlockGraph {
    /// From its test to the jump behind its last step.
    pub(super) parts: Range<usize>,
    /// How deep blocks are nested; 1 for a loop without blocks in it.
    pub(super) depth: usize,
}

/// The loops whose work can all be captured, and whose rounds are not bounded in time. An `if` outside of loops is none: the host must read its condition
/// before it launches anything, and then knows all.
pub(super) fn loops_of<W>(parts: &[Part<W>], can_be_captured: impl Fn(&W) -> bool) -> Vec<BlockGraph> {
    let (mut loops, mut next) = (Vec::new(), 0);
    while let Some(part) = parts.get(next) {
        next += 1;
        let Part::Test(test) = part else { continue };
        if test.most_rounds().is_some() {
            let here = next - 1;
            next = test.bodies(here, parts).end;
            let depth = depth_of(test, here, parts, &can_be_captured);
            loops.extend(depth.map(|depth| BlockGraph { parts: here..next, depth }));
        }
    }
    loops
}

/// How deep the block of a test is nested; `None` if something in it cannot be captured. Each body has steps: what a driver makes of an empty one is not
/// documented. Steps without elements may still queue no command, which a stream finds when it captures them.
fn depth_of<W>(test: &Test, here: usize, parts: &[Part<W>], can_be_captured: &impl Fn(&W) -> bool) -> Option<usize> {
    if test.is_timed() {
        return None;
    }
    let Bodies { first, second, .. } = test.bodies(here, parts);
    let mut depth = 0;
    for body in [Some(first), second].into_iter().flatten() {
        if body.is_empty() {
            return None;
        }
        let mut next = body.start;
        while next < body.end {
            next = match &parts[next] {
                Part::Work(work) => can_be_captured(work).then_some(next + 1)?,
                Part::Test(inner) => {
                    depth = depth.max(depth_of(inner, next, parts, can_be_captured)?);
                    inner.bodies(next, parts).end
                }
                Part::Jump(_) => unreachable!("jumps are between the bodies of blocks"),
            };
        }
    }
    Some(depth + 1)
}
