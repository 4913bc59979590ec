//! Counts of instructions of the processor, beside the counts that were committed.

/// Operations of each counted workload.
pub const OPS: usize = 6_400;
