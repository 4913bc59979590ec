//! One method for each op: each calls [`Tensor::op`] with that op.

use streamvm_ep::{Axes, DType, Op, Params, Scalar};

use crate::error::build_error::BuildError;
use crate::error::engine_error::Error;
use crate::tensor::handle::Tensor;

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// As [`Tensor::op`].
            #[track_caller]
            pub fn $name(&self) -> Result<Tensor, Error> {
                self.op(Op::$op, &[], Params::default())
            }
        )*}
    };
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// As [`Tensor::op`].
            #[track_caller]
            pub fn $name(&self, other: &Tensor) -> Result<Tensor, Error> {
                self.op(Op::$op, &[other], Params::default())
            }
        )*}
    };
}

macro_rules! reduction {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            /// An empty `axes` reduces over all axes.
            ///
            /// # Errors
            /// As [`Tensor::op`].
            #[track_caller]
            pub fn $name(&self, axes: &[usize]) -> Result<Tensor, Error> {
                let axes = Axes::new(axes).map_err(BuildError::from)?;
                self.op(Op::$op, &[], Params::over(axes))
            }
        )*}
    };
}

unary! {
    /// Negates each element.
    neg => Neg;
    /// The absolute value of each element.
    abs => Abs;
    /// e to the power of each element.
    exp => Exp;
    /// The natural logarithm of each element.
    log => Log;
    /// The square root of each element.
    sqrt => Sqrt;
    /// The hyperbolic tangent of each element.
    tanh => Tanh;
    /// The larger of each element and zero.
    relu => Relu;
    /// 1 / (1 + exp(-x)) of each element.
    sigmoid => Sigmoid;
}

binary! {
    /// Adds, with broadcasting.
    add => Add;
    /// Subtracts, with broadcasting.
    sub => Sub;
    /// Multiplies, with broadcasting.
    mul => Mul;
    /// Divides, with broadcasting.
    div => Div;
    /// The smaller of two elements, with broadcasting.
    minimum => Min;
    /// The larger of two elements, with broadcasting.
    maximum => Max;
    /// Raises to a power, with broadcasting.
    pow => Pow;
    /// Whether elements are equal, as bool.
    eq => Eq;
    /// Whether elements differ, as bool.
    ne => Ne;
    /// Whether the left element is smaller, as bool.
    lt => Lt;
    /// Whether the left element is smaller or equal, as bool.
    le => Le;
    /// Whether the left element is larger, as bool.
    gt => Gt;
    /// Whether the left element is larger or equal, as bool.
    ge => Ge;
    /// The matrix product over the last two axes; earlier axes broadcast.
    matmul => MatMul;
}

reduction! {
    /// The sum over axes.
    sum => Sum;
    /// The mean over axes.
    mean => Mean;
    /// The largest element over axes.
    max => ReduceMax;
    /// The smallest element over axes.
    min => ReduceMin;
}

impl Tensor {
    /// The index of the largest element along `axis`, as i64.
    ///
    /// # Errors
    /// As [`Tensor::op`].
    #[track_caller]
    pub fn argmax(&self, axis: usize) -> Result<Tensor, Error> {
        let axes = Axes::new(&[axis]).map_err(BuildError::from)?;
        self.op(Op::ArgMax, &[], Params::over(axes))
    }

    /// exp(x) / sum(exp(x)) along `axis`.
    ///
    /// # Errors
    /// As [`Tensor::op`].
    #[track_caller]
    pub fn softmax(&self, axis: usize) -> Result<Tensor, Error> {
        let axes = Axes::new(&[axis]).map_err(BuildError::from)?;
        self.op(Op::Softmax, &[], Params::over(axes))
    }

    /// x - log(sum(exp(x))) along `axis`.
    ///
    /// # Errors
    /// As [`Tensor::op`].
    #[track_caller]
    pub fn log_softmax(&self, axis: usize) -> Result<Tensor, Error> {
        let axes = Axes::new(&[axis]).map_err(BuildError::from)?;
        self.op(Op::LogSoftmax, &[], Params::over(axes))
    }

    /// The gradient with respect to the input of a softmax. This tensor is the output of [`softmax`](Tensor::softmax) along `axis`,
    /// and `dy` is the gradient with respect to it, of the same shape.
    ///
    /// # Errors
    /// As [`Tensor::op`].
    #[track_caller]
    pub fn softmax_backward(&self, dy: &Tensor, axis: usize) -> Result<Tensor, Error> {
        let axes = Axes::new(&[axis]).map_err(BuildError::from)?;
        self.op(Op::SoftmaxBackward, &[dy], Params::over(axes))
    }

    /// The gradient with respect to the input of a log-softmax. This tensor is the output of [`log_softmax`](Tensor::log_softmax)
    /// along `axis`, and `dy` is the gradient with respect to it, of the same shape.
    ///
    /// # Errors
    /// As [`Tensor::op`].
    #[track_caller]
    pub fn log_softmax_backward(&self, dy: &Tensor, axis: usize) -> Result<Tensor, Error> {
        let axes = Axes::new(&[axis]).map_err(BuildError::from)?;
        self.op(Op::LogSoftmaxBackward, &[dy], Params::over(axes))
    }

    /// The tensor with `before` elements of `value` before it and `after` elements behind it on each of `axes` (empty: on all
    /// axes). For axes with margins of different sizes, call it once per size.
    ///
    /// # Errors
    /// As [`Tensor::op`].
    #[track_caller]
    pub fn pad(&self, axes: &[usize], before: u32, after: u32, value: impl Into<Scalar>) -> Result<Tensor, Error> {
        let axes = Axes::new(axes).map_err(BuildError::from)?;
        self.op(Op::Pad, &[], Params::pad(axes, before, after, value))
    }

    /// For each of these indices (i32, i64 or u8) a row of `classes` elements of `dtype`, on a new last axis: 1 at the index, 0
    /// elsewhere. An index that is negative or not below `classes` gives a row of zeros.
    ///
    /// # Errors
    /// As [`Tensor::op`].
    #[track_caller]
    pub fn one_hot(&self, classes: usize, dtype: DType) -> Result<Tensor, Error> {
        self.op(Op::OneHot, &[], Params::one_hot(classes, dtype))
    }

    /// The elements in another dtype.
    ///
    /// # Errors
    /// As [`Tensor::op`].
    #[track_caller]
    pub fn cast(&self, dtype: DType) -> Result<Tensor, Error> {
        self.op(Op::Cast, &[], Params::to(dtype))
    }

    /// Elements of `yes` where this bool tensor is true, of `no` elsewhere, with broadcasting.
    ///
    /// # Errors
    /// As [`Tensor::op`].
    #[track_caller]
    pub fn where_(&self, yes: &Tensor, no: &Tensor) -> Result<Tensor, Error> {
        self.op(Op::Where, &[yes, no], Params::default())
    }
}
