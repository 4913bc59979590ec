//! Segments with branches: as golden texts, and what is not merged.

use std::collections::BTreeSet;

use streamvm_ep::{DType, DeviceId, DeviceKind, MAX_WRITES, MemoryKind, Shape};
use streamvm_instructions::{Critical, Error, Tensor};

use crate::compile::tests::{CPU, PAGE, recorded};
use crate::compile::{compile, compile_reporting};
use crate::plan::compiled::BufferRole;
use crate::{CompileOptions, Compiled, Program, Recorder, Segment, SegmentUse};

#[path = "../../../tests/src/support/cases.rs"]
mod cases;

const GPU: DeviceId = DeviceId::cuda(0);

fn on_lanes(program: &Program, lanes: u32) -> Compiled {
    compile(program, &options(lanes)).expect("it compiles")
}

fn options(lanes: u32) -> CompileOptions {
    CompileOptions { lanes, hand_over_ns: 0, fuse: false, ..CompileOptions::default() }
}

/// Two chains of products over `x`, and their sum.
fn chains(x: &Tensor) -> Result<[Tensor; 2], Error> {
    let chain = || x.matmul(x)?.matmul(x);
    Ok([chain()?, chain()?])
}

fn x(r: &Recorder) -> Result<Tensor, Error> {
    r.feed("x", GPU, DType::F32, &[8, 8])
}

fn branches(plan: &Compiled) -> usize {
    plan.segments().iter().map(|segment| segment.branches.len()).sum()
}

#[test]
fn lanes_of_a_gpu_become_branches_of_one_segment() {
    let program = recorded(|r| {
        let [left, right] = chains(&x(r)?)?;
        r.fetch("y", &(&left + &right)?)
    });
    let mut passes = String::new();
    let plan = compile_reporting(&program, &options(2), &mut |pass| {
        if pass.pass == "merge" {
            passes = format!("{}: {}\n{}", pass.pass, pass.summary, pass.details.join("\n"));
        }
    });
    let plan = plan.expect("it compiles");
    assert_eq!(
        passes,
        "merge: 1 of 1 segment on several lanes\nsegment 0 on compute@cuda:0:0: 5 steps, in 3 branches on 2 lanes"
    );
    assert_eq!(
        plan.to_string(),
        "\
program p on cuda:0
feed  x            read               256 bytes
fetch y            write              256 bytes
arena arena        write             1024 bytes
branch 0 on lane 0:
%0 matmul     x x -> arena+256                          f32[8,8]
%1 matmul     arena+256 x -> arena+0                    f32[8,8]
branch 1 on lane 1:
%2 matmul     x x -> arena+512                          f32[8,8]
%3 matmul     arena+512 x -> arena+768                  f32[8,8]
branch 2 on lane 0, after branch 1:
%4 add        arena+0 arena+768 -> y                    f32[8,8]
"
    );
    assert!(PAGE.contains(&plan.to_string()), "the page about programs shows another plan");
    for other in [
        CompileOptions { capture: false, ..options(2) },
        CompileOptions { check_finite: true, ..options(2) },
        CompileOptions { time_steps: true, ..options(2) },
        CompileOptions { step_by_step: true, ..options(2) },
        options(1),
    ] {
        let plan = compile(&program, &other).expect("it compiles");
        assert_eq!(branches(&plan), 0, "{other:?}\n{plan}");
    }
}

/// Each copies the results of one lane to the host: merged, the copy of one would wait for the other.
#[test]
fn what_another_stream_needs_early_stays_apart() {
    let program = recorded(|r| {
        let [left, right] = chains(&x(r)?)?;
        r.fetch("left", &left.to(CPU)?)?;
        r.fetch("right", &right.to(CPU)?)
    });
    let plan = on_lanes(&program, 2);
    assert!(branches(&plan) == 0 && plan.segments().len() == 4, "{plan}");
    // One copy of what both have computed waits for both anyway.
    let program = recorded(|r| {
        let [left, right] = chains(&x(r)?)?;
        r.fetch("y", &(&left + &right)?.to(CPU)?)
    });
    let plan = on_lanes(&program, 2);
    assert!(branches(&plan) == 3 && plan.segments().len() == 2, "{plan}");
    assert_eq!(plan.segments()[1].after, [0], "{plan}");
}

