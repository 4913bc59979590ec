//! Tiles: some rows and vectors of columns of a product, whose sums stay in registers.

use pulp::{NullaryFnOnce, Simd};

use crate::lanes::array;
use crate::number::Number;

/// The most rows of a tile.
pub(super) const MOST_ROWS: usize = 6;

/// The most vectors of a row of a tile of [`MOST_ROWS`].
pub(super) const MOST_VECTORS: usize = 4;

/// The rows of the next tile, if so many are left: as many as fit, but rather two tiles of nearly the same height than a low one at the end, whose few sums wait for each other.
#[inline(always)]
pub(super) fn rows_of_strip(left: usize) -> Option<usize> {
    match left {
        0 => None,
        1..=4 => Some(left),
        5 => Some(3),
        7 | 8 => Some(4),
        _ => Some(MOST_ROWS),
    }
}

/// The registers for vectors of a kind of processor.
trait Registers {
    /// Whether they hold the sums of the tallest tile with [`MOST_VECTORS`], as those of AVX-512 and NEON do; AVX2 has 16.
    const ARE_MANY: bool;
}

impl<S: Simd> Registers for S {
    const ARE_MANY: bool = S::REGISTER_COUNT >= 32;
}

/// The vectors of a tile with this number of rows: as many as the registers hold, beside the vectors of the right factor and one element of the left one.
#[inline(always)]
pub(super) fn vectors_of_panel<S: Simd>(rows: usize) -> usize {
    match (S::ARE_MANY, rows) {
        (_, 1) => 8,
        (true, _) | (false, 2) => MOST_VECTORS,
        (false, _) => 2,
    }
}

/// A type with vectors of the processor.
pub(super) trait Lane: Number {
    type Vector<S: Simd>: Copy;

    fn splat<S: Simd>(simd: S, element: Self) -> Self::Vector<S>;

    /// The first elements of a vector, and zeros after them.
    fn load_first<S: Simd>(simd: S, elements: &[Self]) -> Self::Vector<S>;

    /// `a * b + c`, rounded once if the processor can do so.
    fn multiply_add<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>, c: Self::Vector<S>) -> Self::Vector<S>;

    fn add_vectors<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;

    /// The elements of a vector, each `by` places nearer to the first.
    fn rotate<S: Simd>(simd: S, a: Self::Vector<S>, by: usize) -> Self::Vector<S>;

    /// The first element of a vector.
    fn first<S: Simd>(a: Self::Vector<S>) -> Self;
}

macro_rules! lanes {
    ($($float:ident $vector:ident $splat:ident $load_first:ident $multiply_add:ident $add:ident $rotate:ident;)*) => {$(
        impl Lane for $float {
            type Vector<S: Simd> = S::$vector;

            #[inline(always)]
            fn splat<S: Simd>(simd: S, element: $float) -> S::$vector {
                simd.$splat(element)
            }

            #[inline(always)]
            fn load_first<S: Simd>(simd: S, elements: &[$float]) -> S::$vector {
                simd.$load_first(elements)
            }

            #[inline(always)]
            fn multiply_add<S: Simd>(simd: S, a: S::$vector, b: S::$vector, c: S::$vector) -> S::$vector {
                simd.$multiply_add(a, b, c)
            }

            #[inline(always)]
            fn add_vectors<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
                simd.$add(a, b)
            }

            #[inline(always)]
            fn rotate<S: Simd>(simd: S, a: S::$vector, by: usize) -> S::$vector {
                simd.$rotate(a, by)
            }

            #[inline(always)]
            fn first<S: Simd>(a: S::$vector) -> $float {
                let [first, ..] = pulp::bytemuck::cast_slice::<_, $float>(std::slice::from_ref(&a)) else { return 0.0 };
                *first
            }
        }
    )*};
}

lanes! {
    f32 f32s splat_f32s partial_load_f32s mul_add_e_f32s add_f32s rotate_left_f32s;
    f64 f64s splat_f64s partial_load_f64s mul_add_e_f64s add_f64s rotate_left_f64s;
}

/// The numbers that the sums of a tile begin with.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Begin {
    /// Zero; they are written.
    Write,
    /// Zero; they are added to the elements of the output.
    Add,
    /// The elements of the output.
    Continue,
}

/// A tile of a product. The elements of a row of the right factor, and of the output, lie side by side.
#[derive(Copy, Clone)]
pub(super) struct Tile<T> {
    pub(super) depth: usize,
    pub(super) a: *const T,
    /// From row to row, and from column to column.
    pub(super) a_strides: [usize; 2],
    pub(super) b: *const T,
    /// From row to row.
    pub(super) b_stride: usize,
    pub(super) out: *mut T,
    /// From row to row.
    pub(super) out_stride: usize,
    pub(super) begin: Begin,
}

