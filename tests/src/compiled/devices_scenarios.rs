//! Scenarios of programs whose loops and branches use several devices of a kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use streamvm::program::{CompileOptions, Recorder};
use streamvm::{DType, DeviceId, Error, Generator, Tensor, Vm};

use crate::CPU;
use crate::compiled::block_scenarios::Scenario;
use crate::compiled::blocks::another;
use crate::compiled::mixed_scenarios::compile;

/// The scenarios, each with its name. They use the device that they are given and another one of its kind.
pub const DEVICES_SCENARIOS: [(&str, Scenario); 7] = [
    ("two devices exchange values in each round", exchange),
    ("a loop of a device has loops of another one", loops_in_loops),
    ("conditions are on each of two devices", conditions),
    ("a function works with two devices", with_a_function),
    ("a step of another device fails in a loop", a_failing_step),
    ("steps of two devices are looked into", looked_into),
    ("a program is the same on one device", same_on_one_device),
];

fn to(tensor: &Tensor, device: DeviceId) -> Result<Tensor, Error> {
    if tensor.place().device() == Some(device) { tensor * 1i64 } else { tensor.to(device) }
}

/// A loop of so many rounds, which a device counts.
fn rounds(r: &Recorder, device: DeviceId, most: i32, body: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    let (round, most) = (r.full(device, DType::I32, &[], 0)?, r.full(device, DType::I32, &[], most)?);
    let goes_on = round.lt(&most)?;
    r.while_true(&goes_on, || {
        body()?;
        round.copy_from(&(&round + 1)?)?;
        goes_on.copy_from(&round.lt(&most)?)
    })
}

/// Each device adds the value that the other one had before the round.
fn exchange(vm: &Vm, device: DeviceId) {
    let there = another(device);
    let program = vm.record("exchange", |r| {
        let a = (r.feed("a", device, DType::I64, &[3])? * 1i64)?;
        let b = (r.feed("b", there, DType::I64, &[3])? * 1i64)?;
        rounds(r, device, 6, || {
            let (of_a, of_b) = (to(&a, there)?, to(&b, device)?);
            a.copy_from(&(&a + &of_b)?)?;
            b.copy_from(&(&(&b * 2i64)? + &of_a)?)
        })?;
        r.fetch("a", &a)?;
        r.fetch("b", &b)
    });
    let executable = compile(vm, program, &CompileOptions::default());
    let (mut expected_a, mut expected_b) = ([1i64, 2, 3], [10i64, 20, -30]);
    let a = vm.from_slice(&expected_a, &[3]).and_then(|a| to(&a, device)).expect("a tensor");
    let b = vm.from_slice(&expected_b, &[3]).and_then(|b| to(&b, there)).expect("a tensor");
    for _ in 0..6 {
        for (a, b) in expected_a.iter_mut().zip(&mut expected_b) {
            (*a, *b) = (*a + *b, 2 * *b + *a);
        }
    }
    for _ in 0..3 {
        let run = executable.run(&[("a", &a), ("b", &b)]).expect("it is submitted");
        assert_eq!(run["a"].to_vec::<i64>(), Ok(expected_a.to_vec()));
        assert_eq!(run["b"].to_vec::<i64>(), Ok(expected_b.to_vec()));
    }
    if device != CPU {
        let text = executable.compiled().to_string();
        assert!(text.contains(&format!("run on {there}:")), "{text}");
    }
}

/// The rounds of the loops of both count together.
fn loops_in_loops(vm: &Vm, device: DeviceId) {
    let there = another(device);
    let run = |most_rounds: u64| {
        let program = vm.record("nested", |r| {
            let (x, sum) = (r.full(device, DType::I32, &[], 0)?, r.full(there, DType::I32, &[], 0)?);
            rounds(r, device, 3, || {
                rounds(r, there, 4, || sum.copy_from(&(&sum + 1)?))?;
                x.copy_from(&(&x + &to(&sum, device)?)?)
            })?;
            r.fetch("x", &x)
        });
        let executable = compile(vm, program, &CompileOptions { most_rounds, ..CompileOptions::default() });
        // From the second run on, a device may decide about its loops alone.
        let [.., last] = [(); 3].map(|()| executable.run(&[]).expect("it is submitted"));
        last
    };
    assert_eq!(run(15)["x"].to_scalar::<i32>(), Ok(4 + 8 + 12));
    let text = run(14).wait().expect_err("it needs 15 rounds").to_string();
    assert!(text.contains("while") && text.contains("after 14 rounds"), "{text}");
}

