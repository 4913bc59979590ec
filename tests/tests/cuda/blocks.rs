//! Programs with blocks on a CUDA device, over a driver that stands in for NVIDIA's.

use std::sync::Arc;
use std::time::Duration;

use streamvm::ep::faults::FaultPlan;
use streamvm::program::CompileOptions;
use streamvm::{DType, DeviceId, Error, Lane, Mode, TimeLimit, Vm};
use streamvm_standin::Standin;
use streamvm_tests::compiled::block_scenarios::{SCENARIOS, endless};
use streamvm_tests::compiled::blocks::{
    By, Drawn, compare_drawn, compare_drawn_branches, compare_drawn_mixed, count_to,
};
use streamvm_tests::compiled::devices_scenarios::DEVICES_SCENARIOS;
use streamvm_tests::compiled::mixed_scenarios::MIXED_SCENARIOS;
use streamvm_tests::{cases, single_steps, until, within};

const CUDA: DeviceId = DeviceId::cuda(1);
const MODES: [Mode; 2] = [Mode::Threaded, Mode::Inline];

#[test]
fn blocks_do_what_they_must() {
    for (scenario, run) in SCENARIOS.into_iter().chain(MIXED_SCENARIOS).chain(DEVICES_SCENARIOS) {
        for mode in MODES {
            let driver = Standin::load("devices=2;pageable=1;delay=20");
            let said = format!("{scenario}, {mode:?}");
            within(&said, move || {
                let vm = Vm::builder().mode(mode).build().expect("an engine");
                run(&vm, CUDA);
                // It returns the failures that nobody has asked for.
                let _ = vm.shutdown(Duration::from_secs(60));
            });
            assert_eq!(driver.findings(), "", "{said}");
        }
    }
}

/// Where no device reaches the memory of another one, copies between them go by way of the driver.
#[test]
fn blocks_use_devices_that_do_not_reach_each_other() {
    for (scenario, run) in DEVICES_SCENARIOS {
        let driver = Standin::load("devices=2;pageable=1;peer=0;delay=20");
        within(scenario, move || run(&Vm::builder().build().expect("an engine"), CUDA));
        assert_eq!(driver.findings(), "", "{scenario}");
    }
}

/// One of the devices of a loop is lost while it runs steps, at each of its kernels in turn: the run fails and says so, the other device goes on, and no command uses memory
/// that was given back.
#[test]
fn a_lost_device_ends_the_loops_that_use_it() {
    const OTHER: DeviceId = DeviceId::cuda(0);
    for mode in MODES {
        for lost in [CUDA, OTHER] {
            for kernel in 1..6 {
                let driver = Standin::load("devices=2;pageable=1;delay=50");
                let said = format!("kernel {kernel} of {lost}, {mode:?}");
                let vm = Vm::builder().mode(mode).build().expect("an engine");
                let program = vm.record("counts", |r| {
                    let (x, y) = (r.full(CUDA, DType::I32, &[8], 0)?, r.full(OTHER, DType::I32, &[8], 0)?);
                    let (round, most) = (r.full(CUDA, DType::I32, &[], 0)?, r.full(CUDA, DType::I32, &[], 5)?);
                    let goes_on = round.lt(&most)?;
                    r.while_true(&goes_on, || {
                        y.copy_from(&(&(&y + &x.to(OTHER)?)? + 1)?)?;
                        x.copy_from(&(&x + &y.to(CUDA)?)?)?;
                        round.copy_from(&(&round + 1)?)?;
                        goes_on.copy_from(&round.lt(&most)?)
                    })?;
                    r.fetch("x", &x)
                });
                let options = CompileOptions::default();
                let counts = vm.compile(program.expect("it can be recorded"), &[], &options).expect("it compiles");
                counts.run(&[]).expect("it is submitted").wait().expect("it runs");
                driver.fault(&format!("illegal={kernel}@{}", lost.index));
                let left = if lost == CUDA { OTHER } else { CUDA };
                let ended = said.clone();
                within(&said, move || {
                    let error = counts.run(&[]).expect("it is submitted").wait().expect_err("a device is lost");
                    assert!(error.to_string().contains("lost"), "{ended}: {error}");
                    for number in 0..20 {
                        let sum = vm.full(left, DType::I32, &[8], number).and_then(|it| (&it + 1)?.to_vec::<i32>());
                        assert_eq!(sum, Ok(vec![number + 1; 8]), "{ended}: the other device");
                    }
                    let _ = vm.shutdown(Duration::from_secs(60));
                });
                // A lost device runs nothing more, so what it was to use can be given back.
                let findings = driver.findings();
                let of_lost =
                    |finding: &&str| finding.contains("before it") && finding.contains(&format!("of {lost};"));
                let others: Vec<&str> = findings.lines().filter(|finding| !of_lost(finding)).collect();
                assert!(others.is_empty(), "{said}: {others:?}");
            }
        }
    }
}

