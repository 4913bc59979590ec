//! Functions on workers, in no order but that of what they read and write.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use streamvm::{DeviceId, InstructionsBuilder, Use, Var, Vm};
use streamvm_tests::{Random, engines};

const CPU: DeviceId = DeviceId::cpu(0);

/// A function on workers.
fn push(vm: &Vm, uses: impl IntoIterator<Item = Use>, f: impl FnOnce() -> Result<(), String> + Send + 'static) {
    let mut builder = InstructionsBuilder::new();
    builder.set_workers(true);
    builder.call_fn("f", CPU, uses, move |_| Ok(f()?)).expect("a function");
    vm.submit(builder.finish()).expect("it is taken");
}

#[test]
fn random_functions_give_what_they_give_one_after_the_other() {
    const VARS: usize = 20;
    for (name, vm) in engines() {
        let mut random = Random::new(7, 0);
        let vars: Vec<Var> = (0..VARS).map(|_| vm.var()).collect();
        let values: Arc<Vec<Mutex<f64>>> = Arc::new((0..VARS).map(|i| Mutex::new(i as f64)).collect());
        let mut serial: Vec<f64> = (0..VARS).map(|i| i as f64).collect();
        for _ in 0..2_000 {
            let reads: Vec<usize> = (0..random.below(19)).map(|_| random.below(VARS)).collect();
            let write = random.below(VARS);
            serial[write] = reads.iter().map(|at| serial[*at]).sum::<f64>() / (reads.len() + 1) as f64;
            let uses: Vec<Use> = reads.iter().map(|at| vars[*at].read()).chain([vars[write].write()]).collect();
            let (reads, values) = (reads.clone(), values.clone());
            push(&vm, uses, move || {
                let sum: f64 = reads.iter().map(|at| *values[*at].lock().unwrap()).sum();
                *values[write].lock().unwrap() = sum / (reads.len() + 1) as f64;
                Ok(())
            });
        }
        vm.wait_all().expect("all passed");
        let found: Vec<f64> = values.iter().map(|value| *value.lock().unwrap()).collect();
        assert_eq!(found, serial, "{name}");
        assert_eq!(vm.stats().in_flight, 0, "{name}");
    }
}

#[test]
fn a_write_comes_after_all_reads_before_it_however_many() {
    for (name, vm) in engines() {
        let (var, done) = (vm.var(), Arc::new(AtomicU64::new(0)));
        for round in 0..50 {
            for _ in 0..200 {
                let done = done.clone();
                push(&vm, [var.read()], move || {
                    done.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                });
            }
            let done = done.clone();
            push(&vm, [var.write()], move || {
                let seen = done.load(Ordering::Relaxed);
                if seen == (round + 1) * 200 { Ok(()) } else { Err(format!("round {round}: {seen}")) }
            });
        }
        vm.wait_all().unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn ordered_and_unordered_streams_wait_for_each_other() {
    for (name, vm) in engines() {
        let (var, at) = (vm.var(), Arc::new(AtomicU64::new(0)));
        for step in 0..300 {
            let at = at.clone();
            let f = move || {
                let before = at.fetch_add(1, Ordering::Relaxed);
                if before == step { Ok(()) } else { Err(format!("step {step} after {before}")) }
            };
            if step % 3 == 0 {
                let mut builder = InstructionsBuilder::new();
                builder.set_lane((step % 2) as u32);
                builder.call_fn("ordered", CPU, [var.update()], move |_| Ok(f()?)).expect("a function");
                vm.submit(builder.finish()).expect("it is taken");
            } else {
                push(&vm, [var.update()], f);
            }
            if step % 50 == 0 {
                let mut builder = InstructionsBuilder::new();
                builder.barrier();
                vm.submit(builder.finish()).expect("it is taken");
            }
        }
        vm.wait_all().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(at.load(Ordering::Relaxed), 300, "{name}");
    }
}
