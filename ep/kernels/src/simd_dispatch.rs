//! Runs loops with the vectors of the processor.
//!
//! A program is compiled for the oldest processor that it must support, whose vectors may be a quarter as wide as those of the processor
//! that it runs on. So the innermost loops are compiled for several vector widths, and one is selected at run time. Each variant computes
//! an element by the same operations in the same order, so the results have the same bits; products of matrices only where processors have fused multiplications.
//!
//! Long computations use the widest vectors ([`run_wide`]), and light loops at most 256 bits ([`run`]): with AVX-512 the compiler leaves
//! blocks of 16 `f32` as 16 scalar operations, 4 to 8 times as slow, and memory bounds those loops anyway.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use pulp::{Arch, Simd, WithSimd};

/// The features of the processor, detected once.
static PROCESSOR: LazyLock<Arch> = LazyLock::new(|| match NARROW.load(Ordering::Relaxed) {
    #[cfg(target_arch = "x86_64")]
    true => avx2().map_or(Arch::Scalar, Arch::V3),
    _ => Arch::new(),
});

static NARROW: AtomicBool = AtomicBool::new(false);

/// Leaves AVX-512 out. For benches: the same program then shows what a processor without it would do. Without effect once a kernel has run.
#[doc(hidden)]
pub fn leave_avx512_out() {
    NARROW.store(true, Ordering::Relaxed);
}

/// The widest vectors that loops use, for benches.
#[doc(hidden)]
pub fn vectors() -> &'static str {
    match *PROCESSOR {
        #[cfg(target_arch = "x86_64")]
        Arch::V4(_) => "AVX-512",
        #[cfg(target_arch = "x86_64")]
        Arch::V3(_) => "AVX2",
        Arch::Scalar => "none",
        #[allow(unreachable_patterns, reason = "other kinds of processors have other vectors")]
        _ => "those that every processor of this kind has",
    }
}

/// Runs a loop with the widest vectors. Its `with_simd` must be `#[inline(always)]`: code that is not inlined there is compiled for the
/// oldest processor.
#[inline(always)]
pub(super) fn run_wide<L: WithSimd>(it: L) -> L::Output {
    PROCESSOR.dispatch(it)
}

/// Runs a loop with vectors of up to 256 bits; otherwise as [`run_wide`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn run<L: WithSimd>(it: L) -> L::Output {
    match avx2() {
        Some(avx2) => pulp::Simd::vectorize(avx2, it),
        None => pulp::Simd::vectorize(pulp::Scalar::new(), it),
    }
}

/// Runs a loop with vectors of up to 256 bits; otherwise as [`run_wide`].
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(super) fn run<L: WithSimd>(it: L) -> L::Output {
    run_wide(it)
}

/// The index `i` of a loop that the compiler may vectorise; without wide vectors, in a form that keeps it from doing so. Vectors for processors of before 2013 would take a
/// tenth of the time that this crate takes to build.
#[inline(always)]
pub(super) fn one_by_one<S: Simd>(i: usize) -> usize {
    if S::IS_SCALAR { std::hint::black_box(i) } else { i }
}

/// AVX2, FMA and F16C, if the processor has them.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn avx2() -> Option<pulp::x86::V3> {
    static AVX2: LazyLock<Option<pulp::x86::V3>> = LazyLock::new(pulp::x86::V3::try_new);
    *AVX2
}
