//! The engine's threads: which there are, which context runs which stream.
//!
//! The streams of one CPU device share at most as many contexts as there are cores; a stream whose policy wants a
//! context of its own shares one only with its like. Contexts and their threads are made when the first stream needs
//! them.

use std::io;
use std::sync::Arc;

use streamvm_ep::DeviceId;
use streamvm_stream::Threads as Wanted;

use crate::completion;
use crate::context_shared::ContextShared;
use crate::context_thread;
use crate::pool::{self, Worker};
use crate::push::{PoolConfigs, pin};
use crate::shared::Shared;
use crate::sync::{Builder, Condvar, JoinHandle, Mutex, Ordering, unpoisoned};

/// The threads of one engine.
pub(crate) struct Threads {
    /// Contexts that the streams of one device share.
    shared_per_device: usize,
    pub(crate) pools: PoolConfigs,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    contexts: Vec<Known>,
    handles: Vec<JoinHandle<()>>,
    /// The completion's thread was started.
    completes: bool,
}

struct Known {
    device: DeviceId,
    wanted: Wanted,
    streams: usize,
    context: Arc<ContextShared>,
}

impl Threads {
    pub(crate) fn new(shared_per_device: usize, pools: PoolConfigs) -> Threads {
        Threads { shared_per_device: shared_per_device.max(1), pools, state: Mutex::default() }
    }

    /// Starts threads for the workers of a pool, each of which waits for [`Threads::employ`]. One is enough; with fewer than wanted it
    /// goes on. None where one thread steps everything.
    pub(crate) fn hire(
        &self,
        pool: &str,
        contexts: &[Arc<ContextShared>],
        cores: &[usize],
        vm: &Arc<Shared>,
    ) -> io::Result<Vec<Hired>> {
        let (mut hired, mut failed) = (Vec::new(), None);
        let mut cores = cores.iter().copied().cycle();
        for (me, context) in contexts.iter().enumerate().filter(|_| vm.simulated.is_none()) {
            match Hired::new(me, &context.name, cores.next(), vm) {
                Ok(one) => hired.push(one),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if hired.is_empty() => return Err(error),
            Some(error) => log::warn!("{pool} has {} workers: {error}", hired.len()),
            None => {}
        }
        Ok(hired)
    }

    /// Has the threads that were hired be these workers. Waits for nothing.
    pub(crate) fn employ(
        &self,
        device: DeviceId,
        hired: Vec<Hired>,
        workers: impl Iterator<Item = Worker>,
        vm: &Shared,
    ) {
        let mut state = unpoisoned(self.state.lock());
        let mut hired = hired.into_iter().peekable();
        for (me, worker) in workers.enumerate() {
            let context = worker.context().clone();
            match (&vm.simulated, hired.next_if(|thread| thread.me == me)) {
                (Some(simulated), _) => simulated.employ(worker),
                (None, Some(thread)) => state.handles.extend(thread.be(worker)),
                // Its thread could not be started.
                (None, None) => continue,
            }
            state.contexts.push(Known { device, wanted: Wanted::Pool, streams: 1, context });
        }
        drop(state);
        vm.room.void_shares();
    }

    /// The context for one more stream of `device`: a new one while there may be more, else the one with the fewest
    /// streams.
    pub(crate) fn context(&self, device: DeviceId, wanted: Wanted, vm: &Arc<Shared>) -> io::Result<Arc<ContextShared>> {
        let mut state = unpoisoned(self.state.lock());
        let allowed = match wanted {
            Wanted::Shared => self.shared_per_device,
            // Inline alone: one context for all.
            Wanted::Own | Wanted::Launching | Wanted::Pool => 1,
        };
        let alike = |known: &&mut Known| known.device == device && known.wanted == wanted;
        let count = state.contexts.iter_mut().filter(alike).count();
        if count < allowed {
            let name = match wanted {
                Wanted::Shared => format!("{device}.{count}"),
                Wanted::Own => format!("{device}.own"),
                Wanted::Launching => format!("{device}.launch"),
                Wanted::Pool => format!("{device}.workers"),
            };
            let context = Arc::new(ContextShared::new(name));
            match &vm.simulated {
                Some(simulated) => simulated.adopt(context.clone()),
                None => {
                    let (shared, engine) = (context.clone(), vm.clone());
                    let thread = Builder::new().name(context.name.clone());
                    state.handles.push(thread.spawn(move || context_thread::serve(shared, engine))?);
                }
            }
            state.contexts.push(Known { device, wanted, streams: 1, context: context.clone() });
            drop(state);
            vm.room.void_shares();
            return Ok(context);
        }
        match state.contexts.iter_mut().filter(alike).min_by_key(|known| known.streams) {
            Some(known) => {
                known.streams += 1;
                Ok(known.context.clone())
            }
            None => Err(io::Error::other("no thread context is allowed")),
        }
    }

    /// Makes a context known that no thread serves: inline mode.
    pub(crate) fn adopt(&self, device: DeviceId, context: Arc<ContextShared>) {
        let known = Known { device, wanted: Wanted::Shared, streams: 0, context };
        unpoisoned(self.state.lock()).contexts.push(known);
    }

    /// Starts the completion's thread, once.
    pub(crate) fn complete(&self, vm: &Arc<Shared>) -> io::Result<()> {
        let mut state = unpoisoned(self.state.lock());
        if !state.completes && vm.inline.is_none() && vm.simulated.is_none() {
            let engine = vm.clone();
            let thread = Builder::new().name("streamvm-completion".to_owned());
            state.handles.push(thread.spawn(move || completion::serve(engine))?);
            state.completes = true;
        }
        Ok(())
    }

    /// Keeps the handle of another thread of the engine.
    pub(crate) fn keep(&self, handle: JoinHandle<()>) {
        unpoisoned(self.state.lock()).handles.push(handle);
    }

    /// Bytes that the passed instructions of all contexts no longer keep.
    pub(crate) fn retired_bytes(&self) -> u64 {
        let state = unpoisoned(self.state.lock());
        state.contexts.iter().map(|known| known.context.retired_bytes.load(Ordering::Acquire)).sum()
    }

    /// Instructions that callers have run while they waited.
    pub(crate) fn helped(&self) -> u64 {
        let state = unpoisoned(self.state.lock());
        state.contexts.iter().map(|known| known.context.helped.load(Ordering::Relaxed)).sum()
    }

    /// All contexts, workers included.
    pub(crate) fn contexts(&self) -> Vec<Arc<ContextShared>> {
        unpoisoned(self.state.lock()).contexts.iter().map(|known| known.context.clone()).collect()
    }

    /// How many threads pass instructions: contexts, and whoever completes.
    pub(crate) fn passing(&self) -> u64 {
        unpoisoned(self.state.lock()).contexts.len() as u64 + 1
    }

    pub(crate) fn wake_all(&self) {
        let state = unpoisoned(self.state.lock());
        state.contexts.iter().for_each(|known| known.context.sleeper.wake());
    }

    /// How many threads there are, the scheduler's included.
    pub(crate) fn count(&self) -> usize {
        unpoisoned(self.state.lock()).handles.len()
    }

    pub(crate) fn take_handles(&self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut unpoisoned(self.state.lock()).handles)
    }
}

