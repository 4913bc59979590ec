//! Soft sync: the pass that turns dependences across streams into waits.
//!
//! The pass is a pure function of (list, state): it numbers each instruction on its stream, finds what it must come
//! after, drops what order already gives, and says how the rest is waited for and where a device must record an event
//! so that it can be. It knows no device, no thread and no time; what has been seen to pass is part of its input
//! ([`Observed`]).
//!
//! The way of an instruction through the pass ([`SoftSync::instruction`]): uses → needs (points), none for a read of what its
//! stream was found to be behind before → dropped if on the same stream, covered by the clock or observed → the need itself (the source shows numbers) or the
//! earliest record at or after it (the source shows events) → the sources' clocks merged → dropped if one of those covers
//! it, so that another need implies it → wait.
//!
//! Invariants:
//! * Every wait names a point submitted earlier. So the oldest unfinished instruction can always run.
//! * A need is dropped only if it is implied: too few waits is a race, one too many is only slow.
//! * Nothing here can fail, so marks and clocks never need undoing.
//! * A point of an unordered stream says nothing about others: it is never in a clock, it is needed also on its own stream, and
//!   each read is kept until it was seen to have passed.

mod clock;
mod dependence;
mod needs;
mod observed;
mod open;
mod parts;
mod plan;
mod record;

use std::num::NonZeroU32;
use std::ops::Range;

use slab::Slab;
use streamvm_ep::{Access, Footprint};
use streamvm_stream::allocator::AccessSet;
use streamvm_stream::mutant::{Mutant, Planted};
use streamvm_stream::{Capabilities, Point, RecordRule, Shows, StreamClass, StreamId, WaitKind};

use crate::engine::ResourceId;
use clock::Clocks;
pub use dependence::Dependence;
use needs::Needs;
pub use observed::{NothingObserved, Observed};
use open::Open;
pub use parts::MOST_PARTS;
pub use plan::{Plan, Planned, Wait};
use record::Records;
pub use record::{PlannedRecord, RecordPlace};

/// Which rule finds the waits.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum SoftSyncMode {
    /// Reads run side by side, and clocks drop what is already ordered.
    #[default]
    Minimal,
    /// A wait whenever a resource's last-used stream changes, whatever the accesses were: OneFlow's rule, kept for
    /// comparison.
    LastUsedStream,
}

/// One use of a dependence by an instruction.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct DependenceUse {
    /// The resource.
    pub resource: ResourceId,
    /// A write that keeps a part of what it uses is [`Access::ReadWrite`].
    pub access: Access,
    /// The part of the resource that is used; `None` is all of it.
    pub part: Option<PartId>,
}

impl DependenceUse {
    /// A use of all of a resource.
    pub fn whole(resource: ResourceId, access: Access) -> DependenceUse {
        DependenceUse { resource, access, part: None }
    }
}

/// The number of a part among those of the list at hand: see [`SoftSync::add_part`].
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PartId(NonZeroU32);

/// What an instruction asks of order besides its uses.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// Nothing.
    Uses,
    /// To come after this point.
    After(Point),
    /// That its point can be waited for by event, where its stream shows events.
    Record,
    /// To come after every point submitted before.
    AfterAll,
    /// [`Order::AfterAll`], and that everything submitted later comes after it.
    Barrier,
}

#[derive(Clone, Debug)]
struct StreamState {
    class: StreamClass,
    /// It shows its points by events.
    by_event: bool,
    /// The highest number given; of an unordered stream, how many were.
    last: u64,
    records: Records,
    /// Of an unordered stream, the points that were not seen to have passed, and some that were.
    open: Open,
}

/// The state of the pass: dependences, streams and their clocks.
#[derive(Clone, Debug)]
pub struct SoftSync {
    mode: SoftSyncMode,
    capabilities: Capabilities,
    dependences: Slab<Dependence>,
    streams: Vec<StreamState>,
    /// Some stream shows its points by events.
    places_records: bool,
    clocks: Clocks,
    barrier: Option<Point>,
    /// The needs of the instruction at hand.
    needs: Vec<Point>,
    /// Filled by `uses_with_parts`: the points whose writes the instruction at hand reads.
    shown: Vec<Point>,
    /// The parts that the list at hand uses.
    parts: Vec<Footprint>,
    plan: Plan,
    planted: Planted,
}

