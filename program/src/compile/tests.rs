//! What the passes do, as golden texts, and what they must not do.

use hashbrown::HashMap;
use streamvm_ep::{Access, DType, DeviceId, Layout, MemoryKind, Op, Params, Shape};
use streamvm_instructions::{Error, Generator, InstructionsBuilder, ProgramError, Tensor};

use crate::compile::compile;
use crate::ir::program::ValueId;
use crate::plan::compiled::{BufferRole, Located};
use crate::{CompileOptions, Compiled, Program, Recorder, record};

pub(super) const CPU: DeviceId = DeviceId::cpu(0);
pub(super) const SIM: DeviceId = DeviceId::sim(0);
pub(super) const PAGE: &str = include_str!("../../../docs/compiling.md");

pub(super) fn recorded(f: impl FnOnce(&Recorder) -> Result<(), Error>) -> Program {
    record("p", f).expect("it can be recorded")
}

pub(super) fn compiled(f: impl FnOnce(&Recorder) -> Result<(), Error>) -> Compiled {
    compile(recorded(f), &CompileOptions::default()).expect("it compiles")
}

pub(super) fn x(r: &Recorder) -> Result<Tensor, Error> {
    r.feed("x", CPU, DType::F32, &[16])
}

pub(super) fn x_like(r: &Recorder) -> Result<Tensor, Error> {
    r.full(CPU, DType::F32, &[16], 0.5)
}

/// The two products run through one piece of 64 bytes: `neg` and `relu` write over their inputs, and `exp` may not, as `neg` is read later.
#[test]
fn elementwise_steps_write_over_inputs_that_end_there() {
    let plan = compiled(|r| {
        let a = x(r)?.neg()?;
        let b = a.exp()?;
        let c = (&a + &b)?.relu()?;
        r.fetch("y", &c.sum(&[])?)
    });
    assert_eq!(
        plan.to_string(),
        "\
program p on cpu:0
feed  x            read                64 bytes
fetch y            write                4 bytes
arena arena        write              128 bytes
%0 neg        x -> arena+0                              f32[16]
%1 exp        arena+0 -> arena+64                       f32[16]
%2 add        arena+0 arena+64 -> arena+0               f32[16]
%3 relu       arena+0 -> arena+0                        f32[16]
%4 sum        arena+0 -> y                              f32[]
"
    );
    assert_eq!(plan.arena_lower_bound(), 128);
    assert!(PAGE.contains(&plan.to_string()), "the page about programs shows another plan");
}

/// Each of these would be wrong in place: the input broadcasts, is used by another view in the same step, is a feed, is fetched, is read
/// later, or has wider elements.
#[test]
fn steps_that_may_not_write_over_their_inputs_do_not() {
    type Case = fn(&Recorder) -> Result<(), Error>;
    let cases: [(&str, Case); 6] = [
        ("broadcast", |r| {
            let row = x(r)?.neg()?;
            let wide = r.feed("wide", CPU, DType::F32, &[2, 16])?;
            r.fetch("y", &(&row + &wide)?.sum(&[])?)
        }),
        ("two views", |r| {
            let square = r.feed("square", CPU, DType::F32, &[4, 4])?.neg()?;
            r.fetch("y", &(&square + &square.permute(&[1, 0])?)?.sum(&[])?)
        }),
        ("feed", |r| r.fetch("y", &x(r)?.relu()?.sum(&[])?)),
        ("fetched", |r| {
            let y = x(r)?.neg()?;
            r.fetch("y", &y)?;
            r.fetch("z", &y.relu()?.sum(&[])?)
        }),
        ("read later", |r| {
            let y = x(r)?.neg()?;
            let z = y.relu()?;
            r.fetch("y", &y.sum(&[])?)?;
            r.fetch("z", &z.sum(&[])?)
        }),
        ("wider", |r| r.fetch("y", &x(r)?.neg()?.cast(DType::F16)?.sum(&[])?)),
    ];
    for (name, case) in cases {
        let plan = compiled(case);
        for step in plan.steps() {
            let Some((output, inputs)) = step.operands.split_last() else { panic!("{name}: a step without operands") };
            let over = |input: &&crate::Located| input.storage == output.storage;
            assert!(!inputs.iter().any(|input| over(&input)), "{name}:\n{plan}");
        }
    }
}

