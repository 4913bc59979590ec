//! Submission: turns a list into published tasks.
//!
//! An *attempt* runs under the submission lock: free dropped tensors, admit, [`prepare`](State::prepare),
//! [`commit`](State::commit). It makes no driver call, starts no thread and does not wait. If something stops it (a
//! [`Stopped`]), the attempt has changed nothing that is visible outside; the submitter releases the lock, removes
//! the reason ([`Engine::retry`]), and starts again.
//!
//! [`Engine::follow`] does the rest after the lock is released: wake-ups, and in inline and simulated mode the running.

use std::cell::RefCell;
use std::sync::{Arc, TryLockError};

use streamvm_ep::{Access, Site};
use streamvm_instructions::{
    Batch, Deadline, Declared, Error, InstructionList, Place, ResourceId, ResourceKind, Single, Tensor,
};

use crate::engine::core::Engine;
use crate::engine::oom_recovery::{self, OomRecovery};
use crate::execute::backpressure::{FULL, Grant, Limits, Pending};
use crate::execute::context::Context;
use crate::queue::mpsc::MpscQueue;
use crate::submit::commit::{Submitted, ToWake};
use crate::submit::prepare::Obstacle;
use crate::submit::state::State;
use crate::sync::fork::refuse_in_child;
use crate::sync::{MutexGuard, engine_thread, spin, unpoisoned, yield_now};
use crate::tasks::events::{Name, Why};
use crate::tasks::memory::{Memory, UnusedMemory};
use crate::tasks::resource::{Contents, Known};
use crate::tasks::spans::{self, Caller};
use crate::tasks::task::Task;

/// What a submitter does when the queue is full.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Full {
    /// Blocks until its instructions are admitted.
    Blocks,
    /// As `Blocks`. An engine that is closed, and not about to end, takes the list, because it only reads results of accepted work.
    BlocksToRead,
    /// Gets [`Error::WouldBlock`].
    Refuses,
}

/// The checks that an attempt to submit leaves out.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Pass {
    /// None of them.
    None,
    /// The submitter has a [`Grant`] for the list, and backpressure is not asked again.
    Granted,
    /// The list only reads results, and the engine is closed: there is no new work to hold back.
    Reads,
}

/// The reason why an attempt to submit stopped.
pub(crate) enum Stopped {
    /// The engine is closed.
    Closed,
    /// Backpressure does not admit the instructions now.
    Full,
    /// An obstacle that `prepare` found, at this line of the list.
    Obstacle(usize, Box<Obstacle>),
}

/// What [`Engine::follow`] has to do after the submission lock is released.
pub(crate) struct After {
    wake: Option<ToWake>,
    /// With one core: the submitter yields the core to the threads that run instructions.
    yields: bool,
}

impl Engine {
    /// Submits `list`, and fills in `submitted`, which is empty. It is an out parameter because a return value would be copied
    /// at each call on the way.
    pub(crate) fn submit(
        self: &Arc<Self>,
        list: &mut InstructionList,
        full: Full,
        submitted: &mut Submitted,
    ) -> Result<(), Error> {
        // Before any lock, which in a forked child a thread of the parent may have held.
        refuse_in_child(self.handle.fork).map_err(|error| error.called_from(list.site()))?;
        if list.copies_by_devices() {
            return self.stage_and_submit(list, full, submitted);
        }
        self.submit_staged(list, full, submitted)
    }

    /// [`Engine::submit`] of a list in which devices copy. Not inlined, so that other submissions have a smaller stack frame.
    #[inline(never)]
    fn stage_and_submit(
        self: &Arc<Self>,
        list: &mut InstructionList,
        full: Full,
        submitted: &mut Submitted,
    ) -> Result<(), Error> {
        // A thread of an engine cannot wait until more instructions are admitted, so its copies are staged in one piece.
        let piece = if engine_thread::is_here() { usize::MAX } else { self.staging_piece };
        let Some(mut staged) = list.staged(&self.capabilities, piece) else {
            return self.submit_staged(list, full, submitted);
        };
        let outcome = self.submit_staged(&mut staged.list, full, submitted);
        outcome.map_err(|error| error.by_lines(&staged.lines))
    }

