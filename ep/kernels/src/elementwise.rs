//! Elementwise kernels: unary, predicates, binary, comparisons, where, clamp. Inputs broadcast to the output; the output
//! may be exactly the view of an input.

use streamvm_ep::backend::check::{InPlace, check_broadcast, checked_operands};
use streamvm_ep::{DType, KernelCall, KernelError, Op, Operand};

use crate::arith::{Binary, Compare, Predicate, Unary};
use crate::folds;
use crate::long_rows;
use crate::loop_nest::LoopNest;
use crate::number::{DTypeTag, Number as _};
use crate::parallel;
use crate::rows::{self, InRow, OutRow};

/// The kernel of a unary op.
pub(super) fn unary<D: DTypeTag, U: Unary<D::Store>>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let dtype = D::dtype(call);
    let ([a], out) = checked_operands(call, [dtype], dtype, InPlace::Allowed)?;
    check_broadcast(call.kernel.op, &[a], out)?;
    if U::IS_CALL {
        // SAFETY: `checked_operands` has checked dtypes, alignment, write access and overlap, and `check_broadcast` the shapes.
        unsafe { map1_called_nest(a, out, U::apply) };
    } else if U::IS_LONG {
        // SAFETY: as above.
        unsafe { map1_long_nest(a, out, U::apply) };
    } else {
        // SAFETY: as above.
        unsafe { map1_nest(a, out, U::apply) };
    }
    Ok(())
}

/// The kernel of a predicate.
pub(super) fn predicate<D: DTypeTag, P: Predicate<D::Store>>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let ([a], out) = checked_operands(call, [D::DTYPE], DType::Bool, InPlace::Allowed)?;
    check_broadcast(call.kernel.op, &[a], out)?;
    // SAFETY: as in `unary`; the elements of the output are bytes.
    unsafe { map1_nest(a, out, |x: D::Store| u8::from(P::apply(x))) };
    Ok(())
}

/// The kernel of a binary op.
pub(super) fn binary<D: DTypeTag, B: Binary<D::Store>>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let dtype = D::dtype(call);
    let ([a, b], out) = checked_operands(call, [dtype; 2], dtype, InPlace::Allowed)?;
    check_broadcast(call.kernel.op, &[a, b], out)?;
    if B::REFUSES {
        check_right::<D, B>(call.kernel.op, b, out)?;
    }
    if B::IS_CALL {
        // SAFETY: as in `unary`, for both inputs.
        unsafe { map2_called_nest(a, b, out, B::apply) };
    } else {
        // SAFETY: as above.
        unsafe { map2_nest(a, b, out, B::apply) };
    }
    Ok(())
}

/// The kernel of a comparison.
pub(super) fn compare<D: DTypeTag, C: Compare<D::Store>>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let ([a, b], out) = checked_operands(call, [D::dtype(call); 2], DType::Bool, InPlace::Allowed)?;
    check_broadcast(call.kernel.op, &[a, b], out)?;
    // SAFETY: as in `unary`, for both inputs; the elements of the output are bytes.
    unsafe { map2_nest(a, b, out, |x: D::Store, y| u8::from(C::apply(x, y))) };
    Ok(())
}

/// The kernel of [`Op::Where`].
pub(super) fn select<D: DTypeTag>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let dtype = D::dtype(call);
    let ([condition, a, b], out) = checked_operands(call, [DType::Bool, dtype, dtype], dtype, InPlace::Allowed)?;
    check_broadcast(call.kernel.op, &[condition, a, b], out)?;
    let pick = |condition: u8, x: D::Store, y| if condition != 0 { x } else { y };
    // SAFETY: as in `unary`, for all inputs; the elements of the condition are bytes.
    unsafe { map3_nest(condition, a, b, out, pick) };
    Ok(())
}

/// The kernel of [`Op::Clamp`].
pub(super) fn clamp<D: DTypeTag>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let ([a, low, high], out) = checked_operands(call, [D::DTYPE; 3], D::DTYPE, InPlace::Allowed)?;
    check_broadcast(call.kernel.op, &[a, low, high], out)?;
    // SAFETY: as in `unary`, for all inputs.
    unsafe { map3_nest(a, low, high, out, |x: D::Store, low: D::Store, high| x.max(low).min(high)) };
    Ok(())
}

