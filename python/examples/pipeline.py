"""A pipeline: Python functions load batches on workers, a compiled function computes, and a coroutine collects the results."""

import asyncio

import numpy as np

import streamvm as sv

BATCHES, ROWS = 8, 32


@sv.compile
def score(x: sv.Tensor, w: sv.Tensor, b: sv.Tensor) -> sv.Tensor:
    return sv.softmax(x @ w + b, axis=1)


def load(number: int) -> np.ndarray:
    """In a real program it reads a file, and may block."""
    return np.random.default_rng(number).normal(size=(ROWS, 16)).astype(np.float32)


async def main() -> None:
    vm = sv.default_vm()
    w, b = sv.randn((16, 4), seed=1), sv.zeros((4,))
    results = []
    for number in range(BATCHES):
        batch = sv.empty((ROWS, 16))
        vm.call(lambda number=number: load(number), [], [batch], name=f"load {number}", on_workers=True)
        results.append(score(batch, w, b))
    for number, result in enumerate(results):
        best = np.bincount(np.argmax((await result).numpy(), axis=1), minlength=4)
        print(f"batch {number}: {best.tolist()}")
        assert best.sum() == ROWS
    print(f"{score.programs} program for {BATCHES} batches")


if __name__ == "__main__":
    asyncio.run(main())