    /// [`Engine::submit`] of one instruction that is no copy, which it borrows.
    #[inline]
    pub(crate) fn submit_one(
        self: &Arc<Self>,
        single: &mut Single<'_>,
        submitted: &mut Submitted,
    ) -> Result<(), Error> {
        refuse_in_child(self.handle.fork).map_err(|error| error.called_from(single.site()))?;
        self.submit_staged(single, Full::Blocks, submitted)
    }

    /// [`Engine::submit`] of a list in which every copy is one that its device can make; no copy is left to be staged.
    #[inline]
    fn submit_staged<B: Batch>(
        self: &Arc<Self>,
        list: &mut B,
        full: Full,
        submitted: &mut Submitted,
    ) -> Result<(), Error> {
        match self.attempt(list, submitted, Pass::None) {
            Ok(()) => Ok(()),
            Err(stopped) => self.retry(list, full, submitted, stopped),
        }
    }

    /// Submits `list`, or returns what stops it.
    #[inline(always)]
    fn attempt<B: Batch>(&self, list: &mut B, submitted: &mut Submitted, pass: Pass) -> Result<(), Stopped> {
        submitted.caller = Caller::here(|| self.has_spans());
        let mut inside = self.handle.lock();
        let after = self.attempt_inside(&mut inside, list, submitted, pass)?;
        drop(inside);
        submitted.caller = None;
        self.follow(after);
        Ok(())
    }

    /// The part of an attempt under the submission lock.
    #[inline(always)]
    pub(crate) fn attempt_inside<B: Batch>(
        &self,
        state: &mut State,
        list: &mut B,
        submitted: &mut Submitted,
        pass: Pass,
    ) -> Result<After, Stopped> {
        if self.is_closed() && (pass != Pass::Reads || self.ends()) {
            return Err(Stopped::Closed);
        }
        if let Some(timeline) = &self.timeline {
            state.note_time(timeline);
        }
        if self.handle.deferred_free.any() {
            self.handle.deferred_free.take(&mut state.scratch.dropped);
        }
        if !state.scratch.dropped.is_empty() {
            state.free_dropped(self);
        }
        let any_failed = self.failures.any();
        if any_failed {
            state.forget_failures(self);
        }
        let count = list.instructions().len() as u64;
        if pass == Pass::None && !self.admit(state, count) {
            return Err(Stopped::Full);
        }
        if let Err((line, obstacle)) = state.prepare(list, self) {
            return Err(Stopped::Obstacle(line, obstacle));
        }
        if any_failed && count > 0 {
            // Before any instruction of the list is published and can fail, so that the claim sees every failure.
            submitted.claim = Some(self.failures.claim(state.submitted + 1, state.submitted + count));
        }
        let wake = state.commit(list, self, submitted);
        if let Some(timeline) = &self.timeline {
            state.note_submitted(count, list.site(), timeline);
        }
        Ok(After { wake, yields: std::mem::take(&mut state.yields) })
    }

    /// Whether nothing is left to do after a submission, so that the caller needs no reference to the engine.
    #[inline]
    pub(crate) fn is_done(&self, after: &After) -> bool {
        let quiet = self.observer.is_none() && self.inline.is_none() && self.simulated.is_none();
        quiet && after.wake.is_none() && !after.yields && !self.failures.any()
    }

    /// The part of an attempt after the submission lock is released.
    #[inline(always)]
    pub(crate) fn follow(&self, After { wake, yields }: After) {
        if let Some(observer) = &self.observer {
            observer.pass_trace_on();
        }
        if let Some(wake) = wake {
            self.wake(&wake);
        }
        if yields {
            yield_now();
        }
        if self.inline.is_some() || self.simulated.is_some() {
            self.drive();
        }
    }

