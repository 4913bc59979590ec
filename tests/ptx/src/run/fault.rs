//! Why a launch was stopped.

/// An access to memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// It reads.
    Read,
    /// It writes.
    Write,
    /// It does both at once.
    Atomic,
}

impl std::fmt::Display for Attempt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Attempt::Read => "reads",
            Attempt::Write => "writes",
            Attempt::Atomic => "updates",
        })
    }
}

/// A launch that was stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// The launch does not fit the module: a driver would refuse it.
    #[error("the launch of {kernel} is refused: {reason}")]
    Refused {
        /// The kernel.
        kernel: String,
        /// What does not fit.
        reason: String,
    },
    /// A thread did what it may not do.
    #[error(transparent)]
    Fault(#[from] Box<Fault>),
}

/// What a thread did that it may not do, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kernel}, line {line} (`{text}`), block {block:?}, thread {thread:?}: {what}")]
pub struct Fault {
    /// The kernel.
    pub kernel: String,
    /// The line of the module, from 1.
    pub line: u32,
    /// That line.
    pub text: String,
    /// The block.
    pub block: [u32; 3],
    /// The thread of the block.
    pub thread: [u32; 3],
    /// What it did.
    pub what: FaultKind,
}

/// What a thread did that it may not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the text of each variant says what its fields are")]
pub enum FaultKind {
    #[error("{attempt} {bytes} bytes at {address:#x}, outside of {near}; check bounds, strides and offsets")]
    OutOfBounds { attempt: Attempt, address: u64, bytes: usize, near: String },
    #[error(
        "{attempt} {bytes} bytes at {address:#x} of {memory}, which may only be read; check the order of the operands"
    )]
    ReadOnly { attempt: Attempt, address: u64, bytes: usize, memory: String },
    #[error("{attempt} {bytes} bytes at {address:#x}, which is no multiple of {bytes}")]
    Misaligned { attempt: Attempt, address: u64, bytes: usize },
    #[error("reads register {register}, which has not been written")]
    UninitialisedRegister { register: String },
    #[error("reads {address:#x} of {memory}, which has not been written")]
    UninitialisedMemory { address: u64, memory: String },
    #[error(
        "{attempt} {address:#x} of {memory}, which thread {other:?} of block {other_block} {other_attempt} too, and no barrier lies between them"
    )]
    Race { attempt: Attempt, address: u64, memory: String, other: [u32; 3], other_block: u64, other_attempt: Attempt },
    #[error("waits at this barrier, which not all threads of the block come to: {others}")]
    DivergentBarrier { others: String },
    #[error("has run {limit} instructions: its loop does not end, or the limit is too low")]
    TooLong { limit: u64 },
    #[error("divides an integer by 0, for which PTX has no result")]
    DivisionByZero,
    #[error("calls {function}, which is running: recursion is not supported")]
    Recursion { function: String },
    #[error("{attempt} {address:#x}, which is no address of the state space that the instruction names")]
    OtherSpace { attempt: Attempt, address: u64 },
}
