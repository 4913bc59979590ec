//! The parameters of an op call: axes, whether they are kept, the target dtype, and parameters of single ops.

use std::fmt;
use std::str::FromStr;

use crate::names::text::ParseError;
use crate::tensor::dtype::DType;
use crate::tensor::error::{OpError, ShapeError};
use crate::tensor::numbers::Numbers;
use crate::tensor::op::Op;
use crate::tensor::scalar::Scalar;
use crate::tensor::shape::MAX_RANK;
use crate::tensor::window::{Convolution, Pooling};

// Every instruction stores the parameters inline, in the builder's list and in the engine's slot, so they must stay small.
const _: () = assert!(size_of::<Params>() <= 32);

/// A set of axes, one bit each.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Axes(u8);

// A set of axes has one bit per axis.
const _: () = assert!(MAX_RANK <= u8::BITS as usize);

impl Axes {
    /// No axes. Reductions take this as *all axes*.
    pub const NONE: Axes = Axes(0);

    /// The set of `axes`, in any order.
    ///
    /// # Errors
    ///
    /// [`ShapeError::Axes`] if an axis is named twice or is [`MAX_RANK`] or more.
    pub fn new(axes: &[usize]) -> Result<Axes, ShapeError> {
        let mut bits = 0;
        for &axis in axes {
            if axis >= MAX_RANK || bits & (1 << axis) != 0 {
                return Err(ShapeError::Axes { axes: axes.to_vec() });
            }
            bits |= 1 << axis;
        }
        Ok(Axes(bits))
    }

    /// Whether `axis` is in the set.
    pub const fn contains(self, axis: usize) -> bool {
        axis < MAX_RANK && self.0 & (1 << axis) != 0
    }

    /// Number of axes in the set.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The axes, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..MAX_RANK).filter(move |&axis| self.contains(axis))
    }

    /// The axes that a reduction of a tensor of `rank` axes works over: these, or all if the set is empty.
    pub const fn or_all(self, rank: usize) -> Axes {
        match self.0 {
            0 => Axes((((1u16) << rank) - 1) as u8),
            _ => self,
        }
    }
}

impl TryFrom<&[usize]> for Axes {
    type Error = ShapeError;

    fn try_from(axes: &[usize]) -> Result<Axes, ShapeError> {
        Axes::new(axes)
    }
}

impl fmt::Display for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, axis) in self.iter().enumerate() {
            if place > 0 {
                f.write_str(",")?;
            }
            write!(f, "{axis}")?;
        }
        Ok(())
    }
}

impl FromStr for Axes {
    type Err = ParseError;

    /// Reads what `Display` prints: `"1,2"`, or `""` for none.
    fn from_str(text: &str) -> Result<Axes, ParseError> {
        if text.is_empty() {
            return Ok(Axes::NONE);
        }
        let refused = || ParseError::new("axes", text, "distinct axes from 0 to 7, such as 0,2");
        let mut bits = 0;
        for part in text.split(',') {
            let axis: usize = part.trim().parse().map_err(|_| refused())?;
            if axis >= MAX_RANK || bits & (1 << axis) != 0 {
                return Err(refused());
            }
            bits |= 1 << axis;
        }
        Ok(Axes(bits))
    }
}

/// The parameters of an op call. An op ignores those that it does not use.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Params {
    /// Axes of a reduction, of [`Op::Pad`](crate::Op::Pad) and [`Op::Flip`](crate::Op::Flip) (none: all), of [`Op::ArgMax`](crate::Op::ArgMax), the
    /// [softmax family](crate::Op::is_softmax), [`Op::CumSum`](crate::Op::CumSum), [`Op::TakeAlongAxis`](crate::Op::TakeAlongAxis),
    /// [`Op::Scatter`](crate::Op::Scatter), [`Op::ArgSort`](crate::Op::ArgSort) and [`Op::ArgTopK`](crate::Op::ArgTopK) (exactly one).
    pub axes: Axes,
    /// Whether reduced axes are kept, with size 1.
    pub keep_dims: bool,
    /// The target dtype of [`Op::Cast`](crate::Op::Cast) and [`Op::OneHot`](crate::Op::OneHot).
    pub to: Option<DType>,
    /// Parameters that only one op has.
    pub extra: Extra,
}

