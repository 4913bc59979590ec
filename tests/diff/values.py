"""Drawn elements: small numbers, ordinary ones, of every size, the odd ones, and those that are hard to round to a narrower dtype."""

import numpy as np

from dtypes import STORE, bits, is_float, rounded

ODD = {"f32": [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-40, 3.4028235e38, -3.4028235e38, 1.0, -1.0, 88.8, -103.9, 16777217.0],
       "f64": [np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, -1e-310, 1.7976931348623157e308, -1.7e308, 1.0, -1.0, 709.8, -745.2, 2.0**53],
       "f16": [np.nan, np.inf, -np.inf, 0.0, -0.0, 6e-8, -5e-5, 65504.0, -65504.0, 1.0, -1.0, 11.1, -17.4, 2049.0],
       "bf16": [np.nan, np.inf, -np.inf, 0.0, -0.0, 9.2e-41, -1e-39, 3.3895314e38, -3.3895314e38, 1.0, -1.0, 88.5, -92.2, 257.0]}
EXPONENTS = {"f32": (-149, 127), "f64": (-1074, 1023), "f16": (-24, 15), "bf16": (-133, 127)}


def elements(random, dtype, shape, kind=None):
    """An array of a dtype; `random` is NumPy's generator."""
    if dtype == "bool":
        return random.random(shape) < random.choice([0.1, 0.5, 0.9])
    if not is_float(dtype):
        return integers(random, dtype, shape, kind)
    kind = kind or random.choice(["small", "ordinary", "ordinary", "any size", "odd", "some odd", "large", "between"])
    if kind == "small":
        numbers = random.integers(-4, 5, shape).astype(np.float64)
    elif kind == "any size":
        low, high = EXPONENTS[dtype]
        numbers = np.ldexp(random.uniform(1, 2, shape), random.integers(low, high, shape)) * random.choice([-1.0, 1.0], shape)
    elif kind == "large":
        numbers = np.ldexp(random.uniform(1, 1.9, shape), EXPONENTS[dtype][1]) * random.choice([-1.0, 1.0], shape)
    elif kind == "between":
        numbers = between(random, shape)
    elif kind == "odd":
        numbers = random.choice(ODD[dtype], shape)
    else:
        numbers = random.normal(size=shape) * random.choice([0.1, 1.0, 8.0])
        if kind == "some odd":
            numbers = np.where(random.random(shape) < 0.1, random.choice(ODD[dtype], shape), numbers)
    return rounded(numbers, dtype)


def between(random, shape):
    """Halfway between two neighbours of a narrower float dtype, or a little beside that: who rounds twice is seen."""
    width = random.choice([8, 11, 24], shape)
    whole = np.ldexp(1.0, width - 1) + np.floor(random.random(shape) * np.ldexp(1.0, width - 1))
    nudge = random.choice([0.0, 2.0**-26, -2.0**-26, 2.0**-5], shape)
    return np.ldexp(whole + 0.5 + nudge, random.integers(-20, 6, shape) - width) * random.choice([-1.0, 1.0], shape)


def integers(random, dtype, shape, kind):
    ends = np.iinfo(STORE[dtype])
    kind = kind or random.choice(["small", "small", "ordinary", "ends", "any", "between"])
    if kind == "small":
        numbers = random.integers(max(ends.min, -4), 5, shape)
    elif kind == "ordinary":
        numbers = random.integers(max(ends.min, -1000), min(ends.max, 1000), shape)
    elif kind == "between":
        # As above, of integers: a half, and one beside it.
        high = np.right_shift(min(ends.max, 2**63 - 1), random.integers(0, 8, shape))
        width = random.choice([8, 11, 24], shape)
        drop = np.maximum(np.floor(np.log2(np.maximum(high, 1))).astype(np.int64) - width, 0)
        half = np.where(drop > 0, np.left_shift(1, np.maximum(drop - 1, 0)), 0)
        numbers = (np.left_shift(np.right_shift(high, drop) - random.integers(0, 4, shape), drop) + half + random.integers(-1, 2, shape))
        numbers = np.clip(numbers, 0, min(ends.max, 2**63 - 1))
    elif kind == "ends":
        odd = np.array([ends.min, ends.min + 1, ends.max, ends.max - 1, 0, 1], STORE[dtype])
        return odd[random.integers(0, len(odd), shape)] if shape != () else odd[random.integers(0, len(odd))]
    else:
        numbers = random.integers(ends.min, ends.max, shape, dtype=STORE[dtype], endpoint=True)
    return np.asarray(numbers).astype(STORE[dtype])


def same(a, b):
    """Are two arrays the same in every bit?"""
    return np.array_equal(bits(a), bits(b))
