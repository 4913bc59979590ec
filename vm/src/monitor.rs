//! Monitor: tells the race detector and the recorder what is issued and what happens.
//!
//! Only there when asked for; an engine without one pays one test of a pointer an instruction. The edges that it tells
//! the detector are those by which the engine really orders: a submitter's knowledge, same-stream order, waits that were
//! met where they were met, and what a caller has waited for. It never tells what the engine merely planned.
//!
//! A *moment* is kept for every number of every stream: what is known to be over when that number has passed. It is
//! entered before the number is published, so whoever sees the number finds it.

use std::borrow::Borrow;
use std::io::Write;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;
use streamvm_ep::races::{ActorId, Detector, Moment, Role, Touch, act_as};
use streamvm_ep::{self as ep, DeviceKind, Label, MemoryKind, sim};
use streamvm_instructions::{
    Batch, Declared, DependenceUse, Instruction, Kind, Place, RecordPlace, Resource, ResourceId, ResourceKind, Target,
    Tensor, Var,
};
use streamvm_stream::{Point, Shows, StreamId, StreamKey};

use crate::entry::StreamEntry;
use crate::job::Job;
use crate::moments::Moments;
use crate::singles::Singles;
use crate::state::State;
use crate::sync::{Mutex, MutexGuard, unpoisoned};
use crate::trace::{InstructionLine, OrderLine, Recorder, TraceWriter, UseLine, WaitLine};
use crate::variables::{self, Variables};
use crate::view::{Operands, Views};

/// See the module's comment. Shared by all threads of the engine.
pub(crate) struct Monitor {
    detector: Arc<Detector>,
    /// Whom the submission lock stands for: who holds it knows what was observed under it.
    lock: ActorId,
    /// Who made the variables: it knows nothing else.
    maker: ActorId,
    /// The thread contexts, when one thread steps everything: it knows nothing that a stream should not.
    contexts: ActorId,
    /// The completion, when one thread steps everything: it has seen what devices finished.
    completion: ActorId,
    inner: Mutex<Inner>,
    writer: Option<TraceWriter>,
}

#[derive(Default)]
struct Inner {
    /// Of ordered streams.
    moments: Vec<Moments<Moment>>,
    unordered: Singles,
    /// What is known of each pending instruction since it was submitted.
    pending: HashMap<Point, Pending>,
    /// The life of each resource's memory.
    lives: HashMap<ResourceId, u64>,
    variables: Variables,
    /// Lives of released resources whose handles are still there.
    ended: HashSet<u64>,
    trace: Option<Recorder>,
}

/// An instruction that is to start.
struct Pending {
    /// What was known when it was submitted.
    moment: Moment,
    /// Whose memory it uses.
    lives: Arc<[u64]>,
    /// The variables that it uses.
    variables: SmallVec<[Touch; 2]>,
}

impl Monitor {
    pub(crate) fn new(detector: Arc<Detector>, trace: Option<Box<dyn Write + Send>>) -> Monitor {
        let lock = detector.actor("the submission lock");
        let maker = detector.actor("a variable's maker");
        let contexts = detector.thread_actor("the thread contexts");
        let completion = detector.thread_actor("the completion");
        detector.map(variables::ADDRESSES, "variables", MemoryKind::Pageable);
        let inner = Inner { trace: trace.as_ref().map(|_| Recorder::new()), ..Inner::default() };
        Monitor {
            detector,
            lock,
            maker,
            contexts,
            completion,
            inner: Mutex::new(inner),
            writer: trace.map(TraceWriter::new),
        }
    }

    /// The detector.
    pub(crate) fn detector(&self) -> &Arc<Detector> {
        &self.detector
    }

    /// Lets the calling thread act as the thread contexts, or as the completion: a thread that steps both would otherwise
    /// carry what one has seen to what the other launches.
    pub(crate) fn act_as(&self, completes: bool) -> Role {
        act_as(if completes { self.completion } else { self.contexts })
    }

    /// Wraps a stream that runs its commands at once, so that its accesses are told.
    pub(crate) fn watch(&self, stream: Box<dyn ep::Stream>, key: StreamKey) -> (Box<dyn ep::Stream>, ActorId) {
        sim::watch(stream, &key.to_string(), self.detector.clone())
    }

