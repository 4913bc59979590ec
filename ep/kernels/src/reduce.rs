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

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use pulp::{Simd, WithSimd};
use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::{Axes, DType, KernelCall, KernelError, Layout, Op, Operand, Params};

use crate::folds::{self, Extreme, FoldRows};
use crate::loop_nest::LoopNest;
use crate::number::{DTypeTag, Float, Number};
use crate::rows::{InRow, OutRow};
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
pub(super) fn reduce<D: DTypeTag, F: Fold<D::Store> + 'static>(
    call: &mut KernelCall<'_, '_>,
) -> Result<(), KernelError> {
    let dtype = D::dtype(call);
    // SAFETY: these are the steps of a fold of elements of `D`.
    unsafe { run(call, dtype, F::OP, &Of::<D::Store, F>(PhantomData)) }
}

/// The steps of a [`Fold`], over addresses, so that what calls them is compiled once for all folds.
///
/// # Safety
///
/// * `states` is the address of `states` states of the fold, which nothing else accesses; of each method but [`start`](Steps::start), they are initialised.
/// * The elements of rows are those of the fold, and as [`InRow::get`] requires; those of outputs are as [`OutRow::set`] requires.
trait Steps: Sync {
    fn size_of_state(&self) -> usize;

    /// Writes [`Fold::START`] to `count` states.
    unsafe fn start(&self, states: *mut u8, count: usize);

    /// Folds rows of `length` elements into `count` states; each begins `next` elements after the one before.
    unsafe fn rows(&self, length: usize, row: InRow<u8>, next: usize, states: *mut u8, count: usize);

    /// Folds columns side by side, one for each of `count` states: of `length` rows, whose stride is that from row to row.
    unsafe fn columns(&self, length: usize, rows: InRow<u8>, states: *mut u8, count: usize);

    /// Joins `count` states to one, in their order.
    unsafe fn join(&self, state: *mut u8, states: *const u8, count: usize);

    /// Writes the results of `count` states for `elements` elements each; `scaled` gives the sum of the elements of one, each scaled by [`SCALE`].
    unsafe fn finish(
        &self,
        states: *const u8,
        count: usize,
        elements: usize,
        out: OutRow<u8>,
        scaled: &dyn Fn(usize) -> f64,
    );

    /// Adds the elements of a row, each scaled by [`SCALE`].
    unsafe fn add_scaled(&self, sum: f64, length: usize, row: InRow<u8>) -> f64;
}

/// The steps of the fold `F` of elements of `T`.
struct Of<T, F>(PhantomData<fn() -> (T, F)>);

impl<T: Number, F: Fold<T>> Steps for Of<T, F> {
    fn size_of_state(&self) -> usize {
        const { assert!(size_of::<F::State>() <= size_of::<Slot>() && align_of::<F::State>() <= align_of::<Slot>()) };
        size_of::<F::State>()
    }

    unsafe fn start(&self, states: *mut u8, count: usize) {
        for place in 0..count {
            // SAFETY: the caller guarantees the states.
            let state = unsafe { states.cast::<F::State>().add(place) };
            // SAFETY: as above.
            unsafe { state.write(F::START) };
        }
    }

    unsafe fn rows(&self, length: usize, row: InRow<u8>, next: usize, states: *mut u8, count: usize) {
        // SAFETY: the caller guarantees the states.
        let states = unsafe { std::slice::from_raw_parts_mut(states.cast::<F::State>(), count) };
        // SAFETY: the caller guarantees the rows.
        simd_dispatch::run(unsafe { ShortRows::<T, F>::new(length, typed(row), next, states) });
    }

    unsafe fn columns(&self, length: usize, rows: InRow<u8>, states: *mut u8, count: usize) {
        // SAFETY: the caller guarantees the states.
        let states = unsafe { std::slice::from_raw_parts_mut(states.cast::<F::State>(), count) };
        for place in 0..length {
            let row = typed::<T>(rows).from(place);
            // SAFETY: the caller guarantees the elements, and nothing writes them while they are borrowed.
            let elements = unsafe { std::slice::from_raw_parts(row.first, count) };
            for (state, &element) in states.iter_mut().zip(elements) {
                *state = F::step(*state, F::element(element));
            }
        }
    }

