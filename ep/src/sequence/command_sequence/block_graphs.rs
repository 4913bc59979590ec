//! Parts of a sequence that a stream launches as a whole, with the blocks among them:
//! [`Graphs::begin_block_graph`](crate::Graphs::begin_block_graph). Which parts these are is decided in `sequence/block_graph.rs`.

use std::ops::Range;

use super::stretches::RunNow;
use super::{Command, CommandSequence, SequencePosition};
use crate::call::operand::Operand;
use crate::errors::sequence_error::SequenceError;
use crate::sequence::block_graph::BlockGraph;
use crate::sequence::blocks::{Bodies, Part, Test};
use crate::sequence::buffers::located;
use crate::sequence::commands::{Commands, Graphs};
use crate::sequence::graph::{BlockStart, GraphBlocks, GraphStart, LoopEnd, LoopsRun};

impl CommandSequence {
    /// Launches the parts that begin at `position` as a whole, capturing them if the stream wants that; the position is then after them. `false` if
    /// nothing was launched: no such parts begin there, or the stream leaves them to the host. If there is a loop among them, the host knows that it comes
    /// to them, because it has read the condition of the block that they are.
    pub(super) fn launch_blocks(
        &self,
        stream: &mut dyn Commands,
        buffers: &[Operand<'static>],
        run: RunNow,
        position: &mut SequencePosition,
    ) -> Result<bool, SequenceError> {
        let Some(BlockGraph { parts, step, depth, has_loops }) = self.block_graph_at(position) else {
            return Ok(false);
        };
        let Some(stream) = stream.graphs() else { return Ok(false) };
        let failed = |error| SequenceError::Step { step: *step, error };
        let key = self.graph_key(*step);
        let blocks = GraphBlocks { depth: *depth, rounds: has_loops.then(|| position.rounds.made()) };
        let is_launched = match stream.begin_block_graph(key, buffers, blocks).map_err(failed)? {
            GraphStart::Launched => true,
            GraphStart::Queue => false,
            GraphStart::Capturing => {
                let captured = self.capture_parts(parts.clone(), stream, buffers, run);
                stream.end_graph(captured.is_ok()).map_err(failed)?
            }
        };
        if is_launched {
            (position.next, position.has_run_loop) = (parts.end, *has_loops);
        }
        Ok(is_launched)
    }

    /// The parts that begin at `position` and may be launched as a whole now. A block with a loop may be once its condition is known.
    fn block_graph_at(&self, position: &SequencePosition) -> Option<&BlockGraph> {
        let found = self.block_graphs.binary_search_by_key(&position.next, |graph| graph.parts.start);
        let graph = &self.block_graphs[found.ok()?];
        (graph.has_loops == position.is_known).then_some(graph)
    }

    /// Notes how a loop has run that was launched as a whole.
    ///
    /// # Errors
    /// It was ended early: [`SequenceError::Rounds`], [`SequenceError::Stopped`].
    pub(super) fn note_loop(
        &self,
        LoopsRun { rounds, end }: LoopsRun,
        position: &mut SequencePosition,
    ) -> Result<(), SequenceError> {
        position.rounds.set_made(rounds);
        match end {
            None => Ok(()),
            Some(LoopEnd::MostRounds { step }) => {
                let step = step as usize;
                Err(SequenceError::Rounds { step, rounds: self.most_rounds(step) })
            }
            Some(LoopEnd::Stopped { step }) => Err(SequenceError::Stopped { step: step as usize }),
        }
    }

    /// The most rounds of the loop that this step begins.
    fn most_rounds(&self, step: usize) -> u64 {
        let tests = self.parts.iter().filter_map(|part| if let Part::Test(test) = part { Some(test) } else { None });
        tests.filter(|test| test.step == step).find_map(|test| test.most_rounds()).unwrap_or_default()
    }

    /// Queues the commands of these parts, with the blocks among them, for a capture.
    fn capture_parts(
        &self,
        parts: Range<usize>,
        stream: &mut dyn Graphs,
        buffers: &[Operand<'static>],
        run: RunNow,
    ) -> Result<(), SequenceError> {
        let mut next = parts.start;
        while next < parts.end {
            next = match &self.parts[next] {
                Part::Work(stretch) => self.queue(&stretch.steps, stream, buffers, run).map(|()| next + 1)?,
                Part::Test(test) => {
                    let Bodies { first, second, end } = test.bodies(next, &self.parts);
                    self.begin_block(test, second.is_some(), stream, buffers)?;
                    let failed = |error| SequenceError::Step { step: test.step, error };
                    self.capture_parts(first, stream, buffers, run)?;
                    if let Some(second) = second {
                        stream.begin_else().map_err(failed)?;
                        self.capture_parts(second, stream, buffers, run)?;
                    }
                    stream.end_block().map_err(failed)?;
                    end
                }
                Part::Jump(_) => unreachable!("jumps are between the bodies of blocks"),
            };
        }
        Ok(())
    }

    /// Begins a block in a capture.
    fn begin_block(
        &self,
        test: &Test,
        has_else: bool,
        stream: &mut dyn Graphs,
        buffers: &[Operand<'static>],
    ) -> Result<(), SequenceError> {
        let Command { label, of_buffers, .. } = &self.steps[test.step];
        stream.begin_step(*label, of_buffers);
        let mut operands = [Operand::blank()];
        let condition = std::slice::from_ref(&test.condition);
        // SAFETY: the condition is the first operand of the step, which `new` has added to the buffers, and `check` has accepted those of the call. It
        // gives no slice: the host cannot access its memory.
        let condition = &unsafe { located(condition, buffers, &mut operands) }[0];
        let start = match test.most_rounds() {
            Some(most_rounds) => {
                let step = u32::try_from(test.step).unwrap_or(u32::MAX);
                BlockStart::While { most_rounds, step }
            }
            None => BlockStart::If { has_else },
        };
        stream.begin_block(start, condition).map_err(|error| SequenceError::Step { step: test.step, error })
    }
}
