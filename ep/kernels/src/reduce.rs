//! Reductions over axes: sum, mean, product, variance, standard deviation, largest, smallest, any, all.
//!
//! The axes of the input are either kept, so that the output has them too, or reduced. There are two loops, so that memory is always read
//! in its order:
//!
//! * If the innermost run of memory is reduced, each output element folds its elements one after the other.
//! * If it is kept, [`TILE`] output elements fold side by side.
//!
//! A long row is folded in blocks of [`BLOCK`] elements, whose results are joined in order. Threads share the outputs, or the blocks if
//! there are few outputs.
//!
//! Sums and products of `f32` are kept in `f64`, those of 16-bit floats in `f32`, and rounded once. So the order, which depends on the layout, hardly
//! shows; an `f64` sum can differ in its last bits between layouts.
//!
//! An intermediate sum can overflow its type although the final sum or mean does not: for `bf16`, whose range is that of `f32`, and for
//! `f64`. The state of such an output element is no longer finite. Its elements are then summed once more, each scaled down by [`SCALE`].
//! This costs a second pass over those elements only, and one test per output element.

use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::{Axes, KernelCall, KernelError, Layout, Op, Operand, Params};

use crate::folds;
use crate::loop_nest::LoopNest;
use crate::number::{DTypeTag, Float, Number};
use crate::parallel;
use crate::rows::{InRow, OutRow, input, output};

/// The number of output elements that are folded side by side: 512 bytes of `f64` states, a quarter of the smallest L1 cache's ways, and
/// long enough for the loop over them to run at vector speed.
const TILE: usize = 64;

/// The elements of a block of a long row: 64 KiB of `f32`. A row is divided here for any number of threads, so that sums have the same
/// bits.
pub(super) const BLOCK: usize = 1 << 14;

/// Fewer outputs than this do not keep the threads of a usual processor busy.
pub(super) const FEW: usize = 8;

/// The factor that keeps sums within the range of `f64`: 2^-64, because no tensor has 2^64 elements. Scaling by a power of two is exact,
/// except for an element smaller than 2^-958, which is negligible in a sum that overflowed.
const SCALE: f64 = 1.0 / 18_446_744_073_709_551_616.0;

/// The fold of a reduction over elements of type `T`.
pub(super) trait Fold<T: Number> {
    /// The state of a fold.
    type State: Copy + Send + Sync;
    const OP: Op;
    /// The state before the first element.
    const START: Self::State;

    fn step(state: Self::State, element: T) -> Self::State;
    fn join(left: Self::State, right: Self::State) -> Self::State;

    /// Folds a row into `state`.
    ///
    /// # Safety
    ///
    /// * The first `length` elements of `row` are as [`InRow::get`] requires.
    #[inline(always)]
    unsafe fn row(state: Self::State, length: usize, row: InRow<T>) -> Self::State {
        // SAFETY: the caller guarantees this.
        unsafe { folds::fold(length, row, state, Self::START, Self::step, Self::join) }
    }

    /// The result for `count` elements.
    fn finish(state: Self::State, count: usize) -> T;

    /// Whether the state may have overflowed, so that only [`Fold::finish_scaled`] can give the result. Also true if an element is not
    /// finite.
    #[inline(always)]
    fn overflowed(_state: Self::State) -> bool {
        false
    }

    /// The result for `count` elements whose scaled sum, by [`SCALE`], is `sum`. Only for folds that can overflow.
    fn finish_scaled(_sum: f64, _count: usize) -> Option<T> {
        None
    }
}

/// Whether sums of `T` can overflow and this one is not finite. The difference of a value with itself is NaN exactly if it is not finite.
#[inline(always)]
fn sum_overflowed<T: Number>(sum: T::Sum) -> bool {
    T::SUM_OVERFLOWS && sum.sub(sum).is_nan()
}

pub(super) struct Sum;

impl<T: Number> Fold<T> for Sum {
    type State = T::Sum;
    const OP: Op = Op::Sum;
    const START: T::Sum = T::Sum::ZERO;

    #[inline(always)]
    fn step(state: T::Sum, element: T) -> T::Sum {
        state.add(element.to_sum())
    }

    #[inline(always)]
    fn join(left: T::Sum, right: T::Sum) -> T::Sum {
        left.add(right)
    }

