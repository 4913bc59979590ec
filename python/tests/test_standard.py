"""Each function that has a name of the array API standard, against array-api-strict, for every dtype that both have."""

from __future__ import annotations

from typing import Any

import array_api_strict as xp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.array_api import make_strategies_namespace

import streamvm as sv

xp.set_array_api_strict_flags(api_version="2024.12")
xps = make_strategies_namespace(xp, api_version="2024.12")

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float32", "float64"]
SIGNED = INTEGERS[:4] + FLOATS
NUMBERS = INTEGERS + FLOATS
ALL = [*NUMBERS, "bool"]

# Where both round, how far apart the results may be, in units of the last place of the dtype of the result.
ROUNDED = {
    name: 8
    for name in "acos asin atan atan2 cos cosh divide exp expm1 log log10 log1p log2 logaddexp pow reciprocal sin sinh sqrt tan tanh".split()
}


def to_numpy(x: Any) -> np.ndarray:
    return x.numpy() if isinstance(x, sv.Tensor) else np.asarray(x._array)


def same(ours: sv.Tensor, theirs: Any, name: str, ulps: float = 0) -> None:
    """Compares shape, dtype and elements: exactly, or within some units of the last place."""
    expected = to_numpy(theirs)
    assert ours.shape == expected.shape, name
    assert str(ours.dtype) == str(expected.dtype), name
    found = ours.numpy()
    if ulps and expected.dtype.kind == "f":
        with np.errstate(all="ignore"):
            scale = np.spacing(np.abs(expected).astype(expected.dtype))
            scale = np.where(np.isfinite(scale), scale, np.finfo(expected.dtype).max)
            near = np.abs(found.astype("f8") - expected.astype("f8")) <= ulps * scale.astype("f8")
        assert np.all(near | (found == expected) | (np.isnan(found) & np.isnan(expected))), (
            f"{name}: {found} and {expected}"
        )
    else:
        assert np.array_equal(found, expected, equal_nan=expected.dtype.kind == "f"), f"{name}: {found} and {expected}"


def dtypes(names: list[str]) -> st.SearchStrategy[Any]:
    return st.sampled_from([getattr(xp, name) for name in names])


def arrays(dtype: Any, shape: Any = None, **elements: Any) -> st.SearchStrategy[Any]:
    shape = xps.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4) if shape is None else shape
    return xps.arrays(dtype, shape, elements=elements or None)


def ours(x: Any) -> sv.Tensor:
    return sv.asarray(to_numpy(x))


def axes_of(rank: int) -> st.SearchStrategy[Any]:
    """All axes, none, one or several."""
    one = st.integers(-rank, rank - 1)
    several = st.lists(one, max_size=rank, unique_by=lambda axis: axis % rank).map(tuple)
    return st.none() | one | several if rank else st.none()


UNARY = {
    "abs": NUMBERS, "acos": FLOATS, "asin": FLOATS, "atan": FLOATS, "bitwise_invert": [*INTEGERS, "bool"], "ceil": NUMBERS, "cos": FLOATS, "cosh": FLOATS, "exp": FLOATS,
    "expm1": FLOATS, "floor": NUMBERS, "isfinite": FLOATS, "isinf": FLOATS, "isnan": FLOATS, "log": FLOATS, "log10": FLOATS, "log1p": FLOATS, "log2": FLOATS,
    "logical_not": ["bool"], "negative": SIGNED, "positive": NUMBERS, "reciprocal": FLOATS, "round": NUMBERS, "sign": SIGNED, "sin": FLOATS, "sinh": FLOATS, "sqrt": FLOATS,
    "square": NUMBERS, "tan": FLOATS, "tanh": FLOATS, "trunc": NUMBERS,
}  # fmt: skip
BINARY = {
    "add": NUMBERS, "atan2": FLOATS, "bitwise_and": [*INTEGERS, "bool"], "bitwise_or": [*INTEGERS, "bool"], "bitwise_xor": [*INTEGERS, "bool"], "divide": FLOATS, "equal": ALL,
    "greater": NUMBERS, "greater_equal": NUMBERS, "less": NUMBERS, "less_equal": NUMBERS, "logaddexp": FLOATS, "logical_and": ["bool"], "logical_or": ["bool"],
    "logical_xor": ["bool"], "maximum": NUMBERS, "minimum": NUMBERS, "multiply": NUMBERS, "not_equal": ALL, "subtract": NUMBERS,
}  # fmt: skip
# What the standard leaves open, or NumPy warns of, is not drawn: these have their own tests.
OWN = ["floor_divide", "remainder", "pow", "bitwise_left_shift", "bitwise_right_shift"]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", UNARY)
@given(data=st.data())
def test_functions_of_one_tensor(name: str, data: st.DataObject) -> None:
    x = data.draw(arrays(data.draw(dtypes(UNARY[name]))))
    same(getattr(sv, name)(ours(x)), getattr(xp, name)(x), name, ROUNDED.get(name, 0))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", BINARY)
