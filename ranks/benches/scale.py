"""What grows with the number of ranks, by simulation: a clock for each rank, and messages that take latency, bytes over bandwidth, and drawn jitter.

Simulated are the exchanges of streamvm-ranks itself (start, checks of the order), and all-reduces by the algorithms that MPI and NCCL choose from, in a step of
data-parallel training whose ranks do not compute equally fast. Source of the algorithms and their costs: Thakur, Rabenseifner, Gropp, "Optimization of collective
communication operations in MPICH", IJHPCA 2005; of the tree in two halves: Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
scan", Parallel Computing 2009.

    python3 ranks/benches/scale.py [--ranks 8,64,512] [--json FILE]      (needs NumPy)
"""

from __future__ import annotations

import argparse
import json
import math
import sys

import numpy as np

# A cluster of today: 100 Gbit/s for each rank.
LATENCY = 3e-6
BYTES_PER_SECOND = 12.5e9
# The mean of the exponential jitter of each message, as a part of its latency.
JITTER = 0.2

# Bytes of `ranks/src/order.rs`, `ranks/src/ranks.rs` and `ranks/src/nccl/mod.rs`.
VERSION = 16
HASHES = 32
EACH_HASH = 64 * 16
RECORD = 256
HELLO = 512

# A step of training: 100 MiB of gradients in four buckets, 100 ms of compute, of which the backward pass is two thirds.
GRADIENTS = 100 << 20
BUCKETS = 4
COMPUTE = 0.1
# The standard deviation of the compute of a rank, as a part of it.
NOISE = 0.01


class Network:
    """Messages between ranks, with jitter drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def message(self, clocks: np.ndarray, size: float) -> np.ndarray:
        """When messages of this size arrive that are sent at these times."""
        jitter = self.random.exponential(JITTER * LATENCY, clocks.shape)
        return clocks + LATENCY + jitter + size / BYTES_PER_SECOND


def exchange(
    network: Network, clocks: np.ndarray, size: float, distance: int
) -> np.ndarray:
    """Each rank sends to the one that is `distance` after it, and goes on when it has received."""
    return np.maximum(clocks, np.roll(network.message(clocks, size), distance))


def doubling(network: Network, clocks: np.ndarray, size: float) -> np.ndarray:
    """An all-reduce of few bytes: all of them, to ranks at distances that double."""
    for step in range(math.ceil(math.log2(len(clocks)))):
        clocks = exchange(network, clocks, size, 1 << step)
    return clocks


def gather(network: Network, clocks: np.ndarray, size: float) -> np.ndarray:
    """An all-gather (Bruck): what a rank has, to ranks at distances that double."""
    ranks = len(clocks)
    for step in range(math.ceil(math.log2(ranks))):
        clocks = exchange(
            network, clocks, size * min(1 << step, ranks - (1 << step)), 1 << step
        )
    return clocks


def ring(network: Network, clocks: np.ndarray, size: float) -> np.ndarray:
    """An all-reduce of many bytes: a part of them at a time, around a ring, twice."""
    for _ in range(2 * (len(clocks) - 1)):
        clocks = exchange(network, clocks, size / len(clocks), 1)
    return clocks


def halving(network: Network, clocks: np.ndarray, size: float) -> np.ndarray:
    """An all-reduce of many bytes: halves of halves to be combined, and back (Rabenseifner). A number of ranks that is no power of two counts as the next one."""
    steps = math.ceil(math.log2(len(clocks)))
    for step in [*range(steps), *reversed(range(steps))]:
        clocks = exchange(network, clocks, size / 2 ** (step + 1), 1 << step)
    return clocks


def failed_check(network: Network, clocks: np.ndarray, size: float) -> np.ndarray:
    """The comparison of all calls, that of each of the last ones, and the exchange of the first that differs, which has this size."""
    return gather(
        network, doubling(network, doubling(network, clocks, HASHES), EACH_HASH), size
    )


def training(network: Network, ranks: int, algorithm) -> float:
    """The part of a step that is compute, if each bucket is reduced as soon as it is there, beside the compute."""
    work = network.random.normal(COMPUTE, NOISE * COMPUTE, ranks)
    ready = np.zeros(ranks)
    for bucket in range(BUCKETS):
        computed = work * (1 / 3 + 2 / 3 * (bucket + 1) / BUCKETS)
        ready = algorithm(network, np.maximum(ready, computed), GRADIENTS / BUCKETS)
    return COMPUTE / float(ready.max())


def figures(ranks: int, seed: int) -> dict[str, float]:
    network = Network(seed)
    took = lambda f, size: float(f(network, np.zeros(ranks), size).max())
    return {
        "ranks": ranks,
        "start: us": 1e6 * took(doubling, VERSION),
        "start of a group of GPUs: us": 1e6 * took(gather, HELLO),
        "check at a step: us": 1e6 * took(doubling, HASHES),
        "check that fails: us": 1e6 * took(failed_check, RECORD),
        "its memory: KiB": RECORD * ranks / 1024,
        "check before each: us": 1e6 * took(gather, RECORD),
        "1 KiB: us": 1e6 * took(doubling, 1024),
        "100 MiB by a ring: ms": 1e3 * took(ring, GRADIENTS),
        "100 MiB by halves: ms": 1e3 * took(halving, GRADIENTS),
        "efficiency, ring: %": 100 * training(network, ranks, ring),
        "efficiency, halves: %": 100 * training(network, ranks, halving),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--ranks", default="8,64,512,4096,10000", help="numbers of ranks, from 2"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="a file for the figures")
    arguments = parser.parse_args()
    try:
        ranks = [int(number) for number in arguments.ranks.split(",")]
    except ValueError:
        parser.error(
            f"--ranks is {arguments.ranks!r}; it is a list of numbers, such as 8,64"
        )
    if min(ranks) < 2:
        parser.error("--ranks: a job of one rank exchanges nothing; the least is 2")
    rows = [figures(number, arguments.seed) for number in ranks]
    width = max(len(name) for name in rows[0])
    for name in rows[0]:
        print(
            f"{name:<{width}}",
            *(
                f"{row[name]:>10,.0f}"
                if row[name] >= 100 or name == "ranks"
                else f"{row[name]:>10.3g}"
                for row in rows
            ),
        )
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
