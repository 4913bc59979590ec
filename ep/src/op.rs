//! The built-in ops: names and fixed facts. What they compute is documented at each.

use std::fmt;
use std::str::FromStr;

use crate::error::{ParseError, listed};

macro_rules! ops {
    ($($(#[$doc:meta])* $op:ident $name:literal $arity:literal,)*) => {
        /// A built-in op. Each has one output.
        ///
        /// `f16` and `bf16` are computed in `f32`, and each element of the output is rounded once, to the
        /// nearest with ties to even: sums, means, softmax and matrix products too, which add up in `f32`
        /// or wider.
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
    /// The smaller; NaN if either is. On bool: and.
    Min "min" 2,
    /// The larger; NaN if either is. On bool: or.
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
    /// Where the first input (bool) is true the second, else the third.
    Where "where" 3,
    /// Sum over axes; integers wrap, no elements give 0.
    Sum "sum" 1,
    /// Mean over axes.
    Mean "mean" 1,
    /// Largest over axes; NaN if any is. On bool: any.
    ReduceMax "reduce_max" 1,
    /// Smallest over axes; NaN if any is. On bool: all.
    ReduceMin "reduce_min" 1,
    /// Index of the first largest on one axis, as i64; a NaN counts as the largest.
    ArgMax "argmax" 1,
    /// Matrix product of the two innermost axes; the axes outside broadcast. Integers wrap.
    MatMul "matmul" 2,
    /// `exp(x) / sum(exp(x))` over one axis, without overflow.
    Softmax "softmax" 1,
    /// `x - log(sum(exp(x)))` over one axis: the logarithm of the softmax, without overflow, and exact where that is
    /// nearly 0.
    LogSoftmax "log_softmax" 1,
    /// The gradient of the softmax over one axis: given what it gave and the gradient of that, the gradient of its input,
    /// `y * (dy - sum(y * dy))`.
    SoftmaxBackward "softmax_backward" 2,
    /// The gradient of the log-softmax over one axis: given what it gave and the gradient of that, the gradient of its
    /// input, `dy - exp(y) * sum(dy)`.
    LogSoftmaxBackward "log_softmax_backward" 2,
    /// The input with margins of one value on [`Params::axes`](crate::Params::axes), as wide as
    /// [`Extra::Pad`](crate::Extra::Pad) says.
    Pad "pad" 1,
    /// 1 at the class that the index (an integer) names, else 0, on a new innermost axis of
    /// [`Extra::Classes`](crate::Extra::Classes) elements, in the dtype [`Params::to`](crate::Params::to). An index that
    /// names no class gives zeros alone.
    OneHot "one_hot" 1,
    /// To another dtype: float to integer truncates and saturates (NaN gives 0), a wider integer
    /// keeps its low bits, anything to bool is `!= 0`. To a float that has not the value: the nearest,
    /// ties to even, an infinity past the range.
    Cast "cast" 1,
    /// Random numbers, evenly from `[0, 1)`, by [`Extra::Random`](crate::Extra::Random): every multiple of the smallest step
    /// below 1 that the dtype has. The same bits on every device.
    Uniform "uniform" 0,
    /// Random numbers from the normal distribution of mean 0 and variance 1, by [`Extra::Random`](crate::Extra::Random).
    Normal "normal" 0,
}

impl Op {
    /// Is each output element made from the input elements at its own (broadcast) index alone? Then
    /// the output may be exactly the view of an input.
    pub const fn is_elementwise(self) -> bool {
        !(self.is_reduction()
            || self.is_softmax()
            || self.is_source()
            || matches!(self, Op::MatMul | Op::Pad | Op::OneHot))
    }

    /// Does it combine elements along [`Params::axes`](crate::Params::axes)?
    pub const fn is_reduction(self) -> bool {
        matches!(self, Op::Sum | Op::Mean | Op::ReduceMax | Op::ReduceMin | Op::ArgMax)
    }

    /// Is it of the softmax family: rows along one axis, each made from all of a row?
    pub const fn is_softmax(self) -> bool {
        matches!(self, Op::Softmax | Op::LogSoftmax | Op::SoftmaxBackward | Op::LogSoftmaxBackward)
    }

    /// Has it no inputs? Then its output is given, and says dtype and shape.
    pub const fn is_source(self) -> bool {
        self.arity() == 0
    }

    /// Is it a comparison: two inputs of one dtype to bool?
    pub const fn is_comparison(self) -> bool {
        matches!(self, Op::Eq | Op::Ne | Op::Lt | Op::Le | Op::Gt | Op::Ge)
    }

    /// Index of the input whose dtype picks the kernel: the second for [`Op::Where`], whose first is
    /// always bool, else the first. Of an op without inputs, the output.
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