    /// Removes what stopped the submission and attempts it again, until it succeeds or a reason cannot be removed.
    #[cold]
    #[inline(never)]
    pub(crate) fn retry<B: Batch>(
        self: &Arc<Self>,
        list: &mut B,
        full: Full,
        submitted: &mut Submitted,
        mut stopped: Stopped,
    ) -> Result<(), Error> {
        let mut recovery = OomRecovery::default();
        let mut granted = None;
        let mut reads = false;
        loop {
            match stopped {
                Stopped::Closed if full == Full::BlocksToRead && !reads => reads = true,
                Stopped::Closed => return Err(Error::shutdown().called_from(list.site())),
                Stopped::Full => {
                    let room = || self.wait_for_room(list.instructions().len() as u64, full);
                    match self.blocking(full, Some(Why::Room), list.site(), room) {
                        Ok(room) => granted = room,
                        // The engine was closed meanwhile.
                        Err(Error::Shutdown { .. }) if full == Full::BlocksToRead => reads = true,
                        Err(error) => return Err(error.called_from(list.site()).not_submitted()),
                    }
                }
                Stopped::Obstacle(line, obstacle) => {
                    if matches!(*obstacle, Obstacle::Memory(..) | Obstacle::Held(..)) {
                        // This waits for instructions that other threads have yet to submit, and a grant that is kept could keep
                        // those from being admitted.
                        granted = None;
                    }
                    let instruction = &list.instructions()[line];
                    let about = |error: Error| {
                        error.about(Some(line), &what_with_output(list, line), instruction.site).not_submitted()
                    };
                    let why = obstacle.blocks();
                    let remove = || self.remove(*obstacle, full, &mut recovery);
                    self.blocking(full, why, instruction.site, remove).map_err(about)?;
                }
            }
            let pass = match &granted {
                _ if reads => Pass::Reads,
                Some(_) => Pass::Granted,
                None => Pass::None,
            };
            match self.attempt(list, submitted, pass) {
                Ok(()) => return Ok(()),
                Err(next) => stopped = next,
            }
        }
    }

    /// Calls `wait`; a trace tells that the caller was blocked meanwhile, and why. Room and sections are not waited for by threads of an engine and with [`Full::Refuses`].
    fn blocking<T>(&self, full: Full, why: Option<Why>, site: Site, wait: impl FnOnce() -> T) -> T {
        let refuses = full == Full::Refuses || engine_thread::is_here();
        let why = why.filter(|why| *why == Why::Memory || !refuses);
        let _span = why.and_then(|why| spans::wait(self.has_spans(), why.what(), site));
        let Some((timeline, why)) = self.timeline.as_ref().zip(why) else { return wait() };
        let began = timeline.now();
        let waited = wait();
        timeline.blocked(why, site, began);
        waited
    }

