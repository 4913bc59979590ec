"""Ranks: each a process of its own, over memory that they share."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import uuid

import pytest

import streamvm as sv

LIMIT = 100


def job(ranks: int, program: str, **variables: str) -> list[tuple[int, str]]:
    """Runs a program on some ranks. Returns the exit status of each, and what it printed."""
    text = "import numpy as np\nimport streamvm as sv\n" + textwrap.dedent(program)
    common = {**os.environ, "WORLD_SIZE": str(ranks), "STREAMVM_JOB": f"python-{uuid.uuid4().hex}", **variables}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", text],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate(timeout=LIMIT)[0] for process in started]
    return [(process.returncode, output) for process, output in zip(started, outputs, strict=True)]


EVERY = """
with sv.ranks() as world:
    rank, size = world.rank, world.size
    assert (world.backend, world.device, sv.local_rank()) == ("local", "cpu:0", rank)
    def of(rank):
        return (np.arange(size * 4, dtype=np.float32) * (rank + 1)).reshape(size * 2, 2)
    x, all = sv.asarray(of(rank)), np.stack([of(other) for other in range(size)])
    for by, expected in [("sum", all.sum(0)), ("max", all.max(0)), ("min", all.min(0)), ("mean", all.mean(0)), ("prod", all.prod(0))]:
        np.testing.assert_allclose(world.all_reduce(x, by).numpy(), expected, rtol=1e-6)
        part = world.reduce_scatter(x, by).numpy()
        np.testing.assert_allclose(part, expected[rank * 2 : rank * 2 + 2], rtol=1e-6)
        reduced = world.reduce(x, by, root=size - 1)
        assert (reduced is None) == (rank != size - 1)
        if reduced is not None:
            np.testing.assert_allclose(reduced.numpy(), expected, rtol=1e-6)
    y, z = sv.asarray(of(rank)), sv.ones((3,))
    world.all_reduce_in_place(y, z)
    np.testing.assert_allclose(y.numpy(), all.sum(0))
    assert z.numpy().tolist() == [size] * 3
    assert (world.all_gather(x).numpy() == all.reshape(-1, 2)).all()
    gathered = world.gather(x, root=1 % size)
    assert (gathered is None) == (rank != 1 % size)
    exchanged = world.all_to_all(x).numpy()
    assert (exchanged == all[:, rank * 2 : rank * 2 + 2].reshape(-1, 2)).all()
    y = sv.asarray(of(rank))
    world.broadcast(y, root=size - 1)
    assert (y.numpy() == of(size - 1)).all()
    part = sv.zeros((2, 2))
    world.scatter(part, x if rank == 0 else None)
    assert (part.numpy() == of(0)[rank * 2 : rank * 2 + 2]).all()
    if size > 1:
        y = sv.zeros_like(x)
        world.send(x, (rank + 1) % size)
        world.receive(y, (rank - 1) % size)
        assert (y.numpy() == of((rank - 1) % size)).all()
    half = world.subgroup([other for other in range(size) if other % 2 == rank % 2])
    assert half.all_reduce(sv.ones(())).item() == half.size
    world.barrier()

    @sv.compile
    def step(x):
        return world.all_reduce(x * 2) + 1
    for number in range(3):
        x = sv.full((4,), float(rank + number))
        assert step(x).numpy().tolist() == [2 * sum(other + number for other in range(size)) + 1] * 4
    assert step.programs == 1 and "all_reduce sum float32" not in step.plan(x) and "collective@cpu:0:" in step.plan(x)
print("fine")
"""


@pytest.mark.parametrize("ranks", [1, 3])
def test_collectives_are_equal_to_numpy(ranks: int) -> None:
    for status, output in job(ranks, EVERY):
        assert (status, output) == (0, "fine\n"), output


def test_a_lost_rank_is_an_error_that_names_it() -> None:
    program = """
    with sv.ranks() as world:
        x = sv.ones((4,))
        world.all_reduce(x).wait()
        if world.rank == 1:
            raise SystemExit(3)
        try:
            world.all_reduce(x).numpy()
        except sv.OperationError as error:
            assert "rank 1" in str(error) and error.lineno > 0, error
        rest = world.shrink()
        assert rest.all_reduce(x).numpy().tolist() == [2.0] * 4
    print("went on")
    """
    outputs = job(3, program)
    assert outputs[1][0] == 3, outputs[1]
    for status, output in (outputs[0], outputs[2]):
        assert (status, output) == (0, "went on\n"), output


def test_a_rank_that_does_not_join_is_an_error() -> None:
    program = """
    try:
        with sv.ranks():
            pass
    except sv.RankError as error:
        print(error)
    """
    text = "import streamvm as sv\n" + textwrap.dedent(program)
    env = {
        **os.environ,
        "RANK": "0",
        "WORLD_SIZE": "2",
        "STREAMVM_JOB": uuid.uuid4().hex,
        "STREAMVM_RANKS_TIMEOUT": "0.3",
    }
    ended = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, timeout=LIMIT)
    assert "rank 1 did not join" in ended.stdout, ended


def test_arguments_that_do_not_fit_are_refused() -> None:
    with sv.ranks() as world:
        assert (world.rank, world.size) == (0, 1)
        x = sv.ones((3,))
        with pytest.raises(sv.UsageError, match="no reduction; there are sum"):
            world.all_reduce(x, "median")
        with pytest.raises(sv.UsageError, match="at least one tensor"):
            world.all_reduce_in_place()
        with pytest.raises(sv.UsageError, match="no rank 1"):
            world.broadcast(x, root=1)
        with pytest.raises(sv.RankError, match="named twice"):
            world.subgroup([0, 0])
        with pytest.raises(sv.RankError, match=r"cpu:0 is no GPU"):
            world.on_device("cpu:0")
        with pytest.raises(sv.UsageError, match="does not name a place"):
            world.on_device("somewhere")
