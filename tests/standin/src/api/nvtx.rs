//! The functions of NVTX by which a thread begins and ends ranges.

use std::ffi::{CStr, c_char, c_int};

use crate::driver::{entry, ranges};
use crate::values::findings::Kind;

/// Begins a range.
///
/// # Safety
///
/// * `name` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvtxRangePushA(name: *const c_char) -> c_int {
    // SAFETY: by the caller's duty `name` is a C string.
    let name = unsafe { CStr::from_ptr(name) };
    ranges::push(name.to_string_lossy().into_owned()) as c_int
}

/// Ends the innermost range.
#[unsafe(no_mangle)]
pub extern "C" fn nvtxRangePop() -> c_int {
    match (ranges::pop(), entry::driver()) {
        (Some(depth), _) => depth as c_int,
        (None, Some(driver)) => {
            driver.findings.add(Kind::BadArguments, "nvtxRangePop of a thread that is in no range".to_owned());
            -1
        }
        (None, None) => -1,
    }
}
