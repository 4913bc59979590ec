//! Callbacks that wait for points, and can be taken back.
//!
//! A callback waits for one point at a time, because there may be a hundred thousand points. At each it is a waiter of the point's stream
//! ([`StreamState::when_passed`]); once the point has passed, the callback thread lets it go on to the next point.
//!
//! * The lock of the callback is held while it becomes a waiter, so [`cancel`](Registration::cancel) finds either no waiter or its number.
//! * Whoever takes the contents out, the thread that finds the last point passed or the one that cancels, owns the callback. It calls or drops the
//!   callback after it has left the lock.
//! * The contents hold the engine, so a future that is kept after its work has passed does not keep the engine.
//!
//! [`StreamState::when_passed`]: crate::progress::stream_state::StreamState::when_passed

use std::sync::Arc;

use streamvm_instructions::{Callback, Registration};
use streamvm_stream::Point;

use crate::engine::core::Engine;
use crate::progress::waiters::Wake;
use crate::sync::{Mutex, unpoisoned};

/// See the module's documentation.
pub(crate) struct RegisteredCallback(Mutex<Option<Contents>>);

struct Contents {
    engine: Arc<Engine>,
    callback: Callback,
    /// The points that are left.
    points: Vec<Point>,
    /// The point that it waits for, with the id of its waiter.
    waiter: Option<(Point, u64)>,
}

impl RegisteredCallback {
    /// Registers `callback` to be called, on the callback thread, once all of `points` have passed.
    ///
    /// # Errors
    /// Gives `callback` back if they have passed.
    pub(crate) fn new(
        engine: &Arc<Engine>,
        points: Vec<Point>,
        callback: Callback,
    ) -> Result<Arc<RegisteredCallback>, Callback> {
        let contents = Contents { engine: engine.clone(), callback, points, waiter: None };
        let registered = Arc::new(RegisteredCallback(Mutex::new(Some(contents))));
        match registered.go_on() {
            Some(callback) => Err(callback),
            None => Ok(registered),
        }
    }

    /// Waits for the next point that has not passed. Returns the callback if there is none.
    fn go_on(self: &Arc<Self>) -> Option<Callback> {
        let mut locked = unpoisoned(self.0.lock());
        let Contents { engine, points, waiter, .. } = locked.as_mut()?;
        *waiter = None;
        while let Some(point) = points.pop() {
            let Some(stream_state) = engine.streams.get(point.stream) else { continue };
            if stream_state.has_passed(point.seq) {
                continue;
            }
            let me = self.clone();
            let go_on = Box::new(move || {
                if let Some(callback) = me.go_on() {
                    callback(Ok(()));
                }
            });
            if let Ok(id) = stream_state.when_passed(point.seq, Wake::Callback(engine.callbacks.clone(), go_on)) {
                *waiter = Some((point, id));
                return None;
            }
        }
        let contents = locked.take();
        drop(locked);
        contents.map(|contents| contents.callback)
    }
}

impl Registration for RegisteredCallback {
    fn cancel(&self) {
        let Some(Contents { engine, callback, waiter, .. }) = unpoisoned(self.0.lock()).take() else { return };
        if let Some((point, id)) = waiter
            && let Some(stream_state) = engine.streams.get(point.stream)
        {
            stream_state.forget(point.seq, id);
        }
        drop(callback);
    }
}