/// Parameters that only one op has. A few words at most, because every instruction stores them.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum Extra {
    /// For ops without such parameters.
    #[default]
    None,
    /// For [`Op::Pad`](crate::Op::Pad): the numbers of elements before and after the input on each of [`Params::axes`], and their value,
    /// which must fit the dtype. Axes with margins of other widths need a call of their own.
    Pad {
        /// Elements before the input.
        before: u32,
        /// Elements after the input.
        after: u32,
        /// The value of the margins.
        value: Scalar,
    },
    /// For an elementwise op of two or three inputs: which of them are numbers, and no tensors.
    Numbers(Numbers),
    /// For [`Op::OneHot`](crate::Op::OneHot): the number of classes.
    Classes(usize),
    /// For [`Op::Tril`](crate::Op::Tril) and [`Op::Triu`](crate::Op::Triu): the column minus the row of the outermost elements that are kept.
    Diagonal(i64),
    /// For [`Op::ArgSort`](crate::Op::ArgSort).
    Order {
        /// Whether the largest elements come first.
        descending: bool,
    },
    /// For [`Op::ArgTopK`](crate::Op::ArgTopK).
    Top {
        /// How many elements of the axis; at most its size.
        count: usize,
        /// Whether these are the largest elements, else the smallest.
        largest: bool,
    },
    /// For [`Op::Arange`](crate::Op::Arange) of an integer dtype: the first element, and each element minus the one before.
    Integers {
        /// The first element.
        first: i64,
        /// The difference of two neighbours.
        step: i64,
    },
    /// For [`Op::Arange`](crate::Op::Arange) of a float dtype: as [`Extra::Integers`], as bits of `f64`.
    Floats {
        /// The first element.
        first: u64,
        /// The difference of two neighbours.
        step: u64,
    },
    /// For [`Op::LayerNorm`](crate::Op::LayerNorm) and [`Op::RmsNorm`](crate::Op::RmsNorm): what is added to each variance, or mean of squares; a finite
    /// number that is not negative.
    Epsilon(Scalar),
    /// For convolutions and their gradients.
    Convolution(Convolution),
    /// For poolings and their gradients.
    Pooling(Pooling),
    /// For [`Op::Uniform`](crate::Op::Uniform) and [`Op::Normal`](crate::Op::Normal): the blocks of Philox 4x32-10 (Salmon et al., SC
    /// 2011) with this key, from this counter on. One block makes four consecutive elements in row-major order, or two of `f64`.
    Random {
        /// The key.
        seed: u64,
        /// The first block. The counter wraps around to 0.
        counter: u64,
    },
}

impl Params {
    /// Parameters with these axes.
    pub fn over(axes: Axes) -> Params {
        Params { axes, ..Params::default() }
    }

    /// Parameters of a cast to `dtype`.
    pub fn to(dtype: DType) -> Params {
        Params { to: Some(dtype), ..Params::default() }
    }

    /// These parameters, with the number `value` as the input of this index, in place of a tensor. It is for the inputs of binary ops, comparisons and
    /// `clamp`, and for the last two of `where`; one of these must stay a tensor, whose dtype the number takes.
    ///
    /// ```
    /// # use streamvm_ep::{DType, Op, OpError, Params, Shape, infer};
    /// let halved = Params::default().with_number(1, 0.5);
    /// let input = (DType::F32, &Shape::new(&[3])?);
    /// assert_eq!(infer(Op::Mul, &[input], &halved)?, (DType::F32, Shape::new(&[3])?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    #[inline]
    pub fn with_number(mut self, input: usize, value: impl Into<Scalar>) -> Params {
        self.extra = Extra::Numbers(self.numbers().with(input, value.into()));
        self
    }

