//! A method of [`Tensor`] and one of [`InstructionsBuilder`] for each op, made from the [table of ops](streamvm_ep::op_table).

use streamvm_ep::{Op, OpError, Params, ShapeError};

use crate::builder::instructions_builder::InstructionsBuilder;
use crate::error::engine_error::Error;
use crate::tensor::handle::Tensor;
use crate::tensor::input::{AsInput, divided};

/// The parameters of a row that gives none are the default. Axes that are none are told with the op.
macro_rules! params {
    ($op:ident) => {
        Params::default()
    };
    ($op:ident $params:expr) => {{
        let params = || -> Result<Params, ShapeError> { Ok($params) };
        params().map_err(|source| OpError::Shape { op: Op::$op, source })?
    }};
}

/// The type of an input, by class of ops: those that take numbers, and others.
macro_rules! input {
    (Binary) => {
        impl AsInput
    };
    (Comparison) => {
        impl AsInput
    };
    (Select) => {
        impl AsInput
    };
    (Ternary) => {
        impl AsInput
    };
    ($other:ident) => {
        &Tensor
    };
}

/// The call of an op by a method of `self`, by class.
macro_rules! call {
    (Binary $($call:tt)*) => {
        with_numbers!($($call)*)
    };
    (Comparison $($call:tt)*) => {
        with_numbers!($($call)*)
    };
    (Select $($call:tt)*) => {
        with_numbers!($($call)*)
    };
    (Ternary $($call:tt)*) => {
        with_numbers!($($call)*)
    };
    ($other:ident $self:ident.$call:ident($op:ident, [$($input:ident),*], $params:expr)) => {
        $self.$call(Op::$op, &[$($input),*], $params)
    };
}

macro_rules! with_numbers {
    ($self:ident.$call:ident($op:ident, [$($input:ident),*], $params:expr)) => {{
        let (tensors, params) = divided([$($input.as_input()),*], $params);
        $self.$call(Op::$op, &tensors, params)
    }};
}

/// The sentence on shapes and dtypes, by class of ops, for the documentation of each method.
macro_rules! shapes_of {
    (Unary) => {
        "The output has the dtype and shape of the input."
    };
    (Predicate) => {
        "The output is bool, of the shape of the input."
    };
    (Binary) => {
        "Both inputs have one dtype; their shapes broadcast. One may be a number, which takes the dtype of the other."
    };
    (Comparison) => {
        "Both inputs have one dtype; their shapes broadcast. One may be a number, which takes the dtype of the other. The output is bool."
    };
    (Select) => {
        "One of the last two inputs may be a number, which takes the dtype of the other."
    };
    (Ternary) => {
        "All inputs have one dtype; their shapes broadcast. Two may be numbers, which take the dtype of the third."
    };
    (Reduction) => {
        "Empty `axes` stand for all axes. The axes are removed from the shape; the dtype is kept."
    };
    (ArgReduction) => {
        "The axis is removed from the shape."
    };
    (Softmax) => {
        "The output has the dtype and shape of the input."
    };
    (SoftmaxGradient) => {
        "Both inputs have one dtype and shape, and so has the output."
    };
    (Convolution) => {
        "The input is `[n, c, h, w]` and the weight `[o, c / groups, height, width]`, both of one dtype; the output is `[n, o, y, x]`, with as many \
         positions y and x as the window has on the padded input. See also [`Tensor::conv1d`]."
    };
    (ConvolutionGradient) => {
        "All inputs have one dtype; `dy` has the shape that `conv2d` gives. The output has the shape of the input that it is the gradient of."
    };
    (Pooling) => {
        "The input is `[n, c, h, w]`, the output `[n, c, y, x]`, with as many positions y and x as the window has on the padded input. The dtype is kept."
    };
    (PoolingGradient) => {
        "Both inputs have one dtype; `dy` has the shape that the pooling gives. The output has the shape of `x`."
    };
    (Triangle) => {
        "The input has at least two axes. The output has its dtype and shape."
    };
    (ArgSort) => {
        "The output has the shape of the input, but for the axis of an argtopk, which has `count` indices; a count past the size of the axis is refused. A row \
         along the axis is sorted by one block of a CUDA device. See also [`Tensor::sort`] and [`Tensor::topk`]."
    };
    (Scatter) => {
        "The indices are i32, i64 or u8, of the sizes of `x` on all axes but this one; the source has the dtype of `x` and the shape of the indices. The \
         output has the dtype and shape of `x`. An index out of range fails the instruction, with an error that names it, unless the output has no \
         elements. A row along the axis is written by one thread."
    };
    // The documentation of an op that has a class for itself says it.
    ($own:ident) => {
        ""
    };
}

macro_rules! methods {
    ({$($(#[$doc:meta])* $op:ident: $name:literal, $class:ident, $dtypes:ident,
        $method:ident($first:ident $(, $other:ident)* $(; $($parameter:ident: $type:ty),+)?) $(=> $params:expr)?
        $(, { $(work: $work:ident,)? $(empty: $empty:literal,)? $(samples: $($samples:ident)+,)? $(error: $error:ident($($number:literal),+),)?
            $(numpy: $numpy:literal,)? $(both: $both:expr,)? $(floats: $floats:expr,)? $(integers: $integers:expr,)? })?;)*}
     {$($sources:tt)*}) => {
        impl Tensor {$(
            $(#[$doc])*
            #[doc = streamvm_ep::op_error!($($($error $($number)+)?)?)]
            ///
            #[doc = concat!("This tensor is `", stringify!($first), "`. ", shapes_of!($class))]
            ///
            /// # Errors
            /// As [`Tensor::op`].
            #[track_caller]
            pub fn $method(&self $(, $other: input!($class))* $($(, $parameter: $type)+)?) -> Result<Tensor, Error> {
                let first = self;
                call!($class self.op_over($op, [first $(, $other)*], params!($op $($params)?)))
            }
        )*}

        impl InstructionsBuilder {$(
            $(#[$doc])*
            #[doc = streamvm_ep::op_error!($($($error $($number)+)?)?)]
            ///
            #[doc = shapes_of!($class)]
            ///
            /// # Errors
            /// As [`InstructionsBuilder::op`].
            #[track_caller]
            pub fn $method(
                &mut self,
                $first: input!($class)
                $(, $other: input!($class))*
                $($(, $parameter: $type)+)?
            ) -> Result<Tensor, Error> {
                call!($class self.op($op, [$first $(, $other)*], params!($op $($params)?)))
            }
        )*}
    };
}
streamvm_ep::op_table!(methods);
