//! Out-of-memory recovery: finds memory for a submission that the allocator cannot serve. Runs without the submission lock.
//!
//! Before this, the submission itself has tried, in this order: free blocks that need no wait, memory that its own list
//! releases, fresh memory while a pool has little to spare ([`grow`]), and free blocks with a wait. The recovery then takes these
//! steps in order. After a step that may have made memory available, the submission starts again; if it still finds none, the recovery
//! goes on with the same step or the next. A step that the driver refuses is followed by the next one in the same call.
//!
//! 1. Ask the driver for more memory.
//! 2. Drain: wait until everything pending has passed. That drops tensors which captures of functions hold, and makes
//!    memory free of waits. Draining ends at the thread's deadline. A thread of the engine skips this step, because it
//!    would wait for itself.
//! 3. Give cached memory of the pools back to the driver, and ask the driver again. Its refusal is the error of the submission.
//! 4. If the submission still finds no memory, because other threads took it, ask the driver again. Its refusal is the error.
//!
//! **What the driver refuses may be in the pool.** Memory that another thread has just got from the driver is not in the pool yet, so a
//! submission does not find it, and the driver refuses it to others. Therefore one thread at a time takes memory for a pool from the driver,
//! and holds the lock `Pool::growing` until the memory is in the pool. A refusal in step 3 or 4 is an error only if the pool has got no
//! region since the last answer of the driver to this recovery; else the submission tries again. That ends, because each repetition needs a
//! region that another thread has added.
//!
//! [`grow`] is not a step of the recovery: if the driver refuses, the submission goes on with a block that needs a wait.
//! Repeating it terminates, because each call either grows the pool or notes that the driver refuses.

use std::cell::RefCell;
use std::sync::Arc;

use streamvm_ep::{self as ep, Site};
use streamvm_instructions::{Deadline, Error};
use streamvm_stream::Point;

use crate::engine::core::Engine;
use crate::sync::{Mutex, engine_thread, unpoisoned};
use crate::tasks::memory::PoolId;

/// The next step of the recovery: `Driver` -> `Drain` -> `GiveBack` -> `Last`; a thread of the engine goes from
/// `Driver` to `GiveBack`.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum Step {
    #[default]
    Driver,
    Drain,
    GiveBack,
    /// The next answer of the driver is final.
    Last,
}

/// The recovery of one submission.
#[derive(Default)]
pub(crate) struct OomRecovery {
    step: Step,
    /// How many regions had been added to the pool when the device last refused, or gave one.
    grown: u64,
}

impl OomRecovery {
    /// Takes the next step to get `bytes` for `pool`. `Ok` means that the submission should try again.
    ///
    /// # Errors
    /// The device's error if it is no lack of memory, or if it comes after cached memory was given back and the pool has not grown;
    /// [`Error::NoMemory`] if the allocator refuses the size or the region; the errors of [`Engine::drain`].
    pub(crate) fn next_step(&mut self, engine: &Arc<Engine>, pool: PoolId, bytes: usize) -> Result<(), Error> {
        match self.step {
            Step::Driver => match self.ask(engine, pool, bytes) {
                Ok(()) => Ok(()),
                Err(Error::Device { error: ep::Error::OutOfMemory { .. }, .. }) => {
                    self.step = if engine_thread::is_here() { Step::GiveBack } else { Step::Drain };
                    self.next_step(engine, pool, bytes)
                }
                Err(error) => Err(error),
            },
            Step::Drain => {
                self.step = Step::GiveBack;
                log::debug!("out of memory: draining {} pending instructions", engine.streams.pending());
                // The submission's own wait for memory is in the trace.
                engine.drain(Deadline::current(), None)
            }
            Step::GiveBack => {
                self.step = Step::Last;
                let given = give_back(engine);
                log::debug!("out of memory: gave {given} cached bytes back");
                self.ask_finally(engine, pool, bytes)
            }
            // The recovery never starts over: a list that needs more memory than exists would repeat it for ever, and each
            // time give back what it took before.
            Step::Last => self.ask_finally(engine, pool, bytes),
        }
    }

