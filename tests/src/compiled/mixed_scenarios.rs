//! What programs must do whose loops and branches have steps of a CPU between those of another device.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use streamvm::program::{CompileOptions, Program, Recorder};
use streamvm::{Cause, DType, DeviceId, Error, Executable, FnError, Generator, Lane, MemoryKind, StepTime, Tensor, Vm};

use crate::CPU;
use crate::compiled::block_scenarios::Scenario;

/// The scenarios, each with its name.
pub const MIXED_SCENARIOS: [(&str, Scenario); 12] = [
    ("a function decides about a loop of a device", a_function_decides),
    ("a function gives each round of a loop its batch", batches),
    ("copies to a device in a row", copies_in_a_row),
    ("a program is the same on a CPU", same_on_a_cpu),
    ("a function that fails or panics ends its loop", a_failing_function),
    ("a loop of a CPU in a loop of a device is bounded with it", inner_rounds),
    ("loops of a CPU share the time of all loops", loop_time),
    ("steps of a CPU are looked into", looked_into),
    ("several runs call their functions", several_runs),
    ("a failed input keeps a function from being called", a_failed_input),
    ("a function of a loop cannot wait for its engine", waits_for_itself),
    ("page-locked memory is copied in a loop", page_locked),
];

/// Compiles a program without parameters.
pub(super) fn compile(vm: &Vm, program: Result<Program, Error>, options: &CompileOptions) -> Executable {
    vm.compile(program.expect("it can be recorded"), &[], options).expect("it compiles")
}

/// A loop of so many rounds, which a CPU counts.
fn rounds(r: &Recorder, most: i32, body: impl FnOnce(&Tensor) -> Result<(), Error>) -> Result<(), Error> {
    let (round, most) = (r.full(CPU, DType::I32, &[], 0)?, r.full(CPU, DType::I32, &[], most)?);
    let goes_on = round.lt(&most)?;
    r.while_true(&goes_on, || {
        body(&round)?;
        round.copy_from(&(&round + 1)?)?;
        goes_on.copy_from(&round.lt(&most)?)
    })
}

/// Doubles `x` until a function of the host sees that it is large enough.
fn a_function_decides(vm: &Vm, device: DeviceId) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let program = vm.record("decides", |r| {
        let (x, goes_on) = ((r.feed("x", device, DType::I64, &[2])? * 1)?, r.full(CPU, DType::Bool, &[], true)?);
        r.while_true(&goes_on, || {
            x.copy_from(&(&x * 2)?)?;
            r.call_fn("looks", CPU, [x.to(CPU)?.read(), goes_on.write()], move |context| {
                counted.fetch_add(1, Ordering::Relaxed);
                let small = context.reads.get::<i64>(0)?.iter().all(|it| *it < 1_000);
                context.writes.take::<bool>(0)?[0] = small;
                Ok(())
            })
        })?;
        r.fetch("x", &x)
    });
    let executable = compile(vm, program, &CompileOptions::default());
    for _ in 0..3 {
        calls.store(0, Ordering::Relaxed);
        let x = vm.from_slice(&[1i64, 3], &[2]).and_then(|x| x.to(device)).expect("a tensor");
        let run = executable.run(&[("x", &x)]).expect("it is submitted");
        assert_eq!(run["x"].to_vec::<i64>(), Ok(vec![512, 1536]));
        assert_eq!(calls.load(Ordering::Relaxed), 9);
    }
}

/// Each round a function fills a batch, the device adds it to its state, and another function reads the state.
fn batches(vm: &Vm, device: DeviceId) {
    const ROUNDS: i32 = 6;
    let seen = Arc::new(AtomicUsize::new(0));
    let sums = seen.clone();
    let program = vm.record("batches", |r| {
        let state = r.full(device, DType::I32, &[3], 0)?;
        let batch = r.full(CPU, DType::I32, &[3], 0)?;
        rounds(r, ROUNDS, |round| {
            r.call_fn("loads", CPU, [round.read(), batch.write()], |context| {
                let round = context.reads.get::<i32>(0)?[0];
                context.writes.take::<i32>(0)?.copy_from_slice(&[round, 10 * round, 1]);
                Ok(())
            })?;
            state.copy_from(&(&state + &batch.to(device)?)?)?;
            r.call_fn("logs", CPU, [state.sum(&[])?.to(CPU)?.read()], move |context| {
                sums.fetch_add(context.reads.get::<i32>(0)?[0] as usize, Ordering::Relaxed);
                Ok(())
            })
        })?;
        r.fetch("state", &state)
    });
    let run = compile(vm, program, &CompileOptions::default()).run(&[]).expect("it is submitted");
    assert_eq!(run["state"].to_vec::<i32>(), Ok(vec![15, 150, 6]));
    // The sum after round k is 11 (0 + 1 + .. + k) + k + 1.
    let expected: usize = (0..ROUNDS as usize).map(|round| 11 * (round * (round + 1) / 2) + round + 1).sum();
    assert_eq!(seen.load(Ordering::Relaxed), expected);
}

