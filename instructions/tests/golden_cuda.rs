//! Golden lists with CUDA streams: points are shown by events, so needs place records, and the pair of streams decides
//! between a wait of the device and one of the host.

use crate::common::{both, same};
use snapbox::str;

#[test]
fn copy_then_compute_waits_for_the_record_after_the_copy() {
    same(
        r#"
t0 = tensor host f32[2]
%0 copy h2d@cuda:0:0 host:t0 -> t1 f32[2]
%1 call compute@cuda:0:0 relu t1 -> t2 f32[2]
"#,
        str![[r#"
t0 = tensor host f32[2]
%0 copy     h2d@cuda:0:0          host:t0 -> t1                             f32[2]
%1 record   h2d@cuda:0:0          e0
%2 wait     compute@cuda:0:0      h2d@cuda:0:0 by e0
%3 call     compute@cuda:0:0      relu t1 -> t2                             f32[2]

"#]],
    );
}

#[test]
fn a_compute_stream_records_only_on_need() {
    both(
        r#"
%0 fill compute@cuda:0:0 1.0 -> t0 f32[2]
%1 call compute@cuda:0:0 relu t0 -> t1 f32[2]
%2 call compute@cuda:0:0 neg t1 -> t2 f32[2]
%3 copy d2h@cuda:0:0 t1 -> host:t3 f32[2]
"#,
        str![[r#"
%0 fill     compute@cuda:0:0      1.0 -> t0                                 f32[2]
%1 call     compute@cuda:0:0      relu t0 -> t1                             f32[2]
%2 record   compute@cuda:0:0      e0
%3 call     compute@cuda:0:0      neg t1 -> t2                              f32[2]
%4 wait     d2h@cuda:0:0          compute@cuda:0:0 by e0
%5 copy     d2h@cuda:0:0          t1 -> host:t3                             f32[2]
%6 record   d2h@cuda:0:0          e1

"#]],
        str![[r#"
%0 fill     compute@cuda:0:0      1.0 -> t0                                 f32[2]
%1 call     compute@cuda:0:0      relu t0 -> t1                             f32[2]
%2 call     compute@cuda:0:0      neg t1 -> t2                              f32[2]
%3 record   compute@cuda:0:0      e0
%4 wait     d2h@cuda:0:0          compute@cuda:0:0 by e0
%5 copy     d2h@cuda:0:0          t1 -> host:t3                             f32[2]
%6 record   d2h@cuda:0:0          e1

"#]],
    );
}

/// Hole 10: the record that compute k waits for stands after copy k, not after the prefetch k + 1.
#[test]
fn double_buffering_waits_for_its_own_copy() {
    same(
        r#"
t0 = tensor host f32[2]
t1 = tensor host f32[2]
t2 = tensor host f32[2]
%0 copy h2d@cuda:0:0 host:t0 -> t3 f32[2]
%1 copy h2d@cuda:0:0 host:t1 -> t4 f32[2]
%2 call compute@cuda:0:0 relu t3 -> t5 f32[2]
%3 copy h2d@cuda:0:0 host:t2 -> t3 f32[2]
%4 call compute@cuda:0:0 relu t4 -> t6 f32[2]
%5 call compute@cuda:0:0 relu t3 -> t7 f32[2]
"#,
        str![[r#"
t0 = tensor host f32[2]
%0  copy     h2d@cuda:0:0          host:t0 -> t1                             f32[2]
%1  record   h2d@cuda:0:0          e0
t2 = tensor host f32[2]
%2  copy     h2d@cuda:0:0          host:t2 -> t3                             f32[2]
%3  record   h2d@cuda:0:0          e1
%4  wait     compute@cuda:0:0      h2d@cuda:0:0 by e0
%5  call     compute@cuda:0:0      relu t1 -> t4                             f32[2]
%6  record   compute@cuda:0:0      e2
%7  wait     h2d@cuda:0:0          compute@cuda:0:0 by e2
t5 = tensor host f32[2]
%8  copy     h2d@cuda:0:0          host:t5 -> t1                             f32[2]
%9  record   h2d@cuda:0:0          e3
%10 wait     compute@cuda:0:0      h2d@cuda:0:0 by e1
%11 call     compute@cuda:0:0      relu t3 -> t6                             f32[2]
%12 wait     compute@cuda:0:0      h2d@cuda:0:0 by e3
%13 call     compute@cuda:0:0      relu t1 -> t7                             f32[2]

"#]],
    );
}

#[test]
fn cuda_after_cpu_is_a_host_wait() {
    same(
        r#"
%0 fill compute@cpu:0:0 1.0 -> host:t0 f32[2]
%1 copy h2d@cuda:0:0 host:t0 -> t1 f32[2]
"#,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> host:t0                            f32[2]
%1 hostwait h2d@cuda:0:0          compute@cpu:0:0 by %0
%2 copy     h2d@cuda:0:0          host:t0 -> t1                             f32[2]
%3 record   h2d@cuda:0:0          e0

"#]],
    );
}

#[test]
fn cpu_after_cuda_is_a_host_wait_for_an_event() {
    same(
        r#"
%0 fill compute@cuda:0:0 1.0 -> t0 f32[2]
%1 copy d2h@cuda:0:0 t0 -> host:t1 f32[2]
%2 fn compute@cpu:0:0 "look" read host:t1
"#,
        str![[r#"
%0 fill     compute@cuda:0:0      1.0 -> t0                                 f32[2]
%1 record   compute@cuda:0:0      e0
%2 wait     d2h@cuda:0:0          compute@cuda:0:0 by e0
%3 copy     d2h@cuda:0:0          t0 -> host:t1                             f32[2]
%4 record   d2h@cuda:0:0          e1
%5 hostwait compute@cpu:0:0       d2h@cuda:0:0 by e1
%6 fn       compute@cpu:0:0       "look" read host:t1

"#]],
    );
}

/// What passed before the held instruction can then be waited for without it, by a later list as well.
#[test]
fn a_stream_records_before_it_is_held_back() {
    same(
        r#"
v0 = var
%0 fill compute@cuda:0:0 1.0 -> t0 f32[2]
%1 fn compute@cpu:0:0 "slow" write v0
%2 fn compute@cuda:0:0 "held" read v0
"#,
        str![[r#"
%0 fill     compute@cuda:0:0      1.0 -> t0                                 f32[2]
%1 record   compute@cuda:0:0      e0
v0 = var
%2 fn       compute@cpu:0:0       "slow" write v0
%3 hostwait compute@cuda:0:0      compute@cpu:0:0 by %2
%4 fn       compute@cuda:0:0      "held" read v0

"#]],
    );
}

/// A record that is there already serves.
#[test]
fn a_held_stream_does_not_record_twice() {
    same(
        r#"
v0 = var
%0 fill compute@cuda:0:0 1.0 -> t0 f32[2]
%1 copy d2h@cuda:0:0 t0 -> host:t1 f32[2]
%2 fn compute@cpu:0:0 "slow" write v0
%3 fn compute@cuda:0:0 "held" read v0
"#,
        str![[r#"
%0 fill     compute@cuda:0:0      1.0 -> t0                                 f32[2]
%1 record   compute@cuda:0:0      e0
%2 wait     d2h@cuda:0:0          compute@cuda:0:0 by e0
%3 copy     d2h@cuda:0:0          t0 -> host:t1                             f32[2]
%4 record   d2h@cuda:0:0          e1
v0 = var
%5 fn       compute@cpu:0:0       "slow" write v0
%6 hostwait compute@cuda:0:0      compute@cpu:0:0 by %5
%7 fn       compute@cuda:0:0      "held" read v0

"#]],
    );
}

/// The second copy finds the record after %1, which is at or after %0.
#[test]
fn a_later_record_serves_an_earlier_need() {
    same(
        r#"
%0 fill compute@cuda:0:0 1.0 -> t0 f32[2]
%1 fill compute@cuda:0:0 2.0 -> t1 f32[2]
%2 copy d2h@cuda:0:0 t1 -> host:t2 f32[2]
%3 copy d2h@cuda:0:1 t0 -> host:t3 f32[2]
"#,
        str![[r#"
%0 fill     compute@cuda:0:0      1.0 -> t0                                 f32[2]
%1 fill     compute@cuda:0:0      2.0 -> t1                                 f32[2]
%2 record   compute@cuda:0:0      e0
%3 wait     d2h@cuda:0:0          compute@cuda:0:0 by e0
%4 copy     d2h@cuda:0:0          t1 -> host:t2                             f32[2]
%5 record   d2h@cuda:0:0          e1
%6 wait     d2h@cuda:0:1          compute@cuda:0:0 by e0
%7 copy     d2h@cuda:0:1          t0 -> host:t3                             f32[2]
%8 record   d2h@cuda:0:1          e2

"#]],
    );
}

#[test]
fn two_readers_share_one_record() {
    both(
        r#"
%0 fill compute@cuda:0:0 1.0 -> t0 f32[2]
%1 call compute@cuda:0:1 relu t0 -> t1 f32[2]
%2 call compute@cuda:0:2 neg t0 -> t2 f32[2]
"#,
        str![[r#"
%0 fill     compute@cuda:0:0      1.0 -> t0                                 f32[2]
%1 record   compute@cuda:0:0      e0
%2 wait     compute@cuda:0:1      compute@cuda:0:0 by e0
%3 call     compute@cuda:0:1      relu t0 -> t1                             f32[2]
%4 wait     compute@cuda:0:2      compute@cuda:0:0 by e0
%5 call     compute@cuda:0:2      neg t0 -> t2                              f32[2]

"#]],
        str![[r#"
%0 fill     compute@cuda:0:0      1.0 -> t0                                 f32[2]
%1 record   compute@cuda:0:0      e0
%2 wait     compute@cuda:0:1      compute@cuda:0:0 by e0
%3 call     compute@cuda:0:1      relu t0 -> t1                             f32[2]
%4 record   compute@cuda:0:1      e1
%5 wait     compute@cuda:0:2      compute@cuda:0:1 by e1
%6 call     compute@cuda:0:2      neg t0 -> t2                              f32[2]

"#]],
    );
}

#[test]
fn a_write_after_two_reads() {
    both(
        r#"
%0 fill compute@cuda:0:0 1.0 -> t0 f32[2]
%1 call compute@cuda:0:1 relu t0 -> t1 f32[2]
%2 call compute@cuda:0:2 neg t0 -> t2 f32[2]
%3 fill compute@cuda:0:0 2.0 -> t0 f32[2]
"#,
        str![[r#"
%0  fill     compute@cuda:0:0      1.0 -> t0                                 f32[2]
%1  record   compute@cuda:0:0      e0
%2  wait     compute@cuda:0:1      compute@cuda:0:0 by e0
%3  call     compute@cuda:0:1      relu t0 -> t1                             f32[2]
%4  record   compute@cuda:0:1      e1
%5  wait     compute@cuda:0:2      compute@cuda:0:0 by e0
%6  call     compute@cuda:0:2      neg t0 -> t2                              f32[2]
%7  record   compute@cuda:0:2      e2
%8  wait     compute@cuda:0:0      compute@cuda:0:1 by e1
%9  wait     compute@cuda:0:0      compute@cuda:0:2 by e2
%10 fill     compute@cuda:0:0      2.0 -> t0                                 f32[2]

"#]],
        str![[r#"
%0 fill     compute@cuda:0:0      1.0 -> t0                                 f32[2]
%1 record   compute@cuda:0:0      e0
%2 wait     compute@cuda:0:1      compute@cuda:0:0 by e0
%3 call     compute@cuda:0:1      relu t0 -> t1                             f32[2]
%4 record   compute@cuda:0:1      e1
%5 wait     compute@cuda:0:2      compute@cuda:0:1 by e1
%6 call     compute@cuda:0:2      neg t0 -> t2                              f32[2]
%7 record   compute@cuda:0:2      e2
%8 wait     compute@cuda:0:0      compute@cuda:0:2 by e2
%9 fill     compute@cuda:0:0      2.0 -> t0                                 f32[2]

"#]],
    );
}

#[test]
fn devices_of_one_kind_wait_for_each_other() {
    same(
        r#"
%0 fill compute@cuda:0:0 1.0 -> t0 f32[2]
%1 copy h2d@cuda:1:0 cuda:0:t0 -> t1 f32[2]
%2 call compute@cuda:1:0 relu t1 -> t2 f32[2]
"#,
        str![[r#"
%0 fill     compute@cuda:0:0      1.0 -> t0                                 f32[2]
%1 record   compute@cuda:0:0      e0
%2 wait     h2d@cuda:1:0          compute@cuda:0:0 by e0
%3 copy     h2d@cuda:1:0          cuda:0:t0 -> t1                           f32[2]
%4 record   h2d@cuda:1:0          e1
%5 wait     compute@cuda:1:0      h2d@cuda:1:0 by e1
%6 call     compute@cuda:1:0      relu t1 -> t2                             f32[2]

"#]],
    );
}

#[test]
fn devices_of_two_kinds_wait_by_way_of_the_host() {
    same(
        r#"
%0 fill compute@cuda:0:0 1.0 -> t0 f32[2]
%1 touch compute@sim:0:0 cuda:0:t0
"#,
        str![[r#"
%0 fill     compute@cuda:0:0      1.0 -> t0                                 f32[2]
%1 record   compute@cuda:0:0      e0
%2 hostwait compute@sim:0:0       compute@cuda:0:0 by e0
%3 touch    compute@sim:0:0       cuda:0:t0

"#]],
    );
}

#[test]
fn training_step_over_cpu_and_cuda() {
    same(
        r#"
t0 = tensor host f32[4,2]
%0 fn compute@cpu:0:0 "load" write host:t0
t1 = tensor cuda:0 f32[2,2]
%1 copy h2d@cuda:0:0 host:t0 -> t2 f32[4,2]
%2 call compute@cuda:0:0 matmul t2 t1 -> t3 f32[4,2]
%3 call compute@cuda:0:0 sum t3 -> t4 f32[]
%4 copy d2h@cuda:0:0 t4 -> host:t5 f32[]
%5 fn compute@cpu:0:0 "load" write host:t0
%6 fn compute@cpu:0:0 "report" read host:t5
"#,
        str![[r#"
t0 = tensor host f32[4,2]
%0  fn       compute@cpu:0:0       "load" write host:t0
%1  hostwait h2d@cuda:0:0          compute@cpu:0:0 by %0
%2  copy     h2d@cuda:0:0          host:t0 -> t1                             f32[4,2]
%3  record   h2d@cuda:0:0          e0
%4  wait     compute@cuda:0:0      h2d@cuda:0:0 by e0
t2 = tensor cuda:0 f32[2,2]
%5  call     compute@cuda:0:0      matmul t1 t2 -> t3                        f32[4,2]
%6  call     compute@cuda:0:0      sum t3 -> t4                              f32[]
%7  record   compute@cuda:0:0      e1
%8  wait     d2h@cuda:0:0          compute@cuda:0:0 by e1
%9  copy     d2h@cuda:0:0          t4 -> host:t5                             f32[]
%10 record   d2h@cuda:0:0          e2
%11 hostwait compute@cpu:0:0       h2d@cuda:0:0 by e0
%12 fn       compute@cpu:0:0       "load" write host:t0
%13 hostwait compute@cpu:0:0       d2h@cuda:0:0 by e2
%14 fn       compute@cpu:0:0       "report" read host:t5

"#]],
    );
}
