//! Blocks on a simulated device: what goes on while a stream waits for a condition, how loops are stopped, and faults at every call.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use streamvm::ep::faults::{Fault, FaultPlan, Gate, Point, Rule};
use streamvm::ep::races::FindingKind;
use streamvm::program::{CompileOptions, Program};
use streamvm::report::StallState;
use streamvm::{DType, DeviceId, Error, Executable, Lane, Mode, Tensor, TimeLimit, Vm};
use streamvm_tests::compiled::block_scenarios::endless;
use streamvm_tests::compiled::blocks::{By, count_to};
use streamvm_tests::{CPU, PATIENCE, until, within};

const SIM: DeviceId = DeviceId::sim(0);
const OTHER: DeviceId = DeviceId::sim(1);

fn engine(plan: &Arc<FaultPlan>) -> Vm {
    Vm::builder().sim_devices(2).faults(plan.clone()).detect_races(true).build().expect("an engine")
}

fn counts_to_eleven(vm: &Vm, device: DeviceId, x: &Tensor) -> Executable {
    let program = vm.record("counts", |r| count_to(By::Recording(r), device, &r.parameter("x", x)?, 11));
    let options = CompileOptions::default();
    vm.compile(program.expect("it can be recorded"), &[("x", x)], &options).expect("it compiles")
}

fn patience() -> Option<Instant> {
    Instant::now().checked_add(PATIENCE)
}

/// The third condition is held on the device. Another stream of the device, and a later instruction that needs what the stream had before the
/// loop, go on; the report names the block.
#[test]
fn other_streams_go_on_while_a_loop_waits_for_its_condition() {
    within("a loop that is held", || {
        let (plan, gate) = (FaultPlan::new(), Gate::new());
        let vm = engine(&plan);
        let x = vm.full(SIM, DType::I32, &[], 0).expect("a tensor");
        let before = vm.full(SIM, DType::I32, &[], 3).expect("a tensor");
        let count = counts_to_eleven(&vm, SIM, &x);
        vm.wait_all().expect("it passes");
        // A copy of the condition, one of `x`, one of the condition, …: each round copies twice, and then the condition to the host.
        plan.add(Rule::new(Point::Copy, Fault::Hold(gate.clone())).named("counts").nth(6)).expect("a rule");
        let doubled = (&before + &before).expect("it is submitted");
        let run = count.run(&[]).expect("it is submitted");
        assert!(
            gate.wait_arrived(1, patience()),
            "the loop has come to its third condition, though nobody waits for it"
        );
        until("it waits", || vm.stall_report().streams.iter().any(|it| it.state == StallState::Condition));
        let report = vm.stall_report();
        let stalled = report.streams.iter().find(|it| it.state == StallState::Condition).expect("as above");
        let condition = stalled.condition.expect("the step is known");
        assert_eq!((stalled.what.as_deref(), condition.name), (Some("counts"), "while"), "{report}");
        let text = report.to_string();
        for part in ["condition", "for the condition of step", "(while), recorded at", "blocks.rs:"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // What the stream had before the loop does not wait for the loop.
        let there = {
            let _lane = Lane(1).enter();
            (&doubled + 1).expect("it is submitted")
        };
        assert_eq!(there.to_scalar::<i32>(), Ok(7));
        let short = Duration::from_millis(20);
        assert!(
            matches!(TimeLimit(short).run(|| run.wait()), Err(Error::Timeout { after, .. }) if after == short),
            "the loop is held"
        );
        gate.open();
        assert_eq!(x.to_scalar::<i32>(), Ok(11));
        assert!(vm.races().is_empty(), "{:?}", vm.races());
    });
}

/// Nobody waits for the run: it copies each of its twelve conditions all the same.
#[test]
fn a_loop_needs_no_waiter() {
    within("a loop without a waiter", || {
        let (plan, last) = (FaultPlan::new(), Gate::new());
        last.open();
        let vm = engine(&plan);
        let x = vm.full(SIM, DType::I32, &[], 0).expect("a tensor");
        let count = counts_to_eleven(&vm, SIM, &x);
        vm.wait_all().expect("it passes");
        plan.add(Rule::new(Point::Copy, Fault::Stall(last.clone())).named("counts").nth(3 * 11)).expect("a rule");
        count.run(&[]).expect("it is submitted");
        assert!(last.wait_arrived(1, patience()), "it stopped before: {:?}", plan.fired());
        assert_eq!(x.to_scalar::<i32>(), Ok(11));
    });
}

/// Tasks of the same stream come after the loop, however they were submitted.
#[test]
fn the_stream_of_a_loop_keeps_its_order() {
    for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 1 }] {
        let vm =
            Vm::builder().mode(mode).sim_devices(1).max_instructions(4).detect_races(true).build().expect("an engine");
        let x = vm.full(SIM, DType::I32, &[], 0).expect("a tensor");
        let count = counts_to_eleven(&vm, SIM, &x);
        let mut seen = Vec::new();
        for round in 0..8 {
            x.copy_from(&(&x - (round + 3)).expect("a call")).expect("a call");
            count.run(&[]).expect("it is submitted");
            seen.push((&x * 1).expect("a call"));
        }
        for (round, x) in seen.iter().enumerate() {
            assert_eq!(x.to_scalar::<i32>(), Ok(11), "{mode:?}, round {round}");
        }
        assert!(vm.races().is_empty(), "{:?}", vm.races());
    }
}

