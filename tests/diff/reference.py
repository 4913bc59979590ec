"""What each kernel of the script language means, in NumPy, with the error that streamvm may make.

What is one expression of NumPy comes from the table of ops; the rest is written from docs/language.md. Each function takes arrays as `dtypes.py` keeps them and gives an
`Exact` or `Near`. A unit below is half the distance from 1 to the next number of the type that streamvm computes in (f32 for 16-bit
floats), so that one correctly rounded operation is off by at most one unit of its result.

Two names mean the same in every function:

* `lost`: by how much the roundings on the way may change a number.
* `wild`: where streamvm may give anything, because a number on the way may be past the range, lose all its digits, or be an infinity or NaN by
  roundings alone. It becomes `free` of a `Near`.
"""

import math

import numpy as np

from dtypes import COMPUTED, LARGEST, SMALLEST, STORE, UNIT, WIDE, is_float, rounded
from result import Exact, Near
from tables import ROWS

# Sums of 16-bit floats are added up in f32, all others in f64.
SUM_UNIT = {"f32": 2.0**-53, "f64": 2.0**-53, "f16": 2.0**-24, "bf16": 2.0**-24}


def wide(array, dtype):
    return np.asarray(array).astype(WIDE[dtype])


def narrow(array, dtype):
    return np.asarray(array).astype(COMPUTED[dtype])


def finite(array):
    return np.where(np.isfinite(array), array, 0)


# Elementwise functions: the expression that the row of the op gives, or what stands here.

# Of the C library; NumPy has none.
ERF, ERFC = (np.vectorize(function, otypes=[np.float64]) for function in (math.erf, math.erfc))


def formula(function):
    """The expression of the row, as a function of arrays."""
    text = ROWS[function]["numpy"]
    if text is None:
        raise KeyError(f"the row of {function} has no NumPy form, and reference.py none either")
    return eval(f"lambda a, b=None, **how: {text.format('a', 'b')}", {"np": np, "erf": ERF, "erfc": ERFC})


def elementwise(function):
    compute, ulp = formula(function), ROWS[function]["ulp"]

    def meaning(dtype, *arrays):
        if not is_float(dtype):
            return Exact(compute(*arrays))
        if ulp is None:
            found = compute(*(narrow(array, dtype) for array in arrays))
            return Exact(found if found.dtype == np.bool_ else rounded(found, dtype))
        expected = compute(*(wide(array, dtype) for array in arrays))
        # A function that NumPy has for f64 alone is off by some units itself.
        own = 2 if expected.dtype == np.float64 and dtype == "f64" else 0
        return Near(dtype, expected, (2 * ulp + own) * UNIT[COMPUTED[dtype]] * np.abs(finite(expected)) + 2 * SMALLEST[COMPUTED[dtype]])
    return meaning


def relu(dtype, a):
    return Exact(np.maximum(a, np.zeros((), a.dtype)), zeros=True)


def activation(function):
    """A function that is 0 at minus infinity. The exponential in it has an argument, at most the square of the number, whose rounding in f64
    changes the result by as many units."""
    def meaning(dtype, a):
        x = wide(a, dtype)
        expected = np.where(np.isneginf(x), 0, formula(function)(np.where(np.isneginf(x), 0, x)))
        own = 2 * ROWS[function]["ulp"] * UNIT[COMPUTED[dtype]] * np.abs(expected)
        return Near(dtype, expected, own + 4 * SUM_UNIT["f64"] * finite(x * x * np.abs(expected)) + 2 * SMALLEST[COMPUTED[dtype]])
    return meaning


def divide(dtype, a, b):
    """Of integers towards zero; the smallest by -1 wraps."""
    if is_float(dtype):
        return Exact(rounded(narrow(a, dtype) / narrow(b, dtype), dtype))
    if np.any(np.broadcast_arrays(a, b)[1] == 0):
        raise ZeroDivisionError
    down = a // b
    uneven = (down * b != a) & ((a < 0) != (b < 0))
    return Exact(down + uneven.astype(down.dtype))


def division_down(function):
    """The quotient rounded down, or what it leaves."""
    def meaning(dtype, a, b):
        if is_float(dtype):
            return Exact(rounded(function(narrow(a, dtype), narrow(b, dtype)), dtype))
        if np.any(np.broadcast_arrays(a, b)[1] == 0):
            raise ZeroDivisionError
        return Exact(function(a, b))
    return meaning


def extreme(function):
    def meaning(dtype, a, b):
        return Exact(function(a, b), zeros=True)
    return meaning


