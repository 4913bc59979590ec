"""What a long run keeps."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import sys
import time

import numpy as np

import streamvm as sv


def test_a_long_run_keeps_nothing() -> None:
    """Objects of Python, their references, and memory of the engine are as many after a thousand rounds as after a hundred."""
    vm = sv.Vm()
    source = np.arange(64.0, dtype=np.float32)

    def double(x: np.ndarray) -> np.ndarray:
        return x * 2

    def fails(x: np.ndarray) -> np.ndarray:
        raise ValueError("on purpose")

    @sv.compile
    def compiled(x: sv.Tensor) -> sv.Tensor:
        return sv.exp(x) + x

    async def awaited(x: sv.Tensor) -> None:
        await x

    def one_round() -> None:
        with sv.use(vm):
            x = sv.asarray(source)
            y = (compiled(x)[1:] + 1) @ x[1:]
            out = sv.empty((64,))
            vm.call(double, [x], [out])
            broken = sv.empty((64,))
            vm.call(fails, [x], [broken])
            with contextlib.suppress(sv.OperationError):
                broken.numpy()
            with contextlib.suppress(sv.UsageError):
                sv.reshape(x, (63,))
            asyncio.run(awaited(y))
            array = np.from_dlpack(out)
            assert array[1] == 2.0
            assert sv.from_dlpack(array).numpy()[2] == 4.0

    def counts() -> list[int]:
        vm.wait_all()
        gc.collect()
        # Another thread gives memory of NumPy back.
        time.sleep(0.2)
        objects = (double, fails, compiled, awaited, source, vm, sv.Tensor, sv.OperationError)
        in_use = [int(bytes) for bytes in re.findall(r"in_use: (\d+)", vm.stats())]
        return [len(gc.get_objects()), *(sys.getrefcount(it) for it in objects), *in_use]

    for _ in range(100):
        one_round()
    before = counts()
    for _ in range(1000):
        one_round()
    after = counts()
    # The interpreter may keep some objects of its own, such as those of a warning.
    assert after[0] - before[0] < 100, (before, after)
    assert all(abs(now - then) <= 2 for now, then in zip(after[1:9], before[1:9], strict=True)), (before, after)
    # The engine keeps free blocks of each size for the next tensors, a few kilobytes. A tensor of a round has 256 bytes.
    assert all(abs(now - then) <= 16_384 for now, then in zip(after[9:], before[9:], strict=True)), (before, after)
    vm.close()
