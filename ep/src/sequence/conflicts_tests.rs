//! Orders that branches must have, and plans without them.

use super::*;
use crate::call::operand::Access::{self, Read, ReadWrite, Write};
use crate::sequence::step::{SequenceMemory, SequenceOperand, SequenceWork};
use crate::tensor::dtype::DType;
use crate::tensor::layout::Layout;
use crate::tensor::shape::Shape;

/// A use of `count` bytes of a buffer, each `stride` bytes from the one before.
fn bytes(index: usize, (offset, count, stride): (usize, usize, usize), access: Access) -> SequenceOperand {
    let shape = Shape::new(&[count]).expect("a shape");
    let layout = Layout::with_strides(shape, &[stride], 0).expect("a layout");
    SequenceOperand { memory: SequenceMemory::Buffer { index, offset }, dtype: DType::U8, layout, access }
}

fn step(operands: Vec<SequenceOperand>) -> SequenceStep {
    // The work does not matter to the check.
    SequenceStep { work: SequenceWork::Copy, operands }
}

/// A branch of one step for each lane and the branches that it waits for.
fn check(rows: &[(usize, &[usize], SequenceOperand)]) -> Result<(), SequenceError> {
    let branch = |(number, (lane, after, _)): (usize, &(usize, &[usize], SequenceOperand))| SequenceBranch {
        steps: number..number + 1,
        lane: *lane,
        after: after.to_vec(),
    };
    let branches: Vec<SequenceBranch> = rows.iter().enumerate().map(branch).collect();
    let steps: Vec<SequenceStep> = rows.iter().map(|(_, _, operand)| step(vec![operand.clone()])).collect();
    check_ordered(&branches, &steps, 2)
}

fn later_step(result: Result<(), SequenceError>) -> usize {
    match result {
        Err(SequenceError::Branches { step, what }) => {
            assert!(what.contains("neither waits for the other"), "{what}");
            step
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn steps_of_two_lanes_that_use_the_same_bytes_are_ordered_unless_both_read() {
    let all = (0, 8, 1);
    for (first, second) in [(Write, Read), (Read, Write), (Write, Write), (ReadWrite, Read)] {
        let rows = |after: &'static [usize]| [(0, &[][..], bytes(0, all, first)), (1, after, bytes(0, all, second))];
        assert_eq!(later_step(check(&rows(&[]))), 1, "{first:?}, {second:?}");
        assert_eq!(check(&rows(&[0])), Ok(()), "{first:?}, {second:?}");
    }
    assert_eq!(check(&[(0, &[], bytes(0, all, Read)), (1, &[], bytes(0, all, Read))]), Ok(()));
    assert_eq!(check(&[(0, &[], bytes(0, all, Write)), (1, &[], bytes(1, all, Write))]), Ok(()));
    // One lane runs its branches in order.
    assert_eq!(check(&[(1, &[], bytes(0, all, Write)), (1, &[], bytes(0, all, Write))]), Ok(()));
}

#[test]
fn only_bytes_that_both_use_count() {
    let first = bytes(0, (0, 4, 2), Write);
    assert_eq!(check(&[(0, &[], first.clone()), (1, &[], bytes(0, (1, 4, 2), Write))]), Ok(()));
    assert_eq!(later_step(check(&[(0, &[], first.clone()), (1, &[], bytes(0, (6, 2, 1), Read))])), 1);
    assert_eq!(check(&[(0, &[], first), (1, &[], bytes(0, (7, 1, 1), Write))]), Ok(()));
}

/// An order by way of other branches, of other lanes or of the same one, is an order.
#[test]
fn orders_follow_from_each_other() {
    let (all, other) = ((0, 8, 1), bytes(1, (0, 1, 1), Read));
    let by_way = [
        (0, &[][..], bytes(0, all, Write)),
        (1, &[0], other.clone()),
        (1, &[], other.clone()),
        (2, &[2], bytes(0, all, Write)),
    ];
    assert_eq!(check(&by_way), Ok(()));
    let mut without = by_way.clone();
    without[1].1 = &[];
    assert_eq!(later_step(check(&without)), 3);
}

/// Uses that a write replaces are still found, because the write is.
#[test]
fn a_write_in_between_hides_no_conflict() {
    let (left, right, all) = ((0, 4, 1), (4, 4, 1), (0, 8, 1));
    // The second lane reads a half that lane 0 has overwritten since, and waits for the first write alone.
    let rows = [
        (0, &[][..], bytes(0, all, Write)),
        (0, &[], bytes(0, left, Write)),
        (1, &[0], bytes(0, right, Read)),
        (1, &[], bytes(0, left, Read)),
    ];
    assert_eq!(later_step(check(&rows)), 3);
    // The write of the last branch waits for one of two readers.
    let rows = [
        (0, &[][..], bytes(0, all, Write)),
        (1, &[0], bytes(0, all, Read)),
        (2, &[0], bytes(0, all, Read)),
        (0, &[1], bytes(0, all, Write)),
    ];
    assert_eq!(later_step(check(&rows)), 3);
    // A reader of the lane that waits comes behind an earlier reader of the same lane, and not behind that of another one.
    let rows = [
        (1, &[][..], bytes(0, left, Read)),
        (2, &[], bytes(0, all, Read)),
        (1, &[], bytes(0, all, Read)),
        (0, &[2], bytes(0, left, Write)),
    ];
    assert_eq!(later_step(check(&rows)), 3);
}
