//! Resources: each has a dependence, and a number in its engine.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use streamvm_ep::MemoryKind;

use streamvm_ep::Site;

use crate::engine::interface::{EngineRef, ResourceId};
use crate::error::engine_error::Error;
use crate::error::program_error::ProgramError;
use crate::place::Place;

/// A storage of tensors, or a variable: what a dependence orders the accesses of.
///
/// A resource belongs to the engine that it was made for, or else to the first engine that takes a list with it. It has a number in
/// that engine once the engine has taken a list that writes it.
pub struct Resource {
    pub(super) kind: ResourceKind,
    /// The engine, if it was known when the resource was made.
    pub(super) engine: Option<EngineRef>,
    /// The engine that claimed the resource later, if it was not known.
    claimed: OnceLock<EngineRef>,
    /// The number in the engine with the flags [`DRAFT`] and [`EMPTY`], or [`NO_NUMBER`]. Written under the engine's submission
    /// lock, or while no other thread has a handle.
    number: AtomicU32,
    /// For a variable that counts its writes, the number of writes that have passed.
    pub(super) version: Option<Version>,
}

/// The resource has no number yet.
const NO_NUMBER: u32 = u32::MAX;

/// Flag of a number: the list that creates the resource may still be refused.
const DRAFT: u32 = 1 << 31;

/// Flag of a number: the resource has no value, because nothing was written yet or the value was freed; or its engine has more to look at, because the memory is shared with code outside.
const EMPTY: u32 = 1 << 30;

/// The contents of a resource.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ResourceKind {
    /// Bytes in memory.
    Storage {
        /// The place where the bytes live.
        place: Place,
        /// The kind of memory at that place.
        memory: MemoryKind,
        /// The size. A storage of 0 bytes has a dependence but no block of memory.
        bytes: usize,
    },
    /// No bytes: a variable, which only orders.
    Var,
}

/// The number of writes of a variable that have passed without a failure. Clones share one number.
#[derive(Clone, Debug, Default)]
pub struct Version(Arc<AtomicU64>);

