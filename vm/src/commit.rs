//! The second pass of a submission: soft sync, numbers, slots, publication. Nothing in it can fail.
//!
//! Publication is under the lock, so submission order is program order on every stream. Who dispatches: an instruction
//! without host waits, on a stream on which nothing is held back, goes straight to its thread context; any other goes
//! to the scheduler, and so does everything behind it until the scheduler has dispatched all that was sent to it. So
//! the right to dispatch a stream lies in one place at a time (`docs/adr/0003-who-dispatches.md` has the measurement).

use std::borrow::{Borrow, Cow};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use smallvec::SmallVec;
use streamvm_instructions::{
    Batch, Declared, Dependence, DependenceUse, EngineRef, Event, Instruction, Kind, Line, Order, PlannedRecord,
    RecordPlace, Role, Target, Tensor, Var, WaitFor, is_reachable,
};
use streamvm_stream::{Point, StreamId, WaitKind};

use crate::claims::Claim;
use crate::commit_unordered::level_of;
use crate::context_shared::ContextShared;
use crate::job::{CleanUp, Job, Task, lines_of};
use crate::shared::Shared;
use crate::slot::{LINES, Slot};
use crate::state::{Contents, State, Undo};

/// What one submission put on one stream.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) stream: StreamId,
    pub(crate) first: u64,
    pub(crate) last: u64,
}

/// What a submission was given.
#[derive(Clone, Default)]
pub(crate) struct Submitted {
    pub(crate) spans: SmallVec<[Span; 2]>,
    /// What keeps its failures for whoever asks. None while nothing has ever failed in the engine.
    pub(crate) claim: Option<Arc<Claim>>,
}

impl Submitted {
    #[inline(always)]
    fn add(&mut self, point: Point) {
        if point.stream.is_unordered() {
            // Its points say nothing about each other.
            return self.spans.push(Span { stream: point.stream, first: point.seq, last: point.seq });
        }
        match self.spans.last_mut() {
            Some(span) if span.stream == point.stream => span.last = point.seq,
            _ => self.add_apart(point),
        }
    }

    fn add_apart(&mut self, point: Point) {
        self.add_row(point.stream, point.seq, point.seq);
    }

    /// Adds what lies behind all that was added of an ordered stream.
    #[inline]
    pub(crate) fn add_row(&mut self, stream: StreamId, first: u64, last: u64) {
        match self.spans.iter_mut().find(|span| span.stream == stream) {
            Some(span) => span.last = last,
            None => self.spans.push(Span { stream, first, last }),
        }
    }
}

/// What the jobs of a submission have together.
pub(crate) struct Filled {
    /// Bytes that they keep until they have passed.
    bytes: u64,
    /// When they are submitted, where somebody asks.
    at: Option<Instant>,
    /// The number of the last that has a caller's code and was not told to its stream, or 0.
    pub(crate) code: u64,
    /// The only job, with the batch of its context, if it goes straight there.
    pub(crate) only: Option<(usize, Slot<Job>)>,
}

/// Threads to wake once the lock is left.
pub(crate) struct ToWake {
    pub(crate) contexts: SmallVec<[Arc<ContextShared>; 2]>,
    pub(crate) scheduler: bool,
}

