//! Views: other shapes and parts of the same storage. The reshape of a view with gaps copies, and so do `tile` and `roll`; `sort` and `topk` run ops.

use crate::base::engine::{InstructionsBuilder, Shape, Tensor};
use crate::emit::Scope;
use crate::syntax::ast::{Size, SliceSpec, View};
use crate::syntax::diagnostic::Diagnostic;
use crate::syntax::source::{Span, Spanned};

/// Applies a view. `span` is the whole expression.
pub(super) fn apply(
    builder: &mut InstructionsBuilder,
    tensor: &Tensor,
    view: &View,
    scope: &Scope,
    span: Span,
) -> Result<Tensor, Diagnostic> {
    let shape = tensor.shape();
    match view {
        View::Reshape(sizes) => {
            let dims = inferred(&shape, &scope.numbers(sizes)?, span)?;
            let reshape = |tensor: &Tensor| {
                tensor.try_reshape(&dims).map_err(|error| Diagnostic::new(span, error.without_call()))
            };
            if let Some(view) = reshape(tensor)? {
                return Ok(view);
            }
            let copy =
                builder.copy(tensor, tensor.place()).map_err(|error| Diagnostic::new(span, error.without_call()))?;
            // A copy has no gaps, so its reshape is a view.
            reshape(&copy)?.ok_or_else(|| Diagnostic::new(span, "this reshape needs a copy without gaps"))
        }
        View::Broadcast(sizes) => {
            let dims: Vec<usize> = scope.numbers(sizes)?.iter().map(size).collect::<Result<_, _>>()?;
            tensor.broadcast_to(&dims).map_err(|error| Diagnostic::new(span, error.without_call()))
        }
        View::Permute(axes) => {
            let axes: Vec<usize> =
                axes.iter().map(|at| axis("permute", &shape, at.value, at.span)).collect::<Result<_, _>>()?;
            tensor.permute(&axes).map_err(|error| Diagnostic::new(span, error.without_call()))
        }
        View::Slice(slices) => slice(tensor, slices, scope),
        View::Tile(counts) => {
            let counts: Vec<usize> = scope.numbers(counts)?.iter().map(size).collect::<Result<_, _>>()?;
            builder.repeat(tensor, &counts).map_err(|error| Diagnostic::new(span, error.without_call()))
        }
        View::Roll { shift, axis: at } => {
            let axis = axis("roll", &shape, at.value, at.span)?;
            builder.roll(tensor, *shift, axis).map_err(|error| Diagnostic::new(span, error.without_call()))
        }
        View::Sort { axis: at, descending } => {
            let axis = axis("sort", &shape, at.value, at.span)?;
            builder.sort(tensor, axis, *descending).map_err(|error| Diagnostic::new(span, error.without_call()))
        }
        View::Top { count, axis: at, largest } => {
            let axis = axis("topk", &shape, at.value, at.span)?;
            let found = builder.topk(tensor, *count, axis, *largest);
            found.map(|(elements, _)| elements).map_err(|error| Diagnostic::new(span, error.without_call()))
        }
    }
}

/// The part of a tensor that the ranges select.
pub(super) fn slice(tensor: &Tensor, slices: &[SliceSpec], scope: &Scope) -> Result<Tensor, Diagnostic> {
    let mut part = tensor.clone();
    for spec in slices {
        let shape = part.shape();
        let axis = axis("slice", &shape, spec.axis, spec.span)?;
        let index = |size: &Size| {
            let number = scope.number(size, spec.span)?;
            usize::try_from(number).map_err(|_| Diagnostic::new(spec.span, "the index does not fit memory"))
        };
        let start = spec.start.as_ref().map_or(Ok(0), index)?;
        let end = spec.end.as_ref().map_or(Ok(shape.dims()[axis]), index)?;
        part = part.slice(axis, start..end).map_err(|error| Diagnostic::new(spec.span, error.without_call()))?;
    }
    Ok(part)
}

/// An axis of a shape, for the function `what`; a negative one counts from the end.
pub(super) fn axis(what: &str, shape: &Shape, axis: i64, span: Span) -> Result<usize, Diagnostic> {
    let rank = shape.rank() as i64; // at most 8
    let from_start = if axis < 0 { axis.saturating_add(rank) } else { axis };
    usize::try_from(from_start).ok().filter(|at| *at < shape.rank()).ok_or_else(|| {
        Diagnostic::new(span, format!("{what}: there is no axis {axis} in shape {shape}, which has {rank} axes"))
    })
}

/// The place of a new axis in a shape, which may come after the last one; a negative one counts from the end of the new shape.
pub(super) fn new_axis(what: &str, shape: &Shape, axis: i64, span: Span) -> Result<usize, Diagnostic> {
    let axes = shape.rank() as i64 + 1; // at most 9
    let from_start = if axis < 0 { axis.saturating_add(axes) } else { axis };
    usize::try_from(from_start).ok().filter(|at| *at <= shape.rank()).ok_or_else(|| {
        let text =
            format!("{what}: {axis} is no place for a new axis in shape {shape}: its places are 0 to {}", shape.rank());
        Diagnostic::new(span, text)
    })
}

fn size(size: &Spanned<i64>) -> Result<usize, Diagnostic> {
    usize::try_from(size.value)
        .map_err(|_| Diagnostic::new(size.span, format!("a size is zero or more, found {}", size.value)))
}

/// The sizes of a reshape, in which one -1 stands for the size that keeps the number of elements.
fn inferred(shape: &Shape, sizes: &[Spanned<i64>], span: Span) -> Result<Vec<usize>, Diagnostic> {
    let mut open = None;
    let mut dims = Vec::with_capacity(sizes.len());
    for (index, found) in sizes.iter().enumerate() {
        if found.value != -1 {
            dims.push(size(found)?);
        } else if open.replace(index).is_none() {
            dims.push(1);
        } else {
            return Err(Diagnostic::new(found.span, "only one size can be -1"));
        }
    }
    if let Some(index) = open {
        let known = Shape::new(&dims).map_err(|error| Diagnostic::new(span, error.to_string()))?.elements();
        let elements = shape.elements();
        if known == 0 || !elements.is_multiple_of(known) {
            return Err(Diagnostic::new(
                span,
                format!("shape {shape} has {elements} elements, which are no multiple of {known}"),
            ));
        }
        dims[index] = elements / known;
    }
    Ok(dims)
}