/// A branch of the other device has steps of the first one, and the other way round.
fn conditions(vm: &Vm, device: DeviceId) {
    let there = another(device);
    let program = vm.record("conditions", |r| {
        let (a, b) = (r.full(device, DType::I32, &[2], 0)?, r.full(there, DType::I32, &[2], 0)?);
        let round = r.full(there, DType::I32, &[], 0)?;
        let (three, six) = (r.full(there, DType::I32, &[], 3)?, r.full(there, DType::I32, &[], 6)?);
        // The first device that the loop uses is the one with the condition.
        let goes_on = round.lt(&six)?;
        r.while_true(&goes_on, || {
            r.if_else(
                &round.lt(&three)?,
                || a.copy_from(&(&a + &to(&round, device)?)?),
                || {
                    b.copy_from(&(&b + &to(&a, there)?)?)?;
                    a.copy_from(&(&a * 2)?)
                },
            )?;
            r.if_true(&to(&round, device)?.lt(&r.full(device, DType::I32, &[], 2)?)?, || b.copy_from(&(&b + 100)?))?;
            round.copy_from(&(&round + 1)?)?;
            goes_on.copy_from(&round.lt(&six)?)
        })?;
        r.fetch("a", &a)?;
        r.fetch("b", &b)
    });
    let run = compile(vm, program, &CompileOptions::default()).run(&[]).expect("it is submitted");
    assert_eq!(run["a"].to_vec::<i32>(), Ok(vec![24; 2]));
    assert_eq!(run["b"].to_vec::<i32>(), Ok(vec![200 + 3 + 6 + 12; 2]));
}

/// A function of the host gets a value of one device and gives one to the other.
fn with_a_function(vm: &Vm, device: DeviceId) {
    let there = another(device);
    let program = vm.record("function", |r| {
        let (a, b) = (r.full(device, DType::I32, &[2], 1)?, r.full(there, DType::I32, &[2], 10)?);
        rounds(r, device, 4, || {
            let (from, to_host) = (b.to(CPU)?, r.full(CPU, DType::I32, &[2], 0)?);
            r.call_fn("adds", CPU, [from.read(), to_host.write()], |context| {
                let seen = context.reads.get::<i32>(0)?.to_vec();
                context.writes.take::<i32>(0)?.iter_mut().zip(seen).for_each(|(to, from)| *to = from + 1);
                Ok(())
            })?;
            b.copy_from(&to(&to_host, there)?)?;
            a.copy_from(&(&a + &to(&b, device)?)?)
        })?;
        r.fetch("a", &a)
    });
    let run = compile(vm, program, &CompileOptions::default()).run(&[]).expect("it is submitted");
    assert_eq!(run["a"].to_vec::<i32>(), Ok(vec![1 + 11 + 12 + 13 + 14; 2]));
}

/// It fails late, while commands of the first device are queued; the function of the next round is not called.
fn a_failing_step(vm: &Vm, device: DeviceId) {
    let there = another(device);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let program = vm.record("fails", |r| {
        let x = r.full(device, DType::I32, &[], 4)?;
        let twelve = r.full(there, DType::I32, &[], 12)?;
        let endless = r.full(device, DType::Bool, &[], true)?;
        r.while_true(&endless, || {
            let quotient = (&twelve / &to(&x, there)?)?;
            r.call_fn("counts", CPU, [quotient.to(CPU)?.read()], move |_| {
                counted.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })?;
            x.copy_from(&(&x - 1)?)
        })?;
        r.fetch("x", &x)
    });
    let options = CompileOptions { most_rounds: u64::MAX, ..CompileOptions::default() };
    let executable = compile(vm, program, &options);
    for runs in 1..=2 {
        let text = executable.run(&[]).expect("it is submitted").wait().expect_err("it divides by zero").to_string();
        assert!(text.contains("div") && text.contains("devices_scenarios.rs"), "{text}");
        assert_eq!(calls.load(Ordering::Relaxed), 4 * runs, "{text}");
    }
    assert_eq!(vm.full(there, DType::I32, &[], 5).and_then(|x| (&x + 1)?.to_scalar::<i32>()), Ok(6));
}

