//! The observer: reports to the race detector and the trace recorder what is submitted, what starts and what passes.
//!
//! It exists only if the builder asked for it; an engine without one pays one pointer test per instruction. It reports to the detector only
//! the happens-before edges by which the engine really orders:
//!
//! * what a submitter has observed;
//! * the order of one stream;
//! * waits, where they were satisfied;
//! * what a caller has waited for.
//!
//! It never reports what the engine only planned.
//!
//! A *moment* ([`Moment`]) is a copy of a vector clock: what is known to be over. The observer keeps a moment for every number of every
//! stream, and enters it before the number is published. So a thread that sees the number as passed finds the moment.

use std::borrow::Borrow;
use std::io::Write;
use std::iter::Peekable;
use std::ops::Range;
use std::sync::Arc;
use std::vec;

use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;
use streamvm_ep::{self as ep, Label, MemoryKind, Site};
use streamvm_instructions::{
    Batch, Declared, DependenceUse, Instruction, Kind, Place, Plan, PlannedRecord, RecordPlace, Resource, ResourceId,
    ResourceKind, Target, Tensor, Var,
};
use streamvm_sim::races::{ActorId, Detector, Moment, Role, Touch, act_as};
use streamvm_sim::sim;
use streamvm_stream::{Point, Shows, StreamId, StreamKey};

use crate::observe::clock_history::ClockHistory;
use crate::observe::submission::Submission;
use crate::observe::task_clocks::TaskClocks;
use crate::observe::trace::{InstructionLine, OrderLine, Recorder, TraceWriter, UseLine, WaitLine};
use crate::observe::variables::{self, Variables};
use crate::progress::stream_state::StreamState;
use crate::sync::{Mutex, MutexGuard, unpoisoned};
use crate::tasks::task::Task;
use crate::tasks::view::{Operands, Views};

/// See the module's documentation. All threads of the engine share it.
pub(crate) struct Observer {
    detector: Arc<Detector>,
    /// The submission lock as an actor: a thread that takes the lock learns what its earlier holders had observed.
    lock: ActorId,
    /// The actor that writes a new variable before its first use. It has observed nothing.
    maker: ActorId,
    /// The thread contexts as an actor, where one thread steps everything. It has observed nothing that a stream should not inherit.
    contexts: ActorId,
    /// The completion as an actor, where one thread steps everything. It has observed what the devices finished.
    completion: ActorId,
    inner: Mutex<Inner>,
    writer: Option<TraceWriter>,
}

#[derive(Default)]
struct Inner {
    /// Moments of ordered streams, by stream number.
    moments: Vec<ClockHistory<Moment>>,
    unordered: TaskClocks,
    /// What the observer noted of each pending instruction at its submission.
    pending: HashMap<Point, Pending>,
    /// The detector's number of the allocation of each resource (`life` in traces).
    allocations: HashMap<ResourceId, u64>,
    variables: Variables,
    /// Ended allocations of released resources whose handles still exist.
    ended: HashSet<u64>,
    trace: Option<Recorder>,
}

/// An instruction that was submitted and has not started.
struct Pending {
    /// What was known to be over when it was submitted.
    moment: Moment,
    /// The allocations that it uses.
    allocations: Arc<[u64]>,
    /// The variables that it uses.
    variables: SmallVec<[Touch; 2]>,
}

impl Observer {
    pub(crate) fn new(detector: Arc<Detector>, trace: Option<Box<dyn Write + Send>>) -> Observer {
        let lock = detector.actor("the submission lock");
        let maker = detector.actor("a variable's maker");
        let contexts = detector.thread_actor("the thread contexts");
        let completion = detector.thread_actor("the completion");
        detector.map(variables::ADDRESSES, "variables", MemoryKind::Pageable);
        let inner = Inner { trace: trace.as_ref().map(|_| Recorder::new()), ..Inner::default() };
        Observer {
            detector,
            lock,
            maker,
            contexts,
            completion,
            inner: Mutex::new(inner),
            writer: trace.map(TraceWriter::new),
        }
    }

    /// The race detector.
    pub(crate) fn detector(&self) -> &Arc<Detector> {
        &self.detector
    }

    /// Makes the calling thread act as the completion, or else as the thread contexts. A thread that steps both would otherwise carry what
    /// the completion has observed to what the contexts launch.
    pub(crate) fn act_as(&self, completes: bool) -> Role {
        act_as(if completes { self.completion } else { self.contexts })
    }

