//! Flight recorders: the trace has what failed, or holds everything up, and what led to it.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use streamvm::ep::faults::FaultPlan;
use streamvm::{DType, DeviceId, Error, Mode, Tensor, TraceConfig, Vm, VmBuilder};
use streamvm_report::{Recording, Report};
use streamvm_tests::{CPU, ClosedGate, PATIENCE, within};
use tempfile::TempDir;

use super::traces::{Shared, Shown, read};

const SIM: DeviceId = DeviceId::sim(0);
const LONG: Duration = Duration::from_secs(600);

/// The engine of a flight recorder, and where its trace goes.
fn recorder(build: impl FnOnce(VmBuilder) -> VmBuilder) -> (Vm, TempDir) {
    let folder = TempDir::new().expect("a folder");
    let config = TraceConfig::to_file(folder.path().join("t")).last(LONG);
    (build(Vm::builder()).trace(config).build().expect("an engine"), folder)
}

fn ones(vm: &Vm) -> Tensor {
    vm.full(CPU, DType::I32, &[4], 1).expect("a tensor")
}

/// The trace, once it is written.
fn written(folder: &TempDir) -> Vec<u8> {
    let begun = Instant::now();
    loop {
        let bytes = fs::read(folder.path().join("t")).expect("the file is there from the begin");
        if Recording::read(&bytes[..]).is_ok_and(|recording| !Report::of(&recording).is_cut) {
            return bytes;
        }
        assert!(begun.elapsed() < PATIENCE, "nothing was written");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The instructions of a trace, by name.
fn by_name(trace: &[u8]) -> HashMap<String, Vec<Shown>> {
    let mut found: HashMap<String, Vec<Shown>> = HashMap::new();
    for slice in read(trace).0.into_iter().filter(|slice| slice.arguments.contains_key("order")) {
        found.entry(slice.name.clone()).or_default().push(slice);
    }
    found
}

/// Whether a trace has the instruction that failed, with its line, after what it reads.
#[track_caller]
fn shows_failure(trace: &[u8], name: &str, before: &str) {
    let found = by_name(trace);
    let failed = found.get(name).unwrap_or_else(|| panic!("{:?}", found.keys()));
    assert_eq!(failed[0].arguments.get("outcome").map(String::as_str), Some("failed"), "{failed:?}");
    assert!(failed[0].arguments["line"].contains("flight_recorder.rs"), "{failed:?}");
    assert!(found[before].iter().any(|slice| slice.end <= failed[0].begin), "{found:?}");
    let report = Report::of(&Recording::read(trace).expect("a trace"));
    assert!(report.failed.iter().any(|it| it.name == name && it.line == failed[0].arguments["line"]), "{report}");
    assert!(report.to_string().contains("\nfailed\n"), "{report}");
}

#[test]
fn the_first_failure_is_written_with_what_led_to_it() {
    for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 3 }] {
        within(&format!("{mode:?}"), move || {
            let (vm, folder) = recorder(|builder| builder.mode(mode));
            let sum = (&ones(&vm) + 3).expect("a sum");
            let broken = (&sum / &vm.full(CPU, DType::I32, &[4], 0).expect("a tensor")).expect("submitted");
            assert!(broken.wait().is_err());
            let first = written(&folder);
            shows_failure(&first, "div", "add");
            // A second one does not replace it.
            vm.push("later", [sum.update()], || Err("wrong".into())).expect("submitted");
            assert!(sum.wait().is_err());
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(fs::read(folder.path().join("t")).expect("a file"), first);
            // But a caller does, and then the next one.
            vm.write_trace().expect("it is written");
            let called = written(&folder);
            shows_failure(&called, "later", "div");
            let more = ones(&vm);
            vm.push("last", [more.update()], || Err("wrong".into())).expect("submitted");
            assert!(more.wait().is_err());
            let begun = Instant::now();
            while fs::read(folder.path().join("t")).expect("a file") == called {
                assert!(begun.elapsed() < PATIENCE, "nothing was written");
                std::thread::sleep(Duration::from_millis(5));
            }
            shows_failure(&written(&folder), "last", "later");
        });
    }
}

