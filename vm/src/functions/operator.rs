//! [`Operator`]: a function that is pushed many times over the same uses.
//!
//! [`Pusher::push`] stores the captures of its function anew each time. An operator stores them once, and a push of it only counts
//! one reference. Both copy a name that is not `'static`.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use streamvm_ep::{FnContext, FnError, InlineFn, Site};
use streamvm_instructions::{Error, OwnUse, Use};

use crate::functions::{LaunchOptions, Pusher};
use crate::ticket::Ticket;
use crate::vm::Vm;

type Code = Arc<dyn Fn() -> Result<(), FnError> + Send + Sync>;

/// A function that is made once and pushed many times; made by [`Vm::operator`] and [`Pusher::operator`]. `Send + Sync`.
///
/// The function and its captures are dropped once the operator is dropped and all its pushes have run or been skipped: on the
/// worker that handled the last push, or in the thread that drops the operator if none is left.
pub struct Operator {
    code: Code,
    name: Cow<'static, str>,
    uses: Vec<OwnUse>,
    options: LaunchOptions,
}

impl Vm {
    /// Makes an operator, for [`Vm::push_operator`], with the uses that [`Pusher::push`] takes and the options of [`Vm::push`].
    /// Submits nothing.
    ///
    /// ```
    /// # fn main() -> Result<(), streamvm::Error> {
    /// let vm = streamvm::Vm::builder().build()?;
    /// let x = streamvm::Var::counted();
    /// let step = vm.operator("step", [x.update()], || Ok(()));
    /// for _ in 0..100 {
    ///     vm.push_operator(&step)?;
    /// }
    /// x.wait()?;
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

    /// Submits one run of an operator: its function runs as if it were pushed now by [`Pusher::push`]. Runs of one operator whose
    /// uses are all reads may run at the same time. Blocks while the queue is full, as [`Vm::submit`] does. May be called by several
    /// threads at once.
    ///
    /// # Errors
    /// As [`Vm::submit`]: nothing runs then.
    #[track_caller]
    pub fn push_operator(&self, operator: &Operator) -> Result<Ticket<'_>, Error> {
        let (code, options) = (operator.code.clone(), operator.options);
        let f = || InlineFn::new(move |_: &mut FnContext<'_>| code());
        let uses = operator.uses.iter().map(OwnUse::seen);
        self.push_in(options, operator.name.clone(), uses, f, Site::caller())
    }
}

impl Pusher<'_> {
    /// [`Vm::operator`] with the options of this pusher.
    pub fn operator<'u>(
        self,
        name: impl Into<Cow<'static, str>>,
        uses: impl IntoIterator<Item = Use<'u>>,
        f: impl Fn() -> Result<(), FnError> + Send + Sync + 'static,
    ) -> Operator {
        let uses = uses.into_iter().map(|u| u.of_order().hold()).collect();
        Operator { code: Arc::new(f), name: name.into(), uses, options: self.options }
    }
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operator").field("name", &self.name).finish_non_exhaustive()
    }
}