/// An engine that is shut down waits for the limit, and then ends the loop, whose run fails; its threads end.
#[test]
fn an_endless_loop_ends_with_its_engine() {
    for device in [CPU, SIM] {
        within("a shutdown", move || {
            let plan = FaultPlan::new();
            let vm = engine(&plan);
            let program = vm.record("endless", |r| endless(r, device, |x| x.copy_from(&(x + 1)?)));
            let options = CompileOptions { most_rounds: u64::MAX, ..CompileOptions::default() };
            let executable = vm.compile(program.expect("it can be recorded"), &[], &options).expect("it compiles");
            let run = executable.run(&[]).expect("it is submitted");
            let waits = Gate::new();
            thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    waits.open();
                    run.wait()
                });
                until("the other thread waits", || waits.is_open());
                let limit = Duration::from_millis(50);
                assert!(matches!(vm.shutdown(limit), Err(Error::Timeout { after, .. }) if after == limit));
                let failed = waiter.join().expect("it does not panic").expect_err("the loop is stopped").to_string();
                for part in ["while", "shut down", "block_scenarios.rs:"] {
                    assert!(failed.contains(part), "{device}: {part}: {failed}");
                }
            });
            drop((run, executable));
            // The threads of the engine hold its devices, and these the plan.
            until("the threads have ended", || Arc::strong_count(&plan) == 1);
        });
    }
}

/// Conditions and copies of a block on a device may be a CPU's.
#[test]
fn a_block_of_a_device_has_conditions_and_copies_of_a_cpu() {
    let vm = Vm::builder().sim_devices(2).build().expect("an engine");
    let compile = |program: Result<Program, Error>| {
        vm.compile(program.expect("it can be recorded"), &[], &CompileOptions::default())
    };
    let runs = |what: &str, program: Result<Program, Error>, fetched: &str, expected: [i32; 2]| {
        let executable = compile(program).expect(what);
        for (yes, expected) in [false, true].into_iter().zip(expected) {
            let feed = vm.full(CPU, DType::Bool, &[], yes).expect("a tensor");
            let run = executable.run(&[("yes", &feed)]).expect("it is submitted");
            assert_eq!(run[fetched].to_scalar::<i32>(), Ok(expected), "{what}: {yes}");
        }
    };
    let elsewhere = vm.record("p", |r| {
        let (yes, x) = (r.feed("yes", CPU, DType::Bool, &[])?, r.full(SIM, DType::I32, &[], 1)?);
        r.if_true(&yes, || x.fill(2))?;
        r.fetch("x", &x)
    });
    runs("a condition on a CPU", elsewhere, "x", [1, 2]);
    let inner = vm.record("p", |r| {
        let inner = r.feed("yes", CPU, DType::Bool, &[])?;
        let (yes, x) = (r.full(SIM, DType::Bool, &[], true)?, r.full(SIM, DType::I32, &[], 1)?);
        r.if_true(&yes, || {
            x.fill(3)?;
            r.if_true(&inner, || x.fill(2))
        })?;
        r.fetch("x", &x)
    });
    runs("an inner condition on a CPU", inner, "x", [3, 2]);
    let copied = vm.record("p", |r| {
        let (yes, x) = (r.feed("yes", SIM, DType::Bool, &[])?, r.full(CPU, DType::I32, &[], 1)?);
        let y = r.full(SIM, DType::I32, &[], 7)?;
        r.if_true(&yes, || y.copy_from(&x.to(SIM)?))?;
        r.fetch("y", &y)
    });
    runs("a copy in a block", copied, "y", [7, 1]);
    let brought = vm.record("p", |r| {
        let (yes, x) = (r.feed("yes", CPU, DType::Bool, &[])?.to(SIM)?, r.full(SIM, DType::I32, &[], 1)?);
        r.if_true(&yes, || x.fill(2))?;
        r.fetch("x", &x.to(CPU)?)
    });
    let executable = compile(brought).expect("it compiles");
    for (yes, expected) in [(true, 2), (false, 1)] {
        let yes = vm.full(CPU, DType::Bool, &[], yes).expect("a tensor");
        assert_eq!(executable.run(&[("yes", &yes)]).expect("it is submitted")["x"].to_scalar::<i32>(), Ok(expected));
    }
    let flags = executable.compiled().to_string().lines().filter(|line| line.starts_with("flag")).count();
    assert_eq!(flags, 1, "{}", executable.compiled());
}

