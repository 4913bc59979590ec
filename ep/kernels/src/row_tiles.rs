//! Rows as tiles: how reductions, softmax, norms and convolutions read and write rows.
//!
//! They compute with the type that [`Number::Computed`] names, which is `f32` for 16-bit floats. Elements of that type are used where they lie. 16-bit floats are converted, and elements that
//! lie apart are copied side by side where a function needs that, at most [`TILE`] at a time, on the stack.

use std::mem::MaybeUninit;

use crate::lanes;
use crate::number::{Float, Number};
use crate::rows::{self, InRow, OutRow};

/// The most elements of a tile: 4 KiB of `f64`.
pub(super) const TILE: usize = 512;

/// Room for the elements of a tile.
pub(super) struct Room<W>(MaybeUninit<[W; TILE]>);

impl<W: Copy> Room<W> {
    #[inline(always)]
    pub(super) const fn new() -> Room<W> {
        Room(MaybeUninit::uninit())
    }

    /// The room as a row, whose elements are not initialised.
    #[inline(always)]
    pub(super) fn row(&mut self) -> OutRow<W> {
        OutRow { first: self.0.as_mut_ptr().cast(), stride: 1 }
    }
}

/// The first `count` elements of a row as they are computed: where they lie, or, if they are 16-bit floats, in `room`.
///
/// # Safety
///
/// * Each of these elements is as [`InRow::get`] requires. Of 16-bit floats there are at most [`TILE`].
#[inline(always)]
pub(super) unsafe fn load<T: Number>(count: usize, row: InRow<T>, room: &mut Room<T::Computed>) -> InRow<T::Computed> {
    if T::HALF.is_none() {
        return InRow { first: row.first.cast(), stride: row.stride };
    }
    let room = room.row();
    // SAFETY: the caller guarantees the elements, and there is room for them.
    unsafe { widen_row(count, room.first, row) };
    room.written()
}

/// The first `count` elements of a row as they are computed, side by side: where they lie, or in `room`.
///
/// # Safety
///
/// * Each of these elements is as [`InRow::get`] requires. There are at most [`TILE`].
#[inline(always)]
pub(super) unsafe fn dense<T: Number>(
    count: usize,
    row: InRow<T>,
    room: &mut Room<T::Computed>,
) -> *const T::Computed {
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
