//! Settings of the stand-in: one text, from an environment variable or from a test.
//!
//! ```text
//! devices=2; memory=64M; seed=7; fail=cuStreamWaitEvent:2:UNKNOWN; illegal=5@1
//! ```

use std::str::FromStr;

use crate::values::faults::Fault;

/// The parsed settings; those that the text leaves out keep the values of [`Config::default`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// `devices=N`: number of devices; with 0, `cuInit` reports that there is none.
    pub(crate) devices: usize,
    /// `memory=BYTES`: memory of each device, optionally with `K`, `M` or `G` after the number.
    pub(crate) memory: u64,
    /// `pinned=BYTES`: pinned memory of the host, over all devices.
    pub(crate) pinned: u64,
    /// `seed=N`: seed of the delays.
    pub(crate) seed: u64,
    /// `delay=MICROSECONDS`: longest delay of a command before it runs; a few commands wait up to eight times as long.
    pub(crate) delay: u64,
    /// `version=N`: version of the driver, such as 13000 for CUDA 13.0.
    pub(crate) version: i32,
    /// `nccl=N`: version of NCCL, such as 22703 for 2.27.3.
    pub(crate) nccl: i32,
    /// `capability=MAJOR.MINOR`: compute capability of each device.
    pub(crate) capability: (i32, i32),
    /// `peer=0`: no device can access the memory of another.
    pub(crate) peer: bool,
    /// `pageable=1`: a copy of pageable memory is not a finding. It runs before its call returns, as a driver may do.
    pub(crate) pageable: bool,
    /// `combined=1`: a command that writes write-combined memory is not a finding.
    pub(crate) combined: bool,
    /// `unwritten=0`: reading memory that was never written is not a finding.
    pub(crate) unwritten: bool,
    /// `order=0`: unordered accesses are not findings.
    pub(crate) order: bool,
    /// `leaks=1`: objects that are alive when the process exits are findings.
    pub(crate) leaks: bool,
    /// `ready=0`: `cuInit` must be called again. By default a new driver of a process that has called `cuInit` is ready, since a program
    /// calls it only once.
    pub(crate) ready: bool,
    /// `fail=…`, `ignore=…`, `illegal=…`, `slow=…`: see [`Fault`].
    pub(crate) faults: Vec<Fault>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            devices: 1,
            memory: 1 << 30,
            pinned: 1 << 30,
            seed: 1,
            delay: 50,
            version: 13000,
            nccl: 22_703,
            capability: (8, 0),
            peer: true,
            pageable: false,
            combined: false,
            unwritten: true,
            order: true,
            leaks: false,
            ready: true,
            faults: Vec::new(),
        }
    }
}

/// A text with a part that is not a setting of the stand-in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{part}` is no setting of the stand-in; expected {expected}")]
pub(crate) struct ConfigError {
    part: String,
    expected: &'static str,
}

const SETTINGS: &str = "devices, memory, pinned, seed, delay, version, nccl, capability, peer, pageable, combined, unwritten, order, leaks, ready, fail, \
                         ignore, illegal or slow, each as name=value, with semicolons between";

impl FromStr for Config {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            let refused = |expected| ConfigError { part: part.to_owned(), expected };
            let (name, value) = part.split_once('=').ok_or_else(|| refused(SETTINGS))?;
            let (name, value) = (name.trim(), value.trim());
            let number = || value.parse::<u64>().map_err(|_| refused("a number"));
            match name {
                "devices" => config.devices = number()?.min(128) as usize,
                "memory" => config.memory = bytes(value).ok_or_else(|| refused("bytes, such as 64M"))?,
                "pinned" => config.pinned = bytes(value).ok_or_else(|| refused("bytes, such as 64M"))?,
                "seed" => config.seed = number()?,
                "delay" => config.delay = number()?,
                "version" => config.version = value.parse().map_err(|_| refused("a version, such as 13000"))?,
                "nccl" => config.nccl = value.parse().map_err(|_| refused("a version, such as 22703"))?,
                "capability" => config.capability = capability(value).ok_or_else(|| refused("two numbers: 8.0"))?,
                "peer" => config.peer = flag(value).ok_or_else(|| refused("0 or 1"))?,
                "unwritten" => config.unwritten = flag(value).ok_or_else(|| refused("0 or 1"))?,
                "pageable" => config.pageable = flag(value).ok_or_else(|| refused("0 or 1"))?,
                "combined" => config.combined = flag(value).ok_or_else(|| refused("0 or 1"))?,
                "ready" => config.ready = flag(value).ok_or_else(|| refused("0 or 1"))?,
                "leaks" => config.leaks = flag(value).ok_or_else(|| refused("0 or 1"))?,
                "order" => config.order = flag(value).ok_or_else(|| refused("0 or 1"))?,
                _ => config.faults.push(fault(name, value).map_err(refused)?),
            }
        }
        Ok(config)
    }
}