/// Writes `f` of each element of `a`, `b` and `c`, which broadcast to `out`.
///
/// # Safety
///
/// * As for [`map1_nest`], for `a` stored as `A`, and for `b` and `c` stored as `B`.
#[inline]
unsafe fn map3_nest<A: Copy, B: Copy>(
    a: &Operand,
    b: &Operand,
    c: &Operand,
    out: &Operand,
    f: impl Fn(A, B, B) -> B + Copy + Sync,
) {
    let nest = LoopNest::new([out.layout(), a.layout(), b.layout(), c.layout()]);
    let [out_stride, a_stride, b_stride, c_stride] = nest.row_strides();
    nest.rows_in_parallel(parallel::LIGHT, |[to, from_a, from_b, from_c], length| {
        let out = output::<B>(out, to, out_stride);
        let a = input::<A>(a, from_a, a_stride);
        let b = input::<B>(b, from_b, b_stride);
        let c = input::<B>(c, from_c, c_stride);
        // SAFETY: the loop nest stays within the operands; the caller guarantees the rest.
        unsafe { rows::map3(length, out, a, b, c, f) };
    });
}

/// Writes `f` of each element of `a`, which broadcasts to `out`.
///
/// # Safety
///
/// * `a` holds elements stored as `A`, `out` as `O`, both aligned; `a` broadcasts to `out`.
/// * `out` may be written, does not reach an element twice, and overlaps `a` only as the same view.
#[inline]
pub(super) unsafe fn map1_nest<A: Copy + Sync, O: Copy + Send>(
    a: &Operand,
    out: &Operand,
    f: impl Fn(A) -> O + Copy + Sync,
) {
    if let Some(length) = single_row(&[a], out) {
        let (out, a) = (output::<O>(out, 0, 1), input::<A>(a, 0, 1));
        // SAFETY: these are elements of both; the caller guarantees the rest.
        return parallel::ranges(length, parallel::LIGHT, |part| unsafe {
            rows::map1(part.len(), out.from(part.start), a.from(part.start), f)
        });
    }
    let nest = LoopNest::new([out.layout(), a.layout()]);
    let [out_stride, a_stride] = nest.row_strides();
    nest.rows_in_parallel(parallel::LIGHT, |[to, from], length| {
        let out = output::<O>(out, to, out_stride);
        let a = input::<A>(a, from, a_stride);
        // SAFETY: the loop nest stays within the operands; the caller guarantees the rest.
        unsafe { rows::map1(length, out, a, f) };
    });
}

/// Calls `row` with each row of `a` and `out`, its length first; `a` broadcasts to `out`, and `row` is called by several threads.
#[inline]
pub(super) fn rows_of<A: Copy, O: Copy>(a: &Operand, out: &Operand, row: impl Fn(usize, OutRow<O>, InRow<A>) + Sync) {
    let nest = LoopNest::new([out.layout(), a.layout()]);
    let [out_stride, a_stride] = nest.row_strides();
    nest.rows_in_parallel(parallel::LIGHT, |[to, from], length| {
        row(length, output::<O>(out, to, out_stride), input::<A>(a, from, a_stride));
    });
}

/// [`map1_nest`] for an `f` of many operations.
///
/// # Safety
///
/// * As for [`map1_nest`].
#[inline]
unsafe fn map1_long_nest<A: Copy, O: Copy>(a: &Operand, out: &Operand, f: impl Fn(A) -> O + Copy + Sync) {
    let nest = LoopNest::new([out.layout(), a.layout()]);
    let [out_stride, a_stride] = nest.row_strides();
    nest.rows_in_parallel(parallel::LONG, |[to, from], length| {
        let out = output::<O>(out, to, out_stride);
        let a = input::<A>(a, from, a_stride);
        // SAFETY: the loop nest stays within the operands; the caller guarantees the rest.
        unsafe { long_rows::map1_long(length, out, a, f) };
    });
}

/// [`map1_nest`] for an `f` that calls a library. There is one loop for all such functions of a type, which reaches them through a pointer: next
/// to the function's own time that costs little, and loops are what takes long to compile.
///
/// # Safety
///
/// * As for [`map1_nest`].
#[inline(never)]
unsafe fn map1_called_nest<T: Copy>(a: &Operand, out: &Operand, f: fn(T) -> T) {
    let nest = LoopNest::new([out.layout(), a.layout()]);
    let [out_stride, a_stride] = nest.row_strides();
    nest.rows_in_parallel(parallel::CALL, |[to, from], length| {
        let out = output::<T>(out, to, out_stride);
        let a = input::<T>(a, from, a_stride);
        // SAFETY: the loop nest stays within the operands; the caller guarantees the rest.
        unsafe { long_rows::map1_called(length, out, a, f) };
    });
}

