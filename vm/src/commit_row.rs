//! Committing rows: instructions one behind the other on one ordered stream, that ask nothing but their uses and go straight to
//! their thread context, but for the last, which the scheduler may have to hold back. Nearly all are such, so what is the same for
//! all of a row is looked at once.

use streamvm_instructions::{Batch, Instruction, Lines, UseOf};
use streamvm_stream::{Point, StreamId};

use crate::commit::{Filled, Submitted};
use crate::job::lines_of;
use crate::shared::Shared;
use crate::state::State;

/// Where a row goes.
pub(crate) struct Row {
    stream: StreamId,
    /// The batch of its context.
    batch: usize,
}

impl State {
    /// A row that begins with `line`, which asks nothing but its uses; none where the scheduler holds something back on its stream,
    /// which nothing may get ahead of, or a barrier is open.
    #[inline]
    pub(crate) fn begin_row(&self, line: usize, vm: &Shared) -> Option<Row> {
        let stream = self.scratch.prepared[line].stream;
        let state = &self.streams[stream.index()];
        let straight = vm.inline.is_none()
            && !stream.is_unordered()
            && state.sent == state.entry.dispatched()
            && !self.sync.has_barrier();
        straight.then_some(Row { stream, batch: state.batch })
    }

    /// Commits `line` and those behind it that belong to the same row. Returns the line behind them.
    #[inline(always)]
    pub(crate) fn commit_row<B: Batch>(
        &mut self,
        Row { stream, batch }: Row,
        mut line: usize,
        (lines, uses): (&mut Lines<'_>, &[UseOf<B>]),
        vm: &Shared,
        filled: &mut Filled,
        submitted: &mut Submitted,
    ) -> usize {
        let before = self.sync.last_submitted(stream);
        let mut point = Point::new(stream, before);
        let mut held = None;
        while let Some(instruction) = lines.next() {
            if B::ONE {
                // There is enough to do until the places are needed for their line to come.
                self.outbox.fetch(batch);
            }
            let mut job = self.slot(lines_of(&instruction), &vm.returned);
            self.spare_cell(&job);
            point.seq += 1;
            job.point = point;
            job.forget_reads();
            let observed = &mut self.snapshot.of(vm);
            let ordered = &self.scratch.uses[instruction.use_range()];
            let waits = self.sync.order_uses(point, ordered, observed, |read| job.add_read(read));
            self.add_planned_waits(&mut job, &waits, vm);
            self.fill(&mut job, line, instruction, uses, filled);
            line += 1;
            if !waits.is_empty() && job.has_host_waits() {
                held = Some(job);
                break;
            }
            if B::ONE {
                filled.only = Some((batch, job));
                break;
            }
            self.outbox.add(batch, job);
            let belongs = |next: &Instruction| self.scratch.prepared[line].stream == stream && !next.kind.asks();
            if !lines.peek().is_some_and(belongs) {
                break;
            }
        }
        self.sync.give_numbers(point);
        let entry = &self.streams[stream.index()].entry;
        if let code @ 1.. = std::mem::take(&mut filled.code) {
            entry.note_code(code);
        }
        entry.note_submitted(point.seq);
        submitted.add_row(stream, before + 1, point.seq);
        if let Some(job) = held {
            self.dispatch(job, vm);
        }
        line
    }
}
