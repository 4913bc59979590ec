//! The plans that the passes make of loops and branches, as golden texts, and plans that they must not make.

use streamvm_ep::{Access, DType, DeviceId};
use streamvm_instructions::{InstructionsBuilder, Tensor};

use crate::compile::compile;
use crate::compile::tests::{CPU, SIM, compiled, recorded, x, x_like};
use crate::plan::compiled::BufferRole;
use crate::{CompileOptions, Compiled, Work};

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
%6    add      arena+64 1 -> arena+256                   i32[]
%7    lt       x arena+0 -> arena+320                    bool[]
%8    copy     arena+192 -> x                            i32[]
%9    copy     arena+256 -> arena+64                     i32[]
%10   copy     arena+320 -> arena+128                    bool[]
%11 end
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
    let names: Vec<&str> = plan.steps().map(|step| step.work.name()).collect();
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
        let step = plan.steps().find(|step| step.work.name() == name);
        step.and_then(|step| step.operands.last().map(|output| output.storage))
    };
    assert_ne!(storage("neg"), storage("exp"), "{plan}");
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
    let copies = plan.steps().filter(|step| *step.work == Work::Copy).count();
    assert_eq!((copies, plan.step_count()), (99, 100 + 1 + 1 + 99 + 1 + 1), "without `beside`");
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
    let steps = |plan: &Compiled| plan.steps().map(|step| step.work.name()).collect::<Vec<_>>();
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

/// The largest operand of steps with an output of floats on the device; what gives integers, and what is copied from and to the device, is not looked at.
#[test]
fn a_device_has_a_flag_for_the_largest_operand_that_is_looked_at() {
    let program = recorded(|r| {
        let x = r.feed("x", CPU, DType::F32, &[64])?.to(SIM)?;
        let half = x.slice(0, 0..32)?.exp()?;
        let numbers = x.cast(DType::I32)?;
        r.fetch("sum", &r.feed("wide", SIM, DType::F32, &[100])?.sum(&[])?)?;
        r.fetch("numbers", &numbers)?;
        r.fetch("y", &half.cast(DType::F64)?.slice(0, 0..9)?.neg()?.to(CPU)?)
    });
    let options = CompileOptions { check_finite: true, ..CompileOptions::default() };
    let text = compile(&program, &options).expect("it compiles").to_string();
    assert!(text.contains("flag  of compute@sim:0:0 write              400 bytes\n"), "{text}");
    assert_eq!(text.matches("flag").count(), 1, "{text}");
    let unchecked = compile(&program, &CompileOptions::default()).expect("it compiles");
    assert!(!unchecked.to_string().contains("flag"));
}
