//! Runs loops with the widest vectors of the processor.
//!
//! A program is compiled for the oldest processor that it must support, whose vectors may be half as wide as those of the processor that
//! it runs on. So the innermost loops are compiled for several vector widths, and one is selected at run time. Each variant computes an
//! element by the same operations in the same order, so the results have the same bits.

use std::sync::LazyLock;

use pulp::{Arch, WithSimd};

/// The features of the processor, detected once.
static PROCESSOR: LazyLock<Arch> = LazyLock::new(Arch::new);

/// Runs a loop. Its `with_simd` must be `#[inline(always)]`: code that is not inlined there is compiled for the oldest processor.
#[inline(always)]
pub(super) fn run<L: WithSimd>(it: L) -> L::Output {
    PROCESSOR.dispatch(it)
}
