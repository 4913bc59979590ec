//! Loops that a CUDA device runs alone, as conditional nodes of a graph, over a driver that stands in for NVIDIA's.

use std::time::Duration;

use streamvm::program::{CompileOptions, Program, Recorder};
use streamvm::{DType, DeviceId, Error, Executable, InstructionsBuilder, Lane, Mode, Tensor, Vm};
use streamvm_standin::Standin;
use streamvm_tests::compiled::blocks::{By, count_to};
use streamvm_tests::{single_steps, until, within};

const CUDA: DeviceId = DeviceId::cuda(1);
const MODES: [Mode; 2] = [Mode::Threaded, Mode::Inline];
const NODES: &str = "cuGraphAddNode_v2";

fn number(vm: &Vm, value: i32) -> Tensor {
    vm.full(CUDA, DType::I32, &[], value).expect("a tensor")
}

/// Sets a tensor, also one that a run has left failed.
fn set(vm: &Vm, tensor: &Tensor, value: i32) {
    let mut builder = InstructionsBuilder::new();
    builder.fill(tensor, value).expect("it fits");
    vm.submit(builder.finish()).expect("it is submitted");
}

/// Runs a program until the end of the run.
fn run(executable: &Executable) -> Result<(), Error> {
    executable.run(&[]).expect("it is submitted").wait()
}

fn end(vm: Vm) {
    vm.shutdown(Duration::from_secs(60)).expect("it ends");
}

/// `x` counts to 10, `y` is the sum over all rounds of the smaller of `x` and 4, doubled in rounds in which `x` is less than 6, and reduced by an inner loop
/// of `x` rounds in others.
fn nested(by: By<'_>, x: &Tensor, y: &Tensor) -> Result<(), Error> {
    let (ten, six, four, none) = (by.full(CUDA, 10)?, by.full(CUDA, 6)?, by.full(CUDA, 4)?, by.full(CUDA, 0)?);
    let goes_on = x.lt(&ten)?;
    by.while_true(&goes_on, || {
        y.copy_from(&(y + &x.minimum(&four)?)?)?;
        by.if_else(
            &x.lt(&six)?,
            || y.copy_from(&(y * 2)?),
            Some(|| {
                let left = (x + 0)?;
                let is_left = none.lt(&left)?;
                by.while_true(&is_left, || {
                    y.copy_from(&(y - 1)?)?;
                    left.copy_from(&(&left - 1)?)?;
                    is_left.copy_from(&none.lt(&left)?)
                })
            }),
        )?;
        x.copy_from(&(x + 1)?)?;
        goes_on.copy_from(&x.lt(&ten)?)
    })
}

#[test]
fn a_loop_is_one_launch_from_its_second_round_on() {
    for mode in MODES {
        let driver = Standin::load("devices=2;pageable=1");
        let vm = Vm::builder().mode(mode).build().expect("an engine");
        let x = number(&vm, 0);
        let program = vm.record("count", |r| count_to(By::Recording(r), CUDA, &r.parameter("x", &x)?, 100));
        let program = program.expect("it can be recorded");
        let executable = vm.compile(&program, &[("x", &x)], &single_steps()).expect("it compiles");
        let count = || ["cuGraphLaunch", "cuLaunchKernel", "cuMemcpyAsync", NODES].map(|call| driver.calls(call));
        // First two steps before the loop, three of its first round, and the kernel of conditions, which is captured twice. The second run captures the two
        // steps before the loop. The third is two launches, and a copy of the condition between them.
        let runs: [[u64; 4]; 3] = [[1, 2 + 3 + 3 + 2, 2 + 2 + 2, 1], [2, 2, 1, 0], [2, 0, 1, 0]];
        for (round, expected) in runs.into_iter().enumerate() {
            x.fill(0).expect("it is submitted");
            x.wait().expect("it runs");
            let before = count();
            run(&executable).expect("it runs");
            let after = count();
            assert_eq!(x.to_scalar::<i32>(), Ok(100));
            let found: [u64; 4] = std::array::from_fn(|call| after[call] - before[call]);
            // Copies of the first round and those of a capture depend on what the compiler fuses and places.
            let compared = |of: [u64; 4]| if round == 0 { [of[0], 0, 0, of[3]] } else { of };
            assert_eq!(compared(found), compared(expected), "run {round}, {mode:?}: {found:?}");
        }
        drop((x, program, executable));
        end(vm);
        assert_eq!(driver.findings(), "", "{mode:?}");
    }
}

