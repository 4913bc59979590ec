//! The reasons why there is no CUDA device.

use std::fmt;

use crate::errors::driver_error::DriverError;

/// A version of CUDA, such as 12.4.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion {
    /// The number before the point.
    pub major: u32,
    /// The number after the point.
    pub minor: u32,
}

impl CudaVersion {
    /// The version for the driver's `number`, such as 12040 for 12.4.
    pub fn from_number(number: i32) -> CudaVersion {
        let number = u32::try_from(number).unwrap_or(0);
        CudaVersion { major: number / 1000, minor: number % 1000 / 10 }
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The reason why there is no CUDA device in this process. Each text is one line.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of each variant says what its fields are")]
pub enum CudaAbsent {
    /// The build has no CUDA support.
    #[error("this build has no CUDA; build it with the feature `cuda`")]
    NotBuilt,
    /// The engine was set up without CUDA.
    #[error("this engine offers no CUDA devices")]
    NotOffered,
    /// The process was forked from the process that built the engine.
    #[error("this process was forked from the one that built the engine, and a driver does not survive that")]
    Forked,
    /// The library of the driver was not found.
    #[error("no CUDA driver: {reason} ({tried} names tried); install the NVIDIA driver, or set LD_LIBRARY_PATH to it")]
    NoDriver { tried: usize, reason: String },
    /// The library is a stub to link against.
    #[error("{library} is the CUDA toolkit's stub, not a driver; take its folder out of LD_LIBRARY_PATH")]
    Stub { library: String },
    /// The library lacks a function.
    #[error("{library} has no {function}: it is no CUDA driver, or an old one; CUDA {needed} is needed")]
    Incomplete { library: String, function: &'static str, needed: CudaVersion },
    /// An old driver.
    #[error("the CUDA driver is too old: it does CUDA {found}, and {needed} is needed; update the NVIDIA driver")]
    TooOld { found: CudaVersion, needed: CudaVersion },
    /// The driver finds no device.
    #[error("the CUDA driver ({version}) finds no device; is one there, and does CUDA_VISIBLE_DEVICES show it?")]
    NoDevice { version: CudaVersion },
    /// The driver does not start.
    #[error("the CUDA driver does not start: {0}")]
    Init(DriverError),
}

crate::debug_as_display!(CudaAbsent);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_people_write_them() {
        assert_eq!(CudaVersion::from_number(12_040).to_string(), "12.4");
        assert_eq!(CudaVersion::from_number(13_000).to_string(), "13.0");
        assert!(CudaVersion::from_number(11_080) < CudaVersion::from_number(12_000));
        assert_eq!(CudaVersion::from_number(-1).to_string(), "0.0");
    }

    #[test]
    fn each_reason_is_one_line_that_says_what_to_do() {
        let version = CudaVersion { major: 11, minor: 8 };
        let needed = CudaVersion { major: 12, minor: 0 };
        let library = String::from("libcuda.so.1");
        let failed = DriverError { call: "cuInit", code: 802, name: "X".into(), text: "not ready".into() };
        let all = [
            (CudaAbsent::NotBuilt, "feature `cuda`"),
            (CudaAbsent::Forked, "forked"),
            (CudaAbsent::NoDriver { tried: 3, reason: "libcuda.so.1 was not found".into() }, "install"),
            (CudaAbsent::Stub { library: library.clone() }, "LD_LIBRARY_PATH"),
            (CudaAbsent::Incomplete { library, function: "cuInit", needed }, "12.0 is needed"),
            (CudaAbsent::TooOld { found: version, needed }, "11.8, and 12.0 is needed"),
            (CudaAbsent::NoDevice { version }, "CUDA_VISIBLE_DEVICES"),
            (CudaAbsent::Init(failed), "cuInit gave X (802): not ready"),
        ];
        for (reason, part) in all {
            let text = reason.to_string();
            assert!(text.contains(part), "{text}");
            assert_eq!(text.lines().count(), 1, "{text}");
        }
    }
}
