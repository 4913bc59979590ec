//! A cuBLAS for tests: a library under that name, which hands its calls on to the stand-in for the CUDA driver
//! (`streamvm-standin`, `api/cublas.rs`). That one is loaded by then, as nobody multiplies on a device without a driver.
//!
//! It is a library of its own because a loader tells libraries apart by their names.

#![allow(non_snake_case, reason = "the names are those of cuBLAS")]

use std::ffi::{c_char, c_int, c_longlong, c_void};

use libloading::Library;

/// The name by which the loader has the stand-in.
const DRIVER: &str = "libcuda.so";

/// `CUBLAS_STATUS_NOT_INITIALIZED`: there is no stand-in for the driver.
const NOT_INITIALIZED: c_int = 1;

/// Exports functions that call those of the same name and type in the stand-in.
macro_rules! handed_on {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty, or $otherwise:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// * The duties of the function of this name in cuBLAS.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "the signature of cuBLAS")]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            // SAFETY: it is loaded already, so that nothing runs.
            let Ok(driver) = (unsafe { Library::new(DRIVER) }) else { return $otherwise };
            type Function = unsafe extern "C" fn($($type),*) -> $result;
            // SAFETY: the stand-in exports the function with this type.
            let Ok(function) = (unsafe { driver.get::<Function>(stringify!($name).as_bytes()) }) else { return $otherwise };
            // SAFETY: the caller's promise.
            unsafe { function($($argument),*) }
        }
    )*};
}

handed_on! {
    /// A handle in the current context.
    fn cublasCreate_v2(handle: *mut c_void) -> c_int, or NOT_INITIALIZED;
    /// Ends a handle.
    fn cublasDestroy_v2(handle: *mut c_void) -> c_int, or NOT_INITIALIZED;
    /// Sets the stream of later calls.
    fn cublasSetStream_v2(handle: *mut c_void, stream: *mut c_void) -> c_int, or NOT_INITIALIZED;
    /// Sets the device memory that later calls may use.
    fn cublasSetWorkspace_v2(handle: *mut c_void, workspace: *mut c_void, bytes: usize) -> c_int, or NOT_INITIALIZED;
    /// Sets the precision of later calls.
    fn cublasSetMathMode(handle: *mut c_void, math: c_int) -> c_int, or NOT_INITIALIZED;
    /// What cuBLAS says of a status.
    fn cublasGetStatusString(status: c_int) -> *const c_char, or c"there is no stand-in for the driver".as_ptr();
    /// Queues products.
    fn cublasGemmStridedBatchedEx(
        handle: *mut c_void,
        op_a: c_int,
        op_b: c_int,
        rows: c_int,
        columns: c_int,
        depth: c_int,
        alpha: *const c_void,
        a: *const c_void,
        type_a: c_int,
        leading_a: c_int,
        stride_a: c_longlong,
        b: *const c_void,
        type_b: c_int,
        leading_b: c_int,
        stride_b: c_longlong,
        beta: *const c_void,
        c: *mut c_void,
        type_c: c_int,
        leading_c: c_int,
        stride_c: c_longlong,
        count: c_int,
        compute: c_int,
        algorithm: c_int,
    ) -> c_int, or NOT_INITIALIZED;
}
