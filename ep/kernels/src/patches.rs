//! Patches of images as the columns of a matrix, which makes convolutions matrix products (im2col: Chellapilla, Puri and Simard, "High
//! performance convolutional neural networks for document processing", 2006).
//!
//! A patch matrix has a column for each position of the window, in row-major order, and a row for each channel of the group and element of the
//! window: `c * window + element`. It is the part of an image that lies under that element at each position, with zeros in the padding. Only a
//! tile of it exists at a time: some rows, and as many columns as [`tile_of`] says.

use std::ops::Range;

use streamvm_ep::Operand;
use streamvm_ep::backend::ConvolutionForm;

use crate::matmul::Matrix;
use crate::number::{Float, Number};
use crate::row_tiles;
use crate::rows::{InRow, input, output};

/// Elements of a tile of up to 2048 rows, at most: 256 KiB of `f32` or 512 KiB of `f64`, which a second-level cache holds beside the other factor.
/// A tile of more rows has [`LEAST_COLUMNS`], so its size grows with the rows.
const TILE: usize = 1 << 16;

/// Columns of a tile at least, if there are so many positions: fewer would make products of few columns.
const LEAST_COLUMNS: usize = 32;

/// Products of two elements that are a unit of [work](super::parallel), as for matrix products.
pub(super) const PRODUCTS: usize = 8;

/// The columns of a tile with so many rows.
pub(super) fn tile_of(form: &ConvolutionForm, rows: usize) -> usize {
    (TILE / rows.max(1)).max(LEAST_COLUMNS).min(form.positions())
}

/// Elements of an image that are next to each other in a row of a patch matrix.
struct Run {
    /// The row of the tile, and the first column.
    row: usize,
    column: usize,
    count: usize,
    /// The first element of the image: channel, and place on each axis. The others follow at the stride of the window along the innermost axis.
    channel: usize,
    at: [usize; 2],
}

/// Calls `visit` with all that these rows and columns of a patch matrix have of an image; what is left is padding.
fn each_run(form: &ConvolutionForm, rows: Range<usize>, columns: &Range<usize>, mut visit: impl FnMut(Run)) {
    let [vertical, horizontal] = &form.axes;
    let (first, width) = (rows.start, horizontal.output);
    for row in rows {
        let (channel, element) = (row / form.window(), row % form.window());
        let (high, wide) = (element / horizontal.window, element % horizontal.window);
        let inside = horizontal.positions_inside(wide);
        let mut column = columns.start;
        while column < columns.end {
            let (line, place) = (column / width, column % width);
            let end = width.min(place + columns.end - column);
            let (from, to) = (inside.start.clamp(place, end), inside.end.clamp(place, end));
            if let (Some(y), true) = (vertical.input_at(line, high), from < to) {
                let x = from * horizontal.stride + wide * horizontal.dilation - horizontal.padding;
                let column = column - columns.start + from - place;
                visit(Run { row: row - first, column, count: to - from, channel, at: [y, x] });
            }
            column += end - place;
        }
    }
}

/// An image: channels, height and width.
#[derive(Copy, Clone)]
pub(super) struct Image<'a> {
    /// The operand, and the place of the first element in it.
    pub(super) operand: &'a Operand<'a>,
    pub(super) first: usize,
    /// Of a channel, and along the two axes.
    pub(super) strides: [usize; 3],
}

impl<'a> Image<'a> {
    /// Image `image` of an operand `[n, c, h, w]`, from this channel on.
    pub(super) fn of(operand: &'a Operand<'a>, image: usize, channel: usize) -> Image<'a> {
        let strides = operand.layout().strides();
        let first = image * strides[0] + channel * strides[1];
        Image { operand, first, strides: [strides[1], strides[2], strides[3]] }
    }

    pub(super) fn place(&self, channel: usize, [y, x]: [usize; 2]) -> usize {
        self.first + channel * self.strides[0] + y * self.strides[1] + x * self.strides[2]
    }
}

