//! RMS norm over the innermost axis (Zhang and Sennrich, NeurIPS 2019): each row divided by the root of the mean of its squares, in `f64`; a result is
//! rounded once. A row is read twice while it is in the cache.

use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::{KernelCall, KernelError, Op};

use crate::folds;
use crate::number::{DTypeTag, Float, Number};
use crate::row_tiles::{OfRows, Rows, each_group, map};
use crate::rows::{InRow, Map2, OutRow};
use crate::simd_dispatch;

/// The kernel of [`Op::RmsNorm`].
pub(super) fn rms_norm<D>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError>
where
    D: DTypeTag,
    D::Store: Float,
{
    let ([x, weight], out) = checked_operands(call, [D::DTYPE; 2], D::DTYPE, InPlace::Refused)?;
    check_inferred(Op::RmsNorm, [x, weight], out, call)?;
    let epsilon = call.params.checked_epsilon(Op::RmsNorm)?;
    if let Some(last) = out.layout().shape().rank().checked_sub(1) {
        // SAFETY: the operands hold `D` and broadcast to the output, which may be written and overlaps no input.
        unsafe { each_group::<D::Store, 3>([out, x, weight], last, &RmsNorm { epsilon }) };
    }
    Ok(())
}

struct RmsNorm {
    epsilon: f64,
}

impl OfRows<3> for RmsNorm {
    unsafe fn compute<T: Float, R: Float<Wide = T::Wide>>(&self, length: usize, count: usize, rows: &[Rows<T>; 3]) {
        let [out, x, weight] = rows;
        for place in 0..count {
            // SAFETY: the caller guarantees this.
            unsafe { row::<T, R>(length, out.out(place), x.at(place), weight.at(place), self.epsilon) };
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
    x: InRow<T>,
    weight: InRow<T>,
    epsilon: f64,
) {
    let square = |sum: f64, [x]: [T::Wide; 1]| sum + x.to_f64() * x.to_f64();
    // SAFETY: the caller guarantees this.
    let squares = unsafe { folds::fold(length, [x], (0.0, 0.0), square, |x, y| x + y) };
    let scale = 1.0 / (squares / length as f64 + epsilon).sqrt();
    let scaled = move |x: T::Wide, weight: T::Wide| R::wide_of(x.to_f64() * scale * weight.to_f64());
    let compute = |count, out, inputs: [*const T::Wide; 2]| {
        let [x, weight] = inputs.map(InRow::dense);
        // SAFETY: `map` gives so many elements and results.
        simd_dispatch::run(unsafe { Map2::new(count, OutRow::dense(out), x, weight, scaled) });
    };
    // SAFETY: the caller guarantees this.
    unsafe { map(length, out, [x, weight], compute) };
}
