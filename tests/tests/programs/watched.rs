//! Runs that are watched step by step, times of steps, and random numbers of runs.

use std::time::Duration;

use streamvm::program::{CompileOptions, Recorder};
use streamvm::{DType, DeviceId, Error, Generator, InstructionsBuilder, Mode, ProgramError, Tensor, Vm, Watch};
use streamvm_tests::{CPU, no_races};

const SIM: DeviceId = DeviceId::sim(0);

fn step_by_step() -> CompileOptions {
    CompileOptions { step_by_step: true, ..CompileOptions::default() }
}

/// `exp(-x) + 1` on a device, and its sum on the CPU.
fn record(r: &Recorder, device: DeviceId) -> Result<(), Error> {
    let x = r.feed("x", device, DType::F32, &[2])?;
    let y = (&x.neg()?.exp()? + 1.0)?;
    r.fetch("sum", &y.to(CPU)?.sum(&[0])?)
}

#[test]
fn a_hook_sees_each_step_before_and_after_it() {
    let vm = Vm::builder().sim_devices(1).build().expect("an engine");
    for device in [CPU, SIM] {
        let program = vm.record("p", |r| record(r, device)).expect("it can be recorded");
        let executable = vm.compile(&program, &[], &step_by_step()).expect("it compiles");
        let x = vm.from_slice(&[0f32, 1.0], &[2]).expect("a tensor");
        let mut seen = Vec::new();
        let run = executable.run_watched(&[("x", &x)], Watch::All, &mut |step| {
            let first = |tensors: &[Tensor]| tensors.first().map(|tensor| tensor.to_vec::<f32>()).transpose();
            match step.took {
                None => seen.push(format!("{} {} reads {:?}", step.number(), step.name(), first(&step.inputs)?)),
                Some(_) => seen.push(format!("{} {} wrote {:?}", step.number(), step.name(), first(&step.outputs)?)),
            }
            Ok(())
        });
        let e = (-1f32).exp();
        let expected = [
            "0 neg reads Some([0.0, 1.0])".to_owned(),
            "0 neg wrote Some([-0.0, -1.0])".to_owned(),
            "1 exp reads Some([-0.0, -1.0])".to_owned(),
            format!("1 exp wrote Some([1.0, {e:?}])"),
            format!("2 add reads Some([1.0, {e:?}])"),
            format!("2 add wrote Some([2.0, {:?}])", 1.0 + e),
            format!("3 copy reads Some([2.0, {:?}])", 1.0 + e),
            format!("3 copy wrote Some([2.0, {:?}])", 1.0 + e),
            format!("4 sum reads Some([2.0, {:?}])", 1.0 + e),
            format!("4 sum wrote Some([{:?}])", 3.0 + e),
        ];
        assert_eq!(seen, expected, "on {device}");
        assert_eq!(run.expect("it runs")["sum"].to_vec::<f32>(), Ok(vec![3.0 + e]));
    }
    assert!(vm.races().is_empty(), "{:?}", vm.races());
}

/// The hook overwrites the output of step 0, and is called for this step alone.
#[test]
fn steps_see_what_a_hook_changes_and_only_named_steps_are_watched() {
    let vm = Vm::builder().build().expect("an engine");
    let program = vm.record("p", |r| record(r, CPU)).expect("it can be recorded");
    let executable = vm.compile(&program, &[], &step_by_step()).expect("it compiles");
    let x = vm.from_slice(&[3f32, 4.0], &[2]).expect("a tensor").to(CPU).expect("a copy");
    let mut calls = 0;
    let run = executable.run_watched(&[("x", &x)], Watch::Steps(&[0]), &mut |step| {
        calls += 1;
        if step.took.is_some() { step.outputs[0].fill(0.0) } else { Ok(()) }
    });
    assert_eq!(run.expect("it runs")["sum"].to_vec::<f32>(), Ok(vec![4.0]));
    assert_eq!(calls, 2);
}

