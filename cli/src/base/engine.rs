//! The names that this crate imports from the engine, in one place.

pub(crate) use streamvm::ep::cuda::CudaConfig;
pub(crate) use streamvm::ep::{
    Access, Axes, DType, DeviceId, DeviceInfo, DeviceKind, Error as DeviceError, Extra, Label, MAX_RANK, MemoryKind,
    Op, OpClass, Params, Scalar, Shape,
};
pub(crate) use streamvm::instructions::{Instruction, Kind};
pub(crate) use streamvm::{
    BuildError, Capabilities, Error, Failure, Finding, Generator, InstructionList, InstructionsBuilder, MAX_STREAMS,
    Mode, OpProfile, Place, PlanOptions, Profile, StreamKey, StreamType, SyncCounts, Tensor, Times, Vm, VmBuilder,
    WorkerProfile, bf16, f16, plan,
};

#[cfg(test)]
pub(crate) use streamvm::ep::races::FindingKind;
