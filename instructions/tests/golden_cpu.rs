//! Golden lists on CPU streams: timelines are exact, so a wait names a line and no event is recorded.

use crate::common::{both, same};
use snapbox::str;

#[test]
fn a_first_use_waits_for_nothing() {
    same(
        r#"
%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]
%1 fill compute@cpu:0:1 2.0 -> t1 f32[2]
"#,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 fill     compute@cpu:0:1       2.0 -> t1                                 f32[2]

"#]],
    );
}

#[test]
fn one_stream_orders_itself() {
    same(
        r#"
%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]
%1 call compute@cpu:0:0 relu t0 -> t1 f32[2]
%2 call compute@cpu:0:0 add t0 t1 -> t2 f32[2]
%3 call compute@cpu:0:0 neg t2 -> t0 f32[2]
"#,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 call     compute@cpu:0:0       relu t0 -> t1                             f32[2]
%2 call     compute@cpu:0:0       add t0 t1 -> t2                           f32[2]
%3 call     compute@cpu:0:0       neg t2 -> t0                              f32[2]

"#]],
    );
}

#[test]
fn copy_then_compute() {
    same(
        r#"
t0 = tensor host f32[2]
%0 copy h2d@cpu:0:0 host:t0 -> t1 f32[2]
%1 call compute@cpu:0:0 relu t1 -> t2 f32[2]
"#,
        str![[r#"
t0 = tensor host f32[2]
%0 copy     h2d@cpu:0:0           host:t0 -> t1                             f32[2]
%1 wait     compute@cpu:0:0       h2d@cpu:0:0 by %0
%2 call     compute@cpu:0:0       relu t1 -> t2                             f32[2]

"#]],
    );
}

#[test]
fn compute_then_copy_back() {
    same(
        r#"
%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]
%1 copy d2h@cpu:0:0 t0 -> host:t1 f32[2]
"#,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 wait     d2h@cpu:0:0           compute@cpu:0:0 by %0
%2 copy     d2h@cpu:0:0           t0 -> host:t1                             f32[2]

"#]],
    );
}

/// Where the last-used rule sends the second reader after the first.
#[test]
fn readers_on_two_streams_run_side_by_side() {
    both(
        r#"
%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]
%1 call compute@cpu:0:1 relu t0 -> t1 f32[2]
%2 call compute@cpu:0:2 neg t0 -> t2 f32[2]
"#,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%2 call     compute@cpu:0:1       relu t0 -> t1                             f32[2]
%3 wait     compute@cpu:0:2       compute@cpu:0:0 by %0
%4 call     compute@cpu:0:2       neg t0 -> t2                              f32[2]

"#]],
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%2 call     compute@cpu:0:1       relu t0 -> t1                             f32[2]
%3 wait     compute@cpu:0:2       compute@cpu:0:1 by %2
%4 call     compute@cpu:0:2       neg t0 -> t2                              f32[2]

"#]],
    );
}

/// The reads came after the first write, so they stand for it.
#[test]
fn a_write_waits_for_all_reads_since() {
    both(
        r#"
%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]
%1 call compute@cpu:0:1 relu t0 -> t1 f32[2]
%2 call compute@cpu:0:2 neg t0 -> t2 f32[2]
%3 fill compute@cpu:0:3 2.0 -> t0 f32[2]
"#,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%2 call     compute@cpu:0:1       relu t0 -> t1                             f32[2]
%3 wait     compute@cpu:0:2       compute@cpu:0:0 by %0
%4 call     compute@cpu:0:2       neg t0 -> t2                              f32[2]
%5 wait     compute@cpu:0:3       compute@cpu:0:1 by %2
%6 wait     compute@cpu:0:3       compute@cpu:0:2 by %4
%7 fill     compute@cpu:0:3       2.0 -> t0                                 f32[2]

"#]],
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%2 call     compute@cpu:0:1       relu t0 -> t1                             f32[2]
%3 wait     compute@cpu:0:2       compute@cpu:0:1 by %2
%4 call     compute@cpu:0:2       neg t0 -> t2                              f32[2]
%5 wait     compute@cpu:0:3       compute@cpu:0:2 by %4
%6 fill     compute@cpu:0:3       2.0 -> t0                                 f32[2]

"#]],
    );
}

