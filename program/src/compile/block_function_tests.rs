//! Functions in blocks: as golden texts, what they keep, which order they have, and where they are refused.

use std::collections::BTreeSet;

use streamvm_ep::{DType, DeviceId};
use streamvm_instructions::{Error, Tensor};

use crate::compile::compile;
use crate::compile::tests::{CPU, PAGE, SIM, compiled, recorded, x, x_like};
use crate::ir::function::StepFunction;
use crate::plan::compiled::{BufferRole, Storage};
use crate::{CompileOptions, Compiled, Program, Recorder, Segment, Work, record};

/// A loop of `rounds` rounds around `body`.
fn rounds(r: &Recorder, rounds: i32, body: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    let (round, most) = (r.full(CPU, DType::I32, &[], 0)?, r.full(CPU, DType::I32, &[], rounds)?);
    let goes_on = round.lt(&most)?;
    r.while_true(&goes_on, || {
        body()?;
        round.copy_from(&(&round + 1)?)?;
        goes_on.copy_from(&round.lt(&most)?)
    })
}

fn names<'p>(plan: &'p Compiled, segment: &Segment) -> Vec<&'p str> {
    plan.steps_of(segment.steps.clone()).map(|step| step.work.name()).collect()
}

/// The names of the steps of each segment, in a line.
fn segments(plan: &Compiled) -> Vec<String> {
    plan.segments.iter().map(|segment| format!("{} {}", segment.stream, names(plan, segment).join(" "))).collect()
}

/// A function that says whether a loop goes on, by what the round has computed.
#[test]
fn a_function_in_a_loop_is_a_step_of_the_loop() {
    let plan = compiled(|r| {
        let (y, goes_on) = (x(r)?.neg()?, r.full(CPU, DType::Bool, &[], true)?);
        r.while_true(&goes_on, || {
            let loss = y.sum(&[])?;
            r.call_fn("look", CPU, [loss.read(), goes_on.write()], |_| Ok(()))?;
            y.copy_from(&y.tanh()?)
        })?;
        r.fetch("y", &y)
    });
    assert_eq!(
        plan.to_string(),
        "\
program p on cpu:0
feed  x            read                64 bytes
fetch y            write               64 bytes
arena arena        write              128 bytes
%0 neg        x -> y                                    f32[16]
%1 fill       -> arena+0                                bool[]
%2 while      arena+0
%3   sum      y -> arena+64                             f32[]
%4   fn       \"look\" arena+64 -> arena+0
%5   tanh     y -> arena+64                             f32[16]
%6   copy     arena+64 -> y                             f32[16]
%7 end
"
    );
    assert!(PAGE.contains(&plan.to_string()), "the page about programs shows another plan");
    let frames = plan.dot();
    assert!(frames.contains("label=\"while\"") && frames.contains("%4 fn look\\nbool[]"), "{frames}");
}

/// Another segment may need the result of a step before the block while the function waits for that segment; and callers that wait run the
/// segments beside the block, but not the block.
#[test]
fn in_a_program_of_several_segments_a_block_with_functions_is_one_by_itself() {
    let program = |with_function: bool| {
        recorded(|r| {
            let y = x(r)?.neg()?;
            rounds(r, 3, || {
                let next = y.exp()?;
                if with_function {
                    r.call_fn("look", CPU, [next.update()], |_| Ok(()))?;
                }
                y.copy_from(&next)
            })?;
            r.fetch("y", &y.tanh()?)?;
            r.fetch("there", &r.feed("z", SIM, DType::F32, &[16])?.neg()?)
        })
    };
    let block = "while exp fn copy add copy lt copy end";
    let options = CompileOptions::default();
    let plan = compile(program(true), &options).expect("it compiles");
    let of_function = [
        "compute@cpu:0:0 neg fill fill lt".to_owned(),
        format!("compute@cpu:0:0 {block}"),
        "compute@cpu:0:0 tanh".to_owned(),
        "compute@sim:0:0 neg".to_owned(),
    ];
    assert_eq!(segments(&plan), of_function);
    // The compiler places the operands of the function in the arena, as it does those of the block's other steps.
    let function = plan.steps().find(|step| matches!(step.work, Work::Function(_))).expect("it is kept");
    let Storage::Buffer { index, .. } = function.operands[0].storage else { panic!("{plan}") };
    assert!(matches!(plan.buffers[index].role, BufferRole::Arena(_)), "{plan}");
    let without = compile(program(false), &options).expect("it compiles");
    assert_eq!(without.segments.len(), 2, "{without}");
    // Step by step, too, a block is one segment.
    let options = CompileOptions { step_by_step: true, ..options };
    let plan = compile(program(true), &options).expect("it compiles");
    assert!(segments(&plan).contains(&of_function[1]), "{plan}");
}

