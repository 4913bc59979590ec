//! Places: where a tensor's bytes live.

use std::fmt;
use std::str::FromStr;

use streamvm_ep::DeviceId;

/// Host memory outside any device, or the memory of one device. `cpu:0` is a device: a copy from the host to it copies the bytes.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// Pageable memory outside any device: a caller's array, a loaded file.
    Host,
    /// The memory of a device.
    Device(DeviceId),
}

streamvm_ep::debug_as_display!(Place);

impl Place {
    /// The device, unless this is the host.
    pub fn device(self) -> Option<DeviceId> {
        match self {
            Place::Host => None,
            Place::Device(device) => Some(device),
        }
    }
}

impl From<DeviceId> for Place {
    fn from(device: DeviceId) -> Place {
        Place::Device(device)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Host => f.pad("host"),
            Place::Device(device) => f.pad(&device.to_string()),
        }
    }
}

/// The CPU device whose streams run instructions on host memory.
pub const HOST_DEVICE: DeviceId = DeviceId::cpu(0);

/// The error of parsing a text that does not name a place.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} does not name a place: expected host, or a device such as cpu:0 or cuda:1")]
pub struct ParsePlaceError {
    text: String,
}

streamvm_ep::debug_as_display!(ParsePlaceError);

impl FromStr for Place {
    type Err = ParsePlaceError;

    fn from_str(text: &str) -> Result<Place, ParsePlaceError> {
        if text == "host" {
            return Ok(Place::Host);
        }
        text.parse().map(Place::Device).map_err(|_| ParsePlaceError { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_print_and_parse_back() {
        for place in [Place::Host, Place::Device(DeviceId::cpu(0)), Place::Device(DeviceId::cuda(12))] {
            assert_eq!(place.to_string().parse::<Place>(), Ok(place));
        }
        assert!("gpu".parse::<Place>().unwrap_err().to_string().contains("cuda:1"));
    }
}
