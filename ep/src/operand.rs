//! Operands: raw views of tensor memory that kernels and closures work on.
//!
//! An [`Operand`] is a pointer, a dtype, a layout and an access, with no lifetime: the engine above
//! promises ([`Operand::new`]) that the memory is there and that nothing races with it. What one call
//! can see for itself is checked here and in the kernels: dtype, contiguity, write access, alignment
//! and overlap. Kernels go through [`Operand::ptr`], so an in-place call never makes a `&` and a
//! `&mut` to the same bytes; closures get slices through [`FnContext`](crate::FnContext).
//!
//! Invariant: `span` is the address range of the bytes that the view can touch, empty for a view
//! without elements.

use std::ops::Range;

use crate::dtype::{DType, Element};
use crate::error::Error;
use crate::footprint::Footprint;
use crate::layout::Layout;
use crate::shape::Shape;

/// What a call does with an operand.
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

/// A raw view of tensor memory, for one call. Neither `Clone` nor `Copy`: an access is given once.
///
/// What a view of one or two axes has lies in two of its three lines, so that the third stays where it is.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Operand {
    ptr: *mut u8,
    span: Range<usize>,
    dtype: DType,
    access: Access,
    /// Another operand of the same call overlaps this one, and one of the two is written: no slice
    /// of it may be made.
    shared: bool,
    /// Its elements lie in row-major order without gaps: what the layout says, looked at once.
    whole: bool,
    layout: Layout,
}

// SAFETY: an operand is only used by the call it was made for, and the maker promises in
// `Operand::new` that nothing races with it, whichever thread runs the call.
unsafe impl Send for Operand {}

impl Operand {
    /// A view of the storage that starts at `base`; the layout's offset counts from `base`.
    ///
    /// # Safety
    ///
    /// As long as the operand is used, by anyone it is handed to:
    ///
    /// * the bytes of `layout.span_elements()` elements of `dtype` from `base` are allocated in one
    ///   piece and initialised, and may be read and, unless `access` is [`Access::Read`], written,
    ///   by a device that the operand is handed to;
    /// * if it reads, nothing writes these bytes at the same time, and if it writes, nothing touches
    ///   them, except other operands of the same call;
    /// * operands that overlap each other, one of them written, are used only together, through one
    ///   [`Stream`](crate::Stream) or [`FnContext`](crate::FnContext) call, which checks them.
    pub unsafe fn new(base: *mut u8, dtype: DType, layout: Layout, access: Access) -> Operand {
        let mut operand = Operand::blank();
        // SAFETY: the caller's duties are the same.
        unsafe { operand.set(base, dtype, &layout, access) };
        operand
    }

    /// A view without elements: a place for another.
    pub fn blank() -> Operand {
        let (ptr, span) = (std::ptr::without_provenance_mut(64), 0..0);
        let layout = Layout::contiguous(Shape::EMPTY);
        Operand { ptr, span, dtype: DType::U8, access: Access::Read, shared: false, whole: true, layout }
    }

    /// Becomes a view of the storage that starts at `base`, as by [`new`](Operand::new): in place, and without touching
    /// more than the layout has axes.
    ///
    /// # Safety
    ///
    /// * The duties of [`new`](Operand::new).
    #[inline]
    pub unsafe fn set(&mut self, base: *mut u8, dtype: DType, layout: &Layout, access: Access) {
        let elements = layout.span_elements();
        let start = base.addr().wrapping_add(elements.start * dtype.size());
        // Wrapping: a view without elements may lie anywhere.
        self.ptr = base.wrapping_add(layout.offset() * dtype.size());
        self.span = start..start.wrapping_add(elements.len() * dtype.size());
        self.dtype = dtype;
        self.access = access;
        self.shared = false;
        self.whole = layout.is_contiguous();
        self.layout.set(layout);
    }

