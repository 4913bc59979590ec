//! The state under the submission lock: dependences, numbers, resources, allocators, node boxes.
//!
//! A submission has two passes. `prepare` makes every check that can refuse the list, and allocates memory with an undo log. `commit`
//! cannot fail: it orders by soft sync, gives numbers, fills node boxes and publishes.
//!
//! Invariant: no driver call, no user code and no blocking happens under the lock.

use std::sync::Arc;

use hashbrown::HashMap;
use streamvm_ep::Kernel;
use streamvm_instructions::{DependenceUse, Observed, ResourceId, SoftSync, SyncCounts, Wait};
use streamvm_stream::allocator::AllocatorError;
use streamvm_stream::mutant::Planted;
use streamvm_stream::{Point, StreamId, StreamKey, Streams};

use crate::dispatch::batch::DispatchBatches;
use crate::dispatch::dependence_node::NodeId;
use crate::execute::backpressure::Pending;
use crate::execute::environment::Environment;
use crate::progress::failures::{Failures, all_have_passed};
use crate::progress::stream_state::{StreamState, StreamTable};
use crate::queue::node::{NodeBox, NodeList};
use crate::submit::block_cache::BlockCache;
use crate::submit::released_blocks::ReleasedBlocks;
use crate::submit::sections::{HeldSection, SectionScratch};
use crate::submit::trace_notes::TraceNotes;
use crate::tasks::memory::Pools;
use crate::tasks::memory_use::Allocated;
use crate::tasks::resource::{Contents, Known};
use crate::tasks::task::Task;

/// One stream, as submissions see it.
pub(crate) struct SubmissionStream {
    pub(crate) stream_state: Arc<StreamState>,
    /// Number of instructions sent to the scheduler. Nothing is held back once the scheduler has dispatched as many.
    pub(crate) sent: u64,
    /// Counts of waits and records. The count of instructions is not kept here, because it equals the stream's last number.
    pub(crate) counts: SyncCounts,
    /// The index in `batches` of the batch for the stream's thread context.
    pub(crate) batch: usize,
    /// The index of the stream's span in the last submission that used the stream ([`Submitted::add_row`]).
    ///
    /// [`Submitted::add_row`]: crate::submit::commit::Submitted::add_row
    pub(crate) span: usize,
}

/// What `prepare` found out about one instruction.
pub(crate) struct Prepared {
    pub(crate) stream: StreamId,
    /// The index of its kernel in [`Scratch::kernels`], if it has one.
    pub(crate) kernel: Option<u32>,
    pub(crate) bytes: u64,
    /// The device records an event after it. Known after soft sync.
    pub(crate) record: bool,
}

/// One change that `prepare` made. Changes are undone newest first.
#[derive(Copy, Clone)]
pub(crate) enum Undo {
    /// The resource of a use was created.
    Created(ResourceId, UsePlace),
    /// The contents state of a use's resource was changed; the last field is the state before.
    Contents(ResourceId, UsePlace, Contents),
}

/// A use of a list: its index among all uses of the list.
pub(crate) type UsePlace = usize;

/// An event that the current list records.
pub(crate) struct Recorded {
    pub(crate) stream: StreamKey,
    /// The point of the record, once it has its number.
    pub(crate) point: Option<Point>,
}

/// Scratch of the current submission. The vectors keep their capacity between submissions.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) prepared: Vec<Prepared>,
    pub(crate) kernels: Vec<Kernel>,
    /// Bytes that the current instruction has allocated for resources that it creates.
    pub(crate) taken: u64,
    /// The last use of the last instruction, if that instruction has a use.
    pub(crate) last_use: Option<UsePlace>,
    /// The uses of all instructions, in list order, at the same indices as in the list.
    pub(crate) uses: Vec<DependenceUse>,
    /// Some line waits for another line of the list by its index.
    pub(crate) by_line: bool,
    /// Resources that the list creates and no engine has claimed yet, by address. The list keeps them alive. Another engine may be
    /// submitting a list with the same resources at this time.
    pub(crate) unclaimed: HashMap<usize, ResourceId>,
    /// The points that explicit waits wait for, by line. Known after soft sync.
    pub(crate) waited_for: Vec<(usize, Point)>,
    /// Events that the list records, by address.
    pub(crate) recorded: HashMap<usize, Recorded>,
    pub(crate) undo: Vec<Undo>,
    /// The resources of the list that get memory, in an engine that is traced.
    pub(crate) allocated: Vec<Allocated>,
    /// The resource whose memory the last new one got, if the list itself releases it, until it is noted.
    pub(crate) former_owner: Option<ResourceId>,
    pub(crate) released_blocks: ReleasedBlocks,
    pub(crate) dropped: Vec<ResourceId>,
    /// The waits of the current instruction.
    pub(crate) waits: Vec<Wait>,
    /// The numbers of the instructions of unordered streams that the current instruction depends on.
    pub(crate) numbers: Vec<u64>,
    pub(crate) sections: SectionScratch,
}

impl Scratch {
    #[inline(always)]
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
        if !self.allocated.is_empty() {
            self.allocated.clear();
        }
        self.released_blocks.clear();
    }
}

