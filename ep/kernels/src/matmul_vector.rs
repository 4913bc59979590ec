//! Products of a row and a matrix, for 32- and 64-bit floats. `gemm` adds one row of the matrix after the other to an output in memory, so each
//! addition waits for the store of the one before; here the sums stay in registers. A product of a 128 by 128 matrix takes half as long.
//!
//! A product of a matrix and a column is that of the column, as a row, and the transposed matrix.
//!
//! The product is computed for a block of columns at a time, over all rows of the matrix. Few columns give few sums, which would wait for each
//! other, so each column then has [`CHAINS`] sums, each over every fourth row. So the order of additions depends on the shapes and on the width of
//! the processor's vectors, as it does in `gemm`.

use pulp::{Simd, WithSimd};

use crate::matmul::Matrix;
use crate::simd_dispatch::run_wide;

/// Sums that do not wait for each other: what the multiply-and-add units of usual processors have in flight.
const CHAINS: usize = 4;

/// A row of `k` elements, a `k` by `n` matrix, and their product, a row of `n` elements.
#[derive(Copy, Clone)]
struct RowProduct<T> {
    row: *const T,
    row_stride: usize,
    matrix: *const T,
    form: Matrix,
    out: *mut T,
}

impl<T> RowProduct<T> {
    /// The product as that of a row and a matrix, if it is one and neither the rows of the matrix nor the output have gaps.
    fn of(
        (out, product): (*mut T, Matrix),
        (a, left): (*const T, Matrix),
        (b, right): (*const T, Matrix),
    ) -> Option<RowProduct<T>> {
        let (it, out_stride) = if product.rows == 1 {
            let it = RowProduct { row: a, row_stride: left.column_stride, matrix: b, form: right, out };
            (it, product.column_stride)
        } else if product.columns == 1 {
            let transposed = left.transposed();
            (RowProduct { row: b, row_stride: right.row_stride, matrix: a, form: transposed, out }, product.row_stride)
        } else {
            return None;
        };
        (it.form.column_stride == 1 && out_stride == 1).then_some(it)
    }
}

/// Products of a row and a matrix of this type.
pub(super) trait MultiplyRow: Sized {
    /// Computes `out = a * b` and returns true, if `a` is a row and the column strides of `b` and `out` are 1, or `b` is a column and the row strides
    /// of `a` and `out` are 1. Returns false otherwise.
    ///
    /// # Safety
    ///
    /// * As for [`Multiply::multiply`](crate::matmul::Multiply::multiply).
    unsafe fn multiply_row(out: (*mut Self, Matrix), a: (*const Self, Matrix), b: (*const Self, Matrix)) -> bool;
}

