//! The decisions of the pass: what an instruction must come after, and which waits and records establish that order.

use std::ops::Range;

use streamvm_ep::Access;
use streamvm_stream::mutant::{Mutant, Planted};
use streamvm_stream::{Point, RecordRule, Shows, StreamId, WaitKind};

use crate::soft_sync::dependence::Dependence;
use crate::soft_sync::needs::Needs;
use crate::soft_sync::observed::Observed;
use crate::soft_sync::pass::SoftSync;
use crate::soft_sync::plan::{Planned, Wait};
use crate::soft_sync::request::{DependenceUse, Order, SoftSyncMode, with_extent};

impl SoftSync {
    /// Processes the next instruction of the list, whose number is `at`: decides its waits, and adds it to the plan.
    pub fn instruction(&mut self, at: Point, uses: &[DependenceUse], order: Order, observed: &mut impl Observed) {
        let mut reads = std::mem::take(&mut self.plan.reads);
        let first_read = reads.len() as u32;
        let waits = self.order(at, uses, order, observed, |point| reads.push(point));
        self.plan.reads = reads;
        let reads = first_read..self.plan.reads.len() as u32;
        self.plan.instructions.push(Planned { point: at, waits, reads });
    }

    /// [`SoftSync::instruction`] for a caller that needs no plan of the whole list. Returns the range of the waits, and calls
    /// `read` with each point that wrote a resource that the instruction reads. Lists whose lines refer to each other, and engines
    /// that place records, need the plan.
    #[inline(always)]
    pub fn order(
        &mut self,
        at: Point,
        uses: &[DependenceUse],
        order: Order,
        observed: &mut impl Observed,
        mut read: impl FnMut(Point),
    ) -> Range<u32> {
        self.needs.clear();
        if !matches!(order, Order::Uses) || self.orders_all() {
            self.needs_of_order(at, order, observed);
        }
        let waits = self.needs_of_uses(at, uses, observed, &mut read);
        if self.streams[at.stream.index()].by_event {
            self.record_around(at, order, waits.clone());
        }
        if at.stream.is_unordered() {
            self.streams[at.stream.index()].open.add(at, observed);
        }
        if matches!(order, Order::Barrier) {
            self.barrier = Some(at);
        }
        waits
    }

    /// [`SoftSync::order`] for an instruction of an ordered stream that asks for no order besides its uses, where no records are
    /// placed, no barrier is open, and the instruction belongs to no section.
    #[inline(always)]
    pub fn order_uses(
        &mut self,
        at: Point,
        uses: &[DependenceUse],
        observed: &mut impl Observed,
        mut read: impl FnMut(Point),
    ) -> Range<u32> {
        debug_assert!(!at.stream.is_unordered() && !self.places_records && !self.orders_all());
        self.needs.clear();
        self.needs_of_uses(at, uses, observed, &mut read)
    }

    /// Adds the needs of the instruction's uses, notes the uses in their dependences, and turns all needs into waits. Returns the
    /// range of the waits.
    #[inline(always)]
    fn needs_of_uses(
        &mut self,
        at: Point,
        uses: &[DependenceUse],
        observed: &mut impl Observed,
        read: &mut impl FnMut(Point),
    ) -> Range<u32> {
        let (mode, clocks, needs) = (self.mode, &self.clocks, &mut self.needs);
        let planted = self.planted;
        // An instruction with one use has a path of its own, which looks its dependence up only once.
        if let [only] = uses {
            let dependence = &mut self.dependences[only.resource.index()];
            if is_whole(dependence, only) {
                tell_read(dependence, only.access, read);
                if !dependence.is_of(at.stream) {
                    Needs { at, mode, clocks, needs, observed }.of_whole(dependence, only.access);
                }
                mark(dependence, at, only, observed, planted);
                return if self.needs.is_empty() { 0..0 } else { self.plan_waits(at) };
            }
        }
        // All needs come before the first mark, so that a use of a resource never sees the mark of another use by the same
        // instruction.
        let mut with_parts = None;
        for (index, u) in uses.iter().enumerate() {
            let dependence = &mut self.dependences[u.resource.index()];
            if !is_whole(dependence, u) {
                with_parts = Some(index);
                break;
            }
            tell_read(dependence, u.access, read);
            if !dependence.is_of(at.stream) {
                Needs { at, mode, clocks, needs, observed }.of_whole(dependence, u.access);
            }
        }
        match with_parts {
            None => {
                for u in uses {
                    mark(&mut self.dependences[u.resource.index()], at, u, observed, planted);
                }
            }
            Some(first) => {
                self.uses_with_parts(at, uses, first, observed);
                // `read` is called here and not in `uses_with_parts`: a reference to it, passed to a function that is not inlined,
                // would force the variables that it captures out of registers.
                (0..self.read_points.len()).for_each(|index| read(self.read_points[index]));
            }
        }
        if self.needs.is_empty() { 0..0 } else { self.plan_waits(at) }
    }