UNARY = {"relu": relu, **{name: activation(name) for name in ("gelu", "gelu_tanh", "silu")}}
BINARY = {"div": divide, "floor_div": division_down(np.floor_divide), "remainder": division_down(np.remainder),
          "min": extreme(np.minimum), "max": extreme(np.maximum)}


def unary(function):
    return UNARY.get(function) or elementwise(function)


def binary(function):
    return BINARY.get(function) or elementwise(function)


def where(dtype, condition, a, b):
    return Exact(np.where(condition, a, b))


def clamp(dtype, a, low, high):
    return Exact(np.minimum(np.maximum(a, low), high), zeros=True)


# Reductions. No axes are all axes.

def over(array, axes):
    return tuple(range(array.ndim)) if not axes else tuple(axes)


def terms(array, axes):
    return int(np.prod([array.shape[axis] for axis in over(array, axes)], dtype=np.int64))


def fold(function):
    """A reduction whose row gives its expression: for floats a sum, or a mean, of terms."""
    compute = formula(function)

    def meaning(dtype, a, axes, keep):
        how = {"axis": over(a, axes), "keepdims": keep}
        if not is_float(dtype):
            return Exact(compute(a, **how).astype(a.dtype))
        expected, size = compute(wide(a, dtype), **how), compute(np.abs(wide(a, dtype)), **how)
        return Near(dtype, expected, 2 * terms(a, axes) * SUM_UNIT[dtype] * finite(size) + 2 * UNIT[COMPUTED[dtype]] * np.abs(finite(expected)))
    return meaning


def extreme_of(function):
    def meaning(dtype, a, axes, keep):
        return Exact(function(a, axis=over(a, axes), keepdims=keep), zeros=True)
    return meaning


def product(dtype, a, axes, keep):
    axes, count = over(a, axes), terms(a, axes)
    if not is_float(dtype):
        return Exact(np.prod(a, axis=axes, keepdims=keep, dtype=a.dtype))
    expected = np.prod(wide(a, dtype), axis=axes, keepdims=keep)
    # Whether a product on the way, in any order, may leave the range of what streamvm multiplies in: f64, or f32 of 16-bit floats.
    with np.errstate(divide="ignore"):
        sizes = np.log2(np.abs(wide(a, dtype)).astype(np.float64))
    largest = 120 if dtype in ("f16", "bf16") else 1000
    up = np.sum(np.where(np.isfinite(sizes) & (sizes > 0), sizes, 0), axis=axes, keepdims=keep)
    down = np.sum(np.where(np.isfinite(sizes) & (sizes < 0), -sizes, 0), axis=axes, keepdims=keep)
    leaves = (up > largest) | (down > largest)
    error = (2 * count * SUM_UNIT[dtype] + 2 * UNIT[COMPUTED[dtype]]) * np.abs(expected)
    return Near(dtype, expected, np.where(np.isfinite(error), error, 0), free=leaves)


def deviation(root):
    """The variance, or its square root, in f64, and rounded once."""
    def meaning(dtype, a, axes, keep):
        axes, count = over(a, axes), terms(a, axes)
        x = wide(a, dtype)
        away = x - np.sum(x, axis=axes, keepdims=True) / count
        variance = np.sum(away * away, axis=axes, keepdims=keep) / count
        size = np.max(np.abs(finite(x)), axis=axes, keepdims=keep)
        # What the differences and their sum lose; the squares may be subnormal numbers.
        lost = 8 * (count + 2) * SUM_UNIT["f64"] * (size * np.sqrt(finite(variance)) + SUM_UNIT["f64"] * size * size) + 2 * SMALLEST[np.float64]
        error = lost + UNIT[COMPUTED[dtype]] * finite(variance)
        if root:
            # The root of a number that is off by `error` is off by at most this.
            error = error / np.maximum(np.sqrt(finite(variance)), np.sqrt(error) + SMALLEST[COMPUTED[dtype]])
            variance = np.sqrt(variance)
            error = error + UNIT[COMPUTED[dtype]] * finite(variance)
        return Near(dtype, variance, error, free=size > 1e150)
    return meaning


REDUCE = {"var": deviation(False), "std": deviation(True), "prod": product, "max": extreme_of(np.max), "min": extreme_of(np.min)}


def reduction(function):
    return REDUCE.get(function) or fold(function)


def place_of(function):
    def meaning(dtype, a, axis, keep):
        return Exact(function(a, axis=axis, keepdims=keep).astype(np.int64))
    return meaning


ARG = {"argmax": place_of(np.argmax), "argmin": place_of(np.argmin)}


# Softmax and its like.

