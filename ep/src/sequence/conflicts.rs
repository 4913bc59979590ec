//! The check that branches are ordered where they must be: of two steps that use the same bytes of a buffer, one of them writing, one runs after the other.
//!
//! Threads run branches side by side, and functions of the caller get slices of what they use. So a missing order would be a data race, which the sequence
//! rules out before it runs anything.
//!
//! The check takes the branches in their order. A lane runs its branches one after the other, so of the uses of a byte by a lane only the latest counts: a step
//! that runs after it runs after the earlier ones, too. [`UsesOfBuffer`] finds the latest uses by each lane for a range of bytes, so the time of the check is
//! about in proportion to the steps.

use smallvec::SmallVec;

use crate::errors::sequence_error::SequenceError;
use crate::sequence::branches::SequenceBranch;
use crate::sequence::step::SequenceStep;
use crate::sequence::uses_of_buffer::{Bounds, Use, UsesOfBuffer};

/// For each lane how many of its branches have run when a branch has.
type Clock = SmallVec<[usize; 4]>;

/// Checks the steps of branches that `Branches::new` has accepted. There are so many buffers.
///
/// # Errors
/// [`SequenceError::Branches`] with the later of two steps that have no order.
pub fn check_ordered(branches: &[SequenceBranch], steps: &[SequenceStep], buffers: usize) -> Result<(), SequenceError> {
    let lanes = branches.iter().map(|branch| branch.lane + 1).max().unwrap_or(0);
    let mut bounds: Vec<Bounds> = vec![Bounds::default(); buffers];
    for (buffer, bytes) in steps.iter().flat_map(|step| &step.operands).filter_map(|operand| operand.bytes()) {
        bounds[buffer].add(&bytes);
    }
    let mut of_buffers: Vec<UsesOfBuffer> = bounds.into_iter().map(UsesOfBuffer::within).collect();
    let mut uses: Vec<Use> = Vec::new();
    let mut clocks: Vec<Clock> = Vec::with_capacity(branches.len());
    let mut last: Vec<Option<usize>> = vec![None; lanes];
    for (number, branch) in branches.iter().enumerate() {
        let mut clock: Clock = SmallVec::from_elem(0, lanes);
        for other in branch.after.iter().copied().chain(last[branch.lane]) {
            // A clock counts its own branch.
            clock.iter_mut().zip(&clocks[other]).for_each(|(known, of_other)| *known = (*known).max(*of_other));
        }
        clock[branch.lane] += 1;
        for step in branch.steps.clone() {
            for operand in &steps[step].operands {
                let Some((buffer, bytes)) = operand.bytes().filter(|(_, bytes)| !bytes.is_empty()) else { continue };
                let it =
                    Use { bytes, writes: operand.access.writes(), step, lane: branch.lane, place: clock[branch.lane] };
                let is_unordered = |other: &Use| other.lane != branch.lane && other.place > clock[other.lane];
                if let Some(other) = of_buffers[buffer].find(&it, &uses, &is_unordered) {
                    let what = format!(
                        "it uses bytes of buffer {buffer} that step {} of another branch uses, one of them writes, and neither waits for the other",
                        other.step
                    );
                    return Err(SequenceError::Branches { step, what });
                }
                of_buffers[buffer].note(&it, uses.len());
                uses.push(it);
            }
        }
        clocks.push(clock);
        last[branch.lane] = Some(number);
    }
    Ok(())
}

#[cfg(test)]
#[path = "conflicts_tests.rs"]
mod tests;
