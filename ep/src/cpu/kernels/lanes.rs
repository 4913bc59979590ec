//! Arrays of what a function gives for each lane of a block.

/// The results of `f` for `0..N`, in this order; `f` is called once more for the first one.
///
/// `std::array::from_fn` reaches its closure by a function that is not marked `#[inline]`. A build with several codegen units, as Cargo's default release profile
/// has them, may leave that call in the innermost loops: there is then a call for each element, and code that is not compiled for the vectors of the processor.
#[inline(always)]
pub(super) fn array<const N: usize, T: Copy>(f: impl Fn(usize) -> T) -> [T; N] {
    let mut results = [f(0); N];
    for (lane, result) in results.iter_mut().enumerate().skip(1) {
        *result = f(lane);
    }
    results
}
