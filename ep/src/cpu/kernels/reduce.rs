//! Reductions over axes: sum, mean, largest, smallest.
//!
//! The axes of the input fall into kept ones, which the output has too, and reduced ones. Two ways
//! through them: if the innermost run of memory is reduced, each output element folds its elements
//! in turn; if it is kept, [`TILE`] output elements fold side by side, so that memory is read in its
//! order either way. Sums of `f32` are kept in `f64`, those of 16-bit floats in `f32`, and rounded once,
//! so the order of adding, which depends on the layout, hardly shows; an `f64` sum can differ in its last
//! bits between layouts.

use crate::check::{InPlace, inferred, operands};
use crate::cpu::kernels::elementwise::{input, output};
use crate::cpu::kernels::number::{Float, Number, Tag};
use crate::cpu::kernels::rows::{self, In};
use crate::cpu::kernels::walk::Walk;
use crate::error::KernelError;
use crate::kernel::KernelCall;
use crate::layout::Layout;
use crate::op::Op;
use crate::operand::Operand;
use crate::params::{Axes, Params};

/// Output elements that fold side by side: 512 bytes of `f64` states, a quarter of the smallest L1
/// cache's ways, and long enough for the loop over it to run at vector speed.
const TILE: usize = 64;

/// How a reduction folds elements of type `T`.
pub(super) trait Fold<T: Number> {
    /// What is kept while folding.
    type State: Copy;
    const OP: Op;
    /// The state of no elements.
    const START: Self::State;

    fn step(state: Self::State, element: T) -> Self::State;
    fn join(left: Self::State, right: Self::State) -> Self::State;
    /// The result for `count` elements.
    fn finish(state: Self::State, count: usize) -> T;
}

pub(super) struct Sum;

impl<T: Number> Fold<T> for Sum {
    type State = T::Sum;
    const OP: Op = Op::Sum;
    const START: T::Sum = T::Sum::ZERO;

    #[inline(always)]
    fn step(state: T::Sum, element: T) -> T::Sum {
        state.add(element.widen())
    }

    #[inline(always)]
    fn join(left: T::Sum, right: T::Sum) -> T::Sum {
        left.add(right)
    }

    fn finish(state: T::Sum, _count: usize) -> T {
        T::narrow(state)
    }
}

pub(super) struct Mean;

impl<T: Float> Fold<T> for Mean {
    type State = T::Sum;
    const OP: Op = Op::Mean;
    const START: T::Sum = T::Sum::ZERO;

    #[inline(always)]
    fn step(state: T::Sum, element: T) -> T::Sum {
        state.add(element.widen())
    }

    #[inline(always)]
    fn join(left: T::Sum, right: T::Sum) -> T::Sum {
        left.add(right)
    }

    fn finish(state: T::Sum, count: usize) -> T {
        T::mean(state, count)
    }
}

macro_rules! extremes {
    ($($name:ident $op:ident $method:ident $start:ident;)*) => {$(
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

            fn finish(state: T, _count: usize) -> T {
                state
            }
        }
    )*};
}

extremes! {
    Largest ReduceMax max LOWEST;
    Smallest ReduceMin min HIGHEST;
}

/// The kernel of a reduction.
pub(super) fn reduce<D: Tag, F: Fold<D::Store>>(call: &mut KernelCall<'_>) -> Result<(), KernelError> {
    let ([a], out) = operands(call, [D::DTYPE], D::DTYPE, InPlace::Refused)?;
    inferred(F::OP, [a], out, call)?;
    let kept = kept_walk(a.layout(), out.layout(), call.params);
    let axes = call.params.axes.or_all(a.layout().shape().rank());
    let reduced = reduced_walk(a.layout(), axes);
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

/// Over the kept axes: operand 0 is the output, operand 1 the input.
pub(super) fn kept_walk(a: &Layout, out: &Layout, params: &Params) -> Walk<2> {
    let axes = params.axes.or_all(a.shape().rank());
    let mut place = 0;
    Walk::over((0..a.shape().rank()).filter_map(|axis| {
        if axes.contains(axis) {
            place += usize::from(params.keep_dims);
            return None;
        }
        let strides = [out.strides()[place], a.strides()[axis]];
        place += 1;
        Some((a.shape().dims()[axis], strides))
    }))
}

/// Over the reduced axes of the input.
fn reduced_walk(a: &Layout, axes: Axes) -> Walk<1> {
    Walk::over(axes.iter().map(|axis| (a.shape().dims()[axis], [a.strides()[axis]])))
}

fn one_by_one<T: Number, F: Fold<T>>(a: &Operand, out: &Operand, kept: &Walk<2>, reduced: &Walk<1>, count: usize) {
    let [out_stride, kept_stride] = kept.row_strides();
    let [stride] = reduced.row_strides();
    kept.rows(|[to, from]| {
        let out = output::<T>(out, to, out_stride);
        for place in 0..kept.row_length() {
            let mut state = F::START;
            reduced.rows(|[within]| {
                let row = input::<T>(a, from + place * kept_stride + within, stride);
                let length = reduced.row_length();
                // SAFETY: both walks together stay within the input, which holds `T` and does not
                // meet the output.
                state = unsafe { rows::fold(length, row, state, F::START, F::step, F::join) };
            });
            // SAFETY: the walk stays within the output, which holds `T` and may be written.
            unsafe { out.set(place, F::finish(state, count)) };
        }
    });
}

fn side_by_side<T: Number, F: Fold<T>>(a: &Operand, out: &Operand, kept: &Walk<2>, reduced: &Walk<1>, count: usize) {
    let [out_stride, _] = kept.row_strides();
    let [stride] = reduced.row_strides();
    kept.rows(|[to, from]| {
        let mut first = 0;
        while first < kept.row_length() {
            let width = TILE.min(kept.row_length() - first);
            let mut states = [F::START; TILE];
            let states = &mut states[..width];
            reduced.rows(|[within]| {
                let column: In<T> = input(a, from + first + within, stride);
                for step in 0..reduced.row_length() {
                    let row = column.first.wrapping_add(step * stride);
                    // SAFETY: both walks together stay within the input, which holds `T`, does not
                    // meet the output, and has stride 1 along the kept row.
                    unsafe { rows::fold_each(states, row, F::step) };
                }
            });
            let out = output::<T>(out, to + first * out_stride, out_stride);
            for (place, &state) in states.iter().enumerate() {
                // SAFETY: the walk stays within the output, which holds `T` and may be written.
                unsafe { out.set(place, F::finish(state, count)) };
            }
            first += width;
        }
    });
}
