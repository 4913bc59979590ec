//! [`Handle`]: leads from tensors, variables and futures to their engine, and holds the submission lock.
//!
//! A tensor points to its engine by a leaked `&'static Handle`, so making and dropping tensors counts no references to the
//! engine (`docs/adr/tensors-and-engines.md`). A handle serves one engine after the other:
//!
//! ```text
//! Idle ─ new ─> Closed ─ open ─> Open ─ the Vm is dropped ─> Closed ─ the engine is dropped ─> Gone ─ last release ─> Idle
//! ```
//!
//! * `Handle` makes all of these transitions, under its lock.
//! * In `Gone`, the state of the engine is dropped. Callers can still ask for the outcome of a resource until they release it, so
//!   the handle keeps the number of bound resources, counted once when the engine ends, and the outcomes that are errors.
//! * In `Idle`, no resource is bound to the handle, and the next engine that is built may take it.
//!
//! A tensor of an old engine never reaches a new one:
//!
//! * A bound resource keeps its handle from becoming idle.
//! * An object that was never bound (an output of a list that was not submitted, an event, a future) may outlive `Idle`. It only
//!   compares its [`EngineRef`], which differs for each engine, or asks whether the process was forked, which is the same for
//!   all engines of a handle.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock, Weak};

use crossbeam_utils::CachePadded;
use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;
use streamvm_ep::{Footprint, Site};
use streamvm_instructions::{
    Batch, Callback, Deadline, EngineAddress, EngineRef, Error, InstructionList, Registration, ResourceId, Single,
};
use streamvm_stream::Point;

use crate::engine::core::Engine;
use crate::engine::owners::Owners;
use crate::engine::submission::{Full, Pass};
use crate::progress::callbacks::Callbacks;
use crate::progress::claims::Awaited;
use crate::submit::commit::Submitted;
use crate::submit::deferred_free::DeferredFree;
use crate::submit::state::{State, lost_block};
use crate::sync::fork::{Fork, PerProcess, refuse_in_child};
use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering, engine_thread, unpoisoned, yield_now};
use crate::tasks::resource::Contents;
use crate::tasks::spans::Caller;

/// The last writes of a resource or of a part of it.
type LastWrites = SmallVec<[Awaited; 1]>;

/// The address of an engine, with its submission lock; see the module.
pub(crate) struct Handle {
    /// The submission lock: the one short lock under which a submission is ordered, numbered and published. On cache lines of its
    /// own, because submitting threads write it all the time, while they mostly read the fields beside it.
    inside: CachePadded<Mutex<Locked>>,
    /// Resources whose last tensor or variable was dropped since the last submission.
    pub(crate) deferred_free: CachePadded<DeferredFree>,
    /// The owners of memory that is not the engine's.
    pub(crate) owners: Owners,
    /// The engine is gone, so no submission will take what is in `deferred_free`.
    gone: AtomicBool,
    /// Whether instructions of the engine have spans: read before the submission lock is taken.
    spans: AtomicBool,
    /// Tells whether this process is a forked child of the one that built the engine. The same for all engines of this handle.
    pub(crate) fork: Fork,
    /// The address by which resources call this handle. Written once, by the first engine.
    address: OnceLock<EngineAddress>,
}

/// The state that the submission lock guards.
pub(crate) struct Locked {
    engine: Lifecycle,
    /// `Some` while the engine exists. Boxed, so that an idle handle is small.
    state: Option<Box<State>>,
}

/// The lifecycle of the engine, as a caller finds it that has only the handle. The module lists the transitions.
enum Lifecycle {
    /// The `Vm` exists, and the engine takes submissions.
    Open(Arc<Engine>),
    /// The engine takes no submissions through the handle: it is being built, or its `Vm` is dropped and its threads still run.
    Closed(Weak<Engine>),
    /// The engine is gone, and resources are still bound to it.
    Gone(Box<Remains>),
    /// There is no engine and no bound resource; the next engine that is built may take the handle.
    Idle,
}

/// The part of an engine that stays when it is gone: answers for the resources that are still bound.
#[derive(Default)]
pub(crate) struct Remains {
    /// How many bound resources have not been released.
    bound: usize,
    /// The errors of bound resources whose last write failed, or will never pass. For all others it has passed.
    outcomes: HashMap<ResourceId, Error>,
}

/// A reference to the engine for the length of one call through a handle, or for as long as memory is lent.
///
/// In a forked child the reference is leaked: it may be the last, and an engine must not be dropped where its threads do not
/// exist. `Vm` does the same.
pub(crate) struct EngineGuard(Option<Arc<Engine>>);

