//! Submission: from a list to published jobs.
//!
//! One short lock does it, in the usual case: free what was dropped, admit, prepare, commit. Whatever needs a driver, a
//! new thread or patience is done outside of the lock, and the submission starts again.

use std::cell::RefCell;
use std::io;
use std::panic::Location;
use std::sync::{Arc, TryLockError};

use streamvm_ep::{Device, DeviceKind, Priority};
use streamvm_instructions::{
    Batch, Deadline, Error, InstructionList, Place, ResourceId, ResourceKind, Single, SyncCounts, Tensor,
};
use streamvm_stream::allocator::Want;
use streamvm_stream::{
    Passing, RunBy, StreamClass, StreamId, StreamKey, StreamPolicy, StreamType, Threads as WantedThreads, policy_for,
};

use crate::commit::{Submitted, ToWake};
use crate::context::Context;
use crate::context_shared::ContextShared;
use crate::engine_thread;
use crate::entry::{MAX_STREAMS, StreamEntry};
use crate::flight::Flight;
use crate::ladder::{self, Ladder};
use crate::pool::{Pool, Worker};
use crate::prepare::Obstacle;
use crate::progress::Unordered;
use crate::push::Crew;
use crate::room::{Granted, Pending};
use crate::shared::{Inline, Shared};
use crate::spin;
use crate::state::{Contents, Known, State, StreamState};
use crate::sync::{MutexGuard, unpoisoned, yield_now};

/// Copies come first where a device has priorities: most are short, and what computes next waits for them.
fn priority_of(stream_type: StreamType) -> Priority {
    match stream_type {
        StreamType::HostToDevice | StreamType::DeviceToHost => Priority::High,
        StreamType::Compute | StreamType::PinnedCompute | StreamType::Barrier | StreamType::Workers => Priority::Normal,
    }
}

/// What a submitter does when the queue is full.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Full {
    /// Blocks until there is room.
    Blocks,
    /// Gets [`Error::WouldBlock`].
    Refuses,
}

/// Why an attempt to submit came to nothing.
pub(crate) enum Hindrance {
    /// Nothing more is submitted to this engine.
    Closed,
    /// There is no room.
    Full,
    /// In the way of a line.
    Obstacle(usize, Box<Obstacle>),
}

/// What is left to do when a submission has left the lock.
pub(crate) struct After {
    wake: Option<ToWake>,
    /// With one core: the core is given to others.
    gives_way: bool,
}

impl Shared {
    /// Submits `list`. `submitted`, which is empty, gets what became of it: returned, it would be copied at each step on the way.
    pub(crate) fn submit(
        self: &Arc<Self>,
        list: &mut InstructionList,
        full: Full,
        submitted: &mut Submitted,
    ) -> Result<(), Error> {
        // Before any lock.
        self.handle.fork.check()?;
        if list.copies_by_devices() {
            return self.stage_and_submit(list, full, submitted);
        }
        self.submit_staged(list, full, submitted)
    }

    /// [`Shared::submit`] of a list in which devices copy. Apart, so that others need no room for what it holds.
    #[inline(never)]
    fn stage_and_submit(
        self: &Arc<Self>,
        list: &mut InstructionList,
        full: Full,
        submitted: &mut Submitted,
    ) -> Result<(), Error> {
        // What an engine's thread submits is let in up to a bound, and cannot wait for room: there a copy is one piece.
        let piece = if engine_thread::is_here() { usize::MAX } else { self.staging_piece };
        let Some(mut staged) = list.staged(&self.capabilities, piece) else {
            return self.submit_staged(list, full, submitted);
        };
        let outcome = self.submit_staged(&mut staged.list, full, submitted);
        outcome.map_err(|error| error.by_lines(&staged.lines))
    }

    /// [`Shared::submit`] of an instruction that is no copy.
    #[inline]
    pub(crate) fn submit_one(
        self: &Arc<Self>,
        single: &mut Single<'_>,
        submitted: &mut Submitted,
    ) -> Result<(), Error> {
        self.handle.fork.check()?;
        self.submit_staged(single, Full::Blocks, submitted)
    }

