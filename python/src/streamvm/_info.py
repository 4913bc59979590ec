"""What the namespace has, for libraries that work with any array library."""

from __future__ import annotations

from typing import Any

from . import _core
from ._core import DType
from ._creation import default_device, default_float, default_int
from ._dtypes import isdtype
from ._engine import current_vm


class __array_namespace_info__:
    """What this namespace of the array API standard has: devices, dtypes and what it cannot do."""

    def capabilities(self) -> dict[str, Any]:
        """Masks as keys wait for the mask; shapes do not depend on elements otherwise. A tensor has at most 8 axes."""
        return {"boolean indexing": True, "data-dependent shapes": False, "max dimensions": 8}

    def default_device(self) -> str:
        """The device of new tensors."""
        return default_device

    def default_dtypes(self, *, device: str | None = None) -> dict[str, DType]:
        """The dtypes of new tensors from numbers of Python."""
        return {"real floating": default_float, "integral": default_int, "indexing": _core.int64}

    def devices(self) -> list[str]:
        """The devices of the current engine."""
        return current_vm().devices()

    def dtypes(self, *, device: str | None = None, kind: str | tuple[str, ...] | None = None) -> dict[str, DType]:
        """The dtypes by their names: all, or those of a kind."""
        names = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
        all_of_them: dict[str, DType] = {name: getattr(_core, name) for name in names}
        return {name: dtype for name, dtype in all_of_them.items() if kind is None or isdtype(dtype, kind)}
