//! The index of the largest, or smallest, element on one axis: the first of equal elements; a NaN counts as the one that is looked for.
//!
//! In contiguous memory the element is found first, side by side in vectors, and then its place.

use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::{DType, KernelCall, KernelError, Op};

use crate::folds;
use crate::number::{DTypeTag, Number};
use crate::reduce::{BLOCK, FEW, Largest, Smallest, fold_blocks, kept_nest, larger, smaller};
use crate::rows::{InRow, output};

/// Which element is looked for.
pub(super) trait Extreme<T: Number> {
    const OP: Op;
    /// No element is better, unless it is NaN.
    const WORST: T;

    /// Whether `x` comes before `y`; NaN comes before nothing.
    fn is_better(x: T, y: T) -> bool;
    /// The element that is looked for, of a row.
    ///
    /// # Safety
    ///
    /// * The first `length` elements of `row` are as [`InRow::get`] requires.
    unsafe fn of_row(length: usize, row: InRow<T>) -> T;
}

macro_rules! extremes {
    ($($extreme:ident $op:ident $worst:ident $compare:tt $better:ident;)*) => {$(
        impl<T: Number> Extreme<T> for $extreme {
            const OP: Op = Op::$op;
            const WORST: T = T::$worst;

            #[inline(always)]
            fn is_better(x: T, y: T) -> bool {
                x.compared() $compare y.compared()
            }

            unsafe fn of_row(length: usize, row: InRow<T>) -> T {
                // SAFETY: the caller guarantees this.
                unsafe { folds::extreme(length, row, T::$worst, $better) }
            }
        }
    )*};
}

extremes! {
    Largest ArgMax LOWEST > larger;
    Smallest ArgMin HIGHEST < smaller;
}

/// The kernel of [`Op::ArgMax`] and [`Op::ArgMin`].
pub(super) fn arg_extreme<D: DTypeTag, E: Extreme<D::Store>>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    // SAFETY: the function is for elements of `D`.
    unsafe { run(call, D::DTYPE, E::OP, first_extreme::<D::Store, E>) }
}

/// Writes what `find` returns for the length, the first element and the stride of each row. It is compiled once for all dtypes.
///
/// # Safety
///
/// * `find` may be called with a row of elements of `dtype` that is not empty.
unsafe fn run(
    call: &mut KernelCall<'_, '_>,
    dtype: DType,
    op: Op,
    find: unsafe fn(usize, *const u8, usize) -> usize,
) -> Result<(), KernelError> {
    let ([a], out) = checked_operands(call, [dtype], DType::I64, InPlace::Refused)?;
    check_inferred(op, [a], out, call)?;
    let kept = kept_nest(a.layout(), out.layout(), call.params);
    let [out_stride, kept_stride] = kept.row_strides();
    for axis in call.params.axes.iter() {
        let length = a.layout().shape().dims()[axis];
        let stride = a.layout().strides()[axis];
        // Few outputs are found one after the other, each by all threads.
        let work = if out.layout().elements() < FEW { 0 } else { length };
        kept.rows_in_parallel(work, |[to, from], outputs| {
            let out = output::<i64>(out, to, out_stride);
            for place in 0..outputs {
                let row = a.ptr().cast_const().wrapping_add((from + place * kept_stride) * dtype.size());
                // SAFETY: the loop nest and the axis stay within the input, which holds `dtype`. The axis has elements, because inference
                // refuses an empty one.
                let index = unsafe { find(length, row, stride) };
                // SAFETY: the loop nest stays within the output, which holds `i64` and may be written.
                unsafe { out.set(place, index as i64) };
            }
        });
    }
    Ok(())
}

/// The first index of the element that is looked for: of the first block that no other block is better than.
///
/// # Safety
///
/// * `length` is not 0.
/// * The first `length` elements of `T` from `first` on, `stride` elements apart, are as [`InRow::get`] requires.
unsafe fn first_extreme<T: Number, E: Extreme<T>>(length: usize, first: *const u8, stride: usize) -> usize {
    let row = InRow::<T> { first: first.cast(), stride };
    if row.stride != 1 {
        // SAFETY: the caller guarantees this.
        return unsafe { one_by_one::<T, E>(length, row) };
    }
    if length <= BLOCK {
        // SAFETY: the caller guarantees this.
        let extreme = unsafe { E::of_row(length, row) };
        // SAFETY: the caller guarantees this.
        return unsafe { first_equal(length, row, extreme) };
    }
    // SAFETY: `fold_blocks` calls it for parts of the row, which the caller guarantees.
    let blocks = fold_blocks(length, row, E::WORST, |length, row| unsafe { E::of_row(length, row) });
    let states = InRow { first: blocks.as_ptr(), stride: 1 };
    // SAFETY: the states outlive the call.
    let block = unsafe { one_by_one::<T, E>(blocks.len(), states) };
    let first = block * BLOCK;
    // SAFETY: the caller guarantees the elements of this block.
    first + unsafe { first_equal(BLOCK.min(length - first), row.from(first), blocks[block]) }
}

/// The first index of `extreme`, which is in the row; a NaN is any NaN.
///
/// # Safety
///
/// * The first `length` elements of `row` are as [`InRow::get`] requires.
unsafe fn first_equal<T: Number>(length: usize, row: InRow<T>, extreme: T) -> usize {
    match extreme.is_nan() {
        // SAFETY: the caller guarantees this.
        true => unsafe { folds::position(length, row, T::is_nan) },
        // SAFETY: as above.
        false => unsafe { folds::position(length, row, |x| x.compared() == extreme.compared()) },
    }
}

/// [`first_extreme`] for any stride.
///
/// # Safety
///
/// * As for [`first_extreme`].
unsafe fn one_by_one<T: Number, E: Extreme<T>>(length: usize, row: InRow<T>) -> usize {
    // SAFETY: the caller guarantees this.
    let mut extreme = unsafe { row.get(0) };
    let mut found = 0;
    for index in 1..length {
        if extreme.is_nan() {
            break;
        }
        // SAFETY: the caller guarantees this for every index below `length`, and `index < length`.
        let element = unsafe { row.get(index) };
        if E::is_better(element, extreme) || element.is_nan() {
            extreme = element;
            found = index;
        }
    }
    found
}
