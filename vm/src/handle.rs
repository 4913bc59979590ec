//! The engine as whatever belongs to it knows it.
//!
//! A handle stays for as long as the process lives: tensors know their engine by its address, so a program that makes and drops
//! tensors counts no references to it (`docs/adr/0037-engines-are-not-counted.md`). What an engine holds goes when its `Vm` and its
//! threads are gone; what stays is the lock, what can still be asked for under it, and the place where dropped tensors are noted.

use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, Weak};

use crossbeam_utils::CachePadded;
use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;
use streamvm_ep::Footprint;
use streamvm_instructions::{Callback, Deadline, Engine, Error, InstructionList, ResourceId, Single};

use crate::callbacks::Callbacks;
use crate::claims::Awaited;
use crate::commit::Submitted;
use crate::engine_thread;
use crate::fork::Fork;
use crate::releases::Releases;
use crate::shared::Shared;
use crate::state::State;
use crate::submit::Full;
use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering, unpoisoned, yield_now};

/// The last writes of a resource or of a part of it.
type LastWrites = SmallVec<[Awaited; 1]>;

/// One engine, be it there or gone.
pub(crate) struct Handle {
    /// Marks, clocks, numbering, publishing: the one short lock of a submission.
    inside: Mutex<Inside>,
    /// Handles dropped since the last submission.
    pub(crate) releases: CachePadded<Releases>,
    /// Nobody takes what is released any more.
    gone: AtomicBool,
    /// Whether this process is the one that built the engine.
    pub(crate) fork: Fork,
    /// The handle of the engine that was built before.
    before: AtomicPtr<Handle>,
}

/// What the submission lock guards.
pub(crate) struct Inside {
    vm: Found,
    /// There as long as the engine is, and on the heap, so that little stays when it is gone.
    state: Option<Box<State>>,
}

/// What whoever has nothing but the handle finds.
enum Found {
    /// The engine, which takes submissions until its `Vm` is dropped.
    Open(Arc<Shared>),
    /// What its threads have left to do.
    Closed(Weak<Shared>),
    /// Nothing but what became of resources with handles, where that is not that their last write has passed.
    Gone(HashMap<ResourceId, Error>),
}

/// The engine for the length of a call of who has a handle alone. In a child it is kept for ever, as its `Vm` keeps it there: it may
/// be the last.
struct Lent(Option<Arc<Shared>>);

impl Lent {
    fn of(vm: &Arc<Shared>) -> Lent {
        Lent(Some(vm.clone()))
    }
}

impl Deref for Lent {
    type Target = Arc<Shared>;

    fn deref(&self) -> &Arc<Shared> {
        self.0.as_ref().unwrap_or_else(|| unreachable!("only a drop takes it out"))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let child = self.0.take_if(|vm| vm.handle.fork.is_child());
        std::mem::forget(child);
    }
}

impl Deref for Inside {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_deref().unwrap_or_else(|| unreachable!("who looks here keeps the engine"))
    }
}

impl DerefMut for Inside {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_deref_mut().unwrap_or_else(|| unreachable!("who looks here keeps the engine"))
    }
}

/// The newest handle. Each has the one before it, so that whoever looks for lost memory finds all.
static NEWEST: AtomicPtr<Handle> = AtomicPtr::new(ptr::null_mut());

impl Handle {
    /// The handle of a new engine.
    pub(crate) fn new(state: State) -> &'static Handle {
        let inside = Inside { vm: Found::Closed(Weak::new()), state: Some(Box::new(state)) };
        let handle: &Handle = Box::leak(Box::new(Handle {
            inside: Mutex::new(inside),
            releases: CachePadded::default(),
            gone: AtomicBool::new(false),
            fork: Fork::new(),
            before: AtomicPtr::default(),
        }));
        let before = NEWEST.swap(ptr::from_ref(handle).cast_mut(), Ordering::Relaxed);
        handle.before.store(before, Ordering::Relaxed);
        handle
    }

    /// Takes the submission lock. For those who keep the engine.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inside> {
        unpoisoned(self.inside.lock())
    }

    /// From now on whoever has a handle finds the engine.
    pub(crate) fn open(&self, vm: &Arc<Shared>) {
        self.lock().vm = Found::Open(vm.clone());
    }

    /// Whoever has a handle alone submits nothing more.
    pub(crate) fn close(&self, vm: &Arc<Shared>) {
        let before = std::mem::replace(&mut self.lock().vm, Found::Closed(Arc::downgrade(vm)));
        // Out of the lock, which the drop of an engine takes.
        drop(before);
    }

    /// The engine is gone, and left `outcomes`.
    pub(crate) fn end(&self, outcomes: HashMap<ResourceId, Error>) {
        self.gone.store(true, Ordering::Relaxed);
        let mut inside = self.lock();
        inside.vm = Found::Gone(outcomes);
        let state = inside.state.take();
        drop(inside);
        self.releases.end();
        // What was captured is the caller's, and may ask.
        drop(state);
    }

    /// The engine, if it takes submissions.
    fn open_one(&self) -> Result<Lent, Error> {
        self.fork.check()?;
        match &self.lock().vm {
            Found::Open(vm) => Ok(Lent::of(vm)),
            Found::Closed(_) | Found::Gone(_) => Err(Error::Shutdown),
        }
    }

    /// The engine, with the last writes of a resource or a part of it; what became of the resource, where the engine is gone.
    fn last_writes(&self, id: ResourceId, part: Option<&Footprint>) -> Result<(Lent, LastWrites), Result<(), Error>> {
        // Before the lock, which a thread may hold that is not in this process.
        self.fork.check().map_err(Err)?;
        loop {
            let inside = self.lock();
            let vm = match &inside.vm {
                Found::Open(vm) => Some(Lent::of(vm)),
                Found::Closed(vm) => vm.upgrade().map(|vm| Lent(Some(vm))),
                Found::Gone(outcomes) => return Err(outcomes.get(&id).map_or(Ok(()), |error| Err(error.clone()))),
            };
            if let Some(vm) = vm {
                let last = inside.sync.dependence(id).last_writes(part).into_iter();
                let awaited = last.map(|point| vm.failures.await_point(point)).collect();
                return Ok((vm, awaited));
            }
            // It is on its way out.
            drop(inside);
            yield_now();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let outcomes = {
            let mut inside = self.handle.lock();
            self.handle.releases.take(&mut inside.scratch.dropped);
            inside.outcomes(self)
        };
        self.handle.end(outcomes);
    }
}

