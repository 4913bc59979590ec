//! Callers' functions on pools of workers, ordered by what they use: the model of the dependency engine of MXNet.
//!
//! Layer: uses `vm.rs`, `ticket.rs`, `engine`, `execute`, `dispatch` and `sync`; is used by no other folder.
//!
//! A function declares what it reads and writes: variables, which stand for any state of the program, or tensors. It runs as soon
//! as two sets of earlier instructions have passed: those that write what it uses, and those that read what it writes
//! (`docs/adr/workers.md`). The order of pushes alone does not matter.

mod bulk;
mod on_complete;
mod operator;

use std::borrow::Cow;
use std::fmt;

use streamvm_ep::{DeviceId, FnContext, FnError, InlineFn, Priority, Site};
use streamvm_instructions::{self as instructions, Ahead, Error, InstructionsBuilder, Issued, Role, Single, Use, Var};
use streamvm_stream::StreamKey;

use crate::engine::worker_sets::Pool;
use crate::ticket::Ticket;
use crate::vm::Vm;
pub use bulk::Bulk;
pub use on_complete::OnComplete;
pub use operator::Operator;

/// Pushes functions with launch options: device, pool, priority, clean-up. Made by [`Vm::pusher`]. It is `Copy`, so a program can
/// keep one for each set of options.
#[derive(Copy, Clone)]
pub struct Pusher<'vm> {
    vm: &'vm Vm,
    options: LaunchOptions,
}

/// The launch options of a [`Pusher`].
#[derive(Copy, Clone, Debug)]
struct LaunchOptions {
    device: DeviceId,
    pool: Pool,
    priority: Priority,
    clean_up: bool,
    /// It runs before all priorities, from the urgent queue: the deletion of a variable.
    first: bool,
    /// All functions run on one pool, so [`Pool::Urgent`] has no workers of its own.
    one_pool: bool,
}

impl LaunchOptions {
    fn stream(self) -> StreamKey {
        self.pool.stream(self.device)
    }

    /// The launch options of an instruction.
    fn of_instruction(self) -> instructions::LaunchOptions {
        let LaunchOptions { pool, priority, clean_up, first, .. } = self;
        let priority = if self.one_pool && pool == Pool::Urgent { Priority::High } else { priority };
        let ahead = match pool {
            Pool::Inline => Ahead::Direct,
            _ if first => Ahead::First,
            _ => Ahead::No,
        };
        instructions::LaunchOptions { priority, clean_up, ahead }
    }
}

impl Vm {
    /// Submits `f` to [`Pool::Normal`] of `cpu:0`, which runs it as soon as what it uses is ready. See [`Pusher::push`].
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
    /// file.wait()?;
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

    /// Submits `f` to [`Pool::Normal`] of `cpu:0`, which calls it with a handle; the function is over when the handle is used. See
    /// [`Pusher::push_async`].
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

    /// A pusher with the options of [`Vm::push`], whose methods choose another device, pool or priority, or a clean-up.
    pub fn pusher(&self) -> Pusher<'_> {
        let (device, pool, priority) = (DeviceId::cpu(0), Pool::Normal, Priority::Normal);
        let one_pool = self.engine.threads.pools.one;
        Pusher { vm: self, options: LaunchOptions { device, pool, priority, clean_up: false, first: false, one_pool } }
    }

    /// Submits `code` as a function with these options. `uses` give order alone: the code gets no access to tensors.
    #[inline(always)]
    fn push_in<'u>(
        &self,
        options: LaunchOptions,
        name: impl Into<Cow<'static, str>>,
        uses: impl IntoIterator<Item = Use<'u>>,
        code: impl FnOnce() -> InlineFn,
        site: Site,
    ) -> Result<Ticket<'_>, Error> {
        let issued = Issued { stream: options.stream(), role: Role::Push, launch: options.of_instruction(), site };
        let mut ticket = Ticket::new(&self.engine);
        Single::submit_function(issued, name, uses, code, |single| self.submit_one(single, &mut ticket))?;
        Ok(ticket)
    }

    /// Deletes a variable: from now on lists that use it, and waits for it, are refused with [`Error::Released`].
    ///
    /// `on_delete` frees what the variable stands for. It runs after all earlier instructions that use the variable, whether they
    /// failed or not, and its captures are dropped there. It runs on [`Pool::Normal`] of `cpu:0`, before everything that is
    /// queued there at any priority; only every 16th function that a worker takes still comes from the other queues. The ticket
    /// tells when it has passed. Dropping a variable without deleting it runs nothing. Blocks while the queue is full, as
    /// [`Vm::submit`] does.
    ///
    /// # Errors
    /// As [`Vm::submit`]; [`Error::Released`] if the variable was deleted before. `on_delete` is then dropped without a call.
    #[track_caller]
    pub fn delete(&self, var: &Var, on_delete: impl FnOnce() + Send + 'static) -> Result<Ticket<'_>, Error> {
        let options = LaunchOptions { first: true, clean_up: true, ..self.pusher().options };
        let mut builder = InstructionsBuilder::new();
        {
            let mut builder = builder.on_lane(options.stream().lane);
            let mut builder = builder.on_workers();
            builder.with_launch_options(options.of_instruction()).push(
                "delete",
                options.device,
                [var.write()],
                move || {
                    on_delete();
                    Ok(())
                },
            );
            builder.release_var(var);
        }
        self.submit(builder.finish())
    }
}

