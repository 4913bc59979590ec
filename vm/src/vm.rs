//! The engine's front: what a program holds.

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use streamvm_ep::cuda::CudaAbsent;
use streamvm_ep::races::Finding;
use streamvm_ep::{DType, DeviceId, DeviceInfo, Element, FnContext, FnError, InlineFn, MemoryKind, Scalar, Shape};
use streamvm_instructions::{
    BuildError, Deadline, Error, Generator, InstructionList, InstructionsBuilder, Issued, Manner, Place, Role, Single,
    SyncCounts, Tensor, Use, Var, current_lane, deadline,
};
use streamvm_stream::{StreamKey, StreamType};

use crate::config::VmBuilder;
use crate::engine_thread;
use crate::failures::Uncollected;
use crate::ladder;
use crate::profile::Profile;
use crate::shared::Shared;
use crate::stall_report::StallReport;
use crate::state::StreamState;
use crate::stats::{PoolStats, Stats};
use crate::submit::Full;
use crate::sync::Ordering;
use crate::ticket::Ticket;

/// An engine: its devices, streams, memory and threads. Any number of them live in one process. `Send + Sync`: several
/// threads may submit at once.
///
/// Dropping it waits for everything submitted, and ends its threads. Tensors that outlive it give
/// [`Error::Shutdown`]. Threads that share one end it by [`Vm::close`].
///
/// Every wait has a limit for who wants one: calls with a `timeout`, and the [`deadline`] guard for all
/// others, eager ones included. In a child of the process that built it, every call that can fail gives
/// [`Error::Forked`], counters are zero, and whatever is dropped is left as it is; nothing blocks.
pub struct Vm {
    pub(crate) shared: Arc<Shared>,
    /// [`Vm::shutdown`] has waited, or given up: a drop waits for nothing.
    shut_down: bool,
}

/// Where tensors of a caller's data live that no device was named for.
const HOST: (Place, MemoryKind) = (Place::Host, MemoryKind::Pageable);

impl Vm {
    pub(crate) fn new(shared: Arc<Shared>) -> Vm {
        Vm { shared, shut_down: false }
    }

    /// Sets an engine up.
    pub fn builder() -> VmBuilder {
        VmBuilder::new()
    }

    /// The devices: CPUs, simulated ones, and CUDA devices, which are looked for now if they have not been; that may
    /// take seconds. A forked child sees those that are known.
    pub fn devices(&self) -> Vec<DeviceInfo> {
        // Why there are none is for who asks.
        let _ = self.find_cuda();
        self.shared.devices.iter().map(|device| device.info()).collect()
    }

    /// Looks for CUDA devices, as [`Vm::devices`] does.
    ///
    /// # Errors
    /// Why there is none; a driver does not survive a fork.
    pub fn find_cuda(&self) -> Result<(), CudaAbsent> {
        self.shared.handle.fork.check().map_err(|_| CudaAbsent::Forked)?;
        self.shared.devices.find_cuda().map_err(CudaAbsent::clone)
    }

    /// A fresh variable: a token for anything outside the engine.
    pub fn var(&self) -> Var {
        Var::new()
    }

    /// A host tensor with a copy of `elements`, in row-major order. Does not wait for any instruction, unless memory is
    /// out.
    ///
    /// # Errors
    /// The shape has another number of elements; out of memory; shut down.
    #[track_caller]
    pub fn tensor<T: Element>(&self, elements: &[T], shape: &[usize]) -> Result<Tensor, Error> {
        self.create(HOST, T::DTYPE, elements.len(), shape, T::as_bytes(elements))
    }

    /// A tensor in pinned host memory of `device`, which copies from it without staging, with a copy of `elements` in
    /// row-major order. Callers' functions reach it as they reach host tensors. Waits as [`Vm::tensor`] does.
    ///
    /// # Errors
    /// Those of [`Vm::tensor`], and no such device.
    #[track_caller]
    pub fn pinned_tensor<T: Element>(
        &self,
        device: DeviceId,
        elements: &[T],
        shape: &[usize],
    ) -> Result<Tensor, Error> {
        self.create((device.into(), MemoryKind::Pinned), T::DTYPE, elements.len(), shape, T::as_bytes(elements))
    }

