//! An independent check of a plan, simple on purpose: it shares no code with the planner.

use std::collections::BTreeMap;

use thiserror::Error;

use super::Buffer;

streamvm_ep::debug_as_display!(Misplaced);

/// A mistake in the offsets of a plan. Buffers are counted from 0.
#[derive(Clone, PartialEq, Eq, Error)]
pub enum Misplaced {
    /// There is not one offset for each buffer.
    #[error("{offsets} offsets for {buffers} buffers")]
    Count {
        /// How many buffers there are.
        buffers: usize,
        /// How many offsets there are.
        offsets: usize,
    },
    /// An offset is no multiple of the alignment, or the buffer would end past 64 bits.
    #[error("buffer {buffer} cannot lie at offset {offset}")]
    Offset {
        /// The buffer.
        buffer: usize,
        /// Its offset.
        offset: u64,
    },
    /// Two buffers that are alive at one time share bytes.
    #[error("buffers {first} and {second} are alive at one time and overlap")]
    Overlap {
        /// One buffer.
        first: usize,
        /// The other one.
        second: usize,
    },
}

/// Checks that no two buffers that are alive at one time overlap, and returns the peak: the largest end of a buffer.
///
/// It goes through the times in order and keeps the live buffers by offset, so it takes O(n log n) time.
///
/// # Errors
/// The first mistake that it finds.
pub fn check(buffers: &[Buffer], offsets: &[u64]) -> Result<u64, Misplaced> {
    if buffers.len() != offsets.len() {
        return Err(Misplaced::Count { buffers: buffers.len(), offsets: offsets.len() });
    }
    let mut peak = 0;
    let mut events = Vec::new();
    for (index, (buffer, &offset)) in buffers.iter().zip(offsets).enumerate() {
        let end = offset.checked_add(buffer.size).filter(|_| offset % buffer.alignment.max(1) == 0);
        let end = end.ok_or(Misplaced::Offset { buffer: index, offset })?;
        if buffer.size == 0 || buffer.lower >= buffer.upper {
            continue;
        }
        peak = peak.max(end);
        events.push((buffer.upper, 0, index));
        events.push((buffer.lower, 1, index));
    }
    events.sort_unstable();
    // From offset to end and buffer.
    let mut alive: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    for (_, begins, index) in events {
        let offset = offsets[index];
        if begins == 0 {
            alive.remove(&offset);
            continue;
        }
        let end = offset + buffers[index].size;
        // The neighbour with the largest offset below `end` is the only one that can reach into the buffer, as live buffers are disjoint.
        if let Some((_, &(other_end, other))) = alive.range(..end).next_back()
            && other_end > offset
        {
            return Err(Misplaced::Overlap { first: other, second: index });
        }
        alive.insert(offset, (end, index));
    }
    Ok(peak)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_of_overlap_is_found_and_touching_is_fine() {
        let buffers = [Buffer::new(0, 2, 10), Buffer::new(1, 3, 10), Buffer::new(2, 4, 10)];
        assert_eq!(check(&buffers, &[0, 10, 0]), Ok(20));
        assert_eq!(check(&buffers, &[0, 9, 0]), Err(Misplaced::Overlap { first: 0, second: 1 }));
        assert_eq!(check(&buffers, &[0, 10, 1]), Err(Misplaced::Overlap { first: 1, second: 2 }));
        // A buffer above that reaches down, and one that encloses another.
        assert_eq!(check(&buffers, &[9, 0, 10]), Err(Misplaced::Overlap { first: 0, second: 1 }));
    }

    #[test]
    fn counts_alignments_and_ends_are_checked() {
        let aligned = Buffer { alignment: 8, ..Buffer::new(0, 1, 3) };
        assert_eq!(check(&[aligned], &[]), Err(Misplaced::Count { buffers: 1, offsets: 0 }));
        assert_eq!(check(&[aligned], &[4]), Err(Misplaced::Offset { buffer: 0, offset: 4 }));
        assert_eq!(check(&[Buffer::new(0, 1, 2)], &[u64::MAX]), Err(Misplaced::Offset { buffer: 0, offset: u64::MAX }));
        assert_eq!(check(&[Buffer::new(3, 3, 9), Buffer::new(0, 9, 0), aligned], &[0, 0, 16]), Ok(19));
    }
}
