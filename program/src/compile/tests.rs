//! What the passes do, as golden texts, and what they must not do.

use streamvm_ep::{Access, DType, DeviceId, Op, Params};
use streamvm_instructions::{Error, Generator, InstructionsBuilder, ProgramError, Tensor};

use crate::compile::compile;
use crate::plan::compiled::BufferRole;
use crate::{CompileOptions, Compiled, Program, Recorder, Work, record};

pub(super) const CPU: DeviceId = DeviceId::cpu(0);
pub(super) const SIM: DeviceId = DeviceId::sim(0);

pub(super) fn recorded(f: impl FnOnce(&Recorder) -> Result<(), Error>) -> Program {
    record("p", f).expect("it can be recorded")
}

pub(super) fn compiled(f: impl FnOnce(&Recorder) -> Result<(), Error>) -> Compiled {
    compile(&recorded(f), &CompileOptions::default()).expect("it compiles")
}

pub(super) fn x(r: &Recorder) -> Result<Tensor, Error> {
    r.feed("x", CPU, DType::F32, &[16])
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
        for step in &plan.steps {
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
    let numbers: Vec<usize> = plan.steps.iter().map(|step| step.number).collect();
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
                let (x, yes) = (r.feed("x", SIM, DType::F32, &[4])?, r.feed("yes", CPU, DType::Bool, &[])?);
                let y = x.neg()?;
                r.if_true(&yes, || y.copy_from(&x))?;
                r.fetch("y", &y)
            },
            CompileOptions::default(),
            "copy the condition to sim:0",
        ),
        (
            |r| {
                let (x, yes) = (x(r)?, r.feed("yes", CPU, DType::Bool, &[])?);
                let y = r.full(DeviceId::cpu(1), DType::F32, &[16], 0.0)?;
                r.if_true(&yes, || y.copy_from(&x))?;
                r.fetch("y", &y)
            },
            CompileOptions::default(),
            "h2d@cpu:1:0",
        ),
    ];
    for (case, options, part) in cases {
        let refused = compile(&recorded(case), &options).expect_err("it cannot be compiled");
        let Error::Program(error) = &refused else { panic!("{refused}") };
        let ProgramError::NotCompiled { step: Some(step), .. } = &**error else { panic!("{refused}") };
        let text = refused.to_string();
        let named = format!("step {} ({}), recorded at {}, ", step.number, step.name, step.location);
        assert!(text.contains(&named) && step.location.file().ends_with("compile/tests.rs"), "{text}");
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
value %6           write               64 bytes
fetch y            write               64 bytes
arena arena0       write               64 bytes
arena arena1       write              128 bytes
segment 0 on h2d@sim:0:0:
%0 copy       x -> %0                                   f32[16]
segment 1 on compute@sim:0:0, behind segment 0:
%1 exp        %0 -> arena0+0                            f32[16]
%2 neg        arena0+0 -> %2                            f32[16]
segment 2 on compute@cpu:0:0:
%3 fill       -> arena1+0                               f32[]
%4 add        x arena1+0 -> arena1+64                   f32[16]
%5 relu       arena1+64 -> own                          f32[16]
segment 3 on d2h@sim:0:0, behind segment 1:
%6 copy       %2 -> %6                                  f32[16]
segment 4 on compute@cpu:0:0, behind segment 3:
%7 add        own %6 -> y                               f32[16]
"
    );
}

