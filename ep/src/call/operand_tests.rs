use super::*;
use crate::tensor::shape::Shape;

fn dense(dims: &[usize]) -> Layout {
    Layout::contiguous(Shape::new(dims).unwrap())
}

fn over<T>(memory: &mut [T], dtype: DType, layout: Layout, access: Access) -> Operand<'static> {
    assert!(layout.span_elements().end * dtype.size() <= size_of_val(memory));
    // SAFETY: the span is within the memory, which the test keeps alive and accesses through one operand at a time.
    unsafe { Operand::new(memory.as_mut_ptr().cast(), dtype, layout, access) }
}

#[test]
fn slices_show_the_elements_of_the_view() {
    let mut memory = [1i32, 2, 3, 4, 5, 6];
    let part = dense(&[3, 2]).slice(0, 1..3).unwrap();
    let mut operand = over(&mut memory, DType::I32, part, Access::ReadWrite);
    assert_eq!(operand.slice::<i32>().unwrap(), [3, 4, 5, 6]);
    operand.slice_mut::<i32>().unwrap()[0] = 7;
    assert_eq!(operand.bytes().unwrap()[..4], 7i32.to_ne_bytes());
    assert_eq!(memory, [1, 2, 7, 4, 5, 6]);
}

#[test]
fn another_dtype_is_refused() {
    let mut memory = [0f32; 2];
    let operand = over(&mut memory, DType::F32, dense(&[2]), Access::Read);
    let expected = Error::WrongDType { expected: DType::I32, found: DType::F32 };
    assert_eq!(operand.slice::<i32>(), Err(expected));
    assert!(operand.slice::<bool>().is_err());
}

#[test]
fn a_view_with_gaps_has_no_slice() {
    let mut memory = [0f64; 4];
    let turned = dense(&[2, 2]).permute(&[1, 0]).unwrap();
    let mut operand = over(&mut memory, DType::F64, turned, Access::ReadWrite);
    assert!(matches!(operand.slice::<f64>(), Err(Error::NotContiguous { .. })));
    assert!(matches!(operand.slice_mut::<f64>(), Err(Error::NotContiguous { .. })));
    assert!(matches!(operand.bytes(), Err(Error::NotContiguous { .. })));
}

#[test]
fn an_operand_that_is_only_read_is_not_written() {
    let mut memory = [0u8; 4];
    let mut operand = over(&mut memory, DType::U8, dense(&[4]), Access::Read);
    assert_eq!(operand.slice_mut::<u8>(), Err(Error::NotWritable));
    let mut operand = over(&mut memory, DType::Bool, dense(&[4]), Access::Read);
    assert_eq!(operand.slice_mut::<bool>(), Err(Error::NotWritable));
}

#[test]
fn elements_at_odd_addresses_are_refused() {
    let mut memory = [0u64; 4];
    let base = memory.as_mut_ptr().cast::<u8>().wrapping_add(2);
    // SAFETY: three elements of 8 bytes, starting at byte 2, are within the 32 bytes.
    let operand = unsafe { Operand::new(base, DType::F64, dense(&[3]), Access::Read) };
    assert!(matches!(operand.slice::<f64>(), Err(Error::Misaligned { .. })));
    assert_eq!(operand.bytes().unwrap().len(), 24);
}

#[test]
fn bools_are_checked_to_read_and_mended_to_write() {
    let mut memory = [0u8, 1, 2, 255];
    let mut operand = over(&mut memory, DType::Bool, dense(&[4]), Access::ReadWrite);
    assert_eq!(operand.slice::<u8>().unwrap(), [0, 1, 2, 255]);
    assert_eq!(operand.slice::<bool>(), Err(Error::InvalidBool { index: 2, byte: 2 }));
    assert!(matches!(operand.slice_mut::<u8>(), Err(Error::WrongDType { .. })));
    assert_eq!(operand.slice_mut::<bool>().unwrap(), [false, true, true, true]);
    operand.slice_mut::<bool>().unwrap()[1] = false;
    assert_eq!(operand.slice::<bool>().unwrap(), [false, false, true, true]);
    assert_eq!(memory, [0, 0, 1, 1]);
}

#[test]
fn a_view_without_elements_may_lie_anywhere() {
    let base = std::ptr::without_provenance_mut(1);
    let layout = dense(&[2, 0]);
    // SAFETY: the view has no elements.
    let mut operand = unsafe { Operand::new(base, DType::F64, layout, Access::Write) };
    assert_eq!(operand.slice::<f64>().unwrap(), [0.0; 0]);
    assert!(operand.slice_mut::<f64>().unwrap().is_empty());
    assert!(operand.bytes().unwrap().is_empty());
}

