//! CPU kernels, and the threads that help with large ones.
//!
//! ```
//! use streamvm_ep::*;
//!
//! # fn main() -> Result<(), Error> {
//! let kernel = streamvm_kernels::builtin().get(Op::Neg, DeviceKind::CPU, DType::F32)?;
//! let mut memory = [[1.0f32, 2.0, 3.0], [0.0; 3]];
//! let layout = Layout::contiguous(Shape::new(&[3])?);
//! let base = memory.as_mut_ptr().cast::<u8>();
//! // SAFETY: each has the three elements of a row, which nothing else uses while the operands exist.
//! let view = |row: usize, access| unsafe { Operand::new(base.wrapping_add(row * 12), DType::F32, layout, access) };
//! let mut operands = [view(0, Access::Read), view(1, Access::Write)];
//! (kernel.run)(&mut KernelCall::new(kernel, &mut operands, 1, &Params::default()))?;
//! assert_eq!(memory[1], [-1.0, -2.0, -3.0]);
//! # Ok(())
//! # }
//! ```
//!
//! All kernels have the same structure:
//!
//! 1. `check` the operands.
//! 2. Make a `LoopNest` over their strides, which merges axes as far as possible.
//! 3. Divide it into parts if it is large ([`parallel`]), and pass the rows of a part to a loop that reads and writes through the pointers.
//!
//! The kernel of an elementwise op names a function over a *tile*, elements that lie side by side, which is compiled for the op and the type that it computes in. All else, also strides and 16-bit
//! floats, is the business of `tiles`, which is compiled once for all of them. Other kernels are generic functions, instantiated per dtype in
//! `table`, with loops of `rows` and `folds`. Those of whole rows, such as softmax and norms, read and write them by `row_tiles`, which converts 16-bit floats and gathers elements that lie apart.
//!
//! Light calls that follow each other in a compiled program are computed together in registers (`chain`).
//!
//! Nothing is allocated, except the packed blocks of a matrix product, which a thread keeps, and those of 16-bit floats, the results of the blocks of a large reduction, the scratch memory of
//! convolutions, that of gradients of max poolings, and the keys that are sorted.
//!
//! Invariant: a result has the same bits on every processor with the same vectors and for any number of threads, because how a kernel is
//! divided depends on shapes and strides alone. A sort is divided by its keys, of which no two are equal, so its result does not depend on
//! the division. Elementwise results have the same bits on all processors, and products on all with fused multiplications.
//!
//! Invariant: kernels access memory only through raw pointers, and read an element before they write the one at the same index. So an
//! elementwise op may write exactly the view that it reads.

#![cfg_attr(any(loom, shuttle), allow(dead_code, unused_imports, reason = "models run few kernels"))]

mod activations;
mod along_axis;
mod arange;
mod argmax;
mod argsort;
mod arith;
mod binary16;
mod bits;
mod builtin;
mod cast;
pub mod chain;
mod convolution;
mod copy;
mod cross_entropy;
mod cumsum;
mod direct_convolution;
mod elementwise;
mod flip;
mod folds;
mod functions;
mod half_floats;
mod halves;
mod index_select;
mod indices;
mod lanes;
mod layer_norm;
mod library;
mod loop_nest;
mod math;
mod matmul;
mod matmul_dot;
mod matmul_float;
mod matmul_half;
mod matmul_tile;
mod number;
mod one_hot;
mod ordered;
mod pad;
pub mod parallel;
mod patches;
mod patience;
mod philox;
mod plain;
mod pooling;
mod random;
mod reduce;
mod registered;
mod rms_norm;
mod row_tiles;
mod rows;
mod simd_dispatch;
mod softmax;
mod table;
mod tile_functions;
mod tiles;
mod triangle;
#[cfg(test)]
mod ulps;
mod workers;

pub use builtin::builtin;
pub use copy::{copy, fill};
pub use patience::Patience;
pub use philox::block as random_block;
#[doc(hidden)]
pub use simd_dispatch::{leave_avx512_out, vectors};
pub use table::{is_own, register};
pub use workers::{mark_helpers, set_threads, split};
