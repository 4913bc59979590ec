"""Shapes and the order of elements."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, cast

from . import _core
from ._core import Tensor

Axes = int | Sequence[int]


def _listed(axes: Axes) -> list[int]:
    """One axis or several, as a list."""
    if hasattr(axes, "__index__"):
        return [operator.index(cast(SupportsIndex, axes))]
    return [operator.index(axis) for axis in cast(Any, axes)]


def _place(axis: int, rank: int) -> int:
    """The axis, counted from the first one."""
    if not -rank <= axis < rank:
        raise IndexError(f"axis {axis} is out of range for {rank} axes")
    return axis % rank if rank else axis


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape to which all of these broadcast."""
    rank = max((len(shape) for shape in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if size != 1 and result[axis] not in (1, size):
                raise ValueError(f"shapes {', '.join(map(str, shapes))} do not broadcast")
            result[axis] = size if size != 1 else result[axis]
    return tuple(result)


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """Views of all tensors in the shape to which they broadcast."""
    shape = list(broadcast_shapes(*(array.shape for array in arrays)))
    return [array._broadcast_to(shape) for array in arrays]


def broadcast_to(x: Tensor, /, shape: Sequence[int]) -> Tensor:
    """A view in which axes of size 1 are repeated, and new ones come before the first."""
    if any(size < 0 for size in shape):
        raise ValueError(f"shape {tuple(shape)} has a negative size")
    return x._broadcast_to(list(shape))


def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """Tensors one after the other along an axis; without an axis, all of their elements in one row. The dtypes are promoted."""
    if not arrays:
        raise ValueError("there is no tensor to concatenate")
    dtype = _core.result_type(*(array.dtype for array in arrays))
    same = [array if array.dtype == dtype else array._cast(dtype) for array in arrays]
    if axis is None:
        return _core.concat([array._reshape([array.size]) for array in same], 0)
    return _core.concat(same, _place(axis, same[0].ndim))


def expand_dims(x: Tensor, /, *, axis: int = 0) -> Tensor:
    """A view with a new axis of size 1 at that place of the result."""
    place = _place(axis, x.ndim + 1)
    return x[(*(slice(None),) * place, None)]


def flip(x: Tensor, /, *, axis: Axes | None = None) -> Tensor:
    """The elements in the opposite order along some axes, or all. A copy."""
    return x._flip(axis)


def moveaxis(x: Tensor, source: Axes, destination: Axes, /) -> Tensor:
    """A view with axes moved to other places; the others keep their order."""
    sources, destinations = _listed(source), _listed(destination)
    if len(sources) != len(destinations):
        raise ValueError(f"{len(sources)} axes cannot move to {len(destinations)} places")
    sources = [_place(axis, x.ndim) for axis in sources]
    destinations = [_place(axis, x.ndim) for axis in destinations]
    if len({*sources}) != len(sources) or len({*destinations}) != len(destinations):
        raise ValueError("an axis is named twice")
    order = [axis for axis in range(x.ndim) if axis not in sources]
    for place, axis in sorted(zip(destinations, sources)):
        order.insert(place, axis)
    return x._permute(order)


def permute_dims(x: Tensor, /, axes: Sequence[int]) -> Tensor:
    """A view with the axes in another order."""
    return x._permute(list(axes))


def repeat(x: Tensor, repeats: int, /, *, axis: int | None = None) -> Tensor:
    """Each element several times in a row along an axis; without an axis, of all elements in one row."""
    if axis is None:
        x, axis = x._reshape([x.size]), 0
    if repeats < 0:
        raise ValueError(f"elements cannot be repeated {repeats} times")
    place = _place(axis, x.ndim)
    if repeats == 1:
        return x._copy()
    shape = list(x.shape)
    shape.insert(place + 1, repeats)
    shape_after = [*x.shape[:place], x.shape[place] * repeats, *x.shape[place + 1 :]]
    return expand_dims(x, axis=place + 1)._broadcast_to(shape)._reshape(shape_after)


def reshape(x: Tensor, /, shape: Axes, *, copy: bool | None = None) -> Tensor:
    """The elements in another shape, in the order of rows: a view where one is possible. One size may be -1: what the others leave.

    `copy=True` always copies; `copy=False` raises ValueError where there is no view.
    """
    sizes = _listed(shape)
    if sizes.count(-1) > 1 or any(size < -1 for size in sizes):
        raise ValueError(f"a shape has sizes from 0 on and at most one -1, and this is {tuple(sizes)}")
    if -1 in sizes:
        rest = math.prod(size for size in sizes if size != -1)
        if rest == 0 or x.size % rest:
            raise ValueError(f"{x.size} elements do not fit the shape {tuple(sizes)}")
        sizes[sizes.index(-1)] = x.size // rest
    view = x._try_reshape(sizes)
    if view is None:
        if copy is False:
            raise ValueError("there is no view in this shape; leave `copy` out for a copy")
        return x._reshape(sizes)
    return view._copy() if copy else view


def roll(x: Tensor, /, shift: int | Sequence[int], *, axis: Axes | None = None) -> Tensor:
    """The elements moved along axes; what leaves at one end comes in at the other. Without an axis, in one row."""
    if axis is None:
        if not hasattr(shift, "__index__"):
            raise TypeError("several shifts need an axis each")
        return (
            x._reshape([x.size])._roll(operator.index(cast(SupportsIndex, shift)), 0)._reshape(list(x.shape))
            if x.size
            else x._copy()
        )
    axes = _listed(axis)
    shifts = _listed(shift)
    shifts = shifts * len(axes) if len(shifts) == 1 else shifts
    if len(shifts) != len(axes):
        raise ValueError(f"there are {len(shifts)} shifts for {len(axes)} axes")
    result = x
    for by, one in zip(shifts, axes):
        place = _place(one, x.ndim)
        result = result._roll(by, place) if x.shape[place] else result
    return result._copy() if result is x else result


def squeeze(x: Tensor, /, axis: Axes) -> Tensor:
    """A view without some axes of size 1."""
    axes = [_place(one, x.ndim) for one in _listed(axis)]
    for one in axes:
        if x.shape[one] != 1:
            raise ValueError(f"axis {one} has {x.shape[one]} elements, and only axes of size 1 can go")
    key: list[SupportsIndex | slice] = [0 if one in axes else slice(None) for one in range(x.ndim)]
    return x[tuple(key)]


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Tensors of one shape on a new axis. The dtypes are promoted."""
    if not arrays:
        raise ValueError("there is no tensor to stack")
    dtype = _core.result_type(*(array.dtype for array in arrays))
    same = [array if array.dtype == dtype else array._cast(dtype) for array in arrays]
    return _core.stack(same, _place(axis, same[0].ndim + 1))


def tile(x: Tensor, repetitions: Sequence[int], /) -> Tensor:
    """The tensor several times along each axis; new axes come before the first."""
    counts = list(repetitions)
    if any(count < 0 for count in counts):
        raise ValueError(f"a tensor cannot be repeated {tuple(counts)} times")
    rank = max(len(counts), x.ndim)
    counts = [1] * (rank - len(counts)) + counts
    return x._reshape([1] * (rank - x.ndim) + list(x.shape))._repeat(counts)


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Views of the parts along an axis, without the axis."""
    place = _place(axis, x.ndim)
    before = (slice(None),) * place
    return tuple(x[(*before, part)] for part in range(x.shape[place]))