#[test]
fn overlap_goes_by_bytes() {
    let mut memory = [0u32; 8];
    let base = memory.as_mut_ptr().cast::<u8>();
    let part = |dtype: DType, start, end| {
        let layout = dense(&[32 / dtype.size()]).slice(0, start..end).unwrap();
        // SAFETY: the view is within the 32 bytes, and no slices of it are made.
        unsafe { Operand::new(base, dtype, layout, Access::ReadWrite) }
    };
    let (head, tail) = (part(DType::F32, 0, 4), part(DType::F32, 4, 8));
    assert!(!head.overlaps(&tail) && !tail.overlaps(&head));
    assert!(head.overlaps(&part(DType::U8, 15, 16)));
    assert!(!head.overlaps(&part(DType::U8, 16, 17)));
    assert!(!head.overlaps(&part(DType::F32, 2, 2)));
    assert!(head.same_view(&part(DType::I32, 0, 4)));
    assert!(!head.same_view(&part(DType::F32, 0, 3)));
    assert!(!head.same_view(&part(DType::U8, 0, 4)));
}

#[test]
fn a_shared_operand_gives_out_no_slices() {
    let mut memory = [0u8; 4];
    let mut operand = over(&mut memory, DType::U8, dense(&[4]), Access::ReadWrite);
    operand.set_shared();
    assert_eq!(operand.slice::<u8>(), Err(Error::SharedOperand));
    assert_eq!(operand.slice_mut::<u8>(), Err(Error::SharedOperand));
    assert_eq!(operand.bytes(), Err(Error::SharedOperand));
}

#[test]
fn a_place_that_held_three_axes_holds_one() {
    let mut memory = [0f64; 64];
    let base = memory.as_mut_ptr().cast::<u8>();
    let three = Layout::contiguous(Shape::new(&[2, 3, 4]).unwrap()).permute(&[2, 0, 1]).unwrap();
    let one = Layout::contiguous(Shape::new(&[5]).unwrap());
    let mut operand = Operand::blank();
    assert_eq!(operand.slice::<u8>().unwrap(), &[] as &[u8]);
    // SAFETY: the memory is larger than both views and lives until the end of the test.
    unsafe { operand.set(base, DType::F64, &three, Access::ReadWrite) };
    assert_eq!(*operand.layout(), three);
    operand.set_shared();
    // SAFETY: as above.
    unsafe { operand.set(base, DType::F64, &one, Access::ReadWrite) };
    assert_eq!(*operand.layout(), one);
    operand.slice_mut::<f64>().unwrap()[4] = 1.0;
    assert_eq!(operand.slice::<f64>().unwrap(), [0.0, 0.0, 0.0, 0.0, 1.0]);
    // SAFETY: as above; `[2, 3]` are the sizes of a valid shape.
    unsafe { operand.set_contiguous(base, DType::I32, (&[2, 3, 9], 2), Access::Read) };
    // SAFETY: as above.
    let expected = unsafe { Operand::new(base, DType::I32, dense(&[2, 3]), Access::Read) };
    assert_eq!(format!("{operand:?}"), format!("{expected:?}"));
}

/// `is_whole` agrees with the layout, whichever way the view was made.
#[test]
fn a_view_knows_whether_it_has_gaps() {
    let mut memory = [0.0_f64; 30];
    let base = memory.as_mut_ptr().cast::<u8>();
    let whole = dense(&[2, 3, 4]);
    let layouts =
        [whole, whole.permute(&[2, 0, 1]).unwrap(), whole.slice(2, 1..3).unwrap(), dense(&[0, 7]), dense(&[])];
    let mut operand = Operand::blank();
    assert!(operand.is_contiguous());
    for layout in layouts {
        // SAFETY: the memory is larger than each view and lives until the end of the test.
        unsafe { operand.set(base, DType::F64, &layout, Access::ReadWrite) };
        assert_eq!(operand.is_contiguous(), layout.is_contiguous(), "{layout:?}");
    }
    // SAFETY: as above.
    unsafe { operand.set(base, DType::F64, &layouts[1], Access::ReadWrite) };
    // SAFETY: as above; `[5]` are the sizes of a valid shape.
    unsafe { operand.set_contiguous(base, DType::F64, (&[5], 1), Access::ReadWrite) };
    assert!(operand.is_contiguous() && operand.layout().is_contiguous());
    assert_eq!(operand.slice::<f64>().unwrap(), [0.0; 5]);
}

#[test]
fn a_moved_operand_is_the_same_view_of_the_other_storage() {
    let mut memory: [i32; 12] = std::array::from_fn(|index| index as i32);
    let (first, second) = memory.split_at_mut(6);
    let turned = dense(&[2, 3]).permute(&[1, 0]).unwrap();
    for layout in [dense(&[3, 2]).slice(0, 1..3).unwrap(), turned.slice(0, 1..3).unwrap(), dense(&[3, 0])] {
        let made = over(second, DType::I32, layout, Access::ReadWrite);
        let mut moved = over(first, DType::I32, layout, Access::ReadWrite);
        moved.shared = true;
        // SAFETY: the span of each view is within six elements, which nothing else accesses.
        unsafe { moved.move_to(second.as_mut_ptr().cast()) };
        assert_eq!((moved.ptr, &moved.span, moved.contiguous), (made.ptr, &made.span, made.contiguous), "{layout:?}");
        assert!(moved.shared && moved.same_view(&made), "{layout:?}");
    }
}