/// A thread that waits for the worker that it is to be. Dropped, it ends.
pub(crate) struct Hired {
    /// The place of its worker among those of the pool.
    me: usize,
    desk: Arc<Desk>,
    handle: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Desk {
    seat: Mutex<Seat>,
    taken: Condvar,
}

#[derive(Default)]
enum Seat {
    #[default]
    Free,
    Taken(Box<Worker>),
    /// Nobody comes any more.
    Gone,
}

impl Hired {
    /// A thread of this name, on a core of its own if there is one for it.
    fn new(me: usize, name: &str, core: Option<usize>, vm: &Arc<Shared>) -> io::Result<Hired> {
        let desk = Arc::new(Desk::default());
        let (of_thread, vm) = (desk.clone(), vm.clone());
        let body = move || {
            if let Some(worker) = of_thread.wait() {
                serve_on(core, worker, vm);
            }
        };
        let handle = Builder::new().name(name.to_owned()).spawn(body)?;
        Ok(Hired { me, desk, handle: Some(handle) })
    }

    /// Has it be `worker`.
    fn be(mut self, worker: Worker) -> Option<JoinHandle<()>> {
        self.desk.put(Seat::Taken(Box::new(worker)));
        self.handle.take()
    }
}

impl Drop for Hired {
    fn drop(&mut self) {
        if self.handle.is_some() {
            self.desk.put(Seat::Gone);
        }
    }
}

impl Desk {
    fn put(&self, seat: Seat) {
        *unpoisoned(self.seat.lock()) = seat;
        self.taken.notify_one();
    }

    fn wait(&self) -> Option<Worker> {
        let mut seat = unpoisoned(self.seat.lock());
        loop {
            match std::mem::replace(&mut *seat, Seat::Gone) {
                Seat::Taken(worker) => return Some(*worker),
                Seat::Gone => return None,
                Seat::Free => {
                    *seat = Seat::Free;
                    seat = unpoisoned(self.taken.wait(seat));
                }
            }
        }
    }
}

/// Is a worker, on this core if one is named.
fn serve_on(core: Option<usize>, worker: Worker, vm: Arc<Shared>) {
    if let Some(core) = core
        && let Err(error) = pin(core)
    {
        log::warn!("worker {} is not pinned to core {core}: {error}", worker.context().name);
    }
    pool::serve(worker, vm);
}
