//! The indices of elements in sorted order: of all elements of each row along one axis, or of the first few.

use std::sync::OnceLock;

use pulp::{Simd, WithSimd};
use streamvm_ep::backend::SortKey;
use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::{DType, KernelCall, KernelError, Operand};

use crate::lanes;
use crate::loop_nest::LoopNest;
use crate::ordered::{self, NoRoom, Ordered};
use crate::reduce::FEW;
use crate::rows::{InRow, OutRow, input, output};
use crate::simd_dispatch;

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
        // Of few elements only those are kept that may be among them.
        let room = 2 * count + FEWEST_KEPT;
        let keeps_few = room <= length / 2;
        let mut all: Vec<P> = ordered::room(if keeps_few { room } else { length }, "the keys of a row")?;
        for row in 0..count_of_rows {
            let elements = input::<T>(a, first_from + row * from_next, from[axis]);
            let places = output::<i64>(out, first_to + row * to_next, to[axis]);
            all.clear();
            if keeps_few {
                simd_dispatch::run(First { all: &mut all, room, count, length, row: elements, key });
            } else {
                // SAFETY: the loop nest and the axis stay within the input; the caller guarantees the rest.
                unsafe { read(&mut all, length, elements, key) };
            }
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

/// The least number of elements that are kept beyond twice those that are wanted.
const FEWEST_KEPT: usize = 512;

/// The elements of which one comparison tells whether one of them is kept.
const AT_ONCE: usize = 32;

/// Fills `all` with some elements of a row, of which the first `count` in order are those of the row. Only `places` makes one, and runs it at once; its caller guarantees the elements.
struct First<'a, T, P> {
    all: &'a mut Vec<P>,
    /// The most elements that are kept. Then all are dropped but the first ones, the last of which bounds those that are kept afterwards: so an element costs a few steps, in
    /// whatever order they come.
    room: usize,
    count: usize,
    length: usize,
    row: InRow<T>,
    key: SortKey,
}

impl<T: Copy + Into<u64>, P: Ordered> First<'_, T, P> {
    /// Keeps an element, and returns the bound for those after it: of equal ones the first is first.
    #[inline(always)]
    fn keep(&mut self, key: u64, place: usize, bound: Option<u64>) -> Option<u64> {
        if bound.is_some_and(|bound| key >= bound) {
            return bound;
        }
        self.all.push(P::new(key, place));
        if self.all.len() < self.room {
            return bound;
        }
        ordered::select(self.all, self.count);
        self.all.truncate(self.count);
        self.all.last().map(|last| last.key())
    }
}

impl<T: Copy + Into<u64>, P: Ordered> WithSimd for First<'_, T, P> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) {
        let (row, key) = (self.row, self.key);
        let key_of = |place: usize| {
            // SAFETY: the caller of `places` guarantees the elements.
            key.of(unsafe { row.get(place) }.into())
        };
        let whole = self.length / AT_ONCE * AT_ONCE;
        let mut bound = None;
        for first in (0..whole).step_by(AT_ONCE) {
            let keys: [u64; AT_ONCE] = lanes::array(|next| key_of(first + next));
            let least = bound.unwrap_or(u64::MAX);
            if bound.is_some() && !keys.iter().fold(false, |any, &key| any | (key < least)) {
                continue;
            }
            for (next, key) in keys.into_iter().enumerate() {
                bound = self.keep(key, first + next, bound);
            }
        }
        for place in whole..self.length {
            bound = self.keep(key_of(place), place, bound);
        }
    }
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

#[cfg(test)]
mod tests {
    use streamvm_ep::{Access, Axes, DeviceKind, Element, Layout, Op, Params, Shape};

    use super::*;

    /// The indices that a kernel gives of every other element of a row.
    fn indices<T: Element>(op: Op, row: &mut [T], params: &Params, count: usize) -> Vec<i64> {
        let kernel = crate::builtin().get(op, DeviceKind::CPU, T::DTYPE).unwrap();
        let dense = |count| Layout::contiguous(Shape::new(&[count]).unwrap());
        let every_other = Layout::contiguous(Shape::new(&[row.len() / 2, 2]).unwrap()).slice(1, 0..1).unwrap();
        let every_other = every_other.reshape(Shape::new(&[row.len() / 2]).unwrap()).unwrap().unwrap();
        let mut found = vec![-1i64; count];
        // SAFETY: the elements outlive the operands, and nothing else uses them meanwhile.
        let input = unsafe { Operand::new(row.as_mut_ptr().cast(), T::DTYPE, every_other, Access::Read) };
        // SAFETY: as above.
        let out = unsafe { Operand::new(found.as_mut_ptr().cast(), DType::I64, dense(count), Access::Write) };
        (kernel.run)(&mut KernelCall::new(kernel, &mut [input, out], 1, params)).unwrap();
        found
    }

    fn check<T: Element>(element: impl Fn(usize) -> T, what: &str) {
        let axis = Axes::new(&[0]).unwrap();
        for length in [1, 700, 1_029, 5_000] {
            let mut row: Vec<T> = (0..2 * length).map(&element).collect();
            for descending in [false, true] {
                let all = indices(Op::ArgSort, &mut row, &Params::sorted(axis, descending), length);
                for count in [1, 10, 300].into_iter().filter(|&count| count <= length) {
                    let first = indices(Op::ArgTopK, &mut row, &Params::top(axis, count, descending), count);
                    assert_eq!(first, all[..count], "{what}: {count} of {length}, descending: {descending}");
                }
            }
        }
    }

    #[test]
    fn the_first_elements_are_those_of_the_whole_order() {
        let mixed = |i: usize| (i * 7_919 % 1_009) as f32 - 500.0;
        check(mixed, "mixed");
        check(|i| if i % 50 == 0 { f32::NAN } else { mixed(i) }, "with NaN");
        check(|i| i as f64, "in order");
        check(|i| -(i as f64), "in the other order");
        check(|i| (i * 7_919 % 11) as u8, "many of the same");
        check(|_| 3i64, "all the same");
    }
}
