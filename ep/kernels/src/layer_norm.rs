//! Layer norm over the innermost axis: mean and variance of each row, and its elements scaled by them, in `f64`; a result is rounded once.
//!
//! A row is read three times while it is in the cache: the variance is the mean of squared differences from the mean, so that it keeps its
//! digits where the mean is large beside them. Weight and bias are the same for each row. A row with a NaN or an infinity gives NaN.

use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::{KernelCall, KernelError, Op};

use crate::folds;
use crate::loop_nest::LoopNest;
use crate::number::{DTypeTag, Float, Number};
use crate::parallel;
use crate::rows::{InRow, Map3, OutRow, input, output};
use crate::{row_tiles, simd_dispatch};

/// The kernel of [`Op::LayerNorm`].
pub(super) fn layer_norm<D>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError>
where
    D: DTypeTag,
    D::Store: Float,
{
    let ([x, weight, bias], out) = checked_operands(call, [D::DTYPE; 3], D::DTYPE, InPlace::Refused)?;
    check_inferred(Op::LayerNorm, [x, weight, bias], out, call)?;
    let epsilon = call.params.checked_epsilon(Op::LayerNorm)?;
    let (dims, [to, from]) = (out.layout().shape().dims(), [out, x].map(|operand| operand.layout().strides()));
    let Some((&length, outer)) = dims.split_last().filter(|(length, _)| **length > 0) else { return Ok(()) };
    let last = outer.len();
    let nest = LoopNest::over((0..last).map(|axis| (dims[axis], [to[axis], from[axis]])));
    let [to_next, from_next] = nest.row_strides();
    let [weight, bias] = [weight, bias].map(|row| input::<D::Store>(row, 0, row.layout().strides()[0]));
    nest.rows_in_parallel(length * parallel::LONG, |[first_to, first_from], count| {
        for place in 0..count {
            let out = output::<D::Store>(out, first_to + place * to_next, to[last]);
            let x = input::<D::Store>(x, first_from + place * from_next, from[last]);
            // SAFETY: the rows are within the operands, which hold `D`; the output may be written and overlaps no input.
            unsafe { row(length, out, [x, weight, bias], epsilon) };
        }
    });
    Ok(())
}

/// Writes one row.
///
/// # Safety
///
/// * The first `length` elements of the inputs and of `out` are as [`InRow::get`] and [`OutRow::set`] require.
unsafe fn row<T: Float>(length: usize, out: OutRow<T>, [x, weight, bias]: [InRow<T>; 3], epsilon: f64) {
    let count = length as f64;
    // SAFETY: the caller guarantees this.
    let mean = unsafe { folds::sum(length, x) } / count;
    let square = |sum: f64, [x]: [T::Wide; 1]| {
        let away = x.to_f64() - mean;
        sum + away * away
    };
    // SAFETY: the caller guarantees this.
    let squares = unsafe { folds::fold(length, [x], (0.0, 0.0), square, |x, y| x + y) };
    let scale = 1.0 / (squares / count + epsilon).sqrt();
    let scaled = move |x: T::Wide, weight: T::Wide, bias: T::Wide| {
        T::wide_of((x.to_f64() - mean) * scale * weight.to_f64() + bias.to_f64())
    };
    let compute = |count, out, inputs: [*const T::Wide; 3]| {
        let [x, weight, bias] = inputs.map(InRow::dense);
        // SAFETY: `map` gives so many elements and results.
        simd_dispatch::run(unsafe { Map3::new(count, OutRow::dense(out), x, weight, bias, scaled) });
    };
    // SAFETY: the caller guarantees this.
    unsafe { row_tiles::map(length, out, [x, weight, bias], compute) };
}
