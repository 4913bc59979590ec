//! Products of matrices of `f32` and `f64`: the ways to compute them, and their blocks.
//!
//! | way | for | what it does |
//! |---|---|---|
//! | dot products | few rows; the elements of a *column* of the right factor lie side by side, as those of a transposed weight do | reads both factors along the depth, and packs nothing ([`matmul_dot`](crate::matmul_dot)) |
//! | few rows | few rows; the elements of a *row* of the right factor lie side by side, and are at least a vector | reads the right factor once, where it lies, a few of its rows at a time |
//! | panels | all others | packs a block of the right factor, which the second-level cache holds, into panels as wide as a [tile](crate::matmul_tile), and goes along it with some rows of the left factor after the other |
//!
//! A product is computed as its transpose if the elements of a column of the output lie closer together than those of a row, or if it has one column; dot products also where the transpose has few rows.
//!
//! The last two ways compute an element by the same operations: the fused multiplications and additions of each block of [`DEPTH`] products in their order, then the sums of the
//! blocks in their order. Dot products have 64 bytes of sums for an element. So a result depends on the shapes and strides, and on whether the processor has fused operations, but
//! neither on the width of its vectors nor on the sizes of its caches.
//!
//! Why these are not those of the crate `gemm`: [decision](../../../docs/adr/cpu-products.md).

use std::cell::RefCell;
use std::mem::MaybeUninit;

use pulp::{Simd, WithSimd};

use crate::matmul::Matrix;
use crate::matmul_dot::Dots;
use crate::matmul_tile::{Begin, Lane, MOST_ROWS, MOST_VECTORS, Tile, rows_of_strip, tile, vectors_of_panel};
use crate::simd_dispatch::run_wide;

/// The products of an element that are summed up in a register before their sum is added to that of the products before them: the rows of a packed block.
const DEPTH: usize = 256;

/// The bytes of a row of a block of the right factor: a block of [`DEPTH`] rows takes 192 KiB, which fits every second-level cache of the last years.
const BLOCK_BYTES: usize = 768;

/// The rows of a block of the left factor, if it is packed: with many of them the right factor is seldom packed again.
const LEFT_ROWS: usize = 384;

/// The elements between packed rows of the left factor. Without them many rows would share the same few places of a cache.
const GAP: usize = 16;

/// The most rows for which the right factor is read where it lies: packing takes a tenth of the time of a product with 30 rows.
const FEW_ROWS: usize = 32;

/// The sums of few rows that are computed at a time: 16 KiB of `f32`, which fit the first-level cache.
const FEW_SUMS: usize = 4096;

/// The rows of the right factor that are read at a time where they lie: no more streams than processors fetch ahead, nor pages than their first-level translation buffers hold.
const ROWS_AT_ONCE: usize = 16;

/// A panel has whole vectors, and a block has whole panels, of any processor; few rows have at least 64 sums each.
const _: () = assert!(BLOCK_BYTES.is_multiple_of(MOST_VECTORS * 64) && FEW_SUMS / FEW_ROWS >= 64);

/// The most elements of a vector: 64 bytes of `f32`.
const MOST_LANES: usize = 64 / 4;

