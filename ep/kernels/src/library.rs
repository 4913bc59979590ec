//! Functions of the crate `libm`, which are called for each element.
//!
//! The crate is a port of musl's functions to Rust. It uses only operations that IEEE 754 rounds correctly, so the functions give the same bits on
//! every processor and system, which those of a system's C library do not.
//!
//! | | `f32` | `f64` |
//! |---|---|---|
//! | `sin`, `cos`, `tan`, `asin`, `acos`, `atan`, `atan2`, `log1p`, `expm1` | 1 ulp | 1 ulp |
//! | `sinh`, `cosh` | 2 ulp | 2 ulp |
//!
//! These are bounds of the tests below, which compare with `f64` of the standard library and with sums of two `f64`.

macro_rules! functions {
    ($($name:ident($($input:ident),+): $single:ident $double:ident;)*) => {
        pub(super) mod single {$(
            #[inline(always)]
            pub(in crate) fn $name($($input: f32),+) -> f32 {
                libm::$single($($input),+)
            }
        )*}

        pub(super) mod double {$(
            #[inline(always)]
            pub(in crate) fn $name($($input: f64),+) -> f64 {
                libm::$double($($input),+)
            }
        )*}
    };
}

functions! {
    sin(x): sinf sin;
    cos(x): cosf cos;
    tan(x): tanf tan;
    asin(x): asinf asin;
    acos(x): acosf acos;
    atan(x): atanf atan;
    atan2(y, x): atan2f atan2;
    sinh(x): sinhf sinh;
    cosh(x): coshf cosh;
    log1p(x): log1pf log1p;
    expm1(x): expm1f expm1;
}

#[cfg(test)]
#[path = "library_tests.rs"]
mod tests;
