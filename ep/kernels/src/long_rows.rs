//! The innermost loops for functions of many operations.

use std::mem::MaybeUninit;

use pulp::{Simd, WithSimd};

use crate::rows::{BLOCK, InRow, OutRow};
use crate::simd_dispatch;

/// `out[i] = f(a[i])` for `i` in `0..length`, an `f` of many operations, and any strides: a loop that the compiler vectorises as a loop, with the widest vectors. What `f`
/// captures should be moved into it, because the loop would read a borrowed value anew for each element.
///
/// # Safety
///
/// * Each of these elements is as [`InRow::get`](InRow::get) and [`OutRow::set`](OutRow::set) require, except that an element of `a` may be an element of `out` if both have
///   the same index.
#[inline]
pub(super) unsafe fn map1_long<A: Copy, O: Copy>(length: usize, out: OutRow<O>, a: InRow<A>, f: impl Fn(A) -> O) {
    // SAFETY: the caller guarantees this.
    simd_dispatch::run_wide(unsafe { MapLong::new(length, out, a, f) });
}

/// [`map1_long`].
struct MapLong<A, O, F> {
    length: usize,
    out: OutRow<O>,
    a: InRow<A>,
    f: F,
}

impl<A, O, F> MapLong<A, O, F> {
    /// # Safety
    ///
    /// * The requirements of [`map1_long`] hold as long as the value exists.
    #[inline(always)]
    unsafe fn new(length: usize, out: OutRow<O>, a: InRow<A>, f: F) -> Self {
        MapLong { length, out, a, f }
    }
}

impl<A: Copy, O: Copy, F: Fn(A) -> O> WithSimd for MapLong<A, O, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let MapLong { length, out, a, f } = self;
        // SAFETY: the caller of `new` guarantees this.
        unsafe { map1_wide(length, out, a, f) }
    }
}

/// [`map1_long`] for elements that lie side by side.
pub(super) struct SideBySide<A, O, F> {
    length: usize,
    out: *mut O,
    a: *const A,
    f: F,
}

impl<A, O, F> SideBySide<A, O, F> {
    /// # Safety
    ///
    /// * The requirements of [`map1_long`] hold as long as the value exists.
    #[inline(always)]
    pub(super) unsafe fn new(length: usize, out: *mut O, a: *const A, f: F) -> Self {
        SideBySide { length, out, a, f }
    }
}

impl<A: Copy, O: Copy, F: Fn(A) -> O> WithSimd for SideBySide<A, O, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        // SAFETY: the caller of `new` guarantees this.
        unsafe { map1_side_by_side(self.length, self.out, self.a, self.f) }
    }
}

/// The loop of [`map1_long`], for callers that already run with the widest vectors.
///
/// # Safety
///
/// * As for [`map1_long`].
#[inline(always)]
pub(super) unsafe fn map1_wide<A: Copy, O: Copy>(length: usize, out: OutRow<O>, a: InRow<A>, f: impl Fn(A) -> O) {
    if (out.stride, a.stride) != (1, 1) {
        // SAFETY: the caller guarantees this.
        return unsafe { map1_in_blocks(length, out, a, f) };
    }
    // SAFETY: as above; the strides are 1.
    unsafe { map1_side_by_side(length, out.first, a.first, f) }
}

/// [`map1_wide`] for elements that lie side by side.
///
/// # Safety
///
/// * The first `length` elements of both are as [`map1_long`] requires.
#[inline(always)]
unsafe fn map1_side_by_side<A: Copy, O: Copy>(length: usize, out: *mut O, a: *const A, f: impl Fn(A) -> O) {
    if size_of::<A>() == size_of::<O>() && out.cast_const().cast() == a {
        // One pointer for both rows: the compiler sees that each element overlaps only itself.
        for i in 0..length {
            // SAFETY: the caller guarantees this for every index below `length`.
            let element = unsafe { out.add(i) };
            // SAFETY: as above; it is an element of `a`, too.
            let x = unsafe { element.cast::<A>().read() };
            // SAFETY: as above.
            unsafe { element.write(f(x)) };
        }
        return;
    }
    // The rows do not overlap, which the compiler lets the loop test once.
    for i in 0..length {
        // SAFETY: the caller guarantees this for every index below `length`.
        let from = unsafe { a.add(i) };
        // SAFETY: as above.
        let to = unsafe { out.add(i) };
        // SAFETY: as above.
        let x = unsafe { from.read() };
        // SAFETY: as above.
        unsafe { to.write(f(x)) };
    }
}

/// [`map1_wide`] for any strides: a block of results is collected on the stack, so that the loop that computes them is vectorised.
///
/// # Safety
///
/// * As for [`map1_long`].
#[inline(always)]
unsafe fn map1_in_blocks<A: Copy, O: Copy>(length: usize, out: OutRow<O>, a: InRow<A>, f: impl Fn(A) -> O) {
    let mut results = [const { MaybeUninit::<O>::uninit() }; BLOCK];
    let mut first = 0;
    while first < length {
        let count = BLOCK.min(length - first);
        for (i, result) in results[..count].iter_mut().enumerate() {
            // SAFETY: the caller guarantees this for every index below `length`, and `first + i < length`.
            result.write(f(unsafe { a.get(first + i) }));
        }
        for (i, result) in results[..count].iter().enumerate() {
            // SAFETY: it was written above.
            let result = unsafe { result.assume_init() };
            // SAFETY: the caller guarantees this for every index below `length`, and `first + i < length`.
            unsafe { out.set(first + i, result) };
        }
        first += count;
    }
}

/// `out[i] = f(a[i], b[i])` for an `f` of many operations and any strides, as [`map1_in_blocks`].
///
/// # Safety
///
/// * As for [`map2`](crate::rows::map2).
#[inline(always)]
pub(super) unsafe fn map2_in_blocks<A: Copy, B: Copy, O: Copy>(
    length: usize,
    out: OutRow<O>,
    a: InRow<A>,
    b: InRow<B>,
    f: impl Fn(A, B) -> O,
) {
    let mut pairs = [const { MaybeUninit::<(A, B)>::uninit() }; BLOCK];
    let mut first = 0;
    while first < length {
        let count = BLOCK.min(length - first);
        for (i, pair) in pairs[..count].iter_mut().enumerate() {
            // SAFETY: the caller guarantees this for every index below `length`, and `first + i < length`.
            let x = unsafe { a.get(first + i) };
            // SAFETY: as above.
            pair.write((x, unsafe { b.get(first + i) }));
        }
        let pairs = InRow { first: pairs.as_ptr().cast::<(A, B)>(), stride: 1 };
        // SAFETY: the first `count` pairs are written; the caller guarantees the elements of `out`.
        unsafe { map1_wide(count, out.from(first), pairs, |(x, y)| f(x, y)) };
        first += count;
    }
}

#[cfg(test)]
#[path = "long_rows_tests.rs"]
mod tests;