/// A cache line of the room of a thread.
#[derive(Copy, Clone)]
#[repr(align(64))]
struct Line(#[allow(dead_code, reason = "elements are accessed by their address")] [MaybeUninit<u8>; 64]);

thread_local! {
    /// The packed elements of a thread, or the sums of few rows: at most a mebibyte, which the thread keeps.
    static ROOM: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// `out = a * b`, or `out += a * b`.
#[derive(Copy, Clone)]
pub(super) struct Product<T> {
    pub(super) out: (*mut T, Matrix),
    pub(super) a: (*const T, Matrix),
    pub(super) b: (*const T, Matrix),
    /// Whether the product is added to what is in `out`.
    pub(super) adds: bool,
}

/// Computes a product.
///
/// # Safety
///
/// * `a` is m by k, `b` k by n and `out` m by n; m and n are not 0.
/// * The elements of `a` and `b` are aligned and initialised at their strides, and nothing writes them.
/// * The elements of `out` are aligned, initialised and distinct at their strides, and nothing else accesses them.
pub(super) unsafe fn multiply<T: Lane>(product: Product<T>) {
    run_wide(Chosen(product));
}

/// A product that is computed in the way that suits it. Only [`multiply`] makes one, and computes it at once.
struct Chosen<T>(Product<T>);

impl<T: Lane> WithSimd for Chosen<T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let product = self.0;
        let transposed = product.transposed();
        if let Some(dots) = Dots::of(product).or_else(|| Dots::of(transposed)) {
            // SAFETY: the caller of `multiply` guarantees the matrices.
            return unsafe { dots.multiply(simd) };
        }
        let (_, form) = product.out;
        let is_upright = form.columns > 1 && (form.rows == 1 || form.column_stride <= form.row_stride);
        let product = if is_upright { product } else { transposed };
        // SAFETY: as above.
        unsafe { product.multiply(simd) };
    }
}

impl<T> Product<T> {
    fn transposed(self) -> Product<T> {
        let [(out, product), (a, left), (b, right)] = [
            (self.out.0, self.out.1.transposed()),
            (self.a.0.cast_mut(), self.a.1.transposed()),
            (self.b.0.cast_mut(), self.b.1.transposed()),
        ];
        Product { out: (out, product), a: (b.cast_const(), right), b: (a.cast_const(), left), adds: self.adds }
    }

    /// The product of `column` and the columns after it.
    fn columns_from(self, column: usize) -> Product<T> {
        let (out, product) = self.out;
        let (b, right) = self.b;
        Product {
            out: (out.wrapping_add(product.offset(0, column)), Matrix { columns: product.columns - column, ..product }),
            b: (b.wrapping_add(right.offset(0, column)), Matrix { columns: right.columns - column, ..right }),
            ..self
        }
    }

    fn depth(&self) -> usize {
        self.a.1.columns
    }

    fn rows(&self) -> usize {
        self.out.1.rows
    }

    fn columns(&self) -> usize {
        self.out.1.columns
    }
}

/// The parts of `0..length`, of at most `most`: where each begins, and its length.
#[inline(always)]
fn parts(length: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..length).step_by(most).map(move |first| (first, most.min(length - first)))
}

/// The strips of rows of a tile: where each begins, and its rows.
#[inline(always)]
fn strips(rows: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut first = 0;
    std::iter::from_fn(move || {
        let height = rows_of_strip(rows - first)?;
        first += height;
        Some((first - height, height))
    })
}

/// The panels of `columns`, each of `most` vectors of `lanes` elements, a half of it and so on: where each begins, its vectors, and its columns. The last one has the fewest vectors that hold the
/// rest if it is `padded`; otherwise columns are whole vectors, and panels as well.
#[inline(always)]
fn panels(columns: usize, lanes: usize, most: usize, padded: bool) -> impl Iterator<Item = (usize, usize, usize)> {
    let mut first = 0;
    std::iter::from_fn(move || {
        let rest = columns - first;
        let mut vectors = most;
        while vectors > 1 && if padded { vectors / 2 * lanes >= rest } else { vectors * lanes > rest } {
            vectors /= 2;
        }
        let width = rest.min(vectors * lanes);
        first += width;
        (width > 0).then_some((first - width, vectors, width))
    })
}

impl<T: Lane> Product<T> {
    /// Computes the product block by block.
    ///
    /// # Safety
    ///
    /// * As for [`multiply`].
    #[inline(always)]
    unsafe fn multiply<S: Simd>(self, simd: S) {
        let left = if self.a.1.column_stride == 1 { 0 } else { LEFT_ROWS.min(self.rows()) };
        let depth = DEPTH.min(self.depth());
        let packed = BLOCK_BYTES * depth + left * (depth + GAP) * size_of::<T>();
        let lines = packed.max(FEW_SUMS * size_of::<T>()).div_ceil(size_of::<Line>());
        ROOM.with_borrow_mut(|room| {
            if room.len() < lines {
                room.resize(lines, Line([MaybeUninit::uninit(); 64]));
            }
            // SAFETY: the caller guarantees the matrices. The room holds a block of the right factor, whose panels are padded within it because a block is whole panels, and one of the left factor, or the
            // sums of few rows. Nothing else uses it: no product begins within another one.
            unsafe { self.in_blocks(simd, room.as_mut_ptr().cast()) };
        });
    }