    unsafe fn join(&self, state: *mut u8, states: *const u8, count: usize) {
        // SAFETY: the caller guarantees the states.
        let states = unsafe { std::slice::from_raw_parts(states.cast::<F::State>(), count) };
        // SAFETY: as above.
        let state = unsafe { &mut *state.cast::<F::State>() };
        *state = states.iter().fold(*state, |joined, &next| F::join(joined, next));
    }

    unsafe fn finish(
        &self,
        states: *const u8,
        count: usize,
        elements: usize,
        out: OutRow<u8>,
        scaled: &dyn Fn(usize) -> f64,
    ) {
        // SAFETY: the caller guarantees the states.
        let states = unsafe { std::slice::from_raw_parts(states.cast::<F::State>(), count) };
        let out = OutRow::<T> { first: out.first.cast(), stride: out.stride };
        for (place, &state) in states.iter().enumerate() {
            let scaled = if F::overflowed(state) { F::finish_scaled(scaled(place), elements) } else { None };
            // SAFETY: the caller guarantees the output.
            unsafe { out.set(place, scaled.unwrap_or_else(|| F::finish(state, elements))) };
        }
    }

    #[cold]
    unsafe fn add_scaled(&self, sum: f64, length: usize, row: InRow<u8>) -> f64 {
        let step = |sum: f64, [x]: [T::Computed; 1]| sum + x.to_f64() * SCALE;
        // SAFETY: the caller guarantees the row.
        unsafe { folds::fold(length, [typed::<T>(row)], (sum, 0.0), step, Number::add) }
    }
}

