//! Events of a program: a mark on one stream that other streams can wait for.

use std::fmt;
use std::sync::{Arc, OnceLock};

use streamvm_stream::Point;

use crate::engine::interface::EngineRef;

/// A mark that one `record` sets and any number of later `wait`s name. `Clone` is cheap; `Send + Sync`.
#[derive(Clone, Default)]
pub struct Event(Arc<OnceLock<Mark>>);

struct Mark {
    engine: EngineRef,
    point: Point,
}

impl Event {
    /// Returns an event that is not recorded yet.
    pub fn new() -> Event {
        Event::default()
    }

    /// Whether the event's record was submitted.
    pub fn is_recorded(&self) -> bool {
        self.0.get().is_some()
    }

    /// The point that the event marks in `engine`; `None` until its record was submitted to `engine`.
    pub fn point_in(&self, engine: EngineRef) -> Option<Point> {
        let mark = self.0.get()?;
        mark.engine.is(engine).then_some(mark.point)
    }

    /// Sets the event to `point` of `engine`. Returns false, and changes nothing, if the event was recorded before.
    pub fn set(&self, engine: EngineRef, point: Point) -> bool {
        self.0.set(Mark { engine, point }).is_ok()
    }

    /// Whether two handles are the same event.
    pub fn is(&self, other: &Event) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// A number that differs between events that are alive at the same time.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.get() {
            Some(mark) => write!(f, "Event({})", mark.point),
            None => f.write_str("Event(not recorded)"),
        }
    }
}
