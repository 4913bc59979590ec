//! The functions over tiles, of ops of one, two and three elements.
//!
//! Each is compiled for several kinds of vectors ([`simd_dispatch`]), for each op and each type that it computes in, and for nothing else.

use streamvm_ep::ElementWork;

use crate::arith::{Binary, Ternary, Unary};
use crate::rows::SideBySide;
use crate::rows::{InRow, Map1, Map2, Map3, OutRow};
use crate::simd_dispatch;

#[inline(always)]
fn results<T>(first: *mut u8) -> OutRow<T> {
    OutRow { first: first.cast(), stride: 1 }
}

/// Input `place`, which is one element for all if its bit is in `singles`.
#[inline(always)]
fn input<T>(first: *const u8, place: usize, singles: usize) -> InRow<T> {
    InRow { first: first.cast(), stride: 1 - (singles >> place & 1) }
}

/// An op of one element.
///
/// # Safety
///
/// * As for [`TileFn`](crate::tiles::TileFn), for inputs `T` and results `U::Out`.
pub(super) unsafe fn of_one<T: Copy, U: Unary<T>>(
    count: usize,
    out: *mut u8,
    a: *const u8,
    _: *const u8,
    _: *const u8,
    _: usize,
) {
    let (out, a) = (results::<U::Out>(out), input::<T>(a, 0, 0));
    match U::WORK {
        // SAFETY: the caller guarantees this.
        ElementWork::Light => simd_dispatch::run(unsafe { Map1::new(count, out, a, U::apply) }),
        // SAFETY: as above.
        ElementWork::Long => simd_dispatch::run_wide(unsafe { SideBySide::new(count, out.first, a.first, U::apply) }),
        ElementWork::Call => {
            for i in 0..count {
                // SAFETY: the caller guarantees this for every index below `count`.
                let x = unsafe { a.get(i) };
                // SAFETY: as above.
                unsafe { out.set(i, U::apply(x)) };
            }
        }
    }
}

/// An op of two elements of one type.
///
/// # Safety
///
/// * As for [`of_one`], for two inputs.
pub(super) unsafe fn of_two<T: Copy, B: Binary<T>>(
    count: usize,
    out: *mut u8,
    a: *const u8,
    b: *const u8,
    _: *const u8,
    singles: usize,
) {
    let (out, a, b) = (results::<B::Out>(out), input::<T>(a, 0, singles), input::<T>(b, 1, singles));
    if let ElementWork::Call = B::WORK {
        for i in 0..count {
            // SAFETY: the caller guarantees this for every index below `count`.
            let x = unsafe { a.get(i) };
            // SAFETY: as above.
            let y = unsafe { b.get(i) };
            // SAFETY: as above.
            unsafe { out.set(i, B::apply(x, y)) };
        }
        return;
    }
    // SAFETY: the caller guarantees this.
    let map = unsafe { Map2::new(count, out, a, b, B::apply) };
    // No vectors divide integers.
    simd_dispatch::run(if B::REFUSES.is_some() { map.in_lanes() } else { map });
}

/// An op of three elements, of which the last two have the type of the result.
///
/// # Safety
///
/// * As for [`of_one`], for three inputs.
pub(super) unsafe fn of_three<A: Copy, T: Copy, F: Ternary<A, T>>(
    count: usize,
    out: *mut u8,
    a: *const u8,
    b: *const u8,
    c: *const u8,
    singles: usize,
) {
    let (out, a) = (results::<T>(out), input::<A>(a, 0, singles));
    let (b, c) = (input::<T>(b, 1, singles), input::<T>(c, 2, singles));
    // SAFETY: the caller guarantees this.
    simd_dispatch::run(unsafe { Map3::new(count, out, a, b, c, F::apply) });
}
