//! Sorting of pairs of a key and an index: the order of equal keys is that of their indices, so that every algorithm and any number of threads give the same.
//!
//! Short rows are sorted by the standard library. Long ones are divided into parts by splitters, which are chosen from a sample, and the parts are sorted by
//! several threads: Frazer and McKellar, "Samplesort" (1970).
//!
//! Memory that grows with a row is asked for by [`room`], which returns an error if the machine gives none. A view may have far more elements than its storage, so
//! a row of one can be larger than the memory of the machine.

use std::sync::OnceLock;

use streamvm_ep::{KernelError, Op};

use crate::workers;

/// The least length that is divided. One thread sorts it in some milliseconds, against some microseconds for a hand-over.
const LONG: usize = 1 << 16;

/// About how many keys a part has, at least: fewer are sorted as fast as they are divided.
const PART: usize = 1 << 14;

/// The most parts, several for each of many threads. The number of a part fits `u8`.
const PARTS: usize = 64;

/// How many keys of the sample there are for each part: enough that few parts have twice as many keys as they should.
const SAMPLE: usize = 32;

/// A key and an index in one number, whose order is that of keys, and of indices where keys are equal.
pub(super) trait Ordered: Ord + Copy + Send + Sync {
    fn new(key: u64, place: usize) -> Self;
    fn key(self) -> u64;
    fn place(self) -> usize;
}

/// Keys and indices of up to 32 bits.
impl Ordered for u64 {
    #[inline(always)]
    fn new(key: u64, place: usize) -> u64 {
        key << 32 | place as u64
    }

    #[inline(always)]
    fn key(self) -> u64 {
        self >> 32
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
    fn key(self) -> u64 {
        (self >> 64) as u64
    }

    #[inline(always)]
    fn place(self) -> usize {
        self as u64 as usize
    }
}

/// Memory for a sort that the machine did not give.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct NoRoom {
    bytes: u64,
    purpose: &'static str,
}

impl NoRoom {
    /// The error of a kernel of `op`.
    pub(super) fn of(self, op: Op) -> KernelError {
        KernelError::OutOfMemory { op, bytes: self.bytes, purpose: self.purpose }
    }
}

/// An empty vector with room for `length` elements. The purpose completes "bytes of memory for".
pub(super) fn room<T>(length: usize, purpose: &'static str) -> Result<Vec<T>, NoRoom> {
    let mut room = Vec::new();
    match room.try_reserve_exact(length) {
        Ok(()) => Ok(room),
        Err(_) => Err(NoRoom { bytes: (length as u64).saturating_mul(size_of::<T>() as u64), purpose }),
    }
}

/// Moves the `count` smallest to the front, in any order. A count past the end leaves all as they are.
pub(super) fn select<P: Ordered>(all: &mut [P], count: usize) {
    if count > 0 && count < all.len() {
        all.select_nth_unstable(count - 1);
    }
}

/// Sorts, and calls `sorted` with parts of the result and the index of their first element in the whole: each part once, by any thread.
///
/// # Errors
///
/// There is no memory for the parts of a long row. `sorted` has been called with some parts, or with none.
pub(super) fn sort<P: Ordered>(all: &mut [P], sorted: impl Fn(usize, &[P]) + Sync) -> Result<(), NoRoom> {
    if all.len() < LONG {
        all.sort_unstable();
        sorted(0, all);
        return Ok(());
    }
    let parts = (all.len() / PART).min(PARTS);
    let splitters = splitters(all, parts);
    let length = all.len().div_ceil(parts);
    let pieces: Vec<OnceLock<Result<Divided<P>, NoRoom>>> = all.chunks(length).map(|_| OnceLock::new()).collect();
    workers::split(pieces.len(), &|piece| {
        let end = all.len().min((piece + 1) * length);
        pieces[piece].get_or_init(|| Divided::new(&all[piece * length..end], &splitters));
    });
    let pieces = pieces.into_iter().filter_map(OnceLock::into_inner).collect::<Result<Vec<Divided<P>>, NoRoom>>()?;
    let failed = OnceLock::new();
    workers::split(parts, &|part| match joined(&pieces, part) {
        Ok(mut keys) => {
            keys.sort_unstable();
            sorted(pieces.iter().map(|piece| piece.begins[part]).sum(), &keys);
        }
        Err(error) => {
            failed.get_or_init(|| error);
        }
    });
    failed.into_inner().map_or(Ok(()), Err)
}

