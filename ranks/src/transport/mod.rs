//! Transports: what moves bytes between ranks. Each is a [`Communicator`], loaded or opened at run time.
//!
//! Layer: uses no other folder; is used by all other folders.

mod error;
mod fold;
mod staged;

use std::hash::{DefaultHasher, Hash, Hasher};

use streamvm::DType;
use streamvm::ep::Operation;

pub use error::RankError;
pub(crate) use fold::fold_into;
pub(crate) use staged::{Piece, Staged};

/// How a reduction combines two elements.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Fold {
    /// Their sum; integers wrap.
    Sum,
    /// Their product; integers wrap.
    Prod,
    /// The smaller one.
    Min,
    /// The larger one.
    Max,
}

/// The work of a collective. Ranks are numbers in the group.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Verb {
    AllReduce(Fold),
    Reduce(Fold, usize),
    Broadcast(usize),
    AllGather,
    ReduceScatter(Fold),
    Gather(usize),
    Scatter(usize),
    AllToAll,
    Send(usize),
    Receive(usize),
    Barrier,
}

/// One rank's part of a collective.
///
/// `count` is the number of elements that each rank contributes or gets, whichever is less: of the whole for a reduction to all ranks, a broadcast and messages;
/// of one rank's part for the others. `input` is null where the rank contributes nothing, `output` where it gets nothing; they are equal in place.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) verb: Verb,
    pub(crate) dtype: DType,
    pub(crate) count: usize,
    pub(crate) input: *const u8,
    pub(crate) output: *mut u8,
    /// The call as errors show it, with the caller's line.
    pub(crate) call: String,
}

// SAFETY: the addresses are used by one thread at a time, the one that has the operation which holds the transfer; that they are valid is the promise of
// the caller of `Communicator::start`.
unsafe impl Send for Transfer {}
// SAFETY: as above; through a shared reference the addresses are only copied.
unsafe impl Sync for Transfer {}

impl Transfer {
    /// The call without its line, which must be the same on all ranks.
    pub(crate) fn what(&self) -> &str {
        without_line(&self.call)
    }

    /// The bytes of `count` elements.
    pub(crate) fn part_bytes(&self) -> usize {
        self.count * self.dtype.size()
    }
}

/// One rank's end of a group of ranks. All ranks start the same collectives in the same order; messages are ordered for each pair of ranks and direction.
pub(crate) trait Communicator: Send + Sync {
    /// The number of this rank in the group.
    fn rank(&self) -> usize;

    /// The number of ranks in the group.
    fn size(&self) -> usize;

    /// The capabilities of the backend.
    fn capabilities(&self) -> Capabilities;

    /// Starts this rank's part of a collective. Does not block.
    ///
    /// # Errors
    /// It was not started, and uses no address.
    ///
    /// # Safety
    /// * `input` and `output` are null or have the elements that the verb reads and writes, aligned to the dtype.
    /// * Until the operation is over, nothing else writes the input, or uses the output; an output that is not the input does not overlap it.
    unsafe fn start(&self, transfer: Transfer) -> Result<Box<dyn Operation>, RankError>;

    /// Has all collectives of the group that are under way on this rank fail, and those that are started later, and tells the other ranks, unless they see why by themselves.
    /// Where a backend cannot end what is under way, it ends the job after a while.
    fn give_up(&self, why: &RankError);

    /// A failure that is known without a collective: that one of these ranks has ended, or that a rank has given the group up. Does not block, but asks the system
    /// for each rank.
    fn failure(&self, of: &[usize]) -> Option<RankError>;

    /// The communicator of the ranks of this group that are still there, in their order. Each of them calls this. Blocks until they all have.
    ///
    /// # Errors
    /// The backend does not survive the loss of a rank, or refuses.
    fn shrink(&self, serial: u64) -> Result<Box<dyn Communicator>, RankError>;

    /// The communicator of some ranks of this group, in this order, this rank among them. Each member calls it. `serial` tells apart
    /// groups of the same members. Blocks until all members have called it.
    ///
    /// # Errors
    /// A member is gone, or the backend refuses.
    fn subgroup(&self, members: &[usize], serial: u64) -> Result<Box<dyn Communicator>, RankError>;
}

/// The capabilities of a backend.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Its name.
    pub backend: &'static str,
    /// Whether the loss of a rank fails the collectives of the others, which go on. Otherwise the launcher ends all ranks.
    pub survives_loss: bool,
    /// Whether each collective checks that all ranks call the same one. Otherwise [`Group::check_order`](crate::Group::check_order) does, or each collective
    /// with `STREAMVM_CHECK_ORDER=1`.
    pub checks_order: bool,
}

/// The text of a call without the line in brackets at its end.
pub(crate) fn without_line(call: &str) -> &str {
    call.rsplit_once(" (").map_or(call, |(what, _)| what)
}

/// The hash of a call without its line, which is the same on all ranks; not 0.
pub(crate) fn hash_of(call: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    without_line(call).hash(&mut hasher);
    hasher.finish() | 1
}

/// Polls an operation until it is over. Blocks.
pub(crate) fn block_on(mut operation: Box<dyn Operation>) -> Result<(), streamvm::FnError> {
    while !operation.poll()? {
        std::thread::yield_now();
    }
    Ok(())
}
