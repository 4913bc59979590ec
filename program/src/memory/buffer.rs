//! Buffers with sizes and lifetimes, which the planner places.

use thiserror::Error;

/// A buffer that lives in `[lower, upper)`. Times have no unit: they are compared only.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Buffer {
    /// The time from which the buffer is alive.
    pub lower: u64,
    /// The first time at which it is no longer alive. If it equals `lower`, the buffer is never alive and gets offset 0.
    pub upper: u64,
    /// The size in bytes. A buffer of 0 bytes overlaps nothing and gets offset 0.
    pub size: u64,
    /// The offset is a multiple of this number of bytes, which is at least 1.
    pub alignment: u64,
}

impl Buffer {
    /// A buffer that may lie at any offset.
    #[must_use]
    pub const fn new(lower: u64, upper: u64, size: u64) -> Self {
        Self { lower, upper, size, alignment: 1 }
    }

    /// Whether the buffer takes memory at any time.
    pub(super) fn takes_memory(&self) -> bool {
        self.size > 0 && self.lower < self.upper
    }
}

streamvm_ep::debug_as_display!(PlanError);

/// Why buffers cannot be planned. Buffers are counted from 0.
#[derive(Clone, PartialEq, Eq, Error)]
pub enum PlanError {
    /// A lifetime ends before it begins.
    #[error("buffer {buffer} lives from {lower} to {upper}, which is earlier: swap the two times")]
    EndsBeforeItBegins {
        /// The buffer.
        buffer: usize,
        /// Where its life begins.
        lower: u64,
        /// Where its life ends.
        upper: u64,
    },
    /// An alignment is 0.
    #[error("buffer {buffer} has alignment 0: the least is 1, for any offset")]
    ZeroAlignment {
        /// The buffer.
        buffer: usize,
    },
    /// Offsets might not fit into 63 bits.
    #[error("the sizes and alignments of all buffers sum to {sum} bytes: at most {} can be planned", i64::MAX)]
    TooLarge {
        /// The sum.
        sum: u128,
    },
    /// There are more buffers than the planner can number.
    #[error("there are {count} buffers: at most {} can be planned", u32::MAX - 1)]
    TooMany {
        /// How many there are.
        count: usize,
    },
}

/// Checks what the planner relies on: lifetimes are in order, and sums of sizes and alignments fit into 63 bits.
pub(super) fn validate(buffers: &[Buffer]) -> Result<(), PlanError> {
    if buffers.len() >= u32::MAX as usize {
        return Err(PlanError::TooMany { count: buffers.len() });
    }
    let mut sum = 0_u128;
    for (index, buffer) in buffers.iter().enumerate() {
        if buffer.upper < buffer.lower {
            return Err(PlanError::EndsBeforeItBegins { buffer: index, lower: buffer.lower, upper: buffer.upper });
        }
        if buffer.alignment == 0 {
            return Err(PlanError::ZeroAlignment { buffer: index });
        }
        sum += u128::from(buffer.size) + u128::from(buffer.alignment);
    }
    if sum > i64::MAX as u128 { Err(PlanError::TooLarge { sum }) } else { Ok(()) }
}

/// The largest sum of sizes alive at one time, which no plan can go below.
#[must_use]
pub fn lower_bound(buffers: &[Buffer]) -> u64 {
    // At one time, ends come before beginnings, since a life excludes its upper end.
    let mut events: Vec<(u64, bool, u64)> = Vec::with_capacity(2 * buffers.len());
    for buffer in buffers.iter().filter(|buffer| buffer.takes_memory()) {
        events.push((buffer.lower, true, buffer.size));
        events.push((buffer.upper, false, buffer.size));
    }
    events.sort_unstable();
    let (mut alive, mut most) = (0_u64, 0);
    for (_, begins, size) in events {
        alive = if begins { alive.saturating_add(size) } else { alive.saturating_sub(size) };
        most = most.max(alive);
    }
    most
}