impl EngineGuard {
    pub(crate) fn of(engine: &Arc<Engine>) -> EngineGuard {
        EngineGuard(Some(engine.clone()))
    }
}

impl Deref for EngineGuard {
    type Target = Arc<Engine>;

    fn deref(&self) -> &Arc<Engine> {
        self.0.as_ref().unwrap_or_else(|| unreachable!("only `drop` takes the engine out of its guard"))
    }
}

impl Drop for EngineGuard {
    fn drop(&mut self) {
        let child = self.0.take_if(|engine| engine.handle.fork.is_child());
        std::mem::forget(child);
    }
}

impl Deref for Locked {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_deref().unwrap_or_else(|| unreachable!("the caller keeps the engine alive, and so its state"))
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_deref_mut().unwrap_or_else(|| unreachable!("the caller keeps the engine alive, and so its state"))
    }
}

impl Handle {
    /// See [`Engine::may_wait`].
    #[track_caller]
    pub(crate) fn may_wait(&self) -> Result<(), Error> {
        refuse_in_child(self.fork)?;
        if engine_thread::is_here() { Err(Error::WouldDeadlock { site: Site::caller() }) } else { Ok(()) }
    }

    /// A handle for a new engine, in state `Closed`, whose instructions have spans or not, and the reference by which tensors know that engine.
    pub(crate) fn new(state: State, spans: bool) -> (&'static Handle, EngineRef) {
        let handle = take_idle().unwrap_or_else(Handle::make);
        let mut inside = handle.lock();
        *inside = Locked { engine: Lifecycle::Closed(Weak::new()), state: Some(Box::new(state)) };
        handle.gone.store(false, Ordering::Relaxed);
        handle.spans.store(spans, Ordering::Relaxed);
        drop(inside);
        (handle, EngineRef::new(handle.address.get_or_init(|| EngineAddress::new(handle))))
    }

    /// Allocates a handle and leaks it.
    fn make() -> &'static Handle {
        Box::leak(Box::new(Handle {
            inside: CachePadded::new(Mutex::new(Locked { engine: Lifecycle::Idle, state: None })),
            deferred_free: CachePadded::default(),
            owners: Owners::default(),
            gone: AtomicBool::new(false),
            spans: AtomicBool::new(false),
            fork: Fork::new(),
            address: OnceLock::new(),
        }))
    }

    /// Takes the submission lock. Reading [`State`] through it panics unless the caller keeps the engine alive.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Locked> {
        unpoisoned(self.inside.lock())
    }

    /// `Closed` -> `Open`: submissions through the handle reach the engine.
    pub(crate) fn open(&self, engine: &Arc<Engine>) {
        self.lock().engine = Lifecycle::Open(engine.clone());
    }

    /// `Open` -> `Closed`: submissions through the handle are refused.
    pub(crate) fn close(&self, engine: &Arc<Engine>) {
        let before = std::mem::replace(&mut self.lock().engine, Lifecycle::Closed(Arc::downgrade(engine)));
        // After the lock is released: if this is the last reference, dropping the engine takes the lock.
        drop(before);
    }

    /// `Closed` -> `Gone`, with `remains`; goes on to `Idle` if no resource is bound.
    fn end(&'static self, remains: Remains) {
        let mut inside = self.lock();
        inside.engine = Lifecycle::Gone(Box::new(remains));
        let state = inside.state.take();
        // Before `forget_released` reads the releases: a release that it does not see finds this flag.
        self.gone.store(true, Ordering::Release);
        let forgotten = self.forget_released(inside);
        // After the lock is released: dropping captures runs callers' code, which may use this handle.
        drop((state, forgotten));
    }

    /// Removes the released resources from the remains of an engine that is gone; at none, `Gone` -> `Idle`.
    ///
    /// Returns errors that the caller drops once the lock is released, because they may hold the last reference to a root cause.
    #[must_use = "the errors are to be dropped after the lock is released"]
    fn forget_released(&'static self, mut inside: MutexGuard<'static, Locked>) -> Vec<Error> {
        let Lifecycle::Gone(remains) = &mut inside.engine else { return Vec::new() };
        let mut forgotten = Vec::new();
        self.deferred_free.drain(|id| {
            remains.bound -= 1;
            forgotten.extend(remains.outcomes.remove(&id));
        });
        if remains.outcomes.is_empty() {
            remains.outcomes = HashMap::new();
        }
        if remains.bound == 0 {
            inside.engine = Lifecycle::Idle;
            drop(inside);
            put_idle(self);
        }
        forgotten
    }

    /// A resource was released after the engine was gone, so that no submission will take it from `deferred_free`.
    #[cold]
    fn released_after_the_end(&'static self) {
        let forgotten = self.forget_released(self.lock());
        drop(forgotten);
    }

    /// The engine, if it takes submissions. Errors: [`Error::Forked`], [`Error::Shutdown`].
    fn open_one(&self) -> Result<EngineGuard, Error> {
        refuse_in_child(self.fork)?;
        match &self.lock().engine {
            Lifecycle::Open(engine) => Ok(EngineGuard::of(engine)),
            Lifecycle::Closed(_) | Lifecycle::Gone(_) | Lifecycle::Idle => Err(Error::shutdown()),
        }
    }

    /// The engine, with the last writes of a resource or of a part of it. `Err` has the outcome of the resource if the engine is
    /// gone, and [`Error::Forked`] in a forked child.
    fn last_writes(
        &self,
        id: ResourceId,
        part: Option<&Footprint>,
    ) -> Result<(EngineGuard, LastWrites), Result<(), Error>> {
        // Before the lock, which in a forked child a thread of the parent may have held.
        refuse_in_child(self.fork).map_err(Err)?;
        loop {
            let inside = self.lock();
            let engine = match &inside.engine {
                Lifecycle::Open(engine) => Some(EngineGuard::of(engine)),
                Lifecycle::Closed(engine) => engine.upgrade().map(|engine| EngineGuard(Some(engine))),
                Lifecycle::Gone(remains) => {
                    return Err(remains.outcomes.get(&id).map_or(Ok(()), |error| Err(error.clone())));
                }
                // Unreachable while the resource is bound, as a bound resource keeps the handle from becoming idle.
                Lifecycle::Idle => return Err(Ok(())),
            };
            if let Some(engine) = engine {
                let last = inside.sync.dependence(id).last_writes(part).into_iter();
                let awaited = last.map(|point| engine.failures.await_point(point)).collect();
                return Ok((engine, awaited));
            }
            // Its last reference is dropped, and its `drop` is about to enter the remains.
            drop(inside);
            yield_now();
        }
    }
}

