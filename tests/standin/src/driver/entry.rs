//! The entry of every driver call: finds the driver of the process, and makes the checks that all calls share.

use std::ffi::c_int;
use std::io::Write;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use crate::driver::Driver;
use crate::driver::ranges;
use crate::driver::run::in_host_function;
use crate::objects::context;
use crate::values::code::{Code, Outcome};
use crate::values::config::Config;
use crate::values::findings::Kind;

/// The environment variable with the settings ([`Config`]) of a driver that was not set up by a test.
pub(crate) const VARIABLE: &str = "STREAMVM_STANDIN";

static DRIVER: Mutex<Option<Arc<Driver>>> = Mutex::new(None);

/// The driver of this process, which the first call sets up from the environment. `None` if that fails; the reason is on stderr.
pub(crate) fn driver() -> Option<Arc<Driver>> {
    let mut driver = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
    if driver.is_none() {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        *driver = made(&text);
    }
    driver.clone()
}

/// Replaces the driver by a new one with the settings of `text`, once all commands of the old one have passed. Returns `false`, and changes
/// nothing, if the text is invalid.
pub(crate) fn set_up(text: &str) -> bool {
    let Some(new) = made(text) else { return false };
    let mut driver = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
    let was_ready = driver.as_ref().is_some_and(|old| old.ready.load(Ordering::Acquire));
    new.ready.store(was_ready && new.config.ready && new.config.devices > 0, Ordering::Release);
    let old = driver.replace(new);
    // Released first, because host functions that still run may call the driver.
    drop(driver);
    if let Some(old) = old {
        old.close();
    }
    context::set_current(0);
    true
}

fn made(text: &str) -> Option<Arc<Driver>> {
    let made = match text.parse::<Config>() {
        Ok(config) => Driver::new(config).ok_or_else(|| String::from("no addresses are left for its memory")),
        Err(error) => Err(error.to_string()),
    };
    match made {
        Ok(driver) => Some(Arc::new(driver)),
        Err(why) => {
            let _ = std::io::stderr().write_all(format!("stand-in driver: {why}\n").as_bytes());
            None
        }
    }
}

/// Calls that work before `cuInit`.
const EARLY: [&str; 8] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "ncclGetUniqueId",
    "ncclGetVersion",
];

/// Runs a driver call: counts it, lets it fail if a fault says so, and checks that it is allowed now.
pub(crate) fn enter(name: &'static str, body: impl FnOnce(&Arc<Driver>) -> Outcome) -> c_int {
    let Some(driver) = driver() else { return Code::SYSTEM_NOT_READY.0 };
    match entered(&driver, name, body) {
        Ok(()) => 0,
        Err(code) => code.0,
    }
}

fn entered(driver: &Arc<Driver>, name: &'static str, body: impl FnOnce(&Arc<Driver>) -> Outcome) -> Outcome {
    if in_host_function() {
        let text = format!("{name}; a host function may make no driver call");
        return Err(driver.refuse(Kind::CallInHostFunction, text, Code::NOT_PERMITTED));
    }
    if let Some(name) = ranges::within(name) {
        driver.faults.call(name);
    }
    if let Some(code) = driver.faults.call(name) {
        if code.is_sticky()
            && let Ok(context) = driver.context(name, context::current())
        {
            context.end(code);
        }
        return Err(code);
    }
    if !driver.ready.load(Ordering::Acquire) && !EARLY.contains(&name) {
        return Err(Code::NOT_INITIALIZED);
    }
    if let Some(stream) = driver.captures.forbid(name) {
        let text = format!("{name} while {stream} captures");
        return Err(driver.refuse(Kind::Capture, text, Code::STREAM_CAPTURE_UNSUPPORTED));
    }
    body(driver)
}