    /// [`Shared::submit`] of what has no copies but those that the devices can make.
    #[inline]
    fn submit_staged<B: Batch>(
        self: &Arc<Self>,
        list: &mut B,
        full: Full,
        submitted: &mut Submitted,
    ) -> Result<(), Error> {
        match self.attempt(list, submitted, false) {
            Ok(()) => Ok(()),
            Err(hindrance) => self.insist(list, full, submitted, hindrance),
        }
    }

    /// Submits `list` unless something is in the way.
    #[inline(always)]
    fn attempt<B: Batch>(&self, list: &mut B, submitted: &mut Submitted, granted: bool) -> Result<(), Hindrance> {
        let mut inside = self.handle.lock();
        let after = self.attempt_inside(&mut inside, list, submitted, granted)?;
        drop(inside);
        self.follow(after);
        Ok(())
    }

    /// The part of an attempt that is done under the lock. With room that was [granted](crate::room::Granted) no more is asked for.
    #[inline(always)]
    pub(crate) fn attempt_inside<B: Batch>(
        &self,
        state: &mut State,
        list: &mut B,
        submitted: &mut Submitted,
        granted: bool,
    ) -> Result<After, Hindrance> {
        if self.is_closed() {
            return Err(Hindrance::Closed);
        }
        if self.handle.releases.any() {
            self.handle.releases.take(&mut state.scratch.dropped);
        }
        if !state.scratch.dropped.is_empty() {
            state.free_dropped(self);
        }
        let any_failed = self.failures.any();
        if any_failed {
            state.forget_failures(self);
        }
        let count = list.instructions().len() as u64;
        if !granted && !self.admit(state, count) {
            return Err(Hindrance::Full);
        }
        if let Err((line, obstacle)) = state.prepare(list, self) {
            return Err(Hindrance::Obstacle(line, obstacle));
        }
        if any_failed && count > 0 {
            // Before anything of it is published, and can fail.
            submitted.claim = Some(self.failures.claim(state.submitted + 1, state.submitted + count));
        }
        let wake = state.commit(list, self, submitted);
        Ok(After { wake, gives_way: std::mem::take(&mut state.gives_way) })
    }

    /// Whether nothing is left to do behind a submission.
    #[inline]
    pub(crate) fn is_done(&self, after: &After) -> bool {
        let quiet = self.monitor.is_none() && self.inline.is_none() && self.simulated.is_none();
        quiet && after.wake.is_none() && !after.gives_way && !self.failures.any()
    }

    /// The part of an attempt that is done once the lock is left.
    #[inline(always)]
    pub(crate) fn follow(&self, After { wake, gives_way }: After) {
        if let Some(monitor) = &self.monitor {
            monitor.pass_trace_on();
        }
        if let Some(wake) = wake {
            self.wake(&wake);
        }
        if gives_way {
            yield_now();
        }
        if self.inline.is_some() || self.simulated.is_some() {
            self.drive();
        }
    }

