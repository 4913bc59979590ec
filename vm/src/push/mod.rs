//! Functions over anything, on pools of workers: MXNet's engine model.
//!
//! A function declares what it reads and writes, by variables that stand for anything, or by tensors. It runs as soon as all
//! before it that wrote what it uses, and all that read what it writes, has passed: `docs/adr/0024` says how.

mod affinity;
mod answer;
mod bulk;
mod on_complete;
mod operator;
mod pools;

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::time::Duration;

use streamvm_ep::{DeviceId, FnContext, FnError, InlineFn, Priority};
use streamvm_instructions::{
    self as instructions, Ahead, Deadline, Engine, Error, InstructionsBuilder, Issued, Passed, ResourceId, Role,
    Single, Use, Var,
};
use streamvm_stream::StreamKey;

use crate::state::Contents;
use crate::ticket::Ticket;
use crate::vm::Vm;
pub(crate) use affinity::pin;
pub(crate) use answer::Answer;
pub use bulk::Bulk;
pub(crate) use on_complete::Later;
pub use on_complete::OnComplete;
pub use operator::Operator;
pub(crate) use pools::{Crew, PoolConfigs};
pub use pools::{Pool, PoolConfig};

/// Pushes functions in a manner of one's choice; made by [`Vm::pusher`]. `Copy`: keep one for each manner.
#[derive(Copy, Clone)]
pub struct Pusher<'vm> {
    vm: &'vm Vm,
    manner: Manner,
}

/// What a [`Pusher`] was told.
#[derive(Copy, Clone, Debug)]
struct Manner {
    device: DeviceId,
    pool: Pool,
    priority: Priority,
    clean_up: bool,
    /// It goes before all priorities: the end of a variable.
    first: bool,
    /// There are no workers of the urgent pool's own.
    one_pool: bool,
}

impl Manner {
    fn stream(self) -> StreamKey {
        self.pool.stream(self.device)
    }

    /// How an instruction in this manner is run.
    fn of_instruction(self) -> instructions::Manner {
        let Manner { pool, priority, clean_up, first, .. } = self;
        let priority = if self.one_pool && pool == Pool::Urgent { Priority::High } else { priority };
        let ahead = match pool {
            Pool::Inline => Ahead::Direct,
            _ if first => Ahead::First,
            _ => Ahead::No,
        };
        instructions::Manner { priority, clean_up, ahead }
    }

    /// A builder of functions in this manner.
    fn builder(self) -> InstructionsBuilder {
        let mut builder = InstructionsBuilder::new();
        builder.set_workers(true);
        builder.set_lane(self.stream().lane);
        builder.set_manner(self.of_instruction());
        builder
    }
}