/// Room for a state of any fold.
#[derive(Copy, Clone)]
struct Slot(#[expect(dead_code, reason = "states are read and written through addresses")] [MaybeUninit<u64>; 3]);

impl Slot {
    const EMPTY: Slot = Slot([MaybeUninit::uninit(); 3]);
}

/// The elements of `a`, from element `first` on. Its stride is in elements, though they are addressed as bytes.
fn row_of(a: &Operand, first: usize, stride: usize) -> InRow<u8> {
    row_from(InRow { first: a.ptr().cast_const(), stride }, first, a.dtype().size())
}

/// The row `skipped` elements of `size` bytes after `row` in memory.
fn row_from(row: InRow<u8>, skipped: usize, size: usize) -> InRow<u8> {
    InRow { first: row.first.wrapping_add(skipped * size), ..row }
}

fn typed<T>(row: InRow<u8>) -> InRow<T> {
    InRow { first: row.first.cast(), stride: row.stride }
}

/// Checks a call and folds what its output needs. It is compiled once for all folds and dtypes.
///
/// # Safety
///
/// * `steps` are those of a fold of elements of `dtype`, whose states fit into [`Slot`]s.
unsafe fn run(call: &mut KernelCall<'_, '_>, dtype: DType, op: Op, steps: &dyn Steps) -> Result<(), KernelError> {
    let ([a], out) = checked_operands(call, [dtype], dtype, InPlace::Refused)?;
    check_inferred(op, [a], out, call)?;
    let kept = kept_nest(a.layout(), out.layout(), call.params);
    let axes = call.params.axes.or_all(a.layout().shape().rank());
    let reduced = reduced_nest(a.layout(), axes);
    let shape = a.layout().shape().dims();
    let elements = axes.iter().map(|axis| shape[axis]).product();
    let ([out_stride, kept_stride], [stride]) = (kept.row_strides(), reduced.row_strides());
    let is_side_by_side = kept_stride == 1 && kept.row_length() > 1 && stride != 1;
    // Few outputs are folded one after the other, each by all threads.
    let work = if !is_side_by_side && out.layout().elements() < FEW { 0 } else { elements };
    let size = dtype.size();
    kept.rows_in_parallel(work, |[to, from], outputs| {
        for first in (0..outputs).step_by(TILE) {
            let mut slots = [Slot::EMPTY; TILE];
            let (states, count) = (slots.as_mut_ptr().cast::<u8>(), TILE.min(outputs - first));
            // SAFETY: there is a slot for each state.
            unsafe { steps.start(states, count) };
            let from = from + first * kept_stride;
            reduced.rows(|[within]| {
                let (row, length) = (row_of(a, from + within, stride), reduced.row_length());
                // For both: the loop nests together stay within the input, which holds `dtype` and does not overlap the output.
                if is_side_by_side {
                    // SAFETY: see above; the stride along the kept row is 1.
                    unsafe { steps.columns(length, row, states, count) };
                } else {
                    // SAFETY: see above.
                    unsafe { fold_rows(steps, length, row, (kept_stride, size), states, count) };
                }
            });
            let results = out.ptr().wrapping_add((to + first * out_stride) * size);
            let scaled = |place| scaled_sum(steps, a, from + place * kept_stride, &reduced);
            // SAFETY: the states are initialised; the loop nest stays within the output, which holds `dtype` and may be written.
            unsafe { steps.finish(states, count, elements, OutRow { first: results, stride: out_stride }, &scaled) };
        }
    });
    Ok(())
}

/// A loop nest over the kept axes: operand 0 is the output, operand 1 the input.
pub(super) fn kept_nest(a: &Layout, out: &Layout, params: &Params) -> LoopNest<2> {
    let axes = params.axes.or_all(a.shape().rank());
    let mut place = 0;
    LoopNest::over(&mut (0..a.shape().rank()).filter_map(|axis| {
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
    LoopNest::over(&mut axes.iter().map(|axis| (a.shape().dims()[axis], [a.strides()[axis]])))
}

/// Folds rows into `count` states, each of which begins `next` elements of `size` bytes after the one before; long ones in blocks whose states are joined in their order. Several
/// threads fold the blocks of a long row.
///
/// # Safety
///
/// * The requirements of [`Steps`] hold for the rows and the states.
unsafe fn fold_rows(
    steps: &dyn Steps,
    length: usize,
    row: InRow<u8>,
    (next, size): (usize, usize),
    states: *mut u8,
    count: usize,
) {
    if length <= BLOCK {
        // SAFETY: the caller guarantees this.
        return unsafe { steps.rows(length, row, next, states, count) };
    }
    for place in 0..count {
        let row = row_from(row, place * next, size);
        let mut blocks = vec![Slot::EMPTY; length.div_ceil(BLOCK)];
        let each = OutRow { first: blocks.as_mut_ptr().cast::<u8>(), stride: steps.size_of_state() };
        parallel::ranges(blocks.len(), BLOCK, |range| {
            for block in range {
                let length = BLOCK.min(length - block * BLOCK);
                let row = row_from(row, block * BLOCK * row.stride, size);
                let state = each.from(block).first;
                // SAFETY: there is a slot for each state, and no other range has this block.
                unsafe { steps.start(state, 1) };
                // SAFETY: the caller guarantees the row, of which this is a part; the state is initialised above.
                unsafe { steps.rows(length, row, 0, state, 1) };
            }
        });
        let state = states.wrapping_add(place * steps.size_of_state());
        // SAFETY: the caller guarantees the state; those of the blocks are initialised above.
        unsafe { steps.join(state, each.first, blocks.len()) };
    }
}

/// [`Steps::rows`] of rows that are not long.
struct ShortRows<'a, T: Number, F: Fold<T>> {
    length: usize,
    row: InRow<T>,
    next: usize,
    states: &'a mut [F::State],
}

impl<'a, T: Number, F: Fold<T>> ShortRows<'a, T, F> {
    /// # Safety
    ///
    /// * As long as the value exists, the requirements of [`Steps`] hold.
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

/// The sum of the elements of `a` that `reduced` visits, starting at `first`, each scaled by [`SCALE`].
#[cold]
fn scaled_sum(steps: &dyn Steps, a: &Operand, first: usize, reduced: &LoopNest<1>) -> f64 {
    let [stride] = reduced.row_strides();
    let mut sum = 0.0;
    reduced.rows(|[within]| {
        // SAFETY: the loop nest visits the elements that the caller has folded; the input holds their dtype and does not overlap the output.
        sum = unsafe { steps.add_scaled(sum, reduced.row_length(), row_of(a, first + within, stride)) };
    });
    sum
}
