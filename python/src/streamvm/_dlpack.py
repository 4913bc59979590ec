"""Elements from other array libraries by DLPack. The engine reads a tensor later than the call that says so, and it shares only memory that nobody writes."""

from __future__ import annotations

import mmap
from typing import Any

import numpy

from ._core import Tensor
from ._creation import _device, asarray
from ._engine import current_vm


def _may_be_written(array: Any) -> bool:
    """Whether an array of NumPy, or one that it is a view of, may be written, or may belong to something else that may be."""
    while isinstance(array, numpy.ndarray):
        if array.flags.writeable:
            return True
        array = array.base
    return not (array is None or isinstance(array, (bytes, mmap.mmap)))


def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """A tensor with the elements of an array of another library, in memory that the CPU reaches.

    Where `x` is read-only, as a mapped file, it is a tensor over the memory of `x`; otherwise a copy. So is a read-only view of an array of NumPy that may be written. With `copy=False` the
    memory is shared in any case, or BufferError is raised: then change nothing in it until the tensor and its views are gone and all that was issued with them is over, as after `wait_all()`.
    What would change a tensor over the memory of others raises LentError.

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
    is_of_numpy = isinstance(x, numpy.ndarray)
    if not (copy or (copy is None and is_of_numpy and _may_be_written(x))):
        try:
            tensor = current_vm()._adopt(x, _device(device), copy is False)
        except BufferError:
            # NumPy before 2.1 gives nothing away that is read-only.
            if copy is False or not is_of_numpy:
                raise
        else:
            if tensor is not None:
                return tensor
    return asarray(x if is_of_numpy else numpy.from_dlpack(x), device=device)
