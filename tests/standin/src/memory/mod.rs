//! Memory that the stand-in gives out.
//!
//! * A *device address* lies in a stretch of the address space that is mapped without any access: a host that follows it
//!   faults, for sure. The bytes lie elsewhere; commands translate.
//! * *Pinned memory* is memory of the host, in a stretch of its own. What is given back becomes unreachable again: a host
//!   that goes on using it faults as well.
//! * Kernels reach *write-combined* pinned memory by another address than the host, as a driver may have it: in a stretch of
//!   its own, without any access.
//! * An address is not given out a second time before the stretch is used up, so that a use after free is told from the
//!   use of what came after it.
//! * New memory holds [`POISON`], as a driver promises nothing.

mod allocation;
mod arena;
mod heap;

pub(crate) use allocation::{Allocation, Home, Span};
#[cfg(test)]
pub(crate) use arena::POISON;
pub(crate) use heap::{Heap, Missing};
