//! Events: the point that each event marks at a line of the file.
//!
//! An event marks a point from its record on, until it is recorded again. A wait by event comes after the point that the event
//! marks at the wait's line, whatever point the wait names, as a device knows only the event.

use std::collections::HashMap;

use crate::report::{FaultKind, UnusedRecord};
use crate::trace::{At, Trace};

/// The points that events mark, updated line by line.
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
    /// Notes the record of an event. Returns the event's previous record, if no wait used it.
    pub(crate) fn record(&mut self, event: u64, point: At, line: u64) -> Option<Recorded> {
        let before = self.last.insert(event, Recorded { event, point, line, used: false });
        before.filter(|recorded| !recorded.used)
    }

    /// The point that a wait comes after, if there is one, and the fault of the wait, if it has one.
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

    /// The records that no wait used, in the order of the file.
    pub(crate) fn rest(self) -> impl Iterator<Item = Recorded> {
        let mut rest: Vec<Recorded> = self.last.into_values().filter(|recorded| !recorded.used).collect();
        rest.sort_unstable_by_key(|recorded| recorded.line);
        rest.into_iter()
    }
}
