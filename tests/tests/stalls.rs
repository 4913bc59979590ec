//! Stalls: reports that name what blocks the engine, and the log that a waiter leaves when nothing passes.

use std::sync::mpsc;
use std::time::Duration;

use streamvm::report::{StallState, StalledInstruction};
use streamvm::stream::Capabilities;
use streamvm::{DType, DeviceId, Error, Mode, OnComplete, StreamKey, TimeLimit, Var, Vm};
use streamvm_tests::{CPU, ClosedGate, PATIENCE, list, logged, submit, until};

fn compute(lane: u32) -> StreamKey {
    format!("compute@cpu:0:{lane}").parse().expect("a stream")
}

/// The state of each stream with pending work: stream, number, state, what it waits for.
type Row = (StreamKey, u64, StallState, Vec<(StreamKey, u64)>);

fn rows(vm: &Vm) -> Vec<Row> {
    let row = |stalled: StalledInstruction| (stalled.stream, stalled.seq, stalled.state, stalled.waits_for);
    vm.stall_report().streams.into_iter().map(row).collect()
}

/// Threads fall asleep in their own time.
fn until_rows(vm: &Vm, expected: &[Row]) {
    let mut last = Vec::new();
    let start = std::time::Instant::now();
    while last != expected {
        assert!(start.elapsed() < PATIENCE, "expected {expected:#?}, found {last:#?}");
        last = rows(vm);
        std::thread::yield_now();
    }
}

#[test]
fn what_runs_is_named_with_its_source_line() {
    let vm = Vm::builder().build().expect("an engine");
    let gate = ClosedGate::new();
    assert!(vm.stall_report().is_empty());
    let line = line!() + 1;
    submit(&vm, |b| b.call_fn("held up", CPU, [], gate.function()));
    for _ in 0..4 {
        submit(&vm, |b| b.call_fn("behind", CPU, [], |_| Ok(())));
    }
    gate.wait_entered(1);
    until_rows(&vm, &[(compute(0), 1, StallState::Running, Vec::new())]);
    let report = vm.stall_report();
    let [stalled] = report.streams.as_slice() else { panic!("{report}") };
    assert_eq!((stalled.what.as_deref(), stalled.pending), (Some("held up"), 5));
    let site = stalled.site.expect("known");
    assert!(site.file().ends_with("stalls.rs") && site.line() == line, "{site}");
    assert_eq!(report.roots().count(), 1);
    let text = report.to_string();
    for part in ["5 instructions on 1 stream", "compute@cpu:0:0 #1", "running", "held up", "stalls.rs"] {
        assert!(text.contains(part), "{part} is missing in: {text}");
    }
    gate.open();
    vm.wait_all().expect("it passes");
    assert!(vm.stall_report().is_empty());
}

#[test]
fn a_name_that_is_made_at_run_time_is_kept_too() {
    let vm = Vm::builder().build().expect("an engine");
    let gate = ClosedGate::new();
    submit(&vm, |b| b.call_fn(format!("number {}", 17), CPU, [], gate.function()));
    gate.wait_entered(1);
    assert_eq!(vm.stall_report().streams[0].what.as_deref(), Some("number 17"));
    gate.open();
}

#[test]
fn what_the_scheduler_holds_back_leads_to_its_root() {
    let vm = Vm::builder().capabilities(Capabilities::standard().host_waits_only()).build().expect("an engine");
    let gate = ClosedGate::new();
    let (first, second) = (Var::new(), Var::new());
    submit(&vm, |b| b.call_fn("root", CPU, [first.write()], gate.function()));
    gate.wait_entered(1);
    submit(&vm, |b| b.on_lane(1).call_fn("middle", CPU, [first.read(), second.write()], |_| Ok(())));
    submit(&vm, |b| b.on_lane(2).call_fn("last", CPU, [second.read()], |_| Ok(())));
    let expected = [
        (compute(0), 1, StallState::Running, Vec::new()),
        (compute(1), 1, StallState::HeldBack, vec![(compute(0), 1)]),
        (compute(2), 1, StallState::HeldBack, vec![(compute(1), 1)]),
    ];
    until_rows(&vm, &expected);
    let report = vm.stall_report();
    let names: Vec<_> = report.streams.iter().map(|stalled| stalled.what.as_deref()).collect();
    assert_eq!(names, [Some("root"), Some("middle"), Some("last")]);
    let chain: Vec<_> = report.chain(&report.streams[2]).iter().map(|stalled| stalled.what.as_deref()).collect();
    assert_eq!(chain, [Some("middle"), Some("root")]);
    assert!(report.to_string().contains("in the end for compute@cpu:0:0 #1"), "{report}");
    gate.open();
    vm.wait_all().expect("it passes");
}

