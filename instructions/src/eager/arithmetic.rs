//! Arithmetic operators: `+`, `-`, `*`, `/` and unary `-` over tensors and numbers.
//!
//! Each submits one instruction at once and gives a `Result`, so a longer expression has a `?` after each operator but the last. Operands may be
//! owned or borrowed: `((&a * &b)? + &c)? / 2.0`. A number is a part of the instruction and has the dtype of the other operand ([`Input`](crate::Input)). Numbers are `f64` or
//! `i64`, one type each for literals with and without a point, so that the literal needs no suffix; a number that the dtype has no value for is refused.

use std::ops;

use streamvm_ep::{Op, Params};

use crate::builder::instructions_builder::InstructionsBuilder;
use crate::error::engine_error::Error;
use crate::tensor::handle::Tensor;
use crate::tensor::input::{AsInput, Input, divided};

/// Arithmetic in place. A method gives an error where the operator `+=` could only panic, so there is no such operator.
macro_rules! in_place {
    ($($trait:ident $name:ident $sign:literal;)*) => {
        impl Tensor {$(
            #[doc = concat!("`self = self ", $sign, " other` in the memory of this tensor, which may be a view. `other`, a tensor or a number, broadcasts to its shape, and may be exactly this tensor.")]
            ///
            /// # Errors
            /// As [`InstructionsBuilder::op_into`]; the engine refused the instruction.
            #[track_caller]
            pub fn $name(&self, other: impl AsInput) -> Result<(), Error> {
                let (inputs, params) = divided([Input::Tensor(self), other.as_input()], Params::default());
                let mut builder = InstructionsBuilder::for_calls_on(self);
                builder.op_into(Op::$trait, &inputs, params, self)?;
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
                self.op_over(Op::$trait, &[&self], Params::default().with_number(1, number))
            }
        }

        impl ops::$trait<$tensor> for $number {
            type Output = Result<Tensor, Error>;

            #[track_caller]
            fn $name(self, tensor: $tensor) -> Result<Tensor, Error> {
                tensor.op_over(Op::$trait, &[&tensor], Params::default().with_number(0, self))
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