/// Merged, the lane that needs one copy would wait for the other.
#[test]
fn what_comes_late_from_another_stream_keeps_lanes_apart() {
    let program = recorded(|r| {
        let feed = |name| r.feed(name, CPU, DType::F32, &[8, 8]);
        let [left, right] = [feed("left")?.to(GPU)?, feed("right")?.to(GPU)?];
        let (left, right) = (left.matmul(&left)?.matmul(&left)?, right.matmul(&right)?.matmul(&right)?);
        r.fetch("left", &left)?;
        r.fetch("right", &right)
    });
    let plan = on_lanes(&program, 2);
    assert!(branches(&plan) == 0, "{plan}");
}

/// Kernels that may fail and random numbers are queued one by one, and would cut the graph; a section keeps its steps on their side.
#[test]
fn segments_that_are_no_graph_as_a_whole_stay_apart() {
    type Case = fn(&Recorder, &[Tensor; 2]) -> Result<(), Error>;
    let cases: [(&str, Case); 3] = [
        ("a kernel that may fail", |r, [left, right]| {
            let one = left.cast(DType::I32)?;
            r.fetch("left", &(&one / &one)?)?;
            r.fetch("right", right)
        }),
        ("a block", |r, [left, right]| {
            let small = left.sum(&[])?.lt(&right.sum(&[])?)?;
            r.if_true(&small, || left.copy_from(right))?;
            r.fetch("left", left)
        }),
        ("a section", |r, [left, right]| {
            let section = r.begin_section(&[&Critical::new("port")], &[left])?;
            r.end_section(section, &[right])?;
            r.fetch("right", &right.neg()?)
        }),
    ];
    for (name, case) in cases {
        let program = recorded(|r| case(r, &chains(&x(r)?)?));
        let plan = on_lanes(&program, 2);
        let is_captured = |name: &str| !["div", "if", "end"].contains(&name);
        for segment in plan.segments().iter().filter(|segment| !segment.branches.is_empty()) {
            let steps = plan.steps_of(segment.steps.clone());
            assert!(steps.clone().all(|step| is_captured(step.work.name())), "{name}: {plan}");
            let after_section = steps.filter(|step| step.work.name() == "neg").count();
            assert!(after_section == 0 || after_section == segment.steps.len(), "{name}: {plan}");
        }
    }
}

/// A merged segment writes no more than an instruction may: what goes from lane to lane is in one buffer, and what is fetched is not.
#[test]
fn a_merged_segment_writes_no_more_than_an_instruction_may() {
    let crossing = |fetches: usize| {
        recorded(|r| {
            let x = x(r)?;
            let products = || (0..100).map(|_| x.matmul(&x)).collect::<Result<Vec<Tensor>, Error>>();
            let (left, right) = (products()?, products()?);
            let mut sum = left[0].clone();
            for (number, (a, b)) in left.iter().zip(&right).enumerate() {
                sum = (&sum + &(a + b)?)?;
                if number < fetches {
                    r.fetch(format!("y{number}"), &sum)?;
                }
            }
            r.fetch("y", &sum)
        })
    };
    for fetches in [0, 40, 100] {
        for lanes in [2, 3, 8] {
            let plan = on_lanes(&crossing(fetches), lanes);
            let writes =
                plan.segments().iter().map(|segment| segment.uses.iter().filter(|it| it.access.writes()).count());
            assert!(writes.max().unwrap_or(0) <= MAX_WRITES, "{plan}");
            if fetches == 0 {
                assert_eq!(plan.segments().len(), 1, "{plan}");
                let own = plan.buffers().iter().filter(|buffer| matches!(buffer.role, BufferRole::Own(_)));
                assert_eq!(own.count(), 0, "{plan}");
            }
        }
    }
}

/// For each step of the recording those that have passed when it begins.
fn passed_before(plan: &Compiled) -> Vec<BTreeSet<usize>> {
    let numbers = |steps: std::ops::Range<usize>| plan.steps_of(steps).map(|step| step.number);
    // Everything that has passed when a segment has.
    let mut over: Vec<BTreeSet<usize>> = Vec::new();
    let mut before = vec![BTreeSet::new(); plan.program().steps.len()];
    for (number, segment) in plan.segments().iter().enumerate() {
        let on_stream = (0..number).filter(|&other| plan.segments()[other].stream == segment.stream);
        let earlier = on_stream.chain(segment.after.iter().copied());
        let passed: BTreeSet<usize> = earlier.flat_map(|other| &over[other]).copied().collect();
        let whole = crate::SegmentBranch { steps: segment.steps.clone(), lane: 0, after: Vec::new() };
        let branches = if segment.branches.is_empty() { vec![whole] } else { segment.branches.clone() };
        let mut ends: Vec<BTreeSet<usize>> = Vec::new();
        for (place, branch) in branches.iter().enumerate() {
            let on_lane = (0..place).filter(|&other| branches[other].lane == branch.lane);
            let mut known = passed.clone();
            on_lane.chain(branch.after.iter().copied()).for_each(|other| known.extend(&ends[other]));
            for step in numbers(branch.steps.clone()) {
                before[step] = known.clone();
                known.insert(step);
            }
            ends.push(known);
        }
        over.push(ends.into_iter().flatten().collect());
    }
    before
}

