//! [`Ticket`]: what a submission returns. It tells when the submission has passed, and whether it failed.

use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;

use streamvm_ep::Site;
use streamvm_instructions::{Callback, Deadline, Error, Passed};
use streamvm_stream::Point;

use crate::engine::core::Engine;
use crate::submit::commit::Submitted;

/// Stands for one submission: tells when all its instructions have passed, and whether one failed. All methods may be called on
/// any thread.
///
/// * Dropping a ticket cancels nothing and waits for nothing. [`Vm::wait_all`](crate::Vm::wait_all) and
///   [`Vm::shutdown`](crate::Vm::shutdown) report a failure that no other call has returned.
/// * While no instruction has ever failed in the engine, a ticket allocates nothing for a list on up to two streams, where each
///   instruction on workers counts as a stream.
pub struct Ticket<'vm> {
    engine: &'vm Arc<Engine>,
    pub(crate) submitted: Submitted,
}

impl<'vm> Ticket<'vm> {
    /// The ticket of a list that is still to be submitted.
    pub(crate) fn new(engine: &'vm Arc<Engine>) -> Ticket<'vm> {
        Ticket { engine, submitted: Submitted::default() }
    }

    /// Whether every instruction of the submission has passed, failed or not. Never blocks.
    pub fn is_passed(&self) -> bool {
        self.points().all(|point| self.engine.streams.has_passed(point))
    }

    /// Blocks until every instruction of the submission has passed. Without a [`TimeLimit`](crate::TimeLimit), the calling thread may run
    /// kernels, copies and fills of CPU streams meanwhile, but no functions.
    ///
    /// # Errors
    /// * The root cause of the first instruction, in program order, that failed or was skipped, on every call.
    /// * [`Error::WouldDeadlock`] on a thread of an engine, [`Error::Forked`] in a forked child.
    /// * [`Error::Timeout`] at the thread's [`TimeLimit`](crate::TimeLimit); [`Error::Stalled`] in [`Mode::Simulated`](crate::Mode::Simulated) without
    ///   a limit, if nothing can go on.
    #[track_caller]
    pub fn wait(&self) -> Result<(), Error> {
        let deadline = Deadline::current();
        self.engine.may_wait()?;
        let site = Site::caller();
        for point in self.points() {
            self.engine.wait_for(point, deadline, Some(site))?;
        }
        first_failure(self.engine, &self.submitted)
    }

    /// Calls `callback` with what [`Ticket::wait`] would return, on the engine's callback thread, once every instruction of the
    /// submission has passed. In a forked child it is called at once, in the calling thread, with [`Error::Forked`].
    ///
    /// Does not block, except in [`Mode::Simulated`](crate::Mode::Simulated), where the caller steps the engine until then and runs
    /// the callback.
    #[track_caller]
    pub fn on_passed(&self, callback: impl FnOnce(Result<(), Error>) + Send + 'static) {
        self.engine.call_back(self.points().collect(), self.with_outcome(Site::caller(), callback));
    }

    /// A callback that calls `callback` with what [`Ticket::wait`] would return.
    fn with_outcome(&self, site: Site, callback: impl FnOnce(Result<(), Error>) + Send + 'static) -> Callback {
        let (vm, submitted) = (self.engine.clone(), self.submitted.clone());
        Box::new(move |result: Result<(), Error>| {
            let outcome = result.and_then(|()| first_failure(&vm, &submitted));
            callback(outcome.map_err(|error| error.called_from(site)));
        })
    }

    /// A future that resolves to what [`Ticket::wait`] would return. It works with any executor and does not borrow the VM. Dropping
    /// it cancels no work.
    #[track_caller]
    pub fn future(&self) -> Passed {
        let (points, site) = (self.points().collect(), Site::caller());
        Passed::new(self.engine.me, |callback| self.engine.register(points, self.with_outcome(site, callback)))
    }

    fn points(&self) -> impl Iterator<Item = Point> + '_ {
        self.submitted.spans.iter().map(|span| Point::new(span.stream, span.last))
    }
}

/// `ticket.await` is [`Ticket::future`].
impl IntoFuture for &Ticket<'_> {
    type Output = Result<(), Error>;
    type IntoFuture = Passed;

    #[track_caller]
    fn into_future(self) -> Passed {
        self.future()
    }
}

/// As for a borrowed ticket. The future does not borrow the engine.
impl IntoFuture for Ticket<'_> {
    type Output = Result<(), Error>;
    type IntoFuture = Passed;

    #[track_caller]
    fn into_future(self) -> Passed {
        self.future()
    }
}

/// The root cause of the first failure of the submission, in program order.
fn first_failure(vm: &Engine, submitted: &Submitted) -> Result<(), Error> {
    let failure = match &submitted.claim {
        Some(claim) => vm.failures.collect_claim(claim),
        None => vm.failures.first_within(&submitted.spans),
    };
    failure.map_or(Ok(()), |failure| Err(Error::Failed(failure)))
}

impl fmt::Debug for Ticket<'_> {
    /// Prints the state of the submission and its streams: `Ticket(pending, on h2d@cpu:0:0 and compute@cpu:0:0)`. A failure that
    /// is printed here is still reported by [`Vm::wait_all`](crate::Vm::wait_all).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // In a forked child, a lock may be held by a thread that is not in the child.
        if self.engine.handle.fork.is_child() {
            return f.write_str("Ticket(of an engine of the parent process)");
        }
        // Read before the failure: a failure is entered before its instruction passes, so a submission that has passed shows it.
        let passed = self.is_passed();
        let spans = self.submitted.spans.iter();
        let all = spans.flat_map(|span| (span.first..=span.last).map(|seq| Point::new(span.stream, seq)));
        let failure = match &self.submitted.claim {
            Some(claim) => claim.told(),
            None => self.engine.failures.poison(all),
        };
        let state = match (passed, failure) {
            (false, _) => "pending".to_owned(),
            (true, None) => "passed".to_owned(),
            (true, Some(failure)) => failure.to_string(),
        };
        let mut streams: Vec<String> = Vec::new();
        for point in self.points() {
            let name = self
                .engine
                .streams
                .get(point.stream)
                .map_or_else(|| "?".to_owned(), |stream_state| stream_state.key.to_string());
            if !streams.contains(&name) {
                streams.push(name);
            }
        }
        let on = if streams.is_empty() { String::new() } else { format!(", on {}", streams.join(" and ")) };
        write!(f, "Ticket({state}{on})")
    }
}
