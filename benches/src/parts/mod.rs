//! Parts of the engine alone, each by the public interface of its crate: no threads, no submission, no device.
//!
//! Layer: uses `harness` and `workloads`; is used by `floors`, `growth` and `catalogue`.
//!
//! Main parts: [`soft_sync`](soft_sync::soft_sync()) runs the pass that finds waits over random operations;
//! [`allocator`](allocator::allocator()) allocates and frees blocks.

pub mod allocator;
pub mod soft_sync;
