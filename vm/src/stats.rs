//! [`Stats`]: the counters of an engine.

use std::fmt;

use streamvm_ep::MemoryKind;
use streamvm_instructions::{Place, SyncCounts};
use streamvm_stream::allocator::AllocatorStats;

use crate::program_cache::cache::ProgramCacheStats;

/// A snapshot of an engine's counters; see [`Vm::stats`](crate::Vm::stats).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// The instructions, waits and records of each stream since the engine was built; streams in order of first use.
    pub streams: Vec<SyncCounts>,
    /// How many instructions are submitted and have not passed.
    pub in_flight: u64,
    /// How many bytes those instructions keep: their new outputs and boxed captures.
    pub in_flight_bytes: u64,
    /// How many submitters are blocked because the queue is full.
    pub blocked_submitters: usize,
    /// How many instructions of CPU streams waiting callers have run or skipped in their own threads: kernels, copies, fills,
    /// programs, and functions that promise to take no lock.
    pub helped: u64,
    /// The counters of each allocator: one per place and memory kind in use.
    pub memory: Vec<PoolStats>,
    /// How many events exist on the devices. An event is recorded for a wait, and given back once no wait needs it.
    pub live_events: usize,
    /// How many threads the engine has, without the callback thread.
    pub threads: usize,
    /// The counters of the cache of compiled programs.
    pub programs: ProgramCacheStats,
}

/// The counters of one allocator.
#[derive(Clone, Debug)]
pub struct PoolStats {
    /// The place of its memory.
    pub place: Place,
    /// The kind of its memory.
    pub kind: MemoryKind,
    /// Its bytes and counts.
    pub allocator: AllocatorStats,
}

impl fmt::Display for Stats {
    /// Several lines: what is pending, then each stream, then the memory of each place.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stats { in_flight, in_flight_bytes, blocked_submitters, threads, .. } = self;
        write!(f, "{in_flight} pending with {in_flight_bytes} bytes, {blocked_submitters} blocked, {threads} threads")?;
        self.streams.iter().try_for_each(|stream| write!(f, "\n  {stream}"))?;
        self.memory.iter().try_for_each(|pool| write!(f, "\n  {pool}"))
    }
}

impl fmt::Display for PoolStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PoolStats { place, kind, allocator } = self;
        let AllocatorStats { in_use, cached, peak_in_use, .. } = allocator;
        write!(f, "{kind} memory on {place}: {in_use} bytes in use, {cached} cached, {peak_in_use} at most in use")
    }
}
