//! [`AutomaticPrograms`]: the eager calls of one engine, of all threads.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::sync::{Arc, TryLockError};
use std::time::Duration;

use hashbrown::HashMap;
use streamvm_instructions::{
    Batch, Declared, EngineRef, Error, Instruction, InstructionList, Kind, Resource, Single, Tensor, UseOf, Var,
};

use crate::automatic::call;
use crate::automatic::thread_calls::{Context, Taken, ThreadCalls};
use crate::engine::core::Engine;
use crate::engine::eager_calls::{AutomaticStats, EagerCalls};
use crate::engine::submission::Full;
use crate::submit::commit::Submitted;
use crate::sync::{
    AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, engine_thread, thread_local, unpoisoned,
};

/// Calls of a thread that makes no call for this long are submitted. Long against the time between two calls of a loop, a few microseconds, and
/// short for whoever waits.
const IDLE: Duration = Duration::from_millis(1);

/// The most tensors of which it is known why they were never written. Of others that were refused, [`Error::NotSubmitted`] says less.
const MOST_REFUSED: usize = 1_024;

/// The calls of one thread, which the thread itself locks for each of its calls, and others to submit what is held back.
type Shared = Arc<Mutex<ThreadCalls>>;

thread_local! {
    /// The calls of this thread, for each engine.
    static OWN: RefCell<Vec<(EngineRef, Shared)>> = const { RefCell::new(Vec::new()) };
}

/// See the module.
#[derive(Default)]
pub(crate) struct AutomaticPrograms {
    threads: Mutex<Vec<Shared>>,
    serials: AtomicU64,
    /// By the serial number of a tensor, why the call that would have written it was refused.
    refused: Mutex<HashMap<u64, Error>>,
    counters: Counters,
    /// Some thread may hold calls back: the idle thread looks.
    watching: AtomicBool,
    idle: Mutex<Idle>,
    changed: Condvar,
}

#[derive(Default)]
struct Idle {
    closed: bool,
}

/// See [`AutomaticStats`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) sequences: AtomicU64,
    pub(super) replays: AtomicU64,
    pub(super) calls_replayed: AtomicU64,
    pub(super) fallbacks: AtomicU64,
}