macro_rules! row_products {
    ($($float:ident $vector:ident $splat:ident $mul_add:ident $add:ident $load:ident $store:ident;)*) => {$(
        impl MultiplyRow for $float {
            #[inline]
            unsafe fn multiply_row(out: (*mut $float, Matrix), a: (*const $float, Matrix), b: (*const $float, Matrix)) -> bool {
                match RowProduct::of(out, a, b) {
                    Some(product) => {
                        run_wide(product);
                        true
                    }
                    None => false,
                }
            }
        }

        impl WithSimd for RowProduct<$float> {
            type Output = ();

            #[inline(always)]
            fn with_simd<S: Simd>(self, simd: S) {
                // SAFETY: only `multiply_row` makes a product and runs it at once; its caller guarantees the elements.
                unsafe { self.rows(simd) }
            }
        }

        impl RowProduct<$float> {
            /// # Safety
            ///
            /// * The elements of the row, the matrix and the output are as [`MultiplyRow::multiply_row`] asks, and those of each row
            ///   of the matrix and of the output have no gaps.
            #[inline(always)]
            unsafe fn rows<S: Simd>(self, simd: S) {
                let lanes = size_of::<S::$vector>() / size_of::<$float>();
                let columns = self.form.columns;
                let mut column = 0;
                // SAFETY: the blocks lie within the columns; the caller guarantees the rest.
                unsafe {
                    while column + 8 * lanes <= columns {
                        self.block::<S, 8, 1>(simd, column);
                        column += 8 * lanes;
                    }
                    while column + 2 * lanes <= columns {
                        self.block::<S, 2, CHAINS>(simd, column);
                        column += 2 * lanes;
                    }
                    while column < columns {
                        let length = lanes.min(columns - column);
                        self.rest(simd, column, length);
                        column += length;
                    }
                }
            }

            /// The product with `WIDTH` vectors of columns, each in `CHAINED` sums.
            ///
            /// # Safety
            ///
            /// * As for `rows`, and the columns lie within the matrix.
            #[inline(always)]
            unsafe fn block<S: Simd, const WIDTH: usize, const CHAINED: usize>(self, simd: S, column: usize) {
                let zero = simd.$splat(0.0);
                let mut sums = [[zero; WIDTH]; CHAINED];
                let mut k = 0;
                // SAFETY: `k` is a row of the matrix; the caller guarantees the elements. The vector types of `pulp` are plain numbers.
                unsafe {
                    while k + CHAINED <= self.form.rows {
                        for (chain, sums) in sums.iter_mut().enumerate() {
                            self.add_row(simd, k + chain, column, sums);
                        }
                        k += CHAINED;
                    }
                    while k < self.form.rows {
                        self.add_row(simd, k, column, &mut sums[0]);
                        k += 1;
                    }
                    let mut used = CHAINED;
                    while used > 1 {
                        used /= 2;
                        for chain in 0..used {
                            for place in 0..WIDTH {
                                sums[chain][place] = simd.$add(sums[chain][place], sums[chain + used][place]);
                            }
                        }
                    }
                    let out = self.out.wrapping_add(column).cast::<S::$vector>();
                    for (place, sum) in sums[0].into_iter().enumerate() {
                        out.wrapping_add(place).write_unaligned(sum);
                    }
                }
            }

            /// Adds a row of the matrix, times its element of the row, to the sums of a block.
            ///
            /// # Safety
            ///
            /// * As for `block`, and `k` is a row of the matrix.
            #[inline(always)]
            unsafe fn add_row<S: Simd, const WIDTH: usize>(self, simd: S, k: usize, column: usize, sums: &mut [S::$vector; WIDTH]) {
                // SAFETY: the caller guarantees the elements.
                unsafe {
                    let scale = simd.$splat(self.row.wrapping_add(k * self.row_stride).read());
                    let from = self.matrix.wrapping_add(k * self.form.row_stride + column).cast::<S::$vector>();
                    for (place, sum) in sums.iter_mut().enumerate() {
                        *sum = simd.$mul_add(scale, from.wrapping_add(place).read_unaligned(), *sum);
                    }
                }
            }

            /// The product with the last columns, at most one vector.
            ///
            /// # Safety
            ///
            /// * As for `block`, and `length` is at most the number of lanes.
            #[inline(always)]
            unsafe fn rest<S: Simd>(self, simd: S, column: usize, length: usize) {
                let mut sums = [simd.$splat(0.0); CHAINS];
                for k in 0..self.form.rows {
                    // SAFETY: `k` is a row of the matrix; the caller guarantees the elements, and nobody writes them.
                    let (scale, from) = unsafe {
                        let from = self.matrix.wrapping_add(k * self.form.row_stride + column);
                        (self.row.wrapping_add(k * self.row_stride).read(), std::slice::from_raw_parts(from, length))
                    };
                    sums[k % CHAINS] = simd.$mul_add(simd.$splat(scale), simd.$load(from), sums[k % CHAINS]);
                }
                let sum = simd.$add(simd.$add(sums[0], sums[2]), simd.$add(sums[1], sums[3]));
                // SAFETY: the caller guarantees the elements, which are initialised, and nobody else accesses them.
                let out = unsafe { std::slice::from_raw_parts_mut(self.out.wrapping_add(column), length) };
                simd.$store(out, sum);
            }
        }
    )*};
}

row_products! {
    f32 f32s splat_f32s mul_add_f32s add_f32s partial_load_f32s partial_store_f32s;
    f64 f64s splat_f64s mul_add_f64s add_f64s partial_load_f64s partial_store_f64s;
}
