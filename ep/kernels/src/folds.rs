//! The innermost loops that read a row and give one value, or a position: folds, blocked sums, searches.
//!
//! As in [`rows`](super::rows), which writes rows, the loops are written so that the compiler vectorises them.

use std::hint::black_box;
use std::ops::BitOr;

use pulp::{Simd, WithSimd};

use crate::lanes;
use crate::number::{Float, Number};
use crate::row_tiles::{Room, TILE, widen_row};
use crate::rows::{InRow, LANES};
use crate::simd_dispatch::{self, one_by_one};

/// Folds the elements of rows into `start` with `step`, those with the same index together. If they lie side by side it folds [`LANES`] interleaved parts, each starting from `neutral`, and
/// [joins](join_all) them with `join`; else one after the other.
///
/// # Safety
///
/// * `length` elements of each row are as [`InRow::get`] requires.
#[inline]
pub(super) unsafe fn fold<T: Number, S: Copy, const N: usize>(
    length: usize,
    rows: [InRow<T>; N],
    (start, neutral): (S, S),
    step: impl Fn(S, [T::Computed; N]) -> S + Copy,
    join: impl Fn(S, S) -> S,
) -> S {
    // SAFETY: the caller guarantees this.
    simd_dispatch::run(unsafe { FoldRows::new(length, rows, (start, neutral), step, join) })
}

/// [`fold`].
pub(super) struct FoldRows<T, S, P, J, const N: usize> {
    length: usize,
    rows: [InRow<T>; N],
    states: (S, S),
    step: P,
    join: J,
}

impl<T, S, P, J, const N: usize> FoldRows<T, S, P, J, N> {
    /// # Safety
    ///
    /// * The requirements of [`fold`] hold as long as the value exists.
    #[inline(always)]
    pub(super) unsafe fn new(length: usize, rows: [InRow<T>; N], states: (S, S), step: P, join: J) -> Self {
        FoldRows { length, rows, states, step, join }
    }
}

impl<T: Number, S: Copy, P: Fn(S, [T::Computed; N]) -> S + Copy, J: Fn(S, S) -> S, const N: usize> WithSimd
    for FoldRows<T, S, P, J, N>
{
    type Output = S;

    #[inline(always)]
    fn with_simd<V: Simd>(self, _: V) -> S {
        let FoldRows { length, rows, states: (start, neutral), step, join } = self;
        let in_lanes = rows.iter().all(|row| row.stride == 1) && length >= 2 * LANES;
        let whole = if in_lanes { length / LANES * LANES } else { 0 };
        let mut rooms = [const { Room::new() }; N];
        let (mut folded, mut parts) = (start, [neutral; LANES]);
        let mut first = 0;
        // One tile of all elements, unless they are converted before.
        while first < length {
            let count = if T::IN_TILES { TILE.min(length - first) } else { length };
            for (row, room) in rows.iter().zip(&mut rooms).filter(|_| T::IN_TILES) {
                // SAFETY: the caller of `new` guarantees these elements, and there is room for them.
                unsafe { widen_row(count, room.row().first, row.from(first)) };
            }
            let in_blocks = whole.saturating_sub(first).min(count);
            // Not a function: as its arguments, states of few bytes would be one integer.
            macro_rules! fold_tile {
                ($rows:expr, $computed:expr) => {
                    let mut i = 0;
                    while i < in_blocks {
                        // SAFETY: the caller of `new` guarantees these elements; the strides are 1 if there are blocks.
                        let x: [[_; LANES]; N] = lanes::array(|place| unsafe { $rows[place].block(i) });
                        for lane in 0..LANES {
                            let lane = one_by_one::<V>(lane);
                            parts[lane] = step(parts[lane], lanes::array(|place| $computed(x[place][lane])));
                        }
                        i += LANES;
                    }
                    if in_blocks > 0 && first + in_blocks == whole {
                        folded = join(folded, join_all(parts, &join));
                    }
                    while i < count {
                        let at = one_by_one::<V>(i);
                        // SAFETY: as above.
                        folded = step(folded, lanes::array(|place| $computed(unsafe { $rows[place].get(at) })));
                        i += 1;
                    }
                };
            }
            if T::IN_TILES {
                let tile: [InRow<T::Computed>; N] = lanes::array(|place| rooms[place].written());
                fold_tile!(tile, |x| x);
            } else {
                fold_tile!(rows, T::computed);
            }
            first += count;
        }
        folded
    }
}

/// The states of all lanes joined: those of the first half with those of the second, until one is left.
#[inline(always)]
fn join_all<S: Copy>(parts: [S; LANES], join: impl Fn(S, S) -> S) -> S {
    // Through memory: the compiler would otherwise choose the vectors of the loop before by those of the last joins, which are narrow.
    let parts = black_box(parts);
    let parts: [S; 8] = lanes::array(|lane| join(parts[lane], parts[lane + 8]));
    let parts: [S; 4] = lanes::array(|lane| join(parts[lane], parts[lane + 4]));
    join(join(parts[0], parts[2]), join(parts[1], parts[3]))
}

