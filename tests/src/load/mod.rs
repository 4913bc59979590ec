//! A mixed load through the public API, with measurements, for programs that run for minutes.
//!
//! Layer: uses `support`; is used by the programs `soak` and `stress`.
//!
//! Main types: a [`Load`] is an engine under load, and runs one [`Turn`] after another; [`Latencies`] counts how long they took.
//!
//! `soak` checks that nothing grows; `stress` runs the same load under sanitizers. Every turn checks its results, so a wrong value ends the
//! program like a crash.

mod functions;
mod large;
mod latencies;
mod seats;
mod turns;

pub use latencies::Latencies;
pub use turns::{Counts, Load, Turn};

/// Resident memory of this process in bytes; `None` if the system does not report it.
pub fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// How many threads of this process help with large kernels; `None` if the system does not report it.
pub fn helping_threads() -> Option<usize> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    Some(names.filter(|name| name.starts_with("streamvm-cpu-")).count())
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
