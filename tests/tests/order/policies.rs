//! Threads that callers choose for streams.

use std::sync::{Arc, Mutex};
use std::thread;

use streamvm::stream::Threads;
use streamvm::{DType, Error, FnContext, InstructionsBuilder, StreamType, Vm};
use streamvm_tests::{CPU, ClosedGate};

/// One thread serves the streams of the device. A function that blocks on a stream with a thread of its own does not hold back the others.
#[test]
fn a_stream_with_its_own_thread_holds_back_no_other() {
    let builder = Vm::builder().cpu_threads(1).stream_threads(CPU, StreamType::PinnedCompute, Threads::Own);
    let vm = builder.build().expect("an engine");
    let (gate, names) = (ClosedGate::new(), Arc::new(Mutex::new(Vec::new())));
    let mut builder = InstructionsBuilder::new();
    for lane in [0, 1] {
        let (gate, names) = (gate.clone(), names.clone());
        let blocks = move |_: &mut FnContext<'_>| {
            names.lock().expect("it is not poisoned").push(thread::current().name().unwrap_or("").to_owned());
            gate.pass();
            Ok(())
        };
        builder.on_lane(lane).on_pinned().call_fn("blocks", CPU, [], blocks).expect("a function");
    }
    let blocked = vm.submit(builder.finish()).expect("it is submitted");
    let x = vm.ones(CPU, DType::F32, &[2]).expect("a tensor");
    let y = x.neg().and_then(|y| y.to_vec::<f32>());
    assert_eq!(y, Ok(vec![-1.0; 2]), "it passes while the gate is closed");
    assert!(!blocked.is_passed());
    gate.open();
    blocked.wait().expect("it ends");
    assert_eq!(*names.lock().expect("it is not poisoned"), ["cpu:0.pinned"; 2], "both lanes have one thread");
}

#[test]
fn threads_that_a_stream_cannot_have_are_refused() {
    let vm = Vm::builder().stream_threads(CPU, StreamType::Compute, Threads::Launching).build().expect("an engine");
    let refused = vm.ones(CPU, DType::F32, &[2]).and_then(|x| x.neg()).expect_err("a CPU has no such thread");
    let words = refused.to_string();
    assert!(matches!(refused, Error::NoStream { .. }) && words.contains("cannot be changed to Launching"), "{words}");
}
