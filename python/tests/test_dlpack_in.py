"""DLPack in: memory of other libraries that nobody writes is shared, and all else is copied."""

from __future__ import annotations

import ctypes
import gc
import pathlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dtypes import NAMES

import streamvm as sv


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def shares(tensor: sv.Tensor, array: np.ndarray) -> bool:
    return np.shares_memory(np.from_dlpack(tensor), array)


def soon(holds: Callable[[], bool]) -> bool:
    """Whether it comes true: memory is given back by another thread."""
    for _ in range(3000):
        if holds():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1, 1), (3, 4)])
def test_what_is_read_only_is_shared(name: str, shape: tuple[int, ...]) -> None:
    array = read_only(np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2, dtype=name))
    for copy in (None, True) if name == "bool" else (None, True, False):
        tensor = sv.from_dlpack(array, copy=copy)
        assert (str(tensor.dtype), tensor.shape, tensor.device) == (name, shape, "cpu:0")
        assert np.array_equal(tensor.numpy(), array)
        assert shares(tensor, array) == (copy is not True and name != "bool" and array.size > 0)


def test_views_are_shared_as_they_lie() -> None:
    array = read_only(np.arange(60.0)).reshape(3, 4, 5)
    views = [array[1:, ::2, 3], array.T, array[:, None, :, 0], np.broadcast_to(array[0], (7, 4, 5)), array[2:2]]
    for view in views:
        tensor = sv.from_dlpack(view)
        assert tensor.shape == view.shape and np.array_equal(tensor.numpy(), view)
        assert np.array_equal((tensor + 1).numpy(), view + 1)
        assert shares(tensor, array) == (view.size > 0)
    backwards = sv.from_dlpack(array[::-1])
    assert np.array_equal(backwards.numpy(), array[::-1]) and not shares(backwards, array)
    # An axis of one element may have any stride.
    odd = np.lib.stride_tricks.as_strided(array, (1, 4), (-8, 40), writeable=False)
    tensor = sv.from_dlpack(odd, copy=False)
    assert shares(tensor, array) and np.array_equal(tensor.numpy(), odd)


def test_what_may_be_written_is_copied_unless_the_caller_says_otherwise() -> None:
    array = np.arange(6.0)
    tensor, shared = sv.from_dlpack(array), sv.from_dlpack(array, copy=False)
    array[:] = 7.0
    assert tensor.numpy().tolist() == [0, 1, 2, 3, 4, 5] and shared.numpy().tolist() == [7.0] * 6
    tensor[...] = 1.0
    assert array[0] == 7.0
    assert shares(shared, array) and not shares(sv.from_dlpack(array, copy=True), array)
    assert shared.to_device("host").numpy()[0] == 7.0
    host = sv.from_dlpack(array, device="host", copy=False)
    assert host.device == "host" and shares(host, array)


def test_memory_of_others_is_not_written() -> None:
    array = np.arange(4.0)
    tensor = sv.from_dlpack(array, copy=False)

    def call() -> None:
        sv.default_vm().call(lambda: np.zeros(4), writes=[tensor])

    changes: list[Callable[[], Any]] = [
        lambda: tensor.__setitem__(..., 0.0),
        lambda: tensor[1:].__setitem__(0, 0.0),
        lambda: tensor.__iadd__(1),
        call,
    ]
    for change in changes:
        with pytest.raises(sv.LentError, match=r"shared with code outside.*write a copy"):
            change()
    assert (tensor * 2).numpy().tolist() == [0, 2, 4, 6] and array.tolist() == [0, 1, 2, 3]


