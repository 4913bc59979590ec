//! Functions on workers, in no order but that of what they read and write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;

use streamvm::{DeviceId, InstructionsBuilder, Pool, TimeLimit, Use, Vm};
use streamvm_tests::{ClosedGate, PATIENCE, engines};

const CPU: DeviceId = DeviceId::cpu(0);

/// A function on workers.
fn push<'u>(vm: &Vm, uses: impl IntoIterator<Item = Use<'u>>, f: impl FnOnce() -> Result<(), String> + Send + 'static) {
    let mut builder = InstructionsBuilder::new();
    builder.on_workers().call_fn("f", CPU, uses, move |_| Ok(f()?)).expect("a function");
    vm.submit(builder.finish()).expect("it is taken");
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
                builder
                    .on_lane((step % 2) as u32)
                    .call_fn("ordered", CPU, [var.update()], move |_| Ok(f()?))
                    .expect("a function");
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

/// What joins many needs of one instruction is no instruction, and leaves nothing behind in what it ran in.
#[test]
fn instructions_without_a_task_are_counted_whatever_ran_in_their_slots_before() {
    for (name, vm) in engines() {
        for _ in 0..4 {
            let var = vm.var();
            let (gate, first) = (ClosedGate::new(), vm.var());
            let held = gate.clone();
            // Inline, everything has passed when it is read again.
            if name != "inline" && !name.starts_with("seed") {
                push(&vm, [first.write()], move || {
                    held.pass();
                    Ok(())
                });
            }
            (0..20).for_each(|_| push(&vm, [var.read(), first.read()], || Ok(())));
            push(&vm, [var.write()], || Ok(()));
            gate.open();
            vm.wait_all().unwrap_or_else(|error| panic!("{name}: {error}"));
            let tensors: Vec<_> = (0..40).map(|_| vm.from_slice(&[1.0f32], &[1]).expect("a tensor")).collect();
            let mut builder = InstructionsBuilder::new();
            tensors.iter().for_each(|tensor| builder.on_workers().touch(CPU, &[tensor]));
            tensors.iter().for_each(|tensor| builder.on_workers().release(tensor));
            vm.submit(builder.finish()).expect("it is taken").wait().unwrap_or_else(|error| panic!("{name}: {error}"));
            vm.wait_all().unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(vm.stats().in_flight, 0, "{name}");
        }
        vm.shutdown(PATIENCE).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn everything_that_can_run_runs_while_workers_are_idle() {
    const FUNCTIONS: usize = 6;
    for together in [false, true] {
        let vm = Vm::builder().workers(8).build().expect("an engine");
        for _ in 0..20 {
            // Long enough for all to fall asleep.
            std::thread::sleep(std::time::Duration::from_millis(5));
            let (first, gate) = (vm.var(), ClosedGate::new());
            if together {
                push(&vm, [first.write()], || Ok(()));
            }
            let mut builder = InstructionsBuilder::new();
            for _ in 0..FUNCTIONS {
                builder.on_workers().call_fn("held", CPU, [first.read()], gate.function()).expect("a function");
            }
            vm.submit(builder.finish()).expect("it is taken");
            gate.wait_entered(FUNCTIONS);
            gate.open();
            vm.wait_all().expect("all passed");
        }
    }
}

#[test]
fn what_runs_inline_keeps_no_other_successor_to_its_worker() {
    let vm = Vm::builder().workers(2).build().expect("an engine");
    for _ in 0..50 {
        let (first, open, inline) = (vm.var(), ClosedGate::new(), ClosedGate::new());
        let (hold, held) = (open.clone(), inline.clone());
        push(&vm, [first.write()], move || {
            hold.pass();
            Ok(())
        });
        open.wait_entered(1);
        let done = inline.clone();
        vm.push("ordinary", [first.read()], move || {
            done.open();
            Ok(())
        })
        .expect("it is taken");
        // It ends when the other has run.
        let direct = move || {
            held.pass();
            Ok(())
        };
        vm.pusher().pool(Pool::Inline).push("inline", [first.read()], direct).expect("it is taken");
        open.open();
        TimeLimit(PATIENCE).run(|| vm.wait_all()).expect("both passed");
    }
}

#[test]
fn a_list_that_is_too_long_for_workers_is_refused_whole() {
    let vm = Vm::builder().workers(1).build().expect("an engine");
    let list = |length: usize| {
        let mut builder = InstructionsBuilder::new();
        (0..length).for_each(|_| builder.on_workers().call_fn("f", CPU, [], |_| Ok(())).expect("a function"));
        builder.finish()
    };
    let error = vm.submit(list((1 << 20) + 1)).expect_err("it is too long").to_string();
    assert!(
        error.contains("1048577 instructions is too long for workers") && error.contains("at most 1048576"),
        "{error}"
    );
    assert_eq!(vm.stats().in_flight, 0);
    vm.submit(list(20_000)).expect("longer than the queue, let in alone").wait().expect("it passes");
}

/// A function that is asked for gets successors before it passes: whoever asked is told all the same.
#[test]
fn whoever_asked_for_a_function_is_told_though_more_was_pushed_after_it() {
    let vm = Vm::builder().workers(2).build().expect("an engine");
    let (var, gate, (sender, told)) = (vm.var(), ClosedGate::new(), channel());
    let held = gate.clone();
    push(&vm, [var.write()], move || {
        held.pass();
        Ok(())
    });
    gate.wait_entered(1);
    let ready = var.on_passed(move |result| sender.send(result).expect("the test listens"));
    assert_eq!(ready, Ok(()));
    (0..20).for_each(|_| push(&vm, [var.read()], || Ok(())));
    gate.open();
    assert_eq!(told.recv_timeout(PATIENCE), Ok(Ok(())), "the callback of what was held");
    vm.wait_all().expect("all passed");
}
