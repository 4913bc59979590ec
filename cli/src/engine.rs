//! What the command uses of the engine, in one place.

pub(crate) use streamvm::ep::{
    Access, Axes, DType, DeviceId, DeviceInfo, MAX_RANK, MemoryKind, Op, Params, Scalar, Shape,
};
pub(crate) use streamvm::instructions::{Instruction, Kind};
pub(crate) use streamvm::{
    BuildError, Error, Failure, InstructionList, InstructionsBuilder, Mode, Place, PlanOptions, StreamKey, StreamType,
    SyncCounts, Tensor, Vm, plan,
};