impl Version {
    /// The current number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Adds one write. An engine calls this before it publishes that the write has passed.
    pub fn advance(&self) {
        // Writes of one variable run one after the other, so no other thread calls this at the same time.
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Whether both share one number.
    pub fn is(&self, other: &Version) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A resource belongs to another engine.
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub struct Foreign;

impl Resource {
    /// A resource without an engine: the first engine that claims it owns it.
    pub(super) const fn new(kind: ResourceKind) -> Resource {
        Resource { kind, engine: None, claimed: OnceLock::new(), number: AtomicU32::new(NO_NUMBER), version: None }
    }

    /// Its version; `None` for a resource that does not count its writes.
    pub fn version(&self) -> Option<&Version> {
        self.version.as_ref()
    }

    /// The contents of the resource.
    pub fn kind(&self) -> ResourceKind {
        self.kind
    }

    /// [`Error::Foreign`] of a use of this resource, which belongs to another engine; of one of a recording, the reason why it cannot be recorded.
    pub fn foreign(&self, line: usize, what: String, operand: String, site: Site) -> Error {
        if !self.bound().is_some_and(|(engine, _)| engine.get().is_recording()) {
            return Error::Foreign { line, what, operand, site };
        }
        let why = format!(
            "an engine was asked for it, and it uses {operand} of a recording; call functions by `r.call_fn`, and hand tensors of the engine over as feeds or parameters"
        );
        let error = Box::new(ProgramError::NotRecordable { what, site, why });
        Error::Program { error, site }
    }

    /// Its number in `engine`, also while that is a draft; `None` while it has none.
    ///
    /// # Errors
    /// [`Foreign`] when it belongs to another engine.
    pub fn id_in(&self, engine: EngineRef) -> Result<Option<ResourceId>, Foreign> {
        match self.engine() {
            None => Ok(None),
            Some(owner) if owner.is(engine) => {
                let number = self.number.load(Ordering::Relaxed);
                Ok((number != NO_NUMBER).then_some(ResourceId(number & !(DRAFT | EMPTY))))
            }
            Some(_) => Err(Foreign),
        }
    }

    /// Its number in `engine`, if it has a value there. `None` means unknown.
    #[inline]
    pub fn written_in(&self, engine: EngineRef) -> Option<ResourceId> {
        let number = self.number.load(Ordering::Relaxed);
        let written = number & (DRAFT | EMPTY) == 0 && self.is_of(engine);
        written.then_some(ResourceId(number))
    }

    /// Claims the resource for `engine`, if no engine owns it yet.
    ///
    /// # Errors
    /// [`Foreign`] when it belongs to another engine.
    pub fn claim(&self, engine: EngineRef) -> Result<(), Foreign> {
        let owner = self.engine.unwrap_or_else(|| *self.claimed.get_or_init(|| engine));
        if owner.is(engine) { Ok(()) } else { Err(Foreign) }
    }

    /// Whether `engine` owns the resource.
    #[inline]
    pub fn is_of(&self, engine: EngineRef) -> bool {
        let is = |owner: &EngineRef| owner.is(engine);
        // Each field is checked by itself, as a combined `Option` would be copied.
        self.engine.as_ref().is_some_and(is) || self.claimed.get().is_some_and(is)
    }

    /// Gives the resource a number while the current list is being submitted, until [`Resource::keep`] or [`Resource::forget`]. For
    /// a draft, [`Resource::written_in`] returns `None`.
    ///
    /// This method and the three below are for `engine`: it calls them under its submission lock, or while no other thread has a
    /// handle. They do nothing if another engine owns the resource. They trust `engine`, as only an engine has its own address.
    pub fn draft(&self, engine: EngineRef, id: ResourceId) {
        self.say(engine, id.0 | DRAFT | EMPTY, Ordering::Relaxed);
    }

    /// Makes the number permanent, and notes whether the resource has a value. From now on, the drop of the last handle is reported
    /// to the engine.
    pub fn keep(&self, engine: EngineRef, id: ResourceId, written: bool) {
        debug_assert!(id.0 < EMPTY, "an engine has fewer than 2^30 resources");
        self.say(engine, if written { id.0 } else { id.0 | EMPTY }, Ordering::Release);
    }

    /// Notes whether the resource has a value. A draft is not changed.
    pub fn note_written(&self, engine: EngineRef, written: bool) {
        let number = self.number.load(Ordering::Relaxed);
        if number & DRAFT == 0 {
            self.say(engine, if written { number & !EMPTY } else { number | EMPTY }, Ordering::Release);
        }
    }

    /// Removes a draft, because its list was refused.
    pub fn forget(&self, engine: EngineRef) {
        self.say(engine, NO_NUMBER, Ordering::Relaxed);
    }

    fn say(&self, engine: EngineRef, number: u32, ordering: Ordering) {
        if self.is_of(engine) {
            self.number.store(number, ordering);
        }
    }

    /// The state in words, for debug output. A write counts once it is submitted, whether it has passed or not.
    pub(super) fn state(&self) -> &'static str {
        match self.number.load(Ordering::Relaxed) {
            NO_NUMBER => "not submitted",
            number if number & DRAFT != 0 => "being submitted",
            _ if self.engine().is_some_and(|engine| engine.get().is_recording()) => "recorded",
            number if number & EMPTY != 0 => "not written, or lent",
            _ => "write submitted",
        }
    }

    /// The engine that owns the resource; `None` if no engine does.
    #[inline]
    pub(crate) fn engine(&self) -> Option<EngineRef> {
        self.engine.or_else(|| self.claimed.get().copied())
    }

    pub(crate) fn bound(&self) -> Option<(EngineRef, ResourceId)> {
        let number = self.number.load(Ordering::Acquire);
        if number & DRAFT == 0 { Some((self.engine()?, ResourceId(number & !EMPTY))) } else { None }
    }
}

impl Resource {
    /// The place where its bytes live.
    #[inline]
    pub(super) fn place(&self) -> Place {
        match self.kind {
            ResourceKind::Storage { place, .. } => place,
            ResourceKind::Var => Place::Host,
        }
    }

    /// Tells the engine that the last handle is gone, and then makes the resource belong to no engine.
    #[inline]
    pub(super) fn end(&mut self) {
        let number = self.number.load(Ordering::Acquire);
        match self.engine() {
            Some(engine) if number & (DRAFT | EMPTY) == 0 => engine.get().release(ResourceId(number)),
            Some(engine) if number & DRAFT == 0 => release_unwritten(engine, ResourceId(number & !EMPTY)),
            _ => {}
        }
        self.number = AtomicU32::new(NO_NUMBER);
        (self.engine, self.claimed) = (None, OnceLock::new());
    }
}

#[cold]
fn release_unwritten(engine: EngineRef, id: ResourceId) {
    engine.get().release_unwritten(id);
}

impl Drop for Resource {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        match (self.kind, &self.version) {
            (ResourceKind::Storage { place, bytes, .. }, _) => write!(f, "Storage({bytes} bytes on {place}, {state})"),
            (ResourceKind::Var, None) => write!(f, "Var({state})"),
            (ResourceKind::Var, Some(version)) => write!(f, "Var({state}, version {})", version.get()),
        }
    }
}