/// The last-used rule waits each time that the stream changes.
#[test]
fn a_read_again_waits_for_nothing_new() {
    both(
        r#"
%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]
%1 call compute@cpu:0:1 relu t0 -> t1 f32[2]
%2 call compute@cpu:0:0 neg t0 -> t2 f32[2]
%3 call compute@cpu:0:1 exp t0 -> t3 f32[2]
%4 call compute@cpu:0:0 abs t0 -> t4 f32[2]
"#,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%2 call     compute@cpu:0:1       relu t0 -> t1                             f32[2]
%3 call     compute@cpu:0:0       neg t0 -> t2                              f32[2]
%4 call     compute@cpu:0:1       exp t0 -> t3                              f32[2]
%5 call     compute@cpu:0:0       abs t0 -> t4                              f32[2]

"#]],
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%2 call     compute@cpu:0:1       relu t0 -> t1                             f32[2]
%3 wait     compute@cpu:0:0       compute@cpu:0:1 by %2
%4 call     compute@cpu:0:0       neg t0 -> t2                              f32[2]
%5 wait     compute@cpu:0:1       compute@cpu:0:0 by %4
%6 call     compute@cpu:0:1       exp t0 -> t3                              f32[2]
%7 wait     compute@cpu:0:0       compute@cpu:0:1 by %6
%8 call     compute@cpu:0:0       abs t0 -> t4                              f32[2]

"#]],
    );
}

#[test]
fn in_place_is_a_read_and_a_write() {
    same(
        r#"
%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]
%1 call compute@cpu:0:1 relu t0 -> t0 f32[2]
%2 call compute@cpu:0:0 neg t0 -> t0 f32[2]
"#,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%2 call     compute@cpu:0:1       relu t0 -> t0                             f32[2]
%3 wait     compute@cpu:0:0       compute@cpu:0:1 by %2
%4 call     compute@cpu:0:0       neg t0 -> t0                              f32[2]

"#]],
    );
}

#[test]
fn a_chain_over_three_streams() {
    same(
        r#"
%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]
%1 call compute@cpu:0:1 relu t0 -> t1 f32[2]
%2 call compute@cpu:0:2 neg t1 -> t2 f32[2]
%3 call compute@cpu:0:0 exp t2 -> t3 f32[2]
"#,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%2 call     compute@cpu:0:1       relu t0 -> t1                             f32[2]
%3 wait     compute@cpu:0:2       compute@cpu:0:1 by %2
%4 call     compute@cpu:0:2       neg t1 -> t2                              f32[2]
%5 wait     compute@cpu:0:0       compute@cpu:0:2 by %4
%6 call     compute@cpu:0:0       exp t2 -> t3                              f32[2]

"#]],
    );
}

#[test]
fn a_wait_covers_what_came_before_its_point() {
    both(
        r#"
%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]
%1 fill compute@cpu:0:0 2.0 -> t1 f32[2]
%2 call compute@cpu:0:1 relu t1 -> t2 f32[2]
%3 call compute@cpu:0:1 relu t0 -> t3 f32[2]
"#,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 fill     compute@cpu:0:0       2.0 -> t1                                 f32[2]
%2 wait     compute@cpu:0:1       compute@cpu:0:0 by %1
%3 call     compute@cpu:0:1       relu t1 -> t2                             f32[2]
%4 call     compute@cpu:0:1       relu t0 -> t3                             f32[2]

"#]],
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 fill     compute@cpu:0:0       2.0 -> t1                                 f32[2]
%2 wait     compute@cpu:0:1       compute@cpu:0:0 by %1
%3 call     compute@cpu:0:1       relu t1 -> t2                             f32[2]
%4 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%5 call     compute@cpu:0:1       relu t0 -> t3                             f32[2]

"#]],
    );
}

