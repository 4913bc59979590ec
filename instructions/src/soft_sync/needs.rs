//! Needs: what an instruction must come after, and what of that is known to be met.

use streamvm_ep::{Access, Footprint};
use streamvm_stream::Point;

use super::clock::Clocks;
use super::dependence::Dependence;
use super::parts::Parts;
use super::{DependenceUse, Observed, SoftSyncMode, with_extent};

/// The points that one instruction must come after: at most one per stream, none of them known to be implied or to have passed.
pub(super) struct Needs<'a, O> {
    pub(super) at: Point,
    /// The coarser rule asks nobody of what data needs.
    pub(super) mode: SoftSyncMode,
    /// That of `at`'s stream drops what is known to be implied.
    pub(super) clocks: &'a Clocks,
    pub(super) needs: &'a mut Vec<Point>,
    pub(super) observed: &'a mut O,
}

/// How an instruction stands to a point that it must come after.
#[derive(Copy, Clone)]
enum Standing {
    /// Its stream is behind the point anyway.
    Behind,
    /// The point was seen to have passed.
    Passed,
    /// It needs it.
    Open,
}

impl<O: Observed> Needs<'_, O> {
    /// Adds the points of other streams that a use of a resource must come after, where the resource's record is whole.
    #[inline]
    pub(super) fn of_whole(&mut self, dependence: &mut Dependence, access: Access) {
        let known =
            self.mode == SoftSyncMode::Minimal && access == Access::Read && dependence.is_behind(self.at.stream);
        if !known {
            self.of_unknown(dependence, access);
        }
    }

    /// Adds the points of other streams that a use of a resource must come after. Where the resource's record is split, `shown` gets the points
    /// whose writes the use reads.
    pub(super) fn of_use(
        &mut self,
        dependence: &mut Dependence,
        u: &DependenceUse,
        parts: &[Footprint],
        shown: &mut Vec<Point>,
    ) {
        let last_use = dependence.last_use();
        match dependence.split_record() {
            Some(split) => with_extent(u, parts, |extent| self.of_part(split, last_use, u.access, extent, shown)),
            None => self.of_whole(dependence, u.access),
        }
    }

    #[inline(never)]
    fn of_unknown(&mut self, dependence: &mut Dependence, access: Access) {
        let asks = self.mode == SoftSyncMode::Minimal;
        if !asks && let Some(point) = dependence.last_use() {
            self.add(point, asks);
        } else if access != Access::Read {
            dependence.needs_of_write(|point| {
                self.add(point, asks);
            });
        } else if let Some(write) = dependence.only_need_of_read() {
            match self.add(write, asks) {
                Standing::Behind => dependence.note_behind(self.at.stream),
                Standing::Passed => dependence.note_passed(),
                Standing::Open => {}
            }
        } else {
            dependence.needs_of_read(|point| {
                self.add(point, asks);
            });
        }
    }

    /// Adds the points that a use must come after, where the record of its resource is split.
    fn of_part(
        &mut self,
        parts: &mut Parts,
        last_use: Option<Point>,
        access: Access,
        extent: &Footprint,
        shown: &mut Vec<Point>,
    ) {
        let extent = parts.make_room(self.at, access, extent, self.observed);
        if access.reads() {
            shown.extend(parts.writes(&extent));
        }
        // The coarser rule orders by the last use of any part, and tells failures apart all the same.
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

    /// What the program asks for is dropped by clocks in both modes.
    pub(super) fn of_order(&mut self, point: Point) {
        self.add(point, true);
    }

    /// Adds a point, if it is one (that of number 0 is none), unless it is `asks` and known to be met.
    fn add(&mut self, point: Point, asks: bool) -> Standing {
        let apart = self.at.stream.is_unordered() || point.stream.is_unordered();
        let own = point.stream == self.at.stream && !apart;
        if own || point.seq == 0 || (asks && !apart && self.clocks.covers(self.at.stream, point)) {
            return Standing::Behind;
        }
        // Of what is apart none implies another. The same one twice does no harm; what an instruction uses twice in a row is found here.
        if apart && self.needs.last() == Some(&point) {
            return Standing::Open;
        }
        if self.mode == SoftSyncMode::Minimal && self.observed.has_passed(point) {
            return Standing::Passed;
        }
        // Of an ordered stream the highest point stands for all, whoever waits. Those of an unordered one are not searched: there may be
        // very many.
        let ordered = !point.stream.is_unordered();
        let same = if ordered { self.needs.iter_mut().find(|need| need.stream == point.stream) } else { None };
        match same {
            Some(need) => need.seq = need.seq.max(point.seq),
            None => self.needs.push(point),
        }
        Standing::Open
    }
}
