"""Numbers over axes, and whether elements are true."""

from __future__ import annotations

import math
from typing import Any

from . import _core
from ._core import DType, Tensor
from ._dtypes import isdtype
from ._elementwise import _check
from ._manipulation import Axes, _listed, _place


def _axes(axis: Axes | None) -> Any:
    return None if axis is None else _listed(axis)


def _wide(x: Tensor, dtype: Any) -> Tensor:
    """The tensor in the dtype of its sum or product: integers of 64 bits, floats as they are."""
    wanted: DType = x.dtype
    if dtype is not None:
        wanted = _core.result_type(dtype)
    elif isdtype(x.dtype, "signed integer"):
        wanted = _core.int64
    elif isdtype(x.dtype, "unsigned integer"):
        wanted = _core.uint64
    return x if x.dtype == wanted else x._cast(wanted)


def sum(x: Tensor, /, *, axis: Axes | None = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The sum over axes, or all; of no elements 0. Integers are added up in 64 bits, and wrap."""
    _check("sum", x, "numeric")
    return _wide(x, dtype)._reduce("sum", _axes(axis), keepdims)


def prod(x: Tensor, /, *, axis: Axes | None = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The product over axes, or all; of no elements 1. Integers are multiplied in 64 bits, and wrap."""
    _check("prod", x, "numeric")
    return _wide(x, dtype)._reduce("prod", _axes(axis), keepdims)


def max(x: Tensor, /, *, axis: Axes | None = None, keepdims: bool = False) -> Tensor:
    """The largest element over axes, or all; NaN if one is. There must be elements."""
    _check("max", x, "numeric")
    return x._reduce("reduce_max", _axes(axis), keepdims)


def min(x: Tensor, /, *, axis: Axes | None = None, keepdims: bool = False) -> Tensor:
    """The smallest element over axes, or all; NaN if one is. There must be elements."""
    _check("min", x, "numeric")
    return x._reduce("reduce_min", _axes(axis), keepdims)


def mean(x: Tensor, /, *, axis: Axes | None = None, keepdims: bool = False) -> Tensor:
    """The mean over axes, or all, for real floating dtypes."""
    _check("mean", x, "real floating")
    return x._reduce("mean", _axes(axis), keepdims)


def _count(x: Tensor, axis: Axes | None) -> int:
    axes = range(x.ndim) if axis is None else _listed(axis)
    return math.prod(x.shape[_place(one, x.ndim)] for one in axes)


def var(x: Tensor, /, *, axis: Axes | None = None, correction: int | float = 0.0, keepdims: bool = False) -> Tensor:
    """The variance over axes, or all: the sum of the squares of the differences to the mean, by the number of elements less `correction`. For real floating dtypes."""
    _check("var", x, "real floating")
    variance = x._reduce("var", _axes(axis), keepdims)
    if correction == 0:
        return variance
    count = _count(x, axis)
    by = float("inf") if count <= correction else count / (count - correction)
    return variance._binary("mul", by)


def std(x: Tensor, /, *, axis: Axes | None = None, correction: int | float = 0.0, keepdims: bool = False) -> Tensor:
    """The standard deviation over axes, or all: the square root of `var`."""
    _check("std", x, "real floating")
    if correction == 0:
        return x._reduce("std", _axes(axis), keepdims)
    return var(x, axis=axis, correction=correction, keepdims=keepdims)._unary("sqrt")


def _truth(x: Tensor) -> Tensor:
    return x if x.dtype == _core.bool else x._binary("ne", 0)


def all(x: Tensor, /, *, axis: Axes | None = None, keepdims: bool = False) -> Tensor:
    """Whether all elements over axes, or all, are true or not 0; of no elements true."""
    return _truth(x)._reduce("all", _axes(axis), keepdims)


def any(x: Tensor, /, *, axis: Axes | None = None, keepdims: bool = False) -> Tensor:
    """Whether an element over axes, or all, is true or not 0; of no elements false."""
    return _truth(x)._reduce("any", _axes(axis), keepdims)


def count_nonzero(x: Tensor, /, *, axis: Axes | None = None, keepdims: bool = False) -> Tensor:
    """How many elements over axes, or all, are true or not 0, as int64."""
    return _truth(x)._cast(_core.int64)._reduce("sum", _axes(axis), keepdims)


def diff(
    x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """The differences of neighbours along an axis, `n` times over; with other tensors before and after. For numeric dtypes."""
    _check("diff", x, "numeric")
    place = _place(axis, x.ndim)
    parts = [part for part in (prepend, x, append) if part is not None]
    if n < 0:
        raise ValueError(f"diff cannot be taken {n} times")
    result = _core.concat(parts, place) if len(parts) > 1 else x
    before = (slice(None),) * place
    for _ in range(n):
        result = result[(*before, slice(1, None))] - result[(*before, slice(None, -1))]
    return result._copy() if n == 0 else result


def cumulative_sum(
    x: Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """The sum of all elements up to each place of an axis; with `include_initial`, a 0 before them. Integers are added up in 64 bits, and wrap."""
    _check("cumulative_sum", x, "numeric")
    if axis is None:
        if x.ndim != 1:
            raise ValueError(f"cumulative_sum of a tensor with {x.ndim} axes needs an axis")
        axis = 0
    place = _place(axis, x.ndim)
    wide = _wide(x, dtype)
    sums = wide._along("cumsum", place) if x.size else wide._copy()
    if not include_initial:
        return sums
    if not x.shape[place]:
        shape = [1 if one == place else size for one, size in enumerate(x.shape)]
        return x._vm._full(shape, 0, wide.dtype, x.device)
    first = sums[(*(slice(None),) * place, slice(0, 1))]
    return _core.concat([first._filled(0), sums], place)


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the first largest element along an axis, as int64; without an axis, among all elements in one row. A NaN counts as the largest."""
    return _arg("argmax", x, axis, keepdims)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the first smallest element along an axis, as int64; without an axis, among all elements in one row. A NaN counts as the smallest."""
    return _arg("argmin", x, axis, keepdims)


def _arg(op: str, x: Tensor, axis: int | None, keepdims: bool) -> Tensor:
    _check(op, x, "numeric")
    if axis is None:
        found = x._reshape([x.size])._along(op, 0)
        return found._reshape([1] * x.ndim) if keepdims else found
    if x.ndim == 0:
        raise IndexError(f"axis {axis} is out of range for 0 axes")
    place = _place(axis, x.ndim)
    found = x._along(op, place)
    shape = [1 if one == place else size for one, size in enumerate(x.shape)]
    return found._reshape(shape) if keepdims else found
