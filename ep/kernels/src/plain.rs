//! Functions of a few instructions. IEEE 754 defines each operation in them, so they give the same bits on every processor.

macro_rules! functions {
    ($($module:ident $float:ident;)*) => {$(
        pub(super) mod $module {
            #[inline(always)]
            pub(in crate) fn sqrt(x: $float) -> $float {
                x.sqrt()
            }

            /// The reciprocal of the square root: two operations that are rounded.
            #[inline(always)]
            pub(in crate) fn rsqrt(x: $float) -> $float {
                1.0 / x.sqrt()
            }

            #[inline(always)]
            pub(in crate) fn reciprocal(x: $float) -> $float {
                1.0 / x
            }

            #[inline(always)]
            pub(in crate) fn floor(x: $float) -> $float {
                x.floor()
            }

            #[inline(always)]
            pub(in crate) fn ceil(x: $float) -> $float {
                x.ceil()
            }

            /// The nearest whole number, ties to even.
            #[inline(always)]
            pub(in crate) fn round(x: $float) -> $float {
                x.round_ties_even()
            }

            #[inline(always)]
            pub(in crate) fn trunc(x: $float) -> $float {
                x.trunc()
            }
        }
    )*};
}

functions! {
    single f32;
    double f64;
}
