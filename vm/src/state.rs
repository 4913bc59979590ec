//! The state behind the submission lock: dependences, clocks, numbering, allocators, slots.
//!
//! A submission goes through it in two passes. `prepare` checks everything that can be refused and takes memory, noting
//! how to undo it; `commit` cannot fail: soft sync, numbers, slots, publication. No driver call, no user code and no
//! waiting happens under the lock.

use std::sync::Arc;

use hashbrown::HashMap;
use streamvm_ep::Kernel;
use streamvm_instructions::{DependenceUse, Observed, ResourceId, SoftSync, SyncCounts, Wait};
use streamvm_stream::allocator::Block;
use streamvm_stream::mutant::Planted;
use streamvm_stream::{Point, StreamId, StreamKey, Streams};

use crate::cells::{CellId, cell_of};
use crate::entry::{StreamEntry, StreamTable};
use crate::failures::Failures;
use crate::job::Job;
use crate::kept::Kept;
use crate::memory::{Memory, PoolId, Pools};
use crate::outbox::Outbox;
use crate::room::Pending;
use crate::shared::Shared;
use crate::slot::{Chain, Slot};

/// What is known of a resource's contents.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Contents {
    /// It has memory and nothing was written.
    Fresh,
    /// Something was written.
    Written,
    /// Its memory was given back; only handles are left.
    Released,
}

/// One resource of the engine.
pub(crate) struct Known {
    pub(crate) memory: Memory,
    pub(crate) contents: Contents,
}

/// One stream, as submissions see it.
pub(crate) struct StreamState {
    pub(crate) entry: Arc<StreamEntry>,
    /// How many instructions were sent to the scheduler. Nothing is held back when it has dispatched as many.
    pub(crate) sent: u64,
    /// Without its instructions, of which there are as many as it has numbers.
    pub(crate) counts: SyncCounts,
    /// Where the outbox collects for its context.
    pub(crate) batch: usize,
}

/// What `prepare` found out about one instruction.
pub(crate) struct Prepared {
    pub(crate) stream: StreamId,
    /// The place of its kernel in [`Scratch::kernels`], if it has one.
    pub(crate) kernel: Option<u32>,
    pub(crate) bytes: u64,
    /// The device records behind it; known after soft sync.
    pub(crate) record: bool,
}

/// What `prepare` has changed, to be undone newest first.
#[derive(Copy, Clone)]
pub(crate) enum Undo {
    /// The resource of a use was created.
    Created(ResourceId, UsePlace),
    /// What is known of the contents of the resource of a use was changed; what was known before.
    Contents(ResourceId, UsePlace, Contents),
}

/// A use of a list: its place among all uses.
pub(crate) type UsePlace = usize;

/// Memory that an instruction of the list at hand releases; a later one may get it.
pub(crate) struct Handed {
    pub(crate) owner: ResourceId,
    pub(crate) pool: PoolId,
    pub(crate) block: Block,
    pub(crate) heir: Option<ResourceId>,
}

/// An event that the list at hand records.
pub(crate) struct Recorded {
    pub(crate) stream: StreamKey,
    /// Known once the record has its number.
    pub(crate) point: Option<Point>,
}

/// Scratch of the submission at hand; the capacities stay.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) prepared: Vec<Prepared>,
    pub(crate) kernels: Vec<Kernel>,
    /// Bytes that the instruction at hand has taken for what it creates.
    pub(crate) taken: u64,
    /// The last use of the last instruction, if that has any.
    pub(crate) last_use: Option<UsePlace>,
    /// What all instructions use, in list order: as many, and at the same places, as the uses of the list.
    pub(crate) uses: Vec<DependenceUse>,
    /// A line waits for another by its place in the list.
    pub(crate) by_line: bool,
    /// Resources that the list creates and no engine has claimed, by their address; the list keeps them alive. Another
    /// engine may be taking a list with them at this moment.
    pub(crate) unclaimed: HashMap<usize, ResourceId>,
    /// What explicit waits wait for, by line; known after soft sync.
    pub(crate) waited_for: Vec<(usize, Point)>,
    /// Events that the list records, by their address.
    pub(crate) recorded: HashMap<usize, Recorded>,
    pub(crate) undo: Vec<Undo>,
    pub(crate) handed: Vec<Handed>,
    pub(crate) dropped: Vec<ResourceId>,
    /// The waits of the instruction at hand.
    pub(crate) waits: Vec<Wait>,
    /// The numbers of what it needs on unordered streams.
    pub(crate) numbers: Vec<u64>,
}

