use half::f16;
use pulp::Arch;

use super::*;
use crate::functions::Functions;
use crate::number::Float;
use crate::rows::tests::{numbers, side_by_side, written};

/// A long operation with every width, and with strides.
fn same_long(f: impl Fn(f32) -> f32 + Copy) {
    let x = numbers(1);
    let a = side_by_side(&x);
    // SAFETY: the numbers outlive the call, and both rows have `length` elements.
    let wide = written(|length, out| simd_dispatch::run_wide(unsafe { MapLong::new(length, out, a, f) }));
    // SAFETY: as above.
    assert_eq!(wide, written(|length, out| simd_dispatch::run(unsafe { MapLong::new(length, out, a, f) })));
    // SAFETY: as above.
    assert_eq!(wide, written(|length, out| Arch::Scalar.dispatch(unsafe { MapLong::new(length, out, a, f) })));
    let spread: Vec<f32> = x.iter().flat_map(|&x| [x, 0.0, 1.0]).collect();
    let a = InRow { first: spread.as_ptr(), stride: 3 };
    // SAFETY: as above.
    assert_eq!(wide, written(|length, out| unsafe { map1_long(length, out, a, f) }));
    let mut both = x.clone();
    let out = OutRow { first: both.as_mut_ptr(), stride: 1 };
    // SAFETY: as above; each element is its own input.
    unsafe { map1_long(both.len(), out, out.written(), f) };
    let same =
        |(found, &bits): (&f32, &u32)| found.to_bits() == bits || found.is_nan() && f32::from_bits(bits).is_nan();
    assert!(both.iter().zip(&wide).all(same), "in place: {both:?}");
}

#[test]
fn long_operations_do_not_depend_on_the_processor() {
    same_long(Functions::exp);
    same_long(Functions::log);
    same_long(Functions::tanh);
    same_long(Functions::sigmoid);
    same_long(Functions::exp2);
    same_long(Functions::log2);
    same_long(Functions::log10);
    same_long(|x| f16::rounded(Functions::exp(f16::rounded(x).wide())).wide());
    same_long(|x| Functions::tanh(f64::from(x)) as f32);
}
