use pulp::Arch;

use super::*;
use crate::functions::Functions;
use crate::simd_dispatch;

/// Numbers of all magnitudes and signs, infinities and NaNs.
fn numbers(seed: u32) -> Vec<f32> {
    let mut bits = seed;
    let mut next = || {
        bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from_bits(bits)
    };
    (0..LANES * 5 + 3).map(|_| next()).collect()
}

/// The bits of what `run` writes; all NaNs count as equal.
fn written(run: impl FnOnce(usize, *mut f32)) -> Vec<u32> {
    let mut out = numbers(0);
    run(out.len(), out.as_mut_ptr());
    out.iter().map(|it| if it.is_nan() { f32::NAN.to_bits() } else { it.to_bits() }).collect()
}

/// Generic over `F`: a function pointer would be compiled only once, for the baseline processor.
fn same1(f: impl Fn(f32) -> f32 + Copy) {
    let x = numbers(1);
    let a = InRow::dense(x.as_ptr());
    // SAFETY: the numbers outlive the call, and both rows have `length` elements.
    let map = |length, out| unsafe { Map1::new(length, OutRow::dense(out), a, f) };
    assert_eq!(
        written(|length, out| simd_dispatch::run(map(length, out))),
        written(|length, out| Arch::Scalar.dispatch(map(length, out)))
    );
}

fn same2(f: impl Fn(f32, f32) -> f32 + Copy) {
    let (x, y) = (numbers(1), numbers(2));
    let [a, b] = [&x, &y].map(|row| InRow::dense(row.as_ptr()));
    // SAFETY: as above.
    let map = |length, out| unsafe { Map2::new(length, OutRow::dense(out), a, b, f) };
    assert_eq!(
        written(|length, out| simd_dispatch::run(map(length, out))),
        written(|length, out| Arch::Scalar.dispatch(map(length, out)))
    );
}

fn same3(f: impl Fn(f32, f32, f32) -> f32 + Copy) {
    let (x, y, z) = (numbers(1), numbers(2), numbers(3));
    let [a, b, c] = [&x, &y, &z].map(|row| InRow::dense(row.as_ptr()));
    // SAFETY: as above.
    let map = |length, out| unsafe { Map3::new(length, OutRow::dense(out), a, b, c, f) };
    assert_eq!(
        written(|length, out| simd_dispatch::run(map(length, out))),
        written(|length, out| Arch::Scalar.dispatch(map(length, out)))
    );
}

/// Results on this processor and on the baseline have the same bits: a product is rounded before it is added (no fused operation).
#[test]
fn results_do_not_depend_on_the_processor() {
    same1(f32::exp);
    same1(f32::sqrt);
    same1(|x| x * x + 1.0);
    same2(|x, y| x + y);
    same2(|x, y| x / y);
    same2(f32::min);
    same2(|x, y| x * y - x);
    same3(|x, y, z| x * y + z);
}

/// A long operation with every width, and over its own input.
fn same_long(f: impl Fn(f32) -> f32 + Copy) {
    let x = numbers(1);
    // SAFETY: the numbers outlive the call, and both rows have `length` elements.
    let map = |length, out| unsafe { SideBySide::new(length, out, x.as_ptr(), f) };
    let wide = written(|length, out| simd_dispatch::run_wide(map(length, out)));
    assert_eq!(wide, written(|length, out| simd_dispatch::run(map(length, out))));
    assert_eq!(wide, written(|length, out| Arch::Scalar.dispatch(map(length, out))));
    let in_place = written(|length, out| {
        // SAFETY: both are rows of `length` elements apart from each other.
        unsafe { out.copy_from_nonoverlapping(x.as_ptr(), length) };
        // SAFETY: as above; each element is its own input.
        simd_dispatch::run_wide(unsafe { SideBySide::new(length, out, out.cast_const(), f) });
    });
    assert_eq!(wide, in_place);
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
    same_long(|x| Functions::tanh(f64::from(x)) as f32);
}
