//! Depth-first search for offsets below a capacity, of one component.
//!
//! Ideas of MiniMalloc (Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning", ASPLOS 2023):
//!
//! * *Canonical solutions.* Every solution can be pushed down until each buffer lies on another one, or at offset 0. The search places
//!   buffers in ascending order of (offset, rank), each at its lowest possible offset, so it meets each such solution once.
//! * *Dominance.* A buffer is not placed at or above the end of another one that could be placed now: that one would be pushed below it.
//!   Of buffers with equal lifetimes, sizes and alignments the first goes first.
//! * *Decomposition.* Where no unplaced buffer crosses the border of two sections, both sides are solved by themselves.
//!
//! Added to these:
//!
//! * *Sections as machines.* The unplaced buffers of a section lie one above the other, none below its lowest offset. The least height that
//!   they need is that of one machine with release dates: take them in ascending order of their lowest offsets. A branch ends if that
//!   exceeds the capacity. A buffer whose lowest offset the order has passed must lie on an unplaced neighbour, which raises its lowest offset.
//! * *Backjumping* (Prosser, 1993): a branch that ends names the placed buffers that it blames, and the search returns to the last of them.
//!   The blame leaves out buffers that were passed over, so a search with [`Backtrack::Blamed`] may miss solutions; one with
//!   [`Backtrack::Last`] is complete, and proves that there is none.
//!
//! The state is changed by `place` and `unplace` alone. The trail restores lowest offsets. Frames lie in a `Vec`, so nothing recurses.

use super::component::Component;
use super::plan::Meter;

/// No buffer, or no sub-problem.
const NONE: u32 = u32::MAX;

/// How a search returns from a branch that has ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Backtrack {
    /// To the last placed buffer.
    Last,
    /// To the last placed buffer that is blamed.
    Blamed,
}

/// How a search ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Everything is placed: [`Search::offsets`].
    Fits,
    /// Everything was tried. With [`Backtrack::Last`] there is no solution.
    Exhausted,
    /// The steps were spent.
    OutOfSteps,
}

/// A position in the canonical order.
type Position = (u64, u32);

/// A set of buffers as bits.
#[derive(Clone, Debug)]
struct Set(Vec<u64>);

impl Set {
    fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }
    fn clear(&mut self) {
        self.0.fill(0);
    }
    fn fill(&mut self) {
        self.0.fill(u64::MAX);
    }
    fn insert(&mut self, buffer: u32) {
        if buffer != NONE {
            self.0[buffer as usize / 64] |= 1 << (buffer % 64);
        }
    }
    fn remove(&mut self, buffer: u32) {
        self.0[buffer as usize / 64] &= !(1 << (buffer % 64));
    }
    fn contains(&self, buffer: u32) -> bool {
        self.0[buffer as usize / 64] >> (buffer % 64) & 1 == 1
    }
    fn extend(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word |= other);
    }
}

/// A sub-problem that waits: sections `first..last` from `position` on. `below` is the next one, and `parent` counts the frames up to the one
/// whose placed buffer left the sub-problem.
#[derive(Copy, Clone, Debug)]
struct Waiting {
    first: usize,
    last: usize,
    position: Position,
    below: u32,
    parent: usize,
}

/// A choice: which buffer of `candidates` is placed next among the sections `first..last`.
#[derive(Debug)]
struct Frame {
    first: usize,
    last: usize,
    candidates: Vec<(u64, u32, u32)>,
    next: usize,
    /// The buffer that is placed, if any, and the length of the trail before it.
    placed: u32,
    trail: usize,
    /// The first sub-problem that waits, and how many are kept for this frame and those before it.
    waiting: u32,
    kept: usize,
    /// How many frames the search keeps if all candidates fail: those between belong to other parts, which cannot help.
    parent: usize,
    blamed: Set,
}

/// A lowest offset that was raised: what it was, and what supported it.
#[derive(Copy, Clone, Debug)]
struct Raised {
    buffer: u32,
    lowest: u64,
    support: u32,
}

