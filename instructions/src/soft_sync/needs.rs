//! Needs: the points that an instruction must come after, without those that are known to be satisfied.

use streamvm_ep::{Access, Footprint};
use streamvm_stream::Point;

use crate::soft_sync::clock::Clocks;
use crate::soft_sync::dependence::Dependence;
use crate::soft_sync::observed::Observed;
use crate::soft_sync::parts::Parts;
use crate::soft_sync::request::{DependenceUse, SoftSyncMode, with_extent};

/// The needs of one instruction: at most one point per ordered stream, none of them known to be implied or to have passed.
pub(super) struct Needs<'a, O> {
    pub(super) at: Point,
    /// Under the coarser rule, [`SoftSyncMode::LastUsedStream`], clocks and observations drop no need of data.
    pub(super) mode: SoftSyncMode,
    /// The clock of the stream of `at` drops needs that are known to be implied.
    pub(super) clocks: &'a Clocks,
    pub(super) needs: &'a mut Vec<Point>,
    pub(super) observed: &'a mut O,
}

/// The relation of an instruction to a point that it must come after.
#[derive(Copy, Clone)]
enum NeedState {
    /// The instruction's stream is already ordered after the point.
    Behind,
    /// The point was seen to have passed.
    Passed,
    /// The instruction must wait for the point.
    Open,
}

impl<O: Observed> Needs<'_, O> {
    /// Adds the points of other streams that a use of a resource must come after, where the resource's record is not split.
    #[inline]
    pub(super) fn of_whole(&mut self, dependence: &mut Dependence, access: Access) {
        let known = self.mode == SoftSyncMode::Minimal && access == Access::Read && dependence.is_after(self.at.stream);
        if !known {
            self.of_unknown(dependence, access);
        }
    }

    /// Adds the points of other streams that a use of a resource must come after. Where the resource's record is split, adds to
    /// `read_points` the points whose writes the use reads.
    pub(super) fn of_use(
        &mut self,
        dependence: &mut Dependence,
        u: &DependenceUse,
        parts: &[Footprint],
        read_points: &mut Vec<Point>,
    ) {
        let last_use = dependence.last_use();
        match dependence.split_record() {
            Some(split) => with_extent(u, parts, |extent| self.of_part(split, last_use, u.access, extent, read_points)),
            None => self.of_whole(dependence, u.access),
        }
    }

    #[inline(never)]
    fn of_unknown(&mut self, dependence: &mut Dependence, access: Access) {
        let use_clock = self.mode == SoftSyncMode::Minimal;
        if !use_clock && let Some(point) = dependence.last_use() {
            self.add(point, use_clock);
        } else if access != Access::Read {
            dependence.needs_of_write(|point| {
                self.add(point, use_clock);
            });
        } else if let Some(write) = dependence.only_need_of_read() {
            match self.add(write, use_clock) {
                NeedState::Behind => dependence.note_after(self.at.stream),
                NeedState::Passed => dependence.note_passed(),
                NeedState::Open => {}
            }
        } else {
            dependence.needs_of_read(|point| {
                self.add(point, use_clock);
            });
        }
    }

    /// Adds the points that a use must come after, where the resource's record is split.
    fn of_part(
        &mut self,
        parts: &mut Parts,
        last_use: Option<Point>,
        access: Access,
        extent: &Footprint,
        read_points: &mut Vec<Point>,
    ) {
        let extent = parts.make_room(self.at, access, extent, self.observed);
        if access.reads() {
            read_points.extend(parts.writes(&extent));
        }
        // The coarser rule orders by the last use of any part. `read_points` is exact in both modes, so failures are found by part.
        if self.mode == SoftSyncMode::LastUsedStream {
            if let Some(point) = last_use {
                self.add(point, false);
            }
            return;
        }
        for write in parts.writes(&extent) {
            self.add(write, true);
        }
        for former in parts.former() {
            self.add(*former, true);
        }
        if access.writes() {
            for before in parts.reads(&extent) {
                self.add(before, true);
            }
        }
    }

    /// Adds a point that the program asks for; clocks drop such points in both modes.
    pub(super) fn of_order(&mut self, point: Point) {
        self.add(point, true);
    }

    /// Adds a point, unless it is on the instruction's own ordered stream or has number 0. With `use_clock`, also drops a point that the
    /// clock covers; in minimal mode, also one that was seen to have passed.
    fn add(&mut self, point: Point, use_clock: bool) -> NeedState {
        let apart = self.at.stream.is_unordered() || point.stream.is_unordered();
        let own = point.stream == self.at.stream && !apart;
        if own || point.seq == 0 || (use_clock && !apart && self.clocks.covers(self.at.stream, point)) {
            return NeedState::Behind;
        }
        // A point of an unordered stream implies no other, and a point added twice does no harm. This check finds the same point
        // twice in a row.
        if apart && self.needs.last() == Some(&point) {
            return NeedState::Open;
        }
        if self.mode == SoftSyncMode::Minimal && self.observed.has_passed(point) {
            return NeedState::Passed;
        }
        // On an ordered stream the highest point implies the others, so one need is kept. Needs on unordered streams are not
        // searched, as there may be very many.
        let ordered = !point.stream.is_unordered();
        let same = if ordered { self.needs.iter_mut().find(|need| need.stream == point.stream) } else { None };
        match same {
            Some(need) => need.seq = need.seq.max(point.seq),
            None => self.needs.push(point),
        }
        NeedState::Open
    }
}