    /// The inputs that are numbers.
    #[inline]
    pub fn numbers(&self) -> Numbers {
        match self.extra {
            Extra::Numbers(numbers) => numbers,
            _ => Numbers::NONE,
        }
    }

    /// Whether a call of `op` may [refuse elements](Op::refuses_elements) of its inputs: `x / 2` refuses none.
    pub fn refuses_elements(&self, op: Op, dtype: DType) -> bool {
        // The right operand is what is refused.
        let is_refused = match self.numbers().get(1) {
            None => true,
            Some(Scalar::I64(number)) => {
                if op == Op::Pow {
                    number < 0
                } else {
                    number == 0
                }
            }
            Some(_) => false,
        };
        is_refused && op.refuses_elements(dtype)
    }

    /// How many inputs of a call of `op` are tensors.
    #[inline]
    pub fn tensors(&self, op: Op) -> usize {
        match self.extra {
            Extra::Numbers(numbers) => op.arity().saturating_sub(numbers.len()),
            _ => op.arity(),
        }
    }

    /// Parameters of a pad of `axes` (none: all axes), with `before` and `after` elements of `value` on each.
    pub fn pad(axes: Axes, before: u32, after: u32, value: impl Into<Scalar>) -> Params {
        let extra = Extra::Pad { before, after, value: value.into() };
        Params { axes, extra, ..Params::default() }
    }

    /// Parameters of a triangle that ends at the elements whose column minus their row is `diagonal`.
    pub fn diagonal(diagonal: i64) -> Params {
        Params { extra: Extra::Diagonal(diagonal), ..Params::default() }
    }

    /// The diagonal of `op`, a triangle.
    ///
    /// # Errors
    ///
    /// [`OpError::MissingExtra`] if there is none.
    pub fn checked_diagonal(&self, op: Op) -> Result<i64, OpError> {
        match self.extra {
            Extra::Diagonal(diagonal) => Ok(diagonal),
            _ => Err(OpError::MissingExtra { op, expected: "Extra::Diagonal" }),
        }
    }

    /// Parameters of an argsort along `axes`, of which there must be one.
    pub fn sorted(axes: Axes, descending: bool) -> Params {
        Params { axes, extra: Extra::Order { descending }, ..Params::default() }
    }

    /// Parameters of an argtopk along `axes`, of which there must be one.
    pub fn top(axes: Axes, count: usize, largest: bool) -> Params {
        Params { axes, extra: Extra::Top { count, largest }, ..Params::default() }
    }

    /// Whether the largest elements come first in the order of `op`, an argsort or argtopk, and how many indices it gives of an axis of this size.
    ///
    /// # Errors
    ///
    /// [`OpError::MissingExtra`] if there is no order.
    pub fn checked_order(&self, op: Op, size: usize) -> Result<(bool, usize), OpError> {
        match (op, self.extra) {
            (Op::ArgTopK, Extra::Top { count, largest }) => Ok((largest, count)),
            (Op::ArgTopK, _) => Err(OpError::MissingExtra { op, expected: "Extra::Top" }),
            (_, Extra::Order { descending }) => Ok((descending, size)),
            _ => Err(OpError::MissingExtra { op, expected: "Extra::Order" }),
        }
    }

    /// Parameters of a layer norm or RMS norm that adds `epsilon` to each variance or mean of squares.
    pub fn epsilon(epsilon: f64) -> Params {
        Params { extra: Extra::Epsilon(Scalar::F64(epsilon)), ..Params::default() }
    }

    /// The epsilon of `op`, a norm.
    ///
    /// # Errors
    ///
    /// [`OpError::MissingExtra`] if there is none, [`OpError::Epsilon`] if it is negative, infinite or no number.
    pub fn checked_epsilon(&self, op: Op) -> Result<f64, OpError> {
        let Extra::Epsilon(found) = self.extra else {
            return Err(OpError::MissingExtra { op, expected: "Extra::Epsilon" });
        };
        match found {
            Scalar::F64(epsilon) if epsilon.is_finite() && epsilon >= 0.0 => Ok(epsilon),
            Scalar::I64(epsilon) if epsilon >= 0 => Ok(epsilon as f64),
            _ => Err(OpError::Epsilon { op, found }),
        }
    }