#[test]
fn errors_of_hooks_and_steps_end_a_watched_run() {
    let vm = Vm::builder().build().expect("an engine");
    let program = vm
        .record("p", |r| {
            let (x, y) = (r.feed("x", CPU, DType::I32, &[1])?, r.feed("y", CPU, DType::I32, &[1])?);
            let sum = (&x + &y)?;
            r.fetch("z", &(&(&sum / &y)? * &x)?)
        })
        .expect("it can be recorded");
    let executable = vm.compile(&program, &[], &step_by_step()).expect("it compiles");
    let tensor = |value: i32| vm.full(CPU, DType::I32, &[1], value).expect("a tensor");
    let run = |x: i32, y: i32, seen: &mut Vec<usize>, refused: Option<usize>| {
        executable.run_watched(&[("x", &tensor(x)), ("y", &tensor(y))], Watch::All, &mut |step| {
            seen.push(step.number());
            if refused == Some(step.number()) { Err(Error::shutdown()) } else { Ok(()) }
        })
    };
    let mut seen = Vec::new();
    let failed = run(1, 0, &mut seen, None).expect_err("it divides by zero").to_string();
    assert!(failed.contains("step 1 (div)") && failed.contains("watched.rs:"), "{failed}");
    assert_eq!(seen, [0, 0, 1], "the hook is not called behind the step that failed");
    let mut seen = Vec::new();
    assert!(matches!(run(1, 1, &mut seen, Some(1)).map(drop), Err(Error::Shutdown { .. })));
    assert_eq!(seen, [0, 0, 1]);
    assert_eq!(run(4, 2, &mut Vec::new(), None).expect("it runs")["z"].to_vec::<i32>(), Ok(vec![12]));
    let together = vm.compile(&program, &[], &CompileOptions::default()).expect("it compiles");
    let refused = together.run_watched(&[("x", &tensor(1)), ("y", &tensor(1))], Watch::All, &mut |_| Ok(()));
    assert!(
        matches!(&refused, Err(Error::Program { error, .. }) if matches!(**error, ProgramError::NotStepByStep { .. }))
    );
    let _ = vm.wait_all();
}

/// Steps of a loop count for each round; steps that run together have one time.
#[test]
fn timed_runs_tell_how_long_each_step_took() {
    let vm = Vm::builder().build().expect("an engine");
    let program = vm
        .record("p", |r| {
            let x = r.feed("x", CPU, DType::F32, &[20_000])?;
            let y = (&x + &x)?.neg()?;
            let (left, one, zero) =
                (r.full(CPU, DType::I32, &[], 3)?, r.full(CPU, DType::I32, &[], 1)?, r.full(CPU, DType::I32, &[], 0)?);
            let goes_on = left.gt(&zero)?;
            r.while_true(&goes_on, || {
                left.copy_from(&(&left - &one)?)?;
                goes_on.copy_from(&left.gt(&zero)?)
            })?;
            r.fetch("left", &left)?;
            r.fetch("y", &y)
        })
        .expect("it can be recorded");
    let options = CompileOptions { time_steps: true, ..CompileOptions::default() };
    let executable = vm.compile(&program, &[], &options).expect("it compiles");
    let x = vm.ones(CPU, DType::F32, &[20_000]).expect("a tensor");
    for _ in 0..2 {
        executable.run(&[("x", &x)]).expect("it is submitted").wait().expect("it runs");
    }
    let times = executable.step_times();
    let name = |position: usize| executable.compiled().step(position).work.name();
    let told: Vec<_> = times.iter().map(|it| (it.steps.clone().map(name).collect::<Vec<_>>(), it.runs)).collect();
    assert_eq!(told[0], (vec!["add", "neg"], 2), "they run together");
    assert_eq!(told.iter().filter(|(names, runs)| names == &["sub"] && *runs == 6).count(), 1, "{told:?}");
    assert!(times.iter().map(|it| it.time).sum::<Duration>() > Duration::ZERO);
    let untimed = vm.compile(&program, &[], &CompileOptions::default()).expect("it compiles");
    untimed.run(&[("x", &x)]).expect("it is submitted").wait().expect("it runs");
    assert!(untimed.step_times().is_empty());
}

