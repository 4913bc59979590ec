"""What each kernel of the script language means, in NumPy, with the error that streamvm may make.

Written from docs/language.md and shares no code with streamvm. Each function takes arrays as `dtypes.py` keeps them and gives an
`Exact` or `Near`. A unit below is half the distance from 1 to the next number of the type that streamvm computes in (f32 for 16-bit
floats), so that one correctly rounded operation is off by at most one unit of its result.
"""

import math

import numpy as np

from dtypes import COMPUTED, LARGEST, SMALLEST, STORE, UNIT, WIDE, is_float, rounded
from result import Exact, Near

# Sums of 16-bit floats are added up in f32, all others in f64.
SUM_UNIT = {"f32": 2.0**-53, "f64": 2.0**-53, "f16": 2.0**-24, "bf16": 2.0**-24}


def wide(array, dtype):
    return np.asarray(array).astype(WIDE[dtype])


def narrow(array, dtype):
    return np.asarray(array).astype(COMPUTED[dtype])


def finite(array):
    return np.where(np.isfinite(array), array, 0)


# Elementwise functions of one operand.

def neg(dtype, a):
    return Exact(np.negative(a))


def absolute(dtype, a):
    return Exact(np.abs(a))


def relu(dtype, a):
    return Exact(np.maximum(a, np.zeros((), a.dtype)), zeros=True)


def sqrt(dtype, a):
    return Exact(rounded(np.sqrt(narrow(a, dtype)), dtype))


def elementary(function, units):
    """A function of the C library, which is off by so many units."""
    def meaning(dtype, a):
        expected = function(wide(a, dtype))
        return Near(dtype, expected, units * UNIT[COMPUTED[dtype]] * np.abs(expected))
    return meaning


def logistic(x):
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


# Of the C library; NumPy has none.
ERF, ERFC = (np.vectorize(function, otypes=[np.float64]) for function in (math.erf, math.erfc))


def activation(function, units):
    """A function that is 0 at minus infinity; `function` gives the expected value and the argument of an exponential, whose rounding in
    NumPy changes the result by as many units."""
    def meaning(dtype, a):
        x = wide(a, dtype)
        expected, argument = function(np.where(np.isneginf(x), 0, x))
        expected = np.where(np.isneginf(x), 0, expected)
        own = units * UNIT[COMPUTED[dtype]] * np.abs(expected)
        return Near(dtype, expected, own + 4 * SUM_UNIT["f64"] * finite(np.abs(argument) * np.abs(expected)) + 2 * SMALLEST[COMPUTED[dtype]])
    return meaning


def gelu(x):
    return 0.5 * x * ERFC(-x * np.sqrt(0.5)), x * x


def gelu_tanh(x):
    argument = 2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x * x * x)
    return x / (1 + np.exp(-argument)), argument


def silu(x):
    return x / (1 + np.exp(-x)), x


def rsqrt(dtype, a):
    return Exact(rounded(1 / np.sqrt(narrow(a, dtype)), dtype))


UNARY = {"erf": elementary(ERF, 6), "gelu": activation(gelu, 14), "gelu_tanh": activation(gelu_tanh, 10), "silu": activation(silu, 10),
         "rsqrt": rsqrt, "neg": neg, "abs": absolute, "relu": relu, "sqrt": sqrt, "exp": elementary(np.exp, 2), "log": elementary(np.log, 2),
         "tanh": elementary(np.tanh, 4), "sigmoid": elementary(logistic, 5)}


# Elementwise functions of two operands, and `where`.

def arithmetic(function):
    def meaning(dtype, a, b):
        if is_float(dtype):
            return Exact(rounded(function(narrow(a, dtype), narrow(b, dtype)), dtype))
        return Exact(function(a, b))
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


def power(dtype, a, b):
    if is_float(dtype):
        expected = np.power(wide(a, dtype), wide(b, dtype))
        return Near(dtype, expected, 4 * UNIT[COMPUTED[dtype]] * np.abs(expected))
    a, b = np.broadcast_arrays(a, b)
    return Exact(np.power(a, b))  # raises where an exponent is negative


def extreme(function):
    def meaning(dtype, a, b):
        return Exact(function(a, b), zeros=True)
    return meaning


def comparison(function):
    def meaning(dtype, a, b):
        return Exact(function(a, b))
    return meaning