impl State {
    /// Numbers, orders and publishes a prepared list, and takes its functions out. Returns whom to wake: nearly always
    /// everybody is awake.
    #[inline(never)]
    pub(crate) fn commit<B: Batch>(&mut self, list: &mut B, vm: &Shared, submitted: &mut Submitted) -> Option<ToWake> {
        if !self.scratch.undo.is_empty() {
            self.settle_resources(list, vm.me);
        }
        self.sync.begin();
        // A record may be planned for an earlier line, lines may name each other, and a monitor is shown the whole plan:
        // without these, a line is sent as soon as it is ordered.
        let at_once = vm.monitor.is_none() && !self.sync.places_records() && !self.scratch.by_line;
        if !at_once {
            self.order_all(list, vm);
        }
        let mut filled = Filled { bytes: 0, at: vm.profiles.then(Instant::now), code: 0, only: None };
        let (mut lines, uses) = list.lines();
        let mut line = 0;
        while let Some(next) = lines.peek() {
            let row = if at_once && !next.kind.asks() { self.begin_row(line, vm) } else { None };
            if let Some(row) = row {
                line = self.commit_row::<B>(row, line, (&mut lines, uses), vm, &mut filled, submitted);
            } else if let Some(instruction) = lines.next() {
                let job = if at_once { self.ordered_job(line, &instruction, vm) } else { self.planned_job(line, vm) };
                submitted.add(job.point);
                self.commit_alone(job, line, instruction, uses, vm, &mut filled);
                line += 1;
            }
            if B::ONE {
                break;
            }
        }
        let bytes = filled.bytes;
        if bytes > 0 {
            self.headroom.bytes = self.headroom.bytes.saturating_sub(bytes);
            let charged = vm.charged_bytes.load(Ordering::Relaxed) + bytes;
            vm.charged_bytes.store(charged, Ordering::Release);
        }
        if let Some(driver) = &vm.inline {
            driver.jobs.push(&mut self.in_order);
            return None;
        }
        let scheduler = !self.to_scheduler.is_empty();
        let sleeps = match filled.only {
            Some((batch, job)) if B::ONE => self.outbox.push_one(batch, job),
            _ => self.outbox.push(),
        };
        if scheduler {
            vm.to_scheduler.push(&mut self.to_scheduler);
        }
        (scheduler || sleeps).then(|| self.whom_to_wake(scheduler))
    }

    /// Commits an instruction that is no part of a row, and was ordered.
    #[inline(never)]
    fn commit_alone<T, V>(
        &mut self,
        mut job: Slot<Job>,
        line: usize,
        instruction: Line<'_>,
        uses: &[Declared<T, V>],
        vm: &Shared,
        filled: &mut Filled,
    ) where
        T: Borrow<Tensor>,
        V: Borrow<Var>,
    {
        let (unordered, seq) = (job.point.stream.is_unordered(), job.point.seq);
        self.fill(&mut job, line, instruction, uses, filled);
        let entry = &self.streams[job.point.stream.index()].entry;
        if let code @ 1.. = std::mem::take(&mut filled.code)
            && !unordered
        {
            entry.note_code(code);
        }
        entry.note_submitted(if unordered { entry.submitted() + 1 } else { seq });
        self.dispatch(job, vm);
    }

    #[inline(never)]
    fn whom_to_wake(&mut self, scheduler: bool) -> ToWake {
        ToWake { contexts: self.outbox.sleepers(), scheduler }
    }

    /// Sends the records that stand before the list's work, and notes the lines that the others stand behind.
    #[cold]
    fn dispatch_marks(&mut self, vm: &Shared) {
        let records = self.sync.plan().records().to_vec();
        for PlannedRecord { point, place } in records {
            self.streams[point.stream.index()].counts.records += 1;
            match place {
                RecordPlace::Behind(line) => self.scratch.prepared[line].record = true,
                RecordPlace::Start => {
                    let mut job = self.slot(LINES, &vm.returned);
                    self.spare_cell(&job);
                    job.point = point;
                    (job.what, job.order) = ("record", 0);
                    job.forget_reads();
                    job.task = Task::Mark;
                    self.dispatch(job, vm);
                }
            }
        }
    }

    /// Tells the handles of new resources their numbers, and all whose contents changed what became of them.
    #[inline(never)]
    fn settle_resources<B: Batch>(&mut self, list: &B, engine: EngineRef) {
        for undo in &self.scratch.undo {
            let (Undo::Created(id, place) | Undo::Contents(id, place, _)) = *undo;
            let resource = list.all_uses()[place].resource();
            let known = self.resources[id.index()].as_ref();
            let written = known.is_some_and(|known| known.contents == Contents::Written);
            match undo {
                Undo::Created(..) if resource.claim(engine).is_ok() => resource.keep(engine, id, written),
                // Another engine has taken it meanwhile: no handle knows this number.
                Undo::Created(..) => self.scratch.dropped.push(id),
                Undo::Contents(..) => resource.note_written(engine, written),
            }
        }
    }

