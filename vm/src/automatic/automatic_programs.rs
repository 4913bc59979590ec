//! [`AutomaticPrograms`]: the eager calls of one engine, of all threads.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use streamvm_instructions::{
    Batch, Deadline, Declared, EngineRef, Error, Instruction, InstructionList, Kind, Resource, Single, Tensor, UseOf,
    Var,
};

use crate::automatic::call;
use crate::automatic::held::{is_out_of_memory, may_be_repeated};
use crate::automatic::thread_calls::{Attempt, Context, Memory, Taken};
use crate::automatic::thread_slot::{Patience, ThreadSlot};
use crate::engine::core::Engine;
use crate::engine::eager_calls::{AutomaticStats, EagerCalls};
use crate::engine::submission::Full;
use crate::submit::commit::Submitted;
use crate::submit::sections;
use crate::sync::{AtomicBool, AtomicU64, Condvar, Mutex, Ordering, engine_thread, thread_local, unpoisoned};

/// Calls of a thread that makes no call for this long are submitted. Two calls of a loop are a few microseconds apart, so a loop that runs is not
/// cut, and whoever waits for the calls loses 1 to 2 ms.
const IDLE: Duration = Duration::from_millis(1);

/// While there is too little memory for calls of idle threads, the time between two attempts doubles up to this.
const LONGEST_IDLE: Duration = Duration::from_millis(64);

/// The most tensors of which it is known why they were never written. Of others that were refused, [`Error::NotSubmitted`] says less.
const MOST_REFUSED: usize = 1_024;

/// How long an engine that closes waits for threads that are submitting held-back calls. They wait for nothing but the compiling of a
/// program, and in inline mode for functions that they run.
const CLOSING: Duration = Duration::from_secs(1);

/// The calls of one thread. The thread itself uses them for each of its calls, and others to submit what is held back.
type Shared = Arc<ThreadSlot>;

thread_local! {
    /// The calls of this thread, for each engine.
    static OWN: RefCell<Vec<(EngineRef, Shared)>> = const { RefCell::new(Vec::new()) };
}

/// See the module.
#[derive(Default)]
pub(crate) struct AutomaticPrograms {
    threads: Mutex<Vec<Shared>>,
    serials: AtomicU64,
    refused: Mutex<Refused>,
    counters: Counters,
    /// No call is held back any more, because the engine is about to close. Read under the lock of a slot, and set before the engine submits
    /// the calls of all slots: so each call is submitted by that, or finds this set.
    stops_holding: AtomicBool,
    /// Some thread may hold calls back: the idle thread looks.
    watching: AtomicBool,
    idle: Mutex<Idle>,
    changed: Condvar,
}

#[derive(Default)]
struct Idle {
    closed: bool,
}

/// Why tensors were never written: at most [`MOST_REFUSED`], the newest.
#[derive(Default)]
struct Refused {
    /// By the serial number of a tensor, why the call that would have written it was refused.
    errors: HashMap<u64, Error>,
    /// The serial numbers, the oldest first.
    order: VecDeque<u64>,
}

impl Refused {
    fn add(&mut self, serial: u64, error: Error) {
        if self.errors.insert(serial, error).is_some() {
            return;
        }
        self.order.push_back(serial);
        if self.order.len() > MOST_REFUSED
            && let Some(oldest) = self.order.pop_front()
        {
            self.errors.remove(&oldest);
        }
    }
}

/// See [`AutomaticStats`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) sequences: AtomicU64,
    pub(super) replays: AtomicU64,
    pub(super) calls_replayed: AtomicU64,
    pub(super) fallbacks: AtomicU64,
}

/// What the submitter of held-back calls may wait for.
#[derive(Copy, Clone, Debug)]
struct Waits {
    /// For the thread that is submitting the calls.
    patience: Patience,
    /// For room in the queue.
    full: Full,
    /// For memory, and for room, at most this long. `None` in a thread of the engine, and in one that closes the engine: these wait for neither.
    work: Option<Option<Deadline>>,
}

