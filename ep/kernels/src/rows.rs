//! Rows: evenly spaced elements in memory, and the innermost loops over them.
//!
//! The loops that compute take rows of stride 1, inputs also of stride 0. They are written so that the compiler
//! vectorises them whether or not the output is also an input: a block of [`LANES`] elements is loaded, computed and stored as a whole.
//! Raw pointers are necessary because an output may be exactly an input; a `&mut` and a `&` to it would be undefined behaviour.

use pulp::{Simd, WithSimd};
use streamvm_ep::Operand;

use crate::lanes;
use crate::simd_dispatch::one_by_one;

/// The number of elements computed at a time. 16 `f32` are a cache line, four SSE or two AVX registers; more would spill registers for
/// elements of 8 bytes. Of smaller elements, as many as are a cache line are computed at a time while there are so many.
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
    /// A row of elements side by side.
    #[inline(always)]
    pub(super) fn dense(first: *const T) -> InRow<T> {
        InRow { first, stride: 1 }
    }

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
    /// * Elements `index` to `index + N` are as for [`get`](InRow::get).
    #[inline(always)]
    pub(super) unsafe fn block<const N: usize>(self, index: usize) -> [T; N] {
        let block = self.first.wrapping_add(index).cast::<[T; N]>();
        // SAFETY: the caller guarantees the elements, and an array has the alignment of its elements.
        unsafe { block.read() }
    }

    /// [`block`](InRow::block), or with stride 0 the one element in each place. Such an element is not in an output that a loop has begun to write: an input that is
    /// also the output has its stride, which is 1.
    ///
    /// # Safety
    ///
    /// * The stride is 1 or 0.
    /// * Elements `index` to `index + N` are as for [`get`](InRow::get).
    #[inline(always)]
    unsafe fn block_or_same<const N: usize>(self, index: usize) -> [T; N] {
        match self.stride {
            // SAFETY: the caller guarantees the element, which is each of the block.
            0 => [unsafe { self.get(index) }; N],
            // SAFETY: the caller guarantees this.
            _ => unsafe { self.block(index) },
        }
    }
}

