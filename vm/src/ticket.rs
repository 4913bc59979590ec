//! Tickets: what a submission gives its caller.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use streamvm_instructions::{Error, Passed};
use streamvm_stream::Point;

use crate::commit::Submitted;
use crate::shared::Shared;
use crate::wait;

/// Stands for one submission: tells when all its instructions have passed, and whether one failed.
///
/// A ticket is free: it allocates nothing for lists on up to two streams, and dropping it cancels nothing. A failure
/// that nobody asks for is reported by `wait_all` and `shutdown`.
pub struct Ticket<'vm> {
    vm: &'vm Arc<Shared>,
    submitted: Submitted,
}

impl<'vm> Ticket<'vm> {
    pub(crate) fn new(vm: &'vm Arc<Shared>, submitted: Submitted) -> Ticket<'vm> {
        Ticket { vm, submitted }
    }

    /// Whether every instruction of the submission has passed, failed or not. Never blocks.
    pub fn is_passed(&self) -> bool {
        self.points().all(|point| self.vm.streams.has_passed(point))
    }

    /// Blocks until every instruction of the submission has passed.
    ///
    /// # Errors
    /// The root cause of the first instruction, in program order, that failed or was skipped, each time it is asked; [`Error::WouldDeadlock`] on a
    /// thread of an engine.
    pub fn wait(&self) -> Result<(), Error> {
        for point in self.points() {
            self.vm.wait_for(point, None)?;
        }
        self.outcome()
    }

    /// [`Ticket::wait`] for at most `timeout`.
    ///
    /// # Errors
    /// As [`Ticket::wait`]; [`Error::Timeout`] when it is not over by then. The work goes on.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<(), Error> {
        let deadline = wait::deadline(timeout);
        for point in self.points() {
            if !self.vm.wait_for(point, deadline)? {
                return Err(Error::Timeout(timeout));
            }
        }
        self.outcome()
    }

    /// Calls `callback` once every instruction of the submission has passed, on a thread made for callbacks.
    pub fn on_passed(&self, callback: impl FnOnce(Result<(), Error>) + Send + 'static) {
        let (vm, submitted) = (self.vm.clone(), self.submitted.clone());
        let outcome = move |_| callback(first_failure(&vm, &submitted));
        self.vm.call_back(self.points().collect(), Box::new(outcome));
    }

    /// A future of [`Ticket::wait`], for any executor; it does not borrow the VM. Dropping it cancels nothing.
    pub fn future(&self) -> Passed {
        let (passed, callback) = Passed::new();
        self.on_passed(callback);
        passed
    }

    fn points(&self) -> impl Iterator<Item = Point> + '_ {
        self.submitted.spans.iter().map(|span| Point::new(span.stream, span.last))
    }

    fn outcome(&self) -> Result<(), Error> {
        first_failure(self.vm, &self.submitted)
    }
}

/// The root cause of the first failure of the submission, in program order.
fn first_failure(vm: &Shared, submitted: &Submitted) -> Result<(), Error> {
    vm.failures.first_within(&submitted.spans).map_or(Ok(()), |failure| Err(Error::Failed(failure)))
}

impl fmt::Debug for Ticket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("submitted", &self.submitted).field("is_passed", &self.is_passed()).finish()
    }
}
