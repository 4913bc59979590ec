//! Handles: where tensors, variables and futures find their engine.
//!
//! Tensors know their engine by a handle that stays for as long as the process, so a program that makes and drops tensors counts no
//! references to the engine ([docs/adr/0043](../../docs/adr/0043-handles-are-used-again.md)). A handle serves one engine after the other:
//!
//! ```text
//! Closed ─ open ─> Open ─ the Vm goes ─> Closed ─ the last thread goes ─> Gone ─ the last bound resource goes ─> Idle ─ new ─> Closed
//! ```
//!
//! `Handle` makes all of these steps, under its lock. What an engine holds goes when it is *gone*. What became of resources that are
//! still bound can be asked for until they are released, so the handle counts these, once, when the engine ends. Then it is *idle*, and the
//! next engine that is built takes it.
//!
//! An old tensor cannot meet a new engine: while it is bound, the handle is not idle; and what was never bound (an output of a list that
//! was not submitted, an event, a future) compares an [`EngineRef`], which is another for each engine, or asks for the fork, which does not change.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock, Weak};

use crossbeam_utils::CachePadded;
use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;
use streamvm_ep::Footprint;
use streamvm_instructions::{
    Callback, Deadline, Engine, EngineAddress, EngineRef, Error, InstructionList, ResourceId, Single,
};

use crate::callbacks::Callbacks;
use crate::claims::Awaited;
use crate::commit::Submitted;
use crate::engine_thread;
use crate::fork::Fork;
use crate::idle;
use crate::releases::Releases;
use crate::shared::Shared;
use crate::state::State;
use crate::submit::Full;
use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering, unpoisoned, yield_now};

/// The last writes of a resource or of a part of it.
type LastWrites = SmallVec<[Awaited; 1]>;

/// The state of one engine: open, closed, gone with resources left, or none.
pub(crate) struct Handle {
    /// Marks, clocks, numbering, publishing: the one short lock of a submission. With what it guards on a line of its own, and what is
    /// only read, before and behind it, on another: submitters pass the lock from core to core.
    inside: CachePadded<Mutex<Inside>>,
    /// Handles of resources that were dropped since the last submission.
    pub(crate) releases: CachePadded<Releases>,
    /// No submission takes what is released: the engine is gone.
    gone: AtomicBool,
    /// Whether this process is the one that built the engine. The same for all engines of this handle.
    pub(crate) fork: Fork,
    /// Where the engine is called: here. Written when the handle is made.
    address: OnceLock<EngineAddress>,
}

/// What the submission lock guards.
pub(crate) struct Inside {
    vm: Found,
    /// There as long as the engine is, and on the heap, so that little stays when it is gone.
    state: Option<Box<State>>,
}

/// What a caller finds that has nothing but the handle.
enum Found {
    /// The engine, which takes submissions until its `Vm` is dropped.
    Open(Arc<Shared>),
    /// What its threads have left to do.
    Closed(Weak<Shared>),
    /// The engine is gone, and resources are still bound to it.
    Gone(Box<Remains>),
    /// No engine, and nothing that is bound to one: the next one that is built may come.
    Idle,
}

/// What is left of an engine that is gone.
#[derive(Default)]
pub(crate) struct Remains {
    /// How many resources have not been released.
    bound: usize,
    /// What became of those of them whose last write failed, or never passes. That of the others has passed.
    outcomes: HashMap<ResourceId, Error>,
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

impl Handle {
    /// A handle for a new engine, and what tensors know that engine by.
    pub(crate) fn new(state: State) -> (&'static Handle, EngineRef) {
        let handle = idle::take().unwrap_or_else(Handle::make);
        let mut inside = handle.lock();
        *inside = Inside { vm: Found::Closed(Weak::new()), state: Some(Box::new(state)) };
        handle.gone.store(false, Ordering::Relaxed);
        drop(inside);
        (handle, EngineRef::new(handle.address.get_or_init(|| EngineAddress::new(handle))))
    }

    /// One more handle, for good.
    fn make() -> &'static Handle {
        Box::leak(Box::new(Handle {
            inside: CachePadded::new(Mutex::new(Inside { vm: Found::Idle, state: None })),
            releases: CachePadded::default(),
            gone: AtomicBool::new(false),
            fork: Fork::new(),
            address: OnceLock::new(),
        }))
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

    /// The engine is gone, and this is left of it.
    fn end(&'static self, remains: Remains) {
        let mut inside = self.lock();
        inside.vm = Found::Gone(Box::new(remains));
        let state = inside.state.take();
        // Before the look at what was released: a release that this look does not see finds the flag.
        self.gone.store(true, Ordering::Release);
        let forgotten = self.forget_released(inside);
        // Out of the lock: what was captured is the caller's, and may ask.
        drop((state, forgotten));
    }

