//! Clocks: what each stream is known to be ordered after.
//!
//! Every stream carries one number per stream: the highest point of it that everything submitted to this stream from
//! now on comes after. It is a vector clock (Fidge 1988, Mattern 1989) over streams. A clock changes only when its
//! stream waits, and then merges the source's clock *as of the point waited for*, which a short history remembers.
//! Merging the source's clock of now would claim order that is not there; forgetting costs one wait more.

use std::collections::VecDeque;

use streamvm_stream::{Point, StreamId};

/// How many (sequence, clock) pairs a stream remembers. A wait names a point that was the last write of something, so
/// few waits of the source lie between it and now.
pub(super) const HISTORY: usize = 8;

/// One stream's clock and its recent past.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    now: Vec<u64>,
    /// Clocks from the given sequence number on, oldest first.
    history: VecDeque<(u64, Vec<u64>)>,
}

impl Clock {
    /// Whether the stream is known to be ordered after `point`.
    pub(super) fn covers(&self, point: Point) -> bool {
        self.now.get(point.stream.index()).is_some_and(|&seq| seq >= point.seq)
    }

    /// The clock that the stream had at sequence number `seq`, or one before it; `None` when that is forgotten or the
    /// stream had not waited for anything yet.
    fn as_of(&self, seq: u64) -> Option<&[u64]> {
        self.history.iter().rev().find(|(since, _)| *since <= seq).map(|(_, clock)| clock.as_slice())
    }

    /// Whether the stream was ordered after `point` when its instruction `seq` ran.
    pub(super) fn covered_as_of(&self, seq: u64, point: Point) -> bool {
        self.as_of(seq).and_then(|clock| clock.get(point.stream.index())).is_some_and(|&known| known >= point.seq)
    }

    fn raise(&mut self, stream: StreamId, seq: u64) {
        let index = stream.index();
        if self.now.len() <= index {
            self.now.resize(index + 1, 0);
        }
        self.now[index] = self.now[index].max(seq);
    }

    /// Notes that the instruction at `seq` is the first to be ordered after what `now` says.
    fn remember(&mut self, seq: u64) {
        if let Some((since, clock)) = self.history.back_mut()
            && *since == seq
        {
            clock.clone_from(&self.now);
            return;
        }
        let mut spare = Vec::new();
        if self.history.len() == HISTORY
            && let Some((_, oldest)) = self.history.pop_front()
        {
            spare = oldest;
        }
        spare.clone_from(&self.now);
        self.history.push_back((seq, spare));
    }
}

/// Orders the instruction at `at` after `point`: raises its stream's clock to the point and to what the point's own
/// stream was ordered after at `as_of`, which is when it ran.
pub(super) fn merge(clocks: &mut [Clock], at: Point, point: Point, as_of: u64) {
    let (source, target) = (point.stream.index(), at.stream.index());
    debug_assert_ne!(source, target, "a stream is ordered after itself");
    let Ok([source, target]) = clocks.get_disjoint_mut([source, target]) else {
        return;
    };
    if let Some(past) = source.as_of(as_of) {
        if target.now.len() < past.len() {
            target.now.resize(past.len(), 0);
        }
        for (mine, theirs) in target.now.iter_mut().zip(past) {
            *mine = (*mine).max(*theirs);
        }
    }
    target.raise(point.stream, point.seq);
    target.remember(at.seq);
}

#[cfg(test)]
mod tests {
    use super::{Clock, HISTORY};
    use streamvm_stream::{Point, StreamId};

    fn point(stream: u32, seq: u64) -> Point {
        Point::new(StreamId(stream), seq)
    }

    fn clocks() -> Vec<Clock> {
        vec![Clock::default(); 3]
    }

    fn merge(clocks: &mut [Clock], at: Point, point: Point) {
        super::merge(clocks, at, point, point.seq);
    }

    #[test]
    fn a_wait_covers_the_point_and_all_before_it() {
        let mut clocks = clocks();
        merge(&mut clocks, point(0, 1), point(1, 5));
        assert!(clocks[0].covers(point(1, 5)));
        assert!(clocks[0].covers(point(1, 2)));
        assert!(!clocks[0].covers(point(1, 6)));
        assert!(!clocks[0].covers(point(2, 1)));
    }

    #[test]
    fn a_wait_is_transitive() {
        let mut clocks = clocks();
        merge(&mut clocks, point(1, 3), point(2, 7));
        merge(&mut clocks, point(0, 1), point(1, 3));
        assert!(clocks[0].covers(point(2, 7)));
    }

    /// Hole 11: stream 1 waited for stream 2 only at 6, after the point 5 that stream 0 waits for.
    #[test]
    fn a_later_wait_of_the_source_is_not_merged() {
        let mut clocks = clocks();
        merge(&mut clocks, point(1, 6), point(2, 7));
        merge(&mut clocks, point(0, 1), point(1, 5));
        assert!(!clocks[0].covers(point(2, 7)));
        merge(&mut clocks, point(0, 2), point(1, 6));
        assert!(clocks[0].covers(point(2, 7)));
    }

    #[test]
    fn what_is_forgotten_is_not_claimed() {
        let mut clocks = clocks();
        for seq in 1..=(HISTORY as u64 + 1) {
            merge(&mut clocks, point(1, seq), point(2, seq * 10));
        }
        merge(&mut clocks, point(0, 1), point(1, 1));
        assert!(!clocks[0].covers(point(2, 10)), "the pair of 1 was dropped");
        merge(&mut clocks, point(0, 2), point(1, 2));
        assert!(clocks[0].covers(point(2, 20)));
        assert!(!clocks[0].covers(point(2, 30)));
    }
}
