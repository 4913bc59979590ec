//! The stand-in's own functions, for tests: its settings, findings and counts.
//!
//! Texts are returned as copies. A call whose buffer is too small returns the number of bytes needed, so a caller calls twice.

use std::ffi::{CStr, c_char, c_int};
use std::sync::Once;

use crate::driver::entry;
use crate::values::config;
use crate::values::findings::Kind;

/// Replaces the driver by one with the settings of a text such as `devices=2;seed=7`, once all commands have passed. All handles and
/// addresses of the old driver are invalid from then on. Returns 0, or 1 for an invalid text, with the reason on stderr.
///
/// # Safety
///
/// * `text` is a C string.
/// * No code uses memory of the old driver any more, and no other thread makes a driver call meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_set_up(text: *const c_char) -> c_int {
    // SAFETY: by the caller's duty `text` is a C string.
    let text = unsafe { CStr::from_ptr(text) };
    c_int::from(!text.to_str().is_ok_and(entry::set_up))
}

/// Adds faults, by a text such as `fail=cuMemAlloc_v2:1:2`, which count from now on. Returns 0, or 1 for a text that is not a list of
/// faults.
///
/// # Safety
///
/// * `text` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_fault(text: *const c_char) -> c_int {
    // SAFETY: by the caller's duty `text` is a C string.
    let text = unsafe { CStr::from_ptr(text) };
    let faults = text.to_str().ok().and_then(|text| config::faults(text).ok());
    let (Some(faults), Some(driver)) = (faults, entry::driver()) else { return 1 };
    faults.into_iter().for_each(|fault| driver.faults.add(fault));
    0
}

/// Shuts the gate (1), so that no stream begins another command, or opens it (0).
#[unsafe(no_mangle)]
pub extern "C" fn standin_hold(shut: c_int) {
    if let Some(driver) = entry::driver() {
        driver.gate.set(shut != 0);
    }
}

/// Number of calls of a driver function since the driver was set up.
///
/// # Safety
///
/// * `name` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_calls(name: *const c_char) -> u64 {
    // SAFETY: by the caller's duty `name` is a C string.
    let name = unsafe { CStr::from_ptr(name) };
    let (Ok(name), Some(driver)) = (name.to_str(), entry::driver()) else { return 0 };
    driver.faults.calls(name)
}

/// Writes the findings, one a line, to `place`, and returns their size in bytes. If they fit in `room`, they are removed from the driver;
/// otherwise nothing is written and they stay.
///
/// # Safety
///
/// * `place` has room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_findings(place: *mut u8, room: usize) -> usize {
    let Some(driver) = entry::driver() else { return 0 };
    match driver.findings.take(room) {
        Ok(text) => {
            // SAFETY: by the caller's duty `place` has room for `room` bytes.
            unsafe { hand_over(&text, place, room) };
            text.len()
        }
        Err(bytes) => bytes,
    }
}

/// Writes the objects that are alive, one a line: contexts, streams, events, modules, memory. The buffer works as in [`standin_findings`],
/// but nothing is removed.
///
/// # Safety
///
/// * `place` has room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_leaks(place: *mut u8, room: usize) -> usize {
    let Some(driver) = entry::driver() else { return 0 };
    let text: String = driver.leaks(None).into_iter().map(|leak| leak + "\n").collect();
    // SAFETY: by the caller's duty `place` has room for `room` bytes.
    unsafe { hand_over(&text, place, room) };
    text.len()
}

/// Writes what launches have reached of the PTX of kernels in this process, as [`Standin::coverage`](crate::Standin::coverage) gives it. The buffer works as in
/// [`standin_leaks`].
///
/// # Safety
///
/// * `place` has room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_coverage(place: *mut u8, room: usize) -> usize {
    let text = crate::kernels::coverage();
    // SAFETY: by the caller's duty `place` has room for `room` bytes.
    unsafe { hand_over(&text, place, room) };
    text.len()
}

/// Copies a text to `place` if it fits.
///
/// # Safety
///
/// * `place` has room for `room` bytes.
unsafe fn hand_over(text: &str, place: *mut u8, room: usize) {
    if !text.is_empty() && text.len() <= room {
        // SAFETY: the text fits in `room`, and its own allocation does not overlap the caller's buffer.
        unsafe { place.copy_from_nonoverlapping(text.as_ptr(), text.len()) };
    }
}

/// From now on, objects that are alive when the process exits are findings.
pub(super) fn tell_leaks_at_exit() {
    extern "C" fn at_exit() {
        if let Some(driver) = entry::driver() {
            for leak in driver.leaks(None) {
                driver.findings.add(Kind::Leak, format!("{leak} when the process exits"));
            }
        }
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function is part of this library, which is never unloaded while the process runs, since its threads run in it. If the
        // system accepts no more such functions, leaks are not reported.
        let _ = unsafe { libc::atexit(at_exit) };
    });
}