/// The bytes of its buffer that a segment declares.
fn bytes(plan: &Compiled, uses: &SegmentUse) -> BTreeSet<usize> {
    let Some(view) = &uses.view else { return uses.bytes.clone().collect() };
    let program = plan.program();
    let value = match plan.buffers()[uses.buffer].role {
        BufferRole::Fetched(value) | BufferRole::Own(value) => value,
        BufferRole::Feed(place) => program.feeds[place].value,
        BufferRole::Parameter(place) => program.parameters[place].value,
        role => panic!("a view of {role:?}"),
    };
    let size = program.value(value).dtype.size();
    let elements =
        view.shape().dims().iter().zip(view.strides()).fold(vec![view.offset()], |places, (&count, &stride)| {
            places.into_iter().flat_map(|place| (0..count).map(move |step| place + step * stride)).collect()
        });
    elements.into_iter().flat_map(|place| place * size..(place + 1) * size).collect()
}

/// Whether two segments declare the same bytes of a buffer, one of them writing: the engine lets the later one wait.
fn conflict(plan: &Compiled, one: &SegmentUse, two: &SegmentUse) -> bool {
    let writes = one.access.writes() || two.access.writes();
    one.buffer == two.buffer && writes && !bytes(plan, one).is_disjoint(&bytes(plan, two))
}

/// Pairs of segments that declare the same bytes of a buffer, one of them writing, although no step makes one wait for the other; and the buffer. Segments of one
/// stream share an arena, also if one of them was merged into a segment of another stream.
fn conflicts_without_order(plan: &Compiled) -> Vec<(usize, usize, usize)> {
    let segments = plan.segments();
    let mut passed: Vec<BTreeSet<usize>> = Vec::new();
    let mut found = Vec::new();
    for (number, segment) in segments.iter().enumerate() {
        let on_stream = (0..number).filter(|&other| segments[other].stream == segment.stream);
        let before: Vec<usize> = on_stream.chain(segment.after.iter().chain(&segment.waits).copied()).collect();
        let known: BTreeSet<usize> =
            before.iter().flat_map(|&other| passed[other].iter().copied().chain([other])).collect();
        for other in (0..number).filter(|other| !known.contains(other)) {
            for (one, two) in segments[other].uses.iter().flat_map(|one| segment.uses.iter().map(move |two| (one, two)))
            {
                if conflict(plan, one, two) && !matches!(plan.buffers()[one.buffer].role, BufferRole::Arena(_)) {
                    found.push((other, number, one.buffer));
                }
            }
        }
        passed.push(known);
    }
    found
}