    /// Strikes what was released off the remains of an engine that is gone. Once nothing remains, the handle is idle. Returns what to drop out
    /// of the lock: causes, of which this may be the last reference.
    #[must_use = "it is dropped out of the lock"]
    fn forget_released(&'static self, mut inside: MutexGuard<'static, Inside>) -> Vec<Error> {
        let Found::Gone(remains) = &mut inside.vm else { return Vec::new() };
        let mut forgotten = Vec::new();
        self.releases.drain(|id| {
            remains.bound -= 1;
            forgotten.extend(remains.outcomes.remove(&id));
        });
        if remains.outcomes.is_empty() {
            remains.outcomes = HashMap::new();
        }
        if remains.bound == 0 {
            inside.vm = Found::Idle;
            drop(inside);
            idle::put(self);
        }
        forgotten
    }

    /// Something was released, and no submission takes it.
    #[cold]
    fn released_behind_the_end(&'static self) {
        let forgotten = self.forget_released(self.lock());
        drop(forgotten);
    }

    /// The engine, if it takes submissions.
    fn open_one(&self) -> Result<Lent, Error> {
        self.fork.check()?;
        match &self.lock().vm {
            Found::Open(vm) => Ok(Lent::of(vm)),
            Found::Closed(_) | Found::Gone(_) | Found::Idle => Err(Error::Shutdown),
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
                Found::Gone(remains) => {
                    return Err(remains.outcomes.get(&id).map_or(Ok(()), |error| Err(error.clone())));
                }
                // Not while the resource is bound.
                Found::Idle => return Err(Ok(())),
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
        let remains = {
            let mut inside = self.handle.lock();
            self.handle.releases.take(&mut inside.scratch.dropped);
            // These have no handles any more, and would be counted.
            inside.end_kept();
            inside.remains(self)
        };
        self.handle.end(remains);
    }
}

impl State {
    /// What remains of the engine once it is gone: the resources that have handles.
    fn remains(&self, vm: &Shared) -> Remains {
        let outcome = |id: ResourceId| {
            let mut points = self.sync.dependence(id).last_writes(None).into_iter();
            points.find_map(|point| match vm.streams.has_passed(point) {
                true => vm.failures.outcome_of_kept(point).map(Error::Failed),
                false => Some(Error::Shutdown),
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

impl Engine for Handle {
    fn submit(&self, list: &mut InstructionList) -> Result<(), Error> {
        let vm = self.open_one()?;
        vm.submit(list, Full::Blocks, &mut Submitted::default())?;
        vm.failures.log_unseen();
        Ok(())
    }

    fn submit_one(&self, single: &mut Single<'_>) -> Result<(), Error> {
        self.fork.check()?;
        let mut submitted = Submitted::default();
        let mut inside = self.lock();
        let Inside { vm: Found::Open(vm), state: Some(state) } = &mut *inside else { return Err(Error::Shutdown) };
        let attempt = vm.attempt_inside(state, single, &mut submitted, false);
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

    fn release(&'static self, id: ResourceId) {
        if self.fork.is_child() {
            return;
        }
        self.releases.add(id);
        // Behind the note: from here on the handle may serve another engine, if this was the last that was bound. Then the look below is at
        // that one's, and what follows is done for that one.
        if self.gone.load(Ordering::Relaxed) {
            self.released_behind_the_end();
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
        let x = vm.fill(CPU, DType::F32, &[4], 1.0).expect("it is taken");
        x.wait().expect("it passes");
        x
    }

    /// Engines of other tests come and go meanwhile, so it is the engine's own handle that is looked at.
    #[test]
    fn a_handle_counts_what_is_bound_to_it_when_its_engine_is_gone() {
        for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 1 }] {
            let vm = Vm::builder().mode(mode).build().expect("an engine");
            let handle = vm.shared.handle;
            // What was dropped before the end, and may be kept for the next of its size.
            drop(filled(&vm));
            let tensors = [filled(&vm), filled(&vm), filled(&vm)];
            let views = tensors.each_ref().map(|x| x.slice(0, 1..2).expect("in range"));
            drop(vm);
            let bound = |handle: &Handle| match &handle.lock().vm {
                Found::Gone(remains) => remains.bound,
                _ => 0,
            };
            assert_eq!(bound(handle), 3, "{mode:?}");
            drop(tensors);
            assert_eq!(bound(handle), 3, "{mode:?}: views are left");
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
        let (handle, me, x) = (vm.shared.handle, vm.shared.me, filled(&vm));
        drop(vm);
        let others = (0..100).map(|_| build()).filter(|vm| ptr::eq(vm.shared.handle, handle)).count();
        assert_eq!(others, 0, "a tensor is still bound to it");
        drop(x);
        // Engines of other tests may have it for a while.
        let again = (0..100_000).map(|_| build()).find(|vm| ptr::eq(vm.shared.handle, handle)).expect("it is taken");
        assert!(!me.is(again.shared.me));
    }
}