/// Counts to eleven, with steps of another device in each round.
fn counts_on_two(vm: &Vm, x: &Tensor) -> Executable {
    let program = vm.record("counts", |r| {
        let (x, most) = (r.parameter("x", x)?, r.full(SIM, DType::I32, &[], 11)?);
        let goes_on = x.lt(&most)?;
        r.while_true(&goes_on, || {
            x.copy_from(&(&x.to(OTHER)? + 1)?.to(SIM)?)?;
            goes_on.copy_from(&x.lt(&most)?)
        })
    });
    let options = CompileOptions::default();
    vm.compile(program.expect("it can be recorded"), &[("x", x)], &options).expect("it compiles")
}

/// Each fault at each call of a run: the run counts to eleven or fails, the engine goes on unless its device is lost, and no event is left. One half of the rules is
/// for a loop with steps of another device: for either of them.
#[test]
fn faults_at_any_call_of_a_loop_fail_the_run_or_nothing() {
    use Point::{Copy, Fill, HostWait, Launch, Query, Record, Synchronize, Wait};
    // For a loop of one device, and of two: how many runs failed, and how many did not.
    let mut counts = [[0; 2]; 2];
    let mut check = |mode: Mode, rule: Rule, said: String| {
        for devices in [&[SIM][..], &[SIM, OTHER]] {
            for &device in devices {
                let on_two = devices.len() > 1;
                let (rule, said) = (rule.clone().device(device), format!("{said}, {devices:?}, on {device}"));
                let text = said.clone();
                let is_fine = within(&said, move || with_fault(mode, on_two, rule, device, &text));
                counts[usize::from(on_two)][usize::from(is_fine)] += 1;
            }
        }
    };
    for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 9 }] {
        for point in [Launch, Copy, Fill, Record, Wait, Query, HostWait, Synchronize] {
            for fault in [Fault::Error, Fault::Late, Fault::Lost, Fault::Panic] {
                if !fault.fits(point) {
                    continue;
                }
                for nth in [0, 1, 2, 5, 12, 33] {
                    let said = format!("{} at {point} {nth}, {mode:?}", fault.name());
                    check(mode, Rule::new(point, fault.clone()).nth(nth), said);
                }
            }
        }
        for point in [Record, Query, Wait] {
            check(mode, Rule::new(point, Fault::Error), format!("an error at each {point}, {mode:?}"));
        }
    }
    assert!(counts.iter().flatten().all(|count| *count > 50), "{counts:?} runs failed, and did not");
}

/// If nobody can tell whether steps of another device have run, that device is lost: another instruction there could get the memory that they use.
#[test]
fn a_device_that_cannot_be_waited_for_is_lost() {
    for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 3 }] {
        for fault in [Fault::Error, Fault::Panic] {
            let said = format!("{} at each wait, {mode:?}", fault.name());
            within(&said.clone(), move || {
                let plan = FaultPlan::new();
                let vm = Vm::builder().mode(mode).sim_devices(2).faults(plan.clone()).build().expect("an engine");
                let x = vm.full(SIM, DType::I32, &[], 0).expect("a tensor");
                let before = vm.full(OTHER, DType::I32, &[], 0).expect("a tensor");
                let count = counts_on_two(&vm, &x);
                vm.wait_all().expect("it passes");
                plan.add(Rule::new(Point::Synchronize, fault.clone()).device(OTHER)).expect("a rule that fits");
                let run = count.run(&[]).expect("it is submitted");
                let text = run.wait().expect_err("it cannot be told whether it has run").to_string();
                assert!(["injected", "panic", "lost"].iter().any(|part| text.contains(part)), "{said}: {text}");
                plan.stop();
                let after = (&before + 1).and_then(|after| after.to_scalar::<i32>());
                assert!(after.is_err_and(|error| error.to_string().contains("is lost")), "{said}: its device");
                let again = count.run(&[]).and_then(|run| run.wait());
                assert!(again.is_err(), "{said}: it has lost a device");
                let there = vm.full(SIM, DType::I32, &[], 0).expect("a tensor");
                counts_to_eleven(&vm, SIM, &there).run(&[]).expect("it is submitted");
                assert_eq!(there.to_scalar::<i32>(), Ok(11), "{said}: the other device");
            });
        }
    }
}