    /// Wraps a stream that runs its commands immediately, so that its accesses are reported.
    pub(crate) fn watch(&self, stream: Box<dyn ep::Stream>, key: StreamKey) -> (Box<dyn ep::Stream>, ActorId) {
        sim::watch(stream, &key.to_string(), self.detector.clone())
    }

    /// Notes that a stream was opened. `actor` is the one from [`Observer::watch`].
    pub(crate) fn opened(&self, id: StreamId, key: StreamKey, actor: Option<ActorId>) {
        let mut inner = self.inner();
        if id.is_unordered() {
            // This actor only names the stream in reports: each instruction is an actor of its own.
            self.detector.bind(id.index() as u32, self.detector.actor(&key.to_string()));
        } else if let Some(actor) = actor {
            self.detector.bind(id.0, actor);
        }
        if let Some(trace) = &mut inner.trace {
            trace.stream(id, key);
        }
        inner.moments.resize_with(id.index() + 1, ClockHistory::new);
    }

    /// Notes that a device allocated memory.
    pub(crate) fn mapped(&self, range: Range<usize>, place: Place, kind: MemoryKind) {
        let name = format!("{kind} memory of {place}");
        // What is memory of the host is pageable for any other device.
        let of_host = place.device().is_some_and(|device| device.kind.info().host_memory);
        self.detector.map(range, &name, if of_host { MemoryKind::Pageable } else { kind });
    }

    /// Notes that memory is returned to its device. That is ordered after everything observed to have passed.
    pub(crate) fn unmapped(&self, range: Range<usize>, passed: impl Iterator<Item = Point>) {
        self.looked(passed);
        let thread = self.detector.this_thread();
        self.knows_what_the_lock_knows(thread);
        if let Some(trace) = &mut self.inner().trace {
            trace.unmap(range.start, range.len());
        }
        self.detector.unmap(range, thread, &Label::new(0, 0, "giving memory back"));
    }

    /// Notes that the holder of the submission lock has observed these points as passed. Soft sync and the allocators may have dropped the
    /// accesses at these points, so everything submitted later is ordered after them.
    pub(crate) fn looked(&self, points: impl Iterator<Item = Point>) {
        let points: Vec<Point> = points.filter(|point| point.seq > 0).collect();
        points.iter().for_each(|point| self.acquire(self.lock, *point));
        if let Some(trace) = &mut self.inner().trace {
            trace.observed(points);
        }
    }

    fn knows_what_the_lock_knows(&self, thread: ActorId) {
        let known = self.detector.release(self.lock);
        self.detector.acquire(thread, &known);
    }

    /// Notes that a list is being committed, and the points that its submitter has observed as passed.
    pub(crate) fn submits<B: Batch>(
        &self,
        submission: &Submission<'_>,
        list: &B,
        observed: impl Iterator<Item = Point>,
    ) {
        let thread = self.detector.this_thread();
        self.looked(observed);
        let mut inner = self.inner();
        let inner = &mut *inner;
        self.begin_variables(inner, submission, list);
        self.knows_what_the_lock_knows(thread);
        let moment = self.detector.release(thread);
        let mut records = PlannedRecords::new(submission.plan);
        if let Some(trace) = &mut inner.trace {
            records.write(trace, 0);
        }
        for (line, instruction) in list.instructions().iter().enumerate() {
            let point = submission.plan.instructions()[line].point;
            let uses = list.uses(instruction);
            let resources = &submission.uses[instruction.use_range()];
            let mut label = Label::new(point.stream.index() as u32, point.seq, instruction.kind.name());
            label.site = instruction.site;
            let (mut allocations, mut variables) = (Vec::new(), SmallVec::new());
            for (u, DependenceUse { resource, .. }) in uses.iter().zip(resources) {
                let allocation = self.allocation(inner, *resource, u.resource(), submission, &label);
                match u.target() {
                    Target::Tensor(_) => allocations.push(allocation),
                    // Releasing a variable accesses nothing.
                    Target::Var(_) if matches!(instruction.kind, Kind::Release) => {}
                    Target::Var(_) => {
                        let address = inner.variables.address(*resource);
                        inner.variables.use_submitted(&address);
                        variables.push(Touch::new([address], u.access(), Some(allocation)));
                    }
                }
            }
            let section = section_of(submission, line);
            if let Some(resource) = section
                && let Some(allocation) = inner.allocations.get(resource).copied()
            {
                let address = inner.variables.address(*resource);
                inner.variables.use_submitted(&address);
                variables.push(Touch::new([address], ep::Access::Read, Some(allocation)));
            }
            if let Some(trace) = &mut inner.trace {
                issue(trace, submission, line, instruction, uses, &inner.allocations);
                records.write(trace, line + 1);
            }
            if matches!(instruction.kind, Kind::Release)
                && let Some(allocation) = resources.first().and_then(|u| inner.allocations.get(&u.resource)).copied()
            {
                self.end(inner, allocation, &label);
            }
            inner.pending.insert(point, Pending { moment: moment.clone(), allocations: allocations.into(), variables });
        }
    }

