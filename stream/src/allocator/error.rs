//! The errors of the allocator. A call that returns an error has changed nothing.

use super::BlockId;

/// Why a call was refused. The allocator is as it was before the call.
#[derive(Copy, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocatorError {
    /// The configured alignment is not a power of two.
    #[error("allocator alignment {alignment} is not a power of two: use the device's alignment, for example 64")]
    BadAlignment {
        /// The alignment asked for, in bytes.
        alignment: usize,
    },
    /// The size cannot be rounded: it is zero, or larger than the largest object that can be addressed.
    #[error("cannot size a block of {bytes} bytes: sizes run from 1 to {largest}; a zero-size tensor needs no block")]
    BadSize {
        /// Bytes asked for.
        bytes: usize,
        /// The largest size, in bytes.
        largest: usize,
    },
    /// A region for these bytes would exceed the configured limit.
    #[error(
        "a region for {requested} bytes would exceed the limit: {reserved} of {limit} bytes are reserved, {in_use} in \
         use; give cached memory back (shrink), free tensors, or raise the limit"
    )]
    LimitReached {
        /// Bytes that the region would need at least.
        requested: usize,
        /// Bytes reserved from the driver now.
        reserved: usize,
        /// Bytes in use now.
        in_use: usize,
        /// The configured limit, in bytes.
        limit: usize,
    },
    /// This allocator never handed out the id.
    #[error("block {id} is unknown: this allocator has given out only {known} block records")]
    UnknownBlock {
        /// The id.
        id: BlockId,
        /// Block records that exist.
        known: usize,
    },
    /// The block is not in use, as it was freed before.
    #[error("block {id} is not in use: it has been freed already, and its memory may have a new owner")]
    NotInUse {
        /// The id.
        id: BlockId,
    },
    /// All 2^32 - 1 block records exist, and none is vacant.
    #[error("no block record is left: {blocks} exist, the most that an index can name; free some blocks")]
    TooManyBlocks {
        /// Block records that exist.
        blocks: usize,
    },
}

streamvm_ep::debug_as_display!(AllocatorError);
