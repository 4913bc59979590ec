//! Arithmetic operators: `+`, `-`, `*`, `/` and unary `-` over tensors and numbers; and `clamp_between`.
//!
//! Each submits its work at once and gives a `Result`, so a longer expression has a `?` behind each operator but the last. Operands may be
//! owned or borrowed: `((&a * &b)? + &c)? / 2.0`. A number becomes a tensor of rank 0 with the dtype of the other operand, filled by an
//! instruction of its own. Numbers are `f64` or `i64`, one type each for literals with and without a point, so that the literal needs no suffix; a
//! number that the dtype has no value for is refused.

use std::ops;

use streamvm_ep::{Op, Params, Scalar};

use crate::builder::instructions_builder::InstructionsBuilder;
use crate::error::engine_error::Error;
use crate::tensor::handle::Tensor;

/// The side of an operator on which the number stands.
enum Side {
    Left,
    Right,
}

impl Tensor {
    /// `op` over this tensor and a number, in one submission.
    #[track_caller]
    fn op_with_number(&self, op: Op, number: Scalar, side: Side) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::new();
        let number = builder.full(self.place(), self.dtype(), &[], number)?;
        let inputs = match side {
            Side::Left => [&number, self],
            Side::Right => [self, &number],
        };
        let output = builder.op(op, &inputs, Params::default())?;
        self.submit(builder)?;
        Ok(output)
    }

    /// [`clamp`](Tensor::clamp) between two numbers, in one submission.
    ///
    /// # Errors
    /// As [`Tensor::op`]; a number that the dtype has no value for is refused.
    #[track_caller]
    pub fn clamp_between(&self, low: impl Into<Scalar>, high: impl Into<Scalar>) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::new();
        let low = builder.full(self.place(), self.dtype(), &[], low)?;
        let high = builder.full(self.place(), self.dtype(), &[], high)?;
        let output = builder.op(Op::Clamp, &[self, &low, &high], Params::default())?;
        self.submit(builder)?;
        Ok(output)
    }
}

/// Arithmetic in place. A method gives an error where the operator `+=` could only panic, so there is no such operator.
macro_rules! in_place {
    ($($trait:ident $name:ident $sign:literal;)*) => {
        impl Tensor {$(
            #[doc = concat!("`self = self ", $sign, " other` in the memory of this tensor, which may be a view. `other` broadcasts to its shape, and may be exactly this tensor.")]
            ///
            /// # Errors
            /// As [`InstructionsBuilder::op_into`]; the engine refused the instruction.
            #[track_caller]
            pub fn $name(&self, other: &Tensor) -> Result<(), Error> {
                let mut builder = InstructionsBuilder::new();
                builder.op_into(Op::$trait, &[self, other], Params::default(), self)?;
                self.submit(builder)
            }
        )*}
    };
}

in_place! {
    Add add_assign "+";
    Sub sub_assign "-";
    Mul mul_assign "*";
    Div div_assign "/";
}

/// An operator whose operands are tensors, each owned or borrowed.
macro_rules! over_tensors {
    ($trait:ident, $name:ident, $left:ty, $right:ty) => {
        impl ops::$trait<$right> for $left {
            type Output = Result<Tensor, Error>;

            #[track_caller]
            fn $name(self, other: $right) -> Result<Tensor, Error> {
                self.op(Op::$trait, &[&other], Params::default())
            }
        }
    };
}

/// An operator between a tensor, owned or borrowed, and numbers of these types.
macro_rules! over_numbers {
    ($trait:ident, $name:ident, $tensor:ty: $($number:ty)*) => {$(
        impl ops::$trait<$number> for $tensor {
            type Output = Result<Tensor, Error>;

            #[track_caller]
            fn $name(self, number: $number) -> Result<Tensor, Error> {
                self.op_with_number(Op::$trait, number.into(), Side::Right)
            }
        }

        impl ops::$trait<$tensor> for $number {
            type Output = Result<Tensor, Error>;

            #[track_caller]
            fn $name(self, tensor: $tensor) -> Result<Tensor, Error> {
                tensor.op_with_number(Op::$trait, self.into(), Side::Left)
            }
        }
    )*};
}

macro_rules! operators {
    ($($trait:ident $name:ident;)*) => {$(
        over_tensors!($trait, $name, &Tensor, &Tensor);
        over_tensors!($trait, $name, &Tensor, Tensor);
        over_tensors!($trait, $name, Tensor, &Tensor);
        over_tensors!($trait, $name, Tensor, Tensor);
        over_numbers!($trait, $name, &Tensor: f64 i64);
        over_numbers!($trait, $name, Tensor: f64 i64);
    )*};
}

operators! {
    Add add;
    Sub sub;
    Mul mul;
    Div div;
}

impl ops::Neg for &Tensor {
    type Output = Result<Tensor, Error>;

    #[track_caller]
    fn neg(self) -> Result<Tensor, Error> {
        self.op(Op::Neg, &[], Params::default())
    }
}

impl ops::Neg for Tensor {
    type Output = Result<Tensor, Error>;

    #[track_caller]
    fn neg(self) -> Result<Tensor, Error> {
        self.op(Op::Neg, &[], Params::default())
    }
}