/// The state of the search.
#[derive(Debug)]
pub(super) struct Search<'a> {
    component: &'a Component,
    capacity: u64,
    /// The buffers that overlap each buffer in time.
    neighbours: Vec<Vec<u32>>,
    /// The buffers of each section: the placed ones in the order in which they were placed, then the unplaced ones, nearly sorted by lowest
    /// offset.
    members: Vec<Vec<u32>>,
    /// An equal buffer with a smaller number.
    twin: Vec<u32>,
    /// The position of each buffer in the order to try.
    rank: Vec<u32>,
    /// The lowest possible offset of an unplaced buffer, and the offset of a placed one.
    lowest: Vec<u64>,
    /// The placed buffer on which `lowest` lies.
    support: Vec<u32>,
    /// `lowest`, raised where the canonical order has passed it.
    raised: Vec<u64>,
    is_placed: Vec<bool>,
    /// For each section: how many buffers are unplaced, their sizes, whether a member was raised.
    unplaced: Vec<u32>,
    rest: Vec<u64>,
    is_raised: Vec<bool>,
    /// For each section: how many unplaced buffers are alive in it and in the one before.
    crossing: Vec<u32>,
    trail: Vec<Raised>,
    waiting: Vec<Waiting>,
    /// What was placed, in order.
    path: Vec<(u64, u32, u32)>,
    /// Why the last branch ended.
    blamed: Set,
    /// How many branches ended at each section, over all runs.
    pub(super) failures: Vec<u64>,
}

impl<'a> Search<'a> {
    /// A search, if the component has at most `most_pairs` pairs of buffers that overlap in time.
    pub(super) fn new(component: &'a Component, most_pairs: usize) -> Option<Self> {
        let len = component.len();
        let mut neighbours = vec![Vec::new(); len];
        let mut pairs = 0;
        // Buffers are sorted by their beginning, so those that overlap a buffer and come later follow it without a gap.
        for buffer in 0..len {
            for other in buffer + 1..len {
                if component.sections[other].start >= component.sections[buffer].end {
                    break;
                }
                neighbours[buffer].push(other as u32);
                neighbours[other].push(buffer as u32);
            }
            pairs += neighbours[buffer].len();
            if pairs > 2 * most_pairs {
                return None;
            }
        }
        let mut members = vec![Vec::new(); component.section_count];
        for (buffer, sections) in component.sections.iter().enumerate() {
            members[sections.clone()].iter_mut().for_each(|members| members.push(buffer as u32));
        }
        let key = |buffer: usize| (&component.sections[buffer], component.sizes[buffer], component.alignments[buffer]);
        let twin = |buffer: usize| {
            let earlier = neighbours[buffer].iter().filter(|&&other| (other as usize) < buffer);
            earlier.copied().filter(|&other| key(other as usize) == key(buffer)).max().unwrap_or(NONE)
        };
        Some(Self {
            component,
            capacity: 0,
            twin: (0..len).map(twin).collect(),
            neighbours,
            members,
            rank: vec![0; len],
            lowest: vec![0; len],
            support: vec![NONE; len],
            raised: vec![0; len],
            is_placed: vec![false; len],
            unplaced: Vec::new(),
            rest: Vec::new(),
            is_raised: vec![false; component.section_count],
            crossing: Vec::new(),
            trail: Vec::new(),
            waiting: Vec::new(),
            path: Vec::new(),
            blamed: Set::new(len),
            failures: vec![0; component.section_count],
        })
    }

    /// The offsets that were found.
    pub(super) fn offsets(&self) -> &[u64] {
        &self.lowest
    }

    /// Looks for offsets with a peak of at most `capacity`, in at most `steps` steps: a step is a buffer that is placed.
    pub(super) fn run(
        &mut self,
        capacity: u64,
        order: &[u32],
        backtrack: Backtrack,
        steps: u64,
        meter: &mut Meter,
    ) -> Outcome {
        self.reset(capacity, order);
        let mut frames: Vec<Frame> = Vec::new();
        let sections = self.component.section_count;
        if !self.open(&mut frames, Waiting { first: 0, last: sections, position: (0, 0), below: NONE, parent: 0 }) {
            return Outcome::Exhausted;
        }
        let last_step = meter.steps().saturating_add(steps);
        loop {
            let Some(frame) = frames.last_mut() else { return Outcome::Exhausted };
            let Some(&(offset, rank, buffer)) = frame.candidates.get(frame.next) else {
                // All candidates have failed: so has what was placed before this frame.
                if let Some(frame) = frames.pop() {
                    self.blamed.0.copy_from_slice(&frame.blamed.0);
                    self.unwind(&mut frames, frame.parent);
                }
                self.fail(&mut frames, backtrack);
                continue;
            };
            if meter.steps() >= last_step || !meter.step() {
                return Outcome::OutOfSteps;
            }
            frame.next += 1;
            frame.placed = buffer;
            frame.trail = self.trail.len();
            self.waiting.truncate(frame.kept);
            let (first, last, below) = (frame.first, frame.last, frame.waiting);
            let depth = frames.len();
            self.path.push((offset, rank, buffer));
            let next = self.place(buffer as usize).then(|| self.divide(first, last, (offset, rank + 1), below, depth));
            match next.flatten() {
                Some(NONE) => return Outcome::Fits,
                Some(top) => {
                    let waiting = self.waiting[top as usize];
                    if !self.open(&mut frames, waiting) {
                        self.unwind(&mut frames, waiting.parent);
                        self.fail(&mut frames, backtrack);
                    }
                }
                None => self.fail(&mut frames, backtrack),
            }
        }
    }

