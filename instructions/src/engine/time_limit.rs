//! Time limits: how long the waits of a thread may take, and the deadline that follows from it.

use std::cell::Cell;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use streamvm_ep::{Scopes, Site};

use crate::error::engine_error::Error;

thread_local! {
    static DEADLINE: Cell<Option<Deadline>> = const { Cell::new(None) };
    static SCOPES: Scopes<Option<Deadline>> = const { Scopes::new() };
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

    /// The earliest deadline of this thread's [`TimeLimit`]s; `None` without one.
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

    /// The error of a wait for `waited_for` that gives up at this deadline, told of the caller.
    #[track_caller]
    pub fn error(&self, waited_for: String) -> Error {
        Error::Timeout { after: self.timeout, waited_for, advice: "the work goes on, ask again", site: Site::caller() }
    }
}

fn earlier(one: Option<Deadline>, other: Option<Deadline>) -> Option<Deadline> {
    match (one, other) {
        (Some(one), Some(other)) => Some(if one.at <= other.at { one } else { other }),
        (one, other) => one.or(other),
    }
}

/// A limit on how long the waits of a thread take.
///
/// ```
/// use std::time::Duration;
/// use streamvm_instructions::{Deadline, TimeLimit};
/// let _outer = TimeLimit(Duration::from_secs(5)).enter();
/// let of_outer = Deadline::current();
/// {
///     let _inner = TimeLimit(Duration::from_secs(60)).enter();
///     assert_eq!(Deadline::current(), of_outer);
/// }
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct TimeLimit(pub Duration);

impl TimeLimit {
    /// Limits the waits of this thread until the guard is dropped: each gives up once the limit has passed since this call, with
    /// [`Error::Timeout`].
    ///
    /// The limit holds for waits for results, for space in a full queue and for memory, for any engine and in eager calls as in all
    /// others. Work that was submitted still runs. A call that gives up has submitted nothing, except for
    /// [`Tensor::to_vec`](crate::Tensor::to_vec), whose read still runs. Guards nest, and the earliest end counts. Dropping an
    /// engine ignores limits: it waits for all of its work.
    #[must_use = "the limit is lifted when the guard is dropped"]
    pub fn enter(self) -> TimeLimitGuard {
        let deadline = Deadline::after(self.0);
        DEADLINE.set(earlier(deadline, Deadline::current()));
        TimeLimitGuard { number: SCOPES.with(|scopes| scopes.begin(deadline)), here: PhantomData }
    }

    /// Calls `f` with the limit [entered](TimeLimit::enter): `TimeLimit(second).run(|| tensor.wait())?`.
    pub fn run<T>(self, f: impl FnOnce() -> T) -> T {
        let _limit = self.enter();
        f()
    }
}

/// Keeps a [`TimeLimit`] on a thread.
#[derive(Debug)]
pub struct TimeLimitGuard {
    number: u64,
    /// Makes the guard `!Send`: the limit is a thread-local of the thread that entered it.
    here: PhantomData<*const ()>,
}

impl Drop for TimeLimitGuard {
    fn drop(&mut self) {
        // A guard that is dropped with the thread may find that the other variables are gone.
        let left = SCOPES.try_with(|scopes| {
            scopes.end(self.number);
            scopes.fold(None, earlier)
        });
        DEADLINE.set(left.ok().flatten());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_deadline_counts_until_its_guard_is_dropped() {
        assert_eq!(Deadline::current(), None);
        let outer = TimeLimit(Duration::from_secs(100)).enter();
        let of_outer = Deadline::current();
        assert!(
            matches!(of_outer.map(|d| d.error(String::new())), Some(Error::Timeout { after, .. }) if after == Duration::from_secs(100))
        );
        let inner = TimeLimit(Duration::from_secs(10)).enter();
        assert!(
            matches!(Deadline::current().map(|d| d.error(String::new())), Some(Error::Timeout { after, .. }) if after == Duration::from_secs(10))
        );
        let later = TimeLimit(Duration::from_secs(1000)).enter();
        assert!(
            matches!(Deadline::current().map(|d| d.error(String::new())), Some(Error::Timeout { after, .. }) if after == Duration::from_secs(10))
        );
        drop(later);
        drop(inner);
        assert_eq!(Deadline::current(), of_outer);
        assert_eq!(Deadline::within(Duration::MAX), of_outer, "the clock cannot represent it");
        drop(outer);
        assert_eq!(Deadline::current(), None);
        // The new guard begins before the old one is dropped.
        let mut limit = Some(TimeLimit(Duration::from_secs(1)).enter());
        assert!(Deadline::current().is_some());
        drop(limit.replace(TimeLimit(Duration::from_secs(100)).enter()));
        assert!(
            matches!(Deadline::current().map(|d| d.error(String::new())), Some(Error::Timeout { after, .. }) if after == Duration::from_secs(100))
        );
        drop(limit);
        assert_eq!(Deadline::current(), None);
    }

    #[test]
    fn a_deadline_is_over_when_its_moment_has_come() {
        assert!(Deadline::after(Duration::ZERO).is_some_and(|deadline| deadline.is_over()));
        assert!(Deadline::after(Duration::from_secs(1000)).is_some_and(|deadline| !deadline.is_over()));
        assert_eq!(Deadline::after(Duration::MAX), None);
    }
}
