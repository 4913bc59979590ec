use half::f16;

use super::*;
use crate::folds;

/// Rows that fit a tile, one that fills it, and longer ones.
const LENGTHS: &[usize] = match cfg!(miri) {
    true => &[31, TILE + 1],
    false => &[1, 31, TILE, TILE + 1, 2 * TILE + 37, 3 * TILE],
};

/// `2 x + y` over rows of every stride, and over the first row itself, is computed element by element.
fn every_stride<T: Float + PartialEq + std::fmt::Debug>() {
    for &length in LENGTHS {
        for [a, b, to] in (0..18).map(|it| [it % 3, it / 3 % 3, 1 + it / 9]) {
            let number = |it: usize| T::from_f64((it % 500) as f64);
            let x: Vec<T> = (0..3 * length).map(number).collect();
            let expected = |i: usize| T::from_f64((2 * (i * a % 500) + i * b % 500) as f64);
            let row = |stride| InRow { first: x.as_ptr(), stride };
            let compute = |count, to: *mut T::Wide, [x, y]: [*const T::Wide; 2]| {
                for i in 0..count {
                    // SAFETY: `map` gives so many elements.
                    let [x, y] = [x, y].map(|row| unsafe { row.wrapping_add(i).read() });
                    // SAFETY: as above, of results.
                    unsafe { to.wrapping_add(i).write(x.add(x).add(y)) };
                }
            };
            let mut found = vec![T::LOWEST; 2 * length];
            let out = OutRow { first: found.as_mut_ptr(), stride: to };
            // SAFETY: the rows have so many elements, and outlive the call.
            unsafe { map(length, out, [row(a), row(b)], compute) };
            for (place, &found) in found.iter().enumerate() {
                let is_result = place % to == 0 && place / to < length;
                let expected = if is_result { expected(place / to) } else { T::LOWEST };
                assert_eq!(found, expected, "{length} elements with strides {a} and {b} to {to}, place {place}");
            }
            if a == to {
                let mut both = x.clone();
                let out = OutRow { first: both.as_mut_ptr(), stride: to };
                // SAFETY: as above; an element of the first row is that of the output with the same index.
                unsafe { map(length, out, [out.written(), row(b)], compute) };
                assert!((0..length).all(|i| both[i * to] == expected(i)), "{length} elements over themselves");
            }
        }
    }
}

#[test]
fn strides_do_not_change_results() {
    every_stride::<f32>();
    every_stride::<f64>();
    every_stride::<f16>();
}

/// A fold of 16-bit floats, tile by tile, has the bits of a fold of the same numbers as `f32`, which is one tile; with gaps, of a fold of them one by one.
#[test]
fn tiles_do_not_change_folds() {
    for &length in LENGTHS {
        let x: Vec<f16> = (0..2 * length).map(|it| f16::from_f32((it * 7919 % 8191) as f32 / 3.0 - 1000.0)).collect();
        let wide: Vec<f32> = x.iter().map(|x| x.wide()).collect();
        let step = |sum: f32, [x]: [f32; 1]| sum + x;
        for stride in [1, 2] {
            let (narrow, wide) = (InRow { first: x.as_ptr(), stride }, InRow { first: wide.as_ptr(), stride });
            // SAFETY: the rows have so many elements, and outlive the calls.
            let found = unsafe { folds::fold(length, [narrow], (0.5, 0.0), step, |x, y| x + y) };
            // SAFETY: as above.
            let expected = unsafe { folds::fold(length, [wide], (0.5, 0.0), step, |x, y| x + y) };
            assert_eq!(found.to_bits(), expected.to_bits(), "{length} elements with stride {stride}");
        }
    }
}
