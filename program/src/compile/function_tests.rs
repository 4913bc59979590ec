//! Functions of the caller, orders that no tensor asks for, and measured costs: as golden texts, and what is refused.

use std::time::Duration;

use streamvm_ep::{Access, DType, DeviceId};
use streamvm_instructions::{InstructionsBuilder, Tensor};

use crate::compile::compile;
use crate::compile::tests::{CPU, PAGE, SIM, compiled, recorded, x};
use crate::{CompileOptions, FunctionOrder, Program, Work, record};

/// A step, a function on the device that reads its result, and two steps after it. What the function overwrites is not filled before.
fn around_a_function(device: DeviceId) -> String {
    let plan = compiled(|r| {
        let x = r.feed("x", device, DType::F32, &[16])?;
        let (negated, written) = (x.neg()?, r.full(device, DType::F32, &[16], 0.0)?);
        r.call_fn("look", device, [negated.read(), written.write()], |_| Ok(()))?;
        r.fetch("y", &written.exp()?.relu()?)
    });
    plan.to_string()
}

#[test]
fn a_function_on_the_only_cpu_stream_is_a_step_of_its_segment() {
    let plan = around_a_function(CPU);
    assert_eq!(
        plan,
        "\
program p on cpu:0
feed  x            read                64 bytes
fetch y            write               64 bytes
arena arena        write              128 bytes
%0 neg        x -> arena+64                             f32[16]
%1 fn         \"look\" arena+64 -> arena+0
%2 exp        arena+0 -> arena+0                        f32[16]
%3 relu       arena+0 -> y                              f32[16]
"
    );
    assert!(PAGE.contains(&plan), "the page about programs shows another plan");
}

/// What it uses has memory of its own.
#[test]
fn a_function_on_a_device_is_a_segment_by_itself() {
    assert_eq!(
        around_a_function(SIM),
        "\
program p on sim:0
feed  x            read                64 bytes
value %0           write               64 bytes
value %1           write               64 bytes
fetch y            write               64 bytes
arena arena        write               64 bytes
segment 0 on compute@sim:0:0:
%0 neg        x -> %0                                   f32[16]
segment 1 on compute@sim:0:0:
%1 fn         \"look\" %0 -> %1
segment 2 on compute@sim:0:0:
%2 exp        %1 -> arena+0                             f32[16]
%3 relu       arena+0 -> y                              f32[16]
"
    );
}

/// Products of one device, on any lanes, and functions on two: which segments wait for which because of orders alone.
#[test]
fn orders_are_waits_where_streams_differ() {
    let other = DeviceId::cpu(1);
    let program = recorded(|r| {
        // Large, so that lanes of a CPU are not merged.
        let square = |name: &str, device| r.feed(name, device, DType::F32, &[128, 128]);
        let (x, y) = (square("x", CPU)?, square("y", other)?);
        let ((), first) = r.after(&[], || r.host_fn("first", CPU, || Ok(())))?;
        let (products, all) = r.after(&[&first], || Ok([x.matmul(&x)?, x.exp()?, y.matmul(&y)?]))?;
        let (last, _) = r.after(&[&all], || y.neg())?;
        let mut names = ["a", "b", "c", "d"].into_iter();
        products.iter().chain([&last]).try_for_each(|it| r.fetch(names.next().unwrap_or_default(), it))
    });
    let segments = |program: &Program, lanes| {
        let options = CompileOptions { lanes, hand_over_ns: 0, ..CompileOptions::default() };
        let plan = compile(program, &options).expect("it compiles");
        let of = |segment: &crate::Segment| {
            let names: Vec<&str> = plan.steps_of(segment.steps.clone()).map(|step| step.work.name()).collect();
            format!("{} {} waits {:?}", segment.stream, names.join(" "), segment.waits)
        };
        plan.segments.iter().map(of).collect::<Vec<String>>()
    };
    assert_eq!(
        segments(&program, 1),
        [
            "compute@cpu:0:0 fn waits []",
            "compute@cpu:0:0 matmul exp waits []",
            // After the function alone: it is not ordered after the other products.
            "compute@cpu:1:0 matmul waits [0]",
            // A stream runs in order, so the wait for the last of them is enough.
            "compute@cpu:1:0 neg waits [1]",
        ]
    );
    // Without an order nothing waits, but for what functions of one device ask for.
    let free = Program { orders: Vec::new(), ..program.clone() };
    let on_lanes = segments(&free, 2);
    assert!(on_lanes.iter().any(|it| it.starts_with("compute@cpu:0:1") && it.ends_with("waits [0]")), "{on_lanes:?}");
    assert!(on_lanes.iter().all(|it| !it.starts_with("compute@cpu:1") || it.ends_with("waits []")), "{on_lanes:?}");
}

