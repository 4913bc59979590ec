//! Golden lists of what the builder emits: which stream each call goes to, and how it reads as text.

use std::error::Error;

use crate::common::{golden, planned, read};
use snapbox::str;
use streamvm_ep::{Axes, DType, DeviceId, MemoryKind, Op, Params, Shape};
use streamvm_instructions::{InstructionsBuilder, Lane, Place, SoftSyncMode, Tensor, Var};
use streamvm_stream::{StreamKey, StreamType};

const CPU: DeviceId = DeviceId::cpu(0);
const CUDA: DeviceId = DeviceId::cuda(0);

type Outcome = Result<(), Box<dyn Error>>;

/// Copies run on the copy stream of the device at the other end; between devices where the memory can be reached.
#[test]
fn copies_go_to_the_stream_that_reaches_both_ends() -> Outcome {
    let mut b = InstructionsBuilder::new();
    let host = b.full(Place::Host, DType::F32, &[2], 1.0)?;
    let on_host = b.copy(&host, Place::Host)?;
    let on_cpu = b.copy(&on_host, CPU)?;
    let on_cpu_again = b.copy(&on_cpu, CPU)?;
    let on_cuda = b.copy(&on_cpu_again, CUDA)?;
    let on_peer = b.copy(&on_cuda, DeviceId::cuda(1))?;
    let back = b.copy(&on_peer, CPU)?;
    b.copy(&back, Place::Host)?;
    golden(
        b.finish(),
        SoftSyncMode::Minimal,
        str![[r#"
%0  fill     compute@cpu:0:0       1.0 -> host:t0                            f32[2]
%1  copy     compute@cpu:0:0       host:t0 -> host:t1                        f32[2]
%2  wait     h2d@cpu:0:0           compute@cpu:0:0 by %1
%3  copy     h2d@cpu:0:0           host:t1 -> t2                             f32[2]
%4  wait     compute@cpu:0:0       h2d@cpu:0:0 by %3
%5  copy     compute@cpu:0:0       t2 -> t3                                  f32[2]
%6  hostwait h2d@cuda:0:0          compute@cpu:0:0 by %5
%7  copy     h2d@cuda:0:0          cpu:0:t3 -> t4                            f32[2]
%8  record   h2d@cuda:0:0          e0
%9  wait     h2d@cuda:1:0          h2d@cuda:0:0 by e0
%10 copy     h2d@cuda:1:0          cuda:0:t4 -> t5                           f32[2]
%11 record   h2d@cuda:1:0          e1
%12 wait     d2h@cuda:1:0          h2d@cuda:1:0 by e1
%13 copy     d2h@cuda:1:0          t5 -> cpu:0:t6                            f32[2]
%14 record   d2h@cuda:1:0          e2
%15 hostwait d2h@cpu:0:0           d2h@cuda:1:0 by e2
%16 copy     d2h@cpu:0:0           t6 -> host:t7                             f32[2]

"#]],
    );
    Ok(())
}

/// The host reaches pinned memory by itself, and a device by its copy streams: nothing is copied twice.
#[test]
fn pinned_memory_is_reached_from_both_sides() -> Outcome {
    let shape = Shape::new(&[2])?;
    let pinned = || Tensor::unbound(CUDA.into(), MemoryKind::Pinned, DType::F32, shape);
    let (up, down, host) = (pinned(), pinned(), Tensor::unbound(Place::Host, MemoryKind::Pageable, DType::F32, shape));
    let mut b = InstructionsBuilder::new();
    b.fill(&host, 1.0)?;
    b.copy_into(&host, &up)?;
    let there = b.copy(&up, CUDA)?;
    b.copy_into(&there, &down)?;
    b.access("look", down.read(), |_| Ok(()))?;
    b.call_fn("change", CPU, [down.update()], |_| Ok(()))?;
    b.copy_into(&down, &host)?;
    b.copy_into(&down, &up)?;
    golden(
        b.finish(),
        SoftSyncMode::Minimal,
        str![[r#"
%0  fill     compute@cpu:0:0       1.0 -> host:t0                            f32[2]
%1  wait     h2d@cpu:0:0           compute@cpu:0:0 by %0
t1 = tensor cuda:0 pinned f32[2]
%2  copy     h2d@cpu:0:0           host:t0 -> cuda:0:t1                      f32[2]
%3  hostwait h2d@cuda:0:0          h2d@cpu:0:0 by %2
%4  copy     h2d@cuda:0:0          pinned:t1 -> t2                           f32[2]
%5  record   h2d@cuda:0:0          e0
%6  wait     d2h@cuda:0:0          h2d@cuda:0:0 by e0
%7  copy     d2h@cuda:0:0          t2 -> pinned:t3                           f32[2]
%8  record   d2h@cuda:0:0          e1
%9  hostwait compute@cpu:0:0       d2h@cuda:0:0 by e1
%10 access   compute@cpu:0:0       "look" read cuda:0:t3
%11 fn       compute@cpu:0:0       "change" update cuda:0:t3
%12 wait     d2h@cpu:0:0           compute@cpu:0:0 by %11
%13 copy     d2h@cpu:0:0           cuda:0:t3 -> host:t0                      f32[2]
%14 hostwait compute@cuda:0:0      compute@cpu:0:0 by %11
%15 copy     compute@cuda:0:0      pinned:t3 -> pinned:t1                    f32[2]

"#]],
    );
    Ok(())
}

#[test]
fn lanes_are_streams_of_their_own() -> Outcome {
    let _lane = Lane(3).enter();
    let mut b = InstructionsBuilder::new();
    let x = b.full(CPU, DType::F32, &[2], 1.0)?;
    let y = b.on_lane(1).relu(&x)?;
    b.on_lane(2).add(&x, &y)?;
    golden(
        b.finish(),
        SoftSyncMode::Minimal,
        str![[r#"
%0 fill     compute@cpu:0:3       1.0 -> t0                                 f32[2]
%1 wait     compute@cpu:0:1       compute@cpu:0:3 by %0
%2 call     compute@cpu:0:1       relu t0 -> t1                             f32[2]
%3 wait     compute@cpu:0:2       compute@cpu:0:1 by %2
%4 call     compute@cpu:0:2       add t0 t1 -> t2                           f32[2]

"#]],
    );
    Ok(())
}

#[test]
fn pinned_outputs_come_from_the_pinned_stream() -> Outcome {
    let mut b = InstructionsBuilder::new();
    let x = b.full(CPU, DType::F32, &[2], 1.0)?;
    let y = b.on_pinned().relu(&x)?;
    let z = b.neg(&y)?;
    b.copy(&y, CUDA)?;
    b.copy(&z, CUDA)?;
    golden(
        b.finish(),
        SoftSyncMode::Minimal,
        str![[r#"
%0  fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1  wait     pinned@cpu:0:0        compute@cpu:0:0 by %0
%2  call     pinned@cpu:0:0        relu t0 -> pinned:t1                      f32[2]
%3  wait     compute@cpu:0:0       pinned@cpu:0:0 by %2
%4  call     compute@cpu:0:0       neg pinned:t1 -> t2                       f32[2]
%5  hostwait h2d@cuda:0:0          pinned@cpu:0:0 by %2
%6  copy     h2d@cuda:0:0          cpu:0:t1 -> t3                            f32[2]
%7  record   h2d@cuda:0:0          e0
%8  hostwait h2d@cuda:0:0          compute@cpu:0:0 by %4
%9  copy     h2d@cuda:0:0          cpu:0:t2 -> t4                            f32[2]
%10 record   h2d@cuda:0:0          e1

"#]],
    );
    Ok(())
}

/// A write of a part comes after the write of the whole, and after nothing that was done to other parts.
#[test]
fn disjoint_parts_need_nothing_of_each_other() -> Outcome {
    let mut b = InstructionsBuilder::new();
    let x = b.full(CPU, DType::F32, &[4, 2], 0.0)?;
    b.on_lane(1).fill(&x.slice(0, 1..3)?, 1.0)?;
    b.copy_into(&x.slice(0, 0..3)?, &x.slice(0, 1..4)?).expect_err("rows 1 and 2 are read and written");
    b.on_lane(2).op_into(Op::Neg, &[&x.slice(1, 0..1)?], Params::default(), &x.slice(1, 1..2)?)?;
    b.on_lane(3).op_into(Op::Neg, &[&x.slice(0, 0..1)?], Params::default(), &x.slice(0, 3..4)?)?;
    golden(
        b.finish(),
        SoftSyncMode::Minimal,
        str![[r#"
%0 fill     compute@cpu:0:0       0.0 -> t0                                 f32[4,2]
%1 wait     compute@cpu:0:1       compute@cpu:0:0 by %0
t1 = view t0 f32[2,2] strides 2,1 offset 2
%2 fill     compute@cpu:0:1       1.0 -> t1                                 f32[2,2]
%3 wait     compute@cpu:0:2       compute@cpu:0:1 by %2
t2 = view t0 f32[4,1] strides 2,1 offset 0
t3 = view t0 f32[4,1] strides 2,1 offset 1
%4 call     compute@cpu:0:2       neg t2 -> t3                              f32[4,1]
%5 wait     compute@cpu:0:3       compute@cpu:0:2 by %4
t4 = view t0 f32[1,2] strides 2,1 offset 0
t5 = view t0 f32[1,2] strides 2,1 offset 6
%6 call     compute@cpu:0:3       neg t4 -> t5                              f32[1,2]

"#]],
    );
    Ok(())
}

#[test]
fn parameters_of_ops_are_words_of_their_lines() -> Outcome {
    let mut b = InstructionsBuilder::new();
    let x = b.full(CPU, DType::F32, &[2, 3, 4], 0.5)?;
    let keep = Params { keep_dims: true, ..Params::over(Axes::new(&[0, 2])?) };
    b.op(Op::Sum, &[&x], keep)?;
    b.mean(&x, &[])?;
    b.argmax(&x, 1)?;
    b.softmax(&x, 2)?;
    let mask = b.cast(&x, DType::Bool)?;
    b.where_(&mask, &x, &x.broadcast_to(&[2, 3, 4])?)?;
    b.matmul(&x, &x.permute(&[0, 2, 1])?)?;
    golden(
        b.finish(),
        SoftSyncMode::Minimal,
        str![[r#"
%0 fill     compute@cpu:0:0       0.5 -> t0                                 f32[2,3,4]
%1 call     compute@cpu:0:0       sum axes 0,2 keep t0 -> t1                f32[1,3,1]
%2 call     compute@cpu:0:0       mean t0 -> t2                             f32[]
%3 call     compute@cpu:0:0       argmax axes 1 t0 -> t3                    i64[2,4]
%4 call     compute@cpu:0:0       softmax axes 2 t0 -> t4                   f32[2,3,4]
%5 call     compute@cpu:0:0       cast to bool t0 -> t5                     bool[2,3,4]
%6 call     compute@cpu:0:0       where t5 t0 t0 -> t6                      f32[2,3,4]
t7 = view t0 f32[2,4,3] strides 12,1,4 offset 0
%7 call     compute@cpu:0:0       matmul t0 t7 -> t8                        f32[2,3,3]

"#]],
    );
    Ok(())
}

#[test]
fn functions_touches_and_releases() -> Outcome {
    let mut b = InstructionsBuilder::new();
    let (x, log) = (b.full(Place::Host, DType::I64, &[2], 1)?, Var::new());
    let y = b.allocate(CPU, DType::Bool, &[2])?;
    b.fill(&y, true)?;
    b.call_fn("mix \"x\"\n", CPU, [x.read(), y.update(), log.write()], |_| Ok(()))?;
    {
        let mut b = b.on_lane(1);
        b.access("look", y.read(), |_| Ok(()))?;
        b.host_fn("print", CPU, || Ok(()));
        b.call_fn("send", CUDA, [log.read()], |_| Ok(()))?;
        b.touch(CPU, &[&x, &y]);
        b.release(&x);
        b.release(&y.slice(0, 0..1)?);
    }
    golden(
        b.finish(),
        SoftSyncMode::Minimal,
        str![[r#"
%0  fill     compute@cpu:0:0       1 -> host:t0                              i64[2]
%1  alloc    compute@cpu:0:0       -> t1                                     bool[2]
%2  fill     compute@cpu:0:0       true -> t1                                bool[2]
v0 = var
%3  fn       compute@cpu:0:0       "mix \"x\"\n" read host:t0 update t1 write v0
%4  wait     compute@cpu:0:1       compute@cpu:0:0 by %3
%5  access   compute@cpu:0:1       "look" read t1
%6  host     compute@cpu:0:1       "print"
%7  hostwait compute@cuda:0:1      compute@cpu:0:0 by %3
%8  fn       compute@cuda:0:1      "send" read v0
%9  touch    compute@cpu:0:1       host:t0 t1
%10 release  compute@cpu:0:1       host:t0
%11 release  compute@cpu:0:1       t1

"#]],
    );
    Ok(())
}

#[test]
fn barriers_events_and_syncs() -> Outcome {
    let mut b = InstructionsBuilder::new();
    let x = b.full(CUDA, DType::F32, &[], 1.0)?;
    let compute = StreamKey::new(CUDA, StreamType::Compute, 0);
    let event = b.record(compute);
    b.neg(&x)?;
    b.wait(StreamKey::new(CPU, StreamType::Compute, 0), compute, &event);
    b.host_fn("after the event", CPU, || Ok(()));
    b.barrier_with("swap", || Ok(()));
    b.relu(&x)?;
    b.barrier();
    b.global_sync();
    golden(
        b.finish(),
        SoftSyncMode::Minimal,
        str![[r#"
%0  fill     compute@cuda:0:0      1.0 -> t0                                 f32[]
%1  record   compute@cuda:0:0      e0
%2  call     compute@cuda:0:0      neg t0 -> t1                              f32[]
%3  record   compute@cuda:0:0      e1
%4  hostwait compute@cpu:0:0       compute@cuda:0:0 by e0
%5  host     compute@cpu:0:0       "after the event"
%6  hostwait barrier@cpu:0:0       compute@cuda:0:0 by e1
%7  hostwait barrier@cpu:0:0       compute@cpu:0:0 by %5
%8  barrier  barrier@cpu:0:0       "swap"
%9  hostwait compute@cuda:0:0      barrier@cpu:0:0 by %8
%10 call     compute@cuda:0:0      relu t0 -> t2                             f32[]
%11 record   compute@cuda:0:0      e2
%12 hostwait barrier@cpu:0:0       compute@cuda:0:0 by e2
%13 barrier  barrier@cpu:0:0
%14 sync     barrier@cpu:0:0

"#]],
    );
    Ok(())
}

/// A view of the whole storage is the storage; another shape of it is not.
#[test]
fn views_are_declared_before_their_first_use() -> Outcome {
    let mut b = InstructionsBuilder::new();
    let x = b.allocate(CPU, DType::F32, &[2, 3])?;
    b.fill(&x.permute(&[0, 1])?, 1.0)?;
    let flat = x.try_reshape(&[6])?.ok_or("contiguous")?;
    b.neg(&flat)?;
    let scalar = flat.slice(0, 5..6)?.try_reshape(&[])?.ok_or("one element")?;
    b.add(&x, &scalar)?;
    b.exp(&flat.slice(0, 3..3)?)?;
    golden(
        b.finish(),
        SoftSyncMode::Minimal,
        str![[r#"
%0 alloc    compute@cpu:0:0       -> t0                                     f32[2,3]
%1 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2,3]
t1 = view t0 f32[6] strides 1 offset 0
%2 call     compute@cpu:0:0       neg t1 -> t2                              f32[6]
t3 = view t0 f32[] strides  offset 5
%3 call     compute@cpu:0:0       add t0 t3 -> t4                           f32[2,3]
t5 = view t0 f32[0] strides 1 offset 0
%4 call     compute@cpu:0:0       exp t5 -> t6                              f32[0]

"#]],
    );
    Ok(())
}

/// What is appended keeps its own lines and events.
#[test]
fn appended_lists_plan_as_one() -> Outcome {
    let mut first = read("%0 fill compute@cpu:0:0 1.0 -> t0 f32[2]\n");
    let second = read(
        "
%0 fill compute@cpu:0:1 2.0 -> t0 f32[2]
%1 wait compute@cpu:0:0 compute@cpu:0:1 by %0
%2 call compute@cpu:0:0 relu t0 -> t1 f32[2]
",
    );
    first.append(second);
    golden(
        first,
        SoftSyncMode::Minimal,
        str![[r#"
%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[2]
%1 fill     compute@cpu:0:1       2.0 -> t1                                 f32[2]
%2 wait     compute@cpu:0:0       compute@cpu:0:1 by %1
%3 call     compute@cpu:0:0       relu t1 -> t2                             f32[2]

"#]],
    );
    Ok(())
}

/// In one pass over exact streams, a plan is a list that needs nothing more.
#[test]
fn a_plan_over_exact_streams_plans_to_itself() -> Outcome {
    let mut b = InstructionsBuilder::new();
    let x = b.full(Place::Host, DType::F32, &[2], 1.0)?;
    let y = b.copy(&x, CPU)?;
    let z = b.relu(&y)?;
    b.barrier();
    let w = b.on_lane(1).add(&y, &z)?;
    b.on_lane(1).copy(&w, Place::Host)?;
    let once = planned(b.finish(), SoftSyncMode::Minimal).list.to_string();
    let twice = planned(read(&once), SoftSyncMode::Minimal).list.to_string();
    assert_eq!(twice, once);
    Ok(())
}
