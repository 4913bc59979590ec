//! Matrix products, one call per matrix of the batch or part of it. Threads share the matrices of a batch, or the parts of a large product.
//!
//! The parts depend on the shape alone, and each is a product of its own, so results do not depend on the number of threads. A product is
//! divided at the axis along which its output is contiguous: then no two parts pack the same elements. If both factors must be packed, it is divided at the other axis.
//!
//! * Floats of 32 and 64 bits use [`matmul_float`], which packs and blocks for any strides.
//! * 16-bit floats are widened, panel by panel, and use it in `f32`: [`matmul_half`].
//! * Integers use a plain loop with wrapping arithmetic.

use std::ops::Range;

use half::{bf16, f16};
use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::{KernelCall, KernelError, Layout, MAX_RANK, Op};

use crate::loop_nest::LoopNest;
use crate::matmul_float::{self, Product};
use crate::matmul_half;
use crate::number::{DTypeTag, Number};
use crate::parallel;
use crate::rows::{self, InRow, Map2, OutRow, input, output};
use crate::simd_dispatch;
use crate::workers;

/// The kernel of [`Op::MatMul`].
pub(super) fn matmul<D>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError>
where
    D: DTypeTag,
    D::Store: Multiply,
{
    let ([a, b], out) = checked_operands(call, [D::DTYPE; 2], D::DTYPE, InPlace::Refused)?;
    check_inferred(Op::MatMul, [a, b], out, call)?;
    if out.layout().elements() == 0 {
        return Ok(());
    }
    let rank = out.layout().shape().rank();
    let batch = LoopNest::over(&mut (0..rank - 2).map(|axis| {
        let strides = [
            batch_stride(out.layout(), axis, rank),
            batch_stride(a.layout(), axis, rank),
            batch_stride(b.layout(), axis, rank),
        ];
        (out.layout().shape().dims()[axis], strides)
    }));
    let (left, right, product) = (Matrix::of(a.layout()), Matrix::of(b.layout()), Matrix::of(out.layout()));
    let [to_next, a_next, b_next] = batch.row_strides();
    let work = (product.rows * product.columns).saturating_mul(left.columns) / PRODUCTS;
    let matrices = out.layout().elements() / (product.rows * product.columns);
    let (of_batch, of_part) = if matrices < FEW { (0, work) } else { (work.max(1), 0) };
    batch.rows_in_parallel(of_batch, |[to, from_a, from_b], length| {
        for place in 0..length {
            let out = output::<D::Store>(out, to + place * to_next, 1);
            let a = input::<D::Store>(a, from_a + place * a_next, 1);
            let b = input::<D::Store>(b, from_b + place * b_next, 1);
            product.parts([left, right], of_part, D::Store::SIDE, |rows, columns| {
                let out = (out.from(product.offset(rows.start, columns.start)).first, product.part(&rows, &columns));
                let a = (a.from(left.offset(rows.start, 0)).first, left.part(&rows, &(0..left.columns)));
                let b = (b.from(right.offset(0, columns.start)).first, right.part(&(0..right.rows), &columns));
                // SAFETY: the loop nest and the matrices stay within the operands, which hold `D`, and inference has checked that the
                // sizes match. The output may be written, reaches no element twice, and does not overlap the inputs. Parts of it do not
                // overlap each other.
                unsafe { D::Store::multiply(out, a, b) };
            });
        }
    });
    Ok(())
}

/// Products of two elements that are a unit of work.
const PRODUCTS: usize = 8;

/// The matrices of a batch that keep the threads of a usual processor busy; the products of a smaller batch are divided.
const FEW: usize = 8;

/// The most parts of a product.
const PARTS: usize = 16;

/// The stride of an operand on axis `axis` of a batch whose result has rank `rank`.
fn batch_stride(layout: &Layout, axis: usize, rank: usize) -> usize {
    debug_assert!(rank <= MAX_RANK);
    match (axis + layout.shape().rank()).checked_sub(rank) {
        Some(own) if layout.shape().dims()[own] != 1 => layout.strides()[own],
        _ => 0,
    }
}