def along(a, axis):
    """The differences to the largest element, their exponentials, the sum of these, and by how many units rounding the differences
    changes that sum."""
    if a.size == 0:
        return a, a, np.ones(()), np.zeros(())
    less = a - np.max(a, axis=axis, keepdims=True)
    powers = np.exp(less)
    sums = np.sum(powers, axis=axis, keepdims=True)
    spread = np.sum(np.where(less == 0, 0, finite(powers * (np.abs(less) + 2))), axis=axis, keepdims=True) / sums
    return less, powers, sums, spread


def softmax(dtype, a, axis):
    less, powers, sums, spread = along(wide(a, dtype), axis)
    expected = powers / sums
    # The powers are added up in f64: each addition is off by one unit of the sum at most.
    adding = a.shape[axis] * SUM_UNIT["f64"]
    return Near(dtype, expected, expected * (UNIT[COMPUTED[dtype]] * (2 * finite(np.abs(less)) + 2 * spread + 8) + adding))


def log_softmax(dtype, a, axis):
    less, _, sums, spread = along(wide(a, dtype), axis)
    log = np.log(sums)
    expected = less - log
    count = a.shape[axis]
    error = UNIT[COMPUTED[dtype]] * (2 * np.abs(less) + 2 * np.abs(log) + 2 * spread + np.abs(expected)) + count * 2.0**-52
    # Where two huge numbers of opposite sign are apart by more than the largest number, the difference is an infinity.
    return Near(dtype, expected, error)


def softmax_backward(dtype, y, dy, axis):
    y, dy, count = wide(y, dtype), wide(dy, dtype), y.shape[axis]
    sums = np.sum(y * dy, axis=axis, keepdims=True)
    size = np.sum(np.abs(finite(y) * finite(dy)), axis=axis, keepdims=True)
    expected = y * (dy - sums)
    error = np.abs(y) * (3 * UNIT[COMPUTED[dtype]] * np.abs(dy - sums) + 4 * count * 2.0**-53 * (size + np.abs(finite(dy))))
    # Products, their sum and the difference may be subnormal.
    error = error + np.abs(finite(y)) * 2 * (count + 1) * SMALLEST[COMPUTED[dtype]]
    largest = LARGEST[COMPUTED[dtype]] / 4
    return Near(dtype, expected, error, free=(size > largest) | (np.abs(finite(dy)) > largest))


def log_softmax_backward(dtype, y, dy, axis):
    y, dy, count = wide(y, dtype), wide(dy, dtype), y.shape[axis]
    sums, size = np.sum(dy, axis=axis, keepdims=True), np.sum(np.abs(finite(dy)), axis=axis, keepdims=True)
    powers = np.exp(y)
    expected = dy - powers * sums
    unit = UNIT[COMPUTED[dtype]]
    error = 3 * unit * np.abs(powers * sums) + 2 * SMALLEST[COMPUTED[dtype]] * np.abs(finite(sums)) + 4 * count * 2.0**-53 * finite(powers) * size + 2 * unit * np.abs(expected)
    largest = LARGEST[COMPUTED[dtype]] / 4
    # A power that underflows to zero makes a NaN of an infinite sum.
    underflows = ~np.isfinite(sums) & (powers < 2 * SMALLEST[COMPUTED[dtype]])
    return Near(dtype, expected, error, free=(size > largest) | (np.abs(finite(powers)) * np.maximum(size, 1) > largest) | underflows)


def normal_rows(x, epsilon):
    """Rows of mean 0 and variance 1, in f64: the numbers, what its roundings change of them, and where they may be anything."""
    count = max(np.shape(x)[-1], 1)
    away = x - np.sum(x, axis=-1, keepdims=True) / count
    variance = np.sum(away * away, axis=-1, keepdims=True) / count
    root = np.sqrt(variance + epsilon)
    # What the sums lose, relative to the largest element, is divided by the root.
    size = np.max(np.abs(finite(x)), axis=-1, keepdims=True, initial=0)
    lost = 8 * (count + 2) * SUM_UNIT["f64"] * (size / root + np.abs(finite(away / root)) * (1 + size * size / (root * root)))
    # A mean of subnormal numbers is off by a step of them, which is divided by the root, too; so is the quotient.
    lost = lost + 2 * SMALLEST[np.float64] * (1 + 1 / root)
    # Squares that are past the range of f64, or lose all their digits, give anything. A row with an infinity or NaN is all NaN.
    wild = (~np.isfinite(lost) & np.isfinite(x).all(axis=-1, keepdims=True)) | (size > 1e150) | (root < 1e-150)
    return away / root, np.where(np.isfinite(lost), lost, 0), wild


