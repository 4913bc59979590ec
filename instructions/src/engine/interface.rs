//! The interface through which a bound tensor calls its engine.
//!
//! A tensor is plain data until an engine takes a list that writes it. From then on it has a number in that engine and is *bound*,
//! and its convenience calls (`to_vec`, `wait`, eager operators) go through this trait. The trait is defined here so that the crate
//! that runs instructions depends on this crate, and not the other way round.
//!
//! Calls that wait for elements have the source line of their caller, because a recording, which has no elements, refuses them with that line.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use streamvm_ep::{Footprint, Site};

use crate::engine::time_limit::Deadline;
use crate::error::engine_error::Error;
use crate::{InstructionList, Single};

/// The number of a resource within its engine.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct ResourceId(pub u32);

impl ResourceId {
    /// The number as an index into per-resource tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A callback that gets the result of a wait; it runs on a thread made for callbacks.
pub type Callback = Box<dyn FnOnce(Result<(), Error>) + Send + 'static>;

/// A callback that waits in an engine for work to pass, and can be taken back.
pub trait Registration: Send + Sync {
    /// Takes the callback out of the engine and drops it, in the calling thread and without a lock. Does nothing if the callback has run or is
    /// about to run. Blocks for short locks only, or while another thread looks for the next point that has not passed.
    fn cancel(&self);
}

/// The address at which an engine is called. It lives as long as the process, so that references to it need no count. It may serve
/// several engines, one after the other.
pub struct EngineAddress {
    engine: &'static dyn Engine,
}

impl EngineAddress {
    /// An address at which `engine` is called.
    pub const fn new(engine: &'static dyn Engine) -> EngineAddress {
        EngineAddress { engine }
    }
}

/// A reference to one engine, held by tensors, variables, events and futures: its address, and a number that no other engine of the
/// process has. By the number, an address can serve a new engine while references to an older one still exist.
///
/// An engine frees everything that it holds when it ends. Later submissions are refused with [`Error::Shutdown`]; the state of a resource can
/// still be asked for. A *bound* resource reserves the address for its engine: the address serves no other engine before the
/// resource has called [`Engine::release`]. Any other holder of a reference may compare it ([`EngineRef::is`]) and call
/// [`Engine::is_forked`], and nothing else.
#[derive(Copy, Clone)]
pub struct EngineRef {
    address: &'static EngineAddress,
    /// Never 0, so one comparison tells whether an `Option<EngineRef>` is this engine.
    number: NonZeroU64,
}

impl EngineRef {
    /// A reference to a new engine at `address`; it differs from every other reference.
    pub fn new(address: &'static EngineAddress) -> EngineRef {
        /// The number of engines so far. It cannot overflow: 2^64 engines, at a billion each second, take centuries.
        static ENGINES: AtomicU64 = AtomicU64::new(0);
        let before = ENGINES.fetch_add(1, Ordering::Relaxed);
        EngineRef { address, number: NonZeroU64::MIN.saturating_add(before) }
    }

    /// The engine at the address. It is this engine as long as a resource that is bound to it exists.
    #[inline]
    pub(crate) fn get(self) -> &'static dyn Engine {
        self.address.engine
    }

    /// Whether both are references to the same engine.
    #[inline]
    pub fn is(self, other: EngineRef) -> bool {
        self.number == other.number
    }
}

/// An engine that runs instruction lists. Every method may be called on any thread.
pub trait Engine: Send + Sync {
    /// Submits the list of an eager call.
    ///
    /// # Errors
    /// If the list is refused, none of it runs. See [`Error`].
    fn submit(&self, list: &mut InstructionList) -> Result<(), Error>;

    /// [`Engine::submit`] of a list that only reads results. An engine that takes no new work may take it as long as accepted work has results to read.
    ///
    /// # Errors
    /// As [`Engine::submit`].
    fn submit_read(&self, list: &mut InstructionList) -> Result<(), Error> {
        self.submit(list)
    }

    /// [`Engine::submit`] of an eager call of one instruction.
    ///
    /// # Errors
    /// As [`Engine::submit`].
    fn submit_one(&self, single: &mut Single<'_>) -> Result<(), Error>;

    /// Whether it records what is submitted, and runs nothing.
    fn is_recording(&self) -> bool {
        false
    }

    /// Whether eager calls on its tensors insert [copies and casts](crate::InstructionsBuilder::with_transfers).
    fn inserts_transfers(&self) -> bool {
        false
    }

    /// Blocks until the last submitted writes of `part` (in elements; `None`: of all of the resource) have passed, or until the
    /// deadline.
    ///
    /// # Errors
    /// The first failure among those writes with its root cause, on every call; [`Error::Timeout`] past the deadline; the errors of
    /// [`Engine::may_wait`]; [`Error::Shutdown`] where the engine is gone and a write never passes. An engine that is gone keeps
    /// one result for the whole resource. An error names `site`, where the caller is.
    fn wait(
        &self,
        id: ResourceId,
        part: Option<&Footprint>,
        deadline: Option<Deadline>,
        site: Site,
    ) -> Result<(), Error>;

    /// Whether the calling thread may wait for this engine. Callers check it before they submit work only to wait for it.
    ///
    /// # Errors
    /// [`Error::WouldDeadlock`] on a thread of an engine, [`Error::Forked`] in a child of the engine's process.
    fn may_wait(&self, site: Site) -> Result<(), Error>;

    /// Whether the last submitted writes of `part` (in elements; `None`: of all of the resource) have passed, failed or not. Never blocks.
    fn has_passed(&self, id: ResourceId, part: Option<&Footprint>) -> bool;

    /// Whether the memory of a resource was released, or its variable deleted. `false` in a child of the engine's process.
    fn is_released(&self, id: ResourceId) -> bool;

    /// Whether this process was forked from the process that built the engine: then nothing of this engine ever passes. Takes no
    /// lock.
    fn is_forked(&self) -> bool;

    /// Calls `callback` once the last submitted writes of `part` (in elements; `None`: of all of the resource) have passed, on a
    /// thread made for callbacks.
    fn on_passed(&self, id: ResourceId, part: Option<&Footprint>, callback: Callback, site: Site);

    /// [`Engine::on_passed`] of a future: the callback can be taken back by the registration. If the writes have passed, the callback is
    /// called at once, in the calling thread, and there is no registration.
    fn register(
        &self,
        id: ResourceId,
        part: Option<&Footprint>,
        callback: Callback,
        site: Site,
    ) -> Option<Arc<dyn Registration>>;

    /// Tells the engine that the last handle of a bound resource is gone: later submissions may reuse its memory. Called once for
    /// each resource that was [kept](crate::Resource::keep). Never waits for work. It is called from drops, also in a forked child
    /// of the engine's process.
    fn release(&'static self, id: ResourceId);

    /// [`release`](Engine::release) of a resource that has no value, or whose memory may be shared with code outside of the engine: [`Resource::keep`](crate::Resource::keep) and
    /// [`Resource::note_written`](crate::Resource::note_written) have said that nothing was written.
    fn release_unwritten(&'static self, id: ResourceId) {
        self.release(id);
    }
}