    fn ends(&self) -> bool {
        self.ending.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(std::sync::atomic::Ordering::Relaxed)
    }

    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.is_closed() { Err(Error::shutdown()) } else { Ok(()) }
    }

    #[inline(never)]
    fn wake(&self, wake: &ToWake) {
        wake.contexts.iter().for_each(|context| context.wake());
        if wake.scheduler {
            self.scheduler.wake();
        }
    }

    /// Whether `more` instructions may be added now. Reads the timelines only when the headroom of the last reading is used up.
    #[inline]
    fn admit(&self, state: &mut State, more: u64) -> bool {
        if (state.headroom.instructions < more || state.headroom.bytes == 0) && !self.check_room(state, more) {
            return false;
        }
        state.headroom.instructions -= more;
        true
    }

    #[inline(never)]
    fn check_room(&self, state: &mut State, more: u64) -> bool {
        let of_engine = engine_thread::is_here();
        // `blocked` is read before `granted`: a submitter that is admitted moves from the first to the second, so it is seen in
        // at least one of them.
        let others_wait = self.backpressure.blocked() > 0;
        let mut pending = self.pending();
        // Instructions that were granted and are not submitted yet. A grant is dropped only after its submission, so these may
        // be counted twice, never left out.
        pending.instructions += self.backpressure.granted();
        let limits = if of_engine { self.limits.overdraft() } else { self.limits };
        if (others_wait && !of_engine) || !limits.admit(pending, more) {
            state.headroom = Pending::default();
            return false;
        }
        if others_wait {
            self.backpressure.overtake(more);
            // Headroom for this submission alone, so that the next one reads the timelines again.
            state.headroom = Pending { instructions: more, bytes: 0 };
            return true;
        }
        let one_core = spin::has_one_core();
        state.headroom = self.limits.headroom(pending, more, one_core);
        state.yields = one_core;
        true
    }

    /// Waits until backpressure admits `more` instructions, and returns the grant. In simulated mode, where the caller steps the
    /// engine until they fit, there is no grant.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] with [`Full::Refuses`] and on a thread of an engine; [`Error::Timeout`] at the thread's deadline;
    /// [`Error::Shutdown`] when the engine is closed; in simulated mode [`Error::Stalled`].
    fn wait_for_room(&self, more: u64, full: Full) -> Result<Option<Grant<'_>>, Error> {
        if full == Full::Refuses || engine_thread::is_here() {
            let Pending { instructions, bytes } = self.pending();
            let Limits { instructions: most_instructions, bytes: most_bytes } = self.limits;
            let site = Site::caller();
            return Err(Error::WouldBlock { more, instructions, most_instructions, bytes, most_bytes, site });
        }
        if let Some(simulated) = &self.simulated {
            simulated.make_room(self, more, Deadline::current())?;
            self.check_open()?;
            return Ok(None);
        }
        self.demand_all();
        let place = {
            let mut state = self.handle.lock();
            state.headroom = Pending::default();
            self.backpressure.enqueue(more)
        };
        self.backpressure.wait(self, place, Deadline::current()).map(Some).map_err(|mut error| {
            if let Error::Timeout { waited_for, .. } = &mut error {
                let (Pending { instructions, bytes }, most) = (self.pending(), self.limits);
                *waited_for = format!(
                    "{FULL}, for {more} more instructions: {instructions} of at most {} instructions and {bytes} of at most {} bytes are pending",
                    most.instructions, most.bytes
                );
            }
            error
        })
    }

    /// Removes an obstacle that [`State::prepare`] found. The caller holds no lock.
    fn remove(self: &Arc<Self>, obstacle: Obstacle, full: Full, recovery: &mut OomRecovery) -> Result<(), Error> {
        match obstacle {
            Obstacle::Refused(error) => Err(error),
            Obstacle::Stream(key) => self.open_stream(key),
            Obstacle::Pool(kind) => self.open_pool(kind),
            Obstacle::Held(_, open) if full == Full::Refuses || engine_thread::is_here() => {
                Err(Error::SectionHeld { section: open.section.to_string(), site: open.site })
            }
            Obstacle::Held(ended, open) => self.section_gate.wait(self, ended, &open, Deadline::current()),
            Obstacle::Memory(pool, bytes) => recovery.next_step(self, pool, bytes),
            Obstacle::Fresh(pool, bytes) => {
                oom_recovery::grow(self, pool, bytes);
                Ok(())
            }
        }
    }

    /// Creates the memory pool for a place and kind of memory that is needed for the first time.
    fn open_pool(&self, kind: ResourceKind) -> Result<(), Error> {
        let ResourceKind::Storage { place, memory, .. } = kind else {
            return Ok(());
        };
        let device = match place {
            Place::Host => self.host.clone(),
            Place::Device(device) => self.devices.get(device)?.clone(),
        };
        let mut state = self.handle.lock();
        if state.pools.find(place, memory).is_none() {
            state.pools.add(place, memory, device).map_err(|error| Error::NoMemory {
                place,
                reason: error.to_string(),
                site: Site::caller(),
            })?;
        }
        Ok(())
    }

    /// Binds `tensor` to memory filled with `bytes`. The calling thread writes these itself, so only memory that no pending
    /// instruction uses may be taken.
    pub(crate) fn create_from(self: &Arc<Self>, tensor: &Tensor, bytes: &[u8], site: Site) -> Result<(), Error> {
        refuse_in_child(self.handle.fork)?;
        let mut recovery = OomRecovery::default();
        let (id, memory) = loop {
            let mut state = self.handle.lock();
            self.check_open()?;
            self.handle.deferred_free.take(&mut state.scratch.dropped);
            self.timeline.iter().for_each(|timeline| state.note_time(timeline));
            state.free_dropped(self);
            match state.create_passed(tensor, self) {
                Ok(created) => {
                    if let Some(timeline) = &self.timeline {
                        state.scratch.allocated.clear();
                        state.note_allocated(created.0, || (Name::Constant("data of the host"), site));
                        state.note_prepared(timeline.now());
                    }
                    break created;
                }
                Err(obstacle) => {
                    drop(state);
                    let why = obstacle.blocks();
                    self.blocking(Full::Blocks, why, site, || self.remove(*obstacle, Full::Blocks, &mut recovery))?;
                }
            }
        };
        if let Some(observer) = &self.observer {
            observer.fills(id, tensor.resource(), memory.range(), site);
        }
        memory.fill_from(bytes);
        // The caller has just made the tensor, so no other engine can have claimed it.
        if tensor.resource().claim(self.me).is_ok() {
            tensor.resource().keep(self.me, id, true);
        }
        Ok(())
    }

    /// Runs what was submitted, in inline mode; in simulated mode takes a few steps.
    ///
    /// In inline mode the submitting thread blocks on the run lock, so all that it submitted has passed when it returns: it runs
    /// the tasks itself, or the thread that held the lock before has run them. A thread of an engine does not block, because it
    /// may hold the lock itself, further up its stack. The holder of the lock then runs the tasks, before it releases the lock
    /// or right after.
    #[inline(never)]
    fn drive(&self) {
        if let Some(simulated) = &self.simulated {
            return simulated.after_submission(self);
        }
        let (Some(inline), Some(tasks)) = (&self.inline, &self.inline_tasks) else { return };
        loop {
            let guard = if engine_thread::is_here() {
                match inline.run_lock.try_lock() {
                    Ok(guard) => guard,
                    Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
                    Err(TryLockError::WouldBlock) => return,
                }
            } else {
                unpoisoned(inline.run_lock.lock())
            };
            run_inline(guard, tasks, self);
            // A thread of an engine that pushed meanwhile and could not take the lock has left its tasks to this thread.
            if tasks.is_surely_empty() {
                return;
            }
        }
    }
}