def test_a_read_only_view_of_what_may_be_written_is_copied() -> None:
    array = np.arange(4.0)
    view = read_only(array.view())
    memory = bytearray(array.tobytes())
    over_bytes = np.frombuffer(memoryview(memory).toreadonly())
    views = [view, view[1:], np.broadcast_to(array, (2, 4)), over_bytes]
    tensors = [sv.from_dlpack(view) for view in views]
    expected = [view.copy() for view in views]
    later = [tensor + 1 for tensor in tensors]
    array[:] = 7.0
    memory[:8] = bytes(8)
    memory[8:16] = bytes(8)
    for tensor, sum_, copy in zip(tensors, later, expected, strict=True):
        assert np.array_equal(tensor.numpy(), copy) and np.array_equal(sum_.numpy(), copy + 1)
    assert shares(sv.from_dlpack(view, copy=False), array)
    constant = np.frombuffer(bytes(16))
    assert shares(sv.from_dlpack(constant), constant)


def test_an_array_is_kept_until_all_has_read_it() -> None:
    array = read_only(np.arange(1000.0))
    before = sys.getrefcount(array)
    tensor = sv.from_dlpack(array)
    seen = []

    def late(x: np.ndarray) -> None:
        time.sleep(0.1)
        seen.append((float(x[-1]), sys.getrefcount(array)))

    sv.default_vm().call(late, [tensor])
    view = tensor[3:]
    del tensor
    time.sleep(0.2)
    assert sys.getrefcount(array) > before, "a view is left"
    sv.default_vm().call(late, [view])
    del view
    # Nothing else is submitted.
    assert soon(lambda: sys.getrefcount(array) == before)
    assert [last for last, _ in seen] == [999.0, 999.0] and all(count > before for _, count in seen)


def test_the_end_of_an_engine_gives_arrays_back() -> None:
    array = read_only(np.arange(8.0))
    before = sys.getrefcount(array)
    vm = sv.Vm()
    with sv.use(vm):
        tensor = sv.from_dlpack(array)
        lent = np.from_dlpack(tensor)
        assert sys.getrefcount(array) > before
    vm.close()
    del vm, tensor
    gc.collect()
    assert np.array_equal(lent, array)
    del lent
    gc.collect()
    assert soon(lambda: sys.getrefcount(array) == before)


def test_a_mapped_file_is_read_where_it_is(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "weights.npy"
    np.save(path, np.arange(100_000, dtype=np.float32).reshape(100, 1000))
    weights = np.load(path, mmap_mode="r")
    tensor = sv.from_dlpack(weights)
    assert shares(tensor, weights)
    assert (tensor @ sv.ones((1000, 1))).numpy()[0, 0] == 499_500.0
    del weights, tensor


def test_engines_share_tensors() -> None:
    """Also in a dtype that NumPy does not have."""
    array = np.asarray([1.5, -2.0])
    for mode in ("threaded", "inline", "simulated"):
        ours = sv.asarray(array, dtype=sv.bfloat16)
        vm = sv.Vm(mode=mode, detect_races=mode == "simulated")
        with sv.use(vm):
            theirs = sv.from_dlpack(Proxy(ours))
            with pytest.raises(sv.LentError):
                ours[...] = 0.0
            assert sv.astype(theirs * 2, sv.float32).numpy().tolist() == [3.0, -4.0]
            other = sv.from_dlpack(read_only(np.arange(5.0)))
            assert (other[1:] + other[:-1]).numpy().tolist() == [1, 3, 5, 7]
            del theirs, other
        vm.wait_all()

        def is_back(tensor: sv.Tensor = ours) -> bool:
            try:
                tensor[...] = 0.0
            except sv.LentError:
                return False
            return True

        assert soon(is_back), mode
        vm.close()


def test_arrays_go_to_devices() -> None:
    vm = sv.Vm(mode="simulated", sim_devices=1)
    with sv.use(vm):
        array = read_only(np.arange(6.0).reshape(2, 3))
        there = sv.from_dlpack(array.T, device="sim:0")
        assert there.device == "sim:0" and np.array_equal((there + 1).numpy(), array.T + 1)
        there[0, 0] = 5.0
        assert there.numpy()[0, 0] == 5.0 and array[0, 0] == 0.0
        assert sv.from_dlpack(np.arange(2.0), device="sim:0").numpy().tolist() == [0, 1]
        with pytest.raises(BufferError, match="sim:0 is a copy; leave `copy` out"):
            sv.from_dlpack(array, device="sim:0", copy=False)
    vm.close()


def test_threads_share_arrays() -> None:
    arrays = [read_only(np.full(64, float(number))) for number in range(8)]
    before = [sys.getrefcount(array) for array in arrays]
    wrong = []

    def work() -> None:
        for turn in range(200):
            array = arrays[turn % 8]
            tensor = sv.from_dlpack(array)
            other = threading.Thread(target=lambda tensor=tensor: wrong.extend(tensor.numpy()[tensor.numpy() != array]))
            doubled = tensor + tensor
            if turn % 20 == 0:
                other.start()
                other.join()
            del tensor, other
            if not np.array_equal(doubled.numpy(), array * 2):
                wrong.append(turn)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert soon(lambda: [sys.getrefcount(array) for array in arrays] == before)


class Proxy:
    """An array of a library whose `__dlpack__` takes and gives what a test says."""

    def __init__(self, array: Any, *, device: tuple[int, int] = (1, 0), only: tuple[str, ...] | None = None) -> None:
        self.array, self.device, self.only, self.asked = array, device, only, []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **asked: Any) -> Any:
        self.asked.append(asked)
        if self.only is not None and any(name not in self.only for name in asked):
            raise TypeError("an unexpected argument")
        return self.array.__dlpack__(**asked) if hasattr(self.array, "__dlpack__") else self.array