impl<'vm> Pusher<'vm> {
    /// Sets the device whose workers run the functions. Workers are threads of the host, also those of a GPU. Default: `cpu:0`.
    #[must_use]
    pub fn device(mut self, device: DeviceId) -> Pusher<'vm> {
        self.options.device = device;
        self
    }

    /// Sets the pool of workers. Default: [`Pool::Normal`].
    #[must_use]
    pub fn pool(mut self, pool: Pool) -> Pusher<'vm> {
        self.options.pool = pool;
        self
    }

    /// Sets the priority among the functions of the pool that are ready. Lower priorities do not starve: every 16th function that
    /// a worker takes is of a lower priority, each of them in turn, also while it would take functions of [`Pool::Inline`] or
    /// [`Vm::delete`]. Default: [`Priority::Normal`].
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Pusher<'vm> {
        self.options.priority = priority;
        self
    }

    /// Sets whether the functions also run when something that they read has failed. Default: no.
    ///
    /// If a clean-up keeps something of what it writes ([`Var::update`], or a read beside the write), its writes fail too, with the
    /// same root cause. If it overwrites everything that it writes ([`Var::write`]), its writes heal that, as any write does. Like
    /// everything submitted, it runs before the engine has shut down.
    #[must_use]
    pub fn clean_up(mut self, clean_up: bool) -> Pusher<'vm> {
        self.options.clean_up = clean_up;
        self
    }

    /// Submits `f`; a worker runs it as soon as what it uses is ready, whatever else was pushed before it.
    ///
    /// * `uses` only give order: variables, or tensors on any device, whose contents `f` does not get. If one is used several times,
    ///   the stronger use counts, and a read beside a write is an update. A write of a tensor counts as an update, because `f`
    ///   overwrites no byte of it.
    /// * An error or a panic of `f` fails everything that `f` writes. Instructions that read that are skipped, except
    ///   [clean-ups](Pusher::clean_up).
    /// * `f` may push. It may not wait, which gives [`Error::WouldDeadlock`].
    /// * The worker drops the captures of `f` before the function counts as passed. Captures of up to 48 bytes are stored without
    ///   an allocation.
    ///
    /// Blocks while the queue is full, as [`Vm::submit`] does. May be called by several threads at once.
    ///
    /// # Errors
    /// As [`Vm::submit`]; `f` is then dropped without a call.
    #[track_caller]
    pub fn push<'u>(
        self,
        name: impl Into<Cow<'static, str>>,
        uses: impl IntoIterator<Item = Use<'u>>,
        f: impl FnOnce() -> Result<(), FnError> + Send + 'static,
    ) -> Result<Ticket<'vm>, Error> {
        let code = || InlineFn::new(move |_: &mut FnContext<'_>| f());
        let uses = uses.into_iter().map(Use::of_order);
        self.vm.push_in(self.options, name, uses, code, Site::caller())
    }

    /// [`Pusher::push`] of an asynchronous function: it gets a handle, and is over when any thread uses the handle
    /// ([`OnComplete::complete`]). Until then it has not passed, and its worker runs other functions.
    ///
    /// * A handle that is dropped unused fails the function.
    /// * If `f` panics, the function fails by that panic. It still passes only when the handle is used or dropped, because the
    ///   thread that has the handle may still be at work.
    /// * Captures of up to 32 bytes are stored without an allocation.
    /// * [`Vm::shutdown`] waits for outstanding handles up to its limit; dropping the [`Vm`] waits without limit.
    /// * In [`Mode::Inline`](crate::Mode::Inline) a function fails whose handle was not used when `f` returned, because the thread that pushed
    ///   it may be the one that would use the handle. Within a [`TimeLimit`](crate::TimeLimit) it blocks until another thread has used the
    ///   handle, and fails when the limit is over. The limit is that of the thread that runs `f`: where several threads submit, any of them may.
    /// * In [`Mode::Simulated`](crate::Mode::Simulated) the engine cannot know whether a handle will be used. A wait that needs an
    ///   unused handle gives [`Error::Stalled`], or [`Error::Timeout`] with a time limit; wait again once the handle was used.
    ///
    /// # Errors
    /// As [`Vm::submit`]; `f` is then dropped without a call.
    #[track_caller]
    pub fn push_async<'u>(
        self,
        name: impl Into<Cow<'static, str>>,
        uses: impl IntoIterator<Item = Use<'u>>,
        f: impl FnOnce(OnComplete) + Send + 'static,
    ) -> Result<Ticket<'vm>, Error> {
        let fork = self.vm.engine.handle.fork;
        self.push(name, uses, move || on_complete::call_with_handle(fork, f))
    }
}

impl fmt::Debug for Pusher<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pusher").field("options", &self.options).finish_non_exhaustive()
    }
}
