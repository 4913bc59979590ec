//! Waiting for points: blocking, with a deadline, by callback.
//!
//! A thread of an engine must not wait: the thread that it waits for may be itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use streamvm_instructions::{Callback, Error};
use streamvm_stream::Point;

use crate::engine_thread;
use crate::shared::Shared;
use crate::simulated::Simulated;
use crate::spin::{self, Spin};
use crate::waiters::Wake;

/// When a wait of `timeout` from now gives up; `None` for a time too far away to name.
pub(crate) fn deadline(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

impl Shared {
    /// Blocks until `point` has passed, or until the deadline: then false.
    pub(crate) fn wait_for(&self, point: Point, deadline: Option<Instant>) -> Result<bool, Error> {
        let passed = self.wait_unseen(point, deadline)?;
        if passed && let Some(monitor) = &self.monitor {
            monitor.saw(point);
        }
        Ok(passed)
    }

    fn wait_unseen(&self, point: Point, deadline: Option<Instant>) -> Result<bool, Error> {
        let Some(entry) = self.streams.get(point.stream) else {
            return Ok(true);
        };
        // Before the look at the timeline, so that the answer does not depend on the moment.
        if engine_thread::is_here() {
            return Err(Error::WouldDeadlock);
        }
        if entry.timeline.passed() >= point.seq {
            return Ok(true);
        }
        entry.demand(point.seq);
        if let Some(simulated) = &self.simulated {
            return self.step_to(simulated, point, deadline);
        }
        let mut spin = Spin::new(spin::CALLER);
        while spin.turn() {
            if entry.timeline.passed() >= point.seq {
                return Ok(true);
            }
        }
        let Ok(id) = entry.when_passed(point.seq, Wake::Thread(std::thread::current())) else {
            return Ok(true);
        };
        while entry.timeline.passed() < point.seq {
            match deadline {
                None => std::thread::park(),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        entry.waiters.remove(&entry.timeline, id);
                        return Ok(false);
                    }
                    std::thread::park_timeout(left);
                }
            }
        }
        Ok(true)
    }

    /// In simulated mode, steps the engine until `point` has passed. False at the deadline, which what can never pass
    /// is taken to: nothing happens before it any more.
    fn step_to(&self, simulated: &Simulated, point: Point, deadline: Option<Instant>) -> Result<bool, Error> {
        let late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let passed = || self.streams.has_passed(point);
        simulated.step_until(self, || passed() || late());
        match (passed(), deadline) {
            (true, _) => Ok(true),
            (false, Some(_)) => Ok(false),
            (false, None) => Err(Error::Stalled { report: self.stalled() }),
        }
    }

    /// The outcome of a point that has passed.
    pub(crate) fn outcome(&self, point: Point) -> Result<(), Error> {
        self.failures.outcome(point).map_or(Ok(()), |failure| Err(Error::Failed(failure)))
    }

    /// Blocks until everything submitted so far has passed. `false` past the deadline.
    pub(crate) fn drain_until(&self, deadline: Option<Instant>) -> Result<bool, Error> {
        if engine_thread::is_here() {
            return Err(Error::WouldDeadlock);
        }
        let points: Vec<Point> = self.streams.iter().map(|entry| Point::new(entry.id, entry.submitted())).collect();
        for point in points {
            if !self.wait_for(point, deadline)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// [`Shared::drain_until`] without a deadline.
    pub(crate) fn drain(&self) -> Result<(), Error> {
        self.drain_until(None).map(drop)
    }

    /// Calls back, on the callback thread, with the outcome of `points` once all of them have passed.
    pub(crate) fn call_back(self: &Arc<Self>, points: Vec<Point>, callback: Callback) {
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

    fn call_back_later(self: &Arc<Self>, mut points: Vec<Point>, callback: Callback) {
        // One after the other: the last to be looked at is the last that is open.
        let Some(point) = points.pop() else {
            return self.callbacks.run(Box::new(move || callback(Ok(()))));
        };
        let vm = self.clone();
        let next: Box<dyn FnOnce() + Send> = Box::new(move || match vm.outcome(point) {
            Err(error) if vm.all_passed(&points) => callback(Err(error)),
            Err(error) => vm.call_back_later(points, Box::new(move |_| callback(Err(error)))),
            Ok(()) if points.is_empty() => callback(Ok(())),
            Ok(()) => vm.call_back_later(points, callback),
        });
        let Some(entry) = self.streams.get(point.stream) else {
            return self.callbacks.run(next);
        };
        if let Err(Wake::Callback(callbacks, next)) =
            entry.when_passed(point.seq, Wake::Callback(self.callbacks.clone(), next))
        {
            callbacks.run(next);
        }
    }

    fn all_passed(&self, points: &[Point]) -> bool {
        points.iter().all(|point| self.streams.has_passed(*point))
    }
}