/// The element of a row that is `better` than all others, or a NaN if there is one; `worst` for a row without elements.
///
/// # Safety
///
/// * Each of these elements is as [`InRow::get`] requires.
#[inline(never)]
pub(super) unsafe fn extreme<A: Number>(length: usize, a: InRow<A>, worst: A, better: impl Fn(A, A) -> bool) -> A {
    // SAFETY: the caller guarantees this.
    simd_dispatch::run(unsafe { Extreme::new(length, a, worst, better) })
}

/// [`extreme`].
pub(super) struct Extreme<A, F> {
    length: usize,
    a: InRow<A>,
    worst: A,
    better: F,
}

impl<A, F> Extreme<A, F> {
    /// # Safety
    ///
    /// * The requirements of [`extreme`] hold as long as the value exists.
    #[inline(always)]
    pub(super) unsafe fn new(length: usize, a: InRow<A>, worst: A, better: F) -> Self {
        Extreme { length, a, worst, better }
    }
}

impl<A: Number, F: Fn(A, A) -> bool> WithSimd for Extreme<A, F> {
    type Output = A;

    #[inline(always)]
    fn with_simd<V: Simd>(self, _: V) -> A {
        let Extreme { length, a, worst, better } = self;
        // Blind to NaN: so this is one instruction. NaNs are looked for beside it.
        let pick = |x, best| if better(x, best) { x } else { best };
        let mut best = worst;
        let mut i = 0;
        if a.stride == 1 && length >= 2 * LANES {
            let mut parts = [[worst; LANES]; 2];
            let mut nans = [0u32; LANES];
            while i + 2 * LANES <= length {
                // SAFETY: the caller of `new` guarantees it; the stride is 1, and both blocks end within `length`.
                let x = unsafe { a.block::<LANES>(i) };
                // SAFETY: as above.
                let y = unsafe { a.block::<LANES>(i + LANES) };
                for lane in 0..LANES {
                    let lane = one_by_one::<V>(lane);
                    parts[0][lane] = pick(x[lane], parts[0][lane]);
                }
                for lane in 0..LANES {
                    let lane = one_by_one::<V>(lane);
                    parts[1][lane] = pick(y[lane], parts[1][lane]);
                }
                for lane in 0..LANES {
                    let lane = one_by_one::<V>(lane);
                    nans[lane] |= u32::from(x[lane].is_nan() | y[lane].is_nan());
                }
                i += 2 * LANES;
            }
            best = pick(join_all(parts[0], pick), join_all(parts[1], pick));
            if nans.into_iter().fold(0, BitOr::bitor) != 0 {
                i = 0;
            }
        }
        while i < length {
            // SAFETY: the caller of `new` guarantees this for every index below `length`, and `i < length`.
            let x = unsafe { a.get(i) };
            if x.is_nan() {
                return x;
            }
            best = pick(x, best);
            i += 1;
        }
        best
    }
}

/// The sum of the elements of a row.
///
/// # Safety
///
/// * Each of these elements is as [`InRow::get`] requires.
#[inline]
pub(super) unsafe fn sum<T: Float>(length: usize, a: InRow<T>) -> f64 {
    // SAFETY: the caller guarantees this.
    simd_dispatch::run(unsafe { SumRow::new(length, a) })
}

/// [`sum`].
struct SumRow<T> {
    length: usize,
    a: InRow<T>,
}

impl<T> SumRow<T> {
    /// # Safety
    ///
    /// * The requirements of [`sum`] hold as long as the value exists.
    #[inline(always)]
    unsafe fn new(length: usize, a: InRow<T>) -> Self {
        SumRow { length, a }
    }
}

impl<T: Float> WithSimd for SumRow<T> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<V: Simd>(self, simd: V) -> f64 {
        let SumRow { length, a } = self;
        // Each addition waits for the one before it. So a long row is a row of pairs, whose sums wait for nothing: half as many additions wait. Elements that are converted in tiles are read in
        // their order.
        let half = if length >= 4 * LANES && !T::IN_TILES { length / 2 } else { 0 };
        let mut pairs = 0.0;
        if half > 0 {
            let pair = |sum: f64, [x, y]: [T::Wide; 2]| sum + (x.to_sum() + y.to_sum());
            // SAFETY: the caller of `new` guarantees this.
            pairs = unsafe { FoldRows::new(half, [a, a.from(half)], (0.0, 0.0), pair, Number::add) }.with_simd(simd);
        }
        let step = |sum: f64, [x]: [T::Wide; 1]| sum + x.to_sum();
        // SAFETY: as above.
        let rest = unsafe { FoldRows::new(length - 2 * half, [a.from(2 * half)], (pairs, 0.0), step, Number::add) };
        rest.with_simd(simd)
    }
}

/// The first index whose element `is_it` accepts; `length` if none.
///
/// # Safety
///
/// * Each of the elements below `length` is as [`InRow::get`] requires.
#[inline]
pub(super) unsafe fn position<A: Copy>(length: usize, a: InRow<A>, is_it: impl Fn(A) -> bool) -> usize {
    // SAFETY: the caller guarantees this.
    simd_dispatch::run(unsafe { Position::new(length, a, is_it) })
}

