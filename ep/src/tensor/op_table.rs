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
            /// Sum over axes; integers wrap, no elements give 0.
            Sum: "sum", Reduction, NUMBERS, sum(x; axes: &[usize]) => $crate::Params::over($crate::Axes::new(axes)?);
            /// Mean over axes.
            Mean: "mean", Reduction, FLOATS, mean(x; axes: &[usize]) => $crate::Params::over($crate::Axes::new(axes)?);
            /// The largest value over axes; NaN if any is NaN. On bool: any.
            ReduceMax: "reduce_max", Reduction, ALL, max(x; axes: &[usize]) => $crate::Params::over($crate::Axes::new(axes)?);
            /// The smallest value over axes; NaN if any is NaN. On bool: all.
            ReduceMin: "reduce_min", Reduction, ALL, min(x; axes: &[usize]) => $crate::Params::over($crate::Axes::new(axes)?);
            /// The index of the first largest value on one axis, as i64; a NaN counts as the largest.
            ArgMax: "argmax", ArgReduction, ALL, argmax(x; axis: usize) => $crate::Params::over($crate::Axes::new(&[axis])?);
            /// Matrix product of the two innermost axes; the axes outside broadcast. Integers wrap.
            MatMul: "matmul", MatMul, SIGNED, matmul(a, b);
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
            } {
            /// Random numbers, uniform in `[0, 1)`, by [`Extra::Random`](crate::Extra::Random): every multiple of the dtype's smallest
            /// step below 1 is equally likely. The same bits on every device.
            Uniform: "uniform", Source, FLOATS;
            /// Random numbers of the normal distribution with mean 0 and variance 1, by [`Extra::Random`](crate::Extra::Random).
            Normal: "normal", Source, FLOATS;
        } }
    };
}
