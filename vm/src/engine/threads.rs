//! [`Threads`]: the threads of one engine, and which context runs which stream.
//!
//! * Each stream that the host runs for a device is a strand, which any thread of that device's group may serve. A thread is
//!   started with each new stream, until the group has its number (`VmBuilder::cpu_threads`).
//! * Streams whose device runs commands later share one context and thread per device, which launches; so do barriers.
//! * In simulated mode there are no threads, and each context is stepped.
//!
//! `state` has a lock of its own, which is taken to open streams, to count threads and to end the engine. `runners` is read
//! without a lock.

use std::io;
use std::sync::{Arc, OnceLock};

use streamvm_ep::DeviceId;
use streamvm_instructions::Lane;
use streamvm_stream::{MAX_STREAMS, StreamId, StreamKey, StreamType, Threads as Wanted};

use crate::dispatch::context_handle::ContextHandle;
use crate::dispatch::pool::level_of_priority;
use crate::engine::affinity::pin;
use crate::engine::core::Engine;
use crate::engine::strand_thread::Strands;
use crate::engine::worker_sets::PoolConfigs;
use crate::engine::{completion_thread, context_thread, strand_thread, worker_thread};
use crate::execute::locked_context::LockedContext;
use crate::execute::worker::Worker;
use crate::sync::{Builder, JoinHandle, Mutex, Sender, channel, unpoisoned};

/// The threads of one engine.
pub(crate) struct Threads {
    /// The most threads that serve the strands of one device.
    per_device: usize,
    /// The cores that these threads are pinned to, in turn; empty for none.
    cores: Vec<usize>,
    pub(crate) pools: PoolConfigs,
    /// The context of each ordered stream, by the stream's number.
    runners: Box<[OnceLock<Arc<LockedContext>>]>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    contexts: Vec<Known>,
    strands: Vec<KnownStrands>,
    handles: Vec<JoinHandle<()>>,
    /// The completion thread was started.
    completes: bool,
}

struct Known {
    device: DeviceId,
    stream_type: StreamType,
    wanted: Wanted,
    context: Arc<LockedContext>,
}

/// The strands of one device, and how many threads serve them.
struct KnownStrands {
    device: DeviceId,
    strands: Arc<Strands>,
    threads: usize,
}

impl Threads {
    pub(crate) fn new(per_device: usize, cores: Vec<usize>, pools: PoolConfigs) -> Threads {
        let runners = (0..MAX_STREAMS).map(|_| OnceLock::new()).collect();
        Threads { per_device: per_device.max(1), cores, pools, runners, state: Mutex::default() }
    }

    /// Sets the context that runs an ordered stream.
    pub(crate) fn note_runner(&self, stream: StreamId, context: Arc<LockedContext>) {
        // Cannot fail: each number is given to one stream.
        let _ = self.runners[stream.index()].set(context);
    }

    /// The context that runs an ordered stream.
    pub(crate) fn runner_of(&self, stream: StreamId) -> Option<&Arc<LockedContext>> {
        self.runners.get(stream.index()).and_then(OnceLock::get)
    }