/// Computes a tile with this number of rows and vectors.
///
/// # Safety
///
/// * There is a tile of this size: [`rows_of_strip`] and [`vectors_of_panel`], or a half of that, and so on.
/// * The factors have these rows, columns and depth; their elements are aligned and initialised, and nothing writes them. Those of the output may be written, nothing else accesses
///   them, and they are initialised if they are read.
#[inline(always)]
pub(super) unsafe fn tile<S: Simd, T: Lane>(simd: S, part: Tile<T>, rows: usize, vectors: usize) {
    let function: unsafe fn(S, Tile<T>) = match (rows, vectors) {
        // Elsewhere there are no such tiles, and the functions are not compiled.
        (3, 4) if S::ARE_MANY => sized::<S, T, 3, 4>,
        (4, 4) if S::ARE_MANY => sized::<S, T, 4, 4>,
        (MOST_ROWS, 4) if S::ARE_MANY => sized::<S, T, MOST_ROWS, 4>,
        (1, 8) => sized::<S, T, 1, 8>,
        (1, 4) => sized::<S, T, 1, 4>,
        (1, 2) => sized::<S, T, 1, 2>,
        (1, 1) => sized::<S, T, 1, 1>,
        (2, 4) => sized::<S, T, 2, 4>,
        (2, 2) => sized::<S, T, 2, 2>,
        (2, 1) => sized::<S, T, 2, 1>,
        (3, 2) => sized::<S, T, 3, 2>,
        (3, 1) => sized::<S, T, 3, 1>,
        (4, 2) => sized::<S, T, 4, 2>,
        (4, 1) => sized::<S, T, 4, 1>,
        (MOST_ROWS, 2) => sized::<S, T, MOST_ROWS, 2>,
        (MOST_ROWS, 1) => sized::<S, T, MOST_ROWS, 1>,
        _ => unreachable!("there is no tile of {rows} rows by {vectors} vectors"),
    };
    // SAFETY: the caller guarantees this.
    unsafe { function(simd, part) };
}

/// # Safety
///
/// * As for [`tile`].
unsafe fn sized<S: Simd, T: Lane, const ROWS: usize, const VECTORS: usize>(simd: S, part: Tile<T>) {
    // Compiled for the vectors of `S`.
    simd.vectorize(Sized::<S, T, ROWS, VECTORS> { simd, part });
}

/// A tile that only [`sized`] makes, and computes at once.
struct Sized<S, T, const ROWS: usize, const VECTORS: usize> {
    simd: S,
    part: Tile<T>,
}

impl<S: Simd, T: Lane, const ROWS: usize, const VECTORS: usize> NullaryFnOnce for Sized<S, T, ROWS, VECTORS> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Sized { simd, part } = self;
        let zero = T::splat(simd, T::ZERO);
        let place = |row: usize, vector: usize| {
            part.out.wrapping_add(row * part.out_stride).cast::<T::Vector<S>>().wrapping_add(vector)
        };
        let mut sums = [[zero; VECTORS]; ROWS];
        if part.begin == Begin::Continue {
            for (row, sums) in sums.iter_mut().enumerate() {
                for (vector, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: the caller of `sized` guarantees the output; a vector of plain numbers may be read unaligned.
                    *sum = unsafe { place(row, vector).read_unaligned() };
                }
            }
        }
        let mut lefts: [*const T; ROWS] = array(|row| part.a.wrapping_add(row * part.a_strides[0]));
        let mut right = part.b;
        for _ in 0..part.depth {
            let rights: [T::Vector<S>; VECTORS] = array(|vector| {
                // SAFETY: the caller of `sized` guarantees the right factor.
                unsafe { right.cast::<T::Vector<S>>().wrapping_add(vector).read_unaligned() }
            });
            for (left, sums) in lefts.iter_mut().zip(&mut sums) {
                // SAFETY: the caller of `sized` guarantees the left factor.
                let element = T::splat(simd, unsafe { left.read() });
                *left = left.wrapping_add(part.a_strides[1]);
                for (sum, right) in sums.iter_mut().zip(rights) {
                    *sum = T::multiply_add(simd, element, right, *sum);
                }
            }
            right = right.wrapping_add(part.b_stride);
        }
        for (row, sums) in sums.into_iter().enumerate() {
            for (vector, mut sum) in sums.into_iter().enumerate() {
                let to = place(row, vector);
                if part.begin == Begin::Add {
                    // SAFETY: the caller of `sized` guarantees the output.
                    sum = T::add_vectors(simd, unsafe { to.read_unaligned() }, sum);
                }
                // SAFETY: as above.
                unsafe { to.write_unaligned(sum) };
            }
        }
    }
}