#[test]
fn steps_that_nobody_fetches_are_removed() {
    let plan = compiled(|r| {
        let x = x(r)?;
        let unused = r.feed("unused", CPU, DType::F32, &[16])?;
        (&unused + &x)?.exp()?;
        let y = x.neg()?;
        let mut builder = InstructionsBuilder::new();
        // Overwritten whole before any step reads it; the later write of a part is needed.
        builder.fill(&y, 1.0)?;
        builder.fill(&y.slice(0, 0..4)?, 2.0)?;
        r.submit(builder.finish())?;
        r.fetch("y", &y)
    });
    assert_eq!(
        plan.to_string(),
        "\
program p on cpu:0
fetch y            write               64 bytes
%0 fill       -> y                                      f32[16]
%1 fill       -> y[strides 1 offset 0]                  f32[4]
"
    );
    let numbers: Vec<usize> = plan.steps().map(|step| step.number).collect();
    assert_eq!(numbers, [3, 4], "steps keep the numbers of the recording");
}

/// Accesses of parameters: read; overwritten whole; a part written; read and then written.
#[test]
fn a_parameter_is_declared_as_the_steps_use_it() {
    let plan = compiled(|r| {
        let like =
            Tensor::unbound(CPU.into(), streamvm_ep::MemoryKind::Device, DType::F32, streamvm_ep::Shape::new(&[16])?);
        let [read, whole, part, update] = ["read", "whole", "part", "update"].map(|name| r.parameter(name, &like));
        let (read, whole, part, update) = (read?, whole?, part?, update?);
        r.parameter("unused", &like)?;
        let mut builder = InstructionsBuilder::new();
        builder.op_into(Op::Neg, &[&read], Params::default(), &whole)?;
        builder.fill(&part.slice(0, 0..3)?, 0.0)?;
        builder.op_into(Op::Add, &[&update, &whole], Params::default(), &update)?;
        r.submit(builder.finish())
    });
    let accesses: Vec<_> = plan.buffers.iter().map(|buffer| (buffer.role, buffer.access)).collect();
    assert_eq!(
        accesses,
        [
            (BufferRole::Parameter(0), Access::Read),
            (BufferRole::Parameter(1), Access::Write),
            (BufferRole::Parameter(2), Access::ReadWrite),
            (BufferRole::Parameter(3), Access::ReadWrite),
        ]
    );
}

