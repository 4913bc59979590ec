//! Placing buffers in the order in which their lives begin: for problems that are too large for first fit.
//!
//! The free memory below the highest end is kept as gaps. A buffer goes into the smallest gap that it fits into, or after everything. That
//! takes `n log n` steps, where first fit is quadratic. The peak is the lower bound if all sizes are equal; for mixed sizes it is often
//! higher than that of first fit.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::component::Component;

/// How many gaps that are large enough are tried; one may be too small once its beginning is aligned.
const MOST_TRIES: usize = 16;

/// Free memory below the top.
#[derive(Default)]
struct Gaps {
    /// Size by offset. Neighbours never touch.
    by_offset: BTreeMap<u64, u64>,
    /// The same as (size, offset).
    by_size: BTreeSet<(u64, u64)>,
}

/// Offsets of a component's buffers, and the peak.
pub(super) fn by_time(component: &Component) -> (Vec<u64>, u64) {
    let mut offsets = vec![0; component.len()];
    let (mut gaps, mut top, mut peak) = (Gaps::default(), 0_u64, 0);
    // Buffers that are alive, by the section after their last one.
    let mut alive: BinaryHeap<Reverse<(usize, u64, u64)>> = BinaryHeap::new();
    // Buffers are numbered in the order in which their lives begin.
    for (buffer, offset) in offsets.iter_mut().enumerate() {
        let (size, alignment) = (component.sizes[buffer], component.alignments[buffer]);
        let sections = &component.sections[buffer];
        while let Some(&Reverse((_, freed, length))) = alive.peek().filter(|it| it.0.0 <= sections.start) {
            alive.pop();
            top = gaps.free(freed, length, top);
        }
        *offset = gaps.take(size, alignment).unwrap_or_else(|| {
            let at = top.next_multiple_of(alignment);
            if at > top {
                gaps.insert(top, at - top);
            }
            top = at + size;
            at
        });
        peak = peak.max(*offset + size);
        alive.push(Reverse((sections.end, *offset, size)));
    }
    (offsets, peak)
}

impl Gaps {
    fn insert(&mut self, offset: u64, size: u64) {
        self.by_offset.insert(offset, size);
        self.by_size.insert((size, offset));
    }

    fn remove(&mut self, offset: u64) -> Option<u64> {
        let size = self.by_offset.remove(&offset)?;
        self.by_size.remove(&(size, offset));
        Some(size)
    }

    /// Takes `size` bytes out of the smallest gap that has them.
    fn take(&mut self, size: u64, alignment: u64) -> Option<u64> {
        let large_enough = self.by_size.range((size, 0)..).take(MOST_TRIES);
        let fits = |&(length, offset): &(u64, u64)| {
            let at = offset.next_multiple_of(alignment);
            (at + size <= offset + length).then_some((offset, at, length))
        };
        let (offset, at, length) = large_enough.into_iter().find_map(fits)?;
        self.remove(offset);
        if at > offset {
            self.insert(offset, at - offset);
        }
        if at + size < offset + length {
            self.insert(at + size, offset + length - at - size);
        }
        Some(at)
    }

    /// Frees memory, and merges it with the gaps beside it. Returns the new top, which is lower if the gap would end there.
    fn free(&mut self, mut offset: u64, mut size: u64, top: u64) -> u64 {
        if let Some((&before, &length)) =
            self.by_offset.range(..offset).next_back().filter(|(at, len)| *at + *len == offset)
        {
            self.remove(before);
            (offset, size) = (before, size + length);
        }
        if let Some(length) = self.remove(offset + size) {
            size += length;
        }
        if offset + size == top {
            return offset;
        }
        self.insert(offset, size);
        top
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Buffer, check, lower_bound};

    fn placed(buffers: &[Buffer]) -> Result<u64, String> {
        let components = Component::split(buffers);
        let mut offsets = vec![0; buffers.len()];
        for component in &components {
            let (found, _) = by_time(component);
            component.ids.iter().zip(found).for_each(|(&id, offset)| offsets[id] = offset);
        }
        check(buffers, &offsets).map_err(|error| error.to_string())
    }

    #[test]
    fn equal_sizes_reach_the_lower_bound() {
        let buffers: Vec<Buffer> =
            (0..5_000u64).map(|it| Buffer { alignment: 64, ..Buffer::new(it, it + 1 + it * it % 97, 64) }).collect();
        assert_eq!(placed(&buffers), Ok(lower_bound(&buffers)));
    }

    /// Mixed sizes and alignments: what the checker accepts, with gaps that are used again.
    #[test]
    fn no_two_buffers_share_bytes_while_both_live() {
        for seed in 1..200u64 {
            let draw = |it: u64, end: u64| ((it * seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % end;
            let buffer = |it: u64| {
                let (lower, length) = (draw(it, 300), 1 + draw(it + 7_000, 90));
                Buffer {
                    alignment: 1 << draw(it + 3_000, 5),
                    ..Buffer::new(lower, lower + length, 1 + draw(it + 9_000, 500))
                }
            };
            let buffers: Vec<Buffer> = (1..120).map(buffer).collect();
            let sum: u64 = buffers.iter().map(|buffer| buffer.size + buffer.alignment).sum();
            let peak = placed(&buffers).expect("a plan without overlaps");
            assert!(lower_bound(&buffers) <= peak && peak < sum, "seed {seed}: {peak} of {sum}");
        }
    }
}
