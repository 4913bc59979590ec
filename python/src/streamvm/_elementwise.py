"""Functions of each element."""

from __future__ import annotations

from collections.abc import Callable

from . import _core
from ._core import Tensor
from ._dtypes import isdtype
from ._errors import DTypeError

Operand = Tensor | bool | int | float


def _check(name: str, x: Tensor, kind: str | tuple[str, ...]) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} takes tensors, and no {type(x).__name__}; make one of it by asarray")
    dtype = x.dtype
    if not isdtype(dtype, kind):
        kinds = kind if isinstance(kind, str) else " or ".join(kind)
        raise DTypeError(f"{name} takes {kinds} dtypes, and the tensor has {dtype}")


def _unary(
    name: str, op: str, kind: str | tuple[str, ...], what: str, same: str | None = None
) -> Callable[[Tensor], Tensor]:
    """A function of one tensor; of the kind `same` it gives the tensor as it is."""

    def function(x: Tensor, /) -> Tensor:
        _check(name, x, kind)
        if same is not None and isdtype(x.dtype, same):
            return x._copy()
        return x._unary(op)

    return _named(function, name, f"{what}, for {kind if isinstance(kind, str) else ' and '.join(kind)} dtypes.")


def _named(function: Callable[..., Tensor], name: str, text: str) -> Callable[..., Tensor]:
    function.__name__ = function.__qualname__ = name
    function.__module__ = "streamvm"
    function.__doc__ = text
    return function


def _operands(x1: Operand, x2: Operand) -> tuple[Tensor, Operand, bool]:
    """A tensor, what stands beside it, and whether that stands before it."""
    if isinstance(x1, Tensor):
        return x1, x2, False
    if isinstance(x2, Tensor):
        return x2, x1, True
    raise TypeError("one of both operands must be a tensor; make one by asarray")


def _binary(name: str, op: str, kind: str | tuple[str, ...], what: str) -> Callable[[Operand, Operand], Tensor]:
    def function(x1: Operand, x2: Operand, /) -> Tensor:
        tensor, other, reflected = _operands(x1, x2)
        _check(name, tensor, kind)
        if isinstance(other, Tensor):
            _check(name, other, kind)
        result = tensor._binary(op, other, reflected)
        if result is NotImplemented:
            raise TypeError(f"{name} takes tensors and numbers, and no {type(other).__name__}")
        return result

    kinds = kind if isinstance(kind, str) else " and ".join(kind)
    return _named(
        function,
        name,
        f"{what}, for {kinds} dtypes. The shapes broadcast, and the dtypes are promoted; one operand may be a number of Python.",
    )


_REAL, _NUMBER, _INTEGER, _BOOL = "real floating", "numeric", "integral", "bool"
_ALL = ("bool", "numeric")

abs = _unary("abs", "abs", _NUMBER, "The absolute value", "unsigned integer")
acos = _unary("acos", "acos", _REAL, "The arc cosine")
asin = _unary("asin", "asin", _REAL, "The arc sine")
atan = _unary("atan", "atan", _REAL, "The arc tangent")
bitwise_invert = _unary("bitwise_invert", "bit_not", ("bool", "integral"), "Each bit inverted")
ceil = _unary("ceil", "ceil", _NUMBER, "The least integer that is not below", _INTEGER)
cos = _unary("cos", "cos", _REAL, "The cosine")
cosh = _unary("cosh", "cosh", _REAL, "The hyperbolic cosine")
exp = _unary("exp", "exp", _REAL, "The exponential function")
expm1 = _unary("expm1", "expm1", _REAL, "exp(x) - 1, accurate near 0")
floor = _unary("floor", "floor", _NUMBER, "The largest integer that is not above", _INTEGER)
isfinite = _unary("isfinite", "isfinite", _REAL, "Whether it is neither infinite nor NaN")
isinf = _unary("isinf", "isinf", _REAL, "Whether it is infinite")
isnan = _unary("isnan", "isnan", _REAL, "Whether it is NaN")
log = _unary("log", "log", _REAL, "The natural logarithm")
log10 = _unary("log10", "log10", _REAL, "The logarithm to base 10")
log1p = _unary("log1p", "log1p", _REAL, "log(1 + x), accurate near 0")
log2 = _unary("log2", "log2", _REAL, "The logarithm to base 2")
logical_not = _unary("logical_not", "not", _BOOL, "Whether it is false")
reciprocal = _unary("reciprocal", "reciprocal", _REAL, "1 / x")
round = _unary("round", "round", _NUMBER, "The nearest integer, the even one of two", _INTEGER)
sin = _unary("sin", "sin", _REAL, "The sine")
sinh = _unary("sinh", "sinh", _REAL, "The hyperbolic sine")
sqrt = _unary("sqrt", "sqrt", _REAL, "The square root")
tan = _unary("tan", "tan", _REAL, "The tangent")
tanh = _unary("tanh", "tanh", _REAL, "The hyperbolic tangent")
trunc = _unary("trunc", "trunc", _NUMBER, "The integer next to it towards 0", _INTEGER)

erf = _unary("erf", "erf", _REAL, "The error function")
gelu = _unary("gelu", "gelu", _REAL, "x times the probability that a normal number is below it")
relu = _unary("relu", "relu", _NUMBER, "x where it is positive, or 0", "unsigned integer")
rsqrt = _unary("rsqrt", "rsqrt", _REAL, "1 / sqrt(x)")
sigmoid = _unary("sigmoid", "sigmoid", _REAL, "1 / (1 + exp(-x))")
silu = _unary("silu", "silu", _REAL, "x * sigmoid(x)")