impl Vm {
    /// Runs `f` on the normal pool of `cpu:0`, as soon as what it uses is ready. See [`Pusher::push`].
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    /// use std::sync::Arc;
    ///
    /// # fn main() -> Result<(), streamvm::Error> {
    /// let vm = streamvm::Vm::builder().build()?;
    /// let (file, total) = (vm.var(), Arc::new(AtomicU64::new(0)));
    /// for part in 1..=4 {
    ///     let total = total.clone();
    ///     vm.push("add", [file.update()], move || {
    ///         total.fetch_add(part, Relaxed);
    ///         Ok(())
    ///     })?;
    /// }
    /// vm.wait(&file)?;
    /// assert_eq!(total.load(Relaxed), 10);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Vm::submit`]: nothing runs then.
    #[track_caller]
    pub fn push<'u>(
        &self,
        name: impl Into<Cow<'static, str>>,
        uses: impl IntoIterator<Item = Use<'u>>,
        f: impl FnOnce() -> Result<(), FnError> + Send + 'static,
    ) -> Result<Ticket<'_>, Error> {
        self.pusher().push(name, uses, f)
    }

    /// Calls `f` on the normal pool of `cpu:0` with a handle; it is over when that is used. See [`Pusher::push_async`].
    ///
    /// # Errors
    /// As [`Vm::submit`]: nothing runs then.
    #[track_caller]
    pub fn push_async<'u>(
        &self,
        name: impl Into<Cow<'static, str>>,
        uses: impl IntoIterator<Item = Use<'u>>,
        f: impl FnOnce(OnComplete) + Send + 'static,
    ) -> Result<Ticket<'_>, Error> {
        self.pusher().push_async(name, uses, f)
    }

    /// Pushes in another manner than [`Vm::push`] does: on another device or pool, at another priority, as a clean-up.
    pub fn pusher(&self) -> Pusher<'_> {
        let (device, pool, priority) = (DeviceId::cpu(0), Pool::Normal, Priority::Normal);
        let one_pool = self.shared.threads.pools.one;
        Pusher { vm: self, manner: Manner { device, pool, priority, clean_up: false, first: false, one_pool } }
    }

    /// Pushes code over uses that give order alone.
    #[inline(always)]
    fn push_in<'u>(
        &self,
        manner: Manner,
        name: impl Into<Cow<'static, str>>,
        uses: impl IntoIterator<Item = Use<'u>>,
        code: impl FnOnce() -> InlineFn,
        site: &'static Location<'static>,
    ) -> Result<Ticket<'_>, Error> {
        let issued = Issued { stream: manner.stream(), role: Role::Push, manner: manner.of_instruction(), site };
        let mut ticket = Ticket::new(&self.shared);
        Single::submit_function(issued, name, uses, code, |single| self.submit_one(single, &mut ticket))?;
        Ok(ticket)
    }

    /// Blocks until all writes of `var` that were submitted so far, by any thread, have passed. Reads are not waited for; a
    /// variable that nothing has written yet is ready.
    ///
    /// # Errors
    /// The root cause of the last write's failure, each time it is asked, until a later write heals it; [`Error::WouldDeadlock`] on a
    /// thread of an engine, so also in every function; [`Error::Foreign`] for a variable of another engine, [`Error::Released`] for a
    /// deleted one.
    pub fn wait(&self, var: &Var) -> Result<(), Error> {
        self.wait_until(var, Deadline::current())
    }

    /// [`Vm::wait`] for at most `timeout`.
    ///
    /// # Errors
    /// As [`Vm::wait`]; [`Error::Timeout`] when it is not over by then. The work goes on.
    pub fn wait_timeout(&self, var: &Var, timeout: Duration) -> Result<(), Error> {
        self.wait_until(var, Deadline::within(timeout))
    }

    fn wait_until(&self, var: &Var, deadline: Option<Deadline>) -> Result<(), Error> {
        self.shared.may_wait()?;
        match self.id_of(var)? {
            Some(id) => self.shared.handle.wait(id, None, deadline),
            None => Ok(()),
        }
    }

    /// A future of [`Vm::wait`], for any executor, of the writes submitted before this call; it does not borrow the VM. Dropping it
    /// cancels nothing.
    ///
    /// # Errors
    /// [`Error::Forked`]; [`Error::Foreign`] for a variable of another engine, [`Error::Released`] for a deleted one.
    pub fn ready(&self, var: &Var) -> Result<Passed, Error> {
        self.shared.handle.fork.check()?;
        let (passed, callback) = Passed::new(self.shared.me);
        match self.id_of(var)? {
            Some(id) => self.shared.handle.on_passed(id, None, Box::new(callback)),
            None => callback(Ok(())),
        }
        Ok(passed)
    }

    /// Calls `callback` with what [`Vm::wait`] would return, on a thread made for callbacks, once the writes of `var` that were submitted
    /// before this call have passed: at once, on that thread, where there is none. Waits for nothing, and may be called on any thread.
    /// Callbacks that are due run before the engine has shut down.
    ///
    /// # Errors
    /// As [`Vm::ready`]: the callback is dropped.
    pub fn on_passed(&self, var: &Var, callback: impl FnOnce(Result<(), Error>) + Send + 'static) -> Result<(), Error> {
        self.shared.handle.fork.check()?;
        match self.id_of(var)? {
            Some(id) => self.shared.handle.on_passed(id, None, Box::new(callback)),
            None => self.shared.call_back(Vec::new(), Box::new(callback)),
        }
        Ok(())
    }

    /// The number of a variable that was used.
    fn id_of(&self, var: &Var) -> Result<Option<ResourceId>, Error> {
        let resource = var.resource();
        if let Some(id) = resource.written_in(self.shared.me) {
            return Ok(Some(id));
        }
        let (line, what) = (0, "wait".to_owned());
        // Under the lock, as it may be a draft.
        let mut state = self.shared.handle.lock();
        let Ok(id) = resource.id_in(self.shared.me) else { return Err(Error::Foreign { line, what }) };
        let released = |id| state.known(id).is_some_and(|known| known.contents == Contents::Released);
        if id.is_some_and(released) { Err(Error::Released { line, what }) } else { Ok(None) }
    }

    /// Deletes a variable: from now on lists that use it are refused, and waits for it. `on_delete` runs after all that was
    /// submitted before and uses it, failed or not, on the normal pool of `cpu:0`, ahead of what is queued there at any priority,
    /// but for one of 16 that a worker takes: there goes what the variable stands for. Its captures are dropped there too. The
    /// ticket tells when it is over. A variable that is merely dropped runs nothing.
    ///
    /// # Errors
    /// As [`Vm::submit`]; [`Error::Released`] if it was deleted before. `on_delete` is dropped then.
    #[track_caller]
    pub fn delete(&self, var: &Var, on_delete: impl FnOnce() + Send + 'static) -> Result<Ticket<'_>, Error> {
        let mut builder = Manner { first: true, clean_up: true, ..self.pusher().manner }.builder();
        builder.push("delete", DeviceId::cpu(0), [var.write()], move || {
            on_delete();
            Ok(())
        });
        builder.release_var(var);
        self.submit(builder.finish())
    }
}

