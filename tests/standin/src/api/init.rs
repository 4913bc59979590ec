//! Initialisation, versions, and the texts of errors.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use crate::values::code::{self, Code, Outcome};
use crate::values::out::Out;

driver_calls! {
    /// Initialises the driver.
    fn cuInit(driver, flags: c_uint) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if driver.config.devices == 0 {
            return Err(Code::NO_DEVICE);
        }
        driver.ready.store(true, Ordering::Release);
        if driver.config.leaks {
            super::own::tell_leaks_at_exit();
        }
        Ok(())
    }

    /// The CUDA version of the driver.
    fn cuDriverGetVersion(driver, version: Out<c_int>) {
        version.put(driver.config.version)
    }

    /// The name of a result.
    fn cuGetErrorName(_driver, error: c_int, name: Out<*const c_char>) {
        name.put(code::name(error).ok_or(Code::INVALID_VALUE)?.as_ptr())
    }

    /// The text of a result.
    fn cuGetErrorString(_driver, error: c_int, text: Out<*const c_char>) {
        text.put(code::text(error).ok_or(Code::INVALID_VALUE)?.as_ptr())
    }

    /// The address of a driver call.
    fn cuGetProcAddress(_driver, symbol: *const c_char, address: Out<*const c_void>, _version: c_int, _flags: u64) {
        // SAFETY: the caller passes null or a C string, which outlives the call.
        let symbol = unsafe { text(symbol) }?;
        address.put(found(symbol).ok_or(Code::NOT_FOUND)?)
    }

    /// The address of a driver call, and whether it was found: 0 for found, 1 for unknown.
    fn cuGetProcAddress_v2(
        _driver,
        symbol: *const c_char,
        address: Out<*const c_void>,
        _version: c_int,
        _flags: u64,
        status: *mut c_int,
    ) {
        // SAFETY: the caller passes null or a C string, which outlives the call.
        let symbol = unsafe { text(symbol) }?;
        let found = found(symbol);
        if !status.is_null() {
            // SAFETY: the pointer is not null, so the caller's duty is that it may be written.
            unsafe { status.write(c_int::from(found.is_none())) };
        }
        address.put(found.ok_or(Code::NOT_FOUND)?)
    }
}

/// The address of the newest version of a driver call. The name is passed without `_v2`, as to `cuGetProcAddress`.
fn found(symbol: &str) -> Option<*const c_void> {
    let all = super::exported();
    let named = |name: &str| all.iter().find(|(known, _)| *known == name).map(|&(_, address)| address);
    let address = named(&format!("{symbol}_v2")).or_else(|| named(symbol))?;
    Some(std::ptr::with_exposed_provenance(address))
}

/// Reads a string of the caller.
///
/// # Safety
///
/// * `text` is null or a C string that outlives the result.
pub(super) unsafe fn text<'a>(text: *const c_char) -> Outcome<&'a str> {
    if text.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: `text` is not null, so by the caller's duty it is a C string that outlives the result.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| Code::INVALID_VALUE)
}
