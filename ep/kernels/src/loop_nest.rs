//! Loop nests: the order in which a kernel visits the elements of its operands.
//!
//! A [`LoopNest`] over `N` operands visits the same index in all of them:
//!
//! * Axes of size 1 are dropped.
//! * The other axes are sorted so that the first operand, which is written, is visited in the order of its memory.
//! * Neighbouring axes that advance evenly in every operand are merged.
//!
//! This leaves one innermost *row*, with a length and one stride per operand, and a counter over the outer axes. Contiguous operands of
//! one shape always become a single row.

use streamvm_ep::{Layout, MAX_RANK};

use crate::{lanes, parallel};

/// One axis: its size and the stride of each operand, in elements.
#[derive(Copy, Clone)]
pub(super) struct Axis<const N: usize> {
    pub(super) size: usize,
    pub(super) strides: [usize; N],
}

/// An order of visiting the elements of `N` operands; see the module.
#[derive(Clone)]
pub(super) struct LoopNest<const N: usize> {
    /// Outermost first.
    outer: [Axis<N>; MAX_RANK],
    outer_count: usize,
    row: Axis<N>,
}

impl<const N: usize> LoopNest<N> {
    /// A loop nest over the shape of the first layout, to which the others must broadcast; the caller has checked this.
    #[inline]
    pub(super) fn new(layouts: [&Layout; N]) -> LoopNest<N> {
        let shape = layouts[0].shape();
        if layouts.iter().all(|layout| layout.shape() == shape && layout.is_contiguous()) {
            return LoopNest::single(shape.elements(), [1; N]);
        }
        let rank = shape.rank();
        LoopNest::over(&mut (0..rank).map(|axis| {
            let strides = lanes::array(|operand| {
                let layout: &Layout = layouts[operand];
                let own = (axis + layout.shape().rank()).checked_sub(rank);
                match own {
                    Some(own) if layout.shape().dims()[own] != 1 => layout.strides()[own],
                    _ => 0,
                }
            });
            (shape.dims()[axis], strides)
        }))
    }

    /// A loop nest over axes given as (size, stride of each operand), outermost first; at most [`MAX_RANK`] axes. It is compiled once for each number of operands.
    pub(super) fn over(axes: &mut dyn Iterator<Item = (usize, [usize; N])>) -> LoopNest<N> {
        // The axes are sorted and merged where they stay.
        let mut nest = LoopNest::single(1, [1; N]);
        let sorted = &mut nest.outer;
        let mut count = 0;
        for (size, strides) in axes {
            if size == 0 {
                return LoopNest::single(0, [1; N]);
            }
            if size == 1 {
                continue;
            }
            let mut place = count;
            while place > 0 && sorted[place - 1].strides[0] < strides[0] {
                sorted[place] = sorted[place - 1];
                place -= 1;
            }
            sorted[place] = Axis { size, strides };
            count += 1;
        }
        if count > 0 {
            nest.merge(count);
        }
        nest
    }

    /// Merges the first `count` of the outer axes, at least one, and makes the innermost the row.
    #[inline(always)]
    fn merge(&mut self, count: usize) {
        self.row = self.outer[0];
        for place in 1..count {
            let axis = self.outer[place];
            let even = |operand: usize| self.row.strides[operand] == axis.strides[operand] * axis.size;
            if (0..N).all(even) {
                self.row.size *= axis.size;
                self.row.strides = axis.strides;
            } else {
                self.outer[self.outer_count] = self.row;
                self.outer_count += 1;
                self.row = axis;
            }
        }
    }

    fn single(size: usize, strides: [usize; N]) -> LoopNest<N> {
        let row = Axis { size, strides };
        LoopNest { outer: [row; MAX_RANK], outer_count: 0, row }
    }

    /// The number of elements of a row.
    #[inline]
    pub(super) fn row_length(&self) -> usize {
        self.row.size
    }

    /// The stride of each operand along a row, in elements.
    #[inline]
    pub(super) fn row_strides(&self) -> [usize; N] {
        self.row.strides
    }

    /// Calls `visit` for each row, or part of a row, with its offsets as [`rows`](LoopNest::rows) does and its length. Large nests are
    /// divided at the outermost axis, and several threads call `visit`; each index costs `work` [units](parallel).
    #[inline]
    pub(super) fn rows_in_parallel(&self, work: usize, visit: impl Fn([usize; N], usize) + Sync) {
        self.parts_in_parallel(work, &|part, start| {
            part.rows(|first| visit(lanes::array(|operand| start[operand] + first[operand]), part.row.size));
        });
    }

    /// Calls `part` with nests that together visit what this one does, and the offset of the first element of each in each operand. Large nests are divided at the
    /// outermost axis, and several threads call `part`; each index costs `work` [units](parallel).
    pub(super) fn parts_in_parallel(&self, work: usize, part: &(dyn Fn(&LoopNest<N>, [usize; N]) + Sync)) {
        let outer = self.outer[..self.outer_count].iter().map(|axis| axis.size).product::<usize>();
        if (outer * self.row.size).saturating_mul(work) < parallel::LARGE {
            return part(self, [0; N]);
        }
        let axis = if self.outer_count == 0 { self.row } else { self.outer[0] };
        let work_of_index = outer * self.row.size / axis.size * work;
        parallel::ranges(axis.size, work_of_index, |range| {
            let mut own = self.clone();
            match own.outer_count {
                0 => own.row.size = range.len(),
                _ => own.outer[0].size = range.len(),
            }
            part(&own, lanes::array(|operand| range.start * axis.strides[operand]));
        });
    }