/// On two lanes a block is a segment by itself, between steps that need it and that it needs.
#[test]
fn on_lanes_a_block_with_functions_is_a_segment_by_itself() {
    let program = recorded(|r| {
        let y = x(r)?.neg()?;
        rounds(r, 3, || r.call_fn("look", CPU, [y.update()], |_| Ok(())))?;
        r.fetch("y", &y.tanh()?)?;
        let chain = (0..6).try_fold(x_like(r)?, |it, _| it.exp())?;
        r.fetch("chain", &chain)
    });
    let options = CompileOptions { lanes: 2, hand_over_ns: 0, ..CompileOptions::default() };
    let plan = compile(&program, &options).expect("it compiles");
    let of_lanes: BTreeSet<u32> = plan.segments.iter().map(|segment| segment.stream.lane).collect();
    assert_eq!(of_lanes.len(), 2, "{plan}");
    let names = plan.segments.iter().map(|segment| names(&plan, segment).join(" "));
    let of_block: Vec<String> = names.filter(|names| names.contains("while")).collect();
    assert_eq!(of_block, ["while fn add copy lt copy end"], "{plan}");
}

/// Nothing reads what the function does. The compiler keeps it, its block, the condition, and all that it reads in any round; it removes `unused`.
#[test]
fn a_block_with_a_function_is_needed() {
    let kept = |plan: &Compiled| plan.steps().map(|step| step.work.name()).collect::<Vec<_>>().join(" ");
    let plan = compiled(|r| {
        let (read, unused) = (x(r)?.neg()?, x_like(r)?.sqrt()?);
        rounds(r, 3, || {
            r.call_fn("log", CPU, [read.read()], |_| Ok(()))?;
            unused.copy_from(&unused.exp()?)?;
            read.copy_from(&read.tanh()?)
        })
    });
    assert_eq!(kept(&plan), "neg fill fill lt while fn tanh copy add copy lt copy end");
    let branch = |otherwise: bool| {
        compiled(move |r| {
            let y = x(r)?.sum(&[])?;
            let log = || r.call_fn("log", CPU, [y.read()], |_| Ok(()));
            let nothing = || y.exp().map(drop);
            let is_large = y.gt(&r.full(CPU, DType::F32, &[], 1.0)?)?;
            if otherwise { r.if_else(&is_large, nothing, log) } else { r.if_else(&is_large, log, nothing) }
        })
    };
    assert_eq!(kept(&branch(false)), "sum fill gt if fn else end");
    assert_eq!(kept(&branch(true)), "sum fill gt if else fn end");
}

/// A run may leave out a function in an `if`, and then reads the value from before: so the compiler keeps the fill that makes it. Outside of blocks it removes the fill.
#[test]
fn what_a_function_in_a_block_overwrites_is_still_needed() {
    let fills = |in_block: bool| {
        let plan = compiled(move |r| {
            let (y, yes) = (r.full(CPU, DType::F32, &[16], 5.0)?, r.feed("yes", CPU, DType::Bool, &[])?);
            let write = || r.call_fn("write", CPU, [y.write()], |_| Ok(()));
            if in_block {
                r.if_true(&yes, write)?
            } else {
                write()?
            }
            r.fetch("y", &y.neg()?)
        });
        plan.steps().filter(|step| matches!(step.work, Work::Fill(_))).count()
    };
    assert_eq!((fills(true), fills(false)), (1, 0));
}

