//! Pad: the input with margins of one value around it. The margins are filled and the rest is copied, so each element of the output is
//! written once.

use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::{Access, Error, Extra, KernelCall, KernelError, Layout, Op, OpError, Operand};

use crate::copy::{copy, fill};

/// The kernel of [`Op::Pad`], for every dtype.
pub(super) fn pad(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let dtype = call.kernel.dtype;
    let ([a], out) = checked_operands(call, [dtype], dtype, InPlace::Refused)?;
    check_inferred(Op::Pad, [a], out, call)?;
    let Extra::Pad { before, value, .. } = call.params.extra else {
        return Err(OpError::MissingExtra { op: Op::Pad, expected: "Extra::Pad" }.into());
    };
    let part = |layout: Layout| {
        // SAFETY: the layout is a part of the output's, whose maker guarantees that all of it may be written. Only one part is used at a
        // time, and the output itself is not used meanwhile.
        unsafe { Operand::new(out.ptr(), dtype, layout, Access::Write) }
    };
    let (first, sizes) = (before as usize, a.layout().shape().dims());
    let shape = *out.layout().shape();
    // Offsets count from the output's first element. The margins of an axis lie between the margins of the axes before it.
    let mut inside = Layout::with_strides(shape, out.layout().strides(), 0).map_err(Error::from)?;
    for axis in call.params.axes.or_all(shape.rank()).iter() {
        let last = first + sizes[axis];
        for margin in [0..first, last..shape.dims()[axis]] {
            fill(&mut part(inside.slice(axis, margin).map_err(Error::from)?), value)?;
        }
        inside = inside.slice(axis, first..last).map_err(Error::from)?;
    }
    Ok(copy(a, &mut part(inside))?)
}
