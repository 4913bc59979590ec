//! What a failed run leaves behind.

use streamvm::program::CompileOptions;
use streamvm::{DType, DeviceId, Error, InstructionsBuilder, Vm};

const CPU: DeviceId = DeviceId::cpu(0);

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
    assert_eq!(executable.run(&[("x", &x)]).map(drop), Err(Error::Shutdown));
}

/// The logarithm of a negative number, in the second of three steps: without the check it spreads into the result.
#[test]
fn a_run_that_checks_finite_names_the_step_and_the_element() {
    let vm = Vm::builder().build().expect("an engine");
    let program = vm
        .record("logarithms", |r| {
            let x = r.feed("x", CPU, DType::F32, &[2, 2])?;
            r.fetch("y", &(&x.neg()?.log()? + 1.0)?)
        })
        .expect("it can be recorded");
    let x = vm.from_slice(&[-1.0f32, -2.0, 3.0, -4.0], &[2, 2]).expect("a tensor").to(CPU).expect("a copy");
    for check_finite in [false, true] {
        let options = CompileOptions { check_finite, block: 1, ..CompileOptions::default() };
        let executable = vm.compile(&program, &[], &options).expect("it compiles");
        let run = executable.run(&[("x", &x)]).expect("it is submitted");
        if check_finite {
            let failed = run.wait().expect_err("a logarithm of -3").to_string();
            for part in ["step 1 (log)", "failures.rs:", "element [1, 0] of its output is NaN"] {
                assert!(failed.contains(part), "{part}: {failed}");
            }
            assert!(run["y"].to_vec::<f32>().is_err());
        } else {
            assert!(run["y"].to_vec::<f32>().expect("it runs")[2].is_nan());
        }
    }
}

/// A step that reads what it updates, as training does: the runs behind the one that failed are skipped, and eager work heals.
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
