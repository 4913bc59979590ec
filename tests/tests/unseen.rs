//! Failures that nobody asks for are logged: once, and only when nobody can hear of them otherwise.

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use log::Level;
use streamvm::{DType, FnContext, FnError, Mode, Tensor, Vm};
use streamvm_tests::{CPU, ClosedGate, failure_of, logged, on_device, on_logged, submit};

fn refuse(_: &mut FnContext<'_>) -> Result<(), FnError> {
    Err("no luck".into())
}

fn vm() -> Vm {
    assert_eq!(logged(Level::Error, "nothing is called so"), [] as [String; 0], "the log is kept from here on");
    Vm::builder().build().expect("an engine")
}

/// What was logged about the function of this name.
fn about(name: &str) -> Vec<String> {
    logged(Level::Error, name)
}

/// A tensor whose writer, a function of this name, has failed; nobody has asked for it.
fn poisoned(vm: &Vm, name: &'static str) -> Tensor {
    let x = vm.full(CPU, DType::F32, &[4], 1.0).expect("a fill");
    let ticket = submit(vm, |b| b.call_fn(name, CPU, [x.write()], refuse));
    streamvm_tests::until("it has failed", || ticket.is_passed());
    x
}

/// Submits, and lets pass, what makes the engine look for failures that nobody can hear of.
fn goes_on(vm: &Vm) {
    for _ in 0..20 {
        let y = vm.full(CPU, DType::F32, &[1], 0.0).expect("a fill");
        y.wait().expect("it passes");
    }
}

#[test]
fn poison_that_is_dropped_unseen_is_logged_once() {
    let vm = vm();
    let x = poisoned(&vm, "dropped unseen");
    goes_on(&vm);
    assert_eq!(about("dropped unseen"), [] as [String; 0], "its tensor is there, and may be asked");
    drop(x);
    goes_on(&vm);
    let said = about("dropped unseen");
    assert_eq!(said.len(), 1, "{said:#?}");
    for part in ["nobody asked", "no luck", "unseen.rs", "compute@cpu:0:0"] {
        assert!(said[0].contains(part), "{part} is missing in: {}", said[0]);
    }
    goes_on(&vm);
    assert_eq!(failure_of(vm.wait_all()).what, "dropped unseen", "who asks is told all the same");
    drop(vm);
    assert_eq!(about("dropped unseen").len(), 1, "once");
}

#[test]
fn poison_that_somebody_has_seen_is_not_logged() {
    let vm = vm();
    let x = poisoned(&vm, "seen by a waiter");
    assert!(x.wait().is_err());
    drop(x);
    goes_on(&vm);
    drop(vm);
    assert_eq!(about("seen by a waiter"), [] as [String; 0]);
}

#[test]
fn poison_that_another_tensor_carries_on_is_not_dropped() {
    let vm = vm();
    let x = poisoned(&vm, "carried on");
    let y = x.neg().and_then(|y| y.exp()).expect("submitted");
    drop(x);
    goes_on(&vm);
    assert_eq!(about("carried on"), [] as [String; 0]);
    assert_eq!(failure_of(y.wait()).what, "carried on");
    drop((y, vm));
    assert_eq!(about("carried on"), [] as [String; 0]);
}

#[test]
fn poison_that_pending_work_may_carry_on_is_not_dropped_yet() {
    let vm = vm();
    let gate = ClosedGate::new();
    let x = poisoned(&vm, "carried by pending work");
    let y = on_device(&vm, &[1.0; 4]);
    submit(&vm, |b| b.on_lane(1).call_fn("held", CPU, [y.update()], gate.function()));
    // Waits for `y`, so its outcome, the poison of `x`, is not known before the gate opens.
    let z = x.add(&y).expect("submitted");
    drop((x, y));
    let _lane = streamvm::Lane(2).enter();
    goes_on(&vm);
    assert_eq!(about("carried by pending work"), [] as [String; 0]);
    gate.open();
    assert_eq!(failure_of(z.wait()).what, "carried by pending work");
}

#[test]
fn what_nobody_asked_for_by_the_end_is_logged_then() {
    let vm = vm();
    let x = poisoned(&vm, "kept to the end");
    drop(vm);
    assert_eq!(about("kept to the end").len(), 1);
    assert_eq!(failure_of(x.wait()).what, "kept to the end");
}

#[test]
fn failures_with_one_cause_are_one_line() {
    let vm = vm();
    let x = vm.full(CPU, DType::F32, &[4], 1.0).expect("a fill");
    for number in 0..6 {
        let refuse = move |_: &mut FnContext<'_>| Err(if number == 4 { "another cause" } else { "one cause" }.into());
        submit(&vm, |b| b.call_fn("fails often", CPU, [x.write()], refuse));
    }
    drop(vm);
    let said = about("fails often");
    let of =
        ["nor for 3 more like it: ", "this failure: ", "this failure: "].into_iter().zip(["one", "another", "one"]);
    assert_eq!(said.len(), 3, "{said:#?}");
    for ((begin, cause), said) in of.zip(&said) {
        assert!(said.contains(begin) && said.contains(&format!("{cause} cause")), "{said}");
    }
}

/// The message of a failure, of captures that panic and of a trace that cannot be written, each of which the engine logs, holds nobody up even if
/// the logger calls the engine.
#[test]
fn a_logger_may_call_the_engine() {
    const NAME: &str = "the logger calls the engine";

    /// The engine that the logger calls, and a tensor of it.
    type Current = Option<(Weak<Vm>, Tensor)>;

    /// Panics when it is dropped.
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("{NAME}");
        }
    }

    /// Takes the first line, and no more.
    struct Fails(bool);
    impl Write for Fails {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if std::mem::replace(&mut self.0, true) { Err(io::Error::other(NAME)) } else { Ok(bytes.len()) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let current: Arc<Mutex<Current>> = Arc::default();
    let (calls, asked) = (Arc::new(AtomicUsize::new(0)), current.clone());
    let counted = calls.clone();
    on_logged(NAME, move || {
        let Some((vm, x)) = asked.lock().expect("not poisoned").clone() else { return };
        let Some(vm) = vm.upgrade() else { return };
        x.neg().and_then(|y| y.ready().map(drop)).expect("a logger is a caller like others");
        let _ = (vm.stats(), vm.profile(), vm.stall_report().to_string());
        counted.fetch_add(1, Ordering::Relaxed);
    });
    for mode in [Mode::Threaded, Mode::Inline] {
        let vm = Vm::builder().mode(mode).profile(true).record(Fails(false)).build().expect("an engine");
        let (vm, before) = (Arc::new(vm), calls.load(Ordering::Relaxed));
        let x = vm.full(CPU, DType::F32, &[4], 1.0).expect("a fill");
        *current.lock().expect("not poisoned") = Some((Arc::downgrade(&vm), x.clone()));
        let input = poisoned(&vm, NAME);
        let (on_stream, on_workers) = (Panics, Panics);
        let keep = |held: Panics| std::mem::forget(held);
        submit(&vm, |b| {
            b.call_fn("skipped", CPU, [input.read()], move |_| {
                keep(on_stream);
                Ok(())
            })
        });
        vm.push("skipped", [input.read()], move || {
            keep(on_workers);
            Ok(())
        })
        .expect("a push");
        drop(input);
        goes_on(&vm);
        // A thread drops the captures of a function after it has told who waits for it, so the message may come later.
        streamvm_tests::until("the logger is called three times", || calls.load(Ordering::Relaxed) >= before + 3);
        assert_eq!(failure_of(vm.wait_all()).what, NAME);
    }
}
