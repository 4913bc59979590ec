//! Reports of runs in which one thing keeps a stream idle: the report names it first, with its line.

use std::error::Error;
use std::time::Duration;

use streamvm::{DType, DeviceId, InstructionsBuilder, Tensor, TimeLimit, TraceConfig, Vm, VmBuilder};
use streamvm_report::{Cause, Idle, Recording, Report};
use streamvm_tests::{CPU, within};

use super::traces::Shared;

/// How long what keeps the stream idle takes: much longer than the rest.
const LONG: Duration = Duration::from_millis(250);

fn slow() -> Result<(), Box<dyn Error + Send + Sync>> {
    std::thread::sleep(LONG);
    Ok(())
}

fn ones(vm: &Vm) -> Tensor {
    vm.full(CPU, DType::F32, &[1_000], 1.0).expect("a tensor")
}

/// The report of a run, and its longest cause of idle time on the stream of computations.
fn report(build: impl FnOnce(VmBuilder) -> VmBuilder, work: impl FnOnce(&Vm) + Send + 'static) -> (Report, Idle) {
    let trace = Shared::default();
    let vm = build(Vm::builder()).trace(TraceConfig::to_writer(trace.clone())).build().expect("an engine");
    within("the run", move || {
        work(&vm);
        vm.shutdown(Duration::from_secs(60)).expect("all passes");
    });
    let report = Report::of(&Recording::read(&trace.take()[..]).expect("a trace"));
    for it in &report.streams {
        let idle = it.waiting_ns + it.not_submitted_ns + it.host_waits_ns + it.held_ns + it.late_ns;
        assert_eq!(it.busy_ns + idle, report.total_ns, "{it:?}");
    }
    let longest = report.idle.iter().find(|it| it.stream == "compute@cpu:0:0").expect("it was idle").clone();
    assert!(u128::from(longest.ns) > LONG.as_nanos() / 2, "{report}");
    (report, longest)
}

/// Whether a place is in the line of this file that has the mark.
#[track_caller]
fn is_marked(place: Option<&String>, mark: &str) {
    let line = include_str!("reports.rs").lines().position(|line| line.ends_with(&format!("// {mark}")));
    let line = line.expect("the mark") + 1;
    let place = place.expect("a place");
    assert!(place.contains(&format!("reports.rs:{line}:")), "{place} is not line {line}, {mark}");
}

#[test]
fn a_late_submission() {
    let (report, longest) = report(
        |builder| builder,
        |vm| {
            let x = ones(vm);
            std::thread::sleep(LONG);
            (&x + &x).expect("a sum"); // late submission
        },
    );
    assert_eq!(longest.cause, Cause::NotSubmitted, "{report}");
    is_marked(longest.at.as_ref(), "late submission");
}

#[test]
fn a_host_that_waits_in_the_middle() {
    let (report, longest) = report(
        |builder| builder,
        |vm| {
            let (x, y) = (ones(vm), ones(vm));
            vm.push("slow", [y.update()], slow).expect("it is submitted"); // slow function
            y.wait().expect("it passes"); // host wait
            (&x + &x).expect("a sum");
        },
    );
    assert_eq!(longest.cause, Cause::HostWaited, "{report}");
    is_marked(longest.at.as_ref(), "host wait");
    let of = longest.of.expect("what it waited for");
    assert_eq!(of.name, "slow");
    is_marked(Some(&of.line), "slow function");
    let longest = &report.critical_path.groups[0];
    assert_eq!(longest.of.name, "slow", "{report}");
    assert!(longest.would_save_ns > report.total_ns / 2, "{report}");
}

#[test]
fn a_slow_copy() {
    let (report, longest) = report(
        |builder| builder,
        |vm| {
            let x = ones(vm);
            vm.push("slow copy", [x.update()], slow).expect("it is submitted"); // slow copy
            (&x + &x).expect("a sum");
        },
    );
    assert_eq!(longest.cause, Cause::Waited, "{report}");
    let of = longest.of.expect("what it waited for");
    assert_eq!(of.name, "slow copy", "{report}");
    is_marked(Some(&of.line), "slow copy");
}