/// Copies to the device one after the other go by way of the same memory.
fn copies_in_a_row(vm: &Vm, device: DeviceId) {
    let program = vm.record("copies", |r| {
        let on_device = (0..3).map(|_| r.full(device, DType::I32, &[64], 0)).collect::<Result<Vec<Tensor>, Error>>()?;
        let there = (0..3).map(|it| r.full(CPU, DType::I32, &[64], it)).collect::<Result<Vec<Tensor>, Error>>()?;
        rounds(r, 4, |_| {
            there.iter().try_for_each(|there| there.copy_from(&(there + 10)?))?;
            on_device.iter().zip(&there).try_for_each(|(to, from)| to.copy_from(from))
        })?;
        on_device.iter().enumerate().try_for_each(|(place, tensor)| r.fetch(format!("y{place}"), tensor))
    });
    let run = compile(vm, program, &CompileOptions::default()).run(&[]).expect("it is submitted");
    for place in 0..3 {
        assert_eq!(run[&*format!("y{place}")].to_vec::<i32>(), Ok(vec![40 + place; 64]));
    }
}

/// With random numbers on both, views with gaps, fused steps on the CPU, and a branch in a loop, all of whose numbers are those of a CPU alone.
fn same_on_a_cpu(vm: &Vm, device: DeviceId) {
    let on = |device: DeviceId| {
        let to = |tensor: &Tensor, place: DeviceId| {
            if tensor.place().device() == Some(place) { tensor * 1.0 } else { tensor.to(place) }
        };
        let generator = Generator::new(11);
        let program = vm.record("mixed", |r| {
            let state = r.full(device, DType::F32, &[16, 24], 1.0)?;
            rounds(r, 4, |round| {
                let noise = r.rand(&generator, CPU, DType::F32, &[16, 24])?;
                let turned = to(&state.transpose(0, 1)?, CPU)?;
                // Two steps, which run together.
                let other = (&(&turned.transpose(0, 1)? * 0.5)? + &noise)?;
                state.copy_from(&(&state + &to(&other, device)?)?)?;
                r.if_else(
                    &round.lt(&r.full(CPU, DType::I32, &[], 2)?)?,
                    || state.transpose(0, 1)?.slice(0, 3..9)?.copy_from(&to(&turned.slice(0, 5..11)?, device)?),
                    || state.slice(0, 0..2)?.copy_from(&r.rand(&generator, device, DType::F32, &[2, 24])?),
                )
            })?;
            r.fetch("state", &state)
        });
        let executable = compile(vm, program, &CompileOptions { block: 64, ..CompileOptions::default() });
        [(); 2].map(|()| executable.run(&[]).expect("it is submitted")["state"].to_vec::<f32>().expect("it runs"))
    };
    assert_eq!(on(device), on(CPU));
}

fn a_failing_function(vm: &Vm, device: DeviceId) {
    for panics in [false, true] {
        let program = vm.record("fails", |r| {
            let x = r.full(device, DType::I32, &[], 0)?;
            let endless = r.full(CPU, DType::Bool, &[], true)?;
            r.while_true(&endless, || {
                x.copy_from(&(&x + 1)?)?;
                r.call_fn("judges", CPU, [x.to(CPU)?.read()], move |context| {
                    match (context.reads.get::<i32>(0)?[0], panics) {
                        (..3, _) => Ok(()),
                        (_, false) => Err(FnError::from("it is three")),
                        (_, true) => panic!("it is three"),
                    }
                })
            })?;
            r.fetch("x", &x)
        });
        let options = CompileOptions { most_rounds: u64::MAX, ..CompileOptions::default() };
        let run = compile(vm, program, &options).run(&[]).expect("it is submitted");
        let Err(Error::Failed(failure)) = run.wait() else { panic!("its function fails") };
        let Cause::Step { step, error } = &failure.cause else { panic!("a step failed: {failure}") };
        assert_eq!(step.name, "fn");
        assert!(step.site.file().ends_with("mixed_scenarios.rs"), "{failure}");
        assert!(error.contains("judges") && error.contains("it is three"), "{error}");
        assert!(run["x"].to_scalar::<i32>().is_err(), "what the run writes has failed");
    }
    // The stream goes on.
    assert_eq!(vm.full(device, DType::I32, &[], 5).and_then(|x| (&x + 1)?.to_scalar::<i32>()), Ok(6));
}