/// Writes these rows and columns of the patch matrix of an image, row by row.
///
/// # Safety
///
/// * The operand of the image holds elements of `T`, aligned, which may be read and which nothing writes, and the image has the sizes of `form`.
pub(super) unsafe fn unfold<T: Float>(
    form: &ConvolutionForm,
    image: Image<'_>,
    rows: Range<usize>,
    columns: &Range<usize>,
    tile: &mut [T::Wide],
) {
    let length = columns.len();
    if form.axes.iter().any(|axis| axis.padding > 0) {
        tile[..rows.len() * length].fill(T::Wide::ZERO);
    }
    let stride = image.strides[2] * form.axes[1].stride;
    each_run(form, rows, columns, |run| {
        let to = &mut tile[run.row * length + run.column..][..run.count];
        let from = input::<T>(image.operand, image.place(run.channel, run.at), stride);
        // SAFETY: the run is inside of the image, whose elements the caller guarantees, and the elements of the tile are those of a slice.
        unsafe { row_tiles::widen_row(run.count, to.as_mut_ptr(), from) };
    });
}

/// Adds these rows and columns of the gradient of a patch matrix to the gradient of its image, channel by channel without gaps.
pub(super) fn fold<W: Number>(
    form: &ConvolutionForm,
    rows: Range<usize>,
    columns: &Range<usize>,
    tile: &[W],
    image: &mut [W],
) {
    let (length, [height, width]) = (columns.len(), form.axes.map(|axis| axis.input));
    let (stride, first) = (form.axes[1].stride, rows.start / form.window());
    each_run(form, rows, columns, |run| {
        let from = &tile[run.row * length + run.column..][..run.count];
        let place = ((run.channel - first) * height + run.at[0]) * width + run.at[1];
        let sums = image[place..].iter_mut().step_by(stride);
        for (sum, &element) in sums.zip(from) {
            *sum = sum.add(element);
        }
    });
}

/// A matrix in the type of computations: a view of an operand, or a widened copy.
pub(super) struct WideMatrix<W> {
    copy: Vec<W>,
    first: InRow<W>,
    pub(super) form: Matrix,
}

impl<W: Number> WideMatrix<W> {
    /// The address of an element.
    pub(super) fn at(&self, row: usize, column: usize) -> *const W {
        let place = row * self.form.row_stride + column * self.form.column_stride;
        match self.copy.is_empty() {
            true => self.first.first.wrapping_add(place),
            false => self.copy.as_ptr().wrapping_add(place),
        }
    }

    /// The part of so many rows and columns.
    pub(super) fn part(&self, rows: usize, columns: usize) -> Matrix {
        Matrix { rows, columns, ..self.form }
    }

    /// A weight as a matrix with a row for each channel of the output.
    ///
    /// # Safety
    ///
    /// * The operand holds elements of `T`, aligned, which may be read and which nothing writes as long as the matrix is used. It has 4 axes.
    pub(super) unsafe fn of_weight<T: Float<Wide = W>>(weight: &Operand) -> WideMatrix<W> {
        let (dims, strides) = (weight.layout().shape().dims(), weight.layout().strides());
        let (rows, columns) = (dims[0], dims[1] * dims[2] * dims[3]);
        let first = input::<W>(weight, 0, 1);
        if let Some(stride) = even_stride(&dims[1..], &strides[1..]).filter(|_| !T::IS_HALF) {
            let form = Matrix { rows, columns, row_stride: strides[0], column_stride: stride };
            return WideMatrix { copy: Vec::new(), first, form };
        }
        let mut copy = vec![W::ZERO; rows * columns];
        for (place, line) in copy.chunks_mut(dims[3].max(1)).enumerate() {
            let (y, rest) = (place % dims[2], place / dims[2]);
            let offset = rest / dims[1] * strides[0] + rest % dims[1] * strides[1] + y * strides[2];
            // SAFETY: the caller guarantees the elements of the operand; those of the copy are those of a slice.
            unsafe { row_tiles::widen_row(dims[3], line.as_mut_ptr(), input::<T>(weight, offset, strides[3])) };
        }
        WideMatrix { copy, first, form: Matrix { rows, columns, row_stride: columns, column_stride: 1 } }
    }

