"""Elements from other array libraries by DLPack, copied: the engine reads a tensor later than the call that says so."""

from __future__ import annotations

from typing import Any

import numpy

from ._core import Tensor
from ._creation import asarray


def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """A tensor with the elements of an array of another library, in memory that the CPU reaches. `copy=False` raises ValueError.

    >>> import numpy, streamvm as sv
    >>> sv.from_dlpack(numpy.array([1.5, 2.5]))
    Tensor([1.5, 2.5], dtype=float64, device='cpu:0')
    """
    if copy is False:
        raise ValueError("elements of other libraries are always copied")
    return asarray(x if isinstance(x, Tensor) else numpy.from_dlpack(x), device=device)
