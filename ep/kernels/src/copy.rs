//! Strided copy and fill. A copy moves bits, so one loop per element size serves every dtype. Where the source is contiguous along another
//! axis than the target, it is copied in tiles.

use streamvm_ep::backend::check::{check_copy, check_fill};
use streamvm_ep::{Error, Operand, Scalar};

use crate::loop_nest::{Axis, LoopNest};
use crate::parallel;
use crate::rows::{self, input, output};
use crate::tiles::copy_plane;

/// Copies `source` to `target`; see [`Stream::copy`](streamvm_ep::Stream::copy).
pub fn copy(source: &Operand, target: &mut Operand) -> Result<(), Error> {
    if !check_copy(source, target)? {
        return Ok(());
    }
    // For every arm: both operands hold elements of this size, aligned to it, and have one shape. The target may be written, reaches no
    // element twice and does not overlap the source.
    match source.dtype().size() {
        // SAFETY: see above.
        1 => unsafe { copy_nest::<u8>(source, target) },
        // SAFETY: see above.
        2 => unsafe { copy_nest::<u16>(source, target) },
        // SAFETY: see above.
        4 => unsafe { copy_nest::<u32>(source, target) },
        // SAFETY: see above.
        _ => unsafe { copy_nest::<u64>(source, target) },
    }
    Ok(())
}

/// The sides of a tile of a transposed copy: 16 elements of 4 bytes are a cache line, so each line that is read or written is used whole
/// while it is in the first-level cache.
const TILE: usize = 16;

/// # Safety
///
/// * Both operands hold elements stored as `T`, aligned, and have one shape.
/// * `target` may be written, reaches no element twice, and does not overlap `source`.
unsafe fn copy_nest<T: Copy + Send + Sync>(source: &Operand, target: &Operand) {
    let nest = LoopNest::new([target.layout(), source.layout()]);
    if let Some((others, along)) = nest.transposed(TILE) {
        let (next_to, next_from) = (others.row_strides()[0], others.row_strides()[1]);
        return others.rows(|[to, from]| {
            for place in 0..others.row_length() {
                let first = [to + place * next_to, from + place * next_from];
                // SAFETY: the loop nest of the other axes and the two axes of the tiles together stay within both operands; the caller
                // guarantees the rest.
                unsafe { copy_transposed::<T>(source, target, first, &nest, along) };
            }
        });
    }
    let [to_next, from_next] = nest.row_strides();
    nest.parts_in_parallel(parallel::LIGHT, &|part, start| {
        part.planes(&mut |first, axis| {
            let to = output::<T>(target, start[0] + first[0], 1).first;
            let from = input::<T>(source, start[1] + first[1], 1).first;
            let [to_row, from_row] = axis.strides;
            let shape = [axis.size, part.row_length()];
            // SAFETY: the loop nest stays within both operands; the caller guarantees the rest.
            unsafe { copy_plane(shape, (to, [to_row, to_next]), (from, [from_row, from_next])) };
        });
    });
}

/// Copies the rows of `nest` for each index of the axis `along`, from these offsets on, in tiles.
///
/// # Safety
///
/// * As for [`copy_nest`], whose loop nest this is; with these offsets, all rows lie within the operands.
unsafe fn copy_transposed<T: Copy + Send + Sync>(
    source: &Operand,
    target: &Operand,
    [to, from]: [usize; 2],
    nest: &LoopNest<2>,
    along: Axis<2>,
) {
    let (length, [_, skip]) = (nest.row_length(), nest.row_strides());
    parallel::ranges(along.size.div_ceil(TILE), TILE * length, |tiles| {
        for tile in tiles {
            let lines = tile * TILE..((tile + 1) * TILE).min(along.size);
            for first in (0..length).step_by(TILE) {
                for line in lines.clone() {
                    let out = output::<T>(target, to + line * along.strides[0] + first, 1);
                    let row = input::<T>(source, from + line + first * skip, skip);
                    for i in 0..TILE.min(length - first) {
                        // SAFETY: the tiles stay within the rows; the caller guarantees the rest.
                        let element = unsafe { row.get(i) };
                        // SAFETY: as above, for the target.
                        unsafe { out.set(i, element) };
                    }
                }
            }
        }
    });
}

/// Fills `target` with `value`; see [`Stream::fill`](streamvm_ep::Stream::fill).
pub fn fill(target: &mut Operand, value: Scalar) -> Result<(), Error> {
    check_fill(target, value)?;
    let dtype = target.dtype();
    let bits = value.element_bits(dtype).ok_or(Error::ScalarDoesNotFit { value, dtype })?;
    // For every arm: the target holds elements of this size, aligned, may be written and reaches no element twice.
    match dtype.size() {
        // SAFETY: see above.
        1 => unsafe { fill_nest(target, bits as u8) },
        // SAFETY: see above.
        2 => unsafe { fill_nest(target, bits as u16) },
        // SAFETY: see above.
        4 => unsafe { fill_nest(target, bits as u32) },
        // SAFETY: see above.
        _ => unsafe { fill_nest(target, bits) },
    }
    Ok(())
}

/// # Safety
///
/// * `target` holds elements stored as `T`, aligned.
/// * It may be written, and reaches no element twice.
unsafe fn fill_nest<T: Copy + Send + Sync>(target: &Operand, value: T) {
    let nest = LoopNest::new([target.layout()]);
    let [stride] = nest.row_strides();
    nest.rows_in_parallel(parallel::LIGHT, |[to], length| {
        let out = output::<T>(target, to, stride);
        // SAFETY: the loop nest stays within the target; the caller guarantees the rest.
        unsafe { rows::fill(length, out, value) };
    });
}
