//! Clocks: what each stream is known to be ordered after.
//!
//! Every stream carries one number per stream: the highest point of it that everything submitted to this stream from
//! now on comes after. It is a vector clock (Fidge 1988, Mattern 1989) over streams. A clock changes only when its
//! stream waits, and then merges the source's clock *as of the point waited for*, which a short history remembers.
//! Merging the source's clock of now would claim order that is not there; forgetting costs one wait more.
//!
//! A clock is the newest row of its history, and one that changes is copied into the next row and raised there: an
//! instruction that waits costs one copy, and each of its needs one pass over a row. A row has place for every stream, so
//! its numbers are 32 bits wide, counted from a base of their source: the processor compares four of them at once.
//!
//! Invariants:
//! * Numbers only grow from row to row.
//! * A row knows its own stream only up to before where it begins to hold. So what a source knew at a point never covers
//!   that point.
//! * What does not fit the numbers is forgotten, never claimed.

use std::ops::Range;

use streamvm_stream::{Point, StreamId};

/// How many (sequence, clock) pairs a stream remembers. A wait names a point that was the last write of something, so
/// few waits of the source lie between it and now.
pub(super) const HISTORY: usize = 8;

/// Rows are as wide as a multiple of so many numbers: the loops over them have no remainder.
const STEP: usize = 8;

/// The highest number of a row. Signed numbers, as every x86-64 processor compares those of 32 bits side by side.
const HIGHEST: u64 = i32::MAX as u64;

/// The clocks of all streams.
#[derive(Clone, Debug)]
pub(super) struct Clocks {
    clocks: Vec<Clock>,
    /// What the numbers of each stream are counted from, in all rows.
    bases: Vec<u64>,
    highest: u64,
}

/// One stream's clock and its recent past: a ring of rows.
#[derive(Clone, Debug, Default)]
struct Clock {
    /// From which sequence number on each row holds; 0 for one that was never used, and says nothing.
    since: [u64; HISTORY],
    /// The oldest row, which is written next; the newest lies before it.
    oldest: usize,
    /// Numbers of a row; 0 before the stream's first wait.
    width: usize,
    rows: Vec<i32>,
}

impl Clock {
    fn newest(&self) -> usize {
        (self.oldest + HISTORY - 1) % HISTORY
    }

    fn place(&self, row: usize) -> Range<usize> {
        row * self.width..(row + 1) * self.width
    }

    fn now(&self) -> &[i32] {
        &self.rows[self.place(self.newest())]
    }

    fn newest_mut(&mut self) -> &mut [i32] {
        let newest = self.place(self.newest());
        &mut self.rows[newest]
    }

    /// The row that the stream had at sequence number `seq`; nothing, if that is forgotten.
    fn as_of(&self, seq: u64) -> &[i32] {
        // The top bit of a difference is its sign. Rows follow each other in time, so the later ones are the newest.
        let later: u64 = self.since.iter().map(|since| seq.wrapping_sub(*since) >> 63).sum();
        let later = later as usize;
        if later == HISTORY { &[] } else { &self.rows[self.place((self.oldest + HISTORY - 1 - later) % HISTORY)] }
    }

    /// Starts the row that holds from `seq` on, for `streams` streams, with what the newest says.
    fn turn(&mut self, seq: u64, streams: usize) {
        if self.width < streams {
            self.widen(streams.next_multiple_of(STEP));
        }
        let newest = self.place(self.newest());
        self.rows.copy_within(newest, self.oldest * self.width);
        self.since[self.oldest] = seq;
        self.oldest = (self.oldest + 1) % HISTORY;
    }

    #[cold]
    fn widen(&mut self, width: usize) {
        let mut rows = vec![0; HISTORY * width];
        for (row, wide) in rows.chunks_exact_mut(width).enumerate() {
            wide[..self.width].copy_from_slice(&self.rows[self.place(row)]);
        }
        (self.rows, self.width) = (rows, width);
    }
}

/// By value, so that nothing keeps the processor from comparing side by side.
#[inline]
fn highest(mine: &[i32; STEP], theirs: &[i32; STEP]) -> [i32; STEP] {
    std::array::from_fn(|place| mine[place].max(theirs[place]))
}

