//! Matrix products, one call per matrix of the batch, in the calling thread. Programs use several cores by running several streams.
//!
//! * Floats of 32 and 64 bits use `gemm`, which packs and blocks for any strides.
//! * 16-bit floats use `gemm` on [`matmul_half`] in `f32`.
//! * Integers use a plain loop with wrapping arithmetic.

use half::{bf16, f16};

use crate::call::check::{InPlace, check_inferred, checked_operands};
use crate::call::kernel::KernelCall;
use crate::cpu::kernels::elementwise::{input, output};
use crate::cpu::kernels::loop_nest::LoopNest;
use crate::cpu::kernels::matmul_half;
use crate::cpu::kernels::number::{DTypeTag, Number};
use crate::cpu::kernels::rows::{self, InRow, OutRow};
use crate::errors::error::KernelError;
use crate::tensor::layout::Layout;
use crate::tensor::op::Op;
use crate::tensor::shape::MAX_RANK;

/// The kernel of [`Op::MatMul`].
pub(super) fn matmul<D>(call: &mut KernelCall<'_>) -> Result<(), KernelError>
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
    let batch = LoopNest::over((0..rank - 2).map(|axis| {
        let strides = [
            batch_stride(out.layout(), axis, rank),
            batch_stride(a.layout(), axis, rank),
            batch_stride(b.layout(), axis, rank),
        ];
        (out.layout().shape().dims()[axis], strides)
    }));
    let (left, right, product) = (Matrix::of(a.layout()), Matrix::of(b.layout()), Matrix::of(out.layout()));
    let [to_next, a_next, b_next] = batch.row_strides();
    batch.rows(|[to, from_a, from_b]| {
        for place in 0..batch.row_length() {
            let out = output::<D::Store>(out, to + place * to_next, 1).first;
            let a = input::<D::Store>(a, from_a + place * a_next, 1).first;
            let b = input::<D::Store>(b, from_b + place * b_next, 1).first;
            // SAFETY: the loop nest and the matrices stay within the operands, which hold `D`, and inference has checked that the sizes
            // match. The output may be written, reaches no element twice, and does not overlap the inputs.
            unsafe { D::Store::multiply((out, product), (a, left), (b, right)) };
        }
    });
    Ok(())
}

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
    /// `out = a * b`.
    ///
    /// # Safety
    ///
    /// * `a` is m by k, `b` k by n and `out` m by n; m and n are not 0.
    /// * The elements of `a` and `b` are aligned and initialised at their strides, and nothing writes them.
    /// * The elements of `out` are aligned, initialised and distinct at their strides, and nothing else accesses them.
    unsafe fn multiply(out: (*mut Self, Matrix), a: (*const Self, Matrix), b: (*const Self, Matrix));
}

macro_rules! with_gemm {
    ($($float:ident),*) => {$(
        impl Multiply for $float {
            unsafe fn multiply(
                out: (*mut $float, Matrix),
                a: (*const $float, Matrix),
                b: (*const $float, Matrix),
            ) {
                // SAFETY: the caller guarantees this.
                unsafe { by_gemm(out, a, b, None, 1.0) }
            }
        }
    )*};
}

/// `out = kept * out + one * a * b`; without `kept`, the first term is left out and `out` is not read.
///
/// # Safety
///
/// * As for [`Multiply::multiply`], and `gemm` supports `T`.
#[inline]
pub(super) unsafe fn by_gemm<T: Number>(
    (out, product): (*mut T, Matrix),
    (a, left): (*const T, Matrix),
    (b, right): (*const T, Matrix),
    kept: Option<T>,
    one: T,
) {
    // SAFETY: the caller guarantees what `gemm` requires: matrices of matching sizes with elements at these strides, which fit `isize`.
    unsafe {
        gemm::gemm(
            product.rows,
            product.columns,
            left.columns,
            out,
            product.column_stride as isize,
            product.row_stride as isize,
            kept.is_some(),
            a,
            left.column_stride as isize,
            left.row_stride as isize,
            b,
            right.column_stride as isize,
            right.row_stride as isize,
            kept.unwrap_or(T::ZERO),
            one,
            false,
            false,
            false,
            gemm::Parallelism::None,
        )
    }
}

with_gemm!(f32, f64);

macro_rules! with_panels {
    ($($float:ident),*) => {$(
        impl Multiply for $float {
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
            // SAFETY: the caller guarantees the elements, and each sum is read before it is written.
            unsafe { rows::map2(columns, out_row, sum_row, b_row, step) };
        }
    }
}
