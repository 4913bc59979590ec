//! The second pass of a submission: soft sync, numbers, node boxes, publication. It cannot fail.
//!
//! Tasks are published under the submission lock, so submission order is program order on every stream.
//!
//! A task of an ordered stream without host waits goes straight to its thread context, if the scheduler holds back nothing on its stream.
//! Any other task goes to the scheduler, and so does everything after it, until the scheduler has dispatched all that was sent to it. So
//! at any time one side has the right to dispatch a stream (`docs/adr/dispatch.md`).

use std::borrow::{Borrow, Cow};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use smallvec::SmallVec;
use streamvm_ep::Op;
use streamvm_instructions::{
    Batch, Declared, Dependence, DependenceUse, EngineRef, Event, Instruction, Kind, Line, Order, PlannedRecord,
    RecordPlace, Role, Target, Tensor, Var, WaitFor, is_reachable,
};
use streamvm_stream::{Point, StreamId, WaitKind};

use crate::dispatch::context_handle::ContextHandle;
use crate::execute::environment::Environment;
use crate::observe::submission::Submission;
use crate::progress::claims::Claim;
use crate::progress::failures::Span;
use crate::queue::node::{LINES, NodeBox};
use crate::submit::commit_unordered::level_of;
use crate::submit::state::{State, Undo};
use crate::tasks::resource::Contents;
use crate::tasks::spans::{Caller, InstructionSpan};
use crate::tasks::task::{Action, CleanUp, Task, lines_of};

/// What the caller learns of a submission.
#[derive(Clone, Default)]
pub(crate) struct Submitted {
    pub(crate) spans: SmallVec<[Span; 2]>,
    /// The claim that keeps its failures until they are asked for. `None` while nothing has ever failed in the engine.
    pub(crate) claim: Option<Arc<Claim>>,
    /// While it is being submitted: where its submitter is. Instructions share it, so that none of them drops it under the submission lock.
    pub(crate) caller: Option<Caller>,
}

impl Submitted {
    /// Adds the number of one instruction. `place` is as in [`Submitted::add_row`].
    #[inline(always)]
    fn add(&mut self, point: Point, place: &mut usize) {
        if point.stream.is_unordered() {
            // A number of an unordered stream says nothing about other numbers, so each gets a span of its own.
            return self.spans.push(Span { stream: point.stream, first: point.seq, last: point.seq });
        }
        self.add_row(point.stream, (point.seq, point.seq), place);
    }

    /// Adds numbers of an ordered stream, which follow all numbers of it that were added before.
    ///
    /// `place` is the index of the stream's span, or is left over from another submission. So the stream's span is searched once in a submission, or
    /// once in each piece of one that other submissions interrupt.
    #[inline]
    pub(crate) fn add_row(&mut self, stream: StreamId, (first, last): (u64, u64), place: &mut usize) {
        if self.spans.is_empty() {
            // Nearly all submissions use one stream.
            *place = 0;
            return self.spans.push(Span { stream, first, last });
        }
        match self.spans.get_mut(*place) {
            Some(span) if span.stream == stream => span.last = last,
            _ => self.add_elsewhere(Span { stream, first, last }, place),
        }
    }

    #[cold]
    fn add_elsewhere(&mut self, new: Span, place: &mut usize) {
        *place = self.spans.iter().position(|span| span.stream == new.stream).unwrap_or(self.spans.len());
        match self.spans.get_mut(*place) {
            Some(span) => span.last = new.last,
            None => self.spans.push(new),
        }
    }
}

/// State shared by the tasks of a submission while they are filled.
pub(crate) struct Filled {
    /// Bytes that its tasks keep until they have passed.
    bytes: u64,
    /// The time of submission, if instructions are stamped with it.
    at: Option<Instant>,
    /// Whether instructions that have nothing to run are stamped with it, too.
    stamps_all: bool,
    /// Where the submitter is, if instructions have spans.
    caller: Option<Caller>,
    /// The number of the last task with code, or a span, that waiting callers may not run, if it was not reported to its stream yet, or 0.
    pub(crate) code: u64,
}

