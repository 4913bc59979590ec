//! Names of devices, events, actors and kinds of memory, the sites that calls come from, and the error of a text that does not parse as a name.
//!
//! Layer: uses no other folder; is used by all other folders but `process` and `refcount`.
//!
//! Main types: [`DeviceId`](device_id::DeviceId), [`DeviceKind`](device_kind::DeviceKind), [`EventId`](event_id::EventId),
//! [`MemoryKind`](memory_kind::MemoryKind), [`ActorId`](actor_id::ActorId), [`Site`](site::Site), [`Scope`](scope::Scope), [`ParseError`](text::ParseError).

pub(crate) mod actor_id;
pub(crate) mod device_id;
pub(crate) mod device_kind;
pub(crate) mod event_id;
pub(crate) mod growing_table;
pub(crate) mod memory_kind;
pub(crate) mod scope;
pub(crate) mod scopes;
pub(crate) mod site;
pub(crate) mod text;
