//! Rows: evenly spaced elements in memory, and the innermost loops over them.
//!
//! The loops that compute take rows of stride 1, inputs also of stride 0. They are written so that the compiler
//! vectorises them whether or not the output is also an input: a block of [`LANES`] elements is loaded, computed and stored as a whole.
//! Raw pointers are necessary because an output may be exactly an input; a `&mut` and a `&` to it would be undefined behaviour.

use std::mem::MaybeUninit;

use pulp::{Simd, WithSimd};
use streamvm_ep::Operand;

use crate::{lanes, simd_dispatch};

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

    /// [`block`](InRow::block), or with stride 0 the one element in each place. Such an element is not in an output that a loop has begun to write: an input that is
    /// also the output has its stride, which is 1.
    ///
    /// # Safety
    ///
    /// * The stride is 1 or 0.
    /// * Elements `index` to `index + LANES` are as for [`get`](InRow::get).
    #[inline(always)]
    unsafe fn block_or_same(self, index: usize) -> [T; LANES] {
        match self.stride {
            // SAFETY: the caller guarantees the element, which is each of the block.
            0 => [unsafe { self.get(index) }; LANES],
            // SAFETY: the caller guarantees this.
            _ => unsafe { self.block(index) },
        }
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

/// A row of `operand` for reading.
#[inline(always)]
pub(super) fn input<T>(operand: &Operand, offset: usize, stride: usize) -> InRow<T> {
    InRow { first: operand.ptr().cast::<T>().cast_const().wrapping_add(offset), stride }
}

/// A row of `operand` for writing.
#[inline(always)]
pub(super) fn output<T>(operand: &Operand, offset: usize, stride: usize) -> OutRow<T> {
    OutRow { first: operand.ptr().cast::<T>().wrapping_add(offset), stride }
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

/// `out[i] = a[i]` for `i` in `0..length`.
///
/// # Safety
///
/// * Each of these elements is as [`InRow::get`] and [`OutRow::set`] require, except that an element of `a` may be an element of `out` if
///   both have the same index.
#[inline(never)]
pub(super) unsafe fn copy<T: Copy>(length: usize, out: OutRow<T>, a: InRow<T>) {
    if (out.stride, a.stride) == (1, 1) {
        // SAFETY: the caller guarantees the elements; with stride 1 they are contiguous.
        return unsafe { out.first.copy_from(a.first, length) };
    }
    for i in 0..length {
        // SAFETY: the caller guarantees this for every index below `length`, and `i < length`.
        let x = unsafe { a.get(i) };
        // SAFETY: as above.
        unsafe { out.set(i, x) };
    }
}

/// The elements of a block: at most 1 KiB of one operand on the stack, and eight steps of the loops over 16 elements.
pub(super) const BLOCK: usize = 128;

/// Room for the elements of a block, side by side. A loop for any strides copies the elements of a block side by side, computes them with vectors, and copies the results to where they
/// belong. So there is one loop for each function, and the loops for any strides are one for each type.
pub(super) struct Block<T>([MaybeUninit<T>; BLOCK]);

impl<T: Copy> Block<T> {
    #[inline(always)]
    pub(super) fn new() -> Block<T> {
        Block([const { MaybeUninit::uninit() }; BLOCK])
    }

    /// The first `count` elements of `row` as a row with stride 1 or 0, copied if they are not.
    ///
    /// # Safety
    ///
    /// * Each of these elements is as [`InRow::get`] requires; `count` is at most [`BLOCK`].
    #[inline(always)]
    pub(super) unsafe fn gather(&mut self, count: usize, row: InRow<T>) -> InRow<T> {
        if row.stride <= 1 {
            return row;
        }
        // SAFETY: the caller guarantees this.
        unsafe { self.copied(count, row) }
    }

    /// The first `count` elements of `row`, copied.
    ///
    /// # Safety
    ///
    /// * As for [`gather`](Block::gather).
    #[inline(always)]
    pub(super) unsafe fn copied(&mut self, count: usize, row: InRow<T>) -> InRow<T> {
        let here = self.row();
        // SAFETY: the caller guarantees the elements, and this has room for them, which nothing else accesses.
        unsafe { copy(count, here, row) };
        here.written()
    }

    /// Room for the results, with stride 1: `out` itself, or here.
    #[inline(always)]
    pub(super) fn room(&mut self, out: OutRow<T>) -> OutRow<T> {
        if out.stride == 1 { out } else { self.row() }
    }

    /// Copies the first `count` results to `out`, unless it was the room.
    ///
    /// # Safety
    ///
    /// * They have been written to the [room](Block::room) for `out`, which has `count` elements as [`OutRow::set`] requires; `count` is at most [`BLOCK`].
    #[inline(always)]
    pub(super) unsafe fn scatter(&mut self, count: usize, out: OutRow<T>) {
        if out.stride != 1 {
            // SAFETY: the caller guarantees the elements, and that those here are written.
            unsafe { copy(count, out, self.row().written()) };
        }
    }

    #[inline(always)]
    fn row(&mut self) -> OutRow<T> {
        OutRow { first: self.0.as_mut_ptr().cast(), stride: 1 }
    }
}

/// Calls `block` with the first index and the number of elements of each block of `length` elements.
#[inline(always)]
fn blocks(length: usize, mut block: impl FnMut(usize, usize)) {
    let mut first = 0;
    while first < length {
        let count = BLOCK.min(length - first);
        block(first, count);
        first += count;
    }
}

/// `out[i] = f(a[i], b[i])` for `i` in `0..length`.
///
/// # Safety
///
/// * Each of these elements is as [`InRow::get`] and [`OutRow::set`] require, except that an element of an input may be an element of `out` if
///   both have the same index.
#[inline]
pub(super) unsafe fn map2<A: Copy, B: Copy, O: Copy>(
    length: usize,
    out: OutRow<O>,
    a: InRow<A>,
    b: InRow<B>,
    f: impl Fn(A, B) -> O + Copy,
) {
    if out.stride == 1 && a.stride.max(b.stride) <= 1 {
        // SAFETY: the caller guarantees the elements; the strides are 1, those of the inputs may be 0.
        return simd_dispatch::run(unsafe { Map2::new(length, out, a, b, f) });
    }
    let (mut results, mut left, mut right) = (Block::<O>::new(), Block::<A>::new(), Block::<B>::new());
    blocks(length, |first, count| {
        let out = out.from(first);
        // SAFETY: the caller guarantees this for every index below `length`.
        let a = unsafe { left.gather(count, a.from(first)) };
        // SAFETY: as above.
        let b = unsafe { right.gather(count, b.from(first)) };
        // SAFETY: as above, and the rows here have room for a block; the strides are those that the loop needs.
        simd_dispatch::run(unsafe { Map2::new(count, results.room(out), a, b, f) });
        // SAFETY: the results have been written; the caller guarantees the elements of `out`.
        unsafe { results.scatter(count, out) };
    });
}

/// `out[i] = f(a[i], b[i], c[i])` for `i` in `0..length`.
///
/// # Safety
///
/// * As for [`map2`], for `a`, `b` and `c` each.
#[inline]
pub(super) unsafe fn map3<A: Copy, B: Copy, C: Copy, O: Copy>(
    length: usize,
    out: OutRow<O>,
    a: InRow<A>,
    b: InRow<B>,
    c: InRow<C>,
    f: impl Fn(A, B, C) -> O + Copy,
) {
    if out.stride == 1 && a.stride.max(b.stride).max(c.stride) <= 1 {
        // SAFETY: the caller guarantees the elements; the strides are 1, those of the inputs may be 0.
        return simd_dispatch::run(unsafe { Map3::new(length, out, a, b, c, f) });
    }
    let (mut results, mut left, mut middle, mut right) =
        (Block::<O>::new(), Block::<A>::new(), Block::<B>::new(), Block::<C>::new());
    blocks(length, |first, count| {
        let out = out.from(first);
        // SAFETY: the caller guarantees this for every index below `length`.
        let a = unsafe { left.gather(count, a.from(first)) };
        // SAFETY: as above.
        let b = unsafe { middle.gather(count, b.from(first)) };
        // SAFETY: as above.
        let c = unsafe { right.gather(count, c.from(first)) };
        // SAFETY: as above, and the rows here have room for a block; the strides are those that the loop needs.
        simd_dispatch::run(unsafe { Map3::new(count, results.room(out), a, b, c, f) });
        // SAFETY: the results have been written; the caller guarantees the elements of `out`.
        unsafe { results.scatter(count, out) };
    });
}

/// `out[i] = f(a[i])` for an output and an input with stride 1.
pub(super) struct Map1<A, O, F> {
    length: usize,
    out: OutRow<O>,
    a: InRow<A>,
    f: F,
}

impl<A, O, F> Map1<A, O, F> {
    /// # Safety
    ///
    /// * The requirements of [`map2`] hold for the one input as long as the value exists. The strides are 1.
    #[inline(always)]
    pub(super) unsafe fn new(length: usize, out: OutRow<O>, a: InRow<A>, f: F) -> Self {
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
            // SAFETY: the caller of `new` guarantees it: the stride is 1, and the block ends within `length`.
            let x = unsafe { a.block(i) };
            let y = lanes::array(|lane| f(x[lane]));
            // SAFETY: as above, and the stride of the output is 1; the block of `a` at the same indices has been read already.
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

/// [`map2`] for an output with stride 1 and inputs with stride 1 or 0.
pub(super) struct Map2<A, B, O, F> {
    length: usize,
    out: OutRow<O>,
    a: InRow<A>,
    b: InRow<B>,
    f: F,
}

impl<A, B, O, F> Map2<A, B, O, F> {
    /// # Safety
    ///
    /// * The requirements of [`map2`] hold as long as the value exists. The stride of the output is 1, those of the inputs are 1 or 0.
    #[inline(always)]
    pub(super) unsafe fn new(length: usize, out: OutRow<O>, a: InRow<A>, b: InRow<B>, f: F) -> Self {
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
            // SAFETY: the caller of `new` guarantees it: the stride is 1 or 0, and the block ends within `length`.
            let x = unsafe { a.block_or_same(i) };
            // SAFETY: as above.
            let y = unsafe { b.block_or_same(i) };
            let z = lanes::array(|lane| f(x[lane], y[lane]));
            // SAFETY: as above, and the stride of the output is 1; the inputs at the same indices have been read already.
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

/// [`map3`] for an output with stride 1 and inputs with stride 1 or 0.
pub(super) struct Map3<A, B, C, O, F> {
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
    /// * The requirements of [`map3`] hold as long as the value exists. The stride of the output is 1, the others are 1 or 0.
    #[inline(always)]
    pub(super) unsafe fn new(length: usize, out: OutRow<O>, a: InRow<A>, b: InRow<B>, c: InRow<C>, f: F) -> Self {
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
            // SAFETY: the caller of `new` guarantees it: the stride is 1 or 0, and the block ends within `length`.
            let x = unsafe { a.block_or_same(i) };
            // SAFETY: as above.
            let y = unsafe { b.block_or_same(i) };
            // SAFETY: as above.
            let z = unsafe { c.block_or_same(i) };
            let w = lanes::array(|lane| f(x[lane], y[lane], z[lane]));
            // SAFETY: as above, and the stride of the output is 1; the inputs at the same indices have been read already.
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
pub(super) mod tests;