impl State {
    /// What became of each resource with handles whose last write has failed, or never passes.
    fn outcomes(&self, vm: &Shared) -> HashMap<ResourceId, Error> {
        let outcome = |id: ResourceId| {
            let mut points = self.sync.dependence(id).last_writes(None).into_iter();
            points.find_map(|point| match vm.streams.has_passed(point) {
                true => vm.failures.outcome_of_kept(point).map(Error::Failed),
                false => Some(Error::Shutdown),
            })
        };
        let dropped: HashSet<ResourceId> = self.scratch.dropped.iter().copied().collect();
        let known = self.resources.iter().enumerate().filter(|(_, known)| known.is_some());
        let held = known.map(|(index, _)| ResourceId(index as u32)).filter(|id| !dropped.contains(id));
        held.filter_map(|id| outcome(id).map(|error| (id, error))).collect()
    }
}

impl Engine for Handle {
    fn submit(&'static self, list: &mut InstructionList) -> Result<(), Error> {
        let vm = self.open_one()?;
        vm.submit(list, Full::Blocks, &mut Submitted::default())?;
        vm.failures.log_unseen();
        Ok(())
    }

    fn submit_one(&'static self, single: &mut Single<'_>) -> Result<(), Error> {
        self.fork.check()?;
        let mut submitted = Submitted::default();
        let mut inside = self.lock();
        let Inside { vm: Found::Open(vm), state: Some(state) } = &mut *inside else { return Err(Error::Shutdown) };
        let attempt = vm.attempt_inside(state, single, &mut submitted);
        // Nearly always nothing is left to do, and nobody has to keep the engine for it.
        if matches!(&attempt, Ok(after) if vm.is_done(after)) {
            return Ok(());
        }
        let vm = Lent::of(vm);
        drop(inside);
        match attempt {
            Ok(after) => vm.follow(after),
            Err(hindrance) => vm.insist(single, Full::Blocks, &mut submitted, hindrance)?,
        }
        vm.failures.log_unseen();
        Ok(())
    }

    fn wait(&self, id: ResourceId, part: Option<&Footprint>, deadline: Option<Deadline>) -> Result<(), Error> {
        let (vm, awaited) = match self.last_writes(id, part) {
            Ok(found) => found,
            // The answer does not depend on whether the engine is still there.
            Err(outcome) => return self.may_wait().and(outcome),
        };
        for write in &awaited {
            vm.wait_for(write.point, deadline)?;
        }
        awaited.iter().try_for_each(|write| vm.outcome(write))
    }

    fn may_wait(&self) -> Result<(), Error> {
        self.fork.check()?;
        if engine_thread::is_here() { Err(Error::WouldDeadlock) } else { Ok(()) }
    }

    fn is_forked(&self) -> bool {
        self.fork.is_child()
    }

    fn on_passed(&self, id: ResourceId, part: Option<&Footprint>, callback: Callback) {
        match self.last_writes(id, part) {
            Ok((vm, awaited)) => {
                let (points, asked) = (awaited.iter().map(|write| write.point).collect(), Lent::of(&vm));
                let outcome = move |result: Result<(), Error>| {
                    callback(result.and_then(|()| awaited.iter().try_for_each(|write| asked.outcome(write))));
                };
                vm.call_back(points, Box::new(outcome));
            }
            Err(Err(Error::Forked)) => callback(Err(Error::Forked)),
            // No thread of the engine's is left, and a callback runs on none of the caller's.
            Err(outcome) => {
                let callbacks = Arc::new(Callbacks::default());
                callbacks.run(Box::new(move || callback(outcome)));
                callbacks.close();
            }
        }
    }

    fn release(&self, id: ResourceId) {
        if self.fork.is_child() {
            return;
        }
        if !self.gone.load(Ordering::Relaxed) {
            return self.releases.add(id);
        }
        let forgotten = match &mut self.lock().vm {
            Found::Gone(outcomes) => {
                let forgotten = outcomes.remove(&id);
                if outcomes.is_empty() {
                    *outcomes = HashMap::new();
                }
                forgotten
            }
            Found::Open(_) | Found::Closed(_) => None,
        };
        // Out of the lock: it may be the last that knows a cause.
        drop(forgotten);
    }
}
