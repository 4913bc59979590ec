//! [`Vm`]: the engine as a program holds it. It forwards to `Engine`, which owns all state.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use streamvm_ep::CudaAbsent;
use streamvm_ep::{DeviceId, DeviceInfo, FnContext, FnError, InlineFn, Site, SiteScope};
use streamvm_instructions::{
    Deadline, Error, InstructionList, Issued, Lane, LaunchOptions, Place, Role, Single, SyncCounts, Use, Var,
};
use streamvm_stream::{StreamKey, StreamType};

use crate::builder::VmBuilder;
use crate::engine::core::Engine;
use crate::engine::oom_recovery;
use crate::engine::profile::Profile;
use crate::engine::submission::Full;
use crate::engine::worker_sets::Pool;
use crate::observe::stall_report::StallReport;
use crate::progress::failures::log_all;
use crate::stats::{PoolStats, Stats};
use crate::submit::state::SubmissionStream;
use crate::sync::fork::refuse_in_child;
use crate::sync::{AtomicBool, Ordering, engine_thread};
use crate::ticket::Ticket;

/// An engine: its devices, streams, memory and threads. A process may have any number of them. `Send + Sync`: several threads may
/// submit at once.
///
/// * Dropping its last clone waits for everything submitted, and ends its threads. Calls on a tensor that outlives it give
///   [`Error::Shutdown`], except waits, which give the outcome of its last write. Threads that share an engine end it by
///   [`Vm::close`].
/// * A [`TimeLimit`](crate::TimeLimit) limits every wait of a thread, those of eager calls included.
/// * In a forked child of the process that built it, every call that can fail gives [`Error::Forked`], counters are zero, nothing
///   blocks, and dropping an object of the engine leaks it.
/// * `Clone` is cheap: clones are the same engine, and the last one that is dropped ends it. On a thread of an engine, as where a function keeps a
///   clone, that drop does not wait: call [`Vm::wait_all`] before the program ends.
#[derive(Clone)]
pub struct Vm {
    pub(crate) engine: Arc<Engine>,
    owner: Arc<Owner>,
}

/// Ends the engine when it is dropped. All clones of a [`Vm`] share one.
struct Owner {
    engine: Arc<Engine>,
    /// [`Vm::shutdown`] has waited, or given up, so dropping this does not wait.
    shut_down: AtomicBool,
}

impl Vm {
    pub(crate) fn of(engine: Arc<Engine>) -> Vm {
        let owner = Owner { engine: engine.clone(), shut_down: AtomicBool::new(false) };
        Vm { engine, owner: Arc::new(owner) }
    }

    /// A builder, which configures and builds an engine.
    pub fn builder() -> VmBuilder {
        VmBuilder::new()
    }

    /// The devices: CPUs, simulated ones, and CUDA devices. The first call searches for CUDA devices, which may block for seconds. A
    /// forked child does not search; it gets the devices that are known.
    pub fn devices(&self) -> Vec<DeviceInfo> {
        // `Vm::cuda_absence` tells a caller why there are no CUDA devices.
        let _ = self.cuda_absence();
        self.engine.devices.iter().map(|device| device.info()).collect()
    }

    /// Whether there are CUDA devices. The first call searches for them, which may block for seconds.
    pub fn cuda_available(&self) -> bool {
        self.cuda_absence().is_none()
    }

    /// Why there are no CUDA devices; `None` if there are some. The first call searches for them, which may block for seconds.
    /// [`CudaAbsent::Forked`] in a forked child, because a driver does not survive a fork.
    pub fn cuda_absence(&self) -> Option<CudaAbsent> {
        if self.engine.handle.fork.is_child() {
            return Some(CudaAbsent::Forked);
        }
        self.engine.devices.find_cuda().err().cloned()
    }

    /// Names what this thread does until the result is dropped, such as a layer of a model: see [`scope`](crate::scope), which this calls.
    ///
    /// ```
    /// # fn main() -> Result<(), streamvm::Error> {
    /// use streamvm::{DeviceId, Vm};
    /// let vm = Vm::builder().build()?;
    /// let x = vm.from_slice(&[1.0f32; 10], &[2, 5])?.to(DeviceId::cpu(0))?;
    /// let _layer = vm.scope("layer 3");
    /// let error = x.matmul(&x).expect_err("the inner sizes differ").to_string();
    /// assert!(error.ends_with(" in layer 3)"), "{error}"); // after the line of the call
    /// # Ok(())
    /// # }
    /// ```
    pub fn scope(&self, name: &str) -> SiteScope {
        streamvm_ep::scope(name)
    }