def layer_norm(dtype, a, weight, bias, epsilon):
    """In f64, and rounded once."""
    weight, bias = wide(weight, dtype), wide(bias, dtype)
    normal, lost, wild = normal_rows(wide(a, dtype), epsilon)
    expected = normal * weight + bias
    error = lost * np.abs(finite(weight)) + 4 * SUM_UNIT["f64"] * np.abs(finite(bias)) + UNIT[COMPUTED[dtype]] * np.abs(finite(expected))
    # An infinite weight makes a NaN of a zero, and an infinity of what is near it.
    wild = wild | (np.abs(finite(weight)) > 1e150) | (~np.isfinite(weight) & (np.abs(normal) <= lost))
    return Near(dtype, expected, np.where(np.isfinite(error), error, 0) + 2 * SMALLEST[COMPUTED[dtype]], free=np.broadcast_to(wild, np.shape(expected)))


def rms_norm(dtype, a, weight, epsilon):
    """In f64, and rounded once."""
    x, weight, count = wide(a, dtype), wide(weight, dtype), max(np.shape(a)[-1], 1)
    root = np.sqrt(np.sum(x * x, axis=-1, keepdims=True) / count + epsilon)
    expected = x / root * weight
    size = np.max(np.abs(finite(x)), axis=-1, keepdims=True, initial=0)
    error = (4 * (count + 4) * SUM_UNIT["f64"] + UNIT[COMPUTED[dtype]]) * np.abs(finite(expected))
    # A quotient that is a subnormal number, or none, is off by a step of them, which the weight multiplies.
    error = error + 2 * SMALLEST[np.float64] * np.abs(finite(weight))
    # Squares that are past the range of f64, or lose all their digits, give anything.
    wild = (size > 1e150) | (np.abs(finite(weight)) > 1e150) | (root < 1e-150)
    # An infinite weight makes a NaN of a quotient that is zero.
    wild = wild | (~np.isfinite(weight) & (np.abs(x / root) <= 2 * SMALLEST[np.float64]))
    return Near(dtype, expected, np.where(np.isfinite(error), error, 0) + 2 * SMALLEST[COMPUTED[dtype]], free=np.broadcast_to(wild, np.shape(expected)))


def index_select(dtype, table, indices):
    if np.any((indices < 0) | (indices.astype(np.int64) >= table.shape[0])):
        raise IndexError
    return Exact(table[indices.astype(np.int64)])


def cumsum(dtype, a, axis):
    if not is_float(dtype):
        return Exact(np.cumsum(a, axis=axis, dtype=a.dtype))
    expected = np.cumsum(wide(a, dtype), axis=axis)
    size = np.cumsum(np.abs(finite(wide(a, dtype))), axis=axis)
    # A sum on the way may be past the range.
    return Near(dtype, expected, 2 * a.shape[axis] * SUM_UNIT[dtype] * size, free=size > LARGEST[COMPUTED[dtype]] / 4)


def take_along_axis(dtype, a, axis, indices):
    return Exact(np.take_along_axis(a, indices.astype(np.int64), axis))


def scatter(dtype, a, axis, indices, source):
    """One place of the axis of the indices after the other."""
    result = np.array(a)
    for step in range(indices.shape[axis]):
        at, new = (np.take(each, [step], axis) for each in (indices.astype(np.int64), source))
        np.put_along_axis(result, at, new, axis)
    return Exact(result)


def scatter_add(dtype, a, axis, indices, source):
    result = np.array(a)
    for step in range(indices.shape[axis]):
        at, new = (np.take(each, [step], axis) for each in (indices.astype(np.int64), source))
        there = np.take_along_axis(result, at, axis)
        np.put_along_axis(result, at, binary("add")(dtype, there, new).array, axis)
    return Exact(result)


def sort(a, axis, descending, count, gives_places):
    """The first `count` elements along an axis in sorted order, or their places. Equal elements keep their order, and NaN is the largest."""
    if descending:
        # Backwards twice, so that equal elements keep their order.
        backwards = np.argsort(np.flip(a, axis), axis, kind="stable")
        places = np.flip(a.shape[axis] - 1 - backwards, axis)
    else:
        places = np.argsort(a, axis, kind="stable")
    places = np.take(places, range(count), axis)
    return Exact(places.astype(np.int64) if gives_places else np.take_along_axis(a, places, axis))


