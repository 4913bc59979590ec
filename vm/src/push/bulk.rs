//! Bulks: several small functions as one instruction.

use std::borrow::Cow;
use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};

use streamvm_ep::{Access, FnContext, FnError, InlineFn};
use streamvm_instructions::{Cause, Error, OwnUse, Target, Use, Var};

use crate::push::{Answer, Pusher};
use crate::run::{panic_text, text_of};
use crate::ticket::Ticket;
use crate::vm::Vm;

/// Gathers small functions and pushes up to so many of them as one instruction; made by
/// [`Vm::bulk`] and [`Pusher::bulk`]. What is gathered is pushed when it is full, when [`Bulk::flush`] or [`Bulk::wait`] is
/// called, and when this is dropped: nothing else sees it before, so other waits do not wait for it.
///
/// The functions of one instruction run in the order of their pushes, on one worker, once all that any of them uses is
/// ready. When one fails, the failure has its name and its source line, those behind it do not run, and everything that any of
/// them writes has failed.
#[must_use = "what is gathered is pushed when this is dropped"]
pub struct Bulk<'vm> {
    pusher: Pusher<'vm>,
    most: usize,
    parts: Vec<Part>,
    used: Vec<Used>,
}

struct Part {
    name: Cow<'static, str>,
    site: &'static Location<'static>,
    f: InlineFn,
}

/// How the functions gathered so far use one thing, seen from outside.
struct Used {
    by: OwnUse,
    /// The place of the last function that uses it.
    last: usize,
}

impl Vm {
    /// Pushes up to `most` functions at a time as one, in the manner of [`Vm::push`].
    ///
    /// ```
    /// # fn main() -> Result<(), streamvm::Error> {
    /// let vm = streamvm::Vm::builder().build()?;
    /// let x = streamvm::Var::counted();
    /// let mut bulk = vm.bulk(10);
    /// for _ in 0..25 {
    ///     bulk.push("step", [x.update()], || Ok(()))?;
    /// }
    /// bulk.wait(&x)?;
    /// assert_eq!(x.version(), Some(3)); // 10, 10 and 5 functions
    /// # Ok(())
    /// # }
    /// ```
    pub fn bulk(&self, most: usize) -> Bulk<'_> {
        self.pusher().bulk(most)
    }
}

impl<'vm> Pusher<'vm> {
    /// Pushes up to `most` functions, at least one, at a time as one.
    pub fn bulk(self, most: usize) -> Bulk<'vm> {
        Bulk { pusher: self, most: most.max(1), parts: Vec::new(), used: Vec::new() }
    }
}

impl<'vm> Bulk<'vm> {
    /// Gathers one function more, with the uses that [`Pusher::push`] takes.
    ///
    /// # Errors
    /// It was the last that fits, and the engine refused all that was gathered: see [`Bulk::flush`].
    #[track_caller]
    pub fn push<'u>(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        uses: impl IntoIterator<Item = Use<'u>>,
        f: impl FnOnce() -> Result<(), FnError> + Send + 'static,
    ) -> Result<(), Error> {
        let f = InlineFn::new(move |_: &mut FnContext<'_>| f());
        uses.into_iter().for_each(|u| self.add(u));
        self.parts.push(Part { name: name.into(), site: Location::caller(), f });
        if self.parts.len() < self.most { Ok(()) } else { self.flush().map(drop) }
    }

    /// Enters a use by the function that is being gathered.
    fn add(&mut self, u: Use<'_>) {
        let part = self.parts.len();
        let Some(used) = self.used.iter_mut().find(|used| std::ptr::eq(used.by.resource(), u.resource())) else {
            self.used.push(Used { by: u.hold(), last: part });
            return;
        };
        let (before, now) = (used.by.access(), u.access());
        // What an earlier function of the bulk has overwritten is read from there. One function is shown no such order.
        let reads = (before.reads() && now.writes()) || (used.last == part && before.writes() && now.reads());
        used.last = part;
        if reads && before != Access::ReadWrite {
            let update = match u.target() {
                Target::Tensor(tensor) => tensor.update(),
                Target::Var(var) => var.update(),
            };
            used.by = update.hold();
        }
    }

    /// Pushes what is gathered. `None` if that is nothing.
    ///
    /// # Errors
    /// As [`Vm::submit`]: none of the functions gathered will run, and they are dropped.
    #[track_caller]
    pub fn flush(&mut self) -> Result<Option<Ticket<'vm>>, Error> {
        if self.parts.is_empty() {
            return Ok(None);
        }
        let parts = std::mem::take(&mut self.parts);
        let used = std::mem::take(&mut self.used);
        let uses = used.iter().map(|used| used.by.seen());
        self.pusher.push("bulk", uses, move || parts.into_iter().try_for_each(run)).map(Some)
    }

    /// Pushes what is gathered and waits for the writes of `var`; see [`Vm::wait`].
    ///
    /// # Errors
    /// Those of [`Bulk::flush`] and [`Vm::wait`].
    pub fn wait(&mut self, var: &Var) -> Result<(), Error> {
        self.flush()?;
        self.pusher.vm.wait(var)
    }
}

fn run(part: Part) -> Result<(), FnError> {
    let Part { name, site, mut f } = part;
    let called = catch_unwind(AssertUnwindSafe(|| f.call(&mut FnContext::new(&mut [])?)));
    let cause = match called {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => Cause::Function(text_of(error)),
        Err(payload) => Cause::Panic(panic_text(payload)),
    };
    Err(Box::new(Answer::Part { name, site, cause }))
}

impl Drop for Bulk<'_> {
    fn drop(&mut self) {
        let gathered = self.parts.len();
        if let Err(error) = self.flush() {
            log::error!("{gathered} functions that were gathered do not run: {error}");
        }
    }
}

impl fmt::Debug for Bulk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bulk").field("gathered", &self.parts.len()).field("most", &self.most).finish_non_exhaustive()
    }
}
