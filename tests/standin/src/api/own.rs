//! Functions of the stand-in's own, for tests: how it is set up, what it has found, what it was asked.
//!
//! Texts are handed over as a copy: a call with no room gives the bytes that there are, so that a caller asks twice.

use std::ffi::{CStr, c_char, c_int};
use std::sync::Once;

use crate::config;
use crate::entry;
use crate::findings::Kind;

/// Sets the driver up anew, by a text such as `devices=2;seed=7`, once nothing runs any more: all handles and addresses
/// that it has given out mean nothing from then on. Gives 0, or 1 if the text says nothing that is known; stderr has what.
///
/// # Safety
///
/// * `text` is a C string.
/// * Nothing uses memory that the driver has given out, and no other thread makes a driver call meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_set_up(text: *const c_char) -> c_int {
    // SAFETY: the caller gives a string.
    let text = unsafe { CStr::from_ptr(text) };
    c_int::from(!text.to_str().is_ok_and(entry::set_up))
}

/// Adds faults, by a text such as `fail=cuMemAlloc_v2:1:2`; they count from now. Gives 0, or 1 for a text that names none.
///
/// # Safety
///
/// * `text` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_fault(text: *const c_char) -> c_int {
    // SAFETY: the caller gives a string.
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

/// How often a driver function has been called since the driver was set up.
///
/// # Safety
///
/// * `name` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_calls(name: *const c_char) -> u64 {
    // SAFETY: the caller gives a string.
    let name = unsafe { CStr::from_ptr(name) };
    let (Ok(name), Some(driver)) = (name.to_str(), entry::driver()) else { return 0 };
    driver.faults.calls(name)
}

/// The findings, one a line: writes them to `place`, and gives how many bytes they have. If they fit in `room`, they are
/// taken out; otherwise nothing is written, and they stay.
///
/// # Safety
///
/// * `place` has room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_findings(place: *mut u8, room: usize) -> usize {
    let Some(driver) = entry::driver() else { return 0 };
    match driver.findings.take(room) {
        Ok(text) => {
            // SAFETY: the caller gives the room.
            unsafe { hand_over(&text, place, room) };
            text.len()
        }
        Err(bytes) => bytes,
    }
}

/// What is alive, one a line: contexts, streams, events, modules, memory. Like [`standin_findings`], but nothing is taken
/// out.
///
/// # Safety
///
/// * `place` has room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_leaks(place: *mut u8, room: usize) -> usize {
    let Some(driver) = entry::driver() else { return 0 };
    let text: String = driver.leaks(None).into_iter().map(|leak| leak + "\n").collect();
    // SAFETY: the caller gives the room.
    unsafe { hand_over(&text, place, room) };
    text.len()
}

/// Copies a text if it fits.
///
/// # Safety
///
/// * `place` has room for `room` bytes.
unsafe fn hand_over(text: &str, place: *mut u8, room: usize) {
    if !text.is_empty() && text.len() <= room {
        // SAFETY: it fits, and the text is not within what the caller gives.
        unsafe { place.copy_from_nonoverlapping(text.as_ptr(), text.len()) };
    }
}

/// From now on, what is alive when the process exits is a finding.
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
        // SAFETY: a function of this library, which is never unloaded while the process lives: its threads run in it.
        // A system that takes no more such functions leaves leaks untold.
        let _ = unsafe { libc::atexit(at_exit) };
    });
}
