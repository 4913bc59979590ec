"""DLPack, with NumPy: memory is given away to be read, and nothing changes it meanwhile."""

from __future__ import annotations

import contextlib
import gc
import threading
import time

import numpy as np
import pytest
from dtypes import NAMES

import streamvm as sv


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (3, 4)])
def test_numpy_takes_tensors_and_gives_arrays_by_dlpack(name: str, shape: tuple[int, ...]) -> None:
    array = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2, dtype=name)
    tensor = sv.from_dlpack(array)
    assert (str(tensor.dtype), tensor.shape) == (name, shape)
    back = np.from_dlpack(tensor)
    assert back.dtype == array.dtype and np.array_equal(back, array)
    one = True if name == "bool" else 1
    del back
    tensor[...] = one
    copied = np.from_dlpack(tensor, copy=True)
    tensor[...] = one
    copied[...] = 0
    assert np.array_equal(tensor.numpy(), np.ones_like(array)), "a copy is its own"
    assert np.array_equal(sv.from_dlpack(tensor).numpy(), np.ones_like(array))


def test_a_tensor_gives_its_memory_away_to_be_read() -> None:
    tensor = sv.asarray(np.arange(12.0).reshape(3, 4))
    rows = [np.from_dlpack(tensor), np.from_dlpack(tensor.T[1:]), np.from_dlpack(tensor[1])]
    assert all(not row.flags.writeable for row in rows)
    assert all(np.shares_memory(rows[0], row) for row in rows), "nothing is copied"
    assert np.array_equal(rows[1], np.arange(12.0).reshape(3, 4).T[1:])
    assert rows[1].strides == (8, 32)
    # Reading goes on; what would change it under its readers is refused, also by way of a view.
    assert (tensor + 1).numpy()[0, 0] == 1.0
    changes = [
        lambda: tensor.__setitem__(..., 0.0),
        lambda: tensor[2].__setitem__(0, 7.0),
        lambda: tensor.__iadd__(1),
        lambda: tensor.__imul__(tensor),
        lambda: tensor.__setitem__((slice(None), 1), sv.zeros((3,), dtype=sv.float64)),
        lambda: sv.default_vm().call(lambda: np.zeros((3, 4)), writes=[tensor]),
    ]
    while rows:
        for change in changes:
            with pytest.raises(sv.LentError, match="first drop what it is lent to") as raised:
                change()
            assert isinstance(raised.value, BufferError)
        rows.pop()
    for change in changes:
        change()
    assert np.array_equal(tensor.numpy(), np.zeros((3, 4)))


def test_memory_outlives_the_tensor_and_the_engine() -> None:
    vm = sv.Vm()
    with sv.use(vm):
        array = np.from_dlpack(sv.asarray(np.arange(1000.0)) * 2)
        others = [sv.asarray(np.arange(1000.0)) + number for number in range(20)]
        assert others[-1].numpy()[0] == 19.0
    vm.close()
    del vm, others
    gc.collect()
    assert np.array_equal(array, np.arange(1000.0) * 2)


def test_capsules_that_nobody_takes_are_freed() -> None:
    tensor = sv.zeros((4,))
    for asked in ({"max_version": (1, 0)}, {"max_version": (1, 3)}, {}, {"copy": True}):
        capsule = tensor.__dlpack__(**asked)
        del capsule
        tensor[...] = 1.0
    capsule = tensor.__dlpack__(max_version=(1, 0))
    with pytest.raises(sv.LentError):
        tensor[...] = 2.0
    del capsule
    tensor[...] = 2.0
    assert tensor.numpy().tolist() == [2.0] * 4


def test_what_a_tensor_waits_for_is_there_before_it_is_given_away() -> None:
    tensor = sv.zeros((3,))

    def late() -> np.ndarray:
        time.sleep(0.1)
        return np.asarray([1.0, 2.0, 3.0], dtype=np.float32)

    sv.default_vm().call(late, writes=[tensor])
    assert np.from_dlpack(tensor).tolist() == [1.0, 2.0, 3.0]

    def fails() -> None:
        raise RuntimeError("no elements")

    sv.default_vm().call(fails, writes=[tensor])
    with pytest.raises(sv.OperationError):
        np.from_dlpack(tensor)
    tensor[...] = 4.0
    assert np.from_dlpack(tensor).tolist() == [4.0] * 3, "a failure lends nothing"


def test_threads_give_memory_away_while_others_change_it() -> None:
    tensor = sv.zeros((256,), dtype=sv.int64)
    seen, written = [], []

    def write() -> None:
        while len(seen) < 600:
            with contextlib.suppress(sv.LentError):
                tensor.__iadd__(1)
                written.append(1)

    def read() -> None:
        for _ in range(300):
            array = np.from_dlpack(tensor)
            seen.append(array.min() == array.max() == array[100])
            del array
            time.sleep(0)

    threads = [threading.Thread(target=target) for target in (write, read, write, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 600 and all(seen), "no array changes under its reader"
    assert tensor.numpy()[0] == len(written) > 0


def test_arrays_with_gaps_and_without_leave_to_write() -> None:
    array = np.arange(12).reshape(3, 4)
    array.flags.writeable = False
    assert np.array_equal(sv.from_dlpack(array[::2, ::-1]).numpy(), array[::2, ::-1])
    repeated = np.from_dlpack(sv.broadcast_to(sv.asarray(array[0]), (5, 4)))
    assert repeated.strides == (0, 8) and np.array_equal(repeated, np.broadcast_to(array[0], (5, 4)))


def test_what_dlpack_cannot_give() -> None:
    tensor = sv.ones((2,))
    assert tensor.__dlpack_device__() == (1, 0)
    for asked in ({"copy": False}, {"dl_device": (2, 0)}, {"stream": 1}):
        with pytest.raises(BufferError):
            tensor.__dlpack__(**asked)
    assert tensor.__dlpack__(max_version=(1, 0), dl_device=(1, 0), copy=False) is not None
    # NumPy has no such dtype.
    brains = sv.ones((2,), dtype=sv.bfloat16)
    with pytest.raises((BufferError, RuntimeError)):
        np.from_dlpack(brains)
    brains[...] = 2.0
