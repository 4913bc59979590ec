//! What a bound tensor asks of the engine that runs it.
//!
//! Tensors are plain data until an engine takes a list that writes them: then they have a number there, are *bound*, and their
//! convenience calls (`to_vec`, `wait`, eager operators) go through this trait. It is defined here so that the crate
//! that runs instructions can depend on this one, and not the other way round.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

use streamvm_ep::Footprint;

use crate::{Deadline, Error, InstructionList, Single};

/// The number of a resource within its engine.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct ResourceId(pub u32);

impl ResourceId {
    /// The number as an index into per-resource tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Told how a wait ended; runs on a thread of its own.
pub type Callback = Box<dyn FnOnce(Result<(), Error>) + Send + 'static>;

/// Where engines are called: a place that stays for as long as the process, so that nobody counts references to it. It may serve
/// several engines, one after the other.
pub struct EngineAddress {
    engine: &'static dyn Engine,
}

impl EngineAddress {
    /// A place where `engine` answers.
    pub const fn new(engine: &'static dyn Engine) -> EngineAddress {
        EngineAddress { engine }
    }
}

/// One engine, as tensors, variables, events and futures know it: its address, and a number that no other engine of the process
/// has. So an address can serve a new engine while something of an older one is still there.
///
/// What the engine holds goes when it ends; what is submitted then is refused with [`Error::Shutdown`], and what became of a
/// resource can still be asked for. A *bound* resource keeps the address for its engine: the address serves no other one before
/// the resource has called [`Engine::release`]. Whatever else has a reference compares it ([`EngineRef::is`]) or asks
/// [`Engine::is_forked`], and calls nothing else.
#[derive(Copy, Clone)]
pub struct EngineRef {
    address: &'static EngineAddress,
    /// Never 0, so one comparison tells whether an `Option<EngineRef>` is this engine.
    number: NonZeroU64,
}

impl EngineRef {
    /// A new engine at `address`: no other reference is the same.
    pub fn new(address: &'static EngineAddress) -> EngineRef {
        /// How many engines there were. At a billion in a second it lasts for centuries.
        static ENGINES: AtomicU64 = AtomicU64::new(0);
        let before = ENGINES.fetch_add(1, Ordering::Relaxed);
        EngineRef { address, number: NonZeroU64::MIN.saturating_add(before) }
    }

    /// What answers at the address. It answers for this engine while a resource that is bound to it is there.
    #[inline]
    pub(crate) fn get(self) -> &'static dyn Engine {
        self.address.engine
    }

    /// Whether two are the same engine.
    #[inline]
    pub fn is(self, other: EngineRef) -> bool {
        self.number == other.number
    }
}

/// An engine that runs instruction lists. All calls may come from any thread.
pub trait Engine: Send + Sync {
    /// Submits a list.
    ///
    /// # Errors
    /// Nothing of the list runs when it is refused. See [`Error`].
    fn submit(&self, list: &mut InstructionList) -> Result<(), Error>;

    /// [`Engine::submit`] of one instruction.
    ///
    /// # Errors
    /// As [`Engine::submit`].
    fn submit_one(&self, single: &mut Single<'_>) -> Result<(), Error>;

    /// Blocks until the last submitted writes of `part` of the resource, in elements, or of all of it, have passed, or the deadline.
    ///
    /// # Errors
    /// The first failure among those writes with its root cause, each time it is asked; [`Error::Timeout`] past the deadline; what
    /// [`Engine::may_wait`] gives; [`Error::Shutdown`] where the engine is gone and a write never passes. An engine that is gone
    /// knows one answer for the whole resource.
    fn wait(&self, id: ResourceId, part: Option<&Footprint>, deadline: Option<Deadline>) -> Result<(), Error>;

    /// Whether the calling thread may wait for this engine: asked before anything is submitted for the sake of a wait.
    ///
    /// # Errors
    /// [`Error::WouldDeadlock`] on a thread of an engine, [`Error::Forked`] in a child of the engine's process.
    fn may_wait(&self) -> Result<(), Error>;

    /// Whether this process was forked from the one that built the engine: nothing will ever pass here. Takes no lock.
    fn is_forked(&self) -> bool;

    /// Calls back once the last submitted writes of `part` of the resource, in elements, or of all of it, have passed, on a thread made
    /// for callbacks.
    fn on_passed(&self, id: ResourceId, part: Option<&Footprint>, callback: Callback);

    /// The last handle of a bound resource is gone: its memory may be reused by what is submitted later. Called once for each
    /// resource that was [kept](crate::Resource::keep). Never waits for work; called from drops, also in a child of the engine's process.
    fn release(&'static self, id: ResourceId);
}
