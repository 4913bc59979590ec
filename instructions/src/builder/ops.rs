//! One method for each op: each calls [`InstructionsBuilder::op`] with that op.

use streamvm_ep::{Axes, DType, Op, Params, Scalar};

use crate::builder::instructions_builder::InstructionsBuilder;
use crate::error::build_error::BuildError;
use crate::tensor::handle::Tensor;

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        impl InstructionsBuilder {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// The op has no kernel for the dtype, or the tensor does not live on a device.
            #[track_caller]
            pub fn $name(&mut self, input: &Tensor) -> Result<Tensor, BuildError> {
                self.op(Op::$op, &[input], Params::default())
            }
        )*}
    };
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        impl InstructionsBuilder {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// The dtypes differ, the shapes do not fit, or the inputs do not live on one device.
            #[track_caller]
            pub fn $name(&mut self, left: &Tensor, right: &Tensor) -> Result<Tensor, BuildError> {
                self.op(Op::$op, &[left, right], Params::default())
            }
        )*}
    };
}

macro_rules! reduction {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        impl InstructionsBuilder {$(
            $(#[$doc])*
            /// An empty `axes` reduces over all axes.
            ///
            /// # Errors
            /// There is no such axis, or the op has no kernel for the dtype.
            #[track_caller]
            pub fn $name(&mut self, input: &Tensor, axes: &[usize]) -> Result<Tensor, BuildError> {
                self.op(Op::$op, &[input], Params::over(Axes::new(axes)?))
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

impl InstructionsBuilder {
    /// The index of the largest element along `axis`, as i64.
    ///
    /// # Errors
    /// There is no such axis, or it is empty.
    #[track_caller]
    pub fn argmax(&mut self, input: &Tensor, axis: usize) -> Result<Tensor, BuildError> {
        self.op(Op::ArgMax, &[input], Params::over(Axes::new(&[axis])?))
    }

    /// exp(x) / sum(exp(x)) along `axis`.
    ///
    /// # Errors
    /// There is no such axis, or the dtype is not a float.
    #[track_caller]
    pub fn softmax(&mut self, input: &Tensor, axis: usize) -> Result<Tensor, BuildError> {
        self.op(Op::Softmax, &[input], Params::over(Axes::new(&[axis])?))
    }

    /// x - log(sum(exp(x))) along `axis`.
    ///
    /// # Errors
    /// There is no such axis, or the dtype is not a float.
    #[track_caller]
    pub fn log_softmax(&mut self, input: &Tensor, axis: usize) -> Result<Tensor, BuildError> {
        self.op(Op::LogSoftmax, &[input], Params::over(Axes::new(&[axis])?))
    }

    /// The gradient with respect to the input of a softmax. `y` is the output of [`softmax`](InstructionsBuilder::softmax) along
    /// `axis`, and `dy` is the gradient with respect to `y`, of the same shape.
    ///
    /// # Errors
    /// There is no such axis, the dtype is not a float, or `y` and `dy` differ in dtype or shape.
    #[track_caller]
    pub fn softmax_backward(&mut self, y: &Tensor, dy: &Tensor, axis: usize) -> Result<Tensor, BuildError> {
        self.op(Op::SoftmaxBackward, &[y, dy], Params::over(Axes::new(&[axis])?))
    }

    /// The gradient with respect to the input of a log-softmax. `y` is the output of
    /// [`log_softmax`](InstructionsBuilder::log_softmax) along `axis`, and `dy` is the gradient with respect to `y`, of the same
    /// shape.
    ///
    /// # Errors
    /// As [`softmax_backward`](InstructionsBuilder::softmax_backward).
    #[track_caller]
    pub fn log_softmax_backward(&mut self, y: &Tensor, dy: &Tensor, axis: usize) -> Result<Tensor, BuildError> {
        self.op(Op::LogSoftmaxBackward, &[y, dy], Params::over(Axes::new(&[axis])?))
    }

    /// The input with `before` elements of `value` before it and `after` elements behind it on each of `axes` (empty: on all axes).
    /// For axes with margins of different sizes, call it once per size.
    ///
    /// # Errors
    /// There is no such axis, or the value does not fit the dtype.
    #[track_caller]
    pub fn pad(
        &mut self,
        input: &Tensor,
        axes: &[usize],
        before: u32,
        after: u32,
        value: impl Into<Scalar>,
    ) -> Result<Tensor, BuildError> {
        self.op(Op::Pad, &[input], Params::pad(Axes::new(axes)?, before, after, value))
    }

    /// For each index (i32, i64 or u8) a row of `classes` elements of `dtype`, on a new last axis: 1 at the index, 0 elsewhere. An
    /// index that is negative or not below `classes` gives a row of zeros.
    ///
    /// # Errors
    /// The indices are not integers, or already have the maximal number of axes of a tensor.
    #[track_caller]
    pub fn one_hot(&mut self, indices: &Tensor, classes: usize, dtype: DType) -> Result<Tensor, BuildError> {
        self.op(Op::OneHot, &[indices], Params::one_hot(classes, dtype))
    }

    /// The elements in another dtype.
    ///
    /// # Errors
    /// The tensor does not live on a device.
    #[track_caller]
    pub fn cast(&mut self, input: &Tensor, dtype: DType) -> Result<Tensor, BuildError> {
        self.op(Op::Cast, &[input], Params::to(dtype))
    }

    /// Elements of `yes` where `condition` (bool) is true, of `no` elsewhere, with broadcasting.
    ///
    /// # Errors
    /// The condition is not bool, the dtypes differ, or the shapes do not broadcast.
    #[track_caller]
    pub fn where_(&mut self, condition: &Tensor, yes: &Tensor, no: &Tensor) -> Result<Tensor, BuildError> {
        self.op(Op::Where, &[condition, yes, no], Params::default())
    }
}
