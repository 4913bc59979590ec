//! Lanes of a CPU: steps of one program that threads run side by side, and what functions among them may rely on.

use std::collections::HashSet;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use streamvm::program::{CompileOptions, Program, Recorder};
use streamvm::{DType, Error, Executable, Generator, InstructionsBuilder, Lane, Mode, Tensor, Vm};
use streamvm_tests::{CPU, on_device};

/// Two chains of functions over parts of one tensor, which need each other's results in each round, and a kernel after both. Each function calls `note` with its
/// round and its side.
fn ladder(
    vm: &Vm,
    rounds: usize,
    note: impl Fn(usize, usize) -> Result<(), String> + Clone + Send + Sync + 'static,
) -> Program {
    let record = |r: &Recorder| {
        let x = r.feed("x", CPU, DType::I32, &[2])?;
        let mut sides = [x.slice(0, 0..1)?, x.slice(0, 1..2)?];
        for round in 0..rounds {
            let next = [r.full(CPU, DType::I32, &[1], 0)?, r.full(CPU, DType::I32, &[1], 0)?];
            for (side, written) in next.iter().enumerate() {
                let (own, other) = (&sides[side], &sides[1 - side]);
                let note = note.clone();
                r.call_fn_on_workers("rung", CPU, [own.read(), other.read(), written.write()], move |context| {
                    note(round, side)?;
                    let (own, other) = (context.reads.get::<i32>(0)?[0], context.reads.get::<i32>(1)?[0]);
                    context.writes.take::<i32>(0)?[0] = own.wrapping_mul(3).wrapping_add(other);
                    Ok(())
                })?;
            }
            sides = next;
        }
        let [left, right] = &sides;
        r.fetch("y", &(left + right)?)
    };
    vm.record("ladder", record).expect("it can be recorded")
}

fn expected(mut x: [i32; 2], rounds: usize) -> i32 {
    for _ in 0..rounds {
        x = [x[0].wrapping_mul(3).wrapping_add(x[1]), x[1].wrapping_mul(3).wrapping_add(x[0])];
    }
    x[0].wrapping_add(x[1])
}

fn on_lanes(vm: &Vm, program: &Program) -> Executable {
    let options = CompileOptions { lanes: 2, hand_over_ns: 0, ..CompileOptions::default() };
    let executable = vm.compile(program, &[], &options).expect("it compiles");
    let [segment] = executable.compiled().segments() else { panic!("{}", executable.compiled()) };
    assert!(segment.branches.iter().any(|branch| branch.lane == 1), "{}", executable.compiled());
    executable
}

fn x(vm: &Vm) -> Tensor {
    vm.from_slice(&[5i32, -7], &[2]).expect("a tensor").to(CPU).expect("a copy")
}

/// Runs in flight, on one and two lanes of the engine, in every mode and with as many threads as there may be.
#[test]
fn lanes_that_need_each_other_give_the_values_of_one_lane() {
    let rounds = 200;
    for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 3 }] {
        for threads in [1, 2, 4] {
            let vm = Vm::builder().mode(mode).kernel_threads(threads).build().expect("an engine");
            let executable = on_lanes(&vm, &ladder(&vm, rounds, |_, _| Ok(())));
            let x = x(&vm);
            let runs: Vec<_> = (0..20)
                .map(|run| {
                    let _lane = Lane(run % 2).enter();
                    executable.run(&[("x", &x)]).expect("it is submitted")
                })
                .collect();
            for run in runs {
                let y = run["y"].to_vec::<i32>().expect("it runs");
                assert_eq!(y, [expected([5, -7], rounds)], "{mode:?}, {threads} threads");
            }
        }
    }
}

/// So many threads that a helper joins although other tests compute.
const MANY: usize = 16;

/// Both functions of each round wait for each other, which ends only if two threads run them. In the other modes the caller calls all functions.
#[test]
fn functions_of_two_lanes_run_at_the_same_time_unless_callers_run_them() {
    let vm = Vm::builder().kernel_threads(MANY).build().expect("an engine");
    let both = Arc::new(Barrier::new(2));
    let program = ladder(&vm, 10, move |_, _| {
        both.wait();
        Ok(())
    });
    let run = on_lanes(&vm, &program).run(&[("x", &x(&vm))]).expect("it is submitted");
    assert_eq!(run["y"].to_vec::<i32>().expect("it runs"), [expected([5, -7], 10)]);

    let inline = Vm::builder().mode(Mode::Inline).kernel_threads(2).build().expect("an engine");
    let threads = Arc::new(Mutex::new(HashSet::new()));
    let seen = threads.clone();
    let program = ladder(&inline, 50, move |_, _| {
        seen.lock().expect("no panic").insert(thread::current().id());
        Ok(())
    });
    on_lanes(&inline, &program).run(&[("x", &x(&inline))]).expect("it is submitted").wait().expect("it runs");
    assert_eq!(*threads.lock().expect("no panic"), HashSet::from([thread::current().id()]));
}

