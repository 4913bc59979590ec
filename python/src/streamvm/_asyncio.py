"""Tensors in coroutines: `await tensor`."""

from __future__ import annotations

import asyncio

from . import _core


async def passed(tensor: _core.Tensor) -> _core.Tensor:
    """Waits for the elements without blocking the event loop; returns the tensor."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def set_outcome(failure: BaseException | None) -> None:
        # The coroutine may have been cancelled meanwhile.
        if future.done():
            return
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)

    def callback(failure: BaseException | None) -> None:
        # The event loop may have ended: then nobody waits any longer.
        if not loop.is_closed():
            loop.call_soon_threadsafe(set_outcome, failure)

    tensor._on_passed(callback)
    await future
    return tensor
