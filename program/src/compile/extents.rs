//! Extents: which bytes of a value one or several views use, exactly where they have gaps.

use std::ops::Range;

use streamvm_ep::{Access, Footprint, Layout, Shape};

use crate::ir::program::{Operand, Program};

/// The bytes of a value that a view uses, counted from the first of the value: all bytes, if its place or size depends on the sizes of the run.
pub(super) fn of(program: &Program, operand: &Operand) -> Footprint {
    if program.is_any_part(operand) {
        return dense(0..program.value(operand.value).bytes());
    }
    Footprint::scaled(&operand.layout, 0, program.value(operand.value).dtype.size())
}

/// All bytes of a range.
pub(super) fn dense(bytes: Range<usize>) -> Footprint {
    match Shape::new(&[bytes.len()]) {
        Ok(shape) => Footprint::scaled(&Layout::contiguous(shape), bytes.start, 1),
        Err(_) => Footprint::all(),
    }
}

/// Whether it is all bytes from its first to its last.
pub(super) fn is_dense(extent: &Footprint) -> bool {
    extent.covers(&dense(extent.span()))
}

/// The smallest extent that has both and can be declared: one view, or all bytes of a range.
pub(super) fn joined(one: &Footprint, other: &Footprint) -> Footprint {
    if one.covers(other) {
        return one.clone();
    }
    if other.covers(one) {
        return other.clone();
    }
    let (one, other) = (one.span(), other.span());
    dense(one.start.min(other.start)..one.end.max(other.end))
}

/// A view of the same elements, each once, where a view repeats them along an axis: an instruction that writes them declares no other.
pub(super) fn without_repeats(layout: &Layout) -> Layout {
    let axes = layout.shape().dims().iter().zip(layout.strides()).filter(|(_, stride)| **stride > 0);
    let (dims, strides): (Vec<usize>, Vec<usize>) = axes.map(|(size, stride)| (*size, *stride)).unzip();
    let shape = Shape::new(&dims).ok();
    shape.and_then(|shape| Layout::with_strides(shape, &strides, layout.offset()).ok()).unwrap_or(*layout)
}

/// What an instruction declares if it does both: reads or writes all bytes that either uses.
pub(super) fn both(one: Access, other: Access) -> Access {
    if one == other { one } else { Access::ReadWrite }
}

/// Whether an instruction that does both declares no more than two instructions that do one each: no further bytes, and no write of bytes that
/// are only read.
pub(super) fn join_exactly(one: (Access, &Footprint), other: (Access, &Footprint)) -> bool {
    let ((one_access, one), (other_access, other)) = (one, other);
    if one.covers(other) {
        return one_access.writes() || !other_access.writes() || one == other;
    }
    if other.covers(one) {
        return other_access.writes() || !one_access.writes();
    }
    let touches = one.span().start <= other.span().end && other.span().start <= one.span().end;
    is_dense(one) && is_dense(other) && touches && one_access.writes() == other_access.writes()
}