/// [`position`].
struct Position<A, F> {
    length: usize,
    a: InRow<A>,
    is_it: F,
}

impl<A, F> Position<A, F> {
    /// # Safety
    ///
    /// * The requirements of [`position`] hold as long as the value exists.
    #[inline(always)]
    unsafe fn new(length: usize, a: InRow<A>, is_it: F) -> Self {
        Position { length, a, is_it }
    }
}

impl<A: Copy, F: Fn(A) -> bool> WithSimd for Position<A, F> {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> usize {
        let Position { length, a, is_it } = self;
        let mut i = 0;
        // Blocks without such an element are passed without a branch for each.
        while !S::IS_SCALAR && a.stride == 1 && i + LANES <= length {
            // SAFETY: the caller of `new` guarantees it: the stride is 1, and the block ends within `length`.
            let x = unsafe { a.block::<LANES>(i) };
            let mut found = 0u32;
            for x in x {
                found |= u32::from(is_it(x));
            }
            if found != 0 {
                break;
            }
            i += LANES;
        }
        // SAFETY: the caller of `new` guarantees this for every index below `length`.
        while i < length && !is_it(unsafe { a.get(i) }) {
            i += 1;
        }
        i
    }
}

#[cfg(test)]
mod tests {
    use pulp::Arch;

    use super::*;

    fn row<T>(elements: &[T]) -> InRow<T> {
        InRow { first: elements.as_ptr(), stride: 1 }
    }

    /// Numbers of one magnitude, so that the order of additions shows.
    fn numbers(count: usize) -> Vec<f64> {
        (0..count).map(|i| (i * 7919 % 8191) as f64 / 3.0 - 1000.0).collect()
    }

    #[test]
    fn folds_do_not_depend_on_the_processor() {
        for length in [0, 1, 31, 32, 33, 100, 1000] {
            let x = numbers(length);
            let step = |sum: f64, [x]: [f64; 1]| sum + x;
            // SAFETY: the numbers outlive the call.
            let here = unsafe { fold(length, [row(&x)], (0.0, 0.0), step, Number::add) };
            // SAFETY: as above.
            let wide =
                simd_dispatch::run_wide(unsafe { FoldRows::new(length, [row(&x)], (0.0, 0.0), step, Number::add) });
            // SAFETY: as above.
            let narrow =
                Arch::Scalar.dispatch(unsafe { FoldRows::new(length, [row(&x)], (0.0, 0.0), step, Number::add) });
            assert_eq!([here.to_bits(), narrow.to_bits()], [wide.to_bits(); 2], "{length} elements");
        }
    }

    #[test]
    fn every_element_is_summed_once_on_every_processor() {
        for length in (0..140).chain([1000]) {
            // Whole numbers, whose sums are exact in any order; and others, whose order of additions shows.
            let whole: Vec<f64> = (1..=length).map(|i| i as f64).collect();
            // SAFETY: the numbers outlive the call.
            let found = unsafe { sum(length, row(&whole)) };
            assert_eq!(found, (length * (length + 1) / 2) as f64, "{length} elements");
            let spread: Vec<f64> = (0..3 * length).map(|i| if i % 3 == 0 { whole[i / 3] } else { 1e9 }).collect();
            let every_third = InRow { first: spread.as_ptr(), stride: 3 };
            // SAFETY: as above.
            assert_eq!(unsafe { sum(length, every_third) }, found, "{length} elements, with gaps");
            let x = numbers(length);
            // SAFETY: as above.
            let wide = simd_dispatch::run_wide(unsafe { SumRow::new(length, row(&x)) });
            // SAFETY: as above.
            let narrow = Arch::Scalar.dispatch(unsafe { SumRow::new(length, row(&x)) });
            // SAFETY: as above.
            let here = unsafe { sum(length, row(&x)) };
            assert_eq!([here.to_bits(), narrow.to_bits()], [wide.to_bits(); 2], "{length} elements");
        }
    }

    #[test]
    fn the_extreme_is_found_wherever_it_is() {
        for length in [1, 31, 32, 63, 64, 65, 100] {
            for place in 0..length {
                let mut x: Vec<f32> = numbers(length).into_iter().map(|x| x as f32).collect();
                x[place] = 1e9;
                // SAFETY: the numbers outlive the calls.
                let largest = unsafe { extreme(length, row(&x), f32::NEG_INFINITY, |x, y| x > y) };
                assert_eq!(largest, 1e9, "{place} of {length}");
                x[place] = -1e9;
                // SAFETY: as above.
                let smallest = unsafe { extreme(length, row(&x), f32::INFINITY, |x, y| x < y) };
                assert_eq!(smallest, -1e9, "{place} of {length}");
                for nan in [f32::NAN, -f32::NAN] {
                    x[place] = nan;
                    // SAFETY: as above.
                    let found = unsafe { extreme(length, row(&x), f32::NEG_INFINITY, |x, y| x > y) };
                    assert!(found.is_nan(), "{place} of {length}: {found}");
                }
            }
        }
    }
}
