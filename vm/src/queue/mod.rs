//! Moving tasks from thread to thread: owned nodes, lists of them, and the queues that hand them over.
//!
//! Layer: uses `sync`; is used by `tasks`, `dispatch`, `progress`, `execute`, `submit` and `engine`. Nothing in here depends on the type of
//! the values.
//!
//! * [`NodeBox`](node::NodeBox) owns one reusable [`Node`](node::Node); a [`NodeList`](node::NodeList) links any number of them, so
//!   a list moves in O(1) and moving it allocates nothing.
//! * [`MpscQueue`](mpsc::MpscQueue): many threads push lists, one thread takes all of them.
//! * [`AtomicSlot`](atomic_slot::AtomicSlot): an atomic optional node box.
//!
//! Invariant: each node has exactly one owner. All unsafe code of the layer is in these files.

pub(crate) mod atomic_slot;
pub(crate) mod mpsc;
pub(crate) mod node;
#[cfg(all(test, loom))]
mod parker_tests;
