//! A problem in parts: components that share no time, and sections of time within each.
//!
//! A *section* is a set of buffers that are all alive at one time and to which no other buffer can be added: a maximal clique of the
//! interval graph. Two buffers overlap in time if and only if they share a section, so sections replace times. There are at most as many
//! sections as buffers.

use std::ops::Range;

use super::Buffer;

/// Buffers that are connected by overlapping lifetimes. Its buffers are numbered from 0 in order of their beginning.
#[derive(Debug)]
pub(super) struct Component {
    /// The number of each buffer in the problem.
    pub(super) ids: Vec<usize>,
    pub(super) sizes: Vec<u64>,
    pub(super) alignments: Vec<u64>,
    /// The sections in which each buffer is alive.
    pub(super) sections: Vec<Range<usize>>,
    /// How long each buffer lives, in the times of the problem.
    pub(super) lengths: Vec<u64>,
    pub(super) section_count: usize,
    /// The largest sum of sizes alive at one time.
    pub(super) lower_bound: u64,
}

impl Component {
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Splits a problem where nothing is alive. Buffers that never take memory are in no component.
    pub(super) fn split(buffers: &[Buffer]) -> Vec<Self> {
        let mut ids: Vec<usize> = (0..buffers.len()).filter(|&id| buffers[id].takes_memory()).collect();
        ids.sort_by_key(|&id| (buffers[id].lower, buffers[id].upper, id));
        let mut components = Vec::new();
        let (mut start, mut reach) = (0, 0);
        for position in 0..ids.len() {
            let buffer = &buffers[ids[position]];
            if position > start && buffer.lower >= reach {
                components.push(Self::new(buffers, &ids[start..position]));
                start = position;
            }
            reach = reach.max(buffer.upper);
        }
        if start < ids.len() {
            components.push(Self::new(buffers, &ids[start..]));
        }
        components
    }

    fn new(buffers: &[Buffer], ids: &[usize]) -> Self {
        let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * ids.len());
        for (index, &id) in ids.iter().enumerate() {
            events.push((buffers[id].lower, true, index));
            events.push((buffers[id].upper, false, index));
        }
        // At one time, ends come before beginnings. A section is complete at the first end after a beginning.
        events.sort_unstable();
        let mut sections = vec![0..0; ids.len()];
        let (mut section, mut began) = (0, false);
        let (mut alive, mut lower_bound) = (0, 0);
        for (_, begins, index) in events {
            if begins {
                sections[index].start = section;
                alive += buffers[ids[index]].size;
                lower_bound = lower_bound.max(alive);
            } else {
                section += usize::from(began);
                sections[index].end = section;
                alive -= buffers[ids[index]].size;
            }
            began = begins;
        }
        let of = |field: fn(&Buffer) -> u64| ids.iter().map(|&id| field(&buffers[id])).collect();
        Self {
            ids: ids.to_vec(),
            sizes: of(|buffer| buffer.size),
            alignments: of(|buffer| buffer.alignment),
            sections,
            lengths: of(|buffer| buffer.upper - buffer.lower),
            section_count: section,
            lower_bound,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_split_where_nothing_is_alive() {
        let buffers = [(5, 9), (0, 2), (1, 5), (9, 10), (3, 3)].map(|(lower, upper)| Buffer::new(lower, upper, 1));
        let ids: Vec<Vec<usize>> = Component::split(&buffers).into_iter().map(|component| component.ids).collect();
        assert_eq!(ids, [vec![1, 2], vec![0], vec![3]]);
    }

    #[test]
    fn sections_are_maximal() {
        // 0 and 1, then 1 and 2 and 3: the time at which 1 and 2 alone are alive is no section.
        let buffers = [(0, 4), (2, 9), (4, 8), (6, 9)].map(|(lower, upper)| Buffer::new(lower, upper, 3));
        let component = Component::split(&buffers).remove(0);
        assert_eq!((component.section_count, component.lower_bound), (2, 9));
        assert_eq!(component.sections, [0..1, 0..2, 1..2, 1..2]);
    }
}
