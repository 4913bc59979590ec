//! Tickets: what a submission gives its caller.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use streamvm_instructions::{Deadline, Error, Passed};
use streamvm_stream::Point;

use crate::commit::Submitted;
use crate::shared::Shared;

/// Stands for one submission: tells when all its instructions have passed, and whether one failed.
///
/// A ticket is free: while nothing has failed in its engine it allocates nothing for lists on up to two streams, where each instruction on
/// workers counts as one, and dropping it cancels nothing. A failure that nobody asks for is reported by `wait_all` and `shutdown`.
pub struct Ticket<'vm> {
    vm: &'vm Arc<Shared>,
    pub(crate) submitted: Submitted,
}

impl<'vm> Ticket<'vm> {
    /// Of a list that is still to be submitted.
    pub(crate) fn new(vm: &'vm Arc<Shared>) -> Ticket<'vm> {
        Ticket { vm, submitted: Submitted::default() }
    }

    /// Whether every instruction of the submission has passed, failed or not. Never blocks.
    pub fn is_passed(&self) -> bool {
        self.points().all(|point| self.vm.streams.has_passed(point))
    }

    /// Blocks until every instruction of the submission has passed. Without a deadline it may run kernels, copies and fills of CPU streams in
    /// the calling thread meanwhile; never functions.
    ///
    /// # Errors
    /// The root cause of the first instruction, in program order, that failed or was skipped, each time it is asked;
    /// [`Error::WouldDeadlock`] on a thread of an engine; [`Error::Forked`] in a child of the engine's process.
    pub fn wait(&self) -> Result<(), Error> {
        self.wait_until(Deadline::current())
    }

    /// [`Ticket::wait`] for at most `timeout`.
    ///
    /// # Errors
    /// As [`Ticket::wait`]; [`Error::Timeout`] when it is not over by then. The work goes on.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<(), Error> {
        self.wait_until(Deadline::within(timeout))
    }

    fn wait_until(&self, deadline: Option<Deadline>) -> Result<(), Error> {
        self.vm.may_wait()?;
        self.points().try_for_each(|point| self.vm.wait_for(point, deadline))?;
        first_failure(self.vm, &self.submitted)
    }

    /// Calls `callback` once every instruction of the submission has passed, on a thread made for callbacks. In a child
    /// of the engine's process it is called at once, here, with [`Error::Forked`].
    pub fn on_passed(&self, callback: impl FnOnce(Result<(), Error>) + Send + 'static) {
        let (vm, submitted) = (self.vm.clone(), self.submitted.clone());
        let outcome = move |result| match result {
            Ok(()) => callback(first_failure(&vm, &submitted)),
            Err(error) => callback(Err(error)),
        };
        self.vm.call_back(self.points().collect(), Box::new(outcome));
    }

    /// A future of [`Ticket::wait`], for any executor; it does not borrow the VM. Dropping it cancels nothing.
    pub fn future(&self) -> Passed {
        let (passed, callback) = Passed::new(self.vm.me);
        self.on_passed(callback);
        passed
    }

    fn points(&self) -> impl Iterator<Item = Point> + '_ {
        self.submitted.spans.iter().map(|span| Point::new(span.stream, span.last))
    }
}

/// The root cause of the first failure of the submission, in program order.
fn first_failure(vm: &Shared, submitted: &Submitted) -> Result<(), Error> {
    let failure = match &submitted.claim {
        Some(claim) => vm.failures.collect_claim(claim),
        None => vm.failures.first_within(&submitted.spans),
    };
    failure.map_or(Ok(()), |failure| Err(Error::Failed(failure)))
}

impl fmt::Debug for Ticket<'_> {
    /// How far the submission is and which streams it is on: `Ticket(pending, on h2d@cpu:0:0 and compute@cpu:0:0)`. A failure that is
    /// shown here still counts as one that nobody has asked for.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // In a child of the engine's process a lock may be held by a thread that is not there.
        if self.vm.handle.fork.is_child() {
            return f.write_str("Ticket(of an engine of the parent process)");
        }
        // Before its failure: that is entered before the last of its instructions passes.
        let passed = self.is_passed();
        let spans = self.submitted.spans.iter();
        let all = spans.flat_map(|span| (span.first..=span.last).map(|seq| Point::new(span.stream, seq)));
        let failure = match &self.submitted.claim {
            Some(claim) => claim.told(),
            None => self.vm.failures.poison(all),
        };
        let state = match (passed, failure) {
            (false, _) => "pending".to_owned(),
            (true, None) => "passed".to_owned(),
            (true, Some(failure)) => failure.to_string(),
        };
        let mut streams: Vec<String> = Vec::new();
        for point in self.points() {
            let name = self.vm.streams.get(point.stream).map_or_else(|| "?".to_owned(), |entry| entry.key.to_string());
            if !streams.contains(&name) {
                streams.push(name);
            }
        }
        let on = if streams.is_empty() { String::new() } else { format!(", on {}", streams.join(" and ")) };
        write!(f, "Ticket({state}{on})")
    }
}
