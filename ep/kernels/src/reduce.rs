//! Reductions over axes: sum, mean, product, variance, standard deviation, largest, smallest, any, all.
//!
//! The axes of the input are either kept, so that the output has them too, or reduced. [`TILE`] output elements are folded at a time, in two ways, so that memory is always read
//! in its order:
//!
//! * If the innermost run of memory is reduced, each output element folds its elements one after the other.
//! * If it is kept, the output elements fold side by side.
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

use pulp::{Simd, WithSimd};
use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::{Axes, KernelCall, KernelError, Layout, Op, Operand, Params};

use crate::folds::{self, Extreme, FoldRows};
use crate::loop_nest::LoopNest;
use crate::number::{DTypeTag, Float, Number};
use crate::rows::{InRow, OutRow, input, output};
use crate::{parallel, simd_dispatch};

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
    /// An element as it is folded.
    type Element: Copy;
    /// The state of a fold.
    type State: Copy + Send + Sync;
    const OP: Op;
    /// The state before the first element.
    const START: Self::State;

    fn step(state: Self::State, element: Self::Element) -> Self::State;
    fn join(left: Self::State, right: Self::State) -> Self::State;

    fn element(stored: T) -> Self::Element;

    /// Folds a row into `state`.
    ///
    /// # Safety
    ///
    /// * The first `length` elements of `row` are as [`InRow::get`] requires.
    unsafe fn row<V: Simd>(simd: V, state: Self::State, length: usize, row: InRow<T>) -> Self::State;

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

macro_rules! folds {
    ($($name:ident of $bound:ident: $state:ty, $start:expr, |$folded:ident, $x:ident| $step:expr, $join:path,
        |$whole:ident, $count:ident| $finish:expr $(, scaled |$sum:ident, $terms:ident| $scaled:expr)?;)*) => {$(
        pub(super) struct $name;

        impl<T: $bound> Fold<T> for $name {
            type Element = T::Computed;
            type State = $state;
            const OP: Op = Op::$name;
            const START: $state = $start;

            #[inline(always)]
            fn step($folded: $state, $x: T::Computed) -> $state {
                $step
            }

            #[inline(always)]
            fn join(left: $state, right: $state) -> $state {
                $join(left, right)
            }

            #[inline(always)]
            fn element(stored: T) -> T::Computed {
                stored.computed()
            }

            #[inline(always)]
            unsafe fn row<V: Simd>(simd: V, state: $state, length: usize, row: InRow<T>) -> $state {
                let (states, step) = ((state, $start), |$folded: $state, [$x]: [T::Computed; 1]| $step);
                // SAFETY: the caller guarantees this.
                unsafe { FoldRows::new(length, [row], states, step, $join) }.with_simd(simd)
            }

            fn finish($whole: $state, $count: usize) -> T {
                $finish
            }

            $(
                /// The difference of a value with itself is NaN exactly if it is not finite.
                #[inline(always)]
                fn overflowed(sum: $state) -> bool {
                    T::SUM_OVERFLOWS && sum.sub(sum).is_nan()
                }

                fn finish_scaled($sum: f64, $terms: usize) -> Option<T> {
                    Some(T::from_f64($scaled))
                }
            )?
        }
    )*};
}

