use super::*;

fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap()
}

fn dense(dims: &[usize]) -> Layout {
    Layout::contiguous(shape(dims))
}

/// The positions of all elements, in row-major order.
fn places(layout: &Layout) -> Vec<usize> {
    let mut places = vec![layout.offset()];
    for (&dim, &stride) in layout.shape().dims().iter().zip(layout.strides()) {
        places = places.into_iter().flat_map(|place| (0..dim).map(move |i| place + i * stride)).collect();
    }
    places
}

#[test]
fn contiguous_layouts_are_row_major() {
    let layout = dense(&[2, 3, 4]);
    assert_eq!(layout.strides(), [12, 4, 1]);
    assert!(layout.is_contiguous());
    assert_eq!(layout.span_elements(), 0..24);
    assert_eq!(places(&layout), (0..24).collect::<Vec<_>>());
}

#[test]
fn only_what_is_exactly_the_contiguous_layout_is_row_major_from_the_start() {
    for dims in [&[2, 3, 4][..], &[], &[7], &[3, 0, 2], &[1, 1]] {
        assert_eq!(dense(dims).row_major_elements(), Some(dense(dims).elements()));
    }
    let matrix = dense(&[4, 1]);
    let others = [
        matrix.slice(0, 1..3).unwrap(),
        dense(&[4, 2]).permute(&[1, 0]).unwrap(),
        dense(&[1]).broadcast_to(&shape(&[3])).unwrap(),
        // Contiguous, but with other strides than the row-major ones.
        Layout::with_strides(shape(&[4, 1]), &[1, 5], 0).unwrap(),
    ];
    for layout in others {
        assert_eq!(layout.row_major_elements(), None, "{layout:?}");
    }
}

#[test]
fn a_scalar_has_one_element() {
    let layout = dense(&[]);
    assert_eq!((layout.elements(), layout.span_elements()), (1, 0..1));
    assert!(layout.is_contiguous() && !layout.overlaps_itself());
}

#[test]
fn an_empty_layout_spans_nothing() {
    let layout = dense(&[3, 0, 2]);
    assert_eq!((layout.elements(), layout.span_elements()), (0, 0..0));
    assert!(layout.is_contiguous() && !layout.overlaps_itself());
    let apart = Layout::with_strides(shape(&[2, 0]), &[1, 1], 5).unwrap();
    assert_eq!((apart.offset(), apart.span_elements()), (5, 0..0));
}

#[test]
fn a_slice_of_an_empty_layout_stays_at_its_offset() {
    for (sizes, axis) in [([4, 0], 0), ([0, 4], 1)] {
        let part = dense(&sizes).slice(axis, 1..3).unwrap();
        assert_eq!((part.offset(), part.shape().dims()[axis]), (0, 2));
    }
}

#[test]
fn permute_reorders_shape_and_strides() {
    let layout = dense(&[2, 3, 4]).permute(&[2, 0, 1]).unwrap();
    assert_eq!(layout.shape().dims(), [4, 2, 3]);
    assert_eq!(layout.strides(), [1, 12, 4]);
    assert!(!layout.is_contiguous() && !layout.overlaps_itself());
    for axes in [&[0, 1][..], &[0, 1, 1], &[0, 1, 3], &[0, 1, 2, 3]] {
        let refused = dense(&[2, 3, 4]).permute(axes);
        assert!(matches!(refused, Err(ShapeError::Permutation { .. })));
    }
}

#[test]
fn slice_moves_the_offset() {
    let layout = dense(&[4, 5]).slice(0, 1..3).unwrap().slice(1, 2..4).unwrap();
    assert_eq!(layout.shape().dims(), [2, 2]);
    assert_eq!(layout.offset(), 7);
    assert_eq!(layout.span_elements(), 7..14);
    assert!(!layout.is_contiguous());
    assert!(dense(&[4, 5]).slice(0, 1..3).unwrap().is_contiguous());
}

