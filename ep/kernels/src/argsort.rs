//! The indices of elements in sorted order: of all elements of each row along one axis, or of the first few.

use std::sync::OnceLock;

use streamvm_ep::backend::SortKey;
use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::{DType, KernelCall, KernelError, Operand};

use crate::loop_nest::LoopNest;
use crate::ordered::{self, NoRoom, Ordered};
use crate::reduce::FEW;
use crate::rows::{InRow, OutRow, input, output};

/// The kernel of [`Op::ArgSort`](streamvm_ep::Op::ArgSort) and [`Op::ArgTopK`](streamvm_ep::Op::ArgTopK), for every dtype.
pub(super) fn argsort(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let (op, dtype) = (call.kernel.op, call.kernel.dtype);
    let ([a], out) = checked_operands(call, [dtype], DType::I64, InPlace::Refused)?;
    check_inferred(op, [a], out, call)?;
    for axis in call.params.axes.iter() {
        let (descending, count) = call.params.checked_order(op, a.layout().shape().dims()[axis])?;
        let key = SortKey::new(dtype, descending);
        // Indices need more than 32 bits if there are more.
        let is_short = u32::try_from(a.layout().shape().dims()[axis]).is_ok();
        // For every arm: elements of this size and alignment are read as bits, and `checked_operands` has checked the rest.
        let sorted = match (dtype.size(), is_short) {
            // SAFETY: see above.
            (1, true) => unsafe { places::<u8, u64>(a, out, axis, count, key) },
            // SAFETY: see above.
            (2, true) => unsafe { places::<u16, u64>(a, out, axis, count, key) },
            // SAFETY: see above.
            (4, true) => unsafe { places::<u32, u64>(a, out, axis, count, key) },
            // SAFETY: see above.
            (1, false) => unsafe { places::<u8, u128>(a, out, axis, count, key) },
            // SAFETY: see above.
            (2, false) => unsafe { places::<u16, u128>(a, out, axis, count, key) },
            // SAFETY: see above.
            (4, false) => unsafe { places::<u32, u128>(a, out, axis, count, key) },
            // SAFETY: see above.
            _ => unsafe { places::<u64, u128>(a, out, axis, count, key) },
        };
        sorted.map_err(|wanted| wanted.of(op))?;
    }
    Ok(())
}

/// Writes the indices of the first `count` elements of each row along `axis`.
///
/// # Errors
///
/// There is no memory for the keys. Some indices may have been written.
///
/// # Safety
///
/// * `a` holds elements of the size and alignment of `T`, and `out` holds `i64`. Both are aligned.
/// * `out` may be written, does not overlap `a`, and has the shape of `a`, but `count` elements on the axis, which are not more.
unsafe fn places<T: Copy + Into<u64> + Sync, P: Ordered>(
    a: &Operand,
    out: &Operand,
    axis: usize,
    count: usize,
    key: SortKey,
) -> Result<(), NoRoom> {
    if count == 0 {
        return Ok(());
    }
    let (dims, to, from) = (a.layout().shape().dims(), out.layout().strides(), a.layout().strides());
    let length = dims[axis];
    let others = (0..dims.len()).filter(|&other| other != axis);
    let rows: usize = others.clone().map(|other| dims[other]).product();
    let nest = LoopNest::over(&mut others.map(|other| (dims[other], [to[other], from[other]])));
    let [to_next, from_next] = nest.row_strides();
    // Few rows are sorted one after the other, each by all threads if it is long. Otherwise a comparison is a light operation, and each element has one
    // for each halving of the row.
    let work = if rows < FEW { 0 } else { length.saturating_mul(length.ilog2() as usize + 1) };
    let sort_rows = |[first_to, first_from]: [usize; 2], count_of_rows: usize| -> Result<(), NoRoom> {
        let mut all: Vec<P> = ordered::room(length, "the keys of a row")?;
        for row in 0..count_of_rows {
            let elements = input::<T>(a, first_from + row * from_next, from[axis]);
            let places = output::<i64>(out, first_to + row * to_next, to[axis]);
            all.clear();
            // SAFETY: the loop nest and the axis stay within the input; the caller guarantees the rest.
            unsafe { read(&mut all, length, elements, key) };
            ordered::select(&mut all, count);
            ordered::sort(&mut all[..count], |first, part| {
                // SAFETY: the parts of a row are within the first `count` places, and each place is in one of them; the caller guarantees the rest.
                unsafe { write(places.from(first), part) };
            })?;
        }
        Ok(())
    };
    let failed = OnceLock::new();
    nest.rows_in_parallel(work, |first, count_of_rows| {
        if let Err(error) = sort_rows(first, count_of_rows) {
            failed.get_or_init(|| error);
        }
    });
    failed.into_inner().map_or(Ok(()), Err)
}

/// Appends the keys of a row with their indices. There is room for them.
///
/// # Safety
///
/// * The first `length` elements of `row` are as [`InRow::get`] requires.
unsafe fn read<T: Copy + Into<u64>, P: Ordered>(all: &mut Vec<P>, length: usize, row: InRow<T>, key: SortKey) {
    all.extend((0..length).map(|place| {
        // SAFETY: the caller guarantees this for every place below `length`.
        let element = unsafe { row.get(place) };
        P::new(key.of(element.into()), place)
    }));
}

/// Writes the indices of these elements.
///
/// # Safety
///
/// * As many elements of `row` are as [`OutRow::set`] requires.
unsafe fn write<P: Ordered>(row: OutRow<i64>, sorted: &[P]) {
    for (at, one) in sorted.iter().enumerate() {
        // SAFETY: the caller guarantees this.
        unsafe { row.set(at, one.place() as i64) };
    }
}
