"""Drawn programs: the same calls by streamvm and by NumPy, on several lanes and devices, in each mode; the race detector looks on."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

import streamvm as sv

PROGRAMS = 60 * int(os.environ.get("STREAMVM_CASES", "1"))


def program(draw: random.Random, devices: list[str]) -> None:
    """Draws calls over small integers, makes them by both, and compares all tensors."""
    pairs: list[tuple[sv.Tensor, np.ndarray]] = []

    def pick(device: str | None = None) -> tuple[sv.Tensor, np.ndarray]:
        tensor, array = draw.choice(pairs)
        return (tensor.to_device(device), array) if device and tensor.device != device else (tensor, array)

    for _ in range(3):
        array = np.array([[draw.randrange(-9, 9) for _ in range(4)] for _ in range(4)])
        pairs.append((sv.asarray(array, device=draw.choice(devices)), array))
    for _ in range(draw.randrange(2, 30)):
        with sv.Lane(draw.randrange(3)):
            kind = draw.randrange(11)
            x, a = pick()
            y, b = pick(x.device)
            if kind == 0:
                pairs.append((x + y, a + b))
            elif kind == 1:
                pairs.append((x * y - 3, a * b - 3))
            elif kind == 2:
                pairs.append((x @ y, a @ b))
            elif kind == 3:
                pairs.append((x.T, a.T))
            elif kind == 4:
                pairs.append((sv.maximum(x, y), np.maximum(a, b)))
            elif kind == 5:
                pairs.append((sv.where(x < y, x, y), np.where(a < b, a, b)))
            elif kind == 6:
                # In place: views of the same memory change, in both.
                x += 1
                a += 1
            elif kind == 7:
                row = draw.randrange(4)
                x[row] = y[:, row] + 0
                a[row] = b[:, row] + 0
            elif kind == 8:
                pairs.append(
                    (sv.broadcast_to(sv.sum(x, axis=1, keepdims=True), (4, 4)) + y, a.sum(axis=1, keepdims=True) + b)
                )
            elif kind == 9 and x.device != "host":
                out = sv.empty((4, 4), dtype=sv.int64)
                source = x.to_device("cpu:0")
                sv.current_vm().call(lambda array: array * 5 + 1, [sv.reshape(source, (4, 4), copy=True)], [out])
                pairs.append((out, a * 5 + 1))
            else:
                pairs.append((sv.sort(x, axis=0), np.sort(a, axis=0)))
    for tensor, array in pairs:
        assert np.array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("mode", ["threaded", "inline", "simulated"])
def test_drawn_programs_are_equal_to_numpy(mode: str) -> None:
    sims = 2 if mode == "simulated" else 0
    for seed in range(PROGRAMS):
        if seed % 20 == 0:
            vm = sv.Vm(mode=mode, sim_devices=sims, seed=seed, detect_races=True)
        with sv.use(vm):
            program(random.Random(seed), [name for name in vm.devices() if not name.startswith("cuda")])
        assert vm.races() == [], f"seed {seed}"