    /// The path of an instruction that uses a part, or a resource whose record is split. Adds the needs of `uses[first..]` (those
    /// before have been added), and notes all uses. Leaves in `read_points` the points whose writes these uses read.
    #[inline(never)]
    fn uses_with_parts(&mut self, at: Point, uses: &[DependenceUse], first: usize, observed: &mut impl Observed) {
        let (mode, clocks, needs, read_points) = (self.mode, &self.clocks, &mut self.needs, &mut self.read_points);
        read_points.clear();
        for u in &uses[first..] {
            let dependence = &mut self.dependences[u.resource.index()];
            tell_read(dependence, u.access, &mut |point| read_points.push(point));
            if !dependence.is_of(at.stream) && !mutant_skips_needs(at, u, self.planted) {
                Needs { at, mode, clocks, needs, observed }.of_use(dependence, u, &self.parts, read_points);
            }
        }
        for u in uses {
            let dependence = &mut self.dependences[u.resource.index()];
            if is_whole(dependence, u) {
                mark(dependence, at, u, observed, self.planted);
            } else if !mutant_skips_note(at, u, self.planted) {
                with_extent(u, &self.parts, |extent| dependence.note_part(at, u.access, extent, observed));
            }
        }
    }

    /// Places the records that an instruction needs without a request by the program:
    /// * before it, when the scheduler holds its stream back, or its own conditions do, so that other streams do not wait for what the stream
    ///   waits for;
    /// * after it, when its stream records after each instruction.
    #[inline(never)]
    fn record_around(&mut self, at: Point, order: Order, waits: Range<u32>) {
        let line = self.plan.instructions.len();
        let state = &mut self.streams[at.stream.index()];
        let by_host =
            self.plan.waits[waits.start as usize..waits.end as usize].iter().any(|w| w.kind == WaitKind::Host);
        let held = by_host || order == Order::Pieces;
        if held && !self.planted.is(Mutant::RecordBehindHeld) {
            state.records.at_or_after(Point::new(at.stream, at.seq - 1), &mut self.plan.records, self.planted);
        }
        state.records.next_line(at.seq, line);
        // A wait that the program asked for runs no work, so no need ever names its point.
        let works = !matches!(order, Order::After(_));
        if order == Order::Record || (works && self.capabilities.records(state.class) == RecordRule::BehindEach) {
            state.records.at_or_after(at, &mut self.plan.records, self.planted);
        }
    }

    /// Adds the needs of an instruction besides those of its uses.
    #[cold]
    fn needs_of_order(&mut self, at: Point, order: Order, observed: &mut impl Observed) {
        let (mode, clocks, needs) = (self.mode, &self.clocks, &mut self.needs);
        if mode == SoftSyncMode::Minimal && self.barrier.is_some_and(|barrier| observed.has_passed(barrier)) {
            // A barrier stays passed, so no later instruction has to check it.
            self.barrier = None;
        }
        let mut needs = Needs { at, mode, clocks, needs, observed };
        if let Some(barrier) = self.barrier {
            needs.of_order(barrier);
        }
        if let Some(section) = self.section {
            // As a use by the instruction, but no failure passes by it.
            let u = DependenceUse::whole(section, Access::Read);
            let dependence = &mut self.dependences[section.index()];
            if !dependence.is_of(at.stream) {
                needs.of_whole(dependence, u.access);
            }
            mark(dependence, at, &u, needs.observed, self.planted);
        }
        match order {
            Order::Uses | Order::Record | Order::Pieces => {}
            Order::After(point) => needs.of_order(point),
            Order::AfterAll | Order::Barrier => {
                // The instruction's own stream is among them; `Needs::add` drops it.
                for (index, stream) in self.streams.iter().enumerate() {
                    if stream.class.stream_type.is_unordered() {
                        stream.open.points.iter().for_each(|point| needs.of_order(*point));
                    } else {
                        needs.of_order(Point::new(StreamId(index as u32), stream.last));
                    }
                }
            }
        }
    }

