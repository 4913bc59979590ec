//! A caller's own kernels, as CUDA source or PTX.
//!
//! Layer: uses `driver`; is used by `elementwise` and `stream`.

#[cfg(feature = "cuda")]
mod compile;
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "without CUDA nothing is launched"))]
mod launch;

use std::ffi::{CStr, CString};

pub use launch::{CudaArgument, CudaGrid};

/// The reason why CUDA source was not compiled.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of each variant says what its fields are")]
pub enum CompileError {
    /// The build has no CUDA support.
    #[error("this build has no CUDA; build it with the feature `cuda`")]
    NotBuilt,
    /// The NVRTC library was not found.
    #[error(
        "no CUDA compiler: {reason} ({tried} names tried); install the CUDA toolkit or its NVRTC package and set \
         LD_LIBRARY_PATH to it, or compile the source ahead to PTX"
    )]
    NoCompiler { tried: usize, reason: String },
    /// The library lacks a function.
    #[error("{library} has no {function}: it is no NVRTC, or a very old one")]
    Incomplete { library: String, function: &'static str },
    /// A text with a NUL in it.
    #[error("{what} has a NUL byte in it, which C text ends with")]
    Nul { what: &'static str },
    /// The source has errors.
    #[error("the CUDA source does not compile:\n{log}")]
    Source { log: String },
    /// The compiler failed.
    #[error("{call} failed: {text}")]
    Failed { call: &'static str, text: String },
}

streamvm_ep::debug_as_display!(CompileError);

/// Code that a driver compiles for its device: the result of [`compile`](Ptx::compile), or PTX compiled ahead of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ptx(CString);

impl Ptx {
    /// PTX that was compiled ahead of time.
    ///
    /// # Errors
    ///
    /// [`CompileError::Nul`].
    pub fn new(text: &str) -> Result<Ptx, CompileError> {
        text_of(text, "the PTX").map(Ptx)
    }

    /// Compiles CUDA source with NVRTC, which needs no GPU and takes long. `name` appears in messages, such as a file name. The options
    /// are NVRTC's, such as `--gpu-architecture=compute_80`. A kernel to be looked up by its name must be `extern "C"`.
    ///
    /// # Errors
    ///
    /// [`CompileError::Source`] with the compiler's messages; another [`CompileError`] if there is no usable NVRTC.
    pub fn compile(name: &str, code: &str, options: &[&str]) -> Result<Ptx, CompileError> {
        let (name, code) = (text_of(name, "the name")?, text_of(code, "the source")?);
        let options = options.iter().map(|option| text_of(option, "an option")).collect::<Result<Vec<_>, _>>()?;
        compiled(&name, &code, &options)
    }

    /// PTX from the bytes up to the first NUL.
    #[cfg(feature = "cuda")]
    pub(crate) fn until_nul(mut bytes: Vec<u8>) -> Ptx {
        bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
        Ptx(CString::new(bytes).unwrap_or_default())
    }

    /// The PTX as a C string.
    pub fn as_c_str(&self) -> &CStr {
        &self.0
    }
}

#[cfg(feature = "cuda")]
fn compiled(name: &CStr, code: &CStr, options: &[CString]) -> Result<Ptx, CompileError> {
    crate::source::compile::Compiler::find()?.compile(name, code, options)
}

#[cfg(not(feature = "cuda"))]
fn compiled(_: &CStr, _: &CStr, _: &[CString]) -> Result<Ptx, CompileError> {
    Err(CompileError::NotBuilt)
}

pub(crate) fn text_of(text: &str, what: &'static str) -> Result<CString, CompileError> {
    CString::new(text).map_err(|_| CompileError::Nul { what })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWICE: &str = r#"extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2.0f; }"#;

    #[test]
    fn a_nul_is_refused_before_anything_else() {
        assert_eq!(Ptx::new("a\0b"), Err(CompileError::Nul { what: "the PTX" }));
        assert_eq!(Ptx::compile("a", "b\0", &[]), Err(CompileError::Nul { what: "the source" }));
        assert_eq!(Ptx::compile("a", "b", &["\0"]), Err(CompileError::Nul { what: "an option" }));
    }

    /// If set, a compiler must be found.
    const NEEDED: &str = "STREAMVM_NEEDS_NVRTC";

    /// With a compiler, the source becomes PTX; without one, the error says so.
    #[test]
    fn source_compiles_where_there_is_a_compiler() {
        match Ptx::compile("twice.cu", TWICE, &[]) {
            Ok(ptx) => {
                let text = ptx.as_c_str().to_string_lossy();
                assert!(text.contains(".entry twice(") && text.contains(".version"), "{text}");
                let log = Ptx::compile("twice.cu", "__global__ void f() { wrong }", &[]).unwrap_err().to_string();
                assert!(log.contains("twice.cu(1)") && log.contains("wrong"), "{log}");
            }
            Err(error @ CompileError::NoCompiler { .. }) => {
                assert!(std::env::var_os(NEEDED).is_none(), "{NEEDED} is set: {error}");
                // Written past the capture of test output, so that a run that compiled nothing is visible.
                let told = format!("nothing was compiled by NVRTC: {error}; {NEEDED}=1 makes that a failure\n");
                std::io::Write::write_all(&mut std::io::stderr(), told.as_bytes()).unwrap();
            }
            Err(CompileError::NotBuilt) if !cfg!(feature = "cuda") => {}
            Err(error) => panic!("{error}"),
        }
    }
}
