//! Sorting of keys that know their places: the order of equal keys is that of their places, so that every algorithm and any number of threads give the same.
//!
//! Short rows are sorted by the standard library. Long ones are divided into parts by splitters, which are chosen from a sample, and the parts are sorted by
//! several threads: Frazer and McKellar, "Samplesort" (1970).

use std::sync::OnceLock;

use crate::cpu::workers;

/// The least length that is divided. One thread sorts it in some milliseconds, against some microseconds for a hand-over.
const LONG: usize = 1 << 16;

/// About how many keys a part has, at least: fewer are sorted as fast as they are divided.
const PART: usize = 1 << 14;

/// The most parts, several for each of many threads. A number of one fits `u8`.
const PARTS: usize = 64;

/// How many keys of the sample there are for each part: enough that few parts have twice as many keys as they should.
const SAMPLE: usize = 32;

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
    let parts = (all.len() / PART).min(PARTS);
    let splitters = splitters(all, parts);
    let length = all.len().div_ceil(parts);
    let pieces: Vec<OnceLock<Divided<P>>> = all.chunks(length).map(|_| OnceLock::new()).collect();
    workers::split(pieces.len(), &|piece| {
        let end = all.len().min((piece + 1) * length);
        pieces[piece].get_or_init(|| Divided::new(&all[piece * length..end], &splitters));
    });
    let pieces: Vec<Divided<P>> = pieces.into_iter().filter_map(OnceLock::into_inner).collect();
    workers::split(parts, &|part| {
        let first = pieces.iter().map(|piece| piece.begins[part]).sum();
        let mut keys: Vec<P> = Vec::with_capacity(pieces.iter().map(|piece| piece.part(part).len()).sum());
        for piece in &pieces {
            keys.extend_from_slice(piece.part(part));
        }
        keys.sort_unstable();
        sorted(first, &keys);
    });
}

/// What the parts but the first begin with: keys of a sample, in equal distances. The places of the sample are spread by the golden ratio, so that it is none of
/// equal keys if every so many elements are equal.
fn splitters<P: Ordered>(all: &[P], parts: usize) -> Vec<P> {
    let place = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize % all.len();
    let mut sample: Vec<P> = (0..(parts * SAMPLE) as u64).map(|number| all[place(number)]).collect();
    sample.sort_unstable();
    (1..parts).map(|part| sample[part * SAMPLE]).collect()
}

/// A piece of a row, its keys by their parts.
struct Divided<P> {
    keys: Vec<P>,
    /// Where each part begins, and the end of the last.
    begins: Vec<usize>,
}

impl<P: Ordered> Divided<P> {
    fn new(piece: &[P], splitters: &[P]) -> Divided<P> {
        let parts: Vec<u8> =
            piece.iter().map(|key| splitters.partition_point(|splitter| splitter <= key) as u8).collect();
        let mut begins = vec![0; splitters.len() + 2];
        for &part in &parts {
            begins[usize::from(part) + 1] += 1;
        }
        for part in 1..begins.len() {
            begins[part] += begins[part - 1];
        }
        let (mut next, mut keys) = (begins.clone(), piece.to_vec());
        for (&key, &part) in piece.iter().zip(&parts) {
            let next = &mut next[usize::from(part)];
            keys[*next] = key;
            *next += 1;
        }
        Divided { keys, begins }
    }

    fn part(&self, part: usize) -> &[P] {
        &self.keys[self.begins[part]..self.begins[part + 1]]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// What [`sort`] gives, put together.
    fn whole<P: Ordered>(mut all: Vec<P>) -> Vec<P> {
        let parts = Mutex::new(Vec::new());
        sort(&mut all, |first, part: &[P]| parts.lock().unwrap().push((first, part.to_vec())));
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
    fn long_rows_are_sorted_part_by_part() {
        let keys: [fn(u64) -> u64; 4] = [
            |place| place.wrapping_mul(0x9e37_79b9) >> 7 & 0xffff,
            |_| 3,
            |place| place,
            |place| u64::from(u32::MAX) - place,
        ];
        for length in [0, 1, 2, LONG - 1, LONG, LONG + 1, 3 * LONG + 17, 70 * PART + 5] {
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
