//! Tensors and variables: handles on the resources that instructions read and write, the uses that instructions declare, and the
//! memory that a stream can use.
//!
//! Layer: uses `place`, `error` and `engine`; is used by `list`, `text`, `builder`, `eager` and `plan`.
//!
//! * A [`Resource`](resource::Resource) has a dependence in the engine: it is the storage of tensors, or a variable.
//! * A [`Tensor`](handle::Tensor) is a view of a storage, and a [`Var`](var::Var) is a resource without bytes. Both are cheap
//!   handles.
//! * An [`Input`](input::Input) of an op is a tensor or a number.
//! * A [`Critical`](critical::Critical) is a named resource of critical sections.
//! * A [`Use`](uses::Use) declares that an instruction reads, writes or updates one of them.
//! * [`show`](show::show) writes elements as text.
//! * [`reach`](reach::reach) decides how the runner of a stream can use the memory of a tensor.

pub(crate) mod counted;
pub(crate) mod critical;
pub(crate) mod handle;
pub(crate) mod input;
pub(crate) mod reach;
pub(crate) mod resource;
pub(crate) mod show;
pub(crate) mod uses;
pub(crate) mod var;
