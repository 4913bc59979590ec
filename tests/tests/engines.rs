//! Which engine runs a program: by configuration, by the environment, and what one pool of workers is.

use std::env;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

use streamvm::{DType, DeviceId, Error, InstructionsBuilder, Lane, Mode, Pool, PoolConfig, Priority, Vm};
use streamvm_tests::{CPU, ClosedGate, engines};

const OTHER: DeviceId = DeviceId::cpu(1);
const POOLS: [Pool; 5] = [Pool::Normal, Pool::Urgent, Pool::CopyIn, Pool::CopyOut, Pool::Inline];

/// The name of the thread that a function for `device` and `pool` runs on; "me" is the one that pushes.
fn runs_on(vm: &Vm, device: DeviceId, pool: Pool) -> String {
    let (name, me) = (Arc::new(Mutex::new(String::new())), thread::current().id());
    let found = name.clone();
    let who = move || {
        let (thread, mut found) = (thread::current(), found.lock().unwrap());
        *found = if thread.id() == me { "me".to_owned() } else { thread.name().unwrap_or_default().to_owned() };
        Ok(())
    };
    let ticket = vm.pusher().device(device).pool(pool).push("who", [], who).expect("it is taken");
    ticket.wait().expect("it passed");
    let name = name.lock().unwrap();
    name.clone()
}

/// Which engine it is, by who runs what.
fn kind_of(vm: &Vm) -> &'static str {
    match (runs_on(vm, CPU, Pool::Normal).as_str(), runs_on(vm, CPU, Pool::CopyIn).as_str()) {
        ("me", "me") => "inline",
        (normal, copies) if [normal, copies].iter().all(|name| name.starts_with("workers@cpu:0:0.")) => "shared",
        (normal, copies) if normal.starts_with("workers@cpu:0:0.") && copies.starts_with("workers@cpu:0:") => {
            "per-device"
        }
        _ => "another",
    }
}

#[test]
fn one_pool_runs_the_functions_of_every_device_and_pool() {
    let pools = PoolConfig::new().name("copies").workers(5);
    let vm = Vm::builder()
        .shared_workers(true)
        .cpu_devices(2)
        .pool(Pool::Normal, PoolConfig::new().name("all").workers(1))
        .pool(Pool::CopyIn, pools.clone())
        .pool(Pool::Urgent, pools)
        .build()
        .expect("an engine");
    let before = vm.stats().threads;
    for device in [OTHER, CPU] {
        for pool in POOLS {
            assert_eq!(runs_on(&vm, device, pool), "all.0", "{device} {pool:?}");
        }
    }
    let stats = vm.stats();
    assert_eq!(stats.threads, before + 1, "one worker for all of them");
    let streams: Vec<(String, u64)> = stats.streams.iter().map(|s| (s.stream.to_string(), s.instructions)).collect();
    assert_eq!(streams, [("workers@cpu:0:0".to_owned(), 10)]);
}

#[test]
fn each_device_and_pool_has_workers_of_its_own_elsewhere() {
    let vm = Vm::builder().shared_workers(false).cpu_devices(2).workers(1).build().expect("an engine");
    let mut names: Vec<String> = [CPU, OTHER]
        .into_iter()
        .flat_map(|device| [Pool::Normal, Pool::CopyIn, Pool::CopyOut].map(|pool| runs_on(&vm, device, pool)))
        .collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 6, "{names:?}");
    assert_eq!(runs_on(&vm, CPU, Pool::Urgent), runs_on(&vm, OTHER, Pool::Urgent), "but for the urgent ones");
}

#[test]
fn what_is_urgent_goes_first_on_one_pool() {
    let vm = Vm::builder().shared_workers(true).workers(1).build().expect("an engine");
    let (gate, order) = (ClosedGate::new(), Arc::new(Mutex::new(Vec::new())));
    let held = gate.clone();
    let hold = move || {
        held.pass();
        Ok(())
    };
    vm.push("hold", [], hold).expect("it is taken");
    gate.wait_entered(1);
    let normal = vm.pusher();
    let urgent = normal.pool(Pool::Urgent).priority(Priority::Low);
    for (number, pusher) in [(0, normal), (1, normal), (2, urgent), (3, normal), (4, urgent)] {
        let order = order.clone();
        let note = move || {
            order.lock().unwrap().push(number);
            Ok(())
        };
        pusher.push("note", [], note).expect("it is taken");
    }
    gate.open();
    vm.wait_all().expect("all passed");
    assert_eq!(*order.lock().unwrap(), [2, 4, 0, 1, 3]);
}

