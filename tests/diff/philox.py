"""Random numbers as docs/language.md defines them: Philox 4x32-10 of Salmon, Moraes, Dror and Shaw (SC'11), a block for four elements."""

import numpy as np

from dtypes import COMPUTED, UNIT, rounded
from result import Exact, Near

LOW = np.uint64(0xFFFFFFFF)


def blocks(seed, first, count):
    """The four words of so many blocks, one block a row."""
    counter = np.array([(first + index) % 2**64 for index in range(count)], np.uint64)
    words = [counter & LOW, counter >> np.uint64(32), np.zeros(count, np.uint64), np.zeros(count, np.uint64)]
    keys = [np.uint64(seed % 2**32), np.uint64(seed >> 32)]
    for _ in range(10):
        left, right = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [(right >> np.uint64(32)) ^ words[1] ^ keys[0], right & LOW,
                 (left >> np.uint64(32)) ^ words[3] ^ keys[1], left & LOW]
        keys = [(keys[0] + np.uint64(0x9E3779B9)) & LOW, (keys[1] + np.uint64(0xBB67AE85)) & LOW]
    return np.stack(words, axis=1)


def whole(dtype, seed, first, elements):
    """Whole numbers with as many random bits as the dtype has, for at least so many elements, and how many blocks they take."""
    each = 2 if dtype == "f64" else 4
    count = -(-elements // each)
    words = blocks(seed, first, count)
    if dtype == "f64":
        words = (words[:, 1::2] << np.uint64(32) | words[:, 0::2]) >> np.uint64(11)
    return words, count


BITS = {"f32": 24, "f64": 53, "f16": 11, "bf16": 8}


def uniform(dtype, shape, seed, first):
    elements = int(np.prod(shape, dtype=np.int64))
    words, count = whole(dtype, seed, first, elements)
    if dtype != "f64":
        words = words >> np.uint64(32 - BITS[dtype])
    numbers = words.astype(np.float64) / 2.0 ** BITS[dtype]
    return Exact(rounded(numbers.reshape(-1)[:elements].reshape(shape), dtype)), count


def normal(dtype, shape, seed, first):
    """Box and Muller: two numbers of each pair, in f32 also for 16-bit dtypes."""
    elements = int(np.prod(shape, dtype=np.int64))
    words, count = whole(dtype, seed, first, elements)
    step = np.longdouble(2.0**-53) if dtype == "f64" else np.float64(2.0**-24)
    if dtype != "f64":
        words = words >> np.uint64(8)
    size, turn = (words[:, 0::2] + np.uint64(1)).astype(step.dtype) * step, words[:, 1::2].astype(step.dtype) * step
    radius, angle = np.sqrt(-2 * np.log(size)), 2 * np.arctan2(step.dtype.type(0), step.dtype.type(-1)) * turn
    numbers = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=2)
    # The angle is off by two roundings, radius and cosine by a few.
    unit = UNIT[COMPUTED[dtype]]
    error = np.broadcast_to((radius * unit * (4 * angle + 8))[:, :, None], numbers.shape)

    def laid(array):
        return array.reshape(-1)[:elements].reshape(shape)

    return Near(dtype, laid(numbers), laid(error)), count
