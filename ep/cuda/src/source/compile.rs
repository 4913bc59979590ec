//! Compilation of CUDA source at run time, by NVRTC if it is found.
//!
//! NVRTC is a library of the CUDA toolkit that needs no GPU. cudarc panics if the library or a function is missing, so both are looked
//! for here first; only then is there a [`Compiler`]. Every call of NVRTC goes through this file.

use std::ffi::{CStr, CString, c_char};
use std::ptr;
use std::sync::OnceLock;

use cudarc::nvrtc::sys;

use crate::driver::optional_library;
use crate::source::{CompileError, Ptx};

/// Every function of NVRTC that is called.
const SYMBOLS: &[&str] = &[
    "nvrtcCompileProgram",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetErrorString",
    "nvrtcGetPTX",
    "nvrtcGetPTXSize",
    "nvrtcGetProgramLog",
    "nvrtcGetProgramLogSize",
];

/// Proof of an NVRTC that has every function in [`SYMBOLS`]. Made by [`Compiler::find`].
#[derive(Copy, Clone, Debug)]
pub(crate) struct Compiler {
    proof: (),
}

/// A program of NVRTC, destroyed when dropped.
struct Program(sys::nvrtcProgram);

/// Calls a function of NVRTC; a failure carries its name.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: `Compiler` proves that the function exists. Pointers are to locals of the size that the function requires.
        done(stringify!($name), unsafe { sys::$name($($argument),*) })
    };
}

fn done(call: &'static str, result: sys::nvrtcResult) -> Result<(), CompileError> {
    if result == sys::nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    // SAFETY: as in `call`; the function returns a static string for any code.
    let text = unsafe { sys::nvrtcGetErrorString(result) };
    // SAFETY: as above.
    let text = if text.is_null() { c"" } else { unsafe { CStr::from_ptr(text) } };
    Err(CompileError::Failed { call, text: text.to_string_lossy().into_owned() })
}

impl Compiler {
    /// Finds NVRTC; the library is searched at the first call in this process.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(crate) fn find() -> Result<Compiler, CompileError> {
        static FOUND: OnceLock<Result<Compiler, CompileError>> = OnceLock::new();
        FOUND.get_or_init(|| Compiler::load(&cudarc::get_lib_name_candidates("nvrtc"))).clone()
    }

    fn load(names: &[String]) -> Result<Compiler, CompileError> {
        let library = optional_library::find(names).map_err(|reason| CompileError::NoCompiler {
            tried: names.len(),
            reason: reason.unwrap_or_else(|| String::from("libnvrtc.so was not found")),
        })?;
        // SAFETY: the library that was found stays loaded, so cudarc loads the same one.
        let loaded = unsafe { sys::culib() };
        match optional_library::missing(loaded, SYMBOLS) {
            Some(function) => Err(CompileError::Incomplete { library, function }),
            None => Ok(Compiler { proof: () }),
        }
    }

    /// Compiles a program, which takes long.
    ///
    /// # Errors
    /// The messages of the compiler.
    pub(crate) fn compile(self, name: &CStr, code: &CStr, options: &[CString]) -> Result<Ptx, CompileError> {
        let () = self.proof;
        let mut raw = ptr::null_mut();
        call!(nvrtcCreateProgram(&mut raw, code.as_ptr(), name.as_ptr(), 0, ptr::null(), ptr::null()))?;
        let program = Program(raw);
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        if let Err(error) = call!(nvrtcCompileProgram(program.0, options.len() as i32, options.as_ptr())) {
            let log = program.log().unwrap_or_default();
            return Err(if log.is_empty() { error } else { CompileError::Source { log } });
        }
        let mut bytes = 0;
        call!(nvrtcGetPTXSize(program.0, &mut bytes))?;
        let mut text = vec![0u8; bytes];
        call!(nvrtcGetPTX(program.0, text.as_mut_ptr().cast()))?;
        Ok(Ptx::until_nul(text))
    }
}

impl Program {
    /// The messages of the compiler.
    fn log(&self) -> Result<String, CompileError> {
        let mut bytes = 0;
        call!(nvrtcGetProgramLogSize(self.0, &mut bytes))?;
        let mut text = vec![0u8; bytes];
        call!(nvrtcGetProgramLog(self.0, text.as_mut_ptr().cast()))?;
        let text = String::from_utf8_lossy(&text);
        Ok(text.trim_end_matches('\0').trim().to_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The program was created and is not used any longer. A failure cannot be reported from here.
        let _ = call!(nvrtcDestroyProgram(&mut self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_that_is_called_is_looked_for_first() {
        let text = include_str!("compile.rs");
        let code = text.split("#[cfg(test)]").next().unwrap();
        let after = |mark: &str| -> std::collections::BTreeSet<String> {
            let name = |rest: &str| rest.chars().take_while(|c| c.is_alphanumeric()).collect();
            let names = code.split(mark).skip(1).map(name);
            names.filter(|name: &String| name.starts_with("nvrtc") && !name.starts_with("nvrtcP")).collect()
        };
        let called: Vec<String> = (&after("call!(") | &after("sys::")).into_iter().collect();
        let called: Vec<&str> = called.iter().map(String::as_str).filter(|name| *name != "nvrtcResult").collect();
        assert_eq!(called, SYMBOLS);
    }

    #[test]
    fn a_compiler_that_is_not_there_is_told() {
        let none = Compiler::load(&["/no/such/libnvrtc.so".into()]).unwrap_err();
        assert_eq!(none, CompileError::NoCompiler { tried: 1, reason: "libnvrtc.so was not found".into() });
    }
}
