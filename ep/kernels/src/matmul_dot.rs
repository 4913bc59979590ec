//! Products whose factors are read along the depth: few rows, and a right factor whose columns have no gaps.

use pulp::{NullaryFnOnce, Simd};

use crate::lanes::array;
use crate::matmul_float::Product;
use crate::matmul_tile::Lane;

/// The most rows: with more, a packed right factor is faster.
const MOST_ROWS: usize = 32;

/// The bytes of the sums of an element.
const SUMS_BYTES: usize = 64;

/// The sums of an element, at most.
const MOST_SUMS: usize = SUMS_BYTES / 4;

/// The elements of the left factor that are read again for each few columns: what a second-level cache holds.
const LEFT_ELEMENTS: usize = 1 << 15;

/// A product of few rows whose left factor has rows, and whose right factor has columns, of elements side by side.
pub(super) struct Dots<T>(Product<T>);

impl<T> Dots<T> {
    /// The product, if it is one.
    pub(super) fn of(product: Product<T>) -> Option<Dots<T>> {
        let ((_, left), (_, right)) = (product.a, product.b);
        let is_one =
            left.column_stride == 1 && right.row_stride == 1 && left.rows <= MOST_ROWS && left.columns >= MOST_SUMS;
        is_one.then_some(Dots(product))
    }
}

impl<T: Lane> Dots<T> {
    /// Computes the product.
    ///
    /// # Safety
    ///
    /// * As for [`multiply`](crate::matmul_float::multiply).
    #[inline(always)]
    pub(super) unsafe fn multiply<S: Simd>(&self, simd: S) {
        // The sums of an element take as many vectors as 64 bytes have; those of all elements of a tile, and the factors, fit the registers.
        let function: unsafe fn(&Dots<T>, S) = match size_of::<T::Vector<S>>() {
            64 => Dots::in_tiles::<S, 4, 4, 1>,
            32 => Dots::in_tiles::<S, 2, 3, 2>,
            16 => Dots::in_tiles::<S, 2, 3, 4>,
            8 => Dots::in_tiles::<S, 1, 1, { SUMS_BYTES / 8 }>,
            4 => Dots::in_tiles::<S, 1, 1, { SUMS_BYTES / 4 }>,
            bytes => unreachable!("there are no vectors of {bytes} bytes"),
        };
        // SAFETY: the caller guarantees this.
        unsafe { function(self, simd) };
    }

    /// # Safety
    ///
    /// * As for [`multiply`](crate::matmul_float::multiply). The sums of an element take `VECTORS` vectors.
    #[inline(always)]
    unsafe fn in_tiles<S: Simd, const ROWS: usize, const COLUMNS: usize, const VECTORS: usize>(&self, simd: S) {
        let Product { out: (_, product), a: (_, left), .. } = self.0;
        let at_once = (LEFT_ELEMENTS / left.columns).next_multiple_of(ROWS).max(ROWS);
        for above in (0..product.rows).step_by(at_once) {
            let below = product.rows.min(above + at_once);
            let mut column = 0;
            while column < product.columns {
                let whole = product.columns - column >= COLUMNS;
                let mut row = above;
                while row < below {
                    let function: unsafe fn(&Dots<T>, S, usize, usize) -> usize = match (whole, below - row) {
                        (true, left) if left >= ROWS => Dots::tile::<S, ROWS, COLUMNS, VECTORS>,
                        (true, left) if left >= 2 => Dots::tile::<S, 2, COLUMNS, VECTORS>,
                        (true, _) => Dots::tile::<S, 1, COLUMNS, VECTORS>,
                        (false, left) if left >= 2 => Dots::tile::<S, 2, 1, VECTORS>,
                        (false, _) => Dots::tile::<S, 1, 1, VECTORS>,
                    };
                    // SAFETY: the rows and columns lie within the product; the caller guarantees the rest.
                    row += unsafe { function(self, simd, row, column) };
                }
                column += if whole { COLUMNS } else { 1 };
            }
        }
    }

