//! Operands: raw views of tensor memory, on which kernels and closures work.
//!
//! An [`Operand`] is a pointer, a dtype, a layout and an access. The engine above guarantees ([`Operand::new`]) that the memory is alive
//! and that no access races with it, for as long as the operand's lifetime says. This module and the kernels check what one call can see
//! by itself: dtype, contiguity, write access, alignment and overlap.
//!
//! # Lifetimes
//!
//! Safe code cannot keep an operand for longer than its memory is guaranteed:
//!
//! * A kernel ([`KernelFn`](crate::KernelFn)) and a closure ([`FnContext`](crate::FnContext)) take operands of *any* lifetime. So they
//!   cannot store an operand, and they cannot queue it.
//! * A [`Stream`](crate::Stream) may run a command later than the call that queues it. Its methods take `Operand<'static>`: the maker of
//!   the operand guarantees the memory until the command has completed. A stream that queues commands makes
//!   [duplicates](Operand::duplicate), which is unsafe code, as is the implementation of a stream.
//!
//! Kernels use [`Operand::ptr`], so an in-place call never makes a `&` and a `&mut` to the same bytes. Closures get slices through
//! [`FnContext`](crate::FnContext).
//!
//! Invariant: `span` is the address range of the bytes that the view can touch; it is empty for a view without elements.

use std::marker::PhantomData;
use std::ops::Range;

use crate::errors::error::Error;
use crate::tensor::dtype::{DType, Element};
use crate::tensor::footprint::Footprint;
use crate::tensor::layout::Layout;
use crate::tensor::shape::Shape;

/// How a call uses an operand.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads it.
    Read,
    /// Writes it without reading it.
    Write,
    /// Reads and writes it.
    ReadWrite,
}

impl Access {
    /// Does the call write the operand?
    pub const fn writes(self) -> bool {
        matches!(self, Access::Write | Access::ReadWrite)
    }

    /// Does the call read the operand?
    pub const fn reads(self) -> bool {
        matches!(self, Access::Read | Access::ReadWrite)
    }
}

/// A raw view of tensor memory, for one call. Neither `Clone` nor `Copy`, because each access is granted once. The memory is guaranteed for
/// `'m`; an `Operand<'static>` is for a [`Stream`](crate::Stream), whose commands may run later than the call that queues them.
///
/// A kernel cannot keep an operand:
///
/// ```compile_fail,E0521
/// use std::sync::Mutex;
/// use streamvm_ep::{KernelCall, KernelError, KernelFn, Operand};
///
/// static KEPT: Mutex<Option<Operand<'static>>> = Mutex::new(None);
///
/// fn keeps(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
///     *KEPT.lock().unwrap() = Some(std::mem::replace(&mut call.operands[0], Operand::blank()));
///     Ok(())
/// }
/// ```
///
/// Nor can a kernel hand an operand to a stream, which may queue it:
///
/// ```compile_fail,E0521
/// use streamvm_ep::{Error, KernelCall, Scalar, Stream};
///
/// fn queues(call: &mut KernelCall<'_, '_>, stream: &mut dyn Stream) -> Result<(), Error> {
///     stream.fill(&mut call.operands[0], Scalar::from(1.0f32))
/// }
/// ```
///
/// Nor can a function keep the slices that it gets:
///
/// ```compile_fail,E0521
/// use std::sync::Mutex;
/// use streamvm_ep::{FnContext, InlineFn};
///
/// static KEPT: Mutex<&[f32]> = Mutex::new(&[]);
///
/// let function = InlineFn::new(|context: &mut FnContext<'_>| {
///     *KEPT.lock().unwrap() = context.reads.get::<f32>(0)?;
///     Ok(())
/// });
/// ```
///
/// The fields are ordered so that a view with one or two axes uses two of the three cache lines; the third is not touched.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Operand<'m> {
    ptr: *mut u8,
    span: Range<usize>,
    dtype: DType,
    access: Access,
    /// Whether another operand of the same call overlaps this one and one of the two is written. Then no slice of it may be made.
    shared: bool,
    /// Whether the elements are in row-major order without gaps: `layout.is_contiguous()`, computed once.
    contiguous: bool,
    layout: Layout,
    memory: PhantomData<&'m [u8]>,
}

/// A view of storage whose address is not known yet: all else of an [`Operand`] but its layout.
#[derive(Debug)]
pub struct PreparedOperand {
    /// Bytes from the start of the storage to the first element.
    first: usize,
    /// Bytes from the first to after the last element.
    bytes: usize,
    dtype: DType,
    access: Access,
    shared: bool,
    contiguous: bool,
}

