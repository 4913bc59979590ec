//! Softmax over one axis. The largest element is subtracted first, so that no exponential overflows;
//! the sum is kept in `f64`. Of 16-bit floats the exponentials are taken twice, as they could only be
//! kept rounded: each result is rounded once. A NaN or `+inf`, or nothing but `-inf`, gives NaN for its row.

use crate::check::{InPlace, inferred, operands};
use crate::cpu::kernels::elementwise::{input, output};
use crate::cpu::kernels::number::{Float, Number, Tag};
use crate::cpu::kernels::rows::{self, In, Out};
use crate::cpu::kernels::walk::Walk;
use crate::error::KernelError;
use crate::kernel::KernelCall;
use crate::op::Op;

/// The kernel of [`Op::Softmax`].
pub(super) fn softmax<D>(call: &mut KernelCall<'_>) -> Result<(), KernelError>
where
    D: Tag,
    D::Store: Float,
{
    let ([a], out) = operands(call, [D::DTYPE], D::DTYPE, InPlace::Refused)?;
    inferred(Op::Softmax, [a], out, call)?;
    let dims = a.layout().shape().dims();
    for axis in call.params.axes.iter() {
        let length = dims[axis];
        if length == 0 {
            continue;
        }
        let others = (0..dims.len()).filter(|&other| other != axis);
        let walk = Walk::over(others.map(|other| {
            let strides = [out.layout().strides()[other], a.layout().strides()[other]];
            (dims[other], strides)
        }));
        let [to_next, from_next] = walk.row_strides();
        let (out_stride, a_stride) = (out.layout().strides()[axis], a.layout().strides()[axis]);
        walk.rows(|[to, from]| {
            for place in 0..walk.row_length() {
                let row = input::<D::Store>(a, from + place * from_next, a_stride);
                let out = output::<D::Store>(out, to + place * to_next, out_stride);
                // SAFETY: the walk and the axis stay within both operands, which hold `D`; the
                // output may be written and does not meet the input.
                unsafe { softmax_row(length, out, row) };
            }
        });
    }
    Ok(())
}

/// # Safety
///
/// * As many elements of `row` and `out` as `length` says may be read and written as [`In::get`] and
///   [`Out::set`] ask.
unsafe fn softmax_row<T: Float>(length: usize, out: Out<T>, row: In<T>) {
    // SAFETY: the caller's duty.
    let largest = unsafe { rows::fold(length, row, T::LOWEST, T::LOWEST, T::max, T::max) }.wide();
    let exp = |x: T| x.wide().sub(largest).exp();
    if T::IS_NARROW {
        // SAFETY: the caller's duty.
        let sum = unsafe { sum(length, row, exp) };
        // SAFETY: the caller's duty.
        unsafe { rows::map1(length, out, row, |x| T::rounded(exp(x).div(sum))) };
        return;
    }
    // SAFETY: the caller's duty.
    unsafe { rows::map1(length, out, row, |x| T::rounded(exp(x))) };
    let written = In { first: out.first.cast_const(), stride: out.stride };
    // SAFETY: the output holds what has just been written, and nothing else touches it.
    let sum = unsafe { sum(length, written, T::wide) };
    // SAFETY: likewise; each element is read before it is written.
    unsafe { rows::map1(length, out, written, |x| T::rounded(x.wide().div(sum))) };
}

/// The sum of `f` of each element of a row.
///
/// # Safety
///
/// * As many elements of `row` as `length` says may be read as [`In::get`] asks.
#[inline(always)]
unsafe fn sum<A: Copy, W: Float>(length: usize, row: In<A>, f: impl Fn(A) -> W) -> W {
    let step = |sum: W::Sum, x: A| sum.add(f(x).widen());
    // SAFETY: the caller's duty.
    W::narrow(unsafe { rows::fold(length, row, W::Sum::ZERO, W::Sum::ZERO, step, W::Sum::add) })
}