#[test]
fn a_full_queue() {
    let (report, longest) = report(
        |builder| builder.max_instructions(2),
        |vm| {
            let (x, y) = (ones(vm), ones(vm));
            vm.push("slow", [y.update()], slow).expect("it is submitted");
            vm.push("next", [y.update()], || Ok(())).expect("it is submitted");
            (&x + &x).expect("a sum"); // no room
        },
    );
    assert_eq!((longest.cause, longest.of), (Cause::NoRoom, None), "{report}");
    is_marked(longest.at.as_ref(), "no room");
}

#[test]
fn too_little_memory() {
    const BYTES: usize = 1 << 20;
    let (report, longest) = report(
        |builder| builder.cpu_memory_limit(5 * BYTES as u64 / 2),
        |vm| {
            let big = || vm.full(CPU, DType::U8, &[BYTES], 1);
            let (x, y) = (big().expect("a tensor"), big().expect("a tensor"));
            // Takes the other tensor with it until it is over.
            let held = y.clone();
            vm.push("slow", [x.update(), y.read()], move || {
                let _held = &held;
                slow()
            })
            .expect("it is submitted");
            drop(y);
            (&x + &x).expect("there is memory by then"); // no memory
        },
    );
    assert_eq!((longest.cause, longest.of), (Cause::NoMemory, None), "{report}");
    is_marked(longest.at.as_ref(), "no memory");
}

#[test]
fn one_stream_that_has_all_the_work() {
    let (report, _) = report(
        |builder| builder.cpu_devices(2),
        |vm| {
            let (x, y) = (ones(vm), ones(vm));
            for _ in 0..3 {
                vm.push("all the work", [x.update()], || {
                    std::thread::sleep(LONG / 3);
                    Ok(())
                })
                .expect("it is submitted");
            }
            (&(&x + &y).expect("a sum") + &y).expect("a sum");
        },
    );
    let path = &report.critical_path;
    assert_eq!((path.groups[0].of.name.as_str(), path.groups[0].times), ("all the work", 3), "{report}");
    assert!(path.groups[0].ns > report.total_ns / 2, "{report}");
}

#[test]
fn a_host_that_waits_in_vain() {
    let (report, longest) = report(
        |builder| builder,
        |vm| {
            let (x, y) = (ones(vm), ones(vm));
            vm.push("slow", [y.update()], slow).expect("it is submitted");
            let limit = TimeLimit(LONG * 2 / 3).enter();
            y.wait().expect_err("it takes longer"); // in vain
            drop(limit);
            (&x + &x).expect("a sum");
        },
    );
    assert_eq!((longest.cause, longest.of), (Cause::HostWaited, None), "{report}");
    is_marked(longest.at.as_ref(), "in vain");
    let path = &report.critical_path;
    assert_eq!(path.host_ns + path.late_ns + path.ran_ns, report.total_ns, "{report}");
}

#[test]
fn a_tensor_that_two_streams_share_without_need() {
    for reads in [true, false] {
        let (report, longest) = report(
            |builder| builder,
            move |vm| {
                let x = ones(vm);
                let used = if reads { x.read() } else { x.write() };
                vm.push("slow user", [used], slow).expect("it is submitted"); // slow user
                x.fill(2.0).expect("it is submitted");
            },
        );
        assert_eq!(longest.cause, Cause::Overwrites, "{report}");
        let of = longest.of.expect("what it waited for");
        assert_eq!(of.name, "slow user", "{report}");
        is_marked(Some(&of.line), "slow user");
        assert!(report.to_string().contains("waited to overwrite what is used by slow user ("), "{report}");
    }
}

/// A sum that is also written over needs the old elements, and what comes after a barrier shares nothing with what came before.
#[test]
fn only_what_overwrites_is_said_to() {
    for barrier in [true, false] {
        let (report, longest) = report(
            |builder| builder,
            move |vm| {
                let (x, y) = (ones(vm), ones(vm));
                vm.push("slow", [x.update()], slow).expect("it is submitted");
                if barrier {
                    let mut list = InstructionsBuilder::new();
                    list.barrier();
                    vm.submit(list.finish()).expect("it is submitted");
                    y.fill(2.0).expect("it is submitted");
                } else {
                    x.add_assign(&y).expect("it is submitted");
                }
            },
        );
        assert_eq!(longest.cause, Cause::Waited, "{report}");
    }
}

