//! Tensors and variables: handles on what instructions read and write.
//!
//! A tensor is a view (dtype, shape, strides) of a storage; views share their storage, and order is kept per storage.
//! A [`Var`] is the same without bytes: a token for anything outside the engine. Both are cheap handles, and dropping
//! the last one lets the engine reuse the memory, ordered after everything submitted before.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use ref_cast::{RefCastCustom, ref_cast_custom};
use streamvm_ep::{Access, Counted, DType, Footprint, Kept, Layout, MemoryKind, Shape, ShapeError};

use crate::counted::counted;
use crate::engine::{EngineRef, ResourceId};
use crate::{BuildError, Place, Use};

/// What a dependence is kept for: the storage of tensors, or a variable.
///
/// It belongs to the engine that it was made for, or to the first that takes a list with it, and has a number there once a
/// list that writes it was taken.
pub struct Resource {
    kind: ResourceKind,
    /// Whose it is, if that was known when it was made.
    engine: Option<EngineRef>,
    /// Who has claimed it since, if not.
    claimed: OnceLock<EngineRef>,
    /// Its number in the engine with what is said of it, or [`NO_NUMBER`]. Written under the engine's submission lock, or
    /// while nobody else has a handle.
    number: AtomicU32,
    /// Of a variable that counts, how many of its writes have passed.
    version: Option<Version>,
}

/// No engine has given a number yet.
const NO_NUMBER: u32 = u32::MAX;

/// Said of a number: the list that creates the resource may still be refused.
const DRAFT: u32 = 1 << 31;

/// Said of a number: nothing was written there yet, or nothing is there any more.
const EMPTY: u32 = 1 << 30;

/// What a resource holds.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ResourceKind {
    /// Bytes in memory.
    Storage {
        /// Where they live.
        place: Place,
        /// Which memory of that place.
        memory: MemoryKind,
        /// How many; 0 has a dependence and no block.
        bytes: usize,
    },
    /// Nothing: the order alone.
    Var,
}

/// How many writes of a variable have passed without a failure. Clones are the same number.
#[derive(Clone, Debug, Default)]
pub struct Version(Arc<AtomicU64>);

