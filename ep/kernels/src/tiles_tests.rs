use half::f16;
use streamvm_ep::{Access, Layout, Shape};

use super::*;
use crate::arith::{Add, Neg, Sub};
use crate::tile_functions::{of_one, of_two};

/// Strides of a view of so many rows and columns.
const KINDS: [fn([usize; 2]) -> [usize; 2]; 6] = [
    |[_, columns]| [columns, 1],
    // Every other element.
    |[_, columns]| [2 * columns, 2],
    // Transposed.
    |[rows, _]| [1, rows],
    // A row for all rows, a column for all columns, an element for all.
    |_| [0, 1],
    |_| [1, 0],
    |_| [0, 0],
];

/// Rows that fit a tile together, rows that do not fit one, and planes that do not.
const SHAPES: [[usize; 2]; 5] = [[1, 1], [3, 5], [40, 3], [2, 1100], [35, 34]];

/// The elements that a view reaches from its first on.
fn span(shape: [usize; 2], strides: [usize; 2]) -> usize {
    (shape[0] - 1) * strides[0] + (shape[1] - 1) * strides[1] + 1
}

fn view<T>(elements: &mut [T], dtype: DType, shape: [usize; 2], strides: [usize; 2], access: Access) -> Operand<'_> {
    let layout = Layout::with_strides(Shape::new(&shape).unwrap(), &strides, 0).unwrap();
    assert!(layout.span_elements().end <= elements.len());
    // SAFETY: the elements have this dtype, contain the view, and outlive the operand, which borrows them.
    unsafe { Operand::new(elements.as_mut_ptr().cast(), dtype, layout, access) }
}

/// Computes `sub` over views of every kind, of elements that `number` gives, and compares it with the numbers' differences.
fn every_view<T: Copy + PartialEq + std::fmt::Debug>(dtype: DType, sub: Map, number: fn(i32) -> T) {
    // Miri takes long for the others.
    for &shape in if cfg!(miri) { &SHAPES[..3] } else { &SHAPES[..] } {
        for (a_kind, b_kind, out_kind) in (0..108).map(|it| (it % 6, it / 6 % 6, it / 36)) {
            let [a_strides, b_strides, out_strides] = [a_kind, b_kind, out_kind].map(|kind| KINDS[kind](shape));
            let numbers = |strides| (0..span(shape, strides) as i32).map(|it| it * 7 % 640);
            let mut a: Vec<T> = numbers(a_strides).map(number).collect();
            let mut b: Vec<T> = numbers(b_strides).map(|it| number(it / 4)).collect();
            let mut out = vec![number(-1); span(shape, out_strides)];
            let mut expected = out.clone();
            for (row, column) in (0..shape[0]).flat_map(|row| (0..shape[1]).map(move |column| (row, column))) {
                let at = |strides: [usize; 2]| row * strides[0] + column * strides[1];
                let [x, y] = [at(a_strides) as i32 * 7 % 640, at(b_strides) as i32 * 7 % 640 / 4];
                expected[at(out_strides)] = number(x - y);
            }
            let a = view(&mut a, dtype, shape, a_strides, Access::Read);
            let b = view(&mut b, dtype, shape, b_strides, Access::Read);
            let target = view(&mut out, dtype, shape, out_strides, Access::Write);
            // SAFETY: the operands hold elements of the map's type, apart from each other.
            unsafe { sub.run(&[&a, &b], &target) };
            assert_eq!(out, expected, "{shape:?}: {a_strides:?} and {b_strides:?} to {out_strides:?}");
        }
    }
}

#[test]
fn views_do_not_change_results() {
    let sub = Map { function: of_two::<i32, Sub> as TileFn, work: parallel::LIGHT, widens: false };
    every_view(DType::I32, sub, |it| it);
}

/// A tile has room for fewer of them.
#[test]
fn views_of_elements_of_8_bytes_do_not_change_results() {
    let sub = Map { function: of_two::<f64, Sub> as TileFn, work: parallel::LIGHT, widens: false };
    every_view(DType::F64, sub, f64::from);
}

#[test]
fn views_of_16_bit_floats_do_not_change_results() {
    let sub = Map { function: of_two::<f32, Sub> as TileFn, work: parallel::LIGHT, widens: true };
    every_view(DType::F16, sub, |it| f16::from_f32(it as f32));
}

/// An output that is also the inputs, with gaps and without: each element is read before it is written.
#[test]
fn a_view_may_be_written_over_itself() {
    for stride in [1, 2] {
        let shape = [1, 1100];
        let mut both: Vec<i32> = (0..span(shape, [1, stride]) as i32).collect();
        let expected = |it: &i32| if (*it as usize).is_multiple_of(stride) { -2 * it } else { *it };
        let expected: Vec<i32> = both.iter().map(expected).collect();
        let out = view(&mut both, DType::I32, shape, [1, stride], Access::Write);
        let (add, neg) = (of_two::<i32, Add>, of_one::<i32, Neg>);
        let map = |function| Map { function, work: parallel::LIGHT, widens: false };
        // SAFETY: the operands are one view of elements of this type.
        unsafe { map(add as TileFn).run(&[&out, &out], &out) };
        // SAFETY: as above.
        unsafe { map(neg as TileFn).run(&[&out], &out) };
        assert_eq!(both, expected);
    }
}
