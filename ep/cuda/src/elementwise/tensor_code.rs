//! A caller's kernel: what a registered op over tensors computes on CUDA devices.

use std::ffi::{CStr, CString};
use std::fmt;
use std::sync::Arc;

use streamvm_ep::{
    DType, DeviceId, DeviceKind, Extra, FnError, KernelCall, KernelError, Op, Operand, Params, RegisteredOp, Scalar,
    TensorOp, error_chain,
};

use crate::elementwise::element_code::CudaElementCode;
use crate::source::{CompileError, CudaArgument, CudaGrid, Ptx};

/// One launch of a caller's kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct CudaLaunch {
    /// Grid, block and shared memory.
    pub grid: CudaGrid,
    /// The parameters of the kernel, in their order.
    pub arguments: Vec<CudaArgument>,
}

type Planner = dyn Fn(&CudaOpCall<'_>) -> Result<Option<CudaLaunch>, FnError> + Send + Sync;

/// A kernel of PTX for a registered op over tensors, and how it is launched.
pub struct CudaTensorCode {
    ptx: Ptx,
    kernel: CString,
    plan: Box<Planner>,
    takes_gaps: bool,
}

/// A call that is to be launched. The operands are those of a CPU kernel, but their elements are in the memory of a device.
#[derive(Debug)]
pub struct CudaOpCall<'a> {
    /// The tensors.
    pub inputs: &'a [Operand<'a>],
    /// The output. That of an op [in place](TensorOp::in_place) holds the elements of the first input.
    pub output: &'a Operand<'a>,
    /// The parameters of the call.
    pub params: &'a Params,
    /// The device.
    pub device: DeviceId,
}

impl CudaOpCall<'_> {
    /// A number of the call, by its place among the [numbers](TensorOp::numbers) of the op.
    pub fn number(&self, index: usize) -> Option<Scalar> {
        self.params.numbers().get(self.inputs.len() + index)
    }

    /// The seed and the first block of the random numbers of a call of an op that [draws some](TensorOp::random).
    pub fn random(&self) -> Option<(u64, u64)> {
        if let Extra::Random { seed, counter } = self.params.extra { Some((seed, counter)) } else { None }
    }
}

impl CudaTensorCode {
    /// The kernel of this name. `plan` says how a call is launched; `None` launches nothing. It is not called for an output without elements. It runs on the thread that
    /// launches, also while commands are captured for a graph, so it must not block, allocate memory of the device or wait for it; and it gives the same launch for the same
    /// call, because a graph repeats it. Its error becomes the failure of the instruction.
    ///
    /// Operands are in row-major order without gaps; a call with another view fails, unless the code [takes gaps](CudaTensorCode::taking_gaps). An operand may begin at any
    /// element, so loads of several elements at once need a look at its address.
    ///
    /// # Errors
    ///
    /// A name with a NUL in it.
    ///
    /// # Safety
    ///
    /// For each call for which `plan` gives a launch, whatever op it is of:
    ///
    /// * The arguments match the kernel's parameters in number, order and type.
    /// * The kernel ends, reads the inputs alone, and writes each element of the output and nothing else.
    ///
    /// So `plan` looks at what the kernel relies on: how many inputs there are, dtypes, shapes.
    pub unsafe fn new(
        ptx: &Ptx,
        kernel: &str,
        plan: impl Fn(&CudaOpCall<'_>) -> Result<Option<CudaLaunch>, FnError> + Send + Sync + 'static,
    ) -> Result<CudaTensorCode, CompileError> {
        let kernel = CString::new(kernel).map_err(|_| CompileError::Nul { what: "the name of the kernel" })?;
        Ok(CudaTensorCode { ptx: ptx.clone(), kernel, plan: Box::new(plan), takes_gaps: false })
    }

    /// Makes the code get views of any strides, which the kernel must respect.
    #[must_use]
    pub fn taking_gaps(mut self) -> CudaTensorCode {
        self.takes_gaps = true;
        self
    }

    /// The code of a registered op for a first input of this dtype.
    pub(crate) fn of(op: RegisteredOp, dtype: DType) -> Option<&'static CudaTensorCode> {
        op.code(DeviceKind::CUDA, dtype)?.downcast_ref()
    }

    /// The PTX.
    pub(crate) fn ptx(&self) -> &CStr {
        self.ptx.as_c_str()
    }

    /// The name of the kernel.
    pub(crate) fn kernel(&self) -> &CStr {
        &self.kernel
    }

    /// How a call is launched.
    pub(crate) fn plan(&self, call: &KernelCall<'_, '_>, device: DeviceId) -> Result<Option<CudaLaunch>, KernelError> {
        let op = call.kernel.op;
        let refused = |reason: String| KernelError::Registered { op, reason };
        let Some((output, inputs)) = call.operands.split_last() else {
            return Err(KernelError::Operands { op, inputs: 0, outputs: 0 });
        };
        if let Some(place) =
            call.operands.iter().position(|operand| !operand.is_contiguous()).filter(|_| !self.takes_gaps)
        {
            let what = if place < inputs.len() { format!("input {place}") } else { "the output".to_owned() };
            return Err(refused(format!(
                "{what} is a view with gaps, which its code for CUDA does not take; pass `contiguous()` of an input, or a whole output"
            )));
        }
        let planned = (self.plan)(&CudaOpCall { inputs, output, params: call.params, device });
        planned.map_err(|error| refused(error_chain(&*error)))
    }
}

impl fmt::Debug for CudaTensorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaTensorCode").field("kernel", &self.kernel).finish_non_exhaustive()
    }
}

/// [`TensorOp`]s on CUDA devices.
pub trait CudaOp {
    /// Sets the kernel that computes the op on CUDA devices for these dtypes of the first input.
    #[must_use]
    fn cuda(self, dtypes: &[DType], code: CudaTensorCode) -> Self;
}

impl<S: Send + Sync + 'static> CudaOp for TensorOp<S> {
    fn cuda(self, dtypes: &[DType], code: CudaTensorCode) -> TensorOp<S> {
        self.code(DeviceKind::CUDA, dtypes, Arc::new(code))
    }
}

/// Whether a registered op has code for CUDA devices, of a type that they know.
pub(crate) fn has_code(op: RegisteredOp, dtype: DType) -> bool {
    match Op::Registered(op).is_over_tensors() {
        true => CudaTensorCode::of(op, dtype).is_some(),
        false => CudaElementCode::of(op, dtype).is_some(),
    }
}

/// The code of an op over tensors, if it is one that was registered with some.
pub(crate) fn tensor_code(op: Op, dtype: DType) -> Option<&'static CudaTensorCode> {
    if let Op::Registered(op) = op { CudaTensorCode::of(op, dtype) } else { None }
}