/// The device of a loop is lost while a step of another device is held: what else is on that device goes on, and the run is over once the step is.
#[test]
fn a_lost_device_does_not_hold_up_what_another_one_runs() {
    within("a held step", || {
        let (plan, gate) = (FaultPlan::new(), Gate::new());
        let vm = engine(&plan);
        let x = vm.full(SIM, DType::I32, &[], 0).expect("a tensor");
        let there = vm.full(OTHER, DType::I32, &[], 3).expect("a tensor");
        let count = counts_on_two(&vm, &x);
        vm.wait_all().expect("it passes");
        plan.add(Rule::new(Point::Launch, Fault::Hold(gate.clone())).device(OTHER).named("counts").nth(0))
            .expect("a rule");
        let run = count.run(&[]).expect("it is submitted");
        assert!(gate.wait_arrived(1, patience()), "the step is held");
        plan.lose(SIM, "a test");
        let sum = (&there + 1).expect("it is submitted");
        assert_eq!(sum.to_scalar::<i32>(), Ok(4), "another instruction of the device passes");
        gate.open();
        assert!(run.wait().is_err_and(|error| error.to_string().contains("lost")));
    });
}

/// Whether a run under the rule counts to eleven.
fn with_fault(mode: Mode, on_two: bool, rule: Rule, device: DeviceId, said: &str) -> bool {
    let plan = FaultPlan::new();
    let vm =
        Vm::builder().mode(mode).sim_devices(2).faults(plan.clone()).detect_races(true).build().expect("an engine");
    let x = vm.full(SIM, DType::I32, &[], 0).expect("a tensor");
    let count = if on_two { counts_on_two(&vm, &x) } else { counts_to_eleven(&vm, SIM, &x) };
    vm.wait_all().expect("it passes");
    plan.add(rule).expect("a rule that fits");
    let run = count.run(&[]).expect("it is submitted");
    let behind = (&x + 0).expect("it is submitted");
    let outcome = run.wait();
    plan.stop();
    // An engine that cannot find out how far a device is gives it up.
    let is_lost = plan.is_lost(device) || outcome.as_ref().is_err_and(|error| error.to_string().contains("is lost"));
    match &outcome {
        // The device of the parameter may have been lost after the run.
        Ok(()) => assert!(is_lost && device == SIM || x.to_scalar::<i32>() == Ok(11), "{said}"),
        Err(Error::Failed(failure)) => {
            assert!(behind.wait().is_err(), "{said}: what reads the failed parameter fails");
            let text = failure.to_string();
            let expected = ["injected", "lost", "panic"];
            assert!(expected.iter().any(|part| text.contains(part)), "{said}: {text}");
        }
        Err(other) => panic!("{said}: {other}"),
    }
    if !is_lost {
        x.fill(4).expect("it is submitted");
        count.run(&[]).expect("it is submitted");
        assert_eq!(x.to_scalar::<i32>(), Ok(11), "{said}: the next run is fine");
    }
    // The other device goes on.
    let other = if device == SIM { OTHER } else { SIM };
    let there = vm.full(other, DType::I32, &[], 0).expect("a tensor");
    counts_to_eleven(&vm, other, &there).run(&[]).expect("it is submitted");
    assert_eq!(there.to_scalar::<i32>(), Ok(11), "{said}: the other device");
    let _ = vm.wait_all();
    // A command that is dropped writes nothing.
    let races: Vec<_> = vm.races().into_iter().filter(|it| it.kind != FindingKind::NeverWritten).collect();
    assert!(plan.is_lost(device) || races.is_empty(), "{said}: {races:?}");
    // A plan records events of its own on a lost device. An event goes back right after its number has passed.
    until(said, || is_lost || vm.stats().live_events == 0);
    outcome.is_ok()
}
