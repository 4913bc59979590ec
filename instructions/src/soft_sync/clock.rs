//! Clocks: for each stream, the points that it is known to come after.
//!
//! A clock has one number per stream: the highest point of that stream that everything submitted from now on comes after. It is a
//! vector clock (Fidge 1988, Mattern 1989) over streams. A clock changes only when its stream waits for a point. It then merges the
//! clock that the source had *at that point*, which a short history keeps. Merging the source's current clock would claim order
//! that does not exist. A point that has left the history costs one redundant wait.
//!
//! The current clock is the newest row of its history. To change it, the pass copies it into the next row and raises numbers there,
//! so an instruction that waits costs one copy of a row, and each of its needs one pass over a row. A row has a number for every
//! stream. The numbers have 32 bits, counted from a base per source stream, so that the processor compares four at once.
//!
//! Invariants:
//! * Numbers only grow from row to row.
//! * A row covers its own stream only up to before the instruction from which the row holds. So the clock of a source at a point
//!   never covers that point.
//! * A number that does not fit is forgotten (taken as 0), never claimed.

use std::ops::Range;

use streamvm_stream::{Point, StreamId};

/// The number of rows, each with the sequence number from which it holds, that a stream keeps. A wait names the point of a recent
/// last write, so few waits of the source lie between that point and now.
pub(super) const HISTORY: usize = 8;

/// The width of a row is a multiple of this, so that the loops over rows have no remainder.
const STEP: usize = 8;

/// The highest number of a row. The numbers are signed, as every x86-64 processor has vector comparisons for signed 32-bit numbers.
const HIGHEST: u64 = i32::MAX as u64;

/// The clocks of all streams.
#[derive(Clone, Debug)]
pub(super) struct Clocks {
    clocks: Vec<Clock>,
    /// For each stream, the base that its numbers are counted from, in all rows.
    bases: Vec<u64>,
    highest: u64,
}

/// The clock of one stream and its recent past: a ring of rows.
#[derive(Clone, Debug, Default)]
struct Clock {
    /// For each row, the sequence number from which it holds; 0 for a row that was never used, which covers nothing.
    since: [u64; HISTORY],
    /// The oldest row, which is overwritten next; the row before it is the newest.
    oldest: usize,
    /// The width of a row in numbers; 0 before the stream's first wait.
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

    /// The row that held at sequence number `seq`; empty if the history no longer has it.
    fn as_of(&self, seq: u64) -> &[i32] {
        // If a row begins after `seq`, the difference is negative and its top bit is 1. The sum of the top bits is the number of
        // later rows. Rows are in order of time, so these are the newest ones.
        let later: u64 = self.since.iter().map(|since| seq.wrapping_sub(*since) >> 63).sum();
        let later = later as usize;
        if later == HISTORY { &[] } else { &self.rows[self.place((self.oldest + HISTORY - 1 - later) % HISTORY)] }
    }

    /// Starts the row that holds from `seq` on, for `streams` streams, as a copy of the newest row.
    fn begin_row(&mut self, seq: u64, streams: usize) {
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

/// Takes and returns arrays by value, so that the compiler can vectorize the comparison.
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

    /// Whether `stream` is known to come after `point`.
    #[inline]
    pub(super) fn covers(&self, stream: StreamId, point: Point) -> bool {
        let clock = &self.clocks[stream.index()];
        self.says(clock.now(), point)
    }

    fn says(&self, row: &[i32], point: Point) -> bool {
        let base = self.bases[point.stream.index()];
        row.get(point.stream.index()).is_some_and(|&number| number > 0 && base + u64::from(number as u32) >= point.seq)
    }

    /// Starts a new row for the stream of `at`: later merges hold from that instruction on.
    pub(super) fn begin_row(&mut self, at: Point) {
        let streams = self.clocks.len();
        self.clocks[at.stream.index()].begin_row(at.seq, streams);
    }

    /// Orders `target` after the points that the stream of `point` was ordered after at `as_of`, the sequence number of the awaited
    /// instruction. It does not order `target` after `point` itself: see [`Clocks::raise`].
    pub(super) fn merge(&mut self, target: StreamId, point: Point, as_of: u64) {
        debug_assert_ne!(point.stream, target, "a stream is always ordered after itself");
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

    /// The number of a point in rows; 0, which covers nothing, for a point before the base.
    fn number(&mut self, point: Point) -> i32 {
        let number = point.seq.saturating_sub(self.bases[point.stream.index()]);
        if number > self.highest {
            return self.rebase(point);
        }
        number as i32
    }

    /// Moves the base of the stream of `point` to half of the highest number before it, and returns the point's new number.
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
        clocks.begin_row(at);
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

    /// Stream 1 waited for stream 2 only at 6, which is after the point 5 that stream 0 waits for.
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
        assert!(!covers(&clocks, 0, point(2, 10)), "the history no longer has the row of 1");
        wait(&mut clocks, point(0, 2), point(1, 2));
        assert!(covers(&clocks, 0, point(2, 20)));
        assert!(!covers(&clocks, 0, point(2, 30)));
    }

    /// A row is widened at the next wait of its stream. Until then it covers no point of streams that were added later.
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
        assert!(covers(&clocks, 0, point(1, 1)), "widening keeps the numbers");
        wait(&mut clocks, point(2, 1), point(0, 1));
        assert!(!covers(&clocks, 2, point(39, 4)), "the older rows were kept too");
        assert!(covers(&clocks, 2, point(1, 1)));
    }

    /// Numbers have 32 bits, and are counted from a base that follows their stream. With a highest number of 16, a point more than
    /// half of that back may be forgotten; none is ever claimed wrongly.
    #[test]
    fn numbers_that_no_longer_fit_are_forgotten_and_never_claimed() {
        let mut clocks = clocks();
        clocks.highest = 16;
        for seq in 1..200 {
            // Stream 1 always covers the last point of stream 2, and stream 0 the point 10 before it.
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
        assert!(!covers(&clocks, 0, point(2, 190)), "the history of stream 1 no longer has that row");
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
        assert!(!covers(&clocks, 2, point(1, 1)), "below the base, so it is forgotten");
    }
}