    /// Begins the variables that this list is the first to use, before the list. The write of a new variable stands for the state that
    /// existed before the program used the variable, so all uses are ordered after it.
    fn begin_variables<B: Batch>(&self, inner: &mut Inner, submission: &Submission<'_>, list: &B) {
        for instruction in list.instructions() {
            let mut label = Label::new(0, 0, "a variable's beginning");
            label.site = instruction.site;
            let resources = &submission.uses[instruction.use_range()];
            for (u, DependenceUse { resource, .. }) in list.uses(instruction).iter().zip(resources) {
                if matches!(u.target(), Target::Var(_)) && !inner.allocations.contains_key(resource) {
                    let allocation = self.allocation(inner, *resource, u.resource(), submission, &label);
                    let touch = Touch::new([inner.variables.address(*resource)], ep::Access::Write, Some(allocation));
                    self.detector.access(self.maker, &label, &[touch]);
                    self.detector.acquire(self.lock, &self.detector.release(self.maker));
                }
            }
        }
    }

    /// The allocation of a resource. The first use begins it.
    fn allocation(
        &self,
        inner: &mut Inner,
        id: ResourceId,
        resource: &Resource,
        submission: &Submission<'_>,
        label: &Label,
    ) -> u64 {
        if let Some(allocation) = inner.allocations.get(&id) {
            return *allocation;
        }
        let known = submission.resources.get(id.index()).and_then(Option::as_ref);
        let range = match resource.kind() {
            ResourceKind::Var => inner.variables.address(id),
            ResourceKind::Storage { .. } => known.map_or(0..0, |known| known.memory.range()),
        };
        let allocation = self.detector.begin_allocation(range.clone(), label);
        inner.allocations.insert(id, allocation);
        if let Some(trace) = &mut inner.trace {
            match resource.kind() {
                ResourceKind::Var => trace.variable(allocation),
                ResourceKind::Storage { place, memory, .. } => {
                    trace.life(allocation, &place, &memory, range.start, range.len());
                }
            }
        }
        allocation
    }

    fn end(&self, inner: &mut Inner, allocation: u64, label: &Label) {
        if !inner.ended.insert(allocation) {
            return;
        }
        self.detector.end_allocation(allocation, label);
        if let Some(trace) = &mut inner.trace {
            trace.free(allocation);
        }
    }

    /// Notes that the caller's thread itself fills a new resource.
    pub(crate) fn fills(&self, id: ResourceId, resource: &Resource, range: Range<usize>, site: Site) {
        let mut label = Label::new(0, 0, "tensor from the caller's elements");
        label.site = site;
        let thread = self.detector.this_thread();
        self.knows_what_the_lock_knows(thread);
        let allocation = self.detector.begin_allocation(range.clone(), &label);
        let mut inner = self.inner();
        inner.allocations.insert(id, allocation);
        if let (Some(trace), ResourceKind::Storage { place, memory, .. }) = (&mut inner.trace, resource.kind()) {
            trace.life(allocation, &place, &memory, range.start, range.len());
            let access = ep::Access::Write;
            let runs = std::slice::from_ref(&range);
            trace.host(
                "tensor",
                site,
                &[UseLine { life: allocation, access, runs: if range.is_empty() { &[] } else { runs } }],
            );
        }
        drop(inner);
        self.detector.access(thread, &label, &[Touch::new([range], ep::Access::Write, Some(allocation))]);
        // Another thread gets the handle only after this, and uses the resource by a submission: the submission lock carries the order.
        let made = self.detector.release(thread);
        self.detector.acquire(self.lock, &made);
    }