/// Threads to wake after the lock is left.
pub(crate) struct ToWake {
    pub(crate) contexts: SmallVec<[Arc<ContextHandle>; 2]>,
    pub(crate) scheduler: bool,
}

impl State {
    /// The time at which instructions are submitted, in an engine that profiles or is traced.
    #[cold]
    #[inline(never)]
    fn stamp(&mut self, env: &Environment) -> Instant {
        let at = Instant::now();
        // Before the list's own releases are noted.
        env.timeline.iter().for_each(|timeline| self.note_prepared(timeline.at(at)));
        at
    }

    /// Numbers, orders and publishes a prepared list, and takes its functions out. Returns the threads to wake; mostly none is parked.
    #[inline(never)]
    pub(crate) fn commit<B: Batch>(
        &mut self,
        list: &mut B,
        env: &Environment,
        submitted: &mut Submitted,
    ) -> Option<ToWake> {
        if !self.scratch.undo.is_empty() {
            self.bind_resources(list, env.me);
        }
        let at = if env.stamps { Some(self.stamp(env)) } else { None };
        self.sync.begin();
        self.resume_section();
        // Each line is dispatched as soon as it is ordered, unless the whole plan is needed first: soft sync may place a record after an
        // earlier line, lines may wait for each other, and an observer gets the whole plan.
        let at_once = env.observer.is_none() && !self.sync.places_records() && !self.scratch.by_line;
        if !at_once {
            self.order_all(list, env);
        }
        let mut filled =
            Filled { bytes: 0, at, stamps_all: env.timeline.is_some(), caller: submitted.caller.clone(), code: 0 };
        let (mut lines, uses) = list.lines();
        let mut line = 0;
        while let Some(next) = lines.peek() {
            let row = if at_once && !next.kind.has_explicit_order() { self.begin_row(line, env) } else { None };
            if let Some(row) = row {
                line = self.commit_row::<B>(row, line, (&mut lines, uses), env, &mut filled, submitted);
            } else if let Some(instruction) = lines.next() {
                let task =
                    if at_once { self.ordered_task(line, &instruction, env) } else { self.planned_task(line, env) };
                submitted.add(task.point, &mut self.streams[task.point.stream.index()].span);
                self.commit_single(task, line, instruction, uses, env, &mut filled);
                line += 1;
            }
        }
        self.leave_sections();
        let bytes = filled.bytes;
        if bytes > 0 {
            self.headroom.bytes = self.headroom.bytes.saturating_sub(bytes);
            let charged = env.charged_bytes.load(Ordering::Relaxed) + bytes;
            env.charged_bytes.store(charged, Ordering::Release);
        }
        if let Some(tasks) = &env.inline_tasks {
            tasks.push(&mut self.in_order);
            return None;
        }
        let scheduler = !self.to_scheduler.is_empty();
        let sleeps = self.batches.push();
        if scheduler {
            env.to_scheduler.push(&mut self.to_scheduler);
        }
        (scheduler || sleeps).then(|| self.threads_to_wake(scheduler))
    }

    /// Commits an ordered instruction that is not part of a row.
    #[inline(never)]
    fn commit_single<T, V>(
        &mut self,
        mut task: NodeBox<Task>,
        line: usize,
        instruction: Line<'_>,
        uses: &[Declared<T, V>],
        env: &Environment,
        filled: &mut Filled,
    ) where
        T: Borrow<Tensor>,
        V: Borrow<Var>,
    {
        let (unordered, seq) = (task.point.stream.is_unordered(), task.point.seq);
        self.fill(&mut task, line, instruction, uses, filled);
        let stream_state = &self.streams[task.point.stream.index()].stream_state;
        if let code @ 1.. = std::mem::take(&mut filled.code)
            && !unordered
        {
            stream_state.note_code(code);
        }
        stream_state.note_submitted(if unordered { stream_state.submitted() + 1 } else { seq });
        self.dispatch(task, env);
    }