@given(data=st.data())
def test_functions_of_two_tensors(name: str, data: st.DataObject) -> None:
    one, two = data.draw(xps.mutually_broadcastable_shapes(2, max_dims=3, min_side=0, max_side=4)).input_shapes
    first, second = data.draw(dtypes(BINARY[name])), data.draw(dtypes(BINARY[name]))
    x, y = data.draw(arrays(first, one)), data.draw(arrays(second, two))
    call = getattr(sv, name)
    try:
        expected = getattr(xp, name)(x, y)
    except TypeError:
        with pytest.raises(TypeError):
            call(ours(x), ours(y))
        return
    same(call(ours(x), ours(y)), expected, name, ROUNDED.get(name, 0))


@pytest.mark.parametrize("name", ["floor_divide", "remainder"])
@given(data=st.data())
def test_divisions_of_integers(name: str, data: st.DataObject) -> None:
    dtype = data.draw(dtypes(INTEGERS))
    shape = data.draw(xps.array_shapes(max_dims=2, max_side=4))
    x = data.draw(arrays(dtype, shape, min_value=0, max_value=100))
    y = data.draw(arrays(dtype, shape, min_value=1, max_value=9))
    x, y = (x, y) if "u" in str(dtype) else (xp.astype(x - xp.asarray(50, dtype=dtype), dtype), y)
    same(getattr(sv, name)(ours(x), ours(y)), getattr(xp, name)(x, y), name)


@given(data=st.data())
def test_powers_and_shifts(data: st.DataObject) -> None:
    dtype = data.draw(dtypes(INTEGERS))
    x = data.draw(arrays(dtype, (5,), min_value=0, max_value=100))
    y = data.draw(arrays(dtype, (5,), min_value=0, max_value=6))
    for name in ("pow", "bitwise_left_shift", "bitwise_right_shift"):
        same(getattr(sv, name)(ours(x), ours(y)), getattr(xp, name)(x, y), name)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "var", "std", "all", "any"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@given(data=st.data())
def test_reductions(name: str, data: st.DataObject) -> None:
    names = FLOATS if name in ("mean", "var", "std") else ALL if name in ("all", "any") else NUMBERS
    dtype = data.draw(dtypes(names))
    least = 0 if name in ("sum", "prod", "all", "any") else 1
    shape = data.draw(xps.array_shapes(min_dims=0, max_dims=3, min_side=least, max_side=4))
    small = {"min_value": 0, "max_value": 8} if dtype != xp.bool else {}
    x = data.draw(arrays(dtype, shape, **small))
    axis = data.draw(axes_of(len(shape)))
    how = {"axis": axis, "keepdims": data.draw(st.booleans())}
    if name in ("var", "std"):
        how["correction"] = data.draw(st.sampled_from([0, 1, 0.5]))
    same(getattr(sv, name)(ours(x), **how), getattr(xp, name)(x, **how), f"{name} {how}", 64)


