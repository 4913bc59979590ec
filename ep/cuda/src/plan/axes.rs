//! The axes that a kernel loops over. Axes of size 1 are removed, and neighbours that advance evenly in every operand are merged, so that
//! most calls have one or two.

use streamvm_ep::{Layout, MAX_RANK};

use crate::plan::abi::{Arguments, MAX_VIEWS};

/// One axis: its size and the stride of each operand, in elements.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) struct Axis<const N: usize> {
    pub(crate) size: usize,
    pub(crate) strides: [usize; N],
}

/// Axes of `N` operands, outermost first.
#[derive(Debug)]
pub(crate) struct Axes<const N: usize> {
    axes: [Axis<N>; MAX_RANK],
    rank: usize,
}

/// The order of the axes, outermost first.
#[derive(Copy, Clone, PartialEq)]
pub(crate) enum Order {
    /// Unchanged: the index of an element is its row-major one.
    Unchanged,
    /// By their strides in the first operand, largest first: in the order of its memory.
    ByStride,
}

impl<const N: usize> Axes<N> {
    /// Axes given as (size, stride of each operand), outermost first; at most [`MAX_RANK`] of them. If an axis has size 0, the result is
    /// one axis of size 0.
    pub(crate) fn new(order: Order, given: impl Iterator<Item = (usize, [usize; N])>) -> Axes<N> {
        let mut sorted = Axes { axes: [Axis { size: 1, strides: [0; N] }; MAX_RANK], rank: 0 };
        for (size, strides) in given {
            if size == 1 {
                continue;
            }
            if size == 0 {
                return Axes::single(0, [0; N]);
            }
            let mut place = sorted.rank;
            while order == Order::ByStride && place > 0 && sorted.axes[place - 1].strides[0] < strides[0] {
                sorted.axes[place] = sorted.axes[place - 1];
                place -= 1;
            }
            sorted.axes[place] = Axis { size, strides };
            sorted.rank += 1;
        }
        sorted.merged()
    }

    /// One axis.
    #[inline]
    pub(crate) fn single(size: usize, strides: [usize; N]) -> Axes<N> {
        let mut axes = [Axis { size: 1, strides: [0; N] }; MAX_RANK];
        axes[0] = Axis { size, strides };
        Axes { axes, rank: 1 }
    }

    fn merged(mut self) -> Axes<N> {
        let mut last = 0;
        for place in 1..self.rank {
            let (outer, inner) = (self.axes[last], self.axes[place]);
            if (0..N).all(|operand| outer.strides[operand] == inner.strides[operand] * inner.size) {
                self.axes[last] = Axis { size: outer.size * inner.size, strides: inner.strides };
            } else {
                last += 1;
                self.axes[last] = inner;
            }
        }
        self.rank = self.rank.min(last + 1);
        self
    }

    /// These axes, or one axis of one element if there are none.
    pub(crate) fn or_one(self) -> Axes<N> {
        if self.rank == 0 { Axes::single(1, [0; N]) } else { self }
    }

    /// The axes, outermost first.
    pub(crate) fn get(&self) -> &[Axis<N>] {
        &self.axes[..self.rank]
    }

    /// The innermost axis; one of one element if there is none.
    pub(crate) fn innermost(&self) -> Axis<N> {
        self.get().last().copied().unwrap_or(Axis { size: 1, strides: [0; N] })
    }

    /// The product of the sizes.
    pub(crate) fn elements(&self) -> usize {
        self.get().iter().map(|axis| axis.size).product()
    }

    /// Writes these as the outer axes. `views[i]` is the view of operand `i`.
    pub(crate) fn write_outer(&self, arguments: &mut Arguments, views: [usize; N]) {
        debug_assert!(views.iter().all(|&view| view < MAX_VIEWS));
        arguments.rank = self.rank as u32;
        arguments.elements = self.elements() as u64;
        for (place, axis) in self.get().iter().enumerate() {
            arguments.shape[place] = axis.size as i64;
            for (view, stride) in views.into_iter().zip(axis.strides) {
                arguments.views[view].strides[place] = stride as i64;
            }
        }
    }

    /// Writes these as the inner axes, after the outer ones.
    pub(crate) fn write_inner(&self, arguments: &mut Arguments, views: [usize; N]) {
        let outer = arguments.rank as usize;
        arguments.inner_rank = self.rank as u32;
        arguments.inner_elements = self.elements() as u64;
        for (place, axis) in self.get().iter().enumerate() {
            arguments.inner[place] = axis.size as i64;
            for (view, stride) in views.into_iter().zip(axis.strides) {
                arguments.views[view].strides[outer + place] = stride as i64;
            }
        }
    }
}

/// Stride of a view on axis `axis` of the shape of rank `rank` that it broadcasts to.
pub(crate) fn stride_to(layout: &Layout, axis: usize, rank: usize) -> usize {
    match (axis + layout.shape().rank()).checked_sub(rank) {
        Some(own) if layout.shape().dims()[own] != 1 => layout.strides()[own],
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes<const N: usize>(order: Order, given: &[(usize, [usize; N])]) -> Vec<(usize, [usize; N])> {
        let axes = Axes::new(order, given.iter().copied());
        axes.get().iter().map(|axis| (axis.size, axis.strides)).collect()
    }

    #[test]
    fn even_neighbours_are_one_axis() {
        assert_eq!(axes(Order::Unchanged, &[(2, [12, 12]), (3, [4, 4]), (4, [1, 1])]), [(24, [1, 1])]);
        // A vector added to each row: the rows are one axis.
        assert_eq!(axes(Order::Unchanged, &[(2, [12, 0]), (3, [4, 0]), (4, [1, 1])]), [(6, [4, 0]), (4, [1, 1])]);
        // A gap in one operand keeps two apart.
        assert_eq!(axes(Order::Unchanged, &[(3, [4, 5]), (4, [1, 1])]), [(3, [4, 5]), (4, [1, 1])]);
    }

    #[test]
    fn axes_of_one_element_are_gone_and_one_without_stays_alone() {
        assert_eq!(axes(Order::Unchanged, &[(1, [7]), (5, [2]), (1, [9])]), [(5, [2])]);
        assert_eq!(axes(Order::Unchanged, &[(1, [7])]), []);
        assert_eq!(axes::<1>(Order::ByStride, &[]), []);
        assert_eq!(axes(Order::Unchanged, &[(4, [9]), (0, [3]), (2, [1])]), [(0, [0])]);
    }

    #[test]
    fn the_order_of_memory_turns_a_permuted_view_into_one_axis() {
        let turned = [(4, [1, 1]), (2, [12, 12]), (3, [4, 4])];
        assert_eq!(axes(Order::ByStride, &turned), [(24, [1, 1])]);
        assert_eq!(axes(Order::Unchanged, &turned), [(4, [1, 1]), (6, [4, 4])]);
    }

    #[test]
    fn eight_axes_that_do_not_merge_stay_eight() {
        let given: Vec<(usize, [usize; 1])> = (0..8).rev().map(|axis| (2, [3usize.pow(axis)])).collect();
        assert_eq!(axes(Order::Unchanged, &given), given);
        assert_eq!(axes(Order::ByStride, &given), given);
    }
}