/// The keys of a part, from all pieces.
fn joined<P: Ordered>(pieces: &[Divided<P>], part: usize) -> Result<Vec<P>, NoRoom> {
    let length = pieces.iter().map(|piece| piece.part(part).len()).sum();
    let mut keys = room(length, "the keys of a part of a row")?;
    for piece in pieces {
        keys.extend_from_slice(piece.part(part));
    }
    Ok(keys)
}

/// The smallest keys of the parts, but of the first: keys of a sorted sample, in equal distances. The indices of the sample are spread over the row by multiples of the golden
/// ratio, so that periodic input does not give a sample of equal keys. The multiples are spread evenly in their high bits, so an index is the high half of a
/// product with the length.
fn splitters<P: Ordered>(all: &[P], parts: usize) -> Vec<P> {
    let index = |number: u64| {
        let multiple = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((u128::from(multiple) * all.len() as u128) >> 64) as usize
    };
    let mut sample: Vec<P> = (0..(parts * SAMPLE) as u64).map(|number| all[index(number)]).collect();
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
    fn new(piece: &[P], splitters: &[P]) -> Result<Divided<P>, NoRoom> {
        let mut parts: Vec<u8> = room(piece.len(), "the numbers of the parts of keys")?;
        parts.extend(piece.iter().map(|key| splitters.partition_point(|splitter| splitter <= key) as u8));
        let mut keys = room(piece.len(), "the keys of a row by their parts")?;
        keys.extend_from_slice(piece);
        let mut begins = vec![0; splitters.len() + 2];
        for &part in &parts {
            begins[usize::from(part) + 1] += 1;
        }
        for part in 1..begins.len() {
            begins[part] += begins[part - 1];
        }
        let mut next = begins.clone();
        for (&key, &part) in piece.iter().zip(&parts) {
            let next = &mut next[usize::from(part)];
            keys[*next] = key;
            *next += 1;
        }
        Ok(Divided { keys, begins })
    }

    fn part(&self, part: usize) -> &[P] {
        &self.keys[self.begins[part]..self.begins[part + 1]]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// The parts that [`sort`] hands out, joined in their order.
    fn whole<P: Ordered>(mut all: Vec<P>) -> Vec<P> {
        let parts = Mutex::new(Vec::new());
        sort(&mut all, |first, part: &[P]| parts.lock().unwrap().push((first, part.to_vec()))).unwrap();
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
    fn parts_of_sorted_rows_have_about_the_same_length() {
        // Indices by a remainder of the multiples, not by their high bits, give one part nearly all elements of the first two lengths.
        for length in [310_123, 359_536, 500_000, LONG, LONG + 1, 70 * PART + 5] {
            for descends in [false, true] {
                let key = |index: u64| if descends { length as u64 - index } else { index };
                let mut all: Vec<u64> = (0..length).map(|index| u64::new(key(index as u64), index)).collect();
                let (lengths, parts) = (Mutex::new(Vec::new()), (length / PART).min(PARTS));
                sort(&mut all, |_, part: &[u64]| lengths.lock().unwrap().push(part.len())).unwrap();
                let lengths = lengths.into_inner().unwrap();
                assert_eq!((lengths.len(), lengths.iter().sum::<usize>()), (parts, length));
                let largest = lengths.into_iter().max().unwrap();
                assert!(largest * parts <= 2 * length, "{largest} of {length} elements in one of {parts} parts");
            }
        }
    }

    #[test]
    fn memory_that_cannot_be_had_is_an_error() {
        assert!(room::<u64>(100, "keys").unwrap().capacity() >= 100);
        // More bytes than an allocation may have, so that the machine is not asked.
        assert_eq!(room::<u128>(1 << 59, "keys"), Err(NoRoom { bytes: 1 << 63, purpose: "keys" }));
        let text = NoRoom { bytes: 64, purpose: "the keys of a row" }.of(Op::ArgSort).to_string();
        assert_eq!(
            text,
            "argsort needs 64 bytes of memory for the keys of a row, which the machine did not give; divide the input, or use fewer threads"
        );
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
    fn a_pair_has_its_key_and_its_place() {
        let (short, long) = (u64::new(7, u32::MAX as usize), u128::new(u64::MAX, 1 << 40));
        assert_eq!((short.key(), short.place()), (7, u32::MAX as usize));
        assert_eq!((long.key(), long.place()), (u64::MAX, 1 << 40));
        assert!(u64::new(1, 9) < u64::new(2, 0) && u64::new(1, 8) < u64::new(1, 9));
    }
}
