//! Priorities of lanes: which stream of a CPU a free thread takes. Decided by the order in which functions are called, never by time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use streamvm::program::CompileOptions;
use streamvm::{DType, InstructionsBuilder, Lane, Priority, Vm};
use streamvm_tests::{CPU, ClosedGate, PATIENCE, within};

const LOW: Lane = Lane(1);
const NORMAL: Lane = Lane(2);
const HIGH: Lane = Lane(3);

/// The lane on which the only thread is held.
const HELD: Lane = Lane(9);

fn engine() -> Vm {
    let builder = Vm::builder().cpu_threads(1);
    builder.lane_priority(LOW, Priority::Low).lane_priority(HIGH, Priority::High).build().expect("an engine")
}

/// Calls a function on a lane of the CPU. Does not wait for it.
fn call(vm: &Vm, lane: Lane, function: impl FnOnce() + Send + 'static) {
    let mut builder = InstructionsBuilder::new();
    builder.on_lane(lane.0).host_fn("function", CPU, move || {
        function();
        Ok(())
    });
    vm.submit(builder.finish()).expect("it is taken");
}

/// Holds the only thread of the engine until the gate is opened.
fn hold(vm: &Vm) -> ClosedGate {
    let (gate, (begun, begins)) = (ClosedGate::new(), mpsc::channel());
    let held = gate.clone();
    call(vm, HELD, move || {
        begun.send(()).expect("the test waits");
        held.pass();
    });
    begins.recv_timeout(PATIENCE).expect("the thread begins");
    gate
}

#[test]
fn a_free_thread_takes_the_lane_of_the_highest_priority() {
    within("priorities of lanes", || {
        let vm = engine();
        let (gate, order) = (hold(&vm), Arc::new(Mutex::new(Vec::new())));
        for lane in [LOW, NORMAL, HIGH] {
            let order = order.clone();
            call(&vm, lane, move || order.lock().expect("no panic").push(lane));
        }
        gate.open();
        vm.wait_all().expect("nothing fails");
        assert_eq!(*order.lock().expect("no panic"), [HIGH, NORMAL, LOW]);
    });
}

#[test]
fn runs_have_the_priority_of_their_lane() {
    within("priorities of runs", || {
        let vm = engine();
        let order = Arc::new(Mutex::new(Vec::new()));
        let called = order.clone();
        let program = vm
            .record("notes", |r| {
                let number = r.feed("number", CPU, DType::F32, &[1])?;
                r.call_fn("note", CPU, [number.read()], move |context| {
                    called.lock().expect("no panic").push(context.reads.get::<f32>(0)?[0]);
                    Ok(())
                })
            })
            .expect("it can be recorded");
        let notes = vm.compile(&program, &[], &CompileOptions::default()).expect("it can be compiled");
        let lanes = [LOW, NORMAL, HIGH];
        let numbers = lanes.map(|lane| vm.from_slice(&[lane.0 as f32], &[1]).expect("a tensor"));
        let gate = hold(&vm);
        for (lane, number) in lanes.iter().zip(&numbers) {
            let _lane = lane.enter();
            notes.run(&[("number", number)]).expect("it is taken");
        }
        gate.open();
        vm.wait_all().expect("nothing fails");
        assert_eq!(*order.lock().expect("no panic"), [HIGH, NORMAL, LOW].map(|lane| lane.0 as f32));
    });
}

/// A thread takes the lane of high priority for 64 instructions at a time, and that of low priority at one of 16 picks.
#[test]
fn a_lane_of_low_priority_does_not_starve() {
    const CALLS: usize = 8_000;
    within("starving", || {
        let vm = engine();
        let (gate, called) = (hold(&vm), Arc::new(AtomicUsize::new(0)));
        let before = Arc::new(AtomicUsize::new(0));
        let (seen, noted) = (called.clone(), before.clone());
        call(&vm, LOW, move || noted.store(seen.load(Ordering::Relaxed), Ordering::Relaxed));
        for _ in 0..CALLS {
            let called = called.clone();
            call(&vm, HIGH, move || _ = called.fetch_add(1, Ordering::Relaxed));
        }
        gate.open();
        vm.wait_all().expect("nothing fails");
        let before = before.load(Ordering::Relaxed);
        assert!(0 < before && before <= 64 * 16, "{before} of {CALLS} calls of high priority came first");
    });
}