/// A callback that gets the outcome of writes once it is called with `Ok`, and the points of these writes.
type OutcomeCallback = (EngineGuard, Vec<Point>, Callback);

impl Handle {
    /// `callback` for the outcome of the last writes of a resource or of a part of it. `Err` has the callback and what
    /// [`Handle::last_writes`] returns as an error.
    fn with_outcome(
        &self,
        id: ResourceId,
        part: Option<&Footprint>,
        callback: Callback,
        site: Site,
    ) -> Result<OutcomeCallback, (Callback, Result<(), Error>)> {
        let (engine, awaited) = match self.last_writes(id, part) {
            Ok(found) => found,
            Err(outcome) => return Err((callback, outcome.map_err(|error| error.called_from(site)))),
        };
        let (points, asked) = (awaited.iter().map(|write| write.point).collect(), EngineGuard::of(&engine));
        let outcome = move |result: Result<(), Error>| {
            let outcome = result.and_then(|()| awaited.iter().try_for_each(|write| asked.outcome(write)));
            callback(outcome.map_err(|error| error.called_from(site)));
        };
        Ok((engine, points, Box::new(outcome)))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let (remains, lost) = {
            let mut inside = self.handle.lock();
            self.handle.deferred_free.take(&mut inside.scratch.dropped);
            let (left, released) = self.handle.owners.take();
            self.left = left;
            inside.scratch.dropped.extend(released);
            // Cached blocks belong to resources that were released, and would be counted as bound.
            inside.clear_block_cache();
            (inside.remains(self), std::mem::take(&mut inside.pools.lost))
        };
        self.handle.end(remains);
        lost.iter().for_each(|error| log::error!("{}", lost_block(error)));
    }
}

impl State {
    /// What remains of the engine once it is gone: the count of its bound resources, and their errors.
    fn remains(&self, engine: &Engine) -> Remains {
        let outcome = |id: ResourceId| {
            let mut points = self.sync.dependence(id).last_writes(None).into_iter();
            points.find_map(|point| match engine.streams.has_passed(point) {
                true => engine.failures.outcome_of_kept(point).map(Error::Failed),
                false => Some(Error::shutdown()),
            })
        };
        let dropped: HashSet<ResourceId> = self.scratch.dropped.iter().copied().collect();
        let known = self.resources.iter().enumerate().filter(|(_, known)| known.is_some());
        let bound = known.map(|(index, _)| ResourceId(index as u32)).filter(|id| !dropped.contains(id));
        let mut remains = Remains::default();
        for id in bound {
            remains.bound += 1;
            remains.outcomes.extend(outcome(id).map(|error| (id, error)));
        }
        remains
    }
}