    /// Removes what is in the way and tries again, until nothing is.
    #[cold]
    #[inline(never)]
    pub(crate) fn insist<B: Batch>(
        self: &Arc<Self>,
        list: &mut B,
        full: Full,
        submitted: &mut Submitted,
        mut hindrance: Hindrance,
    ) -> Result<(), Error> {
        let mut ladder = Ladder::default();
        let mut granted = None;
        loop {
            match hindrance {
                Hindrance::Closed => return Err(Error::Shutdown),
                Hindrance::Full => granted = self.wait_for_room(list.instructions().len() as u64, full)?,
                Hindrance::Obstacle(line, obstacle) => {
                    if matches!(*obstacle, Obstacle::Memory(..)) {
                        // The ladder may wait for what others have submitted, or have to submit.
                        granted = None;
                    }
                    let instruction = &list.instructions()[line];
                    let about = |error: Error| error.about(Some(line), instruction.kind.name(), instruction.site);
                    self.remove(*obstacle, &mut ladder).map_err(about)?;
                }
            }
            match self.attempt(list, submitted, granted.is_some()) {
                Ok(()) => return Ok(()),
                Err(next) => hindrance = next,
            }
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn check_open(&self) -> Result<(), Error> {
        if self.is_closed() { Err(Error::Shutdown) } else { Ok(()) }
    }

    #[inline(never)]
    fn wake(&self, wake: &ToWake) {
        wake.contexts.iter().for_each(|context| context.wake());
        if wake.scheduler {
            self.scheduler.wake();
        }
    }

    /// Whether `more` instructions may be added now. The timelines are asked only when what they last left is used up.
    #[inline]
    fn admit(&self, state: &mut State, more: u64) -> bool {
        if (state.headroom.instructions < more || state.headroom.bytes == 0) && !self.look_for_room(state, more) {
            return false;
        }
        state.headroom.instructions -= more;
        true
    }

    #[inline(never)]
    fn look_for_room(&self, state: &mut State, more: u64) -> bool {
        let of_engine = engine_thread::is_here();
        // Before what was granted: who was let in is not counted as waiting any more, but as granted.
        let others_wait = self.room.blocked() > 0;
        let mut pending = self.pending();
        // What was granted and is not submitted yet. If it was, under this lock, it is counted twice.
        pending.instructions += self.room.granted();
        let limits = if of_engine { self.limits.overdraft() } else { self.limits };
        if (others_wait && !of_engine) || !limits.admit(pending, more) {
            state.headroom = Pending::default();
            return false;
        }
        if others_wait {
            self.room.overtake(more);
            // Room for this one: the next looks again.
            state.headroom = Pending { instructions: more, bytes: 0 };
            return true;
        }
        let one_core = spin::has_one_core();
        state.headroom = self.limits.headroom(pending, more, one_core);
        state.gives_way = one_core;
        true
    }

    /// Waits for room; what is granted. Nothing is where room is made by stepping.
    fn wait_for_room(&self, more: u64, full: Full) -> Result<Option<Granted<'_>>, Error> {
        if full == Full::Refuses || engine_thread::is_here() {
            let Pending { instructions, bytes } = self.pending();
            return Err(Error::WouldBlock { instructions, bytes });
        }
        if let Some(simulated) = &self.simulated {
            simulated.make_room(self, more, Deadline::current())?;
            self.check_open()?;
            return Ok(None);
        }
        self.demand_all();
        self.room.wait(self, more, Deadline::current()).map(Some)
    }

    /// Removes what is in the way of a submission; no lock is held.
    fn remove(self: &Arc<Self>, obstacle: Obstacle, ladder: &mut Ladder) -> Result<(), Error> {
        match obstacle {
            Obstacle::Refused(error) => Err(error),
            Obstacle::Stream(key) => self.open_stream(key),
            Obstacle::Pool(kind) => self.open_pool(kind),
            Obstacle::Memory(pool, bytes) => ladder.climb(self, pool, bytes),
            Obstacle::Fresh(pool, bytes) => {
                ladder::grow(self, pool, bytes);
                Ok(())
            }
        }
    }

    /// Opens a stream: the device makes it, a thread context gets it, submissions know it.
    pub(crate) fn open_stream(self: &Arc<Self>, key: StreamKey) -> Result<(), Error> {
        let device = self.devices.get(key.device)?;
        let policy = policy_for(StreamClass::of(&key));
        if policy.threads() == WantedThreads::Pool && self.inline.is_none() {
            let pool = self.threads.pools.stream_for(key);
            return if pool == key { self.open_workers(key, device, policy) } else { self.share_workers(key, pool) };
        }
        let refused = |reason: String| Error::NoStream { stream: key, reason };
        let later = policy.passing() == Passing::Later;
        let at = self.runner_of(key, device);
        let mut stream = at.create_stream_with(priority_of(key.stream_type))?;
        let mut actor = None;
        if let Some(monitor) = &self.monitor
            && !later
        {
            let watched = monitor.watch(stream, key);
            (stream, actor) = (watched.0, Some(watched.1));
        }
        let context: Arc<ContextShared> = match &self.inline {
            Some(inline) => inline.context.clone(),
            None => {
                self.threads.context(key.device, policy.threads(), self).map_err(|error| refused(no_thread(&error)))?
            }
        };
        if later {
            self.threads.complete(self).map_err(|error| refused(no_thread(&error)))?;
        }
        let flight = later.then(|| Flight::new(device.clone(), self.completion.sleeper.clone()));
        let mut state = self.handle.lock();
        let Some(id) = state.new_stream(key)? else { return Ok(()) };
        let unordered = id.is_unordered().then(|| Unordered::new(self.streams.cells().clone(), None));
        let entry = Arc::new(StreamEntry::new(id, key, policy, context.clone(), flight, unordered));
        if let Some(monitor) = &self.monitor {
            monitor.opened(id, key, actor);
        }
        context.open(entry.clone(), stream);
        self.add_stream(&mut state, entry);
        Ok(())
    }

    /// The device that makes a stream: `device`, which the stream's name has, or the host's where threads of the host run the stream.
    fn runner_of<'a>(&'a self, key: StreamKey, device: &'a Arc<dyn Device>) -> &'a Arc<dyn Device> {
        let by_host = StreamClass::of(&key).run_by() == RunBy::Host;
        if by_host && key.device.kind != DeviceKind::Cpu { &self.host } else { device }
    }

    fn add_stream(&self, state: &mut State, entry: Arc<StreamEntry>) {
        state.sync.add_stream(StreamClass::of(&entry.key));
        state.names.intern(entry.key);
        self.streams.add(entry.clone());
        let (batch, counts) = (state.outbox.batch_for(&entry.context), SyncCounts::none(entry.key));
        state.streams.push(StreamState { entry, sent: 0, counts, batch });
    }

    /// Opens an unordered stream: a pool of workers, each with a stream of the host's.
    fn open_workers(
        self: &Arc<Self>,
        key: StreamKey,
        device: &Arc<dyn Device>,
        policy: &'static dyn StreamPolicy,
    ) -> Result<(), Error> {
        let refused = |reason: String| Error::NoStream { stream: key, reason };
        let at = self.runner_of(key, device);
        let Crew { workers, name, cores } = self.threads.pools.of(key);
        let (pool, queues) = Pool::new(&name, workers);
        // Before others can use the stream: one without workers would serve nobody.
        let hired =
            self.threads.hire(&name, &pool.contexts, &cores, self).map_err(|error| refused(no_thread(&error)))?;
        let watched = |stream| match &self.monitor {
            Some(monitor) => monitor.watch(stream, key).0,
            None => stream,
        };
        let streams = queues.iter().map(|_| at.create_stream().map(watched)).collect::<Result<Vec<_>, _>>()?;
        let pool = Arc::new(pool);
        let mut state = self.handle.lock();
        let Some(id) = state.new_stream(key)? else { return Ok(()) };
        let unordered = Unordered::new(self.streams.cells().clone(), Some(pool.clone()));
        let entry = Arc::new(StreamEntry::new(id, key, policy, pool.door.clone(), None, Some(unordered)));
        let workers = queues.into_iter().zip(streams).enumerate();
        let workers = workers.filter_map(|(me, (queues, stream))| Worker::new(entry.clone(), me, queues, stream));
        self.threads.employ(key.device, hired, workers, self);
        if let Some(monitor) = &self.monitor {
            monitor.opened(id, key, None);
        }
        self.add_stream(&mut state, entry);
        Ok(())
    }

    /// Has what is for the workers of `key` run on those of `pool`.
    fn share_workers(self: &Arc<Self>, key: StreamKey, pool: StreamKey) -> Result<(), Error> {
        loop {
            let mut state = self.handle.lock();
            if let Some(id) = state.names.find(&pool) {
                state.names.alias(key, id);
                return Ok(());
            }
            drop(state);
            self.open_stream(pool)?;
        }
    }

    /// Makes the pool for a kind of memory that is needed for the first time.
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
            state
                .pools
                .add(place, memory, device)
                .map_err(|error| Error::NoMemory { place, reason: error.to_string() })?;
        }
        Ok(())
    }

    /// Makes `tensor` known with the bytes given, which the caller's own thread writes: only memory that nothing
    /// pending uses is good for that.
    pub(crate) fn create_from(
        self: &Arc<Self>,
        tensor: &Tensor,
        bytes: &[u8],
        site: &'static Location<'static>,
    ) -> Result<(), Error> {
        self.handle.fork.check()?;
        let mut ladder = Ladder::default();
        let id = loop {
            let mut state = self.handle.lock();
            self.check_open()?;
            self.handle.releases.take(&mut state.scratch.dropped);
            state.free_dropped(self);
            match state.create_passed(tensor, self) {
                Ok(id) => break id,
                Err(obstacle) => {
                    drop(state);
                    self.remove(*obstacle, &mut ladder)?;
                }
            }
        };
        let memory = self.handle.lock().known(id).map(|known| known.memory.alias());
        if let Some(memory) = memory {
            if let Some(monitor) = &self.monitor {
                monitor.fills(id, tensor.resource(), memory.range(), site);
            }
            memory.fill_from(bytes);
        }
        // Made by this very call, so no other engine has seen it.
        if tensor.resource().claim(self.me).is_ok() {
            tensor.resource().keep(self.me, id, true);
        }
        Ok(())
    }

    /// In inline mode, runs what was submitted, to completion. The submitting thread waits for its turn, so that all it
    /// submitted has passed when it returns, run by itself or by who had the turn before. A thread of an engine does not
    /// wait: it may be running an instruction of this very engine, further up the stack. Who has the turn then runs what
    /// it submitted, before or right after giving the turn away.
    #[inline(never)]
    fn drive(&self) {
        if let Some(simulated) = &self.simulated {
            return simulated.after_submission(self);
        }
        let Some(inline) = &self.inline else { return };
        loop {
            let turn = if engine_thread::is_here() {
                match inline.driver.try_lock() {
                    Ok(turn) => turn,
                    Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
                    Err(TryLockError::WouldBlock) => return,
                }
            } else {
                unpoisoned(inline.driver.lock())
            };
            run_turn(turn, inline, self);
            // Whoever pushed during the turn and did not wait for one left it to this thread.
            if inline.jobs.is_surely_empty() {
                return;
            }
        }
    }
}