    /// A stream got its number; `actor` is the one that it was [watched](Monitor::watch) as.
    pub(crate) fn opened(&self, id: StreamId, key: StreamKey, actor: Option<ActorId>) {
        let mut inner = self.inner();
        if id.is_unordered() {
            // For reports alone: each of its instructions is an actor of its own.
            self.detector.bind(id.index() as u32, self.detector.actor(&key.to_string()));
        } else if let Some(actor) = actor {
            self.detector.bind(id.0, actor);
        }
        if let Some(trace) = &mut inner.trace {
            trace.stream(id, key);
        }
        inner.moments.resize_with(id.index() + 1, Moments::new);
    }

    /// A device gave memory.
    pub(crate) fn mapped(&self, range: Range<usize>, place: Place, kind: MemoryKind) {
        let name = format!("{kind} memory of {place}");
        // What a CPU device calls its own is ordinary memory of the host to any other.
        let of_cpu = place.device().is_some_and(|device| device.kind == DeviceKind::Cpu);
        self.detector.map(range, &name, if of_cpu { MemoryKind::Pageable } else { kind });
    }

    /// A device gets memory back: everything observed to have passed comes before that.
    pub(crate) fn unmapped(&self, range: Range<usize>, passed: impl Iterator<Item = Point>) {
        self.looked(passed);
        let thread = self.detector.this_thread();
        self.knows_what_the_lock_knows(thread);
        if let Some(trace) = &mut self.inner().trace {
            trace.unmap(range.start, range.len());
        }
        self.detector.unmap(range, thread, &Label::new(0, 0, "giving memory back"));
    }

    /// Whoever holds the submission lock has seen these points pass, and may have forgotten what waited for them: all
    /// that is submitted later comes after them.
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

    /// A list is being committed, with what its submitter has seen to have passed.
    pub(crate) fn submits<B: Batch>(&self, state: &State, list: &B, observed: impl Iterator<Item = Point>) {
        let thread = self.detector.this_thread();
        self.looked(observed);
        let mut inner = self.inner();
        let inner = &mut *inner;
        self.begin_variables(inner, state, list);
        self.knows_what_the_lock_knows(thread);
        let moment = self.detector.release(thread);
        if let Some(trace) = &mut inner.trace {
            records(trace, state, RecordPlace::Start);
        }
        for (line, instruction) in list.instructions().iter().enumerate() {
            let point = state.sync.plan().instructions()[line].point;
            let uses = list.uses(instruction);
            let resources = &state.scratch.uses[instruction.use_range()];
            let mut label = Label::new(point.stream.index() as u32, point.seq, instruction.kind.name());
            label.site = instruction.site;
            let (mut lives, mut variables) = (Vec::new(), SmallVec::new());
            for (u, DependenceUse { resource, .. }) in uses.iter().zip(resources) {
                let life = self.life(inner, *resource, u.resource(), state, &label);
                match u.target() {
                    Target::Tensor(_) => lives.push(life),
                    // What releases a variable touches nothing.
                    Target::Var(_) if matches!(instruction.kind, Kind::Release) => {}
                    Target::Var(_) => {
                        let address = inner.variables.address(*resource);
                        inner.variables.use_submitted(&address);
                        variables.push(Touch::new([address], u.access(), Some(life)));
                    }
                }
            }
            if let Some(trace) = &mut inner.trace {
                issue(trace, state, line, instruction, uses, &inner.lives);
                records(trace, state, RecordPlace::Behind(line));
            }
            if matches!(instruction.kind, Kind::Release)
                && let Some(life) = resources.first().and_then(|u| inner.lives.get(&u.resource)).copied()
            {
                self.end(inner, life, &label);
            }
            inner.pending.insert(point, Pending { moment: moment.clone(), lives: lives.into(), variables });
        }
    }