    fn reset(&mut self, capacity: u64, order: &[u32]) {
        self.capacity = capacity;
        for (rank, &buffer) in order.iter().enumerate() {
            self.rank[buffer as usize] = rank as u32;
        }
        // An equal buffer with a smaller number gets the smaller rank. Twins point to smaller numbers, so one chain is sorted by insertion.
        for buffer in 0..self.rank.len() {
            let (mut upper, mut lower) = (buffer, self.twin[buffer]);
            while lower != NONE && self.rank[lower as usize] > self.rank[upper] {
                self.rank.swap(lower as usize, upper);
                (upper, lower) = (lower as usize, self.twin[lower as usize]);
            }
        }
        self.lowest.fill(0);
        self.support.fill(NONE);
        self.is_placed.fill(false);
        self.trail.clear();
        self.waiting.clear();
        self.path.clear();
        self.unplaced = self.members.iter().map(|members| members.len() as u32).collect();
        let size = |&buffer: &u32| self.component.sizes[buffer as usize];
        self.rest = self.members.iter().map(|members| members.iter().map(size).sum()).collect();
        self.crossing = vec![0; self.component.section_count];
        for sections in &self.component.sections {
            (sections.start + 1..sections.end).for_each(|section| self.crossing[section] += 1);
        }
    }

    /// Places a buffer at its lowest offset. Returns false, with the blame, if the rest cannot fit any more.
    fn place(&mut self, buffer: usize) -> bool {
        let component = self.component;
        let (size, sections) = (component.sizes[buffer], &component.sections[buffer]);
        let end = self.lowest[buffer] + size;
        self.is_placed[buffer] = true;
        for section in sections.clone() {
            self.rest[section] -= size;
            let unplaced = self.unplaced_members(section);
            if let Some(at) = unplaced.iter().position(|&member| member as usize == buffer) {
                unplaced[..=at].rotate_right(1);
            }
            self.unplaced[section] -= 1;
        }
        self.crossing[sections.start + 1..sections.end].iter_mut().for_each(|count| *count -= 1);
        self.blamed.clear();
        if end > self.capacity {
            self.blamed.insert(self.support[buffer]);
            return false;
        }
        let mut changed = sections.clone();
        for &other in &self.neighbours[buffer] {
            let index = other as usize;
            if self.is_placed[index] || self.lowest[index] >= end {
                continue;
            }
            self.trail.push(Raised { buffer: other, lowest: self.lowest[index], support: self.support[index] });
            self.lowest[index] = end.next_multiple_of(component.alignments[index]);
            self.support[index] = buffer as u32;
            if self.lowest[index] + component.sizes[index] > self.capacity {
                self.blamed.insert(buffer as u32);
                return false;
            }
            changed.start = changed.start.min(component.sections[index].start);
            changed.end = changed.end.max(component.sections[index].end);
        }
        for section in changed {
            if !self.is_room(section, false) {
                self.failures[section] += 1;
                self.blame_section(section, false);
                return false;
            }
        }
        true
    }

    fn unplaced_members(&mut self, section: usize) -> &mut [u32] {
        let members = &mut self.members[section];
        let placed = members.len() - self.unplaced[section] as usize;
        &mut members[placed..]
    }