fn run_turn(mut context: MutexGuard<'_, Context>, inline: &Inline, vm: &Shared) {
    let _here = engine_thread::visit();
    let jobs = inline.jobs.take();
    context.run_in_order(jobs, vm);
}

fn no_thread(error: &io::Error) -> String {
    format!(
        "no thread could be started ({error}); use fewer streams and workers, or raise the limit of threads or memory"
    )
}

impl State {
    /// The id of a stream that is being opened; `None` if another thread was faster.
    fn new_stream(&mut self, key: StreamKey) -> Result<Option<StreamId>, Error> {
        if self.names.find(&key).is_some() {
            return Ok(None);
        }
        if self.streams.len() == MAX_STREAMS {
            let reason = format!("an engine has at most {MAX_STREAMS} streams; use fewer lanes");
            return Err(Error::NoStream { stream: key, reason });
        }
        Ok(Some(self.names.next(key)))
    }

    fn create_passed(&mut self, tensor: &Tensor, vm: &Shared) -> Result<ResourceId, Box<Obstacle>> {
        let kind = tensor.resource().kind();
        let memory = match kind {
            ResourceKind::Storage { place, memory, bytes } if bytes > 0 => {
                let pool = self.pools.find(place, memory).ok_or_else(|| Box::new(Obstacle::Pool(kind)))?;
                let looked = RefCell::new(Vec::new());
                let passed = |point| {
                    let passed = vm.streams.has_passed(point);
                    if passed && vm.monitor.is_some() {
                        looked.borrow_mut().push(point);
                    }
                    passed
                };
                let mut allocated = self.pools.get(pool).allocator.alloc(bytes, Want::Passed, &passed);
                if allocated.is_none() && self.end_kept() {
                    allocated = self.pools.get(pool).allocator.alloc(bytes, Want::Passed, &passed);
                }
                if let Some(monitor) = &vm.monitor {
                    monitor.looked(looked.borrow().iter().copied());
                }
                let allocated = allocated.ok_or_else(|| Box::new(Obstacle::Memory(pool, bytes)))?;
                self.pools.memory(pool, allocated.block, bytes)
            }
            _ => crate::memory::Memory::none(),
        };
        let id = self.sync.add_dependence(streamvm_instructions::Dependence::default());
        self.add_resource(id, Known { memory, contents: Contents::Written });
        Ok(id)
    }
}