    /// Computes the product in a room.
    ///
    /// # Safety
    ///
    /// * As for [`multiply`]. `room` has room for the packed blocks, and for the sums of few rows.
    #[inline(always)]
    unsafe fn in_blocks<S: Simd>(self, simd: S, room: *mut T) {
        let lanes = size_of::<T::Vector<S>>() / size_of::<T>();
        let whole = self.columns() / lanes * lanes;
        if self.depth() == 0 || self.rows() > FEW_ROWS || self.b.1.column_stride != 1 || whole == 0 {
            // SAFETY: the caller guarantees this.
            return unsafe { self.in_panels(simd, room) };
        }
        // SAFETY: the caller guarantees this.
        unsafe { self.few_rows(simd, room, whole) };
        if whole < self.columns() {
            // SAFETY: these are other columns of the product.
            unsafe { self.columns_from(whole).in_panels(simd, room) };
        }
    }

    /// Computes the first `whole` columns of a product of few rows, which are whole vectors.
    ///
    /// # Safety
    ///
    /// * As for `in_blocks`; the elements of a row of the right factor lie side by side.
    #[inline(always)]
    unsafe fn few_rows<S: Simd>(self, simd: S, sums: *mut T, whole: usize) {
        let lanes = size_of::<T::Vector<S>>() / size_of::<T>();
        // A multiple of the lanes of every processor.
        let block = FEW_SUMS / self.rows() / 64 * 64;
        let vectors = vectors_of_panel::<S>(self.rows());
        let ((a, left), (b, right)) = (self.a, self.b);
        for (from, depth) in parts(self.depth(), DEPTH) {
            for (column, width) in parts(whole, block) {
                for (next, some) in parts(depth, ROWS_AT_ONCE) {
                    for (row, rows) in strips(self.rows()) {
                        for (place, vectors, _) in panels(width, lanes, vectors, false) {
                            let part = Tile {
                                depth: some,
                                a: a.wrapping_add(left.offset(row, from + next)),
                                a_strides: [left.row_stride, left.column_stride],
                                b: b.wrapping_add(right.offset(from + next, column + place)),
                                b_stride: right.row_stride,
                                out: sums.wrapping_add(row * block + place),
                                out_stride: block,
                                begin: if next == 0 { Begin::Write } else { Begin::Continue },
                            };
                            // SAFETY: the tile lies within the matrices, and its sums within the room.
                            unsafe { tile(simd, part, rows, vectors) };
                        }
                    }
                }
                for row in 0..self.rows() {
                    // SAFETY: these sums have been computed, and are those of this place of the output.
                    unsafe { self.take(sums.wrapping_add(row * block), row, column, width, self.adds || from > 0) };
                }
            }
        }
    }

