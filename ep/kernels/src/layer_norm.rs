//! Layer norm over the innermost axis: mean and variance of each row, and its elements scaled by them, in `f64`; a result is rounded once.
//!
//! A row is read three times while it is in the cache: the variance is the mean of squared differences from the mean, so that it keeps its
//! digits where the mean is large beside them. Weight and bias are the same for each row. A row with a NaN or an infinity gives NaN.

use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::{KernelCall, KernelError, Op};

use crate::folds;
use crate::number::{DTypeTag, Float, Number};
use crate::row_tiles::{OfRows, Rows, each_group, map};
use crate::rows::{InRow, Map3, OutRow};
use crate::simd_dispatch;

/// The kernel of [`Op::LayerNorm`].
pub(super) fn layer_norm<D>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError>
where
    D: DTypeTag,
    D::Store: Float,
{
    let ([x, weight, bias], out) = checked_operands(call, [D::DTYPE; 3], D::DTYPE, InPlace::Refused)?;
    check_inferred(Op::LayerNorm, [x, weight, bias], out, call)?;
    let epsilon = call.params.checked_epsilon(Op::LayerNorm)?;
    if let Some(last) = out.layout().shape().rank().checked_sub(1) {
        // SAFETY: the operands hold `D` and broadcast to the output, which may be written and overlaps no input.
        unsafe { each_group::<D::Store, 4>([out, x, weight, bias], last, &LayerNorm { epsilon }) };
    }
    Ok(())
}

struct LayerNorm {
    epsilon: f64,
}

impl OfRows<4> for LayerNorm {
    unsafe fn compute<T: Float, R: Float<Wide = T::Wide>>(&self, length: usize, count: usize, rows: &[Rows<T>; 4]) {
        let [out, x, weight, bias] = rows;
        for place in 0..count {
            let inputs = [x, weight, bias].map(|rows| rows.at(place));
            // SAFETY: the caller guarantees this.
            unsafe { row::<T, R>(length, out.out(place), inputs, self.epsilon) };
        }
    }
}

/// Writes one row.
///
/// # Safety
///
/// * The first `length` elements of the inputs and of `out` are as [`InRow::get`] and [`OutRow::set`] require.
#[inline(always)]
unsafe fn row<T: Float, R: Float<Wide = T::Wide>>(
    length: usize,
    out: OutRow<T>,
    [x, weight, bias]: [InRow<T>; 3],
    epsilon: f64,
) {
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
        R::wide_of((x.to_f64() - mean) * scale * weight.to_f64() + bias.to_f64())
    };
    let compute = |count, out, inputs: [*const T::Wide; 3]| {
        let [x, weight, bias] = inputs.map(InRow::dense);
        // SAFETY: `map` gives so many elements and results.
        simd_dispatch::run(unsafe { Map3::new(count, OutRow::dense(out), x, weight, bias, scaled) });
    };
    // SAFETY: the caller guarantees this.
    unsafe { map(length, out, [x, weight, bias], compute) };
}
