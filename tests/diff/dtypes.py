"""The dtypes of the script language, in NumPy.

A tensor of bf16 is kept as float32 whose numbers all are bf16 ones, since NumPy has no bf16. Everything else is kept in the NumPy type
of the same name. Results are computed in a wider type (`WIDE`) and rounded once by `rounded`.
"""

import numpy as np

FLOATS = ["f32", "f64", "f16", "bf16"]
INDICES = ["i32", "i64", "u8"]
SIGNED_INTEGERS = ["i8", "i16", "i32", "i64"]
INTEGERS = SIGNED_INTEGERS + ["u8", "u16", "u32", "u64"]
ALL = FLOATS + INTEGERS + ["bool"]

# What the elements are kept in.
STORE = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": np.float32,
         "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
         "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "bool": np.bool_}

# What a reference is computed in: exact products of two elements, and sums with at least 29 bits to spare (11 for f64).
WIDE = {"f32": np.float64, "f64": np.longdouble, "f16": np.float64, "bf16": np.float64}

# What streamvm says that it computes in, with half the distance from 1 to the next number, the largest number and the smallest one.
COMPUTED = {"f32": np.float32, "f64": np.float64, "f16": np.float32, "bf16": np.float32}
UNIT = {np.float32: 2.0**-24, np.float64: 2.0**-53}
LARGEST = {np.float32: float(np.finfo(np.float32).max), np.float64: float(np.finfo(np.float64).max)}
SMALLEST = {np.float32: float(np.finfo(np.float32).smallest_subnormal),
            np.float64: float(np.finfo(np.float64).smallest_subnormal)}

# Of the 16-bit floats: significant bits, the exponent of the smallest normal number, the largest number.
NARROW = {"f16": (11, -14, 65504.0), "bf16": (8, -126, float(np.float32(3.3895313892515355e38)))}


def is_float(dtype):
    return dtype in FLOATS


def rounded(numbers, dtype):
    """The nearest numbers of a float dtype, ties to even, an infinity past its range: rounded once, whatever `numbers` are."""
    numbers = np.asarray(numbers)
    if dtype not in NARROW:
        return numbers.astype(STORE[dtype])
    bits, least, largest = NARROW[dtype]
    if numbers.dtype.kind != "f":
        numbers = numbers.astype(np.longdouble)  # holds every i64 and u64
    elif numbers.dtype != np.longdouble:
        numbers = numbers.astype(np.float64)
    exponent = np.frexp(numbers)[1]
    step = np.ldexp(numbers.dtype.type(1), np.maximum(exponent, least + 1) - bits)
    near = np.rint(numbers / step) * step
    near = np.where(np.abs(near) > largest, np.copysign(np.inf, near), near)
    return np.where(np.isfinite(numbers), near, numbers).astype(STORE[dtype])


def bits(array):
    """The elements as integers, so that zeros have a sign; every NaN counts as the same."""
    array = np.asarray(array, order="C")
    if array.dtype.kind != "f":
        return array
    plain = np.where(np.isnan(array), array.dtype.type(np.nan), array)
    return plain.view({2: np.uint16, 4: np.uint32, 8: np.uint64}[array.dtype.itemsize])
