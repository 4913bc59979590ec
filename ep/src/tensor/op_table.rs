//! The table of built-in ops: everything that is fixed per op and is not a kernel.
//!
//! The enum [`Op`](crate::Op) with its properties, the methods of `Tensor` and of `InstructionsBuilder`, the functions of the script
//! language with their page, and the cases of the suites are made from this table. The rule for shapes (`infer`) and the plans for CUDA
//! follow from an op's class; the kernels of each device are checked against the table by tests.

/// Expands `$with!` over the table of ops. A row is
///
/// ```text
/// /// What it computes.
/// Variant: "name", Class, DTYPES, method(first, others; parameters: types) => value of `Params`, { facts };
/// ```
///
/// and rows of ops without inputs, which have no method, follow in braces of their own.
///
/// * `"name"` is the op's name in texts. Where an op is a function of the script language, it has the same name there.
/// * `Class` is a variant of [`OpClass`](crate::OpClass): rule for shapes, form of a call.
/// * `DTYPES` is one of the lists in [`dtypes`](crate::dtypes): what the op accepts for its key input.
/// * `method` is the method of `Tensor` and of `InstructionsBuilder`, with its inputs, its parameters, and the
///   [`Params`](crate::Params) that they give (the default where it is left out).
/// * The facts, in this order; what a row leaves out is what stands in brackets:
///   * `work`: the [`ElementWork`](crate::ElementWork) of an elementwise op (`Light`).
///   * `empty`: whether a reduction has a result for no elements (`false`).
///   * `samples`: the [`Samples`](crate::Samples) that suites draw for each input; the last are those of all further inputs (`Wild`).
///   * `error`: a function of [`Accuracy`](crate::Accuracy), with its arguments: how far a float may be from the exact result (`EXACT`).
///   * `numpy`: the same function in NumPy, for arrays `{0}` and `{1}`: `make diff` runs scripts beside it. It may use `np`, `erf` and `erfc`, and for a
///     reduction `how`, which are the axes. Only for what is one expression.
///   * `floats`, `integers`, or `both`: the reference of an elementwise op, or of a reduction, which gets all terms: closures over `f64` and
///     `i128`, where a bool is 0 or 1 and only the low bits of an integer count. Suites alone compile them, in the scope of
///     `ep/cpu/tests/cpu_kernels/reference`, which evaluates the other ops.
#[doc(hidden)]
#[macro_export]
macro_rules! op_table {
    ($with:ident) => {
        $with! { {
            /// `-x`; integers wrap.
            Neg: "neg", Unary, SIGNED, neg(x), { numpy: "np.negative({0})", both: |x| -x, };
            /// Absolute value; integers wrap, so `abs(MIN) = MIN`.
            Abs: "abs", Unary, SIGNED, abs(x), { numpy: "np.abs({0})", both: |x| x.abs(), };
            /// `e` to the power `x`.
            Exp: "exp", Unary, FLOATS, exp(x), { work: Long, error: ulps(1, 4), numpy: "np.exp({0})", floats: |x| x.exp(), };
            /// Natural logarithm.
            Log: "log", Unary, FLOATS, log(x), { work: Long, error: ulps(1, 4), numpy: "np.log({0})", floats: |x| x.ln(), };
            /// Square root.
            Sqrt: "sqrt", Unary, FLOATS, sqrt(x), { numpy: "np.sqrt({0})", floats: |x| x.sqrt(), };
            /// Hyperbolic tangent.
            Tanh: "tanh", Unary, FLOATS, tanh(x), { work: Long, error: ulps(3, 4), numpy: "np.tanh({0})", floats: |x| x.tanh(), };
            /// `max(x, 0)`; NaN stays NaN.
            Relu: "relu", Unary, SIGNED, relu(x), {
                numpy: "np.maximum({0}, np.zeros((), {0}.dtype))", floats: |x| if x < 0.0 { 0.0 } else { x }, integers: |x| x.max(0),
            };
            /// `1 / (1 + exp(-x))`, without overflow.
            Sigmoid: "sigmoid", Unary, FLOATS, sigmoid(x), {
                work: Long, error: ulps(3, 4), numpy: "1 / (1 + np.exp(-{0}))", floats: |x| 1.0 / (1.0 + (-x).exp()),
            };
            /// The error function, `2 / sqrt(pi)` times the integral of `exp(-t^2)` from 0 to `x`.
            Erf: "erf", Unary, FLOATS, erf(x), { work: Long, error: ulps(2, 4), numpy: "erf({0})", floats: |x| libm::erf(x), };
            /// `x (1 + erf(x / sqrt(2))) / 2`; 0 at minus infinity.
            Gelu: "gelu", Unary, FLOATS, gelu(x), {
                work: Long, error: ulps(7, 256), numpy: "{0} * erfc(-{0} * np.sqrt(0.5)) / 2",
                floats: |x| if x == f64::NEG_INFINITY { 0.0 } else { x * libm::erfc(-x * FRAC_1_SQRT_2) / 2.0 },
            };
            /// `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`, which approximates `gelu`; 0 at minus infinity.
            GeluTanh: "gelu_tanh", Unary, FLOATS, gelu_tanh(x), {
                work: Long, error: ulps(5, 256), numpy: "{0} / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * ({0} + 0.044715 * {0} * {0} * {0})))",
                floats: |x| if x == f64::NEG_INFINITY { 0.0 } else { x / (1.0 + (-2.0 * (2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3))).exp()) },
            };
            /// `x / (1 + exp(-x))`; 0 at minus infinity.
            Silu: "silu", Unary, FLOATS, silu(x), {
                work: Long, error: ulps(5, 256), numpy: "{0} / (1 + np.exp(-{0}))",
                floats: |x| if x == f64::NEG_INFINITY { 0.0 } else { x / (1.0 + (-x).exp()) },
            };
            /// `1 / sqrt(x)`; infinite at 0, NaN for negative numbers.
            Rsqrt: "rsqrt", Unary, FLOATS, rsqrt(x), { error: ulps(1.5, 0), numpy: "1 / np.sqrt({0})", floats: |x| 1.0 / x.sqrt(), };
            /// `1 / x`, rounded once; infinite at 0, with the sign of the zero.
            Reciprocal: "reciprocal", Unary, FLOATS, reciprocal(x), { numpy: "1 / {0}", floats: |x| 1.0 / x, };
            /// The largest whole number that is not above `x`. Zeros, infinities and NaN stay.
            Floor: "floor", Unary, FLOATS, floor(x), { numpy: "np.floor({0})", floats: |x| x.floor(), };
            /// The smallest whole number that is not below `x`; `-0` for numbers between -1 and 0. Zeros, infinities and NaN stay.
            Ceil: "ceil", Unary, FLOATS, ceil(x), { numpy: "np.ceil({0})", floats: |x| x.ceil(), };
            /// The nearest whole number, and of two that are equally near the even one; a zero has the sign of `x`. Zeros, infinities and NaN
            /// stay.
            Round: "round", Unary, FLOATS, round(x), { numpy: "np.rint({0})", floats: |x| x.round_ties_even(), };
            /// `x` without its fraction; a zero has the sign of `x`. Zeros, infinities and NaN stay.
            Trunc: "trunc", Unary, FLOATS, trunc(x), { numpy: "np.trunc({0})", floats: |x| x.trunc(), };
            /// 1 for positive numbers, -1 for negative ones, 0 for zeros of both signs; NaN stays NaN.
            Sign: "sign", Unary, SIGNED, sign(x), {
                numpy: "np.sign({0})", floats: |x| if x == 0.0 || x.is_nan() { x } else { x.signum() }, integers: |x| x.signum(),
            };
            /// Sine of an angle in radians, of any size; NaN for infinities.
            Sin: "sin", Unary, FLOATS, sin(x), { work: Call, error: ulps(1, 4), numpy: "np.sin({0})", floats: |x| x.sin(), };
            /// Cosine of an angle in radians, of any size; NaN for infinities.
            Cos: "cos", Unary, FLOATS, cos(x), { work: Call, error: ulps(1, 4), numpy: "np.cos({0})", floats: |x| x.cos(), };
            /// Tangent of an angle in radians, of any size; NaN for infinities.
            Tan: "tan", Unary, FLOATS, tan(x), { work: Call, error: ulps(1, 4), numpy: "np.tan({0})", floats: |x| x.tan(), };
            /// Arc sine, from `-pi/2` to `pi/2`; NaN outside of `[-1, 1]`.
            Asin: "asin", Unary, FLOATS, asin(x), { work: Call, error: ulps(1, 4), numpy: "np.arcsin({0})", floats: |x| x.asin(), };
            /// Arc cosine, from 0 to `pi`; NaN outside of `[-1, 1]`.
            Acos: "acos", Unary, FLOATS, acos(x), { work: Call, error: ulps(1, 4), numpy: "np.arccos({0})", floats: |x| x.acos(), };
            /// Arc tangent, from `-pi/2` to `pi/2`.
            Atan: "atan", Unary, FLOATS, atan(x), { work: Call, error: ulps(1, 4), numpy: "np.arctan({0})", floats: |x| x.atan(), };
            /// Hyperbolic sine.
            Sinh: "sinh", Unary, FLOATS, sinh(x), { work: Call, error: ulps(2, 4), numpy: "np.sinh({0})", floats: |x| x.sinh(), };
            /// Hyperbolic cosine.
            Cosh: "cosh", Unary, FLOATS, cosh(x), { work: Call, error: ulps(2, 4), numpy: "np.cosh({0})", floats: |x| x.cosh(), };
            /// Natural logarithm of `1 + x`, accurate where `x` is nearly 0.
            Log1p: "log1p", Unary, FLOATS, log1p(x), { work: Call, error: ulps(1, 4), numpy: "np.log1p({0})", floats: |x| x.ln_1p(), };
            /// `exp(x) - 1`, accurate where `x` is nearly 0.
            Expm1: "expm1", Unary, FLOATS, expm1(x), { work: Call, error: ulps(1, 4), numpy: "np.expm1({0})", floats: |x| x.exp_m1(), };
            /// Logarithm to base 2; exact for powers of 2.
            Log2: "log2", Unary, FLOATS, log2(x), { work: Long, error: ulps(2, 4), numpy: "np.log2({0})", floats: |x| x.log2(), };
            /// Logarithm to base 10; exact for powers of 10.
            Log10: "log10", Unary, FLOATS, log10(x), { work: Long, error: ulps(2, 4), numpy: "np.log10({0})", floats: |x| x.log10(), };
            /// 2 to the power `x`; exact for whole numbers.
            Exp2: "exp2", Unary, FLOATS, exp2(x), { work: Long, error: ulps(1, 4), numpy: "np.exp2({0})", floats: |x| x.exp2(), };
            /// Every bit inverted.
            BitNot: "bit_not", Unary, INTEGERS, bit_not(x), { numpy: "np.invert({0})", integers: |x| !x, };
            /// The other truth value.
            Not: "not", Unary, BOOL, logical_not(x), { numpy: "np.logical_not({0})", integers: |x| 1 - x, };
            /// Whether `x` is NaN, to bool.
            IsNan: "isnan", Predicate, FLOATS, isnan(x), { numpy: "np.isnan({0})", floats: |x| x.is_nan(), };
            /// Whether `x` is an infinity of either sign, to bool.
            IsInf: "isinf", Predicate, FLOATS, isinf(x), { numpy: "np.isinf({0})", floats: |x| x.is_infinite(), };
            /// Whether `x` is neither an infinity nor NaN, to bool.
            IsFinite: "isfinite", Predicate, FLOATS, isfinite(x), { numpy: "np.isfinite({0})", floats: |x| x.is_finite(), };
            /// `a + b`; integers wrap.
            Add: "add", Binary, NUMBERS, add(a, b), { numpy: "np.add({0}, {1})", both: |x, y| x + y, };
            /// `a - b`; integers wrap.
            Sub: "sub", Binary, NUMBERS, sub(a, b), { numpy: "np.subtract({0}, {1})", both: |x, y| x - y, };
            /// `a * b`; integers wrap.
            Mul: "mul", Binary, NUMBERS, mul(a, b), { numpy: "np.multiply({0}, {1})", floats: |x, y| x * y, integers: |x, y| x.wrapping_mul(y), };
            /// `a / b`; integers truncate toward zero, `MIN / -1` wraps, division by zero is an error.
            Div: "div", Binary, NUMBERS, div(a, b), { samples: Wild NonZero, both: |x, y| x / y, };
            /// The smaller value; NaN if either is NaN. On bool: and.
            Min: "min", Binary, ALL, minimum(a, b), {
                numpy: "np.minimum({0}, {1})", floats: |x, y| if x.is_nan() || y.is_nan() { f64::NAN } else { x.min(y) }, integers: |x, y| x.min(y),
            };
            /// The larger value; NaN if either is NaN. On bool: or.
            Max: "max", Binary, ALL, maximum(a, b), {
                numpy: "np.maximum({0}, {1})", floats: |x, y| if x.is_nan() || y.is_nan() { f64::NAN } else { x.max(y) }, integers: |x, y| x.max(y),
            };
            /// `a` to the power `b`; integers wrap, a negative integer exponent is an error. On a CPU by `pow` of the C library, so that its last bits are those of the system.
            Pow: "pow", Binary, NUMBERS, pow(a, b), {
                work: Call, samples: Wild Exponents, error: ulps(1, 4), numpy: "np.power({0}, {1})", floats: |x, y| x.powf(y),
                integers: |x, y| (0..y).fold(1, |power: i128, _| power.wrapping_mul(x)),
            };
            /// The largest whole number that is not above `a / b`, as `//` in Python. Integers: `MIN / -1` wraps, division by zero is an error.
            /// Floats: computed from the exact remainder, so that a quotient just below a whole number is not rounded up to it; exact up to 22 bits
            /// (51 of `f64`), and beyond within 2 ulp. 16-bit floats: as `f32`, then rounded once. `a / b` if `b` is 0; NaN if `a` is infinite.
            FloorDiv: "floor_div", Binary, NUMBERS, floor_div(a, b), {
                work: Call, samples: Wild NonZero, error: own(4, 0, 0), floats: |x, y| floor_div(x, y),
                integers: |x, y| x.div_euclid(y) - i128::from(y < 0 && x.rem_euclid(y) != 0),
            };
            /// The remainder of `a / b`, with the sign of `b`, as `%` in Python: `a - b floor_div(a, b)`. Integers: division by zero
            /// is an error. Floats: rounded once; a zero has the sign of `b`; NaN if `b` is 0 or `a` is infinite.
            Remainder: "remainder", Binary, NUMBERS, remainder(a, b), {
                work: Call, samples: Wild NonZero, floats: |x, y| remainder(x, y),
                integers: |x, y| x.rem_euclid(y) + if y < 0 && x.rem_euclid(y) != 0 { y } else { 0 },
            };
            /// The angle of the point with the coordinates `b` (to the right) and `a` (up), from `-pi` to `pi`.
            Atan2: "atan2", Binary, FLOATS, atan2(a, b), {
                work: Call, error: ulps(1, 4), numpy: "np.arctan2({0}, {1})", floats: |x, y| x.atan2(y),
            };
            /// The bits that are 1 in both.
            BitAnd: "bit_and", Binary, INTEGERS, bit_and(a, b), { numpy: "np.bitwise_and({0}, {1})", integers: |x, y| x & y, };
            /// The bits that are 1 in either or both.
            BitOr: "bit_or", Binary, INTEGERS, bit_or(a, b), { numpy: "np.bitwise_or({0}, {1})", integers: |x, y| x | y, };
            /// The bits that are 1 in one of the two.
            BitXor: "bit_xor", Binary, INTEGERS, bit_xor(a, b), { numpy: "np.bitwise_xor({0}, {1})", integers: |x, y| x ^ y, };
            /// The bits of `a` moved up by `b` places; bits that leave the dtype are lost. A count that is negative, or not below the number of bits
            /// of the dtype, gives 0.
            Shl: "shl", Binary, INTEGERS, shl(a, b), {
                numpy: "np.left_shift({0}, {1})", integers: |x, y| if (0..127).contains(&y) { x << y } else { 0 },
            };
            /// The bits of `a` moved down by `b` places; the sign of a signed integer stays, so this is `a / 2^b` rounded down. A count that is
            /// negative, or not below the number of bits of the dtype, gives 0, or -1 if `a` is negative.
            Shr: "shr", Binary, INTEGERS, shr(a, b), {
                numpy: "np.right_shift({0}, {1})", integers: |x, y| x >> if (0..127).contains(&y) { y } else { 127 },
            };
            /// Whether both are true.
            And: "and", Binary, BOOL, logical_and(a, b), { numpy: "np.logical_and({0}, {1})", integers: |x, y| x & y, };
            /// Whether either is true, or both.
            Or: "or", Binary, BOOL, logical_or(a, b), { numpy: "np.logical_or({0}, {1})", integers: |x, y| x | y, };
            /// Whether one of the two is true, and not both.
            Xor: "xor", Binary, BOOL, logical_xor(a, b), { numpy: "np.logical_xor({0}, {1})", integers: |x, y| x ^ y, };
            /// `a == b`, to bool.
            Eq: "eq", Comparison, ALL, eq(a, b), { numpy: "np.equal({0}, {1})", both: |x, y| x == y, };
            /// `a != b`, to bool.
            Ne: "ne", Comparison, ALL, ne(a, b), { numpy: "np.not_equal({0}, {1})", both: |x, y| x != y, };
            /// `a < b`, to bool.
            Lt: "lt", Comparison, ALL, lt(a, b), { numpy: "np.less({0}, {1})", both: |x, y| x < y, };
            /// `a <= b`, to bool.
            Le: "le", Comparison, ALL, le(a, b), { numpy: "np.less_equal({0}, {1})", both: |x, y| x <= y, };
            /// `a > b`, to bool.
            Gt: "gt", Comparison, ALL, gt(a, b), { numpy: "np.greater({0}, {1})", both: |x, y| x > y, };
            /// `a >= b`, to bool.
            Ge: "ge", Comparison, ALL, ge(a, b), { numpy: "np.greater_equal({0}, {1})", both: |x, y| x >= y, };
            /// The second input where the first (bool) is true, else the third.
            /// The condition is bool, the others have one dtype; all shapes broadcast.
            Where: "where", Select, ALL, where_(condition, yes, no);
            /// `min(max(x, low), high)`: `x` within two bounds; `high` where `low` is above it, NaN if any of the three is NaN.
            /// All inputs have one dtype; their shapes broadcast.
            Clamp: "clamp", Ternary, NUMBERS, clamp(x, low, high);
            /// Sum over axes; integers wrap, no elements give 0.
            Sum: "sum", Reduction, NUMBERS, sum(x; axes: &[usize]) => $crate::Params::over($crate::Axes::new(axes)?), {
                empty: true, samples: Tame, error: total(0.5, 16, 4), numpy: "np.sum({0}, **how)", floats: |x| exact_sum(x.iter().copied()),
                integers: |x| x.iter().sum(),
            };
            /// Mean over axes.
            Mean: "mean", Reduction, FLOATS, mean(x; axes: &[usize]) => $crate::Params::over($crate::Axes::new(axes)?), {
                samples: Tame, error: folded(0.5, 16, 4), numpy: "np.mean({0}, **how)",
                floats: |x| exact_sum(x.iter().copied()) / x.len() as f64,
            };
            /// Variance over axes: the mean of the squares of the differences to the mean. Computed in `f64` on a CPU, and rounded once for narrower floats; the
            /// squares must be in the range of `f64`.
            Var: "var", Reduction, FLOATS, var(x; axes: &[usize]) => $crate::Params::over($crate::Axes::new(axes)?), {
                samples: Tame, error: wide(64, 256, 16), floats: |x| variance(x),
            };
            /// Standard deviation over axes: the square root of the variance, which is computed as by `var`.
            Std: "std", Reduction, FLOATS, std(x; axes: &[usize]) => $crate::Params::over($crate::Axes::new(axes)?), {
                samples: Tame, error: wide(64, 256, 16), floats: |x| variance(x).sqrt(),
            };
            /// The largest value over axes; NaN if any is NaN. On bool: any.
            ReduceMax: "reduce_max", Reduction, ALL, max(x; axes: &[usize]) => $crate::Params::over($crate::Axes::new(axes)?), {
                numpy: "np.max({0}, **how)", floats: |x| largest(x), integers: |x| *x.iter().max().unwrap(),
            };
            /// The smallest value over axes; NaN if any is NaN. On bool: all.
            ReduceMin: "reduce_min", Reduction, ALL, min(x; axes: &[usize]) => $crate::Params::over($crate::Axes::new(axes)?), {
                numpy: "np.min({0}, **how)", floats: |x| -largest(&x.iter().map(|x| -x).collect::<Vec<_>>()), integers: |x| *x.iter().min().unwrap(),
            };
            /// Product over axes; integers wrap, no elements give 1. Products of `f32` are kept in `f64`, those of 16-bit floats in `f32`, and rounded once; a
            /// product on the way that leaves that range, to an infinity or to 0, does not come back.
            Prod: "prod", Reduction, NUMBERS, prod(x; axes: &[usize]) => $crate::Params::over($crate::Axes::new(axes)?), {
                empty: true, samples: Tame, error: folded(2, 4096, 0), floats: |x| x.iter().product(),
                integers: |x| x.iter().fold(1, |x, y| x.wrapping_mul(*y)),
            };
            /// Whether any element over axes is true; no elements give false.
            Any: "any", Reduction, BOOL, any(x; axes: &[usize]) => $crate::Params::over($crate::Axes::new(axes)?), {
                empty: true, numpy: "np.any({0}, **how)", integers: |x| x.contains(&1).into(),
            };
            /// Whether all elements over axes are true; no elements give true.
            All: "all", Reduction, BOOL, all(x; axes: &[usize]) => $crate::Params::over($crate::Axes::new(axes)?), {
                empty: true, numpy: "np.all({0}, **how)", integers: |x| (!x.contains(&0)).into(),
            };
            /// The index of the first largest value on one axis, as i64; a NaN counts as the largest.
            ArgMax: "argmax", ArgReduction, ALL, argmax(x; axis: usize) => $crate::Params::over($crate::Axes::new(&[axis])?);
            /// The index of the first smallest value on one axis, as i64; a NaN counts as the smallest.
            ArgMin: "argmin", ArgReduction, ALL, argmin(x; axis: usize) => $crate::Params::over($crate::Axes::new(&[axis])?);
            /// Matrix product of the two innermost axes; the axes outside broadcast. Integers wrap.
            /// `[.., m, k]` by `[.., k, n]` gives `[.., m, n]`; both inputs have one dtype.
            MatMul: "matmul", MatMul, WIDE_SIGNED, matmul(a, b), { samples: Tame, error: own(64, 64, 64), };
            /// `exp(x) / sum(exp(x))` over one axis, without overflow.
            Softmax: "softmax", Softmax, FLOATS, softmax(x; axis: usize) => $crate::Params::over($crate::Axes::new(&[axis])?), {
                samples: Tame, error: own(64, 16, 0),
            };
            /// `x - log(sum(exp(x)))` over one axis: the logarithm of the softmax, without overflow, and accurate where it is nearly 0.
            LogSoftmax: "log_softmax", Softmax, FLOATS, log_softmax(x; axis: usize)
                => $crate::Params::over($crate::Axes::new(&[axis])?), {
                samples: Tame, error: own(64, 16, 8),
            };
            /// The gradient of the softmax over one axis. Inputs: the output `y` of the softmax and its gradient `dy`. Output: the
            /// gradient of the softmax's input, `y * (dy - sum(y * dy))`.
            SoftmaxBackward: "softmax_backward", SoftmaxGradient, FLOATS, softmax_backward(y, dy; axis: usize)
                => $crate::Params::over($crate::Axes::new(&[axis])?), {
                samples: Tame, error: own(64, 64, 256),
            };
            /// The gradient of the log-softmax over one axis. Inputs: the output `y` of the log-softmax and its gradient `dy`. Output:
            /// the gradient of the log-softmax's input, `dy - exp(y) * sum(dy)`.
            LogSoftmaxBackward: "log_softmax_backward", SoftmaxGradient, FLOATS, log_softmax_backward(y, dy; axis: usize)
                => $crate::Params::over($crate::Axes::new(&[axis])?), {
                samples: Tame, error: own(64, 64, 256),
            };
            /// `(x - mean) / sqrt(variance + epsilon) * weight + bias`, where mean and variance, which divides by the number of elements, are
            /// those of each row along the innermost axis. Computed in `f64` on a CPU, and rounded once for
            /// narrower floats; squares of the elements must be in the range of `f64`.
            /// All inputs have one dtype. The weight and the bias have one axis, of the size of the innermost axis of the input. The output has the dtype
            /// and shape of the input.
            LayerNorm: "layer_norm", LayerNorm, FLOATS, layer_norm(x, weight, bias; epsilon: f64) => $crate::Params::epsilon(epsilon), {
                samples: Tame, error: wide(256, 256, 16),
            };
            /// The rows of a table `[n, d]` that the indices, counted from 0, select. An index that is negative or not below `n` is an error,
            /// unless the rows have no elements.
            /// The table has two axes, rows and columns; the indices are i32, i64 or u8, of any shape. The output has the dtype of the table, and the axes
            /// of the indices, then the columns. An index out of range fails the instruction, with an error that names it.
            IndexSelect: "index_select", IndexSelect, ALL, index_select(table, indices), { samples: Wild Small, };
            /// The input with margins of a constant value on some axes (none given: on all): `before` elements before it and `after`
            /// after it on each. Axes with margins of different widths need a call for each width.
            /// Empty `axes` stand for all axes. The dtype is kept.
            Pad: "pad", Pad, ALL,
                pad(x; axes: &[usize], before: u32, after: u32, value: impl Into<$crate::Scalar>)
                => $crate::Params::pad($crate::Axes::new(axes)?, before, after, value);
            /// 1 at the class that the index (an integer) gives, else 0, on a new innermost axis of `classes` elements, in another
            /// dtype. An index out of range gives only zeros.
            /// The indices are i32, i64 or u8.
            OneHot: "one_hot", OneHot, INDICES, one_hot(indices; classes: usize, dtype: $crate::DType)
                => $crate::Params::one_hot(classes, dtype);
            /// Conversion to another dtype. Float to integer truncates and saturates (NaN gives 0); a wider integer keeps its low bits;
            /// anything to bool is `!= 0`. A value that a float dtype cannot represent is rounded to the nearest, ties to even, or to an
            /// infinity past the range.
            /// The shape is kept.
            Cast: "cast", Cast, ALL, cast(x; dtype: $crate::DType) => $crate::Params::to(dtype), { error: wide(0, 0, 0), };
            /// The elements in the opposite order along some axes.
            /// Empty `axes` stand for all axes. The output has the dtype and shape of the input.
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
            /// The output has the dtype and shape of the input. A row along the axis is added up by one thread.
            CumSum: "cumsum", RunningSum, NUMBERS, cumsum(x; axis: usize) => $crate::Params::over($crate::Axes::new(&[axis])?), {
                samples: Tame, error: sums(75, 0, 600),
            };
            /// For each index the element of `x` at that place of one axis, and at the place of the index on the other axes. Indices count from 0. An index
            /// that is negative or not below the size of the axis is an error.
            /// The indices are i32, i64 or u8, of the sizes of `x` on all axes but this one. The output has the dtype of `x` and the shape of the indices.
            /// An index out of range fails the instruction, with an error that names it, unless the output has no elements.
            TakeAlongAxis: "take_along_axis", TakeAlongAxis, ALL, take_along_axis(x, indices; axis: usize)
                => $crate::Params::over($crate::Axes::new(&[axis])?), {
                samples: Wild Small,
            };
            /// `x` with elements of the source in place of some: for each index that at the place of the index goes to the place on one axis that the index
            /// gives. Of several that go to one place, the last on that axis stays. An index that is negative or not below the size of the axis is an
            /// error.
            Scatter: "scatter", Scatter, ALL, scatter(x, indices, source; axis: usize) => $crate::Params::over($crate::Axes::new(&[axis])?), {
                samples: Wild Small Wild,
            };
            /// `x` with elements of the source added to some, as `scatter` would put them there. Each addition is rounded, and several that go to one place are
            /// added in the order of that axis, so that the result has the same bits on every device. Integers wrap.
            ScatterAdd: "scatter_add", Scatter, NUMBERS, scatter_add(x, indices, source; axis: usize)
                => $crate::Params::over($crate::Axes::new(&[axis])?), {
                samples: Tame Small Tame,
            };
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
            Conv2d: "conv2d", Convolution, FLOATS, conv2d(x, weight; by: $crate::Convolution) => $crate::Params::convolution(by), {
                samples: Tame, error: own(64, 64, 64),
            };
            /// The gradient of the input of a convolution. Inputs: those of `conv2d`, and the gradient `dy` of its output. Of the
            /// input only the shape is used.
            Conv2dBackwardInput: "conv2d_backward_input", ConvolutionGradient, FLOATS,
                conv2d_backward_input(x, weight, dy; by: $crate::Convolution) => $crate::Params::convolution(by), {
                samples: Tame, error: own(64, 64, 64),
            };
            /// The gradient of the weight of a convolution. Inputs: those of `conv2d`, and the gradient `dy` of its output. Of the
            /// weight only the shape is used.
            Conv2dBackwardWeight: "conv2d_backward_weight", ConvolutionGradient, FLOATS,
                conv2d_backward_weight(x, weight, dy; by: $crate::Convolution) => $crate::Params::convolution(by), {
                samples: Tame, error: own(64, 64, 64),
            };
            /// The largest element under a window at each position on the two innermost axes of `[n, c, h, w]`; NaN if any is NaN.
            MaxPool2d: "max_pool2d", Pooling, FLOATS, max_pool2d(x; by: $crate::Pooling) => $crate::Params::pooling(by);
            /// The mean over a window at each position on the two innermost axes of `[n, c, h, w]`. The padding counts as zeros. Sums are kept
            /// in `f64`, and rounded once.
            AvgPool2d: "avg_pool2d", Pooling, FLOATS, avg_pool2d(x; by: $crate::Pooling) => $crate::Params::pooling(by), {
                samples: Tame, error: wide(16, 0, 16),
            };
            /// The gradient of the input of a max pooling. Inputs: its input, and the gradient `dy` of its output. The gradient of a window goes to its
            /// first largest element in row-major order; a NaN counts as the largest.
            MaxPool2dBackward: "max_pool2d_backward", PoolingGradient, FLOATS, max_pool2d_backward(x, dy; by: $crate::Pooling)
                => $crate::Params::pooling(by), {
                samples: Wild Tame, error: wide(16, 0, 16),
            };
            /// The gradient of the input of an average pooling. Inputs: its input, of which only the shape is used, and the gradient `dy` of its output.
            AvgPool2dBackward: "avg_pool2d_backward", PoolingGradient, FLOATS, avg_pool2d_backward(x, dy; by: $crate::Pooling)
                => $crate::Params::pooling(by), {
                samples: Tame, error: wide(16, 0, 16),
            };
            /// `x / sqrt(mean(x^2) + epsilon) * weight`, where the mean is that of each row along the innermost axis. Computed in `f64` on a CPU, and rounded once for
            /// narrower floats; squares of the elements must be in the range of `f64`.
            /// Both inputs have one dtype. The weight has one axis, of the size of the innermost axis of the input. The output has the dtype and shape of
            /// the input.
            RmsNorm: "rms_norm", RmsNorm, FLOATS, rms_norm(x, weight; epsilon: f64) => $crate::Params::epsilon(epsilon), {
                samples: Tame, error: wide(256, 256, 16),
            };
            /// The cross entropy of each row of logits along the innermost axis with its target: `log(sum(exp(x))) - x[target]`, without overflow.
            /// A row whose target is negative or not below the number of classes has a loss of 0. Computed in the dtype, with sums in `f64`; 16-bit floats in `f32`, and rounded once.
            /// The logits have an innermost axis of classes; the targets are i64, with their other axes. The output has the shape of the targets.
            CrossEntropy: "cross_entropy", CrossEntropy, FLOATS, cross_entropy(logits, targets), {
                samples: Tame Small, error: own(64, 16, 8),
            };
            /// The gradient of the logits of a cross entropy. Inputs: those of `cross_entropy`, and the gradient `dy` of its output. Output:
            /// `(softmax(x) - one_hot(target)) * dy`; zeros for a row whose target is no class.
            /// The logits and the targets are those of `cross_entropy`; `dy` has the dtype of the logits and the shape of the targets. The output has the
            /// dtype and shape of the logits.
            CrossEntropyBackward: "cross_entropy_backward", CrossEntropyGradient, FLOATS, cross_entropy_backward(logits, targets, dy), {
                samples: Tame Small Tame, error: own(64, 16, 8),
            };
            } {
            /// Random numbers, uniform in `[0, 1)`, by [`Extra::Random`](crate::Extra::Random): every multiple of the dtype's smallest
            /// step below 1 is equally likely. The same bits on every device.
            Uniform: "uniform", Source, FLOATS;
            /// Random numbers of the normal distribution with mean 0 and variance 1, by [`Extra::Random`](crate::Extra::Random).
            Normal: "normal", Source, FLOATS, { error: own(0, 8, 8), };
            /// `first + i step` for element `i`, in row-major order, by [`Extra::Integers`](crate::Extra::Integers) or
            /// [`Extra::Floats`](crate::Extra::Floats). Floats are computed in `f64`, and rounded once for narrower dtypes; integers wrap. The same bits on every
            /// device.
            Arange: "arange", Sequence, NUMBERS;
        } }
    };
}

/// The sentence on the `error` of a row, for documentation.
#[doc(hidden)]
#[macro_export]
macro_rules! op_error {
    (ulps $on_cpu:literal $apart:literal) => {
        concat!("On a CPU within ", $on_cpu, " ulp of the exact result, 16-bit floats within 0.501 ulp.")
    };
    ($($other:tt)*) => {
        ""
    };
}
