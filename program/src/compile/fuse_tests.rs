//! Which steps the compiler fuses, as golden texts, and which it must not fuse.

use streamvm_ep::{DType, DeviceId};
use streamvm_instructions::{Error, InstructionsBuilder, Tensor};

use crate::compile::compile;
use crate::compile::tests::{CPU, PAGE, SIM, compiled, recorded};
use crate::{CompileOptions, Recorder};

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
    assert!(plan.steps_of(0..2).all(|step| group.is_unstored(step.operands[2].value)), "{group:?}");
    assert!(!group.is_unstored(plan.step(2).operands[1].value), "{group:?}");
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
            let together: Vec<&str> = plan.steps_of(fused.steps.clone()).map(|step| step.work.name()).collect();
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
        let step = plan.steps().find(|step| step.work.name() == name);
        step.and_then(|step| step.operands.get(operand).map(|it| it.storage))
    };
    assert_eq!(plan.fused().len(), 1);
    assert_ne!(place("add", 0), place("neg", 1), "{plan}");
}