#[test]
fn drawn_blocks_compute_what_the_host_computes() {
    for mode in MODES {
        let driver = Standin::load("devices=2;pageable=1;delay=5");
        let vm = Vm::builder().mode(mode).build().expect("an engine");
        let mut drawn = Drawn::default();
        let programs = cases(10);
        for seed in 1..=programs {
            compare_drawn(&vm, CUDA, seed, &mut drawn);
        }
        assert!(drawn.marks as u64 > 10 * programs, "{drawn:?}");
        // Loops that the device runs alone, and blocks in them.
        assert!(driver.calls("cuGraphAddNode_v2") > programs, "{mode:?}: {}", driver.calls("cuGraphAddNode_v2"));
        let mut mixed = Drawn::default();
        for seed in 1..=programs {
            compare_drawn_mixed(&vm, CUDA, seed, &mut mixed);
        }
        assert!(mixed.by_host as u64 > 3 * programs && mixed.by_devices as u64 > 3 * programs, "{mixed:?}");
        vm.shutdown(Duration::from_secs(60)).expect("it ends");
        assert_eq!(driver.findings(), "", "{mode:?}");
    }
}

/// Without loops, every conditional node is a branch that is in none.
#[test]
fn drawn_branches_are_decided_by_the_device() {
    for mode in MODES {
        let driver = Standin::load("devices=2;pageable=1;delay=5");
        let vm = Vm::builder().mode(mode).build().expect("an engine");
        let mut drawn = Drawn::default();
        let has_nodes = |seed: u64, drawn: &mut Drawn| {
            let before = driver.calls("cuGraphAddNode_v2");
            compare_drawn_branches(&vm, CUDA, seed, drawn);
            driver.calls("cuGraphAddNode_v2") > before
        };
        let programs = cases(12);
        let of_device = (1..=programs).filter(|&seed| has_nodes(seed, &mut drawn)).count();
        assert!(4 * of_device as u64 > programs, "{mode:?}: {of_device} programs, {drawn:?}");
        vm.shutdown(Duration::from_secs(60)).expect("it ends");
        assert_eq!(driver.findings(), "", "{mode:?}");
    }
}

/// A loop is captured in its second round, with all that follow it.
#[test]
fn rounds_from_the_second_on_are_one_graph() -> Result<(), Error> {
    for mode in MODES {
        let driver = Standin::load("devices=2;pageable=1");
        let vm = Vm::builder().mode(mode).build()?;
        let x = vm.full(CUDA, DType::I32, &[], 0)?;
        let program = vm.record("count", |r| count_to(By::Recording(r), CUDA, &r.parameter("x", &x)?, 100))?;
        for (capture, expected) in [(true, [2 + 2 + 2 + 2, 1, 1]), (false, [2 + 100 * 2, 0, 0])] {
            let options = CompileOptions { capture, ..single_steps() };
            let executable = vm.compile(&program, &[("x", &x)], &options)?;
            x.fill(0)?;
            x.wait()?;
            let count =
                || ["cuLaunchKernel", "cuStreamBeginCapture_v2", "cuGraphLaunch"].map(|call| driver.calls(call));
            let before = count();
            executable.run(&[])?.wait()?;
            let after = count();
            assert_eq!(x.to_scalar::<i32>()?, 100);
            // Two kernels come before the loop, and each round has two and two copies. The capture has a round, and the kernel of conditions twice.
            let counts: [u64; 3] = std::array::from_fn(|call| after[call] - before[call]);
            assert_eq!(counts, expected, "{mode:?}, capture: {capture}");
        }
        drop((x, program));
        vm.shutdown(Duration::from_secs(60))?;
        assert_eq!(driver.findings(), "");
    }
    Ok(())
}

