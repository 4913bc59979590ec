//! The functions of `gemm` that multiply matrices, by the type of their elements.

use gemm_common::Parallelism;

/// The types that the crates of `gemm` multiply.
pub(super) trait Gemm: Sized {
    /// The function for this processor. Its matrices are rows, columns, depth, then the result, whether it is read, the left and the right
    /// factor, each with the strides of its columns and rows; the factors of the old result and of the product; conjugations, and threads.
    fn function() -> GemmFunction<Self>;
}

pub(super) type GemmFunction<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    Parallelism,
);

impl Gemm for f32 {
    fn function() -> GemmFunction<f32> {
        gemm_f32::gemm::f32::get_gemm_fn()
    }
}

impl Gemm for f64 {
    fn function() -> GemmFunction<f64> {
        gemm_f64::gemm::f64::get_gemm_fn()
    }
}
