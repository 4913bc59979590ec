//! Singles: the instructions of unordered streams, as the monitor tells the detector of them.
//!
//! Each comes after what it waited for and nothing else, so each is an actor of its own while it runs. Actors are used again,
//! the longest unused first, by all unordered streams of the engine: every moment that is kept has an entry for each actor. What was
//! known when an instruction had passed is kept for the newest [`KEPT`] of them; what was known at older ones is merged into one
//! moment, which is more order than there is, so no false finding.

use std::collections::VecDeque;

use hashbrown::HashMap;
use streamvm_ep::races::{ActorId, Moment};
use streamvm_stream::Point;

/// So many actors are made before one is used again. More are made when more instructions are under way at once.
const ACTORS: usize = 64;

/// Instructions whose moments are kept one by one: as many as may be pending in an engine that was not built otherwise.
const KEPT: usize = 16 * 1024;

/// See the module's comment.
#[derive(Default)]
pub(crate) struct Singles {
    idle: VecDeque<ActorId>,
    /// How many actors there are.
    actors: usize,
    under_way: HashMap<Point, ActorId>,
    moments: HashMap<Point, Moment>,
    /// The points of these, oldest first.
    order: VecDeque<Point>,
    /// What came before the oldest.
    before: Moment,
}

impl Singles {
    /// The actor of the instruction that starts now; `None` on an ordered stream.
    pub(crate) fn start(&mut self, point: Point, actor: impl FnOnce() -> ActorId) -> Option<ActorId> {
        if !point.stream.is_unordered() {
            return None;
        }
        let idle = if self.actors < ACTORS { None } else { self.idle.pop_front() };
        let actor = idle.unwrap_or_else(|| {
            self.actors += 1;
            actor()
        });
        self.under_way.insert(point, actor);
        Some(actor)
    }

    /// An instruction is about to pass; `release` gives the moment of an actor.
    pub(crate) fn pass(&mut self, point: Point, release: impl FnOnce(ActorId) -> Moment) {
        let Some(actor) = self.under_way.remove(&point) else { return };
        self.moments.insert(point, release(actor));
        self.idle.push_back(actor);
        self.order.push_back(point);
        if self.order.len() > KEPT
            && let Some(oldest) = self.order.pop_front()
            && let Some(moment) = self.moments.remove(&oldest)
        {
            self.before.merge(&moment);
        }
    }

    /// What was known when the instruction had passed.
    pub(crate) fn find(&self, point: Point) -> Option<Moment> {
        Some(self.moments.get(&point).unwrap_or(&self.before).clone())
    }
}
