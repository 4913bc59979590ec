//! Arithmetic operators: `+`, `-`, `*`, `/` and unary `-` over tensors and numbers.
//!
//! Each submits one instruction at once and gives a `Result`, so a longer expression has a `?` behind each operator but the last. Operands may be
//! owned or borrowed: `((&a * &b)? + &c)? / 2.0`. A number is a part of the instruction and has the dtype of the other operand ([`Input`](crate::Input)). Numbers are `f64` or
//! `i64`, one type each for literals with and without a point, so that the literal needs no suffix; a number that the dtype has no value for is refused.

use std::ops;

use streamvm_ep::{Op, Params};

use crate::error::engine_error::Error;
use crate::tensor::handle::Tensor;

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
