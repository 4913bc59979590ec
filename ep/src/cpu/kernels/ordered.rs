//! Sorting of keys that know their places: the order of equal keys is that of their places, so that every algorithm and any number of threads give the same.
//!
//! Short rows are sorted by the standard library. Long ones by several threads, which sort pieces and then merge what lies between two splitters in all of
//! them: Shi and Schaeffer, "Parallel sorting by regular sampling" (1992).

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cpu::workers;

/// The least length that is sorted in pieces. One thread takes about 1 ms for it, against some microseconds for a hand-over.
const LONG: usize = 1 << 16;

/// The least length of a piece.
const PIECE: usize = 1 << 14;

/// The most pieces: several for each of many threads. A row has as many splitters, which are chosen among the square of that.
const PIECES: usize = 64;

/// A key and its place in one number, whose order is that of keys, and of places where keys are equal.
pub(super) trait Ordered: Ord + Copy + Send + Sync {
    fn new(key: u64, place: usize) -> Self;
    fn place(self) -> usize;
}

/// Keys and places of up to 32 bits.
impl Ordered for u64 {
    #[inline(always)]
    fn new(key: u64, place: usize) -> u64 {
        key << 32 | place as u64
    }

    #[inline(always)]
    fn place(self) -> usize {
        (self & u64::from(u32::MAX)) as usize
    }
}

impl Ordered for u128 {
    #[inline(always)]
    fn new(key: u64, place: usize) -> u128 {
        u128::from(key) << 64 | place as u128
    }

    #[inline(always)]
    fn place(self) -> usize {
        self as u64 as usize
    }
}

/// Moves the `count` smallest to the front, in any order. A count past the end leaves all as they are.
pub(super) fn select<P: Ordered>(all: &mut [P], count: usize) {
    if count > 0 && count < all.len() {
        all.select_nth_unstable(count - 1);
    }
}

/// Sorts, and calls `sorted` with parts of the result and the place of their first element in the whole: each part once, by any thread.
pub(super) fn sort<P: Ordered>(all: &mut [P], sorted: impl Fn(usize, &[P]) + Sync) {
    if all.len() < LONG {
        all.sort_unstable();
        return sorted(0, all);
    }
    let length = all.len().div_ceil(PIECES).max(PIECE);
    let pieces: Vec<Mutex<&mut [P]>> = all.chunks_mut(length).map(Mutex::new).collect();
    workers::split(pieces.len(), &|piece| lock(&pieces[piece]).sort_unstable());
    drop(pieces);
    let pieces: Vec<&[P]> = all.chunks(length).collect();
    let count = pieces.len();
    let mut samples: Vec<P> = pieces.iter().flat_map(|piece| regular(piece, count)).collect();
    samples.sort_unstable();
    // Part `part` is what is not below its splitter, and below that of the next one. The first part has no lower end, and the last no upper one.
    let splitters: Vec<P> = regular(&samples, count).collect();
    let begin = |piece: &[P], part: usize| match part {
        0 => 0,
        _ => splitters.get(part).map_or(piece.len(), |splitter| piece.partition_point(|one| one < splitter)),
    };
    workers::split(count, &|part| {
        let first: usize = pieces.iter().map(|piece| begin(piece, part)).sum();
        let mut runs: Vec<P> = Vec::with_capacity(2 * length);
        for piece in &pieces {
            runs.extend_from_slice(&piece[begin(piece, part)..begin(piece, part + 1)]);
        }
        // This sort finds the runs and merges them.
        runs.sort();
        sorted(first, &runs);
    });
}

/// `count` elements in equal distances, from the first on; fewer of a slice that has fewer.
fn regular<P: Copy>(all: &[P], count: usize) -> impl Iterator<Item = P> + '_ {
    let count = count.min(all.len());
    (0..count).map(move |place| all[place * all.len() / count])
}

fn lock<'a, T>(mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What [`sort`] gives, put together.
    fn whole<P: Ordered>(mut all: Vec<P>) -> Vec<P> {
        let parts = Mutex::new(Vec::new());
        sort(&mut all, |first, part| lock(&parts).push((first, part.to_vec())));
        let mut parts = parts.into_inner().unwrap();
        parts.sort_by_key(|(first, part)| (*first, part.len()));
        let mut joined = Vec::new();
        for (first, part) in parts {
            assert_eq!(first, joined.len(), "a part begins where the one before ends");
            joined.extend(part);
        }
        joined
    }

    #[test]
    fn long_rows_are_sorted_in_parts() {
        let keys: [fn(u64) -> u64; 4] =
            [|place| place.wrapping_mul(0x9e37_79b9) >> 7 & 0xffff, |_| 3, |place| place, |place| u64::from(u32::MAX) - place];
        for length in [0, 1, 2, LONG - 1, LONG, LONG + 1, 3 * LONG + 17, 70 * PIECE + 5] {
            for key in keys {
                let all: Vec<u64> = (0..length).map(|place| u64::new(key(place as u64), place)).collect();
                let mut expected = all.clone();
                expected.sort_unstable();
                assert!(whole(all) == expected, "{length} elements");
            }
        }
        let wide: Vec<u128> = (0..2 * LONG).map(|place| u128::new(u64::MAX - place as u64 / 3, place)).collect();
        let mut expected = wide.clone();
        expected.sort_unstable();
        assert!(whole(wide) == expected);
    }

    #[test]
    fn the_smallest_come_to_the_front() {
        let all: Vec<u64> = (0..100).map(|place| u64::new(place * 37 % 10, place as usize)).collect();
        let mut expected = all.clone();
        expected.sort_unstable();
        for count in [0, 1, 7, 99, 100, 101] {
            let mut found = all.clone();
            select(&mut found, count);
            let count = count.min(found.len());
            found[..count].sort_unstable();
            assert_eq!(found[..count], expected[..count], "{count}");
        }
    }

    #[test]
    fn a_key_knows_its_place() {
        assert_eq!(u64::new(7, u32::MAX as usize).place(), u32::MAX as usize);
        assert_eq!(u128::new(u64::MAX, 1 << 40).place(), 1 << 40);
        assert!(u64::new(1, 9) < u64::new(2, 0) && u64::new(1, 8) < u64::new(1, 9));
    }
}
