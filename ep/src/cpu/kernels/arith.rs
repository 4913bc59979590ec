//! The elementwise ops as types, so that one generic kernel serves them all.

use crate::cpu::kernels::number::{Float, Number};
use crate::errors::error::KernelError;
use crate::tensor::op::Op;

/// An op on one element.
pub(super) trait Unary<T> {
    /// Whether it takes many operations, so that [`map1_long`](crate::cpu::kernels::rows::map1_long) is the loop for it.
    const IS_LONG: bool;

    fn apply(x: T) -> T;
}

/// An op on two elements of one type.
pub(super) trait Binary<T: Number> {
    fn apply(x: T, y: T) -> T;

    /// The error for a right-hand side `y` that is not allowed, at flat index `index` of the output.
    #[inline(always)]
    fn refuse(_op: Op, _y: T, _index: usize) -> Option<KernelError> {
        None
    }

    /// Whether [`refuse`](Binary::refuse) can return an error for this type.
    const REFUSES: bool = false;
}

/// A comparison of two elements of one type.
pub(super) trait Compare<T> {
    fn apply(x: T, y: T) -> bool;
}

macro_rules! unary {
    ($($bound:ident $op:ident $method:ident $long:literal;)*) => {$(
        pub(super) struct $op;

        impl<T: $bound> Unary<T> for $op {
            const IS_LONG: bool = $long;

            #[inline(always)]
            fn apply(x: T) -> T {
                $bound::$method(x)
            }
        }
    )*};
}

unary! {
    Number Neg neg false;
    Number Abs abs false;
    Number Relu relu false;
    Float Exp exp true;
    Float Log log true;
    Float Sqrt sqrt false;
    Float Tanh tanh true;
    Float Sigmoid sigmoid true;
    Float Erf erf true;
    Float Gelu gelu true;
    Float GeluTanh gelu_tanh true;
    Float Silu silu true;
    Float Rsqrt rsqrt false;
}

macro_rules! binary {
    ($($op:ident $method:ident;)*) => {$(
        pub(super) struct $op;

        impl<T: Number> Binary<T> for $op {
            #[inline(always)]
            fn apply(x: T, y: T) -> T {
                x.$method(y)
            }
        }
    )*};
}

binary! {
    Add add;
    Sub sub;
    Mul mul;
    Min min;
    Max max;
}

pub(super) struct Div;

impl<T: Number> Binary<T> for Div {
    const REFUSES: bool = !T::IS_FLOAT;

    #[inline(always)]
    fn apply(x: T, y: T) -> T {
        x.div(y)
    }

    #[inline(always)]
    fn refuse(op: Op, y: T, index: usize) -> Option<KernelError> {
        y.is_bad_divisor().then_some(KernelError::DivisionByZero { op, index })
    }
}

pub(super) struct Pow;

impl<T: Number> Binary<T> for Pow {
    const REFUSES: bool = !T::IS_FLOAT;

    #[inline(always)]
    fn apply(x: T, y: T) -> T {
        x.pow(y)
    }

    #[inline(always)]
    fn refuse(op: Op, y: T, index: usize) -> Option<KernelError> {
        let exponent = y.bad_exponent()?;
        Some(KernelError::NegativeExponent { op, index, exponent })
    }
}

macro_rules! compare {
    ($($op:ident $operator:tt;)*) => {$(
        pub(super) struct $op;

        impl<T: Number> Compare<T> for $op {
            #[inline(always)]
            fn apply(x: T, y: T) -> bool {
                x $operator y
            }
        }
    )*};
}

compare! {
    Eq ==;
    Ne !=;
    Lt <;
    Le <=;
    Gt >;
    Ge >=;
}
