//! The memory that the stand-in allocates.
//!
//! * A *device address* lies in a range of the address space that is mapped without any access, so a host that dereferences it always
//!   faults. The bytes are elsewhere; commands translate the address.
//! * *Pinned memory* is host memory, in its own range. Freed memory becomes inaccessible again, so a host that goes on using it faults too.
//! * Kernels access *write-combined* pinned memory by another address than the host, as a driver may choose: in its own range, without any
//!   access.
//! * An address is not allocated a second time before the range is used up, so that a use after free is distinguished from a use of the
//!   next allocation.
//! * New memory holds [`POISON`], since a driver does not promise any contents.
//!
//! Layer: uses `values`; is used by `kernels`, `objects`, `driver`, `commands`, `api` and `tests`.

mod allocation;
mod arena;
mod heap;
pub(crate) mod order;

pub(crate) use allocation::{Allocation, Home, Span};
#[cfg(test)]
pub(crate) use arena::POISON;
pub(crate) use heap::{Heap, Missing};