#[test]
fn blocks_in_loops_do_what_they_do_on_the_host() {
    for mode in MODES {
        let driver = Standin::load("devices=2;pageable=1;delay=5");
        let vm = Vm::builder().mode(mode).build().expect("an engine");
        let (x, y) = (number(&vm, 0), number(&vm, 0));
        let program = vm.record("nested", |r| nested(By::Recording(r), &r.parameter("x", &x)?, &r.parameter("y", &y)?));
        let program = program.expect("it can be recorded");
        let executable = vm.compile(&program, &[("x", &x), ("y", &y)], &single_steps()).expect("it compiles");
        for (round, from) in [5, 9, 0, 10, -3, 7, 11, 4].into_iter().enumerate() {
            let (expected_x, expected_y) = (number(&vm, from), number(&vm, round as i32));
            nested(By::Engine(&vm), &expected_x, &expected_y).expect("it runs");
            x.fill(from).expect("it is submitted");
            y.fill(round as i32).expect("it is submitted");
            run(&executable).expect("it runs");
            let values = |x: &Tensor, y: &Tensor| {
                (x.to_scalar::<i32>().expect("it runs"), y.to_scalar::<i32>().expect("it runs"))
            };
            assert_eq!(values(&x, &y), values(&expected_x, &expected_y), "from {from}, {mode:?}");
        }
        // The loop, both branches, and the loop in one of them, for each set of buffers.
        let nodes = driver.calls(NODES);
        assert_eq!((nodes % 4, driver.calls("cuStreamBeginCaptureToGraph")), (0, nodes), "{mode:?}");
        assert!(nodes > 0, "{mode:?}");
        drop((x, y, program, executable));
        end(vm);
        assert_eq!(driver.findings(), "", "{mode:?}");
    }
}

/// A loop in a branch, which the host decides about, and a second loop after it. The rounds of both count together, and so do those of an inner loop. The
/// error is the same as without graphs.
#[test]
fn the_most_rounds_bound_all_loops_of_a_run_together() {
    let driver = Standin::load("devices=2;pageable=1");
    let vm = Vm::builder().build().expect("an engine");
    let (x, y) = (number(&vm, 0), number(&vm, 0));
    let program = vm.record("two loops", |r| {
        let (x, y) = (r.parameter("x", &x)?, r.parameter("y", &y)?);
        let hundred = r.full(CUDA, DType::I32, &[], 100)?;
        r.if_true(&x.lt(&hundred)?, || count_to(By::Recording(r), CUDA, &x, 5))?;
        nested(By::Recording(r), &y, &x)
    });
    let program = program.expect("it can be recorded");
    let compile = |capture| {
        let options = CompileOptions { most_rounds: 12, capture, ..single_steps() };
        vm.compile(&program, &[("x", &x), ("y", &y)], &options).expect("it compiles")
    };
    let (captured, one_by_one) = (compile(true), compile(false));
    let outcome = |executable: &Executable, from: (i32, i32)| {
        set(&vm, &x, from.0);
        set(&vm, &y, from.1);
        run(executable).map_err(|error| error.to_string()).map(|()| (x.to_scalar::<i32>(), y.to_scalar::<i32>()))
    };
    let mut failures = Vec::new();
    for from in [(3, 9), (3, 9), (3, 9), (0, 9), (0, 8), (-8, 10), (-7, 10), (4, 5), (3, 9), (120, 9), (120, 8), (3, 9)]
    {
        let found = outcome(&captured, from);
        let expected = outcome(&one_by_one, from);
        let without_ids =
            |outcome: Result<_, String>| outcome.map_err(|error| error.split("step").nth(1).map(str::to_owned));
        failures.extend(found.clone().err());
        assert_eq!(without_ids(found), without_ids(expected), "from {from:?}");
    }
    assert!(failures.len() >= 3, "{failures:?}");
    assert!(
        failures.iter().all(|error| error.contains("after 12 rounds") && error.contains("most_rounds")),
        "{failures:#?}"
    );
    // The first loop has no blocks in it, and the second has three.
    assert!(driver.calls(NODES) > 4);
    drop((x, y, program, captured, one_by_one));
    let _ = vm.shutdown(Duration::from_secs(60));
    assert_eq!(driver.findings(), "");
}

/// Counts `x` in steps of a parameter until it has exactly 3.
fn to_three(r: &Recorder, step: &Tensor, x: &Tensor) -> Result<(), Error> {
    let (step, x) = (r.parameter("step", step)?, r.parameter("x", x)?);
    let three = r.full(CUDA, DType::I32, &[], 3)?;
    x.fill(0)?;
    let goes_on = x.ne(&three)?;
    r.while_true(&goes_on, || {
        x.copy_from(&(&x + &step)?)?;
        goes_on.copy_from(&x.ne(&three)?)
    })
}