impl<'vm> Pusher<'vm> {
    /// For which device: its workers are threads of the host, also where it is a GPU. Default: `cpu:0`.
    #[must_use]
    pub fn device(mut self, device: DeviceId) -> Pusher<'vm> {
        self.manner.device = device;
        self
    }

    /// On which pool. Default: [`Pool::Normal`].
    #[must_use]
    pub fn pool(mut self, pool: Pool) -> Pusher<'vm> {
        self.manner.pool = pool;
        self
    }

    /// Which of what can run on the pool goes first. What is less urgent is not starved: every 16th that a worker takes
    /// is of the lower priorities, in turn, whatever it takes otherwise ([`Pool::Inline`] and [`Vm::delete`] included). Default:
    /// [`Priority::Normal`].
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Pusher<'vm> {
        self.manner.priority = priority;
        self
    }

    /// Whether it runs also when what it reads has failed. Then what it writes has failed too, by the same root cause, if it keeps
    /// something of what it writes ([`Var::update`], or a read beside the write); if it overwrites everything that it writes
    /// ([`Var::write`]), all of that is whole again, as after any write. Like all that was submitted it runs before the engine has
    /// shut down. Default: no.
    #[must_use]
    pub fn clean_up(mut self, clean_up: bool) -> Pusher<'vm> {
        self.manner.clean_up = clean_up;
        self
    }

    /// Runs `f` as soon as what it uses is ready, on a worker, whatever was pushed before it. `uses` give order alone: variables, or
    /// tensors on any device, none of which `f` is shown. The same one may be used several times: the stronger use counts, and a
    /// read beside a write is an update. A write of a tensor counts as an update, as `f` overwrites no byte of it.
    ///
    /// An error or a panic of `f` fails what it should have written, and what reads that is skipped, but for
    /// [clean-ups](Pusher::clean_up). `f` may push; it may not wait, which gives [`Error::WouldDeadlock`]. Its captures are dropped
    /// by the worker before the function counts as passed. Captures of up to 48 bytes are stored without an allocation.
    ///
    /// Blocks while the queue is full, as [`Vm::submit`] does. May be called by several threads at once.
    ///
    /// # Errors
    /// As [`Vm::submit`]: nothing runs then.
    #[track_caller]
    pub fn push<'u>(
        self,
        name: impl Into<Cow<'static, str>>,
        uses: impl IntoIterator<Item = Use<'u>>,
        f: impl FnOnce() -> Result<(), FnError> + Send + 'static,
    ) -> Result<Ticket<'vm>, Error> {
        let code = || InlineFn::new(move |_: &mut FnContext<'_>| f());
        let uses = uses.into_iter().map(Use::of_order);
        self.vm.push_in(self.manner, name, uses, code, Location::caller())
    }

    /// [`Pusher::push`] of a function that is over when its handle is used ([`OnComplete::complete`]), on any thread: until then
    /// it has not passed, and its worker does other work. A handle that is dropped unused fails it. If `f` panics, it fails by that;
    /// it passes when the handle is used or dropped all the same, as whoever has it may still be at work. Captures of up to 32 bytes
    /// are stored without an allocation.
    ///
    /// Shutdown waits for outstanding handles up to its deadline, and a drop of the engine without limit. In
    /// [`Mode::Inline`](crate::Mode::Inline) the thread that pushes waits for the handle, so another thread must use it, unless `f` did; a
    /// [`deadline`](crate::deadline) guard bounds that wait, and fails the function. A simulated engine cannot know whether a handle
    /// will be used, so a wait that needs one gives [`Error::Stalled`], or takes its time up to its deadline; ask again when
    /// the handle was used.
    ///
    /// # Errors
    /// As [`Vm::submit`]: nothing runs then.
    #[track_caller]
    pub fn push_async<'u>(
        self,
        name: impl Into<Cow<'static, str>>,
        uses: impl IntoIterator<Item = Use<'u>>,
        f: impl FnOnce(OnComplete) + Send + 'static,
    ) -> Result<Ticket<'vm>, Error> {
        let fork = self.vm.shared.handle.fork;
        self.push(name, uses, move || Later::call(fork, f))
    }
}

impl fmt::Debug for Pusher<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pusher").field("manner", &self.manner).finish_non_exhaustive()
    }
}