fn run_inline(mut context: MutexGuard<'_, Context>, tasks: &MpscQueue<Task>, engine: &Engine) {
    let _here = engine_thread::visit();
    context.run_in_order(tasks.take(), engine);
}

impl State {
    /// Creates the resource of a tensor whose data the calling thread writes. Nobody but the caller knows the resource yet.
    fn create_passed(&mut self, tensor: &Tensor, engine: &Engine) -> Result<(ResourceId, UnusedMemory), Box<Obstacle>> {
        let kind = tensor.resource().kind();
        let (memory, unused) = match kind {
            ResourceKind::Storage { place, memory, bytes } if bytes > 0 => {
                let pool = self.pools.find(place, memory).ok_or_else(|| Box::new(Obstacle::Pool(kind)))?;
                let looked = RefCell::new(Vec::new());
                let passed = |point| {
                    let passed = engine.streams.has_passed(point);
                    if passed && engine.observer.is_some() {
                        looked.borrow_mut().push(point);
                    }
                    passed
                };
                let mut taken = self.pools.take_passed(pool, bytes, &passed);
                if taken.is_none() && self.clear_block_cache() {
                    taken = self.pools.take_passed(pool, bytes, &passed);
                }
                if let Some(observer) = &engine.observer {
                    observer.looked(looked.borrow().iter().copied());
                }
                taken.ok_or_else(|| Box::new(Obstacle::Memory(pool, bytes)))?
            }
            _ => (Memory::none(), UnusedMemory::none()),
        };
        let id = self.sync.add_dependence(streamvm_instructions::Dependence::default());
        self.add_resource(id, Known { memory, contents: Contents::Written });
        Ok((id, unused))
    }
}

/// The name of an instruction and what it makes: `matmul, which makes the tensor f32[2,5] on cpu:0`.
#[cold]
fn what_with_output<B: Batch>(list: &B, line: usize) -> String {
    let instruction = &list.instructions()[line];
    let made = instruction.uses_of(list.all_uses()).iter().map(Declared::seen).find(|u| u.access() == Access::Write);
    let name = instruction.kind.name();
    made.map_or_else(|| name.to_owned(), |made| format!("{name}, which makes {}", made.described()))
}
