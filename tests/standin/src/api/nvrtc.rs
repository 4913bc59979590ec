//! The functions of NVRTC that streamvm calls. The stand-in library for NVRTC (`tests/standin/nvrtc`) forwards its calls to these functions.
//!
//! A program compiles if it is a fused kernel of streamvm's, comes with the header that it includes, and has the options that such a kernel needs. NVIDIA's
//! NVRTC, which the environment names, makes the PTX. It gets a comment that says which views the kernel accesses (`kernels/fused.rs`).

use std::ffi::{c_char, c_int};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use crate::driver::Driver;
use crate::kernels::FusedViews;
use crate::objects::nvrtc::{Nvrtc, Program};
use crate::values::code::{Code, Outcome};
use crate::values::out::Out;

/// The architectures that it compiles for.
const ARCHITECTURES: [c_int; 4] = [70, 80, 86, 90];

/// Exports calls of NVRTC, each with a body over the driver. They are counted, and fail on demand, like driver calls.
macro_rules! nvrtc_calls {
    ($($(#[$doc:meta])* fn $name:ident($driver:ident $(, $argument:ident: $type:ty)* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// * The duties of the NVRTC function of this name: each pointer is null or points to what the function reads or writes there.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            status(crate::driver::entry::enter(stringify!($name), |$driver| $body))
        }
    )*};
}

/// The NVRTC status for a result of the driver.
fn status(code: c_int) -> c_int {
    match Code(code) {
        Code(0) => 0,
        Code::OUT_OF_MEMORY => 1,
        Code::INVALID_VALUE => 3,
        Code::INVALID_HANDLE => 4,
        Code::INVALID_PTX => 6,
        _ => 11,
    }
}

/// The text that NVRTC has for a status.
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetErrorString(status: c_int) -> *const c_char {
    let text = match status {
        0 => c"NVRTC_SUCCESS",
        1 => c"NVRTC_ERROR_OUT_OF_MEMORY",
        3 => c"NVRTC_ERROR_INVALID_INPUT",
        4 => c"NVRTC_ERROR_INVALID_PROGRAM",
        6 => c"NVRTC_ERROR_COMPILATION",
        _ => c"NVRTC_ERROR_INTERNAL_ERROR",
    };
    text.as_ptr()
}

nvrtc_calls! {
    /// How many architectures it compiles for.
    fn nvrtcGetNumSupportedArchs(_driver, count: Out<c_int>) {
        count.put(ARCHITECTURES.len() as c_int)
    }

    /// The architectures that it compiles for.
    fn nvrtcGetSupportedArchs(_driver, all: Out<c_int>) {
        all.check()?;
        for (place, architecture) in ARCHITECTURES.into_iter().enumerate() {
            // SAFETY: the caller passes room for as many as the call above has told.
            unsafe { all.ptr().wrapping_add(place).write(architecture) };
        }
        Ok(())
    }

    /// A program with its source and headers.
    fn nvrtcCreateProgram(
        driver,
        program: Out<usize>,
        source: *const c_char,
        _name: *const c_char,
        count: c_int,
        headers: *const *const c_char,
        names: *const *const c_char,
    ) {
        program.check()?;
        // SAFETY: the caller passes null or a C string, which outlives the call.
        let source = unsafe { super::init::text(source) }?.to_owned();
        // SAFETY: the caller passes as many names as it says.
        let names = unsafe { texts(count, names) }?;
        // SAFETY: as above, for the texts.
        let headers = unsafe { texts(count, headers) }?;
        let headers = names.into_iter().zip(headers).collect();
        let new = Program::new(source, headers);
        program.put(driver.tables().programs.add(Arc::new(new)))
    }

    /// Compiles a fused kernel.
    fn nvrtcCompileProgram(driver, program: usize, count: c_int, options: *const *const c_char) {
        let program = find(driver, program)?;
        // SAFETY: the caller passes as many options as it says.
        let options = unsafe { texts(count, options) }?;
        let (compiled, outcome) = match compile(driver, &program, &options) {
            Ok(ptx) => ((ptx, String::new()), Ok(())),
            Err(why) => ((String::new(), why), Err(Code::INVALID_PTX)),
        };
        program.set_compiled(compiled);
        outcome
    }

    /// The bytes of the PTX, with its NUL.
    fn nvrtcGetPTXSize(driver, program: usize, bytes: Out<usize>) {
        bytes.put(find(driver, program)?.text(false).len() + 1)
    }

    /// The PTX.
    fn nvrtcGetPTX(driver, program: usize, text: Out<u8>) {
        copy(&find(driver, program)?.text(false), &text)
    }

    /// The bytes of the messages, with their NUL.
    fn nvrtcGetProgramLogSize(driver, program: usize, bytes: Out<usize>) {
        bytes.put(find(driver, program)?.text(true).len() + 1)
    }

    /// The messages.
    fn nvrtcGetProgramLog(driver, program: usize, text: Out<u8>) {
        copy(&find(driver, program)?.text(true), &text)
    }

    /// Ends a program.
    fn nvrtcDestroyProgram(driver, program: Out<usize>) {
        program.check()?;
        // SAFETY: the caller passes a pointer to a program, which may be read and written.
        let handle = unsafe { program.ptr().read() };
        driver.tables().programs.remove(handle).map_err(|_| Code::INVALID_HANDLE)?;
        program.put(0)
    }
}

