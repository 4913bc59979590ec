//! Rows as tiles: how reductions, softmax, norms and convolutions read and write rows.
//!
//! They compute with the type that [`Number::Computed`] names, which is `f32` for 16-bit floats. Elements of that type are used where they lie. 16-bit floats are converted, and elements that
//! lie apart are copied side by side where a function needs that, at most [`TILE`] at a time, on the stack.

use std::mem::MaybeUninit;

use streamvm_ep::{Layout, Operand};

use crate::loop_nest::LoopNest;
use crate::number::{Float, Number};
use crate::rows::{self, InRow, OutRow, input};
use crate::{lanes, parallel};

/// The most elements of a tile: 4 KiB of `f64`.
pub(super) const TILE: usize = 512;

/// Room for the elements of a tile.
pub(super) struct Room<W>(MaybeUninit<[W; TILE]>);

impl<W: Copy> Room<W> {
    #[inline(always)]
    pub(super) const fn new() -> Room<W> {
        Room(MaybeUninit::uninit())
    }

    /// The elements that were written.
    #[inline(always)]
    pub(super) fn written(&self) -> InRow<W> {
        InRow::dense(self.0.as_ptr().cast())
    }

    /// The room as a row, whose elements are not initialised.
    #[inline(always)]
    pub(super) fn row(&mut self) -> OutRow<W> {
        OutRow { first: self.0.as_mut_ptr().cast(), stride: 1 }
    }
}

/// The first `count` elements of a row as they are computed, side by side: where they lie, or in `room`.
///
/// # Safety
///
/// * Each of these elements is as [`InRow::get`] requires. There are at most [`TILE`].
#[inline(always)]
pub(super) unsafe fn dense<T: Number>(count: usize, row: InRow<T>, room: &mut Room<T::Computed>) -> *const T::Computed {
    if T::HALF.is_none() && row.stride == 1 {
        return row.first.cast();
    }
    let room = room.row().first;
    // SAFETY: the caller guarantees the elements, and there is room for them.
    unsafe { widen_row(count, room, row) };
    room
}

/// Computes a row tile by tile: calls `compute` with a number of elements, room for as many results, and the elements of the inputs, all side by side. The room may be the elements of an input.
///
/// # Safety
///
/// * `length` elements of each row are as [`InRow::get`] and [`OutRow::set`] require, except that an element of an input may be an element of `out` if both have the same index.
/// * `compute` writes the results, and reads the elements at an index before it writes the result there.
#[inline(always)]
pub(super) unsafe fn map<T: Float, const N: usize>(
    length: usize,
    out: OutRow<T>,
    inputs: [InRow<T>; N],
    mut compute: impl FnMut(usize, *mut T::Wide, [*const T::Wide; N]),
) {
    if !T::IS_HALF && out.stride == 1 && inputs.iter().all(|input| input.stride == 1) {
        return compute(length, out.first.cast(), lanes::array(|input| inputs[input].first.cast()));
    }
    let (mut results, mut rooms) = (Room::new(), [const { Room::new() }; N]);
    for first in (0..length).step_by(TILE) {
        let (count, out) = (TILE.min(length - first), out.from(first));
        let mut tile = [std::ptr::null(); N];
        for place in 0..N {
            // SAFETY: the caller guarantees the elements.
            tile[place] = unsafe { dense(count, inputs[place].from(first), &mut rooms[place]) };
        }
        if !T::IS_HALF && out.stride == 1 {
            compute(count, out.first.cast(), tile);
            continue;
        }
        let results = results.row().first;
        compute(count, results, tile);
        // SAFETY: the results are written; the caller guarantees the elements of `out`.
        unsafe { round_row(count, out, results) };
    }
}

/// Evenly spaced rows of an operand: the first, and the distance of two in elements.
#[derive(Copy, Clone)]
pub(super) struct Rows<T> {
    row: InRow<T>,
    next: usize,
}

impl<T: Copy> Rows<T> {
    #[inline(always)]
    pub(super) fn at(&self, place: usize) -> InRow<T> {
        InRow { first: self.row.first.wrapping_add(place * self.next), stride: self.row.stride }
    }

    /// A row of an output.
    #[inline(always)]
    pub(super) fn out(&self, place: usize) -> OutRow<T> {
        let InRow { first, stride } = self.at(place);
        OutRow { first: first.cast_mut(), stride }
    }
}

/// A kernel over rows of several operands, of which the first is the output.
pub(super) trait OfRows<const OPERANDS: usize>: Sync {
    /// Computes `count` rows of the output, at most [`GROUP`]. `R` is the type that results are rounded to in the end.
    ///
    /// # Safety
    ///
    /// * `length` elements of each row are as [`InRow::get`] and [`OutRow::set`] require, and no row of the output overlaps another one.
    unsafe fn compute<T: Float, R: Float<Wide = T::Wide>>(
        &self,
        length: usize,
        count: usize,
        rows: &[Rows<T>; OPERANDS],
    );
}

/// The most rows that are computed together: they need nothing of each other's results.
pub(super) const GROUP: usize = 8;

/// The elements of a group: it stays in the first-level cache from step to step.
const GROUP_ELEMENTS: usize = 1 << 12;

