//! Functions in blocks of programs: how often they are called, what they may do there, and what fails with them.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use streamvm::program::{CompileOptions, Program, Recorder, Work};
use streamvm::{DType, DeviceId, Error, Executable, FnContext, FnError, Lane, Mode, Tensor, TimeLimit, Vm, Watch};
use streamvm_tests::{CPU, ClosedGate, failure_of, no_races, until, within};

const OTHER_CPU: DeviceId = DeviceId::cpu(1);
const SIM: DeviceId = DeviceId::sim(0);

/// The steps that a program has beside its block, and the options with which a test compiles it.
#[derive(Copy, Clone, PartialEq, Debug)]
enum Beside {
    /// Nothing: the program is one segment.
    Nothing,
    /// Chains of steps for a second lane.
    Lanes,
    /// A step on a simulated device.
    Device,
    /// Nothing, and each step and block is a segment.
    StepByStep,
}

const ALL: [Beside; 4] = [Beside::Nothing, Beside::Lanes, Beside::Device, Beside::StepByStep];
const MODES: [Mode; 3] = [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 5 }];

fn engine(mode: Mode) -> Vm {
    Vm::builder().mode(mode).cpu_devices(2).sim_devices(1).detect_races(true).build().expect("an engine")
}

impl Beside {
    fn record(self, r: &Recorder) -> Result<(), Error> {
        match self {
            Beside::Nothing | Beside::StepByStep => Ok(()),
            Beside::Lanes => {
                let two = r.full(CPU, DType::I32, &[8], 2)?;
                let chain = || (0..12).try_fold(two.neg()?, |it, _| it.neg());
                r.fetch("beside", &(&chain()? + &chain()?)?)
            }
            Beside::Device => r.fetch("beside", &r.full(SIM, DType::I32, &[8], 4)?.neg()?),
        }
    }

    fn options(self) -> CompileOptions {
        let lanes = if self == Beside::Lanes { 2 } else { 1 };
        let step_by_step = self == Beside::StepByStep;
        CompileOptions { lanes, hand_over_ns: 0, step_by_step, ..CompileOptions::default() }
    }

    fn compile(self, vm: &Vm, program: &Program, parameters: &[(&str, &Tensor)]) -> Executable {
        let executable = vm.compile(program, parameters, &self.options()).expect("it compiles");
        let segments = executable.compiled().segments().len();
        assert_eq!(segments > 1, self != Beside::Nothing, "{}", executable.compiled());
        executable
    }
}

/// A counter, and what adds to it.
fn counter() -> (Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let counter = Arc::new(AtomicUsize::new(0));
    (counter.clone(), counter)
}

fn number(vm: &Vm, value: i32) -> Tensor {
    vm.full(CPU, DType::I32, &[], value).expect("a tensor")
}

/// Adds one to its only written number.
fn add_one(context: &mut FnContext<'_>) -> Result<(), FnError> {
    context.writes.take::<i32>(0)?[0] += 1;
    Ok(())
}

/// Records a loop of `rounds` rounds, whose number `body` gets.
fn rounds(r: &Recorder, rounds: i32, body: impl FnOnce(&Tensor) -> Result<(), Error>) -> Result<(), Error> {
    let (round, most) = (r.full(CPU, DType::I32, &[], 0)?, r.full(CPU, DType::I32, &[], rounds)?);
    let goes_on = round.lt(&most)?;
    r.while_true(&goes_on, || {
        body(&round)?;
        round.copy_from(&(&round + 1)?)?;
        goes_on.copy_from(&round.lt(&most)?)
    })
}