fn find(driver: &Driver, program: usize) -> Outcome<Arc<Program>> {
    driver.tables().programs.get(program).cloned().map_err(|_| Code::INVALID_HANDLE)
}

/// The PTX of a program.
///
/// # Errors
///
/// The messages of the compiler.
fn compile(driver: &Driver, program: &Program, options: &[String]) -> Result<String, String> {
    let architecture = options.iter().find_map(|option| option.strip_prefix("--gpu-architecture=compute_"));
    let architecture =
        architecture.and_then(|number| number.parse::<c_int>().ok()).filter(|it| ARCHITECTURES.contains(it));
    architecture.ok_or_else(|| format!("no architecture that there is, in {options:?}"))?;
    if !options.iter().any(|option| option == "--fmad=false") {
        return Err(
            "a fused kernel must not contract multiplications and additions: --fmad=false is missing".to_owned()
        );
    }
    if !program.headers.iter().any(|(name, _)| name == "fused.cuh") {
        return Err("could not open source file \"fused.cuh\"".to_owned());
    }
    let views = FusedViews::of_source(&program.source)?;
    let nth = driver.programs.fetch_add(1, Ordering::Relaxed);
    let mut last = driver.last_ptx.lock().unwrap_or_else(PoisonError::into_inner);
    if nth < driver.config.programs {
        *last = Nvrtc::named()?.compile(&program.source, &program.headers, options)?;
    }
    Ok(views.before(&last))
}

/// Writes the text and a NUL to `place`, which has room for them.
fn copy(text: &str, place: &Out<u8>) -> Outcome {
    place.check()?;
    for (at, byte) in text.bytes().chain([0]).enumerate() {
        // SAFETY: the caller passes room for the bytes that the call before has told.
        unsafe { place.ptr().wrapping_add(at).write(byte) };
    }
    Ok(())
}

/// # Safety
///
/// * `texts` has `count` entries, each null or a C string that outlives the call.
unsafe fn texts(count: c_int, texts: *const *const c_char) -> Outcome<Vec<String>> {
    let text = |place: usize| {
        // SAFETY: by the caller's duty there are so many entries.
        let text = unsafe { texts.wrapping_add(place).read() };
        // SAFETY: by the caller's duty it is null or a C string.
        unsafe { super::init::text(text) }.map(str::to_owned)
    };
    (0..usize::try_from(count).map_err(|_| Code::INVALID_VALUE)?).map(text).collect()
}