impl streamvm_instructions::Engine for Handle {
    fn submit(&self, list: &mut InstructionList) -> Result<(), Error> {
        let engine = self.open_one().map_err(|error| error.called_from(list.site()))?;
        engine.submit(list, Full::Blocks, &mut Submitted::default())?;
        engine.failures.log_unseen();
        Ok(())
    }

    fn submit_read(&self, list: &mut InstructionList) -> Result<(), Error> {
        let engine = self.open_one().map_err(|error| error.called_from(list.site()))?;
        engine.submit(list, Full::BlocksToRead, &mut Submitted::default())?;
        engine.failures.log_unseen();
        Ok(())
    }

    fn submit_one(&self, single: &mut Single<'_>) -> Result<(), Error> {
        refuse_in_child(self.fork).map_err(|error| error.called_from(single.site()))?;
        let mut submitted =
            Submitted { caller: Caller::here(|| self.spans.load(Ordering::Relaxed)), ..Submitted::default() };
        let mut inside = self.lock();
        let Locked { engine: Lifecycle::Open(engine), state: Some(state) } = &mut *inside else {
            return Err(Error::shutdown().called_from(single.site()));
        };
        let attempt = engine.attempt_inside(state, single, &mut submitted, Pass::None);
        // Nearly always nothing is left to do, which saves counting a reference to the engine.
        if matches!(&attempt, Ok(after) if engine.is_done(after)) {
            return Ok(());
        }
        let engine = EngineGuard::of(engine);
        drop(inside);
        match attempt {
            Ok(after) => engine.follow(after),
            Err(stopped) => engine.retry(single, Full::Blocks, &mut submitted, stopped)?,
        }
        engine.failures.log_unseen();
        Ok(())
    }

    fn wait(
        &self,
        id: ResourceId,
        part: Option<&Footprint>,
        deadline: Option<Deadline>,
        site: Site,
    ) -> Result<(), Error> {
        let waited = match self.last_writes(id, part) {
            Ok((engine, awaited)) => awaited
                .iter()
                .try_for_each(|write| engine.wait_for(write.point, deadline, Some(site)))
                .and_then(|()| awaited.iter().try_for_each(|write| engine.outcome(write))),
            // A thread that may not wait gets the same error as while the engine existed.
            Err(outcome) => self.may_wait().and(outcome),
        };
        waited.map_err(|error| error.called_from(site))
    }

    fn may_wait(&self, site: Site) -> Result<(), Error> {
        self.may_wait().map_err(|error| error.called_from(site))
    }

    fn has_passed(&self, id: ResourceId, part: Option<&Footprint>) -> bool {
        match self.last_writes(id, part) {
            Ok((engine, awaited)) => awaited.iter().all(|write| {
                // A device that runs commands later is asked only for what somebody demands.
                engine.streams.has_passed(write.point) || {
                    if let Some(stream_state) = engine.streams.get(write.point.stream) {
                        stream_state.demand(write.point.seq);
                    }
                    false
                }
            }),
            // The engine is gone, or of the parent process: nothing will change any more.
            Err(_) => !self.fork.is_child(),
        }
    }