#[test]
fn a_wait_does_not_cover_what_came_after_its_point() {
    same(
        r#"
%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]
%1 fill compute@cpu:0:0 2.0 -> t1 f32[2]
%2 call compute@cpu:0:1 relu t0 -> t2 f32[2]
%3 call compute@cpu:0:1 relu t1 -> t3 f32[2]
"#,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 fill     compute@cpu:0:0       2.0 -> t1                                 f32[2]
%2 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%3 call     compute@cpu:0:1       relu t0 -> t2                             f32[2]
%4 wait     compute@cpu:0:1       compute@cpu:0:0 by %1
%5 call     compute@cpu:0:1       relu t1 -> t3                             f32[2]

"#]],
    );
}

#[test]
fn a_wait_covers_what_its_source_waited_for() {
    both(
        r#"
%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]
%1 call compute@cpu:0:1 relu t0 -> t1 f32[2]
%2 call compute@cpu:0:2 neg t1 -> t2 f32[2]
%3 call compute@cpu:0:2 exp t0 -> t3 f32[2]
"#,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%2 call     compute@cpu:0:1       relu t0 -> t1                             f32[2]
%3 wait     compute@cpu:0:2       compute@cpu:0:1 by %2
%4 call     compute@cpu:0:2       neg t1 -> t2                              f32[2]
%5 call     compute@cpu:0:2       exp t0 -> t3                              f32[2]

"#]],
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%2 call     compute@cpu:0:1       relu t0 -> t1                             f32[2]
%3 wait     compute@cpu:0:2       compute@cpu:0:1 by %2
%4 call     compute@cpu:0:2       neg t1 -> t2                              f32[2]
%5 wait     compute@cpu:0:2       compute@cpu:0:1 by %2
%6 call     compute@cpu:0:2       exp t0 -> t3                              f32[2]

"#]],
    );
}

/// Stream 1 waits for stream 0 only after the point that stream 2 waits for.
#[test]
fn a_wait_does_not_cover_a_later_wait_of_its_source() {
    both(
        r#"
%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]
%1 fill compute@cpu:0:1 2.0 -> t1 f32[2]
%2 call compute@cpu:0:1 relu t0 -> t2 f32[2]
%3 call compute@cpu:0:2 neg t1 -> t3 f32[2]
%4 call compute@cpu:0:2 exp t0 -> t4 f32[2]
"#,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 fill     compute@cpu:0:1       2.0 -> t1                                 f32[2]
%2 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%3 call     compute@cpu:0:1       relu t0 -> t2                             f32[2]
%4 wait     compute@cpu:0:2       compute@cpu:0:1 by %1
%5 call     compute@cpu:0:2       neg t1 -> t3                              f32[2]
%6 wait     compute@cpu:0:2       compute@cpu:0:0 by %0
%7 call     compute@cpu:0:2       exp t0 -> t4                              f32[2]

"#]],
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 fill     compute@cpu:0:1       2.0 -> t1                                 f32[2]
%2 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%3 call     compute@cpu:0:1       relu t0 -> t2                             f32[2]
%4 wait     compute@cpu:0:2       compute@cpu:0:1 by %1
%5 call     compute@cpu:0:2       neg t1 -> t3                              f32[2]
%6 wait     compute@cpu:0:2       compute@cpu:0:1 by %3
%7 call     compute@cpu:0:2       exp t0 -> t4                              f32[2]

"#]],
    );
}

#[test]
fn a_need_that_another_need_implies_is_dropped() {
    same(
        r#"
%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]
%1 call compute@cpu:0:1 relu t0 -> t1 f32[2]
%2 call compute@cpu:0:2 add t0 t1 -> t2 f32[2]
"#,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%2 call     compute@cpu:0:1       relu t0 -> t1                             f32[2]
%3 wait     compute@cpu:0:2       compute@cpu:0:1 by %2
%4 call     compute@cpu:0:2       add t0 t1 -> t2                           f32[2]

"#]],
    );
}

