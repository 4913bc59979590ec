//! Operators: functions that are pushed many times over the same uses.
//!
//! An operator keeps its list from push to push: an engine takes the code out of a list and leaves the rest, so a push gives it
//! code again and submits it, and no use is declared, counted or dropped anew. Where two threads push one operator at the same
//! moment the second makes a list of its own: it must not wait for the first, which may wait for room in the queue.

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use streamvm_ep::{FnContext, FnError, InlineFn};
use streamvm_instructions::{Error, InstructionList, Use};

use crate::push::{Manner, Pusher};
use crate::submit::Full;
use crate::sync::Mutex;
use crate::ticket::Ticket;
use crate::vm::Vm;

/// A function that is made once and pushed many times; made by [`Vm::operator`] and [`Pusher::operator`]. `Send + Sync`.
///
/// Dropping it deletes it: its code and what that has captured go once all pushes so far have run or been skipped, on the worker
/// that did the last of them, or at once where there is none left.
pub struct Operator {
    code: Arc<dyn Fn() -> Result<(), FnError> + Send + Sync>,
    /// What it is pushed by, but for the code.
    list: Mutex<InstructionList>,
    /// What a list is made of where that one is in use.
    name: Cow<'static, str>,
    uses: Vec<Use>,
    manner: Manner,
}

impl Vm {
    /// Makes a function to be pushed many times by [`Vm::push_operator`], over uses that [`Pusher::push`] takes, in the manner of
    /// [`Vm::push`]. Nothing is submitted yet.
    ///
    /// ```
    /// # fn main() -> Result<(), streamvm::Error> {
    /// let vm = streamvm::Vm::builder().build()?;
    /// let x = streamvm::Var::counted();
    /// let step = vm.operator("step", [x.update()], || Ok(()));
    /// for _ in 0..100 {
    ///     vm.push_operator(&step)?;
    /// }
    /// vm.wait(&x)?;
    /// assert_eq!(x.version(), Some(100));
    /// # Ok(())
    /// # }
    /// ```
    pub fn operator(
        &self,
        name: impl Into<Cow<'static, str>>,
        uses: impl IntoIterator<Item = Use>,
        f: impl Fn() -> Result<(), FnError> + Send + Sync + 'static,
    ) -> Operator {
        self.pusher().operator(name, uses, f)
    }

    /// Pushes an operator: its function runs as if it had been pushed just now, see [`Pusher::push`]. Several runs of one operator that
    /// only read run side by side. May be called by several threads at once.
    ///
    /// # Errors
    /// As [`Vm::submit`]: nothing runs then.
    #[track_caller]
    pub fn push_operator(&self, operator: &Operator) -> Result<Ticket<'_>, Error> {
        let (code, site) = (operator.code.clone(), Location::caller());
        let body = InlineFn::new(move |_: &mut FnContext<'_>| code());
        let mut ticket = Ticket::new(&self.shared);
        let submit = |list: &mut InstructionList| {
            list.refill(body, site);
            self.shared.submit(&self.engine, list, Full::Blocks, &mut ticket.submitted)
        };
        match operator.list.try_lock() {
            Ok(mut list) => submit(&mut list)?,
            Err(_) => submit(&mut list_of(operator.name.clone(), &operator.uses, operator.manner))?,
        }
        self.shared.failures.log_unseen();
        Ok(ticket)
    }
}

impl Pusher<'_> {
    /// [`Vm::operator`] in this manner.
    pub fn operator(
        self,
        name: impl Into<Cow<'static, str>>,
        uses: impl IntoIterator<Item = Use>,
        f: impl Fn() -> Result<(), FnError> + Send + Sync + 'static,
    ) -> Operator {
        let (name, uses, manner) = (name.into(), Vec::from_iter(uses), self.manner);
        let list = Mutex::new(list_of(name.clone(), &uses, manner));
        Operator { code: Arc::new(f), list, name, uses, manner }
    }
}

fn list_of(name: Cow<'static, str>, uses: &[Use], manner: Manner) -> InstructionList {
    let mut builder = manner.builder();
    builder.push(name, manner.stream().device, uses.iter().cloned(), || Ok(()));
    builder.finish()
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operator").field("name", &self.name).finish_non_exhaustive()
    }
}
