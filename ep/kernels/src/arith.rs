//! The elementwise ops as types, of which the functions over [tiles](super::tiles) are made.

use std::marker::PhantomData;

use streamvm_ep::{ElementWork, Op};

use crate::bits::Bits;
use crate::functions::Functions;
use crate::number::{Computed, Float, Number};

/// An op of one element.
pub(super) trait Unary<T> {
    /// The type of the result: that of the element, another one for casts, or a byte that is 0 or 1.
    type Out: Copy;
    const WORK: ElementWork = ElementWork::Light;

    fn apply(x: T) -> Self::Out;
}

/// An op of two elements of one type.
pub(super) trait Binary<T> {
    /// The type of the result: that of the elements, or a byte that is 0 or 1.
    type Out: Copy;
    const WORK: ElementWork = ElementWork::Light;
    /// What it refuses as the right-hand side.
    const REFUSES: Option<Refused> = None;

    fn apply(x: T, y: T) -> Self::Out;
}

/// An op of three elements, of which the last two have the type of the result.
pub(super) trait Ternary<A, T> {
    fn apply(a: A, x: T, y: T) -> T;
}

/// Integers that an op refuses.
#[derive(Copy, Clone)]
pub(super) enum Refused {
    Zero,
    Negative,
}

macro_rules! unary {
    ($($bound:ident $op:ident $method:ident;)*) => {$(
        pub(super) struct $op;

        impl<T: $bound> Unary<T> for $op {
            type Out = T;

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

/// An op of `f32`, of a 16-bit float.
pub(super) struct Widened<U>(PhantomData<U>);

impl<T: Float<Wide = f32>, U: Unary<f32, Out = f32>> Unary<T> for Widened<U> {
    type Out = T;

    #[inline(always)]
    fn apply(x: T) -> T {
        T::rounded(U::apply(x.wide()))
    }
}

/// Of a bool, a byte that is 0 or 1.
pub(super) struct Not;

impl Unary<u8> for Not {
    type Out = u8;

    #[inline(always)]
    fn apply(x: u8) -> u8 {
        x ^ 1
    }
}

/// Ops of floats: [`Functions`].
macro_rules! functions {
    ({$($(#[$doc:meta])* $op:ident: $name:literal, $class:ident, $dtypes:ident, $method:ident($($signature:tt)*)
        $(=> $params:expr)? $(, { $($facts:tt)* })?;)*} {$($sources:tt)*}) => {
        $(function! { $class $dtypes $op $method })*
    };
}

/// The type of a unary op of floats; nothing for other ops.
macro_rules! function {
    (Unary FLOATS $op:ident $function:ident) => {
        pub(super) struct $op;

        impl<T: Functions> Unary<T> for $op {
            type Out = T;
            const WORK: ElementWork = Op::$op.element_work();

            #[inline(always)]
            fn apply(x: T) -> T {
                x.$function()
            }
        }
    };
    ($($other:tt)*) => {};
}
streamvm_ep::op_table!(functions);

macro_rules! predicates {
    ($($op:ident |$x:ident| $is_it:expr;)*) => {$(
        pub(super) struct $op;

        impl<T: Float> Unary<T> for $op {
            type Out = u8;

            #[inline(always)]
            fn apply($x: T) -> u8 {
                u8::from($is_it)
            }
        }
    )*};
}

predicates! {
    IsNan |x| x.is_nan();
    IsInf |x| x.abs().compared() == T::HIGHEST.compared();
    IsFinite |x| x.abs().compared() < T::HIGHEST.compared();
}

macro_rules! binary {
    ($($bound:ident $op:ident $method:ident;)*) => {$(
        pub(super) struct $op;

        impl<T: $bound> Binary<T> for $op {
            type Out = T;

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

/// Ops that refuse some integers as the right-hand side.
macro_rules! refusing {
    ($($bound:ident $op:ident $method:ident $refused:ident;)*) => {$(
        pub(super) struct $op;

        impl<T: $bound> Binary<T> for $op {
            type Out = T;
            const WORK: ElementWork = Op::$op.element_work();
            const REFUSES: Option<Refused> = if T::IS_FLOAT { None } else { Some(Refused::$refused) };

            #[inline(always)]
            fn apply(x: T, y: T) -> T {
                x.$method(y)
            }
        }
    )*};
}

refusing! {
    Number Div div Zero;
    Computed FloorDiv floor_div Zero;
    Computed Remainder remainder Zero;
    Computed Pow pow Negative;
}

pub(super) struct Atan2;

impl<T: Functions> Binary<T> for Atan2 {
    type Out = T;
    const WORK: ElementWork = Op::Atan2.element_work();

    #[inline(always)]
    fn apply(x: T, y: T) -> T {
        x.atan2(y)
    }
}

macro_rules! compare {
    ($($op:ident $operator:tt;)*) => {$(
        pub(super) struct $op;

        impl<T: Number> Binary<T> for $op {
            type Out = u8;

            #[inline(always)]
            fn apply(x: T, y: T) -> u8 {
                u8::from(x.compared() $operator y.compared())
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

/// Of two elements the one that a condition names, a byte that is 0 or 1.
pub(super) struct Select;

impl<T> Ternary<u8, T> for Select {
    #[inline(always)]
    fn apply(condition: u8, x: T, y: T) -> T {
        if condition != 0 { x } else { y }
    }
}

pub(super) struct Clamp;

impl<T: Number> Ternary<T, T> for Clamp {
    #[inline(always)]
    fn apply(x: T, low: T, high: T) -> T {
        x.max(low).min(high)
    }
}