/// A touch is an instruction. It comes after the steps that were recorded before it on its stream, and before the later ones, whatever they use; steps of other streams come
/// before it or after it as tensors say.
#[test]
fn a_touch_orders_the_steps_of_its_stream() {
    let other = DeviceId::cpu(1);
    let program = recorded(|r| {
        let touch = |tensors: &[&Tensor]| {
            let mut builder = InstructionsBuilder::new();
            builder.touch(CPU, tensors);
            r.submit(builder.finish())
        };
        // Large, so that lanes of a CPU are not merged.
        let (x, far) = (r.feed("x", CPU, DType::F32, &[128, 128])?, r.feed("far", other, DType::F32, &[16])?);
        let before = [x.matmul(&x)?, x.permute(&[1, 0])?.matmul(&x)?];
        let made = far.exp()?;
        touch(&[&made])?;
        touch(&[])?;
        let after = [x.matmul(&x.permute(&[1, 0])?)?, x.exp()?];
        let mut names = ["a", "b", "c", "d", "e"].into_iter();
        let fetched = before.iter().chain([&made]).chain(&after);
        fetched.chain([&far.neg()?]).try_for_each(|it| r.fetch(names.next().unwrap_or("f"), it))
    });
    let segments = |lanes| {
        let options = CompileOptions { lanes, hand_over_ns: 0, ..CompileOptions::default() };
        let plan = compile(&program, &options).expect("it compiles");
        let of = |segment: &crate::Segment| {
            let names: Vec<&str> = plan.steps_of(segment.steps.clone()).map(|step| step.work.name()).collect();
            format!("{} {} after {:?} waits {:?}", segment.stream, names.join(" "), segment.after, segment.waits)
        };
        plan.segments.iter().map(of).collect::<Vec<String>>()
    };
    assert_eq!(
        segments(1),
        [
            "compute@cpu:0:0 matmul matmul after [] waits []",
            "compute@cpu:1:0 exp after [] waits []",
            "compute@cpu:0:0 touch after [1] waits []",
            "compute@cpu:0:0 touch after [] waits []",
            "compute@cpu:0:0 matmul exp after [] waits []",
            "compute@cpu:1:0 neg after [] waits []",
        ]
    );
    // A step that the compiler moves to another lane waits for the touch, and the touch for such a step.
    assert_eq!(
        segments(2),
        [
            "compute@cpu:0:0 matmul after [] waits []",
            "compute@cpu:0:1 matmul after [] waits []",
            "compute@cpu:1:0 exp after [] waits []",
            "compute@cpu:0:0 touch after [1, 2] waits [1]",
            "compute@cpu:0:0 touch after [] waits []",
            "compute@cpu:0:0 matmul after [] waits []",
            "compute@cpu:0:1 exp after [4] waits [4]",
            "compute@cpu:1:1 neg after [] waits []",
        ]
    );
    let plan = compile(&program, &CompileOptions::default()).expect("it compiles").to_string();
    assert!(plan.contains("%3 touch      c\n"), "{plan}");
    // Its text is that of a list, and steps are counted alike.
    let text = program.to_string();
    assert!(text.contains(" touch "), "{text}");
    let parsed: Program = text.parse().expect("what was printed");
    assert_eq!(parsed.to_string(), text);
    assert_eq!(parsed.steps.len(), program.steps.len());
    // Hand-made: it reads, and lies in no block.
    let mut writes = program.clone();
    let touch = writes.steps.iter().position(|step| matches!(step.work, Work::Touch(_))).expect("as recorded");
    writes.steps[touch].operands[0].access = Access::ReadWrite;
    let refused = compile(&writes, &CompileOptions::default()).map(drop).expect_err("it writes").to_string();
    assert!(refused.contains("step 3 (touch): its operands must be Read, and one is ReadWrite"), "{refused}");
    let outer = record("outer", |r| {
        let yes = r.full(CPU, DType::Bool, &[], true)?;
        let far = r.feed("far", other, DType::F32, &[16])?;
        let x = r.feed("x", CPU, DType::F32, &[128, 128])?;
        r.if_true(&yes, || r.call(&program, &[("x", &x), ("far", &far)], &[]).map(drop))
    });
    let refused = outer.map(drop).expect_err("a touch in a block").to_string();
    assert!(refused.contains("touch before the block or after it"), "{refused}");
}

