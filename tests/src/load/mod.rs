//! A mixed load through the public API, and what is measured while it runs: for programs that run for minutes.
//!
//! `soak` watches that nothing grows; `stress` runs the same load under sanitizers. Every turn checks its results, so a
//! wrong number ends the program like a crash would.

mod functions;
mod latencies;
mod turns;

pub use latencies::Latencies;
pub use turns::{Counts, Load, Turn};

/// Bytes of this process that lie in memory, as the system counts them. `None` where it does not say.
pub fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Silences the panics that the load causes on purpose; every other panic is reported as before.
pub fn expect_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.payload_as_str().unwrap_or_default();
        if text != turns::ON_PURPOSE {
            report(info);
        }
    }));
}
