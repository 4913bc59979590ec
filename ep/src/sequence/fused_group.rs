//! Elementwise steps of a program that a device may compute by one kernel.
//!
//! Each element of every output depends on the elements at its own index only. So one thread can compute all steps for one index: what a step
//! computes and only later steps read stays in a register.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::tensor::dtype::DType;
use crate::tensor::op::Op;
use crate::tensor::scalar::Scalar;

/// The most views of memory that a [`FusedGroup`] has. With it the parameter of a kernel stays below the 4 KiB that every CUDA device has for it.
pub const MOST_FUSED_VIEWS: usize = 32;

/// The steps of a group, without their shapes and addresses: groups that are equal have the same kernel.
#[derive(Clone, PartialEq, Debug)]
pub struct FusedGroup {
    /// The memory that the group reads or writes, at most [`MOST_FUSED_VIEWS`]. A view that is written overlaps no other one.
    pub views: Vec<FusedView>,
    /// In the order in which they are computed.
    pub steps: Vec<FusedStep>,
}

/// A view of memory. If it is both read and written, it is read first, and the elements have the same size.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct FusedView {
    /// The dtype as which it is read; `None` if it is not.
    pub read: Option<DType>,
    /// As what it is written, and by which step.
    pub written: Option<(DType, usize)>,
}

/// One step: what it computes for one element.
#[derive(Clone, PartialEq, Debug)]
pub struct FusedStep {
    /// What it computes.
    pub work: FusedWork,
    /// Where its inputs come from.
    pub inputs: SmallVec<[FusedInput; 3]>,
    /// The dtype of the result.
    pub dtype: DType,
}

/// The work of a step.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum FusedWork {
    /// An elementwise op that refuses no elements, for inputs of this dtype.
    Call(Op, DType),
    /// The result is the input.
    Copy,
    /// The result is this number, as an element of the dtype of the step.
    Fill(Scalar),
}

/// Where an input of a step comes from.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum FusedInput {
    /// The element of this view, as the group finds it.
    View(usize),
    /// The result of this earlier step.
    Step(usize),
    /// This number, as an element of the dtype of the step's [call](FusedWork::Call).
    Number(Scalar),
}

/// Names a kernel that a device has made of a [`FusedGroup`]: see [`Device::prepare`](crate::Device::prepare). The device keeps the kernel as
/// long as it lives. `default` makes a name without a kernel, for streams that a caller implements.
#[derive(Clone, Default, Debug)]
pub struct FusedKernel(
    /// What tells the kernel from others: its address.
    pub Arc<()>,
);
