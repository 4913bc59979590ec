//! Orders that branches must have, and plans without them.

use std::time::{Duration, Instant};

use proptest::prelude::*;

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
    // A reader of the lane that waits runs after an earlier reader of the same lane, and not after that of another one.
    let rows = [
        (1, &[][..], bytes(0, left, Read)),
        (2, &[], bytes(0, all, Read)),
        (1, &[], bytes(0, all, Read)),
        (0, &[2], bytes(0, left, Write)),
    ];
    assert_eq!(later_step(check(&rows)), 3);
}

/// A branch of several steps, of which a later one reads and writes the bytes, and an earlier one other bytes.
#[test]
fn each_step_and_each_operand_of_a_branch_counts() {
    let branches = [
        SequenceBranch { steps: 0..1, lane: 0, after: vec![] },
        SequenceBranch { steps: 1..3, lane: 1, after: vec![] },
    ];
    let first = step(vec![bytes(0, (0, 8, 1), Read)]);
    let free = step(vec![bytes(1, (0, 8, 1), Write)]);
    let conflicting = step(vec![bytes(1, (0, 8, 1), Read), bytes(0, (7, 1, 1), ReadWrite)]);
    let check = |steps: [&SequenceStep; 3]| check_ordered(&branches, &steps.map(Clone::clone), 2);
    assert_eq!(later_step(check([&first, &free, &conflicting])), 2);
    assert_eq!(later_step(check([&first, &conflicting, &free])), 1);
    assert_eq!(check([&first, &free, &free]), Ok(()));
}

/// A write of every second byte replaces what used exactly these, and not what used the bytes between them.
#[test]
fn a_write_with_gaps_replaces_only_what_it_covers() {
    let (even, all) = ((0, 4, 2), (0, 8, 1));
    let rows =
        |last: SequenceOperand| [(1, &[][..], bytes(0, all, Read)), (0, &[0], bytes(0, even, Write)), (2, &[1], last)];
    assert_eq!(check(&rows(bytes(0, (1, 4, 2), Write))), Ok(()), "it runs after the read by way of the write");
    let mut without = rows(bytes(0, (1, 4, 2), Write));
    without[2].1 = &[];
    assert_eq!(later_step(check(&without)), 2, "the read of all is still known");
}

/// Many uses, of which all lanes run after the first ones: those are dropped, and a conflict with a later one is found.
#[test]
fn of_many_uses_those_that_could_conflict_are_kept() {
    let parts = if cfg!(miri) { 70 } else { 500 };
    let part = |place: usize, access| bytes(0, (place % parts, 1, 1), access);
    let mut rows: Vec<(usize, Vec<usize>, SequenceOperand)> = Vec::new();
    for round in 0..3 {
        for place in 0..parts {
            // Both lanes wait for each other at the begin of a round.
            let last = rows.len().checked_sub(1).filter(|_| place == 0);
            rows.push((round % 2, last.into_iter().collect(), part(place, Write)));
        }
    }
    let check = |rows: &[(usize, Vec<usize>, SequenceOperand)]| {
        let rows: Vec<(usize, &[usize], SequenceOperand)> =
            rows.iter().map(|(lane, after, operand)| (*lane, &after[..], operand.clone())).collect();
        check(&rows)
    };
    assert_eq!(check(&rows), Ok(()));
    let count = rows.len();
    rows.push((1, vec![], part(parts - 1, Read)));
    assert_eq!(later_step(check(&rows)), count, "the last write of lane 0 is not waited for");
}

/// The verdict by the definition: each step is compared with all earlier ones. Returns the first step without an order.
fn compare_all(rows: &[Row]) -> Option<usize> {
    // For each branch whether it runs after each earlier one.
    let mut ordered: Vec<Vec<bool>> = Vec::new();
    for (number, (lane, after, _)) in rows.iter().enumerate() {
        let mut of_branch = vec![false; number];
        let before_on_lane = rows[..number].iter().rposition(|(other, ..)| other == lane);
        for other in after.iter().copied().chain(before_on_lane) {
            of_branch[other] = true;
            (0..other).for_each(|earlier| of_branch[earlier] |= ordered[other][earlier]);
        }
        ordered.push(of_branch);
    }
    let conflicts = |later: usize, earlier: usize| {
        let ((_, _, it), (_, _, other)) = (&rows[later], &rows[earlier]);
        !ordered[later][earlier] && (it.access.writes() || other.access.writes()) && it.overlaps(other)
    };
    (0..rows.len()).find(|&later| (0..later).any(|earlier| conflicts(later, earlier)))
}

/// The lane of a branch, the branches that it waits for, and what its step uses.
type Row = (usize, Vec<usize>, SequenceOperand);

fn check_rows(rows: &[Row]) -> Result<(), SequenceError> {
    let rows: Vec<(usize, &[usize], SequenceOperand)> =
        rows.iter().map(|(lane, after, operand)| (*lane, &after[..], operand.clone())).collect();
    check(&rows)
}

