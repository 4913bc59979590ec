//! Branches outside of loops that a CUDA device decides about, as conditional nodes of a graph, over a driver that stands in for NVIDIA's.

use std::time::Duration;

use streamvm::program::{CompileOptions, Recorder};
use streamvm::{DType, DeviceId, Error, Executable, InstructionsBuilder, Lane, Mode, Tensor, Vm};
use streamvm_standin::Standin;
use streamvm_tests::compiled::blocks::{By, count_to};
use streamvm_tests::{single_steps, within};

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

fn run(executable: &Executable) -> Result<(), Error> {
    executable.run(&[]).expect("it is submitted").wait()
}

fn end(vm: Vm) {
    vm.shutdown(Duration::from_secs(60)).expect("it ends");
}

/// Steps, a branch whose condition one of them computes, and steps that read what it writes. The first branch also changes what the condition was computed of.
fn step(by: By<'_>, x: &Tensor) -> Result<(), Error> {
    let ten = by.full(CUDA, 10)?;
    let y = (x * 2)?;
    by.if_else(
        &y.lt(&ten)?,
        || {
            y.copy_from(&(&y + 100)?)?;
            x.copy_from(&(x + 1)?)
        },
        Some(|| y.copy_from(&(&y - &ten)?)),
    )?;
    x.copy_from(&(&(&y * 3)? + x)?)
}

/// An `if` in an `if`, and a second one that reads what it leaves.
fn nested(by: By<'_>, x: &Tensor) -> Result<(), Error> {
    let (three, six) = (by.full(CUDA, 3)?, by.full(CUDA, 6)?);
    by.if_else(
        &x.lt(&six)?,
        || {
            x.copy_from(&(x + 10)?)?;
            by.if_else(&x.lt(&(&three + 10)?)?, || x.copy_from(&(x * 7)?), Some(|| x.copy_from(&(x - 40)?)))
        },
        Some(|| x.copy_from(&(x * -1)?)),
    )?;
    by.if_else(&x.lt(&three)?, || x.copy_from(&(x - 5)?), None::<fn() -> Result<(), Error>>)
}

/// A loop in each branch of an `if`.
fn with_loops(by: By<'_>, x: &Tensor) -> Result<(), Error> {
    let six = by.full(CUDA, 6)?;
    let y = (x * 1)?;
    by.if_else(&x.lt(&six)?, || count_to(by, CUDA, x, 9), Some(|| count_to(by, CUDA, &y, 30)))?;
    x.copy_from(&(x + &y)?)
}

/// An `if` in a loop that has a step which may fail, so that the host decides about its rounds.
fn in_a_loop(by: By<'_>, x: &Tensor) -> Result<(), Error> {
    let (six, twelve, one) = (by.full(CUDA, 6)?, by.full(CUDA, 12)?, by.full(CUDA, 1)?);
    let goes_on = x.lt(&twelve)?;
    by.while_true(&goes_on, || {
        by.if_else(&x.lt(&six)?, || x.copy_from(&(x + 2)?), Some(|| x.copy_from(&(x + 3)?)))?;
        x.copy_from(&(x / &one)?)?;
        goes_on.copy_from(&x.lt(&twelve)?)
    })
}

