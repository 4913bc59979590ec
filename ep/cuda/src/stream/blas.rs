//! cuBLAS, if it is found: faster products of floats than our own kernel.
//!
//! cudarc panics if the library or a function is missing, so both are looked for here first; only then is there a [`Blas`]. Every call of
//! cuBLAS goes through this file.
//!
//! A stream that may multiply gets its [`Blas`] when it is created. So the thread that launches neither loads a library nor waits for a
//! device at the first product.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::OnceLock;

use cudarc::cublas::sys;
use streamvm_ep::DType;

use crate::driver::optional_library;
use crate::driver::{Driver, StreamHandle};
use crate::plan::gemm::{Factor, Gemm};

/// Every function of cuBLAS that is called.
const SYMBOLS: &[&str] = &[
    "cublasCreate_v2",
    "cublasDestroy_v2",
    "cublasGemmStridedBatchedEx",
    "cublasGetStatusString",
    "cublasSetMathMode",
    "cublasSetStream_v2",
    "cublasSetWorkspace_v2",
];

/// The reason why cuBLAS is not used; our own kernel is used instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BlasError {
    #[error("no cuBLAS: {reason} ({tried} names tried)")]
    NoLibrary { tried: usize, reason: String },
    #[error("{library} has no {function}")]
    Incomplete { library: String, function: &'static str },
    #[error("{call} failed: {text}")]
    Failed { call: &'static str, text: String },
}

impl BlasError {
    /// Logs that cuBLAS is not used, and why. This is not an error, because our own kernel gives the product.
    #[cold]
    pub(crate) fn log(&self) {
        log::debug!("matrices are multiplied by streamvm's own kernel: {self}");
    }

    /// Logs that products are not captured into graphs, and why.
    #[cold]
    fn log_uncaptured(&self) {
        log::debug!("matrix products of cuBLAS are launched without a CUDA graph: {self}");
    }
}

/// Calls a function of cuBLAS; a failure carries its name.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: `Blas` or `find` proves that the function exists; each use states the requirements on its arguments.
        done(stringify!($name), unsafe { sys::$name($($argument),*) })
    };
}

fn done(call: &'static str, status: sys::cublasStatus_t) -> Result<(), BlasError> {
    if status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    // SAFETY: as in `call`; the function returns a static string for any status.
    let text = unsafe { sys::cublasGetStatusString(status) };
    // SAFETY: as above.
    let text = if text.is_null() { c"" } else { unsafe { CStr::from_ptr(text) } };
    Err(BlasError::Failed { call, text: text.to_string_lossy().into_owned() })
}

/// Looks for cuBLAS, at the first call in this process.
fn find() -> Result<(), BlasError> {
    static FOUND: OnceLock<Result<(), BlasError>> = OnceLock::new();
    FOUND.get_or_init(|| load(&cudarc::get_lib_name_candidates("cublas"))).clone()
}

fn load(names: &[String]) -> Result<(), BlasError> {
    let library = optional_library::find(names).map_err(|reason| BlasError::NoLibrary {
        tried: names.len(),
        reason: reason.unwrap_or_else(|| String::from("libcublas.so was not found")),
    })?;
    // SAFETY: the library that was found stays loaded, so cudarc loads the same one.
    let loaded = unsafe { sys::culib() };
    match optional_library::missing(loaded, SYMBOLS) {
        Some(function) => Err(BlasError::Incomplete { library, function }),
        None => Ok(()),
    }
}

/// Bytes of device memory that products of a stream may use between their kernels: as many as the documentation of cuBLAS recommends
/// for devices of this compute capability.
fn workspace_bytes(capability: (i32, i32)) -> usize {
    if capability >= (9, 0) { 32 << 20 } else { 4 << 20 }
}

/// cuBLAS for one stream. It has device memory of its own, so that streams do not share it.
#[derive(Debug)]
pub(crate) struct Blas {
    handle: sys::cublasHandle_t,
    driver: Driver,
    /// The address of memory of ours ([`workspace_bytes`]), if the device had it. Products that are captured into a graph need it: otherwise
    /// cuBLAS captures allocations too. All products of a stream may use the same, because they run one after the other.
    workspace: Option<Workspace>,
}

/// Device memory for the products of a handle.
#[derive(Copy, Clone, Debug)]
struct Workspace {
    address: u64,
    bytes: usize,
}

// SAFETY: a handle is not tied to a thread, and one thread at a time uses it, as for the stream.
unsafe impl Send for Blas {}

impl Blas {
    /// Creates cuBLAS for `stream`. Takes long, and may wait for the device.
    ///
    /// # Errors
    /// The reason why there is none.
    ///
    /// # Safety
    /// * The stream is alive as long as the result, and its context is current.
    pub(crate) unsafe fn new(driver: Driver, stream: StreamHandle, capability: (i32, i32)) -> Result<Blas, BlasError> {
        find()?;
        let mut handle = ptr::null_mut();
        // The context is current, as the caller promises.
        call!(cublasCreate_v2(&mut handle))?;
        let mut blas = Blas { handle, driver, workspace: None };
        call!(cublasSetStream_v2(handle, stream.raw().cast()))?;
        // Sums of 16-bit floats are kept in 32 bits throughout, as on the CPU.
        let exact = sys::cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
        call!(cublasSetMathMode(handle, exact))?;
        let bytes = workspace_bytes(capability);
        let Ok(address) = driver.allocate(bytes) else { return Ok(blas) };
        // The memory is freed after the handle is destroyed. The stream was set before, because setting it takes the memory away.
        let workspace = Workspace { address, bytes };
        match blas.set_workspace(workspace) {
            Ok(()) => blas.workspace = Some(workspace),
            Err(why) => {
                why.log_uncaptured();
                // SAFETY: it was allocated above, and cuBLAS has refused it.
                let _ = unsafe { driver.free(address) };
            }
        }
        Ok(blas)
    }

