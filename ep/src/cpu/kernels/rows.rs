//! The innermost loops: here kernels read and write memory.
//!
//! The loops run over evenly spaced elements. The common cases (stride 1, or one operand with stride 0) are written so that the compiler
//! vectorises them whether or not the output is also an input: a block of [`LANES`] elements is loaded, computed and stored as a whole.
//! Raw pointers are necessary because an output may be exactly an input; a `&mut` and a `&` to it would be undefined behaviour.

use std::mem::MaybeUninit;

use pulp::{Simd, WithSimd};

use crate::cpu::kernels::simd_dispatch;

/// The number of elements computed at a time. 16 `f32` are a cache line, four SSE or two AVX registers; more would spill registers for
/// elements of 8 bytes.
pub(super) const LANES: usize = 16;

/// A row of evenly spaced elements to read.
#[derive(Copy, Clone)]
pub(super) struct InRow<T> {
    pub(super) first: *const T,
    /// In elements.
    pub(super) stride: usize,
}

/// A row of evenly spaced elements to write.
#[derive(Copy, Clone)]
pub(super) struct OutRow<T> {
    pub(super) first: *mut T,
    /// In elements.
    pub(super) stride: usize,
}

// SAFETY: a row is an address; those who access elements through it uphold what `get` requires.
unsafe impl<T: Sync> Sync for InRow<T> {}
// SAFETY: as above, for `set`.
unsafe impl<T: Send> Sync for OutRow<T> {}

impl<T: Copy> InRow<T> {
    /// The row from element `index` on.
    #[inline(always)]
    pub(super) fn from(self, index: usize) -> InRow<T> {
        InRow { first: self.first.wrapping_add(index * self.stride), stride: self.stride }
    }

    /// # Safety
    ///
    /// * Element `index` is aligned and initialised, may be read, and nothing writes it meanwhile.
    #[inline(always)]
    pub(super) unsafe fn get(self, index: usize) -> T {
        let element = self.first.wrapping_add(index * self.stride);
        // SAFETY: the caller guarantees this.
        unsafe { element.read() }
    }

    /// # Safety
    ///
    /// * The stride is 1.
    /// * Elements `index` to `index + LANES` are as for [`get`](InRow::get).
    #[inline(always)]
    pub(super) unsafe fn block(self, index: usize) -> [T; LANES] {
        let block = self.first.wrapping_add(index).cast::<[T; LANES]>();
        // SAFETY: the caller guarantees the elements, and an array has the alignment of its elements.
        unsafe { block.read() }
    }
}

impl<T: Copy> OutRow<T> {
    /// The row for reading, after its elements have been written.
    #[inline(always)]
    pub(super) fn written(self) -> InRow<T> {
        InRow { first: self.first.cast_const(), stride: self.stride }
    }

    /// The row from element `index` on.
    #[inline(always)]
    pub(super) fn from(self, index: usize) -> OutRow<T> {
        OutRow { first: self.first.wrapping_add(index * self.stride), stride: self.stride }
    }

    /// # Safety
    ///
    /// * Element `index` is aligned, may be written, and nothing else accesses it meanwhile.
    #[inline(always)]
    pub(super) unsafe fn set(self, index: usize, value: T) {
        let element = self.first.wrapping_add(index * self.stride);
        // SAFETY: the caller guarantees this.
        unsafe { element.write(value) }
    }

    /// # Safety
    ///
    /// * The stride is 1.
    /// * Elements `index` to `index + LANES` are as for [`set`](OutRow::set).
    #[inline(always)]
    unsafe fn set_block(self, index: usize, values: [T; LANES]) {
        let block = self.first.wrapping_add(index).cast::<[T; LANES]>();
        // SAFETY: the caller guarantees the elements, and an array has the alignment of its elements.
        unsafe { block.write(values) }
    }
}