/// Writes `f` of each element of `a` and `b`, which broadcast to `out`.
///
/// # Safety
///
/// * As for [`map1_nest`], for `a` and `b` each.
#[inline]
unsafe fn map2_nest<A: Copy + Sync, O: Copy + Send>(
    a: &Operand,
    b: &Operand,
    out: &Operand,
    f: impl Fn(A, A) -> O + Copy + Sync,
) {
    if let Some(length) = single_row(&[a, b], out) {
        let (out, a, b) = (output::<O>(out, 0, 1), input::<A>(a, 0, 1), input::<A>(b, 0, 1));
        // SAFETY: these are elements of the three; the caller guarantees the rest.
        return parallel::ranges(length, parallel::LIGHT, |part| unsafe {
            rows::map2(part.len(), out.from(part.start), a.from(part.start), b.from(part.start), f)
        });
    }
    // SAFETY: the caller guarantees this.
    unsafe { map2_rows(a, b, out, f) };
}

/// [`map2_nest`] for operands that are not one row. A separate function, because it needs a large stack frame and nearly all calls are
/// one row.
///
/// # Safety
///
/// * As for [`map2_nest`].
#[inline(never)]
unsafe fn map2_rows<A: Copy, O: Copy>(a: &Operand, b: &Operand, out: &Operand, f: impl Fn(A, A) -> O + Copy + Sync) {
    let nest = LoopNest::new([out.layout(), a.layout(), b.layout()]);
    let [out_stride, a_stride, b_stride] = nest.row_strides();
    nest.rows_in_parallel(parallel::LIGHT, |[to, from_a, from_b], length| {
        let out = output::<O>(out, to, out_stride);
        let a = input::<A>(a, from_a, a_stride);
        let b = input::<A>(b, from_b, b_stride);
        // SAFETY: the loop nest stays within the operands; the caller guarantees the rest.
        unsafe { rows::map2(length, out, a, b, f) };
    });
}

/// [`map2_nest`] for an `f` that calls a library, as [`map1_called_nest`].
///
/// # Safety
///
/// * As for [`map2_nest`].
#[inline(never)]
unsafe fn map2_called_nest<T: Copy>(a: &Operand, b: &Operand, out: &Operand, f: fn(T, T) -> T) {
    let nest = LoopNest::new([out.layout(), a.layout(), b.layout()]);
    let [out_stride, a_stride, b_stride] = nest.row_strides();
    nest.rows_in_parallel(parallel::CALL, |[to, from_a, from_b], length| {
        let out = output::<T>(out, to, out_stride);
        let a = input::<T>(a, from_a, a_stride);
        let b = input::<T>(b, from_b, b_stride);
        // SAFETY: the loop nest stays within the operands; the caller guarantees the rest.
        unsafe { long_rows::map2_called(length, out, a, b, f) };
    });
}

/// The number of elements, if all operands are contiguous and have the same number. Each input broadcasts to the output, so with equal
/// numbers the shapes differ at most in axes of size 1, and element `i` in memory has the same index in all operands.
#[inline]
fn single_row(inputs: &[&Operand], out: &Operand) -> Option<usize> {
    let elements = out.layout().elements();
    let alike = |input: &&Operand| input.is_contiguous() && input.layout().elements() == elements;
    (out.is_contiguous() && inputs.iter().all(alike)).then_some(elements)
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

/// Returns an error if `B` refuses an element of `b`, the right-hand side. This runs before anything is written, so that an in-place call
/// that fails leaves its input unchanged.
fn check_right<D: DTypeTag, B: Binary<D::Store>>(op: Op, b: &Operand, out: &Operand) -> Result<(), KernelError> {
    if out.layout().elements() == 0 {
        return Ok(());
    }
    let nest = LoopNest::new([b.layout()]);
    let [stride] = nest.row_strides();
    let mut refused = false;
    nest.rows(|[from]| {
        let b = input::<D::Store>(b, from, stride);
        let step = |refused, y| refused | B::refuse(op, y, 0).is_some();
        let join = |a, b| a | b;
        // SAFETY: the loop nest stays within `b`, which holds `D` and is not written meanwhile.
        refused |= unsafe { folds::fold(nest.row_length(), b, false, false, step, join) };
    });
    if refused {
        return find_refused::<D, B>(op, b, out);
    }
    Ok(())
}

/// The error for the first element of the output, in row-major order, whose right-hand side is refused.
#[cold]
fn find_refused<D: DTypeTag, B: Binary<D::Store>>(op: Op, b: &Operand, out: &Operand) -> Result<(), KernelError> {
    let shape = out.layout().shape();
    let wide = b.layout().broadcast_to(shape).map_err(streamvm_ep::Error::from)?;
    for index in 0..shape.elements() {
        let mut left = index;
        let mut offset = 0;
        for (&size, &stride) in shape.dims().iter().zip(wide.strides()).rev() {
            offset += left % size * stride;
            left /= size;
        }
        // SAFETY: the offset is that of an index of the view, which holds `D` and is not written meanwhile.
        let y = unsafe { input::<D::Store>(b, offset, 1).get(0) };
        if let Some(error) = B::refuse(op, y, index) {
            return Err(error);
        }
    }
    Ok(())
}
