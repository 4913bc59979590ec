//! The state of the pass: dependences, streams, clocks, and the plan of the current list.

use std::num::NonZeroU32;

use slab::Slab;
use streamvm_ep::Footprint;
use streamvm_stream::allocator::AccessSet;
use streamvm_stream::mutant::Planted;
use streamvm_stream::{Capabilities, Point, Shows, StreamClass, StreamId};

use crate::engine::interface::ResourceId;
use crate::soft_sync::clock::Clocks;
use crate::soft_sync::dependence::Dependence;
use crate::soft_sync::open_points::OpenPoints;
use crate::soft_sync::plan::Plan;
use crate::soft_sync::record::Records;
use crate::soft_sync::request::{PartId, SoftSyncMode};

#[derive(Clone, Debug)]
pub(super) struct SyncStream {
    pub(super) class: StreamClass,
    /// Whether the stream shows its points by events.
    pub(super) by_event: bool,
    /// The highest number that was given; on an unordered stream, the count of numbers that were given.
    pub(super) last: u64,
    pub(super) records: Records,
    /// On an unordered stream, the points that were not seen to have passed, and some that were.
    pub(super) open: OpenPoints,
}

/// The state of the pass: dependences, streams and their clocks.
#[derive(Clone, Debug)]
pub struct SoftSync {
    pub(super) mode: SoftSyncMode,
    pub(super) capabilities: Capabilities,
    pub(super) dependences: Slab<Dependence>,
    pub(super) streams: Vec<SyncStream>,
    /// Whether any stream shows its points by events.
    pub(super) places_records: bool,
    pub(super) clocks: Clocks,
    pub(super) barrier: Option<Point>,
    /// The resource of the critical section that the current instruction belongs to.
    pub(super) section: Option<ResourceId>,
    /// The needs of the current instruction.
    pub(super) needs: Vec<Point>,
    /// Filled by `uses_with_parts`: the points whose writes the current instruction reads.
    pub(super) read_points: Vec<Point>,
    /// The parts that the current list uses.
    pub(super) parts: Vec<Footprint>,
    pub(super) plan: Plan,
    pub(super) planted: Planted,
}

impl SoftSync {
    /// A pass without streams and dependences.
    pub fn new(mode: SoftSyncMode, capabilities: Capabilities) -> SoftSync {
        SoftSync {
            mode,
            capabilities,
            dependences: Slab::new(),
            streams: Vec::new(),
            places_records: false,
            clocks: Clocks::new(),
            barrier: None,
            section: None,
            needs: Vec::new(),
            read_points: Vec::new(),
            parts: Vec::new(),
            plan: Plan::default(),
            planted: Planted::default(),
        }
    }