impl Clocks {
    pub(super) fn new() -> Clocks {
        Clocks { clocks: Vec::new(), bases: Vec::new(), highest: HIGHEST }
    }

    pub(super) fn add_stream(&mut self) {
        self.clocks.push(Clock::default());
        self.bases.push(0);
    }

    /// Whether `stream` is known to be ordered after `point`.
    #[inline]
    pub(super) fn covers(&self, stream: StreamId, point: Point) -> bool {
        let clock = &self.clocks[stream.index()];
        self.says(clock.now(), point)
    }

    fn says(&self, row: &[i32], point: Point) -> bool {
        let base = self.bases[point.stream.index()];
        row.get(point.stream.index()).is_some_and(|&number| number > 0 && base + u64::from(number as u32) >= point.seq)
    }

    /// Lets what is merged into the clock of the stream of `at` hold from that instruction on.
    pub(super) fn turn(&mut self, at: Point) {
        let streams = self.clocks.len();
        self.clocks[at.stream.index()].turn(at.seq, streams);
    }

    /// Orders `target` after what the stream of `point` was ordered after at `as_of`, which is when its instruction ran;
    /// not yet after the point itself.
    pub(super) fn merge(&mut self, target: StreamId, point: Point, as_of: u64) {
        debug_assert_ne!(point.stream, target, "a stream is ordered after itself");
        let Ok([source, target]) = self.clocks.get_disjoint_mut([point.stream.index(), target.index()]) else {
            return;
        };
        let mine = target.newest_mut();
        for (mine, theirs) in mine.as_chunks_mut().0.iter_mut().zip(source.as_of(as_of).as_chunks().0) {
            *mine = highest(mine, theirs);
        }
    }

    /// Orders `target` after `point`.
    pub(super) fn raise(&mut self, target: StreamId, point: Point) {
        let number = self.number(point);
        let mine = &mut self.clocks[target.index()].newest_mut()[point.stream.index()];
        *mine = (*mine).max(number);
    }

    /// The number of a point in rows; 0, which says nothing, for one before the base.
    fn number(&mut self, point: Point) -> i32 {
        let number = point.seq.saturating_sub(self.bases[point.stream.index()]);
        if number > self.highest {
            return self.rebase(point);
        }
        number as i32
    }

    /// Counts the numbers of the stream of `point` from half of what fits before it.
    #[cold]
    fn rebase(&mut self, point: Point) -> i32 {
        let index = point.stream.index();
        let number = self.highest / 2;
        let base = point.seq - number;
        let by = base - self.bases[index];
        self.bases[index] = base;
        for clock in &mut self.clocks {
            for number in clock.rows.chunks_mut(clock.width.max(1)).filter_map(|row| row.get_mut(index)) {
                *number = u64::from(*number as u32).saturating_sub(by) as i32;
            }
        }
        number as i32
    }
}

#[cfg(test)]
mod tests {
    use super::{Clocks, HISTORY};
    use streamvm_stream::{Point, StreamId};

    fn point(stream: u32, seq: u64) -> Point {
        Point::new(StreamId(stream), seq)
    }

    fn clocks() -> Clocks {
        let mut clocks = Clocks::new();
        (0..3).for_each(|_| clocks.add_stream());
        clocks
    }

    fn wait(clocks: &mut Clocks, at: Point, point: Point) {
        clocks.turn(at);
        clocks.merge(at.stream, point, point.seq);
        clocks.raise(at.stream, point);
    }

    fn covers(clocks: &Clocks, stream: u32, point: Point) -> bool {
        clocks.covers(StreamId(stream), point)
    }

    #[test]
    fn a_wait_covers_the_point_and_all_before_it() {
        let mut clocks = clocks();
        wait(&mut clocks, point(0, 1), point(1, 5));
        assert!(covers(&clocks, 0, point(1, 5)));
        assert!(covers(&clocks, 0, point(1, 2)));
        assert!(!covers(&clocks, 0, point(1, 6)));
        assert!(!covers(&clocks, 0, point(2, 1)));
    }

    #[test]
    fn a_wait_is_transitive() {
        let mut clocks = clocks();
        wait(&mut clocks, point(1, 3), point(2, 7));
        wait(&mut clocks, point(0, 1), point(1, 3));
        assert!(covers(&clocks, 0, point(2, 7)));
    }

