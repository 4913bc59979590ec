"""Tensors: elements in and out, in-place operators, numbers of Python, text, pickling, coroutines."""

from __future__ import annotations

import asyncio
import copy
import pickle
from typing import Any

import numpy as np
import pytest
from dtypes import NAMES

import streamvm as sv


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
def test_elements_go_in_and_come_out(name: str, shape: tuple[int, ...]) -> None:
    array = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2).astype(name)
    tensor = sv.asarray(array)
    assert (tensor.dtype, tensor.shape, tensor.ndim, tensor.size) == (getattr(sv, name), shape, len(shape), array.size)
    assert tensor.nbytes == array.nbytes
    assert np.array_equal(tensor.numpy(), array)
    assert np.array_equal(np.asarray(tensor), array)
    assert isinstance(tensor.numpy(), np.ndarray) and tensor.numpy().dtype == array.dtype


@pytest.mark.parametrize(
    "array",
    [np.arange(12).reshape(3, 4)[:, ::2], np.arange(12).reshape(3, 4).T, np.arange(5)[::-1], np.arange(3, dtype=">i4")],
)
def test_arrays_with_gaps_or_of_the_other_byte_order(array: np.ndarray) -> None:
    assert np.array_equal(sv.asarray(array).numpy(), array)


def test_numbers_of_python_have_default_dtypes() -> None:
    assert [sv.asarray(it).dtype for it in (1, 1.5, True, [1, 2], [1.5], [True])] == [sv.int64, sv.float32, sv.bool] * 2
    assert sv.asarray(np.float64(1)).dtype == sv.float64
    assert sv.asarray([1, 2], dtype=sv.float16).dtype == sv.float16
    assert sv.asarray([1, 2], dtype="float64").dtype == sv.float64
    assert sv.asarray([0.5, 2], dtype=np.float64).dtype == sv.float64
    with pytest.raises(TypeError, match="numbers and truth values"):
        sv.asarray(["a"])
    with pytest.raises(ValueError, match="no dtype .complex128."):
        sv.asarray([1], dtype=complex)


def test_bfloat16_needs_a_conversion_for_numpy() -> None:
    tensor = sv.asarray([1.5, -2.0], dtype=sv.bfloat16)
    assert tensor.dtype == sv.bfloat16
    with pytest.raises(TypeError, match="bfloat16"):
        tensor.numpy()
    assert tensor[0].item() == 1.5
    assert "dtype=bfloat16" in repr(tensor)
    assert np.array_equal(sv.astype(tensor + tensor, sv.float32).numpy(), [3, -4])


def test_copies() -> None:
    tensor = sv.asarray([1, 2])
    assert sv.asarray(tensor) is tensor
    other = sv.asarray(tensor, copy=True)
    other[0] = 9
    assert tensor.numpy().tolist() == [1, 2]
    with pytest.raises(ValueError, match="always copied"):
        sv.asarray([1], copy=False)
    with pytest.raises(ValueError, match="another dtype"):
        sv.asarray(tensor, dtype=sv.float32, copy=False)
    with pytest.raises(ValueError, match="copy"):
        tensor.__array__(copy=False)
    assert tensor.__array__(dtype=np.dtype("f8")).dtype == np.float64
    array = np.array([1, 2])
    tensor = sv.asarray(array)
    array[0] = 7
    assert tensor.numpy().tolist() == [1, 2], "an array that changes after the call changes nothing"


@pytest.mark.parametrize("operator", ["+", "-", "*", "//", "%", "**", "&", "|", "^", "<<", ">>"])
def test_operators_in_place_write_the_memory(operator: str) -> None:
    for other in (2, "y"):
        values: dict[str, Any] = {"x": sv.asarray([7, 9, 12]), "y": sv.asarray([1, 2, 3])}
        arrays = {"x": np.array([7, 9, 12]), "y": np.array([1, 2, 3])}
        view = values["x"][1:]
        exec(f"x {operator}= {other}", values)
        exec(f"x {operator}= {other}", arrays)
        assert view.numpy().tolist() == arrays["x"][1:].tolist()