@pytest.mark.parametrize("name", ["argmax", "argmin", "argsort", "sort", "cumulative_sum"])
@given(data=st.data())
def test_functions_along_an_axis(name: str, data: st.DataObject) -> None:
    shape = data.draw(xps.array_shapes(min_dims=1, max_dims=3, max_side=5))
    # Without fractions, so that sums are exact.
    x = data.draw(arrays(data.draw(dtypes(INTEGERS)), shape, min_value=0, max_value=9))
    if data.draw(st.booleans()):
        x = xp.astype(x, data.draw(dtypes(FLOATS)))
    how: dict[str, Any] = {"axis": data.draw(st.integers(-len(shape), len(shape) - 1))}
    if name in ("argsort", "sort"):
        how["descending"] = data.draw(st.booleans())
    elif name == "cumulative_sum":
        how["include_initial"] = data.draw(st.booleans())
    else:
        how["keepdims"] = data.draw(st.booleans())
        how["axis"] = data.draw(st.none() | st.just(how["axis"]))
    same(getattr(sv, name)(ours(x), **how), getattr(xp, name)(x, **how), f"{name} {how}")


@given(data=st.data())
def test_products(data: st.DataObject) -> None:
    dtype = data.draw(dtypes(["int32", "int64", *FLOATS]))
    m, k, n = (data.draw(st.integers(0, 4)) for _ in range(3))
    batch = data.draw(st.sampled_from([(), (2,), (3, 1)]))
    small = (
        {"min_value": -4, "max_value": 4} if dtype not in (xp.float32, xp.float64) else {"min_value": 0, "max_value": 4}
    )
    x, y = data.draw(arrays(dtype, (*batch, m, k), **small)), data.draw(arrays(dtype, (k, n), **small))
    a, b = ours(x), ours(y)
    same(a @ b, x @ y, "matmul", 64)
    same(sv.matrix_transpose(a), xp.matrix_transpose(x), "matrix_transpose")
    row = data.draw(arrays(dtype, (k,), **small))
    same(sv.matmul(a, ours(row)), xp.matmul(x, row), "matrix by vector", 64)
    same(sv.matmul(ours(row), b), xp.matmul(row, y), "vector by matrix", 64)
    same(sv.matmul(ours(row), ours(row)), xp.matmul(row, row), "vector by vector", 64)
    same(sv.vecdot(a, ours(row)), xp.vecdot(x, row), "vecdot", 64)
    same(sv.tensordot(a, b, axes=1), xp.tensordot(x, y, axes=1), "tensordot", 64)
    same(sv.tensordot(a, b, axes=((-1,), (0,))), xp.tensordot(x, y, axes=((-1,), (0,))), "tensordot over pairs", 64)


