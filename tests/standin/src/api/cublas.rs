//! The functions of cuBLAS that streamvm calls. The stand-in library for cuBLAS (`tests/standin/cublas`) forwards its calls to these
//! functions, so that a product is ordered, checked and computed like a kernel.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use streamvm_ep::DType;

use super::memory::{cuMemAlloc_v2, cuMemFree_v2};
use crate::commands::graph::give;
use crate::driver::Driver;
use crate::kernels::{Matrix, Product};
use crate::objects::cublas::{Cublas, FULL_PRECISION, Set};
use crate::objects::graph::Node;
use crate::values::code::{Code, Outcome};
use crate::values::findings::Kind;
use crate::values::out::Out;

/// Bytes of device memory of a handle.
const WORKSPACE: usize = 4096;

/// Exports calls of cuBLAS, each with a body over the driver. They are counted, and fail on demand, like driver calls.
macro_rules! cublas_calls {
    ($($(#[$doc:meta])* fn $name:ident($driver:ident $(, $argument:ident: $type:ty)* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// * The duties of the cuBLAS function of this name, as far as they concern memory of the caller: each pointer is null or
        ///   points to what the function reads or writes there.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            status(crate::driver::entry::enter(stringify!($name), |$driver| $body))
        }
    )*};
}

/// The cuBLAS status for a result of the driver.
fn status(code: c_int) -> c_int {
    match Code(code) {
        Code(0) => 0,
        Code::INVALID_CONTEXT | Code::NOT_INITIALIZED => 1,
        Code::OUT_OF_MEMORY => 3,
        Code::INVALID_VALUE | Code::INVALID_HANDLE => 7,
        Code::NOT_SUPPORTED => 15,
        _ => 13,
    }
}

/// The text that cuBLAS has for a status.
#[unsafe(no_mangle)]
pub extern "C" fn cublasGetStatusString(status: c_int) -> *const c_char {
    let text = match status {
        0 => c"success",
        1 => c"the library was not initialized",
        3 => c"the resource allocation failed",
        7 => c"an unsupported value or parameter was passed to the function",
        15 => c"the functionality requested is not supported",
        _ => c"the function failed to launch on the GPU",
    };
    text.as_ptr()
}