/// How two blocks, each with a function, and steps around them wait for each other, on devices where nothing else orders them.
#[test]
fn blocks_are_ordered_as_their_functions_are() {
    #[derive(Copy, Clone)]
    enum Calls {
        Nothing,
        Alone,
        Reading,
        OnWorkers,
    }
    // For each unit how many units it must come after, by order alone.
    let waits = |calls: Calls| {
        let program = recorded(|r| {
            let yes = r.feed("yes", CPU, DType::Bool, &[])?;
            for name in ["a", "b"] {
                let fed = r.feed(name, CPU, DType::F32, &[16])?;
                let y = fed.neg()?;
                r.if_true(&yes, || {
                    y.copy_from(&fed)?;
                    match calls {
                        Calls::Nothing => Ok(()),
                        Calls::Alone => r.host_fn("log", CPU, || Ok(())),
                        Calls::Reading => r.call_fn("log", CPU, [y.read()], |_| Ok(())),
                        Calls::OnWorkers => r.call_fn_on_workers("log", CPU, [y.read()], |_| Ok(())),
                    }
                })?;
                r.fetch(format!("{name}y"), &y)?;
            }
            Ok(())
        });
        let options = CompileOptions::default();
        let kept: Vec<usize> = (0..program.steps.len()).collect();
        let units = crate::compile::units::of(&program, &kept);
        let streams = crate::compile::streams::of(&program, &kept, &units).expect("each has a stream");
        let none = crate::compile::lists::Lists::empty(units.len());
        let found = crate::compile::order::add(&program, &kept, &units, &streams, none, &options);
        found.expect("it is ordered").explicit.iter().map(<[usize]>::to_vec).collect::<Vec<_>>()
    };
    // The units are a negation, a block, a negation, a block.
    let nothing: Vec<Vec<usize>> = vec![vec![]; 4];
    assert_eq!(waits(Calls::Nothing), nothing);
    assert_eq!(waits(Calls::OnWorkers), nothing);
    assert_eq!(waits(Calls::Reading), [vec![], vec![], vec![], vec![1]]);
    assert_eq!(waits(Calls::Alone), [vec![], vec![0], vec![1], vec![1, 2]]);
}

