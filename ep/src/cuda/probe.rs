//! Is there a CUDA driver? Asked before anything else, so that no answer is a panic.
//!
//! cudarc looks for the library at its first call, through a fixed list of names, and for each function at its first use;
//! where it finds none it panics. So the library is looked for here first, by the same names in the same order. What was
//! found stays loaded: the same search of cudarc's then finds it too, and every function that is called ([`SYMBOLS`]) is
//! looked for in what cudarc has loaded, before the first is. Only then is there a [`Driver`].
//!
//! The answer is kept for the process: a library that is loaded stays, and `cuInit` is done once. It owns no device.

use std::sync::OnceLock;

use libloading::Library;

use super::absent::{CudaAbsent, CudaVersion};
use super::driver::{self, Driver, DriverFailure, SYMBOLS};
use super::error::{DriverError, NO_DEVICE, STUB_LIBRARY};

/// The oldest driver that our PTX and calls work with.
pub(super) const NEEDED: CudaVersion = CudaVersion { major: 12, minor: 0 };

/// A driver that has been started and has devices.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) driver: Driver,
    /// What it can do.
    pub(super) version: CudaVersion,
    /// How many devices it has; at least 1.
    pub(super) devices: u32,
}

/// The driver of this process. The first call loads and starts it, which may take seconds; later ones look.
///
/// # Errors
/// Why there is no device.
pub(super) fn probe() -> Result<Found, CudaAbsent> {
    static FOUND: OnceLock<Result<Found, CudaAbsent>> = OnceLock::new();
    FOUND.get_or_init(|| start(load(&driver::library_names())?)).clone()
}

/// A library that has every function.
fn load(names: &[String]) -> Result<(Driver, String), CudaAbsent> {
    let library = find(names)?;
    // What was found stays loaded, so what cudarc loads now is the same.
    let loaded = driver::library();
    if let Some(function) = missing(loaded) {
        return Err(CudaAbsent::Incomplete { library, function, needed: NEEDED });
    }
    // SAFETY: the library is loaded, by cudarc itself, and has every function.
    Ok((unsafe { Driver::found() }, library))
}

/// The first name by which a library can be loaded. It stays loaded.
fn find(names: &[String]) -> Result<String, CudaAbsent> {
    let mut reason = None;
    for name in names {
        // SAFETY: the initialisers of a driver's library may run; that is what the name stands for.
        match unsafe { Library::new(name) } {
            Ok(library) => {
                std::mem::forget(library);
                return Ok(name.clone());
            }
            // A file that is there and cannot be loaded says more than one that is not.
            Err(error) => {
                let text = error.to_string();
                if reason.is_none() && !text.contains("No such file") {
                    reason = Some(text.lines().collect::<Vec<_>>().join(" "));
                }
            }
        }
    }
    let reason = reason.unwrap_or_else(|| String::from("libcuda.so.1 was not found"));
    Err(CudaAbsent::NoDriver { tried: names.len(), reason })
}

/// The first function that the library lacks.
fn missing(library: &Library) -> Option<&'static str> {
    SYMBOLS.iter().copied().find(|symbol| {
        // SAFETY: the symbol is looked for, not called.
        let found = unsafe { library.get::<unsafe extern "C" fn()>(symbol.as_bytes()) };
        found.is_err()
    })
}

fn start((driver, library): (Driver, String)) -> Result<Found, CudaAbsent> {
    let failed = |failure: DriverFailure, version| match failure.code() {
        STUB_LIBRARY => CudaAbsent::Stub { library: library.clone() },
        NO_DEVICE => CudaAbsent::NoDevice { version },
        _ => CudaAbsent::Init(told(driver, failure)),
    };
    let unknown = CudaVersion { major: 0, minor: 0 };
    let version = CudaVersion::from_number(driver.version().map_err(|failure| failed(failure, unknown))?);
    if version < NEEDED {
        return Err(CudaAbsent::TooOld { found: version, needed: NEEDED });
    }
    driver.init().map_err(|failure| failed(failure, version))?;
    let count = driver.device_count().map_err(|failure| failed(failure, version))?;
    match u32::try_from(count) {
        Ok(devices @ 1..) => Ok(Found { driver, version, devices }),
        _ => Err(CudaAbsent::NoDevice { version }),
    }
}

/// The failure with the driver's name and explanation.
pub(super) fn told(driver: Driver, failure: DriverFailure) -> DriverError {
    let (code, unknown) = (failure.code(), || String::from("an error that the driver has no text for"));
    let text_of = |text: Option<&std::ffi::CStr>| text.map(|text| text.to_string_lossy().into_owned());
    DriverError {
        call: failure.call,
        code,
        name: text_of(driver.error_name(failure)).unwrap_or_else(|| format!("code {code}")),
        text: text_of(driver.error_text(failure)).unwrap_or_else(unknown),
    }
}

#[cfg(test)]
#[path = "probe_tests.rs"]
mod tests;