#[test]
fn needs_on_one_stream_are_one_wait() {
    same(
        r#"
%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]
%1 fill compute@cpu:0:0 2.0 -> t1 f32[2]
%2 call compute@cpu:0:1 add t0 t1 -> t2 f32[2]
"#,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 fill     compute@cpu:0:0       2.0 -> t1                                 f32[2]
%2 wait     compute@cpu:0:1       compute@cpu:0:0 by %1
%3 call     compute@cpu:0:1       add t0 t1 -> t2                           f32[2]

"#]],
    );
}

#[test]
fn fan_out_and_fan_in() {
    both(
        r#"
%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]
%1 call compute@cpu:0:1 relu t0 -> t1 f32[2]
%2 call compute@cpu:0:2 neg t0 -> t2 f32[2]
%3 call compute@cpu:0:3 exp t0 -> t3 f32[2]
%4 fn compute@cpu:0:0 "join" read t1 read t2 read t3 write t0
"#,
        str![[r#"
%0  fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1  wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%2  call     compute@cpu:0:1       relu t0 -> t1                             f32[2]
%3  wait     compute@cpu:0:2       compute@cpu:0:0 by %0
%4  call     compute@cpu:0:2       neg t0 -> t2                              f32[2]
%5  wait     compute@cpu:0:3       compute@cpu:0:0 by %0
%6  call     compute@cpu:0:3       exp t0 -> t3                              f32[2]
%7  wait     compute@cpu:0:0       compute@cpu:0:1 by %2
%8  wait     compute@cpu:0:0       compute@cpu:0:2 by %4
%9  wait     compute@cpu:0:0       compute@cpu:0:3 by %6
%10 fn       compute@cpu:0:0       "join" read t1 read t2 read t3 write t0

"#]],
        str![[r#"
%0  fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1  wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%2  call     compute@cpu:0:1       relu t0 -> t1                             f32[2]
%3  wait     compute@cpu:0:2       compute@cpu:0:1 by %2
%4  call     compute@cpu:0:2       neg t0 -> t2                              f32[2]
%5  wait     compute@cpu:0:3       compute@cpu:0:2 by %4
%6  call     compute@cpu:0:3       exp t0 -> t3                              f32[2]
%7  wait     compute@cpu:0:0       compute@cpu:0:1 by %2
%8  wait     compute@cpu:0:0       compute@cpu:0:2 by %4
%9  wait     compute@cpu:0:0       compute@cpu:0:3 by %6
%10 fn       compute@cpu:0:0       "join" read t1 read t2 read t3 write t0

"#]],
    );
}

#[test]
fn touch_orders_its_stream_after_the_last_writes() {
    same(
        r#"
%0 fill compute@cpu:0:1 1.0 -> t0 f32[2]
%1 fill compute@cpu:0:2 2.0 -> t1 f32[2]
%2 touch compute@cpu:0:0 t0 t1
%3 call compute@cpu:0:0 add t0 t1 -> t2 f32[2]
"#,
        str![[r#"
%0 fill     compute@cpu:0:1       1.0 -> t0                                 f32[2]
%1 fill     compute@cpu:0:2       2.0 -> t1                                 f32[2]
%2 wait     compute@cpu:0:0       compute@cpu:0:1 by %0
%3 wait     compute@cpu:0:0       compute@cpu:0:2 by %1
%4 touch    compute@cpu:0:0       t0 t1
%5 call     compute@cpu:0:0       add t0 t1 -> t2                           f32[2]

"#]],
    );
}

/// Freeing never waits; whoever gets the memory does.
#[test]
fn release_waits_for_nothing() {
    same(
        r#"
%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]
%1 call compute@cpu:0:1 relu t0 -> t1 f32[2]
%2 release compute@cpu:0:0 t0
%3 call compute@cpu:0:0 neg t1 -> t2 f32[2]
"#,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%2 call     compute@cpu:0:1       relu t0 -> t1                             f32[2]
%3 release  compute@cpu:0:0       t0
%4 wait     compute@cpu:0:0       compute@cpu:0:1 by %2
%5 call     compute@cpu:0:0       neg t1 -> t2                              f32[2]

"#]],
    );
}

#[test]
fn allocate_waits_for_nothing() {
    same(
        r#"
%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]
%1 alloc compute@cpu:0:1 -> t1 f32[2]
%2 copy compute@cpu:0:1 t0 -> t1 f32[2]
%3 call compute@cpu:0:0 relu t1 -> t2 f32[2]
"#,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 alloc    compute@cpu:0:1       -> t1                                     f32[2]
%2 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%3 copy     compute@cpu:0:1       t0 -> t1                                  f32[2]
%4 wait     compute@cpu:0:0       compute@cpu:0:1 by %3
%5 call     compute@cpu:0:0       relu t1 -> t2                             f32[2]

"#]],
    );
}

#[test]
fn variables_order_functions() {
    both(
        r#"
v0 = var
%0 fn compute@cpu:0:0 "open" write v0
%1 fn compute@cpu:0:1 "look" read v0
%2 fn compute@cpu:0:2 "look" read v0
%3 fn compute@cpu:0:0 "count" update v0
%4 host compute@cpu:0:3 "alone"
"#,
        str![[r#"
v0 = var
%0 fn       compute@cpu:0:0       "open" write v0
%1 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%2 fn       compute@cpu:0:1       "look" read v0
%3 wait     compute@cpu:0:2       compute@cpu:0:0 by %0
%4 fn       compute@cpu:0:2       "look" read v0
%5 wait     compute@cpu:0:0       compute@cpu:0:1 by %2
%6 wait     compute@cpu:0:0       compute@cpu:0:2 by %4
%7 fn       compute@cpu:0:0       "count" update v0
%8 host     compute@cpu:0:3       "alone"

"#]],
        str![[r#"
v0 = var
%0 fn       compute@cpu:0:0       "open" write v0
%1 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%2 fn       compute@cpu:0:1       "look" read v0
%3 wait     compute@cpu:0:2       compute@cpu:0:1 by %2
%4 fn       compute@cpu:0:2       "look" read v0
%5 wait     compute@cpu:0:0       compute@cpu:0:2 by %4
%6 fn       compute@cpu:0:0       "count" update v0
%7 host     compute@cpu:0:3       "alone"

"#]],
    );
}

/// Numbers of a stream on cpu:1 are waited for as those of cpu:0 are.
#[test]
fn several_devices() {
    same(
        r#"
t0 = tensor host f32[2]
%0 copy h2d@cpu:0:0 host:t0 -> t1 f32[2]
%1 copy h2d@cpu:1:0 cpu:0:t1 -> t2 f32[2]
%2 call compute@cpu:1:0 relu t2 -> t3 f32[2]
%3 copy d2h@cpu:1:0 t3 -> host:t4 f32[2]
"#,
        str![[r#"
t0 = tensor host f32[2]
%0 copy     h2d@cpu:0:0           host:t0 -> t1                             f32[2]
%1 wait     h2d@cpu:1:0           h2d@cpu:0:0 by %0
%2 copy     h2d@cpu:1:0           cpu:0:t1 -> t2                            f32[2]
%3 wait     compute@cpu:1:0       h2d@cpu:1:0 by %2
%4 call     compute@cpu:1:0       relu t2 -> t3                             f32[2]
%5 wait     d2h@cpu:1:0           compute@cpu:1:0 by %4
%6 copy     d2h@cpu:1:0           t3 -> host:t4                             f32[2]

"#]],
    );
}

#[test]
fn zero_size_tensors_have_order_too() {
    same(
        r#"
%0 fill compute@cpu:0:0 1.0 -> t0 f32[0]
%1 call compute@cpu:0:1 relu t0 -> t1 f32[0]
"#,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[0]
%1 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
%2 call     compute@cpu:0:1       relu t0 -> t1                             f32[0]

"#]],
    );
}
