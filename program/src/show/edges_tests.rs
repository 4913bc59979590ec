//! Edges: reduced, and with what keeps them.

use std::collections::BTreeSet;

use streamvm_ep::{DType, DeviceId};
use streamvm_instructions::{Error, Lane};

use crate::{CompileOptions, KeptBy, Program, Recorder, compile, record};

const CPU: DeviceId = DeviceId::cpu(0);

fn recorded(f: impl FnOnce(&Recorder) -> Result<(), Error>) -> Program {
    record("p", f).expect("it can be recorded")
}

/// One stream, lanes of a GPU as branches, lanes of a CPU with large kernels as segments: each edge says what keeps it, and what follows from others is left out.
#[test]
fn edges_are_reduced_and_say_what_keeps_them() {
    let diamond = |device: DeviceId, size: usize| {
        recorded(move |r| {
            let x = r.feed("x", device, DType::F32, &[size, size])?;
            let first = x.matmul(&x)?;
            let (left, right) = (first.matmul(&x)?.matmul(&x)?, first.matmul(&first)?.matmul(&x)?);
            r.fetch("y", &(&(&left + &right)? + &first)?)
        })
    };
    let shown = |program: &Program, lanes: u32| {
        let options = CompileOptions { lanes, hand_over_ns: 1, ..CompileOptions::default() };
        compile(program, &options).expect("it compiles").show_edges()
    };
    let one = shown(&diamond(CPU, 8), 1);
    // The right side takes over the memory of the left one, which orders the two. That the last addition reads what step 0 wrote follows from the others.
    let expected = "\
6 edges of program p
%0 -> %1  read after write of arena  same thread: compute@cpu:0:0
%1 -> %2  read after write of arena  same thread: compute@cpu:0:0
%2 -> %3  write after read of arena  same thread: compute@cpu:0:0
%3 -> %4  read after write of arena  same thread: compute@cpu:0:0
%4 -> %5  read after write of arena  same thread: compute@cpu:0:0
%5 -> %6  read after write of arena  same thread: compute@cpu:0:0
";
    assert_eq!(one, expected);
    let branches = shown(&diamond(DeviceId::cuda(0), 64), 2);
    assert!(branches.contains("other thread: branch"), "{branches}");
    assert!(branches.contains("same thread: lane 1 of compute@cuda:0:0"), "{branches}");
    let segments = shown(&diamond(CPU, 512), 2);
    assert!(segments.contains("event: segment") && segments.contains("waits for segment"), "{segments}");
}

