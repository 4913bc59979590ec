//! Modules and their kernels.

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::sync::Arc;

use crate::driver::{Driver, Function, Module};
use crate::kernels::{FusedViews, PtxCode};
use crate::values::code::Code;
use crate::values::findings::Kind;
use crate::values::out::Out;

/// Option of a load: the buffer into which the compiler writes errors.
const ERROR_LOG: c_uint = 5;

/// Option of a load: the size of this buffer in bytes.
const ERROR_LOG_BYTES: c_uint = 6;

driver_calls! {
    /// Loads a module of PTX for the current context's device.
    fn cuModuleLoadData(driver, module: Out<usize>, image: *const c_void) {
        // SAFETY: the caller passes null or PTX that ends with a NUL.
        unsafe { load(driver, "cuModuleLoadData", &module, image) }.map_err(|refused| refused.code)
    }

    /// Loads a module of PTX for the device of the current context, and writes errors to the buffer of the options.
    fn cuModuleLoadDataEx(
        driver,
        module: Out<usize>,
        image: *const c_void,
        count: c_uint,
        options: *const c_uint,
        values: *const *mut c_void,
    ) {
        // SAFETY: the caller passes null or PTX that ends with a NUL.
        let loaded = unsafe { load(driver, "cuModuleLoadDataEx", &module, image) };
        loaded.map_err(|refused| {
            if let Some(why) = &refused.why {
                // SAFETY: the caller passes `count` options and as many values.
                unsafe { tell(why, count, options, values) };
            }
            refused.code
        })
    }

    /// Unloads a module and its kernels.
    fn cuModuleUnload(driver, handle: usize) {
        driver.current("cuModuleUnload")?;
        let mut tables = driver.tables();
        let removed = tables.modules.remove(handle);
        drop(tables);
        removed.map_err(|why| driver.bad_handle("cuModuleUnload", "module", handle, why, Code::INVALID_HANDLE))?;
        Ok(())
    }

    /// Looks up a kernel that the module contains and whose parameter the stand-in knows.
    fn cuModuleGetFunction(driver, function: Out<usize>, module: usize, name: *const c_char) {
        const CALL: &str = "cuModuleGetFunction";
        function.check()?;
        // SAFETY: the caller passes null or a C string, which outlives the call.
        let name = unsafe { super::init::text(name) }?;
        let found = driver.tables().modules.get(module).cloned();
        let loaded = found.map_err(|why| driver.bad_handle(CALL, "module", module, why, Code::INVALID_HANDLE))?;
        loaded.context.check()?;
        let kernel = loaded.kernel(name).ok_or(Code::NOT_FOUND)?;
        let new = Function { module, kernel };
        function.put(driver.tables().functions.add(Arc::new(new)))
    }
}

/// A module that was not loaded.
struct Refused {
    code: Code,
    /// What the compiler of PTX says.
    why: Option<String>,
}

impl From<Code> for Refused {
    fn from(code: Code) -> Refused {
        Refused { code, why: None }
    }
}

/// # Safety
///
/// * `image` is null or ends with a NUL.
unsafe fn load(driver: &Driver, call: &str, module: &Out<usize>, image: *const c_void) -> Result<(), Refused> {
    let context = driver.current(call)?;
    module.check()?;
    if image.is_null() {
        return Err(Code::INVALID_VALUE.into());
    }
    // SAFETY: `image` is not null, so by the caller's duty it ends with a NUL.
    let text = unsafe { CStr::from_ptr(image.cast()) };
    // An image that is not text is a binary, which is for a real device.
    let text = text.to_str().map_err(|_| Code::INVALID_IMAGE)?;
    let invalid = |why: String| Refused { code: Code::INVALID_PTX, why: Some(why) };
    if !text.contains(".version") || !text.contains(".target") {
        return Err(invalid("the stand-in found no .version and .target: this is no PTX".to_owned()));
    }
    let unknown = |why: String| {
        driver.findings.add(Kind::UnknownPtx, format!("{call}: {why}; fix the PTX, or add it to tests/ptx"));
        invalid(why)
    };
    let code = PtxCode::of(text).map_err(unknown)?;
    let fused = FusedViews::of_ptx(text).map(Arc::new);
    Ok(module.put(driver.tables().modules.add(Arc::new(Module { context, code, fused })))?)
}

/// Writes the error to the buffer of the options, if there is one and it has room.
///
/// # Safety
///
/// * `options` and `values` have `count` entries each, and each value is valid for its option.
unsafe fn tell(why: &str, count: c_uint, options: *const c_uint, values: *const *mut c_void) {
    let text = [why.as_bytes(), b"\0"].concat();
    let (mut place, mut room) = (std::ptr::null_mut::<u8>(), 0);
    for at in 0..count as usize {
        let (option, value) = (options.wrapping_add(at), values.wrapping_add(at));
        // SAFETY: by the caller's duty there are `count` options.
        let option = unsafe { option.read() };
        // SAFETY: by the caller's duty there are `count` values.
        let value = unsafe { value.read() };
        match option {
            ERROR_LOG => place = value.cast(),
            // A size is passed as a pointer of this value; some callers set only its low four bytes.
            ERROR_LOG_BYTES => room = value.addr() & 0xFFFF_FFFF,
            _ => {}
        }
    }
    if !place.is_null() && room >= text.len() {
        // SAFETY: by the caller's duty the buffer has `room` bytes, and the text fits in them.
        unsafe { place.copy_from_nonoverlapping(text.as_ptr(), text.len()) };
    }
}