/// Over drawn programs on a GPU and a CPU: no step waits for more than it does where segments are not merged, and for all that it needs.
#[test]
fn nothing_waits_longer_for_a_merged_segment() {
    let programs = cases::cases(600);
    let (mut merged, mut steps) = (0, 0);
    for seed in 1..=programs {
        let mut state = seed;
        let mut draw = |below: usize| {
            // Knuth's MMIX generator; the high bits are the better ones.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let program = recorded(|r| {
            let mut tensors = vec![x(r)?, r.feed("h", CPU, DType::F32, &[8, 8])?.to(GPU)?];
            for number in 0..6 + draw(20) {
                let [a, b] = [draw(tensors.len()), draw(tensors.len())].map(|place| tensors[place].clone());
                match draw(14) {
                    // Some columns of what was computed before; the first two tensors are feeds.
                    12.. if tensors.len() > 2 => {
                        let target = &tensors[2 + draw(tensors.len() - 2)];
                        let [from, to] = [0, 1].map(|_| 2 * draw(4));
                        if !std::ptr::eq(target.resource(), a.resource()) {
                            target.slice(1, to..to + 2)?.copy_from(&a.slice(1, from..from + 2)?)?;
                        }
                    }
                    0 => r.fetch(format!("h{number}"), &a.to(CPU)?)?,
                    1 => r.fetch(format!("g{number}"), &a.neg()?)?,
                    2 => tensors.push(a.to(CPU)?.neg()?.to(GPU)?),
                    3 => tensors.push((&a.cast(DType::I32)? / &b.cast(DType::I32)?)?.cast(DType::F32)?),
                    4 => tensors.push((&a + &b)?),
                    _ => tensors.push(a.matmul(&b)?),
                }
            }
            r.fetch("last", &tensors[tensors.len() - 1].neg()?)
        });
        let lanes = 2 + draw(3) as u32;
        let plan = on_lanes(&program, lanes);
        let apart = compile(&program, &CompileOptions { capture: false, ..options(lanes) }).expect("it compiles");
        merged += plan.segments().iter().filter(|segment| !segment.branches.is_empty()).count();
        steps += branches(&plan);
        for (step, (found, bound)) in passed_before(&plan).iter().zip(&passed_before(&apart)).enumerate() {
            assert!(found.is_subset(bound), "seed {seed}, step {step} waits longer in\n{plan}\nthan in\n{apart}");
        }
        let before = passed_before(&plan);
        for dependence in plan.dependences() {
            let positions = [dependence.from, dependence.to];
            let [from, to] = positions.map(|position| plan.step(position).number);
            let [one, two] = positions.map(|position| {
                let has = |segment: &&Segment| segment.steps.contains(&position);
                plan.segments().iter().find(has).expect("each step is in a segment")
            });
            let pairs = || one.uses.iter().flat_map(|one| two.uses.iter().map(move |two| (one, two)));
            let by_engine = !std::ptr::eq(one, two) && pairs().any(|(one, two)| conflict(&plan, one, two));
            assert!(
                before[to].contains(&from) || by_engine,
                "seed {seed}: step {to} does not wait for {from} in\n{plan}"
            );
        }
        assert!(plan.segments().iter().all(|it| it.branches.is_empty() || it.stream.device.kind == DeviceKind::CUDA));
        if let Some((one, other, buffer)) = conflicts_without_order(&plan).first() {
            panic!("seed {seed}: the engine would let segment {other} wait for {one} over buffer {buffer} in\n{plan}");
        }
    }
    assert!(merged > 50 && steps > 200, "{merged} merged segments of {steps} branches");
}

/// Kernels that each take one core are branches, and so are functions, one each. Kernels that are divided among the cores keep lanes apart, and so does a run that is looked into. Graphs
/// are of GPUs alone.
#[test]
fn lanes_of_a_cpu_become_branches_unless_a_kernel_uses_all_cores() {
    let chains = |elements: usize| {
        recorded(move |r| {
            let x = r.feed("x", CPU, DType::F32, &[elements])?;
            for name in ["left", "right"] {
                r.fetch(name, &x.sin()?.sin()?)?;
            }
            Ok(())
        })
    };
    let (small, large) = (chains(256), chains(100_000));
    let plan = on_lanes(&small, 2);
    assert!(branches(&plan) == 2 && plan.segments().len() == 1, "{plan}");
    let plan = on_lanes(&large, 2);
    assert!(branches(&plan) == 0 && plan.segments().len() == 2, "{plan}");
    let without = compile(&small, &CompileOptions { capture: false, ..options(2) }).expect("it compiles");
    assert_eq!(branches(&without), 2, "{without}");
    for other in [
        CompileOptions { check_finite: true, ..options(2) },
        CompileOptions { time_steps: true, ..options(2) },
        CompileOptions { step_by_step: true, ..options(2) },
    ] {
        let plan = compile(&small, &other).expect("it compiles");
        assert!(branches(&plan) == 0 && plan.segments().len() > 1, "{other:?}\n{plan}");
    }
}

/// A kernel counts as large by its size: a time that was measured is that of all cores. Neighbouring elementwise steps that may run together count together.
#[test]
fn kernels_count_as_large_by_estimate_and_fused_ones_together() {
    let chains = |elements: usize, steps: usize| {
        recorded(move |r| {
            let x = r.feed("x", CPU, DType::F32, &[elements])?;
            for name in ["left", "right"] {
                let mut y = x.clone();
                for _ in 0..steps {
                    y = y.neg()?;
                }
                r.fetch(name, &y)?;
            }
            Ok(())
        })
    };
    let (large, light) = (chains(100_000, 1), chains(20_000, 2));
    let mut costs = crate::Costs::default();
    for program in [&large, &light] {
        (0..2).for_each(|step| costs.add(program, step, std::time::Duration::from_micros(12)));
    }
    let with_costs = |program: &Program| compile(program, &CompileOptions { costs: costs.clone(), ..options(2) });
    let plan = with_costs(&large).expect("it compiles");
    assert!(branches(&plan) == 0 && plan.segments().len() == 2, "{plan}");
    assert_eq!(branches(&with_costs(&light).expect("it compiles")), 2);
    // 10 µs for each chain of two steps, 20 for one of four.
    for (steps, fuse, expected) in [(2, true, 2), (4, true, 0), (4, false, 2)] {
        let plan = compile(chains(20_000, steps), &CompileOptions { fuse, ..options(2) }).expect("it compiles");
        assert_eq!(branches(&plan), expected, "{steps} steps, fused: {fuse}\n{plan}");
    }
}