    /// A host tensor of bools; see [`Vm::tensor`].
    ///
    /// # Errors
    /// As [`Vm::tensor`].
    #[track_caller]
    pub fn tensor_of_bools(&self, elements: &[bool], shape: &[usize]) -> Result<Tensor, Error> {
        let bytes: Vec<u8> = elements.iter().map(|element| u8::from(*element)).collect();
        self.create(HOST, DType::Bool, elements.len(), shape, &bytes)
    }

    #[track_caller]
    fn create(
        &self,
        (place, memory): (Place, MemoryKind),
        dtype: DType,
        elements: usize,
        shape: &[usize],
        bytes: &[u8],
    ) -> Result<Tensor, Error> {
        let shape = Shape::new(shape).map_err(BuildError::from)?;
        if shape.elements() != elements {
            return Err(BuildError::Length { elements, shape }.into());
        }
        let tensor = Tensor::unbound(place, memory, dtype, shape);
        let site = Location::caller();
        self.shared
            .create_from(&tensor, bytes, site)
            .map_err(|error| error.about(None, "a tensor of the caller's data", site))?;
        Ok(tensor)
    }

    /// A tensor on `place` with every element set to `value`, by an instruction on its compute stream.
    ///
    /// # Errors
    /// The shape is impossible, or the value does not fit; the engine refused.
    #[track_caller]
    pub fn fill(
        &self,
        place: impl Into<Place>,
        dtype: DType,
        shape: &[usize],
        value: impl Into<Scalar>,
    ) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::new();
        let tensor = builder.fill(place, dtype, shape, value)?;
        self.submit(builder.finish())?;
        Ok(tensor)
    }

    /// A tensor on `device` of random numbers, evenly from `[0, 1)`; see [`InstructionsBuilder::uniform`].
    ///
    /// # Errors
    /// The shape is impossible, or the dtype is no float; the engine refused.
    #[track_caller]
    pub fn uniform(
        &self,
        generator: &Generator,
        device: DeviceId,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::new();
        let tensor = builder.uniform(generator, device, dtype, shape)?;
        self.submit(builder.finish())?;
        Ok(tensor)
    }

    /// A tensor on `device` of random numbers from the normal distribution of mean 0 and variance 1; see
    /// [`InstructionsBuilder::normal`].
    ///
    /// # Errors
    /// As [`Vm::uniform`].
    #[track_caller]
    pub fn normal(
        &self,
        generator: &Generator,
        device: DeviceId,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::new();
        let tensor = builder.normal(generator, device, dtype, shape)?;
        self.submit(builder.finish())?;
        Ok(tensor)
    }

    /// Submits a list: it is ordered after everything submitted before, by what it reads and writes. All of it is
    /// taken or nothing. Blocks while the queue is full, and on a thread of an engine gives
    /// [`Error::WouldBlock`] past an overdraft of as much again.
    ///
    /// Submitters that are blocked are let in in the order in which they came, and no later submission of another caller's thread is let in before
    /// them. Threads of an engine never block, so they do go ahead; once they have done so by as many instructions as may be pending
    /// ([`VmBuilder::max_instructions`]), the first that is blocked is let in past the bound. A list that finds too little memory leaves its place,
    /// as what it waits for may have to be submitted first. So a function must not wait for what another thread has yet to submit: that may
    /// be blocked behind a list that waits for the function. [`Vm::try_submit`] and [`Vm::submit_timeout`] do not block for ever.
    ///
    /// # Errors
    /// See [`Error`]; nothing of the list runs then.
    pub fn submit(&self, list: InstructionList) -> Result<Ticket<'_>, Error> {
        self.submit_or(list, Full::Blocks)
    }

    fn submit_or(&self, mut list: InstructionList, full: Full) -> Result<Ticket<'_>, Error> {
        let mut ticket = Ticket::new(&self.shared);
        self.shared.submit(&mut list, full, &mut ticket.submitted)?;
        self.shared.failures.log_unseen();
        Ok(ticket)
    }

    /// [`Vm::submit`] of one instruction that borrows what it uses, and is made in a caller that has the ticket.
    #[inline]
    pub(crate) fn submit_one(&self, single: &mut Single<'_>, ticket: &mut Ticket<'_>) -> Result<(), Error> {
        self.shared.submit_one(single, &mut ticket.submitted)?;
        self.shared.failures.log_unseen();
        Ok(())
    }

    /// Runs a caller's function over declared reads and writes, on the compute stream of `device` and the lane of the thread's
    /// [`lane`](crate::lane) guard: [`InstructionsBuilder::call_fn`] and [`Vm::submit`] in one, without a list. It borrows what it uses
    /// for the length of the call. Blocks while the queue is full, as [`Vm::submit`] does. May be called by several threads at once.
    ///
    /// ```
    /// # fn main() -> Result<(), streamvm::Error> {
    /// let vm = streamvm::Vm::builder().build()?;
    /// let x = vm.tensor(&[1.0f32, 2.0], &[2])?;
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
    /// As [`InstructionsBuilder::call_fn`] and [`Vm::submit`]: nothing runs then.
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
        let (role, manner, site) = (Role::Function, Manner::default(), Location::caller());
        let issued = Issued { stream: StreamKey::new(device, StreamType::Compute, current_lane()), role, manner, site };
        let mut ticket = Ticket::new(&self.shared);
        Single::submit_function(issued, name, uses, || InlineFn::new(f), |one| self.submit_one(one, &mut ticket))?;
        Ok(ticket)
    }

    /// [`Vm::submit`] that never blocks on a full queue.
    ///
    /// # Errors
    /// As [`Vm::submit`]; [`Error::WouldBlock`] with the list dropped when the queue is full, or other submitters are blocked.
    pub fn try_submit(&self, list: InstructionList) -> Result<Ticket<'_>, Error> {
        self.submit_or(list, Full::Refuses)
    }

    /// [`Vm::submit`] that waits for at most `timeout` while the queue is full, or memory is.
    ///
    /// # Errors
    /// As [`Vm::submit`]; [`Error::Timeout`] with the list dropped.
    pub fn submit_timeout(&self, list: InstructionList, timeout: Duration) -> Result<Ticket<'_>, Error> {
        let _guard = deadline(timeout);
        self.submit(list)
    }

    /// Blocks until everything submitted so far, by any thread, has passed; meanwhile it does what [`Ticket::wait`] does.
    ///
    /// # Errors
    /// The first root cause that no other wait has returned; the others are logged, and of more than 1,024 those between the first
    /// and the newest were logged before. [`Error::WouldDeadlock`] on a
    /// thread of an engine.
    pub fn wait_all(&self) -> Result<(), Error> {
        self.shared.drain(Deadline::current())?;
        self.report()
    }

    /// [`Vm::wait_all`] for at most `timeout`.
    ///
    /// # Errors
    /// As [`Vm::wait_all`]; [`Error::Timeout`] when it is not over by then.
    pub fn wait_all_timeout(&self, timeout: Duration) -> Result<(), Error> {
        self.shared.drain(Deadline::within(timeout))?;
        self.report()
    }

    fn report(&self) -> Result<(), Error> {
        let mut failures = self.shared.failures.take_uncollected().into_iter();
        let first = failures.next();
        failures.for_each(|other| other.log());
        first.map_or(Ok(()), |first| Err(Error::Failed(first.failure)))
    }

    /// Gives cached memory that nothing pending uses back to the devices. Returns how many bytes that were.
    pub fn empty_cache(&self) -> u64 {
        if self.shared.handle.fork.is_child() {
            return 0;
        }
        self.shared.free_dropped();
        ladder::give_back(&self.shared)
    }

    /// What the race detector found: accesses that nothing orders, use after free, reads of what nobody wrote, each with
    /// both instructions. Empty where it is off ([`VmBuilder::detect_races`]).
    pub fn races(&self) -> Vec<Finding> {
        if self.shared.handle.fork.is_child() {
            return Vec::new();
        }
        self.shared.monitor.as_ref().map_or_else(Vec::new, |monitor| monitor.detector().findings())
    }

    /// What has run, how long it waited and how long it took; `None` unless that was [asked for](VmBuilder::profile). What is
    /// pending is not in it. Never blocks for long, and may be called on any thread, also on one of the engine's.
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
        (self.shared.profiles && !self.shared.handle.fork.is_child()).then(|| self.shared.profile())
    }

    /// What every stream with pending work is at, and what it waits for. Never blocks for long, and may be called on any
    /// thread, also on one of the engine's.
    ///
    /// ```
    /// let vm = streamvm::Vm::builder().build()?;
    /// assert!(vm.stall_report().is_empty());
    /// # Ok::<(), streamvm::Error>(())
    /// ```
    pub fn stall_report(&self) -> StallReport {
        self.shared.stall_report()
    }

    /// Counters since the engine was built.
    pub fn stats(&self) -> Stats {
        if self.shared.handle.fork.is_child() {
            return Stats::default();
        }
        self.shared.free_dropped();
        let (streams, memory) = {
            let state = self.shared.handle.lock();
            let counts = |stream: &StreamState| {
                let instructions = state.sync.last_submitted(stream.entry.id);
                SyncCounts { instructions, ..stream.counts }
            };
            let streams = state.streams.iter().map(counts).collect();
            let pool = |pool: &crate::memory::Pool| PoolStats {
                place: pool.place,
                kind: pool.kind,
                allocator: pool.allocator.stats(),
            };
            (streams, state.pools.iter().map(pool).collect())
        };
        let pending = self.shared.pending();
        Stats {
            streams,
            memory,
            in_flight: pending.instructions,
            in_flight_bytes: pending.bytes,
            blocked_submitters: self.shared.room.blocked(),
            helped: self.shared.threads.helped(),
            live_events: self.shared.live_events(),
            threads: self.shared.threads.count(),
        }
    }

    /// Refuses new work from now on: whatever any thread submits or pushes gives [`Error::Shutdown`], also one that waits for room
    /// just now. What was submitted before goes on, clean-ups and callbacks included, and can be waited for as ever; the threads that
    /// run it end by themselves once all of it has passed. [`Vm::shutdown`] and dropping the engine wait for it all the same.
    ///
    /// Waits for no work, and has no error. May be called by any thread, also by a function of this engine, and again, which does
    /// nothing; in a forked child it does nothing either.
    ///
    /// ```
    /// # fn main() -> Result<(), streamvm::Error> {
    /// let vm = streamvm::Vm::builder().build()?;
    /// let v = vm.var();
    /// vm.push("before", [v.write()], || Ok(()))?;
    /// vm.close();
    /// assert_eq!(vm.push("after", [], || Ok(())).map(drop), Err(streamvm::Error::Shutdown));
    /// vm.wait(&v)
    /// # }
    /// ```
    pub fn close(&self) {
        if !self.is_closed() {
            self.shared.close();
        }
    }

    /// Whether new work is refused: after [`Vm::close`], and in a forked child. A function that goes on for long asks this to learn
    /// that the engine is about to end. Never blocks, and may be called on any thread.
    pub fn is_closed(&self) -> bool {
        self.shared.handle.fork.is_child() || self.shared.closed.load(Ordering::SeqCst)
    }

    /// Refuses new work, waits for what is submitted, and ends the threads.
    ///
    /// # Errors
    /// [`Error::Timeout`] past `deadline`: threads that still run, and the memory that they can touch, are left alone
    /// and go when they are over. Else the first root cause that nobody collected. [`Error::WouldDeadlock`] on a
    /// thread of an engine, which only closes.
    pub fn shutdown(mut self, deadline: Duration) -> Result<(), Error> {
        self.shared.handle.fork.check()?;
        self.shut_down = true;
        self.shared.close();
        let until = Deadline::after(deadline);
        self.shared.drain(until)?;
        if !self.shared.end_threads(until.map(|until| until.at())) {
            return Err(Error::Timeout(deadline));
        }
        self.report()
    }
}

impl Vm {
    /// Drains and ends the threads. After a shutdown there is nothing left to do, or it has given up waiting. On a thread of an
    /// engine nothing is waited for: the threads end by themselves.
    fn end(&self) {
        self.shared.close();
        if self.shut_down || engine_thread::is_here() || self.shared.drain(None).is_err() {
            return self.shared.leave_threads();
        }
        self.shared.end_threads(None);
        self.shared.failures.take_uncollected().iter().for_each(Uncollected::log);
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        // What the engine holds may be in use in a child by threads that are not there, and devices do not survive a fork: there its
        // handle keeps it for ever.
        if !self.shared.handle.fork.is_child() {
            self.end();
            self.shared.handle.close(&self.shared);
        }
    }
}

impl fmt::Debug for Vm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vm").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