impl SoftSync {
    /// No streams, no dependences.
    pub fn new(mode: SoftSyncMode, capabilities: Capabilities) -> SoftSync {
        SoftSync {
            mode,
            capabilities,
            dependences: Slab::new(),
            streams: Vec::new(),
            places_records: false,
            clocks: Clocks::new(),
            barrier: None,
            needs: Vec::new(),
            shown: Vec::new(),
            parts: Vec::new(),
            plan: Plan::default(),
            planted: Planted::default(),
        }
    }

    /// Breaks a rule on purpose.
    #[doc(hidden)]
    pub fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }

    /// Adds the next stream; ids are dense and given in order.
    pub fn add_stream(&mut self, class: StreamClass) -> StreamId {
        let index = self.streams.len() as u32;
        let id = if class.stream_type.is_unordered() { StreamId::unordered(index) } else { StreamId(index) };
        let by_event = self.capabilities.shows(class) == Shows::Event;
        self.places_records |= by_event;
        self.streams.push(StreamState { class, by_event, last: 0, records: Records::default(), open: Open::default() });
        self.clocks.add_stream();
        id
    }

    /// Adds a dependence.
    pub fn add_dependence(&mut self, dependence: Dependence) -> ResourceId {
        ResourceId(self.dependences.insert(dependence) as u32)
    }

    /// Removes a dependence and returns what its memory must wait for before it is used again.
    pub fn remove_dependence(&mut self, id: ResourceId) -> AccessSet {
        self.dependences.remove(id.index()).accesses()
    }

    /// Starts a dependence anew, behind all that it was, for the next life of its memory: what [`SoftSync::remove_dependence`] and
    /// [`SoftSync::add_dependence`] behind what it gave would come to. Only if one ordered stream has all of it: that stream is
    /// returned.
    #[inline]
    pub fn renew_dependence(&mut self, id: ResourceId) -> Option<StreamId> {
        self.dependences[id.index()].renew()
    }

    /// The dependence of a resource.
    pub fn dependence(&self, id: ResourceId) -> &Dependence {
        &self.dependences[id.index()]
    }

    /// The last writes of all resources: what a later reader will look at.
    pub fn last_writes(&self) -> impl Iterator<Item = Point> + '_ {
        self.dependences.iter().flat_map(|(_, dependence)| dependence.last_writes(None))
    }

    /// Starts the memory of a resource anew: it was given other memory, whose former lives `dependence` holds.
    pub fn replace_dependence(&mut self, id: ResourceId, dependence: Dependence) {
        self.dependences[id.index()] = dependence;
    }

    /// The highest sequence number given on an ordered stream, and how many were given on an unordered one.
    pub fn last_submitted(&self, stream: StreamId) -> u64 {
        self.streams[stream.index()].last
    }

    /// Whether the pass may place records: then the plan of a line is complete only when that of the whole list is.
    pub fn places_records(&self) -> bool {
        self.places_records
    }

    /// How many streams there are.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Adds a part of a storage that the list at hand uses, in units that all uses of that storage share. `None`, all of it, once there
    /// are as many as have numbers.
    #[cold]
    pub fn add_part(&mut self, part: Footprint) -> Option<PartId> {
        self.parts.push(part);
        u32::try_from(self.parts.len()).ok().and_then(NonZeroU32::new).map(PartId)
    }

    /// Forgets the parts of the list before.
    #[inline]
    pub fn forget_parts(&mut self) {
        self.parts.clear();
    }

    /// Starts a list: forgets the plan of the one before.
    pub fn begin(&mut self) {
        self.plan.clear();
        if self.places_records {
            for stream in self.streams.iter_mut().filter(|stream| stream.by_event) {
                stream.records.begin(stream.last);
            }
        }
    }

    /// What was decided since [`SoftSync::begin`].
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The next number of a stream. An engine gives the instructions of an unordered stream other ones, by which it finds them
    /// again; this then only counts them.
    #[inline]
    pub fn number(&mut self, stream: StreamId) -> Point {
        let state = &mut self.streams[stream.index()];
        state.last += 1;
        Point::new(stream, state.last)
    }

    /// Notes that the numbers of an ordered stream up to this one are given.
    #[inline]
    pub fn give_numbers(&mut self, last: Point) {
        self.streams[last.stream.index()].last = last.seq;
    }

    /// Whether everything that is submitted comes after a barrier that was not seen to have passed.
    #[inline]
    pub fn has_barrier(&self) -> bool {
        self.barrier.is_some()
    }

    /// Takes the next instruction of the list, which was given its number: decides its waits, and enters it into the plan.
    pub fn instruction(&mut self, at: Point, uses: &[DependenceUse], order: Order, observed: &mut impl Observed) {
        let mut reads = std::mem::take(&mut self.plan.reads);
        let first_read = reads.len() as u32;
        let waits = self.order(at, uses, order, observed, |point| reads.push(point));
        self.plan.reads = reads;
        let reads = first_read..self.plan.reads.len() as u32;
        self.plan.instructions.push(Planned { point: at, waits, reads });
    }

    /// [`SoftSync::instruction`] for who needs no plan of the whole list: its waits are returned, and the points that wrote
    /// what it reads are told to `read`. Lists whose lines name each other, and engines that place records, need the plan.
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
        if !matches!(order, Order::Uses) || self.barrier.is_some() {
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

    /// [`SoftSync::order`] of an instruction of an ordered stream that asks nothing but its uses, where no records are placed and
    /// no barrier is open.
    #[inline(always)]
    pub fn order_uses(
        &mut self,
        at: Point,
        uses: &[DependenceUse],
        observed: &mut impl Observed,
        mut read: impl FnMut(Point),
    ) -> Range<u32> {
        debug_assert!(!at.stream.is_unordered() && !self.places_records && !self.has_barrier());
        self.needs.clear();
        self.needs_of_uses(at, uses, observed, &mut read)
    }

    /// Finds what an instruction needs by its uses, enters them, and turns all that it needs into waits, which are returned.
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
        // An instruction with one use looks its record up once: a chain in lists takes 853 instructions of the processor an operation, and
        // 882 without this case (`make bench-instr`).
        if let [only] = uses {
            let dependence = &mut self.dependences[only.resource.index()];
            if is_whole(dependence, only) {
                tell_read(dependence, only.access, read);
                if !dependence.is_of(at.stream) {
                    Needs { at, mode, clocks, needs, observed }.of_whole(dependence, only.access);
                }
                mark(dependence, at, only, observed, planted);
                return if self.needs.is_empty() { 0..0 } else { self.settle(at) };
            }
        }
        // All needs before any mark, so that no use of a resource finds a mark of another use by the same instruction.
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
                // `read` is called here and not in `uses_with_parts`: a reference to it, passed to a function that is not inlined, would
                // force the variables that it captures out of registers.
                (0..self.shown.len()).for_each(|index| read(self.shown[index]));
            }
        }
        if self.needs.is_empty() { 0..0 } else { self.settle(at) }
    }

    /// The path of an instruction that uses a part, or a resource whose record is split. Finds the needs of `uses[first..]` (those before
    /// have been found), and enters all uses. Leaves in `shown` the points whose writes these uses read.
    #[inline(never)]
    fn uses_with_parts(&mut self, at: Point, uses: &[DependenceUse], first: usize, observed: &mut impl Observed) {
        let (mode, clocks, needs, shown) = (self.mode, &self.clocks, &mut self.needs, &mut self.shown);
        shown.clear();
        for u in &uses[first..] {
            let dependence = &mut self.dependences[u.resource.index()];
            tell_read(dependence, u.access, &mut |point| shown.push(point));
            if !dependence.is_of(at.stream) && !takes_apart(at, u, self.planted) {
                Needs { at, mode, clocks, needs, observed }.of_use(dependence, u, &self.parts, shown);
            }
        }
        for u in uses {
            let dependence = &mut self.dependences[u.resource.index()];
            if is_whole(dependence, u) {
                mark(dependence, at, u, observed, self.planted);
            } else if !forgets(at, u, self.planted) {
                with_extent(u, &self.parts, |extent| dependence.note_part(at, u.access, extent, observed));
            }
        }
    }

    /// Places the records that an instruction asks for unasked: before it, when its stream is held back, so that
    /// others need not wait for what holds it; behind it, when its stream records behind each.
    #[inline(never)]
    fn record_around(&mut self, at: Point, order: Order, waits: Range<u32>) {
        let line = self.plan.instructions.len();
        let state = &mut self.streams[at.stream.index()];
        let held = self.plan.waits[waits.start as usize..waits.end as usize].iter().any(|w| w.kind == WaitKind::Host);
        if held && !self.planted.is(Mutant::RecordBehindHeld) {
            state.records.at_or_after(Point::new(at.stream, at.seq - 1), &mut self.plan.records, self.planted);
        }
        state.records.next_line(at.seq, line);
        // A wait that the program asked for does no work of its own that a need could name.
        let works = !matches!(order, Order::After(_));
        if order == Order::Record || (works && self.capabilities.records(state.class) == RecordRule::BehindEach) {
            state.records.at_or_after(at, &mut self.plan.records, self.planted);
        }
    }

    /// Finds what an instruction needs besides what its uses do.
    #[cold]
    fn needs_of_order(&mut self, at: Point, order: Order, observed: &mut impl Observed) {
        let (mode, clocks, needs) = (self.mode, &self.clocks, &mut self.needs);
        if mode == SoftSyncMode::Minimal && self.barrier.is_some_and(|barrier| observed.has_passed(barrier)) {
            // It stays passed: nothing has to look at it again.
            self.barrier = None;
        }
        let mut needs = Needs { at, mode, clocks, needs, observed };
        if let Some(barrier) = self.barrier {
            needs.of_order(barrier);
        }
        match order {
            Order::Uses | Order::Record => {}
            Order::After(point) => needs.of_order(point),
            Order::AfterAll | Order::Barrier => {
                // Its own stream is among them, and drops out as its own.
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

    /// Turns the needs of the instruction at `at` into its waits, which are returned.
    #[inline(never)]
    fn settle(&mut self, at: Point) -> Range<u32> {
        let first = self.plan.waits.len() as u32;
        if self.places_records {
            for need in &mut self.needs {
                let source = &mut self.streams[need.stream.index()];
                if source.by_event {
                    *need = source.records.at_or_after(*need, &mut self.plan.records, self.planted);
                }
            }
        }
        // Neither the points of an unordered stream are in clocks, nor has it one.
        let ordered = !at.stream.is_unordered();
        if ordered {
            self.clocks.turn(at);
        }
        for &need in self.needs.iter().filter(|need| ordered && !need.stream.is_unordered()) {
            let as_of = if self.planted.is(Mutant::ClockTooFar) { u64::MAX >> 1 } else { need.seq };
            self.clocks.merge(at.stream, need, as_of);
        }
        // The clock has what all sources knew, not yet the sources themselves: a need that it covers now is one that another
        // need implies. Order has no cycles, so there is always one that none implies.
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

    /// A point that can be waited for, of another stream than `point` and `at`, if there is one.
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
fn takes_apart(at: Point, u: &DependenceUse, planted: Planted) -> bool {
    planted.is(Mutant::PartsApart) && u.part.is_some() && at.seq.is_multiple_of(2)
}

/// Poison belongs to points: what is read is told to `read` as the point that wrote it.
#[inline(always)]
fn tell_read(dependence: &Dependence, access: Access, read: &mut impl FnMut(Point)) {
    if access != Access::Write
        && let Some(point) = dependence.last_write()
    {
        read(point);
    }
}

/// Whether a planted mutant does not enter a use.
fn forgets(at: Point, u: &DependenceUse, planted: Planted) -> bool {
    planted.is(Mutant::LastUseNotUpdated) && u.access == Access::Read && at.seq.is_multiple_of(2)
}

/// Whether a use is of all of a resource whose record is not split.
#[inline(always)]
fn is_whole(dependence: &Dependence, u: &DependenceUse) -> bool {
    u.part.is_none() && !dependence.is_split()
}

/// Enters a use of all of a resource whose record is not split.
#[inline(always)]
fn mark(dependence: &mut Dependence, at: Point, u: &DependenceUse, observed: &mut impl Observed, planted: Planted) {
    if forgets(at, u, planted) {
        return;
    }
    match u.access {
        Access::Read if at.stream.is_unordered() => dependence.note_unordered_read(at, observed),
        Access::Read => dependence.note_read(at),
        Access::Write | Access::ReadWrite => dependence.note_write(at),
    }
}

/// Shows the part of its resource that is used.
fn with_extent<R>(u: &DependenceUse, parts: &[Footprint], f: impl FnOnce(&Footprint) -> R) -> R {
    match u.part {
        Some(PartId(number)) => f(&parts[number.get() as usize - 1]),
        None => f(&Footprint::all()),
    }
}