/// See the module's documentation. Only the holder of the submission lock touches it.
pub(crate) struct State {
    pub(crate) names: Streams,
    pub(crate) streams: Vec<SubmissionStream>,
    /// The stream of the last look-up, because a program mostly submits to the same stream several times in a row.
    recent: Option<(StreamKey, StreamId)>,
    pub(crate) sync: SoftSync,
    /// Number of instructions submitted, over all streams.
    pub(crate) submitted: u64,
    pub(crate) resources: Vec<Option<Known>>,
    /// How many [`Lent`](crate::Lent)s there are of each resource of which there is one; an owner outside of the engine counts as one.
    pub(crate) loans: HashMap<ResourceId, usize>,
    pub(crate) pools: Pools,
    /// Freed blocks for new tensors of their size.
    pub(crate) block_cache: BlockCache,
    pub(crate) free: NodeList<Task>,
    /// Dependence nodes whose node boxes were reused for ordered streams.
    pub(crate) spare_nodes: Vec<NodeId>,
    /// Numbered node boxes in list order, where a whole list is ordered before its first task is dispatched.
    pub(crate) planned: NodeList<Task>,
    pub(crate) batches: DispatchBatches,
    pub(crate) to_scheduler: NodeList<Task>,
    /// In inline mode: all tasks of the current list.
    pub(crate) in_order: NodeList<Task>,
    pub(crate) snapshot: Snapshot,
    pub(crate) scratch: Scratch,
    /// The critical sections that callers' threads have open.
    pub(crate) sections: Vec<HeldSection>,
    /// Failed points (first) that may be forgotten once the marks (second) have passed. An instruction submitted before the marks may still
    /// look for these points.
    forgetting: Option<(Vec<Point>, Vec<Point>)>,
    /// Number of instructions submitted when the first failure was seen. They have no claim that keeps failures for their callers, so their
    /// failures are never forgotten.
    early: Option<u64>,
    /// How much may still be submitted before a submitter reads again how much is pending.
    pub(crate) headroom: Pending,
    /// On one core: the submitter yields the core after the current submission.
    pub(crate) yields: bool,
    /// What a trace tells of submissions.
    pub(crate) notes: Box<TraceNotes>,
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
            loans: HashMap::new(),
            pools: Pools::default(),
            block_cache: BlockCache::default(),
            free: NodeList::new(),
            spare_nodes: Vec::new(),
            planned: NodeList::new(),
            batches: DispatchBatches::new(),
            to_scheduler: NodeList::new(),
            in_order: NodeList::new(),
            snapshot: Snapshot::default(),
            scratch: Scratch::default(),
            sections: Vec::new(),
            forgetting: None,
            early: None,
            headroom: Pending::default(),
            yields: false,
            notes: Box::default(),
        }
    }

    /// Plants a bug, in builds for test suites.
    pub(crate) fn plant(&mut self, planted: Planted) {
        self.sync.plant(planted);
        self.pools.plant(planted);
    }

    /// The id of an opened stream.
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

    /// Adds a resource. `id` is the id that soft sync gave to its dependence.
    pub(crate) fn add_resource(&mut self, id: ResourceId, known: Known) {
        if self.resources.len() <= id.index() {
            self.resources.resize_with(id.index() + 1, || None);
        }
        self.resources[id.index()] = Some(known);
    }

    /// A resource by the id that its handle holds. It exists as long as the handle.
    pub(crate) fn known(&mut self, id: ResourceId) -> Option<&mut Known> {
        self.resources.get_mut(id.index()).and_then(Option::as_mut)
    }

    /// Processes handles that were dropped: puts the memory into the block cache, or frees it. The accesses of each resource
    /// order the reuse of its memory.
    #[inline(never)]
    pub(crate) fn free_dropped(&mut self, env: &Environment) {
        let mut dropped = std::mem::take(&mut self.scratch.dropped);
        if env.timeline.is_some() {
            dropped.iter().for_each(|id| self.note_freed(*id));
        }
        for id in dropped.drain(..) {
            if let Some(observer) = &env.observer {
                observer.forgets(id);
            }
            if !self.cache_block(id) {
                self.free(id);
            }
        }
        self.scratch.dropped = dropped;
        if !self.pools.lost.is_empty() {
            self.report_lost(env);
        }
    }

    #[cold]
    fn report_lost(&mut self, env: &Environment) {
        self.pools.lost.drain(..).for_each(|error| env.failures.log_later(lost_block(&error)));
    }

    /// Forgets a resource, and frees its memory.
    pub(crate) fn free(&mut self, id: ResourceId) {
        let accesses = self.sync.remove_dependence(id);
        let known = self.resources.get_mut(id.index()).and_then(Option::take);
        if let Some((pool, block)) = known.and_then(|known| known.memory.block) {
            self.pools.free(pool, block.id, accesses);
        }
    }

    /// Bounds the table of failures: forgets old failed points that no resource carries, once everything has passed that was submitted
    /// while a resource might have carried them. Called only once there are failures.
    #[cold]
    pub(crate) fn forget_failures(&mut self, env: &Environment) {
        let early = *self.early.get_or_insert(self.submitted);
        let submitted = || env.streams.iter().flat_map(|stream_state| stream_state.open_points()).collect();
        let last_writes = || self.sync.last_writes().collect();
        let nodes = env.streams.nodes().made();
        env.failures.find_unseen(nodes, submitted, |point| env.streams.has_passed(point), last_writes);
        match &mut self.forgetting {
            Some((points, marks)) => {
                if all_have_passed(marks, |mark| env.streams.has_passed(mark)) {
                    env.failures.forget(points);
                    self.forgetting = None;
                }
            }
            None => {
                let points = env.failures.excess(early, || self.sync.last_writes().collect());
                if !points.is_empty() {
                    let marks = env.streams.iter().flat_map(|stream_state| stream_state.open_points()).collect();
                    self.forgetting = Some((points, marks));
                }
            }
        }
    }

    /// A free node box: a returned one, or a new one. Prefetches `lines` cache lines of each of the free node boxes after it, because
    /// successive instructions mostly need the same number.
    #[inline(always)]
    pub(crate) fn take_box(&mut self, lines: usize, returned: &crate::queue::mpsc::MpscQueue<Task>) -> NodeBox<Task> {
        self.free.pop_and_prefetch(lines).unwrap_or_else(|| self.more_boxes(returned))
    }

    #[inline(never)]
    fn more_boxes(&mut self, returned: &crate::queue::mpsc::MpscQueue<Task>) -> NodeBox<Task> {
        self.free = returned.take();
        self.free.pop().unwrap_or_else(|| NodeBox::new(Task::empty()))
    }
}