    /// Orders the whole list before anything of it is sent.
    #[inline(never)]
    fn order_all<B: Batch>(&mut self, list: &B, vm: &Shared) {
        for (line, instruction) in list.instructions().iter().enumerate() {
            let stream = self.scratch.prepared[line].stream;
            let order = self.order_of(line, instruction, vm.me);
            let mut job = self.slot(lines_of(instruction), &vm.returned);
            self.number(&mut job, stream, instruction, vm);
            let point = job.point;
            self.planned.push(job);
            let uses = ordered_uses(&self.scratch.uses, instruction);
            self.sync.instruction(point, uses, order, &mut self.snapshot.of(vm));
            self.note_ordered(instruction, point, vm.me);
        }
        if let Some(monitor) = &vm.monitor {
            monitor.submits(self, list, self.snapshot.seen());
        }
        self.dispatch_marks(vm);
    }

    /// The job of the next line, which was numbered, with what was planned for it.
    #[inline(never)]
    fn planned_job(&mut self, line: usize, vm: &Shared) -> Slot<Job> {
        let numbered = self.planned.pop();
        let mut job = numbered.unwrap_or_else(|| unreachable!("each line of a planned list was numbered"));
        let (plan, prepared) = (self.sync.plan(), &self.scratch.prepared[line]);
        let planned = &plan.instructions()[line];
        job.forget_reads();
        plan.reads(planned).iter().for_each(|point| job.add_read(*point));
        if prepared.record {
            job.more().record = true;
        }
        self.scratch.waits.clear();
        self.scratch.waits.extend_from_slice(plan.waits(planned));
        self.add_waits(&mut job, vm);
        job
    }

    /// Gives a job its number: the next of its stream, or on an unordered one that of a cell.
    #[inline(always)]
    fn number(&mut self, job: &mut Job, stream: StreamId, instruction: &Instruction, vm: &Shared) {
        let next = self.sync.number(stream);
        self.spare_cell(job);
        job.point = next;
        if stream.is_unordered() {
            self.number_by_cell(job, level_of(instruction), vm);
            vm.streams.cells().tell(job.point);
        }
    }

    /// A slot for an instruction that is ordered by itself, with its number and its waits.
    #[inline(never)]
    fn ordered_job(&mut self, line: usize, instruction: &Instruction, vm: &Shared) -> Slot<Job> {
        let (stream, asks) = (self.scratch.prepared[line].stream, instruction.kind.asks());
        let order = if asks { self.order_of(line, instruction, vm.me) } else { Order::Uses };
        let mut job = self.slot(lines_of(instruction), &vm.returned);
        self.number(&mut job, stream, instruction, vm);
        let point = job.point;
        let uses = ordered_uses(&self.scratch.uses, instruction);
        job.forget_reads();
        let mut observed = self.snapshot.of(vm);
        let waits = self.sync.order(point, uses, order, &mut observed, |point| job.add_read(point));
        self.add_planned_waits(&mut job, &waits, vm);
        if asks {
            self.note_ordered(instruction, point, vm.me);
        }
        job
    }

    /// Gives an instruction the waits of the plan in `range`.
    #[inline]
    pub(crate) fn add_planned_waits(&mut self, job: &mut Job, range: &Range<u32>, vm: &Shared) {
        if !range.is_empty() {
            self.scratch.waits.clear();
            self.scratch.waits.extend_from_slice(self.sync.plan().waits_in(range));
            self.add_waits(job, vm);
        }
    }

    #[inline(never)]
    fn note_ordered(&mut self, instruction: &Instruction, point: Point, engine: EngineRef) {
        match &instruction.kind {
            Kind::Record(event) => self.note_recorded(event, point, engine),
            Kind::Release => self.hand_over(self.scratch.uses[instruction.use_range().start].resource),
            _ => {}
        }
    }