    /// Hole 11: stream 1 waited for stream 2 only at 6, after the point 5 that stream 0 waits for.
    #[test]
    fn a_later_wait_of_the_source_is_not_merged() {
        let mut clocks = clocks();
        wait(&mut clocks, point(1, 6), point(2, 7));
        wait(&mut clocks, point(0, 1), point(1, 5));
        assert!(!covers(&clocks, 0, point(2, 7)));
        wait(&mut clocks, point(0, 2), point(1, 6));
        assert!(covers(&clocks, 0, point(2, 7)));
    }

    #[test]
    fn what_is_forgotten_is_not_claimed() {
        let mut clocks = clocks();
        for seq in 1..=(HISTORY as u64 + 1) {
            wait(&mut clocks, point(1, seq), point(2, seq * 10));
        }
        wait(&mut clocks, point(0, 1), point(1, 1));
        assert!(!covers(&clocks, 0, point(2, 10)), "the pair of 1 was dropped");
        wait(&mut clocks, point(0, 2), point(1, 2));
        assert!(covers(&clocks, 0, point(2, 20)));
        assert!(!covers(&clocks, 0, point(2, 30)));
    }

    /// A row is widened when its stream waits next. Until then it says nothing of streams that came later.
    #[test]
    fn a_stream_that_came_later_is_unknown_until_it_is_waited_for() {
        let mut clocks = clocks();
        wait(&mut clocks, point(0, 1), point(1, 1));
        wait(&mut clocks, point(1, 2), point(0, 1));
        (3..40).for_each(|_| clocks.add_stream());
        for stream in 2..40 {
            assert!(!covers(&clocks, 0, point(stream, 1)));
        }
        wait(&mut clocks, point(0, 2), point(39, 4));
        assert!(covers(&clocks, 0, point(39, 4)));
        assert!(covers(&clocks, 0, point(1, 1)), "kept while its row was widened");
        wait(&mut clocks, point(2, 1), point(0, 1));
        assert!(!covers(&clocks, 2, point(39, 4)), "so were the rows of before");
        assert!(covers(&clocks, 2, point(1, 1)));
    }

    /// Numbers of 32 bits are counted from a base that follows their stream: with room for 16, what lies more than half of
    /// that back is forgotten, and nothing is ever claimed.
    #[test]
    fn numbers_that_no_longer_fit_are_forgotten_and_never_claimed() {
        let mut clocks = clocks();
        clocks.highest = 16;
        for seq in 1..200 {
            // Stream 1 always knows the last point of stream 2, and stream 0 the one of 10 before.
            wait(&mut clocks, point(1, seq), point(2, seq));
            if seq > 10 {
                wait(&mut clocks, point(0, seq), point(2, seq - 10));
                assert!(!covers(&clocks, 0, point(2, seq - 9)), "at {seq}");
            }
            assert!(covers(&clocks, 1, point(2, seq)), "at {seq}");
            assert!(!covers(&clocks, 1, point(2, seq + 1)), "at {seq}");
            assert!(!covers(&clocks, 1, point(0, 1)), "at {seq}");
        }
        wait(&mut clocks, point(0, 200), point(1, 190));
        assert!(!covers(&clocks, 0, point(2, 190)), "that row of stream 1 is gone");
        wait(&mut clocks, point(0, 201), point(1, 195));
        assert!(covers(&clocks, 0, point(2, 195)));
        assert!(!covers(&clocks, 0, point(2, 196)));
    }

    #[test]
    fn billions_of_numbers_fit() {
        let mut clocks = clocks();
        let far = 1 << 50;
        for seq in [1, u64::from(u32::MAX), far, far + 1] {
            wait(&mut clocks, point(0, seq), point(1, seq));
            assert!(covers(&clocks, 0, point(1, seq)));
            assert!(!covers(&clocks, 0, point(1, seq + 1)));
        }
        assert!(covers(&clocks, 0, point(1, far - 1)));
        wait(&mut clocks, point(0, far + 2), point(2, 1));
        assert!(covers(&clocks, 0, point(2, 1)), "each stream has a base of its own");
        wait(&mut clocks, point(2, 2), point(1, 1));
        assert!(!covers(&clocks, 2, point(1, 1)), "too old to be noted: waited for again");
    }
}
