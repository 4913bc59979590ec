//! Operators: functions that are pushed many times over the same uses.
//!
//! A fresh push is made of the caller's captures each time; an operator has them once, and a push of it counts one reference. A name
//! that is not `'static` is copied by both.

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use streamvm_ep::{FnContext, FnError, InlineFn};
use streamvm_instructions::{Error, OwnUse, Use};

use crate::push::{Manner, Pusher};
use crate::ticket::Ticket;
use crate::vm::Vm;

type Code = Arc<dyn Fn() -> Result<(), FnError> + Send + Sync>;

/// A function that is made once and pushed many times; made by [`Vm::operator`] and [`Pusher::operator`]. `Send + Sync`.
///
/// Dropping it deletes it: its code and what that has captured go once all pushes so far have run or been skipped, on the worker
/// that did the last of them, or at once where there is none left.
pub struct Operator {
    code: Code,
    name: Cow<'static, str>,
    uses: Vec<OwnUse>,
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
    pub fn operator<'u>(
        &self,
        name: impl Into<Cow<'static, str>>,
        uses: impl IntoIterator<Item = Use<'u>>,
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
        let (code, manner) = (operator.code.clone(), operator.manner);
        let f = || InlineFn::new(move |_: &mut FnContext<'_>| code());
        let uses = operator.uses.iter().map(OwnUse::seen);
        self.push_in(manner, operator.name.clone(), uses, f, Location::caller())
    }
}

impl Pusher<'_> {
    /// [`Vm::operator`] in this manner.
    pub fn operator<'u>(
        self,
        name: impl Into<Cow<'static, str>>,
        uses: impl IntoIterator<Item = Use<'u>>,
        f: impl Fn() -> Result<(), FnError> + Send + Sync + 'static,
    ) -> Operator {
        let uses = uses.into_iter().map(|u| u.of_order().hold()).collect();
        Operator { code: Arc::new(f), name: name.into(), uses, manner: self.manner }
    }
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operator").field("name", &self.name).finish_non_exhaustive()
    }
}