    /// Spawns a thread for each worker of a pool; each thread waits for [`Threads::start_workers`]. If only some can be spawned, the
    /// pool has fewer workers, and a warning is logged. In simulated mode none is spawned.
    ///
    /// # Errors
    /// No thread could be spawned.
    pub(crate) fn spawn_workers(
        &self,
        pool: &str,
        contexts: &[Arc<ContextHandle>],
        cores: &[usize],
        engine: &Arc<Engine>,
    ) -> io::Result<Vec<SpawnedWorker>> {
        let (mut spawned, mut failed) = (Vec::new(), None);
        let mut cores = cores.iter().copied().cycle();
        for (me, context) in contexts.iter().enumerate().filter(|_| engine.simulated.is_none()) {
            match SpawnedWorker::new(me, &context.name, cores.next(), engine) {
                Ok(one) => spawned.push(one),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if spawned.is_empty() => return Err(error),
            Some(error) => log::warn!("{pool} has {} workers: {error}", spawned.len()),
            None => {}
        }
        Ok(spawned)
    }

    /// Hands each worker to the thread that was spawned for it; in simulated mode, to the steps. Does not wait for the threads.
    pub(crate) fn start_workers(
        &self,
        spawned: Vec<SpawnedWorker>,
        workers: impl Iterator<Item = Worker>,
        engine: &Engine,
    ) {
        let mut state = unpoisoned(self.state.lock());
        let mut spawned = spawned.into_iter().peekable();
        for (me, worker) in workers.enumerate() {
            if let Some(simulated) = &engine.simulated {
                engine.contexts.add(worker.context().clone());
                simulated.start_workers(worker);
            } else if let Some(thread) = spawned.next_if(|thread| thread.me == me) {
                // Listed before it starts: the end of the engine wakes the threads that are listed.
                engine.contexts.add(worker.context().clone());
                state.handles.push(thread.start(worker));
            }
            // Else the thread of this worker could not be spawned.
        }
        drop(state);
        engine.backpressure.void_shares();
    }

    /// The context for one more stream of `device`: a strand, or the context that all streams of this kind share.
    ///
    /// # Errors
    /// No thread for it could be spawned, and the device has none.
    pub(crate) fn context(
        &self,
        key: StreamKey,
        wanted: Wanted,
        engine: &Arc<Engine>,
    ) -> io::Result<Arc<LockedContext>> {
        let mut state = unpoisoned(self.state.lock());
        let mut warning = None;
        let context = match (wanted, &engine.simulated) {
            (Wanted::Shared, None) => self.strand(&mut state, key, engine, &mut warning),
            (Wanted::Shared, Some(_)) => self.new_context(&mut state, key.to_string(), engine),
            // `Pool` does not occur: workers have no context here, and inline mode has one context for all streams.
            (Wanted::Own | Wanted::Launching | Wanted::Pool, _) => {
                let mut known = state.contexts.iter();
                let shares = |known: &&Known| {
                    (known.device, known.wanted) == (key.device, wanted)
                        && (wanted != Wanted::Own || known.stream_type == key.stream_type)
                };
                if let Some(known) = known.find(shares) {
                    return Ok(known.context.clone());
                }
                let name = match wanted {
                    Wanted::Own => format!("{}.{}", key.device, key.stream_type),
                    _ => format!("{}.launch", key.device),
                };
                let context = self.new_context(&mut state, name, engine)?;
                let (device, stream_type) = (key.device, key.stream_type);
                state.contexts.push(Known { device, stream_type, wanted, context: context.clone() });
                Ok(context)
            }
        };
        drop(state);
        if let Some(warning) = warning {
            log::warn!("{warning}");
        }
        engine.backpressure.void_shares();
        context
    }

    /// Creates a context and spawns the thread that serves it; in simulated mode the steps serve it.
    fn new_context(&self, state: &mut State, name: String, engine: &Arc<Engine>) -> io::Result<Arc<LockedContext>> {
        let thread = Builder::new().name(name.clone());
        let context = Arc::new(LockedContext::new(name));
        // Before its thread starts: a thread that parks before `Environment::wake_all` finds it would miss the end of the engine.
        engine.contexts.add(context.handle.clone());
        match &engine.simulated {
            Some(simulated) => simulated.add_context(context.clone()),
            None => {
                let (served, of_thread) = (context.clone(), engine.clone());
                match thread.spawn(move || context_thread::serve(served, &of_thread)) {
                    Ok(handle) => state.handles.push(handle),
                    Err(error) => {
                        engine.contexts.remove(&context.handle);
                        return Err(error);
                    }
                }
            }
        }
        Ok(context)
    }

    /// Creates a strand for a stream, and spawns one more thread of its device unless there are enough. If that fails, the threads that the
    /// device has serve the strand, and there is a warning, which the caller logs without the lock: loggers are user code.
    fn strand(
        &self,
        state: &mut State,
        key: StreamKey,
        engine: &Arc<Engine>,
        warning: &mut Option<String>,
    ) -> io::Result<Arc<LockedContext>> {
        let known = state.strands.iter().position(|known| known.device == key.device);
        let of_device = match known {
            Some(index) => &mut state.strands[index],
            None => {
                let strands = Arc::new(Strands::new(self.per_device));
                state.strands.push(KnownStrands { device: key.device, strands, threads: 0 });
                let last = state.strands.len() - 1;
                &mut state.strands[last]
            }
        };
        if of_device.threads < self.per_device {
            match self.spawn_server(of_device, engine) {
                Ok(handle) => {
                    of_device.threads += 1;
                    state.handles.push(handle);
                }
                Err(error) if of_device.threads == 0 => return Err(error),
                Err(error) => *warning = Some(format!("{} has {} threads: {error}", key.device, of_device.threads)),
            }
        }
        let context =
            of_device.strands.add(key.to_string(), level_of_priority(engine.lane_priorities.of(Lane(key.lane))));
        engine.contexts.add(context.handle.clone());
        Ok(context)
    }

    /// Spawns the next thread that serves the strands of a device.
    fn spawn_server(&self, of_device: &KnownStrands, engine: &Arc<Engine>) -> io::Result<JoinHandle<()>> {
        let KnownStrands { device, strands, threads: number } = of_device;
        let (name, core) = (format!("{device}.{number}"), self.cores.iter().copied().cycle().nth(*number));
        let thread = Arc::new(ContextHandle::new(name.clone()));
        // Listed before it starts, as in `new_context`.
        engine.contexts.add(thread.clone());
        let (served, number, me, of_thread) = (strands.clone(), *number, thread.clone(), engine.clone());
        let body = move || {
            pin_to(core, &me.name);
            strand_thread::serve(&served, number, &me, &of_thread);
            // The streams go before the engine, which may end here.
            drop(served);
            drop(of_thread);
        };
        Builder::new().name(name).spawn(body).inspect_err(|_| engine.contexts.remove(&thread))
    }

    /// Starts the completion thread, unless it runs already or the mode has no threads.
    pub(crate) fn complete(&self, engine: &Arc<Engine>) -> io::Result<()> {
        let mut state = unpoisoned(self.state.lock());
        if !state.completes && engine.inline.is_none() && engine.simulated.is_none() {
            let engine = engine.clone();
            let thread = Builder::new().name("streamvm-completion".to_owned());
            state.handles.push(thread.spawn(move || completion_thread::serve(&engine))?);
            state.completes = true;
        }
        Ok(())
    }

    /// Adds the join handle of another thread of the engine.
    pub(crate) fn keep(&self, handle: JoinHandle<()>) {
        unpoisoned(self.state.lock()).handles.push(handle);
    }

    /// How many threads the engine has, the scheduler thread included and the callback thread not.
    pub(crate) fn count(&self) -> usize {
        unpoisoned(self.state.lock()).handles.len()
    }

    pub(crate) fn take_handles(&self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut unpoisoned(self.state.lock()).handles)
    }
}