fn without_bound(vm: &Vm, program: &Program, parameters: &[(&str, &Tensor)]) -> Executable {
    let options = CompileOptions { most_rounds: u64::MAX, ..single_steps() };
    vm.compile(program, parameters, &options).expect("it compiles")
}

#[test]
fn the_end_of_the_engine_ends_an_endless_loop() {
    let driver = Standin::load("devices=2;pageable=1;delay=1");
    within("an endless loop", || {
        let vm = Vm::builder().build().expect("an engine");
        let (step, x) = (number(&vm, 1), number(&vm, 0));
        let program = vm.record("to three", |r| to_three(r, &step, &x)).expect("it can be recorded");
        let executable = without_bound(&vm, &program, &[("step", &step), ("x", &x)]);
        for _ in 0..3 {
            run(&executable).expect("it ends");
        }
        let launched = Standin::count("cuGraphLaunch");
        step.fill(0).expect("it is submitted");
        let endless = executable.run(&[]).expect("it is submitted");
        // The loop runs as a graph, after that of the steps before it.
        until("it is launched", || Standin::count("cuGraphLaunch") == launched + 2);
        // Other streams go on.
        {
            let _lane = Lane(1).enter();
            assert_eq!((number(&vm, 3) + 4).expect("it is submitted").to_scalar::<i32>(), Ok(7));
        }
        let short = Duration::from_millis(30);
        assert!(matches!(vm.shutdown(short), Err(Error::Timeout { after, .. }) if after == short));
        let failed = endless.wait().expect_err("it was stopped").to_string();
        for part in ["while", "shut down", "loops.rs:"] {
            assert!(failed.contains(part), "{part}: {failed}");
        }
        drop((step, x, program, executable, endless));
        let contexts = || ["cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2"].map(Standin::count);
        until("the threads have ended", || matches!(contexts(), [retained, released] if retained == released));
    });
    assert!(driver.calls(NODES) > 0);
    assert_eq!(driver.findings(), "");
}

/// The input fails on another stream. A loop over what it left would never end, so it must not begin.
#[test]
fn a_failed_input_keeps_a_loop_from_its_launch() {
    for mode in MODES {
        let driver = Standin::load("devices=2;pageable=1");
        within("a loop over a failed input", move || {
            let vm = Vm::builder().mode(mode).build().expect("an engine");
            let (step, x) = (number(&vm, 1), number(&vm, 0));
            let program = vm.record("to three", |r| to_three(r, &step, &x)).expect("it can be recorded");
            let executable = without_bound(&vm, &program, &[("step", &step), ("x", &x)]);
            for _ in 0..3 {
                run(&executable).expect("it ends");
            }
            let zero = number(&vm, 0);
            {
                let _lane = Lane(1).enter();
                step.copy_from(&(&zero / &zero).expect("it is submitted")).expect("it is submitted");
            }
            let failed = run(&executable).expect_err("its input has failed").to_string();
            assert!(failed.contains("div"), "{failed}");
            set(&vm, &step, 1);
            set(&vm, &x, 0);
            run(&executable).expect("it ends");
            let _ = vm.shutdown(Duration::from_secs(60));
        });
        assert!(driver.calls(NODES) > 0);
        assert_eq!(driver.findings(), "");
    }
}

/// Runs over feeds, several in flight on each of three lanes, whose buffers come again in changing order.
#[test]
fn runs_in_flight_over_changing_buffers_have_graphs_of_their_own() {
    let driver = Standin::load("devices=2;pageable=1;delay=20");
    let vm = Vm::builder().build().expect("an engine");
    let program = vm.record("count", |r| {
        let x = r.feed("x", CUDA, DType::I32, &[])?;
        let y = (&x * 1)?;
        count_to(By::Recording(r), CUDA, &y, 11)?;
        r.fetch("y", &y)
    });
    let executable = vm.compile(program.expect("it can be recorded"), &[], &single_steps()).expect("it compiles");
    let feeds: Vec<Tensor> = (0..8).map(|at| number(&vm, at * 2)).collect();
    for turn in 0..6 {
        let mut runs = Vec::new();
        for (at, feed) in feeds.iter().enumerate() {
            let _lane = Lane((at + turn) as u32 % 3).enter();
            runs.push((at, executable.run(&[("x", feed)]).expect("it is submitted")));
            runs.push((at, executable.run(&[("x", feed)]).expect("it is submitted")));
        }
        for (at, run) in runs {
            assert_eq!(run["y"].to_scalar::<i32>(), Ok((at as i32 * 2).max(11)));
        }
    }
    // One at a time, twice over each feed: more sets of buffers than a stream knows, so graphs are made anew.
    let before = driver.calls(NODES);
    for feed in &feeds {
        for _ in 0..3 {
            let run = executable.run(&[("x", feed)]).expect("it is submitted");
            assert_eq!(run["y"].to_scalar::<i32>(), Ok(feed.to_scalar::<i32>().expect("it runs").max(11)));
        }
    }
    assert!(driver.calls(NODES) >= before + 4, "{} nodes were added", driver.calls(NODES) - before);
    drop((feeds, executable));
    end(vm);
    assert_eq!(driver.findings(), "");
}

