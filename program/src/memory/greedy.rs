//! First fit: places buffers in a given order, each at the lowest offset at which it overlaps no buffer placed before.
//!
//! Placed buffers lie in a list sorted by offset and cut into blocks, so that an insertion moves few entries. To place a buffer, one pass
//! over the list raises the offset past each placed buffer that is alive at the same time, and ends at the first gap that is large enough.
//! That is quadratic with a small constant: 28,000 buffers take a fraction of a second.

use super::component::Component;

/// Entries of a block, above which it is cut in two. 512 entries of 24 bytes fit into the first-level cache.
const BLOCK: usize = 512;

/// A placed buffer.
#[derive(Copy, Clone)]
struct Placed {
    offset: u64,
    end: u64,
    /// The sections in which it is alive.
    first: u32,
    last: u32,
}

/// Places the buffers of a component in an order. Returns their offsets and the peak, or nothing as soon as the peak is not less than `below`
/// or `step`, which is asked before each buffer, says no.
pub(super) fn first_fit(
    component: &Component,
    order: &[u32],
    below: u64,
    mut step: impl FnMut() -> bool,
) -> Option<(Vec<u64>, u64)> {
    let mut offsets = vec![0; component.len()];
    let mut peak = 0;
    let mut blocks: Vec<Vec<Placed>> = vec![Vec::with_capacity(BLOCK)];
    for &buffer in order {
        if !step() {
            return None;
        }
        let buffer = buffer as usize;
        let (size, alignment) = (component.sizes[buffer], component.alignments[buffer]);
        let sections = &component.sections[buffer];
        // A component has less than 2³² buffers, and no more sections than buffers.
        let (first, last) = (sections.start as u32, sections.end as u32);
        let mut offset = 0;
        'gap: for block in &blocks {
            for placed in block {
                if placed.first < last && first < placed.last && placed.end > offset {
                    if placed.offset >= offset + size {
                        break 'gap;
                    }
                    offset = placed.end.next_multiple_of(alignment);
                }
            }
        }
        let end = offset + size;
        if end >= below {
            return None;
        }
        insert(&mut blocks, Placed { offset, end, first, last });
        offsets[buffer] = offset;
        peak = peak.max(end);
    }
    Some((offsets, peak))
}

/// Keeps the list sorted by offset.
fn insert(blocks: &mut Vec<Vec<Placed>>, placed: Placed) {
    // The last block that begins at or below the offset.
    let after = blocks.partition_point(|block| block.first().is_some_and(|first| first.offset <= placed.offset));
    let index = after.saturating_sub(1);
    let block = &mut blocks[index];
    let at = block.partition_point(|other| other.offset <= placed.offset);
    block.insert(at, placed);
    if block.len() == BLOCK {
        let mut upper = Vec::with_capacity(BLOCK);
        upper.extend(block.drain(BLOCK / 2..));
        blocks.insert(index + 1, upper);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Buffer;

    #[test]
    fn a_buffer_takes_the_lowest_gap_that_is_large_enough() {
        let aligned = Buffer { alignment: 8, ..Buffer::new(0, 9, 4) };
        let buffers = [(0, 9, 10), (0, 4, 5), (0, 9, 7), (4, 9, 6), (4, 9, 5)];
        let mut buffers = buffers.map(|(lower, upper, size)| Buffer::new(lower, upper, size)).to_vec();
        buffers.push(aligned);
        let component = Component::split(&buffers).remove(0);
        let order: Vec<u32> =
            (0..6).map(|id| component.ids.iter().position(|&other| other == id).unwrap() as u32).collect();
        let (offsets, peak) = first_fit(&component, &order, u64::MAX, || true).unwrap();
        let mut by_id = vec![0; 6];
        component.ids.iter().zip(offsets).for_each(|(&id, offset)| by_id[id] = offset);
        // The buffer of 6 does not fit below the one of 7; the one of 5 does; the aligned one goes to a multiple of 8.
        assert_eq!((by_id, peak), (vec![0, 10, 15, 22, 10, 32], 36));
        assert_eq!(first_fit(&component, &order, 36, || true), None);
        assert_eq!(first_fit(&component, &order, u64::MAX, || false), None);
    }
}
