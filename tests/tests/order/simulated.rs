//! Simulated devices and the simulated mode: the same results as everywhere, as late as order allows, from one seed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use streamvm::ep::faults::FaultPlan;
use streamvm::{Cause, DType, DeviceId, Error, Mode, Tensor, TimeLimit, Vm};
use streamvm_tests::{block_on, failure_of, no_races, submit, within};

const SIM: DeviceId = DeviceId::sim(0);
const SIM1: DeviceId = DeviceId::sim(1);

fn modes() -> impl Iterator<Item = Mode> {
    [Mode::Threaded, Mode::Inline].into_iter().chain((0..20).map(|seed| Mode::Simulated { seed }))
}

fn vm(mode: Mode) -> Vm {
    Vm::builder().mode(mode).sim_devices(2).build().expect("an engine")
}

#[test]
fn copy_compute_and_copy_back_give_the_values_in_every_mode_and_no_finding() {
    for mode in modes() {
        within("copy, compute, copy back", move || {
            let vm = vm(mode);
            let x = vm.from_slice(&[1.0f32, -2.0, 3.0, -4.0], &[2, 2]).unwrap();
            let on_device = x.to(SIM).unwrap();
            let h = on_device.relu().unwrap();
            let y = (&h + &on_device).unwrap();
            assert_eq!(y.to_vec::<f32>().unwrap(), [2.0, -2.0, 6.0, -4.0], "{mode:?}");
            vm.wait_all().unwrap();
            no_races(&vm);
        });
    }
}

/// Two devices, a chain that goes back and forth, lanes, reused memory.
fn ping_pong(vm: &Vm) -> Vec<f32> {
    let mut x = vm.from_slice(&[1.0f32; 64], &[64]).unwrap().to(SIM).unwrap();
    for round in 0..12 {
        let there = x.to(if round % 2 == 0 { SIM1 } else { SIM }).unwrap();
        let doubled = (&there + &there).unwrap();
        x = doubled.relu().unwrap();
    }
    x.to_vec().unwrap()
}

#[test]
fn devices_wait_for_each_other() {
    for mode in modes() {
        within("ping pong", move || {
            let vm = vm(mode);
            assert_eq!(ping_pong(&vm), [4096.0; 64], "{mode:?}");
            no_races(&vm);
        });
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let vm = vm(Mode::Simulated { seed });
        let log = Arc::new(Mutex::new(Vec::new()));
        let tensors: Vec<Tensor> = (0..4).map(|_| vm.full(DeviceId::cpu(0), DType::F32, &[4], 1.0).unwrap()).collect();
        for number in 0..40 {
            let (log, tensor) = (log.clone(), tensors[number % 4].clone());
            submit(&vm, |b| {
                b.on_lane(number as u32 % 3).call_fn("note", DeviceId::cpu(0), [tensor.read()], move |_| {
                    log.lock().unwrap().push(number);
                    Ok(())
                })
            });
        }
        vm.wait_all().unwrap();
        log.lock().unwrap().clone()
    };
    assert_eq!(run(7), run(7));
    let others: Vec<_> = (0..8).map(run).collect();
    assert!(others.iter().any(|other| *other != others[0]), "seeds draw different orders");
}

#[test]
fn a_function_that_fails_late_poisons_what_reads_it_and_names_its_line() {
    for mode in modes() {
        within("a late failure", move || {
            let vm = vm(mode);
            let x = vm.full(SIM, DType::F32, &[4], 1.0).unwrap();
            let healthy = vm.full(SIM, DType::F32, &[4], 3.0).unwrap();
            submit(&vm, |b| b.call_fn("broken", SIM, [x.update()], |_| Err("no".into())));
            let y = (&x + &x).unwrap();
            let z = y.relu().unwrap();
            for _ in 0..2 {
                let failure = failure_of(z.to_vec::<f32>());
                assert_eq!((failure.what.as_str(), &failure.cause), ("broken", &Cause::Function("no".into())));
                assert!(failure.site.file().ends_with("simulated.rs"), "{failure}");
            }
            assert_eq!(healthy.to_vec::<f32>().unwrap(), [3.0; 4], "independent work completes");
            no_races(&vm);
        });
    }
}

#[test]
fn a_panic_in_a_function_on_a_device_is_a_failure() {
    for mode in modes() {
        within("a late panic", move || {
            let vm = vm(mode);
            let x = vm.full(SIM, DType::F32, &[4], 1.0).unwrap();
            submit(&vm, |b| b.call_fn("panics", SIM, [x.update()], |_| panic!("late")));
            assert_eq!(failure_of(x.wait()).cause, Cause::Panic("late".into()));
        });
    }
}

#[test]
fn a_lost_device_fails_what_is_pending_on_it_and_others_go_on() {
    for mode in modes() {
        within("a lost device", move || {
            let plan = FaultPlan::new();
            let vm = Vm::builder().mode(mode).sim_devices(2).faults(plan.clone()).build().unwrap();
            let x = vm.full(SIM, DType::F32, &[4], 1.0).unwrap();
            let other = vm.full(SIM1, DType::F32, &[4], 2.0).unwrap();
            x.wait().unwrap();
            plan.lose(SIM, "pulled out");
            let y = (&x + &x).unwrap();
            let failure = failure_of(y.wait());
            assert!(matches!(failure.cause, Cause::Device(streamvm::ep::Error::DeviceLost { .. })), "{failure}");
            let refused = y.to_vec::<f32>().unwrap_err().to_string();
            assert!(refused.contains("pulled out"), "{refused}");
            assert_eq!((&other + &other).unwrap().to_vec::<f32>().unwrap(), [4.0; 4]);
        });
    }
}

#[test]
fn futures_and_callbacks_are_told() {
    for mode in modes() {
        within("a future", move || {
            let vm = vm(mode);
            let x = vm.full(SIM, DType::F32, &[4], 1.0).unwrap();
            let ticket = submit(&vm, |b| b.add(&x, &x).map(drop));
            block_on(ticket.future()).unwrap();
            assert!(ticket.is_passed());
        });
    }
}

#[test]
fn a_full_queue_lets_submitters_in_again() {
    for mode in modes() {
        within("back-pressure on a device", move || {
            let vm = Vm::builder().mode(mode).sim_devices(1).max_instructions(8).build().unwrap();
            let mut x = vm.full(SIM, DType::F32, &[4], 0.0).unwrap();
            let one = vm.full(SIM, DType::F32, &[4], 1.0).unwrap();
            for _ in 0..100 {
                x = (&x + &one).unwrap();
            }
            assert_eq!(x.to_vec::<f32>().unwrap(), [100.0; 4]);
        });
    }
}

#[test]
fn a_deadline_and_a_shutdown_end_waits() {
    for mode in modes() {
        within("shutdown", move || {
            let vm = vm(mode);
            let x = vm.full(SIM, DType::F32, &[4], 1.0).unwrap();
            let y = (&x + &x).unwrap();
            TimeLimit(Duration::from_secs(10)).run(|| vm.wait_all()).unwrap();
            drop(y);
            vm.shutdown(Duration::from_secs(10)).unwrap();
            assert!(matches!((&x + &x).map(drop), Err(Error::Shutdown { .. })));
        });
    }
}
