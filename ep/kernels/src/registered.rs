//! The kernels of registered ops: the operands of a call, as the functions of callers take them.

use smallvec::SmallVec;
use streamvm_ep::backend::check::check_over_tensors;
use streamvm_ep::{Access, DType, KernelCall, KernelError, Layout, Op, OpClass, OpError, Operand, RegisteredOp};

use crate::copy::copy;
use crate::elementwise;
use crate::parallel;
use crate::tiles::Map;

/// The kernel of every registered op on a device whose memory the CPU can access.
pub(super) fn run(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let Op::Registered(op) = call.kernel.op else { return Err(KernelError::NoStates { op: call.kernel.op }) };
    match (call.kernel.op.class(), call.kernel.op.arity()) {
        (OpClass::Registered, _) => over_tensors(op, call),
        (_, 1) => over_elements::<1>(op, call),
        (_, 2) => over_elements::<2>(op, call),
        _ => over_elements::<3>(op, call),
    }
}

fn over_elements<const N: usize>(op: RegisteredOp, call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let dtype = call.kernel.dtype;
    let function = op.tile_function(dtype).ok_or(OpError::DType {
        op: call.kernel.op,
        dtype,
        available: call.kernel.op.dtypes(),
    })?;
    let work = parallel::of_element(call.kernel.op);
    let map = Map { function, work, widens: matches!(dtype, DType::F16 | DType::BF16) };
    // SAFETY: the function computes elements of this dtype, or, for 16-bit floats, of `f32`.
    unsafe { elementwise::run(call, [dtype; N], dtype, &map) }
}

/// An operand without gaps that stands for one with gaps.
struct Dense {
    /// In words, so that elements of every size are aligned.
    elements: Vec<u64>,
}

impl Dense {
    fn of(op: Op, operand: &Operand<'_>) -> Result<Dense, KernelError> {
        let bytes = operand.layout().elements() * operand.dtype().size();
        let (mut elements, words) = (Vec::new(), bytes.div_ceil(size_of::<u64>()));
        let purpose = "a view with gaps";
        let refused = |_| KernelError::OutOfMemory { op, bytes: bytes as u64, purpose };
        elements.try_reserve_exact(words).map_err(refused)?;
        elements.resize(words, 0);
        Ok(Dense { elements })
    }

    fn operand(&mut self, of: &Operand<'_>, access: Access) -> Operand<'_> {
        let layout = Layout::contiguous(*of.layout().shape());
        // SAFETY: there are as many elements, which are zeros or were copied from such an operand; the borrow keeps them, for the lifetime of the operand.
        unsafe { Operand::new(self.elements.as_mut_ptr().cast(), of.dtype(), layout, access) }
    }
}

fn over_tensors(op: RegisteredOp, call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let name = call.kernel.op;
    check_over_tensors(call)?;
    let tensors = call.inputs;
    let refused = |operand| move |source| KernelError::Operand { op: name, operand, source: Box::new(source) };
    let (inputs, output) = (&call.operands[..tensors], &call.operands[tensors]);
    // The output of an op in place holds the first input, which is then no operand of its own.
    let first_read = usize::from(op.is_in_place());
    let mut dense: SmallVec<[Option<Dense>; 4]> = SmallVec::new();
    for operand in inputs[first_read..].iter().chain([output]) {
        dense.push(if operand.is_contiguous() { None } else { Some(Dense::of(name, operand)?) });
    }
    let mut operands: SmallVec<[Operand<'_>; 4]> = SmallVec::new();
    for (place, (operand, dense)) in call.operands[first_read..].iter().zip(&mut dense).enumerate() {
        operands.push(match dense {
            // SAFETY: the original is not used until the function, which cannot keep the copy, has returned.
            None => unsafe { operand.duplicate() },
            Some(dense) => {
                let is_read = first_read + place < tensors;
                if is_read {
                    copy(operand, &mut dense.operand(operand, Access::Write)).map_err(refused(first_read + place))?;
                }
                dense.operand(operand, if is_read { Access::Read } else { Access::Write })
            }
        });
    }
    if let (1, [.., out]) = (first_read, operands.as_mut_slice()) {
        // SAFETY: only the first input may be the same view, and it is not used from here on but by the copy, which does nothing then.
        unsafe { out.set_alone() };
        copy(&inputs[0], out).map_err(refused(0))?;
    }
    op.run_over_tensors(call, &mut operands)?;
    drop(operands);
    if let (Some(Some(dense)), Some(output)) = (dense.last_mut(), call.operands.last_mut()) {
        copy(&dense.operand(output, Access::Read), output).map_err(refused(tensors))?;
    }
    Ok(())
}