/// The rounds of the inner loop, which a CPU runs, count with those of the outer one.
fn inner_rounds(vm: &Vm, device: DeviceId) {
    let run = |most_rounds| {
        let program = vm.record("nested", |r| {
            let (x, sum) = (r.full(device, DType::I32, &[], 0)?, r.full(CPU, DType::I32, &[], 0)?);
            rounds(r, 3, |_| {
                rounds(r, 4, |_| sum.copy_from(&(&sum + 1)?))?;
                x.copy_from(&sum.to(device)?)
            })?;
            r.fetch("x", &x)
        });
        let options = CompileOptions { most_rounds, ..CompileOptions::default() };
        compile(vm, program, &options).run(&[]).expect("it is submitted")
    };
    assert_eq!(run(15)["x"].to_scalar::<i32>(), Ok(12));
    let text = run(14).wait().expect_err("it needs 15 rounds").to_string();
    assert!(text.contains("while") && text.contains("after 14 rounds"), "{text}");
}

/// The loops of a CPU in one round of a loop of a device share the time that all loops of a run have.
fn loop_time(vm: &Vm, device: DeviceId) {
    let program = vm.record("slow", |r| {
        let x = r.full(device, DType::I32, &[], 0)?;
        rounds(r, 1, |_| {
            for _ in 0..4 {
                rounds(r, 3, |_| {
                    r.host_fn("sleeps", CPU, || {
                        std::thread::sleep(Duration::from_millis(8));
                        Ok(())
                    })
                })?;
                // What the device does in between parts the loops from each other.
                x.copy_from(&(&x + 1)?)?;
            }
            Ok(())
        })?;
        r.fetch("x", &x)
    });
    let options = CompileOptions { most_loop_time: Some(Duration::from_millis(50)), ..CompileOptions::default() };
    let text = compile(vm, program, &options).run(&[]).expect("it is submitted").wait();
    let text = text.expect_err("they take 96 ms together").to_string();
    assert!(text.contains("after 50ms") && text.contains("most_loop_time"), "{text}");
}

fn looked_into(vm: &Vm, device: DeviceId) {
    let record = |divides: bool| {
        vm.record("looked", move |r| {
            let x = r.full(device, DType::F32, &[4], 3.0)?;
            rounds(r, 5, |round| {
                let there = x.to(CPU)?;
                let round = round.cast(DType::F32)?;
                let next = if divides { (&there / &(&round - 2.0)?)? } else { (&there + &round)? };
                x.copy_from(&next.to(device)?)
            })?;
            r.fetch("x", &x)
        })
    };
    let checked = CompileOptions { check_finite: true, ..CompileOptions::default() };
    let run = compile(vm, record(false), &checked).run(&[]).expect("it is submitted");
    assert_eq!(run["x"].to_vec::<f32>(), Ok(vec![13.0; 4]));
    let text = compile(vm, record(true), &checked).run(&[]).expect("it is submitted").wait();
    let text = text.expect_err("round 2 divides by zero").to_string();
    assert!(text.contains("div") && text.contains("inf"), "{text}");
    let timed = compile(vm, record(false), &CompileOptions { time_steps: true, ..CompileOptions::default() });
    timed.run(&[]).expect("it is submitted").wait().expect("it runs");
    let times = timed.step_times();
    let name_of = |time: &StepTime| timed.compiled().step(time.steps.start).work.name();
    let runs_of =
        |name: &str| -> Vec<u64> { times.iter().filter(|time| name_of(time) == name).map(|time| time.runs).collect() };
    assert!(runs_of("add").contains(&5), "{times:?}");
    assert!(runs_of("copy").iter().filter(|runs| **runs == 5).count() >= 2, "{times:?}");
}

