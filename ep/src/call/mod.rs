//! Calls of kernels and of callers' functions: their operands, the checks before they run, and the table of kernels.
//!
//! Layer: uses `names`, `tensor`, `errors`; is used by `provider`, `sequence`.
//!
//! Main types: [`Operand`](operand::Operand), [`Kernel`](kernel::Kernel), [`KernelCall`](kernel::KernelCall),
//! [`KernelRegistry`](kernel_registry::KernelRegistry), [`ElementwiseOp`](registered::ElementwiseOp), [`TensorOp`](registered::TensorOp),
//! [`InlineFn`](closure::InlineFn), [`FnContext`](fn_context::FnContext),
//! [`Operation`](operation::Operation), [`RawCall`](raw::RawCall), [`Prepared`](prepared::Prepared), [`SegmentCall`](prepared::SegmentCall), [`Label`](label::Label).

pub mod check;
pub(crate) mod closure;
pub(crate) mod fn_context;
pub(crate) mod kernel;
pub(crate) mod kernel_registry;
pub(crate) mod label;
pub(crate) mod op_states;
pub(crate) mod operand;
pub(crate) mod operation;
pub(crate) mod prepared;
pub(crate) mod raw;
pub(crate) mod registered;
pub(crate) mod step_note;
pub(crate) mod tile_function;
pub(crate) mod with_numbers;