impl Waits {
    /// As a submission of this thread may: a thread of the engine waits for nothing.
    fn here(full: Full, deadline: Option<Deadline>) -> Waits {
        match engine_thread::is_here() {
            true => Waits { patience: Patience::None, full: Full::Returns, work: None },
            false => Waits { patience: Patience::Until(deadline), full, work: Some(deadline) },
        }
    }
}

impl AutomaticPrograms {
    /// Calls `f` with what the calls of a thread need.
    fn with_context<R>(&self, engine: &Arc<Engine>, f: impl FnOnce(&Context<'_>) -> R) -> R {
        let next_serial = || self.next_serial();
        let note_refused = |serial, error| unpoisoned(self.refused.lock()).add(serial, error);
        f(&Context { engine, counters: &self.counters, next_serial: &next_serial, note_refused: &note_refused })
    }

    fn next_serial(&self) -> u64 {
        self.serials.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn all_threads(&self) -> Vec<Shared> {
        unpoisoned(self.threads.lock()).clone()
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
            threads.retain(|calls| Arc::strong_count(calls) > 1 || calls.look().is_none_or(|calls| calls.holds()));
            threads.push(calls.clone());
            Some(calls)
        };
        // Fails on a thread that is ending.
        OWN.try_with(of_thread).ok().flatten()
    }

    /// Calls `f` with the calls of this thread, if it has some.
    fn with_own<R>(&self, engine: &Engine, f: impl FnOnce(&ThreadSlot) -> R) -> Option<R> {
        let of_thread = |own: &RefCell<Vec<(EngineRef, Shared)>>| {
            let own = own.borrow();
            own.iter().find(|(of, _)| of.is(engine.me)).map(|(_, calls)| f(calls))
        };
        OWN.try_with(of_thread).ok().flatten()
    }

    /// Takes the lines of an eager call from `first` on, in the slot of this thread. `None` if no call is held back any more.
    ///
    /// # Errors
    /// As [`ThreadSlot::lock`].
    fn hold<B: Batch>(
        &self,
        engine: &Arc<Engine>,
        own: &ThreadSlot,
        batch: &B,
        first: usize,
    ) -> Result<Option<Taken>, Error> {
        let mut calls = own.lock(engine, Patience::Until(Deadline::current()))?;
        if self.stops_holding.load(Ordering::SeqCst) {
            return Ok(None);
        }
        let taken = self.with_context(engine, |context| calls.take(batch, first, context));
        if calls.holds() {
            self.watch();
        }
        Ok(Some(taken))
    }

    fn take_batch<B: Batch>(
        &self,
        engine: &Arc<Engine>,
        batch: &mut B,
        submit: impl FnOnce(&mut B) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let can_be_held = !engine_thread::is_here()
            && !engine.closed.load(Ordering::Relaxed)
            && batch.instructions().iter().all(call::has_work)
            && !engine.section_gate.any_open();
        let mut first = 0;
        // Usually every line is held back; this path does not clone the `Arc` of the slot.
        let mut taken = if can_be_held { self.with_own(engine, |own| self.hold(engine, own, batch, 0)) } else { None };
        if matches!(taken, Some(Ok(Some(Taken::All)))) {
            return Ok(());
        }
        let own = if can_be_held { self.own(engine, true) } else { None };
        let Some(own) = own else {
            self.before_batch(engine, batch, Full::Blocks)?;
            return submit(batch);
        };
        let deadline = Deadline::current();
        let line = loop {
            let next = taken.take().unwrap_or_else(|| self.hold(engine, &own, batch, first))?;
            match next {
                Some(Taken::All) => return Ok(()),
                Some(Taken::UpTo(line)) => break line,
                Some(Taken::Behind(_)) | None => {
                    self.submit_calls(engine, &own, false, Waits::here(Full::Blocks, deadline))?;
                }
            }
            match next {
                Some(Taken::Behind(line)) => first = line,
                _ => break first,
            }
        };
        self.before_uses(engine, batch, Some(&own), Waits::here(Full::Blocks, deadline))?;
        match line {
            0 => submit(batch),
            _ => batch.instructions()[line..].iter().try_for_each(|it| submit_alone(engine, it, batch.uses(it))),
        }
    }

    /// Submits held-back calls before a batch that is not one of them.
    fn before_batch<B: Batch>(&self, engine: &Arc<Engine>, batch: &B, full: Full) -> Result<(), Error> {
        // The order of an allocation or a release, and of a run of a program with blocks, is that of its uses.
        let has_order = |kind: &Kind| {
            kind.has_explicit_order() && !matches!(kind, Kind::Allocate | Kind::Release | Kind::Function { .. })
        };
        let deadline = Deadline::current();
        if batch.instructions().iter().any(|instruction| has_order(&instruction.kind)) {
            // It comes after everything that was issued before, by any thread.
            self.submit_all(engine, full, deadline)?;
        } else {
            self.submit_own(engine, full, deadline)?;
        }
        self.before_uses(engine, batch, None, Waits::here(full, deadline))
    }

    /// Submits calls of other threads than that of `own` that come before a use of a batch.
    ///
    /// # Errors
    /// As [`submit_users`](AutomaticPrograms::submit_users); a tensor that is used was never written, because its call was refused.
    fn before_uses<B: Batch>(
        &self,
        engine: &Arc<Engine>,
        batch: &B,
        own: Option<&Shared>,
        waits: Waits,
    ) -> Result<(), Error> {
        let held = |u: &&UseOf<B>| u.resource().holds().are_before(u.access());
        for u in batch.all_uses().iter().filter(held) {
            self.submit_users(engine, own, (u.resource(), u.access()), waits)?;
        }
        let refused = batch.all_uses().iter().find(|u| u.resource().holds().is_refused());
        refused.map_or(Ok(()), |u| Err(self.why_refused(u.resource())))
    }

    /// Submits the calls of those threads, but for that of `own`, whose held-back calls come before a use of the resource. What is refused of them
    /// is told to those who use its tensors.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] on a thread of the engine, if such calls are still held back, because another thread is submitting them or there is no
    /// room; [`Error::Timeout`] and the like, if the calls could not be submitted in time.
    fn submit_users(
        &self,
        engine: &Arc<Engine>,
        own: Option<&Shared>,
        (resource, access): (&Resource, streamvm_ep::Access),
        waits: Waits,
    ) -> Result<(), Error> {
        let mut outcome = Ok(());
        for slot in self.all_threads().iter().filter(|slot| own.is_none_or(|own| !Arc::ptr_eq(slot, own))) {
            if !resource.holds().are_before(access) {
                return Ok(());
            }
            let users = slot.lock(engine, waits.patience).map(|mut calls| calls.holds() && calls.uses(resource));
            let submitted = match users {
                Ok(true) => self.submit_calls(engine, slot, true, waits),
                Ok(false) => Ok(()),
                Err(error) => Err(error),
            };
            outcome = outcome.and(submitted.or_else(unless_refused));
        }
        // A thread that was submitting its calls may have used other tensors.
        if resource.holds().are_before(access) { outcome } else { Ok(()) }
    }

    /// Submits the calls of all threads but this one. What is refused of them is told to those who use its tensors.
    ///
    /// # Errors
    /// As [`submit_users`](AutomaticPrograms::submit_users).
    fn submit_others(&self, engine: &Arc<Engine>, waits: Waits) -> Result<(), Error> {
        let own = self.own(engine, false);
        let mut outcome = Ok(());
        for slot in self.all_threads().iter().filter(|slot| own.as_ref().is_none_or(|own| !Arc::ptr_eq(slot, own))) {
            outcome = outcome.and(self.submit_calls(engine, slot, true, waits).or_else(unless_refused));
        }
        outcome
    }

    /// Submits the calls that a thread holds back, if there are any. With `is_boundary`, because something else comes than an eager call.
    ///
    /// A submission under which the calls are taken out waits for nothing. Where it would, the calls are returned first, so that another
    /// thread can submit them meanwhile.
    ///
    /// # Errors
    /// If calls are still held back afterwards, why they could not be submitted in time. Otherwise the first for which a call was refused.
    fn submit_calls(
        &self,
        engine: &Arc<Engine>,
        slot: &ThreadSlot,
        is_boundary: bool,
        waits: Waits,
    ) -> Result<(), Error> {
        let closes = waits.full == Full::Exceeds;
        let (mut grant, mut drained_at) = (None, None);
        loop {
            let calls = slot.lock(engine, waits.patience)?;
            if !calls.holds() {
                return Ok(());
            }
            let mut calls = calls.take_out();
            let attempt = Attempt {
                full: if grant.is_some() || closes { Full::Exceeds } else { Full::Returns },
                memory: if closes { Memory::WillNotCome } else { Memory::MayCome { drained_at } },
            };
            let outcome = self.with_context(engine, |context| {
                let _outside = sections::outside();
                let outcome = calls.submit_held(attempt, context);
                if is_boundary && !calls.holds() {
                    calls.note_boundary(context);
                }
                outcome
            });
            let (left, submitted) = calls.left_and_submitted();
            drop(calls);
            let Err(error) = outcome else { return Ok(()) };
            // Before this waits for memory, which may need instructions that a grant keeps from being admitted.
            grant = None;
            let Some(deadline) = waits.work.filter(|_| left > 0) else { return Err(error) };
            match error {
                Error::WouldBlock { .. } => match engine.wait_for_room(left as u64, waits.full, deadline) {
                    Ok(granted) => grant = granted,
                    // The engine has submitted the calls before it closed.
                    Err(Error::Shutdown) => {}
                    Err(error) => return Err(error),
                },
                error if is_out_of_memory(&error) => {
                    engine.drain(deadline)?;
                    drained_at = Some(submitted);
                }
                error => return Err(error),
            }
        }
    }

    fn why_refused(&self, resource: &Resource) -> Error {
        let serial = resource.serial(|| self.next_serial());
        unpoisoned(self.refused.lock()).errors.get(&serial).cloned().unwrap_or(Error::NotSubmitted)
    }

    /// Has the idle thread look at what is held back. Called with the calls of the thread locked that holds some.
    fn watch(&self) {
        // The idle thread clears this before it locks the calls of each thread: so it sees what is held back, or this finds it cleared.
        if !self.watching.load(Ordering::Relaxed) && !self.watching.swap(true, Ordering::AcqRel) {
            let _idle = unpoisoned(self.idle.lock());
            self.changed.notify_all();
        }
    }

    /// Submits the calls of threads that have made none since the last look. A thread of the engine waits for nothing, so a call that finds
    /// too little memory stays held back: its own thread waits for memory.
    fn look(&self, engine: &Arc<Engine>, seen: &mut HashMap<*const ThreadSlot, u64>) -> Looked {
        let threads = self.all_threads();
        let mut looked = Looked::default();
        for slot in &threads {
            // Calls that are taken out are being submitted.
            let Some(calls) = slot.look() else {
                looked.left = true;
                continue;
            };
            let taken = calls.taken;
            if !calls.holds() {
                continue;
            }
            if seen.insert(Arc::as_ptr(slot), taken) != Some(taken) {
                looked.left = true;
                continue;
            }
            drop(calls);
            let submitted = self.submit_calls(engine, slot, true, Waits::here(Full::Returns, None));
            looked.left |= slot.look().is_none_or(|calls| calls.holds());
            if let Err(error) = submitted {
                log::debug!("calls of an idle thread were not submitted: {error}");
                looked.lacks_memory |= is_out_of_memory(&error);
            }
        }
        seen.retain(|at, _| threads.iter().any(|slot| Arc::as_ptr(slot) == *at));
        looked
    }
}

/// What the idle thread has found.
#[derive(Copy, Clone, Default)]
struct Looked {
    /// Calls are still held back.
    left: bool,
    /// There was too little memory for some.
    lacks_memory: bool,
}

/// No error if calls of another thread were refused, which is told to those who use their tensors; the error if they are still held back.
fn unless_refused(error: Error) -> Result<(), Error> {
    let is_held = may_be_repeated(&error) || engine_thread::is_here() && is_out_of_memory(&error);
    if is_held { Err(error) } else { Ok(()) }
}

impl EagerCalls for AutomaticPrograms {
    fn take_one(&self, engine: &Arc<Engine>, single: &mut Single<'_>) -> Result<(), Error> {
        self.take_batch(engine, single, |single| engine.submit_one_now(single, Full::Blocks, &mut Submitted::default()))
    }