    /// What an instruction asks of order besides its uses.
    #[inline(never)]
    fn order_of(&mut self, line: usize, instruction: &Instruction, engine: EngineRef) -> Order {
        match &instruction.kind {
            Kind::Record(_) => Order::Record,
            Kind::Barrier { .. } => Order::Barrier,
            Kind::GlobalSync => Order::AfterAll,
            Kind::Wait { source, target, .. } => {
                let point = match target {
                    // An event of this list first: another engine may have set it meanwhile.
                    WaitFor::Event(event) => {
                        let here = self.scratch.recorded.get(&event.address());
                        here.and_then(|recorded| recorded.point).or_else(|| event.point_in(engine))
                    }
                    WaitFor::Line(line) => self.sync.plan().instructions().get(*line).map(|other| other.point),
                    WaitFor::Number(seq) => self.names.find(source).map(|id| Point::new(id, *seq)),
                };
                self.scratch.waited_for.extend(point.map(|point| (line, point)));
                point.map_or(Order::Uses, Order::After)
            }
            _ => Order::Uses,
        }
    }

    #[inline(never)]
    fn note_recorded(&mut self, event: &Event, point: Point, engine: EngineRef) {
        event.set(engine, point);
        if let Some(recorded) = self.scratch.recorded.get_mut(&event.address()) {
            recorded.point = Some(point);
        }
    }

    /// Carries a release out: the memory goes to the resource of this list that was given it, or back to the pool,
    /// with all accesses up to here.
    #[inline(never)]
    fn hand_over(&mut self, owner: streamvm_instructions::ResourceId) {
        let Some(index) = self.scratch.handed.iter().position(|handed| handed.owner == owner) else {
            return;
        };
        let handed = self.scratch.handed.swap_remove(index);
        let accesses = self.sync.dependence(owner).accesses();
        if let Some(known) = self.known(owner) {
            known.memory.block = None;
        }
        match handed.heir {
            Some(heir) => self.sync.replace_dependence(heir, Dependence::after(&accesses)),
            None => self.pools.free(handed.pool, handed.block.id, accesses),
        }
    }

    /// Writes down what a job with its number and its order runs, and what it keeps.
    #[inline(always)]
    pub(crate) fn fill<T, V>(
        &mut self,
        job: &mut Job,
        line: usize,
        mut instruction: Line<'_>,
        uses: &[Declared<T, V>],
        filled: &mut Filled,
    ) where
        T: Borrow<Tensor>,
        V: Borrow<Var>,
    {
        self.submitted += 1;
        job.order = self.submitted;
        job.bytes = self.scratch.prepared[line].bytes;
        job.site = instruction.site;
        match &instruction.kind {
            Kind::Function { name: Cow::Borrowed(name), .. } => {
                job.what = name;
                self.fill_code(job, &mut instruction, filled);
            }
            _ => self.fill_other(job, line, &mut instruction, filled),
        }
        if job.task != Task::Nothing {
            if instruction.manner.clean_up {
                job.more().clean_up = Some(self.clean_up(&instruction));
            }
            if instruction.has_more() {
                self.add_uses(job, &instruction, uses);
            }
            if let Some(submitted) = filled.at {
                job.stamp(submitted);
            }
        }
        filled.bytes += job.bytes;
    }

    /// Takes the code of a function or barrier out of its list, if it has one.
    #[inline(always)]
    fn fill_code(&self, job: &mut Job, instruction: &mut Line<'_>, filled: &mut Filled) {
        if instruction.take_body(&mut job.function) {
            filled.code = job.point.seq;
            let raw = matches!(instruction.kind, Kind::Function { role: Role::Cuda, .. });
            job.task = if raw { Task::Raw } else { Task::Function };
        }
    }