    /// Computes the product with a packed right factor.
    ///
    /// # Safety
    ///
    /// * As for `in_blocks`.
    #[inline(always)]
    unsafe fn in_panels<S: Simd>(self, simd: S, room: *mut T) {
        let lanes = size_of::<T::Vector<S>>() / size_of::<T>();
        let block = BLOCK_BYTES / size_of::<T>();
        let vectors = vectors_of_panel::<S>(MOST_ROWS);
        let ((a, left), (b, right)) = (self.a, self.b);
        let packed_left = room.wrapping_add(block * DEPTH.min(self.depth()));
        let packs_left = left.column_stride != 1;
        // A product of no depth is a block of zeros.
        for (from, depth) in parts(self.depth().max(1), DEPTH) {
            let depth = depth.min(self.depth());
            for (above, height) in parts(self.rows(), if packs_left { LEFT_ROWS } else { self.rows() }) {
                let source = a.wrapping_add(left.offset(above, from));
                if packs_left {
                    // Its elements are packed row by row.
                    let lines =
                        Lines { first: source, count: depth, next: left.column_stride, stride: left.row_stride };
                    // SAFETY: the rows and columns lie within the factor, and the packed ones within the room.
                    unsafe { pack(simd, (packed_left, depth + GAP), depth, lines, height) };
                }
                for (column, width) in parts(self.columns(), block) {
                    for (place, vectors, columns) in panels(width, lanes, vectors, true) {
                        let source = b.wrapping_add(right.offset(from, column + place));
                        let lines = Lines {
                            first: source,
                            count: columns,
                            next: right.column_stride,
                            stride: right.row_stride,
                        };
                        let panel = (room.wrapping_add(place * depth), vectors * lanes);
                        // SAFETY: the columns lie within the factor, and the panel within the room.
                        unsafe { pack(simd, panel, panel.1, lines, depth) };
                    }
                    for (row, rows) in strips(height) {
                        let (a, a_strides) = match packs_left {
                            true => (packed_left.wrapping_add(row * (depth + GAP)).cast_const(), [depth + GAP, 1]),
                            false => (source.wrapping_add(left.offset(row, 0)), [left.row_stride, 1]),
                        };
                        for (place, vectors, columns) in panels(width, lanes, vectors, true) {
                            let part = Tile {
                                depth,
                                a,
                                a_strides,
                                b: room.wrapping_add(place * depth).cast_const(),
                                b_stride: vectors * lanes,
                                out: std::ptr::null_mut(),
                                out_stride: 0,
                                begin: Begin::Write,
                            };
                            let place = (above + row, column + place);
                            // SAFETY: the panel has been packed; the tile lies within the output.
                            unsafe {
                                self.one_tile(simd, part, (rows, vectors), place, columns, self.adds || from > 0)
                            };
                        }
                    }
                }
            }
        }
    }

    /// Computes a tile of the output at a row and a column; its last vector may have elements past `columns`.
    ///
    /// # Safety
    ///
    /// * As for [`tile`], but for the output, in which the rows and columns lie.
    #[inline(always)]
    unsafe fn one_tile<S: Simd>(
        &self,
        simd: S,
        mut part: Tile<T>,
        (rows, vectors): (usize, usize),
        (row, column): (usize, usize),
        columns: usize,
        adds: bool,
    ) {
        let (out, product) = self.out;
        let width = vectors * (size_of::<T::Vector<S>>() / size_of::<T>());
        if columns == width && product.column_stride == 1 {
            part.out = out.wrapping_add(product.offset(row, column));
            part.out_stride = product.row_stride;
            part.begin = if adds { Begin::Add } else { Begin::Write };
            // SAFETY: the caller guarantees this.
            return unsafe { tile(simd, part, rows, vectors) };
        }
        let mut sums = [T::ZERO; MOST_ROWS * MOST_VECTORS * MOST_LANES];
        part.out = sums.as_mut_ptr();
        part.out_stride = width;
        // SAFETY: the caller guarantees this; the sums have room.
        unsafe { tile(simd, part, rows, vectors) };
        for place in 0..rows {
            // SAFETY: the caller guarantees the place; the sums have been computed.
            unsafe { self.take(sums.as_ptr().wrapping_add(place * width), row + place, column, columns, adds) };
        }
    }

    /// Writes sums that lie side by side to the output, or adds them.
    ///
    /// # Safety
    ///
    /// * There are as many `sums` as columns. The row and the columns lie within the output, which may be written.
    #[inline(always)]
    unsafe fn take(&self, sums: *const T, row: usize, column: usize, columns: usize, adds: bool) {
        let (out, product) = self.out;
        let first = out.wrapping_add(product.offset(row, column));
        for place in 0..columns {
            let to = first.wrapping_add(place * product.column_stride);
            // SAFETY: the caller guarantees the sums.
            let sum = unsafe { sums.wrapping_add(place).read() };
            // SAFETY: the caller guarantees the output.
            let sum = if adds { unsafe { to.read() }.add(sum) } else { sum };
            // SAFETY: as above.
            unsafe { to.write(sum) };
        }
    }
}

