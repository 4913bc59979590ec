"""Keys in brackets that have a tensor, and what is written by keys. Keys without tensors are views, which the Rust part makes."""

from __future__ import annotations

from typing import Any

import numpy

from . import _core
from ._core import Tensor
from ._creation import arange, asarray, full
from ._dtypes import isdtype
from ._engine import use
from ._sorting import take

_NOT_WRITTEN = "tensors and numbers are written, and no {}; make a tensor of it first, by asarray"


def _places(mask: Tensor) -> Tensor:
    """The places where a mask is true, counted in the order of rows. Waits for the mask: the shape of the result depends on it."""
    places = numpy.flatnonzero(mask.numpy())
    with use(mask._vm):
        return asarray(places, device=mask.device)


def _split(x: Tensor, key: Any) -> tuple[int, Tensor]:
    """The axis of the only tensor of a key, and that tensor; the other parts name all of their axes."""
    parts = list(key) if isinstance(key, tuple) else [key]
    arrays = [part for part in parts if isinstance(part, (Tensor, bool))]
    others = [part for part in parts if not isinstance(part, (Tensor, bool))]
    if (
        len(arrays) != 1
        or not isinstance(arrays[0], Tensor)
        or any(part is not Ellipsis and part != slice(None) for part in others)
    ):
        raise IndexError(
            "a key has one tensor, and beside it whole axes alone; index by the other parts first, as in x[1][mask]"
        )
    axis = next(place for place, part in enumerate(parts) if isinstance(part, Tensor))
    rests = sum(part is Ellipsis for part in others)
    taken = arrays[0].ndim if arrays[0].dtype == _core.bool else 1
    named = taken + len(others) - rests
    if rests > 1:
        raise IndexError("a key has ... at most once")
    if named > x.ndim:
        raise IndexError(f"the key names {named} axes, and the tensor has {x.ndim}")
    if any(part is Ellipsis for part in parts[:axis]):
        axis = x.ndim - taken - (len(parts) - axis - 1)
    return axis, arrays[0]


def _fitting(x: Tensor, mask: Tensor, axis: int) -> Tensor:
    """The mask, if it has the sizes of these axes."""
    found = x.shape[axis : axis + mask.ndim]
    if found != mask.shape:
        raise IndexError(f"the mask has the shape {mask.shape}, and the tensor has {found} there")
    return mask


def taken(x: Tensor, key: Any) -> Tensor:
    """The elements that a key with a tensor names, copied: where a mask is true, or at indices of an axis."""
    axis, array = _split(x, key)
    if array.dtype != _core.bool:
        if not isdtype(array.dtype, "integral"):
            raise IndexError(f"a key has integers and truth values, and this tensor has {array.dtype}")
        return take(x, array, axis=axis)
    places = _places(_fitting(x, array, axis))
    return x._reshape([*x.shape[:axis], array.size, *x.shape[axis + array.ndim :]])._take(places, axis)


def set_item(x: Tensor, key: Any, value: Any) -> None:
    """Writes what a key names: a number, or a tensor that broadcasts to it and whose dtype is promoted to that of `x`. For more than a number behind a mask it waits for the mask. Of several elements for one place the last one stays."""
    parts = key if isinstance(key, tuple) else (key,)
    if not any(isinstance(part, (Tensor, bool)) for part in parts):
        _write(x[_forwards(key)], value)
        return
    values = value.item() if isinstance(value, numpy.generic) else value
    if not isinstance(values, (Tensor, bool, int, float)):
        raise TypeError(_NOT_WRITTEN.format(type(value).__name__))
    if isinstance(values, Tensor):
        _check(x, values)
        values = values if values.dtype == x.dtype else values._cast(x.dtype)
    axis, array = _split(x, key)
    if array.dtype == _core.bool and (not isinstance(values, Tensor) or values.ndim == 0):
        # A mask is as the tensor on its axes, and of one element on the ones after them.
        mask = _fitting(x, array, axis)._reshape([*array.shape, *[1] * (x.ndim - axis - array.ndim)])
        x._assign(mask._where(values, x)._broadcast_to(list(x.shape)))
        return
    # The places of the elements in a row of all.
    with use(x._vm):
        places = taken(arange(x.size, device=x.device)._reshape(list(x.shape)), key)
        source = values if isinstance(values, Tensor) else full((), values, dtype=x.dtype, device=x.device)
    row = source._broadcast_to(list(places.shape))._reshape([places.size])
    x._assign(x._reshape([x.size])._scatter(places._reshape([places.size]), row, 0)._reshape(list(x.shape)))


def _check(x: Tensor, value: Tensor) -> None:
    if _core.result_type(x.dtype, value.dtype) != x.dtype:
        raise TypeError(
            f"elements of {value.dtype} cannot be written to a tensor of {x.dtype}; convert them first, by astype"
        )


def _write(view: Tensor, value: Any) -> None:
    if isinstance(value, Tensor):
        _check(view, value)
        same = value if value.dtype == view.dtype else value._cast(view.dtype)
        view._assign(same if same.shape == view.shape else same._broadcast_to(list(view.shape)))
    elif isinstance(value, (bool, int, float, numpy.generic)):
        view._fill(value.item() if isinstance(value, numpy.generic) else value)
    else:
        raise TypeError(_NOT_WRITTEN.format(type(value).__name__))


def _is_backwards(part: Any) -> bool:
    return isinstance(part, slice) and part.step is not None and part.step < 0


def _forwards(key: Any) -> Any:
    """The key, if its slices go forwards: a slice backwards would be a copy."""
    if any(_is_backwards(part) for part in (key if isinstance(key, tuple) else (key,))):
        raise IndexError("a slice backwards cannot be written; write one forwards, by flip(value)")
    return key
