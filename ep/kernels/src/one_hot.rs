//! One-hot: zeros, and a one at the class of each index.

use half::{bf16, f16};
use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::{DType, KernelCall, KernelError, Op, OpError, Operand, Scalar};

use crate::copy::fill;
use crate::loop_nest::LoopNest;
use crate::number::DTypeTag;
use crate::rows::{input, output};

/// The kernel of [`Op::OneHot`] for indices stored as `D`.
pub(super) fn one_hot<D>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError>
where
    D: DTypeTag,
    D::Store: Into<i64>,
{
    let to = call.params.to.ok_or(OpError::MissingTarget { op: Op::OneHot })?;
    let ([a], out) = checked_operands(call, [D::DTYPE], to, InPlace::Refused)?;
    check_inferred(Op::OneHot, [a], out, call)?;
    // SAFETY: a second view of the output, because the call only lends it; `out` is not used meanwhile.
    let mut target = unsafe { out.duplicate() };
    fill(&mut target, Scalar::zero(to))?;
    // For every arm: the input holds `D`, the elements of the output have the size of the one, and `checked_operands` has checked both.
    match to {
        // SAFETY: see above.
        DType::F32 => unsafe { ones::<D::Store, _>(a, out, 1f32) },
        // SAFETY: see above.
        DType::F64 => unsafe { ones::<D::Store, _>(a, out, 1f64) },
        // SAFETY: see above.
        DType::F16 => unsafe { ones::<D::Store, _>(a, out, f16::ONE) },
        // SAFETY: see above.
        DType::BF16 => unsafe { ones::<D::Store, _>(a, out, bf16::ONE) },
        // SAFETY: see above.
        DType::I8 | DType::U8 | DType::Bool => unsafe { ones::<D::Store, _>(a, out, 1u8) },
        // SAFETY: see above.
        DType::I16 | DType::U16 => unsafe { ones::<D::Store, _>(a, out, 1u16) },
        // SAFETY: see above.
        DType::I32 | DType::U32 => unsafe { ones::<D::Store, _>(a, out, 1u32) },
        // SAFETY: see above.
        DType::I64 | DType::U64 => unsafe { ones::<D::Store, _>(a, out, 1u64) },
    }
    Ok(())
}

/// Writes `one` at the class of each index.
///
/// # Safety
///
/// * `a` holds elements stored as `I`, `out` as `O`, both aligned.
/// * `out` may be written, does not overlap `a`, and has the shape of `a` and one more axis.
unsafe fn ones<I: Copy + Into<i64>, O: Copy>(a: &Operand, out: &Operand, one: O) {
    let (dims, (steps, from)) = (a.layout().shape().dims(), (out.layout().strides(), a.layout().strides()));
    let rank = dims.len();
    let (classes, class) = (out.layout().shape().dims()[rank], steps[rank]);
    let nest = LoopNest::over(&mut (0..rank).map(|axis| (dims[axis], [steps[axis], from[axis]])));
    let [to_next, from_next] = nest.row_strides();
    nest.rows(|[to, from]| {
        let indices = input::<I>(a, from, from_next);
        for place in 0..nest.row_length() {
            // SAFETY: the loop nest stays within the input; the caller guarantees the rest.
            let index: i64 = unsafe { indices.get(place) }.into();
            if let Ok(index) = usize::try_from(index)
                && index < classes
            {
                // SAFETY: the loop nest and the class stay within the output; the caller guarantees the rest.
                unsafe { output::<O>(out, to + place * to_next, class).set(index, one) };
            }
        }
    });
}