    /// Plants mutants: the pass then breaks these rules on purpose.
    #[doc(hidden)]
    pub fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }

    /// Adds the next stream. Ids are dense and given in order.
    pub fn add_stream(&mut self, class: StreamClass) -> StreamId {
        let index = self.streams.len() as u32;
        let id = if class.stream_type.is_unordered() { StreamId::unordered(index) } else { StreamId(index) };
        let by_event = self.capabilities.shows(class) == Shows::Event;
        self.places_records |= by_event;
        self.streams.push(SyncStream {
            class,
            by_event,
            last: 0,
            records: Records::default(),
            open: OpenPoints::default(),
        });
        self.clocks.add_stream();
        id
    }

    /// Adds a dependence.
    pub fn add_dependence(&mut self, dependence: Dependence) -> ResourceId {
        ResourceId(self.dependences.insert(dependence) as u32)
    }

    /// Removes a dependence, and returns the accesses that its memory must wait for before it is used again.
    pub fn remove_dependence(&mut self, id: ResourceId) -> AccessSet {
        self.dependences.remove(id.index()).accesses()
    }

    /// Resets a dependence for the next allocation of its memory, ordered after all its accesses. The result is that of
    /// [`SoftSync::remove_dependence`], and [`SoftSync::add_dependence`] with the accesses that it returned. Returns the ordered
    /// stream of all accesses. Returns `None`, and changes nothing, if they are not all on one ordered stream.
    #[inline]
    pub fn renew_dependence(&mut self, id: ResourceId) -> Option<StreamId> {
        self.dependences[id.index()].renew()
    }

    /// The dependence of a resource.
    pub fn dependence(&self, id: ResourceId) -> &Dependence {
        &self.dependences[id.index()]
    }

    /// The last writes of all resources: the points that later readers check for poison.
    pub fn last_writes(&self) -> impl Iterator<Item = Point> + '_ {
        self.dependences.iter().flat_map(|(_, dependence)| dependence.last_writes(None))
    }

    /// Replaces the dependence of a resource that was moved to other memory; `dependence` has the accesses of that memory's former
    /// allocations.
    pub fn replace_dependence(&mut self, id: ResourceId, dependence: Dependence) {
        self.dependences[id.index()] = dependence;
    }

    /// The highest sequence number that was given on an ordered stream; the count of numbers that were given on an unordered one.
    pub fn last_submitted(&self, stream: StreamId) -> u64 {
        self.streams[stream.index()].last
    }

    /// Whether the pass may place records. Then the plan of a line is complete only when the plan of the whole list is.
    pub fn places_records(&self) -> bool {
        self.places_records
    }

    /// The number of streams.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Adds a part of a storage that the current list uses, in units that all uses of that storage share. Returns `None`, which
    /// stands for the whole storage, once all numbers of parts are used up.
    #[cold]
    pub fn add_part(&mut self, part: Footprint) -> Option<PartId> {
        self.parts.push(part);
        u32::try_from(self.parts.len()).ok().and_then(NonZeroU32::new).map(PartId)
    }

    /// Removes the parts of the previous list.
    #[inline]
    pub fn forget_parts(&mut self) {
        self.parts.clear();
    }

    /// Starts a list: removes the plan of the previous one.
    pub fn begin(&mut self) {
        self.plan.clear();
        if self.places_records {
            for stream in self.streams.iter_mut().filter(|stream| stream.by_event) {
                stream.records.begin(stream.last);
            }
        }
    }

    /// Ends a list, after its last instruction: adds the records that later lists are expected to need.
    pub fn end(&mut self) {
        if self.places_records {
            for (index, stream) in self.streams.iter_mut().enumerate().filter(|(_, stream)| stream.by_event) {
                stream.records.end(StreamId(index as u32), &mut self.plan.records);
            }
        }
    }

    /// The decisions since [`SoftSync::begin`].
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The next number of a stream. On an unordered stream an engine gives the instructions numbers of its own, by which it finds
    /// them again; there this only counts them.
    #[inline]
    pub fn number(&mut self, stream: StreamId) -> Point {
        let state = &mut self.streams[stream.index()];
        state.last += 1;
        Point::new(stream, state.last)
    }

    /// Notes that the numbers of an ordered stream up to `last` were given.
    #[inline]
    pub fn give_numbers(&mut self, last: Point) {
        self.streams[last.stream.index()].last = last.seq;
    }

    /// Whether the instructions that follow have an order besides that of their uses: there is a barrier that was not seen to have
    /// passed, or they belong to a critical section.
    #[inline]
    pub fn orders_all(&self) -> bool {
        self.barrier.is_some() || self.section.is_some()
    }

    /// Sets the section that the instructions that follow belong to, by its first resource: until it is set anew, each of them also
    /// reads that resource, as far as order is concerned, and inherits no failure from it. The begin and the end of a section write its
    /// resources, and belong to no section.
    pub fn set_section(&mut self, section: Option<ResourceId>) {
        self.section = section;
    }

    /// The section that the instructions that follow belong to.
    #[inline]
    pub fn section(&self) -> Option<ResourceId> {
        self.section
    }
}