def test_operators_in_place_keep_the_dtype() -> None:
    tensor = sv.asarray([1, 2], dtype=sv.int8)
    with pytest.raises(TypeError, match="int64"):
        tensor += sv.asarray([1, 2])
    with pytest.raises(TypeError, match="float"):
        tensor += 1.5
    with pytest.raises(TypeError, match="true division"):
        tensor /= 2
    with pytest.raises(TypeError, match="list"):
        tensor += [1]
    with pytest.raises(ValueError):
        tensor += sv.asarray([[1, 2], [3, 4]], dtype=sv.int8)


def test_numbers_that_a_dtype_cannot_hold_are_refused() -> None:
    for call in (
        lambda: sv.asarray([1], dtype=sv.int8) + 300,
        lambda: sv.full((2,), -1, dtype=sv.uint8),
        lambda: sv.full((2,), 1.5, dtype=sv.int32),
    ):
        with pytest.raises(ValueError):
            call()


def test_what_is_no_tensor_is_no_operand() -> None:
    tensor = sv.asarray([1, 2])
    for other in ("a", [1, 2], None, np.array([1, 2])):
        with pytest.raises(TypeError):
            tensor + other
        with pytest.raises(TypeError):
            other + tensor
    with pytest.raises(TypeError, match="unhashable"):
        hash(tensor)


def test_single_elements_are_numbers() -> None:
    assert (int(sv.asarray(3)), float(sv.asarray(1.5)), complex(sv.asarray(2.0)), bool(sv.asarray([0]))) == (
        3,
        1.5,
        2,
        False,
    )
    assert [1, 2, 3][sv.asarray(1)] == 2
    assert sv.asarray(2**63, dtype=sv.uint64).item() == 2**63
    assert isinstance(sv.asarray(True).item(), bool)
    assert isinstance(sv.asarray(1.5).item(), float)
    with pytest.raises(TypeError, match="index"):
        [1][sv.asarray(0.0)]
    with pytest.raises(ValueError, match="2"):
        float(sv.asarray([1.0, 2.0]))


def test_numbers_of_numpy_are_numbers() -> None:
    x = sv.asarray([1.0, 2.0])
    for number in (np.float32(2), np.float64(2), np.int64(2)):
        assert (x * number).numpy().tolist() == (number * x).numpy().tolist() == [2, 4]
    x[0] = np.float32(5)
    assert x.numpy().tolist() == [5, 2]
    assert [sv.full((2,), it).dtype for it in (np.int32(3), np.bool_(True), sv.asarray(3))] == [
        sv.int32,
        sv.bool,
        sv.int64,
    ]
    assert sv.zeros(np.int64(3)).shape == sv.zeros((np.int64(3),)).shape == (3,)
    with pytest.raises(TypeError):
        x + np.str_("a")


def test_arrays_that_need_care() -> None:
    assert sv.asarray(np.array([2, 0], np.uint8).view(bool)).numpy().tolist() == [True, False]
    unaligned = np.frombuffer(b"x" + np.arange(3, dtype=np.int32).tobytes(), dtype=np.int32, offset=1)
    assert sv.asarray(unaligned).numpy().tolist() == [0, 1, 2]
    for array in (np.ones(2, complex), np.array([None]), np.array(["2024-01-01"], "M8[D]"), np.ones(2, np.longdouble)):
        with pytest.raises(TypeError, match="numbers and truth values"):
            sv.asarray(array)
    assert sv.asarray(np.ma.masked_array([1, 2], [True, False])).shape == (2,)


def test_copies_share_nothing() -> None:
    x = sv.asarray([[1.0, 2.0]])
    for copy_of in (
        +x,
        sv.flip(x, axis=()),
        sv.repeat(x, 1, axis=0),
        sv.positive(x),
        sv.roll(x, 0, axis=0),
        abs(x),
        sv.asarray(x, copy=True),
    ):
        copy_of += 1
        assert x.numpy().tolist() == [[1, 2]]


def test_unsigned_and_narrow_integers() -> None:
    x = sv.asarray([0, 3, 250], dtype=sv.uint8)
    assert (-x).numpy().tolist() == sv.negative(x).numpy().tolist() == [0, 253, 6]
    assert abs(x).numpy().tolist() == [0, 3, 250] and sv.sign(x).numpy().tolist() == [0, 1, 1]
    for name in ("int8", "int16", "uint8", "uint16", "uint32", "uint64"):
        a = np.arange(200, 206).reshape(2, 3).astype(name)
        found = sv.asarray(a) @ sv.asarray(a.T)
        assert str(found.dtype) == name and np.array_equal(found.numpy(), a @ a.T)