    /// A new variable, which stands for any state outside the engine and orders the functions that use it.
    pub fn var(&self) -> Var {
        Var::new()
    }

    /// Submits a list. Its instructions are ordered after everything submitted before, by what they read and write. The engine takes
    /// the whole list or nothing. May be called by several threads at once.
    ///
    /// **Backpressure.** While the bounds on pending work are reached ([`VmBuilder::max_instructions`], [`VmBuilder::max_bytes`]), this
    /// call blocks. A thread of an engine (in a function or callback) never blocks: it may exceed the bounds by as much again, and
    /// past that gets [`Error::WouldBlock`].
    ///
    /// * Blocked submitters are admitted in the order in which they came. No later submission of another caller's thread is
    ///   admitted before them. Those that are admitted at the same time, because they fit together, may submit in any order.
    /// * Threads of an engine do go ahead of them. Once these have gone ahead with as many instructions as may be pending, the first
    ///   blocked submitter is admitted past the bound.
    /// * A list that finds too little memory loses its place in the queue, because the instructions that it then waits for may have
    ///   to be submitted first.
    ///
    /// A function must therefore not wait for instructions that another thread has yet to submit: that submission may be blocked
    /// after a list that waits for the function. [`Vm::try_submit`], and a submission under a
    /// [`TimeLimit`](crate::TimeLimit), do not wait for that list for ever.
    ///
    /// # Errors
    /// See [`Error`]; no instruction of the list runs then.
    #[track_caller]
    pub fn submit(&self, list: InstructionList) -> Result<Ticket<'_>, Error> {
        self.submit_or(list, Full::Blocks)
    }

    #[track_caller]
    fn submit_or(&self, mut list: InstructionList, full: Full) -> Result<Ticket<'_>, Error> {
        let mut ticket = Ticket::new(&self.engine);
        if let Err(error) = self.engine.submit(&mut list, full, &mut ticket.submitted) {
            return Err(if error.is_of_engine() { error.called_from(Site::caller()) } else { error });
        }
        self.engine.failures.log_unseen();
        Ok(ticket)
    }

    /// [`Vm::submit`] of one instruction, which borrows what it uses. Fills in `ticket`, which the public call returns.
    #[inline]
    pub(crate) fn submit_one(&self, single: &mut Single<'_>, ticket: &mut Ticket<'_>) -> Result<(), Error> {
        self.engine.submit_one(single, &mut ticket.submitted)?;
        self.engine.failures.log_unseen();
        Ok(())
    }

    /// Submits a caller's function with declared reads and writes, on the compute stream of `device` and the lane of the thread's
    /// current [`Lane`](crate::Lane). It is [`InstructionsBuilder::call_fn`](crate::InstructionsBuilder::call_fn) and [`Vm::submit`] in one, without the cost of a list.
    /// `uses` are borrowed for the length of the call only. Blocks while the queue is full, as [`Vm::submit`] does. May be called by
    /// several threads at once.
    ///
    /// ```
    /// # fn main() -> Result<(), streamvm::Error> {
    /// let vm = streamvm::Vm::builder().build()?;
    /// let x = vm.from_slice(&[1.0f32, 2.0], &[2])?;
    /// vm.call_fn("twice", streamvm::DeviceId::cpu(0), [x.update()], |context| {
    ///     context.writes.take::<f32>(0)?.iter_mut().for_each(|x| *x *= 2.0);
    ///     Ok(())
    /// })?;
    /// assert_eq!(x.to_vec::<f32>()?, [2.0, 4.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`InstructionsBuilder::call_fn`](crate::InstructionsBuilder::call_fn) and [`Vm::submit`]; the function does not run then.
    #[track_caller]
    pub fn call_fn<'u, F>(
        &self,
        name: impl Into<Cow<'static, str>>,
        device: DeviceId,
        uses: impl IntoIterator<Item = Use<'u>>,
        f: F,
    ) -> Result<Ticket<'_>, Error>
    where
        F: for<'a, 'b> FnOnce(&'a mut FnContext<'b>) -> Result<(), FnError> + Send + 'static,
    {
        self.call_fn_on(StreamKey::new(device, StreamType::Compute, Lane::current().0), name, uses, f)
    }

    /// [`Vm::call_fn`] on the workers of `device`: a worker calls `f` as soon as what it uses is ready, whatever else was submitted before it. For
    /// functions that block, such as loading a file into a tensor: on a stream of a CPU they would hold one of the threads that run its kernels.
    ///
    /// ```
    /// # fn main() -> Result<(), streamvm::Error> {
    /// use streamvm::{DType, DeviceId, Vm};
    /// let (vm, cpu) = (Vm::builder().build()?, DeviceId::cpu(0));
    /// let batches: Vec<_> = (0..3).map(|_| vm.zeros(cpu, DType::F32, &[4])).collect::<Result<_, _>>()?;
    /// for (number, batch) in batches.iter().enumerate() {
    ///     vm.call_fn_on_workers("load", cpu, [batch.write()], move |context| {
    ///         std::thread::sleep(std::time::Duration::from_millis(5)); // blocks, as reading a file does
    ///         context.writes.take::<f32>(0)?.fill(number as f32);
    ///         Ok(())
    ///     })?;
    /// }
    /// assert_eq!(batches[2].to_vec::<f32>()?, [2.0; 4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Vm::call_fn`]; a use lives where threads of the host cannot reach it.
    #[track_caller]
    pub fn call_fn_on_workers<'u, F>(
        &self,
        name: impl Into<Cow<'static, str>>,
        device: DeviceId,
        uses: impl IntoIterator<Item = Use<'u>>,
        f: F,
    ) -> Result<Ticket<'_>, Error>
    where
        F: for<'a, 'b> FnOnce(&'a mut FnContext<'b>) -> Result<(), FnError> + Send + 'static,
    {
        self.call_fn_on(Pool::Normal.stream(device), name, uses, f)
    }

    #[track_caller]
    fn call_fn_on<'u, F>(
        &self,
        stream: StreamKey,
        name: impl Into<Cow<'static, str>>,
        uses: impl IntoIterator<Item = Use<'u>>,
        f: F,
    ) -> Result<Ticket<'_>, Error>
    where
        F: for<'a, 'b> FnOnce(&'a mut FnContext<'b>) -> Result<(), FnError> + Send + 'static,
    {
        let issued = Issued { stream, role: Role::Function, launch: LaunchOptions::default(), site: Site::caller() };
        let mut ticket = Ticket::new(&self.engine);
        Single::submit_function(issued, name, uses, || InlineFn::new(f), |one| self.submit_one(one, &mut ticket))?;
        Ok(ticket)
    }

    /// [`Vm::submit`] that does not block on a full queue. It may still wait for memory.
    ///
    /// # Errors
    /// As [`Vm::submit`]; [`Error::WouldBlock`] if the queue is full or other submitters are blocked. The list is then dropped.
    #[track_caller]
    pub fn try_submit(&self, list: InstructionList) -> Result<Ticket<'_>, Error> {
        self.submit_or(list, Full::Refuses)
    }

    /// Blocks until everything submitted so far, by any thread, has passed. Meanwhile the calling thread may run kernels, as in
    /// [`Ticket::wait`].
    ///
    /// # Errors
    /// * The first root cause that no other wait has returned; the others are logged, those that follow one another with one name and cause as one line. The engine keeps at most 1,024 of them: of
    ///   more it keeps the first and the newest, and has logged those between.
    /// * [`Error::WouldDeadlock`] on a thread of an engine.
    #[track_caller]
    pub fn wait_all(&self) -> Result<(), Error> {
        self.engine.drain(Deadline::current(), Some(Site::caller()))?;
        self.report()
    }

    fn report(&self) -> Result<(), Error> {
        let mut failures = self.engine.failures.take_uncollected();
        let first = failures.pop_front();
        log_all(&failures);
        first.map_or(Ok(()), |first| Err(Error::Failed(first.failure)))
    }

    /// Gives cached memory that no pending instruction uses back to the devices. Returns the number of bytes; 0 in a forked child.
    /// Does not wait for instructions.
    pub fn empty_cache(&self) -> u64 {
        if self.engine.handle.fork.is_child() {
            return 0;
        }
        self.engine.free_dropped();
        oom_recovery::give_back(&self.engine)
    }

    /// The findings of the race detector: accesses without an order between them, use after free, and reads of memory that was never
    /// written, each with both instructions. Empty if the detector is off ([`VmBuilder::detect_races`]) and in a forked child.
    #[cfg(feature = "sim")]
    pub fn races(&self) -> Vec<streamvm_sim::races::Finding> {
        if self.engine.handle.fork.is_child() {
            return Vec::new();
        }
        self.engine.observer.as_ref().map_or_else(Vec::new, |observer| observer.detector().findings())
    }

    /// How often each op and function has run, how long it was queued and how long it ran. Pending instructions are not counted.
    /// `None` unless [`VmBuilder::profile`] turned profiles on, and in a forked child. Blocks for short locks only; may be called on
    /// any thread, including those of the engine.
    ///
    /// ```
    /// let vm = streamvm::Vm::builder().profile(true).build()?;
    /// vm.push("step", [], || Ok(()))?;
    /// vm.wait_all()?;
    /// let profile = vm.profile().expect("it was asked for");
    /// assert_eq!((profile.ops[0].name.as_str(), profile.ops[0].count), ("step", 1));
    /// # Ok::<(), streamvm::Error>(())
    /// ```
    pub fn profile(&self) -> Option<Profile> {
        (self.engine.profiles && !self.engine.handle.fork.is_child()).then(|| self.engine.profile())
    }

    /// What every stream with pending work is running, and what it waits for. Blocks for short locks only; may be called on any
    /// thread, including those of the engine.
    ///
    /// ```
    /// let vm = streamvm::Vm::builder().build()?;
    /// assert!(vm.stall_report().is_empty());
    /// # Ok::<(), streamvm::Error>(())
    /// ```
    pub fn stall_report(&self) -> StallReport {
        self.engine.stall_report()
    }

    /// A snapshot of the engine's counters; all zero in a forked child. Frees the memory of dropped tensors first, so that the
    /// counters do not include it. Blocks for short locks only; may be called on any thread, including those of the engine.
    pub fn stats(&self) -> Stats {
        if self.engine.handle.fork.is_child() {
            return Stats::default();
        }
        self.engine.free_dropped();
        let (streams, memory) = {
            let state = self.engine.handle.lock();
            let counts = |stream: &SubmissionStream| {
                let instructions = state.sync.last_submitted(stream.stream_state.id);
                SyncCounts { instructions, ..stream.counts }
            };
            let streams = state.streams.iter().map(counts).collect();
            let pool = |pool: &crate::tasks::memory::Pool| PoolStats {
                place: pool.place,
                kind: pool.kind,
                allocator: pool.allocator.stats(),
            };
            (streams, state.pools.iter().map(pool).collect())
        };
        let pending = self.engine.pending();
        Stats {
            streams,
            memory,
            in_flight: pending.instructions,
            in_flight_bytes: pending.bytes,
            blocked_submitters: self.engine.backpressure.blocked(),
            helped: self.engine.contexts.helped(),
            live_events: self.engine.live_events(),
            threads: self.engine.threads.count(),
            programs: self.engine.programs.stats(),
        }
    }

    /// Closes the engine: from now on every submission but reads of results gives [`Error::Shutdown`], including those that are blocked on a full queue.
    ///
    /// Everything submitted before still runs, clean-ups and callbacks included. Callers can wait for it, and read its results (`to_vec`, `to_scalar`,
    /// printing), as before. [`Vm::shutdown`] and dropping the engine still wait for it, and end the threads.
    ///
    /// Does not wait for work, and cannot fail. May be called on any thread, also by a function of this engine, and repeatedly. In
    /// a forked child it does nothing.
    ///
    /// ```
    /// # fn main() -> Result<(), streamvm::Error> {
    /// let vm = streamvm::Vm::builder().build()?;
    /// let x = vm.ones(streamvm::DeviceId::cpu(0), streamvm::DType::F32, &[2])?;
    /// let y = x.neg()?;
    /// vm.close();
    /// assert!(matches!(x.exp(), Err(streamvm::Error::Shutdown { .. })));
    /// assert_eq!(y.to_vec::<f32>()?, [-1.0; 2]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn close(&self) {
        if !self.is_closed() {
            self.engine.close();
        }
    }

    /// Whether the engine refuses new work: after [`Vm::close`], and in a forked child. A function that runs for long can poll this
    /// to learn that the engine is about to end. Never blocks; may be called on any thread.
    pub fn is_closed(&self) -> bool {
        self.engine.handle.fork.is_child() || self.engine.closed.load(Ordering::SeqCst)
    }

    /// Closes the engine, also for its other clones, waits for at most `limit` until everything submitted has passed, and ends the threads.
    ///
    /// # Errors
    /// * [`Error::Timeout`] if work or callbacks still run after `limit`. Threads that still run end by themselves, and the
    ///   memory that they can access is freed after that. Runs of programs that are in a loop fail at its next round. The call may
    ///   return later than `limit`: where this thread submits commands itself, as under [`Mode::Inline`](crate::Mode::Inline), the
    ///   driver of a device may wait for the device. If the device runs a loop alone then, the driver waits for the end of the loop,
    ///   and loops are stopped only after that. [`most_rounds`](crate::program::CompileOptions::most_rounds) bounds that wait.
    /// * Otherwise, the first root cause that no wait has returned; the others are logged.
    /// * [`Error::WouldDeadlock`] on a thread of an engine; the engine is closed then. [`Error::Forked`] in a forked child.
    #[track_caller]
    pub fn shutdown(self, limit: Duration) -> Result<(), Error> {
        refuse_in_child(self.engine.handle.fork)?;
        let until = Deadline::after(limit);
        self.engine.end();
        // A thread of an engine cannot wait; the last clone that is dropped elsewhere does.
        self.engine.may_wait()?;
        self.owner.shut_down.store(true, Ordering::Relaxed);
        let pending = "the engine is closed; what is pending goes on, but for loops, which end at their next round";
        if let Err(mut error) = self.engine.drain(until, Some(Site::caller())) {
            if let Error::Timeout { advice, .. } = &mut error {
                *advice = pending;
                self.engine.stops_loops.store(true, Ordering::Relaxed);
                self.engine.devices.iter().for_each(|device| device.stop_loops());
            }
            return Err(error);
        }
        if !self.engine.end_threads(until.map(|until| until.at())) {
            let waited_for = "all instructions have passed, and a thread of the engine still runs".to_owned();
            return Err(Error::Timeout { after: limit, waited_for, advice: "it ends by itself", site: Site::caller() });
        }
        self.report()
    }

    /// Writes the [trace](crate::VmBuilder::trace) of the engine now: of a flight recorder ([`TraceConfig::last`](crate::TraceConfig::last)) what it has kept and what is pending; else what
    /// has happened until this call and is not written yet. Blocks until it is written, which takes up to half a second, or as long as the output does, and does not wait for instructions.
    ///
    /// # Errors
    /// [`Error::NoTrace`] if the engine is not traced, or writing fails. [`Error::WouldDeadlock`] on a thread of an engine, [`Error::Forked`] in a forked child.
    #[track_caller]
    pub fn write_trace(&self) -> Result<(), Error> {
        self.engine.may_wait()?;
        let failed = |file: &str, reason: String| Error::NoTrace { file: file.to_owned(), reason };
        let Some(timeline) = &self.engine.timeline else {
            let reason = "the engine is not traced; `VmBuilder::trace` or the variable STREAMVM_TRACE says where to";
            return Err(failed("a file", reason.to_owned()));
        };
        match timeline.asks.ask_and_wait().recv() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(failed(&timeline.name, error)),
            Err(_) => Err(failed(&timeline.name, "the engine has ended, and with it its trace".to_owned())),
        }
    }

    /// The most bytes that there may be in a place: its memory limit, or else what a CUDA device has, which is opened to find that out. `None` if only the
    /// machine limits it.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child.
    #[track_caller]
    pub fn memory_limit(&self, place: Place) -> Result<Option<u64>, Error> {
        refuse_in_child(self.engine.handle.fork)?;
        Ok(self.engine.memory_limit(place))
    }
}

impl Owner {
    /// Drains the engine and ends its threads. Waits for nothing after [`Vm::shutdown`], which has done all this or given up, and
    /// on a thread of an engine: then the threads end by themselves.
    fn end(&self) {
        if std::thread::panicking()
            && let Some(timeline) = &self.engine.timeline
        {
            timeline.asks.ask(crate::tasks::timeline::Cause::Panic);
        }
        self.engine.end();
        if self.shut_down.load(Ordering::Relaxed) || engine_thread::is_here() || self.engine.drain(None, None).is_err()
        {
            return self.engine.leave_threads();
        }
        self.engine.end_threads(None);
        log_all(&self.engine.failures.take_uncollected());
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // In a forked child the engine is leaked, as its handle keeps a reference: state that threads of the parent were using may
        // be inconsistent there, and devices do not survive a fork.
        if !self.engine.handle.fork.is_child() {
            self.end();
            self.engine.handle.close(&self.engine);
        }
    }
}

impl fmt::Debug for Vm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vm").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
