"""Elements from and to other array libraries by DLPack, copied: the engine writes a tensor later than the call that says so."""

from __future__ import annotations

from typing import Any

import numpy

from ._core import Tensor
from ._creation import asarray

# The CPU, in the numbers of DLPack.
_CPU = (1, 0)


def exported(tensor: Tensor, stream: Any, max_version: Any, dl_device: Any, copy: bool | None) -> Any:
    """What `Tensor.__dlpack__` returns. Waits for the elements."""
    if copy is False:
        raise BufferError("a tensor is given to other libraries as a copy; leave `copy` out")
    if dl_device is not None and tuple(dl_device) != _CPU:
        raise BufferError(
            f"a tensor is given to other libraries in the memory of the CPU, and not on the device {tuple(dl_device)} of DLPack"
        )
    if stream is not None:
        raise BufferError("memory of the CPU has no stream; leave `stream` out")
    array = tensor.numpy()
    # NumPy 1 has no versions.
    return array.__dlpack__() if max_version is None else array.__dlpack__(max_version=max_version)


def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """A tensor with the elements of an array of another library, in memory that the CPU reaches. `copy=False` raises ValueError.

    >>> import numpy, streamvm as sv
    >>> sv.from_dlpack(numpy.array([1.5, 2.5]))
    Tensor([1.5, 2.5], dtype=float64, device='cpu:0')
    """
    if copy is False:
        raise ValueError("elements of other libraries are always copied")
    return asarray(x if isinstance(x, Tensor) else numpy.from_dlpack(x), device=device)