/// The peak has the lines whose tensors were there then, although a later line has more at the end.
#[test]
fn the_owners_of_the_memory_at_its_peak() {
    let (report, _) = report(
        |builder| builder,
        |vm| {
            let small = ones(vm);
            let large: Vec<Tensor> =
                (0..3).map(|_| vm.full(CPU, DType::F32, &[1 << 18], 1.0).expect("a tensor")).collect(); // the owner
            let sum = (&large[0] + &large[1]).expect("a sum"); // the second
            drop((large, sum));
            std::thread::sleep(LONG);
            let kept: Vec<Tensor> = (0..20).map(|_| (&small + &small).expect("a sum")).collect();
            kept[19].wait().expect("it passes");
            let peak = vm.stats().memory[0].allocator.peak_in_use as u64;
            assert!(peak >= 4 << 20, "{peak}");
        },
    );
    let [memory] = &report.memory[..] else { panic!("{report}") };
    assert_eq!(memory.pool, "device memory on cpu:0");
    let [first, second, ..] = &memory.owners[..] else { panic!("{report}") };
    assert_eq!((first.of.name.as_str(), first.bytes, first.tensors), ("fill", 3 << 20, 3), "{report}");
    is_marked(Some(&first.of.line), "the owner");
    assert_eq!((second.of.name.as_str(), second.bytes, second.tensors), ("add", 1 << 20, 1), "{report}");
    is_marked(Some(&second.of.line), "the second");
    let owned: u64 = memory.owners.iter().map(|owner| owner.bytes).sum();
    assert_eq!((owned, memory.others_bytes), (memory.peak_bytes, 0), "{report}");
    assert!(memory.over_time.iter().any(|(at, bytes)| (Some(*at), *bytes) == (memory.peak_at_ns, memory.peak_bytes)));
    assert_eq!(memory.over_time.last().map(|(_, bytes)| *bytes), Some(0), "{report}");
    let text = report.to_string();
    assert!(text.contains("device memory on cpu:0: 4.0 MiB in use at the peak"), "{text}");
    assert!(text.contains("  3.0 MiB  75 %  fill (") && text.contains(", 3 tensors\n"), "{text}");
}

/// A list that releases a tensor may give its memory to another one: nothing is counted twice. On a device that runs commands later lists are ordered before any of their
/// instructions is passed on.
#[test]
fn memory_that_a_list_passes_on_counts_once() {
    for (device, name) in [(CPU, "device memory on cpu:0"), (DeviceId::sim(0), "device memory on sim:0")] {
        let trace = Shared::default();
        let limited = Vm::builder().sim_devices(1).sim_memory_limit(2 << 20).cpu_memory_limit(2 << 20);
        let vm = limited.trace(TraceConfig::to_writer(trace.clone())).build().expect("an engine");
        within("a full device", move || {
            let mut b = InstructionsBuilder::new();
            let first = b.full(device, DType::F32, &[1 << 18], 1.0).expect("a fill");
            let second = b.add(&first, &first).expect("a sum");
            b.release(&first);
            let third = b.mul(&second, &second).expect("a product");
            // Without an heir.
            b.release(&second);
            vm.submit(b.finish()).expect("there is memory for two").wait().expect("it passes");
            assert_eq!(third.to_vec::<f32>().expect("it passes"), vec![4.0; 1 << 18]);
            let pools = vm.stats().memory;
            let pool = pools.iter().find(|pool| pool.place == device.into() && pool.allocator.peak_in_use > 1 << 20);
            assert_eq!(pool.map(|pool| pool.allocator.peak_in_use), Some(2 << 20), "{pools:?}");
            drop((first, second, third));
            vm.shutdown(Duration::from_secs(60)).expect("all passes");
        });
        let report = Report::of(&Recording::read(&trace.take()[..]).expect("a trace"));
        let memory = report.memory.iter().find(|it| it.pool == name).expect("there is a pool");
        let last = memory.over_time.last().map(|(_, bytes)| *bytes);
        assert_eq!((memory.peak_bytes, last), (2 << 20, Some(0)), "{report}");
    }
}
