//! Names of devices, such as `cpu:0`.

use std::fmt;
use std::str::FromStr;

use crate::names::text::ParseError;

/// The kind of a device.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum DeviceKind {
    /// The processor that runs this program.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// A simulated device, which checks the order of its commands.
    Sim,
}

impl DeviceKind {
    /// Every kind, in the order of the enum.
    pub const ALL: [DeviceKind; 3] = [DeviceKind::Cpu, DeviceKind::Cuda, DeviceKind::Sim];

    /// The name that [`Display`](fmt::Display) prints, such as `"cpu"`.
    pub const fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Cuda => "cuda",
            DeviceKind::Sim => "sim",
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

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
        DeviceId { kind: DeviceKind::Cpu, index }
    }

    /// The CUDA device `cuda:<index>`.
    pub const fn cuda(index: u32) -> DeviceId {
        DeviceId { kind: DeviceKind::Cuda, index }
    }

    /// The simulated device `sim:<index>`.
    pub const fn sim(index: u32) -> DeviceId {
        DeviceId { kind: DeviceKind::Sim, index }
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
            let expected = "cpu:<index>, cuda:<index> or sim:<index>, such as cpu:0";
            ParseError::new("device", text, expected)
        };
        let (kind, index) = text.split_once(':').ok_or_else(refused)?;
        let kind = DeviceKind::ALL.into_iter().find(|known| known.name() == kind).ok_or_else(refused)?;
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

    #[test]
    fn ids_round_trip() {
        for id in [DeviceId::cpu(0), DeviceId::cuda(7), DeviceId::sim(u32::MAX)] {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        assert_eq!(DeviceId::cuda(1).to_string(), "cuda:1");
    }

    /// Tables are indexed by the discriminant, and are as long as the list of kinds.
    #[test]
    fn the_place_of_a_kind_in_the_list_is_its_discriminant() {
        for (index, kind) in DeviceKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
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
