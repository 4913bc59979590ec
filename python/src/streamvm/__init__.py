"""Tensors on an asynchronous execution engine for accelerators.

Calls return at once; the engine runs them on streams of CPUs and GPUs, and waits exactly where the data needs it. Reading elements waits, and raises the failure of
the call that should have written them, with its line.

>>> import streamvm as sv
>>> x = sv.asarray([[1.0, 2.0], [3.0, 4.0]])
>>> y = sv.sum(x * x, axis=1)
>>> y.numpy().tolist()
[5.0, 25.0]

The names are those of the Python array API standard; docs/python.md lists what of it is here.
"""

from math import e, inf, nan, pi

from ._compile import Compiled, compile
from ._core import (
    DType,
    Lane,
    Tensor,
    Vm,
    __version__,
    bfloat16,
    bool,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from ._creation import (
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    full,
    full_like,
    linspace,
    meshgrid,
    ones,
    ones_like,
    rand,
    randn,
    tril,
    triu,
    zeros,
    zeros_like,
)
from ._dtypes import astype, can_cast, finfo, iinfo, isdtype, result_type
from ._elementwise import (
    abs,
    acos,
    add,
    asin,
    atan,
    atan2,
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    ceil,
    clip,
    cos,
    cosh,
    divide,
    equal,
    erf,
    exp,
    expm1,
    floor,
    floor_divide,
    gelu,
    greater,
    greater_equal,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    log,
    log1p,
    log2,
    log10,
    log_softmax,
    logaddexp,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    multiply,
    negative,
    not_equal,
    positive,
    pow,
    reciprocal,
    relu,
    remainder,
    round,
    rsqrt,
    sigmoid,
    sign,
    silu,
    sin,
    sinh,
    softmax,
    sqrt,
    square,
    subtract,
    tan,
    tanh,
    trunc,
    where,
)
from ._engine import current_vm, default_vm, use, wait_all
from ._errors import (
    ClosedError,
    DeadlockError,
    DeviceLostError,
    DTypeError,
    Error,
    OperationError,
    OutOfMemoryError,
    StalledError,
    UsageError,
    WaitTimeoutError,
)
from ._info import __array_namespace_info__
from ._linalg import matmul, matrix_transpose, tensordot, vecdot
from ._manipulation import (
    broadcast_arrays,
    broadcast_shapes,
    broadcast_to,
    concat,
    expand_dims,
    flip,
    moveaxis,
    permute_dims,
    repeat,
    reshape,
    roll,
    squeeze,
    stack,
    tile,
    unstack,
)
from ._reductions import all, any, argmax, argmin, cumulative_sum, max, mean, min, prod, std, sum, var
from ._sorting import argsort, sort, take, take_along_axis

__array_api_version__ = "2024.12"
newaxis = None
