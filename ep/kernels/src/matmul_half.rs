//! The matrix product of 16-bit floats: panels of the matrices are widened to `f32` and multiplied, and each element of the output is
//! rounded once.

use crate::matmul::Matrix;
use crate::matmul_float::{self, Product};
use crate::number::Float;
use crate::row_tiles;
use crate::rows::{InRow, OutRow};

/// The most rows, columns and depth that are multiplied at a time. Each element of a panel is widened once and used this many times.
/// Three panels, 768 KiB of `f32`, fit in a second-level cache or nearly so.
pub(super) const PANEL_SIDE: usize = 256;

/// A panel in `f32`.
struct Panel {
    elements: Vec<f32>,
    /// The current size, and the strides in `elements`.
    matrix: Matrix,
    by_rows: bool,
}

impl Panel {
    /// Allocates the largest panel of `of`, with the same order of axes.
    fn new(of: Matrix) -> Panel {
        let room = of.rows.min(PANEL_SIDE) * of.columns.min(PANEL_SIDE);
        Panel { elements: vec![0.0; room], matrix: of, by_rows: of.column_stride <= of.row_stride }
    }

    /// Sets the size to that of the panel of `of` that begins at (`row`, `column`). Returns the position of its lines in `of`; the
    /// innermost loop runs along the smaller stride.
    fn place(&mut self, of: Matrix, row: usize, column: usize) -> Lines {
        let (rows, columns) = ((of.rows - row).min(PANEL_SIDE), (of.columns - column).min(PANEL_SIDE));
        let first = row * of.row_stride + column * of.column_stride;
        let (row_stride, column_stride) = if self.by_rows { (columns, 1) } else { (1, rows) };
        self.matrix = Matrix { rows, columns, row_stride, column_stride };
        match self.by_rows {
            true => Lines { first, count: rows, length: columns, next: of.row_stride, stride: of.column_stride },
            false => Lines { first, count: columns, length: rows, next: of.column_stride, stride: of.row_stride },
        }
    }

    /// Widens the panel of `source` that begins at (`row`, `column`).
    ///
    /// # Safety
    ///
    /// * `source` has aligned, initialised elements at the strides of `of`, and nothing writes them.
    unsafe fn widen<T: Float<Wide = f32>>(
        &mut self,
        (source, of): (*const T, Matrix),
        row: usize,
        column: usize,
    ) -> (*const f32, Matrix) {
        let lines = self.place(of, row, column);
        for line in 0..lines.count {
            let from = InRow { first: source.wrapping_add(lines.first + line * lines.next), stride: lines.stride };
            let to = self.elements[line * lines.length..].as_mut_ptr();
            // SAFETY: the caller guarantees the line of `source`. The line of the panel is within `elements`, which `new` allocated for
            // the largest panel.
            unsafe { row_tiles::widen_row(lines.length, to, from) };
        }
        (self.elements.as_ptr(), self.matrix)
    }

    /// Rounds the panel into the part of `target` that begins at (`row`, `column`).
    ///
    /// # Safety
    ///
    /// * `target` has aligned, distinct elements at the strides of `of`, which may be written, and nothing else accesses them.
    unsafe fn round<T: Float<Wide = f32>>(&mut self, (target, of): (*mut T, Matrix), row: usize, column: usize) {
        let lines = self.place(of, row, column);
        for line in 0..lines.count {
            let to = OutRow { first: target.wrapping_add(lines.first + line * lines.next), stride: lines.stride };
            let from = self.elements[line * lines.length..].as_ptr();
            // SAFETY: as in `widen`.
            unsafe { row_tiles::round_row(lines.length, to, from) };
        }
    }
}

/// Evenly spaced lines of a matrix. In a panel they are contiguous.
struct Lines {
    first: usize,
    count: usize,
    length: usize,
    /// The distance from one line to the next, in elements.
    next: usize,
    /// The distance from one element of a line to the next, in elements.
    stride: usize,
}

/// `out = a * b`, accumulated in `f32`.
///
/// # Safety
///
/// * As for [`Multiply::multiply`](crate::matmul::Multiply::multiply).
pub(super) unsafe fn multiply<T: Float<Wide = f32>>(
    out: (*mut T, Matrix),
    a: (*const T, Matrix),
    b: (*const T, Matrix),
) {
    let (product, left, right) = (out.1, a.1, b.1);
    let mut sums = Panel::new(product);
    let (mut left_panel, mut right_panel) = (Panel::new(left), Panel::new(right));
    for row in (0..product.rows).step_by(PANEL_SIDE) {
        for column in (0..product.columns).step_by(PANEL_SIDE) {
            sums.place(product, row, column);
            sums.elements.fill(0.0);
            for depth in (0..left.columns).step_by(PANEL_SIDE) {
                // SAFETY: the caller guarantees this for `a`.
                let a = unsafe { left_panel.widen(a, row, depth) };
                // SAFETY: the caller guarantees this for `b`.
                let b = unsafe { right_panel.widen(b, depth, column) };
                // SAFETY: the panels have matching sizes, because the matrices do, and each has memory of its own.
                unsafe {
                    matmul_float::multiply(Product { out: (sums.elements.as_mut_ptr(), sums.matrix), a, b, adds: true })
                };
            }
            // SAFETY: the caller guarantees this for `out`.
            unsafe { sums.round(out, row, column) };
        }
    }
}
