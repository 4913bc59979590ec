"""Elements from other array libraries by DLPack. The engine reads a tensor later than the call that says so, and it shares only memory that nobody writes."""

from __future__ import annotations

from typing import Any

import numpy

from ._core import Tensor
from ._creation import _device, asarray
from ._engine import current_vm


def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """A tensor with the elements of an array of another library, in memory that the CPU reaches.

    It is a tensor over the memory of `x` where `x` is read-only, as an array of JAX or a mapped file; otherwise a copy. With `copy=False` the memory of an array that may be written
    is shared, too: then change nothing in it as long as the tensor is there. BufferError if it cannot be. What would change a tensor over the memory of others raises LentError.

    >>> import numpy, streamvm as sv
    >>> array = numpy.array([1.5, 2.5])
    >>> sv.from_dlpack(array)
    Tensor([1.5, 2.5], dtype=float64, device='cpu:0')
    >>> shared = sv.from_dlpack(array, copy=False)
    >>> numpy.shares_memory(numpy.from_dlpack(shared), array)
    True
    """
    if isinstance(x, Tensor):
        return asarray(x, device=device, copy=copy)
    if not copy:
        tensor = current_vm()._adopt(x, _device(device), copy is False)
        if tensor is not None:
            return tensor
    return asarray(numpy.from_dlpack(x), device=device)