#[test]
fn what_waits_on_its_own_thread_names_what_it_waits_for() {
    let vm = Vm::builder().cpu_threads(2).build().expect("an engine");
    let gate = ClosedGate::new();
    let token = Var::new();
    submit(&vm, |b| b.call_fn("root", CPU, [token.write()], gate.function()));
    submit(&vm, |b| b.on_lane(1).call_fn("waits", CPU, [token.read()], |_| Ok(())));
    let expected =
        [(compute(0), 1, StallState::Running, Vec::new()), (compute(1), 1, StallState::Waiting, vec![(compute(0), 1)])];
    until_rows(&vm, &expected);
    assert_eq!(vm.stall_report().streams[1].what.as_deref(), Some("waits"));
    gate.open();
    vm.wait_all().expect("it passes");
}

#[test]
fn what_shares_a_busy_thread_is_after_what_that_runs() {
    let vm = Vm::builder().cpu_threads(1).build().expect("an engine");
    let gate = ClosedGate::new();
    submit(&vm, |b| b.call_fn("busy", CPU, [], gate.function()));
    gate.wait_entered(1);
    submit(&vm, |b| b.on_lane(1).call_fn("behind", CPU, [], |_| Ok(())));
    let expected =
        [(compute(0), 1, StallState::Running, Vec::new()), (compute(1), 1, StallState::Queued, vec![(compute(0), 1)])];
    until_rows(&vm, &expected);
    let report = vm.stall_report();
    assert_eq!(report.roots().count(), 1);
    let threads: Vec<_> = report.streams.iter().map(|stalled| stalled.thread.as_deref()).collect();
    assert_eq!(threads, [Some("cpu:0.0"), None], "the thread that holds the stream is named");
    gate.open();
    vm.wait_all().expect("it passes");
}

/// Two threads of a device are held in functions; the report names each.
#[test]
fn each_of_two_busy_threads_is_named() {
    let vm = Vm::builder().cpu_threads(2).build().expect("an engine");
    let gate = ClosedGate::new();
    for lane in 0..2 {
        submit(&vm, |b| b.on_lane(lane).call_fn("busy", CPU, [], gate.function()));
    }
    gate.wait_entered(2);
    let mut threads: Vec<_> = vm.stall_report().streams.into_iter().map(|stalled| stalled.thread).collect();
    threads.sort();
    assert_eq!(threads, [Some("cpu:0.0".to_owned()), Some("cpu:0.1".to_owned())]);
    gate.open();
    vm.wait_all().expect("it passes");
}

#[test]
fn what_a_device_was_given_is_launched_and_named() {
    let vm = Vm::builder().sim_devices(1).build().expect("an engine");
    let gate = ClosedGate::new();
    let sim = DeviceId::sim(0);
    let x = vm.full(sim, DType::F32, &[4], 1.0).expect("a fill");
    // A device shows only where somebody looks: so that the next is the oldest.
    x.wait().expect("it passes");
    submit(&vm, |b| b.call_fn("on the device", sim, [x.update()], gate.function()));
    let y = x.neg().expect("submitted");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| y.wait());
        gate.wait_entered(1);
        until("the function is the oldest", || {
            let report = vm.stall_report();
            report.streams.iter().any(|stalled| {
                stalled.state == StallState::Launched && stalled.what.as_deref() == Some("on the device")
            })
        });
        gate.open();
        assert_eq!(waiter.join().expect("no panic"), Ok(()));
    });
    vm.wait_all().expect("it passes");
}

