//! The accesses of former allocations that a block of memory must still be ordered after.
//!
//! Reuse is a write, so the next owner of a block is ordered after every access of every earlier owner. Two facts keep the set
//! small:
//! * An ordered stream passes its points in order, so its highest point implies the others.
//! * A point that has passed orders nothing any more, and may be removed.
//!
//! Invariant: entries are sorted by (stream, sequence number), with one entry per ordered stream. A set may hold redundant points,
//! which cost a wait; it never loses a point that has not passed.

use std::fmt;

use smallvec::SmallVec;

use crate::{Point, StreamId};

/// Pending points of a block of memory: for each ordered stream at most one, the highest; for an unordered stream, all.
///
/// Reads and writes are treated alike. Up to two points are stored inline, without an allocation.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct AccessSet {
    entries: SmallVec<[Point; 2]>,
}

impl AccessSet {
    /// The empty set: no access to wait for.
    #[inline]
    pub fn new() -> AccessSet {
        AccessSet { entries: SmallVec::new() }
    }

    /// Adds a point. For an ordered stream only the highest point is kept. Points of an unordered stream do not imply each other,
    /// so they are kept until they are pruned.
    #[inline]
    pub fn add(&mut self, point: Point) {
        // Most sets have one point, and the next point is mostly on the same stream.
        match self.entries.as_mut_slice() {
            [] => self.entries.push(point),
            [only] if only.stream == point.stream && !point.stream.is_unordered() => only.seq = only.seq.max(point.seq),
            _ => self.insert_sorted(point),
        }
    }

    /// Adds every access of `other`.
    #[inline]
    pub fn merge(&mut self, other: &AccessSet) {
        if self.entries.is_empty() {
            self.entries.extend_from_slice(&other.entries);
            return;
        }
        for point in &other.entries {
            self.add(*point);
        }
    }

    /// Removes the points for which `passed` returns true.
    pub fn prune(&mut self, passed: impl Fn(Point) -> bool) {
        // In most calls nothing has passed or there is one point, so moving entries is the rare case.
        if self.entries.iter().any(|point| passed(*point)) {
            self.entries.retain(|point| !passed(*point));
        }
    }

    /// The points, sorted by stream.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Point> + '_ {
        self.entries.iter().copied()
    }

    /// The number of points.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the set is empty: no access to wait for.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes every point.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Whether the order of `stream` alone puts every access before the next work on `stream`. False for points of an unordered
    /// stream, also on that stream itself.
    #[inline]
    pub fn is_ordered_on(&self, stream: StreamId) -> bool {
        self.entries.iter().all(|point| point.stream == stream && !stream.is_unordered())
    }

    /// Whether both sets wait for the same streams, so that their union adds no stream to wait for.
    pub(super) fn same_streams(&self, other: &AccessSet) -> bool {
        self.entries.len() == other.entries.len()
            && self
                .entries
                .iter()
                .zip(&other.entries)
                .all(|(a, b)| a.stream == b.stream && (!a.stream.is_unordered() || a.seq == b.seq))
    }

    #[inline(never)]
    fn insert_sorted(&mut self, new: Point) {
        let before = |old: &Point| match old.stream == new.stream {
            true => new.stream.is_unordered() && old.seq < new.seq,
            false => old.stream < new.stream,
        };
        let at = self.entries.partition_point(before);
        match self.entries.get_mut(at) {
            Some(old) if old.stream == new.stream && !new.stream.is_unordered() => old.seq = old.seq.max(new.seq),
            Some(old) if *old == new => {}
            _ => self.entries.insert(at, new),
        }
    }
}

impl FromIterator<Point> for AccessSet {
    fn from_iter<I: IntoIterator<Item = Point>>(points: I) -> AccessSet {
        let mut set = AccessSet::new();
        points.into_iter().for_each(|point| set.add(point));
        set
    }
}

impl fmt::Debug for AccessSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (index, point) in self.iter().enumerate() {
            write!(f, "{}{point}", if index == 0 { "" } else { ", " })?;
        }
        f.write_str("}")
    }
}
