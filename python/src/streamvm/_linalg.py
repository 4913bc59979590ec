"""Products of matrices and vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ._core import Tensor, int32, int64, result_type
from ._dtypes import isdtype
from ._elementwise import _check, multiply
from ._manipulation import _place
from ._reductions import sum


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The product of matrices, or of a matrix and a vector: of the last two axes; the axes before them broadcast. For numeric dtypes, which are promoted."""
    _check("matmul", x1, "numeric")
    _check("matmul", x2, "numeric")
    if x1.ndim == 0 or x2.ndim == 0:
        raise ValueError("matmul takes tensors with one axis or more; use multiply for numbers")
    row, column = x1.ndim == 1, x2.ndim == 1
    left = x1._reshape([1, x1.size]) if row else x1
    right = x2._reshape([x2.size, 1]) if column else x2
    dtype = result_type(x1.dtype, x2.dtype)
    # Integers are multiplied in one of two dtypes; a narrower result is what it would be: it wraps.
    through = dtype if dtype in (int32, int64) or not isdtype(dtype, "integral") else int64
    left, right = (it if it.dtype == through else it._cast(through) for it in (left, right))
    result = left._over("matmul", [right])
    result = result if through == dtype else result._cast(dtype)
    if not row and not column:
        return result
    shape = list(result.shape)
    if column:
        del shape[-1]
    if row:
        del shape[-1 if column else -2]
    return result._reshape(shape)


def matrix_transpose(x: Tensor, /) -> Tensor:
    """A view with the last two axes exchanged."""
    return x.mT


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The sum of the products along an axis, which both have in one size; the others broadcast. For numeric dtypes, which are promoted."""
    if not -min(x1.ndim, x2.ndim) <= axis < 0:
        raise IndexError(f"axis {axis} counts from the last one: it is from {-min(x1.ndim, x2.ndim)} to -1")
    if x1.shape[axis] != x2.shape[axis]:
        raise ValueError(f"the axis has {x1.shape[axis]} and {x2.shape[axis]} elements")
    return sum(multiply(x1, x2), axis=axis, dtype=result_type(x1.dtype, x2.dtype))


def tensordot(x1: Tensor, x2: Tensor, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """The sum of the products over axes of both: the last `axes` of the first with the first ones of the second, or pairs of axes. For numeric dtypes, which are promoted."""
    if isinstance(axes, int):
        if not 0 <= axes <= min(x1.ndim, x2.ndim):
            raise ValueError(f"tensordot over {axes} axes of tensors with {x1.ndim} and {x2.ndim}")
        first, second = list(range(x1.ndim - axes, x1.ndim)), list(range(axes))
    else:
        first, second = list(axes[0]), list(axes[1])
    if len(first) != len(second):
        raise ValueError(f"tensordot needs pairs of axes, and has {len(first)} and {len(second)}")
    first = [_place(axis, x1.ndim) for axis in first]
    second = [_place(axis, x2.ndim) for axis in second]
    if [x1.shape[axis] for axis in first] != [x2.shape[axis] for axis in second]:
        raise ValueError("the axes of a pair differ in size")
    rest1 = [axis for axis in range(x1.ndim) if axis not in first]
    rest2 = [axis for axis in range(x2.ndim) if axis not in second]
    inner = math.prod(x1.shape[axis] for axis in first)
    shape1, shape2 = [x1.shape[axis] for axis in rest1], [x2.shape[axis] for axis in rest2]
    rows = x1._permute([*rest1, *first])._reshape([math.prod(shape1), inner])
    columns = x2._permute([*second, *rest2])._reshape([inner, math.prod(shape2)])
    return matmul(rows, columns)._reshape([*shape1, *shape2])