/// The failure names the step and its line, whichever thread runs it; nothing after it runs, and the next run is whole.
#[test]
fn a_function_that_fails_on_a_lane_ends_the_run_and_the_next_one_is_whole() {
    let vm = Vm::builder().kernel_threads(2).build().expect("an engine");
    for side in 0..2 {
        let fails = Arc::new(Mutex::new(true));
        let ran = Arc::new(Mutex::new(Vec::new()));
        let (may_fail, seen) = (fails.clone(), ran.clone());
        let program = ladder(&vm, 20, move |round, own| {
            if (round, own) == (5, side) && *may_fail.lock().map_err(|error| error.to_string())? {
                return Err("on purpose".to_owned());
            }
            seen.lock().map_err(|error| error.to_string())?.push((round, own));
            Ok(())
        });
        let executable = on_lanes(&vm, &program);
        let x = x(&vm);
        let run = executable.run(&[("x", &x)]).expect("it is submitted");
        let text = run["y"].wait().expect_err("a function fails").to_string();
        assert!(text.contains("on purpose") && text.contains("lanes.rs"), "{text}");
        let ran = std::mem::take(&mut *ran.lock().expect("no panic"));
        assert!(!ran.contains(&(5, side)) && ran.iter().all(|(round, _)| *round <= 6), "{ran:?}");
        *fails.lock().expect("no panic") = false;
        let run = executable.run(&[("x", &x)]).expect("it is submitted");
        assert_eq!(run["y"].to_vec::<i32>().expect("it runs"), [expected([5, -7], 20)]);
    }
}

/// A thread that helps with lanes is a thread of the engine while it calls a function.
#[test]
fn waiting_inside_a_function_on_a_lane_would_deadlock_and_says_so() {
    let vm = Vm::builder().kernel_threads(MANY).build().expect("an engine");
    let waited_for = on_device(&vm, &[1.0]);
    let (both, answers) = (Arc::new(Barrier::new(2)), Arc::new(Mutex::new(Vec::new())));
    let answered = answers.clone();
    let program = ladder(&vm, 1, move |_, _| {
        // So each of the two runs on a thread of its own.
        both.wait();
        answered.lock().map_err(|error| error.to_string())?.push((thread::current().id(), waited_for.wait()));
        Ok(())
    });
    on_lanes(&vm, &program).run(&[("x", &x(&vm))]).expect("it is submitted").wait().expect("it runs");
    let answers = answers.lock().expect("no panic");
    let threads: HashSet<_> = answers.iter().map(|(thread, _)| *thread).collect();
    assert_eq!((threads.len(), answers.len()), (2, 2));
    assert!(answers.iter().all(|(_, answer)| matches!(answer, Err(Error::WouldDeadlock { .. }))), "{answers:?}");
}

/// Random numbers and kernels in groups, on one lane and on three.
#[test]
fn kernels_on_lanes_give_the_bits_of_one_lane() {
    let vm = Vm::builder().kernel_threads(3).build().expect("an engine");
    let program = vm
        .record("kernels", |r| {
            let x = r.feed("x", CPU, DType::F32, &[400])?;
            let mut sums = Vec::new();
            for chain in 0..4 {
                let mut y = (&x * (1.0 + f64::from(chain)))?;
                for _ in 0..3 {
                    y = (&(&y.sin()? + &x)? * &y)?;
                }
                sums.push(y.sum(&[])?);
            }
            let mut builder = InstructionsBuilder::new();
            let noise = builder.rand(&Generator::new(11), CPU, DType::F32, &[400])?;
            r.submit(builder.finish())?;
            sums.push((&noise * &x)?.sum(&[])?);
            let [a, b, c, d, e] = &sums[..] else { unreachable!("five sums") };
            r.fetch("y", &(&(&(a + b)? + &(c + d)?)? + e)?)
        })
        .expect("it can be recorded");
    let elements: Vec<f32> = (0..400).map(|it| (it as f32).sin()).collect();
    let x = vm.from_slice(&elements, &[400]).expect("a tensor").to(CPU).expect("a copy");
    let runs = |lanes| {
        let options = CompileOptions { lanes, hand_over_ns: 0, block: 128, ..CompileOptions::default() };
        let executable = vm.compile(&program, &[], &options).expect("it compiles");
        let branches = executable.compiled().segments()[0].branches.len();
        assert_eq!(branches > 0, lanes > 1, "{}", executable.compiled());
        let run = || executable.run(&[("x", &x)]).expect("it is submitted")["y"].to_vec::<f32>().expect("it runs")[0];
        (0..30).map(|_| run().to_bits()).collect::<Vec<u32>>()
    };
    let alone = runs(1);
    assert_eq!(alone.iter().collect::<HashSet<_>>().len(), 30, "each run draws other numbers");
    assert_eq!(runs(3), alone);
}

