//! How the scheduler thread and the completion thread park until a point has passed.
//!
//! The thread announces that it parks, then checks for work and registers for points. A push or a passing that these checks miss
//! finds the announcement and wakes the thread.

use std::sync::Arc;

use streamvm_stream::Point;

use crate::execute::environment::Environment;
use crate::progress::waiters::Wake;
use crate::sync::parker::Parker;

/// A thread of the engine that has announced that it parks.
pub(crate) struct ParkAttempt<'a> {
    env: &'a Environment,
    parker: &'a Arc<Parker>,
    /// No check has found work so far.
    idle: bool,
    /// The points that wake the thread, with the ids of the waiters.
    registered: Vec<(Point, u64)>,
}

impl<'a> ParkAttempt<'a> {
    /// Announces that this thread, which owns `parker`, is about to park.
    pub(crate) fn new(env: &'a Environment, parker: &'a Arc<Parker>) -> ParkAttempt<'a> {
        parker.prepare_park();
        ParkAttempt { env, parker, idle: !env.may_end(), registered: Vec::new() }
    }

    /// There is work: the thread will not park.
    pub(crate) fn found_work(&mut self) {
        self.idle = false;
    }

    /// Wakes the thread when the point has passed. If it has passed already, there is work.
    pub(crate) fn wake_at(&mut self, point: Point) {
        let stream_state = self.env.streams.get(point.stream);
        let wake = Wake::Parker(self.parker.clone());
        match stream_state.and_then(|stream_state| stream_state.when_passed(point.seq, wake).ok()) {
            Some(id) => self.registered.push((point, id)),
            None => self.idle = false,
        }
    }

    /// Parks until the thread is woken, unless work was found.
    pub(crate) fn sleep(self) {
        if self.idle {
            self.parker.sleep();
        } else {
            self.parker.cancel_park();
        }
        for (point, id) in self.registered {
            if let Some(stream_state) = self.env.streams.get(point.stream) {
                stream_state.forget(point.seq, id);
            }
        }
    }
}