/// `out[i] = value` for `i` in `0..length`.
///
/// # Safety
///
/// * Each of these elements is as [`OutRow::set`] requires.
#[inline]
pub(super) unsafe fn fill<T: Copy>(length: usize, out: OutRow<T>, value: T) {
    if out.stride == 1 {
        // SAFETY: the caller guarantees the elements; with stride 1 they are contiguous.
        let elements = unsafe { std::slice::from_raw_parts_mut(out.first, length) };
        elements.fill(value);
        return;
    }
    for i in 0..length {
        // SAFETY: the caller guarantees this.
        unsafe { out.set(i, value) };
    }
}

/// `out[i] = f(a[i])` for `i` in `0..length`.
///
/// # Safety
///
/// * Each of these elements is as [`InRow::get`] and [`OutRow::set`] require, except that an element of `a` may be an element of `out` if
///   both have the same index.
#[inline]
pub(super) unsafe fn map1<A: Copy, O: Copy>(length: usize, out: OutRow<O>, a: InRow<A>, f: impl Fn(A) -> O) {
    if (out.stride, a.stride) == (1, 1) {
        // SAFETY: the caller guarantees the elements; the strides are 1.
        return simd_dispatch::run(unsafe { Map1::new(length, out, a, f) });
    }
    for i in 0..length {
        // SAFETY: the caller guarantees this for every index below `length`, and `i < length`.
        let x = unsafe { a.get(i) };
        // SAFETY: as above.
        unsafe { out.set(i, f(x)) };
    }
}

/// [`map1`] for an `f` of many operations, for any strides: a loop that the compiler vectorises as a loop, with the widest vectors. What `f`
/// captures should be moved into it, because the loop would read a borrowed value anew for each element.
///
/// # Safety
///
/// * As for [`map1`].
#[inline]
pub(super) unsafe fn map1_long<A: Copy, O: Copy>(length: usize, out: OutRow<O>, a: InRow<A>, f: impl Fn(A) -> O) {
    // SAFETY: the caller guarantees this.
    simd_dispatch::run_wide(unsafe { MapLong::new(length, out, a, f) });
}

/// [`map1`] for an `f` that calls a library: a loop that is short to compile, with nothing to vectorise.
///
/// # Safety
///
/// * As for [`map1`].
pub(super) unsafe fn map1_called<T: Copy>(length: usize, out: OutRow<T>, a: InRow<T>, f: fn(T) -> T) {
    for i in 0..length {
        // SAFETY: the caller guarantees this for every index below `length`, and `i < length`.
        let x = unsafe { a.get(i) };
        // SAFETY: as above.
        unsafe { out.set(i, f(x)) };
    }
}

/// `out[i] = f(a[i], b[i])` for `i` in `0..length`.
///
/// # Safety
///
/// * As for [`map1`], for `a` and `b` each.
#[inline]
pub(super) unsafe fn map2<A: Copy, B: Copy, O: Copy>(
    length: usize,
    out: OutRow<O>,
    a: InRow<A>,
    b: InRow<B>,
    f: impl Fn(A, B) -> O,
) {
    if length == 0 {
        return;
    }
    // An operand with stride 0 is one element, which is read once. It is not an element of `out`: an input that is also the output has
    // the stride of `out`, which is not 0 unless there is only one element.
    match (a.stride, b.stride) {
        (1, 1) if out.stride == 1 => {
            // SAFETY: the caller guarantees the elements; the strides are 1.
            simd_dispatch::run(unsafe { Map2::new(length, out, a, b, f) });
        }
        (_, 0) => {
            // SAFETY: `length` is not 0, so the caller guarantees element 0.
            let y = unsafe { b.get(0) };
            // SAFETY: the caller guarantees this for `a`.
            unsafe { map1(length, out, a, |x| f(x, y)) };
        }
        (0, _) => {
            // SAFETY: `length` is not 0, so the caller guarantees element 0.
            let x = unsafe { a.get(0) };
            // SAFETY: the caller guarantees this for `b`.
            unsafe { map1(length, out, b, |y| f(x, y)) };
        }
        _ => {
            for i in 0..length {
                // SAFETY: the caller guarantees this for every index below `length`, and `i < length`.
                let x = unsafe { a.get(i) };
                // SAFETY: as above.
                let y = unsafe { b.get(i) };
                // SAFETY: as above.
                unsafe { out.set(i, f(x, y)) };
            }
        }
    }
}