/// Where a driver has no conditional nodes or refuses a call, the host reads conditions, as ever.
#[test]
fn what_a_driver_refuses_is_decided_by_the_host() {
    let refuse = |call: &str| format!("fail={call}:*:NOT_SUPPORTED");
    let calls = ["cuGraphConditionalHandleCreate", NODES, "cuStreamBeginCaptureToGraph", "cuStreamGetCaptureInfo_v3"];
    let mut cases: Vec<(&str, String)> = calls.iter().map(|call| ("", refuse(call))).collect();
    // With these there is no kernel for conditions, and no node is added.
    let without_kernel = ["version=12030", "cuModuleLoadDataEx", "cuModuleGetFunction"];
    cases.extend([
        ("version=12030", String::new()),
        ("", "fail=cuModuleLoadDataEx:*:INVALID_PTX".to_owned()),
        ("", "fail=cuModuleGetFunction:*:NOT_FOUND".to_owned()),
        ("", "fail=cuMemHostAlloc:1:OUT_OF_MEMORY".to_owned()),
        ("", "fail=cuStreamCreateWithPriority:1:OUT_OF_MEMORY".to_owned()),
        ("", "fail=cuGraphInstantiateWithFlags:*:OUT_OF_MEMORY".to_owned()),
        ("", "fail=cuGraphLaunch:*:OUT_OF_MEMORY".to_owned()),
        ("", "fail=cuGraphConditionalHandleCreate:2:OUT_OF_MEMORY".to_owned()),
        ("", "fail=cuStreamBeginCaptureToGraph:3:OUT_OF_MEMORY".to_owned()),
    ]);
    for mode in MODES {
        for (settings, fault) in &cases {
            let driver = Standin::load(&format!("devices=2;pageable=1;delay=5;{settings}"));
            let said = format!("{settings} {fault}, {mode:?}");
            let vm = Vm::builder().mode(mode).build().expect("an engine");
            let (x, y) = (number(&vm, 0), number(&vm, 0));
            let program = vm
                .record("nested", |r| nested(By::Recording(r), &r.parameter("x", &x)?, &r.parameter("y", &y)?))
                .expect("it can be recorded");
            let compile = |capture| {
                let options = CompileOptions { capture, ..single_steps() };
                vm.compile(&program, &[("x", &x), ("y", &y)], &options).expect("it compiles")
            };
            let (one_by_one, executable) = (compile(false), compile(true));
            for round in 0..4 {
                set(&vm, &x, 5);
                set(&vm, &y, 1);
                run(if round == 0 { &one_by_one } else { &executable }).expect("it runs");
                // 2·(1 + 4), then 4 − x for x = 6 to 9.
                assert_eq!(y.to_scalar::<i32>(), Ok(10 + 16 - 6 - 7 - 8 - 9), "{said}, round {round}");
                if round == 0 && !fault.is_empty() {
                    // Every kernel of the program is loaded by now.
                    driver.fault(fault);
                }
            }
            let has_kernel = !without_kernel.iter().any(|it| said.contains(it));
            let asked = driver.calls("cuGraphConditionalHandleCreate") > 0 || said.contains("GetCaptureInfo");
            let asked = asked || said.contains("HostAlloc") || said.contains("StreamCreate");
            assert_eq!(asked, has_kernel, "{said}");
            drop((x, y, program, one_by_one, executable));
            end(vm);
            assert_eq!(driver.findings(), "", "{said}");
        }
    }
}

