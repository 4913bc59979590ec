//! Pad: the input with margins of one value around it. The margins are filled and the rest is copied, so that each element
//! of the output is written once.

use crate::check::{InPlace, inferred, operands};
use crate::cpu::kernels::copy::{copy, fill};
use crate::error::{Error, KernelError, OpError};
use crate::kernel::KernelCall;
use crate::layout::Layout;
use crate::op::Op;
use crate::operand::{Access, Operand};
use crate::params::Extra;

/// The kernel of [`Op::Pad`], for every dtype.
pub(super) fn pad(call: &mut KernelCall<'_>) -> Result<(), KernelError> {
    let dtype = call.kernel.dtype;
    let ([a], out) = operands(call, [dtype], dtype, InPlace::Refused)?;
    inferred(Op::Pad, [a], out, call)?;
    let Extra::Pad { before, value, .. } = call.params.extra else {
        return Err(OpError::MissingExtra { op: Op::Pad, expected: "Extra::Pad" }.into());
    };
    let part = |layout: Layout| {
        // SAFETY: the layout is cut out of that of the output, whose maker promises that all of it may be written; only one
        // part is used at a time, and the output itself is not used meanwhile.
        unsafe { Operand::new(out.ptr(), dtype, layout, Access::Write) }
    };
    let (first, sizes) = (before as usize, a.layout().shape().dims());
    let shape = *out.layout().shape();
    // Counted from the output's first element. Within the margins of an axis lie those of the axes behind it.
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