    /// The variables that a list is the first to use begin before it: what they stand for was there, and all who use them come
    /// after that.
    fn begin_variables<B: Batch>(&self, inner: &mut Inner, state: &State, list: &B) {
        for instruction in list.instructions() {
            let mut label = Label::new(0, 0, "a variable's beginning");
            label.site = instruction.site;
            let resources = &state.scratch.uses[instruction.use_range()];
            for (u, DependenceUse { resource, .. }) in list.uses(instruction).iter().zip(resources) {
                if matches!(u.target(), Target::Var(_)) && !inner.lives.contains_key(resource) {
                    let life = self.life(inner, *resource, u.resource(), state, &label);
                    let touch = Touch::new([inner.variables.address(*resource)], ep::Access::Write, Some(life));
                    self.detector.access(self.maker, &label, &[touch]);
                    self.detector.acquire(self.lock, &self.detector.release(self.maker));
                }
            }
        }
    }

    /// The life of a resource, begun by its first use.
    fn life(&self, inner: &mut Inner, id: ResourceId, resource: &Resource, state: &State, label: &Label) -> u64 {
        if let Some(life) = inner.lives.get(&id) {
            return *life;
        }
        let known = state.resources.get(id.index()).and_then(Option::as_ref);
        let range = match resource.kind() {
            ResourceKind::Var => inner.variables.address(id),
            ResourceKind::Storage { .. } => known.map_or(0..0, |known| known.memory.range()),
        };
        let life = self.detector.begin_life(range.clone(), label);
        inner.lives.insert(id, life);
        if let Some(trace) = &mut inner.trace {
            match resource.kind() {
                ResourceKind::Var => trace.variable(life),
                ResourceKind::Storage { place, memory, .. } => {
                    trace.life(life, &place, &memory, range.start, range.len());
                }
            }
        }
        life
    }

    fn end(&self, inner: &mut Inner, life: u64, label: &Label) {
        if !inner.ended.insert(life) {
            return;
        }
        self.detector.end_life(life, label);
        if let Some(trace) = &mut inner.trace {
            trace.free(life);
        }
    }

    /// The caller's own thread fills a new resource.
    pub(crate) fn fills(
        &self,
        id: ResourceId,
        resource: &Resource,
        range: Range<usize>,
        site: &'static Location<'static>,
    ) {
        let mut label = Label::new(0, 0, "tensor from the caller's elements");
        label.site = site;
        let thread = self.detector.this_thread();
        self.knows_what_the_lock_knows(thread);
        let life = self.detector.begin_life(range.clone(), &label);
        let mut inner = self.inner();
        inner.lives.insert(id, life);
        if let (Some(trace), ResourceKind::Storage { place, memory, .. }) = (&mut inner.trace, resource.kind()) {
            trace.life(life, &place, &memory, range.start, range.len());
            let access = ep::Access::Write;
            let runs = std::slice::from_ref(&range);
            trace.host("tensor", site, &[UseLine { life, access, runs: if range.is_empty() { &[] } else { runs } }]);
        }
        drop(inner);
        self.detector.access(thread, &label, &[Touch::new([range], ep::Access::Write, Some(life))]);
        // Whoever gets the handle comes after its making, and uses it by a submission.
        let made = self.detector.release(thread);
        self.detector.acquire(self.lock, &made);
    }

    /// The handles of a resource are gone.
    pub(crate) fn forgets(&self, resource: ResourceId) {
        let mut inner = self.inner();
        let over = inner.variables.release(resource);
        if let Some(life) = inner.lives.remove(&resource) {
            self.end(&mut inner, life, &Label::new(0, 0, "the last handle's drop"));
            inner.ended.remove(&life);
        }
        over.into_iter().for_each(|address| self.detector.forget(address));
    }

