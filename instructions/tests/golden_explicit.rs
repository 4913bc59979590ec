//! Golden lists with what a program asks for by itself: barriers, global syncs, records and waits.

use crate::common::{both, options, planned, read, refused, same};
use snapbox::str;
use streamvm_instructions::{Error, Event, InstructionList, InstructionsBuilder, SoftSyncMode, SyncCounts, plan};
use streamvm_stream::StreamKey;

/// Each stream waits for it once.
#[test]
fn a_barrier_comes_after_all_and_before_all() {
    both(
        r#"
%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]
%1 fill compute@cpu:0:1 2.0 -> t1 f32[2]
%2 barrier barrier@cpu:0:0
%3 call compute@cpu:0:0 relu t1 -> t2 f32[2]
%4 call compute@cpu:0:0 neg t2 -> t3 f32[2]
%5 call compute@cpu:0:1 relu t0 -> t4 f32[2]
%6 fill compute@cpu:0:2 3.0 -> t5 f32[2]
%7 fill compute@cpu:0:2 4.0 -> t6 f32[2]
"#,
        str![[r#"
%0  fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1  fill     compute@cpu:0:1       2.0 -> t1                                 f32[2]
%2  hostwait barrier@cpu:0:0       compute@cpu:0:0 by %0
%3  hostwait barrier@cpu:0:0       compute@cpu:0:1 by %1
%4  barrier  barrier@cpu:0:0
%5  hostwait compute@cpu:0:0       barrier@cpu:0:0 by %4
%6  call     compute@cpu:0:0       relu t1 -> t2                             f32[2]
%7  call     compute@cpu:0:0       neg t2 -> t3                              f32[2]
%8  hostwait compute@cpu:0:1       barrier@cpu:0:0 by %4
%9  call     compute@cpu:0:1       relu t0 -> t4                             f32[2]
%10 hostwait compute@cpu:0:2       barrier@cpu:0:0 by %4
%11 fill     compute@cpu:0:2       3.0 -> t5                                 f32[2]
%12 fill     compute@cpu:0:2       4.0 -> t6                                 f32[2]

"#]],
        str![[r#"
%0  fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1  fill     compute@cpu:0:1       2.0 -> t1                                 f32[2]
%2  hostwait barrier@cpu:0:0       compute@cpu:0:0 by %0
%3  hostwait barrier@cpu:0:0       compute@cpu:0:1 by %1
%4  barrier  barrier@cpu:0:0
%5  hostwait compute@cpu:0:0       barrier@cpu:0:0 by %4
%6  wait     compute@cpu:0:0       compute@cpu:0:1 by %1
%7  call     compute@cpu:0:0       relu t1 -> t2                             f32[2]
%8  call     compute@cpu:0:0       neg t2 -> t3                              f32[2]
%9  hostwait compute@cpu:0:1       barrier@cpu:0:0 by %4
%10 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%11 call     compute@cpu:0:1       relu t0 -> t4                             f32[2]
%12 hostwait compute@cpu:0:2       barrier@cpu:0:0 by %4
%13 fill     compute@cpu:0:2       3.0 -> t5                                 f32[2]
%14 fill     compute@cpu:0:2       4.0 -> t6                                 f32[2]

"#]],
    );
}

/// Stream 0 is after stream 1 already.
#[test]
fn a_barrier_waits_for_the_end_of_what_orders_the_rest() {
    both(
        r#"
%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]
%1 call compute@cpu:0:1 relu t0 -> t1 f32[2]
%2 barrier barrier@cpu:0:0 "report"
"#,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%2 call     compute@cpu:0:1       relu t0 -> t1                             f32[2]
%3 hostwait barrier@cpu:0:0       compute@cpu:0:1 by %2
%4 barrier  barrier@cpu:0:0       "report"

"#]],
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%2 call     compute@cpu:0:1       relu t0 -> t1                             f32[2]
%3 hostwait barrier@cpu:0:0       compute@cpu:0:0 by %0
%4 hostwait barrier@cpu:0:0       compute@cpu:0:1 by %2
%5 barrier  barrier@cpu:0:0       "report"

"#]],
    );
}

#[test]
fn a_barrier_over_cuda_places_records() {
    both(
        r#"
%0 fill compute@cuda:0:0 1.0 -> t0 f32[2]
%1 fill compute@cuda:0:1 1.0 -> t1 f32[2]
%2 barrier barrier@cpu:0:0
%3 call compute@cuda:0:0 add t0 t1 -> t2 f32[2]
%4 call compute@cuda:0:0 neg t2 -> t3 f32[2]
"#,
        str![[r#"
%0 fill     compute@cuda:0:0      1.0 -> t0                                 f32[2]
%1 record   compute@cuda:0:0      e0
%2 fill     compute@cuda:0:1      1.0 -> t1                                 f32[2]
%3 record   compute@cuda:0:1      e1
%4 hostwait barrier@cpu:0:0       compute@cuda:0:0 by e0
%5 hostwait barrier@cpu:0:0       compute@cuda:0:1 by e1
%6 barrier  barrier@cpu:0:0
%7 hostwait compute@cuda:0:0      barrier@cpu:0:0 by %6
%8 call     compute@cuda:0:0      add t0 t1 -> t2                           f32[2]
%9 call     compute@cuda:0:0      neg t2 -> t3                              f32[2]

"#]],
        str![[r#"
%0  fill     compute@cuda:0:0      1.0 -> t0                                 f32[2]
%1  record   compute@cuda:0:0      e0
%2  fill     compute@cuda:0:1      1.0 -> t1                                 f32[2]
%3  record   compute@cuda:0:1      e1
%4  hostwait barrier@cpu:0:0       compute@cuda:0:0 by e0
%5  hostwait barrier@cpu:0:0       compute@cuda:0:1 by e1
%6  barrier  barrier@cpu:0:0
%7  hostwait compute@cuda:0:0      barrier@cpu:0:0 by %6
%8  wait     compute@cuda:0:0      compute@cuda:0:1 by e1
%9  call     compute@cuda:0:0      add t0 t1 -> t2                           f32[2]
%10 call     compute@cuda:0:0      neg t2 -> t3                              f32[2]

"#]],
    );
}

#[test]
fn two_barriers_follow_each_other() {
    same(
        r#"
%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]
%1 barrier barrier@cpu:0:0
%2 barrier barrier@cpu:0:0
%3 call compute@cpu:0:0 relu t0 -> t1 f32[2]
"#,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 hostwait barrier@cpu:0:0       compute@cpu:0:0 by %0
%2 barrier  barrier@cpu:0:0
%3 barrier  barrier@cpu:0:0
%4 hostwait compute@cpu:0:0       barrier@cpu:0:0 by %3
%5 call     compute@cpu:0:0       relu t0 -> t1                             f32[2]

"#]],
    );
}

#[test]
fn nothing_waits_for_a_global_sync() {
    same(
        r#"
%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]
%1 fill compute@cpu:0:1 1.0 -> t1 f32[2]
%2 sync barrier@cpu:0:0
%3 call compute@cpu:0:0 relu t0 -> t2 f32[2]
"#,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 fill     compute@cpu:0:1       1.0 -> t1                                 f32[2]
%2 hostwait barrier@cpu:0:0       compute@cpu:0:0 by %0
%3 hostwait barrier@cpu:0:0       compute@cpu:0:1 by %1
%4 sync     barrier@cpu:0:0
%5 call     compute@cpu:0:0       relu t0 -> t2                             f32[2]

"#]],
    );
}

#[test]
fn an_explicit_wait_orders_what_follows() {
    both(
        r#"
%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]
%1 record compute@cpu:0:0 e0
%2 wait compute@cpu:0:1 compute@cpu:0:0 by e0
%3 call compute@cpu:0:1 relu t0 -> t1 f32[2]
"#,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 record   compute@cpu:0:0       e0
%2 wait     compute@cpu:0:1       compute@cpu:0:0 by e0
%3 call     compute@cpu:0:1       relu t0 -> t1                             f32[2]

"#]],
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 record   compute@cpu:0:0       e0
%2 wait     compute@cpu:0:1       compute@cpu:0:0 by e0
%3 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%4 call     compute@cpu:0:1       relu t0 -> t1                             f32[2]

"#]],
    );
}

#[test]
fn an_explicit_record_serves_needs_before_it() {
    same(
        r#"
%0 fill compute@cuda:0:0 1.0 -> t0 f32[2]
%1 record compute@cuda:0:0 e0
%2 fill compute@cuda:0:0 2.0 -> t1 f32[2]
%3 copy d2h@cuda:0:0 t0 -> host:t2 f32[2]
"#,
        str![[r#"
%0 fill     compute@cuda:0:0      1.0 -> t0                                 f32[2]
%1 record   compute@cuda:0:0      e0
%2 fill     compute@cuda:0:0      2.0 -> t1                                 f32[2]
%3 wait     d2h@cuda:0:0          compute@cuda:0:0 by e0
%4 copy     d2h@cuda:0:0          t0 -> host:t2                             f32[2]
%5 record   d2h@cuda:0:0          e1

"#]],
    );
}

/// A CPU stream cannot wait for an event by itself.
#[test]
fn an_explicit_wait_says_how_it_waits() {
    same(
        r#"
%0 fill compute@cuda:0:0 1.0 -> t0 f32[2]
%1 record compute@cuda:0:0 e0
%2 wait compute@cpu:0:0 compute@cuda:0:0 by e0
%3 host compute@cpu:0:0 "after"
"#,
        str![[r#"
%0 fill     compute@cuda:0:0      1.0 -> t0                                 f32[2]
%1 record   compute@cuda:0:0      e0
%2 hostwait compute@cpu:0:0       compute@cuda:0:0 by e0
%3 host     compute@cpu:0:0       "after"

"#]],
    );
}

#[test]
fn an_explicit_wait_for_a_line_of_cuda_goes_by_event() {
    same(
        r#"
%0 fill compute@cuda:0:0 1.0 -> t0 f32[2]
%1 wait compute@cuda:0:1 compute@cuda:0:0 by %0
%2 fill compute@cuda:0:1 2.0 -> t1 f32[2]
"#,
        str![[r#"
%0 fill     compute@cuda:0:0      1.0 -> t0                                 f32[2]
%1 record   compute@cuda:0:0      e0
%2 wait     compute@cuda:0:1      compute@cuda:0:0 by e0
%3 fill     compute@cuda:0:1      2.0 -> t1                                 f32[2]

"#]],
    );
}

/// The wait for the barrier is a line of its own.
#[test]
fn an_explicit_wait_after_a_barrier_waits_for_both() {
    same(
        r#"
%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]
%1 record compute@cpu:0:0 e0
%2 barrier barrier@cpu:0:0
%3 record compute@cpu:0:1 e1
%4 wait compute@cpu:0:2 compute@cpu:0:0 by e0
%5 fill compute@cpu:0:2 2.0 -> t1 f32[2]
"#,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 record   compute@cpu:0:0       e0
%2 hostwait barrier@cpu:0:0       compute@cpu:0:0 by %1
%3 barrier  barrier@cpu:0:0
%4 hostwait compute@cpu:0:1       barrier@cpu:0:0 by %3
%5 record   compute@cpu:0:1       e1
%6 hostwait compute@cpu:0:2       barrier@cpu:0:0 by %3
%7 wait     compute@cpu:0:2       compute@cpu:0:0 by e0
%8 fill     compute@cpu:0:2       2.0 -> t1                                 f32[2]

"#]],
    );
}

/// A record stands after each copy, and after nothing else.
#[test]
fn an_explicit_wait_on_a_copy_stream_is_not_recorded() {
    same(
        r#"
t0 = tensor host f32[2]
%0 fill compute@cuda:0:0 1.0 -> t1 f32[2]
%1 record compute@cuda:0:0 e0
%2 wait h2d@cuda:0:0 compute@cuda:0:0 by e0
%3 copy h2d@cuda:0:0 host:t0 -> t2 f32[2]
"#,
        str![[r#"
%0 fill     compute@cuda:0:0      1.0 -> t0                                 f32[2]
%1 record   compute@cuda:0:0      e0
%2 wait     h2d@cuda:0:0          compute@cuda:0:0 by e0
t1 = tensor host f32[2]
%3 copy     h2d@cuda:0:0          host:t1 -> t2                             f32[2]
%4 record   h2d@cuda:0:0          e1

"#]],
    );
}

#[test]
fn a_wait_for_a_later_line_is_no_list() {
    let text = "%0 wait compute@cpu:0:0 compute@cpu:0:1 by %1\n%1 fill compute@cpu:0:1 1.0 -> t0 f32[2]\n";
    let error = text.parse::<InstructionList>().expect_err("line 1 comes later");
    assert_eq!((error.line, error.found.as_str()), (1, "%1"));
}

#[test]
fn a_wait_for_itself_is_no_list() {
    let text = "%0 wait compute@cpu:0:0 compute@cpu:0:1 by %0\n";
    assert!(text.parse::<InstructionList>().is_err());
}

#[test]
fn a_wait_for_a_later_record_is_refused() {
    let error = refused(
        "
e0 = event
%0 wait compute@cpu:0:0 compute@cpu:0:1 by e0
%1 record compute@cpu:0:1 e0
",
    );
    assert!(
        matches!(&error, Error::WaitsForLater { line: 0, target, .. } if target == "an event on compute@cpu:0:1"),
        "{error}"
    );
}

#[test]
fn a_wait_for_an_unknown_event_is_refused() {
    let mut b = InstructionsBuilder::new();
    let (cpu, cuda) = (key("compute@cpu:0:0"), key("compute@cuda:0:0"));
    b.wait(cpu, cuda, &Event::new());
    let error = plan(b.finish(), &options(SoftSyncMode::Minimal)).expect_err("nobody recorded it");
    assert!(
        matches!(&error, Error::WaitsForLater { line: 0, target, .. } if target == "an event on compute@cuda:0:0"),
        "{error}"
    );
}

#[test]
fn a_wait_that_names_the_wrong_stream_is_refused() {
    let error = refused(
        "
%0 record compute@cpu:0:1 e0
%1 record compute@cpu:0:2 e1
%2 wait compute@cpu:0:0 compute@cpu:0:2 by e0
",
    );
    assert!(
        matches!(&error, Error::WaitsForLater { line: 2, target, .. } if target == "an event on compute@cpu:0:2"),
        "{error}"
    );
}

#[test]
fn a_wait_for_a_line_of_another_stream_is_refused() {
    let error = refused(
        "
%0 fill compute@cpu:0:1 1.0 -> t0 f32[2]
%1 wait compute@cpu:0:0 compute@cpu:0:2 by %0
",
    );
    assert!(
        matches!(&error, Error::WaitsForLater { line: 1, target, .. } if target == "line 0 on compute@cpu:0:2"),
        "{error}"
    );
}

#[test]
fn a_wait_for_a_number_of_before_is_refused_where_nothing_was_before() {
    let error = refused("%0 wait compute@cpu:0:0 compute@cpu:0:1 by #7");
    assert!(
        matches!(&error, Error::WaitsForLater { line: 0, target, .. } if target == "instruction 7 of compute@cpu:0:1"),
        "{error}"
    );
}

#[test]
fn an_event_is_recorded_once() {
    let error = refused(
        "
%0 record compute@cpu:0:0 e0
%1 record compute@cpu:0:1 e0
",
    );
    assert!(matches!(error, Error::RecordedTwice { line: 1, .. }), "{error}");
}

#[test]
fn a_released_tensor_is_not_used() {
    let error = refused(
        "
%0 fill compute@cpu:0:0 1.0 -> t0 f32[4]
t1 = view t0 f32[2] strides 1 offset 2
%1 release compute@cpu:0:0 t0
%2 call compute@cpu:0:0 relu t1 -> t2 f32[2]
",
    );
    assert!(matches!(&error, Error::Released { line: 2, what, .. } if what == "relu"), "{error:?}");
}

#[test]
fn a_tensor_is_released_once() {
    let error = refused(
        "
%0 fill compute@cpu:0:0 1.0 -> t0 f32[4]
%1 release compute@cpu:0:0 t0
%2 release compute@cpu:0:0 t0
",
    );
    assert!(matches!(&error, Error::Released { line: 2, what, .. } if what == "release"), "{error:?}");
}

#[test]
fn counts_say_who_waits_how_often() {
    let list = read(
        "
%0 fill compute@cuda:0:0 1.0 -> t0 f32[2]
%1 copy d2h@cuda:0:0 t0 -> host:t1 f32[2]
%2 fn compute@cpu:0:0 \"look\" read host:t1
%3 record compute@cuda:0:0 e0
%4 wait compute@cpu:0:0 compute@cuda:0:0 by e0
",
    );
    let count = |stream: &str, instructions, device_waits, host_waits, records| SyncCounts {
        stream: key(stream),
        instructions,
        device_waits,
        host_waits,
        records,
    };
    assert_eq!(
        planned(list, SoftSyncMode::Minimal).counts,
        [
            count("compute@cuda:0:0", 2, 0, 0, 2),
            count("d2h@cuda:0:0", 1, 1, 0, 1),
            count("compute@cpu:0:0", 2, 0, 2, 0)
        ]
    );
}

fn key(text: &str) -> StreamKey {
    text.parse().expect("a stream")
}