    fn set_workspace(&self, Workspace { address, bytes }: Workspace) -> Result<(), BlasError> {
        call!(cublasSetWorkspace_v2(self.handle, ptr::without_provenance_mut(address as usize), bytes))
    }

    /// Queues later products on this stream, whose commands come before and after those of the stream so far: they use the same memory.
    ///
    /// # Errors
    /// The error of cuBLAS; then products may be queued on either stream, and must not be queued.
    ///
    /// # Safety
    /// * The stream is alive as long as it is used, and of the same context, which is current.
    pub(crate) unsafe fn use_stream(&mut self, stream: StreamHandle) -> Result<(), BlasError> {
        call!(cublasSetStream_v2(self.handle, stream.raw().cast()))?;
        self.workspace.map_or(Ok(()), |workspace| self.set_workspace(workspace))
    }

    /// Whether products can be captured into graphs.
    pub(crate) fn has_workspace(&self) -> bool {
        self.workspace.is_some()
    }

    /// Queues the products on the stream. They are computed and accumulated in `f32`, those of `f64` in `f64`.
    ///
    /// # Errors
    /// The error of cuBLAS; then nothing was queued.
    ///
    /// # Safety
    /// * The stream's context is current.
    /// * The factors are of this dtype, in memory that the device can access, and other accesses to it are ordered by streams.
    pub(crate) unsafe fn multiply(&self, dtype: DType, gemm: &Gemm) -> Result<(), BlasError> {
        use sys::{cublasComputeType_t as Compute, cudaDataType as Data};
        let (data, compute) = match dtype {
            DType::F32 => (Data::CUDA_R_32F, Compute::CUBLAS_COMPUTE_32F),
            DType::F64 => (Data::CUDA_R_64F, Compute::CUBLAS_COMPUTE_64F),
            DType::F16 => (Data::CUDA_R_16F, Compute::CUBLAS_COMPUTE_32F),
            DType::BF16 => (Data::CUDA_R_16BF, Compute::CUBLAS_COMPUTE_32F),
            _ => {
                let text = format!("no products of {dtype}");
                return Err(BlasError::Failed { call: "cublasGemmStridedBatchedEx", text });
            }
        };
        let (one, zero) = ((1.0f32, 1.0f64), (0.0f32, 0.0f64));
        let of = |scale: &(f32, f64)| -> *const c_void {
            if dtype == DType::F64 { ptr::from_ref(&scale.1).cast() } else { ptr::from_ref(&scale.0).cast() }
        };
        let Gemm { rows, columns, depth, a, b, c, count } = *gemm;
        // The caller guarantees the factors; the scales outlive the call, which reads them.
        call!(cublasGemmStridedBatchedEx(
            self.handle,
            operation(&a),
            operation(&b),
            rows,
            columns,
            depth,
            of(&one),
            address(&a),
            data,
            a.leading,
            a.stride,
            address(&b),
            data,
            b.leading,
            b.stride,
            of(&zero),
            address(&c).cast_mut(),
            data,
            c.leading,
            c.stride,
            count,
            compute,
            sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
        ))
    }
}

fn operation(factor: &Factor) -> sys::cublasOperation_t {
    if factor.transposed { sys::cublasOperation_t::CUBLAS_OP_T } else { sys::cublasOperation_t::CUBLAS_OP_N }
}

fn address(factor: &Factor) -> *const c_void {
    ptr::without_provenance(factor.base as usize)
}

impl Drop for Blas {
    fn drop(&mut self) {
        // It was created and is not used any longer. A failure cannot be reported from here.
        let _ = call!(cublasDestroy_v2(self.handle));
        if let Some(Workspace { address, .. }) = self.workspace {
            // SAFETY: it was allocated for the handle, whose end has waited for the device.
            let _ = unsafe { self.driver.free(address) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_that_is_called_is_looked_for_first() {
        let text = include_str!("blas.rs");
        let code = text.split("#[cfg(test)]").next().unwrap();
        let called: std::collections::BTreeSet<&str> = code
            .match_indices("cublas")
            .filter(|(at, _)| code[..*at].ends_with("call!(") || code[..*at].ends_with("unsafe { sys::"))
            .map(|(at, _)| code[at..].split('(').next().unwrap())
            .collect();
        assert_eq!(called.into_iter().collect::<Vec<_>>(), SYMBOLS);
    }

    #[test]
    fn a_library_that_is_not_there_is_told() {
        let none = load(&["/no/such/libcublas.so".into()]).unwrap_err();
        assert_eq!(none, BlasError::NoLibrary { tried: 1, reason: "libcublas.so was not found".into() });
    }
}
