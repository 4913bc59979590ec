"""Ranks: several processes as one job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from . import _core
from ._engine import current_vm


@contextmanager
def ranks() -> Iterator[_core.Group]:
    """The group of all ranks of the job that mpirun, torchrun or `streamvm launch` has started; of this process alone without one.

    Blocks until all ranks have joined. The end of the block waits for what was issued, and ends the job on this rank. If the block raises, this rank has failed:
    the others learn of it, and nothing waits. A process enters it once.
    """
    world = _core.world()
    yield world
    current_vm().wait_all()
    _core.finish_ranks()


def local_rank() -> int:
    """The number of this process among the ranks of its machine, as its launcher says it: "cuda:%d" % local_rank() is a GPU for each."""
    return _core.local_rank()
