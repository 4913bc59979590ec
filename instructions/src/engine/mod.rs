//! The interface between tensors and an engine: the engine, its events, and the deadlines of a thread.
//!
//! Layer: uses `error`; is used by `tensor`, `soft_sync`, `list`, `text`, `builder`, `eager` and `plan`.
//!
//! * [`Engine`](interface::Engine) is the trait that the crate `streamvm` implements; an [`EngineRef`](interface::EngineRef) names one
//!   engine, and a [`ResourceId`](interface::ResourceId) a resource within it.
//! * An [`Event`](event::Event) marks a point of one stream.
//! * A [`Deadline`](time_limit::Deadline) makes the waits of a thread give up.
//!
//! There is one reference to a higher layer: `Engine::submit` takes an `InstructionList`, and `Engine::submit_one` a `Single`, both
//! of the layer `list`. A tensor calls its engine when its last handle is dropped, and an engine takes lists of tensors, so these
//! types refer to each other. The trait only names the two types in its signatures; no code in this folder calls them.

pub(crate) mod event;
pub(crate) mod interface;
pub(crate) mod time_limit;
