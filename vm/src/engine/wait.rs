//! Waiting for points: blocking, with a deadline, or by callback.
//!
//! * A thread of an engine may not wait, because it may be the thread that has to run what it waits for.
//! * In a forked child no thread may wait, because the engine's threads do not exist there.
//! * A waiting caller helps first ([`help`](crate::engine::help)), then spins, then parks.

use std::cell::Cell;
use std::sync::Arc;

use streamvm_ep::Site;
use streamvm_instructions::{Callback, Deadline, Error, Registration};
use streamvm_stream::Point;

use crate::engine::core::Engine;
use crate::engine::registered_callback::RegisteredCallback;
use crate::engine::simulated::Simulated;
use crate::execute::stall::Watch;
use crate::progress::claims::Awaited;
use crate::progress::stream_state::StreamState;
use crate::progress::waiters::Wake;
use crate::sync::spin::{self, Spin};
use crate::sync::{AtomicU64, Ordering, current, engine_thread, park, park_timeout};
use crate::tasks::events::Why;
use crate::tasks::spans;

/// Counts a caller as spinning while it lives; contexts then poll their inboxes more often. A hint: no ordering relies on it.
struct Waiting<'a>(&'a AtomicU64);

impl Waiting<'_> {
    fn begin(waiting: &AtomicU64) -> Waiting<'_> {
        waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Engine {
    /// Whether the calling thread may wait. Checked before the timelines, so that the answer does not depend on timing, and
    /// before any lock.
    ///
    /// # Errors
    /// [`Error::WouldDeadlock`] on a thread of an engine, [`Error::Forked`] in a forked child.
    #[track_caller]
    pub(crate) fn may_wait(&self) -> Result<(), Error> {
        self.handle.may_wait()
    }

    /// Blocks until `point` has passed; a trace shows that, if there is a site.
    ///
    /// # Errors
    /// [`Error::Timeout`] at the deadline; [`Error::Stalled`] in simulated mode without one; those of [`Engine::may_wait`].
    #[track_caller]
    pub(crate) fn wait_for(&self, point: Point, deadline: Option<Deadline>, site: Option<Site>) -> Result<(), Error> {
        // Also of a wait that is over at once: in a run in which others take less time, it might be the one that counts.
        let noted = self.timeline.as_ref().zip(site).map(|(timeline, site)| (timeline, site, timeline.now()));
        let blocks = self.has_spans() && !self.streams.has_passed(point);
        let waited = {
            let _span = site.and_then(|site| spans::wait(blocks, "a result", site));
            self.wait_unseen(point, deadline)
        };
        if let Some((timeline, site, began)) = noted {
            match waited {
                Ok(()) => timeline.blocked(Why::Result(point), site, began),
                Err(Error::Timeout { .. } | Error::Stalled { .. }) => timeline.blocked(Why::InVain, site, began),
                Err(_) => {}
            }
        }
        waited?;
        if let Some(observer) = &self.observer {
            observer.saw(point);
        }
        Ok(())
    }

    #[track_caller]
    fn wait_unseen(&self, point: Point, deadline: Option<Deadline>) -> Result<(), Error> {
        self.may_wait()?;
        let Some(stream_state) = self.streams.get(point.stream) else {
            return Ok(());
        };
        if stream_state.has_passed(point.seq) {
            return Ok(());
        }
        stream_state.demand(point.seq);
        if let Some(simulated) = &self.simulated {
            return self.step_until(simulated, || self.streams.has_passed(point), deadline, || self.waited_for(point));
        }
        if deadline.is_none() && self.help(stream_state, point.seq) {
            return Ok(());
        }
        if self.spin_until_passed(stream_state, point.seq) {
            return Ok(());
        }
        let mut watch = Watch::new(self);
        let Ok(id) = stream_state.when_passed(point.seq, Wake::Thread(current())) else {
            return Ok(());
        };
        while !stream_state.has_passed(point.seq) {
            if let Some(deadline) = deadline
                && deadline.is_over()
            {
                stream_state.forget(point.seq, id);
                return Err(deadline.error(self.waited_for(point)));
            }
            match watch.nap(deadline) {
                None => park(),
                Some(nap) => park_timeout(nap),
            }
            watch.look(self);
        }
        Ok(())
    }

    /// Spins until `seq` has passed or the spin is used up; returns whether it has passed.
    fn spin_until_passed(&self, stream_state: &StreamState, seq: u64) -> bool {
        let _here = Waiting::begin(&self.waiting);
        let mut spin = Spin::new(spin::CALLER);
        loop {
            // While many instructions are still to pass before `seq`, the runner writes the cache line of the timeline all the
            // time, and polling it would slow the runner down.
            let is_near = stream_state.is_near(seq);
            if !spin.turn(|| is_near && stream_state.has_passed(seq)) {
                return false;
            }
            if stream_state.has_passed(seq) {
                return true;
            }
        }
    }

    /// In simulated mode, steps the engine until `enough` returns true. If no part can step any more and there is a deadline, this
    /// returns the timeout at once, because nothing would happen until then.
    ///
    /// # Errors
    /// [`Error::Timeout`] at the deadline, [`Error::Stalled`] where there is none.
    #[track_caller]
    pub(crate) fn step_until(
        &self,
        simulated: &Simulated,
        enough: impl Fn() -> bool,
        deadline: Option<Deadline>,
        waited_for: impl FnOnce() -> String,
    ) -> Result<(), Error> {
        // The last answer is kept: `enough` may return false again, because other threads submit.
        let was_enough = Cell::new(false);
        simulated.step_until(self, || {
            was_enough.set(enough());
            was_enough.get() || deadline.is_some_and(|deadline| deadline.is_over())
        });
        match (was_enough.get(), deadline) {
            (true, _) => Ok(()),
            (false, Some(deadline)) => Err(deadline.error(waited_for())),
            (false, None) => Err(Error::Stalled { report: self.stall_report().to_string(), site: Site::caller() }),
        }
    }

    /// The outcome of a point that has passed: [`Error::Failed`] with the root cause if it failed.
    pub(crate) fn outcome(&self, awaited: &Awaited) -> Result<(), Error> {
        self.failures.outcome(awaited).map_or(Ok(()), |failure| Err(Error::Failed(failure)))
    }

    /// Blocks until everything submitted so far has passed; a trace shows that, if there is a site.
    ///
    /// # Errors
    /// As [`Engine::wait_for`].
    #[track_caller]
    pub(crate) fn drain(&self, deadline: Option<Deadline>, site: Option<Site>) -> Result<(), Error> {
        self.may_wait()?;
        let points: Vec<Point> = self.streams.iter().flat_map(|stream_state| stream_state.open_points()).collect();
        for point in points {
            self.wait_for(point, deadline, site)?;
        }
        if self.simulated.is_some() {
            // No thread runs those that belong to no instruction, such as the end of memory of others.
            self.step_callbacks();
        }
        Ok(())
    }

    /// Calls `callback` on the callback thread once all of `points` have passed. Does not block, except in simulated mode, where
    /// the caller steps until then. In a forked child, which has no such thread, calls it at once in the calling thread, with
    /// [`Error::Forked`].
    pub(crate) fn call_back(self: &Arc<Self>, points: Vec<Point>, callback: Callback) {
        if self.handle.fork.is_child() {
            return callback(Err(Error::forked()));
        }
        let steps = self.step_until_passed(&points);
        if let Err(callback) = RegisteredCallback::new(self, points, callback) {
            self.callbacks.run(Box::new(move || callback(Ok(()))));
        }
        if steps {
            self.step_callbacks();
        }
    }

    /// [`Engine::call_back`] for a future, whose callback can be taken back. If the points have passed, calls it at once, in the calling thread, and
    /// returns `None`.
    pub(crate) fn register(self: &Arc<Self>, points: Vec<Point>, callback: Callback) -> Option<Arc<dyn Registration>> {
        if self.handle.fork.is_child() {
            callback(Err(Error::forked()));
            return None;
        }
        let steps = self.step_until_passed(&points);
        let registered = RegisteredCallback::new(self, points, callback);
        if steps {
            self.step_callbacks();
        }
        match registered {
            Ok(registered) => Some(registered),
            Err(callback) => {
                callback(Ok(()));
                None
            }
        }
    }

    /// In simulated mode, where no thread steps on behalf of a callback or a future, steps until `points` have passed, and returns true. Does
    /// nothing on a thread of an engine.
    fn step_until_passed(&self, points: &[Point]) -> bool {
        let Some(simulated) = self.simulated.as_ref().filter(|_| !engine_thread::is_here()) else { return false };
        for point in points {
            if let Some(stream_state) = self.streams.get(point.stream) {
                stream_state.demand(point.seq);
            }
            simulated.step_until(self, || self.streams.has_passed(*point));
        }
        true
    }

    /// Runs the callbacks that are due, in simulated mode.
    fn step_callbacks(&self) {
        let _here = engine_thread::visit();
        while self.callbacks.step() {}
    }
}