/// Orders over many steps take time and memory in proportion to the steps, where the steps are chains.
#[test]
fn orders_of_chains_have_one_edge() {
    let chain = 2_000;
    let program = recorded(|r| {
        let (x, y) = (x(r)?, r.feed("y", DeviceId::cpu(1), DType::F32, &[16])?);
        let run = |from: &Tensor| (0..chain).try_fold(from.clone(), |it, _| it.neg());
        let (one, steps) = r.after(&[], || run(&x))?;
        let (other, _) = r.after(&[&steps], || run(&y))?;
        r.fetch("one", &one)?;
        r.fetch("other", &other)
    });
    let plan = compile(&program, &CompileOptions::default()).expect("it compiles");
    let waits: Vec<_> = plan.segments.iter().map(|segment| segment.waits.clone()).collect();
    assert_eq!(waits, [vec![], vec![0]]);
}

#[test]
fn orders_that_are_none_are_malformed() {
    let program = recorded(|r| {
        let one = x(r)?.neg()?;
        r.fetch("y", &one.exp()?)
    });
    for (earlier, later) in [(1..2, 0..1), (0..1, 1..3), (0..0, 1..2), (0..2, 1..2)] {
        let orders = vec![crate::StepOrder { earlier, later }];
        let wrong = Program { orders, ..program.clone() }.check().expect_err("it is no order").to_string();
        assert!(wrong.contains("cannot be ordered after"), "{wrong}");
    }
}

/// By estimate `exp` and `tanh` take equally long, so two of the four chains are on each lane, the longer one beside one that comes after it. Measured,
/// `exp` takes much longer than `tanh`, which then comes last; and with a cost for `tanh` as well, the chain that has it gets a lane of its own.
#[test]
fn measured_costs_decide_about_lanes() {
    let program = recorded(|r| {
        for name in ["a", "b", "c", "d"] {
            let y = r.feed(name, CPU, DType::F32, &[16])?.exp()?;
            r.fetch(format!("{name}y"), &(if name == "a" { y.tanh() } else { Ok(y) })?)?;
        }
        Ok(())
    });
    let lanes = |costs: crate::Costs| {
        let options = CompileOptions { lanes: 2, costs, ..CompileOptions::default() };
        let plan = compile(&program, &options).expect("it compiles");
        let names = |steps: &std::ops::Range<usize>| {
            let names: Vec<&str> = plan.steps_of(steps.clone()).map(|step| step.work.name()).collect();
            names.join(" ")
        };
        // The compiler merges small steps of both lanes into one segment with branches.
        let of = |segment: &crate::Segment| match &segment.branches[..] {
            [] => vec![format!("{}: {}", segment.stream.lane, names(&segment.steps))],
            branches => branches.iter().map(|branch| format!("{}: {}", branch.lane, names(&branch.steps))).collect(),
        };
        plan.segments.iter().flat_map(of).collect::<Vec<String>>()
    };
    assert_eq!(lanes(crate::Costs::default()), ["0: exp tanh exp", "1: exp exp"]);
    let mut costs = crate::Costs::default();
    // The mean of both counts, for every step with as many elements.
    costs.add(&program, 0, Duration::from_micros(50));
    costs.add(&program, 0, Duration::from_micros(150));
    assert_eq!(costs.of(&program, 2), Some(Duration::from_micros(100)));
    assert_eq!(costs.of(&program, 1), None, "nothing is known of tanh");
    assert_eq!(lanes(costs.clone()), ["0: exp exp tanh", "1: exp exp"]);
    costs.set_all_sizes("tanh", Duration::from_micros(200));
    assert_eq!(lanes(costs.clone()), ["0: exp tanh", "1: exp exp exp"]);
    // Costs of one size say nothing of another, and one of all sizes gives way to one of the size.
    let larger = recorded(|r| r.fetch("y", &r.feed("x", CPU, DType::F32, &[64])?.exp()?));
    assert_eq!(costs.of(&larger, 0), None);
    costs.set_all_sizes("exp", Duration::from_micros(7));
    assert_eq!(costs.of(&larger, 0), Some(Duration::from_micros(7)));
    assert_eq!(costs.of(&program, 0), Some(Duration::from_micros(100)));
}