    #[inline(never)]
    fn threads_to_wake(&mut self, scheduler: bool) -> ToWake {
        ToWake { contexts: self.batches.parkers(), scheduler }
    }

    /// Dispatches the records that come before the list, and marks the lines that have a record after them.
    #[cold]
    fn dispatch_records(&mut self, env: &Environment) {
        let records = self.sync.plan().records().to_vec();
        for PlannedRecord { point, place } in records {
            self.streams[point.stream.index()].counts.records += 1;
            match place {
                RecordPlace::Behind(line) => self.scratch.prepared[line].record = true,
                RecordPlace::Start => {
                    let mut task = self.take_box(LINES, &env.returned);
                    self.spare_node(&task);
                    task.point = point;
                    (task.what, task.order) = ("record", 0);
                    task.forget_reads();
                    task.action = Action::Mark;
                    self.dispatch(task, env);
                }
            }
        }
    }

    /// Tells the handles of new resources their numbers, and all changed resources whether they are written.
    #[inline(never)]
    fn bind_resources<B: Batch>(&mut self, list: &B, engine: EngineRef) {
        for undo in &self.scratch.undo {
            let (Undo::Created(id, place) | Undo::Contents(id, place, _)) = *undo;
            let resource = list.all_uses()[place].resource();
            let known = self.resources[id.index()].as_ref();
            let written = known.is_some_and(|known| known.contents == Contents::Written);
            match undo {
                Undo::Created(..) if resource.claim(engine).is_ok() => resource.keep(engine, id, written),
                // Another engine has claimed the resource meanwhile, so no handle knows this number: the resource is dropped.
                Undo::Created(..) => self.scratch.dropped.push(id),
                Undo::Contents(..) => resource.note_written(engine, written),
            }
        }
    }

    /// Orders the whole list before its first task is dispatched.
    #[inline(never)]
    fn order_all<B: Batch>(&mut self, list: &B, env: &Environment) {
        for (line, instruction) in list.instructions().iter().enumerate() {
            let stream = self.scratch.prepared[line].stream;
            let order = self.order_of(line, instruction, env.me);
            self.scratch.sections.members.extend(self.sync.section().map(|section| (line, section)));
            let mut task = self.take_box(lines_of(instruction), &env.returned);
            self.number(&mut task, stream, instruction, env);
            let point = task.point;
            self.planned.push(task);
            let uses = ordered_uses(&self.scratch.uses, instruction);
            self.sync.instruction(point, uses, order, &mut self.snapshot.of(env));
            self.note_ordered(instruction, point, env);
        }
        self.sync.end();
        if let Some(observer) = &env.observer {
            let submission = Submission {
                plan: self.sync.plan(),
                uses: &self.scratch.uses,
                waited_for: &self.scratch.waited_for,
                members: &self.scratch.sections.members,
                resources: &self.resources,
            };
            observer.submits(&submission, list, self.snapshot.seen());
        }
        self.dispatch_records(env);
    }

    /// The numbered task of the next line, with its planned reads, record and waits.
    #[inline(never)]
    fn planned_task(&mut self, line: usize, env: &Environment) -> NodeBox<Task> {
        let numbered = self.planned.pop();
        let mut task = numbered.unwrap_or_else(|| unreachable!("each line of a planned list was numbered"));
        let (plan, prepared) = (self.sync.plan(), &self.scratch.prepared[line]);
        let planned = &plan.instructions()[line];
        task.forget_reads();
        plan.reads(planned).iter().for_each(|point| task.add_read(*point));
        if prepared.record {
            task.cold_mut().record = true;
        }
        self.scratch.waits.clear();
        self.scratch.waits.extend_from_slice(plan.waits(planned));
        self.add_waits(&mut task, env);
        task
    }