    fn finish(state: T::Sum, _count: usize) -> T {
        T::from_sum(state)
    }

    #[inline(always)]
    fn overflowed(state: T::Sum) -> bool {
        sum_overflowed::<T>(state)
    }

    fn finish_scaled(sum: f64, _count: usize) -> Option<T> {
        Some(T::from_f64(sum / SCALE))
    }
}

pub(super) struct Prod;

impl<T: Number> Fold<T> for Prod {
    type State = T::Sum;
    const OP: Op = Op::Prod;
    const START: T::Sum = T::Sum::ONE;

    #[inline(always)]
    fn step(state: T::Sum, element: T) -> T::Sum {
        state.mul(element.to_sum())
    }

    #[inline(always)]
    fn join(left: T::Sum, right: T::Sum) -> T::Sum {
        left.mul(right)
    }

    fn finish(state: T::Sum, _count: usize) -> T {
        T::from_sum(state)
    }
}

pub(super) struct Mean;

impl<T: Float> Fold<T> for Mean {
    type State = T::Sum;
    const OP: Op = Op::Mean;
    const START: T::Sum = T::Sum::ZERO;

    #[inline(always)]
    fn step(state: T::Sum, element: T) -> T::Sum {
        state.add(element.to_sum())
    }

    #[inline(always)]
    fn join(left: T::Sum, right: T::Sum) -> T::Sum {
        left.add(right)
    }

    fn finish(state: T::Sum, count: usize) -> T {
        T::mean(state, count)
    }

    #[inline(always)]
    fn overflowed(state: T::Sum) -> bool {
        sum_overflowed::<T>(state)
    }

    fn finish_scaled(sum: f64, count: usize) -> Option<T> {
        Some(T::from_f64(sum / count as f64 / SCALE))
    }
}

/// Mean, and sum of the squares of the differences to it, of some elements.
#[derive(Copy, Clone)]
pub(super) struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Moments {
    const NONE: Moments = Moments { count: 0.0, mean: 0.0, squares: 0.0 };

    /// One more element (Welford, 1962).
    #[inline(always)]
    fn with(self, element: f64) -> Moments {
        let count = self.count + 1.0;
        let before = element - self.mean;
        let mean = self.mean + before / count;
        Moments { count, mean, squares: self.squares + before * (element - mean) }
    }

    /// The elements of both (Chan, Golub and LeVeque, 1979).
    #[inline(always)]
    fn and(self, other: Moments) -> Moments {
        if self.count == 0.0 || other.count == 0.0 {
            return if self.count == 0.0 { other } else { self };
        }
        let count = self.count + other.count;
        let apart = other.mean - self.mean;
        let mean = self.mean + apart * (other.count / count);
        let between = apart * apart * (self.count * (other.count / count));
        Moments { count, mean, squares: self.squares + other.squares + between }
    }

    fn variance(self) -> f64 {
        self.squares / self.count
    }
}

macro_rules! deviations {
    ($($name:ident of $moments:ident: $result:expr;)*) => {$(
        pub(super) struct $name;

        impl<T: Float> Fold<T> for $name {
            type State = Moments;
            const OP: Op = Op::$name;
            const START: Moments = Moments::NONE;

            #[inline(always)]
            fn step(state: Moments, element: T) -> Moments {
                state.with(element.to_f64())
            }

            #[inline(always)]
            fn join(left: Moments, right: Moments) -> Moments {
                left.and(right)
            }

            fn finish($moments: Moments, _count: usize) -> T {
                T::from_f64($result)
            }
        }
    )*};
}

deviations! {
    Var of moments: moments.variance();
    Std of moments: moments.variance().sqrt();
}

macro_rules! extremes {
    ($($name:ident $op:ident $method:ident $better:ident $start:ident;)*) => {$(
        pub(super) struct $name;

        impl<T: Number> Fold<T> for $name {
            type State = T;
            const OP: Op = Op::$op;
            const START: T = T::$start;

            #[inline(always)]
            fn step(state: T, element: T) -> T {
                state.$method(element)
            }

            #[inline(always)]
            fn join(left: T, right: T) -> T {
                left.$method(right)
            }

            #[inline(always)]
            unsafe fn row(state: T, length: usize, row: InRow<T>) -> T {
                // SAFETY: the caller guarantees this.
                state.$method(unsafe { folds::extreme(length, row, T::$start, $better) })
            }

            fn finish(state: T, _count: usize) -> T {
                state
            }
        }
    )*};
}