impl Version {
    /// The number now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// One write more has passed. For engines, before they publish that it has.
    pub fn advance(&self) {
        // Writes of one variable come one after the other, so nobody else does this meanwhile.
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Whether two are the same number.
    pub fn is(&self, other: &Version) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A resource belongs to another engine.
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub struct Foreign;

impl Resource {
    /// One of whichever engine gets it first.
    const fn new(kind: ResourceKind) -> Resource {
        Resource { kind, engine: None, claimed: OnceLock::new(), number: AtomicU32::new(NO_NUMBER), version: None }
    }

    /// Its version, if it counts.
    pub fn version(&self) -> Option<&Version> {
        self.version.as_ref()
    }

    /// What it holds.
    pub fn kind(&self) -> ResourceKind {
        self.kind
    }

    /// Its number in `engine`, be it a draft; `None` while it has none.
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

    /// Its number in `engine`, if something was written there and is there still; `None` says nothing.
    #[inline]
    pub fn written_in(&self, engine: EngineRef) -> Option<ResourceId> {
        let number = self.number.load(Ordering::Relaxed);
        let written = number & (DRAFT | EMPTY) == 0 && self.is_of(engine);
        written.then_some(ResourceId(number))
    }

    /// Makes it one of `engine`, if it is nobody's yet.
    ///
    /// # Errors
    /// [`Foreign`] when it belongs to another engine.
    pub fn claim(&self, engine: EngineRef) -> Result<(), Foreign> {
        let owner = self.engine.unwrap_or_else(|| *self.claimed.get_or_init(|| engine));
        if owner.is(engine) { Ok(()) } else { Err(Foreign) }
    }

    /// Whether it is one of `engine`.
    #[inline]
    pub fn is_of(&self, engine: EngineRef) -> bool {
        let is = |owner: &EngineRef| owner.is(engine);
        // A look at each, as both at once would be copied.
        self.engine.as_ref().is_some_and(is) || self.claimed.get().is_some_and(is)
    }

    /// Gives it a number while the list at hand is being submitted, until [`Resource::keep`] or [`Resource::forget`]. Of a
    /// draft [`Resource::written_in`] says nothing.
    ///
    /// This and the three below are for `engine`, under its submission lock or while nobody else has a handle. They do
    /// nothing for another engine: what a handle says is trusted, and only an engine has the address of itself.
    pub fn draft(&self, engine: EngineRef, id: ResourceId) {
        self.say(engine, id.0 | DRAFT | EMPTY, Ordering::Relaxed);
    }

    /// Gives it its number for good, with whether something was written there and is there still: from now on its last
    /// drop is told to the engine.
    pub fn keep(&self, engine: EngineRef, id: ResourceId, written: bool) {
        debug_assert!(id.0 < EMPTY, "an engine has fewer than 2^30 resources");
        self.say(engine, if written { id.0 } else { id.0 | EMPTY }, Ordering::Release);
    }

    /// Notes whether something was written there and is there still. A draft is not changed.
    pub fn note_written(&self, engine: EngineRef, written: bool) {
        let number = self.number.load(Ordering::Relaxed);
        if number & DRAFT == 0 {
            self.say(engine, if written { number & !EMPTY } else { number | EMPTY }, Ordering::Release);
        }
    }

    /// Takes a draft back: its list was refused.
    pub fn forget(&self, engine: EngineRef) {
        self.say(engine, NO_NUMBER, Ordering::Relaxed);
    }

    fn say(&self, engine: EngineRef, number: u32, ordering: Ordering) {
        if self.is_of(engine) {
            self.number.store(number, ordering);
        }
    }

    /// How far it is, in words for people: what was submitted counts, whether it has passed or not.
    fn state(&self) -> &'static str {
        match self.number.load(Ordering::Relaxed) {
            NO_NUMBER => "not submitted",
            number if number & DRAFT != 0 => "being submitted",
            number if number & EMPTY != 0 => "not written",
            _ => "written",
        }
    }

    /// Whose it is, if it is anybody's.
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
    /// Where its bytes live.
    #[inline]
    fn place(&self) -> Place {
        match self.kind {
            ResourceKind::Storage { place, .. } => place,
            ResourceKind::Var => Place::Host,
        }
    }

    /// Tells its engine that the last handle is gone, and belongs to none any more.
    #[inline]
    fn end(&mut self) {
        if let Some((engine, id)) = self.bound() {
            engine.get().release(id);
        }
        self.number = AtomicU32::new(NO_NUMBER);
        (self.engine, self.claimed) = (None, OnceLock::new());
    }
}

impl Drop for Resource {
    fn drop(&mut self) {
        self.end();
    }
}

/// A handle on a view of a storage. `Clone` is cheap; `Send + Sync`.
///
/// Making views ([`Tensor::permute`], [`Tensor::slice`], …) queues no work. A tensor made by a builder has no memory
/// until its list is submitted.
#[derive(Clone, RefCastCustom)]
#[repr(transparent)]
pub struct Tensor(Counted<TensorInner>);

/// What a tensor is.
pub struct TensorInner {
    dtype: DType,
    layout: Layout,
    backing: Backing,
}

impl TensorInner {
    /// A scalar without memory.
    pub(crate) const fn blank() -> TensorInner {
        TensorInner {
            dtype: DType::U8,
            layout: Layout::SCALAR,
            backing: Backing::Own(Resource::new(ResourceKind::Var)),
        }
    }

    /// Ends what it was, as its drop would: it has no resource any more, and keeps nothing alive.
    #[inline]
    pub(crate) fn end(&mut self) {
        match &mut self.backing {
            Backing::Own(resource) => resource.end(),
            Backing::View(_) => self.backing = Backing::Own(Resource::new(ResourceKind::Var)),
        }
    }
}

enum Backing {
    Own(Resource),
    /// Always a tensor that owns: views of views point at the owner.
    View(Tensor),
}

impl Tensor {
    /// A tensor of its own storage, without memory until an engine runs a list that writes it.
    pub fn unbound(place: Place, memory: MemoryKind, dtype: DType, shape: Shape) -> Tensor {
        Tensor::unbound_of(None, place, memory, dtype, &shape)
    }

    /// [`Tensor::unbound`], of an engine that is known already.
    pub(crate) fn unbound_of(
        engine: Option<EngineRef>,
        place: Place,
        memory: MemoryKind,
        dtype: DType,
        shape: &Shape,
    ) -> Tensor {
        Tensor(counted(|TensorInner { dtype: own, layout, backing }| {
            *own = dtype;
            layout.set_contiguous(shape);
            if let Backing::Own(resource) = backing {
                let bytes = shape.elements() * dtype.size();
                (resource.kind, resource.engine) = (ResourceKind::Storage { place, memory, bytes }, engine);
            }
        }))
    }