    /// Computes the elements of some rows and columns. Returns the number of rows.
    ///
    /// # Safety
    ///
    /// * As for `in_tiles`; the rows and columns lie within the product.
    #[inline(never)]
    unsafe fn tile<S: Simd, const ROWS: usize, const COLUMNS: usize, const VECTORS: usize>(
        &self,
        simd: S,
        row: usize,
        column: usize,
    ) -> usize {
        let Product { out: (out, product), a: (a, left), b: (b, right), adds } = self.0;
        let rows: [*const T; ROWS] = array(|place| a.wrapping_add(left.offset(row + place, 0)));
        let columns: [*const T; COLUMNS] = array(|place| b.wrapping_add(right.offset(0, column + place)));
        let sums = simd.vectorize(DotTile::<S, T, ROWS, COLUMNS, VECTORS> { simd, rows, columns, depth: left.columns });
        for (place, sums) in sums.into_iter().enumerate() {
            for (next, sum) in sums.into_iter().enumerate() {
                let to = out.wrapping_add(product.offset(row + place, column + next));
                // SAFETY: the caller guarantees the output.
                let sum = if adds { unsafe { to.read() }.add(sum) } else { sum };
                // SAFETY: as above.
                unsafe { to.write(sum) };
            }
        }
        ROWS
    }
}

/// The rows and columns of a tile, which only `Dots::tile` makes, and uses at once.
struct DotTile<S, T, const ROWS: usize, const COLUMNS: usize, const VECTORS: usize> {
    simd: S,
    rows: [*const T; ROWS],
    columns: [*const T; COLUMNS],
    depth: usize,
}

impl<S: Simd, T: Lane, const ROWS: usize, const COLUMNS: usize, const VECTORS: usize> NullaryFnOnce
    for DotTile<S, T, ROWS, COLUMNS, VECTORS>
{
    type Output = [[T; COLUMNS]; ROWS];

    #[inline(always)]
    fn call(self) -> [[T; COLUMNS]; ROWS] {
        let DotTile { simd, rows, columns, depth } = self;
        let step = SUMS_BYTES / size_of::<T>();
        let mut sums = [[[T::splat(simd, T::ZERO); VECTORS]; COLUMNS]; ROWS];
        let whole = depth / step * step;
        for k in (0..whole).step_by(step) {
            // SAFETY: as many elements are left; `Dots::tile` is promised them.
            unsafe {
                add(simd, &mut sums, rows.map(|row| row.wrapping_add(k)), columns.map(|column| column.wrapping_add(k)))
            };
        }
        if whole < depth {
            // Zeros follow the last elements.
            let rest = |from: *const T| -> [T; MOST_SUMS] {
                array(|k| match whole + k < depth {
                    // SAFETY: `Dots::tile` is promised the elements.
                    true => unsafe { from.wrapping_add(whole + k).read() },
                    false => T::ZERO,
                })
            };
            let (rows, columns) = (rows.map(rest), columns.map(rest));
            let starts = |places: &[T; MOST_SUMS]| places.as_ptr();
            // SAFETY: the arrays are as long.
            unsafe { add(simd, &mut sums, rows.each_ref().map(starts), columns.each_ref().map(starts)) };
        }
        sums.map(|sums| sums.map(|sums| total::<S, T, VECTORS>(simd, sums)))
    }
}

/// Adds the products of the next elements of rows and columns to their sums.
///
/// # Safety
///
/// * The rows and columns have `VECTORS` vectors of initialised elements, which nothing writes.
#[inline(always)]
unsafe fn add<S: Simd, T: Lane, const ROWS: usize, const COLUMNS: usize, const VECTORS: usize>(
    simd: S,
    sums: &mut [[[T::Vector<S>; VECTORS]; COLUMNS]; ROWS],
    rows: [*const T; ROWS],
    columns: [*const T; COLUMNS],
) {
    for vector in 0..VECTORS {
        let next = |from: *const T| {
            // SAFETY: the caller guarantees the elements; a vector of plain numbers may be read unaligned.
            unsafe { from.cast::<T::Vector<S>>().wrapping_add(vector).read_unaligned() }
        };
        let columns: [T::Vector<S>; COLUMNS] = array(|place| next(columns[place]));
        for (row, sums) in rows.into_iter().zip(&mut *sums) {
            let row = next(row);
            for (sum, column) in sums.iter_mut().zip(columns) {
                sum[vector] = T::multiply_add(simd, row, column, sum[vector]);
            }
        }
    }
}

/// The sum of all sums of an element: of the first and the second half of them, and so on, whatever vectors hold them.
#[inline(always)]
fn total<S: Simd, T: Lane, const VECTORS: usize>(simd: S, mut sums: [T::Vector<S>; VECTORS]) -> T {
    let mut half = VECTORS / 2;
    while half > 0 {
        for vector in 0..half {
            sums[vector] = T::add_vectors(simd, sums[vector], sums[vector + half]);
        }
        half /= 2;
    }
    let mut sum = sums[0];
    let mut half = size_of::<T::Vector<S>>() / size_of::<T>() / 2;
    while half > 0 {
        sum = T::add_vectors(simd, sum, T::rotate(simd, sum, half));
        half /= 2;
    }
    T::first(sum)
}