add = _binary("add", "add", _NUMBER, "The sum")
atan2 = _binary("atan2", "atan2", _REAL, "The angle of the point (x2, x1)")
bitwise_and = _binary("bitwise_and", "bit_and", ("bool", "integral"), "The bits that both have")
bitwise_left_shift = _binary("bitwise_left_shift", "shl", _INTEGER, "The bits moved to the left")
bitwise_or = _binary("bitwise_or", "bit_or", ("bool", "integral"), "The bits that one of both has")
bitwise_right_shift = _binary("bitwise_right_shift", "shr", _INTEGER, "The bits moved to the right, with the sign")
bitwise_xor = _binary("bitwise_xor", "bit_xor", ("bool", "integral"), "The bits that just one of both has")
divide = _binary("divide", "div", _REAL, "The quotient")
equal = _binary("equal", "eq", _ALL, "Whether both are equal")
floor_divide = _binary("floor_divide", "floor_div", _NUMBER, "The quotient, rounded towards minus infinity")
greater = _binary("greater", "gt", _NUMBER, "Whether the first is larger")
greater_equal = _binary("greater_equal", "ge", _NUMBER, "Whether the first is not smaller")
less = _binary("less", "lt", _NUMBER, "Whether the first is smaller")
less_equal = _binary("less_equal", "le", _NUMBER, "Whether the first is not larger")
logical_and = _binary("logical_and", "and", _BOOL, "Whether both are true")
logical_or = _binary("logical_or", "or", _BOOL, "Whether one of both is true")
logical_xor = _binary("logical_xor", "xor", _BOOL, "Whether just one of both is true")
maximum = _binary("maximum", "max", _NUMBER, "The larger of both; NaN if one is")
minimum = _binary("minimum", "min", _NUMBER, "The smaller of both; NaN if one is")
multiply = _binary("multiply", "mul", _NUMBER, "The product")
not_equal = _binary("not_equal", "ne", _ALL, "Whether both differ")
pow = _binary("pow", "pow", _NUMBER, "The first to the power of the second")
remainder = _binary("remainder", "remainder", _NUMBER, "What a division leaves, with the sign of the second")
subtract = _binary("subtract", "sub", _NUMBER, "The difference")


def positive(x: Tensor, /) -> Tensor:
    """The tensor, copied, for numeric dtypes."""
    _check("positive", x, _NUMBER)
    return x._copy()


def negative(x: Tensor, /) -> Tensor:
    """The number with the opposite sign, for numeric dtypes; unsigned integers wrap."""
    _check("negative", x, _NUMBER)
    return -x


def sign(x: Tensor, /) -> Tensor:
    """-1, 0 or 1, by the sign, for numeric dtypes."""
    _check("sign", x, _NUMBER)
    return x._binary("ne", 0)._cast(x.dtype) if isdtype(x.dtype, "unsigned integer") else x._unary("sign")


def conj(x: Tensor, /) -> Tensor:
    """The tensor, copied, for numeric dtypes: real numbers are their own conjugates."""
    _check("conj", x, _NUMBER)
    return x._copy()


def square(x: Tensor, /) -> Tensor:
    """x * x, for numeric dtypes."""
    _check("square", x, _NUMBER)
    return x._binary("mul", x)


def logaddexp(x1: Operand, x2: Operand, /) -> Tensor:
    """log(exp(x1) + exp(x2)) without overflow, for real floating dtypes."""
    tensor, other, _ = _operands(x1, x2)
    _check("logaddexp", tensor, _REAL)
    larger, smaller = maximum(tensor, other), minimum(tensor, other)
    # Of two infinities of one sign the difference is NaN, and the larger one is the result.
    below = where(equal(larger, smaller), 0.0, subtract(smaller, larger))
    return add(larger, log1p(exp(below)))


def clip(x: Tensor, /, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """Each element, but not below `min` and not above `max`: tensors or numbers, of the dtype of `x`. For numeric dtypes."""
    _check("clip", x, _NUMBER)
    result = x._copy() if min is None and max is None else x
    if min is not None:
        result = maximum(result, min)
    if max is not None:
        result = minimum(result, max)
    if result.dtype != x.dtype:
        raise TypeError(f"the bounds of clip have the dtype {result.dtype}, and the tensor has {x.dtype}")
    return result


def where(condition: Tensor, x1: Operand, x2: Operand, /) -> Tensor:
    """`x1` where the condition is true, and `x2` elsewhere. The shapes broadcast, and the dtypes of both are promoted; one of them may be a number of Python."""
    if condition.dtype != _core.bool:
        raise TypeError(f"the condition of where has the dtype {condition.dtype}, and it must be bool")
    return condition._where(x1, x2)


def softmax(x: Tensor, /, *, axis: int = -1) -> Tensor:
    """exp(x) / sum(exp(x)) along an axis, without overflow, for real floating dtypes."""
    _check("softmax", x, _REAL)
    return x._along("softmax", axis)


def log_softmax(x: Tensor, /, *, axis: int = -1) -> Tensor:
    """The logarithm of `softmax`, for real floating dtypes."""
    _check("log_softmax", x, _REAL)
    return x._along("log_softmax", axis)
