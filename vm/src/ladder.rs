//! The out-of-memory ladder, outside of the submission lock.
//!
//! A submission has tried free blocks that need no wait, what its own list releases, fresh memory while a pool has little
//! to spare ([`grow`]), and blocks with a wait. Then, one rung a time, each followed by another try: ask the driver; drain
//! what is pending, which lets handles inside captures go and memory pass; give cached memory of the device back to the
//! driver and ask again; fail, with a typed error. A thread of the engine does not drain: it would wait for itself.
//! Draining ends at the thread's deadline.
//!
//! Fresh memory in place of a wait is no rung: refused, it fails nothing, and the ladder stands where it stood. It ends,
//! as each time the pool has grown or asks no more.

use std::cell::RefCell;
use std::sync::Arc;

use streamvm_ep as ep;
use streamvm_instructions::{Deadline, Error};
use streamvm_stream::Point;

use crate::engine_thread;
use crate::memory::PoolId;
use crate::shared::Shared;

/// The next rung.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum Rung {
    #[default]
    Driver,
    Drain,
    GiveBack,
    /// What the driver says now is the answer.
    Last,
}

/// Where one submission stands.
#[derive(Default)]
pub(crate) struct Ladder {
    rung: Rung,
}

impl Ladder {
    /// Does the next thing that may get `bytes` for `pool`.
    pub(crate) fn climb(&mut self, vm: &Arc<Shared>, pool: PoolId, bytes: usize) -> Result<(), Error> {
        match self.rung {
            Rung::Driver => match ask_driver(vm, pool, bytes) {
                Ok(()) => Ok(()),
                Err(Error::Device(ep::Error::OutOfMemory { .. })) => {
                    self.rung = if engine_thread::is_here() { Rung::GiveBack } else { Rung::Drain };
                    self.climb(vm, pool, bytes)
                }
                Err(error) => Err(error),
            },
            Rung::Drain => {
                self.rung = Rung::GiveBack;
                log::debug!("out of memory: draining {} pending instructions", vm.streams.pending());
                vm.drain(Deadline::current())
            }
            Rung::GiveBack => {
                self.rung = Rung::Last;
                let given = give_back(vm);
                log::debug!("out of memory: gave {given} cached bytes back");
                ask_driver(vm, pool, bytes)
            }
            // Not from the first rung again: a list that needs more than there is would climb for ever, each time
            // giving back what it took the time before.
            Rung::Last => ask_driver(vm, pool, bytes),
        }
    }
}

/// Asks the device for `bytes` that need no wait. Without them the submission goes on with what needs one, and the pool asks no
/// more: what is really in the way is met again.
pub(crate) fn grow(vm: &Shared, pool: PoolId, bytes: usize) {
    if let Err(error) = ask_driver(vm, pool, bytes) {
        log::debug!("no fresh memory: {error}");
        vm.handle.lock().pools.get(pool).full = true;
    }
}

/// Asks the device for a region that holds `bytes`: a comfortable one, or else just enough.
fn ask_driver(vm: &Shared, pool: PoolId, bytes: usize) -> Result<(), Error> {
    let (device, kind, place, comfortable, least) = {
        let mut state = vm.handle.lock();
        let pool = state.pools.get(pool);
        let comfortable = pool.allocator.region_request(bytes);
        (pool.device.clone(), pool.kind, pool.place, comfortable, pool.allocator.rounded(bytes))
    };
    let refused =
        |error: streamvm_stream::allocator::AllocatorError| Error::NoMemory { place, reason: error.to_string() };
    let (comfortable, least) = (comfortable.map_err(refused)?, least.map_err(refused)?);
    let region = match device.allocate(kind, comfortable) {
        Err(ep::Error::OutOfMemory { .. }) if least < comfortable => device.allocate(kind, least)?,
        result => result?,
    };
    if let Some(monitor) = &vm.monitor {
        let start = region.base().addr();
        monitor.mapped(start..start + region.bytes(), place, kind);
    }
    let mut state = vm.handle.lock();
    state.pools.add_region(pool, region, &vm.heap).map_err(refused)
}

/// Gives the cached memory of all pools back to the devices: regions that are free and whose points have passed.
/// Returns how many bytes that were.
pub(crate) fn give_back(vm: &Shared) -> u64 {
    let mut regions = Vec::new();
    // Of unordered streams, where no number stands for others.
    let single = RefCell::new(Vec::new());
    {
        let mut state = vm.handle.lock();
        state.end_kept();
        let passed = |point: Point| {
            let passed = vm.streams.has_passed(point);
            if passed && point.stream.is_unordered() && vm.monitor.is_some() {
                single.borrow_mut().push(point);
            }
            passed
        };
        for (id, pool) in state.pools.iter_mut() {
            let given = pool.allocator.shrink(&passed);
            regions.extend(given.into_iter().filter_map(|number| vm.heap.take(id, number)));
        }
        if !regions.is_empty() {
            state.pools.iter_mut().for_each(|(_, pool)| pool.full = false);
        }
    }
    if let Some(monitor) = &vm.monitor {
        let single = single.into_inner();
        let ordered = || vm.streams.iter().filter(|entry| !entry.id.is_unordered());
        let passed = || ordered().map(|entry| Point::new(entry.id, entry.passed())).chain(single.iter().copied());
        regions.iter().for_each(|kept| monitor.unmapped(kept.range(), passed()));
    }
    regions.into_iter().map(|kept| vm.heap.free(kept)).sum()
}
