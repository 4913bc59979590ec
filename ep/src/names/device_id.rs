//! Names of devices, such as `cpu:0`.

use std::fmt;
use std::str::FromStr;

use crate::names::device_kind::DeviceKind;
use crate::names::text::{ParseError, listed};

/// Name of a device within one process, such as `cpu:0`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    /// The kind of the device.
    pub kind: DeviceKind,
    /// The index among the devices of its kind, from 0.
    pub index: u32,
}

crate::debug_as_display!(DeviceId);

impl DeviceId {
    /// The CPU device `cpu:<index>`.
    pub const fn cpu(index: u32) -> DeviceId {
        DeviceId { kind: DeviceKind::CPU, index }
    }

    /// The CUDA device `cuda:<index>`.
    pub const fn cuda(index: u32) -> DeviceId {
        DeviceId { kind: DeviceKind::CUDA, index }
    }

    /// The simulated device `sim:<index>`.
    pub const fn sim(index: u32) -> DeviceId {
        DeviceId { kind: DeviceKind::SIM, index }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.index)
    }
}

impl FromStr for DeviceId {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<DeviceId, ParseError> {
        let refused = || {
            let ids: Vec<String> = DeviceKind::all().map(|kind| format!("{kind}:<index>")).collect();
            ParseError::new("device", text, format!("{}, such as cpu:0", listed(&ids)))
        };
        let (kind, index) = text.split_once(':').ok_or_else(refused)?;
        let kind = DeviceKind::named(kind).ok_or_else(refused)?;
        // Digits only: `u32::from_str` would also accept a sign.
        if !index.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(refused());
        }
        let index = index.parse().map_err(|_| refused())?;
        Ok(DeviceId { kind, index })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::device_kind::KindInfo;

    #[test]
    fn ids_round_trip() {
        for id in [DeviceId::cpu(0), DeviceId::cuda(7), DeviceId::sim(u32::MAX)] {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        assert_eq!(DeviceId::cuda(1).to_string(), "cuda:1");
    }

    #[test]
    fn a_registered_kind_is_read_back_and_listed() {
        let kind = DeviceKind::register("readback", KindInfo::default()).unwrap();
        let id = DeviceId { kind, index: 3 };
        assert_eq!(id.to_string(), "readback:3");
        assert_eq!("readback:3".parse(), Ok(id));
        let error = "unheardof:3".parse::<DeviceId>().unwrap_err().to_string();
        assert!(
            error.contains("cpu:<index>, cuda:<index>, sim:<index>") && error.contains("readback:<index>"),
            "{error}"
        );
    }

    #[test]
    fn a_bad_id_says_what_would_work() {
        for text in ["", "cpu", "gpu:0", "cpu:", "cpu:x", "cpu:-1", "cpu:+1", "cpu:4294967296"] {
            let error = text.parse::<DeviceId>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")), "{error}");
            assert!(error.contains("cpu:0"), "{error}");
        }
    }
}