fn several_runs(vm: &Vm, device: DeviceId) {
    let program = vm.record("several", |r| {
        let (x, most) = ((r.feed("x", device, DType::I32, &[])? * 1)?, r.full(device, DType::I32, &[], 40)?);
        let goes_on = x.lt(&most)?;
        r.while_true(&goes_on, || {
            let there = x.to(CPU)?;
            r.call_fn("adds", CPU, [there.update()], |context| {
                context.writes.take::<i32>(0)?[0] += 7;
                Ok(())
            })?;
            x.copy_from(&there.to(device)?)?;
            goes_on.copy_from(&x.lt(&most)?)
        })?;
        r.fetch("x", &x)
    });
    let executable = compile(vm, program, &CompileOptions::default());
    let mut runs = Vec::new();
    for number in 0..12i32 {
        let _lane = Lane(number as u32 % 3).enter();
        let x = vm.full(device, DType::I32, &[], number).expect("a tensor");
        runs.push((number, executable.run(&[("x", &x)]).expect("it is submitted")));
    }
    for (from, run) in runs {
        let expected = (from..).step_by(7).find(|it| *it >= 40);
        assert_eq!(run["x"].to_scalar::<i32>().ok(), expected, "from {from}");
    }
}

/// A function of a loop that waits for its own engine would wait for the stream that calls it: it gets an error.
fn waits_for_itself(vm: &Vm, device: DeviceId) {
    let one = vm.full(device, DType::I32, &[], 1).expect("a tensor");
    vm.wait_all().expect("it passes");
    let asked = one.clone();
    let program = vm.record("curious", move |r| {
        let x = r.full(device, DType::I32, &[], 1)?;
        let yes = r.full(CPU, DType::Bool, &[], true)?;
        r.while_true(&yes, || {
            x.copy_from(&(&x + 1)?)?;
            r.call_fn("asks", CPU, [x.to(CPU)?.read(), yes.write()], move |context| {
                context.writes.take::<bool>(0)?[0] = false;
                (&asked + 1)?.to_scalar::<i32>().map(drop).map_err(FnError::from)
            })
        })?;
        r.fetch("x", &x)
    });
    let text = compile(vm, program, &CompileOptions::default()).run(&[]).expect("it is submitted").wait();
    let text = text.expect_err("it cannot wait").to_string();
    assert!(text.contains("asks: ") && text.contains("wait"), "{text}");
    assert_eq!(one.to_scalar::<i32>(), Ok(1), "the engine goes on");
}

/// The feed is the output of an instruction that fails; the function of the loop must see nothing of that.
fn a_failed_input(vm: &Vm, device: DeviceId) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let program = vm.record("waits", |r| {
        let x = r.feed("x", device, DType::I32, &[])?;
        let yes = r.full(CPU, DType::Bool, &[], true)?;
        r.while_true(&yes, || {
            r.call_fn("counts", CPU, [x.to(CPU)?.read(), yes.write()], move |context| {
                counted.fetch_add(1, Ordering::Relaxed);
                context.writes.take::<bool>(0)?[0] = false;
                Ok(())
            })
        })?;
        r.fetch("x", &(&x + 1)?)
    });
    let executable = compile(vm, program, &CompileOptions::default());
    let one = vm.full(device, DType::I32, &[], 1).expect("a tensor");
    let failed = (&one / &(&one - 1).expect("it is submitted")).expect("it is submitted");
    let run = executable.run(&[("x", &failed)]).expect("it is submitted");
    let text = run.wait().expect_err("its feed has failed").to_string();
    assert!(text.contains("div"), "{text}");
    assert_eq!(calls.load(Ordering::Relaxed), 0, "the function was called over a failed input");
    let run = executable.run(&[("x", &one)]).expect("it is submitted");
    assert_eq!(run["x"].to_scalar::<i32>(), Ok(2));
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

/// Copies between memory of a device and page-locked memory are commands of the device; those between page-locked and other memory of the host are the host's.
fn page_locked(vm: &Vm, device: DeviceId) {
    let pinned = vm.from_slice_pinned(device, &[1i32, 2, 3, 4], &[4]).expect("a tensor");
    assert_eq!(pinned.memory(), MemoryKind::Pinned);
    let program = vm.record("pinned", |r| {
        let pinned = r.parameter("pinned", &pinned)?;
        let x = r.full(device, DType::I32, &[4], 0)?;
        let there = r.full(CPU, DType::I32, &[4], 1)?;
        rounds(r, 3, |_| {
            x.copy_from(&pinned)?;
            pinned.copy_from(&(&x * 2)?)?;
            // The host reads what the device has just written.
            there.copy_from(&pinned)
        })?;
        r.fetch("there", &there)
    });
    let program = program.expect("it can be recorded");
    let executable = vm.compile(&program, &[("pinned", &pinned)], &CompileOptions::default()).expect("it compiles");
    let run = executable.run(&[]).expect("it is submitted");
    assert_eq!(run["there"].to_vec::<i32>(), Ok(vec![8, 16, 24, 32]));
    assert_eq!(pinned.to_vec::<i32>(), Ok(vec![8, 16, 24, 32]));
}
