//! Tensors without their memory: element types, shapes, layouts, ops, and the rules that infer the output of an op.
//!
//! Layer: uses `names`; is used by `errors`, `call`, `provider`, `sequence`.
//!
//! Main types: [`DType`](dtype::DType), [`Shape`](shape::Shape), [`Layout`](layout::Layout),
//! [`Footprint`](footprint::Footprint), [`Scalar`](scalar::Scalar), [`Op`](op::Op), [`OpClass`](op_class::OpClass), [`Accuracy`](accuracy::Accuracy), [`Params`](params::Params),
//! [`RegisteredOp`](registered_op::RegisteredOp), [`Numbers`](numbers::Numbers), [`Convolution`](window::Convolution), [`Pooling`](window::Pooling), [`ShapeError`](error::ShapeError),
//! [`OpError`](error::OpError).

pub(crate) mod accuracy;
pub(crate) mod dtype;
pub(crate) mod error;
pub(crate) mod footprint;
pub(crate) mod infer;
pub(crate) mod layout;
pub(crate) mod numbers;
pub(crate) mod op;
pub(crate) mod op_class;
mod op_table;
pub(crate) mod params;
pub(crate) mod registered_op;
pub(crate) mod rule;
pub(crate) mod scalar;
pub(crate) mod shape;
pub(crate) mod sort_key;
pub(crate) mod window;
