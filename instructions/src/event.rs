//! Events as a program names them: a mark on one stream that another can wait for.

use std::fmt;
use std::sync::{Arc, OnceLock};

use streamvm_stream::Point;

use crate::engine::EngineRef;

/// A mark that a `record` sets once and any number of later `wait`s name. `Clone` is cheap; `Send + Sync`.
#[derive(Clone, Default)]
pub struct Event(Arc<OnceLock<Mark>>);

struct Mark {
    engine: EngineRef,
    point: Point,
}

impl Event {
    /// An event that was not recorded yet.
    pub fn new() -> Event {
        Event::default()
    }

    /// Whether its record was submitted.
    pub fn is_recorded(&self) -> bool {
        self.0.get().is_some()
    }

    /// The point that it marks in `engine`, once its record was submitted there.
    pub fn point_in(&self, engine: EngineRef) -> Option<Point> {
        let mark = self.0.get()?;
        mark.engine.is(engine).then_some(mark.point)
    }

    /// Marks `point` of `engine`. Returns false, and changes nothing, if it was recorded before.
    pub fn set(&self, engine: EngineRef, point: Point) -> bool {
        self.0.set(Mark { engine, point }).is_ok()
    }

    /// Whether two handles are the same event.
    pub fn is(&self, other: &Event) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Tells events apart while both are alive.
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