/// What is logged of a block that could not be freed.
pub(crate) fn lost_block(error: &AllocatorError) -> String {
    format!("a block of memory was lost when it was freed: {error}")
}

/// The points observed as passed. The progress of each ordered stream is read at most once per submission.
#[derive(Default)]
pub(crate) struct Snapshot {
    submission: u64,
    seen: Vec<(u64, u64)>,
    /// Whether observed points of unordered streams are kept, for an observer.
    keeps: bool,
    single: Vec<Point>,
}

impl Snapshot {
    /// Starts a new submission, and forgets what the last one observed.
    pub(crate) fn begin(&mut self, keeps: bool) {
        self.submission += 1;
        self.keeps = keeps;
        self.single.clear();
    }

    /// The points that this submission has read and observed as passed.
    pub(crate) fn seen(&self) -> impl Iterator<Item = Point> + '_ {
        let now = self.submission;
        let seen = self.seen.iter().enumerate();
        seen.filter(move |(_, (at, _))| *at == now)
            .map(|(index, (_, passed))| Point::new(StreamId(index as u32), *passed))
            .chain(self.single.iter().copied())
    }

    /// The snapshot as an input of soft sync.
    pub(crate) fn of<'a>(&'a mut self, env: &'a Environment) -> SnapshotOf<'a> {
        SnapshotOf { snapshot: self, streams: &env.streams, failures: &env.failures }
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
            *passed = self.streams.get(stream).map_or(0, |stream_state| stream_state.passed());
        }
        *passed
    }

    #[inline]
    fn has_passed(&mut self, point: Point) -> bool {
        if !point.stream.is_unordered() {
            return self.passed(point.stream) >= point.seq;
        }
        let nodes = self.streams.nodes();
        let passed = nodes.has_passed(point.seq);
        if passed && self.snapshot.keeps {
            self.snapshot.single.push(point);
        }
        passed
    }
    fn passed_without_failure(&mut self, point: Point) -> bool {
        // A failure is entered before its point passes, so this order of the two reads misses none.
        self.has_passed(point) && !self.failures.is_known(point)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use streamvm_ep::{DType, DeviceId};
    use streamvm_stream::allocator::AccessSet;

    use crate::Vm;

    /// The allocator refuses to free a block twice. That is logged, but loggers are user code, and the allocator is used under the submission lock.
    #[test]
    fn a_block_that_cannot_be_freed_is_logged_once_the_lock_is_left() {
        let vm = Vm::builder().build().expect("an engine");
        let x = vm.full(DeviceId::cpu(0), DType::F32, &[4], 1.0).expect("it is taken");
        x.wait().expect("it passes");
        {
            let mut state = vm.engine.handle.lock();
            let memory = state.resources.iter().flatten().find_map(|known| known.memory.block);
            let (pool, block) = memory.expect("the tensor has memory");
            state.pools.free(pool, block.id, AccessSet::new());
            assert!(state.pools.lost.is_empty());
            state.pools.free(pool, block.id, AccessSet::new());
            assert_eq!(state.pools.lost.len(), 1, "nothing is logged under the lock");
            state.free_dropped(&vm.engine);
            assert!(state.pools.lost.is_empty() && vm.engine.failures.has_to_log());
        }
        vm.push("next", [], || Ok(())).expect("a push");
        assert!(!vm.engine.failures.has_to_log(), "a submission logs it");
    }
}
