//! Committing rows: instructions one behind the other on one ordered stream, that ask nothing but their uses and go straight to
//! their thread context. Nearly all are such, so what is the same for all of a row is looked at once.

use streamvm_instructions::Instruction;
use streamvm_stream::{Point, StreamId};

use crate::commit::Submitted;
use crate::job::Job;
use crate::shared::Shared;
use crate::slot::Slot;
use crate::state::State;

/// The row at hand.
pub(crate) struct Row {
    stream: StreamId,
    /// The batch of its context.
    pub(crate) batch: usize,
    first: u64,
    /// The last number that was given.
    last: u64,
}

impl State {
    /// Has `row` be one of `stream`, for the next instruction, which is of that stream and asks nothing but its uses; where that
    /// cannot be there is none.
    #[inline(always)]
    pub(crate) fn go_on_with_row(
        &mut self,
        row: &mut Option<Row>,
        stream: StreamId,
        vm: &Shared,
        submitted: &mut Submitted,
    ) {
        if row.as_ref().is_none_or(|row| row.stream != stream) {
            self.end_row(row, submitted);
            *row = self.begin_row(stream, vm);
        }
    }

    /// A row on `stream`, unless the scheduler holds something back there, which nothing may get ahead of, or a barrier is open.
    #[inline]
    fn begin_row(&self, stream: StreamId, vm: &Shared) -> Option<Row> {
        let state = &self.streams[stream.index()];
        let straight = vm.inline.is_none()
            && !stream.is_unordered()
            && state.sent == state.entry.dispatched()
            && !self.sync.has_barrier();
        let last = self.sync.last_submitted(stream);
        straight.then_some(Row { stream, batch: state.batch, first: last + 1, last })
    }

    /// Ends the row, if there is one.
    #[inline]
    pub(crate) fn end_row(&mut self, row: &mut Option<Row>, submitted: &mut Submitted) {
        if let Some(Row { stream, first, last, .. }) = row.take()
            && first <= last
        {
            self.sync.give_numbers(Point::new(stream, last));
            submitted.add_row(stream, first, last);
        }
    }

    /// A slot for the next instruction of a row, with its number and its waits.
    #[inline(always)]
    pub(crate) fn next_in_row(&mut self, row: &mut Row, instruction: &Instruction, vm: &Shared) -> Slot<Job> {
        let mut job = self.slot(&vm.returned);
        self.spare_cell(&job);
        row.last += 1;
        job.point = Point::new(row.stream, row.last);
        job.forget_reads();
        let uses = &self.scratch.uses[instruction.use_range()];
        let observed = &mut self.snapshot.of(&vm.streams);
        let waits = self.sync.order_uses(job.point, uses, observed, |point| job.add_read(point));
        self.add_planned_waits(&mut job, &waits, vm);
        job
    }
}
