//! Opening of streams: the device creates a stream, and a thread context or a pool of workers runs it.
//!
//! A submission that names a stream for the first time releases the submission lock, opens the stream here, and starts again.

use std::io;
use std::sync::Arc;

use streamvm_ep::{Device, StreamUse};
use streamvm_instructions::{Error, SyncCounts};
use streamvm_stream::{Passing, RunBy, StreamClass, StreamId, StreamKey, StreamType, Threads as WantedThreads};

use crate::dispatch::pool::Pool;
use crate::engine::core::Engine;
use crate::engine::worker_sets::WorkerSet;
use crate::execute::locked_context::LockedContext;
use crate::execute::worker::Worker;
use crate::progress::in_flight::InFlight;
use crate::progress::stream_state::{MAX_STREAMS, StreamState};
use crate::progress::unordered::Unordered;
use crate::submit::state::{State, SubmissionStream};

/// The use that a device is told when it creates a stream of this type.
fn use_of(stream_type: StreamType) -> StreamUse {
    match stream_type {
        StreamType::HostToDevice | StreamType::DeviceToHost => StreamUse::Copies,
        StreamType::Compute
        | StreamType::PinnedCompute
        | StreamType::Barrier
        | StreamType::Workers
        | StreamType::Critical
        | StreamType::Collective => StreamUse::Kernels,
    }
}

impl Engine {
    /// Opens a stream: the device creates it, a thread context gets it, and submissions learn its number. Does nothing if another
    /// thread has opened it meanwhile.
    ///
    /// # Errors
    /// [`Error::NoStream`] if a thread cannot be started or the engine has too many streams; the device's error.
    pub(crate) fn open_stream(self: &Arc<Self>, key: StreamKey) -> Result<(), Error> {
        let device = self.devices.get(key.device)?;
        let policy = self.policies.of(key)?;
        if policy.threads() == WantedThreads::Pool && self.inline.is_none() {
            let pool = self.threads.pools.stream_for(key);
            return if pool == key { self.open_workers(key, device) } else { self.share_workers(key, pool) };
        }
        // Before anything is made for the stream, which would stay for the life of the engine.
        if !self.handle.lock().may_open(key)? {
            return Ok(());
        }
        let refused = |reason: String| Error::no_stream(key, reason);
        let later = policy.passing() == Passing::Later;
        let at = self.device_that_runs(key, device);
        let mut stream = at.create_stream_for(use_of(key.stream_type), self.lane_priorities.on_device(key))?;
        let mut actor = None;
        if let Some(observer) = &self.observer
            && !later
        {
            let watched = observer.watch(stream, key);
            (stream, actor) = (watched.0, Some(watched.1));
        }
        let context: Arc<LockedContext> = match &self.inline {
            Some(inline) => inline.context.clone(),
            None => self.threads.context(key, policy.threads(), self).map_err(|error| refused(no_thread(&error)))?,
        };
        if later {
            self.threads.complete(self).map_err(|error| refused(no_thread(&error)))?;
        }
        let in_flight = later.then(|| InFlight::new(device.clone(), self.completion.parker.clone()));
        // Before the lock: a stream that injects faults may run functions of the caller.
        let step_note = stream.step_note();
        if let Some(note) = step_note.as_ref().filter(|_| !later && self.timeline.is_some()) {
            note.time_steps();
        }
        let mut state = self.handle.lock();
        let Some(id) = state.new_stream(key)? else { return Ok(()) };
        let unordered = id.is_unordered().then(|| Unordered::new(self.streams.nodes().clone(), None));
        let stream_state = StreamState::new(id, key, context.handle.clone(), in_flight, unordered);
        let stream_state = Arc::new(stream_state.with_step_note(step_note));
        if let Some(observer) = &self.observer {
            observer.opened(id, key, actor);
        }
        context.add_stream(stream_state.clone(), stream);
        self.threads.note_runner(id, context);
        self.add_stream(&mut state, stream_state);
        Ok(())
    }

    /// The device that creates a stream: `device`, which the stream's key names, or the host if threads of the host run the stream.
    fn device_that_runs<'a>(&'a self, key: StreamKey, device: &'a Arc<dyn Device>) -> &'a Arc<dyn Device> {
        let by_host = StreamClass::of(&key).run_by() == RunBy::Host;
        if by_host && !key.device.kind.is_run_by_host() { &self.host } else { device }
    }

    fn add_stream(&self, state: &mut State, stream_state: Arc<StreamState>) {
        state.sync.add_stream(StreamClass::of(&stream_state.key));
        state.names.intern(stream_state.key);
        self.streams.add(stream_state.clone());
        let (batch, counts) = (state.batches.batch_for(&stream_state.context), SyncCounts::none(stream_state.key));
        state.streams.push(SubmissionStream { stream_state, sent: 0, counts, batch, span: 0 });
    }

    /// Opens an unordered stream: creates a pool of workers, each with a stream of the device that runs it.
    fn open_workers(self: &Arc<Self>, key: StreamKey, device: &Arc<dyn Device>) -> Result<(), Error> {
        let refused = |reason: String| Error::no_stream(key, reason);
        let at = self.device_that_runs(key, device);
        let WorkerSet { workers, name, cores } = self.threads.pools.of(key);
        let (pool, queues) = Pool::new(&name, workers);
        // Before other threads can use the stream, because a pool without workers would never run what they submit.
        let spawned = self
            .threads
            .spawn_workers(&name, &pool.contexts, &cores, self)
            .map_err(|error| refused(no_thread(&error)))?;
        let watched = |stream| match &self.observer {
            Some(observer) => observer.watch(stream, key).0,
            None => stream,
        };
        let streams = queues.iter().map(|_| at.create_stream().map(watched)).collect::<Result<Vec<_>, _>>()?;
        let pool = Arc::new(pool);
        let mut state = self.handle.lock();
        let Some(id) = state.new_stream(key)? else { return Ok(()) };
        let unordered = Unordered::new(self.streams.nodes().clone(), Some(pool.clone()));
        let stream_state = Arc::new(StreamState::new(id, key, pool.injector.clone(), None, Some(unordered)));
        let workers = queues.into_iter().zip(streams).enumerate();
        let workers =
            workers.filter_map(|(me, (queues, stream))| Worker::new(stream_state.clone(), me, queues, stream));
        self.threads.start_workers(spawned, workers, self);
        if let Some(observer) = &self.observer {
            observer.opened(id, key, None);
        }
        self.add_stream(&mut state, stream_state);
        Ok(())
    }

    /// Makes `key` an alias of the unordered stream `pool`, which is opened if it is not yet.
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
}

fn no_thread(error: &io::Error) -> String {
    format!(
        "no thread could be started ({error}); use fewer streams and workers, or raise the limit of threads or memory"
    )
}

impl State {
    /// The number for a stream that is being opened; `None` if another thread has opened it meanwhile.
    fn new_stream(&mut self, key: StreamKey) -> Result<Option<StreamId>, Error> {
        Ok(if self.may_open(key)? { Some(self.names.next(key)) } else { None })
    }

    /// Whether the stream is not open yet.
    ///
    /// # Errors
    /// [`Error::NoStream`] if it is not, and no more streams may be opened.
    fn may_open(&self, key: StreamKey) -> Result<bool, Error> {
        if self.names.find(&key).is_some() {
            return Ok(false);
        }
        if self.streams.len() == MAX_STREAMS {
            let reason = format!("an engine has at most {MAX_STREAMS} streams; use fewer lanes");
            return Err(Error::no_stream(key, reason));
        }
        Ok(true)
    }
}
