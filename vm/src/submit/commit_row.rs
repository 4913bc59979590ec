//! Committing rows: runs of consecutive instructions of a list on one ordered stream that have no order but that of their uses.
//!
//! Nearly all instructions belong to a row, so everything that is the same for a whole row is checked once per row. The tasks of a row go
//! straight to their thread context. Only the last task may have host waits; it ends the row and goes to the scheduler.

use streamvm_instructions::{Batch, Instruction, Lines, UseOf};
use streamvm_stream::{Point, StreamId};

use crate::execute::environment::Environment;
use crate::submit::commit::{Filled, Submitted};
use crate::submit::state::{State, SubmissionStream};
use crate::tasks::task::lines_of;

/// The stream of a row.
pub(crate) struct Row {
    stream: StreamId,
    /// The index of its context's batch.
    batch: usize,
}

impl State {
    /// Begins a row at `line`, which must have no order but that of its uses. `None` in inline mode, on an unordered stream, while the
    /// scheduler holds back tasks of the stream, which no task may overtake, while a barrier is open, and in a critical section.
    #[inline]
    pub(crate) fn begin_row(&self, line: usize, env: &Environment) -> Option<Row> {
        let stream = self.scratch.prepared[line].stream;
        let state = &self.streams[stream.index()];
        let straight = env.inline_tasks.is_none()
            && !stream.is_unordered()
            && state.sent == state.stream_state.dispatched()
            && !self.sync.orders_all();
        straight.then_some(Row { stream, batch: state.batch })
    }

    /// Commits `line` and the lines after it that belong to the same row. Returns the first line after the row.
    #[inline(always)]
    pub(crate) fn commit_row<B: Batch>(
        &mut self,
        Row { stream, batch }: Row,
        mut line: usize,
        (lines, uses): (&mut Lines<'_>, &[UseOf<B>]),
        env: &Environment,
        filled: &mut Filled,
        submitted: &mut Submitted,
    ) -> usize {
        let before = self.sync.last_submitted(stream);
        let mut point = Point::new(stream, before);
        let mut held = None;
        while let Some(instruction) = lines.next() {
            let mut task = self.take_box(lines_of(&instruction), &env.returned);
            self.spare_node(&task);
            point.seq += 1;
            task.point = point;
            task.forget_reads();
            let observed = &mut self.snapshot.of(env);
            let ordered = &self.scratch.uses[instruction.use_range()];
            let waits = self.sync.order_uses(point, ordered, observed, |read| task.add_read(read));
            self.add_planned_waits(&mut task, &waits, env);
            self.fill(&mut task, line, instruction, uses, filled);
            line += 1;
            if !waits.is_empty() && task.has_host_waits() {
                held = Some(task);
                break;
            }
            self.batches.add(batch, task);
            let belongs =
                |next: &Instruction| self.scratch.prepared[line].stream == stream && !next.kind.has_explicit_order();
            if !lines.peek().is_some_and(belongs) {
                break;
            }
        }
        self.sync.give_numbers(point);
        let SubmissionStream { stream_state, span, .. } = &mut self.streams[stream.index()];
        if let code @ 1.. = std::mem::take(&mut filled.code) {
            stream_state.note_code(code);
        }
        stream_state.note_submitted(point.seq);
        submitted.add_row(stream, (before + 1, point.seq), span);
        if let Some(task) = held {
            self.dispatch(task, env);
        }
        line
    }
}
