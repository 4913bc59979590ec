//! The check that branches are ordered where they must be: of two steps that use the same bytes of a buffer, one of them writing, one comes behind the other.
//!
//! Threads run branches side by side, and functions of the caller get slices of what they use. So a missing order would be a data race, which the sequence
//! rules out before it runs anything.
//!
//! The check takes the branches in their order. For each buffer it keeps the uses with which a later step could still conflict: a write replaces those
//! whose bytes it covers, because what comes behind the write comes behind them, too; and uses that all lanes are behind are dropped now and then, so that the
//! time of the check is about in proportion to the steps.

use smallvec::SmallVec;

use crate::sequence::branches::SequenceBranch;
use crate::sequence::step::{SequenceError, SequenceStep};
use crate::tensor::footprint::Footprint;

/// A use of bytes of a buffer.
struct Earlier {
    bytes: Footprint,
    writes: bool,
    step: usize,
    lane: usize,
    /// The place of its branch among those of its lane, from 1.
    place: usize,
}

/// For each lane how many of its branches have run before a branch begins.
type Clock = SmallVec<[usize; 4]>;

/// The uses of a buffer with which a later step could conflict.
struct Uses {
    all: Vec<Earlier>,
    /// How many there may be before those are dropped that all lanes are behind.
    limit: usize,
}

/// The least number of uses that are looked through to drop some.
const FEW: usize = 64;

/// Checks the steps of branches that [`Branches::new`](crate::sequence::branches::Branches::new) has accepted. There are so many buffers.
///
/// # Errors
/// [`SequenceError::Branches`] with the later of two steps that have no order.
pub(super) fn check_ordered(
    branches: &[SequenceBranch],
    steps: &[SequenceStep],
    buffers: usize,
) -> Result<(), SequenceError> {
    let lanes = branches.iter().map(|branch| branch.lane + 1).max().unwrap_or(0);
    let mut clocks: Vec<Clock> = Vec::with_capacity(branches.len());
    let mut last: Vec<Option<usize>> = vec![None; lanes];
    let mut earlier: Vec<Uses> = (0..buffers).map(|_| Uses { all: Vec::new(), limit: FEW }).collect();
    for (number, branch) in branches.iter().enumerate() {
        let mut clock: Clock = SmallVec::from_elem(0, lanes);
        for other in branch.after.iter().copied().chain(last[branch.lane]) {
            // A clock counts its own branch.
            clock.iter_mut().zip(&clocks[other]).for_each(|(known, of_other)| *known = (*known).max(*of_other));
        }
        for step in branch.steps.clone() {
            for operand in &steps[step].operands {
                let Some((buffer, bytes)) = operand.bytes() else { continue };
                let writes = operand.access.writes();
                let Uses { all: uses, limit } = &mut earlier[buffer];
                let conflicts = |other: &&Earlier| {
                    (writes || other.writes) && other.place > clock[other.lane] && other.lane != branch.lane
                };
                if let Some(other) = uses.iter().filter(conflicts).find(|other| other.bytes.overlaps(&bytes)) {
                    let what = format!(
                        "it uses bytes of buffer {buffer} that step {} of another branch uses, one of them writes, and neither waits for the other",
                        other.step
                    );
                    return Err(SequenceError::Branches { step, what });
                }
                // A read replaces reads of its own lane alone: a later write must come behind those of the other lanes, too.
                uses.retain(|other| {
                    let is_replaced = writes || !other.writes && other.lane == branch.lane;
                    !is_replaced || !bytes.covers(&other.bytes)
                });
                let place = clock[branch.lane] + 1;
                uses.push(Earlier { bytes, writes, step, lane: branch.lane, place });
                if uses.len() > *limit {
                    let is_behind =
                        |lane: Option<usize>, it: &Earlier| lane.is_some_and(|last| clocks[last][it.lane] >= it.place);
                    uses.retain(|it| !last.iter().all(|&lane| is_behind(lane, it)));
                    *limit = FEW.max(2 * uses.len());
                }
            }
        }
        clock[branch.lane] += 1;
        clocks.push(clock);
        last[branch.lane] = Some(number);
    }
    Ok(())
}

#[cfg(test)]
#[path = "conflicts_tests.rs"]
mod tests;