@given(data=st.data())
def test_shapes(data: st.DataObject) -> None:
    shape = data.draw(xps.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    x = data.draw(arrays(data.draw(dtypes(ALL)), shape))
    a, rank = ours(x), len(shape)
    order = data.draw(st.permutations(range(rank)))
    same(sv.permute_dims(a, order), xp.permute_dims(x, tuple(order)), "permute_dims")
    new = data.draw(st.integers(-rank - 1, rank))
    same(sv.expand_dims(a, axis=new), xp.expand_dims(x, axis=new), "expand_dims")
    same(sv.squeeze(sv.expand_dims(a, axis=new), new), x, "squeeze")
    same(sv.flip(a), xp.flip(x), "flip")
    same(sv.reshape(a, (-1,) if x.size else (0,)), xp.reshape(x, (-1,) if x.size else (0,)), "reshape")
    same(sv.roll(a, 3), xp.roll(x, 3), "roll of a row")
    same(sv.stack([a, a], axis=new), xp.stack([x, x], axis=new), "stack")
    same(sv.concat([a, a], axis=None), xp.concat([x, x], axis=None), "concat of rows")
    same(sv.tile(a, (2, 1, 3)), xp.tile(x, (2, 1, 3)), "tile")
    same(sv.broadcast_to(a, (2, *shape)), xp.broadcast_to(x, (2, *shape)), "broadcast_to")
    same(sv.repeat(a, 2), xp.repeat(x, 2), "repeat")
    if rank == 0:
        return
    axis = data.draw(st.integers(-rank, rank - 1))
    to = data.draw(st.integers(-rank, rank - 1))
    same(sv.moveaxis(a, axis, to), xp.moveaxis(x, axis, to), "moveaxis")
    same(sv.flip(a, axis=axis), xp.flip(x, axis=axis), "flip along an axis")
    same(sv.roll(a, -2, axis=axis), xp.roll(x, -2, axis=axis), "roll along an axis")
    same(sv.concat([a, a], axis=axis), xp.concat([x, x], axis=axis), "concat")
    same(sv.repeat(a, 3, axis=axis), xp.repeat(x, 3, axis=axis), "repeat along an axis")
    for one, other in zip(sv.unstack(a, axis=axis), xp.unstack(x, axis=axis), strict=True):
        same(one, other, "unstack")
    if shape[axis]:
        indices = data.draw(
            arrays(data.draw(dtypes(["int32", "int64"])), (3,), min_value=-shape[axis], max_value=shape[axis] - 1)
        )
        same(sv.take(a, ours(indices), axis=axis), xp.take(x, indices, axis=axis), "take")
        along = data.draw(arrays(xp.int64, shape, min_value=0, max_value=shape[axis] - 1))
        same(sv.take_along_axis(a, ours(along), axis=axis), xp.take_along_axis(x, along, axis=axis), "take_along_axis")


@given(data=st.data())
def test_creation(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NUMBERS))
    a, b = getattr(sv, name), getattr(xp, name)
    shape = data.draw(xps.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    for call in ("zeros", "ones"):
        same(getattr(sv, call)(shape, dtype=a), getattr(xp, call)(shape, dtype=b), call)
        like = sv.zeros(shape, dtype=a)
        same(getattr(sv, f"{call}_like")(like), getattr(xp, call)(shape, dtype=b), f"{call}_like")
    same(sv.full(shape, 5, dtype=a), xp.full(shape, 5, dtype=b), "full")
    same(sv.full_like(like, 5), xp.full(shape, 5, dtype=b), "full_like")
    rows, columns, k = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 4)), data.draw(st.integers(-5, 5))
    same(sv.eye(rows, columns, k=k, dtype=a), xp.eye(rows, columns, k=k, dtype=b), f"eye {rows} {columns} {k}")
    ones, theirs = sv.ones((3, 4), dtype=a), xp.ones((3, 4), dtype=b)
    same(sv.tril(ones, k=k), xp.tril(theirs, k=k), "tril")
    same(sv.triu(ones, k=k), xp.triu(theirs, k=k), "triu")
    stop, step = data.draw(st.integers(0, 20)), data.draw(st.integers(1, 5))
    same(sv.arange(1, stop, step, dtype=a), xp.arange(1, stop, step, dtype=b), "arange")
    if name in FLOATS:
        ends = data.draw(st.booleans())
        number = data.draw(st.integers(0 if ends else 1, 9))
        same(
            sv.linspace(-1, 2, number, dtype=a, endpoint=ends),
            xp.linspace(-1, 2, number, dtype=b, endpoint=ends),
            "linspace",
            8,
        )
    for indexing in ("xy", "ij"):
        sizes = [xp.arange(size, dtype=b) for size in (2, 3, 1)]
        for one, other in zip(
            sv.meshgrid(*map(ours, sizes), indexing=indexing), xp.meshgrid(*sizes, indexing=indexing), strict=True
        ):
            same(one, other, "meshgrid")


@given(data=st.data())
def test_conversions_and_choices(data: st.DataObject) -> None:
    shape = data.draw(xps.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=4))
    x = data.draw(arrays(data.draw(dtypes(NUMBERS)), shape, min_value=0, max_value=100))
    wanted = data.draw(st.sampled_from(ALL))
    same(sv.astype(ours(x), getattr(sv, wanted)), xp.astype(x, getattr(xp, wanted)), f"astype {wanted}")
    y = data.draw(arrays(x.dtype, shape, min_value=0, max_value=100))
    mask = data.draw(arrays(xp.bool, shape))
    same(sv.where(ours(mask), ours(x), ours(y)), xp.where(mask, x, y), "where")
    same(sv.clip(ours(x), 10, 50), xp.clip(x, 10, 50), "clip")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@given(data=st.data())
