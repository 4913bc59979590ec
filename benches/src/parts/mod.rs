//! Parts of the engine on their own, each by its crate's public interface: no threads, no submission, no device.

pub mod allocator;
pub mod soft_sync;