    /// Asks the device. A refusal is no error if other threads have added regions to the pool since the last answer: the submission, which
    /// has perhaps not seen these regions, should try again.
    fn ask_finally(&mut self, engine: &Arc<Engine>, pool: PoolId, bytes: usize) -> Result<(), Error> {
        let before = self.grown;
        match self.ask(engine, pool, bytes) {
            Err(Error::Device { error: ep::Error::OutOfMemory { .. }, .. }) if self.grown != before => Ok(()),
            answer => answer,
        }
    }

    /// Asks the device, and notes how often the pool has grown by then.
    fn ask(&mut self, engine: &Arc<Engine>, pool: PoolId, bytes: usize) -> Result<(), Error> {
        let growing = growing(engine, pool);
        let _alone = unpoisoned(growing.lock());
        let answer = ask_driver(engine, pool, bytes);
        self.grown = engine.handle.lock().pools.get(pool).grown;
        answer
    }
}

/// Asks the device for `bytes` of fresh memory, which needs no wait. If the device refuses, the pool notes it and
/// asks no more, and the submission goes on with a block that needs a wait. No error is lost by that: if no block serves
/// either, the recovery asks the device again.
pub(crate) fn grow(engine: &Engine, pool: PoolId, bytes: usize) {
    let growing = growing(engine, pool);
    let alone = unpoisoned(growing.lock());
    let asked = ask_driver(engine, pool, bytes);
    if asked.is_err() {
        engine.handle.lock().pools.get(pool).growth_refused = true;
    }
    drop(alone);
    if let Err(error) = asked {
        log::debug!("no fresh memory: {error}");
    }
}

/// The lock under which a region is taken from the device and added to the pool. The submission lock may be taken under it.
fn growing(engine: &Engine, pool: PoolId) -> Arc<Mutex<()>> {
    engine.handle.lock().pools.get(pool).growing.clone()
}

/// Asks the device for a region that holds `bytes`: of the size that the allocator prefers, or else just large enough. The caller holds
/// the lock [`growing`] of the pool.
fn ask_driver(engine: &Engine, pool: PoolId, bytes: usize) -> Result<(), Error> {
    let (device, kind, place, comfortable, least) = {
        let mut state = engine.handle.lock();
        let pool = state.pools.get(pool);
        let comfortable = pool.allocator.region_request(bytes);
        (pool.device.clone(), pool.kind, pool.place, comfortable, pool.allocator.rounded(bytes))
    };
    let refused = |error: streamvm_stream::allocator::AllocatorError| Error::NoMemory {
        place,
        reason: error.to_string(),
        site: Site::caller(),
    };
    let (comfortable, least) = (comfortable.map_err(refused)?, least.map_err(refused)?);
    let region = match device.allocate(kind, comfortable) {
        Err(ep::Error::OutOfMemory { .. }) if least < comfortable => device.allocate(kind, least)?,
        result => result?,
    };
    if let Some(observer) = &engine.observer {
        let start = region.base().addr();
        observer.mapped(start..start + region.bytes(), place, kind);
    }
    let added = engine.handle.lock().pools.add_region(pool, region, &engine.heap);
    added.map_err(|(error, region)| {
        engine.heap.give_back(&device, region);
        refused(error)
    })
}

