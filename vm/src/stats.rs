//! Counters of an engine.

use streamvm_ep::MemoryKind;
use streamvm_instructions::{Place, SyncCounts};
use streamvm_stream::allocator::AllocatorStats;

/// A snapshot of an engine's counters.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Instructions, waits and records per stream since the engine was built, in order of first use.
    pub streams: Vec<SyncCounts>,
    /// Instructions that are submitted and have not passed.
    pub in_flight: u64,
    /// Bytes that those instructions keep: their new outputs and boxed captures.
    pub in_flight_bytes: u64,
    /// Submitters that are blocked because the queue is full.
    pub blocked_submitters: usize,
    /// Instructions of CPU streams that callers have run, or skipped, themselves while they waited for them or for those behind them:
    /// all but functions.
    pub helped: u64,
    /// The allocators: one per place and memory kind in use.
    pub memory: Vec<PoolStats>,
    /// Events that exist on the devices: recorded for waits that are to come, and given back once nobody needs them.
    pub live_events: usize,
    /// Threads of the engine, callbacks aside.
    pub threads: usize,
}

/// One allocator's counters.
#[derive(Clone, Debug)]
pub struct PoolStats {
    /// The place.
    pub place: Place,
    /// The kind of memory.
    pub kind: MemoryKind,
    /// Bytes and counts.
    pub allocator: AllocatorStats,
}