impl<T: Copy> OutRow<T> {
    /// A row of elements side by side.
    #[inline(always)]
    pub(super) fn dense(first: *mut T) -> OutRow<T> {
        OutRow { first, stride: 1 }
    }

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
    /// * Elements `index` to `index + N` are as for [`set`](OutRow::set).
    #[inline(always)]
    unsafe fn set_block<const N: usize>(self, index: usize, values: [T; N]) {
        let block = self.first.wrapping_add(index).cast::<[T; N]>();
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

const fn is_at_most<T>(bytes: usize) -> bool {
    size_of::<T>() <= bytes
}

macro_rules! maps {
    ($($(#[$doc:meta])* $map:ident by $block:ident: $($input:ident $element:ident $x:ident),*;)*) => {$(
        $(#[$doc])*
        pub(super) struct $map<$($element,)* O, F> {
            length: usize,
            out: OutRow<O>,
            $($input: InRow<$element>,)*
            f: F,
            only_lanes: bool,
        }

        impl<$($element,)* O, F> $map<$($element,)* O, F> {
            /// # Safety
            ///
            /// * As long as the value exists, each of these elements is as [`InRow::get`] and [`OutRow::set`] require, except that an element of an input may be an element of `out` if
            ///   both have the same index.
            /// * The stride of the output is 1, those of inputs are 1, or 0 if there are several.
            #[inline(always)]
            pub(super) unsafe fn new(length: usize, out: OutRow<O>, $($input: InRow<$element>,)* f: F) -> Self {
                $map { length, out, $($input,)* f, only_lanes: false }
            }
        }

        impl<$($element: Copy,)* O: Copy, F: Fn($($element),*) -> O> $map<$($element,)* O, F> {
            /// Computes blocks of `N` elements from element `i` on, as many as there are whole ones, and returns the end of the last.
            ///
            /// # Safety
            ///
            /// * As for `new`.
            #[inline(always)]
            unsafe fn blocks<const N: usize>(
                mut i: usize,
                length: usize,
                out: OutRow<O>,
                $($input: InRow<$element>,)*
                f: &F,
            ) -> usize {
                while i + N <= length {
                    $(
                        // SAFETY: the caller guarantees this: the block ends within the length.
                        let $x: [$element; N] = unsafe { $input.$block(i) };
                    )*
                    let results: [O; N] = lanes::array(|lane| f($($x[lane]),*));
                    // SAFETY: as above; the inputs at the same indices have been read already.
                    unsafe { out.set_block(i, results) };
                    i += N;
                }
                i
            }
        }

        impl<$($element: Copy,)* O: Copy, F: Fn($($element),*) -> O> WithSimd for $map<$($element,)* O, F> {
            type Output = ();

            #[inline(always)]
            fn with_simd<S: Simd>(self, _: S) {
                // Values, because the loops would read the fields anew after they write bytes.
                let $map { length, out, $($input,)* f, only_lanes } = self;
                let i = if S::IS_SCALAR || only_lanes {
                    0
                } else if const { is_at_most::<O>(1) $(&& is_at_most::<$element>(1))* } {
                    // SAFETY: the caller of `new` guarantees this.
                    unsafe { Self::blocks::<{ 4 * LANES }>(0, length, out, $($input,)* &f) }
                } else if const { is_at_most::<O>(2) $(&& is_at_most::<$element>(2))* } {
                    // SAFETY: as above.
                    unsafe { Self::blocks::<{ 2 * LANES }>(0, length, out, $($input,)* &f) }
                } else {
                    0
                };
                // Without wide vectors one loop is enough: it is there so that old processors compute the same, and each loop takes its time to compile.
                // SAFETY: as above.
                let i = if S::IS_SCALAR { i } else { unsafe { Self::blocks::<LANES>(i, length, out, $($input,)* &f) } };
                // The compiler makes no vectors of a loop that it sees to be short. There are hundreds of copies of this, and vectors for the few elements in each would take time to build.
                let left = if S::IS_SCALAR { length - i } else { (length - i) % LANES };
                for i in i..i + left {
                    let i = one_by_one::<S>(i);
                    $(
                        // SAFETY: as above, for every index below the length.
                        let $x = unsafe { $input.get(i) };
                    )*
                    // SAFETY: as above.
                    unsafe { out.set(i, f($($x),*)) };
                }
            }
        }
    )*};
}

maps! {
    /// `out[i] = f(a[i])`.
    Map1 by block: a A x;
    /// `out[i] = f(a[i], b[i])`.
    Map2 by block_or_same: a A x, b B y;
    /// `out[i] = f(a[i], b[i], c[i])`.
    Map3 by block_or_same: a A x, b B y, c C z;
}

impl<A, B, O, F> Map2<A, B, O, F> {
    /// Never computes more than [`LANES`] elements at a time: for functions that no vectors compute.
    #[inline(always)]
    pub(super) fn in_lanes(self) -> Self {
        Map2 { only_lanes: true, ..self }
    }
}

/// `out[i] = f(a[i])` for an `f` of many operations: a loop that the compiler vectorises as a loop. What `f` captures should be moved into it, because the loop would read a borrowed value anew for
/// each element.
pub(super) struct SideBySide<A, O, F> {
    length: usize,
    out: *mut O,
    a: *const A,
    f: F,
}

impl<A, O, F> SideBySide<A, O, F> {
    /// # Safety
    ///
    /// * As for [`Map1::new`].
    #[inline(always)]
    pub(super) unsafe fn new(length: usize, out: *mut O, a: *const A, f: F) -> Self {
        SideBySide { length, out, a, f }
    }
}

impl<A: Copy, O: Copy, F: Fn(A) -> O> WithSimd for SideBySide<A, O, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let SideBySide { length, out, a, f } = self;
        if !S::IS_SCALAR && size_of::<A>() == size_of::<O>() && out.cast_const().cast() == a {
            // One pointer for both rows: the compiler sees that each element overlaps only itself.
            for i in 0..length {
                // SAFETY: the caller of `new` guarantees this for every index below `length`.
                let element = unsafe { out.add(i) };
                // SAFETY: as above; it is an element of `a`, too.
                let x = unsafe { element.cast::<A>().read() };
                // SAFETY: as above.
                unsafe { element.write(f(x)) };
            }
            return;
        }
        // Vectors are for rows that do not overlap, which the compiler lets the loop test once.
        for i in 0..length {
            let i = one_by_one::<S>(i);
            // SAFETY: the caller of `new` guarantees this for every index below `length`.
            let from = unsafe { a.add(i) };
            // SAFETY: as above.
            let to = unsafe { out.add(i) };
            // SAFETY: as above.
            let x = unsafe { from.read() };
            // SAFETY: as above.
            unsafe { to.write(f(x)) };
        }
    }
}

#[cfg(test)]
#[path = "rows_tests.rs"]
mod tests;
