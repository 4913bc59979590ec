"""The engine of new tensors: the default one, or that of `with vm:`."""

from __future__ import annotations

import atexit
import contextvars
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from . import _core

_lock = threading.Lock()
_default: _core.Vm | None = None
_current: contextvars.ContextVar[_core.Vm | None] = contextvars.ContextVar("streamvm engine", default=None)


def default_vm() -> _core.Vm:
    """The engine of the process, made when it is first used, and anew once it was closed.

    STREAMVM_ENGINE chooses how it runs ("per-device", "shared" or "inline"), and STREAMVM_TRACE a file for a trace. Any thread may call it.
    """
    global _default
    found = _default
    if found is not None and not found.closed:
        return found
    with _lock:
        if _default is None or _default.closed:
            _default = _core.Vm()
        return _default


def current_vm() -> _core.Vm:
    """The engine of new tensors: that of the innermost `use`, or the default one."""
    return _current.get() or default_vm()


@contextmanager
def use(vm: _core.Vm) -> Iterator[_core.Vm]:
    """Makes `vm` the engine of new tensors within a `with` block, in this thread or coroutine."""
    if not isinstance(vm, _core.Vm):
        raise TypeError(f"use takes a Vm, and no {type(vm).__name__}")
    token = _current.set(vm)
    try:
        yield vm
    finally:
        _current.reset(token)


def wait_all(timeout: float | None = None) -> None:
    """Blocks until everything that was issued to the current engine has passed, at most `timeout` seconds. Raises the first failure that nobody has seen."""
    current_vm().wait_all(timeout)


# Python functions can be called until then.
atexit.register(_core.close_all)