def cross_entropy(dtype, logits, targets):
    less, _, sums, spread = along(wide(logits, dtype), -1)
    log = np.log(sums)[..., 0] if logits.size else np.zeros(targets.shape)
    known = (targets >= 0) & (targets < logits.shape[-1])
    own = np.take_along_axis(less, np.where(known, targets, 0)[..., None], -1)[..., 0]
    expected = np.where(known, log - own, 0)
    unit = UNIT[COMPUTED[dtype]]
    lost = unit * (2 * np.abs(own) + 2 * np.abs(log) + 2 * (spread[..., 0] if logits.size else 0) + np.abs(expected)) + logits.shape[-1] * 2.0**-52
    return Near(dtype, expected, np.where(known & np.isfinite(lost), lost, 0) + SMALLEST[COMPUTED[dtype]])


def cross_entropy_backward(dtype, logits, targets, dy):
    less, powers, sums, spread = along(wide(logits, dtype), -1)
    known = ((targets >= 0) & (targets < logits.shape[-1]))[..., None]
    dy = wide(dy, dtype)[..., None]
    shares = powers / sums
    expected = np.where(known, (shares - (targets[..., None] == np.arange(logits.shape[-1]))) * dy, 0)
    unit = UNIT[COMPUTED[dtype]]
    lost = unit * (shares * (2 * finite(np.abs(less)) + 2 * spread + 8) + 2) * np.abs(dy) + 2 * unit * np.abs(expected)
    # A product of a share that is nearly 0 and an infinity is one or NaN.
    free = known & ~np.isfinite(dy) & (shares < 2 * SMALLEST[COMPUTED[dtype]])
    return Near(dtype, expected, np.where(np.isfinite(lost), lost, 0) + 2 * SMALLEST[COMPUTED[dtype]] * (1 + np.abs(finite(dy))), free=np.broadcast_to(free, expected.shape))


BY_INDEX = {"take_along_axis": take_along_axis, "scatter": scatter, "scatter_add": scatter_add}
ALONG = {"softmax": softmax, "log_softmax": log_softmax, "cumsum": cumsum}
ALONG_PAIR = {"softmax_backward": softmax_backward, "log_softmax_backward": log_softmax_backward}


# The others.

def matmul(dtype, a, b):
    if not is_float(dtype):
        return Exact(np.matmul(a, b))
    a, b, count = wide(a, dtype), wide(b, dtype), a.shape[-1]
    expected = np.matmul(a, b)
    size = np.matmul(np.abs(finite(a)), np.abs(finite(b)))
    error = 2 * (count + 2) * UNIT[COMPUTED[dtype]] * size + count * SMALLEST[COMPUTED[dtype]]
    # A sum on the way may be past the range, and what follows an infinity is one or NaN.
    return Near(dtype, expected, error, free=size > LARGEST[COMPUTED[dtype]] / 4)


def cast(dtype, a, to):
    """A float becomes the nearest integer towards zero, the nearest end of the range past it, 0 if it is NaN; an integer keeps its low
    bits; everything but zero becomes true; what becomes a float is rounded once."""
    a = np.asarray(a)
    if to == "bool":
        return Exact(a != 0)
    if is_float(to):
        return Exact(rounded(a, to))
    if not is_float(dtype):
        return Exact(a.astype(STORE[to]))
    ends = np.iinfo(STORE[to])
    whole = np.trunc(np.where(np.isnan(a), 0, a.astype(np.longdouble)))
    inside = (whole >= ends.min) & (whole <= ends.max)
    within = np.where(inside, whole, 0).astype(STORE[to])
    return Exact(np.where(inside, within, np.where(whole < 0, ends.min, ends.max)).astype(STORE[to]))


def pad(dtype, a, before, after, axes, value):
    axes = over(a, axes)
    widths = [(before, after) if axis in axes else (0, 0) for axis in range(a.ndim)]
    if not widths:
        return Exact(a.copy())
    return Exact(np.pad(a, widths, constant_values=literal(value, dtype)))


def flip(dtype, a, axes):
    return Exact(np.array(np.flip(a, over(a, axes))))


TRIANGLE = {"tril": np.tril, "triu": np.triu}


def triangle(function, a, diagonal):
    return Exact(TRIANGLE[function](a, diagonal))


def one_hot(dtype, a, classes, to):
    hot = np.asarray(a)[..., None] == np.arange(classes)
    return Exact(hot.astype(STORE[to]))


def literal(value, dtype):
    """A number of the script as an element of a dtype."""
    if is_float(dtype):
        exact = np.longdouble(value) if isinstance(value, int) else np.float64(value)
        return rounded(exact, dtype)[()]
    return STORE[dtype](value)