    /// Gives a task its number: the next of its ordered stream, or the number of a dependence node.
    #[inline(always)]
    fn number(&mut self, task: &mut Task, stream: StreamId, instruction: &Instruction, env: &Environment) {
        let next = self.sync.number(stream);
        self.spare_node(task);
        task.point = next;
        if stream.is_unordered() {
            self.number_by_node(task, level_of(instruction), env);
            env.streams.nodes().publish(task.point);
        }
    }

    /// Numbers and orders one instruction, outside of a row. Returns its node box.
    #[inline(never)]
    fn ordered_task(&mut self, line: usize, instruction: &Instruction, env: &Environment) -> NodeBox<Task> {
        let (stream, explicit) = (self.scratch.prepared[line].stream, instruction.kind.has_explicit_order());
        let order = if explicit { self.order_of(line, instruction, env.me) } else { Order::Uses };
        let mut task = self.take_box(lines_of(instruction), &env.returned);
        self.number(&mut task, stream, instruction, env);
        let point = task.point;
        let uses = ordered_uses(&self.scratch.uses, instruction);
        task.forget_reads();
        let mut observed = self.snapshot.of(env);
        let waits = self.sync.order(point, uses, order, &mut observed, |point| task.add_read(point));
        self.add_planned_waits(&mut task, &waits, env);
        if explicit {
            self.note_ordered(instruction, point, env);
        }
        task
    }

    /// Adds the planned waits in `range` to a task.
    #[inline]
    pub(crate) fn add_planned_waits(&mut self, task: &mut Task, range: &Range<u32>, env: &Environment) {
        if !range.is_empty() {
            self.scratch.waits.clear();
            self.scratch.waits.extend_from_slice(self.sync.plan().waits_in(range));
            self.add_waits(task, env);
        }
    }

    #[inline(never)]
    fn note_ordered(&mut self, instruction: &Instruction, point: Point, env: &Environment) {
        match &instruction.kind {
            Kind::Record(event) => self.note_recorded(event, point, env.me),
            Kind::Release => self.transfer_block(self.scratch.uses[instruction.use_range().start].resource, env),
            Kind::SectionBegin(_) => {
                let resources = &self.scratch.uses[instruction.use_range()];
                self.sync.set_section(resources.first().map(|u| u.resource));
            }
            _ => {}
        }
    }