def test_counts_differences_and_sets(data: st.DataObject) -> None:
    shape = data.draw(xps.array_shapes(min_dims=1, max_dims=3, max_side=4))
    x = data.draw(arrays(data.draw(dtypes(NUMBERS)), shape, min_value=0, max_value=5))
    a, axis = ours(x), data.draw(st.integers(-len(shape), len(shape) - 1))
    same(sv.count_nonzero(a, axis=axis), xp.count_nonzero(x, axis=axis), "count_nonzero")
    for n in (0, 1, 2):
        same(sv.diff(a, axis=axis, n=n), xp.diff(x, axis=axis, n=n), f"diff {n}")
    same(sv.diff(a, axis=axis, prepend=a, append=a), xp.diff(x, axis=axis, prepend=x, append=x), "diff between")
    same(sv.conj(a), x, "conj")
    for one, other in zip(sv.nonzero(a), xp.nonzero(x), strict=True):
        same(one, other, "nonzero")
    same(sv.unique_values(a), xp.unique_values(x), "unique_values")
    for name in ("unique_all", "unique_counts", "unique_inverse"):
        found, expected = getattr(sv, name)(a), getattr(xp, name)(x)
        assert found._fields == expected._fields
        for one, other in zip(found, expected, strict=True):
            same(one, other, name)
    if "int" in str(x.dtype):
        assert np.array_equal(sv.isin(a, a[0]).numpy(), np.isin(to_numpy(x), to_numpy(x)[0]))


@pytest.mark.parametrize("one", ALL)
@pytest.mark.parametrize("other", ALL)
def test_promotions(one: str, other: str) -> None:
    def of(namespace: Any) -> Any:
        try:
            return str(namespace.result_type(getattr(namespace, one), getattr(namespace, other))).split(".")[-1]
        except TypeError:
            return None

    assert of(sv) == of(xp)
    assert sv.can_cast(getattr(sv, one), getattr(sv, other)) == (of(sv) == other)


@pytest.mark.parametrize("name", NUMBERS)
def test_limits(name: str) -> None:
    call = "finfo" if name in FLOATS else "iinfo"
    found, expected = getattr(sv, call)(getattr(sv, name)), getattr(xp, call)(getattr(xp, name))
    for field in ("bits", "max", "min") + (("eps", "smallest_normal") if name in FLOATS else ()):
        assert getattr(found, field) == getattr(expected, field), field
    for kind in ("bool", "signed integer", "unsigned integer", "integral", "real floating", "numeric"):
        assert sv.isdtype(getattr(sv, name), kind) == xp.isdtype(getattr(xp, name), kind)


@pytest.mark.parametrize(
    "operator", ["+", "-", "*", "/", "//", "%", "**", "&", "|", "^", "<<", ">>", "==", "!=", "<", "<=", ">", ">="]
)
@pytest.mark.parametrize("name", ALL)
def test_operators_beside_numbers(operator: str, name: str) -> None:
    elements = [True, False, True] if name == "bool" else [3, 5, 2]
    x, y = sv.asarray(elements, dtype=getattr(sv, name)), xp.asarray(elements, dtype=getattr(xp, name))
    for number in (True, 2, 1.5):
        for text in (f"x {operator} {number}", f"{number} {operator} x"):
            try:
                expected = eval(text, {"x": y})
            except TypeError:
                # False is smaller than true here; the standard orders numbers alone.
                if not (name == "bool" and number is True and operator[0] in "<>" and len(operator.strip("=")) == 1):
                    with pytest.raises(TypeError):
                        eval(text, {"x": x})
                continue
            same(eval(text, {"x": x}), expected, text, 8)


def test_every_name_is_tested() -> None:
    """The standard's names that this package has: each is above, or in the list of those that other files test."""
    with open(__file__) as file:
        text = file.read()
    elsewhere = {
        "__array_api_version__",
        "__version__",
        "from_dlpack",
        "result_type",
        "asarray",
        "bool",
        *ALL,
        "empty",
        "ones_like",
        "zeros_like",
        "empty_like",
        "broadcast_arrays",
        "broadcast_shapes",
        "e",
        "inf",
        "nan",
        "pi",
        "newaxis",
        "__array_namespace_info__",
        *OWN,
    }
    names = [name for name in xp.__all__ if hasattr(sv, name)]
    assert len(names) > 110
    missing = [
        name
        for name in names
        if name not in elsewhere
        and f'"{name}"' not in text
        and f"sv.{name}(" not in text
        and f"{name}_like" not in text
    ]
    assert missing == []