    /// Notes that the last handle of a resource is gone.
    pub(crate) fn forgets(&self, resource: ResourceId) {
        let mut inner = self.inner();
        let over = inner.variables.release(resource);
        if let Some(allocation) = inner.allocations.remove(&resource) {
            self.end(&mut inner, allocation, &Label::new(0, 0, "the last handle's drop"));
            inner.ended.remove(&allocation);
        }
        over.into_iter().for_each(|address| self.detector.forget(address));
    }

    /// Notes that `task` is about to run or to be launched.
    pub(crate) fn starts(&self, task: &Task, stream_state: &StreamState, stream: &mut dyn ep::Stream) {
        let (pending, actor) = {
            let mut inner = self.inner();
            let Some(pending) = inner.pending.remove(&task.point) else { return };
            (pending, inner.unordered.start(task.point, || self.detector.actor("an instruction on workers")))
        };
        let Pending { moment, allocations, variables } = pending;
        let Point { stream: id, seq } = task.point;
        let label = Label {
            stream: id.index() as u32,
            seq,
            what: task.name().into(),
            step: None,
            site: task.site,
            allocations,
            actor,
        };
        actor.into_iter().for_each(|actor| self.detector.restart(actor));
        // The device reports a wait by event itself, because it knows which point the event really marks.
        let comes_after = |actor| {
            self.detector.acquire(actor, &moment);
            task.waited_by_number().iter().for_each(|point| self.acquire(actor, *point));
        };
        // Before `begin`, because a backend may fail in it: soft sync relies on this order from here on.
        let known = actor.or_else(|| self.detector.bound(stream_state.id.0));
        known.into_iter().for_each(comes_after);
        stream.begin(&label);
        if known.is_none() {
            self.detector.bound(stream_state.id.0).into_iter().for_each(comes_after);
        }
        // A launched instruction is ordered after waits that only the device makes, so accesses to its variables are not checked.
        if let Some(actor) = known.filter(|_| stream_state.in_flight.is_none() && !variables.is_empty()) {
            self.detector.access(actor, &label, &variables);
        }
        if !variables.is_empty() {
            let mut inner = self.inner();
            for address in variables.iter().flat_map(Touch::runs) {
                if inner.variables.use_started(address) {
                    // Under the observer's lock: a submission may give the address to another variable immediately after this.
                    self.detector.forget(address.clone());
                }
            }
        }
    }

    /// Notes that everything on `stream` up to `seq` is issued, and is over once the number has passed. Must be called before the number is
    /// published. On an unordered stream: notes this for the one instruction `seq`.
    pub(crate) fn passes(&self, stream: StreamId, seq: u64) {
        if stream.is_unordered() {
            let mut inner = self.inner();
            return inner.unordered.pass(Point::new(stream, seq), |actor| self.detector.release(actor));
        }
        let Some(actor) = self.detector.bound(stream.0) else {
            return;
        };
        let moment = self.detector.release(actor);
        self.inner().moments[stream.index()].enter(seq, moment);
    }

    /// Notes that the calling thread has observed `point` as passed.
    pub(crate) fn saw(&self, point: Point) {
        if point.seq > 0 {
            self.acquire(self.detector.this_thread(), point);
            if let Some(trace) = &mut self.inner().trace {
                trace.observed([point]);
            }
        }
    }

    /// Whether a trace is recorded.
    pub(crate) fn traces(&self) -> bool {
        self.writer.is_some()
    }

    /// Records when instructions ran, as a device has measured.
    pub(crate) fn ran(&self, times: Vec<ep::InstructionTime>) {
        if let Some(trace) = &mut self.inner().trace {
            times.iter().for_each(|ran| trace.ran(Point::new(StreamId(ran.stream), ran.seq), ran.start..ran.end));
        }
    }

    /// Passes recorded lines to the caller's writer. The caller must hold no lock, because the writer is user code.
    pub(crate) fn pass_trace_on(&self) {
        if let Some(writer) = &self.writer {
            writer.pass_on(|| self.inner().trace.as_mut().map(Recorder::take).unwrap_or_default());
        }
    }

    /// Ends the trace and flushes the caller's writer. The first error of the writer is logged here, too.
    pub(crate) fn end_trace(&self) {
        let last = || {
            let mut inner = self.inner();
            inner.trace.as_mut().map(|trace| {
                trace.end();
                trace.take()
            })
        };
        if let Some(writer) = &self.writer
            && let Err(error) = writer.finish(|| last().unwrap_or_default())
        {
            log::error!("the trace is not whole: {error}");
        }
    }