extremes! {
    Largest ReduceMax max larger LOWEST;
    Smallest ReduceMin min smaller HIGHEST;
}

/// Bools, as bytes that are 0 or 1.
macro_rules! truths {
    ($($name:ident $start:literal $operator:tt;)*) => {$(
        pub(super) struct $name;

        impl Fold<u8> for $name {
            type State = u8;
            const OP: Op = Op::$name;
            const START: u8 = $start;

            #[inline(always)]
            fn step(state: u8, element: u8) -> u8 {
                state $operator element
            }

            #[inline(always)]
            fn join(left: u8, right: u8) -> u8 {
                left $operator right
            }

            fn finish(state: u8, _count: usize) -> u8 {
                state
            }
        }
    )*};
}

truths! {
    Any 0 |;
    All 1 &;
}

#[inline(always)]
pub(super) fn larger<T: Number>(x: T, y: T) -> bool {
    x.exceeds(y)
}

#[inline(always)]
pub(super) fn smaller<T: Number>(x: T, y: T) -> bool {
    y.exceeds(x)
}

/// The kernel of a reduction.
pub(super) fn reduce<D: DTypeTag, F: Fold<D::Store>>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let dtype = D::dtype(call);
    let ([a], out) = checked_operands(call, [dtype], dtype, InPlace::Refused)?;
    check_inferred(F::OP, [a], out, call)?;
    let kept = kept_nest(a.layout(), out.layout(), call.params);
    let axes = call.params.axes.or_all(a.layout().shape().rank());
    let reduced = reduced_nest(a.layout(), axes);
    let shape = a.layout().shape().dims();
    let count = axes.iter().map(|axis| shape[axis]).product();
    let [_, kept_stride] = kept.row_strides();
    let [reduced_stride] = reduced.row_strides();
    if kept_stride == 1 && kept.row_length() > 1 && reduced_stride != 1 {
        side_by_side::<D::Store, F>(a, out, &kept, &reduced, count);
    } else {
        one_by_one::<D::Store, F>(a, out, &kept, &reduced, count);
    }
    Ok(())
}

/// A loop nest over the kept axes: operand 0 is the output, operand 1 the input.
pub(super) fn kept_nest(a: &Layout, out: &Layout, params: &Params) -> LoopNest<2> {
    let axes = params.axes.or_all(a.shape().rank());
    let mut place = 0;
    LoopNest::over((0..a.shape().rank()).filter_map(|axis| {
        if axes.contains(axis) {
            place += usize::from(params.keep_dims);
            return None;
        }
        let strides = [out.strides()[place], a.strides()[axis]];
        place += 1;
        Some((a.shape().dims()[axis], strides))
    }))
}

/// A loop nest over the reduced axes of the input.
fn reduced_nest(a: &Layout, axes: Axes) -> LoopNest<1> {
    LoopNest::over(axes.iter().map(|axis| (a.shape().dims()[axis], [a.strides()[axis]])))
}

fn one_by_one<T: Number, F: Fold<T>>(
    a: &Operand,
    out: &Operand,
    kept: &LoopNest<2>,
    reduced: &LoopNest<1>,
    count: usize,
) {
    let [out_stride, kept_stride] = kept.row_strides();
    let [stride] = reduced.row_strides();
    // Few outputs are folded one after the other, each by all threads.
    let work = if out.layout().elements() < FEW { 0 } else { count };
    kept.rows_in_parallel(work, |[to, from], outputs| {
        let (out, first, length) = (output::<T>(out, to, out_stride), input::<T>(a, from, 1), reduced.row_length());
        for place in 0..outputs {
            let mut state = F::START;
            reduced.rows(|[within]| {
                let row = InRow { stride, ..first.from(place * kept_stride + within) };
                // SAFETY: both loop nests together stay within the input, which holds `T` and does not overlap the output.
                state = unsafe { fold_row::<T, F>(state, length, row) };
            });
            let result = result::<T, F>(state, count, a, from + place * kept_stride, reduced);
            // SAFETY: the loop nest stays within the output, which holds `T` and may be written.
            unsafe { out.set(place, result) };
        }
    });
}