#[test]
fn a_panic_of_a_function_is_written() {
    within("a panic", || {
        let (vm, folder) = recorder(|builder| builder);
        let sum = (&ones(&vm) + 3).expect("a sum");
        vm.push("panics", [sum.update()], || panic!("on purpose")).expect("submitted");
        assert!(sum.wait().is_err());
        shows_failure(&written(&folder), "panics", "add");
    });
}

#[test]
fn a_lost_device_is_written() {
    within("a lost device", || {
        let plan = FaultPlan::new();
        let faults = plan.clone();
        let (vm, folder) = recorder(|builder| builder.sim_devices(1).faults(faults));
        let there = ones(&vm).to(SIM).and_then(|there| &there + 3).expect("a sum");
        there.wait().expect("it passes");
        plan.lose(SIM, "pulled out");
        assert!((&there * 2).and_then(|product| product.wait()).is_err());
        shows_failure(&written(&folder), "mul", "add");
    });
}

#[test]
fn a_stall_is_written_with_what_everything_waits_for() {
    within("a stall", || {
        let (vm, folder) = recorder(|builder| builder.stall_after(Duration::from_millis(50)));
        let x = ones(&vm);
        let gate = ClosedGate::new();
        let blocked = gate.clone();
        vm.push("holds up", [x.update()], move || {
            blocked.pass();
            Ok(())
        })
        .expect("submitted");
        let sum = (&x + 1).expect("submitted");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| sum.wait());
            let report = Report::of(&Recording::read(&written(&folder)[..]).expect("a trace"));
            gate.open();
            waiter.join().expect("no panic").expect("it passes");
            assert_eq!(report.failed, Vec::new(), "{report}");
            let running = report.pending.iter().find(|it| it.state == "running").unwrap_or_else(|| panic!("{report}"));
            assert_eq!(running.of.name, "holds up");
            assert!(running.of.line.contains("flight_recorder.rs") && running.ns > 0, "{running:?}");
            let waits = report.pending.iter().find(|it| it.of.name == "add").unwrap_or_else(|| panic!("{report}"));
            assert_eq!(waits.of.stream.as_deref(), Some("compute@cpu:0:0"), "{report}");
            assert_eq!(waits.waits_for, ["workers@cpu:0:0"], "{report}");
            assert!(report.to_string().contains("  running: holds up ("), "{report}");
        });
    });
}

#[test]
fn a_panic_that_drops_the_engine_writes() {
    within("a panic of the caller", || {
        let (vm, folder) = recorder(|builder| builder);
        let panics = std::thread::spawn(move || {
            let sum = (&ones(&vm) + 3).expect("a sum");
            sum.wait().expect("it passes");
            assert!(sum.to_vec::<f32>().is_ok(), "a wrong dtype, on purpose");
        });
        assert!(panics.join().is_err());
        assert!(by_name(&written(&folder)).contains_key("add"));
        // Without a panic nothing is written.
        let (vm, folder) = recorder(|builder| builder);
        ones(&vm).wait().expect("it passes");
        vm.shutdown(PATIENCE).expect("all passes");
        assert_eq!(fs::metadata(folder.path().join("t")).expect("a file").len(), 0);
        // And what was written before the program was started anew stays.
        fs::write(folder.path().join("t"), "of the process before").expect("it is written");
        let config = TraceConfig::to_file(folder.path().join("t")).last(LONG);
        let vm = Vm::builder().trace(config).build().expect("an engine");
        ones(&vm).wait().expect("it passes");
        assert_eq!(fs::read(folder.path().join("t")).expect("a file"), b"of the process before");
        vm.write_trace().expect("it is written");
        let bytes = fs::read(folder.path().join("t")).expect("a file");
        assert!(by_name(&bytes).contains_key("fill"), "{} bytes", bytes.len());
    });
}

