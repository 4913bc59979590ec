"""Tensors as text."""

from __future__ import annotations

import numpy

from . import _core


def text(tensor: _core.Tensor) -> str:
    """The elements, which are waited for, with dtype and device; NumPy's print options count."""
    shown = tensor._cast(_core.float32) if tensor.dtype == _core.bfloat16 else tensor
    elements = numpy.array2string(shown.numpy(), separator=", ", prefix="Tensor(")
    return f"Tensor({elements}, dtype={tensor.dtype}, device={tensor.device!r})"