def test_arguments_that_cannot_be() -> None:
    x = sv.ones((2, 3))
    for call in (
        lambda: sv.zeros(-1),
        lambda: sv.repeat(x, -1),
        lambda: sv.tile(x, (-1,)),
        lambda: sv.broadcast_to(x, (-1, 2, 3)),
        lambda: sv.tensordot(x, x, axes=-1),
        lambda: sv.diff(x, n=-1),
        lambda: sv.reshape(x, (-1, -1)),
        lambda: sv.reshape(x, (4, -1)),
        lambda: sv.concat([]),
        lambda: sv.arange(1, 5, 0),
    ):
        with pytest.raises(ValueError):
            call()
    for call in (
        lambda: sv.linspace(0, 1, 3, dtype=sv.int32),
        lambda: sv.arange(0.5, 3, dtype=sv.int32),
        lambda: sv.zeros("a"),
    ):
        with pytest.raises(TypeError):
            call()
    assert sv.eye(3, k=10**9).numpy().tolist() == np.zeros((3, 3)).tolist()
    assert np.array_equal(sv.sum(sv.ones((1,) * 8), axis=()).numpy(), np.ones((1,) * 8))
    assert np.isinf(sv.var(sv.asarray([1.0, 2.0]), correction=3).item())


def test_comparisons_beside_arrays_are_refused_and_beside_other_things_false() -> None:
    x = sv.ones((2,))
    for other in (np.ones(2, np.float32), [1, 1], (1, 1)):
        for call in (lambda: x == other, lambda: other == x, lambda: x != other, lambda: x + other, lambda: x < other):
            with pytest.raises(TypeError, match="asarray|does not support"):
                call()
    assert (x == None) is False and (x != "a") is True  # noqa: E711
    assert (x == np.float32(1)).numpy().tolist() == [True, True]


def test_formats_and_iteration() -> None:
    assert f"{sv.asarray(1.25):.1f} {sv.asarray([1])}" == "1.2 Tensor([1], dtype=int64, device='cpu:0')"
    with pytest.raises(TypeError, match="without axes"):
        list(sv.asarray(1))
    with pytest.raises(ValueError, match="one element"):
        f"{sv.ones((2,)):.1f}"


def test_numbers_that_do_not_fit_are_refused_in_lists_too() -> None:
    for numbers, dtype in (([300], sv.uint8), ([-1], sv.uint16)):
        with pytest.raises(OverflowError):
            sv.asarray(numbers, dtype=dtype)
    assert sv.asarray([np.ones(2)]).dtype == sv.float64 and sv.asarray([np.float64(1)]).dtype == sv.float64
    assert sv.asarray([[1, 2], [3, 4]], dtype=sv.uint8).dtype == sv.uint8
    assert sv.asarray([]).dtype == sv.float32


def test_arguments_of_other_types() -> None:
    x = sv.ones((2, 3))
    for call in (
        lambda: sv.zeros((2,), device=0),
        lambda: sv.default_vm().call(3),
        lambda: sv.compile(3),
        lambda: sv.sqrt(np.ones(2)),
        lambda: sv.sum([1, 2]),
        lambda: sv.sqrt(2.0),
        lambda: x[np.array([0])],
        lambda: x[[0, 1]],
    ):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(TypeError, match="takes a Vm"), sv.use(3):
        pass
    one = np.int64(1)
    assert sv.sum(x, axis=one).shape == (2,) and sv.squeeze(sv.ones((2, 1)), axis=one).shape == (2,)
    assert sv.roll(x, one, axis=one).shape == sv.moveaxis(x, one, 0).T.shape == (2, 3)


