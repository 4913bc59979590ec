//! The table of built-in ops: everything that is fixed per op and is not code.
//!
//! The enum [`Op`](crate::Op) with its properties, the methods of `Tensor` and of `InstructionsBuilder`, and the functions of the script
//! language are made from this table. The rule for shapes (`infer`) and the plans for CUDA follow from an op's class; the kernels of
//! each device are checked against the table by tests.

/// Expands `$with!` over the table of ops. A row is
///
/// ```text
/// /// What it computes.
/// Variant: "name", Class, DTYPES, method(first, others; parameters: types) => value of `Params`;
/// ```
///
/// and rows of ops without inputs, which have no method, follow in braces of their own.
///
/// * `"name"` is the op's name in texts. Where an op is a function of the script language, it has the same name there.
/// * `Class` is a variant of [`OpClass`](crate::OpClass): number of inputs, rule for shapes, form of a call.
/// * `DTYPES` is one of the lists in [`dtypes`](crate::dtypes): what the op accepts for its key input.
/// * `method` is the method of `Tensor` and of `InstructionsBuilder`, with its inputs, its parameters, and the
///   [`Params`](crate::Params) that they give (the default where it is left out).
#[doc(hidden)]
#[macro_export]
macro_rules! op_table {
    ($with:ident) => {
        $with! { {
            /// `-x`; integers wrap.
            Neg: "neg", Unary, SIGNED, neg(x);
            /// Absolute value; integers wrap, so `abs(MIN) = MIN`.
            Abs: "abs", Unary, SIGNED, abs(x);
            /// `e` to the power `x`. On a CPU within 1 ulp; 16-bit floats within 0.501 ulp.
            Exp: "exp", Unary, FLOATS, exp(x);
            /// Natural logarithm. On a CPU within 1 ulp; 16-bit floats within 0.501 ulp.
            Log: "log", Unary, FLOATS, log(x);
            /// Square root.
            Sqrt: "sqrt", Unary, FLOATS, sqrt(x);
            /// Hyperbolic tangent. On a CPU within 3 ulp; 16-bit floats within 0.501 ulp.
            Tanh: "tanh", Unary, FLOATS, tanh(x);
            /// `max(x, 0)`; NaN stays NaN.
            Relu: "relu", Unary, SIGNED, relu(x);
            /// `1 / (1 + exp(-x))`, without overflow. On a CPU within 3 ulp; 16-bit floats within 0.501 ulp.
            Sigmoid: "sigmoid", Unary, FLOATS, sigmoid(x);
            /// The error function, `2 / sqrt(pi)` times the integral of `exp(-t^2)` from 0 to `x`. On a CPU within 2 ulp; 16-bit floats
            /// within 0.501 ulp.
            Erf: "erf", Unary, FLOATS, erf(x);
            /// `x (1 + erf(x / sqrt(2))) / 2`; 0 at minus infinity. On a CPU within 7 ulp; 16-bit floats within 0.501 ulp.
            Gelu: "gelu", Unary, FLOATS, gelu(x);
            /// `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`, which approximates `gelu`; 0 at minus infinity. On a
            /// CPU within 5 ulp; 16-bit floats within 0.501 ulp.
            GeluTanh: "gelu_tanh", Unary, FLOATS, gelu_tanh(x);
            /// `x / (1 + exp(-x))`; 0 at minus infinity. On a CPU within 5 ulp; 16-bit floats within 0.501 ulp.
            Silu: "silu", Unary, FLOATS, silu(x);
            /// `1 / sqrt(x)`; infinite at 0, NaN for negative numbers. On a CPU within 1.5 ulp; 16-bit floats within 0.501 ulp.
            Rsqrt: "rsqrt", Unary, FLOATS, rsqrt(x);
            /// `1 / x`, rounded once; infinite at 0, with the sign of the zero.
            Reciprocal: "reciprocal", Unary, FLOATS, reciprocal(x);
            /// The largest whole number that is not above `x`. Zeros, infinities and NaN stay.
            Floor: "floor", Unary, FLOATS, floor(x);
            /// The smallest whole number that is not below `x`; `-0` for numbers between -1 and 0. Zeros, infinities and NaN stay.
            Ceil: "ceil", Unary, FLOATS, ceil(x);
            /// The nearest whole number, and of two that are equally near the even one; a zero has the sign of `x`. Zeros, infinities and NaN
            /// stay.
            Round: "round", Unary, FLOATS, round(x);
            /// `x` without its fraction; a zero has the sign of `x`. Zeros, infinities and NaN stay.
            Trunc: "trunc", Unary, FLOATS, trunc(x);
            /// 1 for positive numbers, -1 for negative ones, 0 for zeros of both signs; NaN stays NaN.
            Sign: "sign", Unary, SIGNED, sign(x);
            /// Sine of an angle in radians, of any size; NaN for infinities. On a CPU within 1 ulp; 16-bit floats within 0.501 ulp.
            Sin: "sin", Unary, FLOATS, sin(x);
            /// Cosine of an angle in radians, of any size; NaN for infinities. On a CPU within 1 ulp; 16-bit floats within 0.501 ulp.
            Cos: "cos", Unary, FLOATS, cos(x);
            /// Tangent of an angle in radians, of any size; NaN for infinities. On a CPU within 1 ulp; 16-bit floats within 0.501 ulp.
            Tan: "tan", Unary, FLOATS, tan(x);
            /// Arc sine, from `-pi/2` to `pi/2`; NaN outside of `[-1, 1]`. On a CPU within 1 ulp; 16-bit floats within 0.501 ulp.
            Asin: "asin", Unary, FLOATS, asin(x);
            /// Arc cosine, from 0 to `pi`; NaN outside of `[-1, 1]`. On a CPU within 1 ulp; 16-bit floats within 0.501 ulp.
            Acos: "acos", Unary, FLOATS, acos(x);
            /// Arc tangent, from `-pi/2` to `pi/2`. On a CPU within 1 ulp; 16-bit floats within 0.501 ulp.
            Atan: "atan", Unary, FLOATS, atan(x);
            /// Hyperbolic sine. On a CPU within 2 ulp; 16-bit floats within 0.501 ulp.
            Sinh: "sinh", Unary, FLOATS, sinh(x);
            /// Hyperbolic cosine. On a CPU within 2 ulp; 16-bit floats within 0.501 ulp.
            Cosh: "cosh", Unary, FLOATS, cosh(x);
            /// Natural logarithm of `1 + x`, accurate where `x` is nearly 0. On a CPU within 1 ulp; 16-bit floats within 0.501 ulp.
            Log1p: "log1p", Unary, FLOATS, log1p(x);
            /// `exp(x) - 1`, accurate where `x` is nearly 0. On a CPU within 1 ulp; 16-bit floats within 0.501 ulp.
            Expm1: "expm1", Unary, FLOATS, expm1(x);
            /// Logarithm to base 2; exact for powers of 2. On a CPU within 2 ulp; 16-bit floats within 0.501 ulp.
            Log2: "log2", Unary, FLOATS, log2(x);
            /// Logarithm to base 10; exact for powers of 10. On a CPU within 2 ulp; 16-bit floats within 0.501 ulp.
            Log10: "log10", Unary, FLOATS, log10(x);
            /// 2 to the power `x`; exact for whole numbers. On a CPU within 1 ulp; 16-bit floats within 0.501 ulp.
            Exp2: "exp2", Unary, FLOATS, exp2(x);
            /// Every bit inverted.
            BitNot: "bit_not", Unary, INTEGERS, bit_not(x);
            /// The other truth value.
            Not: "not", Unary, BOOL, logical_not(x);
            /// Whether `x` is NaN, to bool.
            IsNan: "isnan", Predicate, FLOATS, isnan(x);
            /// Whether `x` is an infinity of either sign, to bool.
            IsInf: "isinf", Predicate, FLOATS, isinf(x);
            /// Whether `x` is neither an infinity nor NaN, to bool.
            IsFinite: "isfinite", Predicate, FLOATS, isfinite(x);
            /// `a + b`; integers wrap.
            Add: "add", Binary, NUMBERS, add(a, b);
            /// `a - b`; integers wrap.
            Sub: "sub", Binary, NUMBERS, sub(a, b);
            /// `a * b`; integers wrap.
            Mul: "mul", Binary, NUMBERS, mul(a, b);
            /// `a / b`; integers truncate toward zero, `MIN / -1` wraps, division by zero is an error.
            Div: "div", Binary, NUMBERS, div(a, b);
            /// The smaller value; NaN if either is NaN. On bool: and.
            Min: "min", Binary, ALL, minimum(a, b);
            /// The larger value; NaN if either is NaN. On bool: or.
            Max: "max", Binary, ALL, maximum(a, b);
            /// `a` to the power `b`; integers wrap, a negative integer exponent is an error. On a CPU within 1 ulp, with the C library of Linux.
            Pow: "pow", Binary, NUMBERS, pow(a, b);
            /// The largest whole number that is not above `a / b`, as `//` in Python. Integers: `MIN / -1` wraps, division by zero is an error.
            /// Floats: computed from the exact remainder, so that a quotient just below a whole number is not rounded up to it; exact up to 22 bits
            /// (51 of `f64`), and beyond within 2 ulp. 16-bit floats: as `f32`, then rounded once. `a / b` if `b` is 0; NaN if `a` is infinite.
            FloorDiv: "floor_div", Binary, NUMBERS, floor_div(a, b);
            /// The remainder of `a / b`, with the sign of `b`, as `%` in Python: `a - b floor_div(a, b)`. Integers: division by zero
            /// is an error. Floats: rounded once; a zero has the sign of `b`; NaN if `b` is 0 or `a` is infinite.
            Remainder: "remainder", Binary, NUMBERS, remainder(a, b);
            /// The angle of the point with the coordinates `b` (to the right) and `a` (up), from `-pi` to `pi`. On a CPU within 1 ulp; 16-bit floats
            /// within 0.501 ulp.
            Atan2: "atan2", Binary, FLOATS, atan2(a, b);
            /// The bits that are 1 in both.
            BitAnd: "bit_and", Binary, INTEGERS, bit_and(a, b);
            /// The bits that are 1 in either or both.
            BitOr: "bit_or", Binary, INTEGERS, bit_or(a, b);
            /// The bits that are 1 in one of the two.
            BitXor: "bit_xor", Binary, INTEGERS, bit_xor(a, b);
            /// The bits of `a` moved up by `b` places; bits that leave the dtype are lost. A count that is negative, or not below the number of bits
            /// of the dtype, gives 0.
            Shl: "shl", Binary, INTEGERS, shl(a, b);
            /// The bits of `a` moved down by `b` places; the sign of a signed integer stays, so this is `a / 2^b` rounded down. A count that is
            /// negative, or not below the number of bits of the dtype, gives 0, or -1 if `a` is negative.
            Shr: "shr", Binary, INTEGERS, shr(a, b);
            /// Whether both are true.
            And: "and", Binary, BOOL, logical_and(a, b);
            /// Whether either is true, or both.
            Or: "or", Binary, BOOL, logical_or(a, b);
            /// Whether one of the two is true, and not both.
            Xor: "xor", Binary, BOOL, logical_xor(a, b);
            /// `a == b`, to bool.
            Eq: "eq", Comparison, ALL, eq(a, b);
            /// `a != b`, to bool.
            Ne: "ne", Comparison, ALL, ne(a, b);
            /// `a < b`, to bool.
            Lt: "lt", Comparison, ALL, lt(a, b);
            /// `a <= b`, to bool.
            Le: "le", Comparison, ALL, le(a, b);
            /// `a > b`, to bool.
            Gt: "gt", Comparison, ALL, gt(a, b);
            /// `a >= b`, to bool.
            Ge: "ge", Comparison, ALL, ge(a, b);
            /// The second input where the first (bool) is true, else the third.
            Where: "where", Select, ALL, where_(condition, yes, no);
            /// `min(max(x, low), high)`: `x` within two bounds; `high` where `low` is above it, NaN if any of the three is NaN.
            Clamp: "clamp", Ternary, NUMBERS, clamp(x, low, high);
            /// Sum over axes; integers wrap, no elements give 0.
            Sum: "sum", Reduction, NUMBERS, sum(x; axes: &[usize]) => $crate::Params::over($crate::Axes::new(axes)?);
            /// Mean over axes.
            Mean: "mean", Reduction, FLOATS, mean(x; axes: &[usize]) => $crate::Params::over($crate::Axes::new(axes)?);
            /// Variance over axes: the mean of the squares of the differences to the mean. Computed in `f64` on a CPU, and rounded once for narrower floats; the
            /// squares must be in the range of `f64`.
            Var: "var", Reduction, FLOATS, var(x; axes: &[usize]) => $crate::Params::over($crate::Axes::new(axes)?);
            /// Standard deviation over axes: the square root of the variance, which is computed as by `var`.
            Std: "std", Reduction, FLOATS, std(x; axes: &[usize]) => $crate::Params::over($crate::Axes::new(axes)?);
            /// The largest value over axes; NaN if any is NaN. On bool: any.
            ReduceMax: "reduce_max", Reduction, ALL, max(x; axes: &[usize]) => $crate::Params::over($crate::Axes::new(axes)?);
            /// The smallest value over axes; NaN if any is NaN. On bool: all.
            ReduceMin: "reduce_min", Reduction, ALL, min(x; axes: &[usize]) => $crate::Params::over($crate::Axes::new(axes)?);
            /// Product over axes; integers wrap, no elements give 1. Products of `f32` are kept in `f64`, those of 16-bit floats in `f32`, and rounded once; a
            /// product on the way that leaves that range, to an infinity or to 0, does not come back.
            Prod: "prod", Reduction, NUMBERS, prod(x; axes: &[usize]) => $crate::Params::over($crate::Axes::new(axes)?);
            /// Whether any element over axes is true; no elements give false.
            Any: "any", Reduction, BOOL, any(x; axes: &[usize]) => $crate::Params::over($crate::Axes::new(axes)?);
            /// Whether all elements over axes are true; no elements give true.
            All: "all", Reduction, BOOL, all(x; axes: &[usize]) => $crate::Params::over($crate::Axes::new(axes)?);
            /// The index of the first largest value on one axis, as i64; a NaN counts as the largest.
            ArgMax: "argmax", ArgReduction, ALL, argmax(x; axis: usize) => $crate::Params::over($crate::Axes::new(&[axis])?);
            /// The index of the first smallest value on one axis, as i64; a NaN counts as the smallest.
            ArgMin: "argmin", ArgReduction, ALL, argmin(x; axis: usize) => $crate::Params::over($crate::Axes::new(&[axis])?);
            /// Matrix product of the two innermost axes; the axes outside broadcast. Integers wrap.
            MatMul: "matmul", MatMul, WIDE_SIGNED, matmul(a, b);
            /// `exp(x) / sum(exp(x))` over one axis, without overflow.
            Softmax: "softmax", Softmax, FLOATS, softmax(x; axis: usize) => $crate::Params::over($crate::Axes::new(&[axis])?);
            /// `x - log(sum(exp(x)))` over one axis: the logarithm of the softmax, without overflow, and accurate where it is nearly 0.
            LogSoftmax: "log_softmax", Softmax, FLOATS, log_softmax(x; axis: usize)
                => $crate::Params::over($crate::Axes::new(&[axis])?);
            /// The gradient of the softmax over one axis. Inputs: the output `y` of the softmax and its gradient `dy`. Output: the
            /// gradient of the softmax's input, `y * (dy - sum(y * dy))`.
            SoftmaxBackward: "softmax_backward", SoftmaxGradient, FLOATS, softmax_backward(y, dy; axis: usize)
                => $crate::Params::over($crate::Axes::new(&[axis])?);
            /// The gradient of the log-softmax over one axis. Inputs: the output `y` of the log-softmax and its gradient `dy`. Output:
            /// the gradient of the log-softmax's input, `dy - exp(y) * sum(dy)`.
            LogSoftmaxBackward: "log_softmax_backward", SoftmaxGradient, FLOATS, log_softmax_backward(y, dy; axis: usize)
                => $crate::Params::over($crate::Axes::new(&[axis])?);
            /// `(x - mean) / sqrt(variance + epsilon) * weight + bias`, where mean and variance, which divides by the number of elements, are
            /// those of each row along the innermost axis. Computed in `f64` on a CPU, and rounded once for
            /// narrower floats; squares of the elements must be in the range of `f64`.
            LayerNorm: "layer_norm", LayerNorm, FLOATS, layer_norm(x, weight, bias; epsilon: f64) => $crate::Params::epsilon(epsilon);
            /// The rows of a table `[n, d]` that the indices, counted from 0, select. An index that is negative or not below `n` is an error,
            /// unless the rows have no elements.
            IndexSelect: "index_select", IndexSelect, ALL, index_select(table, indices);
            /// The input with margins of a constant value on some axes (none given: on all): `before` elements before it and `after`
            /// behind it on each. Axes with margins of different widths need a call for each width.
            Pad: "pad", Pad, ALL,
                pad(x; axes: &[usize], before: u32, after: u32, value: impl Into<$crate::Scalar>)
                => $crate::Params::pad($crate::Axes::new(axes)?, before, after, value);
            /// 1 at the class that the index (an integer) gives, else 0, on a new innermost axis of `classes` elements, in another
            /// dtype. An index out of range gives only zeros.
            OneHot: "one_hot", OneHot, INDICES, one_hot(indices; classes: usize, dtype: $crate::DType)
                => $crate::Params::one_hot(classes, dtype);
            /// Conversion to another dtype. Float to integer truncates and saturates (NaN gives 0); a wider integer keeps its low bits;
            /// anything to bool is `!= 0`. A value that a float dtype cannot represent is rounded to the nearest, ties to even, or to an
            /// infinity past the range.
            Cast: "cast", Cast, ALL, cast(x; dtype: $crate::DType) => $crate::Params::to(dtype);
            /// The elements in the opposite order along some axes.
            Flip: "flip", Flip, ALL, flip(x; axes: &[usize]) => $crate::Params::over($crate::Axes::new(axes)?);
            /// The lower triangle of each matrix of the two innermost axes: zero, or false, at each column that is more than `diagonal` behind its row.
            /// So 0 keeps the diagonal and what is below it, and a negative number less.
            Tril: "tril", Triangle, ALL, tril(x; diagonal: i64) => $crate::Params::diagonal(diagonal);
            /// The upper triangle of each matrix of the two innermost axes: zero, or false, at each column that is less than `diagonal` behind its row.
            /// So 0 keeps the diagonal and what is above it, and a negative number more.
            Triu: "triu", Triangle, ALL, triu(x; diagonal: i64) => $crate::Params::diagonal(diagonal);
            /// Running sums along one axis: each element is the sum of the elements up to its own place, added one after the other from the first on, so that
            /// the result has the same bits on every device. Integers wrap. Sums of `f32` are kept in `f64`, those of 16-bit floats in `f32`, and each is
            /// rounded once.
            CumSum: "cumsum", RunningSum, NUMBERS, cumsum(x; axis: usize) => $crate::Params::over($crate::Axes::new(&[axis])?);
            /// For each index the element of `x` at that place of one axis, and at the place of the index on the other axes. Indices count from 0. An index
            /// that is negative or not below the size of the axis is an error.
            TakeAlongAxis: "take_along_axis", TakeAlongAxis, ALL, take_along_axis(x, indices; axis: usize)
                => $crate::Params::over($crate::Axes::new(&[axis])?);
            /// `x` with elements of the source in place of some: for each index that at the place of the index goes to the place on one axis that the index
            /// gives. Of several that go to one place, the last on that axis stays. An index that is negative or not below the size of the axis is an
            /// error.
            Scatter: "scatter", Scatter, ALL, scatter(x, indices, source; axis: usize) => $crate::Params::over($crate::Axes::new(&[axis])?);
            /// `x` with elements of the source added to some, as `scatter` would put them there. Each addition is rounded, and several that go to one place are
            /// added in the order of that axis, so that the result has the same bits on every device. Integers wrap.
            ScatterAdd: "scatter_add", Scatter, NUMBERS, scatter_add(x, indices, source; axis: usize)
                => $crate::Params::over($crate::Axes::new(&[axis])?);
            /// The indices along one axis of its elements in sorted order, as i64: smallest first, or largest first if `descending`. Equal elements keep their
            /// order either way. Zeros of both signs are equal; a NaN is larger than every number, and NaNs are equal. False is smaller than true.
            ArgSort: "argsort", ArgSort, ALL, argsort(x; axis: usize, descending: bool)
                => $crate::Params::sorted($crate::Axes::new(&[axis])?, descending);
            /// The indices along one axis of its `count` largest elements, largest first, or smallest elements, smallest first, as i64: the first `count` of what
            /// `argsort` gives. It takes less time than `argsort` if `count` is much less than the size of the axis; on a CUDA device, only for axes of more than
            /// 2048 elements.
            ArgTopK: "argtopk", ArgSort, ALL, argtopk(x; count: usize, axis: usize, largest: bool)
                => $crate::Params::top($crate::Axes::new(&[axis])?, count, largest);
            /// The convolution of `[n, c, h, w]` by a weight `[o, c / groups, height, width]`, as neural networks have it: the sum of the products of the
            /// weight and the elements under it, at each position, over all channels of a group. The padding is zeros. Sums are added up in the dtype (`f32` for 16-bit
            /// floats), and 16-bit floats are rounded once.
            Conv2d: "conv2d", Convolution, FLOATS, conv2d(x, weight; by: $crate::Convolution) => $crate::Params::convolution(by);
            /// The gradient of the input of a convolution. Inputs: those of `conv2d`, and the gradient `dy` of its output. Of the
            /// input only the shape is used.
            Conv2dBackwardInput: "conv2d_backward_input", ConvolutionGradient, FLOATS,
                conv2d_backward_input(x, weight, dy; by: $crate::Convolution) => $crate::Params::convolution(by);
            /// The gradient of the weight of a convolution. Inputs: those of `conv2d`, and the gradient `dy` of its output. Of the
            /// weight only the shape is used.
            Conv2dBackwardWeight: "conv2d_backward_weight", ConvolutionGradient, FLOATS,
                conv2d_backward_weight(x, weight, dy; by: $crate::Convolution) => $crate::Params::convolution(by);
            /// The largest element under a window at each position on the two innermost axes of `[n, c, h, w]`; NaN if any is NaN.
            MaxPool2d: "max_pool2d", Pooling, FLOATS, max_pool2d(x; by: $crate::Pooling) => $crate::Params::pooling(by);
            /// The mean over a window at each position on the two innermost axes of `[n, c, h, w]`. The padding counts as zeros. Sums are kept
            /// in `f64`, and rounded once.
            AvgPool2d: "avg_pool2d", Pooling, FLOATS, avg_pool2d(x; by: $crate::Pooling) => $crate::Params::pooling(by);
            /// The gradient of the input of a max pooling. Inputs: its input, and the gradient `dy` of its output. The gradient of a window goes to its
            /// first largest element in row-major order; a NaN counts as the largest.
            MaxPool2dBackward: "max_pool2d_backward", PoolingGradient, FLOATS, max_pool2d_backward(x, dy; by: $crate::Pooling)
                => $crate::Params::pooling(by);
            /// The gradient of the input of an average pooling. Inputs: its input, of which only the shape is used, and the gradient `dy` of its output.
            AvgPool2dBackward: "avg_pool2d_backward", PoolingGradient, FLOATS, avg_pool2d_backward(x, dy; by: $crate::Pooling)
                => $crate::Params::pooling(by);
            /// `x / sqrt(mean(x^2) + epsilon) * weight`, where the mean is that of each row along the innermost axis. Computed in `f64` on a CPU, and rounded once for
            /// narrower floats; squares of the elements must be in the range of `f64`.
            RmsNorm: "rms_norm", RmsNorm, FLOATS, rms_norm(x, weight; epsilon: f64) => $crate::Params::epsilon(epsilon);
            /// The cross entropy of each row of logits along the innermost axis with its target: `log(sum(exp(x))) - x[target]`, without overflow.
            /// A row whose target is negative or not below the number of classes has a loss of 0. Computed in the dtype, with sums in `f64`; 16-bit floats in `f32`, and rounded once.
            CrossEntropy: "cross_entropy", CrossEntropy, FLOATS, cross_entropy(logits, targets);
            /// The gradient of the logits of a cross entropy. Inputs: those of `cross_entropy`, and the gradient `dy` of its output. Output:
            /// `(softmax(x) - one_hot(target)) * dy`; zeros for a row whose target is no class.
            CrossEntropyBackward: "cross_entropy_backward", CrossEntropyGradient, FLOATS, cross_entropy_backward(logits, targets, dy);
            } {
            /// Random numbers, uniform in `[0, 1)`, by [`Extra::Random`](crate::Extra::Random): every multiple of the dtype's smallest
            /// step below 1 is equally likely. The same bits on every device.
            Uniform: "uniform", Source, FLOATS;
            /// Random numbers of the normal distribution with mean 0 and variance 1, by [`Extra::Random`](crate::Extra::Random).
            Normal: "normal", Source, FLOATS;
            /// `first + i step` for element `i`, in row-major order, by [`Extra::Integers`](crate::Extra::Integers) or
            /// [`Extra::Floats`](crate::Extra::Floats). Floats are computed in `f64`, and rounded once for narrower dtypes; integers wrap. The same bits on every
            /// device.
            Arange: "arange", Sequence, NUMBERS;
        } }
    };
}
