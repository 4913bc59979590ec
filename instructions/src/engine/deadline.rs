//! Deadlines: the time at which the waits of a thread give up.

use std::cell::Cell;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crate::error::engine_error::Error;

thread_local! {
    static DEADLINE: Cell<Option<Deadline>> = const { Cell::new(None) };
}

/// The time at which a wait gives up, and the timeout that it was set with.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Deadline {
    at: Instant,
    timeout: Duration,
}

impl Deadline {
    /// `timeout` from now; `None` if the clock cannot represent that time.
    pub fn after(timeout: Duration) -> Option<Deadline> {
        Some(Deadline { at: Instant::now().checked_add(timeout)?, timeout })
    }

    /// The earliest deadline of this thread's [`deadline`] guards; `None` without a guard.
    pub fn current() -> Option<Deadline> {
        DEADLINE.try_with(Cell::get).ok().flatten()
    }

    /// The earlier of `timeout` from now and the thread's [`Deadline::current`].
    pub fn within(timeout: Duration) -> Option<Deadline> {
        earlier(Deadline::after(timeout), Deadline::current())
    }

    /// The time at which a wait gives up.
    pub fn at(&self) -> Instant {
        self.at
    }

    /// Whether that time has come.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.at
    }

    /// The error of a wait that gives up at this deadline.
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

/// Sets a deadline for this thread until the guard is dropped: every wait of the thread gives up `timeout` from now, with
/// [`Error::Timeout`].
///
/// The deadline holds for waits for results, for space in a full queue and for memory, for any engine and in eager calls as in all
/// others. Work that was submitted still runs. A call that gives up has submitted nothing, except for
/// [`Tensor::to_vec`](crate::Tensor::to_vec) and its variants, whose read still runs. Guards nest, and the earliest deadline
/// counts. Dropping an engine ignores deadlines: it waits for all of its work.
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

/// Keeps a deadline set on a thread; see [`deadline`].
#[derive(Debug)]
pub struct DeadlineGuard {
    before: Option<Deadline>,
    /// Makes the guard `!Send`: the deadline is a thread-local of the thread that made the guard.
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
        assert_eq!(Deadline::within(Duration::MAX), of_outer, "the clock cannot represent it");
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