/// Lists name devices and lanes of workers; on one pool they compute on any device.
#[test]
fn lists_for_workers_of_any_device_and_lane_give_the_same_on_every_engine() {
    let builders =
        [Vm::builder().mode(Mode::Inline), Vm::builder().shared_workers(true), Vm::builder().shared_workers(false)];
    for (number, builder) in builders.into_iter().enumerate() {
        let vm = builder.cpu_devices(2).build().expect("an engine");
        let token = vm.var();
        for round in 0..20_u16 {
            let _lane = Lane(u32::from(round) % 3).enter();
            let mut builder = InstructionsBuilder::new();
            let mut b = builder.on_workers();
            let x = b.full(OTHER, DType::F32, &[8], f64::from(round)).expect("a fill");
            let y = b.full(CPU, DType::F32, &[8], 1.0).expect("a fill");
            b.push("between", OTHER, [x.read(), y.read(), token.update()], || Ok(()));
            let (z, w) = (b.add(&x, &x).expect("an addition"), b.add(&y, &y).expect("an addition"));
            drop(b);
            vm.submit(builder.finish()).expect("it is taken");
            assert_eq!(z.to_vec::<f32>(), Ok(vec![2.0 * f32::from(round); 8]), "builder {number}");
            assert_eq!(w.to_vec::<f32>(), Ok(vec![2.0; 8]), "builder {number}");
        }
        vm.wait_all().expect("all passed");
        assert_eq!(vm.stats().in_flight, 0, "builder {number}");
    }
}

#[test]
fn a_device_that_is_not_there_is_refused_on_every_engine() {
    for (name, vm) in engines() {
        for pool in [Pool::Normal, Pool::CopyOut] {
            let refused = vm.pusher().device(DeviceId::cpu(7)).pool(pool).push("nowhere", [], || Ok(())).map(drop);
            assert!(matches!(refused, Err(Error::Device { .. })), "{name}: {refused:?}");
        }
    }
}

#[test]
fn mode_and_shared_workers_are_chosen_apart() {
    let kind = |builder: streamvm::VmBuilder| kind_of(&builder.workers(1).build().expect("an engine"));
    assert_eq!(kind(Vm::builder().mode(Mode::Threaded).mode(Mode::Inline)), "inline");
    assert_eq!(kind(Vm::builder().mode(Mode::Inline).shared_workers(true)), "inline");
    assert_eq!(kind(Vm::builder().mode(Mode::Threaded)), "per-device");
    assert_eq!(kind(Vm::builder().shared_workers(true).mode(Mode::Threaded)), "shared");
    assert_eq!(kind(Vm::builder().shared_workers(true).shared_workers(false)), "per-device");
    for shared in [true, false] {
        let vm = Vm::builder().mode(Mode::Simulated { seed: 3 }).shared_workers(shared).workers(2).build();
        let vm = vm.expect("an engine");
        assert_eq!(kind_of(&vm), "inline", "the caller that waits steps it");
        let streams = if shared { 1 } else { 2 };
        assert_eq!((vm.stats().streams.len(), vm.stats().threads), (streams, 0), "shared workers {shared}");
    }
}

/// What the process below prints of the engines that it builds.
const SAYS: &str = "engine: ";

/// Run by the test below in a process of its own, with an engine in its environment.
#[test]
#[ignore = "another test runs it"]
#[allow(clippy::print_stdout, reason = "the test that runs it reads it")]
fn tells_which_engines_it_builds() {
    let builders = [Vm::builder(), Vm::builder().shared_workers(true), Vm::builder().mode(Mode::Inline)];
    for builder in builders {
        let said = builder.workers(1).build().map_or_else(|error| error.to_string(), |vm| kind_of(&vm).to_owned());
        println!("\n{SAYS}{said}");
    }
}

/// The engines of a process with this in its environment.
fn engines_with(variable: Option<&str>) -> Vec<String> {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(["--exact", "engines::tells_which_engines_it_builds", "--ignored", "--nocapture"]);
    command.env_remove("STREAMVM_ENGINE");
    variable.into_iter().for_each(|value| _ = command.env("STREAMVM_ENGINE", value));
    let output = command.output().expect("it runs");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{text}");
    text.lines().filter_map(|line| line.strip_prefix(SAYS)).map(str::to_owned).collect()
}

#[test]
fn the_environment_names_the_engine_of_who_does_not_say() {
    for (variable, expected) in [
        (None, "per-device"),
        (Some(""), "per-device"),
        (Some("inline"), "inline"),
        (Some("shared"), "shared"),
        (Some("per-device"), "per-device"),
    ] {
        assert_eq!(engines_with(variable), [expected, "shared", "inline"], "{variable:?}");
    }
    let wrong = engines_with(Some("naive"));
    assert_eq!(wrong[1..], ["shared", "inline"], "what is said in code is not looked up");
    for part in ["STREAMVM_ENGINE is \"naive\"", "inline, shared or per-device"] {
        assert!(wrong[0].contains(part), "{wrong:?}");
    }
}