/// A loop that never ends holds its own stream alone: another stream of the device computes, and what the stream had before the loop can be read.
/// The end of the engine ends the loop.
#[test]
fn an_endless_loop_holds_no_other_stream() {
    let driver = Standin::load("devices=2;pageable=1");
    within("an endless loop", || {
        // The devices of the engine hold the plan, and its threads hold the devices.
        let plan = FaultPlan::new();
        let vm = Vm::builder().faults(plan.clone()).build().expect("an engine");
        let before = (&vm.full(CUDA, DType::I32, &[], 3).expect("a tensor") + 4).expect("it is submitted");
        let program = vm.record("endless", |r| endless(r, CUDA, |x| x.copy_from(&(x + 1)?)));
        let options = CompileOptions { most_rounds: u64::MAX, ..single_steps() };
        let executable = vm.compile(program.expect("it can be recorded"), &[], &options).expect("it compiles");
        let run = executable.run(&[]).expect("it is submitted");
        {
            let _lane = Lane(1).enter();
            for round in 0..20 {
                let y = (&before + round).expect("it is submitted");
                assert_eq!(y.to_scalar::<i32>(), Ok(7 + round as i32));
            }
        }
        let short = Duration::from_millis(10);
        assert!(matches!(TimeLimit(short).run(|| run.wait()), Err(Error::Timeout { after, .. }) if after == short));
        assert!(matches!(vm.shutdown(short), Err(Error::Timeout { after, .. }) if after == short));
        drop((before, run, executable));
        until("the threads have ended", || Arc::strong_count(&plan) == 1);
    });
    assert_eq!(driver.findings(), "");
}

/// A call of the driver that fails, at several places of a run: the run counts to eleven or fails, and so does what comes after it. Codes that end
/// the device lose it.
#[test]
fn calls_that_fail_in_a_loop_fail_the_run_or_nothing() {
    let (mut failed, mut fine) = (0, 0);
    for call in ["cuLaunchKernel", "cuMemcpyAsync", "cuEventRecord", "cuEventQuery", "cuGraphLaunch"] {
        for code in ["OUT_OF_MEMORY", "ILLEGAL_ADDRESS"] {
            for nth in [1, 2, 4, 9] {
                for mode in MODES {
                    let driver = Standin::load("devices=2;pageable=1");
                    let said = format!("{call} fails for the {nth}th time with {code}, {mode:?}");
                    let vm = Vm::builder().mode(mode).build().expect("an engine");
                    let x = vm.full(CUDA, DType::I32, &[], 0).expect("a tensor");
                    let program = vm.record("count", |r| count_to(By::Recording(r), CUDA, &r.parameter("x", &x)?, 11));
                    let program = program.expect("it can be recorded");
                    let executable = vm.compile(&program, &[("x", &x)], &single_steps()).expect("it compiles");
                    vm.wait_all().expect("it passes");
                    driver.fault(&format!("fail={call}:{nth}:{code}"));
                    let outcome = within(&said, move || {
                        let outcome = executable.run(&[]).and_then(|run| run.wait());
                        if outcome.is_ok() {
                            let found = x.to_scalar::<i32>();
                            // The call that fails may come after the run, and so may the loss of the device.
                            let is_told =
                                |error: Error| ["is lost", call].iter().any(|it| error.to_string().contains(it));
                            assert!(found == Ok(11) || found.is_err_and(is_told));
                        }
                        drop((x, executable));
                        let _ = vm.shutdown(Duration::from_secs(60));
                        outcome
                    });
                    match outcome {
                        Ok(()) => fine += 1,
                        Err(Error::Failed(_)) => failed += 1,
                        Err(other) => panic!("{said}: {other}"),
                    }
                    driver.leaks();
                    assert_eq!(driver.findings(), "", "{said}");
                }
            }
        }
    }
    assert!(failed > 20 && fine > 20, "{failed} runs failed, and {fine} did not");
}