impl AutomaticPrograms {
    /// Calls `f` with the calls of a thread, locked, and with what they need.
    fn with<R>(
        &self,
        engine: &Arc<Engine>,
        mut calls: MutexGuard<'_, ThreadCalls>,
        f: impl FnOnce(&mut ThreadCalls, &Context<'_>) -> R,
    ) -> R {
        let next_serial = || self.serials.fetch_add(1, Ordering::Relaxed) + 1;
        let note_refused = |serial, error| {
            let mut refused = unpoisoned(self.refused.lock());
            if refused.len() < MOST_REFUSED {
                refused.insert(serial, error);
            }
        };
        f(
            &mut calls,
            &Context { engine, counters: &self.counters, next_serial: &next_serial, note_refused: &note_refused },
        )
    }

    /// The calls of this thread; `None` if it has none and `make` is not set.
    fn own(&self, engine: &Engine, make: bool) -> Option<Shared> {
        let of_thread = |own: &RefCell<Vec<(EngineRef, Shared)>>| {
            let mut own = own.borrow_mut();
            if let Some((_, calls)) = own.iter().find(|(of, _)| of.is(engine.me)) {
                return Some(calls.clone());
            }
            if !make {
                return None;
            }
            // Calls of engines that are gone have no other reference.
            own.retain(|(_, calls)| Arc::strong_count(calls) > 1);
            let calls = Shared::default();
            own.push((engine.me, calls.clone()));
            let mut threads = unpoisoned(self.threads.lock());
            // Those of threads that have ended have no other reference.
            threads.retain(|calls| Arc::strong_count(calls) > 1 || try_lock(calls).is_none_or(|calls| calls.holds()));
            threads.push(calls.clone());
            Some(calls)
        };
        // Fails on a thread that is ending.
        OWN.try_with(of_thread).ok().flatten()
    }

    fn take_batch<B: Batch>(
        &self,
        engine: &Arc<Engine>,
        batch: &mut B,
        submit: impl FnOnce(&mut B) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let can_be_held = !engine_thread::is_here()
            && !engine.closed.load(Ordering::Relaxed)
            && batch.instructions().iter().all(|instruction| call::work_of(instruction).is_some())
            && !engine.section_gate.any_open();
        let own = if can_be_held { self.own(engine, true) } else { None };
        let Some(own) = own else {
            self.before_batch(engine, batch)?;
            return submit(batch);
        };
        let taken = self.with(engine, lock(&own), |calls, context| {
            let taken = calls.take(batch, context);
            if calls.holds() {
                self.watch();
            }
            taken
        })?;
        match taken {
            Taken::All => Ok(()),
            Taken::UpTo(0) => {
                self.before_uses(engine, batch, Some(&own))?;
                submit(batch)
            }
            Taken::UpTo(line) => {
                self.before_uses(engine, batch, Some(&own))?;
                batch.instructions()[line..].iter().try_for_each(|it| submit_alone(engine, it, batch.uses(it)))
            }
        }
    }

    /// Submits held-back calls before a batch that is not one of them.
    fn before_batch<B: Batch>(&self, engine: &Arc<Engine>, batch: &B) -> Result<(), Error> {
        // The order of an allocation or a release is that of its use.
        let has_order = |kind: &Kind| kind.has_explicit_order() && !matches!(kind, Kind::Allocate | Kind::Release);
        if batch.instructions().iter().any(|instruction| has_order(&instruction.kind)) {
            // It comes after everything that was issued before, by any thread.
            self.submit_all(engine)?;
        } else {
            self.submit_own(engine)?;
        }
        self.before_uses(engine, batch, None)
    }

    /// Submits calls of other threads than that of `own` that come before a use of a batch.
    ///
    /// # Errors
    /// Those of submitting them; a tensor that is used was never written, because its call was refused.
    fn before_uses<B: Batch>(&self, engine: &Arc<Engine>, batch: &B, own: Option<&Shared>) -> Result<(), Error> {
        let held = |u: &UseOf<B>| u.resource().holds().are_before(u.access());
        if batch.all_uses().iter().any(held) {
            self.submit_others(engine, own)?;
        }
        let refused = batch.all_uses().iter().find(|u| u.resource().holds().is_refused());
        refused.map_or(Ok(()), |u| Err(self.why_refused(u.resource())))
    }

    /// Submits the calls of all threads but that of `own`.
    ///
    /// # Errors
    /// The first of those of submitting them; [`Error::WouldBlock`] on a thread of the engine, if another thread is submitting calls just now.
    fn submit_others(&self, engine: &Arc<Engine>, own: Option<&Shared>) -> Result<(), Error> {
        let threads: Vec<Shared> = unpoisoned(self.threads.lock()).clone();
        let mut outcome = Ok(());
        for calls in threads.iter().filter(|calls| own.is_none_or(|own| !Arc::ptr_eq(calls, own))) {
            let locked = if engine_thread::is_here() { try_lock(calls) } else { Some(lock(calls)) };
            let submitted = match locked {
                Some(locked) if !locked.holds() => Ok(()),
                Some(locked) => self.with(engine, locked, |calls, context| calls.boundary(context)),
                None => {
                    let pending = engine.pending();
                    Err(Error::WouldBlock { instructions: pending.instructions, bytes: pending.bytes })
                }
            };
            outcome = outcome.and(submitted);
        }
        outcome
    }

    fn why_refused(&self, resource: &Resource) -> Error {
        let serial = resource.serial(|| self.serials.fetch_add(1, Ordering::Relaxed) + 1);
        unpoisoned(self.refused.lock()).get(&serial).cloned().unwrap_or(Error::NotSubmitted)
    }

    /// Has the idle thread look at what is held back. Called with the calls of the thread locked that holds some.
    fn watch(&self) {
        // The idle thread clears this before it locks the calls of each thread: so it sees what is held back, or this finds it cleared.
        if !self.watching.load(Ordering::Relaxed) && !self.watching.swap(true, Ordering::AcqRel) {
            let _idle = unpoisoned(self.idle.lock());
            self.changed.notify_all();
        }
    }

    /// Submits the calls of threads that have made none since the last look. Returns whether there are others.
    fn look(&self, engine: &Arc<Engine>, seen: &mut HashMap<*const Mutex<ThreadCalls>, u64>) -> bool {
        let threads: Vec<Shared> = unpoisoned(self.threads.lock()).clone();
        let mut left = false;
        for calls in &threads {
            // A thread that has its calls locked makes a call.
            let Some(locked) = try_lock(calls) else {
                left = true;
                continue;
            };
            let taken = locked.taken;
            if !locked.holds() {
                continue;
            }
            if seen.insert(Arc::as_ptr(calls), taken) == Some(taken) {
                let submitted = self.with(engine, locked, |calls, context| {
                    let submitted = calls.boundary(context);
                    left |= calls.holds();
                    submitted
                });
                if let Err(error) = submitted {
                    log::debug!("calls of an idle thread were not submitted: {error}");
                }
            } else {
                left = true;
            }
        }
        seen.retain(|at, _| threads.iter().any(|calls| Arc::as_ptr(calls) == *at));
        left
    }
}

impl EagerCalls for AutomaticPrograms {
    fn take_one(&self, engine: &Arc<Engine>, single: &mut Single<'_>) -> Result<(), Error> {
        self.take_batch(engine, single, |single| engine.submit_one_now(single, &mut Submitted::default()))
    }

