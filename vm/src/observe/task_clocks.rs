//! The vector clocks of instructions on unordered streams, as the observer reports them to the race detector.
//!
//! An instruction of an unordered stream is ordered only after what it waited for, so it is a detector actor of its own while it runs. All
//! unordered streams of an engine share one set of actors, because each moment (a copy of a vector clock) has one entry per actor. An actor
//! is reused only after a while, the longest idle first.
//!
//! The moments of the newest [`KEPT`] passed instructions are kept one by one. Older moments are merged into one. That implies more order
//! than exists, so the detector never reports a false race.

use std::collections::VecDeque;

use hashbrown::HashMap;
use streamvm_sim::races::{ActorId, Moment};
use streamvm_stream::Point;

/// How many actors must be idle before the longest idle one is reused. An instruction that is ordered after another counts as ordered also
/// after all earlier instructions that had the same actor as that one.
const IDLE: usize = 64;

/// How many passed instructions have a moment of their own.
const KEPT: usize = 16 * 1024;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct TaskClocks {
    idle: VecDeque<ActorId>,
    under_way: HashMap<Point, ActorId>,
    moments: HashMap<Point, Moment>,
    /// The points in `moments`, oldest first.
    order: VecDeque<Point>,
    /// The merged moments of all older instructions.
    before: Moment,
}

impl TaskClocks {
    /// Assigns an actor to the instruction that starts now. `actor` makes a new one. `None` on an ordered stream.
    pub(crate) fn start(&mut self, point: Point, actor: impl FnOnce() -> ActorId) -> Option<ActorId> {
        if !point.stream.is_unordered() {
            return None;
        }
        let idle = if self.idle.len() < IDLE { None } else { self.idle.pop_front() };
        let actor = idle.unwrap_or_else(actor);
        self.under_way.insert(point, actor);
        Some(actor)
    }

    /// Notes that an instruction is about to pass. `release` returns the moment of an actor.
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

    /// What was known to be over when the instruction passed.
    pub(crate) fn find(&self, point: Point) -> Option<Moment> {
        Some(self.moments.get(&point).unwrap_or(&self.before).clone())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use streamvm_sim::races::Detector;
    use streamvm_stream::StreamId;

    use super::*;

    #[test]
    fn an_actor_is_used_again_after_many_others_on_all_streams_and_never_beside_itself() {
        let (detector, made) = (Detector::new(), Cell::new(0));
        let mut singles = TaskClocks::default();
        let start = |singles: &mut TaskClocks, stream: u32, seq| {
            let actor = || {
                made.set(made.get() + 1);
                detector.actor("an instruction")
            };
            singles.start(Point::new(StreamId::unordered(stream), seq), actor).expect("it is on an unordered stream")
        };
        // These instructions never pass in this test.
        let busy: Vec<ActorId> = (1..=10).map(|seq| start(&mut singles, 0, seq)).collect();
        let mut used: Vec<ActorId> = Vec::new();
        for seq in 1..=1000 {
            let stream = 1 + seq as u32 % 3;
            let actor = start(&mut singles, stream, seq);
            assert!(!busy.contains(&actor), "its instruction is still running");
            let recent = &used[used.len().saturating_sub(IDLE - 1)..];
            assert!(!recent.contains(&actor), "it was used by one of the last instructions");
            used.push(actor);
            singles.pass(Point::new(StreamId::unordered(stream), seq), |actor| detector.release(actor));
        }
        assert_eq!(made.get(), busy.len() + IDLE, "all streams share one set");
        assert!(singles.start(Point::new(StreamId(5), 1), || detector.actor("none")).is_none(), "an ordered stream");
    }

    #[test]
    fn as_many_moments_are_kept_as_is_said_and_older_ones_count_as_one() {
        let detector = Detector::new();
        let mut singles = TaskClocks::default();
        let point = |seq: usize| Point::new(StreamId::unordered(0), seq as u64);
        for seq in 1..=KEPT + 100 {
            singles.start(point(seq), || detector.actor("an instruction"));
            singles.pass(point(seq), |actor| detector.release(actor));
        }
        assert_eq!((singles.moments.len(), singles.order.len()), (KEPT, KEPT));
        assert!(singles.find(point(1)).is_some() && singles.find(point(KEPT + 100)).is_some());
    }
}