/// The function counts `x` up, and says whether the loop goes on. Runs overlap.
#[test]
fn a_function_is_called_in_each_round_and_decides_about_the_next_one() {
    for (mode, beside) in MODES.into_iter().flat_map(|mode| ALL.map(|beside| (mode, beside))) {
        let vm = engine(mode);
        let (calls, counted) = counter();
        let program = vm.record("counts", |r| {
            let x = (&r.feed("x", CPU, DType::I32, &[])? * 1)?;
            let goes_on = r.full(CPU, DType::Bool, &[], true)?;
            beside.record(r)?;
            r.while_true(&goes_on, || {
                r.call_fn("count", CPU, [x.update(), goes_on.write()], move |context| {
                    counted.fetch_add(1, Ordering::Relaxed);
                    let x = context.writes.take::<i32>(0)?;
                    x[0] += 1;
                    let is_small = x[0] < 11;
                    context.writes.take::<bool>(1)?[0] = is_small;
                    Ok(())
                })?;
                x.copy_from(&(&x + 0)?)
            })?;
            r.fetch("x", &x)
        });
        let count = beside.compile(&vm, &program.expect("it can be recorded"), &[]);
        let from = [0, 10, 11, 40, -5, 3];
        let run = |(lane, from): (u32, i32)| {
            let _lane = Lane(lane % 3).enter();
            count.run(&[("x", &number(&vm, from))]).expect("it is submitted")
        };
        let runs: Vec<_> = (0..).zip(from).map(run).collect();
        for (from, run) in from.into_iter().zip(runs) {
            assert_eq!(run["x"].to_scalar::<i32>(), Ok(11.max(from + 1)), "{mode:?}, {beside:?}, from {from}");
        }
        let expected: i32 = from.into_iter().map(|from| (11 - from).max(1)).sum();
        assert_eq!(calls.load(Ordering::Relaxed), expected as usize, "{mode:?}, {beside:?}");
        no_races(&vm);
    }
}