    /// Turns the needs of the instruction at `at` into waits. Returns their range.
    #[inline(never)]
    fn plan_waits(&mut self, at: Point) -> Range<u32> {
        let first = self.plan.waits.len() as u32;
        if self.places_records {
            for need in &mut self.needs {
                let source = &mut self.streams[need.stream.index()];
                if source.by_event {
                    *need = source.records.at_or_after(*need, &mut self.plan.records, self.planted);
                }
            }
        }
        // Points of unordered streams are in no clock, and unordered streams have no clock.
        let ordered = !at.stream.is_unordered();
        if ordered {
            self.clocks.begin_row(at);
        }
        for &need in self.needs.iter().filter(|need| ordered && !need.stream.is_unordered()) {
            let as_of = if self.planted.is(Mutant::ClockTooFar) { u64::MAX >> 1 } else { need.seq };
            self.clocks.merge(at.stream, need, as_of);
        }
        // The clock now has everything that the sources came after, but not yet the sources themselves. So if it covers a need,
        // another need implies that need. Order has no cycles, so at least one need is implied by no other.
        let target = self.streams[at.stream.index()].class;
        for &point in &self.needs {
            if ordered && !point.stream.is_unordered() {
                if self.mode == SoftSyncMode::Minimal && self.clocks.covers(at.stream, point) {
                    continue;
                }
                self.clocks.raise(at.stream, point);
            }
            if self.planted.is(Mutant::WaitDropped) && at.seq.is_multiple_of(3) {
                continue;
            }
            let point = if self.planted.is(Mutant::WrongSource) { self.of_another(point, at) } else { point };
            let source = &self.streams[point.stream.index()];
            let kind = self.capabilities.wait(source.class, target);
            let shows = if source.by_event { Shows::Event } else { Shows::Number };
            self.plan.waits.push(Wait { point, kind, shows });
        }
        first..self.plan.waits.len() as u32
    }

    /// A point that can be waited for on a stream other than those of `point` and `at`; `point` if there is none. For a planted
    /// mutant.
    #[cold]
    fn of_another(&self, point: Point, at: Point) -> Point {
        let others = self.streams.iter().enumerate().map(|(index, state)| {
            let seq = if state.by_event { state.records.last().unwrap_or(0) } else { state.last };
            let ordered = !state.class.stream_type.is_unordered();
            Point::new(StreamId(index as u32), if ordered { seq } else { 0 })
        });
        let fits = |other: &Point| other.seq > 0 && other.stream != point.stream && other.stream != at.stream;
        others.into_iter().find(fits).unwrap_or(point)
    }
}

/// Whether a planted mutant leaves out the needs of a use.
fn mutant_skips_needs(at: Point, u: &DependenceUse, planted: Planted) -> bool {
    planted.is(Mutant::PartsApart) && u.part.is_some() && at.seq.is_multiple_of(2)
}

/// Failures (poison) are found by point: calls `read` with the point that wrote the resource, if the use reads it.
#[inline(always)]
fn tell_read(dependence: &Dependence, access: Access, read: &mut impl FnMut(Point)) {
    if access != Access::Write
        && let Some(point) = dependence.last_write()
    {
        read(point);
    }
}

/// Whether a planted mutant leaves a use unnoted.
fn mutant_skips_note(at: Point, u: &DependenceUse, planted: Planted) -> bool {
    planted.is(Mutant::LastUseNotUpdated) && u.access == Access::Read && at.seq.is_multiple_of(2)
}

/// Whether a use is of all of a resource whose record is not split.
#[inline(always)]
fn is_whole(dependence: &Dependence, u: &DependenceUse) -> bool {
    u.part.is_none() && !dependence.is_split()
}

/// Notes a use of all of a resource whose record is not split.
#[inline(always)]
fn mark(dependence: &mut Dependence, at: Point, u: &DependenceUse, observed: &mut impl Observed, planted: Planted) {
    if mutant_skips_note(at, u, planted) {
        return;
    }
    match u.access {
        Access::Read if at.stream.is_unordered() => dependence.note_unordered_read(at, observed),
        Access::Read => dependence.note_read(at),
        Access::Write | Access::ReadWrite => dependence.note_write(at),
    }
}
