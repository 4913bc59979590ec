//! The names that this crate imports from the engine, in one place.

pub(crate) use streamvm::ep::cuda::CudaConfig;
pub(crate) use streamvm::ep::races::Finding;
pub(crate) use streamvm::ep::{
    Access, Axes, Convolution, DType, DeviceId, DeviceInfo, DeviceKind, Error as DeviceError, Extra, Label, MAX_RANK,
    MemoryKind, Numbers, Op, OpClass, Params, Pooling, ProgramStep, RegisteredOp, Scalar, Shape, Site,
};
pub(crate) use streamvm::instructions::{Kind, Resource};
pub(crate) use streamvm::report::{OpProfile, SyncCounts, Times, WorkerProfile};
pub(crate) use streamvm::stream::{Capabilities, MAX_STREAMS};
pub(crate) use streamvm::{
    BuildError, Cause, Error, Executable, Generator, InstructionList, InstructionsBuilder, Lane, Mode, Place,
    PlanOptions, Profile, ProgramError, StepTime, StreamKey, StreamType, Tensor, TraceConfig, Vm, VmBuilder, plan,
    scope,
};

pub(crate) use streamvm::program::{
    BufferRole, CompileOptions, Compiled, CompiledStep, Dependence, Dim, Edge, FusedBy, KeptBy, Located, MOST_DIMS,
    PassReport, Program, Recorder, SegmentBranch, Step, StepFunction, Storage, ValueId, ValuePlace, ValueRole, compile,
    compile_reporting, record, record_bounded,
};

#[cfg(test)]
pub(crate) use streamvm::ep::races::FindingKind;
