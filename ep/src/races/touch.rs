//! Which bytes an access touches.

use std::ops::Range;

use smallvec::SmallVec;

use crate::operand::{Access, Operand};
use crate::shape::MAX_RANK;

/// One operand's part of an access: runs of bytes, what is done with them, and the life of memory that they belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touch {
    runs: SmallVec<[Range<usize>; 1]>,
    access: Access,
    life: Option<u64>,
}

impl Touch {
    /// These bytes, given by their addresses; in any order, and they may overlap. Empty runs are left out.
    pub fn new(runs: impl IntoIterator<Item = Range<usize>>, access: Access, life: Option<u64>) -> Touch {
        let mut runs: SmallVec<[Range<usize>; 1]> = runs.into_iter().filter(|run| !run.is_empty()).collect();
        coalesce(&mut runs);
        Touch { runs, access, life }
    }

    /// Exactly the bytes that the elements of `operand` lie in: the gaps of a strided view are not touched.
    pub fn of(operand: &Operand, life: Option<u64>) -> Touch {
        Touch { runs: runs_of(operand), access: operand.access(), life }
    }

    /// The bytes, by address: ascending, not empty, with a gap between each two.
    pub fn runs(&self) -> &[Range<usize>] {
        &self.runs
    }

    /// What is done with them.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The life of memory that they belong to, as [`begin_life`](crate::races::Detector::begin_life) named it; `None`
    /// if nobody said, which means the one that was last begun there.
    pub fn life(&self) -> Option<u64> {
        self.life
    }
}

/// See [`Touch::of`].
fn runs_of(operand: &Operand) -> SmallVec<[Range<usize>; 1]> {
    let layout = operand.layout();
    let mut runs = SmallVec::new();
    if layout.elements() == 0 {
        return runs;
    }
    let size = operand.dtype().size();
    let mut axes: SmallVec<[(usize, usize); MAX_RANK]> = layout
        .strides()
        .iter()
        .zip(layout.shape().dims())
        .filter(|&(&stride, &dim)| dim > 1 && stride > 0)
        .map(|(&stride, &dim)| (stride * size, dim))
        .collect();
    axes.sort_unstable();
    // Axes that step no further than what the smaller ones cover lengthen the run; the others repeat it.
    let mut length = size;
    let mut outer = 0;
    while let Some(&(stride, dim)) = axes.get(outer)
        && stride <= length
    {
        length += (dim - 1) * stride;
        outer += 1;
    }
    let start = operand.ptr().addr();
    runs.push(start..start + length);
    for &(stride, dim) in &axes[outer..] {
        let count = runs.len();
        for step in 1..dim {
            for index in 0..count {
                let run: Range<usize> = runs[index].clone();
                runs.push(run.start + step * stride..run.end + step * stride);
            }
        }
    }
    coalesce(&mut runs);
    runs
}

/// Sorts the runs and merges those that overlap or touch.
pub(crate) fn coalesce(runs: &mut SmallVec<[Range<usize>; 1]>) {
    runs.sort_unstable_by_key(|run| run.start);
    runs.dedup_by(|next, kept| {
        let meets = next.start <= kept.end;
        if meets {
            kept.end = kept.end.max(next.end);
        }
        meets
    });
}

#[cfg(test)]
#[path = "touch_tests.rs"]
mod tests;