#[test]
#[allow(clippy::reversed_empty_ranges, reason = "a bad range is what is tested")]
fn bad_slices_are_refused() {
    let layout = dense(&[4, 5]);
    assert!(matches!(layout.slice(2, 0..1), Err(ShapeError::Axis { .. })));
    assert!(matches!(layout.slice(0, 0..5), Err(ShapeError::Slice { .. })));
    assert!(matches!(layout.slice(0, 3..2), Err(ShapeError::Slice { .. })));
    assert!(matches!(layout.slice(0, 5..5), Err(ShapeError::Slice { .. })));
    let empty = layout.slice(0, 4..4).unwrap();
    assert_eq!((empty.elements(), empty.offset()), (0, 0));
}

/// Whether some strides give these positions with shape `target`. The stride of each axis is the distance of its second element from the
/// first; the check is that the other elements follow.
fn strides_exist(places_wanted: &[usize], target: &Shape) -> bool {
    let mut step = 1;
    let mut strides = vec![0; target.rank()];
    for (axis, &dim) in target.dims().iter().enumerate().rev() {
        if dim > 1 {
            strides[axis] = places_wanted[step] - places_wanted[0];
        }
        step *= dim;
    }
    let view = Layout::with_strides(*target, &strides, places_wanted[0]).unwrap();
    places(&view) == places_wanted
}

#[test]
fn reshape_keeps_the_order_of_elements_or_asks_for_a_copy() {
    let sources = [
        dense(&[2, 3, 4]),
        dense(&[4, 6]).permute(&[1, 0]).unwrap(),
        dense(&[4, 6]).slice(1, 1..5).unwrap(),
        dense(&[4, 6]).slice(0, 1..3).unwrap(),
        dense(&[4, 1]).broadcast_to(&shape(&[4, 6])).unwrap(),
        dense(&[6]).broadcast_to(&shape(&[4, 6])).unwrap(),
        dense(&[2, 2, 6]).permute(&[2, 0, 1]).unwrap(),
    ];
    let targets: [&[usize]; 9] =
        [&[24], &[4, 6], &[6, 4], &[2, 12], &[12, 2], &[2, 2, 6], &[1, 24, 1], &[3, 2, 4], &[4, 2, 1, 3]];
    for source in sources {
        for target in targets {
            let target = shape(target);
            if source.elements() != target.elements() {
                assert!(source.reshape(target).is_err());
                continue;
            }
            let wanted = places(&source);
            match source.reshape(target).unwrap() {
                Some(view) => {
                    assert_eq!(places(&view), wanted, "{source:?} to {target}");
                    assert_eq!(view.shape(), &target);
                }
                None => assert!(!strides_exist(&wanted, &target), "{source:?} to {target}"),
            }
        }
    }
    // A permuted matrix cannot be flattened without a copy.
    let turned = dense(&[4, 6]).permute(&[1, 0]).unwrap();
    assert_eq!(turned.reshape(shape(&[24])), Ok(None));
    // The rows of a slice can be split, not joined.
    let slice = dense(&[4, 6]).slice(1, 1..5).unwrap();
    assert!(slice.reshape(shape(&[4, 2, 2])).unwrap().is_some());
    assert_eq!(slice.reshape(shape(&[16])), Ok(None));
}

#[test]
fn reshape_of_empty_and_scalar_layouts_is_a_view() {
    let empty = dense(&[0, 3]).permute(&[1, 0]).unwrap();
    assert!(empty.reshape(shape(&[7, 0])).unwrap().is_some());
    let one = dense(&[5]).slice(0, 3..4).unwrap();
    let scalar = one.reshape(shape(&[])).unwrap().unwrap();
    assert_eq!(scalar.offset(), 3);
    assert!(scalar.reshape(shape(&[1, 1])).unwrap().is_some());
}

#[test]
fn broadcasting_repeats_with_stride_zero() {
    let layout = dense(&[3, 1]).broadcast_to(&shape(&[2, 3, 4])).unwrap();
    assert_eq!(layout.strides(), [0, 1, 0]);
    assert_eq!(layout.span_elements(), 0..3);
    assert!(layout.overlaps_itself() && !layout.is_contiguous());
    for to in [&[3][..], &[3, 1, 4], &[4, 1]] {
        let refused = dense(&[3, 1]).broadcast_to(&shape(to));
        assert!(matches!(refused, Err(ShapeError::BroadcastTo { .. })), "{to:?}");
    }
    assert!(dense(&[1]).broadcast_to(&shape(&[0])).is_ok());
}