/// Folds a row into `state`, in blocks whose states are joined in their order. Several threads fold the blocks of a long row.
///
/// # Safety
///
/// * The first `length` elements of `row` are as [`InRow::get`] requires.
#[inline(always)]
unsafe fn fold_row<T: Number, F: Fold<T>>(state: F::State, length: usize, row: InRow<T>) -> F::State {
    if length <= BLOCK {
        // SAFETY: the caller guarantees this.
        return unsafe { F::row(state, length, row) };
    }
    // SAFETY: `fold_blocks` calls it for parts of the row, which the caller guarantees.
    let block = |length, row| unsafe { F::row(F::START, length, row) };
    fold_blocks(length, row, F::START, block).into_iter().fold(state, F::join)
}

/// The results of `fold` for the blocks of a row, in order. The caller may pass any state as `unset`: each is overwritten.
#[inline(never)]
pub(super) fn fold_blocks<T: Number, S: Copy + Send + Sync>(
    length: usize,
    row: InRow<T>,
    unset: S,
    fold: impl Fn(usize, InRow<T>) -> S + Sync,
) -> Vec<S> {
    let mut states = vec![unset; length.div_ceil(BLOCK)];
    let out = OutRow { first: states.as_mut_ptr(), stride: 1 };
    parallel::ranges(states.len(), BLOCK, |blocks| {
        for block in blocks {
            let count = BLOCK.min(length - block * BLOCK);
            let state = fold(count, row.from(block * BLOCK));
            // SAFETY: there is a state for each block, and no other range has this block.
            unsafe { out.set(block, state) };
        }
    });
    states
}

/// The result of a fold over the elements of `a` that `reduced` visits, starting at `first`.
#[inline(always)]
fn result<T: Number, F: Fold<T>>(state: F::State, count: usize, a: &Operand, first: usize, reduced: &LoopNest<1>) -> T {
    if F::overflowed(state)
        && let Some(result) = F::finish_scaled(scaled_sum::<T>(a, first, reduced), count)
    {
        return result;
    }
    F::finish(state, count)
}

/// The sum of the elements of `a` that `reduced` visits, starting at `first`, each scaled by [`SCALE`].
#[cold]
fn scaled_sum<T: Number>(a: &Operand, first: usize, reduced: &LoopNest<1>) -> f64 {
    let [stride] = reduced.row_strides();
    let mut sum = 0.0;
    reduced.rows(|[within]| {
        let row = input::<T>(a, first + within, stride);
        let step = |sum: f64, x: T| sum + x.to_f64() * SCALE;
        // SAFETY: the loop nest visits the elements that the caller has folded; the input holds `T` and does not overlap the output.
        sum = unsafe { folds::fold(reduced.row_length(), row, sum, 0.0, step, Number::add) };
    });
    sum
}

fn side_by_side<T: Number, F: Fold<T>>(
    a: &Operand,
    out: &Operand,
    kept: &LoopNest<2>,
    reduced: &LoopNest<1>,
    count: usize,
) {
    let [out_stride, _] = kept.row_strides();
    let [stride] = reduced.row_strides();
    kept.rows_in_parallel(count, |[to, from], outputs| {
        let mut first = 0;
        while first < outputs {
            let width = TILE.min(outputs - first);
            let mut states = [F::START; TILE];
            let states = &mut states[..width];
            reduced.rows(|[within]| {
                let column: InRow<T> = input(a, from + first + within, stride);
                for step in 0..reduced.row_length() {
                    let row = column.first.wrapping_add(step * stride);
                    // SAFETY: both loop nests together stay within the input, which holds `T`, does not overlap the output, and has
                    // stride 1 along the kept row.
                    unsafe { folds::fold_each(states, row, F::step) };
                }
            });
            let out = output::<T>(out, to + first * out_stride, out_stride);
            for (place, &state) in states.iter().enumerate() {
                let result = result::<T, F>(state, count, a, from + first + place, reduced);
                // SAFETY: the loop nest stays within the output, which holds `T` and may be written.
                unsafe { out.set(place, result) };
            }
            first += width;
        }
    });
}
