"""Tensors as text."""

from __future__ import annotations

from typing import Any

import numpy

from . import _core


def text(tensor: _core.Tensor) -> str:
    """The elements that NumPy shows of an array of this shape, with dtype and device; its print options count. Waits for these elements."""
    shown = tensor._cast(_core.float32) if tensor.dtype == _core.bfloat16 else tensor
    elements = numpy.array2string(_shown(shown), separator=", ", prefix="Tensor(")
    return f"Tensor({elements}, dtype={tensor.dtype}, device={tensor.device!r})"


def _shown(tensor: _core.Tensor) -> Any:
    """An array of this shape with the elements that are shown: of a large one, the first and the last ones of each axis."""
    options = numpy.get_printoptions()
    if tensor.size <= options["threshold"]:
        return tensor.numpy()
    edge, shape = options["edgeitems"], tensor.shape
    places: list[list[int]] = []
    for axis, size in enumerate(shape):
        if size <= 2 * edge:
            places.append([*range(size)])
            continue
        before = (slice(None),) * axis
        ends = [tensor[(*before, slice(0, edge))], tensor[(*before, slice(size - edge, size))]]
        tensor = _core.concat(ends, axis)
        places.append([*range(edge), *range(size - edge, size)])
    elements = tensor.numpy()
    # Memory that is zero is not there until it is written.
    whole = numpy.zeros(shape, elements.dtype)
    whole[numpy.ix_(*places)] = elements
    return whole
