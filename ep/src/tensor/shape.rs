//! Shapes: the sizes of a tensor's axes.
//!
//! A [`Shape`] is a small value without heap memory, of up to [`MAX_RANK`] axes.
//!
//! Invariant, established by [`Shape::new`]: the product of its sizes (counting an axis of size 0 as 1) times the largest element size
//! fits `isize`. So no index, stride or byte count that is computed from it overflows.

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::tensor::error::ShapeError;

/// The most axes that a shape can have.
///
/// Eight is enough for attention and convolution layouts with batch and group axes, lets a set of axes be one byte, and keeps a layout
/// within three cache lines.
pub const MAX_RANK: usize = 8;

/// The size of the largest element (`f64`, `i64`), in bytes.
const LARGEST_ELEMENT: usize = 8;

/// Sizes of the axes of a tensor, outermost first. Rank 0 is a scalar: one element.
#[derive(Copy, Clone)]
#[repr(C)]
pub struct Shape {
    rank: u8,
    /// Entries past `rank` are unspecified.
    dims: [usize; MAX_RANK],
}

impl Shape {
    /// The shape of a scalar: no axes, one element.
    pub const SCALAR: Shape = Shape { dims: [0; MAX_RANK], rank: 0 };

    /// A shape with one axis and no elements.
    pub(crate) const EMPTY: Shape = Shape { rank: 1, dims: [0; MAX_RANK] };

    /// A shape with the axes `dims`.
    ///
    /// # Errors
    ///
    /// [`ShapeError::Rank`] past [`MAX_RANK`] axes, [`ShapeError::TooLarge`] if a tensor of this
    /// shape could have more than `isize::MAX` bytes.
    pub fn new(dims: &[usize]) -> Result<Shape, ShapeError> {
        if dims.len() > MAX_RANK {
            return Err(ShapeError::Rank { dims: dims.to_vec() });
        }
        let mut room = isize::MAX as usize / LARGEST_ELEMENT;
        for &dim in dims {
            room /= dim.max(1);
        }
        if room == 0 {
            return Err(ShapeError::TooLarge { dims: dims.to_vec() });
        }
        let mut shape = Shape::SCALAR;
        shape.dims[..dims.len()].copy_from_slice(dims);
        shape.rank = dims.len() as u8;
        Ok(shape)
    }

    /// Sizes of the axes, outermost first.
    #[inline]
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank()]
    }

    /// Number of axes.
    #[inline]
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// Number of elements: the product of the sizes, 1 for a scalar.
    #[inline]
    pub fn elements(&self) -> usize {
        self.dims().iter().product()
    }

    /// The first `N` sizes, at most [`MAX_RANK`]; those past the rank are unspecified. The length is known at compile time, so copying
    /// them needs no call.
    #[inline]
    pub fn first_dims<const N: usize>(&self) -> &[usize; N] {
        const { assert!(N <= MAX_RANK) };
        self.dims.first_chunk().unwrap_or_else(|| unreachable!("no shape has fewer places than {MAX_RANK}"))
    }

    /// Copies `other`; writes only as many sizes as it has axes.
    #[inline]
    pub(crate) fn set(&mut self, other: &Shape) {
        self.rank = other.rank;
        for axis in 0..other.rank() {
            self.dims[axis] = other.dims[axis];
        }
    }

    /// Makes this the shape with the first `rank` of `dims`, which must be the sizes of a valid shape.
    #[inline]
    pub(crate) fn set_first_dims<const N: usize>(&mut self, dims: &[usize; N], rank: u8) {
        self.rank = rank;
        for (axis, &dim) in dims.iter().enumerate() {
            self.dims[axis] = dim;
        }
    }

    /// Returns an error unless `axis` is an axis of this shape.
    ///
    /// # Errors
    ///
    /// [`ShapeError::Axis`].
    pub fn check_axis(&self, axis: usize) -> Result<(), ShapeError> {
        if axis < self.rank() { Ok(()) } else { Err(ShapeError::Axis { axis, shape: Box::new(*self) }) }
    }
}