    /// Becomes a row-major view without gaps of the storage that starts at `base`, with `rank` axes of the first of these sizes: as
    /// by [`set`](Operand::set) with [`Layout::contiguous`].
    ///
    /// # Safety
    ///
    /// * The duties of [`new`](Operand::new).
    /// * `dims` are, up to `rank`, the sizes of a [`Shape`], and `rank` is at most `N`.
    #[inline]
    pub unsafe fn set_whole<const N: usize>(
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
        self.whole = true;
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

    /// What the call does with it.
    #[inline]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Address of the first element of the view.
    #[inline]
    pub fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// The elements, row-major. `u8` also reads the bytes of [`DType::Bool`].
    ///
    /// # Errors
    ///
    /// [`Error::WrongDType`], [`Error::NotContiguous`], [`Error::Misaligned`],
    /// [`Error::SharedOperand`] if another operand of the call overlaps it and one of them writes.
    pub fn slice<T: Element>(&self) -> Result<&[T], Error> {
        let stored_as = match self.dtype {
            DType::Bool => DType::U8,
            dtype => dtype,
        };
        self.check_slice(T::DTYPE, stored_as)?;
        let elements = self.layout.elements();
        if elements == 0 {
            return Ok(&[]);
        }
        // SAFETY: `new` promises readable initialised memory over the span, which for a contiguous
        // layout is `elements` elements from `ptr`; alignment and dtype were checked; every bit
        // pattern is an element; nothing writes it while borrowed, as it is not shared.
        Ok(unsafe { std::slice::from_raw_parts(self.ptr.cast::<T>(), elements) })
    }

    /// The elements, row-major, to write. Bytes of [`DType::Bool`] are not given out as `u8`, as
    /// they must stay 0 or 1: see [`bools_mut`](Operand::bools_mut).
    ///
    /// # Errors
    ///
    /// Those of [`slice`](Operand::slice), and [`Error::NotWritable`].
    pub fn slice_mut<T: Element>(&mut self) -> Result<&mut [T], Error> {
        self.check_writable()?;
        self.check_slice(T::DTYPE, self.dtype)?;
        let elements = self.layout.elements();
        if elements == 0 {
            return Ok(&mut []);
        }
        // SAFETY: as in `slice`; the access is a writing one, and this operand is the only way to
        // the bytes, as it is borrowed mutably and not shared.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.ptr.cast::<T>(), elements) })
    }

    /// The elements of a [`DType::Bool`] operand, row-major.
    ///
    /// # Errors
    ///
    /// Those of [`slice`](Operand::slice), and [`Error::InvalidBool`] if a byte is neither 0 nor 1.
    pub fn bools(&self) -> Result<&[bool], Error> {
        self.check_slice(DType::Bool, self.dtype)?;
        let bytes = self.slice::<u8>()?;
        if let Some(index) = bytes.iter().position(|&byte| byte > 1) {
            return Err(Error::InvalidBool { index, byte: bytes[index] });
        }
        // SAFETY: every byte has just been seen to be 0 or 1, and nothing writes while borrowed.
        Ok(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<bool>(), bytes.len()) })
    }

    /// The elements of a [`DType::Bool`] operand, row-major, to write. Bytes that are neither 0 nor
    /// 1 (left over from an earlier use of the memory) are set to 1 first.
    ///
    /// # Errors
    ///
    /// Those of [`slice_mut`](Operand::slice_mut).
    pub fn bools_mut(&mut self) -> Result<&mut [bool], Error> {
        self.check_writable()?;
        self.check_slice(DType::Bool, self.dtype)?;
        let elements = self.layout.elements();
        if elements == 0 {
            return Ok(&mut []);
        }
        // SAFETY: as in `slice_mut`, as bytes.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.ptr, elements) };
        for byte in bytes.iter_mut() {
            *byte = u8::from(*byte != 0);
        }
        // SAFETY: every byte is 0 or 1 now, and the bytes are borrowed mutably.
        Ok(unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast::<bool>(), elements) })
    }

    /// The bytes of the elements, row-major, in the machine's byte order.
    ///
    /// # Errors
    ///
    /// [`Error::NotContiguous`], [`Error::SharedOperand`].
    pub fn bytes(&self) -> Result<&[u8], Error> {
        self.check_whole()?;
        let bytes = self.layout.elements() * self.dtype.size();
        if bytes == 0 {
            return Ok(&[]);
        }
        // SAFETY: `new` promises readable initialised memory over the span, which for a contiguous
        // layout is `bytes` bytes from `ptr`; nothing writes it while borrowed, as it is not shared.
        Ok(unsafe { std::slice::from_raw_parts(self.ptr, bytes) })
    }

    /// Do the elements lie in row-major order without gaps?
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        self.whole
    }

    /// The same view once more. The caller sees to it that only one of the two is used.
    pub(crate) fn again(&self) -> Operand {
        Operand { span: self.span.clone(), ..*self }
    }

    /// Is the first element at a multiple of the element size? Then all are.
    #[inline]
    pub(crate) fn is_aligned(&self) -> bool {
        self.ptr.addr() & (self.dtype.size() - 1) == 0 || self.span.is_empty()
    }

    /// Do the two have a byte in common? Exact for views of one storage: see [`Footprint::overlaps`].
    #[inline]
    pub(crate) fn overlaps(&self, other: &Operand) -> bool {
        // Mostly two operands lie apart. An empty span meets none.
        let spans_meet = self.span.start.max(other.span.start) < self.span.end.min(other.span.end);
        spans_meet && self.overlaps_within_spans(other)
    }

    #[inline(never)]
    fn overlaps_within_spans(&self, other: &Operand) -> bool {
        (self.whole && other.whole) || self.footprint().overlaps(&other.footprint())
    }

    /// The bytes of the view, by their addresses.
    fn footprint(&self) -> Footprint {
        let size = self.dtype.size();
        Footprint::scaled(&self.layout, self.ptr.addr().wrapping_sub(self.layout.offset() * size), size)
    }

    /// Are the two exactly the same view: elements of the same size at the same places in the same
    /// order? Then an elementwise kernel may read one and write the other.
    #[inline]
    pub(crate) fn same_view(&self, other: &Operand) -> bool {
        self.ptr == other.ptr && self.dtype.size() == other.dtype.size() && self.layout.same_steps(&other.layout)
    }

    /// From now on gives out no slices.
    pub(crate) fn set_shared(&mut self) {
        self.shared = true;
    }

    /// Has the view begin at another address, by which a device reaches the same memory. It gives out no slices from then on.
    #[cfg(feature = "cuda")]
    pub(crate) fn move_to(&mut self, address: usize) {
        let by = address.wrapping_sub(self.ptr.addr());
        if by != 0 {
            self.shared = true;
            self.ptr = self.ptr.wrapping_add(by);
            self.span = self.span.start.wrapping_add(by)..self.span.end.wrapping_add(by);
        }
    }

    /// Errs unless the access writes.
    pub(crate) fn check_writable(&self) -> Result<(), Error> {
        if self.access.writes() { Ok(()) } else { Err(Error::NotWritable) }
    }

    /// Errs unless the elements lie at multiples of their size.
    pub(crate) fn check_aligned(&self) -> Result<(), Error> {
        if self.is_aligned() { Ok(()) } else { Err(Error::Misaligned { dtype: self.dtype, address: self.ptr.addr() }) }
    }

    fn check_whole(&self) -> Result<(), Error> {
        if !self.whole {
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
        self.check_whole()?;
        self.check_aligned()
    }
}

#[cfg(test)]
#[path = "operand_tests.rs"]
mod tests;