    /// [`State::fill`] for what is no function with a constant's name.
    #[inline(never)]
    fn fill_other(&mut self, job: &mut Job, line: usize, instruction: &mut Line<'_>, filled: &mut Filled) {
        let prepared = &self.scratch.prepared[line];
        match &instruction.kind {
            Kind::Function { name, .. } | Kind::Barrier { name, .. } => {
                match name {
                    Cow::Borrowed(name) => job.what = name,
                    Cow::Owned(name) => {
                        job.more().name = Some(name.as_str().into());
                        job.what = "function";
                    }
                }
                self.fill_code(job, instruction, filled);
            }
            Kind::Call { op, params } => {
                job.what = op.name();
                let Some(kernel) = prepared.kernel else { return };
                job.computing.kernel = Some(self.scratch.kernels[kernel as usize]);
                job.computing.params = *params;
                job.task = Task::Kernel;
            }
            Kind::Copy => (job.what, job.task) = ("copy", Task::Copy),
            Kind::Fill(value) => {
                job.computing.value = Some(*value);
                (job.what, job.task) = ("fill", Task::Fill);
            }
            other => {
                job.what = other.word();
                // Where points are shown by events it was planned like any other, and counted.
                if matches!(other, Kind::Record(_)) && !prepared.record {
                    self.streams[prepared.stream.index()].counts.records += 1;
                }
            }
        }
    }

    /// How far a clean-up heals: by what it overwrites, unless it keeps something too.
    fn clean_up(&self, instruction: &Instruction) -> CleanUp {
        let uses = &self.scratch.uses[instruction.use_range()];
        let writes = |u: &&DependenceUse| u.access.writes();
        let keeps = |written: &DependenceUse| uses.iter().any(|u| u.resource == written.resource && u.access.reads());
        if uses.iter().filter(writes).any(keeps) { CleanUp::PassesOn } else { CleanUp::Heals }
    }

    /// Adds what only uses of tensors and of variables that count have.
    #[inline(never)]
    fn add_uses<T, V>(&self, job: &mut Job, instruction: &Instruction, uses: &[Declared<T, V>])
    where
        T: Borrow<Tensor>,
        V: Borrow<Var>,
    {
        // Who pushes is shown no memory.
        let shown = !matches!(instruction.kind, Kind::Function { role: Role::Push, .. });
        let resources = &self.scratch.uses[instruction.use_range()];
        for (u, DependenceUse { resource, .. }) in instruction.uses_of(uses).iter().zip(resources) {
            match u.target() {
                Target::Tensor(tensor) if shown => {
                    debug_assert!(is_reachable(instruction.stream, tensor), "lists hold what their streams reach");
                    if let Some(Some(known)) = self.resources.get(resource.index()) {
                        job.views_mut().add(&known.memory, tensor, u.access());
                    }
                }
                Target::Var(var) if u.access().writes() => {
                    var.resource().version().into_iter().for_each(|version| job.more().count(version));
                }
                _ => {}
            }
        }
    }

    #[inline]
    pub(crate) fn dispatch(&mut self, job: Slot<Job>, vm: &Shared) {
        let stream = &mut self.streams[job.point.stream.index()];
        if vm.inline.is_some() {
            self.in_order.push(job);
        } else if job.point.stream.is_unordered() {
            self.dispatch_unordered(job, vm);
        } else if job.has_host_waits() || stream.sent != stream.entry.dispatched() {
            stream.sent += 1;
            self.to_scheduler.push(job);
        } else {
            self.outbox.add(stream.batch, job);
        }
    }

    /// Gives an instruction the waits that soft sync planned, which are in the scratch.
    #[inline(never)]
    fn add_waits(&mut self, job: &mut Job, vm: &Shared) {
        let counts = &mut self.streams[job.point.stream.index()].counts;
        let device = self.scratch.waits.iter().filter(|wait| wait.kind == WaitKind::Device).count() as u64;
        counts.device_waits += device;
        counts.host_waits += self.scratch.waits.len() as u64 - device;
        if job.point.stream.is_unordered() {
            return self.add_needs(job, vm);
        }
        for wait in &self.scratch.waits {
            match wait.kind {
                WaitKind::Device => job.more().device_waits.push(wait.point),
                WaitKind::Host => job.more().host_waits.push(wait.point),
            }
        }
    }
}

/// What an instruction is ordered by.
#[inline]
fn ordered_uses<'a>(uses: &'a [DependenceUse], instruction: &Instruction) -> &'a [DependenceUse] {
    match instruction.kind {
        // Freeing waits for nothing, and memory waits for its former lives at its first access.
        Kind::Release | Kind::Allocate => &[],
        _ => &uses[instruction.use_range()],
    }
}