impl Scratch {
    pub(crate) fn clear(&mut self) {
        self.prepared.clear();
        self.kernels.clear();
        self.uses.clear();
        self.by_line = false;
        if !self.unclaimed.is_empty() {
            self.unclaimed.clear();
        }
        self.waited_for.clear();
        self.recorded.clear();
        self.undo.clear();
        self.handed.clear();
    }
}

/// See the module's comment.
pub(crate) struct State {
    pub(crate) names: Streams,
    pub(crate) streams: Vec<StreamState>,
    /// The stream of the last look-up: programs stay on one for a while.
    recent: Option<(StreamKey, StreamId)>,
    pub(crate) sync: SoftSync,
    /// How many instructions were submitted, over all streams.
    pub(crate) submitted: u64,
    pub(crate) resources: Vec<Option<Known>>,
    pub(crate) pools: Pools,
    /// Lives that are over, for others of their size.
    pub(crate) kept: Kept,
    pub(crate) free: Chain<Job>,
    /// Cells whose slots went to ordered streams.
    pub(crate) spare_cells: Vec<CellId>,
    /// The slots of a list that is ordered before anything of it is sent, numbered, in its order.
    pub(crate) planned: Chain<Job>,
    pub(crate) outbox: Outbox,
    pub(crate) to_scheduler: Chain<Job>,
    /// In inline mode, all jobs of the list at hand.
    pub(crate) in_order: Chain<Job>,
    pub(crate) snapshot: Snapshot,
    pub(crate) scratch: Scratch,
    /// Failed points that may be forgotten once the marks have passed: what was submitted before may still look there.
    forgetting: Option<(Vec<Point>, Vec<Point>)>,
    /// How many instructions had been submitted when the first failure was seen: all before it have no claim on what fails.
    early: Option<u64>,
    /// What may still be submitted before the timelines are asked again.
    pub(crate) headroom: Pending,
    /// With one core: the submission at hand gives it to others when it is through.
    pub(crate) gives_way: bool,
}

impl State {
    pub(crate) fn new(sync: SoftSync) -> State {
        State {
            names: Streams::new(),
            streams: Vec::new(),
            recent: None,
            sync,
            submitted: 0,
            resources: Vec::new(),
            pools: Pools::default(),
            kept: Kept::default(),
            free: Chain::new(),
            spare_cells: Vec::new(),
            planned: Chain::new(),
            outbox: Outbox::of_submitters(),
            to_scheduler: Chain::new(),
            in_order: Chain::new(),
            snapshot: Snapshot::default(),
            scratch: Scratch::default(),
            forgetting: None,
            early: None,
            headroom: Pending::default(),
            gives_way: false,
        }
    }

    /// Breaks a rule, in builds for suites.
    pub(crate) fn plant(&mut self, planted: Planted) {
        self.sync.plant(planted);
        self.pools.plant(planted);
    }

    /// The id of a stream that was opened.
    #[inline]
    pub(crate) fn stream(&mut self, key: &StreamKey) -> Option<StreamId> {
        match &self.recent {
            Some((recent, id)) if recent == key => Some(*id),
            _ => self.another_stream(*key),
        }
    }

    #[inline(never)]
    fn another_stream(&mut self, key: StreamKey) -> Option<StreamId> {
        let id = self.names.find(&key)?;
        self.recent = Some((key, id));
        Some(id)
    }

    /// Adds a resource; `id` is what soft sync gave its dependence.
    pub(crate) fn add_resource(&mut self, id: ResourceId, known: Known) {
        if self.resources.len() <= id.index() {
            self.resources.resize_with(id.index() + 1, || None);
        }
        self.resources[id.index()] = Some(known);
    }

    /// A resource by the id that its handle holds: there as long as the handle is.
    pub(crate) fn known(&mut self, id: ResourceId) -> Option<&mut Known> {
        self.resources.get_mut(id.index()).and_then(Option::as_mut)
    }

    /// Frees the memory behind handles that are gone, ordered after all that was submitted before, or keeps it for the next.
    #[inline(never)]
    pub(crate) fn free_dropped(&mut self, vm: &Shared) {
        let mut dropped = std::mem::take(&mut self.scratch.dropped);
        for id in dropped.drain(..) {
            if let Some(monitor) = &vm.monitor {
                monitor.forgets(id);
            }
            if !self.keep(id) {
                self.free(id);
            }
        }
        self.scratch.dropped = dropped;
    }

