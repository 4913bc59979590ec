//! Deadlines: when what a thread waits for gives up.

use std::cell::Cell;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crate::Error;

thread_local! {
    static DEADLINE: Cell<Option<Deadline>> = const { Cell::new(None) };
}

/// A moment at which a wait gives up, and how long it was allowed to take.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Deadline {
    at: Instant,
    timeout: Duration,
}

impl Deadline {
    /// `timeout` from now; `None` for a time too far away to name.
    pub fn after(timeout: Duration) -> Option<Deadline> {
        Some(Deadline { at: Instant::now().checked_add(timeout)?, timeout })
    }

    /// The deadline of this thread's innermost [`deadline`] guards, if there are any.
    pub fn current() -> Option<Deadline> {
        DEADLINE.try_with(Cell::get).ok().flatten()
    }

    /// `timeout` from now, or the thread's [`Deadline::current`] if that is earlier.
    pub fn within(timeout: Duration) -> Option<Deadline> {
        earlier(Deadline::after(timeout), Deadline::current())
    }

    /// The moment.
    pub fn at(&self) -> Instant {
        self.at
    }

    /// Whether the moment has come.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.at
    }

    /// What a wait that gives up at this deadline returns.
    pub fn error(&self) -> Error {
        Error::Timeout(self.timeout)
    }
}

fn earlier(one: Option<Deadline>, other: Option<Deadline>) -> Option<Deadline> {
    match (one, other) {
        (Some(one), Some(other)) => Some(if one.at <= other.at { one } else { other }),
        (one, other) => one.or(other),
    }
}

/// Ends every wait of this thread `timeout` from now with [`Error::Timeout`], until the guard is dropped: waits for
/// results, for room in a full queue and for memory, by any engine, in eager calls as in all others. What was submitted
/// goes on, and a call that gives up has submitted nothing, but for [`Tensor::to_vec`](crate::Tensor::to_vec) and its
/// kin, whose read goes on. Guards nest, and the earliest deadline counts. Dropping an engine still waits for all of it.
///
/// ```
/// use std::time::Duration;
/// use streamvm_instructions::{Deadline, deadline};
/// let _outer = deadline(Duration::from_secs(5));
/// let of_outer = Deadline::current();
/// {
///     let _inner = deadline(Duration::from_secs(60));
///     assert_eq!(Deadline::current(), of_outer);
/// }
/// ```
#[must_use = "the deadline is lifted when the guard is dropped"]
pub fn deadline(timeout: Duration) -> DeadlineGuard {
    DeadlineGuard { before: DEADLINE.replace(Deadline::within(timeout)), here: PhantomData }
}

/// Keeps a deadline on a thread; see [`deadline`].
#[derive(Debug)]
pub struct DeadlineGuard {
    before: Option<Deadline>,
    /// The deadline belongs to the thread that made the guard.
    here: PhantomData<*const ()>,
}

impl Drop for DeadlineGuard {
    fn drop(&mut self) {
        DEADLINE.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_deadline_counts_until_its_guard_is_dropped() {
        assert_eq!(Deadline::current(), None);
        let outer = deadline(Duration::from_secs(100));
        let of_outer = Deadline::current();
        assert_eq!(of_outer.map(|d| d.error()), Some(Error::Timeout(Duration::from_secs(100))));
        let inner = deadline(Duration::from_secs(10));
        assert_eq!(Deadline::current().map(|d| d.error()), Some(Error::Timeout(Duration::from_secs(10))));
        let later = deadline(Duration::from_secs(1000));
        assert_eq!(Deadline::current().map(|d| d.error()), Some(Error::Timeout(Duration::from_secs(10))));
        drop(later);
        drop(inner);
        assert_eq!(Deadline::current(), of_outer);
        assert_eq!(Deadline::within(Duration::MAX), of_outer, "too far away to name");
        drop(outer);
        assert_eq!(Deadline::current(), None);
    }

    #[test]
    fn a_deadline_is_over_when_its_moment_has_come() {
        assert!(Deadline::after(Duration::ZERO).is_some_and(|deadline| deadline.is_over()));
        assert!(Deadline::after(Duration::from_secs(1000)).is_some_and(|deadline| !deadline.is_over()));
        assert_eq!(Deadline::after(Duration::MAX), None);
    }
}
