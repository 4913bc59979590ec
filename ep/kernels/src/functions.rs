//! The functions of one or two floats that ops compute, as methods of `f32` and `f64`. A 16-bit float is computed in `f32`, and rounded once.
//!
//! The functions of one float are those of the table of ops. Each is written for both types in the module of its kind.

/// The functions of `f32`, of every kind.
mod single {
    pub(super) use crate::activations::single::*;
    pub(super) use crate::library::single::*;
    pub(super) use crate::math::single::*;
    pub(super) use crate::plain::single::*;
}

/// The functions of `f64`, of every kind.
mod double {
    pub(super) use crate::activations::double::*;
    pub(super) use crate::library::double::*;
    pub(super) use crate::math::double::*;
    pub(super) use crate::plain::double::*;
}

macro_rules! functions {
    ({$($(#[$doc:meta])* $op:ident: $name:literal, $class:ident, $dtypes:ident, $method:ident($($signature:tt)*)
        $(=> $params:expr)? $(, { $($facts:tt)* })?;)*} {$($sources:tt)*}) => {
        /// A type that the functions are computed in.
        pub(super) trait Functions: Copy {
            $(function! { $class $dtypes $method })*
            fn atan2(self, other: Self) -> Self;
        }

        impl Functions for f32 {
            $(function! { $class $dtypes $method single })*

            #[inline(always)]
            fn atan2(self, other: f32) -> f32 {
                single::atan2(self, other)
            }
        }

        impl Functions for f64 {
            $(function! { $class $dtypes $method double })*

            #[inline(always)]
            fn atan2(self, other: f64) -> f64 {
                double::atan2(self, other)
            }
        }
    };
}

/// The method of a unary op of floats; nothing for other ops.
macro_rules! function {
    (Unary FLOATS $name:ident) => {
        fn $name(self) -> Self;
    };
    (Unary FLOATS $name:ident $width:ident) => {
        #[inline(always)]
        fn $name(self) -> Self {
            $width::$name(self)
        }
    };
    ($($other:tt)*) => {};
}
streamvm_ep::op_table!(functions);
