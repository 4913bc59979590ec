//! Singles: the instructions of unordered streams, as the monitor tells the detector of them.
//!
//! Each comes after what it waited for and nothing else, so each is an actor of its own while it runs. Actors are used again,
//! the longest unused first. What was known when an instruction had passed is kept for the newest [`KEPT`] of them; what
//! was known at older ones is merged into one moment, which is more order than there is, so no false finding.

use std::collections::VecDeque;

use hashbrown::HashMap;
use streamvm_ep::races::{ActorId, Moment};
use streamvm_stream::{Point, StreamId};

/// Actors of a stream to begin with; more are made when more instructions are under way at once.
const ACTORS: usize = 64;

/// Instructions whose moments are kept one by one.
const KEPT: usize = 16 * 1024;

/// See the module's comment.
#[derive(Default)]
pub(crate) struct Singles {
    idle: HashMap<StreamId, VecDeque<ActorId>>,
    under_way: HashMap<Point, ActorId>,
    moments: HashMap<Point, Moment>,
    /// The points of these, oldest first.
    order: VecDeque<Point>,
    /// What came before the oldest.
    before: Moment,
}

impl Singles {
    /// A stream was opened; `actor` makes an actor of it.
    pub(crate) fn open(&mut self, stream: StreamId, actor: impl Fn() -> ActorId) {
        self.idle.insert(stream, (0..ACTORS).map(|_| actor()).collect());
    }

    /// Who the instruction that starts now is; `None` on an ordered stream.
    pub(crate) fn start(&mut self, point: Point, actor: impl FnOnce() -> ActorId) -> Option<ActorId> {
        if !point.stream.is_unordered() {
            return None;
        }
        let idle = self.idle.get_mut(&point.stream).and_then(VecDeque::pop_front);
        let actor = idle.unwrap_or_else(actor);
        self.under_way.insert(point, actor);
        Some(actor)
    }

    /// An instruction is about to pass; `release` gives the moment of an actor.
    pub(crate) fn pass(&mut self, point: Point, release: impl FnOnce(ActorId) -> Moment) {
        let Some(actor) = self.under_way.remove(&point) else { return };
        self.moments.insert(point, release(actor));
        self.idle.entry(point.stream).or_default().push_back(actor);
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
