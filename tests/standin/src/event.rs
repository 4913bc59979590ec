//! Events and their records.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use streamvm_ep::races::Moment;

use crate::context::Context;
use crate::stream::Stream;

/// A record of an event: the point of a stream behind its first `number` commands.
#[derive(Debug)]
pub(crate) struct Mark {
    pub(crate) stream: Arc<Stream>,
    pub(crate) number: u64,
    /// The clock of the stream at this point, for the race detector.
    pub(crate) moment: Moment,
    /// The time at which the stream passed the point, once it has.
    pub(crate) passed_at: OnceLock<Instant>,
}

impl Mark {
    /// Has the stream passed the point?
    pub(crate) fn has_passed(&self) -> bool {
        self.stream.has_passed(self.number)
    }
}

/// An event. A new record replaces its mark; waits that took the old mark keep it.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: Arc<Context>,
    /// Does it take a timestamp when it passes?
    pub(crate) timed: bool,
    mark: Mutex<Option<Arc<Mark>>>,
    /// Was it last recorded in a capture, so that it marks no point of a stream?
    captured: AtomicBool,
}

impl Event {
    /// An event without a record.
    pub(crate) fn new(context: Arc<Context>, timed: bool) -> Event {
        Event { context, timed, mark: Mutex::new(None), captured: AtomicBool::new(false) }
    }

    /// Its last record, if it has one.
    pub(crate) fn mark(&self) -> Option<Arc<Mark>> {
        self.mark.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Was it last recorded in a capture?
    pub(crate) fn is_captured(&self) -> bool {
        self.captured.load(Ordering::Acquire)
    }

    /// Notes a record in a capture.
    pub(crate) fn record_captured(&self) {
        self.captured.store(true, Ordering::Release);
    }

    /// Sets its last record.
    pub(crate) fn record(&self, mark: Arc<Mark>) {
        self.captured.store(false, Ordering::Release);
        *self.mark.lock().unwrap_or_else(PoisonError::into_inner) = Some(mark);
    }
}