/// [`map2`] for an `f` that calls a library, as [`map1_called`].
///
/// # Safety
///
/// * As for [`map2`].
pub(super) unsafe fn map2_called<T: Copy>(length: usize, out: OutRow<T>, a: InRow<T>, b: InRow<T>, f: fn(T, T) -> T) {
    for i in 0..length {
        // SAFETY: the caller guarantees this for every index below `length`, and `i < length`.
        let x = unsafe { a.get(i) };
        // SAFETY: as above.
        let y = unsafe { b.get(i) };
        // SAFETY: as above.
        unsafe { out.set(i, f(x, y)) };
    }
}

/// `out[i] = f(a[i], b[i], c[i])` for `i` in `0..length`.
///
/// # Safety
///
/// * As for [`map1`], for `a`, `b` and `c` each.
#[inline]
pub(super) unsafe fn map3<A: Copy, B: Copy, C: Copy, O: Copy>(
    length: usize,
    out: OutRow<O>,
    a: InRow<A>,
    b: InRow<B>,
    c: InRow<C>,
    f: impl Fn(A, B, C) -> O,
) {
    if (out.stride, a.stride, b.stride, c.stride) == (1, 1, 1, 1) {
        // SAFETY: the caller guarantees the elements; the strides are 1.
        return simd_dispatch::run(unsafe { Map3::new(length, out, a, b, c, f) });
    }
    for i in 0..length {
        // SAFETY: the caller guarantees this for every index below `length`, and `i < length`.
        let x = unsafe { a.get(i) };
        // SAFETY: as above.
        let y = unsafe { b.get(i) };
        // SAFETY: as above.
        let z = unsafe { c.get(i) };
        // SAFETY: as above.
        unsafe { out.set(i, f(x, y, z)) };
    }
}

/// [`map1`] for elements with stride 1.
struct Map1<A, O, F> {
    length: usize,
    out: OutRow<O>,
    a: InRow<A>,
    f: F,
}

impl<A, O, F> Map1<A, O, F> {
    /// # Safety
    ///
    /// * The requirements of [`map1`] hold as long as the value exists, and the strides are 1.
    #[inline(always)]
    unsafe fn new(length: usize, out: OutRow<O>, a: InRow<A>, f: F) -> Self {
        Map1 { length, out, a, f }
    }
}

impl<A: Copy, O: Copy, F: Fn(A) -> O> WithSimd for Map1<A, O, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Map1 { length, out, a, f } = self;
        let mut i = 0;
        while i + LANES <= length {
            // SAFETY: the caller of `new` guarantees it: the strides are 1, and the block ends within `length`.
            let x = unsafe { a.block(i) };
            let y = std::array::from_fn(|lane| f(x[lane]));
            // SAFETY: as above; the block of `a` at the same indices has been read already.
            unsafe { out.set_block(i, y) };
            i += LANES;
        }
        while i < length {
            // SAFETY: the caller of `new` guarantees this for every index below `length`, and `i < length`.
            let x = unsafe { a.get(i) };
            // SAFETY: as above.
            unsafe { out.set(i, f(x)) };
            i += 1;
        }
    }
}

/// The number of results that [`map1_in_blocks`] collects: at most 1 KiB, and long enough that the ends of blocks do not count.
const BLOCK: usize = 128;

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
    /// * The requirements of [`map1`] hold as long as the value exists.
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

