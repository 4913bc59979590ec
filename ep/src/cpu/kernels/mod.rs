//! CPU kernels.
//!
//! Each kernel is one generic function, instantiated per dtype in [`table`](mod@table). All follow
//! one plan: [`check`](mod@crate::check) the operands, lay a [`Walk`](walk::Walk) over their strides that
//! merges axes as far as possible, and give each innermost row to a loop of [`rows`](mod@rows), where
//! the pointers are read and written. Nothing is allocated, but for what a matrix product packs.
//!
//! Invariant: kernels touch memory through raw pointers only, reading an element before writing the
//! one at the same index, so an elementwise op may write exactly the view that it reads.

mod argmax;
mod arith;
mod binary16;
mod cast;
mod copy;
mod elementwise;
mod matmul;
mod narrow;
mod number;
mod one_hot;
mod pad;
mod panels;
mod philox;
mod random;
mod reduce;
mod rows;
mod softmax;
mod table;
mod walk;
mod wide;

pub(crate) use copy::{check_copy, check_fill, copy, fill};
pub(crate) use table::register;
