"""Dtypes: their kinds, limits and conversions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import _core
from ._core import DType, Tensor

_SIGNED = (_core.int8, _core.int16, _core.int32, _core.int64)
_UNSIGNED = (_core.uint8, _core.uint16, _core.uint32, _core.uint64)
_FLOATS = (_core.float32, _core.float64, _core.float16, _core.bfloat16)
_KINDS: dict[str, tuple[DType, ...]] = {
    "bool": (_core.bool,),
    "signed integer": _SIGNED,
    "unsigned integer": _UNSIGNED,
    "integral": _SIGNED + _UNSIGNED,
    "real floating": _FLOATS,
    "complex floating": (),
    "numeric": _SIGNED + _UNSIGNED + _FLOATS,
}


def named(name: str) -> DType:
    """The dtype of that name, for `pickle`."""
    found: DType = getattr(_core, name)
    return found


def isdtype(dtype: DType, kind: DType | str | tuple[DType | str, ...]) -> bool:
    """Whether a dtype is of a kind: "bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating", "numeric", a dtype, or one of several."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    if isinstance(kind, str):
        if kind not in _KINDS:
            raise ValueError(f"there is no kind {kind!r} of dtypes; there are {', '.join(_KINDS)}")
        return dtype in _KINDS[kind]
    return dtype == kind


def astype(x: Tensor, dtype: Any, /, *, copy: bool = True, device: str | None = None) -> Tensor:
    """The tensor with elements of another dtype: floats are cut off towards zero, and what an integer cannot hold wraps or saturates as docs/ops.md says. A copy, unless
    `copy` is false and nothing changes."""
    wanted = _core.result_type(dtype)
    if device is not None:
        x = x.to_device(device)
    if wanted != x.dtype:
        return x._cast(wanted)
    return x._copy() if copy else x


def can_cast(from_: DType | Tensor, to: DType, /) -> bool:
    """Whether the promotion of the standard leads from one dtype to the other."""
    dtype = from_.dtype if isinstance(from_, Tensor) else from_
    try:
        return _core.result_type(dtype, to) == to
    except TypeError:
        return False


def result_type(*arrays_and_dtypes: Tensor | DType | bool | int | float) -> DType:
    """The dtype in which tensors and dtypes are computed together. A number of Python takes part only by its kind: it must fit the rest."""
    dtypes = [it.dtype if isinstance(it, Tensor) else it for it in arrays_and_dtypes]
    of_arrays = [it for it in dtypes if isinstance(it, DType)]
    if not of_arrays:
        raise ValueError("result_type needs a tensor or a dtype among its arguments")
    found = _core.result_type(*of_arrays)
    for number in dtypes:
        if isinstance(number, DType):
            continue
        kinds = (
            ("bool",) if isinstance(number, bool) else ("numeric",) if isinstance(number, int) else ("real floating",)
        )
        if not isdtype(found, kinds):
            raise TypeError(f"{number!r} does not fit tensors of {found}")
    return found


@dataclass(frozen=True)
class finfo_object:
    """The limits of a dtype of floats."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True)
class iinfo_object:
    """The limits of a dtype of integers."""

    bits: int
    max: int
    min: int
    dtype: DType


def finfo(type: DType | Tensor, /) -> finfo_object:
    """The limits of a dtype of floats, or of the dtype of a tensor."""
    dtype = type.dtype if isinstance(type, Tensor) else type
    digits = {_core.float16: (10, 15), _core.bfloat16: (7, 127), _core.float32: (23, 127), _core.float64: (52, 1023)}
    if dtype not in digits:
        raise TypeError(f"{dtype} is no dtype of floats")
    fraction, exponent = digits[dtype]
    largest = (2.0 - 2.0**-fraction) * 2.0**exponent
    return finfo_object(8 * dtype.itemsize, 2.0**-fraction, largest, -largest, 2.0 ** (1 - exponent), dtype)


def iinfo(type: DType | Tensor, /) -> iinfo_object:
    """The limits of a dtype of integers, or of the dtype of a tensor."""
    dtype = type.dtype if isinstance(type, Tensor) else type
    bits = 8 * dtype.itemsize
    if dtype in _SIGNED:
        return iinfo_object(bits, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), dtype)
    if dtype in _UNSIGNED:
        return iinfo_object(bits, 2**bits - 1, 0, dtype)
    raise TypeError(f"{dtype} is no dtype of integers")