fn looked_into(vm: &Vm, device: DeviceId) {
    let there = another(device);
    let record = |divides: bool| {
        vm.record("looked", move |r| {
            let (x, y) = (r.full(device, DType::F32, &[4], 3.0)?, r.full(there, DType::F32, &[], 2.0)?);
            rounds(r, device, 4, || {
                let seen = to(&x, there)?;
                let next = if divides { (&seen / &y)? } else { (&seen + &y)? };
                y.copy_from(&(&y - 1.0)?)?;
                x.copy_from(&to(&next, device)?)
            })?;
            r.fetch("x", &x)
        })
    };
    let checked = CompileOptions { check_finite: true, ..CompileOptions::default() };
    let run = compile(vm, record(false), &checked).run(&[]).expect("it is submitted");
    assert_eq!(run["x"].to_vec::<f32>(), Ok(vec![3.0 + 2.0 + 1.0 - 1.0; 4]));
    let text = compile(vm, record(true), &checked).run(&[]).expect("it is submitted").wait();
    let text = text.expect_err("round 2 divides by zero").to_string();
    assert!(text.contains("div") && text.contains("inf"), "{text}");
    let timed = compile(vm, record(false), &CompileOptions { time_steps: true, ..CompileOptions::default() });
    timed.run(&[]).expect("it is submitted").wait().expect("it runs");
    let times = timed.step_times();
    let subtracts =
        times.iter().filter(|time| timed.compiled().step(time.steps.start).work.name() == "sub").map(|time| time.runs);
    assert_eq!(subtracts.collect::<Vec<u64>>(), [4], "{times:?}");
}

/// With random numbers on both, fused steps, views with gaps within each device, and a loop in a branch.
fn same_on_one_device(vm: &Vm, device: DeviceId) {
    let with = |there: DeviceId| {
        let generator = Generator::new(7);
        let program = vm.record("two", |r| {
            let state = r.full(device, DType::F32, &[8, 12], 1.0)?;
            let round = r.full(device, DType::I32, &[], 0)?;
            let (two, four) = (r.full(device, DType::I32, &[], 2)?, r.full(device, DType::I32, &[], 4)?);
            let goes_on = round.lt(&four)?;
            r.while_true(&goes_on, || {
                let noise = r.rand(&generator, there, DType::F32, &[8, 12])?;
                // Steps that run together.
                let other = (&(&to(&state, there)? * 0.5)? + &noise)?;
                let turned = other.transpose(0, 1)?.contiguous()?;
                state.copy_from(&(&state + &to(&turned, device)?.transpose(0, 1)?)?)?;
                r.if_true(&round.lt(&two)?, || {
                    rounds(r, there, 2, || {
                        other.slice(0, 1..3)?.copy_from(&r.rand(&generator, there, DType::F32, &[2, 12])?)
                    })?;
                    state.copy_from(&(&state + &to(&other, device)?)?)
                })?;
                round.copy_from(&(&round + 1)?)?;
                goes_on.copy_from(&round.lt(&four)?)
            })?;
            r.fetch("state", &state)
        });
        let executable = compile(vm, program, &CompileOptions { block: 64, ..CompileOptions::default() });
        [(); 2].map(|()| executable.run(&[]).expect("it is submitted")["state"].to_vec::<f32>().expect("it runs"))
    };
    assert_eq!(with(another(device)), with(device));
}
