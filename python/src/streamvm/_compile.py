"""Functions that are recorded once and run as programs."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, overload

from . import _core
from ._core import Program, Tensor


class Compiled:
    """A function over tensors that is recorded and compiled at its first call with tensors of some shapes, dtypes and devices, and runs as a program from then on.

    All tensors that it uses are its arguments. Other values that it reads are constants of the programs. It returns a tensor, or a tuple of tensors. Any thread may call it.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise TypeError(f"compile takes a function, and no {type(function).__name__}")
        functools.update_wrapper(self, function)
        self._function = function
        self._name = getattr(function, "__name__", "function")
        self._programs: dict[Any, Program] = {}
        self._lock = threading.Lock()

    def __call__(self, *tensors: Tensor) -> Any:
        if _core.is_recording():
            # A part of the function that is recorded.
            return self._function(*tensors)
        return self._program(tensors).run(list(tensors))

    def _program(self, tensors: tuple[Tensor, ...]) -> Program:
        if not tensors:
            raise TypeError(f"{self._name} needs a tensor: a compiled function computes with its arguments")
        for place, tensor in enumerate(tensors):
            if not isinstance(tensor, Tensor):
                raise TypeError(
                    f"argument {place} of {self._name} is a {type(tensor).__name__}, and a compiled function takes tensors alone; give other values by functools.partial or a closure, before it is compiled"
                )
        vm = tensors[0]._vm
        key = (hash(vm), tuple(tensor._signature() for tensor in tensors))
        program = self._programs.get(key)
        if program is None or not program.alive:
            # Without a lock, because the function is code of the program: another thread may record it, too, and then the last one stays.
            program = Program.record(vm, self._name, self._function, list(tensors))
            with self._lock:
                kept = {known: other for known, other in self._programs.items() if other.alive}
                self._programs = {**kept, key: program}
        return program

    def plan(self, *tensors: Tensor) -> str:
        """The compiled plan for tensors like these, as a text: steps, streams, memory."""
        return str(self._program(tensors))

    @property
    def programs(self) -> int:
        """How many programs were compiled."""
        return len(self._programs)


@overload
def compile(function: Callable[..., Any], /) -> Compiled: ...
@overload
def compile() -> Callable[[Callable[..., Any]], Compiled]: ...
def compile(function: Callable[..., Any] | None = None, /) -> Any:
    """Makes a function a program: `@streamvm.compile`. Its steps are fused, its memory is planned, and a run is one submission.

    >>> import streamvm as sv
    >>> @sv.compile
    ... def layer(x, w, b):
    ...     return sv.relu(x @ w + b)
    >>> layer(sv.ones((2, 3)), sv.ones((3, 1)), sv.full((1,), -1.0)).numpy().tolist()
    [[2.0], [2.0]]
    """
    return Compiled if function is None else Compiled(function)
