//! Which thread ran each lane last. Shows that streams change threads, which the load has no influence on.

use std::sync::atomic::{AtomicU64, Ordering};

use super::turns::LANES;

/// The number of the thread that ran each lane of one device last; 0 for none.
#[derive(Debug, Default)]
pub(super) struct Seats([AtomicU64; LANES as usize]);

/// A number of the calling thread, from 1.
fn number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static MINE: u64 = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    }
    MINE.with(|mine| *mine)
}

impl Seats {
    /// The calling thread runs `lane`. Returns whether another thread ran it last.
    pub(super) fn moves(&self, lane: u32) -> bool {
        let mine = number();
        let last = self.0[lane as usize].swap(mine, Ordering::Relaxed);
        last != 0 && last != mine
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_moves_when_another_thread_runs_it() {
        let seats = Seats::default();
        assert_eq!([seats.moves(0), seats.moves(0), seats.moves(1)], [false; 3]);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| [seats.moves(0), seats.moves(0), seats.moves(2)]);
            assert_eq!(other.join().expect("it does not panic"), [true, false, false]);
        });
        assert_eq!([seats.moves(0), seats.moves(1)], [true, false]);
    }
}