    fn take(&self, engine: &Arc<Engine>, list: &mut InstructionList) -> Result<(), Error> {
        self.take_batch(engine, list, |list| engine.submit_now(list, Full::Blocks, &mut Submitted::default()))
    }

    fn before_one(&self, engine: &Arc<Engine>, single: &Single<'_>) -> Result<(), Error> {
        self.before_batch(engine, single, Full::Blocks)
    }

    fn before(&self, engine: &Arc<Engine>, list: &InstructionList, full: Full) -> Result<(), Error> {
        self.before_batch(engine, list, full)
    }

    fn submit_own(&self, engine: &Arc<Engine>, full: Full, deadline: Option<Deadline>) -> Result<(), Error> {
        if engine_thread::is_here() {
            return Ok(());
        }
        let Some(own) = self.own(engine, false) else { return Ok(()) };
        let mut calls = own.lock(engine, Patience::Until(deadline))?;
        let told = calls.untold.take().map_or(Ok(()), Err);
        if !calls.holds() {
            self.with_context(engine, |context| calls.note_boundary(context));
            return told;
        }
        drop(calls);
        let submitted = self.submit_calls(engine, &own, true, Waits::here(full, deadline));
        told.and(submitted)
    }

    fn submit_all(&self, engine: &Arc<Engine>, full: Full, deadline: Option<Deadline>) -> Result<(), Error> {
        let own = self.submit_own(engine, full, deadline);
        own.and(self.submit_others(engine, Waits::here(full, deadline)))
    }

