//! The launch of a fused kernel over given views. Allocates nothing.

use streamvm_ep::backend::FusedView;
use streamvm_ep::{Error, FusedGroup, MAX_RANK, MOST_FUSED_VIEWS, Operand};

use crate::fused::arguments::FusedArguments;
use crate::plan::abi::View;
use crate::plan::axes::{Axes, Order, stride_to};
use crate::plan::{BLOCK, FOUR, MAX_BLOCKS};

/// One launch of a fused kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FusedLaunch {
    /// Blocks; at most 2^16.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// The parameter.
    pub arguments: FusedArguments,
}

/// The launch over the views of `group`; `None` if they have no elements. Reads no element and does not block.
///
/// # Errors
///
/// [`Error::FusedViews`], as for [`Graphs::launch_fused`](streamvm_ep::Graphs::launch_fused).
pub fn plan_fused(group: &FusedGroup, views: &[Operand]) -> Result<Option<FusedLaunch>, Error> {
    plan_views(&group.views, views)
}

/// [`plan_fused`] for a group with these views.
pub(crate) fn plan_views(described: &[FusedView], views: &[Operand]) -> Result<Option<FusedLaunch>, Error> {
    check(described, views)?;
    let Some(first) = views.first() else { return Ok(None) };
    let elements = first.layout().elements();
    if elements == 0 {
        return Ok(None);
    }
    let axes = axes(described, views, elements);
    let mut arguments = FusedArguments {
        shape: [1; MAX_RANK],
        elements: elements as u64,
        rank: axes.get().len() as u32,
        vectors: 0,
        views: [View { base: 0, strides: [0; MAX_RANK] }; MOST_FUSED_VIEWS],
    };
    for (place, axis) in axes.get().iter().enumerate() {
        arguments.shape[place] = axis.size as i64;
        for (view, &stride) in arguments.views.iter_mut().zip(&axis.strides[1..]) {
            view.strides[place] = stride as i64;
        }
    }
    let row = axes.innermost();
    let mut even = true;
    for (place, (view, operand)) in arguments.views.iter_mut().zip(views).enumerate() {
        view.base = operand.ptr().addr() as u64;
        let aligned = operand.ptr().addr().is_multiple_of((FOUR * operand.dtype().size()).min(16));
        even &= match row.strides[place + 1] {
            0 => described[place].written.is_none(),
            1 => aligned,
            _ => false,
        };
    }
    let vectors = axes.get().len() == 1 && elements >= FOUR && even;
    arguments.vectors = vectors.into();
    let threads = if vectors { elements.div_ceil(FOUR) } else { elements };
    let blocks = threads.div_ceil(BLOCK as usize).clamp(1, MAX_BLOCKS) as u32;
    Ok(Some(FusedLaunch { blocks, threads: BLOCK, arguments }))
}

/// The axes that the kernel walks. Stride `1 + view` is that of a view; stride 0 is that of the first written one, in whose order of memory it walks.
fn axes(described: &[FusedView], views: &[Operand], elements: usize) -> Axes<{ MOST_FUSED_VIEWS + 1 }> {
    if views.iter().all(|operand| operand.layout().is_contiguous()) {
        return Axes::single(elements, std::array::from_fn(|place| usize::from(place <= views.len())));
    }
    let shape = views[0].layout().shape();
    let leading = described.iter().position(|view| view.written.is_some()).unwrap_or(0);
    let axis = |axis: usize| {
        let stride = |place: usize| {
            let view = if place == 0 { leading } else { place - 1 };
            views.get(view).map_or(0, |view| stride_to(view.layout(), axis, shape.rank()))
        };
        (shape.dims()[axis], std::array::from_fn(stride))
    };
    Axes::new(Order::ByStride, (0..shape.rank()).map(axis)).or_one()
}

/// Checks that the views are those of the group.
fn check(described: &[FusedView], views: &[Operand]) -> Result<(), Error> {
    let refused = |what: String| Err(Error::FusedViews(what));
    if described.len() != views.len() {
        return refused(format!("it has {} views, and {} were given", described.len(), views.len()));
    }
    let Some(shape) = views.first().map(|view| view.layout().shape()) else { return Ok(()) };
    for (number, (view, operand)) in described.iter().zip(views).enumerate() {
        let size = view.read.or(view.written.map(|(dtype, _)| dtype)).map_or(0, |dtype| dtype.size());
        let fits = |allowed: bool, used: bool| allowed || !used;
        if operand.dtype().size() != size {
            return refused(format!("the elements of view {number} have {size} bytes, not {}", operand.dtype().size()));
        }
        if !fits(operand.access().writes(), view.written.is_some())
            || !fits(operand.access().reads(), view.read.is_some())
        {
            return refused(format!("view {number} was declared as {:?}", operand.access()));
        }
        if operand.layout().shape() != shape {
            return refused(format!("view {number} is {}, and the first one {shape}", operand.layout().shape()));
        }
        if !operand.is_aligned() {
            return refused(format!("view {number} is not at a multiple of {size} bytes"));
        }
        if view.written.is_some() {
            if operand.layout().overlaps_itself() {
                return refused(format!("view {number} is written, and reaches elements more than once"));
            }
            let others = views.iter().enumerate().filter(|(other, _)| *other != number);
            if let Some((other, _)) = others.into_iter().find(|(_, other)| operand.overlaps(other)) {
                return refused(format!("view {number} is written and shares bytes with view {other}"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
