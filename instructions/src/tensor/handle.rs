//! Tensors: handles on views of storages.
//!
//! A tensor is a view (dtype, shape, strides) of a storage. Several views may share a storage, and order is kept per storage. A
//! tensor is a cheap handle; dropping the last handle lets the engine reuse the memory, ordered after everything submitted before.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Range;

use ref_cast::{RefCastCustom, ref_cast_custom};
use streamvm_ep::{Access, Counted, DType, DeviceId, Footprint, Layout, MemoryKind, PinnedRef, Shape, ShapeError};

use crate::engine::interface::EngineRef;
use crate::error::build_error::BuildError;
use crate::error::engine_error::Error;
use crate::place::Place;
use crate::tensor::counted::counted;
use crate::tensor::resource::{Resource, ResourceKind};
use crate::tensor::uses::Use;

/// A handle on a view of a storage. `Clone` is cheap; `Send + Sync`.
///
/// Making a view ([`Tensor::permute`], [`Tensor::slice`], …) queues no work. A tensor that was made by a builder has no memory
/// until its list is submitted.
#[derive(Clone, RefCastCustom)]
#[repr(transparent)]
pub struct Tensor(Counted<TensorInner>);

/// The fields of a tensor, which its handles share.
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

    /// Releases what the tensor held, as a drop would: afterwards it has no resource and keeps nothing alive.
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
    /// Always a tensor that owns its storage: a view of a view refers to the owner.
    View(Tensor),
}

impl Tensor {
    /// Returns a tensor with its own storage, which has no memory until an engine runs a list that writes it.
    pub fn unbound(place: Place, memory: MemoryKind, dtype: DType, shape: Shape) -> Tensor {
        Tensor::unbound_of(None, place, memory, dtype, &shape)
    }

    /// [`Tensor::unbound`] for an engine that is already known: any other one refuses the tensor.
    pub fn unbound_of(
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

    /// Returns a view of this tensor's storage with another layout of the same dtype.
    ///
    /// # Errors
    /// The layout extends past the end of the storage.
    #[track_caller]
    pub fn view(&self, layout: Layout) -> Result<Tensor, Error> {
        let elements = self.storage_bytes() / self.dtype().size();
        if layout.span_elements().end > elements {
            return Err(BuildError::PastStorage { shape: Box::new(*layout.shape()), elements }.into());
        }
        Ok(self.view_of(layout))
    }

    /// The view with the layout that `call` has given.
    #[track_caller]
    fn viewed(&self, call: &'static str, layout: Result<Layout, ShapeError>) -> Result<Tensor, Error> {
        Ok(self.view_of(in_call(call, layout)?))
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

    /// The sizes of its axes, as `shape().dims()`.
    pub fn dims(&self) -> &[usize] {
        self.0.layout.shape().dims()
    }

    /// The number of its axes; 0 of a scalar.
    pub fn rank(&self) -> usize {
        self.dims().len()
    }

    /// The number of its elements; 1 of a scalar.
    pub fn numel(&self) -> usize {
        self.0.layout.elements()
    }

    /// The device where the bytes live; `None` in host memory.
    pub fn device(&self) -> Option<DeviceId> {
        self.place().device()
    }

    /// Shape, strides and offset, in elements.
    #[inline]
    pub fn layout(&self) -> &Layout {
        &self.0.layout
    }

    /// The place where the bytes live.
    #[inline]
    pub fn place(&self) -> Place {
        self.resource().place()
    }

    /// The kind of memory at that place that holds the bytes.
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
        // A tensor that owns its storage covers it: the storage was made for exactly its elements.
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

    /// Whether two tensors share an element. Exact for views of one storage that slices, permutations and reshapes make: see
    /// [`Footprint::overlaps`].
    #[inline]
    pub fn overlaps(&self, other: &Tensor) -> bool {
        self.shares_storage(other) && self.elements_overlap(other)
    }

    #[inline(never)]
    fn elements_overlap(&self, other: &Tensor) -> bool {
        Footprint::of(&self.0.layout).overlaps(&Footprint::of(&other.0.layout))
    }

    /// Whether two tensors are views of one storage.
    #[inline]
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

    /// The resource of the storage.
    #[inline]
    pub fn resource(&self) -> &Resource {
        match &self.owner().0.backing {
            Backing::Own(resource) => resource,
            Backing::View(_) => unreachable!("views point at the owner: see view_of"),
        }
    }

    /// Returns a view with its axes in another order. `axes` names each axis once.
    ///
    /// # Errors
    /// `axes` is not a permutation of the axes.
    #[track_caller]
    pub fn permute(&self, axes: &[usize]) -> Result<Tensor, Error> {
        self.viewed("permute", self.0.layout.permute(axes))
    }

    /// Returns a view with two axes exchanged.
    ///
    /// # Errors
    /// There is no such axis.
    #[track_caller]
    pub fn transpose(&self, first: usize, second: usize) -> Result<Tensor, Error> {
        self.viewed("transpose", self.0.layout.transpose(first, second))
    }

    /// Returns a view with the last two axes exchanged: of a matrix, its transpose.
    ///
    /// # Errors
    /// It has fewer than two axes.
    #[track_caller]
    pub fn t(&self) -> Result<Tensor, Error> {
        let rank = self.rank();
        self.viewed("t", self.0.layout.transpose(rank.saturating_sub(2), rank.saturating_sub(1).max(1)))
    }

    /// Returns a view without `axis`, which has size 1.
    ///
    /// # Errors
    /// There is no such axis, or its size is not 1.
    #[track_caller]
    pub fn squeeze(&self, axis: usize) -> Result<Tensor, Error> {
        self.viewed("squeeze", self.0.layout.squeeze(axis))
    }

    /// Returns a view with a new axis of size 1 before `axis`, or after the last axis if `axis` is the number of axes.
    ///
    /// # Errors
    /// `axis` is larger than the number of axes, or the tensor already has the most axes.
    #[track_caller]
    pub fn unsqueeze(&self, axis: usize) -> Result<Tensor, Error> {
        self.viewed("unsqueeze", self.0.layout.unsqueeze(axis))
    }

    /// Returns a view of `range` of one axis.
    ///
    /// # Errors
    /// There is no such axis, or the range is reversed or extends past the axis.
    #[track_caller]
    pub fn slice(&self, axis: usize, range: Range<usize>) -> Result<Tensor, Error> {
        self.viewed("slice", self.0.layout.slice(axis, range))
    }

    /// Returns views of consecutive parts of one axis, of these sizes.
    ///
    /// # Errors
    /// There is no such axis, or the sizes do not add up to its size.
    #[track_caller]
    pub fn split(&self, sizes: &[usize], axis: usize) -> Result<Vec<Tensor>, Error> {
        let shape = self.shape();
        in_call("split", shape.check_axis(axis))?;
        if sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size)) != Some(shape.dims()[axis]) {
            return in_call("split", Err(ShapeError::Split { sizes: sizes.to_vec(), axis, shape: Box::new(shape) }));
        }
        let mut start = 0;
        let part = |&size: &usize| {
            start += size;
            self.slice(axis, start - size..start)
        };
        sizes.iter().map(part).collect()
    }