/// The edges reach what the dependences and orders reach, and lose each reach if one of them goes.
#[test]
fn edges_are_the_smallest_set_with_the_same_reach() {
    let mut edges_left_out = 0;
    for seed in 1..=200 {
        let mut state: u64 = seed;
        let mut draw = |below: usize| {
            // Knuth's MMIX generator; the high bits are the better ones.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let program = recorded(|r| {
            let mut tensors = vec![r.feed("x", CPU, DType::F32, &[8, 8])?];
            for _ in 0..3 + draw(20) {
                let [a, b] = [0, 1].map(|_| tensors[draw(tensors.len())].clone());
                match draw(5) {
                    0 if tensors.len() > 1 => tensors[1 + draw(tensors.len() - 1)].copy_from(&a.exp()?)?,
                    1 => r.host_fn("note", CPU, || Ok(()))?,
                    2 => tensors.push(a.to(DeviceId::sim(0))?.neg()?.to(CPU)?),
                    _ => tensors.push((&a + &b)?),
                }
            }
            tensors[1..].iter().enumerate().try_for_each(|(number, tensor)| r.fetch(format!("y{number}"), tensor))
        });
        let options = CompileOptions { lanes: 1 + draw(3) as u32, hand_over_ns: 1, ..CompileOptions::default() };
        let plan = compile(&program, &options).expect("it compiles");
        let dependences = plan.dependences();
        let all = dependences.iter().map(|it| (it.from, it.to));
        let orders = plan.ordered_steps(&dependences);
        let orders =
            orders.iter().flat_map(|it| it.lasts.iter().flat_map(|from| it.firsts.iter().map(|to| (*from, *to))));
        let all: Vec<(usize, usize)> = all.chain(orders).collect();
        let edges: Vec<(usize, usize)> = plan.edges().iter().map(|edge| (edge.from, edge.to)).collect();
        let reach = |edges: &[(usize, usize)]| {
            let mut reach = vec![BTreeSet::new(); plan.step_count()];
            for to in 0..plan.step_count() {
                for &(from, _) in edges.iter().filter(|edge| edge.1 == to) {
                    let before = reach[from].clone();
                    reach[to].extend(before);
                    reach[to].insert(from);
                }
            }
            reach
        };
        for edge in plan.edges() {
            let [from, to] = [edge.from, edge.to].map(|at| {
                let segment =
                    plan.segments().iter().find(|it| it.steps.contains(&at)).expect("each step is in a segment");
                let branch = segment.branches.iter().find(|it| it.steps.contains(&at));
                (segment.stream, segment.steps.start, branch.map(|branch| branch.lane), segment.is_transfer())
            });
            let (one_stream, one_segment) = (from.0 == to.0, from.1 == to.1);
            match &edge.kept_by {
                KeptBy::SameThread => assert!(one_stream && !(one_segment && from.2 != to.2), "{edge:?}\n{plan}"),
                KeptBy::OtherThread(waits) => {
                    assert!(one_segment && from.2 != to.2 && !waits.is_empty(), "{edge:?}\n{plan}")
                }
                KeptBy::Events(waits) => assert!((!one_stream || from.3) && !waits.is_empty(), "{edge:?}\n{plan}"),
            }
        }
        let wanted = reach(&all);
        assert_eq!(reach(&edges), wanted, "seed {seed}\n{plan}");
        for left_out in 0..edges.len() {
            let mut fewer = edges.clone();
            fewer.remove(left_out);
            assert_ne!(reach(&fewer), wanted, "seed {seed}: {:?} is not needed\n{plan}", edges[left_out]);
        }
        let mut distinct = all.clone();
        distinct.sort_unstable();
        distinct.dedup();
        edges_left_out += distinct.len() - edges.len();
    }
    assert!(edges_left_out > 200, "{edges_left_out}");
}

/// Not by the events of a shorter way over another stream.
#[test]
fn steps_of_one_stream_are_kept_by_its_thread() {
    let program = recorded(|r| {
        let x = r.feed("x", CPU, DType::F32, &[8])?;
        let (first, second) = (x.exp()?, x.neg()?);
        let there = Lane(1).run(|| first.abs())?;
        r.fetch("between", &x.sqrt()?)?;
        r.fetch("y", &(&there + &second)?)
    });
    let plan = compile(program, &CompileOptions::default()).expect("it compiles");
    let kept_by = |from, to| plan.edges().into_iter().find(|it| (it.from, it.to) == (from, to)).map(|it| it.kept_by);
    assert_eq!(kept_by(1, 4), Some(KeptBy::SameThread), "{}\n{plan}", plan.show_edges());
    assert_eq!(kept_by(0, 2), Some(KeptBy::Events(vec![(0, 1)])), "{}\n{plan}", plan.show_edges());
}

/// Ancestors are looked for in blocks of 1,024 steps.
#[test]
fn a_long_program_is_reduced_over_several_blocks_of_columns() {
    let program = recorded(|r| {
        let x = r.feed("x", CPU, DType::F32, &[2])?;
        let mut y = x.neg()?;
        let first = y.clone();
        for number in 0..9_000 {
            y = if number % 3_000 == 0 { (&y + &first)? } else { y.neg()? };
        }
        r.fetch("y", &y)
    });
    let plan = compile(program, &CompileOptions::default()).expect("it compiles");
    let edges = plan.edges();
    assert_eq!(edges.len(), plan.step_count() - 1, "a chain");
    assert!(edges.iter().all(|edge| edge.from + 1 == edge.to));
}