#[test]
fn what_is_older_is_dropped() {
    within("the last 100 ms", || {
        let trace = Shared::default();
        let config = TraceConfig::to_writer(trace.clone()).last(Duration::from_millis(100));
        let vm = Vm::builder().trace(config).build().expect("an engine");
        let x = ones(&vm);
        x.wait().expect("it passes");
        std::thread::sleep(Duration::from_millis(300));
        (&x + 1).and_then(|sum| sum.wait()).expect("it passes");
        vm.write_trace().expect("it is written");
        let trace = trace.take();
        let found = by_name(&trace);
        assert!(found.contains_key("add") && !found.contains_key("fill"), "{found:?}");
        // The peak of the memory, and whose it was, is told of the whole run.
        let slices = read(&trace).0;
        let owners = slices.iter().filter(|it| it.name == "owner").map(|it| it.arguments["op"].as_str());
        let peaks = slices.iter().filter(|it| it.name == "peak").count();
        assert_eq!((peaks, owners.collect::<Vec<_>>()), (1, vec!["fill", "add"]));
    });
}

#[test]
fn a_trace_that_is_written_all_the_time_has_everything_at_a_call() {
    within("a call", || {
        let trace = Shared::default();
        let vm = Vm::builder().trace(TraceConfig::to_writer(trace.clone())).build().expect("an engine");
        for rounds in 1..20 {
            (&ones(&vm) + 1).and_then(|sum| sum.wait()).expect("it passes");
            vm.write_trace().expect("it is written");
            let bytes = trace.0.lock().expect("nobody panics with it").clone();
            assert_eq!(by_name(&bytes)["add"].len(), rounds);
        }
    });
}

#[test]
fn a_trace_that_cannot_be_written_is_an_error_of_the_call() {
    within("errors", || {
        let reason = |vm: &Vm| match vm.write_trace() {
            Err(Error::NoTrace { file, reason }) => format!("{file}: {reason}"),
            other => panic!("{other:?}"),
        };
        let none = Vm::builder().trace(None).build().expect("an engine");
        assert!(reason(&none).contains("the engine is not traced"));
        for last in [None, Some(LONG)] {
            let full = TraceConfig::to_file("/dev/full");
            let full = last.map_or_else(|| TraceConfig::to_file("/dev/full"), |last| full.last(last));
            let vm = Vm::builder().trace(full).build().expect("an engine");
            ones(&vm).wait().expect("it passes");
            for _ in 0..2 {
                assert!(reason(&vm).starts_with("/dev/full: "), "{last:?}");
            }
            ones(&vm).wait().expect("it goes on");
        }
        // A function of a worker would wait for itself in some modes, so none may.
        let (vm, _folder) = recorder(|builder| builder);
        let (said, says) = channel();
        let x = ones(&vm);
        let inside = vm.clone();
        vm.push("asks", [x.update()], move || Ok(said.send(inside.write_trace())?)).expect("submitted");
        assert!(matches!(says.recv(), Ok(Err(Error::WouldDeadlock { .. }))));
        x.wait().expect("it passes");
        // The engine has ended, and its clones stay.
        let clone = vm.clone();
        vm.shutdown(PATIENCE).expect("all passes");
        assert!(reason(&clone).contains("has ended"));
    });
}

/// Pipes and devices cannot be emptied: they get one trace after the other.
#[test]
fn a_pipe_gets_one_trace_after_the_other() {
    within("a pipe", || {
        let (mut reads, writes) = io::pipe().expect("a pipe");
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writes));
        assert!(Path::new(&path).exists());
        let config = TraceConfig::to_file(&path).last(LONG);
        let vm = Vm::builder().trace(config).build().expect("an engine");
        ones(&vm).wait().expect("it passes");
        for _ in 0..2 {
            vm.write_trace().expect("it is written");
        }
        vm.shutdown(PATIENCE).expect("all passes");
        drop(writes);
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut reads, &mut bytes).expect("its end");
        assert_eq!(Report::of(&Recording::read(&bytes[..]).expect("two traces")).instructions, 2);
    });
}