    /// Some channels of an image at some positions, a row for each channel.
    ///
    /// # Safety
    ///
    /// * As for [`of_weight`](WideMatrix::of_weight), for the image of a gradient with the positions of `form`.
    pub(super) unsafe fn of_positions<T: Float<Wide = W>>(
        form: &ConvolutionForm,
        image: Image<'_>,
        channels: usize,
        positions: &Range<usize>,
    ) -> WideMatrix<W> {
        let (rows, columns) = (channels, positions.len());
        if let Some(stride) = even_positions(form, image).filter(|_| !T::IS_HALF) {
            let first = input::<W>(image.operand, image.first + positions.start * stride, 1);
            let form = Matrix { rows, columns, row_stride: image.strides[0], column_stride: stride };
            return WideMatrix { copy: Vec::new(), first, form };
        }
        let mut copy = vec![W::ZERO; rows * columns];
        for channel in 0..channels {
            each_line(form, positions, |column, at, count| {
                let to = &mut copy[channel * columns + column..][..count];
                let from = input::<T>(image.operand, image.place(channel, at), image.strides[2]);
                // SAFETY: the caller guarantees the elements of the image; those of the copy are those of a slice.
                unsafe { row_tiles::widen_row(count, to.as_mut_ptr(), from) };
            });
        }
        let first = input::<W>(image.operand, 0, 1);
        WideMatrix { copy, first, form: Matrix { rows, columns, row_stride: columns, column_stride: 1 } }
    }
}

/// Rounds a matrix, a row for each channel, without gaps, to some positions of an output.
///
/// # Safety
///
/// * The operand of the image holds elements of `T`, aligned, which may be written and which nothing else accesses, at the positions of `form`.
pub(super) unsafe fn round_positions<T: Float>(
    form: &ConvolutionForm,
    image: Image<'_>,
    positions: &Range<usize>,
    matrix: &[T::Wide],
) {
    for (channel, row) in matrix.chunks(positions.len().max(1)).enumerate() {
        each_line(form, positions, |column, at, count| {
            let from = row[column..][..count].as_ptr();
            let to = output::<T>(image.operand, image.place(channel, at), image.strides[2]);
            // SAFETY: the caller guarantees the elements of the image; those of the matrix are those of a slice.
            unsafe { row_tiles::round_row(count, to, from) };
        });
    }
}

/// The distance between neighbouring positions of an output, if it is the same for all of them.
pub(super) fn even_positions(form: &ConvolutionForm, image: Image<'_>) -> Option<usize> {
    even_stride(&form.axes.map(|axis| axis.output), &image.strides[1..])
}

/// Calls `visit` with each line of these positions: its first position counted from the first of all, the line and the place in it, and the
/// number of positions.
fn each_line(form: &ConvolutionForm, positions: &Range<usize>, mut visit: impl FnMut(usize, [usize; 2], usize)) {
    let width = form.axes[1].output;
    let mut position = positions.start;
    while position < positions.end {
        let at = [position / width, position % width];
        let count = (width - at[1]).min(positions.end - position);
        visit(position - positions.start, at, count);
        position += count;
    }
}

/// The distance between neighbouring elements in row-major order, if it is the same for all of them.
fn even_stride(dims: &[usize], strides: &[usize]) -> Option<usize> {
    let mut found: Option<(usize, usize)> = None;
    for (&size, &stride) in dims.iter().zip(strides).rev().filter(|(size, _)| **size != 1) {
        found = match found {
            None => Some((stride, size)),
            Some((even, elements)) if stride == even * elements => Some((even, elements * size)),
            Some(_) => return None,
        };
    }
    Some(found.map_or(1, |(stride, _)| stride))
}
