//! The machine on which a program measures: what figures depend on.

use std::fmt;
use std::fs;

use serde_json::{Value, json};

use crate::floors::threads;
use crate::harness::case::Sizes;

/// Two threads that spin pass a number to and fro in less than this, in nanoseconds, if their cores are near each other: 80 was measured there, and 380 after a virtual machine
/// had moved its cores apart.
const NEAR_NS: f64 = 250.0;

/// The processor, its caches and cores, as far as the system tells them.
#[derive(Debug)]
pub struct Machine {
    processor: String,
    /// The widest vectors that streamvm's kernels know.
    vectors: &'static str,
    /// Bytes of the caches for data, from the first level on.
    caches: Vec<u64>,
    cores: usize,
    /// The round trip of a number between two threads that spin, in nanoseconds; none on one core.
    round_trip: Option<f64>,
}

impl Machine {
    /// Looks at this machine, and measures a round trip, for some milliseconds.
    pub fn here() -> Machine {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let sizes = Sizes { trips: 20_000, ..Sizes::QUICK };
        let trips = || threads::spin(&sizes).ok()?.first().map(|sample| sample.value);
        Machine {
            processor: processor(),
            vectors: vectors(),
            caches: caches(),
            cores,
            round_trip: if cores > 1 { trips() } else { None },
        }
    }

    /// Whether it has AVX-512.
    pub fn has_avx512(&self) -> bool {
        self.vectors == AVX512
    }

    /// `{"processor", "vectors", "caches", "cores", "round_trip_ns"}`.
    pub fn json(&self) -> Value {
        json!({
            "processor": self.processor,
            "vectors": self.vectors,
            "caches": self.caches,
            "cores": self.cores,
            "round_trip_ns": self.round_trip,
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.processor, self.vectors)?;
        if !self.caches.is_empty() {
            let sizes: Vec<_> = self.caches.iter().map(|&bytes| size(bytes)).collect();
            write!(f, ", caches of {}", sizes.join(", "))?;
        }
        write!(f, ", {} core{}", self.cores, if self.cores == 1 { "" } else { "s" })?;
        match self.round_trip {
            Some(ns) => write!(
                f,
                " {} ({ns:.0} ns there and back)",
                if ns < NEAR_NS { "near each other" } else { "far from each other" }
            ),
            None => Ok(()),
        }
    }
}

const AVX512: &str = "AVX-512";

#[cfg(target_arch = "x86_64")]
fn vectors() -> &'static str {
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (avx512, is_x86_feature_detected!("avx2")) {
        (true, _) => AVX512,
        (false, true) => "AVX2",
        (false, false) => "SSE2",
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn vectors() -> &'static str {
    if cfg!(target_arch = "aarch64") { "NEON" } else { "unknown vectors" }
}

/// The name of the processor, where the system tells it.
fn processor() -> String {
    let facts = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let fact = |name: &str| facts.lines().find(|line| line.starts_with(name)).and_then(|line| line.split_once(": "));
    let number = |name| fact(name).map_or("", |(_, number)| number);
    match fact("model name") {
        // Virtual machines may give a name of many processors.
        Some((_, name)) => format!("{name} (family {}, model {})", number("cpu family"), number("model\t")),
        None => format!("a processor of kind {} whose name the system does not tell", std::env::consts::ARCH),
    }
}

/// The caches of the first core that hold data, as Linux tells them.
fn caches() -> Vec<u64> {
    let of = |index: usize| {
        let fact =
            |name: &str| fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}")).ok();
        let size = bytes(fact("size")?.trim())?;
        (fact("type")?.trim() != "Instruction").then_some(size)
    };
    (0..8).filter_map(of).collect()
}

/// The bytes of `32K` or `1M`.
fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.len().checked_sub(1)?);
    let shift = match unit {
        "K" => 10,
        "M" => 20,
        _ => return text.parse().ok(),
    };
    Some(number.parse::<u64>().ok()? << shift)
}

fn size(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 20) { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_told_in_a_line_and_as_json() {
        let machine = Machine {
            processor: "Nine (family 1, model 2)".to_owned(),
            vectors: "AVX2",
            caches: vec![32 << 10, 512 << 10, 32 << 20],
            cores: 2,
            round_trip: Some(480.4),
        };
        let line = "Nine (family 1, model 2), AVX2, caches of 32 KiB, 512 KiB, 32 MiB, 2 cores far from each other (480 ns there and back)";
        assert_eq!(machine.to_string(), line);
        assert_eq!((&machine.json()["caches"][1], machine.has_avx512()), (&json!(524_288), false));
        let single = Machine { caches: vec![], cores: 1, round_trip: None, ..machine };
        assert_eq!(single.to_string(), "Nine (family 1, model 2), AVX2, 1 core");
    }

    #[test]
    fn sizes_of_caches_have_units() {
        assert_eq!(["48K", "1M", "4096", "", "K"].map(bytes), [Some(49_152), Some(1 << 20), Some(4096), None, None]);
    }

    #[test]
    fn this_machine_has_a_name_and_cores() {
        let machine = Machine::here();
        assert!(machine.cores > 0 && !machine.processor.is_empty(), "{machine}");
        assert_eq!(machine.round_trip.is_some(), machine.cores > 1);
    }
}