    /// Whether the unplaced buffers of a section, stacked in ascending order of their lowest offsets, stay within the capacity. The offsets
    /// are those of `raised`, if asked for, else of `lowest`.
    fn is_room(&mut self, section: usize, raised: bool) -> bool {
        let heights = if raised { &self.raised } else { &self.lowest };
        let members = &mut self.members[section];
        let placed = members.len() - self.unplaced[section] as usize;
        let unplaced = &mut members[placed..];
        // Heights change little between calls, so the members are nearly sorted.
        for index in 1..unplaced.len() {
            let (member, mut hole) = (unplaced[index], index);
            let height = heights[member as usize];
            while hole > 0 && heights[unplaced[hole - 1] as usize] > height {
                unplaced[hole] = unplaced[hole - 1];
                hole -= 1;
            }
            unplaced[hole] = member;
        }
        let mut top = 0;
        for &buffer in unplaced.iter() {
            top = heights[buffer as usize].max(top) + self.component.sizes[buffer as usize];
        }
        top <= self.capacity
    }

    /// Takes back the buffer that was placed last.
    fn unplace(&mut self, buffer: usize, trail: usize) {
        for raised in self.trail.drain(trail..).rev() {
            self.lowest[raised.buffer as usize] = raised.lowest;
            self.support[raised.buffer as usize] = raised.support;
        }
        let (size, sections) = (self.component.sizes[buffer], &self.component.sections[buffer]);
        self.is_placed[buffer] = false;
        for section in sections.clone() {
            self.rest[section] += size;
            self.unplaced[section] += 1;
        }
        self.crossing[sections.start + 1..sections.end].iter_mut().for_each(|count| *count += 1);
    }

    /// Splits sections where no unplaced buffer crosses, and puts the parts before those that wait. Returns the first one, [`NONE`] if
    /// nothing is left to place, or `None`, with the blame, if one of several parts has no candidates.
    fn divide(&mut self, first: usize, last: usize, position: Position, below: u32, parent: usize) -> Option<u32> {
        let mut parts: Vec<(u64, usize, usize)> = Vec::new();
        let mut section = first;
        while section < last {
            if self.unplaced[section] == 0 {
                section += 1;
                continue;
            }
            let start = section;
            section += 1;
            while section < last && self.crossing[section] > 0 {
                section += 1;
            }
            let fullest = self.rest[start..section].iter().copied().max().unwrap_or(0);
            parts.push((fullest, start, section));
        }
        if parts.len() > 1 && parts.iter().any(|&(_, first, last)| self.candidates(first, last, position).is_none()) {
            return None;
        }
        // The fullest part goes first, so it is pushed last.
        parts.sort_unstable();
        let mut below = below;
        for (_, first, last) in parts {
            self.waiting.push(Waiting { first, last, position, below, parent });
            below = self.waiting.len() as u32 - 1;
        }
        Some(below)
    }

    /// Begins a sub-problem. Returns false, with the blame, if it has no candidates.
    fn open(&mut self, frames: &mut Vec<Frame>, waiting: Waiting) -> bool {
        let Some(candidates) = self.candidates(waiting.first, waiting.last, waiting.position) else { return false };
        frames.push(Frame {
            first: waiting.first,
            last: waiting.last,
            candidates,
            next: 0,
            placed: NONE,
            trail: 0,
            waiting: waiting.below,
            kept: self.waiting.len(),
            parent: waiting.parent,
            blamed: Set::new(self.rank.len()),
        });
        true
    }

    /// Takes back what was placed after the first `kept` frames.
    fn unwind(&mut self, frames: &mut Vec<Frame>, kept: usize) {
        while frames.len() > kept
            && let Some(frame) = frames.pop()
        {
            self.unplace(frame.placed as usize, frame.trail);
            self.path.pop();
        }
    }

    /// Takes back what was placed last, down to the buffer to which the search returns, and notes there why it failed.
    fn fail(&mut self, frames: &mut Vec<Frame>, backtrack: Backtrack) {
        while let Some(frame) = frames.last_mut() {
            let support = self.support[frame.placed as usize];
            self.unplace(frame.placed as usize, frame.trail);
            self.path.pop();
            if backtrack == Backtrack::Last || self.blamed.contains(frame.placed) {
                frame.blamed.extend(&self.blamed);
                frame.blamed.remove(frame.placed);
                // The buffer lies where it lies because of its support.
                frame.blamed.insert(support);
                return;
            }
            frames.pop();
        }
    }