    /// `job` is about to run, or to be launched.
    pub(crate) fn starts(&self, job: &Job, entry: &StreamEntry, stream: &mut dyn ep::Stream) {
        let (pending, actor) = {
            let mut inner = self.inner();
            let Some(pending) = inner.pending.remove(&job.point) else { return };
            (pending, inner.unordered.start(job.point, || self.detector.actor("an instruction on workers")))
        };
        let Pending { moment, lives, variables } = pending;
        let Point { stream: id, seq } = job.point;
        let label = Label { stream: id.index() as u32, seq, what: job.name().into(), site: job.site, lives, actor };
        actor.into_iter().for_each(|actor| self.detector.restart(actor));
        // A wait by event is told by the device, which knows what the event really shows.
        let comes_after = |actor| {
            self.detector.acquire(actor, &moment);
            job.waited_by_number().iter().for_each(|point| self.acquire(actor, *point));
        };
        // Before the label, behind which a backend may fail: soft sync counts on this order from here on.
        let known = actor.or_else(|| self.detector.bound(entry.id.0));
        known.into_iter().for_each(comes_after);
        stream.begin(&label);
        if known.is_none() {
            self.detector.bound(entry.id.0).into_iter().for_each(comes_after);
        }
        // What a device runs later comes after waits that only the device makes: its variables are not judged.
        if let Some(actor) = known.filter(|_| entry.flight.is_none() && !variables.is_empty()) {
            self.detector.access(actor, &label, &variables);
        }
        if !variables.is_empty() {
            let mut inner = self.inner();
            for address in variables.iter().flat_map(Touch::runs) {
                if inner.variables.use_started(address) {
                    // Under the lock: a submission may give the address to another variable right behind it.
                    self.detector.forget(address.clone());
                }
            }
        }
    }

    /// Everything on `stream` up to `seq` is issued, and is over once the number has passed. Before the number is
    /// published.
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

    /// The calling thread has seen `point` pass.
    pub(crate) fn saw(&self, point: Point) {
        if point.seq > 0 {
            self.acquire(self.detector.this_thread(), point);
            if let Some(trace) = &mut self.inner().trace {
                trace.observed([point]);
            }
        }
    }

    /// Whether what happens is written down.
    pub(crate) fn traces(&self) -> bool {
        self.writer.is_some()
    }

    /// A device has told when instructions ran.
    pub(crate) fn ran(&self, times: Vec<ep::Ran>) {
        if let Some(trace) = &mut self.inner().trace {
            times.iter().for_each(|ran| trace.ran(Point::new(StreamId(ran.stream), ran.seq), ran.start..ran.end));
        }
    }

    /// Hands what was recorded to the caller's writer. Under no lock: that is user code.
    pub(crate) fn pass_trace_on(&self) {
        if let Some(writer) = &self.writer {
            writer.pass_on(|| self.inner().trace.as_mut().map(Recorder::take).unwrap_or_default());
        }
    }

    /// Ends the trace and flushes the caller's writer, whose first error is logged where it happened.
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

    /// `actor` comes after `point`.
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

/// The number that a trace calls the record behind `point` by.
fn event(point: Point) -> u64 {
    ((point.stream.index() as u64) << 48) | point.seq
}

fn records(trace: &mut Recorder, state: &State, at: RecordPlace) {
    let records = state.sync.plan().records().iter().filter(|record| record.place == at);
    records.for_each(|record| trace.record(event(record.point), record.point));
}

/// Writes an instruction of the list that is being committed.
fn issue<T: Borrow<Tensor>, V: Borrow<Var>>(
    trace: &mut Recorder,
    state: &State,
    line: usize,
    instruction: &Instruction,
    uses: &[Declared<T, V>],
    lives: &HashMap<ResourceId, u64>,
) {
    let plan = state.sync.plan();
    let planned = &plan.instructions()[line];
    // Freeing and allocating touch nothing.
    let uses = if matches!(instruction.kind, Kind::Release | Kind::Allocate) { &[] } else { uses };
    let touched: Vec<(u64, ep::Access, Touch)> = uses
        .iter()
        .zip(&state.scratch.uses[instruction.use_range()])
        .map(|(u, DependenceUse { resource, .. })| {
            let known = state.resources.get(resource.index()).and_then(Option::as_ref);
            let touch = match (u.target(), known) {
                (Target::Tensor(tensor), Some(known)) => {
                    let (mut views, mut operands) = (Views::default(), Operands::default());
                    views.add(&known.memory, tensor, u.access());
                    Touch::of(&operands.of(&views)[0], None)
                }
                _ => Touch::new([], u.access(), None),
            };
            (lives.get(resource).copied().unwrap_or(0), u.access(), touch)
        })
        .collect();
    let uses: Vec<UseLine<'_>> = touched
        .iter()
        .map(|(life, access, touch)| UseLine { life: *life, access: *access, runs: touch.runs() })
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
    let waited_for = state.scratch.waited_for.iter().find(|(at, _)| *at == line).map(|(_, point)| *point);
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