    /// The explicit order of an instruction, beyond that of its uses.
    #[inline(never)]
    fn order_of(&mut self, line: usize, instruction: &Instruction, engine: EngineRef) -> Order {
        match &instruction.kind {
            Kind::Record(_) => Order::Record,
            Kind::Barrier { .. } => Order::Barrier,
            Kind::GlobalSync => Order::AfterAll,
            Kind::SectionBegin(_) => Order::Uses,
            Kind::SectionEnd(_) => {
                self.sync.set_section(None);
                Order::Uses
            }
            Kind::Wait { source, target, .. } => {
                let point = match target {
                    // An event of this list takes precedence, because another engine may have set the event meanwhile.
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
            Kind::Call { .. } | Kind::Copy | Kind::Fill(_) | Kind::Allocate | Kind::Release | Kind::Touch => {
                Order::Uses
            }
            Kind::Function { role, .. } => {
                if *role == Role::Blocks {
                    Order::Pieces
                } else {
                    Order::Uses
                }
            }
        }
    }

    #[inline(never)]
    fn note_recorded(&mut self, event: &Event, point: Point, engine: EngineRef) {
        event.set(engine, point);
        if let Some(recorded) = self.scratch.recorded.get_mut(&event.address()) {
            recorded.point = Some(point);
        }
    }

    /// Performs a release: the memory, with all accesses so far, goes to the resource of this list that `prepare` chose, or back to its
    /// pool.
    #[inline(never)]
    fn transfer_block(&mut self, owner: streamvm_instructions::ResourceId, env: &Environment) {
        let Some(released) = self.scratch.released_blocks.commit(owner) else { return };
        // The trace knows of an heir that its memory was the owner's.
        if released.heir.is_none() && env.timeline.is_some() {
            self.note_freed(owner);
        }
        let accesses = self.sync.dependence(owner).accesses();
        if let Some(known) = self.known(owner) {
            known.memory.block = None;
        }
        match released.heir {
            Some(owner) => self.sync.replace_dependence(owner, Dependence::after(&accesses)),
            None => self.pools.free(released.pool, released.block.id, accesses),
        }
    }

    /// Fills a numbered and ordered task: what it runs, and what it keeps.
    #[inline(always)]
    pub(crate) fn fill<T, V>(
        &mut self,
        task: &mut Task,
        line: usize,
        mut instruction: Line<'_>,
        uses: &[Declared<T, V>],
        filled: &mut Filled,
    ) where
        T: Borrow<Tensor>,
        V: Borrow<Var>,
    {
        self.submitted += 1;
        task.order = self.submitted;
        task.bytes = self.scratch.prepared[line].bytes;
        task.site = instruction.site;
        match &instruction.kind {
            Kind::Function { name: Cow::Borrowed(name), .. } => {
                task.what = name;
                self.fill_code(task, &mut instruction, filled);
            }
            _ => self.fill_other(task, line, &mut instruction, filled),
        }
        if task.action != Action::Nothing {
            if instruction.launch.clean_up {
                task.cold_mut().clean_up = Some(self.clean_up(&instruction));
            }
            if instruction.has_more() {
                self.add_uses(task, &instruction, uses);
            }
            if let Some(submitted) = filled.at {
                task.stamp(submitted);
            }
            if let Some(caller) = &filled.caller {
                task.cold_mut().span = InstructionSpan::of(caller);
                // A waiting caller may hold locks that the subscriber of another one takes.
                filled.code = task.point.seq;
            }
        } else if filled.stamps_all
            && let Some(submitted) = filled.at
        {
            task.stamp(submitted);
        }
        filled.bytes += task.bytes;
    }

    /// Moves the code of a function or barrier out of the list, if it has code.
    #[inline(always)]
    fn fill_code(&self, task: &mut Task, instruction: &mut Line<'_>, filled: &mut Filled) {
        if instruction.take_body(&mut task.function) {
            let role = if let Kind::Function { role, .. } = instruction.kind { Some(role) } else { None };
            // A waiting caller may run the kernels of a program, as it runs kernels.
            if !matches!(role, Some(Role::Program | Role::Blocks)) && !task.function.is_helpable() {
                filled.code = task.point.seq;
            }
            task.action = match role {
                Some(Role::Cuda) => Action::Raw,
                Some(Role::Program | Role::ProgramWithCode | Role::Blocks) => Action::Segment,
                _ => Action::Function,
            };
        }
    }

    /// [`State::fill`] for everything but functions with a static name.
    #[inline(never)]
    fn fill_other(&mut self, task: &mut Task, line: usize, instruction: &mut Line<'_>, filled: &mut Filled) {
        let prepared = &self.scratch.prepared[line];
        match &instruction.kind {
            Kind::Function { name, .. } | Kind::Barrier { name, .. } => {
                match name {
                    Cow::Borrowed(name) => task.what = name,
                    Cow::Owned(_) => {
                        task.cold_mut().name = instruction.take_name().map(String::into_boxed_str);
                        task.what = "function";
                    }
                }
                self.fill_code(task, instruction, filled);
            }
            Kind::Call { op, params } => {
                task.what = op.name();
                if matches!(op, Op::Registered(_)) {
                    filled.code = task.point.seq;
                }
                let Some(kernel) = prepared.kernel else { return };
                task.computing.kernel = Some(self.scratch.kernels[kernel as usize]);
                task.computing.params = *params;
                task.action = Action::Kernel;
            }
            Kind::Copy => (task.what, task.action) = ("copy", Action::Copy),
            Kind::Fill(value) => {
                task.computing.value = Some(*value);
                (task.what, task.action) = ("fill", Action::Fill);
            }
            other @ (Kind::Allocate
            | Kind::Release
            | Kind::Touch
            | Kind::Record(_)
            | Kind::Wait { .. }
            | Kind::GlobalSync
            | Kind::SectionBegin(_)
            | Kind::SectionEnd(_)) => {
                // These have nothing to run: the task keeps `Action::Nothing`.
                task.what = other.word();
                // A record that soft sync planned was counted with the plan.
                if matches!(other, Kind::Record(_)) && !prepared.record {
                    self.streams[prepared.stream.index()].counts.records += 1;
                }
            }
        }
    }

    /// What a clean-up that runs despite a failed input does to its outputs: it heals them, unless it also reads one of them, because then
    /// a part of the failed contents may remain.
    fn clean_up(&self, instruction: &Instruction) -> CleanUp {
        let uses = &self.scratch.uses[instruction.use_range()];
        let read = uses.iter().filter(|u| u.access.reads()).map(|u| u.resource.0);
        let mut read: SmallVec<[u32; 8]> = read.collect();
        read.sort_unstable();
        let keeps = |u: &DependenceUse| u.access.writes() && read.binary_search(&u.resource.0).is_ok();
        if uses.iter().any(keeps) { CleanUp::PassesOn } else { CleanUp::Heals }
    }

    /// Adds the views of tensors, and the versions of variables that count their writes.
    #[inline(never)]
    fn add_uses<T, V>(&self, task: &mut Task, instruction: &Instruction, uses: &[Declared<T, V>])
    where
        T: Borrow<Tensor>,
        V: Borrow<Var>,
    {
        // A push gets no memory.
        let gets_memory = !matches!(instruction.kind, Kind::Function { role: Role::Push, .. });
        let resources = &self.scratch.uses[instruction.use_range()];
        for (u, DependenceUse { resource, .. }) in instruction.uses_of(uses).iter().zip(resources) {
            match u.target() {
                Target::Tensor(tensor) if gets_memory => {
                    debug_assert!(is_reachable(instruction.stream, tensor), "lists hold what their streams reach");
                    if let Some(Some(known)) = self.resources.get(resource.index()) {
                        task.views_mut().add(&known.memory, tensor, u.access());
                    }
                }
                Target::Var(var) if u.access().writes() => {
                    var.resource().version().into_iter().for_each(|version| task.cold_mut().count(version));
                }
                _ => {}
            }
        }
    }

    #[inline]
    pub(crate) fn dispatch(&mut self, task: NodeBox<Task>, env: &Environment) {
        let stream = &mut self.streams[task.point.stream.index()];
        if env.inline_tasks.is_some() {
            self.in_order.push(task);
        } else if task.point.stream.is_unordered() {
            self.dispatch_unordered(task, env);
        } else if task.has_host_waits() || stream.sent != stream.stream_state.dispatched() {
            stream.sent += 1;
            self.to_scheduler.push(task);
        } else {
            self.batches.add(stream.batch, task);
        }
    }

    /// Adds the waits in the scratch, which soft sync planned, to a task, and counts them.
    #[inline(never)]
    fn add_waits(&mut self, task: &mut Task, env: &Environment) {
        let counts = &mut self.streams[task.point.stream.index()].counts;
        let device = self.scratch.waits.iter().filter(|wait| wait.kind == WaitKind::Device).count() as u64;
        counts.device_waits += device;
        counts.host_waits += self.scratch.waits.len() as u64 - device;
        if task.point.stream.is_unordered() {
            return self.add_dependences(task, env);
        }
        for wait in &self.scratch.waits {
            match wait.kind {
                WaitKind::Device => task.cold_mut().device_waits.push(wait.point),
                WaitKind::Host => task.cold_mut().host_waits.push(wait.point),
            }
        }
    }
}

/// The uses that order an instruction.
#[inline]
fn ordered_uses<'a>(uses: &'a [DependenceUse], instruction: &Instruction) -> &'a [DependenceUse] {
    match instruction.kind {
        // A release waits for nothing. New memory waits for its former accesses at its first access, not at its allocation.
        Kind::Release | Kind::Allocate => &[],
        _ => &uses[instruction.use_range()],
    }
}