/// Steps that were recorded on a lane run on that lane, counted from the lane of the run, with and without lanes of the compiler, and wait for what they need.
#[test]
fn steps_run_on_the_lanes_that_they_were_recorded_on() {
    for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 3 }] {
        let vm = Vm::builder().mode(mode).sim_devices(1).detect_races(true).build().expect("an engine");
        let program = vm.record("pinned", |r| {
            let x = r.feed("x", CPU, DType::F32, &[64])?;
            let y = Lane(2).run(|| x.exp()?.neg())?;
            let there = Lane(1).run(|| y.to(streamvm::DeviceId::sim(0))?.abs())?;
            r.fetch("y", &(&x + &Lane(1).run(|| there.to(CPU))?)?)
        });
        let program = program.expect("it can be recorded");
        for lanes in [1, 4] {
            let options = CompileOptions { lanes, ..CompileOptions::default() };
            let executable = vm.compile(&program, &[], &options).expect("it compiles");
            let streams: Vec<String> =
                executable.compiled().segments().iter().map(|it| it.stream.to_string()).collect();
            let expected = ["compute@cpu:0:2", "h2d@sim:0:1", "compute@sim:0:1", "d2h@sim:0:1", "compute@cpu:0:0"]
                .map(str::to_owned);
            assert_eq!(streams, expected, "{}", executable.compiled());
            let x = on_device(&vm, &[0.5; 64]);
            let run = Lane(10).run(|| executable.run(&[("x", &x)])).expect("it is submitted");
            assert_eq!(run["y"].to_vec::<f32>().expect("it runs"), [0.5 + 0.5f32.exp(); 64], "{mode:?}");
        }
        let used: HashSet<String> = vm.stats().streams.iter().map(|stream| stream.stream.to_string()).collect();
        assert!(
            ["compute@cpu:0:12", "h2d@sim:0:11", "compute@cpu:0:10"].iter().all(|it| used.contains(*it)),
            "{used:?}"
        );
        assert!(vm.races().is_empty(), "{:?}", vm.races());
    }
}

/// Steps that could be branches of one segment stay on their lane, too, whichever was recorded first.
#[test]
fn a_step_on_a_lane_is_no_branch_of_another() {
    let vm = Vm::builder().build().expect("an engine");
    for chosen_first in [true, false] {
        let program = vm.record("apart", |r| {
            let x = r.feed("x", CPU, DType::F32, &[8])?;
            let on_lane = || Lane(1).run(|| x.exp());
            let (a, b) = if chosen_first { (on_lane()?, x.neg()?) } else { (x.neg()?, on_lane()?) };
            r.fetch("y", &(&a + &b)?)
        });
        let options = CompileOptions { lanes: 2, hand_over_ns: 0, ..CompileOptions::default() };
        let executable = vm.compile(program.expect("a program"), &[], &options).expect("it compiles");
        let compiled = executable.compiled();
        for segment in compiled.segments() {
            let is_exp = compiled.steps_of(segment.steps.clone()).any(|step| step.work.name() == "exp");
            assert_eq!(is_exp, segment.stream.lane == 1, "{compiled}");
            assert!(!is_exp || segment.steps.len() == 1, "{compiled}");
        }
        let run = executable.run(&[("x", &on_device(&vm, &[0.0; 8]))]).expect("a run");
        assert_eq!(run["y"].to_vec::<f32>().expect("it runs"), [1.0; 8]);
    }
}

/// Functions of two lanes do not wait for each other.
#[test]
fn functions_of_two_lanes_run_side_by_side() {
    let vm = Vm::builder().cpu_threads(2).build().expect("an engine");
    let meet = Arc::new(Barrier::new(2));
    let program = vm.record("meet", |r| {
        for lane in 0..2 {
            let meet = meet.clone();
            let _lane = Lane(lane).enter();
            r.call_fn("meets", CPU, [], move |_| {
                meet.wait();
                Ok(())
            })?;
        }
        Ok(())
    });
    let executable =
        vm.compile(program.expect("it can be recorded"), &[], &CompileOptions::default()).expect("it compiles");
    streamvm_tests::within("both functions", move || {
        executable.run(&[]).expect("it is submitted").wait().expect("both meet");
        drop(vm);
    });
}