/// Two copies to one device, one after the other: the step that needs the first alone does not wait for the second.
#[test]
fn a_step_does_not_wait_for_the_copy_behind_the_one_that_it_needs() {
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
value %5           write            16384 bytes
fetch y            write            16384 bytes
arena arena0       write            32768 bytes
arena arena1       write            32768 bytes
segment 0 on compute@cpu:0:0:
%0 matmul     x x -> arena0+0                           f32[64,64]
%1 matmul     arena0+0 x -> arena0+16384                f32[64,64]
%2 matmul     arena0+16384 x -> arena0+0                f32[64,64]
segment 1 on compute@cpu:0:1:
%3 matmul     x x -> arena1+0                           f32[64,64]
%4 matmul     arena1+0 x -> arena1+16384                f32[64,64]
%5 matmul     arena1+16384 x -> %5                      f32[64,64]
segment 2 on compute@cpu:0:0, behind segment 1:
%6 add        arena0+0 %5 -> y                          f32[64,64]
"
    );
    assert_eq!(lanes(1, 0).segments().len(), 1);
    assert_eq!(lanes(2, 1_000_000).segments().len(), 1, "the hand-over would cost more than it gains");
    assert_eq!(lanes(8, 2_000).segments(), lanes(2, 2_000).segments(), "there are no more than two chains");
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
fn what_has_no_elements_is_read_behind_what_makes_it() {
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
        let steps = plan.steps.iter().enumerate().filter(|(_, step)| step.work.name() == name);
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

/// In a block, recording refuses random numbers with the line, and the compiler refuses them in programs of another origin.
#[test]
fn random_numbers_in_blocks_are_refused() {
    let generator = Generator::new(1);
    let draws = |r: &Recorder| {
        let mut builder = InstructionsBuilder::new();
        let drawn = builder.rand(&generator, CPU, DType::F32, &[16])?;
        r.submit(builder.finish())?;
        Ok(drawn)
    };
    let refused = record("p", |r| {
        let yes = r.full(CPU, DType::Bool, &[], true)?;
        r.if_true(&yes, || draws(r).map(drop))
    });
    let text = refused.expect_err("it cannot be recorded").to_string();
    assert!(text.contains("random") && text.contains("tests.rs:"), "{text}");
    let mut program = recorded(|r| {
        let (yes, y) = (r.full(CPU, DType::Bool, &[], true)?, x(r)?.neg()?);
        r.if_true(&yes, || y.fill(1.0))?;
        r.fetch("y", &y)
    });
    program.steps[3].work = Work::Call(Op::Uniform, Params::random(1, 0));
    let refused = compile(&program, &CompileOptions::default()).expect_err("it cannot be compiled").to_string();
    assert!(refused.contains("step 3 (uniform)") && refused.contains("random"), "{refused}");
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
    let drawn: Vec<_> = plan.steps.iter().map(|step| (step.work.name(), step.advance)).collect();
    assert_eq!(drawn, [("uniform", 6), ("normal", 1), ("fill", 0), ("add", 0)]);
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
    assert_eq!((plan.segments.len(), plan.steps.len()), (5, 5), "{plan}");
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

/// `x` is counted to eleven. `unused` is written in the loop, and no step reads it; `carried` is read in the next round only.
#[test]
fn loops_keep_what_their_next_round_reads() {
    let plan = compiled(|r| {
        let scalar = |value: i32| r.full(CPU, DType::I32, &[], value);
        let (x, eleven, carried, unused) = (scalar(0)?, scalar(11)?, scalar(1)?, scalar(0)?);
        let goes_on = x.lt(&eleven)?;
        r.while_true(&goes_on, || {
            let mut builder = InstructionsBuilder::new();
            builder.copy_into(&(&x + &carried)?, &x)?;
            builder.copy_into(&(&x * &x)?, &unused)?;
            builder.copy_into(&(&carried + 1)?, &carried)?;
            builder.copy_into(&x.lt(&eleven)?, &goes_on)?;
            r.submit(builder.finish())
        })?;
        r.fetch("x", &x)
    });
    assert_eq!(
        plan.to_string(),
        "\
program p on cpu:0
fetch x            write                4 bytes
arena arena        write              384 bytes
%0  fill       -> x                                      i32[]
%1  fill       -> arena+0                                i32[]
%2  fill       -> arena+64                               i32[]
%3  lt         x arena+0 -> arena+128                    bool[]
%4  while      arena+128
%5    add      x arena+64 -> arena+192                   i32[]
%6    fill     -> arena+256                              i32[]
%7    add      arena+64 arena+256 -> arena+256           i32[]
%8    lt       x arena+0 -> arena+320                    bool[]
%9    copy     arena+192 -> x                            i32[]
%10   copy     arena+256 -> arena+64                     i32[]
%11   copy     arena+320 -> arena+128                    bool[]
%12 end
"
    );
}

/// A block of which nothing is needed is removed with its condition. A parameter that a block overwrites whole keeps its elements if the block
/// does not run, so the run also reads it.
#[test]
fn blocks_may_not_run() {
    let plan = compiled(|r| {
        let like =
            Tensor::unbound(CPU.into(), streamvm_ep::MemoryKind::Device, DType::F32, streamvm_ep::Shape::new(&[16])?);
        let (x, p) = (x(r)?, r.parameter("p", &like)?);
        let (sum, y) = (x.sum(&[])?, x.neg()?);
        let (large, small) = (sum.gt(&r.full(CPU, DType::F32, &[], 1.0)?)?, sum.lt(&sum)?);
        r.if_else(
            &large,
            || {
                let mut builder = InstructionsBuilder::new();
                builder.fill(&p, 1.0)?;
                builder.fill(&y, 2.0)?;
                r.submit(builder.finish())
            },
            || x.exp().map(drop),
        )?;
        r.if_true(&small, || x.exp().map(drop))?;
        r.fetch("y", &y)
    });
    let names: Vec<&str> = plan.steps.iter().map(|step| step.work.name()).collect();
    assert_eq!(names, ["sum", "neg", "fill", "gt", "if", "fill", "fill", "else", "end"]);
    let access = |name: &str| {
        let is_named = |buffer: &&crate::CompiledBuffer| match buffer.role {
            BufferRole::Parameter(place) => plan.program().parameters[place].name == name,
            _ => false,
        };
        plan.buffers.iter().find(is_named).map(|buffer| buffer.access)
    };
    assert_eq!(access("p"), Some(Access::ReadWrite));
}

/// In the loop, `kept` is read before `new` is made, so that one piece of memory would do; the next round reads `kept` again.
#[test]
fn memory_of_what_a_loop_reads_again_is_not_used_for_other_values() {
    let plan = compiled(|r| {
        let (kept, goes_on) = (x(r)?.neg()?, r.full(CPU, DType::Bool, &[], true)?);
        let sum = r.full(CPU, DType::F32, &[], 0.0)?;
        r.while_true(&goes_on, || {
            let total = kept.sum(&[])?;
            let new = x_like(r)?.exp()?;
            let mut builder = InstructionsBuilder::new();
            builder.copy_into(&(&total + &new.sum(&[])?)?, &sum)?;
            builder.fill(&goes_on, false)?;
            r.submit(builder.finish())
        })?;
        r.fetch("sum", &sum)
    });
    let storage = |name: &str| {
        let step = plan.steps.iter().find(|step| step.work.name() == name);
        step.and_then(|step| step.operands.last()).map(|output| output.storage)
    };
    assert_ne!(storage("neg"), storage("exp"), "{plan}");
}

fn x_like(r: &Recorder) -> Result<Tensor, Error> {
    r.full(CPU, DType::F32, &[16], 0.5)
}

pub(super) const PAGE: &str = include_str!("../../../docs/programs.md");

/// Values between the steps are in scratch memory: the arena has none of them.
#[test]
fn neighbouring_elementwise_steps_run_together() {
    let record = |elements: usize| {
        compiled(|r| {
            let x = r.feed("x", CPU, DType::F32, &[elements])?;
            r.fetch("y", &(&(&x * &x)? + &x)?.relu()?)
        })
    };
    let plan = record(1_000_000).to_string();
    assert!(PAGE.contains(&plan), "the page about programs shows another plan:\n{plan}");
    assert!(record(2_048).fused().is_empty(), "one block is computed step by step");
    assert_eq!(record(2_049).fused().len(), 1);
}

/// One kernel, for tensors of any size. What it has in registers keeps its place in the arena, where steps that run one by one use it: two values that
/// are not alive at one time share theirs. Simulated devices fuse nothing.
#[test]
fn neighbouring_elementwise_steps_on_a_gpu_are_one_kernel() {
    let record = |device: DeviceId| {
        compiled(|r| {
            let x = r.feed("x", device, DType::F32, &[4])?;
            r.fetch("y", &(&(&x * &x)? + &x)?.relu()?)
        })
    };
    let plan = record(DeviceId::cuda(0));
    assert!(PAGE.contains(&plan.to_string()), "the page about programs shows another plan:\n{plan}");
    let [group] = plan.fused() else { panic!("{plan}") };
    assert!(plan.steps()[..2].iter().all(|step| group.is_unstored(step.operands[2].value)), "{group:?}");
    assert!(!group.is_unstored(plan.steps()[2].operands[1].value), "{group:?}");
    assert!(record(SIM).fused().is_empty());
}

/// At most so many views of memory are in a group: a kernel has no more in its parameter.
#[test]
fn a_kernel_has_a_bounded_number_of_views() {
    let plan = compiled(|r| {
        let feed = |number: usize| r.feed(format!("x{number}"), DeviceId::cuda(0), DType::I32, &[2]);
        let feeds = (0..40).map(feed).collect::<Result<Vec<Tensor>, _>>()?;
        feeds.iter().enumerate().try_for_each(|(number, x)| r.fetch(format!("y{number}"), &x.neg()?))
    });
    let groups: Vec<usize> = plan.fused().iter().map(|group| group.steps.len()).collect();
    assert_eq!(groups, [16, 16, 8], "{plan}");
}

/// Each ends a group: a step that is not elementwise, another shape, a value that is read through another view than it is written, integers that
/// are divided, and a block.
#[test]
fn steps_that_cannot_run_together_do_not() {
    type Case = fn(&Recorder, &Tensor) -> Result<Tensor, Error>;
    let cases: [(&str, Case); 5] = [
        ("a sum", |_, x| &x.neg()?.sum(&[0])? + x),
        ("another shape", |_, x| x.neg()?.slice(0, 0..60)?.abs()?.sum(&[])),
        ("another view", |_, x| &x.neg()? + &x.neg()?.permute(&[1, 0])?),
        ("a division", |_, x| &x.neg()? / x),
        ("a block", |r, x| {
            let (y, yes) = (x.neg()?, r.full(CPU, DType::Bool, &[], true)?);
            r.if_true(&yes, || {
                let mut builder = InstructionsBuilder::new();
                builder.fill(&y, 0)?;
                r.submit(builder.finish())
            })?;
            Ok(y)
        }),
    ];
    for (name, case) in cases {
        let plan = compiled(|r| {
            let x = r.feed("x", CPU, DType::I32, &[100, 100])?;
            r.fetch("y", &case(r, &x)?)
        });
        for fused in plan.fused() {
            let together: Vec<&str> = plan.steps[fused.steps.clone()].iter().map(|step| step.work.name()).collect();
            assert_eq!(together, ["neg", "neg"], "{name}:\n{plan}");
        }
    }
}

/// Values that a group reads from the arena keep their memory until the group ends: its blocks are computed one after the other.
#[test]
fn what_a_group_uses_lives_for_the_whole_group() {
    let program = recorded(|r| {
        let wide = r.feed("x", CPU, DType::F32, &[100, 100])?;
        // Made and read outside of the group, so that both have places in the arena.
        let read = wide.matmul(&wide)?;
        let written = (&read + &wide)?.exp()?.neg()?;
        r.fetch("y", &written.matmul(&wide)?)
    });
    let options = CompileOptions { in_place: false, ..CompileOptions::default() };
    let plan = compile(&program, &options).expect("it compiles");
    let place = |name: &str, operand: usize| {
        let step = plan.steps.iter().find(|step| step.work.name() == name);
        step.and_then(|step| step.operands.get(operand)).map(|it| it.storage)
    };
    assert_eq!(plan.fused().len(), 1);
    assert_ne!(place("add", 0), place("neg", 1), "{plan}");
}

/// Each round hands a value on to the next variable: all copies are needed, because the last one is fetched. One pass finds that.
#[test]
fn a_chain_over_the_rounds_of_a_loop_is_needed_as_a_whole() {
    let plan = compiled(|r| {
        let scalar = |value: i32| r.full(CPU, DType::I32, &[], value);
        let line = (0..100).map(scalar).collect::<Result<Vec<Tensor>, _>>()?;
        let (beside, goes_on) = (scalar(5)?, r.full(CPU, DType::Bool, &[], true)?);
        r.while_true(&goes_on, || {
            let mut builder = InstructionsBuilder::new();
            for pair in line.windows(2) {
                builder.copy_into(&pair[1], &pair[0])?;
            }
            builder.copy_into(&line[0], &beside)?;
            builder.fill(&goes_on, false)?;
            r.submit(builder.finish())
        })?;
        r.fetch("y", &line[0])
    });
    let copies = plan.steps.iter().filter(|step| step.work == Work::Copy).count();
    assert_eq!((copies, plan.steps.len()), (99, 100 + 1 + 1 + 99 + 1 + 1), "without `beside`");
}

/// A device that runs commands later copies the conditions of its blocks to a flag of its stream; a CPU needs none.
#[test]
fn a_device_with_blocks_has_a_flag() {
    let count_on = |device: DeviceId| {
        compiled(|r| {
            let (x, most) = (r.feed("x", device, DType::I32, &[])?, r.full(device, DType::I32, &[], 11)?);
            let goes_on = x.lt(&most)?;
            let y = (&x * 2)?;
            r.while_true(&goes_on, || {
                y.copy_from(&(&y + &y)?)?;
                goes_on.copy_from(&y.lt(&most)?)
            })?;
            r.if_true(&goes_on, || y.fill(0))?;
            r.fetch("y", &y)
        })
    };
    let [on_cpu, on_device] = [CPU, SIM].map(count_on);
    let flags = |plan: &Compiled| plan.buffers().iter().filter(|it| matches!(it.role, BufferRole::Flag(_))).count();
    assert_eq!((flags(&on_cpu), flags(&on_device)), (0, 1));
    let text = on_device.to_string();
    assert!(text.contains("flag  of compute@sim:0:0 write                1 bytes\n"), "{text}");
    let last = on_device.segments()[0].uses.last().expect("it uses buffers");
    assert_eq!((last.access, last.bytes.clone()), (Access::Write, 0..1), "{text}");
    // Apart from that and from fused steps, the plans are the same.
    let steps = |plan: &Compiled| plan.steps().iter().map(|step| step.work.name()).collect::<Vec<_>>();
    assert_eq!(steps(&on_cpu), steps(&on_device));
}

/// An instruction may write 64 tensors. The arena is one of them, and so is the flag.
#[test]
fn the_flag_counts_among_the_tensors_that_a_block_writes() {
    let compile_with = |device: DeviceId, fetches: usize| {
        let program = recorded(|r| {
            let (x, yes) = (r.feed("x", device, DType::I32, &[2])?, r.feed("yes", device, DType::Bool, &[])?);
            let fetched = (0..fetches).map(|_| x.neg()).collect::<Result<Vec<Tensor>, _>>()?;
            let own = x.abs()?;
            r.if_true(&yes, || fetched.iter().try_for_each(|tensor| tensor.copy_from(&(&own + &x)?)))?;
            fetched.iter().enumerate().try_for_each(|(place, tensor)| r.fetch(format!("y{place}"), tensor))
        });
        compile(&program, &CompileOptions::default())
    };
    for (device, most) in [(CPU, 63), (SIM, 62)] {
        let plan = compile_with(device, most).expect("it fits");
        let writes = |segment: &crate::Segment| segment.uses.iter().filter(|it| it.access.writes()).count();
        assert!(plan.segments().iter().all(|segment| writes(segment) <= 64), "{plan}");
        let refused = compile_with(device, most + 1).map(drop).expect_err("one too many").to_string();
        assert!(refused.contains("65 tensors"), "{device}: {refused}");
    }
}

/// The largest output of floats on the device; integers, and what is copied from and to the device, are not looked at.
#[test]
fn a_device_has_a_flag_for_the_largest_output_that_is_looked_at() {
    let program = recorded(|r| {
        let x = r.feed("x", CPU, DType::F32, &[64])?.to(SIM)?;
        let half = x.slice(0, 0..32)?.exp()?;
        let numbers = x.cast(DType::I32)?;
        r.fetch("numbers", &numbers)?;
        r.fetch("y", &half.cast(DType::F64)?.slice(0, 0..9)?.neg()?.to(CPU)?)
    });
    let options = CompileOptions { check_finite: true, ..CompileOptions::default() };
    let text = compile(&program, &options).expect("it compiles").to_string();
    assert!(text.contains("flag  of compute@sim:0:0 write              256 bytes\n"), "{text}");
    assert_eq!(text.matches("flag").count(), 1, "{text}");
    let unchecked = compile(&program, &CompileOptions::default()).expect("it compiles");
    assert!(!unchecked.to_string().contains("flag"));
}