/// Gives cached memory of all pools back to the devices: the regions that are wholly free and whose points have passed.
/// Returns the number of bytes.
pub(crate) fn give_back(engine: &Engine) -> u64 {
    let mut regions = Vec::new();
    // The points of unordered streams that were seen to have passed, for the race detector. On an ordered stream one number
    // stands for all below it; on an unordered stream each point counts alone.
    let single = RefCell::new(Vec::new());
    {
        let mut state = engine.handle.lock();
        state.clear_block_cache();
        let passed = |point: Point| {
            let passed = engine.streams.has_passed(point);
            if passed && point.stream.is_unordered() && engine.observer.is_some() {
                single.borrow_mut().push(point);
            }
            passed
        };
        for (id, pool) in state.pools.iter_mut() {
            let given = pool.allocator.shrink(&passed);
            regions.extend(given.into_iter().filter_map(|number| engine.heap.take(id, number)));
        }
        if !regions.is_empty() {
            state.pools.iter_mut().for_each(|(_, pool)| pool.growth_refused = false);
        }
    }
    if let Some(observer) = &engine.observer {
        let single = single.into_inner();
        let ordered = || engine.streams.iter().filter(|stream_state| !stream_state.id.is_unordered());
        let passed = || {
            ordered()
                .map(|stream_state| Point::new(stream_state.id, stream_state.passed()))
                .chain(single.iter().copied())
        };
        regions.iter().for_each(|kept| observer.unmapped(kept.range(), passed()));
    }
    regions.into_iter().map(|kept| engine.heap.free(kept)).sum()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use streamvm_ep::{DType, DeviceId, MemoryKind};
    use streamvm_instructions::Place;

    use super::*;
    use crate::Vm;

    const CPU: DeviceId = DeviceId::cpu(0);
    const REGION: usize = 2 << 20;

    /// Another thread has got the last region from the device, and adds it to the pool a little later. `lag` is long enough for the recovery
    /// to ask the device meanwhile; a shorter one would make the test weaker, not fail.
    fn added_later(engine: &Arc<Engine>, pool: PoolId, before: impl FnOnce()) {
        let lag = Duration::from_millis(100);
        let growing = growing(engine, pool);
        let alone = unpoisoned(growing.lock());
        let device = engine.handle.lock().pools.get(pool).device.clone();
        let region = device.allocate(MemoryKind::Device, REGION).expect("there is one region");
        before();
        std::thread::sleep(lag);
        engine.handle.lock().pools.add_region(pool, region, &engine.heap).expect("an aligned region");
        drop(alone);
    }

    /// An engine with two regions of memory, both taken by one tensor each.
    fn full() -> (Vm, PoolId, [crate::Tensor; 2]) {
        let vm = Vm::builder().cpu_memory_limit(2 * REGION as u64).build().expect("an engine");
        let tensors = [0, 1].map(|_| vm.full(CPU, DType::U8, &[REGION], 1).expect("there is room"));
        vm.wait_all().expect("they pass");
        let pool = vm.engine.handle.lock().pools.find(Place::Device(CPU), MemoryKind::Device).expect("it was used");
        (vm, pool, tensors)
    }

    fn small(vm: &Vm) -> Result<(), Error> {
        vm.full(CPU, DType::U8, &[64], 1)?.wait()
    }

    #[test]
    fn memory_that_another_thread_is_adding_to_the_pool_is_found_at_the_first_step() {
        let (vm, pool, [_held, given]) = full();
        drop(given);
        assert!(vm.empty_cache() >= REGION as u64);
        std::thread::scope(|scope| {
            let mut taker = None;
            added_later(&vm.engine, pool, || taker = Some(scope.spawn(|| small(&vm))));
            assert_eq!(taker.expect("it was started").join().expect("no panic"), Ok(()));
        });
    }

    #[test]
    fn memory_that_another_thread_is_adding_to_the_pool_is_found_at_the_last_steps() {
        let (vm, pool, [held, given]) = full();
        std::thread::scope(|scope| {
            let (open, gate) = mpsc::channel::<()>();
            vm.push("held", [held.read()], move || Ok(gate.recv()?)).expect("a push");
            // It asks the device, which refuses, and drains until the function has passed.
            let taker = scope.spawn(|| small(&vm));
            std::thread::sleep(Duration::from_millis(100));
            drop(given);
            assert!(vm.empty_cache() >= REGION as u64);
            // Drained, it finds no memory, and asks again.
            added_later(&vm.engine, pool, || open.send(()).expect("the function listens"));
            assert_eq!(taker.join().expect("no panic"), Ok(()));
        });
    }

    #[test]
    fn a_list_that_needs_more_than_there_is_is_refused() {
        let (vm, _, _tensors) = full();
        let refused = vm.full(CPU, DType::U8, &[64], 1).map(drop);
        assert!(matches!(refused, Err(Error::OutOfMemory { .. })), "{refused:?}");
    }
}