    /// A view of this tensor's storage under another layout of the same dtype.
    ///
    /// # Errors
    /// The layout reaches past the storage.
    pub fn view(&self, layout: Layout) -> Result<Tensor, BuildError> {
        let elements = self.storage_bytes() / self.dtype().size();
        if layout.span_elements().end > elements {
            return Err(BuildError::PastStorage { shape: *layout.shape(), elements });
        }
        Ok(self.view_of(layout))
    }

    fn view_of(&self, layout: Layout) -> Tensor {
        let owner = match &self.0.backing {
            Backing::Own(_) => self.clone(),
            Backing::View(owner) => owner.clone(),
        };
        Tensor(counted(|view| *view = TensorInner { dtype: self.0.dtype, layout, backing: Backing::View(owner) }))
    }

    /// The element type.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        *self.0.layout.shape()
    }

    /// Shape, strides and offset, in elements.
    #[inline]
    pub fn layout(&self) -> &Layout {
        &self.0.layout
    }

    /// Where the bytes live.
    #[inline]
    pub fn place(&self) -> Place {
        self.resource().place()
    }

    /// Which memory of its place holds the bytes.
    pub fn memory(&self) -> MemoryKind {
        match self.resource().kind {
            ResourceKind::Storage { memory, .. } => memory,
            ResourceKind::Var => MemoryKind::Pageable,
        }
    }

    /// The size of the whole storage in bytes, of which this tensor may view a part.
    #[inline]
    pub fn storage_bytes(&self) -> usize {
        match self.resource().kind {
            ResourceKind::Storage { bytes, .. } => bytes,
            ResourceKind::Var => 0,
        }
    }

    /// Whether a write through this tensor covers every byte of the storage.
    #[inline]
    pub fn covers_storage(&self) -> bool {
        // The storage of one that owns it was made for its elements.
        !self.is_view() || self.view_covers_storage()
    }

    #[inline(never)]
    fn view_covers_storage(&self) -> bool {
        let layout = &self.0.layout;
        layout.offset() == 0
            && layout.is_contiguous()
            && layout.elements() * self.0.dtype.size() == self.storage_bytes()
    }

    /// The part of its storage that this tensor views, in elements; `None` for all of it.
    #[inline]
    pub fn part_of_storage(&self) -> Option<Footprint> {
        if self.is_view() { self.part_of_view() } else { None }
    }

    #[inline(never)]
    fn part_of_view(&self) -> Option<Footprint> {
        let elements = self.storage_bytes() / self.dtype().size();
        let part = Footprint::of(&self.0.layout);
        (!part.is_all_of(elements)).then_some(part)
    }

    /// Whether two tensors have an element in common. Exact for views of one storage that slices, permutations and reshapes make:
    /// see [`Footprint::overlaps`].
    pub fn overlaps(&self, other: &Tensor) -> bool {
        self.shares_storage(other) && Footprint::of(&self.0.layout).overlaps(&Footprint::of(&other.0.layout))
    }

    /// Whether two tensors are views of one storage.
    pub fn shares_storage(&self, other: &Tensor) -> bool {
        std::ptr::eq(self.resource(), other.resource())
    }

    /// Whether this tensor is a view rather than the owner of its storage.
    #[inline]
    pub fn is_view(&self) -> bool {
        matches!(self.0.backing, Backing::View(_))
    }

    /// The tensor that owns the storage: itself unless it is a view.
    #[inline]
    pub fn owner(&self) -> &Tensor {
        match &self.0.backing {
            Backing::Own(_) => self,
            Backing::View(owner) => owner,
        }
    }

    /// The storage's resource.
    #[inline]
    pub fn resource(&self) -> &Resource {
        match &self.owner().0.backing {
            Backing::Own(resource) => resource,
            Backing::View(_) => unreachable!("views point at the owner: see view_of"),
        }
    }

    /// A view with its axes in another order. `axes` names each axis once.
    ///
    /// # Errors
    /// `axes` is not a permutation of the axes.
    pub fn permute(&self, axes: &[usize]) -> Result<Tensor, ShapeError> {
        Ok(self.view_of(self.0.layout.permute(axes)?))
    }

    /// A view of `range` of one axis.
    ///
    /// # Errors
    /// No such axis, or the range is reversed or past its end.
    pub fn slice(&self, axis: usize, range: Range<usize>) -> Result<Tensor, ShapeError> {
        Ok(self.view_of(self.0.layout.slice(axis, range)?))
    }

