//! NVIDIA's NVRTC, whose library `STREAMVM_STANDIN_NVRTC` names, and its programs.

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::{Library, Symbol};

/// The environment variable with the path of the library.
pub(crate) const PATH: &str = "STREAMVM_STANDIN_NVRTC";

/// A program of NVRTC.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) source: String,
    /// The name and the text of each header.
    pub(crate) headers: Vec<(String, String)>,
    /// The PTX, and the messages.
    compiled: Mutex<(String, String)>,
}

impl Program {
    pub(crate) fn new(source: String, headers: Vec<(String, String)>) -> Program {
        Program { source, headers, compiled: Mutex::default() }
    }

    /// Sets the PTX and the messages.
    pub(crate) fn set_compiled(&self, compiled: (String, String)) {
        *self.compiled.lock().unwrap_or_else(PoisonError::into_inner) = compiled;
    }

    /// The PTX, or the messages.
    pub(crate) fn text(&self, messages: bool) -> String {
        let compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if messages { compiled.1.clone() } else { compiled.0.clone() }
    }
}

/// A program, as the library knows it.
type Handle = *mut c_void;

/// The types of the functions that are called here.
type Create = unsafe extern "C" fn(
    *mut Handle,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
type Text = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Handle) -> c_int;

/// NVIDIA's compiler.
#[derive(Debug)]
pub(crate) struct Nvrtc(Library);

impl Nvrtc {
    /// The library that the environment names, loaded once.
    ///
    /// # Errors
    ///
    /// The environment names none, or it cannot be loaded, as text.
    pub(crate) fn named() -> Result<&'static Nvrtc, String> {
        static LOADED: OnceLock<Result<Nvrtc, String>> = OnceLock::new();
        let load = || {
            let path =
                std::env::var_os(PATH).ok_or_else(|| format!("{PATH} names no library of NVRTC; `make fused` does"))?;
            // SAFETY: loading NVRTC runs the initialisers of NVIDIA's library, which need nothing.
            let library = unsafe { Library::new(&path) };
            library.map(Nvrtc).map_err(|error| format!("{PATH} is {}: {error}", path.display()))
        };
        LOADED.get_or_init(load).as_ref().map_err(Clone::clone)
    }

    /// The PTX of a source. Each header has a name and a text.
    ///
    /// # Errors
    ///
    /// The messages of the compiler, or the call that failed.
    pub(crate) fn compile(
        &self,
        source: &str,
        headers: &[(String, String)],
        options: &[String],
    ) -> Result<String, String> {
        let source = c_string(source)?;
        let names = headers.iter().map(|(name, _)| c_string(name)).collect::<Result<Vec<_>, _>>()?;
        let texts = headers.iter().map(|(_, text)| c_string(text)).collect::<Result<Vec<_>, _>>()?;
        let options = options.iter().map(|option| c_string(option)).collect::<Result<Vec<_>, _>>()?;
        let (names, texts, options) = (pointers(&names), pointers(&texts), pointers(&options));
        let mut program: Handle = std::ptr::null_mut();
        let create: Symbol<'_, Create> = self.function(c"nvrtcCreateProgram")?;
        let (at, count) = (&raw mut program, names.len() as c_int);
        // SAFETY: every pointer is to a C string or an array of as many as `count`, which live until this function ends.
        let status =
            unsafe { create(at, source.as_ptr(), c"fused.cu".as_ptr(), count, texts.as_ptr(), names.as_ptr()) };
        if status != 0 {
            return Err(format!("nvrtcCreateProgram gives {status}"));
        }
        let compiled = self.compiled(program, &options);
        let destroy: Symbol<'_, Destroy> = self.function(c"nvrtcDestroyProgram")?;
        // SAFETY: the program was created above and is not used any more.
        unsafe { destroy(&raw mut program) };
        compiled
    }

    /// Compiles a program, and gives its PTX or the messages.
    fn compiled(&self, program: Handle, options: &[*const c_char]) -> Result<String, String> {
        let compile: Symbol<'_, Compile> = self.function(c"nvrtcCompileProgram")?;
        // SAFETY: the program is alive, and each option is a C string.
        let status = unsafe { compile(program, options.len() as c_int, options.as_ptr()) };
        match status {
            0 => self.text(program, c"nvrtcGetPTXSize", c"nvrtcGetPTX"),
            _ => Err(self.text(program, c"nvrtcGetProgramLogSize", c"nvrtcGetProgramLog")?),
        }
    }

    /// A text of a program, which one function measures and another one copies.
    fn text(&self, program: Handle, size: &std::ffi::CStr, text: &std::ffi::CStr) -> Result<String, String> {
        let (size_of, copy): (Symbol<'_, Size>, Symbol<'_, Text>) = (self.function(size)?, self.function(text)?);
        let mut bytes = 0;
        // SAFETY: the program is alive, and the size is written to a local variable.
        let measured = unsafe { size_of(program, &raw mut bytes) };
        if measured != 0 {
            return Err(format!("{size:?} gives {measured}"));
        }
        let mut room = vec![0u8; bytes];
        // SAFETY: the buffer has room for as many bytes as the call above has said.
        let copied = unsafe { copy(program, room.as_mut_ptr().cast()) };
        if copied != 0 {
            return Err(format!("{text:?} gives {copied}"));
        }
        while room.last() == Some(&0) {
            room.pop();
        }
        String::from_utf8(room).map_err(|error| error.to_string())
    }

    /// A function of the library, whose type is that of NVIDIA's `nvrtc.h`.
    fn function<T>(&self, name: &std::ffi::CStr) -> Result<Symbol<'_, T>, String> {
        // SAFETY: each caller in this file names the type that the header declares for this function.
        unsafe { self.0.get(name.to_bytes_with_nul()) }.map_err(|error| error.to_string())
    }
}

fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|error| error.to_string())
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}
