use std::collections::BTreeSet;

use proptest::prelude::*;
use streamvm_ep::{DType, Layout, Shape};

use super::*;

const BASE: usize = 4096;

fn operand(dtype: DType, layout: Layout) -> Operand<'static> {
    let base = std::ptr::without_provenance_mut(BASE);
    // SAFETY: the test only asks the operand for its addresses; nothing is read or written through it.
    unsafe { Operand::new(base, dtype, layout, Access::Read) }
}

/// The addresses of all bytes of the view, by the definition.
fn bytes(layout: &Layout, size: usize) -> BTreeSet<usize> {
    let mut offsets = vec![layout.offset()];
    for (&dim, &stride) in layout.shape().dims().iter().zip(layout.strides()) {
        offsets = offsets.iter().flat_map(|&offset| (0..dim).map(move |index| offset + index * stride)).collect();
    }
    offsets.iter().flat_map(|&offset| (0..size).map(move |byte| BASE + offset * size + byte)).collect()
}

proptest! {
    #[test]
    fn a_touch_is_exactly_the_bytes_of_the_view(
        axes in prop::collection::vec((0usize..4, 0usize..13), 0..4),
        offset in 0usize..5,
        dtype in prop::sample::select(&DType::ALL[..]),
    ) {
        let (dims, strides): (Vec<_>, Vec<_>) = axes.into_iter().unzip();
        let layout = Layout::with_strides(Shape::new(&dims).unwrap(), &strides, offset).unwrap();
        let touch = Touch::of(&operand(dtype, layout), Some(3));
        let runs = touch.runs();
        prop_assert!(runs.iter().all(|run| !run.is_empty()), "{:?}", runs);
        prop_assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?}", runs);
        let found: BTreeSet<usize> = runs.iter().cloned().flatten().collect();
        prop_assert_eq!(found, bytes(&layout, dtype.size()));
        prop_assert_eq!((touch.access(), touch.allocation()), (Access::Read, Some(3)));
    }
}

#[test]
fn a_dense_view_is_one_run_whatever_the_order_of_its_axes() {
    let turned = Layout::contiguous(Shape::new(&[5, 7, 3]).unwrap()).permute(&[2, 0, 1]).unwrap();
    let whole = std::iter::once(BASE..BASE + 5 * 7 * 3 * 8);
    assert_eq!(Touch::of(&operand(DType::F64, turned), None), Touch::new(whole, Access::Read, None));
}

#[test]
fn given_runs_are_sorted_and_merged() {
    let touch = Touch::new([20..30, 0..4, 4..6, 9..9, 25..28], Access::Write, None);
    assert_eq!(touch.runs(), [0..6, 20..30]);
}