/// Recording refuses a function on another device than a CPU at its line, alone and in a called program; programs of another origin are malformed.
#[test]
fn functions_in_blocks_are_called_on_cpus() {
    let yes = |r: &Recorder, device| r.full(device, DType::Bool, &[], true);
    let text_of = |refused: Result<Program, Error>| refused.expect_err("it is refused").to_string();
    for device in [SIM, DeviceId::cuda(0)] {
        let called = recorded(|r| r.host_fn("f", device, || Ok(())));
        let refused = [
            record("p", |r| r.if_true(&yes(r, device)?, || r.host_fn("f", device, || Ok(())))),
            record("p", |r| r.while_true(&yes(r, CPU)?, || r.host_fn("f", device, || Ok(())))),
            record("p", |r| r.if_true(&yes(r, device)?, || r.call(&called, &[], &[]).map(drop))),
        ];
        for text in refused.map(text_of) {
            for part in ["on CPUs alone", "before the block or after it", "block_function_tests.rs:"] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        let mut program = recorded(|r| r.if_true(&yes(r, CPU)?, || r.host_fn("f", CPU, || Ok(()))));
        program.steps[2].work = Work::Function(StepFunction::new("f", device, None));
        let text = program.check().expect_err("it is malformed").to_string();
        assert!(text.contains("step 2 (fn)") && text.contains("on CPUs alone"), "{text}");
    }
}

/// What a CPU does in a loop on another device: it calls a function and reads the condition, has a part in copies, and runs an inner loop of its own steps, in
/// memory that these share.
#[test]
fn a_cpu_has_a_part_in_a_loop_of_a_device() {
    let plan = compiled(|r| {
        let (y, goes_on) = (x(r)?.to(SIM)?.neg()?, r.full(CPU, DType::Bool, &[], true)?);
        r.while_true(&goes_on, || {
            let loss = y.sum(&[])?.to(CPU)?;
            r.call_fn("look", CPU, [loss.read(), goes_on.write()], |_| Ok(()))?;
            rounds(r, 2, || loss.copy_from(&(&loss * 2.0)?))?;
            y.copy_from(&(&y + &loss.to(SIM)?)?)
        })?;
        r.fetch("y", &y)
    });
    let text = plan.to_string();
    let of_host: Vec<&str> = text.lines().filter(|line| line.starts_with('%') && line.ends_with(':')).collect();
    let expected = [
        "%3 reads its condition on cpu:0:",
        "%5 is copied by way of cpu:0:",
        "%6 runs on cpu:0:",
        "%7 to %17 run on cpu:0:",
        "%18 is copied by way of cpu:0:",
    ];
    assert_eq!(of_host, expected, "{text}");
    assert!(text.starts_with("program p on sim:0, cpu:0\n"), "{text}");
    assert_eq!(segments(&plan).len(), 4, "what is before the loop on either device, and the loop: {text}");
    // The flag has room for the largest copy.
    assert!(text.lines().any(|line| line.starts_with("flag") && line.ends_with(" 4 bytes")), "{text}");
    let host = plan.arenas.iter().filter(|arena| arena.device == CPU && arena.bytes > 0).count();
    assert_eq!(host, 1, "{text}");
}

/// Another device has parts in a loop: it runs steps and inner loops of its own, has a part in copies from and to the host, and the condition of a branch with steps of
/// the first one.
#[test]
fn another_device_has_a_part_in_a_loop_of_a_device() {
    let there = DeviceId::sim(1);
    let plan = compiled(|r| {
        let (y, z) = (x(r)?.to(SIM)?.neg()?, r.full(there, DType::F32, &[16], 1.0)?);
        let goes_on = r.full(SIM, DType::Bool, &[], true)?;
        r.while_true(&goes_on, || {
            z.copy_from(&(&z + &y.to(there)?)?)?;
            r.while_true(&z.sum(&[])?.lt(&r.full(there, DType::F32, &[], 9.0)?)?, || z.copy_from(&(&z * 2.0)?))?;
            let seen = z.to(CPU)?;
            z.copy_from(&(&seen * 0.5)?.to(there)?)?;
            r.if_true(&z.sum(&[])?.lt(&r.full(there, DType::F32, &[], 5.0)?)?, || y.copy_from(&z.to(SIM)?))
        })?;
        r.fetch("y", &y)
    });
    let text = plan.to_string();
    let others: Vec<&str> = text.lines().filter(|line| line.starts_with('%') && line.ends_with(':')).collect();
    let expected = [
        "%5 to %14 run on sim:1:",
        "%15 is copied by way of cpu:0:",
        "%16 runs on cpu:0:",
        "%17 is copied by way of cpu:0:",
        "%18 to %21 run on sim:1:",
        "%22 reads its condition on sim:1:",
    ];
    assert_eq!(others, expected, "{text}");
    assert!(text.starts_with("program p on sim:0, sim:1, cpu:0\n"), "{text}");
    assert!(plan.segments().iter().any(|segment| segment.stream.device == SIM && !segment.others.is_empty()), "{text}");
}

/// A tensor of four numbers in such memory of a device.
fn memory(device: DeviceId, kind: streamvm_ep::MemoryKind) -> Tensor {
    Tensor::unbound(device.into(), kind, DType::F32, streamvm_ep::Shape::new(&[4]).expect("a shape"))
}

/// Page-locked memory that the host alone uses leaves a block on a CPU, whatever the devices of that memory.
#[test]
fn page_locked_memory_of_devices_leaves_a_block_on_a_cpu() {
    let plan = compiled(|r| {
        let [a, b] = [("a", SIM), ("b", DeviceId::sim(1))]
            .map(|(name, device)| r.parameter(name, &memory(device, streamvm_ep::MemoryKind::Pinned)));
        let (a, b, yes) = (a?, b?, r.feed("yes", CPU, DType::Bool, &[])?);
        r.if_true(&yes, || r.call_fn("fills", CPU, [a.update(), b.update()], |_| Ok(())))
    });
    assert_eq!(segments(&plan), ["compute@cpu:0:0 if fn end"]);
}

/// A segment that writes as many tensors as it may is divided before a block whose CPU, and another device, have memory of their own.
#[test]
fn arenas_of_others_count_among_what_a_segment_writes() {
    for outside in 55..64 {
        let plan = compiled(|r| {
            let x = r.feed("x", SIM, DType::F32, &[4])?;
            for place in 0..outside {
                r.fetch(format!("y{place}"), &x.neg()?)?;
            }
            let state = r.parameter("state", &memory(SIM, streamvm_ep::MemoryKind::Device))?;
            let yes = r.feed("yes", SIM, DType::Bool, &[])?;
            r.if_true(&yes, || {
                state.copy_from(&(&state.to(CPU)? * 2.0)?.to(SIM)?)?;
                state.copy_from(&(&state.to(DeviceId::sim(1))? * 2.0)?.to(SIM)?)
            })
        });
        let writes = |segment: &Segment| segment.uses.iter().filter(|it| it.access.writes()).count();
        assert!(plan.segments.iter().all(|segment| writes(segment) <= streamvm_ep::MAX_WRITES), "{outside}: {plan}");
    }
}

/// Functions of a CPU are called in the order of the program, where a block on another device calls one, too.
#[test]
fn a_function_in_a_loop_of_a_device_keeps_its_place() {
    let plan = compiled(|r| {
        let yes = r.feed("yes", SIM, DType::Bool, &[])?;
        r.host_fn("before", CPU, || Ok(()))?;
        r.if_true(&yes, || r.host_fn("within", CPU, || Ok(())))?;
        r.host_fn("after", CPU, || Ok(()))
    });
    assert_eq!(segments(&plan), ["compute@cpu:0:0 fn", "compute@sim:0:0 if fn end", "compute@cpu:0:0 fn"]);
    let waits: Vec<&[usize]> = plan.segments.iter().map(|segment| &segment.waits[..]).collect();
    assert_eq!(waits, [&[][..], &[0], &[1]]);
}

/// Functions in nested blocks, by both ways of recording, print and parse; each name is bound at all of its places.
#[test]
fn functions_in_blocks_are_printed_and_parsed() {
    let program = recorded(|r| {
        let y = x(r)?.neg()?;
        let yes = r.full(CPU, DType::Bool, &[], true)?;
        rounds(r, 2, || {
            r.host_fn("begin", CPU, || Ok(()))?;
            r.if_else(
                &yes,
                || r.call_fn("look", CPU, [y.read()], |_| Ok(())),
                || r.call_fn_on_workers("look", CPU, [y.update()], |_| Ok(())),
            )
        })?;
        r.fetch("y", &y)
    });
    let text = program.to_string();
    let mut parsed = Program::parse(&text).expect("its own text");
    assert_eq!(parsed.to_string(), text);
    assert_eq!(parsed.functions(), ["begin", "look"]);
    parsed.bind_function("look", |_| Ok(())).expect("there are two");
    let codes = |program: &Program| -> Vec<bool> {
        program.steps.iter().filter_map(|step| Some(step.function()?.code().is_some())).collect()
    };
    assert_eq!(codes(&parsed), [false, true, true]);
    let plans = [&program, &parsed].map(|program| compile(program, &CompileOptions::default()).expect("it compiles"));
    assert_eq!(plans[0].to_string(), plans[1].to_string());
    let moved = text.replace("workers@", "compute@").replace("cpu:0", "sim:0");
    let refused = Program::parse(&moved).expect_err("it is on a simulated device").to_string();
    assert!(refused.contains("on CPUs alone"), "{refused}\n{moved}");
}
