//! Events: which point each shows, as the file goes on.
//!
//! An event marks a point from its record on, until it is recorded again. A wait by event comes after what the event marks
//! where the wait stands, whatever the wait says of it: a device knows nothing else.

use std::collections::HashMap;

use crate::report::{FaultKind, UnusedRecord};
use crate::trace::{At, Trace};

/// What events show, as the file goes on.
#[derive(Default)]
pub(crate) struct Events {
    last: HashMap<u64, Recorded>,
}

pub(crate) struct Recorded {
    event: u64,
    point: At,
    line: u64,
    used: bool,
}

impl Recorded {
    pub(crate) fn told(&self, trace: &Trace) -> UnusedRecord {
        UnusedRecord {
            line: self.line,
            event: self.event,
            point: trace.point(self.point),
            stream: trace.streams[self.point.stream as usize].name.to_string(),
        }
    }
}

impl Events {
    /// An event marks a point; what it marked before, if nobody waited for it.
    pub(crate) fn record(&mut self, event: u64, point: At, line: u64) -> Option<Recorded> {
        let before = self.last.insert(event, Recorded { event, point, line, used: false });
        before.filter(|recorded| !recorded.used)
    }

    /// The point that a wait comes after, if it comes after any, and what is wrong with it.
    pub(crate) fn wait(&mut self, trace: &Trace, point: At, event: Option<u64>) -> (Option<At>, Option<FaultKind>) {
        let Some(event) = event else { return (Some(point), None) };
        let Some(recorded) = self.last.get_mut(&event) else {
            return (None, Some(FaultKind::NeverRecorded { event, point: trace.point(point) }));
        };
        recorded.used = true;
        let shown = recorded.point;
        let shows = shown.stream == point.stream
            && if trace.streams[point.stream as usize].ordered { shown.seq >= point.seq } else { shown == point };
        let fault = FaultKind::WrongEvent { event, point: trace.point(point), shows: trace.point(shown) };
        (Some(shown), (!shows).then_some(fault))
    }

    /// The records that nobody waited for, in the order of the file.
    pub(crate) fn rest(self) -> impl Iterator<Item = Recorded> {
        let mut rest: Vec<Recorded> = self.last.into_values().filter(|recorded| !recorded.used).collect();
        rest.sort_unstable_by_key(|recorded| recorded.line);
        rest.into_iter()
    }
}