    /// Parameters of a convolution or a gradient of one.
    pub fn convolution(by: Convolution) -> Params {
        Params { extra: Extra::Convolution(by), ..Params::default() }
    }

    /// The convolution that `op` is of.
    ///
    /// # Errors
    ///
    /// [`OpError::MissingExtra`] if there is none.
    pub fn checked_convolution(&self, op: Op) -> Result<&Convolution, OpError> {
        match &self.extra {
            Extra::Convolution(by) => Ok(by),
            _ => Err(OpError::MissingExtra { op, expected: "Extra::Convolution" }),
        }
    }

    /// Parameters of a pooling or a gradient of one.
    pub fn pooling(by: Pooling) -> Params {
        Params { extra: Extra::Pooling(by), ..Params::default() }
    }

    /// The pooling that `op` is of.
    ///
    /// # Errors
    ///
    /// [`OpError::MissingExtra`] if there is none.
    pub fn checked_pooling(&self, op: Op) -> Result<&Pooling, OpError> {
        match &self.extra {
            Extra::Pooling(by) => Ok(by),
            _ => Err(OpError::MissingExtra { op, expected: "Extra::Pooling" }),
        }
    }

    /// Parameters of integers from `first` on, each by `step` more than the one before.
    pub fn integers(first: i64, step: i64) -> Params {
        Params { extra: Extra::Integers { first, step }, ..Params::default() }
    }

    /// Parameters of floats from `first` on, each by `step` more than the one before.
    pub fn floats(first: f64, step: f64) -> Params {
        Params { extra: Extra::Floats { first: first.to_bits(), step: step.to_bits() }, ..Params::default() }
    }

    /// The seed and the counter of `op`, which draws random numbers.
    ///
    /// # Errors
    ///
    /// [`OpError::MissingExtra`] if there are none.
    pub fn checked_random(&self, op: Op) -> Result<(u64, u64), OpError> {
        match self.extra {
            Extra::Random { seed, counter } => Ok((seed, counter)),
            _ => Err(OpError::MissingExtra { op, expected: "Extra::Random" }),
        }
    }

    /// Parameters of random numbers: the key `seed`, from block `counter` on.
    pub fn random(seed: u64, counter: u64) -> Params {
        Params { extra: Extra::Random { seed, counter }, ..Params::default() }
    }

    /// Parameters of a one-hot of `classes` classes, in `dtype`.
    pub fn one_hot(classes: usize, dtype: DType) -> Params {
        Params { to: Some(dtype), extra: Extra::Classes(classes), ..Params::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_round_trip() {
        let axes = Axes::new(&[2, 0]).unwrap();
        assert_eq!(axes.to_string(), "0,2");
        assert_eq!("0,2".parse(), Ok(axes));
        assert_eq!("".parse(), Ok(Axes::NONE));
        assert_eq!(axes.iter().collect::<Vec<_>>(), [0, 2]);
        assert!(axes.contains(2) && !axes.contains(1) && !axes.contains(64));
        assert_eq!((axes.len(), axes.is_empty()), (2, false));
    }

    #[test]
    fn bad_axes_are_refused() {
        assert!(Axes::new(&[8]).is_err());
        assert!(Axes::new(&[1, 1]).is_err());
        for text in ["8", "1,1", "a", "1,", ","] {
            assert!(text.parse::<Axes>().is_err(), "{text}");
        }
    }

    #[test]
    fn no_axes_means_all() {
        assert_eq!(Axes::NONE.or_all(0), Axes::NONE);
        assert_eq!(Axes::NONE.or_all(3).to_string(), "0,1,2");
        assert_eq!(Axes::NONE.or_all(8).len(), 8);
    }
}
