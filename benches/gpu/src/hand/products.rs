//! Matrix products by hand: by cuBLAS where it is found, by streamvm's own kernel where not.

use std::cell::Cell;

use cudarc::cublas::{result, sys};
use streamvm::{Access, Op};

use super::{Cuda, Kernels, Stream, f32s};
use crate::contest::error::Error;

/// Products of matrices of `f32`, row-major, in full precision.
#[derive(Debug)]
pub enum Products<'c> {
    /// cuBLAS: `cublasSgemm`, in its default mode, which has no TF32.
    Cublas {
        /// The library's.
        handle: sys::cublasHandle_t,
        /// The stream that the handle is set to.
        stream: Cell<sys::cudaStream_t>,
    },
    /// streamvm's own kernel, and why.
    Kernel(Kernels<'c>, String),
}

impl<'c> Products<'c> {
    /// What there is on this machine and starts, as streamvm has it.
    pub fn find(cuda: &'c Cuda) -> Products<'c> {
        let kernel = |why: String| Products::own(cuda, &why);
        // SAFETY: looking for the library runs its initialisers, which is what loading it is for.
        if !unsafe { sys::is_culib_present() } {
            return kernel("no cuBLAS was found".to_owned());
        }
        match result::create_handle() {
            Ok(handle) => Products::Cublas { handle, stream: Cell::new(std::ptr::null_mut()) },
            Err(error) => kernel(format!("cuBLAS does not start: {:?}", error.0)),
        }
    }

    /// streamvm's own kernel, and why.
    pub fn own(cuda: &'c Cuda, why: &str) -> Products<'c> {
        Products::Kernel(Kernels::new(cuda), why.to_owned())
    }

    /// What computes them, for the report.
    pub fn name(&self) -> String {
        match self {
            Products::Cublas { .. } => "cuBLAS sgemm, no TF32".to_owned(),
            Products::Kernel(_, why) => format!("streamvm's own kernel; {why}"),
        }
    }

    /// Queues `out = a · b`, of `rows` × `inner` and `inner` × `columns`, at addresses of the device.
    ///
    /// # Errors
    /// The library's or the driver's.
    pub fn multiply(
        &self,
        stream: &Stream<'_>,
        [a, b, out]: [u64; 3],
        [rows, inner, columns]: [usize; 3],
    ) -> Result<(), Error> {
        match self {
            Products::Cublas { handle, stream: set } => {
                let wanted: sys::cudaStream_t = stream.raw().cast();
                if set.get() != wanted {
                    // SAFETY: both are alive.
                    unsafe { result::set_stream(*handle, wanted) }?;
                    set.set(wanted);
                }
                let plain = sys::cublasOperation_t::CUBLAS_OP_N;
                let place = |address: u64| std::ptr::with_exposed_provenance_mut::<f32>(address as usize);
                let [m, n, k] = [columns, rows, inner].map(|size| size as i32);
                let (one, zero) = (1.0f32, 0.0f32);
                // Row-major is the transpose of what cuBLAS calls a matrix, so the factors change places.
                // SAFETY: the memory is that of the matrices and alive until the stream is over.
                let queued = unsafe {
                    result::sgemm(*handle, plain, plain, m, n, k, &one, place(b), m, place(a), k, &zero, place(out), m)
                };
                Ok(queued?)
            }
            Products::Kernel(kernels, _) => {
                let a = f32s(a, [rows, inner], Access::Read)?;
                let b = f32s(b, [inner, columns], Access::Read)?;
                let out = f32s(out, [rows, columns], Access::Write)?;
                Ok(stream.launch(&kernels.binary(Op::MatMul, a, b, out)?)?)
            }
        }
    }
}

impl Drop for Products<'_> {
    fn drop(&mut self) {
        if let Products::Cublas { handle, .. } = self {
            // SAFETY: it is alive, and this is its end.
            let _ = unsafe { result::destroy_handle(*handle) };
        }
    }
}
