//! Golden lists of storages that are used in parts: disjoint parts need nothing of each other, overlapping ones do.

use crate::common::{both, golden, read};
use snapbox::str;
use streamvm_instructions::SoftSyncMode;

#[test]
fn lanes_that_write_disjoint_rows_do_not_wait_for_each_other() {
    both(
        r#"
t0 = tensor cpu:0 f32[4,2]
t1 = view t0 f32[2,2] strides 2,1 offset 0
t2 = view t0 f32[2,2] strides 2,1 offset 4
t3 = view t0 f32[2,4] strides 1,2 offset 0
%0 fill compute@cpu:0:0 1.0 -> t1 f32[2,2]
%1 fill compute@cpu:0:1 2.0 -> t2 f32[2,2]
%2 call compute@cpu:0:2 relu t3 -> t4 f32[2,4]
"#,
        str![[r#"
t0 = tensor cpu:0 f32[4,2]
t1 = view t0 f32[2,2] strides 2,1 offset 0
%0 fill     compute@cpu:0:0       1.0 -> t1                                 f32[2,2]
t2 = view t0 f32[2,2] strides 2,1 offset 4
%1 fill     compute@cpu:0:1       2.0 -> t2                                 f32[2,2]
%2 wait     compute@cpu:0:2       compute@cpu:0:0 by %0
%3 wait     compute@cpu:0:2       compute@cpu:0:1 by %1
t3 = view t0 f32[2,4] strides 1,2 offset 0
%4 call     compute@cpu:0:2       relu t3 -> t4                             f32[2,4]

"#]],
        str![[r#"
t0 = tensor cpu:0 f32[4,2]
t1 = view t0 f32[2,2] strides 2,1 offset 0
%0 fill     compute@cpu:0:0       1.0 -> t1                                 f32[2,2]
%1 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
t2 = view t0 f32[2,2] strides 2,1 offset 4
%2 fill     compute@cpu:0:1       2.0 -> t2                                 f32[2,2]
%3 wait     compute@cpu:0:2       compute@cpu:0:1 by %2
t3 = view t0 f32[2,4] strides 1,2 offset 0
%4 call     compute@cpu:0:2       relu t3 -> t4                             f32[2,4]

"#]],
    );
}

#[test]
fn lanes_that_write_disjoint_columns_do_not_wait_for_each_other() {
    golden(
        read(
            r#"
t0 = tensor cpu:0 f32[100,6]
t1 = view t0 f32[100,2] strides 6,1 offset 0
t2 = view t0 f32[100,2] strides 6,1 offset 2
t3 = view t0 f32[100,3] strides 6,1 offset 3
%0 fill compute@cpu:0:0 1.0 -> t1 f32[100,2]
%1 fill compute@cpu:0:1 2.0 -> t2 f32[100,2]
%2 fill compute@cpu:0:2 3.0 -> t3 f32[100,3]
"#,
        ),
        SoftSyncMode::Minimal,
        str![[r#"
t0 = tensor cpu:0 f32[100,6]
t1 = view t0 f32[100,2] strides 6,1 offset 0
%0 fill     compute@cpu:0:0       1.0 -> t1                                 f32[100,2]
t2 = view t0 f32[100,2] strides 6,1 offset 2
%1 fill     compute@cpu:0:1       2.0 -> t2                                 f32[100,2]
%2 wait     compute@cpu:0:2       compute@cpu:0:1 by %1
t3 = view t0 f32[100,3] strides 6,1 offset 3
%3 fill     compute@cpu:0:2       3.0 -> t3                                 f32[100,3]

"#]],
    );
}

#[test]
fn a_part_is_written_after_the_reads_of_that_part_alone() {
    golden(
        read(
            r#"
t0 = tensor cpu:0 f32[4]
t1 = view t0 f32[2] strides 1 offset 0
t2 = view t0 f32[2] strides 1 offset 2
t3 = view t0 f32[2] strides 1 offset 1
%0 fill compute@cpu:0:0 1.0 -> t0 f32[4]
%1 call compute@cpu:0:1 relu t1 -> t4 f32[2]
%2 call compute@cpu:0:2 relu t2 -> t5 f32[2]
%3 fill compute@cpu:0:3 2.0 -> t1 f32[2]
%4 fill compute@cpu:0:0 3.0 -> t3 f32[2]
"#,
        ),
        SoftSyncMode::Minimal,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[4]
%1 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
t1 = view t0 f32[2] strides 1 offset 0
%2 call     compute@cpu:0:1       relu t1 -> t2                             f32[2]
%3 wait     compute@cpu:0:2       compute@cpu:0:0 by %0
t3 = view t0 f32[2] strides 1 offset 2
%4 call     compute@cpu:0:2       relu t3 -> t4                             f32[2]
%5 wait     compute@cpu:0:3       compute@cpu:0:1 by %2
%6 fill     compute@cpu:0:3       2.0 -> t1                                 f32[2]
%7 wait     compute@cpu:0:0       compute@cpu:0:3 by %6
%8 wait     compute@cpu:0:0       compute@cpu:0:2 by %4
t5 = view t0 f32[2] strides 1 offset 1
%9 fill     compute@cpu:0:0       3.0 -> t5                                 f32[2]

"#]],
    );
}

#[test]
fn copies_back_into_rows_of_one_host_array_go_side_by_side() {
    golden(
        read(
            r#"
t0 = tensor host f32[4,2]
t1 = view t0 f32[2,2] strides 2,1 offset 0
t2 = view t0 f32[2,2] strides 2,1 offset 4
%0 fill compute@sim:0:0 1.0 -> t3 f32[2,2]
%1 fill compute@sim:0:1 2.0 -> t4 f32[2,2]
%2 copy d2h@sim:0:0 t3 -> host:t1 f32[2,2]
%3 copy d2h@sim:0:1 t4 -> host:t2 f32[2,2]
"#,
        ),
        SoftSyncMode::Minimal,
        str![[r#"
%0 fill     compute@sim:0:0       1.0 -> t0                                 f32[2,2]
%1 record   compute@sim:0:0       e0
%2 fill     compute@sim:0:1       2.0 -> t1                                 f32[2,2]
%3 record   compute@sim:0:1       e1
%4 wait     d2h@sim:0:0           compute@sim:0:0 by e0
t2 = tensor host f32[4,2]
t3 = view t2 f32[2,2] strides 2,1 offset 0
%5 copy     d2h@sim:0:0           t0 -> host:t3                             f32[2,2]
%6 record   d2h@sim:0:0           e2
%7 wait     d2h@sim:0:1           compute@sim:0:1 by e1
t4 = view t2 f32[2,2] strides 2,1 offset 4
%8 copy     d2h@sim:0:1           t1 -> host:t4                             f32[2,2]
%9 record   d2h@sim:0:1           e3

"#]],
    );
}

#[test]
fn a_write_of_the_whole_comes_after_every_part_and_before_all_later_ones() {
    golden(
        read(
            r#"
t0 = tensor cpu:0 f32[4]
t1 = view t0 f32[2] strides 1 offset 0
t2 = view t0 f32[2] strides 1 offset 2
%0 fill compute@cpu:0:0 1.0 -> t1 f32[2]
%1 fill compute@cpu:0:1 2.0 -> t2 f32[2]
%2 fill compute@cpu:0:2 3.0 -> t0 f32[4]
%3 fill compute@cpu:0:1 4.0 -> t2 f32[2]
%4 call compute@cpu:0:0 relu t1 -> t3 f32[2]
"#,
        ),
        SoftSyncMode::Minimal,
        str![[r#"
t0 = tensor cpu:0 f32[4]
t1 = view t0 f32[2] strides 1 offset 0
%0 fill     compute@cpu:0:0       1.0 -> t1                                 f32[2]
t2 = view t0 f32[2] strides 1 offset 2
%1 fill     compute@cpu:0:1       2.0 -> t2                                 f32[2]
%2 wait     compute@cpu:0:2       compute@cpu:0:0 by %0
%3 wait     compute@cpu:0:2       compute@cpu:0:1 by %1
%4 fill     compute@cpu:0:2       3.0 -> t0                                 f32[4]
%5 wait     compute@cpu:0:1       compute@cpu:0:2 by %4
%6 fill     compute@cpu:0:1       4.0 -> t2                                 f32[2]
%7 wait     compute@cpu:0:0       compute@cpu:0:2 by %4
%8 call     compute@cpu:0:0       relu t1 -> t3                             f32[2]

"#]],
    );
}
