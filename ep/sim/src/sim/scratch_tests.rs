use streamvm_ep::{Access, DType, Layout, Shape};

use super::*;

const POISON: u8 = 0xA5;

/// Takes a raw pointer, so that several operands over one memory can exist at the same time.
fn over(memory: *mut [u8], layout: Layout, access: Access) -> Operand<'static> {
    assert!(layout.span_elements().end <= memory.len());
    // SAFETY: the span is within the memory, which the test keeps alive and accesses only between commands.
    unsafe { Operand::new(memory.cast(), DType::U8, layout, access) }
}

fn vector(elements: usize) -> Layout {
    Layout::contiguous(Shape::new(&[elements]).unwrap())
}

fn part(of: usize, range: std::ops::Range<usize>) -> Layout {
    vector(of).slice(0, range).unwrap()
}

/// Every second of `of` elements.
fn even(of: usize) -> Layout {
    Layout::with_strides(Shape::new(&[of / 2]).unwrap(), &[2], 0).unwrap()
}

fn load<'a>(operands: &'a [Operand<'a>]) -> Scratch<'a> {
    // SAFETY: the operands came from `over`, whose memory is alive.
    unsafe { Scratch::load(operands, POISON) }
}

fn byte(operand: &Operand, offset: isize) -> *mut u8 {
    operand.ptr().wrapping_offset(offset)
}

fn read(operand: &Operand, offset: isize) -> u8 {
    // SAFETY: the tests read only within the piece and its bands.
    unsafe { byte(operand, offset).read() }
}

fn write(operand: &Operand, offset: isize, value: u8) {
    // SAFETY: the tests write only within the piece and its bands.
    unsafe { byte(operand, offset).write(value) }
}

#[test]
fn scratch_holds_what_is_declared_to_be_read_and_poison_for_the_rest() {
    let mut memory = [1, 2, 3, 4, 5, 6, 7, 8];
    let mut out = [9; 4];
    let operands = [over(&raw mut memory, even(8), Access::Read), over(&raw mut out, vector(4), Access::Write)];
    let mut scratch = load(&operands);
    let copies = scratch.operands();
    let seen: Vec<u8> = (-2..8).map(|at| read(&copies[0], at)).collect();
    assert_eq!(seen, [POISON, POISON, 1, POISON, 3, POISON, 5, POISON, 7, POISON]);
    assert_eq!((0..4).map(|at| read(&copies[1], at)).collect::<Vec<_>>(), [POISON; 4]);
    assert!(copies.iter().zip(&operands).all(|(copy, operand)| copy.ptr() != operand.ptr()));
    assert!(copies.iter().zip(&operands).all(|(a, b)| a.ptr().addr() % ALIGNMENT == b.ptr().addr() % ALIGNMENT));
    assert!(copies.iter().zip(&operands).all(|(a, b)| a.layout() == b.layout() && a.access() == b.access()));
    drop(copies);
    assert_eq!(scratch.violations(), []);
}

#[test]
fn only_what_is_declared_to_be_written_is_stored() {
    let mut out = [9; 8];
    let operands = [over(&raw mut out, even(8), Access::Write)];
    let mut scratch = load(&operands);
    let copies = scratch.operands();
    (0..7).for_each(|at| write(&copies[0], at, at as u8));
    drop(copies);
    // SAFETY: the operands came from `over`, whose memory is alive.
    unsafe { scratch.store() };
    assert_eq!(scratch.violations().len(), 1);
    drop(scratch);
    assert_eq!(out, [0, 9, 2, 9, 4, 9, 6, 9]);
}

#[test]
fn a_write_of_what_is_only_read_and_one_beside_an_operand_are_told_with_their_addresses() {
    let mut memory = [1, 2, 3, 4, 5, 6];
    let operands = [over(&raw mut memory, part(6, 1..4), Access::Read)];
    let start = operands[0].ptr().addr();
    for (offset, kind) in [
        (0, FindingKind::UndeclaredWrite),
        (2, FindingKind::UndeclaredWrite),
        (3, FindingKind::OutOfBounds),
        (-1, FindingKind::OutOfBounds),
        (-(BAND as isize), FindingKind::OutOfBounds),
        (2 + BAND as isize, FindingKind::OutOfBounds),
    ] {
        let mut scratch = load(&operands);
        let copies = scratch.operands();
        write(&copies[0], offset, 77);
        drop(copies);
        assert_eq!(scratch.violations(), [Violation { kind, address: start.wrapping_add_signed(offset) }]);
    }
}

#[test]
fn operands_that_overlap_share_their_scratch() {
    let mut memory = [1, 2, 3, 4, 5, 6, 7, 8];
    let operands = [
        over(&raw mut memory, part(8, 0..4), Access::Read),
        over(&raw mut memory, part(8, 2..6), Access::Read),
        over(&raw mut memory, part(8, 6..8), Access::ReadWrite),
    ];
    let mut scratch = load(&operands);
    let copies = scratch.operands();
    assert_eq!(copies[1].ptr().addr() - copies[0].ptr().addr(), 2);
    // Adjacent operands do not share a piece: each is followed by its own band.
    assert_eq!((read(&copies[0], 5), read(&copies[0], 6)), (6, POISON));
    write(&copies[2], 0, 70);
    drop(copies);
    assert_eq!(scratch.violations(), []);
    // SAFETY: the operands came from `over`, whose memory is alive.
    unsafe { scratch.store() };
    drop(scratch);
    assert_eq!(memory, [1, 2, 3, 4, 5, 6, 70, 8]);
}

#[test]
fn parts_that_are_written_may_come_in_any_order() {
    let mut memory = [1, 2, 3, 4, 5, 6];
    let operands = [
        over(&raw mut memory, vector(6), Access::Read),
        over(&raw mut memory, part(6, 4..6), Access::Write),
        over(&raw mut memory, part(6, 0..2), Access::Write),
    ];
    let mut scratch = load(&operands);
    let copies = scratch.operands();
    [0, 1, 4, 5].into_iter().for_each(|at| write(&copies[0], at, 9));
    drop(copies);
    assert_eq!(scratch.violations(), []);
    let copies = scratch.operands();
    write(&copies[0], 3, 9);
    drop(copies);
    let address = operands[0].ptr().addr() + 3;
    assert_eq!(scratch.violations(), [Violation { kind: FindingKind::UndeclaredWrite, address }]);
}

#[test]
fn a_second_run_starts_from_the_same_content_and_another_poison() {
    let mut memory = [1, 2];
    let mut out = [0; 2];
    let operands = [over(&raw mut memory, vector(2), Access::ReadWrite), over(&raw mut out, vector(2), Access::Write)];
    let run = |scratch: &mut Scratch<'_>, whole: bool| {
        let copies = scratch.operands();
        write(&copies[0], 0, read(&copies[0], 0) + 1);
        write(&copies[1], 0, 5);
        if whole {
            write(&copies[1], 1, 5);
        }
    };
    for whole in [true, false] {
        let mut first = load(&operands);
        run(&mut first, whole);
        let mut second = first.again(!POISON);
        run(&mut second, whole);
        let left_out = Violation { kind: FindingKind::UndeclaredRead, address: operands[1].ptr().addr() + 1 };
        assert_eq!(first.difference(&second), (!whole).then_some(left_out));
    }
}

#[test]
fn operands_without_elements_have_no_scratch() {
    let mut nothing = [];
    let operands = [over(&raw mut nothing, vector(0), Access::Write)];
    let mut scratch = load(&operands);
    assert_eq!(scratch.operands().len(), 1);
    assert!(scratch.pieces.is_empty() && scratch.violations().is_empty());
}
