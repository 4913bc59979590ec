//! The built-in ops: their names and fixed properties. The doc of each op says what it computes.

use std::fmt;
use std::str::FromStr;

use crate::names::text::{ParseError, listed};

macro_rules! ops {
    ($($(#[$doc:meta])* $op:ident $name:literal $arity:literal,)*) => {
        /// A built-in op. Each has one output.
        ///
        /// `f16` and `bf16` are computed in `f32`, and each element of the output is rounded once, to the nearest value with ties to
        /// even. That holds for sums, means, softmax and matrix products too, which accumulate in `f32` or wider.
        #[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Op {
            $($(#[$doc])* $op,)*
        }

        impl Op {
            /// Every op, in the order of the enum.
            pub const ALL: [Op; [$($arity),*].len()] = [$(Op::$op),*];

            /// The name that [`Display`](fmt::Display) prints and [`FromStr`] reads.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Op::$op => $name,)*
                }
            }

            /// Number of inputs.
            pub const fn arity(self) -> usize {
                match self {
                    $(Op::$op => $arity,)*
                }
            }
        }
    };
}

ops! {
    /// `-x`; integers wrap.
    Neg "neg" 1,
    /// Absolute value; integers wrap, so `abs(MIN) = MIN`.
    Abs "abs" 1,
    /// `e` to the power `x`.
    Exp "exp" 1,
    /// Natural logarithm.
    Log "log" 1,
    /// Square root.
    Sqrt "sqrt" 1,
    /// Hyperbolic tangent.
    Tanh "tanh" 1,
    /// `max(x, 0)`; NaN stays NaN.
    Relu "relu" 1,
    /// `1 / (1 + exp(-x))`, without overflow.
    Sigmoid "sigmoid" 1,
    /// `a + b`; integers wrap.
    Add "add" 2,
    /// `a - b`; integers wrap.
    Sub "sub" 2,
    /// `a * b`; integers wrap.
    Mul "mul" 2,
    /// `a / b`; integers truncate toward zero, `MIN / -1` wraps, division by zero is an error.
    Div "div" 2,
    /// The smaller value; NaN if either is NaN. On bool: and.
    Min "min" 2,
    /// The larger value; NaN if either is NaN. On bool: or.
    Max "max" 2,
    /// `a` to the power `b`; integers wrap, a negative integer exponent is an error.
    Pow "pow" 2,
    /// `a == b`, to bool.
    Eq "eq" 2,
    /// `a != b`, to bool.
    Ne "ne" 2,
    /// `a < b`, to bool.
    Lt "lt" 2,
    /// `a <= b`, to bool.
    Le "le" 2,
    /// `a > b`, to bool.
    Gt "gt" 2,
    /// `a >= b`, to bool.
    Ge "ge" 2,
    /// The second input where the first (bool) is true, else the third.
    Where "where" 3,
    /// Sum over axes; integers wrap, no elements give 0.
    Sum "sum" 1,
    /// Mean over axes.
    Mean "mean" 1,
    /// The largest value over axes; NaN if any is NaN. On bool: any.
    ReduceMax "reduce_max" 1,
    /// The smallest value over axes; NaN if any is NaN. On bool: all.
    ReduceMin "reduce_min" 1,
    /// The index of the first largest value on one axis, as i64; a NaN counts as the largest.
    ArgMax "argmax" 1,
    /// Matrix product of the two innermost axes; the axes outside broadcast. Integers wrap.
    MatMul "matmul" 2,
    /// `exp(x) / sum(exp(x))` over one axis, without overflow.
    Softmax "softmax" 1,
    /// `x - log(sum(exp(x)))` over one axis: the logarithm of the softmax, without overflow, and accurate where it is nearly 0.
    LogSoftmax "log_softmax" 1,
    /// The gradient of the softmax over one axis. Inputs: the output `y` of the softmax and its gradient `dy`. Output: the gradient of
    /// the softmax's input, `y * (dy - sum(y * dy))`.
    SoftmaxBackward "softmax_backward" 2,
    /// The gradient of the log-softmax over one axis. Inputs: the output `y` of the log-softmax and its gradient `dy`. Output: the
    /// gradient of the log-softmax's input, `dy - exp(y) * sum(dy)`.
    LogSoftmaxBackward "log_softmax_backward" 2,
    /// The input with margins of a constant value on [`Params::axes`](crate::Params::axes); their width is in
    /// [`Extra::Pad`](crate::Extra::Pad).
    Pad "pad" 1,
    /// 1 at the class that the index (an integer) gives, else 0, on a new innermost axis of [`Extra::Classes`](crate::Extra::Classes)
    /// elements, in the dtype [`Params::to`](crate::Params::to). An index out of range gives only zeros.
    OneHot "one_hot" 1,
    /// Conversion to another dtype. Float to integer truncates and saturates (NaN gives 0); a wider integer keeps its low bits; anything
    /// to bool is `!= 0`. A value that a float dtype cannot represent is rounded to the nearest, ties to even, or to an infinity past the
    /// range.
    Cast "cast" 1,
    /// Random numbers, uniform in `[0, 1)`, by [`Extra::Random`](crate::Extra::Random): every multiple of the dtype's smallest step below
    /// 1 is equally likely. The same bits on every device.
    Uniform "uniform" 0,
    /// Random numbers of the normal distribution with mean 0 and variance 1, by [`Extra::Random`](crate::Extra::Random).
    Normal "normal" 0,
}

impl Op {
    /// Whether each output element depends only on the input elements at its own (broadcast) index. Then the output may be exactly the
    /// view of an input.
    pub const fn is_elementwise(self) -> bool {
        !(self.is_reduction()
            || self.is_softmax()
            || self.is_source()
            || matches!(self, Op::MatMul | Op::Pad | Op::OneHot))
    }

    /// Whether it combines elements along [`Params::axes`](crate::Params::axes).
    pub const fn is_reduction(self) -> bool {
        matches!(self, Op::Sum | Op::Mean | Op::ReduceMax | Op::ReduceMin | Op::ArgMax)
    }

    /// Whether it is of the softmax family: each output row along one axis depends on a whole input row.
    pub const fn is_softmax(self) -> bool {
        matches!(self, Op::Softmax | Op::LogSoftmax | Op::SoftmaxBackward | Op::LogSoftmaxBackward)
    }

    /// Whether it has no inputs. Then the caller gives the output, with its dtype and shape.
    pub const fn is_source(self) -> bool {
        self.arity() == 0
    }

    /// Whether it is a comparison: two inputs of one dtype give a bool.
    pub const fn is_comparison(self) -> bool {
        matches!(self, Op::Eq | Op::Ne | Op::Lt | Op::Le | Op::Gt | Op::Ge)
    }

    /// The index of the input whose dtype selects the kernel: 1 for [`Op::Where`], whose first input is always bool, and 0 for all
    /// others. For an op without inputs, the index of the output.
    pub const fn key_input(self) -> usize {
        matches!(self, Op::Where) as usize
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Op {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Op, ParseError> {
        Op::ALL
            .into_iter()
            .find(|op| op.name() == text)
            .ok_or_else(|| ParseError::new("op", text, format!("one of {}", listed(&Op::ALL))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_are_unique() {
        for op in Op::ALL {
            assert_eq!(op.to_string().parse::<Op>(), Ok(op));
        }
        let error = "addd".parse::<Op>().unwrap_err().to_string();
        assert!(error.contains("`addd`") && error.contains("matmul"), "{error}");
    }

    #[test]
    fn position_in_all_is_the_discriminant() {
        for (index, op) in Op::ALL.into_iter().enumerate() {
            assert_eq!(op as usize, index);
        }
    }
}