BINARY = {"add": arithmetic(np.add), "sub": arithmetic(np.subtract), "mul": arithmetic(np.multiply), "div": divide, "pow": power,
          "min": extreme(np.minimum), "max": extreme(np.maximum)}
COMPARE = {"eq": comparison(np.equal), "ne": comparison(np.not_equal), "lt": comparison(np.less), "le": comparison(np.less_equal),
           "gt": comparison(np.greater), "ge": comparison(np.greater_equal)}


def where(dtype, condition, a, b):
    return Exact(np.where(condition, a, b))


# Reductions. No axes are all axes.

def over(array, axes):
    return tuple(range(array.ndim)) if not axes else tuple(axes)


def terms(array, axes):
    return int(np.prod([array.shape[axis] for axis in over(array, axes)], dtype=np.int64))


def total(dtype, a, axes, keep):
    axes, count = over(a, axes), terms(a, axes)
    if not is_float(dtype):
        return Exact(np.sum(a, axis=axes, keepdims=keep, dtype=a.dtype))
    expected = np.sum(wide(a, dtype), axis=axes, keepdims=keep)
    size = np.sum(np.abs(wide(a, dtype)), axis=axes, keepdims=keep)
    return Near(dtype, expected, 2 * count * SUM_UNIT[dtype] * finite(size))


def mean(dtype, a, axes, keep):
    axes, count = over(a, axes), terms(a, axes)
    expected = np.sum(wide(a, dtype) / count, axis=axes, keepdims=keep)
    size = np.sum(np.abs(wide(a, dtype)) / count, axis=axes, keepdims=keep)
    unit = UNIT[COMPUTED[dtype]]
    return Near(dtype, expected, 2 * count * SUM_UNIT[dtype] * finite(size) + 2 * unit * np.abs(expected))


def extreme_of(function):
    def meaning(dtype, a, axes, keep):
        return Exact(function(a, axis=over(a, axes), keepdims=keep), zeros=True)
    return meaning


REDUCE = {"sum": total, "mean": mean, "max": extreme_of(np.max), "min": extreme_of(np.min)}


def argmax(dtype, a, axis, keep):
    return Exact(np.argmax(a, axis=axis, keepdims=keep).astype(np.int64))


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
    return Near(dtype, expected, UNIT[COMPUTED[dtype]] * expected * (2 * finite(np.abs(less)) + 2 * spread + 8))


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


def layer_norm(dtype, a, weight, bias, epsilon):
    """In f64, and rounded once."""
    x, weight, bias, count = wide(a, dtype), wide(weight, dtype), wide(bias, dtype), max(np.shape(a)[-1], 1)
    away = x - np.sum(x, axis=-1, keepdims=True) / count
    variance = np.sum(away * away, axis=-1, keepdims=True) / count
    root = np.sqrt(variance + epsilon)
    expected = away / root * weight + bias
    # What the sums lose, relative to the largest element, is divided by the root.
    size = np.max(np.abs(finite(x)), axis=-1, keepdims=True, initial=0)
    lost = 8 * (count + 2) * SUM_UNIT["f64"] * (size / root + np.abs(finite(away / root)) * (1 + size * size / (root * root)))
    error = lost * np.abs(finite(weight)) + 4 * SUM_UNIT["f64"] * np.abs(finite(bias)) + UNIT[COMPUTED[dtype]] * np.abs(finite(expected))
    # Squares and products that are past the range of f64, or lose all their digits, give anything.
    wild = ~np.isfinite(lost) | (size > 1e150) | (np.abs(finite(weight)) > 1e150) | (root < 1e-150)
    return Near(dtype, expected, np.where(np.isfinite(error), error, 0) + 2 * SMALLEST[COMPUTED[dtype]], free=np.broadcast_to(wild, np.shape(expected)))


def index_select(dtype, table, indices):
    if np.any((indices < 0) | (indices.astype(np.int64) >= table.shape[0])):
        raise IndexError
    return Exact(table[indices.astype(np.int64)])


ALONG = {"softmax": softmax, "log_softmax": log_softmax}
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


def one_hot(dtype, a, classes, to):
    hot = np.asarray(a)[..., None] == np.arange(classes)
    return Exact(hot.astype(STORE[to]))


def literal(value, dtype):
    """A number of the script as an element of a dtype."""
    if is_float(dtype):
        exact = np.longdouble(value) if isinstance(value, int) else np.float64(value)
        return rounded(exact, dtype)[()]
    return STORE[dtype](value)
