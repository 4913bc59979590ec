//! Functions of the caller in programs: when they run, what they get, and what fails with them.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use streamvm::program::{CompileOptions, Costs, Program};
use streamvm::{DType, DeviceId, Error, InstructionsBuilder, Mode, ProgramError, Tensor, Vm, Watch};
use streamvm_tests::{ClosedGate, submit};

const CPU: DeviceId = DeviceId::cpu(0);
const OTHER_CPU: DeviceId = DeviceId::cpu(1);
const SIM: DeviceId = DeviceId::sim(0);

fn vm() -> Vm {
    Vm::builder().cpu_devices(2).sim_devices(1).build().expect("an engine")
}

/// Doubles its feed, sorts it by a function that also counts, and adds one.
fn sorted(vm: &Vm, device: DeviceId, calls: &Arc<AtomicUsize>) -> Program {
    let calls = calls.clone();
    vm.record("sorted", |r| {
        let x = r.feed("x", device, DType::F32, &[4])?;
        let (twice, sorted) = ((&x + &x)?, r.full(device, DType::F32, &[4], 0.0)?);
        r.call_fn("sort", device, [twice.read(), sorted.write()], move |context| {
            let sorted = context.writes.take::<f32>(0)?;
            sorted.copy_from_slice(context.reads.get(0)?);
            sorted.sort_by(f32::total_cmp);
            calls.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })?;
        r.fetch("y", &(&sorted + 1.0)?)
    })
    .expect("it can be recorded")
}

#[test]
fn each_run_calls_a_function_between_its_steps() {
    for device in [CPU, SIM] {
        for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 7 }] {
            let vm = Vm::builder().mode(mode).sim_devices(1).build().expect("an engine");
            let calls = Arc::new(AtomicUsize::new(0));
            let executable = vm.compile(sorted(&vm, device, &calls), &[], &CompileOptions::default());
            let executable = executable.expect("it compiles");
            let x = vm.from_slice(&[3f32, 1.0, 2.0, -1.0], &[4]).expect("a tensor").to(device).expect("a copy");
            let runs: Vec<_> = (0..3).map(|_| executable.run(&[("x", &x)]).expect("it is submitted")).collect();
            for run in runs {
                assert_eq!(run["y"].to_vec::<f32>().expect("it runs"), [-1.0, 3.0, 5.0, 7.0], "{device}, {mode:?}");
            }
            assert_eq!(calls.load(Ordering::Relaxed), 3);
        }
    }
}