/// A function of a branch is called if the branch runs, in loops and branches around it.
#[test]
fn a_function_of_a_branch_is_called_if_the_branch_runs() {
    for (mode, beside) in MODES.into_iter().flat_map(|mode| ALL.map(|beside| (mode, beside))) {
        let vm = engine(mode);
        let [(then, then_counted), (otherwise, otherwise_counted), (inner, inner_counted)] =
            [(); 3].map(|()| counter());
        let count = |counted: Arc<AtomicUsize>| {
            move || {
                counted.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        };
        let program = vm.record("branches", |r| {
            let (yes, y) = (r.feed("yes", CPU, DType::Bool, &[])?, r.full(CPU, DType::I32, &[], 0)?);
            beside.record(r)?;
            rounds(r, 4, |round| {
                let is_late = round.gt(&r.full(CPU, DType::I32, &[], 0)?)?;
                r.if_else(
                    &yes,
                    || {
                        r.host_fn("then", CPU, count(then_counted))?;
                        r.if_true(&is_late, || {
                            r.host_fn("inner", CPU, count(inner_counted))?;
                            r.call_fn_on_workers("adds", CPU, [y.update()], add_one)
                        })
                    },
                    || r.host_fn("otherwise", CPU, count(otherwise_counted)),
                )
            })?;
            r.fetch("y", &y)
        });
        let branches = beside.compile(&vm, &program.expect("it can be recorded"), &[]);
        let mut all = [0; 3];
        for (yes, calls, y) in [(false, [0, 4, 0], 0), (true, [4, 0, 3], 3), (false, [0, 4, 0], 0)] {
            let yes = vm.full(CPU, DType::Bool, &[], yes).expect("a tensor");
            let run = branches.run(&[("yes", &yes)]).expect("it is submitted");
            assert_eq!(run["y"].to_scalar::<i32>(), Ok(y), "{mode:?}, {beside:?}");
            all.iter_mut().zip(calls).for_each(|(all, calls)| *all += calls);
            let found = [&then, &otherwise, &inner].map(|calls| calls.load(Ordering::Relaxed));
            assert_eq!(found, all, "{mode:?}, {beside:?}");
        }
    }
}

/// In round 3 of 5 the function fails, by an error or a panic: no further round begins, and what the block writes has failed. The next run heals it.
#[test]
fn a_function_that_fails_ends_its_loop_and_the_next_run_heals() {
    let cases = MODES.into_iter().flat_map(|mode| ALL.map(|beside| (mode, beside)));
    for ((mode, beside), panics) in cases.flat_map(|case| [(case, false), (case, true)]) {
        let vm = engine(mode);
        let state = number(&vm, 7);
        let (calls, counted) = counter();
        let mut line = 0;
        let program = vm.record("step", |r| {
            let (fails, state) = (r.feed("fails", CPU, DType::I32, &[])?, r.parameter("state", &state)?);
            state.fill(0)?;
            beside.record(r)?;
            rounds(r, 5, |round| {
                line = line!() + 1;
                r.call_fn("update", CPU, [round.read(), fails.read(), state.update()], move |context| {
                    counted.fetch_add(1, Ordering::Relaxed);
                    let (round, fails) = (context.reads.get::<i32>(0)?[0], context.reads.get::<i32>(1)?[0]);
                    match (round == fails, panics) {
                        (true, true) => panic!("on purpose"),
                        (true, false) => Err("on purpose".into()),
                        _ => add_one(context),
                    }
                })
            })?;
            r.fetch("next", &(&state + 1)?)
        });
        let program = program.expect("it can be recorded");
        let step = program.steps.iter().position(|step| matches!(step.work, Work::Function(_))).expect("as recorded");
        let executable = beside.compile(&vm, &program, &[("state", &state)]);
        let run = |fails| executable.run(&[("fails", &number(&vm, fails))]).expect("it is submitted");
        let failed = run(2);
        let failure = failure_of(failed["next"].wait());
        let text = failure.to_string();
        let (recorded, step) = (format!("block_functions.rs:{line}"), format!("step {step} (fn)"));
        for part in ["step failed", step.as_str(), recorded.as_str(), "update: ", "on purpose"] {
            assert!(text.contains(part), "{mode:?}, {beside:?}: {part}: {text}");
        }
        assert_eq!(text.contains("panicked"), panics, "{text}");
        assert_eq!(state.wait(), Err(Error::Failed(failure)));
        assert_eq!(calls.load(Ordering::Relaxed), 3, "{mode:?}, {beside:?}");
        if beside == Beside::Device {
            assert_eq!(failed["beside"].to_vec::<i32>(), Ok(vec![-4; 8]), "it is in another segment");
        }
        assert_eq!(run(9)["next"].to_scalar::<i32>(), Ok(6), "{mode:?}, {beside:?}");
        assert_eq!((state.to_scalar::<i32>(), calls.load(Ordering::Relaxed)), (Ok(5), 8));
    }
}

/// Who calls a function in a block: not a caller that waits for the run, which may hold a lock that the function takes.
#[test]
fn a_waiting_caller_calls_no_function_in_a_block() {
    for beside in ALL {
        let vm = engine(Mode::Threaded);
        let callers = Arc::new(Mutex::new(Vec::new()));
        let seen = callers.clone();
        let program = vm.record("who", |r| {
            beside.record(r)?;
            rounds(r, 3, |_| {
                r.host_fn("who", CPU, move || {
                    seen.lock().map_err(|_| "a test panicked")?.push(thread::current().id());
                    Ok(())
                })
            })
        });
        let executable = beside.compile(&vm, &program.expect("it can be recorded"), &[]);
        for _ in 0..50 {
            executable.run(&[]).expect("it is submitted").wait().expect("it runs");
        }
        let callers = callers.lock().expect("no test panicked");
        assert!(callers.len() == 150 && !callers.contains(&thread::current().id()), "{beside:?}");
    }
}

/// The function waits for what another CPU does with the result of a step before the block. So that step is in another segment.
#[test]
fn a_function_in_a_block_may_wait_for_what_needs_an_earlier_step() {
    within("a function that waits", || {
        let vm = engine(Mode::Threaded);
        let gate = ClosedGate::new();
        let stands = gate.clone();
        let program = vm.record("waits", |r| {
            let x = r.feed("x", CPU, DType::I32, &[])?;
            let (negated, yes) = (x.neg()?, r.full(CPU, DType::Bool, &[], true)?);
            let seen = r.full(CPU, DType::I32, &[], 0)?;
            r.if_true(&yes, || {
                r.call_fn("stands at the gate", CPU, [seen.update()], move |context| {
                    stands.pass();
                    add_one(context)
                })
            })?;
            let there = negated.to(OTHER_CPU)?;
            r.call_fn("opens the gate", OTHER_CPU, [there.read()], move |_| {
                gate.open();
                Ok(())
            })?;
            r.fetch("seen", &seen)
        });
        let executable = vm.compile(program.expect("it can be recorded"), &[], &CompileOptions::default());
        let executable = executable.expect("it compiles");
        for _ in 0..20 {
            let run = executable.run(&[("x", &number(&vm, 1))]).expect("it is submitted");
            assert_eq!(run["seen"].to_scalar::<i32>(), Ok(1));
        }
    });
}

/// Functions before, in and after two blocks note their numbers, and share no tensor. The first one of each block takes long, so that others would come before it.
#[test]
fn functions_in_blocks_are_called_in_the_recorded_order_on_any_lanes() {
    for lanes in [1, 3] {
        let vm = engine(Mode::Threaded);
        let noted = Arc::new(Mutex::new(Vec::new()));
        let program = vm.record("ordered", |r| {
            let note = |number: usize, time: Duration| {
                let noted = noted.clone();
                move || -> Result<(), FnError> {
                    thread::sleep(time);
                    noted.lock().map_err(|_| "a test panicked")?.push(number);
                    Ok(())
                }
            };
            let beside = |number: usize| {
                let (tensor, note) =
                    (r.feed(format!("x{number}"), CPU, DType::I32, &[8])?, note(number, Duration::ZERO));
                r.call_fn("notes", CPU, [tensor.read()], move |_| note())
            };
            beside(0)?;
            for block in 0..2 {
                let fed = r.feed(format!("block{block}"), CPU, DType::I32, &[])?;
                rounds(r, 2, |_| {
                    let first = note(3 * block + 1, Duration::from_millis(1));
                    r.call_fn("notes", CPU, [fed.read()], move |_| first())?;
                    r.call_fn("notes", CPU, [fed.read()], {
                        let second = note(3 * block + 2, Duration::ZERO);
                        move |_| second()
                    })
                })?;
                beside(3 * block + 3)?;
            }
            Ok(())
        });
        let options = CompileOptions { lanes, hand_over_ns: 0, ..CompileOptions::default() };
        let executable = vm.compile(program.expect("it can be recorded"), &[], &options).expect("it compiles");
        assert_eq!(executable.compiled().segments().len() > 1, lanes > 1, "{}", executable.compiled());
        let (x, block) = (vm.full(CPU, DType::I32, &[8], 3).expect("a tensor"), number(&vm, 1));
        let feeds = [("x0", &x), ("x3", &x), ("x6", &x), ("block0", &block), ("block1", &block)];
        for _ in 0..50 {
            executable.run(&feeds).expect("it is submitted").wait().expect("it runs");
            let found = std::mem::take(&mut *noted.lock().expect("no function panicked"));
            assert_eq!(found, [0, 1, 2, 1, 2, 3, 4, 5, 4, 5, 6], "{lanes} lanes");
        }
        no_races(&vm);
    }
}

/// A loop that never ends, whose function counts.
fn endless(vm: &Vm, options: &CompileOptions) -> (Executable, Arc<AtomicUsize>) {
    let (calls, counted) = counter();
    let program = vm.record("endless", |r| {
        let goes_on = r.full(CPU, DType::Bool, &[], true)?;
        r.while_true(&goes_on, || {
            r.call_fn("count", CPU, [goes_on.write()], move |context| {
                counted.fetch_add(1, Ordering::Relaxed);
                context.writes.take::<bool>(0)?[0] = true;
                Ok(())
            })
        })
    });
    (vm.compile(program.expect("it can be recorded"), &[], options).expect("it compiles"), calls)
}

#[test]
fn rounds_with_functions_are_bounded() {
    for mode in MODES {
        let vm = engine(mode);
        let failed = |options: CompileOptions| {
            let (executable, calls) = endless(&vm, &options);
            let failed = executable.run(&[]).expect("it is submitted").wait().expect_err("it never ends").to_string();
            (failed, calls.load(Ordering::Relaxed))
        };
        let (text, calls) = failed(CompileOptions { most_rounds: 10, ..CompileOptions::default() });
        assert!(text.contains("while") && text.contains("after 10 rounds") && calls == 10, "{calls}: {text}");
        let time = Some(Duration::from_millis(3));
        let (text, calls) =
            failed(CompileOptions { most_rounds: u64::MAX, most_loop_time: time, ..CompileOptions::default() });
        assert!(text.contains("after 3ms") && text.contains(&format!("{calls} rounds")), "{calls}: {text}");
    }
}

/// A run that goes on when the limit of a shutdown is over ends at its next round. A limit of the waiting alone does not end it.
#[test]
fn a_loop_with_a_function_ends_with_its_engine() {
    within("a shutdown", || {
        let vm = engine(Mode::Threaded);
        let (executable, calls) = endless(&vm, &CompileOptions { most_rounds: u64::MAX, ..CompileOptions::default() });
        let run = executable.run(&[]).expect("it is submitted");
        until("it has begun", || calls.load(Ordering::Relaxed) > 0);
        let short = Duration::from_millis(20);
        assert!(matches!(TimeLimit(short).run(|| run.wait()), Err(Error::Timeout { after, .. }) if after == short));
        thread::scope(|scope| {
            let waiter = scope.spawn(|| run.wait());
            assert!(matches!(vm.shutdown(short), Err(Error::Timeout { after, .. }) if after == short));
            let failed = waiter.join().expect("it does not panic").expect_err("the loop is stopped").to_string();
            for part in ["while", "shut down", "block_functions.rs:"] {
                assert!(failed.contains(part), "{part}: {failed}");
            }
        });
        let ended = calls.load(Ordering::Relaxed);
        thread::sleep(short);
        assert_eq!(calls.load(Ordering::Relaxed), ended, "it is called no more");
    });
}

#[test]
fn functions_in_blocks_are_timed_watched_and_their_outputs_looked_at() {
    let vm = engine(Mode::Threaded);
    let halves = |r: &Recorder, y: &Tensor| {
        r.call_fn("divide", CPU, [y.update()], |context| {
            let y = context.writes.take::<f32>(0)?;
            y[4] /= y[0];
            y[0] = 0.0;
            Ok(())
        })
    };
    let program = vm.record("divides", |r| {
        let y = r.full(CPU, DType::F32, &[2, 3], 1.0)?;
        rounds(r, 2, |_| halves(r, &y))?;
        r.fetch("y", &y)
    });
    let program = program.expect("it can be recorded");
    let compile = |options: CompileOptions| vm.compile(&program, &[], &options).expect("it compiles");

    let timed = compile(CompileOptions { time_steps: true, ..CompileOptions::default() });
    for _ in 0..3 {
        timed.run(&[]).expect("it is submitted").wait().expect("it runs");
    }
    let mut steps = timed.compiled().steps();
    let function = steps.position(|step| step.work.name() == "fn").expect("it is called");
    let of = |steps: Range<usize>| timed.step_times().into_iter().find(|time| time.steps == steps);
    assert_eq!(of(function..function + 1).map(|time| time.runs), Some(6), "{:?}", timed.step_times());
    assert!(timed.costs().of(&program, timed.compiled().step(function).number).is_some());

    let watched = compile(CompileOptions { step_by_step: true, ..CompileOptions::default() });
    let mut seen = Vec::new();
    let run = watched.run_watched(&[], Watch::All, &mut |step| {
        let calls = step.steps.iter().filter(|step| step.work.name() == "fn").count();
        let y = step.outputs.iter().find(|output| output.dtype() == DType::F32 && step.took.is_some());
        if let (1, Some(y)) = (calls, y) {
            seen.push((step.name(), y.to_vec::<f32>()?));
        }
        Ok(())
    });
    run.expect("it runs");
    assert_eq!(seen, [("while", vec![0.0, 1.0, 1.0, 1.0, f32::INFINITY, 1.0])]);

    let checked = compile(CompileOptions { check_finite: true, ..CompileOptions::default() });
    let text = checked.run(&[]).expect("it is submitted").wait().expect_err("an element is infinite").to_string();
    for part in ["(fn)", "divide: element [1, 1] of output 0 of this function is inf", "block_functions.rs:"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// A program with a function in a loop is called in a block, and after it; then all of that is printed, parsed and bound to code.
#[test]
fn called_and_parsed_programs_keep_the_functions_in_their_blocks() {
    let vm = engine(Mode::Threaded);
    let inner = vm.record("inner", |r| {
        let y = (&r.feed("x", CPU, DType::I32, &[])? * 2)?;
        rounds(r, 3, |_| r.call_fn("adds", CPU, [y.update()], add_one))?;
        r.fetch("y", &y)
    });
    let inner = inner.expect("it can be recorded");
    let outer = vm.record("outer", |r| {
        let y = (&r.feed("x", CPU, DType::I32, &[])? * 1)?;
        rounds(r, 2, |_| y.copy_from(&r.call(&inner, &[("x", &y)], &[])?["y"]))?;
        r.fetch("y", &r.call(&inner, &[("x", &y)], &[])?["y"])
    });
    let outer = outer.expect("it can be recorded");
    let text = outer.to_string();
    let mut parsed = Program::parse(&text).expect("its own text");
    assert_eq!(parsed.to_string(), text);
    let refused = vm.compile(&parsed, &[], &CompileOptions::default()).map(drop).expect_err("there is no code");
    assert!(refused.to_string().contains("adds"), "{refused}");
    parsed.bind_function("adds", add_one).expect("it is called twice");
    for (program, beside) in
        [&outer, &parsed].into_iter().flat_map(|it| [Beside::Nothing, Beside::StepByStep].map(|beside| (it, beside)))
    {
        let run = beside.compile(&vm, program, &[]).run(&[("x", &number(&vm, 5))]).expect("it is submitted");
        let expected = (0..3).fold(5, |y, _| 2 * y + 3);
        assert_eq!(run["y"].to_scalar::<i32>(), Ok(expected), "{beside:?}");
    }
}
