//! Kernels: functions that compute an op for one dtype on one kind of device.

use std::fmt;

use crate::call::op_states::OpStates;
use crate::call::operand::Operand;
use crate::errors::error::KernelError;
use crate::names::device_kind::DeviceKind;
use crate::tensor::dtype::DType;
use crate::tensor::op::Op;
use crate::tensor::params::Params;

/// One call of a kernel.
#[derive(Debug)]
pub struct KernelCall<'c, 'm> {
    /// The kernel to run.
    pub kernel: Kernel,
    /// Inputs first, then outputs.
    pub operands: &'c mut [Operand<'m>],
    /// The number of operands that are inputs.
    pub inputs: usize,
    /// Parameters of the op.
    pub params: &'c Params,
    /// What kernels of registered ops keep on the device; `None` outside of [`run`](KernelCall::run).
    pub(crate) states: Option<&'c OpStates>,
}

/// The code of a kernel. It checks its operands and returns an error for those that it does not support. It neither panics nor blocks, and takes
/// no lock of a caller, because a caller that waits may run it; the function of a registered op, which it may call, may panic.
/// It takes operands of any lifetime, so it cannot keep them: unsafe code that calls kernels relies on that.
pub type KernelFn = for<'c, 'm> fn(&mut KernelCall<'c, 'm>) -> Result<(), KernelError>;

/// A kernel, with the op, device kind and dtype that it is for.
#[derive(Copy, Clone)]
pub struct Kernel {
    /// The op that it computes.
    pub op: Op,
    /// The kind of device that it runs on.
    pub device: DeviceKind,
    /// The dtype of its [key input](Op::key_input).
    pub dtype: DType,
    /// The code. For a CUDA device, whose kernels are compiled for it, this is a check on the host before the launch: it touches no
    /// memory and can only refuse the call. The code that runs on the device is chosen by `op` and `dtype` alone.
    pub run: KernelFn,
}

// An array of them is the table of kernels.
const _: () = assert!(size_of::<Kernel>() == 16);

#[cfg(test)]
impl Kernel {
    /// A kernel for tests that launch none.
    pub(crate) fn without_code(op: Op, device: DeviceKind, dtype: DType) -> Kernel {
        Kernel { op, device, dtype, run: |_| Ok(()) }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} on {}", self.op, self.dtype, self.device)
    }
}

impl<'c, 'm> KernelCall<'c, 'm> {
    /// A call with these fields.
    #[inline]
    pub fn new(
        kernel: Kernel,
        operands: &'c mut [Operand<'m>],
        inputs: usize,
        params: &'c Params,
    ) -> KernelCall<'c, 'm> {
        KernelCall { kernel, operands, inputs, params, states: None }
    }
}

impl KernelCall<'_, '_> {
    /// Looks for operands that overlap, one of them written. Such operands give no slices from then on, so that no kernel, built in or
    /// registered, can hold a `&` and a `&mut` to the same bytes.
    ///
    /// # Errors
    ///
    /// [`KernelError::Overlap`] unless the two are an input and an output that are exactly the same view, and the op
    /// [may write it](Op::may_write).
    #[inline]
    pub fn mark_overlapping_shared(&mut self) -> Result<(), KernelError> {
        let operands = &*self.operands;
        let overlaps_none = |writer: usize| {
            let others = operands.iter().enumerate().filter(|(other, _)| *other != writer);
            others.map(|(_, other)| other).all(|other| !operands[writer].overlaps(other))
        };
        if operands.iter().enumerate().all(|(it, operand)| !operand.access().writes() || overlaps_none(it)) {
            return Ok(());
        }
        self.mark_each_overlap_shared()
    }

    #[inline(never)]
    fn mark_each_overlap_shared(&mut self) -> Result<(), KernelError> {
        for writer in 0..self.operands.len() {
            if !self.operands[writer].access().writes() {
                continue;
            }
            for other in 0..self.operands.len() {
                if other == writer || !self.operands[writer].overlaps(&self.operands[other]) {
                    continue;
                }
                let in_place = self.kernel.op.may_write(writer.min(other))
                    && (writer < self.inputs) != (other < self.inputs)
                    && self.operands[writer].same_view(&self.operands[other]);
                if !in_place {
                    return Err(KernelError::Overlap { op: self.kernel.op, written: writer, other });
                }
                self.operands[writer].set_shared();
                self.operands[other].set_shared();
            }
        }
        Ok(())
    }
}
