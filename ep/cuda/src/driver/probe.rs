//! The probe for a CUDA driver. It runs before any other call, so that a missing driver is an error and not a panic.
//!
//! cudarc looks for the library at its first call, by a fixed list of names, and for each function at its first use; it panics if it
//! finds none. So this module first looks for the library by the same names in the same order. The library stays loaded, so that cudarc's
//! search finds the same one. Then every function in [`SYMBOLS`] is looked up in the library that cudarc has loaded. Only after that is
//! there a [`Driver`].
//!
//! The result is kept for the process, because a library stays loaded and `cuInit` runs once. The probe owns no device.

use std::sync::OnceLock;

use streamvm_ep::{CudaAbsent, CudaVersion, DriverError};

use crate::driver::error_codes::{NO_DEVICE, STUB_LIBRARY};
use crate::driver::optional_library;
use crate::driver::{self, Driver, DriverFailure, SYMBOLS};

/// The oldest CUDA version that our PTX and calls work with.
pub(crate) const NEEDED: CudaVersion = CudaVersion { major: 12, minor: 0 };

/// An initialised driver that has devices.
#[derive(Clone, Debug)]
pub(crate) struct UsableDriver {
    pub(crate) driver: Driver,
    /// The version that it supports.
    pub(crate) version: CudaVersion,
    /// How many devices it has; at least 1.
    pub(crate) devices: u32,
}

/// The driver of this process. The first call loads and initialises it, which may take seconds; later calls return the same result.
///
/// # Errors
/// The reason why there is no device.
pub(crate) fn probe() -> Result<UsableDriver, CudaAbsent> {
    static FOUND: OnceLock<Result<UsableDriver, CudaAbsent>> = OnceLock::new();
    FOUND.get_or_init(|| start(load(&driver::library_names())?)).clone()
}

/// A library that has every function.
fn load(names: &[String]) -> Result<(Driver, String), CudaAbsent> {
    let library = optional_library::find(names).map_err(|reason| CudaAbsent::NoDriver {
        tried: names.len(),
        reason: reason.unwrap_or_else(|| String::from("libcuda.so.1 was not found")),
    })?;
    // The library that was found stays loaded, so cudarc loads the same one.
    if let Some(function) = optional_library::missing(driver::library(), SYMBOLS) {
        return Err(CudaAbsent::Incomplete { library, function, needed: NEEDED });
    }
    // SAFETY: the library is loaded, by cudarc itself, and has every function.
    Ok((unsafe { Driver::found() }, library))
}

fn start((driver, library): (Driver, String)) -> Result<UsableDriver, CudaAbsent> {
    let driver_error = |failure| driver_error(driver, failure);
    let count = || driver.init().and_then(|()| driver.device_count()).map_err(driver_error);
    let (version, devices) = evaluate(library, driver.version().map_err(driver_error), count)?;
    Ok(UsableDriver { driver, version, devices })
}

/// Evaluates the driver's version and, by `count`, its number of devices.
fn evaluate(
    library: String,
    version: Result<i32, DriverError>,
    count: impl FnOnce() -> Result<i32, DriverError>,
) -> Result<(CudaVersion, u32), CudaAbsent> {
    let failed = |error: DriverError, version| match (error.code, version) {
        (STUB_LIBRARY, _) => CudaAbsent::Stub { library: library.clone() },
        (NO_DEVICE, Some(version)) => CudaAbsent::NoDevice { version },
        _ => CudaAbsent::Init(error),
    };
    let version = CudaVersion::from_number(version.map_err(|error| failed(error, None))?);
    if version < NEEDED {
        return Err(CudaAbsent::TooOld { found: version, needed: NEEDED });
    }
    match u32::try_from(count().map_err(|error| failed(error, Some(version)))?) {
        Ok(devices @ 1..) => Ok((version, devices)),
        _ => Err(CudaAbsent::NoDevice { version }),
    }
}

/// The failure with the driver's name and explanation.
pub(crate) fn driver_error(driver: Driver, failure: DriverFailure) -> DriverError {
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