cublas_calls! {
    /// Creates a handle in the current context, with memory on its device.
    fn cublasCreate_v2(driver, place: Out<usize>) {
        let context = driver.current("cublasCreate_v2")?;
        place.check()?;
        let mut workspace = 0;
        // SAFETY: the pointer is to a local variable of the right type.
        done(unsafe { cuMemAlloc_v2(Out::to(&mut workspace), WORKSPACE) })?;
        let cublas = Cublas { context, workspace, set: Mutex::default() };
        let handle = driver.tables().cublas.add(Arc::new(cublas));
        place.put(handle)
    }

    /// Destroys a handle, once all commands in its context have passed.
    fn cublasDestroy_v2(driver, handle: usize) {
        const CALL: &str = "cublasDestroy_v2";
        let cublas = cublas(driver, CALL, handle)?;
        let _ = driver.tables().cublas.remove(handle);
        // SAFETY: `cuMemFree_v2` checks the address itself, so it has no duties.
        done(unsafe { cuMemFree_v2(cublas.workspace) })
    }

    /// Sets the stream of later calls.
    fn cublasSetStream_v2(driver, handle: usize, stream: usize) {
        const CALL: &str = "cublasSetStream_v2";
        let cublas = cublas(driver, CALL, handle)?;
        let stream = driver.stream_here(CALL, stream)?;
        let mut set = cublas.set.lock().unwrap_or_else(PoisonError::into_inner);
        // As in cuBLAS, the handle goes back to its own memory.
        (set.stream, set.own_workspace) = (Some(stream), None);
        Ok(())
    }

    /// Sets the device memory that later calls may use, instead of that of the handle.
    fn cublasSetWorkspace_v2(driver, handle: usize, workspace: u64, bytes: usize) {
        const CALL: &str = "cublasSetWorkspace_v2";
        let cublas = cublas(driver, CALL, handle)?;
        let span = driver.span(CALL, "the workspace", workspace as usize, bytes)?;
        if span.allocation.device_number() != Some(cublas.context.device) || !workspace.is_multiple_of(256) {
            let text = format!("{CALL} of {}", span.allocation);
            return Err(driver.refuse(Kind::WrongMemory, text, Code::INVALID_VALUE));
        }
        cublas.set.lock().unwrap_or_else(PoisonError::into_inner).own_workspace = Some(workspace);
        Ok(())
    }

    /// Sets the precision of later calls.
    fn cublasSetMathMode(driver, handle: usize, math: c_int) {
        let cublas = cublas(driver, "cublasSetMathMode", handle)?;
        cublas.set.lock().unwrap_or_else(PoisonError::into_inner).math = math;
        Ok(())
    }

    /// Queues products on the stream of the handle.
    #[allow(clippy::too_many_arguments, reason = "the signature of cuBLAS")]
    fn cublasGemmStridedBatchedEx(
        driver,
        handle: usize,
        op_a: c_int,
        op_b: c_int,
        rows: c_int,
        columns: c_int,
        depth: c_int,
        alpha: *const c_void,
        a: u64,
        type_a: c_int,
        leading_a: c_int,
        stride_a: i64,
        b: u64,
        type_b: c_int,
        leading_b: c_int,
        stride_b: i64,
        beta: *const c_void,
        c: u64,
        type_c: c_int,
        leading_c: c_int,
        stride_c: i64,
        count: c_int,
        compute: c_int,
        _algorithm: c_int,
    ) {
        const CALL: &str = "cublasGemmStridedBatchedEx";
        let cublas = cublas(driver, CALL, handle)?;
        let Set { stream, math, own_workspace } = cublas.set.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let wrong = |text: String| driver.refuse(Kind::BadArguments, format!("{CALL}: {text}"), Code::INVALID_VALUE);
        let stream = stream.ok_or_else(|| driver.refuse(Kind::NullStream, CALL, Code::NOT_SUPPORTED))?;
        let dtype = match (type_a, compute) {
            (0, 68) => DType::F32,
            (1, 70) => DType::F64,
            (2, 68) => DType::F16,
            (14, 68) => DType::BF16,
            _ => return Err(wrong(format!("elements of type {type_a} computed as {compute}"))),
        };
        if (type_b, type_c) != (type_a, type_a) {
            return Err(wrong(format!("products of types {type_a} and {type_b} to {type_c}")));
        }
        if dtype.size() == 2 && math != FULL_PRECISION {
            return Err(wrong(format!("sums of {dtype} in the math mode {math}, which keeps them in fewer bits")));
        }
        // SAFETY: the caller of cuBLAS passes null or a scale of the type in which the product is computed.
        let alpha = unsafe { scale(dtype, alpha) };
        // SAFETY: the caller of cuBLAS passes null or a scale of the type in which the product is computed.
        let beta = unsafe { scale(dtype, beta) };
        if (alpha, beta) != (Some(1.0), Some(0.0)) {
            return Err(wrong(format!("the scales {alpha:?} and {beta:?}; the stand-in knows 1 and 0")));
        }
        let transposed = |operation: c_int| match operation {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(wrong(format!("the operation {operation}"))),
        };
        let product = Product {
            dtype,
            rows,
            columns,
            depth,
            a: Matrix { base: a, transposed: transposed(op_a)?, leading: leading_a, stride: stride_a },
            b: Matrix { base: b, transposed: transposed(op_b)?, leading: leading_b, stride: stride_b },
            c: Matrix { base: c, transposed: false, leading: leading_c, stride: stride_c },
            count,
        };
        product.decode().map_err(wrong)?;
        if driver.captures.status(&stream).is_some() && own_workspace.is_none() {
            // cuBLAS would capture allocations, with which a graph cannot be updated.
            let text = format!("{CALL} on {}, which captures; give the handle memory by cublasSetWorkspace_v2", stream.name);
            return Err(driver.refuse(Kind::Capture, text, Code::STREAM_CAPTURE_UNSUPPORTED));
        }
        give(driver, &stream, Node::Product { product, workspace: own_workspace })
    }
}

/// The object of a handle, whose context must be current.
fn cublas(driver: &Driver, call: &str, handle: usize) -> Outcome<Arc<Cublas>> {
    let current = driver.current(call)?;
    let found = driver.tables().cublas.get(handle).cloned();
    let cublas = found.map_err(|why| driver.bad_handle(call, "cuBLAS handle", handle, why, Code::INVALID_HANDLE))?;
    if cublas.context.handle != current.handle {
        let text =
            format!("{call} of a handle of cuda:{} in a context of cuda:{}", cublas.context.device, current.device);
        return Err(driver.refuse(Kind::WrongContext, text, Code::INVALID_HANDLE));
    }
    Ok(cublas)
}

/// Reads a scale; `None` if the pointer is null.
///
/// # Safety
///
/// * `place` is null, or points to an `f64` if `dtype` is `f64`, else to an `f32`.
unsafe fn scale(dtype: DType, place: *const c_void) -> Option<f64> {
    if place.is_null() {
        return None;
    }
    Some(match dtype {
        // SAFETY: `place` is not null, so by the caller's duty it points to an `f64`.
        DType::F64 => unsafe { place.cast::<f64>().read_unaligned() },
        // SAFETY: `place` is not null, so by the caller's duty it points to an `f32`.
        _ => f64::from(unsafe { place.cast::<f32>().read_unaligned() }),
    })
}

/// Turns the result of a driver call into an outcome.
fn done(code: c_int) -> Outcome {
    if code == 0 { Ok(()) } else { Err(Code(code)) }
}