/// Size and strides of the two innermost axes, in elements.
#[derive(Copy, Clone)]
pub(super) struct Matrix {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) row_stride: usize,
    pub(super) column_stride: usize,
}

impl Matrix {
    /// Calls `part` with the rows and columns of each part of a product of this form, of two `factors`, that takes `work`. The length of a part is a multiple of `side`.
    fn parts(
        self,
        [left, right]: [Matrix; 2],
        work: usize,
        side: usize,
        part: impl Fn(Range<usize>, Range<usize>) + Sync,
    ) {
        let (rows, columns) = (self.rows, self.columns);
        let is_upright = self.column_stride <= self.row_stride;
        // The output is contiguous `along` an axis. Divided there, one factor is packed part by part, and the other one is read where it lies, unless its depth has gaps: then it would be packed for each part.
        let (along, across, packs_once) = match is_upright {
            true => (columns, rows, left.column_stride == 1),
            false => (rows, columns, right.row_stride == 1),
        };
        let is_along = (packs_once || across < 2 * side) && (along >= 2 * side || along >= across);
        let by_columns = is_along == is_upright;
        let length = if by_columns { columns } else { rows };
        let blocks = length.div_ceil(side);
        let parts = blocks.min(work / parallel::LARGE).min(if packs_once { PARTS } else { PARTS / 2 });
        if parts < 2 {
            return part(0..rows, 0..columns);
        }
        let length_of_part = blocks.div_ceil(parts) * side;
        workers::split(length.div_ceil(length_of_part), &|index| {
            let range = index * length_of_part..((index + 1) * length_of_part).min(length);
            if by_columns { part(0..rows, range) } else { part(range, 0..columns) }
        });
    }

    /// The distance of an element from the first, in elements.
    pub(super) fn offset(self, row: usize, column: usize) -> usize {
        row * self.row_stride + column * self.column_stride
    }

    pub(super) fn transposed(self) -> Matrix {
        Matrix {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }

    /// The part with these rows and columns.
    fn part(self, rows: &Range<usize>, columns: &Range<usize>) -> Matrix {
        Matrix { rows: rows.len(), columns: columns.len(), ..self }
    }

    /// The matrix of a layout of at least two axes.
    fn of(layout: &Layout) -> Matrix {
        let rank = layout.shape().rank();
        Matrix {
            rows: layout.shape().dims()[rank - 2],
            columns: layout.shape().dims()[rank - 1],
            row_stride: layout.strides()[rank - 2],
            column_stride: layout.strides()[rank - 1],
        }
    }
}

/// The matrix product for this element type.
pub(super) trait Multiply: Number {
    /// The rows or columns of the output that are computed together: whole panels of any processor, or a panel of 16-bit floats.
    const SIDE: usize;