#[test]
fn what_waits_for_workers_leads_to_what_one_of_them_runs() {
    let vm = Vm::builder().workers(2).build().expect("an engine");
    let (gate, variable) = (ClosedGate::new(), vm.var());
    let held = gate.clone();
    let hold = move || {
        held.pass();
        Ok(())
    };
    vm.push("held up", [variable.update()], hold).expect("it is taken");
    vm.push("behind", [variable.update()], || Ok(())).expect("it is taken");
    submit(&vm, |b| b.call_fn("ordered", CPU, [variable.read()], |_| Ok(())));
    gate.wait_entered(1);
    until("the scheduler sleeps", || vm.stall_report().streams.len() == 2 && vm.stall_report().roots().count() == 1);
    let report = vm.stall_report();
    let root = report.roots().next().expect("a root");
    assert_eq!((root.what.as_deref(), root.state, root.pending), (Some("held up"), StallState::Running, 2), "{report}");
    assert!(root.site.is_some_and(|site| site.file().ends_with("stalls.rs")), "{report}");
    let ordered = report.streams.iter().find(|stalled| stalled.stream == compute(0)).expect("it is held back");
    assert_eq!(report.chain(ordered).len(), 1, "{report}");
    gate.open();
    vm.wait_all().expect("it passes");
}

/// Pushes a function whose handle is kept, with something after it; its line.
fn ask(vm: &Vm, name: &'static str, handles: &mpsc::Sender<OnComplete>) -> u32 {
    let (handles, answer) = (handles.clone(), vm.var());
    vm.push_async(name, [answer.write()], move |handle| drop(handles.send(handle))).expect("it is taken");
    let line = line!() - 1;
    vm.push("behind", [answer.read()], || Ok(())).expect("it is taken");
    line
}

#[test]
fn a_function_whose_handle_nobody_uses_is_named() {
    let vm = Vm::builder().workers(1).build().expect("an engine");
    let (handles, kept) = mpsc::channel();
    for name in ["asks a server", "asks another"] {
        let line = ask(&vm, name, &handles);
        let handle = kept.recv_timeout(PATIENCE).expect("it was called");
        let left = |stalled: &StalledInstruction| stalled.state == StallState::Incomplete;
        until("the worker has left it", || vm.stall_report().streams.iter().all(left));
        let report = vm.stall_report();
        let [stalled] = report.streams.as_slice() else { panic!("{report}") };
        assert_eq!((stalled.what.as_deref(), stalled.pending), (Some(name), 2), "{report}");
        assert!(stalled.site.is_some_and(|site| site.line() == line), "{report}");
        assert!(report.to_string().contains("incomplete"), "{report}");
        handle.complete(Ok(()));
        vm.wait_all().expect("it passes");
        assert!(vm.stall_report().is_empty());
    }
}

#[test]
fn what_a_worker_runs_is_named_before_what_another_has_left() {
    let vm = Vm::builder().workers(2).build().expect("an engine");
    let (handles, kept) = mpsc::channel();
    let asking: Vec<OnComplete> = (0..4)
        .map(|_| {
            ask(&vm, "asks a server", &handles);
            kept.recv_timeout(PATIENCE).expect("it was called")
        })
        .collect();
    let gate = ClosedGate::new();
    let held = gate.clone();
    let hold = move || {
        held.pass();
        Ok(())
    };
    vm.push("held up", [], hold).expect("it is taken");
    gate.wait_entered(1);
    until("it is named", || {
        let report = vm.stall_report();
        let [stalled] = report.streams.as_slice() else { panic!("{report}") };
        (stalled.what.as_deref(), stalled.state) == (Some("held up"), StallState::Running)
    });
    gate.open();
    asking.into_iter().for_each(|handle| handle.complete(Ok(())));
    vm.wait_all().expect("it passes");
}

#[test]
fn a_simulated_engine_that_stands_still_names_the_handle() {
    let vm = Vm::builder().mode(Mode::Simulated { seed: 1 }).workers(1).build().expect("an engine");
    let (handles, kept) = mpsc::channel();
    ask(&vm, "asks a server", &handles);
    assert!(matches!(vm.wait_all(), Err(Error::Stalled { .. })));
    let report = vm.stall_report();
    assert!(report.roots().any(|root| root.what.as_deref() == Some("asks a server")), "{report}");
    kept.recv_timeout(PATIENCE).expect("it was called").complete(Ok(()));
    vm.wait_all().expect("it passes");
}