/// Computes all rows along an axis of the output, to whose shape the other operands broadcast. Short rows of 16-bit floats are converted to `f32`, and the results are rounded.
///
/// # Safety
///
/// * All operands hold elements of `T`, aligned. The output may be written, reaches no element twice, and overlaps no other operand.
pub(super) unsafe fn each_group<T: Float, const OPERANDS: usize>(
    operands: [&Operand; OPERANDS],
    axis: usize,
    kernel: &impl OfRows<OPERANDS>,
) {
    let shape = operands[0].layout().shape();
    let (dims, length) = (shape.dims(), shape.dims()[axis]);
    if length == 0 {
        return;
    }
    let wide: [Layout; OPERANDS] = lanes::array(|operand| {
        let layout = operands[operand].layout();
        layout.broadcast_to(shape).unwrap_or(*layout)
    });
    let strides = |axis: usize| lanes::array(|operand| wide[operand].strides()[axis]);
    let nest =
        LoopNest::over(&mut (0..dims.len()).filter(|&other| other != axis).map(|other| (dims[other], strides(other))));
    let (next, along): ([usize; OPERANDS], [usize; OPERANDS]) = (nest.row_strides(), strides(axis));
    let is_short = T::IS_HALF && length <= TILE;
    let most = (if is_short { TILE } else { GROUP_ELEMENTS } / length).clamp(1, GROUP);
    nest.rows_in_parallel(length * parallel::LONG, |first, rows| {
        for start in (0..rows).step_by(most) {
            let (count, start) = (most.min(rows - start), start);
            let rows = lanes::array(|operand| Rows {
                row: input::<T>(operands[operand], first[operand] + start * next[operand], along[operand]),
                next: next[operand],
            });
            match is_short {
                // SAFETY: the loop nest stays within the operands; the caller guarantees the rest.
                true => unsafe { compute_short(length, count, &rows, kernel) },
                // SAFETY: as above.
                false => unsafe { kernel.compute::<T, T>(length, count, &rows) },
            }
        }
    });
}

/// Computes rows of 16-bit floats, at most [`TILE`] elements together, as `f32`.
///
/// # Safety
///
/// * As for [`OfRows::compute`].
unsafe fn compute_short<T: Float, const OPERANDS: usize>(
    length: usize,
    count: usize,
    rows: &[Rows<T>; OPERANDS],
    kernel: &impl OfRows<OPERANDS>,
) {
    let mut rooms = [const { Room::<T::Wide>::new() }; OPERANDS];
    let mut wide = [Rows { row: InRow::dense(std::ptr::null()), next: length }; OPERANDS];
    for (operand, (wide, room)) in wide.iter_mut().zip(&mut rooms).enumerate() {
        let Rows { row, next } = rows[operand];
        *wide = Rows { row: room.row().written(), next: if next == 0 { 0 } else { length } };
        // One row for all is widened once, and rows without gaps together.
        let (lines, line) = match next {
            _ if operand == 0 => (0, length),
            0 => (1, length),
            _ if next == length && row.stride == 1 => (1, count * length),
            _ => (count, length),
        };
        for place in 0..lines {
            // SAFETY: the caller guarantees the elements, and there is room for those of all rows.
            unsafe { widen_row(line, wide.out(place).first, rows[operand].at(place)) };
        }
    }
    // SAFETY: the elements are those that were just written, and there is room for the results.
    unsafe { kernel.compute::<T::Wide, T>(length, count, &wide) };
    let Rows { row, next } = rows[0];
    let (lines, line) = if next == length && row.stride == 1 { (1, count * length) } else { (count, length) };
    for place in 0..lines {
        // SAFETY: the results are written; the caller guarantees the elements that they become.
        unsafe { round_row(line, rows[0].out(place), wide[0].at(place).first) };
    }
}

/// Writes the elements of a row, side by side, as they are computed.
///
/// # Safety
///
/// * `length` elements of `from` are as [`InRow::get`] requires; as many may be written from `to` on. None of one side is one of the other.
#[inline]
pub(super) unsafe fn widen_row<T: Number>(length: usize, to: *mut T::Computed, from: InRow<T>) {
    let Some(half) = T::HALF else {
        // SAFETY: the caller guarantees this; both types are the same.
        return unsafe { rows::copy(length, OutRow { first: to.cast(), stride: 1 }, from) };
    };
    // For all that follows: the caller guarantees the elements, there is room for a tile, and 16-bit floats are computed as `f32`.
    if from.stride == 1 {
        // SAFETY: see above.
        return unsafe { half.widen(length, to.cast(), from.first.cast()) };
    }
    let mut room = Room::<T>::new();
    let room = room.row();
    for first in (0..length).step_by(TILE) {
        let count = TILE.min(length - first);
        // SAFETY: see above.
        unsafe { rows::copy(count, room, from.from(first)) };
        // SAFETY: see above.
        unsafe { half.widen(count, to.wrapping_add(first).cast(), room.first.cast_const().cast()) };
    }
}

/// Writes the elements that are nearest to numbers, which lie side by side, to a row.
///
/// # Safety
///
/// * `length` elements of `to` are as [`OutRow::set`] requires; as many may be read from `from` on. None of one side is one of the other.
#[inline]
pub(super) unsafe fn round_row<T: Number>(length: usize, to: OutRow<T>, from: *const T::Computed) {
    let Some(half) = T::HALF else {
        // SAFETY: the caller guarantees this; both types are the same.
        return unsafe { rows::copy(length, to, InRow { first: from.cast(), stride: 1 }) };
    };
    // For all that follows: as in `widen_row`.
    if to.stride == 1 {
        // SAFETY: see above.
        return unsafe { half.round(length, to.first.cast(), from.cast()) };
    }
    let mut room = Room::<T>::new();
    let room = room.row();
    for first in (0..length).step_by(TILE) {
        let count = TILE.min(length - first);
        // SAFETY: see above.
        unsafe { half.round(count, room.first.cast(), from.wrapping_add(first).cast()) };
        // SAFETY: see above.
        unsafe { rows::copy(count, to.from(first), room.written()) };
    }
}

#[cfg(test)]
#[path = "row_tiles_tests.rs"]
mod tests;
