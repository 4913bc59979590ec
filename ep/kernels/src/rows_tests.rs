use pulp::Arch;

use super::*;

/// Numbers of all magnitudes and signs, infinities and NaNs.
pub(crate) fn numbers(seed: u32) -> Vec<f32> {
    let mut bits = seed;
    let mut next = || {
        bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from_bits(bits)
    };
    (0..LANES * 5 + 3).map(|_| next()).collect()
}

pub(crate) fn side_by_side(elements: &[f32]) -> InRow<f32> {
    InRow { first: elements.as_ptr(), stride: 1 }
}

/// The bits of what `run` writes; all NaNs count as equal.
pub(crate) fn written(run: impl FnOnce(usize, OutRow<f32>)) -> Vec<u32> {
    let mut out = numbers(0);
    run(out.len(), OutRow { first: out.as_mut_ptr(), stride: 1 });
    out.iter().map(|it| if it.is_nan() { f32::NAN.to_bits() } else { it.to_bits() }).collect()
}

/// Generic over `F`: a function pointer would be compiled only once, for the baseline processor.
fn same1(f: impl Fn(f32) -> f32 + Copy) {
    let x = numbers(1);
    let a = side_by_side(&x);
    // SAFETY: the numbers outlive the call, and both rows have `length` elements.
    let here = written(|length, out| simd_dispatch::run(unsafe { Map1::new(length, out, a, f) }));
    // SAFETY: as above.
    assert_eq!(here, written(|length, out| Arch::Scalar.dispatch(unsafe { Map1::new(length, out, a, f) })));
}

fn same2(f: impl Fn(f32, f32) -> f32 + Copy) {
    let (x, y) = (numbers(1), numbers(2));
    let (a, b) = (side_by_side(&x), side_by_side(&y));
    // SAFETY: as above.
    let here = written(|length, out| unsafe { map2(length, out, a, b, f) });
    // SAFETY: as above.
    assert_eq!(here, written(|length, out| Arch::Scalar.dispatch(unsafe { Map2::new(length, out, a, b, f) })));
}

fn same3(f: impl Fn(f32, f32, f32) -> f32 + Copy) {
    let (x, y, z) = (numbers(1), numbers(2), numbers(3));
    let (a, b, c) = (side_by_side(&x), side_by_side(&y), side_by_side(&z));
    // SAFETY: as above.
    let here = written(|length, out| unsafe { map3(length, out, a, b, c, f) });
    // SAFETY: as above.
    assert_eq!(here, written(|length, out| Arch::Scalar.dispatch(unsafe { Map3::new(length, out, a, b, c, f) })));
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

/// Every combination of strides of two inputs and the output, over several blocks and a part of one, is computed element by element.
#[test]
fn strides_do_not_change_results() {
    let length = 2 * BLOCK + 5;
    let elements: Vec<i32> = (0..3 * length as i32).collect();
    let row = |stride: usize| InRow { first: elements.as_ptr(), stride };
    let index = |stride: usize, i: usize| (i * stride) as i32;
    for strides in (0..27).map(|it| [it % 3, it / 3 % 3, it / 9]) {
        for out_stride in [1, 2] {
            let run = |f: &dyn Fn(OutRow<i32>), expected: &dyn Fn(usize) -> i32| {
                let mut found = vec![-1; 2 * length];
                f(OutRow { first: found.as_mut_ptr(), stride: out_stride });
                for (place, &found) in found.iter().enumerate() {
                    let i = place / out_stride;
                    let expected = if place % out_stride == 0 && i < length { expected(i) } else { -1 };
                    assert_eq!(found, expected, "strides {strides:?} to {out_stride}, place {place}");
                }
            };
            let [a, b, c] = strides;
            // SAFETY: the elements and the output have room for `length` elements with strides of at most 2, and outlive the calls.
            run(&|out| unsafe { copy(length, out, row(a)) }, &|i| index(a, i));
            // SAFETY: as above.
            run(&|out| unsafe { map2(length, out, row(a), row(b), |x, y| x - 3 * y) }, &|i| {
                index(a, i) - 3 * index(b, i)
            });
            run(
                // SAFETY: as above.
                &|out| unsafe { map3(length, out, row(a), row(b), row(c), |x, y, z| x - 3 * y + 5 * z) },
                &|i| index(a, i) - 3 * index(b, i) + 5 * index(c, i),
            );
        }
    }
}

/// An output with gaps that is also an input: each element is read before it is written.
#[test]
fn a_row_with_gaps_may_be_written_over_itself() {
    let length = BLOCK + 7;
    let mut both: Vec<i32> = (0..2 * length as i32).collect();
    let out = OutRow { first: both.as_mut_ptr(), stride: 2 };
    // SAFETY: there are `length` elements with stride 2; each is its own input.
    unsafe { map2(length, out, out.written(), out.written(), |x, y| x + y) };
    let expected: Vec<i32> = (0..2 * length as i32).map(|it| if it % 2 == 0 { 2 * it } else { it }).collect();
    assert_eq!(both, expected);
}
