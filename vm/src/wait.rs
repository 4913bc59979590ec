//! Waiting for points: blocking, with a deadline, by callback.
//!
//! A thread of an engine must not wait: the thread that it waits for may be itself. In a child of the engine's process
//! nobody waits either: no thread of the engine is there. A caller that waits helps first ([`help`](crate::help)), then spins,
//! then parks.

use std::cell::Cell;
use std::sync::Arc;

use streamvm_instructions::{Callback, Deadline, Engine, Error};
use streamvm_stream::Point;

use crate::claims::Awaited;
use crate::engine_thread;
use crate::entry::StreamEntry;
use crate::shared::Shared;
use crate::simulated::Simulated;
use crate::spin::{self, Spin};
use crate::stall::Watch;
use crate::sync::{AtomicU64, Ordering, current, park, park_timeout};
use crate::waiters::Wake;

/// A caller that waits and has not parked yet, as contexts see it. Nothing is ordered by it.
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

impl Shared {
    /// Whether the calling thread may wait. Looked at before the timelines, so that the answer does not depend on the
    /// moment, and before any lock.
    pub(crate) fn may_wait(&self) -> Result<(), Error> {
        self.handle.may_wait()
    }

    /// Blocks until `point` has passed.
    ///
    /// # Errors
    /// [`Error::Timeout`] at the deadline; what [`Shared::may_wait`] gives.
    pub(crate) fn wait_for(&self, point: Point, deadline: Option<Deadline>) -> Result<(), Error> {
        self.wait_unseen(point, deadline)?;
        if let Some(monitor) = &self.monitor {
            monitor.saw(point);
        }
        Ok(())
    }

    fn wait_unseen(&self, point: Point, deadline: Option<Deadline>) -> Result<(), Error> {
        self.may_wait()?;
        let Some(entry) = self.streams.get(point.stream) else {
            return Ok(());
        };
        if entry.has_passed(point.seq) {
            return Ok(());
        }
        entry.demand(point.seq);
        if let Some(simulated) = &self.simulated {
            return self.step_until(simulated, || self.streams.has_passed(point), deadline);
        }
        if deadline.is_none() && self.help(entry, point.seq) {
            return Ok(());
        }
        if self.spin_until_passed(entry, point.seq) {
            return Ok(());
        }
        let mut watch = Watch::new(self);
        let Ok(id) = entry.when_passed(point.seq, Wake::Thread(current())) else {
            return Ok(());
        };
        while !entry.has_passed(point.seq) {
            if let Some(deadline) = deadline
                && deadline.is_over()
            {
                entry.forget(point.seq, id);
                return Err(deadline.error());
            }
            match watch.nap(deadline) {
                None => park(),
                Some(nap) => park_timeout(nap),
            }
            watch.look(self);
        }
        Ok(())
    }

    /// Whether an instruction has passed while it was worth spinning.
    fn spin_until_passed(&self, entry: &StreamEntry, seq: u64) -> bool {
        let _here = Waiting::begin(&self.waiting);
        let mut spin = Spin::new(spin::CALLER);
        loop {
            // Whoever runs those before it writes to that line all the time.
            let is_near = entry.is_near(seq);
            if !spin.turn(|| is_near && entry.has_passed(seq)) {
                return false;
            }
            if entry.has_passed(seq) {
                return true;
            }
        }
    }

    /// In simulated mode, steps the engine until `enough`. What can never be is taken to the deadline: nothing happens
    /// before it any more.
    ///
    /// # Errors
    /// [`Error::Timeout`] at the deadline, [`Error::Stalled`] where there is none.
    pub(crate) fn step_until(
        &self,
        simulated: &Simulated,
        enough: impl Fn() -> bool,
        deadline: Option<Deadline>,
    ) -> Result<(), Error> {
        // Not asked again at the end: what was enough may be so no more, where other threads submit.
        let was_enough = Cell::new(false);
        simulated.step_until(self, || {
            was_enough.set(enough());
            was_enough.get() || deadline.is_some_and(|deadline| deadline.is_over())
        });
        match (was_enough.get(), deadline) {
            (true, _) => Ok(()),
            (false, Some(deadline)) => Err(deadline.error()),
            (false, None) => Err(Error::Stalled { report: self.stall_report().to_string() }),
        }
    }

    /// The outcome of a point that has passed.
    pub(crate) fn outcome(&self, awaited: &Awaited) -> Result<(), Error> {
        self.failures.outcome(awaited).map_or(Ok(()), |failure| Err(Error::Failed(failure)))
    }

    /// Blocks until everything submitted so far has passed.
    ///
    /// # Errors
    /// As [`Shared::wait_for`].
    pub(crate) fn drain(&self, deadline: Option<Deadline>) -> Result<(), Error> {
        self.may_wait()?;
        let points: Vec<Point> = self.streams.iter().flat_map(|entry| entry.open_points()).collect();
        points.into_iter().try_for_each(|point| self.wait_for(point, deadline))
    }

    /// Calls back, on the callback thread, once all of `points` have passed. In a child of the engine's process, where there is
    /// no such thread, at once and here, with an error.
    pub(crate) fn call_back(self: &Arc<Self>, points: Vec<Point>, callback: Callback) {
        if self.handle.fork.is_child() {
            return callback(Err(Error::Forked));
        }
        let Some(simulated) = self.simulated.as_ref().filter(|_| !engine_thread::is_here()) else {
            return self.call_back_later(points, callback);
        };
        // Nobody steps on behalf of a callback or a future, so it is due before this returns.
        for point in &points {
            if let Some(entry) = self.streams.get(point.stream) {
                entry.demand(point.seq);
            }
            simulated.step_until(self, || self.streams.has_passed(*point));
        }
        self.call_back_later(points, callback);
        let _here = engine_thread::visit();
        while self.callbacks.step() {}
    }

    fn call_back_later(self: &Arc<Self>, points: Vec<Point>, callback: Callback) {
        if let Some(callback) = self.call_back_behind(points, callback) {
            self.callbacks.run(Box::new(move || callback(Ok(()))));
        }
    }

    /// Has `callback` called on the callback thread once all of `points` have passed; gives it back if they have. It waits for
    /// one of them at a time, and is never wrapped twice: there may be a hundred thousand.
    fn call_back_behind(self: &Arc<Self>, mut points: Vec<Point>, callback: Callback) -> Option<Callback> {
        let (entry, seq) = loop {
            let Some(point) = points.pop() else { return Some(callback) };
            match self.streams.get(point.stream) {
                Some(entry) if !entry.has_passed(point.seq) => break (entry, point.seq),
                _ => {}
            }
        };
        let vm = self.clone();
        let go_on: Box<dyn FnOnce() + Send> = Box::new(move || {
            if let Some(callback) = vm.call_back_behind(points, callback) {
                callback(Ok(()));
            }
        });
        if let Err(Wake::Callback(callbacks, go_on)) =
            entry.when_passed(seq, Wake::Callback(self.callbacks.clone(), go_on))
        {
            callbacks.run(go_on);
        }
        None
    }
}
