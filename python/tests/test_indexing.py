"""Keys in brackets, against NumPy: what is read, what is written, and that views share memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import streamvm as sv


def pair(shape: tuple[int, ...]) -> tuple[sv.Tensor, np.ndarray]:
    array = np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)
    return sv.asarray(array), array


shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@given(data=st.data())
def test_reads_are_those_of_numpy(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    tensor, array = pair(shape)
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=True, max_dims=6))
    found = tensor[key]
    assert found.shape == array[key].shape
    assert np.array_equal(found.numpy(), array[key])


def goes_back(key: Any) -> bool:
    return any(isinstance(part, slice) and (part.step or 1) < 0 for part in (key if isinstance(key, tuple) else (key,)))


@given(data=st.data())
def test_writes_are_those_of_numpy(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    tensor, array = pair(shape)
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=True, max_dims=6))
    if goes_back(key):
        with pytest.raises(IndexError, match="backwards"):
            tensor[key] = 1
        return
    value = data.draw(st.integers(-9, 9))
    if data.draw(st.booleans()):
        tensor[key], array[key] = value, value
    else:
        part = np.full(array[key].shape[-1:], value, dtype=np.int32)
        tensor[key] = sv.asarray(part)
        array[key] = part
    assert np.array_equal(tensor.numpy(), array)


@given(data=st.data())
def test_views_share_memory_as_in_numpy(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=4))
    tensor, array = pair(shape)
    views = [(tensor, array)]
    for _ in range(data.draw(st.integers(1, 4))):
        one, other = data.draw(st.sampled_from(views))
        kind = data.draw(st.integers(0, 3))
        if kind == 0:
            key = data.draw(hnp.basic_indices(other.shape, allow_newaxis=False).filter(lambda key: not goes_back(key)))
            if not isinstance(other[key], np.ndarray):
                continue
            views.append((one[key], other[key]))
        elif kind == 1:
            order = data.draw(st.permutations(range(other.ndim)))
            views.append((sv.permute_dims(one, order), other.transpose(order)))
        elif kind == 2:
            one += 1
            other += 1
        else:
            one[...] = 5
            other[...] = 5
    for one, other in views:
        assert np.array_equal(one.numpy(), other)


@given(data=st.data())
def test_masks_and_indices(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=4))
    tensor, array = pair(shape)
    mask = data.draw(hnp.arrays(bool, shape[: data.draw(st.integers(1, len(shape)))]))
    assert np.array_equal(tensor[sv.asarray(mask)].numpy(), array[mask])
    indices = data.draw(
        hnp.arrays(np.int64, hnp.array_shapes(max_dims=2, max_side=3), elements=st.integers(-shape[0], shape[0] - 1))
    )
    assert np.array_equal(tensor[sv.asarray(indices)].numpy(), array[indices])
    last = indices % shape[-1]
    assert np.array_equal(tensor[..., sv.asarray(last)].numpy(), array[..., last])
    values = np.arange(array[mask].size, dtype=np.int32).reshape(array[mask].shape)
    tensor[sv.asarray(mask)] = sv.asarray(values)
    array[mask] = values
    tensor[sv.asarray(indices)] = 50
    array[indices] = 50
    unique = np.unique(last)
    tensor[..., sv.asarray(unique)] = sv.asarray(np.arange(unique.size, dtype=np.int32))
    array[..., unique] = np.arange(unique.size)
    tensor[sv.asarray(mask)] = -1
    array[mask] = -1
    assert np.array_equal(tensor.numpy(), array)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (4, "index 4 is out of range for axis 0 with 3 elements"),
        ((0, -5), "index -5 is out of range for axis 1 with 4 elements"),
        ((0, 0, 0), "the key names 3 axes, and the tensor has 2"),
        ((..., ...), "at most once"),
    ],
)
def test_keys_that_do_not_fit(key: Any, message: str) -> None:
    tensor, _ = pair((3, 4))
    with pytest.raises(IndexError, match=message):
        tensor[key]


def test_keys_of_other_types() -> None:
    tensor, _ = pair((3, 4))
    row, places = tensor[0], sv.asarray([1])
    for key in ((places, slice(None)), (..., places, slice(None)), (..., places, ...), (slice(None), ..., places)):
        with pytest.raises(IndexError):
            row[key]
    with pytest.raises(IndexError):
        row[row > 0, :] = 7
    with pytest.raises(IndexError, match="out of range"):
        row[2**70]
    with pytest.raises(TypeError, match="no str"):
        tensor["a"]
    with pytest.raises(IndexError, match="integers and truth values"):
        tensor[sv.asarray([1.0])]
    with pytest.raises(IndexError, match="the mask has the shape"):
        tensor[sv.asarray([True])]
    with pytest.raises(TypeError, match="float32 cannot be written|no common dtype"):
        tensor[0] = sv.asarray([1.0, 2.0, 3.0, 4.0])
    with pytest.raises(TypeError, match="no list"):
        tensor[0] = [1, 2, 3, 4]


def test_an_index_out_of_range_fails_the_operation_at_its_line() -> None:
    tensor, _ = pair((3, 4))
    taken = sv.take(tensor, sv.asarray([5]), axis=0)
    with pytest.raises(sv.OperationError, match="5"):
        taken.wait()


def test_parts_of_a_tensor_are_written_by_parts_that_overlap_them() -> None:
    tensor, array = pair((8,))
    tensor[1:] = tensor[:-1]
    array[1:] = array[:-1].copy()
    assert np.array_equal(tensor.numpy(), array)
    tensor[1:] += tensor[:-1]
    array[1:] += array[:-1].copy()
    assert np.array_equal(tensor.numpy(), array)


def test_iteration_and_length() -> None:
    tensor, array = pair((3, 2))
    assert len(tensor) == 3
    assert [row.numpy().tolist() for row in tensor] == array.tolist()
    with pytest.raises(TypeError, match="no length"):
        len(sv.asarray(1))