#[test]
fn a_report_counts_blocked_submitters() {
    let vm = Vm::builder().max_instructions(1).build().expect("an engine");
    let gate = ClosedGate::new();
    submit(&vm, |b| b.call_fn("held", CPU, [], gate.function()));
    std::thread::scope(|scope| {
        scope.spawn(|| submit(&vm, |b| b.call_fn("blocked", CPU, [], |_| Ok(()))).wait());
        until("the submitter is blocked", || vm.stall_report().blocked_submitters == 1);
        assert!(vm.stall_report().to_string().contains("1 submitter blocked"));
        gate.open();
    });
}

#[test]
fn a_report_may_be_made_on_a_thread_of_the_engine() {
    for mode in [Mode::Threaded, Mode::Inline] {
        let vm = std::sync::Arc::new(Vm::builder().mode(mode).build().expect("an engine"));
        let (inside, (sender, receiver)) = (vm.clone(), std::sync::mpsc::channel());
        submit(&vm, |b| {
            b.call_fn("asks", CPU, [], move |_| {
                let report = inside.stall_report();
                drop(inside);
                Ok(sender.send(report)?)
            })
        });
        let report = receiver.recv().expect("it ran");
        let [stalled] = report.streams.as_slice() else { panic!("{report}") };
        assert_eq!((stalled.what.as_deref(), stalled.state), (Some("asks"), StallState::Running), "{mode:?}");
        vm.wait_all().expect("it passes");
    }
}

/// The warnings about standstills that name `what`.
fn warnings(what: &str) -> Vec<String> {
    logged(log::Level::Warn, what)
}

const SOON: Duration = Duration::from_millis(20);

#[test]
fn a_waiter_that_sees_nothing_pass_logs_what_blocks_it_once_for_each_standstill() {
    assert!(warnings("standstill").is_empty());
    let vm = Vm::builder().stall_after(SOON).build().expect("an engine");
    let gates = [ClosedGate::new(), ClosedGate::new()];
    for (gate, name) in gates.iter().zip(["standstill 1", "standstill 2"]) {
        submit(&vm, |b| b.call_fn(name, CPU, [], gate.function()));
    }
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..3).map(|_| scope.spawn(|| vm.wait_all())).collect();
        for (gate, name) in gates.iter().zip(["standstill 1", "standstill 2"]) {
            gate.wait_entered(1);
            until("somebody says so", || !warnings(name).is_empty());
            // All the others have looked at their clocks, too, and not said it again.
            std::thread::sleep(4 * SOON);
            let said = warnings(name);
            assert_eq!(said.len(), 1, "{said:#?}");
            for part in ["no instruction has passed for 20ms", "running", "stalls.rs", "compute@cpu:0:0 #"] {
                assert!(said[0].contains(part), "{part} is missing in: {}", said[0]);
            }
            gate.open();
        }
        waiters.into_iter().for_each(|waiter| assert_eq!(waiter.join().expect("no panic"), Ok(())));
    });
}

#[test]
fn a_submitter_that_waits_for_room_logs_it_too() {
    assert!(warnings("fills the queue").is_empty());
    let vm = Vm::builder().stall_after(SOON).max_instructions(1).build().expect("an engine");
    let gate = ClosedGate::new();
    submit(&vm, |b| b.call_fn("fills the queue", CPU, [], gate.function()));
    std::thread::scope(|scope| {
        scope.spawn(|| submit(&vm, |b| b.call_fn("blocked", CPU, [], |_| Ok(()))).wait());
        until("it says so", || warnings("fills the queue").len() == 1);
        gate.open();
    });
}

#[test]
fn nobody_looks_at_a_clock_who_is_told_never_to() {
    assert!(warnings("never told").is_empty());
    let vm = Vm::builder().stall_after(Duration::MAX).build().expect("an engine");
    let gate = ClosedGate::new();
    let ticket = vm.submit(list(|b| b.call_fn("never told", CPU, [], gate.function()))).expect("taken");
    assert!(
        matches!(TimeLimit(4 * SOON).run(|| ticket.wait()), Err(Error::Timeout { after, .. }) if after == 4 * SOON)
    );
    assert!(warnings("never told").is_empty());
    gate.open();
    ticket.wait().expect("it passes");
}
