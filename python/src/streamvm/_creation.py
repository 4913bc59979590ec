"""New tensors."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, cast

import numpy

from . import _core
from ._core import DType, Tensor
from ._dtypes import isdtype
from ._engine import current_vm

Shape = SupportsIndex | Sequence[SupportsIndex]

default_float = _core.float32
default_int = _core.int64
default_device = "cpu:0"

# Arrays of these are taken as they are: native bytes, and each byte is one of the dtype.
_DIRECT = {
    numpy.dtype(text): _core.result_type(numpy.dtype(text))
    for text in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
}


def _shape(shape: Shape) -> list[int]:
    if hasattr(shape, "__index__"):
        sizes = [operator.index(cast(SupportsIndex, shape))]
    else:
        sizes = [operator.index(size) for size in cast(Any, shape)]
    if any(size < 0 for size in sizes):
        raise ValueError(f"shape {tuple(sizes)} has a negative size")
    return sizes


def _device(device: str | None) -> str:
    return default_device if device is None else device


def _is_of_python(obj: Any) -> bool:
    """Whether it is a number of Python, or lists of these: by the first one."""
    while isinstance(obj, (list, tuple)) and obj:
        obj = obj[0]
    return isinstance(obj, (bool, int, float, list, tuple)) and not isinstance(obj, numpy.generic)


def _number(value: Any) -> tuple[bool | int | float, DType]:
    """A number of Python, and its dtype: the default one of its kind, or that of a tensor or a number of NumPy."""
    if isinstance(value, Tensor):
        return value.item(), value.dtype
    if isinstance(value, numpy.generic):
        return value.item(), _core.result_type(value.dtype)
    return value, _dtype_of(value)


def _dtype_of(value: Any) -> DType:
    """The default dtype for a number of Python."""
    if isinstance(value, bool):
        return _core.bool
    return default_int if isinstance(value, int) else default_float


def asarray(obj: Any, /, *, dtype: Any = None, device: str | None = None, copy: bool | None = None) -> Tensor:
    """A tensor with the elements of `obj`: a tensor, a NumPy array or what NumPy makes one of, such as nested lists of numbers.

    Without a dtype, NumPy's is kept, and numbers of Python become int64, float32 or bool. `device` is a name such as "cpu:0"; by default that of `obj`, or "cpu:0".
    `copy=True` always copies; `copy=False` raises ValueError where a copy is needed, as for everything but a tensor that fits already.

    >>> import streamvm as sv
    >>> sv.asarray([[1, 2], [3, 4]]) + 10
    Tensor([[11, 12],
            [13, 14]], dtype=int64, device='cpu:0')
    """
    if isinstance(obj, Tensor):
        tensor = obj
        if dtype is not None and _core.result_type(dtype) != tensor.dtype:
            tensor = tensor._cast(dtype)
        if device is not None:
            tensor = tensor.to_device(device)
        if copy is False and tensor is not obj:
            raise ValueError("the tensor has another dtype or device, so it must be copied")
        return tensor._copy() if copy and tensor is obj else tensor
    if copy is False:
        raise ValueError("the elements of a NumPy array or a list are always copied")
    if type(obj) is numpy.ndarray and dtype is None:
        direct = _DIRECT.get(obj.dtype)
        if direct is not None and obj.flags.c_contiguous and obj.flags.aligned:
            return current_vm()._from_array(obj, direct, obj.shape, _device(device))
    array = numpy.asarray(obj)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise TypeError(f"a tensor has numbers and truth values, and this has elements of the type {array.dtype}")
    if dtype is None and _is_of_python(obj):
        if array.dtype.kind == "f":
            dtype = default_float
        elif array.dtype.kind == "i":
            dtype = default_int
    elif dtype is not None and array.dtype.kind in "iu" and _is_of_python(obj) and _is_kind(dtype, "integral"):
        # NumPy says which number does not fit.
        array = numpy.asarray(obj, dtype=_core.result_type(dtype).name)
    shape = array.shape
    wanted = _core.result_type(array.dtype if dtype is None else dtype)
    through = _core.float32 if wanted == _core.bfloat16 else wanted
    if array.dtype.kind == "b":
        # A view may have other bytes than those of true and false.
        array = numpy.not_equal(array.view(numpy.uint8) if array.ndim else array.reshape(1).view(numpy.uint8), 0)
    elif through == _core.bool:
        array = numpy.not_equal(array, 0)
    array = numpy.require(array.astype(through.name, copy=False), requirements=["C", "A"])
    tensor = current_vm()._from_array(array, through, shape, _device(device))
    return tensor if wanted == through else tensor._cast(wanted)


def unpickled(array: Any, dtype: DType, device: str) -> Tensor:
    """The tensor that was pickled, on its device if the engine has that."""
    here = device if device in (*current_vm().devices(), "host") else default_device
    return asarray(array, dtype=dtype, device=here)


def full(shape: Shape, fill_value: bool | int | float, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """A tensor of `shape` with one value everywhere; without a dtype, that of the value: int64, float32 or bool."""
    value, of_value = _number(fill_value)
    return current_vm()._full(_shape(shape), value, dtype or of_value, _device(device))


def zeros(shape: Shape, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """A tensor of `shape` with zeros, or false; float32 by default."""
    wanted = _core.result_type(dtype or default_float)
    return full(shape, False if wanted == _core.bool else 0, dtype=wanted, device=device)


def ones(shape: Shape, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """A tensor of `shape` with ones, or true; float32 by default."""
    wanted = _core.result_type(dtype or default_float)
    return full(shape, True if wanted == _core.bool else 1, dtype=wanted, device=device)


def empty(shape: Shape, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """A tensor of `shape` that has no elements yet: the first operation that uses it must write all of it. float32 by default."""
    return current_vm()._empty(_shape(shape), dtype or default_float, _device(device))


def _is_like(x: Tensor, dtype: Any, device: str | None) -> bool:
    return device in (None, x.device) and (dtype is None or _core.result_type(dtype) == x.dtype)


def _is_kind(dtype: Any, kind: str) -> bool:
    return isdtype(_core.result_type(dtype), kind)


def full_like(x: Tensor, /, fill_value: bool | int | float, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """As `full`, with shape, dtype and device of `x` where they are not given."""
    if _is_like(x, dtype, device):
        return x._filled(_number(fill_value)[0])
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device or x.device)


def zeros_like(x: Tensor, /, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """As `zeros`, with shape, dtype and device of `x` where they are not given."""
    return full_like(x, False if _is_kind(dtype or x.dtype, "bool") else 0, dtype=dtype, device=device)


def ones_like(x: Tensor, /, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """As `ones`, with shape, dtype and device of `x` where they are not given."""
    return full_like(x, True if _is_kind(dtype or x.dtype, "bool") else 1, dtype=dtype, device=device)


def empty_like(x: Tensor, /, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """As `empty`, with shape, dtype and device of `x` where they are not given."""
    return empty(x.shape, dtype=dtype or x.dtype, device=device or x.device)


def arange(
    start: int | float,
    /,
    stop: int | float | None = None,
    step: int | float = 1,
    *,
    dtype: Any = None,
    device: str | None = None,
) -> Tensor:
    """The numbers from `start` up to `stop`, which is not among them, in steps; from 0 if only one is given. int64, or float32 if one of them is a float."""
    first, end = (0, start) if stop is None else (start, stop)
    if step == 0:
        raise ValueError("arange needs a step other than 0")
    floats = any(isinstance(number, float) for number in (first, end, step))
    wanted = dtype or (default_float if floats else default_int)
    if not _is_kind(wanted, "real floating"):
        if any(number != int(number) for number in (first, end, step)):
            raise TypeError(f"arange of {wanted} takes integers; make floats, and convert them by astype")
        first, end, step = int(first), int(end), int(step)
    return current_vm()._arange((first, end, step), wanted, _device(device))


def linspace(
    start: int | float,
    stop: int | float,
    /,
    num: int,
    *,
    dtype: Any = None,
    device: str | None = None,
    endpoint: bool = True,
) -> Tensor:
    """`num` numbers at equal distances from `start` to `stop`, which is the last one unless `endpoint` is false; float32 by default."""
    if num < 0:
        raise ValueError(f"linspace cannot make {num} numbers")
    if not _is_kind(dtype or default_float, "real floating"):
        raise TypeError(f"linspace makes floats, and not {dtype}; convert them by astype")
    last = float(stop) if endpoint or num == 0 else float(start) + (float(stop) - float(start)) * (num - 1) / num
    return current_vm()._linspace((float(start), last, num), dtype or default_float, _device(device))


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: str | None = None
) -> Tensor:
    """A matrix with ones on the diagonal that is `k` to the right of the main one, and zeros elsewhere; float32 by default."""
    columns = n_rows if n_cols is None else n_cols
    rows, columns = _shape((n_rows, columns))
    vm, wanted, device = current_vm(), dtype or default_float, _device(device)
    if k == 0:
        return vm._eye((rows, columns), wanted, device)
    if k >= columns or -k >= rows:
        return zeros((rows, columns), dtype=wanted, device=device)
    return _shifted(rows, columns, k, wanted, device)


def _shifted(rows: int, columns: int, k: int, dtype: Any, device: str) -> Tensor:
    below, above = max(-k, 0), max(k, 0)
    square = current_vm()._eye((rows + above, columns + below), dtype, device)
    return square[above : above + rows, below : below + columns]._copy()


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The lower triangle of each matrix: zero above the diagonal that is `k` to the right of the main one."""
    return x._triangle(False, k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The upper triangle of each matrix: zero below the diagonal that is `k` to the right of the main one."""
    return x._triangle(True, k)


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """For tensors with one axis the coordinates of the grid that they span: a tensor of all their sizes for each."""
    if indexing not in ("xy", "ij"):
        raise ValueError(f"indexing is 'xy' or 'ij', and not {indexing!r}")
    sizes = [array.size for array in arrays]
    grids = [
        array._reshape([size if place == axis else 1 for place, size in enumerate(sizes)])._broadcast_to(sizes)
        for axis, array in enumerate(arrays)
    ]
    if indexing == "xy" and len(grids) > 1:
        order = [1, 0, *range(2, len(grids))]
        grids = [grid._permute(order) for grid in grids]
    return grids


def _seed(seed: int) -> int:
    if not 0 <= seed < 2**64:
        raise ValueError(f"a seed is from 0 to 2**64 - 1, and not {seed}")
    return seed


def rand(shape: Shape, *, seed: int, dtype: Any = None, device: str | None = None) -> Tensor:
    """Random numbers, uniform from 0 to 1: those of `seed`, the same on every device. float32 by default. A seed is from 0 to 2**64 - 1."""
    return current_vm()._random(_shape(shape), (_seed(seed), False), dtype or default_float, _device(device))


def randn(shape: Shape, *, seed: int, dtype: Any = None, device: str | None = None) -> Tensor:
    """Random numbers of the normal distribution: those of `seed`, the same on every device but for rounding. float32 by default."""
    return current_vm()._random(_shape(shape), (_seed(seed), True), dtype or default_float, _device(device))
