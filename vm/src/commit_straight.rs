//! Committing instructions that ask nothing but their uses, one behind the other on one ordered stream, and go straight to its
//! thread context. Nearly all instructions are such, so what is the same for all of a row is looked at once.

use std::borrow::Borrow;

use streamvm_instructions::{Declared, Kind, Line, Tensor, Var};
use streamvm_stream::{Point, StreamId};

use crate::commit::{Committed, Submitted};
use crate::shared::Shared;
use crate::state::State;

/// A row of instructions on one stream.
#[derive(Copy, Clone)]
pub(crate) struct Row {
    stream: StreamId,
    /// The batch of its context.
    batch: usize,
    first: u64,
    /// The last number that was given.
    last: u64,
}

impl State {
    /// Begins a row on `stream`, where that can be: what is sent must not get ahead of what the scheduler holds back, and what
    /// others ask of order must not be passed over.
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

    /// Ends a row, if there is one: its numbers are given.
    #[inline]
    pub(crate) fn end_row(&mut self, row: &mut Option<Row>, submitted: &mut Submitted) {
        if let Some(Row { stream, first, last, .. }) = row.take()
            && first <= last
        {
            self.sync.give_numbers(Point::new(stream, last));
            submitted.add_row(stream, first, last);
        }
    }

    /// Commits `line` as one of `row`, or of a new one. Returns false, and has done nothing, if it must go another way; then there
    /// is no row.
    #[inline(always)]
    pub(crate) fn commit_in_row<T, V>(
        &mut self,
        row: &mut Option<Row>,
        (line, instruction): (usize, Line<'_>),
        uses: &[Declared<T, V>],
        vm: &Shared,
        submitted: &mut Submitted,
        committed: &mut Committed,
    ) -> Option<Line<'_>>
    where
        T: Borrow<Tensor>,
        V: Borrow<Var>,
    {
        todo!()
    }
}