/// A thread that waits for the worker that it will run. If this is dropped, the thread ends.
pub(crate) struct SpawnedWorker {
    /// The index of its worker in the pool.
    me: usize,
    worker: Sender<Box<Worker>>,
    handle: JoinHandle<()>,
}

impl SpawnedWorker {
    /// Spawns a thread of this name, pinned to `core` if one is given.
    fn new(me: usize, name: &str, core: Option<usize>, engine: &Arc<Engine>) -> io::Result<SpawnedWorker> {
        let (sender, receiver) = channel::<Box<Worker>>();
        let engine = engine.clone();
        let body = move || {
            if let Ok(worker) = receiver.recv() {
                pin_to(core, &worker.context().name);
                worker_thread::serve(*worker, &engine);
            }
        };
        let handle = Builder::new().name(name.to_owned()).spawn(body)?;
        Ok(SpawnedWorker { me, worker: sender, handle })
    }

    /// Hands `worker` to the thread. Returns the handle of the thread.
    fn start(self, worker: Worker) -> JoinHandle<()> {
        // Cannot fail: the thread keeps the receiver until it has received.
        let _ = self.worker.send(Box::new(worker));
        self.handle
    }
}

/// Pins the calling thread, of this name, to `core` if one is given. If that fails, a warning is logged.
fn pin_to(core: Option<usize>, name: &str) {
    if let Some(core) = core
        && let Err(error) = pin(core)
    {
        log::warn!("thread {name} is not pinned to core {core}: {error}");
    }
}
