"""Order, and elements by their indices."""

from __future__ import annotations

from . import _core
from ._core import Tensor
from ._dtypes import isdtype
from ._elementwise import _check
from ._manipulation import _place


def argsort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The indices along an axis of its elements in order, as int64. Equal elements keep their order. NaN comes after all numbers, or before them if descending."""
    _check("argsort", x, "numeric")
    return x._along("argsort", axis, descending)


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The elements in order along an axis. NaN comes after all numbers, or before them if descending."""
    _check("sort", x, "numeric")
    return x._take_along_axis(x._along("argsort", axis, descending), axis)


def _indices(indices: Tensor, size: int) -> Tensor:
    """Indices that count from the first element, in a dtype that the engine takes."""
    if not isdtype(indices.dtype, "integral"):
        raise TypeError(f"indices are integers, and these have the dtype {indices.dtype}")
    if isdtype(indices.dtype, "unsigned integer"):
        return indices if indices.dtype == _core.uint8 else indices._cast(_core.int64)
    wide = indices if indices.dtype == _core.int64 else indices._cast(_core.int64)
    below = wide._binary("lt", 0)
    return below._where(wide._binary("add", size), wide)


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """The elements along an axis at these indices, which may be negative. An index that is out of range fails the operation."""
    if axis is None:
        if x.ndim != 1:
            raise ValueError(f"take of a tensor with {x.ndim} axes needs an axis")
        axis = 0
    place = _place(axis, x.ndim)
    return x._take(_indices(indices, x.shape[place]), place)


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """For each index the element at that place of the axis, and at the place of the index on the other axes."""
    place = _place(axis, x.ndim)
    return x._take_along_axis(_indices(indices, x.shape[place]), place)