/// Memory that is missing for a capture is asked for again, less and less often. After another refusal the driver is not asked again.
#[test]
fn a_loop_is_captured_once_there_is_memory() {
    let (page, stream) = ("cuMemHostAlloc", "cuStreamCreateWithPriority");
    for (call, fault, is_captured, most) in [
        (page, "1:OUT_OF_MEMORY", true, 10),
        (stream, "1:OUT_OF_MEMORY", true, 10),
        (stream, "*:OUT_OF_MEMORY", false, 20),
        (stream, "*:NOT_SUPPORTED", false, 3),
    ] {
        let driver = Standin::load("devices=2;pageable=1");
        let vm = Vm::builder().build().expect("an engine");
        let x = number(&vm, 0);
        let program = vm.record("count", |r| count_to(By::Recording(r), CUDA, &r.parameter("x", &x)?, 100));
        let program = program.expect("it can be recorded");
        let compile = |capture| {
            let options = CompileOptions { capture, ..single_steps() };
            vm.compile(&program, &[("x", &x)], &options).expect("it compiles")
        };
        let (one_by_one, executable) = (compile(false), compile(true));
        // Every kernel of the program is loaded by this.
        run(&one_by_one).expect("it runs");
        assert_eq!(x.to_scalar::<i32>(), Ok(100));
        set(&vm, &x, 0);
        let before = driver.calls(call);
        driver.fault(&format!("fail={call}:{fault}"));
        run(&executable).expect("it runs");
        assert_eq!(x.to_scalar::<i32>(), Ok(100), "{call}:{fault}");
        assert_eq!(driver.calls(NODES) > 0, is_captured, "{call}:{fault}");
        let asked = driver.calls(call) - before;
        assert!(0 < asked && asked <= most, "{call}:{fault}: {asked} calls");
        drop((x, program, one_by_one, executable));
        end(vm);
        assert_eq!(driver.findings(), "", "{call}:{fault}");
    }
}

/// Calls that are left out, as by a program that forgets them, and what the driver finds: what the host computes instead is right, or the graph is not.
#[test]
fn a_forgotten_call_is_found() {
    for (forgotten, finding) in [
        ("cuStreamUpdateCaptureDependencies_v2", "does not come behind a node that was added"),
        ("cuStreamBeginCaptureToGraph", "broken capture"),
    ] {
        let driver = Standin::load("devices=2;pageable=1");
        let vm = Vm::builder().build().expect("an engine");
        let x = number(&vm, 0);
        let program = vm.record("count", |r| count_to(By::Recording(r), CUDA, &r.parameter("x", &x)?, 9));
        let program = program.expect("it can be recorded");
        let executable = vm.compile(&program, &[("x", &x)], &single_steps()).expect("it compiles");
        driver.fault(&format!("ignore={forgotten}:1"));
        let _ = run(&executable);
        drop((x, program, executable));
        let _ = vm.shutdown(Duration::from_secs(60));
        driver.leaks();
        let findings = driver.findings();
        assert!(findings.contains(finding), "{forgotten}: {findings}");
    }
}

/// A step that may fail, a bound in time, and options without graphs.
#[test]
fn loops_that_need_the_host_in_each_round_are_not_captured() {
    let driver = Standin::load("devices=2;pageable=1;delay=5");
    let vm = Vm::builder().build().expect("an engine");
    let x = number(&vm, 0);
    let default = single_steps;
    let plain = vm.record("count", |r| count_to(By::Recording(r), CUDA, &r.parameter("x", &x)?, 11));
    let divides = vm.record("divides", |r| {
        let (x, most) = (r.parameter("x", &x)?, r.full(CUDA, DType::I32, &[], 11)?);
        let goes_on = x.lt(&most)?;
        r.while_true(&goes_on, || {
            x.copy_from(&((&x / &most)? + (&x + 1)?)?)?;
            goes_on.copy_from(&x.lt(&most)?)
        })
    });
    let (plain, divides) = (plain.expect("it can be recorded"), divides.expect("it can be recorded"));
    for (program, options) in [
        (&divides, default()),
        (&plain, CompileOptions { capture: false, ..default() }),
        (&plain, CompileOptions { most_loop_time: Some(Duration::from_secs(3600)), ..default() }),
        (&plain, CompileOptions { check_finite: true, ..default() }),
        (&plain, CompileOptions { time_steps: true, ..default() }),
    ] {
        let executable = vm.compile(program, &[("x", &x)], &options).expect("it compiles");
        for _ in 0..3 {
            set(&vm, &x, 0);
            run(&executable).expect("it runs");
            assert_eq!(x.to_scalar::<i32>(), Ok(11));
        }
        assert_eq!(driver.calls(NODES), 0, "{options:?}");
    }
    drop((x, plain, divides));
    end(vm);
    assert_eq!(driver.findings(), "");
}
