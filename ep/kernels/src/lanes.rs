//! Arrays of what a function gives for each lane of a block.

/// The results of `f` for `0..N`, in this order. `f` is called once more for 0, so that there is an array to begin with.
///
/// `std::array::from_fn` calls its closure through a function that is not marked `#[inline]`. A build with several codegen units may leave that
/// call in the innermost loops: then there is a call for each element, and it is compiled for the oldest processor.
#[inline(always)]
pub(super) fn array<const N: usize, T: Copy>(f: impl Fn(usize) -> T) -> [T; N] {
    let mut results = [f(0); N];
    // From 0 on: a loop over 15 of 16 lanes is not vectorised.
    for (lane, result) in results.iter_mut().enumerate() {
        *result = f(lane);
    }
    results
}