@pytest.mark.parametrize("shape", [(3,), (2000,), (2, 1000), (50, 60), (3, 1, 700), (0, 5000), (40, 40, 40)])
def test_texts_show_what_those_of_arrays_show(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    expected = np.array2string(array, separator=", ", prefix="Tensor(")
    assert repr(sv.asarray(array)) == f"Tensor({expected}, dtype=int64, device='cpu:0')"


def test_texts() -> None:
    assert repr(sv.asarray([1, 2])) == "Tensor([1, 2], dtype=int64, device='cpu:0')"
    assert (repr(sv.float32), str(sv.float32), sv.float32.itemsize) == ("streamvm.float32", "float32", 4)
    assert sv.float32 == copy.deepcopy(sv.float32) == pickle.loads(pickle.dumps(sv.float32))
    assert {sv.float32: 1}[sv.float32] == 1


@pytest.mark.parametrize("name", [*NAMES, "bfloat16"])
def test_pickles_have_the_elements(name: str) -> None:
    tensor = sv.asarray([[0, 1], [1, 0]], dtype=getattr(sv, name))
    for other in (pickle.loads(pickle.dumps(tensor)), copy.deepcopy(tensor)):
        assert (other.dtype, other.shape, other.device) == (tensor.dtype, tensor.shape, tensor.device)
        assert bool(sv.all(other == tensor))


def test_transposed() -> None:
    tensor = sv.reshape(sv.arange(6), (2, 3))
    assert tensor.T.shape == tensor.mT.shape == (3, 2)
    with pytest.raises(ValueError, match="matrices"):
        sv.arange(3).T
    with pytest.raises(ValueError, match="matrices"):
        sv.arange(3).mT


def test_devices() -> None:
    tensor = sv.asarray([1, 2])
    assert tensor.device == "cpu:0"
    assert tensor.to_device("cpu:0") is tensor
    assert tensor.to_device("host").device == "host"
    assert sv.zeros((2,), device="host").device == "host"
    with pytest.raises(sv.UsageError, match="nowhere"):
        tensor.to_device("nowhere")
    with pytest.raises(sv.Error, match="cpu:9"):
        tensor.to_device("cpu:9").wait()


def test_coroutines_wait() -> None:
    async def one(number: int) -> int:
        tensor = sv.full((4,), number) * 2
        assert await tensor is tensor
        return int(tensor[0])

    async def all_of_them() -> list[int]:
        return await asyncio.gather(*(one(number) for number in range(20)))

    assert asyncio.run(all_of_them()) == [2 * number for number in range(20)]

    async def failing() -> None:
        await (sv.asarray([1]) // 0)

    with pytest.raises(sv.OperationError, match="divides by zero"):
        asyncio.run(failing())

    async def cancelled() -> None:
        vm = sv.default_vm()
        out = sv.empty((1,))
        ends = asyncio.Event()

        def waits() -> np.ndarray:
            import time

            time.sleep(0.05)
            return np.zeros(1)

        vm.call(waits, [], [out])
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_await(out), 0.001)
        ends.set()

    async def _await(tensor: sv.Tensor) -> None:
        await tensor

    asyncio.run(cancelled())
    sv.wait_all()


def test_the_namespace_is_that_of_the_standard() -> None:
    tensor = sv.asarray([1])
    assert tensor.__array_namespace__() is sv
    assert tensor.__array_namespace__(api_version="2024.12") is sv
    with pytest.raises(ValueError, match="2099.12"):
        tensor.__array_namespace__(api_version="2099.12")
    info = sv.__array_namespace_info__()
    assert info.default_device() in info.devices()
    assert info.dtypes(kind="bool") == {"bool": sv.bool}
    assert info.default_dtypes()["real floating"] == sv.zeros(()).dtype


def test_random_numbers_are_those_of_their_seed() -> None:
    one, two = (sv.rand((1000,), seed=5).numpy() for _ in range(2))
    assert np.array_equal(one, two) and not np.array_equal(one, sv.rand((1000,), seed=6).numpy())
    assert 0 <= one.min() and one.max() < 1 and abs(one.mean() - 0.5) < 0.05
    normal = sv.randn((1000,), seed=5).numpy()
    assert abs(normal.mean()) < 0.15 and abs(normal.std() - 1) < 0.1


def test_empty_tensors_must_be_written_first() -> None:
    tensor = sv.empty((3,))
    tensor[...] = 2
    assert tensor.numpy().tolist() == [2, 2, 2]