/// On a device, too, where each step is waited for; copies between devices have no time. The results are those of a run that is not timed.
#[test]
fn timed_runs_tell_how_long_each_step_on_a_device_took() {
    for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 3 }] {
        let vm = Vm::builder().mode(mode).sim_devices(1).detect_races(true).build().expect("an engine");
        let program = vm.record("p", |r| {
            let x = r.feed("x", CPU, DType::F32, &[4])?.to(SIM)?;
            let (left, zero) = (r.full(SIM, DType::I32, &[], 3)?, r.full(SIM, DType::I32, &[], 0)?);
            let goes_on = left.gt(&zero)?;
            let sum = x.neg()?;
            r.while_true(&goes_on, || {
                sum.copy_from(&(&sum + &x)?)?;
                left.copy_from(&(&left - 1)?)?;
                goes_on.copy_from(&left.gt(&zero)?)
            })?;
            r.fetch("y", &sum)
        });
        let options = CompileOptions { time_steps: true, ..CompileOptions::default() };
        let executable = vm.compile(program.expect("it can be recorded"), &[], &options).expect("it compiles");
        let x = vm.ones(CPU, DType::F32, &[4]).expect("a tensor");
        for _ in 0..2 {
            let run = executable.run(&[("x", &x)]).expect("it is submitted");
            assert_eq!(run["y"].to_vec::<f32>().expect("it runs"), [2.0; 4], "{mode:?}");
        }
        let name = |position: usize| executable.compiled().step(position).work.name();
        let times = executable.step_times();
        let told: Vec<_> = times.iter().map(|it| (name(it.steps.start), it.runs)).collect();
        let expected = [
            ("fill", 2),
            ("fill", 2),
            ("gt", 2),
            ("neg", 2),
            ("add", 6),
            ("copy", 6),
            ("sub", 6),
            ("copy", 6),
            ("gt", 6),
            ("copy", 6),
        ];
        assert_eq!(told, expected, "{mode:?}: {}", executable.compiled());
        assert!(times.iter().all(|it| it.steps.len() == 1 && it.time > Duration::ZERO), "{times:?}");
        no_races(&vm);
    }
}

/// `x` with noise of two generators.
fn noise(
    x: &Tensor,
    (one, other): (&Generator, &Generator),
    submit: &dyn Fn(InstructionsBuilder) -> Result<(), Error>,
) -> Result<Tensor, Error> {
    let device = x.place().device().expect("on a device");
    let mut builder = InstructionsBuilder::new();
    let first = builder.rand(one, device, DType::F32, &[5])?;
    let unused = builder.rand(one, device, DType::F32, &[9])?;
    let second = builder.randn(other, device, DType::F64, &[5])?;
    let third = builder.rand(one, device, DType::F32, &[5])?;
    submit(builder)?;
    drop(unused);
    &(&(x + &first)? + &second.cast(DType::F32)?)? + &third
}

/// Runs draw what the same calls draw when they are made again and again, on a CPU and on a device.
#[test]
fn runs_draw_the_random_numbers_of_eager_calls() {
    let vm = Vm::builder().sim_devices(1).build().expect("an engine");
    for device in [CPU, SIM] {
        let generators = || (Generator::at(7, 100), Generator::new(8));
        let (one, other) = generators();
        let x = vm.full(device, DType::F32, &[5], 1.0).expect("a tensor");
        let eager = || noise(&x, (&one, &other), &|builder| vm.submit(builder.finish()).map(drop));
        let expected: Vec<_> = (0..3).map(|_| eager().expect("a call").to_vec::<f32>()).collect();
        assert!(expected[0] != expected[1] && expected[1] != expected[2]);
        let (one, other) = generators();
        let program = vm
            .record("p", |r| {
                let x = r.feed("x", device, DType::F32, &[5])?;
                r.fetch("y", &noise(&x, (&one, &other), &|builder| r.submit(builder.finish()))?)
            })
            .expect("it can be recorded");
        let options = CompileOptions::default();
        let executable = vm.compiled(&program, &[], &options).expect("it compiles");
        let run =
            |executable: &streamvm::Executable| executable.run(&[("x", &x)]).expect("it runs")["y"].to_vec::<f32>();
        assert_eq!(run(&executable), expected[0]);
        assert_eq!(run(&executable.clone()), expected[1]);
        let found_again = vm.compiled(&program, &[], &options).expect("it is there");
        assert_eq!((run(&found_again), found_again.next_run()), (expected[2].clone(), 3));
        executable.set_next_run(1);
        assert_eq!(run(&executable), expected[1]);
    }
}