    /// The buffers that may be placed next, in the order to try, or none, with the blame, if the rest does not fit.
    fn candidates(&mut self, first: usize, last: usize, position: Position) -> Option<Vec<(u64, u32, u32)>> {
        let component = self.component;
        self.blamed.clear();
        let mut candidates = Vec::new();
        let mut lowest_end = u64::MAX;
        self.is_raised[first..last].fill(false);
        // Buffers are sorted by their beginning.
        let begin = component.sections.partition_point(|sections| sections.start < first);
        for buffer in begin..component.len() {
            let sections = &component.sections[buffer];
            if sections.start >= last {
                break;
            }
            if self.is_placed[buffer] {
                continue;
            }
            let lowest = self.lowest[buffer];
            lowest_end = lowest_end.min(lowest + component.sizes[buffer]);
            self.raised[buffer] = lowest;
            if (lowest, self.rank[buffer]) >= position {
                let twin = self.twin[buffer];
                if twin == NONE || self.is_placed[twin as usize] {
                    candidates.push((lowest, self.rank[buffer], buffer as u32));
                }
                continue;
            }
            // The order has passed it: it will lie on a neighbour that is placed from `position` on.
            let end = |&other: &u32| self.lowest[other as usize].max(position.0) + component.sizes[other as usize];
            let unplaced = self.neighbours[buffer].iter().filter(|&&other| !self.is_placed[other as usize]);
            let raised = unplaced.map(end).min().unwrap_or(u64::MAX / 2);
            self.raised[buffer] = raised.max(lowest);
            if self.raised[buffer] + component.sizes[buffer] > self.capacity {
                self.blame_raised(buffer, (self.capacity + 1).saturating_sub(component.sizes[buffer]));
                return None;
            }
            self.is_raised[sections.clone()].fill(true);
        }
        if lowest_end <= position.0 {
            self.blamed.fill();
            return None;
        }
        for section in first..last {
            if self.is_raised[section] && !self.is_room(section, true) {
                self.failures[section] += 1;
                self.blame_section(section, true);
                return None;
            }
        }
        candidates.retain(|&(lowest, ..)| lowest < lowest_end);
        if candidates.is_empty() {
            self.blamed.fill();
            return None;
        }
        candidates.sort_unstable();
        Some(candidates)
    }

    /// Blames the buffers that keep the unplaced ones of a section so high that they exceed the capacity.
    fn blame_section(&mut self, section: usize, raised: bool) {
        self.blamed.clear();
        let members = std::mem::take(&mut self.members[section]);
        let heights = if raised { &self.raised } else { &self.lowest };
        // The last buffer that does not lie on the one before begins the stack that is too high.
        let unplaced = &members[members.len() - self.unplaced[section] as usize..];
        let (mut top, mut base, mut start) = (0, 0, 0);
        for (index, &buffer) in unplaced.iter().enumerate() {
            let buffer = buffer as usize;
            if heights[buffer] > top {
                (top, base, start) = (heights[buffer], heights[buffer], index);
            }
            top += self.component.sizes[buffer];
        }
        // From this offset on the stack would still be too high.
        let enough = base.saturating_sub(top - self.capacity - 1);
        if enough > 0 {
            unplaced[start..].iter().for_each(|&buffer| self.blame_raised(buffer as usize, enough));
        }
        self.members[section] = members;
    }

    /// Blames what keeps a buffer at `height` or above: its support, or the order, which has passed it, and what lies on its neighbours.
    fn blame_raised(&mut self, buffer: usize, height: u64) {
        if self.lowest[buffer] >= height {
            self.blamed.insert(self.support[buffer]);
            return;
        }
        let end = |search: &Self, other: usize| search.lowest[other] + search.component.sizes[other];
        let others = std::mem::take(&mut self.neighbours[buffer]);
        let unplaced = || others.iter().map(|&other| other as usize).filter(|&other| !self.is_placed[other]);
        // The position that the order must have reached.
        let low = |other: usize| height.saturating_sub(self.component.sizes[other]);
        let needed = unplaced().filter(|&other| end(self, other) < height).map(low).max().unwrap_or(0);
        let supports: Vec<u32> = unplaced()
            .filter(|&other| end(self, other) >= height && low(other) > needed)
            .map(|other| self.support[other])
            .collect();
        supports.into_iter().for_each(|support| self.blamed.insert(support));
        self.neighbours[buffer] = others;
        let own = (self.lowest[buffer], self.rank[buffer]);
        match self.path.iter().find(|&&(offset, rank, _)| offset >= needed && (offset, rank) >= own) {
            Some(&(_, _, placed)) => self.blamed.insert(placed),
            None => self.blamed.fill(),
        }
    }
}