    /// Orders `actor` after `point`.
    fn acquire(&self, actor: ActorId, point: Point) {
        if point.seq == 0 {
            return;
        }
        let inner = self.inner();
        let moment = match point.stream.is_unordered() {
            true => inner.unordered.find(point),
            false => inner.moments[point.stream.index()].find(point.seq).cloned(),
        };
        drop(inner);
        if let Some(moment) = moment {
            self.detector.acquire(actor, &moment);
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        unpoisoned(self.inner.lock())
    }
}

/// The number of the event that marks `point` in a trace.
fn event(point: Point) -> u64 {
    ((point.stream.index() as u64) << 48) | point.seq
}

/// The planned records of a list, in the order of the number of lines before them.
struct PlannedRecords(Peekable<vec::IntoIter<(usize, Point)>>);

impl PlannedRecords {
    fn new(plan: &Plan) -> PlannedRecords {
        let lines_before = |record: &PlannedRecord| match record.place {
            RecordPlace::Start => 0,
            RecordPlace::Behind(line) => line + 1,
        };
        let mut records: Vec<_> = plan.records().iter().map(|record| (lines_before(record), record.point)).collect();
        records.sort_by_key(|(lines, _)| *lines);
        PlannedRecords(records.into_iter().peekable())
    }

    /// Writes the records that come after so many lines. Called for each number of lines, from 0 on.
    fn write(&mut self, trace: &mut Recorder, lines: usize) {
        while let Some((_, point)) = self.0.next_if(|(before, _)| *before == lines) {
            trace.record(event(point), point);
        }
    }
}

/// The first resource of the section that a line belongs to, if it belongs to one.
fn section_of<'s>(submission: &'s Submission<'_>, line: usize) -> Option<&'s ResourceId> {
    let place = submission.members.binary_search_by_key(&line, |(member, _)| *member).ok()?;
    Some(&submission.members[place].1)
}

/// Records an instruction of the list that is being committed.
fn issue<T: Borrow<Tensor>, V: Borrow<Var>>(
    trace: &mut Recorder,
    submission: &Submission<'_>,
    line: usize,
    instruction: &Instruction,
    uses: &[Declared<T, V>],
    allocations: &HashMap<ResourceId, u64>,
) {
    let plan = submission.plan;
    let planned = &plan.instructions()[line];
    // Releasing and allocating access no bytes.
    let uses = if matches!(instruction.kind, Kind::Release | Kind::Allocate) { &[] } else { uses };
    let touched: Vec<(u64, ep::Access, Touch)> = uses
        .iter()
        .zip(&submission.uses[instruction.use_range()])
        .map(|(u, DependenceUse { resource, .. })| {
            let known = submission.resources.get(resource.index()).and_then(Option::as_ref);
            let touch = match (u.target(), known) {
                (Target::Tensor(tensor), Some(known)) => {
                    let (mut views, mut operands) = (Views::default(), Operands::default());
                    views.add(&known.memory, tensor, u.access());
                    Touch::of(&operands.of(&views)[0], None)
                }
                _ => Touch::new([], u.access(), None),
            };
            (allocations.get(resource).copied().unwrap_or(0), u.access(), touch)
        })
        .collect();
    let section = section_of(submission, line).and_then(|resource| allocations.get(resource));
    let section = section.map(|life| UseLine { life: *life, access: ep::Access::Read, runs: &[] });
    let uses: Vec<UseLine<'_>> = touched
        .iter()
        .map(|(allocation, access, touch)| UseLine { life: *allocation, access: *access, runs: touch.runs() })
        .chain(section)
        .collect();
    let waits: Vec<WaitLine> = plan
        .waits(planned)
        .iter()
        .map(|wait| WaitLine {
            point: wait.point,
            by: wait.kind,
            event: (wait.shows == Shows::Event).then(|| event(wait.point)),
        })
        .collect();
    let waited_for = submission.waited_for.binary_search_by_key(&line, |(at, _)| *at).ok();
    let waited_for = waited_for.map(|place| submission.waited_for[place].1);
    let order = match (&instruction.kind, waited_for) {
        (Kind::Barrier { .. }, _) => OrderLine::Barrier,
        (Kind::GlobalSync, _) => OrderLine::AfterAll,
        (Kind::Wait { .. }, Some(point)) => OrderLine::After(point),
        _ => OrderLine::Uses,
    };
    trace.instruction(&InstructionLine {
        at: planned.point,
        op: instruction.kind.name(),
        site: instruction.site,
        uses: &uses,
        waits: &waits,
        order,
    });
}
