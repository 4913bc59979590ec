//! The counters of an engine for whoever exports metrics: each [`record`] hands them to the recorder of the [`metrics`](https://docs.rs/metrics) facade, such as that of
//! `metrics-exporter-prometheus`.
//!
//! ```
//! # use std::time::Duration;
//! # fn main() -> Result<(), streamvm::Error> {
//! let vm = streamvm::Vm::builder().build()?;
//! streamvm_metrics::describe(); // once, after the recorder was installed
//! // Every few seconds, or before each scrape:
//! streamvm_metrics::record(&vm.stats(), "serving");
//! # vm.shutdown(Duration::MAX)
//! # }
//! ```
//!
//! Each metric has the label `engine`, with the name that [`record`] is given: one for each engine that the process ever builds, because recorders keep the highest value of a counter and the
//! last one of a gauge. Those that end with `_total` are counters since the engine was built, the others are gauges.
//!
//! | metric | unit | further labels |
//! |---|---|---|
//! | `streamvm_instructions_total`, `streamvm_events_recorded_total` | | `stream` |
//! | `streamvm_waits_total`, of one stream for another | | `stream`, `by`: `device` or `host` |
//! | `streamvm_pending_instructions`, `streamvm_blocked_submitters` | | |
//! | `streamvm_pending_bytes`, which those instructions keep | bytes | |
//! | `streamvm_helped_instructions_total`, which waiting callers ran | | |
//! | `streamvm_memory_in_use_bytes`, `_cached_bytes`, `_reserved_bytes`, `_peak_bytes` | bytes | `place`, `kind` |
//! | `streamvm_live_events`, `streamvm_threads`, `streamvm_programs` | | |
//! | `streamvm_program_bytes`, of the cache of compiled programs | bytes | |
//! | `streamvm_program_hits_total`, `_misses_total`, `_evictions_total`, of that cache | | |

#![forbid(unsafe_code)]

use metrics::{Label, Unit, counter, describe_counter, describe_gauge, gauge};
use streamvm::Stats;
use streamvm::report::{PoolStats, SyncCounts};

/// Tells the recorder the units and meanings of all metrics.
pub fn describe() {
    describe_counter!("streamvm_instructions_total", Unit::Count, "instructions submitted to the stream");
    describe_counter!("streamvm_events_recorded_total", Unit::Count, "events recorded on the stream");
    describe_counter!("streamvm_waits_total", Unit::Count, "waits of the stream for other streams");
    describe_gauge!("streamvm_pending_instructions", Unit::Count, "instructions submitted and not passed");
    describe_gauge!("streamvm_pending_bytes", Unit::Bytes, "bytes that pending instructions keep");
    describe_gauge!("streamvm_blocked_submitters", Unit::Count, "threads that wait for room in the full queue");
    describe_counter!("streamvm_helped_instructions_total", Unit::Count, "instructions that waiting callers ran");
    describe_gauge!("streamvm_memory_in_use_bytes", Unit::Bytes, "bytes of tensors, with rounding");
    describe_gauge!("streamvm_memory_cached_bytes", Unit::Bytes, "bytes from the device that no tensor has");
    describe_gauge!("streamvm_memory_reserved_bytes", Unit::Bytes, "bytes from the device");
    describe_gauge!("streamvm_memory_peak_bytes", Unit::Bytes, "the most bytes in use since the engine was built");
    describe_gauge!("streamvm_live_events", Unit::Count, "events that exist on the devices");
    describe_gauge!("streamvm_threads", Unit::Count, "threads of the engine");
    describe_gauge!("streamvm_programs", Unit::Count, "compiled programs in the cache");
    describe_gauge!("streamvm_program_bytes", Unit::Bytes, "bytes that the programs in the cache count");
    describe_counter!("streamvm_program_hits_total", Unit::Count, "requests that found their program in the cache");
    describe_counter!("streamvm_program_misses_total", Unit::Count, "requests whose program had to be compiled");
    describe_counter!("streamvm_program_evictions_total", Unit::Count, "programs removed from the cache");
}

/// Hands the counters of an engine ([`Vm::stats`](streamvm::Vm::stats)) to the recorder. `engine` is a name that no other engine of the process has or had. Without a recorder nothing happens.
pub fn record(stats: &Stats, engine: &str) {
    let engine = || Label::new("engine", engine.to_owned());
    let all = || vec![engine()];
    for SyncCounts { stream, instructions, device_waits, host_waits, records, .. } in &stats.streams {
        let stream = || vec![engine(), Label::new("stream", stream.to_string())];
        let waits = |by: &'static str| [stream(), vec![Label::new("by", by)]].concat();
        counter!("streamvm_instructions_total", stream()).absolute(*instructions);
        counter!("streamvm_events_recorded_total", stream()).absolute(*records);
        counter!("streamvm_waits_total", waits("device")).absolute(*device_waits);
        counter!("streamvm_waits_total", waits("host")).absolute(*host_waits);
    }
    for PoolStats { place, kind, allocator, .. } in &stats.memory {
        let of = || vec![engine(), Label::new("place", place.to_string()), Label::new("kind", kind.to_string())];
        gauge!("streamvm_memory_in_use_bytes", of()).set(allocator.in_use as f64);
        gauge!("streamvm_memory_cached_bytes", of()).set(allocator.cached as f64);
        gauge!("streamvm_memory_reserved_bytes", of()).set(allocator.reserved as f64);
        gauge!("streamvm_memory_peak_bytes", of()).set(allocator.peak_in_use as f64);
    }
    gauge!("streamvm_pending_instructions", all()).set(stats.in_flight as f64);
    gauge!("streamvm_pending_bytes", all()).set(stats.in_flight_bytes as f64);
    gauge!("streamvm_blocked_submitters", all()).set(stats.blocked_submitters as f64);
    counter!("streamvm_helped_instructions_total", all()).absolute(stats.helped);
    gauge!("streamvm_live_events", all()).set(stats.live_events as f64);
    gauge!("streamvm_threads", all()).set(stats.threads as f64);
    gauge!("streamvm_programs", all()).set(stats.programs.programs as f64);
    gauge!("streamvm_program_bytes", all()).set(stats.programs.bytes as f64);
    counter!("streamvm_program_hits_total", all()).absolute(stats.programs.hits);
    counter!("streamvm_program_misses_total", all()).absolute(stats.programs.misses);
    counter!("streamvm_program_evictions_total", all()).absolute(stats.programs.evictions);
}