    /// Calls `visit` for each row with the offset of its first element in each operand, in elements from the operand's first. Makes no
    /// call if there are no elements.
    #[inline]
    pub(super) fn rows(&self, mut visit: impl FnMut([usize; N])) {
        if self.outer_count == 0 {
            if self.row.size > 0 {
                visit([0; N]);
            }
            return;
        }
        self.planes(&mut |mut first, axis| {
            for _ in 0..axis.size {
                visit(first);
                first = lanes::array(|operand| first[operand] + axis.strides[operand]);
            }
        });
    }

    /// Calls `visit` for each plane, which is the rows along the innermost of the outer axes: with the offset of the first element in each operand, and that axis. Makes no call if
    /// there are no elements. It is compiled once for each number of operands, and rows can be short, so that axis is left to `visit`.
    pub(super) fn planes(&self, visit: &mut dyn FnMut([usize; N], Axis<N>)) {
        if self.row.size == 0 {
            return;
        }
        let (last, others) = match self.outer[..self.outer_count].split_last() {
            Some((last, others)) => (*last, others),
            None => (Axis { size: 1, strides: [0; N] }, &[][..]),
        };
        let mut offsets = [0; N];
        let mut index = [0; MAX_RANK];
        loop {
            visit(offsets, last);
            // Increments the index of the other axes, innermost first; an axis that overflows restarts at 0.
            let mut place = others.len();
            loop {
                if place == 0 {
                    return;
                }
                place -= 1;
                let axis = &others[place];
                index[place] += 1;
                if index[place] < axis.size {
                    for (offset, stride) in offsets.iter_mut().zip(axis.strides) {
                        *offset += stride;
                    }
                    break;
                }
                index[place] = 0;
                for (offset, stride) in offsets.iter_mut().zip(axis.strides) {
                    *offset -= stride * (axis.size - 1);
                }
            }
        }
    }
}

impl LoopNest<2> {
    /// The outer axis along which operand 1 is contiguous, and a nest over the other outer axes, if operand 0 is contiguous along the rows
    /// and operand 1 is not, and both axes have at least `least` elements.
    pub(super) fn transposed(&self, least: usize) -> Option<(LoopNest<2>, Axis<2>)> {
        if self.row.strides[0] != 1 || self.row.strides[1] == 1 || self.row.size < least {
            return None;
        }
        let outer = &self.outer[..self.outer_count];
        let along = outer.iter().position(|axis| axis.strides[1] == 1 && axis.size >= least)?;
        let others = outer.iter().enumerate().filter(|(place, _)| *place != along);
        Some((LoopNest::over(&mut others.map(|(_, axis)| (axis.size, axis.strides))), outer[along]))
    }
}

#[cfg(test)]
mod tests {
    use streamvm_ep::Shape;

    use super::*;

    fn contiguous(dims: &[usize]) -> Layout {
        Layout::contiguous(Shape::new(dims).unwrap())
    }

    fn offsets<const N: usize>(nest: &LoopNest<N>) -> Vec<[usize; N]> {
        let mut found = Vec::new();
        nest.rows(|row| {
            for i in 0..nest.row_length() {
                found.push(lanes::array(|k| row[k] + i * nest.row_strides()[k]));
            }
        });
        found
    }

    #[test]
    fn contiguous_operands_are_one_row() {
        let layout = contiguous(&[2, 3, 4]);
        let nest = LoopNest::new([&layout, &layout]);
        assert_eq!((nest.row_length(), nest.row_strides()), (24, [1, 1]));
        assert_eq!(nest.outer_count, 0);
    }

    #[test]
    fn a_permuted_view_of_all_operands_is_one_row() {
        let layout = contiguous(&[2, 3, 4]).permute(&[2, 0, 1]).unwrap();
        let nest = LoopNest::new([&layout, &layout]);
        assert_eq!((nest.row_length(), nest.outer_count), (24, 0));
    }

    #[test]
    fn a_broadcast_row_keeps_one_outer_axis() {
        let nest = LoopNest::new([&contiguous(&[2, 3, 4]), &contiguous(&[4])]);
        assert_eq!((nest.row_length(), nest.row_strides()), (4, [1, 1]));
        assert_eq!((nest.outer_count, nest.outer[0].size), (1, 6));
    }

    #[test]
    fn every_index_is_visited_once() {
        let out = contiguous(&[2, 1, 3]);
        let turned = contiguous(&[3, 2]).permute(&[1, 0]).unwrap();
        let turned = turned.reshape(Shape::new(&[2, 1, 3]).unwrap());
        let turned = turned.unwrap().unwrap();
        let nest = LoopNest::new([&out, &turned, &contiguous(&[3])]);
        assert_eq!(offsets(&nest), [[0, 0, 0], [1, 2, 1], [2, 4, 2], [3, 1, 0], [4, 3, 1], [5, 5, 2]]);
    }

    #[test]
    fn scalars_have_one_element_and_empty_shapes_none() {
        assert_eq!(offsets(&LoopNest::new([&contiguous(&[])])), [[0]]);
        assert_eq!(offsets(&LoopNest::new([&contiguous(&[1, 1])])), [[0]]);
        assert!(offsets(&LoopNest::new([&contiguous(&[2, 0])])).is_empty());
        let broadcast = LoopNest::new([&contiguous(&[2, 0]), &contiguous(&[2, 1])]);
        assert!(offsets(&broadcast).is_empty());
    }
}
