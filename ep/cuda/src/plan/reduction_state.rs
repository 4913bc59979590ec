//! The state of a part of a reduction: the first of two launches stores it in scratch memory, and the second one reads it.

use smallvec::{SmallVec, smallvec};
use streamvm_ep::{DType, Op};

use crate::plan::kernel_name::KernelName;

/// The intermediate result of a kernel over some elements of one output: `F::State` in `kernels/reduce.cu`, as it lies in scratch memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReductionState(SmallVec<[DType; 3]>);

impl ReductionState {
    /// The state of a kernel; `None` if it is of no reduction.
    pub fn of(kernel: KernelName) -> Option<ReductionState> {
        let KernelName::Op(op, dtype) = kernel else { return None };
        let computed = match dtype {
            DType::F16 | DType::BF16 => DType::F32,
            DType::I8 | DType::I16 | DType::I32 => DType::I64,
            DType::Bool | DType::U8 | DType::U16 | DType::U32 => DType::U64,
            dtype => dtype,
        };
        Some(ReductionState(match op {
            // A sum of scaled elements goes along.
            Op::Sum | Op::Mean if dtype == DType::F64 => smallvec![DType::F64; 2],
            Op::Sum | Op::Mean if matches!(dtype, DType::F32 | DType::BF16) => smallvec![DType::F64],
            Op::Prod if dtype == DType::F32 => smallvec![DType::F64],
            // Count, mean and squares.
            Op::Var | Op::Std => smallvec![DType::F64; 3],
            Op::ArgMax | Op::ArgMin => smallvec![computed, DType::I64],
            op if op.is_reduction() => smallvec![computed],
            _ => return None,
        }))
    }

    /// The dtypes of its fields. A state of several fields has eight bytes for each.
    pub fn fields(&self) -> &[DType] {
        &self.0
    }

    /// The bytes from one state to the next.
    pub fn bytes(&self) -> usize {
        match self.fields() {
            [one] => one.size(),
            fields => 8 * fields.len(),
        }
    }
}
