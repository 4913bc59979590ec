//! Loops for the vectors that the processor at hand has.
//!
//! A program is compiled for the least processor that it may meet, whose vectors may be half as wide as those of the one that it runs
//! on. So the innermost loops are compiled for both, and chosen among as the program runs. Each element is computed by the same
//! operations in the same order either way: results are the same to the bit.

use std::sync::LazyLock;

use pulp::{Arch, WithSimd};

/// What the processor can do, looked at once.
static PROCESSOR: LazyLock<Arch> = LazyLock::new(Arch::new);

/// Runs a loop. Its `with_simd` is `#[inline(always)]`: what is not inlined there is compiled for the least processor.
#[inline(always)]
pub(super) fn run<L: WithSimd>(it: L) -> L::Output {
    PROCESSOR.dispatch(it)
}
