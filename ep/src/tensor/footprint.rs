//! Footprints: which units of a storage (its elements, or its bytes) a strided view touches, as a set.
//!
//! A [`Footprint`] drops the order of the axes, axes of length 1, and axes that repeat elements, and merges axes that continue each
//! other. So two views of one storage that touch the same units mostly have equal footprints, and most footprints are one dense range.
//!
//! # Whether two footprints overlap
//!
//! Two dense ranges overlap if their ends say so. For strided footprints the question is whether `a.start + Σ iₖ·sₖ = b.start + Σ jₘ·tₘ`
//! has a solution with every index below the length of its axis:
//!
//! 1. Counting each `j` from its far end makes all coefficients positive.
//! 2. Equal strides add up to one variable. This leaves a bounded subset-sum problem with one variable per distinct stride.
//! 3. The search goes from the largest stride to the smallest. The smaller strides reach only so far, so each variable has few values to
//!    try: one or two for views of one contiguous tensor. A remainder that the greatest common divisor of the smaller strides does not
//!    divide is rejected at once.
//!
//! Invariants:
//! * The search ends after at most [`MOST_STEPS`] tries. An undecided pair counts as overlapping: orders and checks may be too strict,
//!   never too lax.
//! * Axes are sorted by stride, the largest first. Lengths are at least 2, strides at least 1. A dense range has no axes.

use std::ops::Range;

use smallvec::SmallVec;

use crate::tensor::layout::Layout;
use crate::tensor::shape::MAX_RANK;

/// The most values to try before two footprints count as overlapping. Slices and permutations of one contiguous tensor of rank 8 need
/// fewer than twenty (`slices_of_one_tensor_need_few_tries` counts them); only unusual strides come near the limit. 256 tries take about
/// one microsecond.
const MOST_STEPS: u32 = 256;

/// One axis: the number of units, and the distance between them.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Axis {
    len: usize,
    stride: usize,
}

/// The units that a view touches, counted from the start of its storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// The first unit.
    start: usize,
    /// One past the last unit; equal to `start` if there is none.
    end: usize,
    /// Empty for a dense range.
    axes: SmallVec<[Axis; 3]>,
}

impl Footprint {
    /// Every unit of a storage of any size.
    pub fn all() -> Footprint {
        Footprint { start: 0, end: usize::MAX, axes: SmallVec::new() }
    }

    /// The elements that a view touches.
    pub fn of(layout: &Layout) -> Footprint {
        Footprint::scaled(layout, 0, 1)
    }

    /// The bytes that a view of elements of `size` bytes touches, with element 0 at address `base`.
    pub fn scaled(layout: &Layout, base: usize, size: usize) -> Footprint {
        let span = layout.span_elements();
        let (start, end) = (base.wrapping_add(span.start * size), base.wrapping_add(span.end * size));
        if span.is_empty() || layout.is_contiguous() {
            return Footprint { start, end, axes: SmallVec::new() };
        }
        let mut axes: SmallVec<[Axis; MAX_RANK + 1]> = SmallVec::new();
        if size > 1 {
            axes.push(Axis { len: size, stride: 1 });
        }
        for (&len, &stride) in layout.shape().dims().iter().zip(layout.strides()) {
            if len > 1 && stride > 0 {
                axes.push(Axis { len, stride: stride * size });
            }
        }
        axes.sort_unstable_by(|a, b| b.stride.cmp(&a.stride).then(b.len.cmp(&a.len)));
        let mut merged: SmallVec<[Axis; 3]> = SmallVec::new();
        // From the smallest stride up: an axis that starts where the previous one ends only makes the previous one longer. Two axes of
        // one stride reach the same units as one axis of `len + len - 1`.
        for axis in axes.into_iter().rev() {
            match merged.last_mut() {
                Some(inner) if axis.stride == inner.stride => inner.len += axis.len - 1,
                Some(inner) if axis.stride == inner.stride * inner.len => inner.len *= axis.len,
                _ => merged.push(axis),
            }
        }
        merged.reverse();
        let dense = merged.is_empty() || matches!(merged.as_slice(), [Axis { stride: 1, .. }]);
        Footprint { start, end, axes: if dense { SmallVec::new() } else { merged } }
    }

    /// The range from the first unit to one past the last.
    pub fn span(&self) -> Range<usize> {
        self.start..self.end
    }

    /// Whether it is every one of the first `units` units.
    pub fn is_all_of(&self, units: usize) -> bool {
        self.start == 0 && self.end == units && self.axes.is_empty()
    }

    /// Whether it is one range of units.
    pub(crate) fn is_dense(&self) -> bool {
        self.axes.is_empty()
    }

    /// If it is several runs of units, as long as each other and evenly spaced, with gaps between them: the distance from run to run, and the length of a run.
    pub(crate) fn runs(&self) -> Option<(usize, usize)> {
        match *self.axes.as_slice() {
            [Axis { stride, .. }] => Some((stride, 1)),
            [Axis { stride, .. }, Axis { len, stride: 1 }] if len < stride => Some((stride, len)),
            _ => None,
        }
    }

