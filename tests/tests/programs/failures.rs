//! What a failed run leaves behind.

use streamvm::program::{CompileOptions, Recorder};
use streamvm::{DType, DeviceId, Error, InstructionsBuilder, Mode, Op, Params, Tensor, Vm};
use streamvm_tests::no_races;

const CPU: DeviceId = DeviceId::cpu(0);
const SIM: DeviceId = DeviceId::sim(0);

/// The division by zero is the third recorded call; its error names the call's number, its name and its line.
#[test]
fn a_failed_step_is_named_with_the_line_that_recorded_it() {
    let vm = Vm::builder().build().expect("an engine");
    let state = vm.full(CPU, DType::I32, &[2], 7i64).expect("a tensor");
    let mut line = 0;
    let program = vm
        .record("divides", |r| {
            let (x, state) = (r.feed("x", CPU, DType::I32, &[2])?, r.parameter("state", &state)?);
            let before = (&x + &x)?.neg()?;
            line = line!() + 1;
            let quotient = (&before / &x)?;
            let mut builder = InstructionsBuilder::new();
            builder.copy_into(&quotient, &state)?;
            r.submit(builder.finish())?;
            r.fetch("quotient", &quotient)
        })
        .expect("it can be recorded");
    let executable = vm.compile(&program, &[("state", &state)], &CompileOptions::default()).expect("it compiles");
    let (bad, good) = (vm.from_slice(&[3i32, 0], &[2]), vm.from_slice(&[3i32, 5], &[2]));
    let [bad, good] = [bad, good].map(|x| x.expect("a tensor").to(CPU).expect("a copy"));
    let failed = executable.run(&[("x", &bad)]).expect("it is submitted");
    let Err(Error::Failed(failure)) = failed.wait() else { panic!("it divides by zero") };
    let text = failure.to_string();
    for part in ["divides failed", "step 2 (div)", &format!("failures.rs:{line}"), "zero"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // What the run would have written has failed with the same root cause; what it read has not.
    assert_eq!(state.wait(), Err(Error::Failed(failure.clone())));
    bad.wait().expect("a feed is not written");
    // The run overwrites the whole parameter, so the next one heals it.
    let again = executable.run(&[("x", &good)]).expect("it is submitted");
    assert_eq!(again["quotient"].to_vec::<i32>().expect("it runs"), [-2, -2]);
    assert_eq!(state.to_vec::<i32>().expect("it is healed"), [-2, -2]);
    vm.wait_all().expect("the failure was returned before");
    assert!(failed.wait().is_err(), "on every call");
}

#[test]
fn a_run_over_a_failed_feed_is_skipped_with_its_root_cause() {
    let vm = Vm::builder().build().expect("an engine");
    let program =
        vm.record("reads", |r| r.fetch("y", &r.feed("x", CPU, DType::F32, &[2])?.neg()?)).expect("it can be recorded");
    let executable = vm.compile(&program, &[], &CompileOptions::default()).expect("it compiles");
    let x = vm.full(CPU, DType::F32, &[2], 1.0).expect("a tensor");
    vm.call_fn("breaks", CPU, [x.update()], |_| Err("on purpose".into())).expect("it is submitted");
    let failed = executable.run(&[("x", &x)]).expect("it is submitted");
    let Err(Error::Failed(failure)) = failed.wait() else { panic!("its feed has failed") };
    assert_eq!(failure.what, "breaks");
}

/// Memory of the arena and of the results of failed runs is given back: a bounded engine runs thousands.
#[test]
fn failed_runs_give_their_memory_back() {
    let vm = Vm::builder().cpu_memory_limit(8 << 20).build().expect("an engine");
    let program = vm
        .record("fails", |r| {
            let x = r.feed("x", CPU, DType::I32, &[1 << 16])?;
            let large = (&(&x + &x)? * &x)?;
            r.fetch("y", &(&large / &x)?)
        })
        .expect("it can be recorded");
    let executable = vm.compile(&program, &[], &CompileOptions::default()).expect("it compiles");
    let zeros = vm.zeros(CPU, DType::I32, &[1 << 16]).expect("a tensor");
    for _ in 0..500 {
        assert!(executable.run(&[("x", &zeros)]).expect("it is submitted").wait().is_err());
    }
}

#[test]
fn runs_after_the_engine_has_ended_are_refused() {
    let vm = Vm::builder().build().expect("an engine");
    let program =
        vm.record("late", |r| r.fetch("y", &r.feed("x", CPU, DType::F32, &[2])?.neg()?)).expect("it can be recorded");
    let executable = vm.compile(&program, &[], &CompileOptions::default()).expect("it compiles");
    let x = vm.full(CPU, DType::F32, &[2], 1.0).expect("a tensor");
    let y = executable.run(&[("x", &x)]).expect("it is submitted");
    drop(vm);
    y.wait().expect("the engine has ended its work first");
    assert!(matches!(executable.run(&[("x", &x)]).map(drop), Err(Error::Shutdown { .. })));
}

/// The logarithm of a negative number, in the second of three steps: without the check it spreads into the result.
#[test]
fn a_run_that_checks_finite_names_the_step_and_the_element() {
    for (device, mode) in
        [(CPU, Mode::Threaded), (SIM, Mode::Threaded), (SIM, Mode::Inline), (SIM, Mode::Simulated { seed: 5 })]
    {
        let vm = Vm::builder().mode(mode).sim_devices(1).detect_races(true).build().expect("an engine");
        let program = vm
            .record("logarithms", |r| {
                let x = r.feed("x", device, DType::F32, &[2, 2])?;
                r.fetch("y", &(&x.neg()?.log()? + 1.0)?)
            })
            .expect("it can be recorded");
        let feed = |elements: &[f32]| vm.from_slice(elements, &[2, 2]).and_then(|x| x.to(device)).expect("a tensor");
        let (bad, good) = (feed(&[-1.0, -2.0, 3.0, -4.0]), feed(&[-1.0; 4]));
        for check_finite in [false, true] {
            let options = CompileOptions { check_finite, block: 1, ..CompileOptions::default() };
            let executable = vm.compile(&program, &[], &options).expect("it compiles");
            let run = executable.run(&[("x", &bad)]).expect("it is submitted");
            if check_finite {
                let failed = run.wait().expect_err("a logarithm of -3").to_string();
                for part in ["step 1 (log)", "failures.rs:", "element [1, 0] of the output of log is NaN"] {
                    assert!(failed.contains(part), "{part}, {device}, {mode:?}: {failed}");
                }
                assert!(run["y"].to_vec::<f32>().is_err());
                let again = executable.run(&[("x", &good)]).expect("it is submitted");
                assert_eq!(again["y"].to_vec::<f32>(), Ok(vec![1.0; 4]), "{device}, {mode:?}");
            } else {
                assert!(run["y"].to_vec::<f32>().expect("it runs")[2].is_nan());
            }
        }
        no_races(&vm);
    }
}

/// Outputs that have gaps, are of other float types, are filled or copied, lie in a loop, or are written in a device's second segment: the first bad element of
/// the step is named by its index in the view.
#[test]
fn outputs_on_a_device_are_looked_at_whatever_writes_them() {
    type Case = fn(&Recorder, &Tensor) -> Result<Tensor, Error>;
    let cases: [(&str, &str, Case); 6] = [
        ("step 1 (exp)", "[2, 0] of the output of exp is inf", |r, x| {
            let y = r.full(SIM, DType::F32, &[3, 2], 0.0)?;
            let mut builder = InstructionsBuilder::new();
            builder.op_into(Op::Exp, &[&x.slice(1, 0..1)?], Params::default(), &y.slice(1, 1..2)?)?;
            r.submit(builder.finish())?;
            Ok(y)
        }),
        ("step 0 (cast)", "[2, 0] of the output of cast is inf", |_, x| x.cast(DType::F16)?.neg()),
        ("step 0 (cast)", "[2, 0] of the output of cast is inf", |_, x| x.cast(DType::BF16)?.neg()),
        ("step 0 (exp)", "[0, 2] of the output of exp is inf", |_, x| x.permute(&[1, 0])?.exp()),
        ("step 3 (add)", "[0, 0] of the output of add is inf", |r, x| {
            let sum = r.full(SIM, DType::F32, &[1, 1], 8.5e37)?; // a quarter of the largest number
            let goes_on = x.slice(0, 0..1)?.slice(1, 0..1)?.lt(&sum)?;
            r.while_true(&goes_on, || sum.copy_from(&(&sum + &sum)?))?;
            Ok(sum)
        }),
        ("step 4 (div)", "[0] of the output of div is inf", |r, x| {
            let on_cpu = x.slice(0, 0..1)?.slice(1, 0..1)?.reshape(&[1])?.to(CPU)?;
            &on_cpu.neg()?.to(SIM)? / &r.full(SIM, DType::F32, &[1], 0.0)?
        }),
    ];
    let vm = Vm::builder().sim_devices(1).detect_races(true).build().expect("an engine");
    let elements = [-1.0, 0.0, 2.0, 3.0, f32::MAX, 5.0];
    let x = vm.from_slice(&elements, &[3, 2]).and_then(|x| x.to(SIM)).expect("a tensor");
    for (step, element, case) in cases {
        let program = vm.record("p", |r| r.fetch("y", &case(r, &r.feed("x", SIM, DType::F32, &[3, 2])?)?));
        let options = CompileOptions { check_finite: true, ..CompileOptions::default() };
        let executable = vm.compile(program.expect("it can be recorded"), &[], &options).expect("it compiles");
        let failed = executable.run(&[("x", &x)]).expect("it is submitted").wait().expect_err(element).to_string();
        assert!(failed.contains(step) && failed.contains(element), "{step}, {element}: {failed}");
    }
    no_races(&vm);
}

/// Infinities that the caller has in a feed, or gives as a number, are no failure wherever they go; a step that makes one of finite numbers is.
#[test]
fn a_run_that_checks_finite_passes_over_infinities_that_were_asked_for() {
    let vm = Vm::builder().sim_devices(1).detect_races(true).build().expect("an engine");
    let options = CompileOptions { check_finite: true, ..CompileOptions::default() };
    for device in [CPU, SIM] {
        // A causal mask: minus infinity where a query does not attend to a key.
        let program = vm.record("masked", |r| {
            let (x, allowed) =
                (r.feed("x", device, DType::F32, &[2, 2])?, r.feed("allowed", device, DType::Bool, &[2, 2])?);
            let masked = allowed.where_(&x, &r.full(device, DType::F32, &[], f32::NEG_INFINITY)?)?;
            let weights = masked.softmax(1)?;
            masked.copy_from(&(&masked + &masked)?)?; // in place
            r.fetch("masked", &masked)?;
            r.fetch("weights", &weights)?;
            r.fetch("logs", &(&weights * &x)?.log()?)
        });
        let masked = vm.compile(program.expect("it can be recorded"), &[], &options).expect("it compiles");
        let feed = |elements: &[f32]| vm.from_slice(elements, &[2, 2]).and_then(|x| x.to(device)).expect("a tensor");
        let allowed = |allowed: &[bool]| vm.from_slice(allowed, &[2, 2]).and_then(|x| x.to(device)).expect("a tensor");
        let (causal, all) = (allowed(&[true, false, true, true]), allowed(&[true; 4]));
        let run = masked.run(&[("x", &feed(&[2.0; 4])), ("allowed", &all)]).expect("it is submitted");
        run.wait().expect("all is finite");
        // The logarithm of a weight that is 0 is minus infinity: that is made of finite numbers.
        let failed = masked.run(&[("x", &feed(&[2.0; 4])), ("allowed", &causal)]).expect("it is submitted");
        let failed = failed.wait().expect_err("the logarithm of 0").to_string();
        assert!(failed.contains("element [0, 1] of the output of log is -inf, and all inputs are finite"), "{failed}");
        // What is in a feed is passed on by every step after it.
        let run = masked.run(&[("x", &feed(&[f32::INFINITY, 1.0, f32::NAN, 1.0])), ("allowed", &all)]);
        let run = run.expect("it is submitted");
        assert!(run["masked"].to_vec::<f32>().expect("no step is to blame")[2].is_nan(), "{device}");
    }
    no_races(&vm);
}

/// A step that reads what it updates, as training does: the runs after the one that failed are skipped, and eager work heals.
#[test]
fn a_parameter_that_is_read_and_written_is_healed_from_outside() {
    let vm = Vm::builder().build().expect("an engine");
    let state = vm.full(CPU, DType::I32, &[2], 7).expect("a tensor");
    let program = vm
        .record("update", |r| {
            let (x, state) = (r.feed("x", CPU, DType::I32, &[2])?, r.parameter("state", &state)?);
            state.copy_from(&(&state / &x)?)
        })
        .expect("it can be recorded");
    let update = vm.compile(&program, &[("state", &state)], &CompileOptions::default()).expect("it compiles");
    let feed = |elements: [i32; 2]| vm.from_slice(&elements, &[2]).and_then(|x| x.to(CPU)).expect("a tensor");
    let run = |elements| update.run(&[("x", &feed(elements))]).expect("it is submitted").wait();
    let failed = run([1, 0]).expect_err("it divides by zero").to_string();
    let skipped = run([1, 1]).expect_err("it reads what failed").to_string();
    assert!(failed.contains("step 0 (div)") && skipped.contains("step 0 (div)"), "{failed}\n{skipped}");
    state.copy_from(&feed([8, 9])).expect("it is submitted");
    run([2, 3]).expect("the parameter is healed");
    assert_eq!(state.to_vec::<i32>().expect("it runs"), [4, 3]);
}
