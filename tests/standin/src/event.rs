//! Events, and the marks that they are recorded as.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use streamvm_ep::races::Moment;

use crate::context::Context;
use crate::stream::Stream;

/// A place in a stream: behind its first `number` commands.
#[derive(Debug)]
pub(crate) struct Mark {
    pub(crate) stream: Arc<Stream>,
    pub(crate) number: u64,
    /// What comes before it.
    pub(crate) moment: Moment,
    /// When the stream came there, once it has.
    pub(crate) passed_at: OnceLock<Instant>,
}

impl Mark {
    /// Has the stream come there?
    pub(crate) fn has_passed(&self) -> bool {
        self.stream.has_passed(self.number)
    }
}

/// An event. Recording it again replaces its mark; waits that took the old one keep it.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: Arc<Context>,
    /// Does it note when it passes?
    pub(crate) timed: bool,
    mark: Mutex<Option<Arc<Mark>>>,
}

impl Event {
    /// An event that nothing has recorded.
    pub(crate) fn new(context: Arc<Context>, timed: bool) -> Event {
        Event { context, timed, mark: Mutex::new(None) }
    }

    /// Its last record, if there is one.
    pub(crate) fn mark(&self) -> Option<Arc<Mark>> {
        self.mark.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records it.
    pub(crate) fn record(&self, mark: Arc<Mark>) {
        *self.mark.lock().unwrap_or_else(PoisonError::into_inner) = Some(mark);
    }
}
