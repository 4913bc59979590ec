//! [`Bulk`]: several small functions submitted as one instruction, so that they share its cost.

use std::borrow::Cow;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use streamvm_ep::{Access, FnContext, FnError, InlineFn, Site};
use streamvm_instructions::{Cause, Error, OwnUse, Target, Use, Var};

use crate::dispatch::function_outcome::FunctionOutcome;
use crate::execute::run::text_of;
use crate::functions::Pusher;
use crate::sync::panics::panic_text;
use crate::ticket::Ticket;
use crate::vm::Vm;

/// Gathers small functions and pushes up to a fixed number of them as one instruction; made by [`Vm::bulk`] and
/// [`Pusher::bulk`].
///
/// The gathered functions are pushed when the bulk is full, when [`Bulk::flush`] or [`Bulk::wait`] is called, and when the bulk
/// is dropped. Until then the engine does not know them, so other waits do not wait for them.
///
/// The functions of one instruction run in the order of their pushes, on one worker, once everything that any of them uses is
/// ready. If one fails, the failure has the name and the site of that function, the functions after it do not run, and
/// everything that any function of the instruction writes has failed.
#[must_use = "dropping a bulk pushes the functions that it has gathered"]
pub struct Bulk<'vm> {
    pusher: Pusher<'vm>,
    most: usize,
    parts: Vec<Part>,
    used: Vec<Used>,
    /// The index in `used` of each resource, by address. `used` keeps the resources alive, so their addresses differ.
    places: HashMap<usize, usize>,
}

struct Part {
    name: Cow<'static, str>,
    site: Site,
    f: InlineFn,
}

/// How the functions gathered so far use one resource, taken together as one instruction.
struct Used {
    by: OwnUse,
    /// The index of the last function that uses it.
    last: usize,
}

impl Vm {
    /// A bulk that pushes up to `most` functions, at least one, as one instruction, with the options of [`Vm::push`].
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
    /// A bulk that pushes up to `most` functions, at least one, as one instruction, with the options of this pusher.
    pub fn bulk(self, most: usize) -> Bulk<'vm> {
        Bulk { pusher: self, most: most.max(1), parts: Vec::new(), used: Vec::new(), places: HashMap::new() }
    }
}

impl<'vm> Bulk<'vm> {
    /// Gathers one more function, with the uses that [`Pusher::push`] takes. Blocks only if the bulk is full now and is pushed;
    /// see [`Bulk::flush`].
    ///
    /// # Errors
    /// Those of [`Bulk::flush`], if this function fills the bulk.
    #[track_caller]
    pub fn push<'u>(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        uses: impl IntoIterator<Item = Use<'u>>,
        f: impl FnOnce() -> Result<(), FnError> + Send + 'static,
    ) -> Result<(), Error> {
        let f = InlineFn::new(move |_: &mut FnContext<'_>| f());
        uses.into_iter().for_each(|u| self.add(u));
        self.parts.push(Part { name: name.into(), site: Site::caller(), f });
        if self.parts.len() < self.most { Ok(()) } else { self.flush().map(drop) }
    }

    /// Adds a use by the function that is being gathered.
    fn add(&mut self, u: Use<'_>) {
        let part = self.parts.len();
        let used = match self.places.entry(std::ptr::from_ref(u.resource()).addr()) {
            Entry::Occupied(place) => &mut self.used[*place.get()],
            Entry::Vacant(place) => {
                place.insert(self.used.len());
                return self.used.push(Used { by: u.hold(), last: part });
            }
        };
        let (before, now) = (used.by.access(), u.access());
        // A read by a later function, of what an earlier one has overwritten, is no read of the whole instruction. Within one
        // function the order of its uses is unknown, so there a read beside a write is an update.
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

    /// Pushes the gathered functions; `None` if there are none. Blocks while the queue is full, as [`Vm::submit`] does.
    ///
    /// # Errors
    /// As [`Vm::submit`]: none of the gathered functions will run, and they are dropped.
    #[track_caller]
    pub fn flush(&mut self) -> Result<Option<Ticket<'vm>>, Error> {
        if self.parts.is_empty() {
            return Ok(None);
        }
        let parts = std::mem::take(&mut self.parts);
        let used = std::mem::take(&mut self.used);
        self.places.clear();
        let uses = used.iter().map(|used| used.by.seen());
        self.pusher.push("bulk", uses, move || parts.into_iter().try_for_each(run)).map(Some)
    }

    /// Pushes the gathered functions and waits for the writes of `var`; see [`Var::wait`].
    ///
    /// # Errors
    /// Those of [`Bulk::flush`] and [`Var::wait`].
    #[track_caller]
    pub fn wait(&mut self, var: &Var) -> Result<(), Error> {
        self.flush()?;
        var.wait()
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
    Err(Box::new(FunctionOutcome::Part { name, site, cause }))
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
