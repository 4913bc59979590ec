"""Calls of the package beside those of NumPy, and of PyTorch and JAX where they are installed: nanoseconds a call, medians.

bench.py [PYTHON]    PYTHON is an interpreter that has PyTorch or JAX; each library is measured in a process of its own, in turn
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

ROUNDS, REPEATS = 15, 3
LIBRARIES = ("streamvm", "numpy", "torch", "jax")


def per_call(call: Callable[[], Any], finish: Callable[[], Any], calls: int) -> float:
    """The median of rounds of some calls; what is pending is waited for between rounds, outside of the time."""
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        for _ in range(calls):
            call()
        times.append((time.perf_counter_ns() - begin) / calls)
        finish()
    return statistics.median(times)


def measure(library: str) -> dict[str, float]:
    """What each call takes in one library."""
    import numpy as np

    begin = time.perf_counter_ns()
    array = np.linspace(0, 1, 1024, dtype=np.float32)
    rows = np.linspace(0, 1, 32 * 64, dtype=np.float32).reshape(32, 64)
    weight = np.linspace(0, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
    if library == "streamvm":
        import streamvm as lib

        make, finish, layer = lib.asarray, lib.wait_all, lib.compile(lambda x, w: lib.relu(x @ w) + 1)
        out: Callable[[Any], Any] = lambda x: x.numpy()  # noqa: E731
    elif library == "numpy":
        make, finish, layer = np.array, lambda: None, lambda x, w: np.maximum(x @ w, 0) + 1
        out = np.array
    elif library == "torch":
        import torch

        torch.set_num_threads(1)
        make, finish, layer = torch.tensor, lambda: None, lambda x, w: torch.relu(x @ w) + 1
        out = lambda x: np.array(x.numpy())  # noqa: E731
    else:
        import jax
        import jax.numpy as jnp

        make, finish, layer = jnp.array, lambda: None, jax.jit(lambda x, w: jnp.maximum(x @ w, 0) + 1)
        out = np.array
    imported = time.perf_counter_ns() - begin
    x, y, m, w = make(array), make(array), make(rows), make(weight)
    layer(m, w)
    return {
        "import beside NumPy, ms": imported / 1e6,
        "x + y of 1,024 float32": per_call(lambda: x + y, finish, 500),
        "x + 1 of 1,024 float32": per_call(lambda: x + 1, finish, 500),
        "x[1:]": per_call(lambda: x[1:], finish, 500),
        "relu(x @ w) + 1, compiled where the library compiles": per_call(lambda: layer(m, w), finish, 200),
        "from a NumPy array of 1,024": per_call(lambda: make(array), finish, 200),
        "x + y to a new NumPy array": per_call(lambda: out(x + y), finish, 200),
    }


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] == "--one":
        print(json.dumps(measure(sys.argv[2])))
        return
    peers = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(REPEATS):
        for library in LIBRARIES:
            python = sys.executable if library in ("streamvm", "numpy") else peers
            ran = subprocess.run([python, "-B", __file__, "--one", library], capture_output=True, text=True)
            if ran.returncode == 0:
                found.setdefault(library, []).append(json.loads(ran.stdout))
            elif "ModuleNotFoundError" not in ran.stderr:
                sys.exit(f"{library} cannot be measured:\n{ran.stderr}")
    calls = list(found["streamvm"][0])
    width = max(map(len, calls))
    print(f"{'':{width}}" + "".join(f"{library:>12}" for library in found))
    for call in calls:
        medians = [statistics.median(run[call] for run in runs) for runs in found.values()]
        print(f"{call:{width}}" + "".join(f"{value:12,.0f}" for value in medians))


if __name__ == "__main__":
    main()