/// The faults of a text that has only faults.
pub(crate) fn faults(text: &str) -> Result<Vec<Fault>, ConfigError> {
    let parts = text.split(';').map(str::trim).filter(|part| !part.is_empty());
    let one = |part: &str| {
        let refused = |expected| ConfigError { part: part.to_owned(), expected };
        let (name, value) = part.split_once('=').ok_or_else(|| refused(FAULTS))?;
        fault(name.trim(), value.trim()).map_err(refused)
    };
    parts.map(one).collect()
}

const FAULTS: &str = "fail=FUNCTION:NTH:CODE, ignore=FUNCTION:NTH, illegal=NTH, hang=FUNCTION or slow=NTH:MILLISECONDS";

fn fault(name: &str, value: &str) -> Result<Fault, &'static str> {
    Fault::parse(name, value).ok_or(match name {
        "fail" | "ignore" | "illegal" | "hang" | "slow" => FAULTS,
        _ => SETTINGS,
    })
}

fn flag(value: &str) -> Option<bool> {
    match value {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

fn capability(value: &str) -> Option<(i32, i32)> {
    let (major, minor) = value.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// A number of bytes: `4096`, `64K`, `64M`, `2G`.
fn bytes(value: &str) -> Option<u64> {
    let unit = match value.as_bytes().last()? {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        _ => return value.parse().ok(),
    };
    value[..value.len() - 1].parse::<u64>().ok()?.checked_mul(1 << unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::code::Code;
    use crate::values::faults::Trigger;

    #[test]
    fn settings_are_read_and_the_rest_keeps_its_value() {
        let config: Config = " devices=2; memory=64M ;seed=7;capability=9.0;unwritten=0;".parse().unwrap();
        let expected = Config { devices: 2, memory: 64 << 20, seed: 7, ..Config::default() };
        let expected = Config { capability: (9, 0), unwritten: false, ..expected };
        assert_eq!(config, expected);
        assert_eq!("".parse(), Ok(Config::default()));
    }

    #[test]
    fn faults_are_read() {
        let config: Config = "fail=cuMemAlloc_v2:3:2;fail=cuInit:*:STUB_LIBRARY;illegal=5@1;slow=2:30".parse().unwrap();
        let fail = |function: &str, at, code| Fault::Fail { function: function.to_owned(), at, code };
        let expected = [
            fail("cuMemAlloc_v2", Trigger::Nth(3), Code::OUT_OF_MEMORY),
            fail("cuInit", Trigger::Every, Code::STUB_LIBRARY),
            Fault::Illegal { kernel: 5, device: Some(1) },
            Fault::Slow { kernel: 2, milliseconds: 30 },
        ];
        assert_eq!(config.faults, expected);
    }

    #[test]
    fn what_says_nothing_is_refused_with_what_would() {
        for text in ["device=2", "devices", "devices=two", "memory=1X", "peer=2", "capability=8", "illegal=", "slow=1"]
        {
            let error = text.parse::<Config>().unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("expected"), "{error}");
        }
        assert!("fail=cuInit:0:2".parse::<Config>().is_err(), "calls are counted from 1");
        assert!(faults("devices=2").is_err());
    }
}