/// Columns of a factor that are packed.
#[derive(Copy, Clone)]
struct Lines<T> {
    first: *const T,
    count: usize,
    /// From column to column.
    next: usize,
    /// From row to row.
    stride: usize,
}

/// Copies `rows` elements of each column to `to`, row by row, with zeros after the last column.
///
/// # Safety
///
/// * The columns have these elements, which are initialised and which nothing writes. `to` has room for `width` elements of each row, and nothing else uses it.
#[inline(always)]
unsafe fn pack<S: Simd, T: Lane>(
    simd: S,
    (to, to_stride): (*mut T, usize),
    width: usize,
    lines: Lines<T>,
    rows: usize,
) {
    const SIDE: usize = 4;
    let lanes = size_of::<T::Vector<S>>() / size_of::<T>();
    let Lines { first, count, next, stride } = lines;
    if next == 1 {
        let vectors = count / lanes * lanes;
        for k in 0..rows {
            let (from, to) = (first.wrapping_add(k * stride), to.wrapping_add(k * to_stride));
            for place in (0..vectors).step_by(lanes) {
                let from = from.wrapping_add(place).cast::<T::Vector<S>>();
                // SAFETY: the caller guarantees the elements; a vector of plain numbers may be read unaligned.
                let vector = unsafe { from.read_unaligned() };
                // SAFETY: the caller guarantees the room.
                unsafe { to.wrapping_add(place).cast::<T::Vector<S>>().write_unaligned(vector) };
            }
            if vectors < count {
                // SAFETY: the caller guarantees the elements.
                let rest = unsafe { std::slice::from_raw_parts(from.wrapping_add(vectors), count - vectors) };
                let vector = T::load_first(simd, rest);
                // SAFETY: the caller guarantees the room: the panel has whole vectors.
                unsafe { to.wrapping_add(vectors).cast::<T::Vector<S>>().write_unaligned(vector) };
            }
            for place in (count.next_multiple_of(lanes)..width).step_by(lanes) {
                let zeros = T::splat(simd, T::ZERO);
                // SAFETY: the caller guarantees the room.
                unsafe { to.wrapping_add(place).cast::<T::Vector<S>>().write_unaligned(zeros) };
            }
        }
        return;
    }
    let squares = if stride == 1 { (count / SIDE * SIDE, rows / SIDE * SIDE) } else { (0, 0) };
    for line in (0..squares.0).step_by(SIDE) {
        for k in (0..squares.1).step_by(SIDE) {
            let square: [[T; SIDE]; SIDE] = crate::lanes::array(|place| {
                let from = first.wrapping_add((line + place) * next + k).cast::<[T; SIDE]>();
                // SAFETY: the caller guarantees the elements.
                unsafe { from.read_unaligned() }
            });
            #[allow(clippy::needless_range_loop, reason = "the index is that of each line's element")]
            for place in 0..SIDE {
                let across: [T; SIDE] = crate::lanes::array(|line| square[line][place]);
                let to = to.wrapping_add((k + place) * to_stride + line).cast::<[T; SIDE]>();
                // SAFETY: the caller guarantees the room.
                unsafe { to.write_unaligned(across) };
            }
        }
    }
    for k in 0..rows {
        let done = if k < squares.1 { squares.0 } else { 0 };
        for line in done..width {
            let element = match line < count {
                // SAFETY: the caller guarantees the elements.
                true => unsafe { first.wrapping_add(line * next + k * stride).read() },
                false => T::ZERO,
            };
            // SAFETY: the caller guarantees the room.
            unsafe { to.wrapping_add(k * to_stride + line).write(element) };
        }
    }
}

#[cfg(test)]
#[path = "matmul_float_tests.rs"]
mod tests;