    /// Its runs of units, one after the other, if there are at most so many, and they are evenly spaced or one.
    pub(crate) fn each_run(&self, most: usize) -> Option<impl Iterator<Item = Range<usize>> + use<>> {
        let Range { start, end } = self.span();
        let (stride, run) = match self.runs() {
            Some(runs) => runs,
            None if self.is_dense() => (1, end - start),
            None => return None,
        };
        let count = (end - start).checked_sub(run)? / stride + 1;
        (count <= most).then(|| (0..count).map(move |place| start + place * stride..start + place * stride + run))
    }

    /// Whether it has no unit.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Whether two footprints have a unit in common. Exact, except for unusual strides whose search takes too long: those count as
    /// overlapping.
    #[inline]
    pub fn overlaps(&self, other: &Footprint) -> bool {
        if self.start >= other.end || other.start >= self.end || self.is_empty() || other.is_empty() {
            return false;
        }
        (self.axes.is_empty() && other.axes.is_empty()) || self.overlaps_within(other, MOST_STEPS)
    }

    /// Whether every unit of `other` belongs to this footprint. `false` may be wrong: a strided footprint is only compared for equality.
    pub fn covers(&self, other: &Footprint) -> bool {
        let dense = self.axes.is_empty() && self.start <= other.start && other.end <= self.end;
        dense || other.is_empty() || self == other
    }

    /// The first unit, the last unit and the axes. A dense range is cut to the span of `other` first.
    fn terms(&self, other: &Footprint) -> (usize, usize, SmallVec<[Axis; 3]>) {
        if !self.axes.is_empty() {
            return (self.start, self.end - 1, self.axes.clone());
        }
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start, end - 1, SmallVec::from_slice(&[Axis { len: end - start, stride: 1 }]))
    }

    /// Whether two footprints whose spans overlap have a unit in common; also true if `steps` tries do not decide it.
    #[inline(never)]
    fn overlaps_within(&self, other: &Footprint, mut steps: u32) -> bool {
        // With each index of `other` counted from its far end: a.start + Σ iₖ·sₖ + Σ jₘ·tₘ = (last unit of other).
        let ((start, _, mine), (_, last, theirs)) = (self.terms(other), other.terms(self));
        let Some(target) = last.checked_sub(start) else { return false };
        let mut terms: SmallVec<[Term; 8]> = SmallVec::new();
        let mut all: SmallVec<[Axis; 8]> = mine.iter().chain(&theirs).copied().collect();
        all.sort_unstable_by_key(|axis| axis.stride);
        for Axis { len, stride } in all {
            match terms.last_mut() {
                // A longer stride that is a multiple of this one, and whose gaps this one fills, only extends this one's reach. So few
                // terms are left for views of one contiguous tensor, whichever of their axes were merged.
                Some(last) if stride.is_multiple_of(last.stride) && last.most + 1 >= stride / last.stride => {
                    last.most = last.most.saturating_add((len - 1).saturating_mul(stride / last.stride));
                }
                _ => terms.push(Term { stride, most: len - 1, reach: 0, divisor: 0 }),
            }
        }
        let (mut reach, mut divisor) = (0_usize, 0);
        for term in &mut terms {
            (term.reach, term.divisor) = (reach, divisor);
            reach = reach.saturating_add(term.stride.saturating_mul(term.most));
            divisor = greatest_common_divisor(term.stride, divisor);
        }
        can_sum_to(&terms, target, &mut steps)
    }
}

/// One variable of the sum: a count from 0 to `most`, times `stride`.
struct Term {
    stride: usize,
    most: usize,
    /// The largest sum of the terms before it, whose strides are smaller.
    reach: usize,
    /// The greatest common divisor of the strides of those terms; 0 if there are none.
    divisor: usize,
}

/// Whether the terms can sum up to `target`; also true once no steps are left. The recursion is as deep as there are terms.
fn can_sum_to(terms: &[Term], target: usize, steps: &mut u32) -> bool {
    let Some((term, smaller)) = terms.split_last() else { return target == 0 };
    // The smaller terms contribute at most `reach`.
    let least = target.saturating_sub(term.reach).div_ceil(term.stride);
    let most = (target / term.stride).min(term.most);
    for count in (least..=most).rev() {
        let Some(left) = steps.checked_sub(1) else { return true };
        *steps = left;
        let rest = target - count * term.stride;
        let divides = if term.divisor == 0 { rest == 0 } else { rest.is_multiple_of(term.divisor) };
        if divides && can_sum_to(smaller, rest, steps) {
            return true;
        }
    }
    false
}

fn greatest_common_divisor(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
#[path = "footprint_tests.rs"]
mod tests;
