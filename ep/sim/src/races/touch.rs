//! The bytes that an access touches.

use std::ops::Range;

use smallvec::SmallVec;
use streamvm_ep::{Access, MAX_RANK, Operand};

/// One operand's part of an access: its bytes, how they are accessed, and the allocation that they belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touch {
    runs: SmallVec<[Range<usize>; 1]>,
    access: Access,
    allocation: Option<u64>,
}

impl Touch {
    /// A touch of the bytes at these addresses. The runs may be in any order and may overlap; empty runs are dropped.
    pub fn new(runs: impl IntoIterator<Item = Range<usize>>, access: Access, allocation: Option<u64>) -> Touch {
        let mut runs: SmallVec<[Range<usize>; 1]> = runs.into_iter().filter(|run| !run.is_empty()).collect();
        coalesce(&mut runs);
        Touch { runs, access, allocation }
    }

    /// A touch of exactly the bytes of the elements of `operand`: the gaps of a strided view are not touched.
    pub fn of(operand: &Operand, allocation: Option<u64>) -> Touch {
        Touch { runs: runs_of(operand), access: operand.access(), allocation }
    }

    /// The bytes, by address: sorted, not empty, with a gap between any two.
    pub fn runs(&self) -> &[Range<usize>] {
        &self.runs
    }

    /// How they are accessed.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The allocation that they belong to, by the number from [`begin_allocation`](crate::races::Detector::begin_allocation). `None` means
    /// the allocation that began last at these addresses.
    pub fn allocation(&self) -> Option<u64> {
        self.allocation
    }
}

/// The bytes of the elements; see [`Touch::of`].
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
    // Axes whose stride is at most the length so far lengthen the run; the other axes repeat it.
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

/// Sorts the runs and merges those that overlap or are adjacent.
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
