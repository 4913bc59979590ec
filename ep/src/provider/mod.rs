//! The interface of an execution provider: the traits that each kind of device implements, and the parts that they share.
//!
//! Layer: uses `names`, `tensor`, `errors`, `call`, `sequence`; is used by no other folder.
//!
//! Main types: [`Device`](device::Device), [`Stream`](stream::Stream), [`EventPool`](event_pool::EventPool),
//! [`Region`](memory::Region), [`MemoryStats`](memory::MemoryStats), [`Accounts`](accounts::Accounts).

pub(crate) mod accounts;
pub(crate) mod device;
pub(crate) mod device_registry;
pub(crate) mod event_pool;
pub(crate) mod memory;
pub(crate) mod stream;