/// The fill of the tensor that the function overwrites is removed, and the function is not, although nobody needs what it writes.
#[test]
fn a_function_is_never_removed_and_what_it_overwrites_is() {
    let vm = vm();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let program = vm.record("effects", |r| {
        let x = r.feed("x", CPU, DType::F32, &[4])?;
        let (read, written) = (x.neg()?, r.full(CPU, DType::F32, &[4], 5.0)?);
        r.call_fn("looks", CPU, [read.read(), written.write()], move |context| {
            context.writes.take::<f32>(0)?.fill(1.0);
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
    });
    let executable = vm.compile(program.expect("it can be recorded"), &[], &CompileOptions::default());
    let executable = executable.expect("it compiles");
    let names: Vec<&str> = executable.compiled().steps().map(|step| step.work.name()).collect();
    assert_eq!(names, ["neg", "fn"]);
    let x = vm.ones(CPU, DType::F32, &[4]).expect("a tensor");
    executable.run(&[("x", &x)]).expect("it is submitted").wait().expect("it runs");
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

/// How a function fails.
#[derive(Copy, Clone, PartialEq, Debug)]
enum How {
    /// It returns an error.
    Returns,
    Panics,
    /// It returns an error that panics when its text is asked for.
    PanicsLater,
}

#[derive(Debug)]
struct PanicsAsText;

impl fmt::Display for PanicsAsText {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("on purpose")
    }
}

impl std::error::Error for PanicsAsText {}

/// An error and a panic of a function name the function, the step and the line that recorded it. What the function should have written has failed, and
/// so has what is computed from that; the parameter heals when a later run overwrites it. Another result of the run has failed only if the function
/// is a step of the segment that computes it.
#[test]
fn a_failed_function_is_the_root_cause_of_what_needs_its_outputs() {
    let ways = [How::Returns, How::Panics, How::PanicsLater];
    for (how, step_by_step) in ways.into_iter().flat_map(|how| [(how, false), (how, true)]) {
        let vm = vm();
        let state = vm.full(CPU, DType::I32, &[2], 7i64).expect("a tensor");
        let fails = Arc::new(AtomicBool::new(true));
        let broken = fails.clone();
        let mut line = 0;
        let program = vm.record("step", |r| {
            let (x, state) = (r.feed("x", CPU, DType::I32, &[2])?, r.parameter("state", &state)?);
            r.fetch("own", &x.neg()?)?;
            line = line!() + 1;
            r.call_fn("update", CPU, [x.read(), state.write()], move |context| {
                if broken.load(Ordering::Relaxed) {
                    return match how {
                        How::Returns => Err("on purpose".into()),
                        How::Panics => panic!("on purpose"),
                        How::PanicsLater => Err(PanicsAsText.into()),
                    };
                }
                context.writes.take::<i32>(0)?.copy_from_slice(context.reads.get(0)?);
                Ok(())
            })?;
            r.fetch("next", &(&state + 1i64)?)
        });
        let program = program.expect("it can be recorded");
        let options = CompileOptions { step_by_step, ..CompileOptions::default() };
        let executable = vm.compile(&program, &[("state", &state)], &options).expect("it compiles");
        let x = vm.from_slice(&[3i32, 4], &[2]).expect("a tensor").to(CPU).expect("a copy");
        let failed = executable.run(&[("x", &x)]).expect("it is submitted");
        let Err(Error::Failed(failure)) = failed["next"].wait() else { panic!("its function fails") };
        let text = failure.to_string();
        let recorded = format!("functions.rs:{line}");
        let name = if step_by_step { "update of step failed" } else { "update: " };
        for part in [name, "step failed", "step 1 (fn)", recorded.as_str(), "on purpose"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(text.contains("panicked"), how != How::Returns, "{text}");
        assert_eq!(state.wait(), Err(Error::Failed(failure)));
        let own = failed["own"].to_vec::<i32>();
        assert_eq!(own.ok(), step_by_step.then(|| vec![-3, -4]));
        fails.store(false, Ordering::Relaxed);
        let again = executable.run(&[("x", &x)]).expect("it is submitted");
        assert_eq!(again["next"].to_vec::<i32>().expect("it runs"), [4, 5]);
        assert_eq!(state.to_vec::<i32>().expect("it is healed"), [3, 4]);
    }
}

/// On one CPU stream a segment ends with its first failure, and is skipped if an input has failed: functions after it are not called, whatever order is
/// asked for. Step by step they are.
#[test]
fn functions_of_a_segment_that_fails_are_not_called() {
    for step_by_step in [false, true] {
        let vm = vm();
        let (calls, broken) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(true)));
        let (counted, fails) = (calls.clone(), broken.clone());
        let program = vm.record("ordered", |r| {
            let x = r.feed("x", CPU, DType::F32, &[2])?;
            let ((), first) =
                r.after(&[], || {
                    r.host_fn("first", CPU, move || {
                        if fails.load(Ordering::Relaxed) { Err("on purpose".into()) } else { Ok(()) }
                    })
                })?;
            r.after(&[&first], || {
                r.host_fn("second", CPU, move || {
                    counted.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                })
            })?;
            r.fetch("y", &x.neg()?)
        });
        let options = CompileOptions { step_by_step, ..CompileOptions::default() };
        let executable = vm.compile(program.expect("it can be recorded"), &[], &options).expect("it compiles");
        let x = vm.ones(CPU, DType::F32, &[2]).expect("a tensor");
        let run = |x: &Tensor| executable.run(&[("x", x)]).expect("it is submitted").wait();
        run(&x).expect_err("the first function fails");
        assert_eq!(calls.load(Ordering::Relaxed), usize::from(step_by_step));
        broken.store(false, Ordering::Relaxed);
        let failed = submit(&vm, |b| b.call_fn("fails", CPU, [x.update()], |_| Err("on purpose".into())));
        run(&x).expect_err("its feed has failed");
        assert_eq!(calls.load(Ordering::Relaxed), 2 * usize::from(step_by_step));
        failed.wait().expect_err("on purpose");
    }
}

/// A function that writes nothing fails the run.
#[test]
fn a_failed_function_without_outputs_is_returned_by_the_wait_for_the_run() {
    let vm = vm();
    let program = vm.record("logs", |r| r.host_fn("log", CPU, || Err("the disk is full".into())));
    let executable = vm.compile(program.expect("it can be recorded"), &[], &CompileOptions::default());
    let run = executable.expect("it compiles").run(&[]).expect("it is submitted");
    let text = run.wait().expect_err("it fails").to_string();
    assert!(text.contains("logs failed") && text.contains("log: the disk is full"), "{text}");
}

/// Two functions on `first` and `second`, the later one with or without an order after the earlier one, which stands at a gate. Returns whether
/// the later one was called before the gate was opened.
fn called_before_the_gate_opens(ordered: bool, first: DeviceId, second: DeviceId, lanes: u32) -> bool {
    let vm = vm();
    let (gate, called) = (ClosedGate::new(), Arc::new(AtomicBool::new(false)));
    let (stands, calls) = (gate.clone(), called.clone());
    let program = vm.record("ordered", |r| {
        let ((), opened) = r.after(&[], || {
            r.host_fn("stands at the gate", first, move || {
                stands.pass();
                Ok(())
            })
        })?;
        let earlier: &[_] = if ordered { &[&opened] } else { &[] };
        r.after(earlier, || {
            r.host_fn("is called", second, move || {
                calls.store(true, Ordering::Relaxed);
                Ok(())
            })
        })?;
        Ok(())
    });
    let options = CompileOptions { lanes, hand_over_ns: 0, ..CompileOptions::default() };
    let executable = vm.compile(program.expect("it can be recorded"), &[], &options).expect("it compiles");
    let run = executable.run(&[]).expect("it is submitted");
    for _ in 0..100 {
        if called.load(Ordering::Relaxed) {
            break;
        }
        thread::sleep(Duration::from_millis(2));
    }
    let before = called.load(Ordering::Relaxed);
    gate.open();
    run.wait().expect("nothing fails");
    assert!(called.load(Ordering::Relaxed));
    before
}

#[test]
fn steps_on_two_devices_are_ordered_if_the_recording_asks_for_that() {
    assert!(called_before_the_gate_opens(false, CPU, OTHER_CPU, 1));
    assert!(!called_before_the_gate_opens(true, CPU, OTHER_CPU, 1));
}

#[test]
fn functions_of_one_device_are_called_in_the_recorded_order_on_any_lanes() {
    assert!(!called_before_the_gate_opens(false, CPU, CPU, 3));
}

/// An order is no dependence of data: a failure does not pass along it.
#[test]
fn what_is_ordered_after_a_failed_step_runs() {
    let vm = vm();
    let program = vm.record("ordered", |r| {
        let ((), failed) = r.after(&[], || r.host_fn("fails", CPU, || Err("on purpose".into())))?;
        let x = r.feed("x", OTHER_CPU, DType::F32, &[2])?;
        let (y, _) = r.after(&[&failed], || x.neg())?;
        r.fetch("y", &y)
    });
    let program = program.expect("it can be recorded");
    let executable = vm.compile(&program, &[], &CompileOptions::default()).expect("it compiles");
    assert_eq!(executable.compiled().segments()[1].waits, [0]);
    let x = vm.ones(OTHER_CPU, DType::F32, &[2]).expect("a tensor");
    let run = executable.run(&[("x", &x)]).expect("it is submitted");
    assert_eq!(run["y"].to_vec::<f32>().expect("it runs"), [-1.0; 2]);
    assert!(run.wait().expect_err("a step has failed").to_string().contains("on purpose"));
}

/// A waiting caller runs kernels of programs; it must not run a function, which may take a lock that the caller holds.
#[test]
fn a_waiting_caller_calls_no_function() {
    let vm = vm();
    let callers = Arc::new(Mutex::new(Vec::new()));
    let seen = callers.clone();
    let program = vm.record("who", |r| {
        r.host_fn("who", CPU, move || {
            seen.lock().map_err(|_| "a test panicked")?.push(thread::current().id());
            Ok(())
        })
    });
    let executable = vm.compile(program.expect("it can be recorded"), &[], &CompileOptions::default());
    let executable = executable.expect("it compiles");
    for _ in 0..50 {
        executable.run(&[]).expect("it is submitted").wait().expect("it runs");
    }
    let callers = callers.lock().expect("no test panicked");
    assert!(callers.len() == 50 && !callers.contains(&thread::current().id()));
}

#[test]
fn a_printed_program_is_bound_to_code_by_the_name_of_its_function() {
    let vm = vm();
    let calls = Arc::new(AtomicUsize::new(0));
    let program = vm.record("printed", |r| {
        let x = r.feed("x", CPU, DType::F32, &[2])?;
        let y = x.neg()?;
        let (_, negated) = r.after(&[], || r.call_fn("halve", CPU, [y.update()], |_| Ok(())))?;
        let condition = r.full(CPU, DType::Bool, &[], true)?;
        let (_, _) = r.after(&[&negated], || r.if_true(&condition, || y.copy_from(&(&y + 1.0)?)))?;
        r.fetch("y", &y)
    });
    let text = program.expect("it can be recorded").to_string();
    assert!(text.contains("fn       compute@cpu:0:0       \"halve\" update t1"), "{text}");
    // The steps of the order: the function, and what lies in the block.
    assert!(text.contains("order %1 to %1 before %3 to %4\n"), "{text}");
    let mut parsed = Program::parse(&text).expect("it parses");
    assert_eq!(parsed.to_string(), text);
    assert_eq!(parsed.functions(), ["halve"]);
    let options = CompileOptions::default();
    streamvm::program::compile(&parsed, &options).expect("a program without code has a plan");
    let refused = vm.compile(&parsed, &[], &options).expect_err("there is no code");
    let no_code = ProgramError::NoCode { program: "printed".to_owned(), function: "halve".to_owned() };
    assert_eq!(refused.without_call(), no_code.to_string());
    let unknown = parsed.bind_function("half", |_| Ok(())).expect_err("there is no such function").to_string();
    assert!(unknown.contains("there is no function \"half\"; its functions are halve"), "{unknown}");
    let counted = calls.clone();
    let bound = parsed.bind_function("halve", move |context| {
        counted.fetch_add(1, Ordering::Relaxed);
        context.writes.take::<f32>(0)?.iter_mut().for_each(|it| *it *= 0.5);
        Ok(())
    });
    bound.expect("there is one");
    let executable = vm.compile(&parsed, &[], &options).expect("it compiles");
    let x = vm.ones(CPU, DType::F32, &[2]).expect("a tensor");
    assert_eq!(executable.run(&[("x", &x)]).expect("it is submitted")["y"].to_vec::<f32>().expect("it runs"), [0.5; 2]);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

/// Programs with functions are found again by the cache if the functions are the same objects; equal code of another recording is another function.
#[test]
fn the_cache_compares_functions_by_their_identity() {
    let vm = vm();
    let record = || vm.record("counts", |r| r.host_fn("count", CPU, || Ok(()))).expect("it can be recorded");
    let (one, other) = (record(), record());
    let options = CompileOptions::default();
    for program in [&one, &one.clone(), &other] {
        vm.compiled(program, &[], &options).expect("it compiles");
    }
    let counted = vm.stats().programs;
    assert_eq!((counted.hits, counted.misses), (1, 2));
}

#[test]
fn functions_are_timed_watched_and_their_outputs_looked_at() {
    let vm = vm();
    let calls = Arc::new(AtomicUsize::new(0));
    let program = sorted(&vm, CPU, &calls);
    let x = vm.from_slice(&[3f32, 1.0, 2.0, -1.0], &[4]).expect("a tensor").to(CPU).expect("a copy");
    let timed = vm.compile(&program, &[], &CompileOptions { time_steps: true, ..CompileOptions::default() });
    let timed = timed.expect("it compiles");
    for _ in 0..3 {
        timed.run(&[("x", &x)]).expect("it is submitted").wait().expect("it runs");
    }
    let function = timed.compiled().steps().position(|step| step.work.name() == "fn").expect("it is called");
    let times = timed.step_times();
    let time = times.iter().find(|time| time.steps == (function..function + 1)).expect("it is timed");
    assert!(time.runs == 3 && time.time > Duration::ZERO, "{times:?}");

    let watched = vm.compile(&program, &[], &CompileOptions { step_by_step: true, ..CompileOptions::default() });
    let mut seen = Vec::new();
    let run = watched.expect("it compiles").run_watched(&[("x", &x)], Watch::All, &mut |step| {
        if step.took.is_some() {
            seen.push((step.name(), step.outputs[0].to_vec::<f32>()?[0]));
        }
        Ok(())
    });
    run.expect("it runs");
    assert_eq!(seen, [("add", 6.0), ("fn", -2.0), ("add", -1.0)]);

    let checked = vm.record("infinite", |r| {
        let y = r.full(CPU, DType::F32, &[2, 3], 1.0)?;
        r.call_fn("divide", CPU, [y.update()], |context| {
            context.writes.take::<f32>(0)?[4] = f32::INFINITY;
            Ok(())
        })?;
        r.fetch("y", &y)
    });
    let options = CompileOptions { check_finite: true, ..CompileOptions::default() };
    let checked = vm.compile(checked.expect("it can be recorded"), &[], &options).expect("it compiles");
    let text = checked.run(&[]).expect("it is submitted").wait().expect_err("an element is infinite").to_string();
    assert!(text.contains("divide: element [1, 1] of output 0 of this function is inf"), "{text}");
}

#[test]
fn functions_that_cannot_be_called_are_refused_at_their_line() {
    let vm = vm();
    let var = vm.var();
    type Call<'a> = &'a dyn Fn(&streamvm::program::Recorder, &Tensor, &Tensor) -> Result<(), Error>;
    let calls: [(Call<'_>, &str); 5] = [
        (&|r, x, _| r.call_fn("f", CPU, [x.update()], |_| Ok(())), "it writes a feed"),
        (&|r, _, _| r.call_fn("f", CPU, [var.update()], |_| Ok(())), "it uses a variable"),
        (&|r, _, y| r.if_true(y, || r.host_fn("f", SIM, || Ok(()))), "in a block, functions are called on CPUs alone"),
        (
            &|r, x, _| {
                let mut builder = InstructionsBuilder::new();
                builder.call_fn("f", CPU, [x.read()], |_| Ok(()))?;
                r.submit(builder.finish())
            },
            "record the function with `Recorder::call_fn`",
        ),
        (
            &|r, _, _| {
                let mut builder = InstructionsBuilder::new();
                builder.push("f", CPU, [], || Ok(()));
                r.submit(builder.finish())
            },
            "call it before or behind the program",
        ),
    ];
    for (call, why) in calls {
        let refused = vm.record("refused", |r| {
            let x = r.feed("x", CPU, DType::F32, &[4])?;
            let y = r.full(CPU, DType::Bool, &[], true)?;
            call(r, &x, &y)
        });
        let text = refused.expect_err(why).to_string();
        assert!(text.contains(why) && text.contains("functions.rs:"), "{text}");
    }
    // Another recording's steps, and a GPU, whose streams run no code of the host.
    let mut kept = None;
    vm.record("first", |r| {
        kept = Some(r.after(&[], || r.host_fn("f", CPU, || Ok(())))?.1);
        Ok(())
    })
    .expect("it can be recorded");
    let kept = kept.expect("it was set");
    let refused = vm.record("second", |r| r.after(&[&kept], || Ok(())).map(drop)).expect_err("they are foreign");
    assert!(refused.to_string().contains("order steps of one recording"), "{refused}");
    let on_gpu = vm.record("gpu", |r| r.host_fn("f", DeviceId::cuda(0), || Ok(()))).expect("it can be recorded");
    let refused = vm.compile(&on_gpu, &[], &CompileOptions::default()).expect_err("it is on a GPU").to_string();
    assert!(refused.contains("step 0 (fn)") && refused.contains("call it on a CPU"), "{refused}");
}

/// A program with functions and orders keeps both where another one calls it.
#[test]
fn a_called_program_keeps_its_functions_and_orders() {
    let vm = vm();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let inner = vm.record("inner", |r| {
        let x = r.feed("x", CPU, DType::F32, &[2])?;
        let ((), first) = r.after(&[], || r.host_fn("first", OTHER_CPU, || Ok(())))?;
        let y = x.neg()?;
        r.after(&[&first], || {
            r.call_fn("second", CPU, [y.update()], move |context| {
                counted.fetch_add(1, Ordering::Relaxed);
                context.writes.take::<f32>(0)?.iter_mut().for_each(|it| *it += 1.0);
                Ok(())
            })
        })?;
        r.fetch("y", &y)
    });
    let inner = inner.expect("it can be recorded");
    let outer = vm.record("outer", |r| {
        let x = (r.feed("x", CPU, DType::F32, &[2])? * 2.0)?;
        let one = r.call(&inner, &[("x", &x)], &[])?;
        let two = r.call(&inner, &[("x", &one["y"])], &[])?;
        r.fetch("y", &two["y"])
    });
    let outer = outer.expect("it can be recorded");
    let numbers: Vec<_> = outer.orders.iter().map(|order| (order.earlier.clone(), order.later.clone())).collect();
    assert_eq!(numbers, [(1..2, 3..4), (4..5, 6..7)]);
    let executable = vm.compile(&outer, &[], &CompileOptions::default()).expect("it compiles");
    let x = vm.ones(CPU, DType::F32, &[2]).expect("a tensor");
    let run = executable.run(&[("x", &x)]).expect("it is submitted");
    assert_eq!(run["y"].to_vec::<f32>().expect("it runs"), [2.0; 2]);
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    // The functions are on two CPUs, and one thread runs the block.
    let blocked = vm.record("blocked", |r| {
        let (x, c) = (r.feed("x", CPU, DType::F32, &[2])?, r.full(CPU, DType::Bool, &[], true)?);
        r.if_true(&c, || r.call(&inner, &[("x", &x)], &[]).map(drop))
    });
    let blocked =
        vm.compile(blocked.expect("it can be recorded"), &[], &CompileOptions::default()).expect("it compiles");
    blocked.run(&[("x", &x)]).expect("it is submitted").wait().expect("it runs");
    assert_eq!(calls.load(Ordering::Relaxed), 3);
}

/// What an engine has measured is what the compiler takes.
#[test]
fn measured_times_become_costs() {
    let vm = Vm::builder().profile(true).build().expect("an engine");
    let program = vm.record("slow", |r| {
        let x = r.feed("x", CPU, DType::F32, &[16])?;
        r.call_fn("sleeps", CPU, [x.read()], |_| {
            thread::sleep(Duration::from_millis(2));
            Ok(())
        })?;
        r.fetch("y", &x.exp()?)
    });
    let program = program.expect("it can be recorded");
    // Step by step, so that the profile has the function by its name.
    let options = CompileOptions { time_steps: true, step_by_step: true, ..CompileOptions::default() };
    let executable = vm.compile(&program, &[], &options).expect("it compiles");
    assert_eq!(executable.costs(), Costs::default(), "nothing has run");
    let joined = CompileOptions { time_steps: true, ..CompileOptions::default() };
    let joined = vm.compile(&program, &[], &joined).expect("it compiles");
    let x = vm.ones(CPU, DType::F32, &[16]).expect("a tensor");
    for executable in [&executable, &joined] {
        for _ in 0..2 {
            executable.run(&[("x", &x)]).expect("it is submitted").wait().expect("it runs");
        }
    }
    let profile = vm.profile().expect("it was asked for").costs();
    for costs in [executable.costs(), joined.costs(), profile] {
        assert!(costs.of(&program, 0) >= Some(Duration::from_millis(2)), "{costs:?}");
    }
    let exp = executable.costs().of(&program, 1).expect("it has run");
    assert!(exp > Duration::ZERO && exp < Duration::from_millis(2), "{exp:?}");
    vm.compile(&program, &[], &CompileOptions { lanes: 2, costs: executable.costs(), ..options }).expect("it compiles");
}