/// The loop of [`map1_long`], for callers that already run with the widest vectors.
///
/// # Safety
///
/// * As for [`map1`].
#[inline(always)]
pub(super) unsafe fn map1_wide<A: Copy, O: Copy>(length: usize, out: OutRow<O>, a: InRow<A>, f: impl Fn(A) -> O) {
    if (out.stride, a.stride) != (1, 1) {
        // SAFETY: the caller guarantees this.
        return unsafe { map1_in_blocks(length, out, a, f) };
    }
    if size_of::<A>() == size_of::<O>() && out.first.cast_const().cast() == a.first {
        // One pointer for both rows: the compiler sees that each element overlaps only itself.
        for i in 0..length {
            // SAFETY: the caller guarantees this for every index below `length`.
            let element = unsafe { out.first.add(i) };
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
        let from = unsafe { a.first.add(i) };
        // SAFETY: as above.
        let to = unsafe { out.first.add(i) };
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
/// * As for [`map1`].
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
/// * As for [`map2`].
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

/// [`map2`] for elements with stride 1.
struct Map2<A, B, O, F> {
    length: usize,
    out: OutRow<O>,
    a: InRow<A>,
    b: InRow<B>,
    f: F,
}

impl<A, B, O, F> Map2<A, B, O, F> {
    /// # Safety
    ///
    /// * The requirements of [`map2`] hold as long as the value exists, and the strides are 1.
    #[inline(always)]
    unsafe fn new(length: usize, out: OutRow<O>, a: InRow<A>, b: InRow<B>, f: F) -> Self {
        Map2 { length, out, a, b, f }
    }
}

impl<A: Copy, B: Copy, O: Copy, F: Fn(A, B) -> O> WithSimd for Map2<A, B, O, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Map2 { length, out, a, b, f } = self;
        let mut i = 0;
        while i + LANES <= length {
            // SAFETY: the caller of `new` guarantees it: the strides are 1, and the block ends within `length`.
            let x = unsafe { a.block(i) };
            // SAFETY: as above.
            let y = unsafe { b.block(i) };
            let z = std::array::from_fn(|lane| f(x[lane], y[lane]));
            // SAFETY: as above; the inputs at the same indices have been read already.
            unsafe { out.set_block(i, z) };
            i += LANES;
        }
        while i < length {
            // SAFETY: the caller of `new` guarantees this for every index below `length`, and `i < length`.
            let x = unsafe { a.get(i) };
            // SAFETY: as above.
            let y = unsafe { b.get(i) };
            // SAFETY: as above.
            unsafe { out.set(i, f(x, y)) };
            i += 1;
        }
    }
}

/// [`map3`] for elements with stride 1.
struct Map3<A, B, C, O, F> {
    length: usize,
    out: OutRow<O>,
    a: InRow<A>,
    b: InRow<B>,
    c: InRow<C>,
    f: F,
}

impl<A, B, C, O, F> Map3<A, B, C, O, F> {
    /// # Safety
    ///
    /// * The requirements of [`map3`] hold as long as the value exists, and the strides are 1.
    #[inline(always)]
    unsafe fn new(length: usize, out: OutRow<O>, a: InRow<A>, b: InRow<B>, c: InRow<C>, f: F) -> Self {
        Map3 { length, out, a, b, c, f }
    }
}

impl<A: Copy, B: Copy, C: Copy, O: Copy, F: Fn(A, B, C) -> O> WithSimd for Map3<A, B, C, O, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Map3 { length, out, a, b, c, f } = self;
        let mut i = 0;
        while i + LANES <= length {
            // SAFETY: the caller of `new` guarantees it: the strides are 1, and the block ends within `length`.
            let x = unsafe { a.block(i) };
            // SAFETY: as above.
            let y = unsafe { b.block(i) };
            // SAFETY: as above.
            let z = unsafe { c.block(i) };
            let w = std::array::from_fn(|lane| f(x[lane], y[lane], z[lane]));
            // SAFETY: as above; the inputs at the same indices have been read already.
            unsafe { out.set_block(i, w) };
            i += LANES;
        }
        while i < length {
            // SAFETY: the caller of `new` guarantees this for every index below `length`, and `i < length`.
            let x = unsafe { a.get(i) };
            // SAFETY: as above.
            let y = unsafe { b.get(i) };
            // SAFETY: as above.
            let z = unsafe { c.get(i) };
            // SAFETY: as above.
            unsafe { out.set(i, f(x, y, z)) };
            i += 1;
        }
    }
}

#[cfg(test)]
#[path = "rows_tests.rs"]
mod tests;