/// A part of one of two buffers of 64 bytes: dense, evenly spaced runs, a block of a matrix with rows of 8 bytes, or without an even stride.
fn part() -> impl Strategy<Value = SequenceOperand> {
    let axes = prop_oneof![
        (1..12usize).prop_map(|count| vec![(count, 1)]),
        (1..5usize, 2..9usize).prop_map(|(count, stride)| vec![(count, stride)]),
        (1..5usize, 1..9usize).prop_map(|(rows, columns)| vec![(rows, 8), (columns, 1)]),
        (1..4usize, 2..14usize, 1..4usize, 1..4usize).prop_map(|(n, outer, m, inner)| vec![(n, outer), (m, inner)]),
        Just(vec![(0, 1)]),
    ];
    let access = prop_oneof![Just(Read), Just(Read), Just(Write), Just(ReadWrite)];
    (0..2usize, 0..64usize, axes, access).prop_map(|(index, offset, axes, access)| {
        let (dims, strides): (Vec<usize>, Vec<usize>) = axes.into_iter().unzip();
        let layout = Layout::with_strides(Shape::new(&dims).expect("a shape"), &strides, 0).expect("a layout");
        let end = layout.span_elements().end;
        let memory = SequenceMemory::Buffer { index, offset: offset.min(64_usize.saturating_sub(end)) };
        SequenceOperand { memory, dtype: DType::U8, layout, access }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[cfg_attr(miri, ignore = "minutes, and no unsafe code")]
    fn the_verdict_is_that_of_comparing_all_pairs(
        drawn in prop::collection::vec((0..4usize, prop::collection::vec(any::<prop::sample::Index>(), 0..3), part()), 1..24),
    ) {
        let row = |(number, (lane, after, operand)): (usize, (usize, Vec<prop::sample::Index>, SequenceOperand))| -> Row {
            // The first branch waits for none.
            let after = after.iter().filter(|_| number > 0).map(|other| other.index(number.max(1))).collect();
            (lane.min(number), after, operand)
        };
        let mut rows: Vec<Row> = drawn.into_iter().enumerate().map(row).collect();
        // The longest ordered program of them: a step that has no order waits for all before it.
        loop {
            let expected = compare_all(&rows);
            match check_rows(&rows) {
                Ok(()) => prop_assert_eq!(None, expected, "{:?}", rows),
                refused => prop_assert_eq!(Some(later_step(refused)), expected, "{:?}", rows),
            }
            let Some(unordered) = expected else { break };
            rows[unordered].1 = (0..unordered).collect();
        }
    }
}

/// Programs of so many steps on four lanes, ordered where they must be.
fn large_programs(steps: usize) -> [(&'static str, Vec<Row>); 5] {
    let whole = |access| bytes(0, (0, 4 * steps, 1), access);
    // Each lane writes parts of its own, then all read everything, and one waits for all and writes it.
    let side_by_side = |part: &dyn Fn(usize) -> SequenceOperand| -> Vec<Row> {
        let writes = steps / 2;
        let mut rows: Vec<Row> = (0..writes).map(|it| (it % 4, vec![], part(it))).collect();
        rows.extend((writes..writes + 4).map(|it| (it % 4, (writes - 4..writes).collect(), whole(Read))));
        rows.extend((writes + 4..steps - 1).map(|it| (it % 4, vec![], whole(Read))));
        rows.push((0, (steps - 5..steps - 1).collect(), whole(Write)));
        rows
    };
    // A row is as long as there are writes, so each step has a column, or a block of some.
    let stride = 2 * steps;
    [
        ("ranges", side_by_side(&|it| bytes(0, (4 * it, 4, 1), Write))),
        ("columns", side_by_side(&|it| bytes(0, (it, 2, stride), Write))),
        ("overlapping reads", side_by_side(&|it| bytes(0, (it, steps, 1), Read))),
        ("a chain", (0..steps).map(|it| (it % 4, it.checked_sub(1).into_iter().collect(), whole(Write))).collect()),
        (
            "columns and ranges between",
            side_by_side(&|it| match it % 2 {
                0 => bytes(0, (it / 2, 2, stride), Write),
                _ => bytes(0, (steps / 2 + it, 1, 1), Write),
            }),
        ),
    ]
}

/// The time of the check is about in proportion to the steps: about 0.1 s here, and seconds where each use is compared with all before it.
#[test]
#[cfg_attr(miri, ignore = "minutes, and no unsafe code")]
fn large_programs_are_checked_in_time() {
    let programs = large_programs(16_000);
    let start = Instant::now();
    for (name, rows) in programs {
        assert_eq!(check_rows(&rows), Ok(()), "{name}");
    }
    let time = start.elapsed();
    assert!(time < Duration::from_secs(4), "{time:?}");
}
