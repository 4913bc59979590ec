//! Layouts: the positions of a view's elements in its storage.
//!
//! A [`Layout`] is a shape, one stride per axis and an offset, all in elements. The views that permute, slice, reshape and broadcast give
//! are new layouts of the same storage; no element is moved. Strides are never negative.
//!
//! Invariant: offset plus span, times the largest element size, fits `isize`.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;

use crate::tensor::error::ShapeError;
use crate::tensor::shape::{MAX_RANK, Shape};

/// Shape, strides and offset of a view, in elements.
#[derive(Copy, Clone)]
#[repr(C)]
pub struct Layout {
    offset: usize,
    shape: Shape,
    /// Entries past the rank are unspecified.
    strides: [usize; MAX_RANK],
}

impl Layout {
    /// The layout of a scalar.
    pub const SCALAR: Layout = Layout { offset: 0, shape: Shape::SCALAR, strides: [0; MAX_RANK] };

    /// Row-major: the innermost axis has stride 1, and there are no gaps.
    pub fn contiguous(shape: Shape) -> Layout {
        let mut layout = Layout { shape, strides: [0; MAX_RANK], offset: 0 };
        row_major(&mut layout.strides, shape.dims());
        layout
    }

    /// A layout with the given strides and offset, in elements. Stride 0 repeats an element.
    ///
    /// # Errors
    ///
    /// [`ShapeError::Strides`] unless there is one stride per axis; [`ShapeError::TooLarge`] if the last element is out of reach of an
    /// `isize` of bytes.
    pub fn with_strides(shape: Shape, strides: &[usize], offset: usize) -> Result<Layout, ShapeError> {
        if strides.len() != shape.rank() {
            return Err(ShapeError::Strides { shape: Box::new(shape), strides: strides.to_vec() });
        }
        let mut reach = Some(offset);
        for (&dim, &stride) in shape.dims().iter().zip(strides) {
            reach = dim.saturating_sub(1).checked_mul(stride).and_then(|far| far.checked_add(reach?));
        }
        if reach.is_none_or(|last| last >= isize::MAX as usize / 8) {
            return Err(ShapeError::TooLarge { dims: shape.dims().to_vec() });
        }
        let mut layout = Layout { shape, strides: [0; MAX_RANK], offset };
        layout.strides[..strides.len()].copy_from_slice(strides);
        Ok(layout)
    }

    /// Copies `other`; writes only as many entries as it has axes.
    #[inline]
    pub(crate) fn set(&mut self, other: &Layout) {
        self.offset = other.offset;
        self.shape.set(&other.shape);
        for axis in 0..other.shape.rank() {
            self.strides[axis] = other.strides[axis];
        }
    }

    /// Makes this the row-major layout of a shape, as [`contiguous`](Layout::contiguous) does, but in place: writes only as many entries
    /// as the shape has axes.
    #[inline]
    pub fn set_contiguous(&mut self, shape: &Shape) {
        self.offset = 0;
        self.shape.set(shape);
        row_major(&mut self.strides, shape.dims());
    }

    /// The shape of the view.
    #[inline]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// One stride per axis, in elements; 0 where the view repeats an element.
    #[inline]
    pub fn strides(&self) -> &[usize] {
        &self.strides[..self.shape.rank()]
    }

    /// The number of elements from the start of the storage to the first element of the view.
    #[inline]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The number of elements of the view.
    #[inline]
    pub fn elements(&self) -> usize {
        self.shape.elements()
    }

