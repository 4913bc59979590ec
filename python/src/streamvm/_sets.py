"""Results whose shapes depend on elements: they wait for their arguments, and NumPy computes them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy

from ._core import Tensor
from ._creation import asarray
from ._elementwise import _check
from ._engine import use


class UniqueAll(NamedTuple):
    """What `unique_all` gives."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """What `unique_counts` gives."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """What `unique_inverse` gives."""

    values: Tensor
    inverse_indices: Tensor


def _given(x: Tensor, array: Any) -> Tensor:
    """An array as a tensor beside `x`."""
    with use(x._vm):
        return asarray(array, device=x.device)


def _unique(x: Tensor) -> list[Tensor]:
    values, indices, inverse, counts = numpy.unique(
        x.numpy(), return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    found: list[Any] = [values, indices, inverse.reshape(x.shape), counts]
    return [_given(x, array) for array in found]


def unique_all(x: Tensor, /) -> UniqueAll:
    """The different elements in order, where each is first, for each element of `x` which of them it is, and how often each is there. Waits for `x`. Each NaN differs from others."""
    return UniqueAll(*_unique(x))


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """The different elements in order, and how often each is there. Waits for `x`."""
    values, _, _, counts = _unique(x)
    return UniqueCounts(values, counts)


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """The different elements in order, and for each element of `x` which of them it is. Waits for `x`."""
    values, _, inverse, _ = _unique(x)
    return UniqueInverse(values, inverse)


def unique_values(x: Tensor, /) -> Tensor:
    """The different elements in order. Waits for `x`."""
    return _unique(x)[0]


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """For each axis the places of the elements that are true or not 0, in the order of rows. Waits for `x`."""
    if x.ndim == 0:
        raise ValueError("nonzero needs a tensor with axes")
    return tuple(_given(x, places) for places in numpy.nonzero(x.numpy()))


def isin(x1: Tensor, x2: Tensor, /, *, invert: bool = False) -> Tensor:
    """Whether each element of `x1` is one of those of `x2`, or is not, if `invert`. Waits for both. For dtypes of integers."""
    _check("isin", x1, "integral")
    _check("isin", x2, "integral")
    return _given(x1, numpy.isin(x1.numpy(), x2.numpy(), invert=invert))