/// A program of functions and small kernels on one CPU is one segment: each function is a branch, and gets what it uses from the arena. With a large kernel it is several, and
/// functions are instructions of their own.
#[test]
fn functions_are_branches_where_the_whole_program_is_one_segment() {
    let program = |elements: usize| {
        recorded(move |r| {
            let x = r.feed("x", CPU, DType::F32, &[elements])?;
            for name in ["left", "right"] {
                let y = x.sin()?;
                let z = r.full(CPU, DType::F32, &[elements], 0.0)?;
                r.call_fn_on_workers(name, CPU, [y.read(), z.write()], |_| Ok(()))?;
                r.fetch(name, &z.sin()?)?;
            }
            Ok(())
        })
    };
    let plan = on_lanes(&program(256), 2);
    let [segment] = plan.segments() else { panic!("{plan}") };
    let of = |branch: &crate::SegmentBranch| {
        let names: Vec<&str> = plan.steps_of(branch.steps.clone()).map(|step| step.work.name()).collect();
        format!("{}: {} {:?}", branch.lane, names.join(" "), branch.after)
    };
    let found: Vec<String> = segment.branches.iter().map(of).collect();
    assert_eq!(found, ["0: sin []", "1: sin []", "0: fn []", "1: fn []", "0: sin []", "1: sin []"], "{plan}");
    assert!(plan.function_of(segment).is_none());
    let plan = on_lanes(&program(100_000), 2);
    assert!(branches(&plan) == 0, "{plan}");
    let functions = plan.segments().iter().filter(|segment| plan.function_of(segment).is_some());
    assert_eq!(functions.count(), 2, "{plan}");
}

/// Parts of one parameter that lanes use in any order are no reason to keep lanes apart, if there is nothing else in the program.
#[test]
fn a_program_that_is_one_segment_uses_its_buffers_whole() {
    let program = recorded(|r| {
        let x = r.feed("x", CPU, DType::F32, &[8, 16])?;
        let shape = Shape::new(&[8, 16])?;
        let parameter = r.parameter("y", &Tensor::unbound(CPU.into(), MemoryKind::Device, DType::F32, shape))?;
        for row in [0, 5, 2, 7] {
            parameter.slice(0, row..row + 1)?.copy_from(&x.slice(0, row..row + 1)?)?;
        }
        Ok(())
    });
    let plan = on_lanes(&program, 2);
    assert!(branches(&plan) >= 2 && plan.segments().len() == 1, "{plan}");
}

/// Rows of one value, each computed and then copied into it, beside a kernel that is too large for a branch. `place` has the row of each copy.
fn rows(count: usize, place: impl Fn(usize) -> usize) -> Program {
    recorded(|r| {
        let x = r.feed("x", CPU, DType::F32, &[count, 16])?;
        let y =
            r.feed("y", CPU, DType::F32, &[400_000])?.sin()?.slice(0, 0..count * 16)?.reshape(&[count, 16])?.neg()?;
        for row in (0..count).map(place) {
            let row = row..row + 1;
            y.slice(0, row.clone())?.copy_from(&x.slice(0, row)?.exp()?)?;
        }
        r.fetch("y", &y)
    })
}

/// Each row that a lane writes without the one before it would be a segment.
#[test]
fn writes_of_many_rows_are_few_segments() {
    for count in [1_000, 4_000] {
        let plans = [
            // The lanes have neighbouring rows.
            on_lanes_by_default(&rows(count, |row| row)),
            // 7,919 is a prime: no lane has neighbouring rows, so there is one lane.
            on_lanes_by_default(&rows(count, |row| row * 7_919 % count)),
        ];
        let segments = plans.map(|plan| plan.segments().len());
        assert!(segments[0] <= 12 && segments[1] == 1, "{count} rows: {segments:?} segments");
    }
}

fn on_lanes_by_default(program: &Program) -> Compiled {
    compile(program, &CompileOptions { lanes: 4, ..CompileOptions::default() }).expect("it compiles")
}