def test_libraries_of_earlier_versions() -> None:
    array = np.arange(4.0)
    old = Proxy(array, only=())
    assert shares(sv.from_dlpack(old, copy=False), array)
    assert old.asked[-1] == {}
    assert not shares(sv.from_dlpack(old), array), "such a library cannot say that nobody writes it"


def test_a_library_on_another_device_is_asked_for_a_copy() -> None:
    for device in ((2, 1), (10, 0)):
        there = Proxy(np.arange(3.0), device=device)
        tensor = sv.from_dlpack(there)
        assert [asked["dl_device"] for asked in there.asked] == [(1, 0)] and tensor.numpy().tolist() == [0, 1, 2]
        assert not shares(tensor, there.array), "its library has not said that it is a copy"
    pinned = Proxy(read_only(np.arange(3.0)), device=(3, 0))
    assert shares(sv.from_dlpack(pinned), pinned.array) and "dl_device" not in pinned.asked[0]


class Version(ctypes.Structure):
    _fields_ = (("major", ctypes.c_uint32), ("minor", ctypes.c_uint32))


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("kind", ctypes.c_int32),
        ("number", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = (
        ("version", Version),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p,) * 3
NAME = ctypes.create_string_buffer(b"dltensor_versioned")


# Another thread calls their deleters.
MADE: list[Made] = []


class Made:
    """A capsule that a test has made, over eight numbers from 1 to 8."""

    def __init__(self, *, version: int = 1, flags: int = 1, **fields: Any) -> None:
        self.numbers = (ctypes.c_double * 8)(*range(1, 9))
        self.axes = (ctypes.c_int64 * 4)(2, 4, 4, 1)
        shape = ctypes.addressof(self.axes)
        fields = {
            "data": ctypes.addressof(self.numbers),
            "kind": 1,
            "ndim": 2,
            "code": 2,
            "bits": 64,
            "lanes": 1,
            "shape": shape,
            "strides": shape + 16,
        } | fields
        self.deleted: list[int] = []
        self.managed = Managed(
            Version(version, 0),
            None,
            DELETER(self.deleted.append),
            flags,
            DLTensor(**fields),
        )
        MADE.append(self)
        self.capsule = new_capsule(ctypes.addressof(self.managed), ctypes.addressof(NAME), None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule


def test_structs_of_other_makers() -> None:
    made = Made()
    tensor = sv.from_dlpack(made)
    assert tensor.numpy().tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]] and not made.deleted
    with pytest.raises(BufferError, match="new capsule"):
        sv.from_dlpack(made)
    del tensor
    assert soon(lambda: len(made.deleted) == 1)
    assert sv.from_dlpack(Made(strides=None)).numpy()[1].tolist() == [5, 6, 7, 8]
    assert sv.from_dlpack(Made(byte_offset=16, ndim=0)).numpy() == 3.0
    assert sv.from_dlpack(Made(flags=2, kind=3)).shape == (2, 4)
    half = Made(flags=0, code=4, bits=16)
    copy = sv.from_dlpack(half)
    assert copy.dtype == sv.bfloat16, "NumPy, which copies all else, has no such dtype"
    assert soon(lambda: len(half.deleted) == 1)
    copy[...] = 1.0
    # Elements 0, 4, 1, 5, ... of what lies behind each other.
    axes = (ctypes.c_int64 * 4)(4, 2, 1, 4)
    where = ctypes.addressof(axes)
    turned = Made(flags=0, code=4, bits=16, shape=where, strides=where + 16)
    rows = sv.astype(sv.from_dlpack(turned), sv.float32).numpy()
    plain = sv.astype(sv.from_dlpack(Made(flags=0, code=4, bits=16)), sv.float32).numpy()
    assert rows.shape == (4, 2) and np.array_equal(rows, plain.T)
    assert sv.from_dlpack(Made(flags=0, code=4, bits=16, ndim=0)).shape == ()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"version": 2}, r"version 2\.0 of DLPack, and 1 is known"),
        ({"kind": 2}, "not in memory of the CPU"),
        ({"kind": 77}, "not in memory of the CPU"),
        ({"code": 99}, "type that tensors do not have"),
        ({"code": 5, "bits": 128}, "type that tensors do not have"),
        ({"lanes": 2}, "type that tensors do not have"),
        ({"code": 6, "bits": 8}, "truth values"),
        ({"byte_offset": 4}, "not aligned"),
        ({"ndim": 99}, "more axes"),
        ({"shape": None}, "without their sizes"),
        ({"data": None}, "without an address"),
        ({"ndim": -1}, "without their sizes"),
    ],
)
def test_structs_that_cannot_be_shared(fields: dict[str, Any], says: str) -> None:
    if fields.get("ndim") == 99:
        axes = (ctypes.c_int64 * 198)(*[1] * 198)
        fields = fields | {"shape": ctypes.addressof(axes), "strides": ctypes.addressof(axes)}
    made = Made(**fields)
    with pytest.raises(BufferError, match=says):
        sv.from_dlpack(made, copy=False)
    assert made.deleted, "it is given back"


def test_what_is_no_array() -> None:
    for wrong in ([1, 2], None, 3.0, object()):
        with pytest.raises(TypeError, match=r"no elements by DLPack; use streamvm\.asarray"):
            sv.from_dlpack(wrong)
    with pytest.raises(BufferError, match="new capsule"):
        sv.from_dlpack(Proxy("a string"))
    complex_array = read_only(np.zeros(2, dtype=complex))
    with pytest.raises(TypeError, match="complex"):
        sv.from_dlpack(complex_array)
    array = np.arange(3.0)
    with pytest.raises(sv.UsageError):
        sv.from_dlpack(array, device="nowhere")
    with pytest.raises(BufferError, match="backwards"):
        sv.from_dlpack(array[::-1], copy=False)
    tensor = sv.asarray(array)
    assert sv.from_dlpack(tensor, copy=False) is tensor and sv.from_dlpack(tensor, copy=True) is not tensor

    class Raises(Proxy):
        def __dlpack__(self, **_: Any) -> Any:
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        sv.from_dlpack(Raises(None))
