//! Softmax over one axis. The largest element is subtracted first, so that no exponential overflows;
//! the sum is kept in `f64`. A NaN or `+inf`, or nothing but `-inf`, gives NaN for its row.

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
    let largest = unsafe { rows::fold(length, row, T::LOWEST, T::LOWEST, T::max, T::max) };
    // SAFETY: the caller's duty.
    unsafe { rows::map1(length, out, row, |x| x.sub(largest).exp()) };
    let written = In { first: out.first.cast_const(), stride: out.stride };
    let zero = T::Sum::ZERO;
    let step = |sum: T::Sum, x: T| sum.add(x.widen());
    let join = |left: T::Sum, right: T::Sum| left.add(right);
    // SAFETY: the output holds what has just been written, and nothing else touches it.
    let sum = T::narrow(unsafe { rows::fold(length, written, zero, zero, step, join) });
    // SAFETY: likewise; each element is read before it is written.
    unsafe { rows::map1(length, out, written, |x| x.div(sum)) };
}
