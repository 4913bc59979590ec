"""What attention, group norm and dropout mean, in NumPy, with the error that streamvm may make; see reference.py.

docs/language.md says of which ops each is made, and that each op rounds its result to the dtype. So an error is followed from op to op: an op
changes the error that its operands have, adds its own, and `stored` adds that of rounding the result. `lost` and `wild` are defined in reference.py.
"""

import numpy as np

import philox
from dtypes import COMPUTED, LARGEST, NARROW, SMALLEST, UNIT, rounded
from reference import SUM_UNIT, along, finite, narrow, normal_rows, wide
from result import Exact, Near

# Half the distance from 1 to the next number of a dtype, its smallest number and its largest.
ROUNDING = {"f32": 2.0**-24, "f64": 2.0**-53, "f16": 2.0**-11, "bf16": 2.0**-8}
LEAST = {"f32": SMALLEST[np.float32], "f64": SMALLEST[np.float64], "f16": 2.0**-24, "bf16": 2.0**-133}
MOST = {dtype: NARROW[dtype][2] if dtype in NARROW else LARGEST[COMPUTED[dtype]] for dtype in ROUNDING}


def stored(dtype, numbers, error):
    """The error of numbers that are off by `error` and rounded: in what streamvm computes in, and to the dtype."""
    return error + (ROUNDING[dtype] + UNIT[COMPUTED[dtype]]) * (np.abs(finite(numbers)) + error) + LEAST[dtype]


def group_norm(dtype, a, weight, bias, groups, epsilon):
    shape = np.shape(a)
    channels = (-1, *[1] * (len(shape) - 2))
    weight, bias = wide(weight, dtype).reshape(channels), wide(bias, dtype).reshape(channels)
    rows = wide(a, dtype).reshape(shape[0], groups, shape[1] // groups * int(np.prod(shape[2:])))
    normal, lost, wild = (np.broadcast_to(each, rows.shape).reshape(shape) for each in normal_rows(rows, epsilon))
    error = stored(dtype, normal, lost)
    product = normal * weight
    # A number that may be zero times an infinity is one, or NaN. A product may be past the range although the sum is not.
    wild = wild | (~np.isfinite(weight) & (np.abs(finite(normal)) <= error)) | (np.abs(finite(product)) > MOST[dtype] / 4)
    error = stored(dtype, product, error * np.abs(finite(weight)))
    expected = product + bias
    error = error + UNIT[COMPUTED[dtype]] * np.abs(finite(expected))
    return Near(dtype, expected, np.where(np.isfinite(error), error, 0), free=wild)


def dropout(dtype, a, p, seed, first):
    """The result, and how many blocks of random numbers it takes."""
    numbers, blocks = philox.uniform("f32", np.shape(a), seed, first)
    factor = rounded(np.float64(1) / (np.float64(1) - np.float64(p)), dtype)
    factors = np.where(numbers.array >= np.float32(p), factor, factor.dtype.type(0))
    return Exact(rounded(narrow(a, dtype) * narrow(factors, dtype), dtype)), blocks


def product(dtype, a, b, a_error):
    """The product of a matrix that is off by `a_error` and one that is not: its error, and where it is wild, because a sum on the way
    may be past the range."""
    count, largest = a.shape[-1], np.abs(finite(b))
    size = np.matmul(np.abs(finite(a)) + a_error, largest)
    error = np.matmul(a_error, largest) + 2 * (count + 2) * UNIT[COMPUTED[dtype]] * size + count * SMALLEST[COMPUTED[dtype]]
    return error, size > LARGEST[COMPUTED[dtype]] / 4


def attention(dtype, q, k, v, mask=None):
    q, k, v = wide(q, dtype), wide(k, dtype), wide(v, dtype)
    # The queries are scaled first, by a number that is rounded too.
    q = q / np.sqrt(wide(max(q.shape[-1], 1), dtype))
    q_error = stored(dtype, q, stored(dtype, q, np.zeros(q.shape, q.dtype)))
    keys = np.swapaxes(k, -1, -2)
    scores = np.matmul(q, keys)
    error, wild = product(dtype, q, keys, q_error)
    error = stored(dtype, scores, error)
    # What is rounded may be zero, or past the range; and then it is not said what an infinity gives.
    wild = wild | ~np.isfinite(scores) | (np.abs(finite(scores)) + error > MOST[dtype] / 4)
    if mask is not None and mask.dtype == np.bool_:
        scores, error, wild = np.where(mask, scores, -np.inf), np.where(mask, error, 0), wild & mask
    elif mask is not None:
        scores = scores + wide(mask, dtype)
        wild = wild | (np.abs(finite(wide(mask, dtype))) > MOST[dtype] / 4)
        error = np.where(np.isfinite(scores), stored(dtype, scores, error), 0)
    wild = np.any(wild, axis=-1, keepdims=True)

    # A score that is off by `error` changes its power by a factor, and the sum by no more than the largest of these factors.
    less, powers, sums, spread = along(scores, -1)
    weights = powers / sums if scores.size else scores
    off = error + np.max(error, axis=-1, keepdims=True, initial=0)
    by_scores = np.where(off < 30, finite(weights) * np.expm1(np.minimum(off, 30)), 1)
    units = UNIT[COMPUTED[dtype]] * (2 * finite(np.abs(less)) + 2 * off + 2 * finite(spread) + 8) + scores.shape[-1] * SUM_UNIT["f64"]
    weights_error = by_scores + finite(weights) * np.where(np.isfinite(units), units, 0) + 2 * SMALLEST[COMPUTED[dtype]]
    weights_error = np.minimum(stored(dtype, weights, weights_error), 1)

    expected = np.matmul(weights, v)
    error, wild_sums = product(dtype, weights, v, weights_error)
    # A weight that may be zero times an infinity is one, or NaN.
    wild_weights = np.matmul((finite(weights) <= weights_error).astype(np.float64), (~np.isfinite(v)).astype(np.float64)) > 0
    return Near(dtype, expected, error, free=wild | wild_sums | wild_weights)
