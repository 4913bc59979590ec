//! Suites that share one process.

mod allocator_accesses;
mod allocator_blocks;
mod allocator_model;
