//! The functions of one or two floats that ops compute, as methods of `f32` and `f64`. A 16-bit float is computed in `f32`, and rounded once.
//!
//! A new function is written for both types in the module of its kind, and named here.

use crate::{activations, library, math, plain};

macro_rules! functions {
    (of one [$($module:ident: $($name:ident)*;)*] of two [$($module_of_two:ident: $($of_two:ident)*;)*]) => {
        /// A type that the functions are computed in.
        pub(super) trait Functions: Copy {
            $($(fn $name(self) -> Self;)*)*
            $($(fn $of_two(self, other: Self) -> Self;)*)*
        }

        functions!(f32 single [$($module: $($name)*;)*] [$($module_of_two: $($of_two)*;)*]);
        functions!(f64 double [$($module: $($name)*;)*] [$($module_of_two: $($of_two)*;)*]);
    };
    ($float:ident $width:ident [$($module:ident: $($name:ident)*;)*] [$($module_of_two:ident: $($of_two:ident)*;)*]) => {
        impl Functions for $float {
            $($(
                #[inline(always)]
                fn $name(self) -> $float {
                    $module::$width::$name(self)
                }
            )*)*
            $($(
                #[inline(always)]
                fn $of_two(self, other: $float) -> $float {
                    $module_of_two::$width::$of_two(self, other)
                }
            )*)*
        }
    };
}

functions! {
    of one [
        math: exp log tanh sigmoid exp2 log2 log10;
        activations: erf gelu gelu_tanh silu;
        plain: sqrt rsqrt reciprocal floor ceil round trunc;
        library: sin cos tan asin acos atan sinh cosh log1p expm1;
    ]
    of two [
        library: atan2;
    ]
}