    /// Returns as many views of consecutive parts of one axis, whose sizes differ by one at most; the larger ones come first.
    ///
    /// # Errors
    /// There is no such axis, or no parts are asked for.
    #[track_caller]
    pub fn chunk(&self, parts: usize, axis: usize) -> Result<Vec<Tensor>, Error> {
        let shape = self.shape();
        in_call("chunk", shape.check_axis(axis))?;
        if parts == 0 {
            return in_call("chunk", Err(ShapeError::Split { sizes: Vec::new(), axis, shape: Box::new(shape) }));
        }
        let size = shape.dims()[axis];
        let sizes: Vec<usize> = (0..parts).map(|part| size / parts + usize::from(part < size % parts)).collect();
        self.split(&sizes, axis)
    }

    /// Returns a view that repeats axes of length 1 without copying. It can be read, but not written.
    ///
    /// # Errors
    /// The shapes do not broadcast.
    #[track_caller]
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<Tensor, Error> {
        let layout = Shape::new(shape).and_then(|shape| self.0.layout.broadcast_to(&shape));
        self.viewed("broadcast_to", layout)
    }

    /// Returns a view of the same elements in another shape; `None` where the strides allow it only with a copy.
    ///
    /// # Errors
    /// The number of elements differs.
    #[track_caller]
    pub fn try_reshape(&self, shape: &[usize]) -> Result<Option<Tensor>, Error> {
        let layout = Shape::new(shape).and_then(|shape| self.0.layout.reshape(shape));
        Ok(in_call("reshape", layout)?.map(|layout| self.view_of(layout)))
    }

    /// Its dtype and shape, such as `f32[2,5]`, for messages.
    pub(crate) fn dtype_and_shape(&self) -> String {
        format!("{}{}", self.dtype(), self.layout().shape())
    }

    /// Its dtype, shape and place in words, for messages.
    #[doc(hidden)]
    pub fn described(&self) -> String {
        format!("the tensor {} on {}", self.dtype_and_shape(), self.place())
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

    /// Declares that an instruction overwrites all of this tensor, which is a part of its storage, and that later instructions of
    /// the same list overwrite the rest. So the old value of the storage is not kept, and a failed storage heals.
    pub(crate) fn begin(&self) -> Use<'_> {
        Use::begin(self)
    }
}

/// What a shape or layout has said, told of `call` and of the caller.
#[track_caller]
pub(crate) fn in_call<T>(call: &'static str, result: Result<T, ShapeError>) -> Result<T, Error> {
    match result {
        Ok(it) => Ok(it),
        Err(error) => Err(Error::from(error).in_call(call)),
    }
}

impl Tensor {
    #[ref_cast_custom]
    fn of(reference: &Counted<TensorInner>) -> &Tensor;

    /// The counted reference inside the handle.
    #[inline]
    pub(crate) fn reference(&self) -> &Counted<TensorInner> {
        &self.0
    }
}

impl Borrow<Tensor> for PinnedRef<TensorInner> {
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
    /// Element type, shape, place and state: `Tensor(f32[2,3] on cpu:0, write submitted)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (resource, view) = match &self.backing {
            Backing::Own(resource) => (resource, ""),
            Backing::View(owner) => (owner.resource(), ", a view"),
        };
        let (dtype, shape, state) = (self.dtype, self.layout.shape(), resource.state());
        write!(f, "Tensor({dtype}{shape} on {}{view}, {state})", resource.place())
    }
}