type Calls = fn(By<'_>, &Tensor) -> Result<(), Error>;

/// The calls as a program over the parameter `x`.
fn compile(vm: &Vm, calls: Calls, x: &Tensor, options: &CompileOptions) -> Executable {
    let program = vm.record("calls", |r: &Recorder| calls(By::Recording(r), &r.parameter("x", x)?));
    vm.compile(program.expect("it can be recorded"), &[("x", x)], options).expect("it compiles")
}

/// What the calls leave of a number, made eagerly with the host's control flow.
fn eagerly(vm: &Vm, calls: Calls, from: i32) -> i32 {
    let x = number(vm, from);
    calls(By::Engine(vm), &x).expect("it runs");
    x.to_scalar().expect("it runs")
}

/// The calls of the driver that are counted in a run.
const COUNTED: [&str; 4] = ["cuGraphLaunch", "cuLaunchKernel", "cuMemcpyAsync", "cuEventRecord"];

/// The counts of `docs/adr/control-flow.md`: without graphs, with graphs of the steps beside the branch alone, as where the driver has no conditional nodes, and with the
/// branch in the graph.
#[test]
fn a_branch_is_one_launch_with_the_steps_around_it() {
    for mode in MODES {
        let driver = Standin::load("devices=2;pageable=1");
        let vm = Vm::builder().mode(mode).build().expect("an engine");
        let x = number(&vm, 0);
        let counts = |executable: &Executable, from: i32| {
            set(&vm, &x, from);
            x.wait().expect("it runs");
            let before = COUNTED.map(|call| driver.calls(call));
            run(executable).expect("it runs");
            let found: [u64; COUNTED.len()] = std::array::from_fn(|call| driver.calls(COUNTED[call]) - before[call]);
            assert_eq!(x.to_scalar::<i32>(), Ok(eagerly(&vm, step, from)), "from {from}, {mode:?}");
            found
        };
        let one_by_one = CompileOptions { capture: false, ..single_steps() };
        let one_by_one = compile(&vm, step, &x, &one_by_one);
        // For those who wait for the run, and with threads in front of it, because an instruction with blocks may hold its stream.
        let records = if mode == Mode::Inline { 1 } else { 2 };
        // Both branches, so that every kernel is loaded. The condition is copied, and an event says when it was.
        assert_eq!(counts(&one_by_one, 7), [0, 6, 3, records + 1], "{mode:?}");
        assert_eq!(counts(&one_by_one, 2), [0, 7, 4, records + 1], "{mode:?}");
        let executable = compile(&vm, step, &x, &CompileOptions { fuse: false, ..CompileOptions::default() });
        counts(&executable, 2);
        // The second run over the same memory captures, whichever branch it takes: both bodies, with one node each.
        assert_eq!((counts(&executable, 7)[0], driver.calls(NODES)), (1, 2), "{mode:?}");
        for from in [2, 7, 4, 5, -3, 40] {
            assert_eq!(counts(&executable, from), [1, 0, 0, records], "from {from}, {mode:?}");
        }
        assert_eq!(driver.calls(NODES), 2, "{mode:?}");
        driver.fault("fail=cuGraphConditionalHandleCreate:*:NOT_SUPPORTED");
        let by_host = compile(&vm, step, &x, &single_steps());
        let beside = [7, 2, 7, 2, 7, 2].map(|from| counts(&by_host, from));
        assert_eq!(beside[4..], [[3, 0, 1, records + 1]; 2], "{mode:?}");
        drop((x, one_by_one, executable, by_host));
        end(vm);
        assert_eq!(driver.findings(), "", "{mode:?}");
    }
}

#[test]
fn branches_do_what_they_do_on_the_host() {
    // With the nodes of each capture: branches, and in the third case a loop in each, which the first run may capture alone.
    for (name, calls, nodes) in [
        ("if and else", step as Calls, 2),
        ("if in if", nested, 5),
        ("while in if", with_loops, 1),
        ("if in a loop of the host", in_a_loop, 2),
    ] {
        for mode in MODES {
            let driver = Standin::load("devices=2;pageable=1;delay=5");
            let vm = Vm::builder().mode(mode).build().expect("an engine");
            let x = number(&vm, 0);
            let executable = compile(&vm, calls, &x, &CompileOptions { fuse: false, ..CompileOptions::default() });
            let mut most_added = 0;
            for from in [5, 0, 9, 3, 5, -3, 7, 11, 4, 2, 40, 2] {
                x.fill(from).expect("it is submitted");
                let before = driver.calls(NODES);
                run(&executable).expect("it runs");
                most_added = most_added.max(driver.calls(NODES) - before);
                assert_eq!(x.to_scalar::<i32>(), Ok(eagerly(&vm, calls, from)), "{name} from {from}, {mode:?}");
            }
            if name == "while in if" {
                assert_eq!(most_added, 4, "{mode:?}: two branches and two loops, as a whole");
            }
            let added = driver.calls(NODES);
            assert!(added >= nodes && added.is_multiple_of(nodes), "{name}, {mode:?}: {added} nodes");
            assert_eq!(driver.calls("cuStreamBeginCaptureToGraph"), added, "{name}, {mode:?}");
            // The host read no condition in the last run, and waited for no loop.
            let before = driver.calls("cuMemcpyAsync");
            run(&executable).expect("it runs");
            let read = driver.calls("cuMemcpyAsync") - before;
            assert_eq!(read == 0, nodes == 2 && name == "if and else" || nodes == 5, "{name}, {mode:?}: {read} copies");
            drop((x, executable));
            end(vm);
            assert_eq!(driver.findings(), "", "{name}, {mode:?}");
        }
    }
}

/// A loop that has ended early leaves a count in memory of the stream, which says that nothing more may run. It is that of its launch alone.
#[test]
fn a_loop_that_was_ended_early_leaves_later_branches_alone() {
    let driver = Standin::load("devices=2;pageable=1");
    let vm = Vm::builder().build().expect("an engine");
    let (x, y) = (number(&vm, 0), number(&vm, 0));
    let branch = compile(&vm, step, &x, &CompileOptions { fuse: false, ..CompileOptions::default() });
    let program = vm.record("count", |r| count_to(By::Recording(r), CUDA, &r.parameter("x", &y)?, 9));
    let options = CompileOptions { most_rounds: 5, fuse: false, ..CompileOptions::default() };
    let count = vm.compile(program.expect("it can be recorded"), &[("x", &y)], &options).expect("it compiles");
    for round in 0..6 {
        set(&vm, &y, 0);
        let failed = run(&count).expect_err("it needs more rounds").to_string();
        assert!(failed.contains("after 5 rounds"), "{failed}");
        set(&vm, &x, round);
        run(&branch).expect("it runs");
        assert_eq!(x.to_scalar::<i32>(), Ok(eagerly(&vm, step, round)), "round {round}");
    }
    // A node for the loop, and two for the branch.
    assert!(driver.calls(NODES) >= 3);
    drop((x, y, branch, count));
    let _ = vm.shutdown(Duration::from_secs(60));
    assert_eq!(driver.findings(), "");
}

/// Runs over feeds, several in flight on each of three lanes, whose buffers come again in changing order.
#[test]
fn runs_in_flight_over_changing_buffers_have_graphs_of_their_own() {
    let driver = Standin::load("devices=2;pageable=1;delay=20");
    let vm = Vm::builder().build().expect("an engine");
    let program = vm.record("step", |r| {
        let x = r.feed("x", CUDA, DType::I32, &[])?;
        let y = (&x * 1)?;
        step(By::Recording(r), &y)?;
        r.fetch("y", &y)
    });
    let executable = vm
        .compile(
            program.expect("it can be recorded"),
            &[],
            &CompileOptions { fuse: false, ..CompileOptions::default() },
        )
        .expect("it compiles");
    let feeds: Vec<Tensor> = (0..8).map(|at| number(&vm, at)).collect();
    let expected: Vec<i32> = (0..8).map(|at| eagerly(&vm, step, at)).collect();
    for turn in 0..6 {
        let mut runs = Vec::new();
        for (at, feed) in feeds.iter().enumerate() {
            let _lane = Lane((at + turn) as u32 % 3).enter();
            runs.push((at, executable.run(&[("x", feed)]).expect("it is submitted")));
            runs.push((at, executable.run(&[("x", feed)]).expect("it is submitted")));
        }
        for (at, run) in runs {
            assert_eq!(run["y"].to_scalar::<i32>(), Ok(expected[at]));
        }
    }
    // One at a time, thrice over each feed: more sets of buffers than a stream knows, so graphs are made anew. They are never updated.
    let before = driver.calls(NODES);
    for (at, feed) in feeds.iter().enumerate() {
        for _ in 0..3 {
            let run = executable.run(&[("x", feed)]).expect("it is submitted");
            assert_eq!(run["y"].to_scalar::<i32>(), Ok(expected[at]));
        }
    }
    assert!(driver.calls(NODES) >= before + 4, "{} nodes were added", driver.calls(NODES) - before);
    assert_eq!(driver.calls("cuGraphExecUpdate_v2"), 0);
    drop((feeds, executable));
    end(vm);
    assert_eq!(driver.findings(), "");
}

/// Two runs in flight over one parameter: the second launch follows the first without a wait of the host.
#[test]
fn launches_follow_each_other_without_a_wait() {
    let driver = Standin::load("devices=2;pageable=1;delay=50");
    let vm = Vm::builder().build().expect("an engine");
    let x = number(&vm, 2);
    let executable = compile(&vm, step, &x, &CompileOptions { fuse: false, ..CompileOptions::default() });
    let mut expected = 2;
    for _ in 0..3 {
        run(&executable).expect("it runs");
        expected = eagerly(&vm, step, expected);
    }
    set(&vm, &x, 2);
    x.wait().expect("it runs");
    let calls = ["cuGraphLaunch", "cuStreamSynchronize", "cuMemcpyAsync"];
    let before = calls.map(|call| driver.calls(call));
    let runs: Vec<_> = (0..5).map(|_| executable.run(&[]).expect("it is submitted")).collect();
    runs.iter().for_each(|run| run.wait().expect("it runs"));
    let found: [u64; 3] = std::array::from_fn(|call| driver.calls(calls[call]) - before[call]);
    assert_eq!(found, [5, 0, 0]);
    assert_eq!(x.to_scalar::<i32>(), Ok((0..5).fold(2, |from, _| eagerly(&vm, step, from))));
    drop((x, executable, runs));
    end(vm);
    assert_eq!(driver.findings(), "");
}

/// A program may be gone while its last run is launched. The graph of its branch stays until that launch has passed: the launch sets conditions of the graph.
#[test]
fn a_graph_with_a_branch_outlives_its_launches() {
    let driver = Standin::load("devices=2;pageable=1;delay=2000");
    let vm = Vm::builder().build().expect("an engine");
    let (x, other) = (number(&vm, 2), number(&vm, 2));
    let executable = compile(&vm, step, &x, &CompileOptions { fuse: false, ..CompileOptions::default() });
    for _ in 0..3 {
        run(&executable).expect("it runs");
    }
    let without_blocks: Calls = |_, x| (0..4).try_for_each(|_| x.copy_from(&(x + 1)?));
    let later = compile(&vm, without_blocks, &other, &single_steps());
    later.run(&[]).expect("it is submitted").wait().expect("it runs");
    let destroyed = driver.calls("cuGraphExecDestroy");
    drop(executable.run(&[]).expect("it is submitted"));
    drop(executable);
    // The stream finds that the program is gone when another one is new, and destroys its graphs after the next capture.
    let newer = compile(&vm, without_blocks, &other, &single_steps());
    let runs: Vec<_> = (0..4).map(|_| newer.run(&[]).expect("it is submitted")).collect();
    runs.iter().for_each(|run| run.wait().expect("it runs"));
    assert!(driver.calls("cuGraphExecDestroy") > destroyed, "the graph is gone");
    drop((x, other, later, newer, runs));
    end(vm);
    assert_eq!(driver.findings(), "");
}

/// A branch that no run has taken has kernels that are not loaded: they are loaded after the first capture, and the next run captures again.
#[test]
fn a_branch_that_no_run_has_taken_is_captured_once_its_kernels_are_loaded() {
    let driver = Standin::load("devices=2;pageable=1");
    let vm = Vm::builder().build().expect("an engine");
    let calls: Calls = |by, x| {
        let ten = by.full(CUDA, 10)?;
        by.if_else(&x.lt(&ten)?, || x.copy_from(&(x + 1)?), Some(|| x.copy_from(&x.matmul_of_ones()?)))
    };
    let x = number(&vm, 0);
    let executable = compile(&vm, calls, &x, &CompileOptions { fuse: false, ..CompileOptions::default() });
    let launched: Vec<u64> = [0, 0, 0, 20, 3]
        .map(|from| {
            set(&vm, &x, from);
            let before = driver.calls("cuGraphLaunch");
            run(&executable).expect("it runs");
            let expected = if from < 10 { from + 1 } else { from * 4 };
            assert_eq!(x.to_scalar::<i32>(), Ok(expected));
            driver.calls("cuGraphLaunch") - before
        })
        .into();
    // The second run may launch the steps before the branch as a graph of their own.
    assert_eq!((launched[0], &launched[2..]), (0, [1; 3].as_slice()), "{launched:?}");
    assert_eq!(driver.calls(NODES), 4, "two captures of two branches");
    drop((x, executable));
    end(vm);
    assert_eq!(driver.findings(), "");
}

trait MatmulOfOnes {
    fn matmul_of_ones(&self) -> Result<Tensor, Error>;
}

impl MatmulOfOnes for Tensor {
    /// Four times a number, by a product: a kernel that no other step of these tests uses.
    fn matmul_of_ones(&self) -> Result<Tensor, Error> {
        let rows = self.broadcast_to(&[1, 4])?;
        let ones = (&(&self.broadcast_to(&[4, 1])? * 0)? + 1)?;
        rows.matmul(&ones)?.reshape(&[])
    }
}

/// The input fails on another stream, with threads only after the launch: what the run writes has failed, and a later run is fine.
#[test]
fn a_failed_input_fails_a_run_with_a_branch() {
    let mut launches = Vec::new();
    for mode in MODES {
        let driver = Standin::load("devices=2;pageable=1;delay=300");
        within("a branch over a failed input", move || {
            let vm = Vm::builder().mode(mode).build().expect("an engine");
            let x = number(&vm, 0);
            let executable = compile(&vm, step, &x, &CompileOptions { fuse: false, ..CompileOptions::default() });
            for _ in 0..3 {
                set(&vm, &x, 1);
                run(&executable).expect("it runs");
            }
            let zero = number(&vm, 0);
            {
                let _lane = Lane(1).enter();
                x.copy_from(&(&zero / &zero).expect("it is submitted")).expect("it is submitted");
            }
            let failed = run(&executable).expect_err("its input has failed").to_string();
            assert!(failed.contains("div"), "{failed}");
            assert!(x.to_scalar::<i32>().is_err(), "what the run writes has failed");
            set(&vm, &x, 4);
            run(&executable).expect("it runs");
            assert_eq!(x.to_scalar::<i32>(), Ok(eagerly(&vm, step, 4)));
            let _ = vm.shutdown(Duration::from_secs(60));
        });
        assert!(driver.calls(NODES) > 0);
        launches.push(driver.calls("cuGraphLaunch"));
        assert_eq!(driver.findings(), "");
    }
    assert_eq!(
        launches[0],
        launches[1] + 1,
        "with threads, the graph is launched before the failure of its input is known"
    );
}

/// Where a driver has no conditional nodes or refuses a call, the host reads the condition, as ever.
#[test]
fn what_a_driver_refuses_is_decided_by_the_host() {
    let mut cases: Vec<(&str, String)> =
        ["cuGraphConditionalHandleCreate", NODES, "cuStreamBeginCaptureToGraph", "cuStreamGetCaptureInfo_v3"]
            .iter()
            .map(|call| ("", format!("fail={call}:*:NOT_SUPPORTED")))
            .collect();
    cases.extend([
        ("version=12030", String::new()),
        ("", "fail=cuModuleLoadDataEx:*:INVALID_PTX".to_owned()),
        ("", "fail=cuStreamCreateWithPriority:1:OUT_OF_MEMORY".to_owned()),
        ("", "fail=cuGraphInstantiateWithFlags:*:OUT_OF_MEMORY".to_owned()),
        ("", "fail=cuGraphLaunch:*:OUT_OF_MEMORY".to_owned()),
        ("", "fail=cuGraphConditionalHandleCreate:2:OUT_OF_MEMORY".to_owned()),
        ("", "fail=cuStreamBeginCaptureToGraph:2:OUT_OF_MEMORY".to_owned()),
    ]);
    for mode in MODES {
        for (settings, fault) in &cases {
            let driver = Standin::load(&format!("devices=2;pageable=1;delay=5;{settings}"));
            let said = format!("{settings} {fault}, {mode:?}");
            let vm = Vm::builder().mode(mode).build().expect("an engine");
            let x = number(&vm, 0);
            // Every kernel of the program is loaded by this.
            let expected: Vec<i32> = [2, 7, 2, 7].map(|from| eagerly(&vm, step, from)).into();
            let executable = compile(&vm, step, &x, &CompileOptions { fuse: false, ..CompileOptions::default() });
            if !fault.is_empty() {
                driver.fault(fault);
            }
            for (from, expected) in [2, 7, 2, 7].into_iter().zip(expected) {
                set(&vm, &x, from);
                run(&executable).expect("it runs");
                assert_eq!(x.to_scalar::<i32>(), Ok(expected), "{said}, from {from}");
            }
            let conditions = driver.calls("cuGraphConditionalHandleCreate");
            let has_kernel = settings.is_empty() && !fault.contains("ModuleLoad");
            assert_eq!(conditions > 0 || fault.contains("GetCaptureInfo"), has_kernel, "{said}");
            drop((x, executable));
            end(vm);
            assert_eq!(driver.findings(), "", "{said}");
        }
    }
}

/// Each launch of the run that captures is left out in turn, as by a program that forgets it. Those of the kernel that sets a condition, one for each branch, are
/// found.
#[test]
fn a_condition_that_nothing_sets_is_found() {
    let is_found = |nth: u64| {
        let driver = Standin::load("devices=2;pageable=1");
        let vm = Vm::builder().build().expect("an engine");
        let x = number(&vm, 0);
        // Every kernel of the program is loaded by this.
        [2, 7].into_iter().for_each(|from| assert_ne!(eagerly(&vm, step, from), 0));
        let executable = compile(&vm, step, &x, &CompileOptions { fuse: false, ..CompileOptions::default() });
        run(&executable).expect("it runs");
        driver.fault(&format!("ignore=cuLaunchKernel:{nth}"));
        let before = driver.calls("cuLaunchKernel");
        run(&executable).expect("it runs");
        let launches = driver.calls("cuLaunchKernel") - before;
        drop((x, executable));
        let _ = vm.shutdown(Duration::from_secs(60));
        (driver.findings().contains("was not set in this launch"), launches)
    };
    let launches = is_found(1).1;
    let found = (1..=launches).filter(|&nth| is_found(nth).0).count();
    assert_eq!(found, 2, "of {launches} launches");
}

/// A step that may fail, and options without graphs.
#[test]
fn branches_that_need_the_host_are_not_captured() {
    let driver = Standin::load("devices=2;pageable=1;delay=5");
    let vm = Vm::builder().build().expect("an engine");
    let x = number(&vm, 0);
    let default = CompileOptions::default;
    let divides: Calls = |by, x| {
        let ten = by.full(CUDA, 10)?;
        by.if_else(&x.lt(&ten)?, || x.copy_from(&(x / &ten)?), None::<fn() -> Result<(), Error>>)
    };
    for (calls, options) in [
        (divides, default()),
        (step, CompileOptions { capture: false, ..default() }),
        (step, CompileOptions { check_finite: true, ..default() }),
        (step, CompileOptions { time_steps: true, ..default() }),
    ] {
        let executable = compile(&vm, calls, &x, &options);
        for from in [3, 40, 3, 3] {
            set(&vm, &x, from);
            run(&executable).expect("it runs");
            assert_eq!(x.to_scalar::<i32>(), Ok(eagerly(&vm, calls, from)), "{options:?}");
        }
        assert_eq!(driver.calls(NODES), 0, "{options:?}");
    }
    drop(x);
    end(vm);
    assert_eq!(driver.findings(), "");
}