impl PreparedOperand {
    /// A view of the storage that begins `offset` bytes after the address that [`Operand::set_prepared`] gets. One that is `shared` gives no slices.
    pub fn new(offset: usize, dtype: DType, layout: &Layout, (access, shared): (Access, bool)) -> PreparedOperand {
        let first = offset.wrapping_add(layout.offset() * dtype.size());
        let bytes = layout.span_elements().len() * dtype.size();
        PreparedOperand { first, bytes, dtype, access, shared, contiguous: layout.is_contiguous() }
    }
}

// SAFETY: an operand is used only by the call that it was made for. The caller of `Operand::new` guarantees that nothing races with it,
// on any thread.
unsafe impl Send for Operand<'_> {}
// SAFETY: a shared operand gives its address, layout and, for reading, its elements; writing through the address is unsafe code, which
// answers for races.
unsafe impl Sync for Operand<'_> {}

impl<'m> Operand<'m> {
    /// A view of the storage that starts at `base`; the layout's offset counts from `base`.
    ///
    /// # Safety
    ///
    /// For `'m`; of an operand that is given to a [`Stream`](crate::Stream), until its commands that use the operand have completed; and
    /// also once an operand of a longer lifetime was made of this one ([`duplicate`](Operand::duplicate)):
    ///
    /// * The bytes of `layout.span_elements()` elements of `dtype` from `base` belong to one allocation and are initialised. A device
    ///   that gets the operand may read them and, unless `access` is [`Access::Read`], write them.
    /// * The host can access these bytes at their address, or only streams of a device that can get the operand.
    /// * If it reads, nothing writes these bytes at the same time; if it writes, nothing else accesses them. Other operands of the same
    ///   call are excepted.
    /// * Operands that overlap each other, one of them written, are used only together, in one [`Stream`](crate::Stream) or
    ///   [`FnContext`](crate::FnContext) call, which checks them.
    pub unsafe fn new(base: *mut u8, dtype: DType, layout: Layout, access: Access) -> Operand<'m> {
        let mut operand = Operand::blank();
        // SAFETY: the caller has the same duties as the callee's.
        unsafe { operand.set(base, dtype, &layout, access) };
        operand
    }

    /// A view without elements, to be overwritten by [`set`](Operand::set).
    pub fn blank() -> Operand<'m> {
        Operand {
            ptr: std::ptr::without_provenance_mut(64),
            span: 0..0,
            dtype: DType::U8,
            access: Access::Read,
            shared: false,
            contiguous: true,
            layout: Layout::contiguous(Shape::EMPTY),
            memory: PhantomData,
        }
    }

    /// Makes this a view of the storage that starts at `base`, as [`new`](Operand::new) does, but in place: it writes only as many sizes
    /// and strides as the layout has axes.
    ///
    /// # Safety
    ///
    /// * The duties of [`new`](Operand::new).
    #[inline]
    pub unsafe fn set(&mut self, base: *mut u8, dtype: DType, layout: &Layout, access: Access) {
        let elements = layout.span_elements();
        let start = base.addr().wrapping_add(elements.start * dtype.size());
        // Wrapping, because the base of a view without elements can be any address.
        self.ptr = base.wrapping_add(layout.offset() * dtype.size());
        self.span = start..start.wrapping_add(elements.len() * dtype.size());
        self.dtype = dtype;
        self.access = access;
        self.shared = false;
        self.contiguous = layout.is_contiguous();
        self.layout.set(layout);
    }

    /// Makes this the view `prepared`, which was made of `layout`, of the storage that starts at `base`. Cheaper than [`set`](Operand::set), because what follows from
    /// the layout is known.
    ///
    /// # Safety
    ///
    /// * The duties of [`new`](Operand::new).
    #[inline]
    pub unsafe fn set_prepared(&mut self, prepared: &PreparedOperand, layout: &Layout, base: *mut u8) {
        self.ptr = base.wrapping_add(prepared.first);
        // Strides are not negative, so a view begins at its first element.
        let start = self.ptr.addr();
        self.span = start..start.wrapping_add(prepared.bytes);
        (self.dtype, self.access, self.shared, self.contiguous) =
            (prepared.dtype, prepared.access, prepared.shared, prepared.contiguous);
        self.layout.set(layout);
    }

    /// Makes this the same view of the storage that starts at `base`. Whether another operand of its call overlaps it stays as it was: the operands of a call move
    /// together.
    ///
    /// # Safety
    ///
    /// * The duties of [`new`](Operand::new).
    #[inline]
    pub unsafe fn move_to(&mut self, base: *mut u8) {
        let offset = self.layout.offset() * self.dtype.size();
        self.ptr = base.wrapping_add(offset);
        // Strides are not negative, so a view begins at its first element.
        let start = self.ptr.addr();
        self.span = start..start.wrapping_add(self.span.len());
    }

    /// Makes this a row-major view without gaps of the storage that starts at `base`. Its sizes are the first `rank` of `dims`. Same as
    /// [`set`](Operand::set) with [`Layout::contiguous`].
    ///
    /// # Safety
    ///
    /// * The duties of [`new`](Operand::new).
    /// * The first `rank` entries of `dims` are the sizes of a valid [`Shape`], and `rank` is at most `N`.
    #[inline]
    pub unsafe fn set_contiguous<const N: usize>(
        &mut self,
        base: *mut u8,
        dtype: DType,
        (dims, rank): (&[usize; N], u8),
        access: Access,
    ) {
        let bytes = self.layout.set_row_major(dims, rank) * dtype.size();
        let start = base.addr();
        self.ptr = base;
        self.span = start..start.wrapping_add(bytes);
        self.dtype = dtype;
        self.access = access;
        self.shared = false;
        self.contiguous = true;
    }

    /// The dtype.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape, strides, and the offset that [`ptr`](Operand::ptr) already includes.
    #[inline]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// How the call uses the operand.
    #[inline]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Address of the first element of the view. The host may dereference it only if the device is host-accessible.
    #[inline]
    pub fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// The elements, in row-major order. As `u8` it also gives the bytes of [`DType::Bool`].
    ///
    /// # Errors
    ///
    /// [`Error::WrongDType`], [`Error::NotContiguous`], [`Error::Misaligned`],
    /// [`Error::SharedOperand`] if another operand of the call overlaps it and one of them writes;
    /// [`Error::InvalidBool`] for `bool` if a byte is neither 0 nor 1.
    pub fn slice<T: Element>(&self) -> Result<&[T], Error> {
        let as_bytes = T::DTYPE == DType::U8 && self.dtype == DType::Bool;
        self.check_slice(T::DTYPE, if as_bytes { DType::U8 } else { self.dtype })?;
        if T::DTYPE == DType::Bool {
            let bytes = self.bytes()?;
            if let Some(index) = bytes.iter().position(|&byte| byte > 1) {
                return Err(Error::InvalidBool { index, byte: bytes[index] });
            }
        }
        let elements = self.layout.elements();
        if elements == 0 {
            return Ok(&[]);
        }
        // SAFETY: `new` guarantees readable, initialised memory over the span, which for a contiguous layout is `elements` elements from
        // `ptr`. Alignment and dtype were checked, and the bits are valid: of `bool`, every byte was checked; of the other elements, every
        // bit pattern is. Nothing writes the bytes while they are borrowed, because the operand is not shared.
        Ok(unsafe { std::slice::from_raw_parts(self.ptr.cast::<T>(), elements) })
    }

    /// The elements, in row-major order, for writing. Bytes of [`DType::Bool`] are `bool` and never `u8` here, because they must stay 0 or
    /// 1. Those that are neither, from an earlier use of the memory, are first set to 1.
    ///
    /// # Errors
    ///
    /// Those of [`slice`](Operand::slice) but the last, and [`Error::NotWritable`].
    pub fn slice_mut<T: Element>(&mut self) -> Result<&mut [T], Error> {
        self.check_writable()?;
        self.check_slice(T::DTYPE, self.dtype)?;
        let elements = self.layout.elements();
        if elements == 0 {
            return Ok(&mut []);
        }
        if T::DTYPE == DType::Bool {
            // SAFETY: as below, for elements of one byte, of which every bit pattern is valid.
            let bytes = unsafe { std::slice::from_raw_parts_mut(self.ptr, elements) };
            bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        // SAFETY: as in `slice`; of `bool`, every byte was made valid. The access writes, and this operand is the only way to the bytes,
        // because it is borrowed mutably and is not shared.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.ptr.cast::<T>(), elements) })
    }

    /// The bytes of the elements, row-major, in the machine's byte order.
    ///
    /// # Errors
    ///
    /// [`Error::NotContiguous`], [`Error::SharedOperand`].
    pub fn bytes(&self) -> Result<&[u8], Error> {
        self.check_contiguous()?;
        let bytes = self.layout.elements() * self.dtype.size();
        if bytes == 0 {
            return Ok(&[]);
        }
        // SAFETY: `new` guarantees readable, initialised memory over the span, which for a contiguous layout is `bytes` bytes from `ptr`.
        // Nothing writes the bytes while they are borrowed, because the operand is not shared.
        Ok(unsafe { std::slice::from_raw_parts(self.ptr, bytes) })
    }

    /// Whether the elements are in row-major order without gaps.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        self.contiguous
    }

    /// A second copy of the view, of any lifetime. A stream that queues its commands keeps the operands of a command in this way.
    ///
    /// # Safety
    ///
    /// * Of the copy and the original, only one is used as long as the copy is used.
    /// * The copy is used only while the maker of the original guarantees its memory: for the lifetime of the original, or, of an
    ///   operand that a stream got, until the command that it was given for has completed.
    pub unsafe fn duplicate<'n>(&self) -> Operand<'n> {
        Operand { span: self.span.clone(), memory: PhantomData, ..*self }
    }

    /// Whether the first element is at a multiple of the element size. If it is, all elements are.
    #[inline]
    pub fn is_aligned(&self) -> bool {
        self.ptr.addr() & (self.dtype.size() - 1) == 0 || self.span.is_empty()
    }

    /// Whether the two views have a byte in common. Exact for views of one storage: see [`Footprint::overlaps`].
    #[inline]
    pub fn overlaps(&self, other: &Operand<'_>) -> bool {
        // Most pairs of operands have disjoint spans, so that is checked first. An empty span overlaps none.
        let spans_overlap = self.span.start.max(other.span.start) < self.span.end.min(other.span.end);
        spans_overlap && self.footprints_overlap(other)
    }

    #[inline(never)]
    fn footprints_overlap(&self, other: &Operand<'_>) -> bool {
        (self.contiguous && other.contiguous) || self.footprint().overlaps(&other.footprint())
    }

    /// The bytes of the view, as addresses.
    fn footprint(&self) -> Footprint {
        let size = self.dtype.size();
        Footprint::scaled(&self.layout, self.ptr.addr().wrapping_sub(self.layout.offset() * size), size)
    }

    /// Whether both are exactly the same view: elements of the same size at the same addresses in the same order. Then an elementwise
    /// kernel may read one and write the other.
    #[inline]
    pub fn same_view(&self, other: &Operand<'_>) -> bool {
        self.ptr == other.ptr && self.dtype.size() == other.dtype.size() && self.layout.same_steps(&other.layout)
    }

    /// Whether the operand is [shared](Operand::set_shared).
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// Marks the operand as shared: it gives no slices from now on.
    #[inline]
    pub fn set_shared(&mut self) {
        self.shared = true;
    }

    /// Makes the operand give slices again, after a call for which it was [shared](Operand::set_shared).
    ///
    /// # Safety
    ///
    /// * As long as slices of it exist, no other operand is used that overlaps it.
    pub unsafe fn set_alone(&mut self) {
        self.shared = false;
    }

    /// Moves the view to another address, at which the device reaches the same memory. If the address changes, the operand gives no
    /// slices from now on.
    ///
    /// # Safety
    ///
    /// * The device that gets the operand reaches the memory of the view at `address`.
    pub unsafe fn set_address(&mut self, address: usize) {
        let by = address.wrapping_sub(self.ptr.addr());
        if by != 0 {
            self.shared = true;
            self.ptr = self.ptr.wrapping_add(by);
            self.span = self.span.start.wrapping_add(by)..self.span.end.wrapping_add(by);
        }
    }

    /// Returns an error unless the access writes.
    ///
    /// # Errors
    ///
    /// [`Error::NotWritable`].
    #[inline]
    pub fn check_writable(&self) -> Result<(), Error> {
        if self.access.writes() { Ok(()) } else { Err(Error::NotWritable) }
    }

    /// Returns an error unless the elements are at multiples of their size.
    ///
    /// # Errors
    ///
    /// [`Error::Misaligned`].
    #[inline]
    pub fn check_aligned(&self) -> Result<(), Error> {
        if self.is_aligned() { Ok(()) } else { Err(Error::Misaligned { dtype: self.dtype, address: self.ptr.addr() }) }
    }

    fn check_contiguous(&self) -> Result<(), Error> {
        if !self.contiguous {
            return Err(Error::NotContiguous { layout: Box::new(self.layout) });
        }
        if self.shared {
            return Err(Error::SharedOperand);
        }
        Ok(())
    }

    fn check_slice(&self, asked: DType, stored_as: DType) -> Result<(), Error> {
        if asked != stored_as {
            return Err(Error::WrongDType { expected: asked, found: self.dtype });
        }
        self.check_contiguous()?;
        self.check_aligned()
    }
}

#[cfg(test)]
#[path = "operand_tests.rs"]
mod tests;