    /// Whether the elements are in row-major order without gaps. The offset does not matter, nor does the stride of an axis of size 1. A
    /// view without elements is contiguous.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        let mut in_order = true;
        for (&dim, &stride) in self.shape.dims().iter().zip(self.strides()).rev() {
            if dim == 0 {
                return true;
            }
            in_order &= dim == 1 || stride == expected;
            expected *= dim;
        }
        in_order
    }

    /// The number of elements, if the strides and the offset are exactly those of [`contiguous`](Layout::contiguous); `None` otherwise.
    #[inline]
    pub fn row_major_elements(&self) -> Option<usize> {
        let (mut step, mut elements) = (1, 1);
        let mut in_order = self.offset == 0;
        for (&dim, &stride) in self.shape.dims().iter().zip(self.strides()).rev() {
            in_order &= stride == step;
            step *= dim.max(1);
            elements *= dim;
        }
        in_order.then_some(elements)
    }

    /// Makes this the row-major layout of a shape whose sizes are the first `rank` of `dims`; returns its number of elements.
    #[inline]
    pub(crate) fn set_row_major<const N: usize>(&mut self, dims: &[usize; N], rank: u8) -> usize {
        self.offset = 0;
        self.shape.set_first_dims(dims, rank);
        if let (1, [elements, ..]) = (rank, dims.as_slice()) {
            self.strides[0] = 1;
            return *elements;
        }
        row_major(&mut self.strides, &dims[..usize::from(rank).min(N)])
    }

    /// The same shape and strides, counted from the first element of the view.
    pub fn without_offset(&self) -> Layout {
        Layout { offset: 0, ..*self }
    }

    /// The view with its axes in another order: axis `i` of the result is axis `axes[i]` of this view.
    ///
    /// # Errors
    ///
    /// [`ShapeError::Permutation`] unless `axes` names each axis once.
    pub fn permute(&self, axes: &[usize]) -> Result<Layout, ShapeError> {
        let rank = self.shape.rank();
        let refused = || ShapeError::Permutation { axes: axes.to_vec(), shape: Box::new(self.shape) };
        if axes.len() != rank {
            return Err(refused());
        }
        let mut seen = 0u32;
        let mut dims = [0; MAX_RANK];
        let mut strides = [0; MAX_RANK];
        for (to, &from) in axes.iter().enumerate() {
            if from >= rank || seen & (1 << from) != 0 {
                return Err(refused());
            }
            seen |= 1 << from;
            dims[to] = self.shape.dims()[from];
            strides[to] = self.strides[from];
        }
        Ok(Layout { shape: Shape::new(&dims[..rank])?, strides, offset: self.offset })
    }

    /// The view with two axes exchanged.
    ///
    /// # Errors
    ///
    /// [`ShapeError::Axis`] if there is no such axis.
    pub fn transpose(&self, first: usize, second: usize) -> Result<Layout, ShapeError> {
        self.shape.check_axis(first)?;
        self.shape.check_axis(second)?;
        let mut axes: [usize; MAX_RANK] = std::array::from_fn(|axis| axis);
        axes.swap(first, second);
        self.permute(&axes[..self.shape.rank()])
    }

    /// The view without `axis`, which has size 1.
    ///
    /// # Errors
    ///
    /// [`ShapeError::Axis`] if there is no such axis, [`ShapeError::Squeeze`] if its size is not 1.
    pub fn squeeze(&self, axis: usize) -> Result<Layout, ShapeError> {
        self.shape.check_axis(axis)?;
        if self.shape.dims()[axis] != 1 {
            return Err(ShapeError::Squeeze { axis, shape: Box::new(self.shape) });
        }
        let without = |all: &[usize]| {
            let mut rest = [0; MAX_RANK];
            rest[..axis].copy_from_slice(&all[..axis]);
            rest[axis..all.len() - 1].copy_from_slice(&all[axis + 1..]);
            rest
        };
        let (dims, strides) = (without(self.shape.dims()), without(self.strides()));
        Ok(Layout { shape: Shape::new(&dims[..self.shape.rank() - 1])?, strides, offset: self.offset })
    }

    /// The view with a new axis of size 1 before `axis`, or after the last axis if `axis` is the number of axes.
    ///
    /// # Errors
    ///
    /// [`ShapeError::Axis`] if `axis` is larger than that; [`ShapeError::Rank`] if the view already has the most axes.
    pub fn unsqueeze(&self, axis: usize) -> Result<Layout, ShapeError> {
        let rank = self.shape.rank();
        if axis > rank {
            return Err(ShapeError::Axis { axis, shape: Box::new(self.shape) });
        }
        let mut dims = self.shape.dims().to_vec();
        dims.insert(axis, 1);
        let shape = Shape::new(&dims)?;
        let mut strides = [0; MAX_RANK];
        strides[..axis].copy_from_slice(&self.strides[..axis]);
        // The stride of an axis of size 1 is never used. This one keeps a row-major layout row-major.
        strides[axis] = if axis < rank { self.shape.dims()[axis].max(1) * self.strides[axis] } else { 1 };
        strides[axis + 1..=rank].copy_from_slice(&self.strides[axis..rank]);
        Ok(Layout { shape, strides, offset: self.offset })
    }

    /// The part of the view whose index on `axis` is in `range`; the rank is unchanged.
    ///
    /// # Errors
    ///
    /// [`ShapeError::Axis`] if there is no such axis, [`ShapeError::Slice`] if the range does not lie
    /// within the axis.
    pub fn slice(&self, axis: usize, range: Range<usize>) -> Result<Layout, ShapeError> {
        self.shape.check_axis(axis)?;
        if range.start > range.end || range.end > self.shape.dims()[axis] {
            return Err(ShapeError::Slice { start: range.start, end: range.end, axis, shape: Box::new(self.shape) });
        }
        let mut dims = [0; MAX_RANK];
        let rank = self.shape.rank();
        dims[..rank].copy_from_slice(self.shape.dims());
        dims[axis] = range.len();
        let shape = Shape::new(&dims[..rank])?;
        // A part without elements has no first element; keeping the offset keeps it within the storage, also where another axis has size 0.
        let moved = if shape.elements() == 0 { 0 } else { range.start * self.strides[axis] };
        Ok(Layout { shape, strides: self.strides, offset: self.offset + moved })
    }

    /// The same elements in the same row-major order with another shape; `None` if no strides describe it, so that the elements must be
    /// copied first.
    ///
    /// # Errors
    ///
    /// [`ShapeError::Reshape`] if the number of elements differs.
    pub fn reshape(&self, shape: Shape) -> Result<Option<Layout>, ShapeError> {
        if shape.elements() != self.elements() {
            return Err(ShapeError::Reshape { from: Box::new(self.shape), to: Box::new(shape) });
        }
        if self.is_contiguous() {
            return Ok(Some(Layout { offset: self.offset, ..Layout::contiguous(shape) }));
        }
        let (runs, count) = self.runs();
        let mut strides = [0; MAX_RANK];
        // Innermost first: each run of evenly spaced elements is split into whole new axes.
        let mut axis = shape.rank();
        for &(length, stride) in runs[..count].iter().rev() {
            let mut filled = 1;
            while filled < length {
                if axis == 0 {
                    return Ok(None);
                }
                axis -= 1;
                strides[axis] = stride * filled;
                filled *= shape.dims()[axis];
            }
            if filled != length {
                return Ok(None);
            }
        }
        // The remaining axes have size 1, because the element counts agree; their stride is never used.
        Ok(Some(Layout { shape, strides, offset: self.offset }))
    }

    /// Merges the axes into as few runs (length, stride) of evenly spaced elements as possible, outermost first. Only for layouts with
    /// elements.
    fn runs(&self) -> ([(usize, usize); MAX_RANK], usize) {
        let mut runs = [(1, 0); MAX_RANK];
        let mut count = 0;
        for (&dim, &stride) in self.shape.dims().iter().zip(self.strides()) {
            if dim == 1 {
                continue;
            }
            if count > 0 && runs[count - 1].1 == stride * dim {
                runs[count - 1] = (runs[count - 1].0 * dim, stride);
            } else {
                runs[count] = (dim, stride);
                count += 1;
            }
        }
        (runs, count)
    }

    /// The view repeated to `shape` by the rule of [`broadcast_shapes`](crate::broadcast_shapes); repeated axes get stride 0.
    ///
    /// # Errors
    ///
    /// [`ShapeError::BroadcastTo`] if this view does not broadcast to exactly `shape`.
    pub fn broadcast_to(&self, shape: &Shape) -> Result<Layout, ShapeError> {
        let refused = || ShapeError::BroadcastTo { from: Box::new(self.shape), to: Box::new(*shape) };
        let new = shape.rank().checked_sub(self.shape.rank()).ok_or_else(refused)?;
        let mut strides = [0; MAX_RANK];
        for (axis, &dim) in self.shape.dims().iter().enumerate() {
            let wanted = shape.dims()[new + axis];
            if dim == wanted {
                strides[new + axis] = self.strides[axis];
            } else if dim != 1 {
                return Err(refused());
            }
        }
        Ok(Layout { shape: *shape, strides, offset: self.offset })
    }

    /// The range from the first element that the view touches to one past the last, counted from the start of the storage. Empty, at the
    /// offset, for a view without elements.
    #[inline]
    pub fn span_elements(&self) -> Range<usize> {
        let mut last = self.offset;
        for (&dim, &stride) in self.shape.dims().iter().zip(self.strides()) {
            if dim == 0 {
                return self.offset..self.offset;
            }
            last += (dim - 1) * stride;
        }
        self.offset..last + 1
    }

    /// Whether two indices can reach the same element. Such a view must not be written.
    ///
    /// Exact for every view that the methods here make from a contiguous layout. For other strides it may return true although no two
    /// indices meet, but never false although two do.
    pub fn overlaps_itself(&self) -> bool {
        let mut axes = [(0, 0); MAX_RANK];
        let mut count = 0;
        for (&dim, &stride) in self.shape.dims().iter().zip(self.strides()) {
            match dim {
                0 => return false,
                1 => {}
                _ => {
                    axes[count] = (stride, dim);
                    count += 1;
                }
            }
        }
        let axes = &mut axes[..count];
        axes.sort_unstable();
        // Each stride must be larger than the reach of all smaller strides.
        let mut reach = 0;
        for &mut (stride, dim) in axes {
            if stride <= reach {
                return true;
            }
            reach += (dim - 1) * stride;
        }
        false
    }

    /// Whether both views visit the same elements in the same order, if they start at the same element. Axes of size 1 do not matter.
    pub(crate) fn same_steps(&self, other: &Layout) -> bool {
        if self.shape == other.shape && self.same_strides(other) {
            return true;
        }
        fn steps(layout: &Layout) -> impl Iterator<Item = (usize, usize)> {
            let dims = layout.shape.dims().iter().copied();
            dims.zip(layout.strides().iter().copied()).filter(|&(dim, _)| dim != 1)
        }
        steps(self).eq(steps(other))
    }

    /// Whether the strides are equal, for views of equal rank.
    #[inline]
    fn same_strides(&self, other: &Layout) -> bool {
        (0..self.shape.rank()).all(|axis| self.strides[axis] == other.strides[axis])
    }
}

impl PartialEq for Layout {
    fn eq(&self, other: &Layout) -> bool {
        self.offset == other.offset && self.shape == other.shape && self.same_strides(other)
    }
}

impl Eq for Layout {}

impl Hash for Layout {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.offset.hash(state);
        self.shape.hash(state);
        self.strides().hash(state);
    }
}

/// Writes the strides of a row-major layout and returns its number of elements. For strides, an axis of size 0 counts as 1, so that no
/// stride is 0.
#[inline]
fn row_major(strides: &mut [usize; MAX_RANK], dims: &[usize]) -> usize {
    let (mut step, mut elements) = (1, 1);
    for (stride, &dim) in strides[..dims.len()].iter_mut().zip(dims).rev() {
        *stride = step;
        step *= dim.max(1);
        elements *= dim;
    }
    elements
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} strides {:?} offset {}", self.shape, self.strides(), self.offset)
    }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