    fn submit_users_of(&self, engine: &Arc<Engine>, resource: &Resource) -> Result<(), Error> {
        let deadline = Deadline::current();
        let own = self.submit_own(engine, Full::Blocks, deadline);
        own.clone().or_else(unless_refused)?;
        let read = (resource, streamvm_ep::Access::Read);
        self.submit_users(engine, None, read, Waits::here(Full::Blocks, deadline))?;
        if resource.holds().is_refused() {
            return Err(self.why_refused(resource));
        }
        // A call that was refused and has nothing to do with the resource: the caller can use the resource, and is told then.
        if let (Err(error), Some(own)) = (own, self.own(engine, false)) {
            own.lock(engine, Patience::Until(deadline))?.untold = Some(error);
        }
        Ok(())
    }

    fn stop_holding(&self, engine: &Arc<Engine>) {
        self.stops_holding.store(true, Ordering::SeqCst);
        // In these modes a thread of the engine may be one that is submitting calls, further up its stack.
        let may_be_own = engine_thread::is_here() && (engine.inline.is_some() || engine.simulated.is_some());
        let patience = if may_be_own { Patience::None } else { Patience::Until(Deadline::after(CLOSING)) };
        for slot in self.all_threads() {
            let waits = Waits { patience, full: Full::Exceeds, work: None };
            if let Err(error) = self.submit_calls(engine, &slot, true, waits) {
                log::warn!("a call that was held back was refused, because the engine closes: {error}");
            }
        }
    }

    fn serve_idle(&self, engine: &Arc<Engine>) {
        engine_thread::enter();
        let mut seen = HashMap::new();
        let mut pause = IDLE;
        let mut idle = unpoisoned(self.idle.lock());
        while !idle.closed {
            if !self.watching.load(Ordering::Acquire) {
                seen.clear();
                idle = unpoisoned(self.changed.wait(idle));
                continue;
            }
            idle = unpoisoned(self.changed.wait_timeout(idle, pause)).0;
            if idle.closed {
                break;
            }
            drop(idle);
            self.watching.store(false, Ordering::Release);
            let looked = self.look(engine, &mut seen);
            if looked.left {
                self.watching.store(true, Ordering::Release);
            }
            pause = if looked.lacks_memory { (pause * 2).min(LONGEST_IDLE) } else { IDLE };
            idle = unpoisoned(self.idle.lock());
        }
    }

    fn close(&self) {
        unpoisoned(self.idle.lock()).closed = true;
        self.changed.notify_all();
        self.all_threads().iter().for_each(|slot| slot.notify());
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
