//! Tests of staging.

use streamvm_ep::Site;
use streamvm_stream::WaitKind;

use super::*;
use crate::place::Place;
use crate::plan::planned_list::PlanOptions;
use crate::plan::planner::plan;

/// The staged form of the list `text`, and the original line of each of its lines.
fn staged(text: &str) -> (String, Vec<usize>) {
    staged_in(STAGING_PIECE, text)
}

/// As above, with pieces of so many bytes.
fn staged_in(piece: usize, text: &str) -> (String, Vec<usize>) {
    let mut list = InstructionList::parse(text.trim_start()).expect("a list");
    assert!(list.copies_by_devices());
    let staged = list.staged(&Capabilities::standard(), piece).expect("a copy that is staged");
    assert!(list.is_empty(), "all was moved");
    (staged.list.to_string(), staged.lines)
}

fn unstaged(text: &str) {
    let mut list = InstructionList::parse(text.trim_start()).expect("a list");
    assert!(list.copies_by_devices());
    let before = list.to_string();
    assert!(list.staged(&Capabilities::standard(), STAGING_PIECE).is_none());
    assert_eq!(list.to_string(), before);
}

#[test]
fn copies_from_and_to_the_host_go_by_way_of_pinned_memory() {
    let (text, lines) = staged(
        "
t0 = tensor host f32[2,3]
%0 copy h2d@cuda:0:1 host:t0 -> t1 f32[2,3]
%1 call compute@cuda:0:1 relu t1 -> t2 f32[2,3]
%2 copy d2h@cuda:0:1 t2 -> host:t3 f32[2,3]
",
    );
    snapbox::assert_data_eq!(
        &text,
        snapbox::str![[r#"
t0 = tensor host f32[2,3]
t1 = tensor cuda:0 upload f32[2,3]
%0 copy     h2d@cpu:0:1           host:t0 -> cuda:0:t1                      f32[2,3]
%1 copy     h2d@cuda:0:1          upload:t1 -> t2                           f32[2,3]
%2 call     compute@cuda:0:1      relu t2 -> t3                             f32[2,3]
%3 copy     d2h@cuda:0:1          t3 -> pinned:t4                           f32[2,3]
%4 copy     d2h@cpu:0:1           cuda:0:t4 -> host:t5                      f32[2,3]

"#]]
    );
    assert_eq!(lines, [0, 0, 1, 2, 2]);
    InstructionList::parse(&text).expect("a staged list parses");
}

#[test]
fn memory_of_a_cpu_device_is_staged_by_that_device_and_pinned_memory_is_not() {
    let (text, _) = staged(
        "
t0 = tensor cpu:1 f32[2]
%0 copy h2d@cuda:0:0 cpu:1:t0 -> t1 f32[2]
",
    );
    assert!(text.contains("h2d@cpu:1:0"), "{text}");
    unstaged(
        "
t0 = tensor cuda:0 pinned f32[2]
%0 copy h2d@cuda:0:0 pinned:t0 -> t1 f32[2]
%1 copy h2d@cuda:1:0 cuda:0:t1 -> t2 f32[2]
",
    );
}

#[test]
fn a_wait_for_a_line_waits_for_the_last_of_what_the_line_became() {
    let (text, _) = staged(
        "
t0 = tensor host f32[2]
%0 copy h2d@cuda:0:0 host:t0 -> t1 f32[2]
%1 wait compute@cuda:0:0 h2d@cuda:0:0 by %0
",
    );
    assert!(text.contains("wait     compute@cuda:0:0      h2d@cuda:0:0 by %1"), "{text}");
    let (text, _) = staged(
        "
t0 = tensor cuda:0 f32[2]
%0 copy d2h@cuda:0:0 t0 -> host:t1 f32[2]
%1 wait compute@cuda:0:0 d2h@cuda:0:0 by %0
",
    );
    assert!(text.contains("wait     compute@cuda:0:0      d2h@cpu:0:0 by %1"), "{text}");
}

#[test]
fn a_large_copy_goes_in_pieces_through_two_blocks() {
    let text = "
t0 = tensor host f32[5,2]
%0 copy h2d@cuda:0:0 host:t0 -> t1 f32[5,2]
%1 wait compute@cuda:0:0 h2d@cuda:0:0 by %0
";
    // Pieces of two, two and one row; the last uses a part of its block.
    let (pieces, lines) = staged_in(20, text);
    snapbox::assert_data_eq!(
        &pieces,
        snapbox::str![[r#"
t0 = tensor host f32[5,2]
t1 = view t0 f32[2,2] strides 2,1 offset 0
t2 = tensor cuda:0 upload f32[2,2]
%0 copy     h2d@cpu:0:0           host:t1 -> cuda:0:t2                      f32[2,2]
t3 = tensor cuda:0 f32[5,2]
t4 = view t3 f32[2,2] strides 2,1 offset 0
%1 copy     h2d@cuda:0:0          upload:t2 -> t4                           f32[2,2]
t5 = view t0 f32[2,2] strides 2,1 offset 4
t6 = tensor cuda:0 upload f32[2,2]
%2 copy     h2d@cpu:0:0           host:t5 -> cuda:0:t6                      f32[2,2]
t7 = view t3 f32[2,2] strides 2,1 offset 4
%3 copy     h2d@cuda:0:0          upload:t6 -> t7                           f32[2,2]
t8 = view t0 f32[1,2] strides 2,1 offset 8
t9 = view t2 f32[1,2] strides 2,1 offset 0
%4 copy     h2d@cpu:0:0           host:t8 -> cuda:0:t9                      f32[1,2]
t10 = view t3 f32[1,2] strides 2,1 offset 8
%5 copy     h2d@cuda:0:0          upload:t9 -> t10                          f32[1,2]
%6 touch    h2d@cuda:0:0          update t3
%7 wait     compute@cuda:0:0      h2d@cuda:0:0 by %6

"#]]
    );
    assert_eq!(lines, [0, 0, 0, 0, 0, 0, 0, 1]);
    let list = InstructionList::parse(&pieces).expect("a staged list parses");
    // The two halves of a piece wait for each other, the third piece waits for its block, and there are no other waits.
    let planned = plan(list, &PlanOptions::default()).expect("a plan");
    let waits = planned.counts.iter().map(|on| (on.stream.to_string(), on.device_waits, on.host_waits));
    let expected = [("h2d@cpu:0:0", 0, 1), ("h2d@cuda:0:0", 0, 3), ("compute@cuda:0:0", 1, 0)];
    assert_eq!(
        waits.collect::<Vec<_>>(),
        expected.map(|(stream, by_device, by_host)| (stream.to_owned(), by_device, by_host))
    );
    let (whole, _) = staged_in(40, text);
    assert_eq!(whole, staged(text).0, "a copy that fits is one piece");
}

#[test]
fn a_cut_takes_every_element_once() {
    use streamvm_ep::{DType, Shape};
    let shapes: [&[usize]; 7] = [&[], &[0, 9], &[7], &[1, 5, 1], &[3, 4, 5], &[2, 1, 6], &[9, 2]];
    for (dims, bytes) in shapes.into_iter().flat_map(|dims| (1..80).map(move |bytes| (dims, bytes))) {
        let shape = Shape::new(dims).expect("a small shape");
        let tensor = Tensor::unbound(Place::Host, MemoryKind::Pageable, DType::F32, shape);
        let Some(cut) = Cut::of(&tensor, bytes) else {
            assert!(shape.elements() * 4 <= bytes.max(4), "{dims:?} in {bytes}");
            continue;
        };
        assert!(shape.elements() * 4 > bytes);
        let mut found = Vec::new();
        let first = cut.piece(&tensor, 0);
        for number in 0..cut.pieces(&tensor) {
            let piece = cut.piece(&tensor, number);
            let elements = piece.shape().elements();
            assert!((1..=first.shape().elements()).contains(&elements), "{dims:?} in {bytes}: {number}");
            assert!(elements == 1 || elements * 4 <= bytes, "{dims:?} in {bytes}: {number}");
            assert!(piece.layout().is_contiguous(), "{dims:?} in {bytes}: {number}");
            assert_eq!(cut.part(&first, &piece).shape(), piece.shape());
            found.extend(piece.layout().span_elements());
        }
        assert_eq!(found, (0..shape.elements()).collect::<Vec<_>>(), "{dims:?} in {bytes}");
    }
}

#[test]
fn the_first_piece_begins_what_is_covered_as_a_whole() {
    let capabilities = Capabilities::standard();
    for (target, first) in [("t1", streamvm_ep::Access::Write), ("t2", streamvm_ep::Access::ReadWrite)] {
        let text = format!(
            "t0 = tensor host f32[4]\nt1 = tensor cuda:0 f32[4]\nt3 = tensor cuda:0 f32[8]\n\
             t2 = view t3 f32[4] strides 1 offset 0\n%0 copy h2d@cuda:0:0 host:t0 -> {target} f32[4]\n"
        );
        let mut list = InstructionList::parse(&text).expect("a list");
        let staged = list.staged(&capabilities, 8).expect("a copy that is staged").list;
        let last = |line: &Instruction| staged.uses(line).last().expect("an operand").ordering_access();
        let written: Vec<_> = staged.instructions().iter().skip(1).step_by(2).map(last).collect();
        assert_eq!(written, [first, streamvm_ep::Access::ReadWrite], "{target}");
        let touched = staged.instructions().last().expect("a line");
        assert_eq!((touched.kind.name(), last(touched)), ("touch", streamvm_ep::Access::ReadWrite), "{target}");
    }
}

#[test]
fn how_functions_are_run_is_kept() {
    let text = "t0 = tensor host f32[4]\nv0 = var\n%0 copy h2d@cuda:0:0 host:t0 -> t1 f32[4]\n\
                %1 push workers@cpu:0:0 \"tidy\" high cleanup direct write v0\n";
    let mut list = InstructionList::parse(text).expect("a list");
    let staged = list.staged(&Capabilities::standard(), STAGING_PIECE).expect("a copy that is staged").list;
    assert!(staged.to_string().contains("\"tidy\" high cleanup direct write v0"), "{staged}");
}

#[test]
fn a_list_that_waits_for_a_later_line_stays_as_it_is() {
    let text = "t0 = tensor host f32[2]\n%0 copy h2d@cuda:0:0 host:t0 -> t1 f32[2]\n";
    let mut list = InstructionList::parse(text).expect("a list");
    let stream = StreamKey::new(streamvm_ep::DeviceId::cuda(0), StreamType::Compute, 0);
    let kind = Kind::Wait { source: stream, target: WaitFor::Line(1), kind: WaitKind::Device };
    list.push(stream, kind, [], Site::caller()).expect("a wait");
    assert!(list.staged(&Capabilities::standard(), STAGING_PIECE).is_none());
    assert_eq!(list.len(), 2);
}

#[test]
fn a_device_that_reaches_pageable_memory_copies_by_itself() {
    unstaged("t0 = tensor host f32[2]\n%0 copy h2d@sim:0:0 host:t0 -> t1 f32[2]\n");
    let text = "t0 = tensor host f32[2]\n%0 copy h2d@cpu:0:0 host:t0 -> t1 f32[2]\n";
    assert!(!InstructionList::parse(text).expect("a list").copies_by_devices());
}
