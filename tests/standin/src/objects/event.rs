//! Events and their records.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use streamvm_sim::races::Moment;

use crate::objects::context::Context;
use crate::objects::stream::Stream;

/// A record of an event: the point of a stream after its first `number` commands.
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

/// A record of an event in a capture: a place in a graph, and no point of a stream.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct CapturedRecord {
    /// The number of the capture.
    pub(crate) capture: u64,
    /// The number of the record in it.
    pub(crate) record: usize,
}

/// An event. A new record replaces its mark; waits that took the old mark keep it.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: Arc<Context>,
    /// Does it take a timestamp when it passes?
    pub(crate) timed: bool,
    mark: Mutex<Option<Arc<Mark>>>,
    /// Its last record, if that was in a capture.
    captured: Mutex<Option<CapturedRecord>>,
}

impl Event {
    /// An event without a record.
    pub(crate) fn new(context: Arc<Context>, timed: bool) -> Event {
        Event { context, timed, mark: Mutex::new(None), captured: Mutex::new(None) }
    }

    /// Its last record, if it has one.
    pub(crate) fn mark(&self) -> Option<Arc<Mark>> {
        self.mark.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Its last record, if that was in a capture.
    pub(crate) fn captured(&self) -> Option<CapturedRecord> {
        *self.captured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a record in a capture.
    pub(crate) fn record_captured(&self, record: CapturedRecord) {
        *self.captured.lock().unwrap_or_else(PoisonError::into_inner) = Some(record);
    }

    /// Sets its last record.
    pub(crate) fn record(&self, mark: Arc<Mark>) {
        *self.captured.lock().unwrap_or_else(PoisonError::into_inner) = None;
        *self.mark.lock().unwrap_or_else(PoisonError::into_inner) = Some(mark);
    }
}
