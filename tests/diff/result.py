"""What a function should give, and how far off streamvm may be.

A result is exact, or a number in a wider type with the error allowed for it before it is rounded. An element is accepted if rounding
some number within that error gives it: so the same bound holds near an overflow, among subnormal numbers and for 16-bit dtypes, whose
last rounding is a large part of the error.
"""

import numpy as np

from dtypes import COMPUTED, SMALLEST, bits, rounded


class Exact:
    """Every bit is known, but for the sign of a zero where `zeros` is set."""

    def __init__(self, array, zeros=False):
        self.array, self.zeros = np.asarray(array), zeros

    def wrong(self, found):
        differ = bits(found) != bits(self.array)
        if self.zeros:
            differ &= ~((found == 0) & (self.array == 0))
        return differ

    def describe(self, index):
        return f"expected {self.array[index]!r}"


class Near:
    """Within `error` of `wide`, then rounded to `dtype`. Elements where `free` holds are not looked at: a number that streamvm has on
    the way may be past its range, although the result is not."""

    def __init__(self, dtype, wide, error, free=False):
        wide = np.asarray(wide)
        # One subnormal step besides: a product of small numbers may be cut off.
        error = np.asarray(error + 2 * SMALLEST[COMPUTED[dtype]], wide.dtype)
        error = np.where(np.isfinite(wide), error, 0)
        self.array = rounded(wide, dtype)
        self.low, self.high = rounded(wide - error, dtype), rounded(wide + error, dtype)
        self.free = np.broadcast_to(free, wide.shape) | ~np.isfinite(error)

    def wrong(self, found):
        within = (self.low <= found) & (found <= self.high)
        both_nan = np.isnan(found) & np.isnan(self.array)
        return ~(within | both_nan | self.free)

    def describe(self, index):
        return f"expected {self.low[index]!r} to {self.high[index]!r}"


def mismatch(result, found):
    """What is wrong with what streamvm gave, as a sentence; nothing if it is right."""
    if found.shape != result.array.shape or found.dtype != result.array.dtype:
        return f"found {found.dtype}{list(found.shape)}, expected {result.array.dtype}{list(result.array.shape)}"
    wrong = result.wrong(found)
    if not wrong.any():
        return None
    index = tuple(int(place) for place in np.argwhere(wrong)[0])
    count = int(np.count_nonzero(wrong))
    return f"element {list(index)} is {found[index]!r}, {result.describe(index)}; {count} of {found.size} elements are wrong"