    fn is_released(&self, id: ResourceId) -> bool {
        let released = |inside: MutexGuard<'_, Locked>| {
            inside
                .state
                .as_ref()
                .and_then(|state| state.resources.get(id.index())?.as_ref().map(|known| known.contents))
        };
        !self.fork.is_child() && released(self.lock()) == Some(Contents::Released)
    }

    fn is_forked(&self) -> bool {
        self.fork.is_child()
    }

    fn on_passed(&self, id: ResourceId, part: Option<&Footprint>, callback: Callback, site: Site) {
        match self.with_outcome(id, part, callback, site) {
            Ok((engine, points, callback)) => engine.call_back(points, callback),
            Err((callback, Err(error @ Error::Forked { .. }))) => callback(Err(error)),
            // The engine's callback thread is gone, and a callback must not run on the calling thread: start another thread.
            Err((callback, outcome)) => {
                let callbacks = Arc::new(Callbacks::default());
                callbacks.run(Box::new(move || callback(outcome)));
                callbacks.close();
            }
        }
    }

    fn register(
        &self,
        id: ResourceId,
        part: Option<&Footprint>,
        callback: Callback,
        site: Site,
    ) -> Option<Arc<dyn Registration>> {
        match self.with_outcome(id, part, callback, site) {
            Ok((engine, points, callback)) => engine.register(points, callback),
            Err((callback, outcome)) => {
                callback(outcome);
                None
            }
        }
    }

    fn release(&'static self, id: ResourceId) {
        if self.fork.is_child() {
            return;
        }
        self.deferred_free.add(id);
        // After `add`: if this was the last bound resource, another thread may make the handle idle now, and it may serve another
        // engine. Then the code below acts on that engine, where it is harmless.
        if self.gone.load(Ordering::Relaxed) {
            self.released_after_the_end();
        }
    }

    fn release_unwritten(&'static self, id: ResourceId) {
        if self.fork.is_child() || !self.owners.release(id) {
            self.release(id);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::ptr;

    use streamvm_ep::DType;
    use streamvm_instructions::Tensor;

    use super::*;
    use crate::{Mode, Vm};

    const CPU: streamvm_ep::DeviceId = streamvm_ep::DeviceId::cpu(0);

    fn filled(vm: &Vm) -> Tensor {
        let x = vm.full(CPU, DType::F32, &[4], 1.0).expect("it is taken");
        x.wait().expect("it passes");
        x
    }

    /// Other tests build engines at the same time, so this one reads its own engine's handle and no list of handles.
    #[test]
    fn a_handle_counts_what_is_bound_to_it_when_its_engine_is_gone() {
        for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 1 }] {
            let vm = Vm::builder().mode(mode).build().expect("an engine");
            let handle = vm.engine.handle;
            // A tensor that is dropped before the engine ends: its block may be in the block cache, and does not count.
            drop(filled(&vm));
            let tensors = [filled(&vm), filled(&vm), filled(&vm)];
            let views = tensors.each_ref().map(|x| x.slice(0, 1..2).expect("in range"));
            drop(vm);
            let bound = |handle: &Handle| match &handle.lock().engine {
                Lifecycle::Gone(remains) => remains.bound,
                _ => 0,
            };
            assert_eq!(bound(handle), 3, "{mode:?}");
            drop(tensors);
            assert_eq!(bound(handle), 3, "{mode:?}: the views keep their tensors bound");
            let [first, second, third] = views;
            drop((first, second));
            assert_eq!(bound(handle), 1, "{mode:?}");
            assert_eq!(third.wait(), Ok(()));
        }
    }

    #[test]
    fn the_next_engine_takes_an_idle_handle_and_is_another_all_the_same() {
        let build = || Vm::builder().mode(Mode::Inline).build().expect("an engine");
        let vm = build();
        let (handle, me, x) = (vm.engine.handle, vm.engine.me, filled(&vm));
        drop(vm);
        let others = (0..100).map(|_| build()).filter(|vm| ptr::eq(vm.engine.handle, handle)).count();
        assert_eq!(others, 0, "a tensor is still bound to the handle, so no other engine may take it");
        drop(x);
        // Engines of other tests may take the handle for a while.
        let again = (0..100_000).map(|_| build()).find(|vm| ptr::eq(vm.engine.handle, handle)).expect("it is taken");
        assert!(!me.is(again.engine.me));
    }
}

/// The idle handles of this process, for the next engines. A handle is idle when its engine is gone and no resource is bound to it any more. Handles are never
/// freed, because an event, a future, or a thread that has just released the last resource may still read one. So a process has as many handles as it ever had
/// engines at one time, where an engine that is gone counts while resources are bound to it. A forked child takes no handle of its parent, because a thread that
/// is not in the child may hold its locks. This static also keeps them reachable for leak checkers.
static IDLE: PerProcess<std::sync::Mutex<Vec<&'static Handle>>> = PerProcess::new();

/// Whether handles are reused. Not under loom and shuttle, whose locks may not outlive one execution of a model.
const REUSES: bool = !cfg!(any(loom, shuttle));

/// Takes an idle handle, if there is one. No other engine uses it until it is [put](put_idle) back.
fn take_idle() -> Option<&'static Handle> {
    if REUSES { unpoisoned(IDLE.get().lock()).pop() } else { None }
}

/// Adds a handle that has become idle. The caller puts it exactly once for each time that it was taken or made.
fn put_idle(handle: &'static Handle) {
    if REUSES {
        unpoisoned(IDLE.get().lock()).push(handle);
    }
}