    fn take(&self, engine: &Arc<Engine>, list: &mut InstructionList) -> Result<(), Error> {
        self.take_batch(engine, list, |list| engine.submit_now(list, Full::Blocks, &mut Submitted::default()))
    }

    fn before_one(&self, engine: &Arc<Engine>, single: &Single<'_>) -> Result<(), Error> {
        self.before_batch(engine, single)
    }

    fn before(&self, engine: &Arc<Engine>, list: &InstructionList) -> Result<(), Error> {
        self.before_batch(engine, list)
    }

    fn submit_own(&self, engine: &Arc<Engine>) -> Result<(), Error> {
        if engine_thread::is_here() {
            return Ok(());
        }
        let Some(own) = self.own(engine, false) else { return Ok(()) };
        self.with(engine, lock(&own), |calls, context| calls.boundary(context))
    }

    fn submit_all(&self, engine: &Arc<Engine>) -> Result<(), Error> {
        let own = self.submit_own(engine);
        own.and(self.submit_others(engine, None))
    }

    fn submit_users_of(&self, engine: &Arc<Engine>, resource: &Resource) -> Result<(), Error> {
        self.submit_own(engine)?;
        if resource.holds().are_before(streamvm_ep::Access::Read) {
            self.submit_others(engine, None)?;
        }
        if resource.holds().is_refused() { Err(self.why_refused(resource)) } else { Ok(()) }
    }

    fn serve_idle(&self, engine: &Arc<Engine>) {
        engine_thread::enter();
        let mut seen = HashMap::new();
        let mut idle = unpoisoned(self.idle.lock());
        while !idle.closed {
            if !self.watching.load(Ordering::Acquire) {
                seen.clear();
                idle = unpoisoned(self.changed.wait(idle));
                continue;
            }
            idle = unpoisoned(self.changed.wait_timeout(idle, IDLE)).0;
            if idle.closed {
                break;
            }
            drop(idle);
            self.watching.store(false, Ordering::Release);
            if self.look(engine, &mut seen) {
                self.watching.store(true, Ordering::Release);
            }
            idle = unpoisoned(self.idle.lock());
        }
    }

    fn close(&self) {
        unpoisoned(self.idle.lock()).closed = true;
        self.changed.notify_all();
    }

    fn stats(&self) -> AutomaticStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        AutomaticStats {
            sequences: count(&self.counters.sequences),
            replays: count(&self.counters.replays),
            calls_replayed: count(&self.counters.calls_replayed),
            fallbacks: count(&self.counters.fallbacks),
        }
    }
}

/// Submits one instruction of a list by itself.
fn submit_alone<T: Borrow<Tensor>, V: Borrow<Var>>(
    engine: &Arc<Engine>,
    instruction: &Instruction,
    uses: &[Declared<T, V>],
) -> Result<(), Error> {
    let Some(work) = call::work_of(instruction) else { return Ok(()) };
    let mut list = InstructionList::new();
    let uses = uses.iter().map(Declared::seen);
    list.push(instruction.stream, call::kind_of(&work), uses, instruction.location)?;
    engine.submit_now(&mut list, Full::Blocks, &mut Submitted::default())
}

fn lock(calls: &Shared) -> MutexGuard<'_, ThreadCalls> {
    unpoisoned(calls.lock())
}

fn try_lock(calls: &Shared) -> Option<MutexGuard<'_, ThreadCalls>> {
    match calls.try_lock() {
        Ok(locked) => Some(locked),
        Err(TryLockError::Poisoned(locked)) => Some(locked.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