    /// Forgets a resource, and frees its memory.
    pub(crate) fn free(&mut self, id: ResourceId) {
        let accesses = self.sync.remove_dependence(id);
        let known = self.resources.get_mut(id.index()).and_then(Option::take);
        if let Some((pool, block)) = known.and_then(|known| known.memory.block) {
            self.pools.free(pool, block.id, accesses);
        }
    }

    /// Keeps the table of failures from growing for ever: forgets old points that no resource holds, once everything
    /// that was submitted while one might have held them has passed. Called once there are failures.
    #[cold]
    pub(crate) fn forget_failures(&mut self, vm: &Shared) {
        let early = *self.early.get_or_insert(self.submitted);
        let submitted = || vm.streams.iter().flat_map(|entry| entry.open_points()).collect();
        let last_writes = || self.sync.last_writes().collect();
        vm.failures.find_unseen(submitted, |point| vm.streams.has_passed(point), last_writes);
        match self.forgetting.take() {
            Some((points, marks)) if marks.iter().all(|mark| vm.streams.has_passed(*mark)) => {
                vm.failures.forget(&points);
            }
            Some(waiting) => self.forgetting = Some(waiting),
            None => {
                let points = vm.failures.excess(early, || self.sync.last_writes().collect());
                if !points.is_empty() {
                    let marks = vm.streams.iter().flat_map(|entry| entry.open_points()).collect();
                    self.forgetting = Some((points, marks));
                }
            }
        }
    }

    /// A slot to fill: one that came back, or a new one. Of those behind it so many lines are fetched: what is alike mostly comes
    /// together.
    #[inline(always)]
    pub(crate) fn slot(&mut self, lines: usize, returned: &crate::inbox::Inbox<Job>) -> Slot<Job> {
        self.free.pop_and_fetch(lines).unwrap_or_else(|| self.more_slots(returned))
    }

    #[inline(never)]
    fn more_slots(&mut self, returned: &crate::inbox::Inbox<Job>) -> Slot<Job> {
        self.free = returned.take();
        self.free.pop().unwrap_or_else(|| Slot::new(Job::empty()))
    }
}

/// What was seen to have passed, read once per stream and submission.
#[derive(Default)]
pub(crate) struct Snapshot {
    submission: u64,
    seen: Vec<(u64, u64)>,
    /// The points of unordered streams that were seen to have passed are kept, for a monitor.
    keeps: bool,
    single: Vec<Point>,
}

impl Snapshot {
    /// Forgets what the submission before has seen.
    pub(crate) fn begin(&mut self, keeps: bool) {
        self.submission += 1;
        self.keeps = keeps;
        self.single.clear();
    }

    /// What this submission has looked at and seen to have passed.
    pub(crate) fn seen(&self) -> impl Iterator<Item = Point> + '_ {
        let now = self.submission;
        let seen = self.seen.iter().enumerate();
        seen.filter(move |(_, (at, _))| *at == now)
            .map(|(index, (_, passed))| Point::new(StreamId(index as u32), *passed))
            .chain(self.single.iter().copied())
    }

    /// The snapshot as an input of soft sync.
    pub(crate) fn of<'a>(&'a mut self, vm: &'a Shared) -> SnapshotOf<'a> {
        SnapshotOf { snapshot: self, streams: &vm.streams, failures: &vm.failures }
    }
}

/// See [`Snapshot`].
pub(crate) struct SnapshotOf<'a> {
    snapshot: &'a mut Snapshot,
    streams: &'a StreamTable,
    failures: &'a Failures,
}

impl Observed for SnapshotOf<'_> {
    fn passed(&mut self, stream: StreamId) -> u64 {
        let Snapshot { submission, seen, .. } = self.snapshot;
        if seen.len() <= stream.index() {
            seen.resize(stream.index() + 1, (0, 0));
        }
        let (at, passed) = &mut seen[stream.index()];
        if *at != *submission {
            *at = *submission;
            *passed = self.streams.get(stream).map_or(0, |entry| entry.passed());
        }
        *passed
    }

    #[inline]
    fn has_passed(&mut self, point: Point) -> bool {
        if !point.stream.is_unordered() {
            return self.passed(point.stream) >= point.seq;
        }
        let cells = self.streams.cells();
        // To be written to: who needs it links itself in next, and if nobody does, the cell soon comes back for another life.
        cells.fetch(cell_of(point.seq));
        let passed = cells.has_passed(point.seq);
        if passed && self.snapshot.keeps {
            self.snapshot.single.push(point);
        }
        passed
    }
    fn is_over(&mut self, point: Point) -> bool {
        // A failure is entered before its point passes.
        self.has_passed(point) && !self.failures.is_known(point)
    }
}