    /// `out = a * b`.
    ///
    /// # Safety
    ///
    /// * `a` is m by k, `b` k by n and `out` m by n; m and n are not 0.
    /// * The elements of `a` and `b` are aligned and initialised at their strides, and nothing writes them.
    /// * The elements of `out` are aligned, initialised and distinct at their strides, and nothing else accesses them.
    unsafe fn multiply(out: (*mut Self, Matrix), a: (*const Self, Matrix), b: (*const Self, Matrix));
}

macro_rules! with_vectors {
    ($($float:ident),*) => {$(
        impl Multiply for $float {
            const SIDE: usize = 64;

            unsafe fn multiply(
                out: (*mut $float, Matrix),
                a: (*const $float, Matrix),
                b: (*const $float, Matrix),
            ) {
                // SAFETY: the caller guarantees this.
                unsafe { matmul_float::multiply(Product { out, a, b, adds: false }) };
            }
        }
    )*};
}

with_vectors!(f32, f64);

macro_rules! with_panels {
    ($($float:ident),*) => {$(
        impl Multiply for $float {
            const SIDE: usize = matmul_half::PANEL_SIDE;

            unsafe fn multiply(
                out: (*mut $float, Matrix),
                a: (*const $float, Matrix),
                b: (*const $float, Matrix),
            ) {
                // SAFETY: the caller guarantees this.
                unsafe { matmul_half::multiply(out, a, b) }
            }
        }
    )*};
}

with_panels!(f16, bf16);

macro_rules! with_loops {
    ($($int:ident),*) => {$(
        impl Multiply for $int {
            const SIDE: usize = 64;

            unsafe fn multiply(
                out: (*mut $int, Matrix),
                a: (*const $int, Matrix),
                b: (*const $int, Matrix),
            ) {
                // SAFETY: the caller guarantees this.
                unsafe { multiply_by_rows(out, a, b) }
            }
        }
    )*};
}

with_loops!(i32, i64);

/// Adds rows of `b`, each scaled by an element of `a`, to a row of `out`. The innermost loop runs along rows, which are contiguous for
/// row-major matrices.
///
/// # Safety
///
/// * As for [`Multiply::multiply`].
unsafe fn multiply_by_rows<T: Number>(
    (out, product): (*mut T, Matrix),
    (a, left): (*const T, Matrix),
    (b, right): (*const T, Matrix),
) {
    let columns = product.columns;
    for i in 0..product.rows {
        let out_row = OutRow { first: out.wrapping_add(i * product.row_stride), stride: product.column_stride };
        let sum_row = InRow { first: out_row.first.cast_const(), stride: product.column_stride };
        let a_row = InRow { first: a.wrapping_add(i * left.row_stride), stride: left.column_stride };
        // SAFETY: the caller guarantees this.
        unsafe { rows::fill(columns, out_row, T::ZERO) };
        for k in 0..left.columns {
            // SAFETY: the caller guarantees the elements of `a`, and `k` is one of its columns.
            let scale = unsafe { a_row.get(k) };
            let b_row = InRow { first: b.wrapping_add(k * right.row_stride), stride: right.column_stride };
            let step = |sum: T, y: T| sum.add(scale.mul(y));
            if [out_row.stride, b_row.stride] == [1, 1] {
                // SAFETY: the caller guarantees the elements, and each sum is read before it is written.
                simd_dispatch::run(unsafe { Map2::new(columns, out_row, sum_row, b_row, step) });
                continue;
            }
            for j in 0..columns {
                // SAFETY: as above.
                let sum = unsafe { sum_row.get(j) };
                // SAFETY: as above.
                let y = unsafe { b_row.get(j) };
                // SAFETY: as above.
                unsafe { out_row.set(j, step(sum, y)) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn parts_cover_each_element_once() {
        let form = |rows: usize, columns: usize, by_rows: bool| match by_rows {
            true => Matrix { rows, columns, row_stride: columns, column_stride: 1 },
            false => Matrix { rows, columns, row_stride: 1, column_stride: rows },
        };
        for (rows, columns) in [(1, 1), (1, 700), (700, 1), (63, 65), (64, 300), (300, 64), (130, 140), (300, 300)] {
            for orders in 0..8 {
                let [by_rows, left, right] = [1, 2, 4].map(|bit| orders & bit != 0);
                let factors = [form(rows, 90, left), form(90, columns, right)];
                for work in [0, parallel::LARGE * 3, usize::MAX] {
                    let visits = Mutex::new(vec![0; rows * columns]);
                    form(rows, columns, by_rows).parts(factors, work, 64, |of_rows, of_columns| {
                        let mut visits = visits.lock().unwrap();
                        for row in of_rows {
                            for column in of_columns.clone() {
                                visits[row * columns + column] += 1;
                            }
                        }
                    });
                    let visits = visits.into_inner().unwrap();
                    assert!(visits.iter().all(|&visits| visits == 1), "{rows} x {columns}, {orders}, work {work}");
                }
            }
        }
    }
}
