//! An NVRTC for tests: a library under that name, which hands its calls on to the stand-in for the CUDA driver (`streamvm-standin`,
//! `api/nvrtc.rs`). That one is loaded by then, as streamvm compiles for a device only.
//!
//! It is a library of its own because a loader tells libraries apart by their names.

#![allow(non_snake_case, reason = "the names are those of NVRTC")]

use std::ffi::{c_char, c_int, c_void};

use libloading::Library;

/// The name by which the loader has the stand-in.
const DRIVER: &str = "libcuda.so";

/// `NVRTC_ERROR_INTERNAL_ERROR`: there is no stand-in for the driver.
const INTERNAL_ERROR: c_int = 11;

/// Exports functions that call those of the same name and type in the stand-in.
macro_rules! handed_on {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty, or $otherwise:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// * The duties of the function of this name in NVRTC.
        #[unsafe(no_mangle)]
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
    /// How many architectures it compiles for.
    fn nvrtcGetNumSupportedArchs(count: *mut c_int) -> c_int, or INTERNAL_ERROR;
    /// The architectures that it compiles for.
    fn nvrtcGetSupportedArchs(all: *mut c_int) -> c_int, or INTERNAL_ERROR;
    /// A program with its source and headers.
    fn nvrtcCreateProgram(
        program: *mut *mut c_void,
        source: *const c_char,
        name: *const c_char,
        count: c_int,
        headers: *const *const c_char,
        names: *const *const c_char,
    ) -> c_int, or INTERNAL_ERROR;
    /// Compiles a program.
    fn nvrtcCompileProgram(program: *mut c_void, count: c_int, options: *const *const c_char) -> c_int, or INTERNAL_ERROR;
    /// The bytes of the PTX, with its NUL.
    fn nvrtcGetPTXSize(program: *mut c_void, bytes: *mut usize) -> c_int, or INTERNAL_ERROR;
    /// The PTX.
    fn nvrtcGetPTX(program: *mut c_void, text: *mut c_char) -> c_int, or INTERNAL_ERROR;
    /// The bytes of the messages, with their NUL.
    fn nvrtcGetProgramLogSize(program: *mut c_void, bytes: *mut usize) -> c_int, or INTERNAL_ERROR;
    /// The messages.
    fn nvrtcGetProgramLog(program: *mut c_void, text: *mut c_char) -> c_int, or INTERNAL_ERROR;
    /// Ends a program.
    fn nvrtcDestroyProgram(program: *mut *mut c_void) -> c_int, or INTERNAL_ERROR;
    /// What NVRTC says of a status.
    fn nvrtcGetErrorString(status: c_int) -> *const c_char, or c"there is no stand-in for the driver".as_ptr();
}