#[test]
fn what_cannot_be_compiled_says_why() {
    type Case = fn(&Recorder) -> Result<(), Error>;
    let cases: [(Case, CompileOptions, &str); 2] = [
        (
            |r| {
                let (x, yes) =
                    (r.feed("x", DeviceId::cuda(0), DType::F32, &[4])?, r.feed("yes", SIM, DType::Bool, &[])?);
                let y = x.neg()?;
                r.if_true(&yes, || y.copy_from(&x))?;
                r.fetch("y", &y)
            },
            CompileOptions::default(),
            "uses cuda:0, and the block uses sim:0; beside sim:0 it can use CPUs and sim devices",
        ),
        (
            |r| {
                let (yes, inner) =
                    (r.feed("yes", SIM, DType::Bool, &[])?, r.feed("no", DeviceId::cuda(0), DType::Bool, &[])?);
                let y = r.full(DeviceId::cpu(1), DType::F32, &[16], 0.0)?;
                r.if_true(&yes, || r.if_true(&inner, || y.fill(1.0)))?;
                r.fetch("y", &y)
            },
            CompileOptions::default(),
            "has a condition on cuda:0, and the block uses sim:0",
        ),
    ];
    for (case, options, part) in cases {
        let refused = compile(recorded(case), &options).expect_err("it cannot be compiled");
        let Error::Program { error, .. } = &refused else { panic!("{refused}") };
        let ProgramError::NotCompiled { step: Some(step), .. } = &**error else { panic!("{refused}") };
        let text = refused.to_string();
        let named = format!("step {} ({}), recorded at {}, ", step.number, step.name, step.site);
        assert!(text.contains(&named) && step.site.file().ends_with("compile/tests.rs"), "{text}");
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// The copy back waits for the device, and the sum of both results waits for the copy back. The other steps of the CPU are a segment in front of
/// that wait.
#[test]
fn each_stream_waits_where_it_needs_the_result_of_another() {
    let plan = compiled(|r| {
        let x = x(r)?;
        let on_device = x.to(SIM)?.exp()?.neg()?;
        let on_cpu = (&x + 1.0)?.relu()?;
        let back = on_device.to(CPU)?;
        r.fetch("own", &on_cpu)?;
        r.fetch("y", &(&on_cpu + &back)?)
    });
    assert_eq!(
        plan.to_string(),
        "\
program p on sim:0, cpu:0
feed  x            read                64 bytes
value %0           write               64 bytes
value %2           write               64 bytes
fetch own          write               64 bytes
value %5           write               64 bytes
fetch y            write               64 bytes
arena arena0       write               64 bytes
arena arena1       write               64 bytes
segment 0 on h2d@sim:0:0:
%0 copy       x -> %0                                   f32[16]
segment 1 on compute@sim:0:0, after segment 0:
%1 exp        %0 -> arena0+0                            f32[16]
%2 neg        arena0+0 -> %2                            f32[16]
segment 2 on compute@cpu:0:0:
%3 add        x 1.0 -> arena1+0                         f32[16]
%4 relu       arena1+0 -> own                           f32[16]
segment 3 on d2h@sim:0:0, after segment 1:
%5 copy       %2 -> %5                                  f32[16]
segment 4 on compute@cpu:0:0, after segment 3:
%6 add        own %5 -> y                               f32[16]
"
    );
}

/// Two copies to one device, one after the other: the step that needs the first alone does not wait for the second.
#[test]
fn a_step_does_not_wait_for_the_copy_after_the_one_that_it_needs() {
    let plan = compiled(|r| {
        let feed = |name: &str| r.feed(name, CPU, DType::F32, &[16])?.to(SIM);
        let (first, second) = (feed("first")?, feed("second")?);
        r.fetch("y", &(&first.exp()? + &second)?)
    });
    let after: Vec<_> = plan.segments.iter().map(|segment| (segment.steps.len(), segment.after.clone())).collect();
    assert_eq!(after, [(1, vec![]), (1, vec![]), (1, vec![0]), (1, vec![1])], "{plan}");
}

/// The products and what follows each are independent, so two lanes have one each; the sum of both waits for the other lane.
#[test]
fn independent_chains_are_spread_over_lanes() {
    let program = recorded(|r| {
        let x = r.feed("x", CPU, DType::F32, &[64, 64])?;
        let chain = || x.matmul(&x)?.matmul(&x)?.matmul(&x);
        let (a, b) = (chain()?, chain()?);
        r.fetch("y", &(&a + &b)?)
    });
    let lanes = |lanes, hand_over_ns| {
        let options = CompileOptions { lanes, hand_over_ns, ..CompileOptions::default() };
        compile(&program, &options).expect("it compiles")
    };
    assert_eq!(
        lanes(2, 2_000).to_string(),
        "\
program p on cpu:0
feed  x            read             16384 bytes
fetch y            write            16384 bytes
arena arena        write            81920 bytes
branch 0 on lane 0:
%0 matmul     x x -> arena+0                            f32[64,64]
%1 matmul     arena+0 x -> arena+16384                  f32[64,64]
%2 matmul     arena+16384 x -> arena+0                  f32[64,64]
branch 1 on lane 1:
%3 matmul     x x -> arena+32768                        f32[64,64]
%4 matmul     arena+32768 x -> arena+49152              f32[64,64]
%5 matmul     arena+49152 x -> arena+65536              f32[64,64]
branch 2 on lane 0, after branch 1:
%6 add        arena+0 arena+65536 -> y                  f32[64,64]
"
    );
    let branches = |plan: Compiled| plan.segments()[0].branches.len();
    assert_eq!(branches(lanes(1, 0)), 0);
    assert_eq!(branches(lanes(2, 1_000_000)), 0, "the hand-over would cost more than it gains");
    assert_eq!(lanes(8, 2_000).segments(), lanes(2, 2_000).segments(), "there are no more than two chains");
}

/// Eight columns, of which each row needs the column to the right in the row before. Two lanes end earliest in many ways; with half of the columns
/// each, one product of each row needs a value of the other lane.
#[test]
fn neighbours_share_a_lane_where_that_ends_as_early() {
    let program = recorded(|r| {
        let x = r.feed("x", CPU, DType::F32, &[4, 4])?;
        let mut row: Vec<Tensor> = (0..8).map(|_| x.matmul(&x)).collect::<Result<_, Error>>()?;
        for _ in 1..5 {
            row = (0..8).map(|column| row[column].matmul(&row[(column + 1).min(7)])).collect::<Result<_, Error>>()?;
        }
        row.iter().enumerate().try_for_each(|(column, y)| r.fetch(format!("y{column}"), y))
    });
    let options = CompileOptions { lanes: 2, hand_over_ns: 0, ..CompileOptions::default() };
    let plan = compile(&program, &options).expect("it compiles");
    let branches = &plan.segments()[0].branches;
    let mut lane_of: HashMap<ValueId, usize> = HashMap::new();
    let (mut of_lanes, mut handed_over) = ([0; 2], 0);
    for (place, step) in plan.steps().enumerate() {
        let branch = branches.iter().find(|branch| branch.steps.contains(&place)).expect("each step has a branch");
        of_lanes[branch.lane] += 1;
        let (output, inputs) = step.operands.split_last().expect("a product has operands");
        let elsewhere = |input: &&Located| lane_of.get(&input.value).is_some_and(|lane| *lane != branch.lane);
        handed_over += inputs.iter().filter(elsewhere).count();
        lane_of.insert(output.value, branch.lane);
    }
    assert_eq!((of_lanes, handed_over), ([20, 20], 4), "{plan}");
}

/// An instruction writes at most 64 tensors, so what 100 fetches need is two segments; so is what goes from lane to lane.
#[test]
fn a_segment_writes_no_more_than_an_instruction_may() {
    let fetches = recorded(|r| {
        let x = x(r)?;
        (0..100).try_for_each(|number| r.fetch(format!("y{number}"), &(&x + f64::from(number))?))
    });
    let crossing = recorded(|r| {
        let x = r.feed("x", CPU, DType::F32, &[32, 32])?;
        let products = || (0..100).map(|_| x.matmul(&x)).collect::<Result<Vec<Tensor>, Error>>();
        let (left, right) = (products()?, products()?);
        let mut pairs = left.iter().zip(&right).enumerate();
        pairs.try_for_each(|(number, (a, b))| r.fetch(format!("y{number}"), &(a + b)?))
    });
    for program in [fetches, crossing] {
        for (lanes, hand_over_ns) in [(1, 0), (2, 0), (u32::MAX, 0), (3, u64::MAX)] {
            let options = CompileOptions { lanes, hand_over_ns, ..CompileOptions::default() };
            let plan = compile(&program, &options).expect("it compiles");
            assert!(plan.segments.len() > 1, "{lanes} lanes:\n{plan}");
            for segment in &plan.segments {
                assert!(segment.uses.iter().filter(|it| it.access.writes()).count() <= streamvm_ep::MAX_WRITES);
            }
        }
    }
}

/// A step that reads a view without elements comes after the step that makes the value, as a reader of elements does.
#[test]
fn what_has_no_elements_is_read_after_what_makes_it() {
    let plan = compiled(|r| {
        let (x, none) = (x(r)?, r.feed("none", CPU, DType::F32, &[0, 4])?);
        let own = (&x + 1.0)?;
        let back = none.to(SIM)?.to(CPU)?;
        let part = x.to(SIM)?.to(CPU)?.slice(0, 3..3)?;
        r.fetch("own", &own)?;
        r.fetch("sum", &back.sum(&[0])?)?;
        r.fetch("part", &part.sum(&[0])?)
    });
    let place = |name: &str, number: usize| {
        let steps = plan.steps().enumerate().filter(|(_, step)| step.work.name() == name);
        steps.map(|(position, _)| position).nth(number)
    };
    assert!(place("copy", 3) < place("sum", 0), "{plan}");
    assert!(plan.segments.last().is_some_and(|segment| !segment.after.is_empty()), "{plan}");
}

/// Two streams write the halves of one fetch, and neither waits for the other. A third writes what both have written.
#[test]
fn segments_declare_the_bytes_that_they_use() {
    let plan = compiled(|r| {
        let (x, y) = (r.feed("x", SIM, DType::F32, &[8])?, r.full(CPU, DType::F32, &[16], 0.0)?);
        y.slice(0, 8..16)?.copy_from(&x)?;
        let first = y.slice(0, 0..8)?;
        first.copy_from(&(&first + 1.0)?)?;
        r.fetch("y", &y)
    });
    let uses = |segment: usize| -> Vec<_> {
        let of_fetch =
            |segment_use: &&crate::SegmentUse| matches!(plan.buffers[segment_use.buffer].role, BufferRole::Fetched(_));
        plan.segments[segment].uses.iter().filter(of_fetch).map(|it| (it.bytes.clone(), it.access)).collect()
    };
    assert_eq!(plan.segments.len(), 3, "{plan}");
    assert_eq!(uses(0), [(0..64, Access::Write)]);
    assert_eq!(uses(1), [(32..64, Access::Write)]);
    assert_eq!(uses(2), [(0..32, Access::ReadWrite)]);
    assert_eq!(plan.segments[2].after, Vec::<usize>::new(), "{plan}");
}

/// Two streams write columns of one fetch, which lie between each other, and neither waits for the other. Steps over several columns
/// are segments of their own, because one instruction would declare the columns in between.
#[test]
fn segments_over_other_columns_declare_the_elements_that_they_use() {
    let plan = compiled(|r| {
        let (x, y) = (r.feed("x", SIM, DType::F32, &[4, 1])?, r.full(CPU, DType::F32, &[4, 4], 0.0)?);
        let column = |place: usize| y.slice(1, place..place + 1);
        column(1)?.copy_from(&x)?;
        let first = column(0)?;
        first.copy_from(&(&first + 1.0)?)?;
        column(2)?.fill(3.0)?;
        r.fetch("y", &y)
    });
    let of_fetch =
        |segment_use: &&crate::SegmentUse| matches!(plan.buffers[segment_use.buffer].role, BufferRole::Fetched(_));
    let uses = |segment: usize| -> Vec<_> {
        let uses = plan.segments[segment].uses.iter().filter(of_fetch);
        uses.map(|it| (it.bytes.clone(), it.view.map(|view| view.offset()), it.access)).collect()
    };
    assert_eq!(plan.segments.len(), 4, "{plan}");
    assert_eq!(uses(0), [(0..64, None, Access::Write)]);
    assert_eq!(uses(1), [(4..56, Some(1), Access::Write)]);
    assert_eq!(uses(2), [(0..52, Some(0), Access::ReadWrite)]);
    assert_eq!(uses(3), [(8..60, Some(2), Access::Write)]);
    assert!(plan.segments[2..].iter().all(|segment| segment.after.is_empty()), "{plan}");
}

/// Each run goes on where the run before has ended: 16 elements are 4 blocks, 3 of eight bytes are 2, and the numbers of another seed do not
/// count. A step that was removed counts.
#[test]
fn runs_advance_by_what_the_steps_of_a_seed_draw() {
    let plan = compiled(|r| {
        let (one, other) = (Generator::at(1, 10), Generator::new(2));
        let mut builder = InstructionsBuilder::new();
        let first = builder.rand(&one, CPU, DType::F32, &[16])?;
        let second = builder.randn(&other, CPU, DType::F32, &[4])?;
        builder.rand(&one, CPU, DType::F64, &[3])?;
        r.submit(builder.finish())?;
        r.fetch("first", &first)?;
        r.fetch("second", &(&second + 1.0)?)
    });
    let drawn: Vec<_> = plan.steps().map(|step| (step.work.name(), step.advance)).collect();
    assert_eq!(drawn, [("uniform", 6), ("normal", 1), ("add", 0)]);
    assert!(plan.draws());
}

/// Each step is a segment, and each value has memory of its own.
#[test]
fn step_by_step_nothing_shares_memory() {
    let program = recorded(|r| {
        let x = r.feed("x", CPU, DType::F32, &[10_000])?;
        r.fetch("y", &(&x.neg()? + 1.0)?.exp()?.sum(&[])?)
    });
    let options = CompileOptions { step_by_step: true, ..CompileOptions::default() };
    let plan = compile(&program, &options).expect("it compiles");
    assert_eq!((plan.segments.len(), plan.step_count()), (4, 4), "{plan}");
    assert!(plan.arenas.is_empty() && plan.fused.is_empty(), "{plan}");
    assert!(plan.is_step_by_step());
}

/// A chain through one pair of buffers, whatever its length; every value of it fits between its neighbours.
#[test]
fn memory_of_a_chain_does_not_grow_with_its_length() {
    for length in [4, 64, 1_000] {
        let plan = compiled(|r| {
            let w = r.feed("w", CPU, DType::F32, &[16, 16])?;
            let mut y = r.feed("x", CPU, DType::F32, &[16, 16])?;
            for _ in 0..length {
                y = y.matmul(&w)?;
            }
            r.fetch("y", &y)
        });
        assert_eq!((plan.arena_bytes(), plan.arena_lower_bound()), (2 * 16 * 16 * 4, 2 * 16 * 16 * 4));
    }
}

/// Sums over the buffers of a run do not overflow, because a run that needs more than can be counted is refused.
#[test]
fn a_run_that_needs_more_bytes_than_can_be_counted_is_refused() {
    let program = recorded(|r| {
        let x = r.feed("x", CPU, DType::I64, &[1 << 59])?;
        for name in ["a", "b", "c", "d", "e"] {
            r.fetch(name, &x.neg()?)?;
        }
        Ok(())
    });
    let error = compile(&program, &CompileOptions::default()).expect_err("20 EiB").to_string();
    assert!(error.contains(&format!("a run needs {} bytes", 5_u128 << 62)), "{error}");
}

/// A segment that reads a column along an axis on which it is repeated, and then writes the column, declares the column: a write has no element twice.
#[test]
fn a_segment_declares_a_repeated_view_without_its_repeats() {
    let plan = compiled(|r| {
        let table =
            r.parameter("table", &Tensor::unbound(SIM.into(), MemoryKind::Device, DType::F32, Shape::new(&[4, 4])?))?;
        let column = table.slice(1, 0..1)?;
        let wide = column.broadcast_to(&[4, 4])?.exp()?;
        column.copy_from(&wide.slice(1, 2..3)?)?;
        // A second segment, on a copy stream.
        r.fetch("y", &wide.to(CPU)?)
    });
    let views: Vec<&Layout> = plan
        .segments()
        .iter()
        .flat_map(|segment| &segment.uses)
        .filter(|it| it.access.writes())
        .filter_map(|it| it.view.as_ref())
        .collect();
    assert_eq!(views.len(), 1, "{plan}");
    assert!(!views[0].overlaps_itself() && views[0].elements() == 4, "{views:?}");
}