    /// A view that repeats axes of length 1 without copying. It can be read, not written.
    ///
    /// # Errors
    /// The shapes do not broadcast.
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<Tensor, ShapeError> {
        Ok(self.view_of(self.0.layout.broadcast_to(&Shape::new(shape)?)?))
    }

    /// A view with the same elements in another shape; `None` where the strides do not allow it without a copy.
    ///
    /// # Errors
    /// The number of elements differs.
    pub fn try_reshape(&self, shape: &[usize]) -> Result<Option<Tensor>, ShapeError> {
        Ok(self.0.layout.reshape(Shape::new(shape)?)?.map(|layout| self.view_of(layout)))
    }

    /// Declares that an instruction reads this tensor.
    pub fn read(&self) -> Use<'_> {
        Use::tensor(self, Access::Read)
    }

    /// Declares that an instruction overwrites all of this tensor.
    pub fn write(&self) -> Use<'_> {
        Use::tensor(self, Access::Write)
    }

    /// Declares that an instruction reads and writes this tensor.
    pub fn update(&self) -> Use<'_> {
        Use::tensor(self, Access::ReadWrite)
    }

    /// Declares that an instruction overwrites all of this tensor, a part of its storage, and that those behind it in the same
    /// list overwrite the rest: what was there before counts for nothing.
    pub(crate) fn begin(&self) -> Use<'_> {
        Use::begin(self)
    }
}

impl Tensor {
    #[ref_cast_custom]
    fn of(reference: &Counted<TensorInner>) -> &Tensor;

    /// The reference that it is.
    #[inline]
    pub(crate) fn reference(&self) -> &Counted<TensorInner> {
        &self.0
    }
}

impl Borrow<Tensor> for Kept<TensorInner> {
    #[inline]
    fn borrow(&self) -> &Tensor {
        Tensor::of(self)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for TensorInner {
    /// Element type, shape, place, and how far it is: `Tensor(f32[2,3] on cpu:0, written)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (resource, view) = match &self.backing {
            Backing::Own(resource) => (resource, ""),
            Backing::View(owner) => (owner.resource(), ", a view"),
        };
        let (dtype, shape, state) = (self.dtype, self.layout.shape(), resource.state());
        write!(f, "Tensor({dtype}{shape} on {}{view}, {state})", resource.place())
    }
}

/// A token for anything outside the engine (a file, a counter, a model): instructions that declare reads and writes
/// of it run in that order. `Clone` is cheap; `Send + Sync`.
#[derive(Clone, RefCastCustom)]
#[repr(transparent)]
pub struct Var(Counted<Resource>);

impl Var {
    /// A fresh variable. It belongs to the first engine that runs an instruction over it.
    pub fn new() -> Var {
        Var(Counted::new(Resource::new(ResourceKind::Var)))
    }

    /// A fresh variable that counts its writes: see [`Var::version`]. A write of it costs an
    /// instruction more, so others do not count.
    pub fn counted() -> Var {
        let mut resource = Resource::new(ResourceKind::Var);
        resource.version = Some(Version::default());
        Var(Counted::new(resource))
    }

    /// How many instructions that write it have passed without a failure: what was skipped or failed does not count, and one
    /// that declares several writes of it counts once. `None` for a variable that does not [count](Var::counted). Never blocks.
    /// Whoever has waited for a write sees it counted.
    pub fn version(&self) -> Option<u64> {
        self.0.version.as_ref().map(Version::get)
    }

    /// The variable's resource.
    pub fn resource(&self) -> &Resource {
        &self.0
    }

    /// Declares that an instruction reads what the variable stands for.
    pub fn read(&self) -> Use<'_> {
        Use::var(self, Access::Read)
    }

    /// Declares that an instruction overwrites what the variable stands for.
    pub fn write(&self) -> Use<'_> {
        Use::var(self, Access::Write)
    }

    /// Declares that an instruction reads and writes what the variable stands for.
    pub fn update(&self) -> Use<'_> {
        Use::var(self, Access::ReadWrite)
    }
}

impl Var {
    #[ref_cast_custom]
    fn of(reference: &Counted<Resource>) -> &Var;

    /// The reference that it is.
    #[inline]
    pub(crate) fn reference(&self) -> &Counted<Resource> {
        &self.0
    }
}

impl Borrow<Var> for Kept<Resource> {
    #[inline]
    fn borrow(&self) -> &Var {
        Var::of(self)
    }
}

impl Default for Var {
    fn default() -> Self {
        Var::new()
    }
}

impl fmt::Debug for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
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
