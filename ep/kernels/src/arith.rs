//! The elementwise ops as types, so that one generic kernel serves them all.

use streamvm_ep::{ElementWork, KernelError, Op};

use crate::bits::Bits;
use crate::functions::Functions as _;
use crate::number::{Float, Number};

/// An op on one element.
pub(super) trait Unary<T> {
    /// Whether it takes many operations, so that [`map1_long`](crate::long_rows::map1_long) is the loop for it.
    const IS_LONG: bool;
    /// Whether it calls a library, so that [`map1_called`](crate::long_rows::map1_called) is the loop for it.
    const IS_CALL: bool;

    fn apply(x: T) -> T;
}

/// A question about one element.
pub(super) trait Predicate<T> {
    fn apply(x: T) -> bool;
}

/// An op on two elements of one type.
pub(super) trait Binary<T: Number> {
    /// Whether it calls a library, so that [`map2_called`](crate::long_rows::map2_called) is the loop for it.
    const IS_CALL: bool;

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

const fn is_call(op: Op) -> bool {
    matches!(op.element_work(), ElementWork::Call)
}

macro_rules! unary {
    ($($bound:ident $op:ident $method:ident;)*) => {$(
        pub(super) struct $op;

        impl<T: $bound> Unary<T> for $op {
            const IS_LONG: bool = false;
            const IS_CALL: bool = false;

            #[inline(always)]
            fn apply(x: T) -> T {
                x.$method()
            }
        }
    )*};
}

unary! {
    Number Neg neg;
    Number Abs abs;
    Number Relu relu;
    Number Sign sign;
    Bits BitNot bit_not;
}

/// Of a bool, a byte that is 0 or 1.
pub(super) struct Not;

impl Unary<u8> for Not {
    const IS_LONG: bool = false;
    const IS_CALL: bool = false;

    #[inline(always)]
    fn apply(x: u8) -> u8 {
        x ^ 1
    }
}

/// Ops of floats: [`Functions`](crate::functions::Functions) of the type that a float is computed in, rounded once.
macro_rules! functions {
    ($($op:ident $function:ident;)*) => {$(
        pub(super) struct $op;

        impl<T: Float> Unary<T> for $op {
            const IS_LONG: bool = matches!(Op::$op.element_work(), ElementWork::Long);
            const IS_CALL: bool = is_call(Op::$op);

            #[inline(always)]
            fn apply(x: T) -> T {
                T::rounded(x.wide().$function())
            }
        }
    )*};
}

functions! {
    Exp exp;
    Log log;
    Sqrt sqrt;
    Tanh tanh;
    Sigmoid sigmoid;
    Erf erf;
    Gelu gelu;
    GeluTanh gelu_tanh;
    Silu silu;
    Rsqrt rsqrt;
    Reciprocal reciprocal;
    Floor floor;
    Ceil ceil;
    Round round;
    Trunc trunc;
    Sin sin;
    Cos cos;
    Tan tan;
    Asin asin;
    Acos acos;
    Atan atan;
    Sinh sinh;
    Cosh cosh;
    Log1p log1p;
    Expm1 expm1;
    Log2 log2;
    Log10 log10;
    Exp2 exp2;
}

pub(super) struct IsNan;

impl<T: Float> Predicate<T> for IsNan {
    #[inline(always)]
    fn apply(x: T) -> bool {
        x.is_nan()
    }
}

pub(super) struct IsInf;

impl<T: Float> Predicate<T> for IsInf {
    #[inline(always)]
    fn apply(x: T) -> bool {
        x.wide().abs().compared() == T::Wide::HIGHEST.compared()
    }
}

pub(super) struct IsFinite;

impl<T: Float> Predicate<T> for IsFinite {
    #[inline(always)]
    fn apply(x: T) -> bool {
        x.wide().abs().compared() < T::Wide::HIGHEST.compared()
    }
}

macro_rules! binary {
    ($($bound:ident $op:ident $method:ident;)*) => {$(
        pub(super) struct $op;

        impl<T: $bound> Binary<T> for $op {
            const IS_CALL: bool = false;

            #[inline(always)]
            fn apply(x: T, y: T) -> T {
                x.$method(y)
            }
        }
    )*};
}

binary! {
    Number Add add;
    Number Sub sub;
    Number Mul mul;
    Number Min min;
    Number Max max;
    Bits BitAnd bit_and;
    Bits BitOr bit_or;
    Bits BitXor bit_xor;
    Bits Shl shl;
    Bits Shr shr;
}

/// Ops that refuse an integer 0 as the right-hand side.
macro_rules! divisions {
    ($($op:ident $method:ident;)*) => {$(
        pub(super) struct $op;

        impl<T: Number> Binary<T> for $op {
            const IS_CALL: bool = is_call(Op::$op);
            const REFUSES: bool = !T::IS_FLOAT;

            #[inline(always)]
            fn apply(x: T, y: T) -> T {
                x.$method(y)
            }

            #[inline(always)]
            fn refuse(op: Op, y: T, index: usize) -> Option<KernelError> {
                y.is_bad_divisor().then_some(KernelError::DivisionByZero { op, index })
            }
        }
    )*};
}

divisions! {
    Div div;
    FloorDiv floor_div;
    Remainder remainder;
}

pub(super) struct Pow;

impl<T: Number> Binary<T> for Pow {
    const IS_CALL: bool = is_call(Op::Pow);
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

pub(super) struct Atan2;

impl<T: Float> Binary<T> for Atan2 {
    const IS_CALL: bool = is_call(Op::Atan2);

    #[inline(always)]
    fn apply(x: T, y: T) -> T {
        T::rounded(x.wide().atan2(y.wide()))
    }
}

macro_rules! compare {
    ($($op:ident $operator:tt;)*) => {$(
        pub(super) struct $op;

        impl<T: Number> Compare<T> for $op {
            #[inline(always)]
            fn apply(x: T, y: T) -> bool {
                x.compared() $operator y.compared()
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