impl PartialEq for Shape {
    #[inline]
    fn eq(&self, other: &Shape) -> bool {
        // There are few axes, so a loop is faster than a call that compares bytes.
        self.rank == other.rank && (0..self.rank()).all(|axis| self.dims[axis] == other.dims[axis])
    }
}

impl Eq for Shape {}

impl Hash for Shape {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.dims().hash(state);
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (axis, dim) in self.dims().iter().enumerate() {
            if axis > 0 {
                f.write_str(",")?;
            }
            write!(f, "{dim}")?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The shape that two operands broadcast to, by NumPy's rule: axes are aligned at the innermost one, and two sizes agree if they are
/// equal or one of them is 1.
///
/// # Errors
///
/// [`ShapeError::Broadcast`] if two sizes do not agree, [`ShapeError::TooLarge`] if the result is.
pub fn broadcast_shapes(left: &Shape, right: &Shape) -> Result<Shape, ShapeError> {
    if left == right {
        return Ok(*left);
    }
    let rank = left.rank().max(right.rank());
    let mut dims = [0; MAX_RANK];
    for (axis, dim) in dims[..rank].iter_mut().enumerate() {
        let size = |shape: &Shape| match (axis + shape.rank()).checked_sub(rank) {
            Some(own) => shape.dims[own],
            None => 1,
        };
        *dim = match (size(left), size(right)) {
            (l, r) if l == r => l,
            (1, r) => r,
            (l, 1) => l,
            _ => {
                return Err(ShapeError::Broadcast { left: Box::new(*left), right: Box::new(*right) });
            }
        };
    }
    Shape::new(&dims[..rank])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dims: &[usize]) -> Shape {
        Shape::new(dims).unwrap()
    }

    #[test]
    fn prints_as_a_list() {
        assert_eq!(shape(&[2, 3]).to_string(), "[2,3]");
        assert_eq!(shape(&[]).to_string(), "[]");
        assert_eq!(format!("{:?}", shape(&[0])), "[0]");
    }

    #[test]
    fn what_lies_past_the_rank_means_nothing() {
        let mut reused = shape(&[5, 6, 7]);
        reused.set_first_dims(&[2, 3, 9], 2);
        assert_eq!(reused, shape(&[2, 3]));
        let hashed = |shape: &Shape| {
            let mut hasher = std::hash::DefaultHasher::new();
            shape.hash(&mut hasher);
            hasher.finish()
        };
        assert_eq!(hashed(&reused), hashed(&shape(&[2, 3])));
        assert_ne!(reused, shape(&[2, 4]));
        assert_ne!(reused, shape(&[2, 3, 7]));
    }

    #[test]
    fn elements_of_scalars_and_empty_shapes() {
        assert_eq!(shape(&[]).elements(), 1);
        assert_eq!(shape(&[4, 0, 2]).elements(), 0);
        assert_eq!(shape(&[4, 3]).elements(), 12);
    }

    #[test]
    fn rank_and_size_are_limited() {
        assert!(matches!(Shape::new(&[1; 9]), Err(ShapeError::Rank { .. })));
        assert!(matches!(Shape::new(&[usize::MAX, 2]), Err(ShapeError::TooLarge { .. })));
        // Strides are computed from the other axes even if there are no elements.
        assert!(matches!(Shape::new(&[0, usize::MAX]), Err(ShapeError::TooLarge { .. })));
        assert!(Shape::new(&[isize::MAX as usize / 8]).is_ok());
    }

    #[test]
    fn broadcasting_aligns_at_the_innermost_axis() {
        let both = |l: &[usize], r: &[usize]| broadcast_shapes(&shape(l), &shape(r));
        assert_eq!(both(&[4, 1, 3], &[2, 1]), Ok(shape(&[4, 2, 3])));
        assert_eq!(both(&[], &[2]), Ok(shape(&[2])));
        assert_eq!(both(&[1], &[0]), Ok(shape(&[0])));
        assert!(matches!(both(&[2, 3], &[2]), Err(ShapeError::Broadcast { .. })));
        assert!(both(&[2], &[0]).is_err());
    }
}