#[test]
fn overlap_is_found_by_what_smaller_strides_reach() {
    let strided = |dims: &[usize], strides: &[usize]| Layout::with_strides(shape(dims), strides, 0).unwrap();
    assert!(strided(&[2, 3], &[2, 1]).overlaps_itself());
    assert!(!strided(&[2, 2], &[2, 1]).overlaps_itself());
    assert!(!strided(&[1, 3], &[0, 1]).overlaps_itself());
    assert!(strided(&[2], &[0]).overlaps_itself());
    assert!(!strided(&[0, 2], &[0, 0]).overlaps_itself());
}

#[test]
fn strides_are_checked() {
    let with = |dims: &[usize], strides: &[usize], offset| Layout::with_strides(shape(dims), strides, offset);
    assert!(matches!(with(&[2], &[1, 1], 0), Err(ShapeError::Strides { .. })));
    assert!(matches!(with(&[3], &[usize::MAX], 0), Err(ShapeError::TooLarge { .. })));
    assert!(matches!(with(&[2], &[1], usize::MAX), Err(ShapeError::TooLarge { .. })));
    assert_eq!(with(&[2, 2], &[1, 2], 5).unwrap().span_elements(), 5..9);
}

#[test]
fn same_steps_ignores_axes_of_size_one() {
    let steps = |dims: &[usize]| dense(dims);
    assert!(steps(&[1, 3, 2]).same_steps(&steps(&[3, 1, 2])));
    assert!(!steps(&[3, 2]).same_steps(&steps(&[2, 3])));
    let turned = steps(&[3, 3]).permute(&[1, 0]).unwrap();
    assert!(!turned.same_steps(&steps(&[3, 3])));
}

#[test]
fn two_axes_are_exchanged() {
    let layout = Layout::contiguous(Shape::new(&[2, 3, 4]).unwrap());
    assert_eq!(layout.transpose(0, 2), layout.permute(&[2, 1, 0]));
    assert_eq!(layout.transpose(1, 1).as_ref(), Ok(&layout));
    assert!(matches!(layout.transpose(0, 3), Err(ShapeError::Axis { axis: 3, .. })));
    assert!(matches!(layout.transpose(3, 0), Err(ShapeError::Axis { axis: 3, .. })));
}

#[test]
fn axes_of_one_element_come_and_go() {
    let turned = Layout::contiguous(Shape::new(&[2, 3]).unwrap()).permute(&[1, 0]).unwrap().slice(0, 1..3).unwrap();
    for axis in 0..=2 {
        let longer = turned.unsqueeze(axis).unwrap();
        assert_eq!((longer.shape().dims()[axis], longer.shape().rank()), (1, 3));
        assert!(longer.same_steps(&turned) && longer.offset() == turned.offset());
        assert_eq!(longer.squeeze(axis).as_ref(), Ok(&turned));
    }
    let dense = Layout::contiguous(Shape::new(&[2, 3]).unwrap());
    assert!((0..=2).all(|axis| dense.unsqueeze(axis).unwrap().row_major_elements() == Some(6)));
    assert!(matches!(turned.unsqueeze(3), Err(ShapeError::Axis { axis: 3, .. })));
    assert!(matches!(turned.squeeze(2), Err(ShapeError::Axis { axis: 2, .. })));
    let refused = turned.squeeze(0).unwrap_err().to_string();
    assert_eq!(refused, "axis 0 of shape [2,2] has size 2, and only an axis of size 1 can be removed");
    let full = Layout::contiguous(Shape::new(&[1; MAX_RANK]).unwrap());
    assert!(matches!(full.unsqueeze(0), Err(ShapeError::Rank { .. })));
    assert_eq!(Layout::contiguous(Shape::SCALAR).unsqueeze(0).unwrap().shape().dims(), [1]);
}
