//! Is there a CUDA driver? Asked before anything else, so that no answer is a panic.
//!
//! cudarc looks for the library at its first call, through a fixed list of names, and for each function at its first use;
//! where it finds none it panics. So the library is looked for here first, by the same names in the same order. What was
//! found stays loaded: the same search of cudarc's then finds it too, and every function that is called ([`SYMBOLS`]) is
//! looked for in what cudarc has loaded, before the first is. Only then is there a [`Driver`].
//!
//! The answer is kept for the process: a library that is loaded stays, and `cuInit` is done once. It owns no device.

use std::sync::OnceLock;

use super::absent::{CudaAbsent, CudaVersion};
use super::driver::{self, Driver, DriverFailure, SYMBOLS};
use super::error::{DriverError, NO_DEVICE, STUB_LIBRARY};
use super::library;

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
    let library = library::find(names).map_err(|reason| CudaAbsent::NoDriver {
        tried: names.len(),
        reason: reason.unwrap_or_else(|| String::from("libcuda.so.1 was not found")),
    })?;
    // What was found stays loaded, so what cudarc loads now is the same.
    if let Some(function) = library::missing(driver::library(), SYMBOLS) {
        return Err(CudaAbsent::Incomplete { library, function, needed: NEEDED });
    }
    // SAFETY: the library is loaded, by cudarc itself, and has every function.
    Ok((unsafe { Driver::found() }, library))
}

fn start((driver, library): (Driver, String)) -> Result<Found, CudaAbsent> {
    let told = |failure| told(driver, failure);
    let count = || driver.init().and_then(|()| driver.device_count()).map_err(told);
    let (version, devices) = judge(library, driver.version().map_err(told), count)?;
    Ok(Found { driver, version, devices })
}

/// What the driver's version, and its devices once it has been started, say: version and devices, or why there are none.
fn judge(
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
