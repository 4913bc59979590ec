//! Which parts of a sequence with blocks a stream may launch as a whole, so that the device decides about the blocks among them.
//!
//! There are two kinds:
//!
//! * **Branches**: neighbouring parts of which at least one is an `if`, and none has a loop. They end whatever their conditions are, so the host launches them
//!   without knowing these.
//! * **A block with a loop**: a loop, or an `if` with a loop in it. The host reads the condition of the block before it launches it, because a loop over what
//!   a failed input left could go on for ever, and waits after it, because it must learn how the loop has ended.

use std::ops::Range;

use crate::sequence::blocks::{Bodies, Part, Test};

/// Parts that a stream may capture and launch as a whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct BlockGraph {
    /// The numbers of the parts. Those of a block are from the test of its condition to its last part.
    pub(super) parts: Range<usize>,
    /// The step that begins the first block in them. It is the first command of no other announcement, so it names this one.
    pub(super) step: usize,
    /// How deep blocks are nested; 1 for parts in which no block has another one in it.
    pub(super) depth: usize,
    /// Whether there is a loop among them.
    pub(super) has_loops: bool,
}

/// The parts that can be launched as a whole, in ascending order. `can_be_captured` tells whether a stream can capture the work of a part, and `is_on_device` whether
/// the condition of a block is in memory of the device. A block with a loop that can be launched as a whole may
/// still be left to the host; then an inner loop of an `if` is one of the parts, too.
pub(super) fn graphs_of<W>(
    parts: &[Part<W>],
    can_be_captured: impl Fn(&W) -> bool,
    is_on_device: impl Fn(&Test) -> bool,
) -> Vec<BlockGraph> {
    let mut finder = Finder { parts, can_be_captured, is_on_device, found: Vec::new() };
    finder.find(0..parts.len());
    finder.found.sort_unstable_by_key(|graph| graph.parts.start);
    finder.found
}

struct Finder<'a, W, F, T> {
    parts: &'a [Part<W>],
    can_be_captured: F,
    is_on_device: T,
    found: Vec<BlockGraph>,
}

/// How deep the blocks of a part are nested, and whether a loop is among them.
struct Shape {
    depth: usize,
    has_loops: bool,
}

impl<W, F: Fn(&W) -> bool, T: Fn(&Test) -> bool> Finder<'_, W, F, T> {
    /// Finds those among these parts, which are a body, or all.
    fn find(&mut self, parts: Range<usize>) {
        // Neighbouring parts that can be captured and have no loop; the depth of their blocks, and the step of the first.
        let (mut begin, mut blocks) = (parts.start, None);
        let mut next = parts.start;
        while next < parts.end {
            let here = next;
            let test = match &self.parts[here] {
                Part::Work(work) => {
                    next += 1;
                    if !(self.can_be_captured)(work) {
                        self.add_branches(begin..here, blocks.take());
                        begin = next;
                    }
                    continue;
                }
                Part::Test(test) => test,
                Part::Jump(_) => unreachable!("jumps are between the bodies of blocks"),
            };
            let Bodies { first, second, end } = test.bodies(here, self.parts);
            next = end;
            let shape = self.shape_of(here);
            if let Some(Shape { depth, has_loops: false }) = shape {
                let (step, deepest) = blocks.unwrap_or((test.step, 0));
                blocks = Some((step, deepest.max(depth)));
                continue;
            }
            self.add_branches(begin..here, blocks.take());
            begin = end;
            let is_whole = shape.is_some();
            if let Some(Shape { depth, has_loops }) = shape {
                self.found.push(BlockGraph { parts: here..end, step: test.step, depth, has_loops });
            }
            // Where the host decides about a round of a loop that can be captured, the next round is captured with all that is in it.
            if !is_whole || test.most_rounds().is_none() {
                [Some(first), second].into_iter().flatten().for_each(|body| self.find(body));
            }
        }
        self.add_branches(begin..parts.end, blocks);
    }

    fn add_branches(&mut self, parts: Range<usize>, blocks: Option<(usize, usize)>) {
        if let Some((step, depth)) = blocks {
            self.found.push(BlockGraph { parts, step, depth, has_loops: false });
        }
    }

    /// The block that begins here; `None` if something in it cannot be captured. Each body has steps: what a driver makes of an empty one is not documented.
    /// Steps without elements may still queue no command, which a stream finds when it captures them.
    fn shape_of(&self, here: usize) -> Option<Shape> {
        let Part::Test(test) = &self.parts[here] else { return None };
        if test.is_timed() || !(self.is_on_device)(test) {
            return None;
        }
        let Bodies { first, second, .. } = test.bodies(here, self.parts);
        let (mut depth, mut has_loops) = (0, test.most_rounds().is_some());
        for body in [Some(first), second].into_iter().flatten() {
            if body.is_empty() {
                return None;
            }
            let mut next = body.start;
            while next < body.end {
                next = match &self.parts[next] {
                    Part::Work(work) => (self.can_be_captured)(work).then_some(next + 1)?,
                    Part::Test(inner) => {
                        let shape = self.shape_of(next)?;
                        (depth, has_loops) = (depth.max(shape.depth), has_loops || shape.has_loops);
                        inner.bodies(next, self.parts).end
                    }
                    Part::Jump(_) => unreachable!("jumps are between the bodies of blocks"),
                };
            }
        }
        Some(Shape { depth: depth + 1, has_loops })
    }
}