/// Functions are known by their names, also by the name that the profile of an engine gives those of a program.
#[test]
fn functions_have_costs_by_their_names() {
    let program = recorded(|r| {
        r.host_fn("slow", CPU, || Ok(()))?;
        r.host_fn("quick", CPU, || Ok(()))
    });
    let mut costs = crate::Costs::default();
    costs.set_all_sizes("slow of p", Duration::from_millis(3));
    costs.set_all_sizes("exp of p", Duration::from_millis(3));
    assert_eq!((costs.of(&program, 0), costs.of(&program, 1)), (Some(Duration::from_millis(3)), None));
}

/// Orders between wide sets of independent steps are bounded, and a function in between needs as many edges as there are steps.
#[test]
fn orders_between_too_many_independent_steps_are_refused() {
    let wide = 5_000;
    let program = |between: bool| {
        recorded(|r| {
            let (x, y) = (x(r)?, r.feed("y", DeviceId::cpu(1), DType::F32, &[16])?);
            let many = |from: &Tensor, name: &str| {
                (0..wide).try_for_each(|number| r.fetch(format!("{name}{number}"), &from.neg()?))
            };
            let ((), mut steps) = r.after(&[], || many(&x, "one"))?;
            if between {
                steps = r.after(&[&steps], || r.host_fn("between", CPU, || Ok(())))?.1;
            }
            r.after(&[&steps], || many(&y, "other")).map(drop)
        })
    };
    let compile = |program: &Program| compile(program, &CompileOptions::default());
    let refused = compile(&program(false)).expect_err("25 million pairs").to_string();
    assert!(refused.contains("step 5000 (neg)") && refused.contains("a function without uses"), "{refused}");
    compile(&program(true)).expect("the function is between all of them");
}

/// A copy may be made by way of another stream, so the order of a copy stream does not tell that an earlier copy is over.
#[test]
fn ordered_copies_wait_for_each_other_on_one_stream() {
    let plan = compiled(|r| {
        let (x, y) = (x(r)?, r.feed("y", CPU, DType::F32, &[16])?);
        let (one, copied) = r.after(&[], || Ok([x.to(SIM)?, y.to(SIM)?]))?;
        let (two, _) = r.after(&[&copied], || y.to(SIM))?;
        r.fetch("one", &one[0])?;
        r.fetch("other", &one[1])?;
        r.fetch("two", &two)
    });
    let waits: Vec<_> = plan.segments.iter().map(|segment| (segment.stream.lane, &segment.waits[..])).collect();
    assert_eq!(waits, [(0, &[][..]), (0, &[]), (0, &[0, 1])], "{plan}");
}

/// Functions on workers, and the same functions in the order of the recording: on two lanes, the latter come one after the other. A text says which are on workers.
#[test]
fn functions_on_workers_are_ordered_by_their_uses_alone() {
    let program = |on_workers: bool| {
        recorded(move |r| {
            for name in ["a", "b"] {
                let y = r.feed(name, CPU, DType::F32, &[16])?.neg()?;
                match on_workers {
                    true => r.call_fn_on_workers(name, CPU, [y.update()], |_| Ok(()))?,
                    false => r.call_fn(name, CPU, [y.update()], |_| Ok(()))?,
                }
                r.fetch(format!("{name}y"), &y)?;
            }
            Ok(())
        })
    };
    let waits = |program: &Program| {
        let options = CompileOptions { lanes: 2, hand_over_ns: 0, ..CompileOptions::default() };
        let plan = compile(program, &options).expect("it compiles");
        let [segment] = &plan.segments[..] else { panic!("{plan}") };
        segment.branches.iter().map(|branch| branch.after.len()).sum::<usize>()
    };
    assert_eq!((waits(&program(true)), waits(&program(false))), (0, 1));
    let text = program(true).to_string();
    assert!(text.contains("workers@cpu:0:0"), "{text}");
    let parsed = Program::parse(&text).expect("its own text");
    let on_workers =
        |step: &crate::Step| step.function().is_none_or(|function| function.order() == FunctionOrder::Workers);
    assert!(parsed.steps.iter().all(on_workers), "{parsed}");
    assert_eq!(parsed.to_string(), text);
    assert_ne!(program(true), program(false));
}

/// Threads of the host call functions on workers, and cannot reach the memory of another device.
#[test]
fn a_function_on_workers_of_another_device_is_refused() {
    let refused = record("p", |r| {
        let y = r.feed("x", SIM, DType::F32, &[16])?.neg()?;
        r.call_fn_on_workers("f", SIM, [y.update()], |_| Ok(()))
    });
    let text = refused.expect_err("the memory is out of reach").to_string();
    assert!(text.contains("threads of the host run workers@sim:0:0, which cannot reach it"), "{text}");
}