folds! {
    Sum of Number: T::Sum, T::Sum::ZERO, |sum, x| sum.add(T::sum_of(x)), Number::add, |sum, _count| T::from_sum(sum),
        scaled |sum, _count| sum / SCALE;
    Prod of Number: T::Sum, T::Sum::ONE, |product, x| product.mul(T::sum_of(x)), Number::mul, |product, _count| T::from_sum(product);
    Mean of Float: T::Sum, T::Sum::ZERO, |sum, x| sum.add(T::sum_of(x)), Number::add, |sum, count| T::mean(sum, count),
        scaled |sum, count| sum / count as f64 / SCALE;
    Var of Float: Moments, Moments::NONE, |before, x| before.with(x.to_f64()), Moments::and, |all, _count| T::from_f64(all.variance());
    Std of Float: Moments, Moments::NONE, |before, x| before.with(x.to_f64()), Moments::and, |all, _count| T::from_f64(all.variance().sqrt());
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

/// Folds whose state is an element as it is stored. Bools are bytes that are 0 or 1.
macro_rules! extremes {
    ($($name:ident $op:ident $method:ident $better:ident $start:ident;)*) => {$(
        pub(super) struct $name;

        impl<T: Number> Fold<T> for $name {
            type Element = T;
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
            fn element(stored: T) -> T {
                stored
            }

            #[inline(always)]
            unsafe fn row<V: Simd>(simd: V, state: T, length: usize, row: InRow<T>) -> T {
                // SAFETY: the caller guarantees this.
                state.$method(unsafe { Extreme::new(length, row, T::$start, $better) }.with_simd(simd))
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
    Any Any max larger ZERO;
    All All min smaller ONE;
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
    let ([out_stride, kept_stride], [stride]) = (kept.row_strides(), reduced.row_strides());
    let is_side_by_side = kept_stride == 1 && kept.row_length() > 1 && stride != 1;
    // Few outputs are folded one after the other, each by all threads.
    let work = if !is_side_by_side && out.layout().elements() < FEW { 0 } else { count };
    kept.rows_in_parallel(work, |[to, from], outputs| {
        for first in (0..outputs).step_by(TILE) {
            let mut states = [F::START; TILE];
            let states = &mut states[..TILE.min(outputs - first)];
            let from = from + first * kept_stride;
            reduced.rows(|[within]| {
                let (row, length) = (input(a, from + within, stride), reduced.row_length());
                // For both: the loop nests together stay within the input, which holds `D` and does not overlap the output.
                if is_side_by_side {
                    // SAFETY: see above; the stride along the kept row is 1.
                    unsafe { fold_columns::<_, F>(length, row, states) };
                } else {
                    // SAFETY: see above.
                    unsafe { fold_rows::<_, F>(length, row, kept_stride, states) };
                }
            });
            let out = output(out, to + first * out_stride, out_stride);
            for (place, &state) in states.iter().enumerate() {
                let result = result::<D::Store, F>(state, count, a, from + place * kept_stride, &reduced);
                // SAFETY: the loop nest stays within the output, which holds `D` and may be written.
                unsafe { out.set(place, result) };
            }
        }
    });
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

/// Folds rows into `states`, each of which begins `next` elements after the one before; long ones in blocks whose states are joined in their order. Several threads fold the blocks of a long
/// row.
///
/// # Safety
///
/// * The first `length` elements of each row are as [`InRow::get`] requires.
unsafe fn fold_rows<T: Number, F: Fold<T>>(length: usize, row: InRow<T>, next: usize, states: &mut [F::State]) {
    if length <= BLOCK {
        // SAFETY: the caller guarantees this.
        return simd_dispatch::run(unsafe { ShortRows::<_, F>::new(length, row, next, states) });
    }
    for (place, state) in states.iter_mut().enumerate() {
        let row = InRow { first: row.first.wrapping_add(place * next), ..row };
        let block = |length, row| {
            let mut state = [F::START];
            // SAFETY: `fold_blocks` calls it for parts of the row, which the caller guarantees.
            simd_dispatch::run(unsafe { ShortRows::<_, F>::new(length, row, 0, &mut state) });
            state[0]
        };
        *state = fold_blocks(length, row, F::START, block).into_iter().fold(*state, F::join);
    }
}

/// [`fold_rows`] of short rows.
struct ShortRows<'a, T: Number, F: Fold<T>> {
    length: usize,
    row: InRow<T>,
    next: usize,
    states: &'a mut [F::State],
}

impl<'a, T: Number, F: Fold<T>> ShortRows<'a, T, F> {
    /// # Safety
    ///
    /// * As long as the value exists, the requirements of [`fold_rows`] hold.
    #[inline(always)]
    unsafe fn new(length: usize, row: InRow<T>, next: usize, states: &'a mut [F::State]) -> Self {
        ShortRows { length, row, next, states }
    }
}

impl<T: Number, F: Fold<T>> WithSimd for ShortRows<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<V: Simd>(self, simd: V) {
        let mut row = self.row;
        for state in self.states {
            // SAFETY: the caller of `new` guarantees this.
            *state = unsafe { F::row(simd, *state, self.length, row) };
            row.first = row.first.wrapping_add(self.next);
        }
    }
}

/// Folds columns side by side, one for each state: of `length` rows, whose stride is that from row to row.
///
/// # Safety
///
/// * As many elements of each row as there are states, side by side, are as [`InRow::get`] requires.
unsafe fn fold_columns<T: Number, F: Fold<T>>(length: usize, rows: InRow<T>, states: &mut [F::State]) {
    for place in 0..length {
        // SAFETY: the caller guarantees the elements, and nothing writes them while they are borrowed.
        let elements = unsafe { std::slice::from_raw_parts(rows.from(place).first, states.len()) };
        for (state, &element) in states.iter_mut().zip(elements) {
            *state = F::step(*state, F::element(element));
        }
    }
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
        let step = |sum: f64, [x]: [T::Computed; 1]| sum + x.to_f64() * SCALE;
        // SAFETY: the loop nest visits the elements that the caller has folded; the input holds `T` and does not overlap the output.
        sum = unsafe { folds::fold(reduced.row_length(), [row], (sum, 0.0), step, Number::add) };
    });
    sum
}
