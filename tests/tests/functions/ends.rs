//! How an engine ends: by [`Vm::close`], which several threads and functions see, by a shutdown, by a drop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use streamvm::{DType, Error, FnError, OnComplete, Var, Vm};
use streamvm_tests::{CPU, ClosedGate, PATIENCE, engines, failure_of, threaded, until, within};

fn counts(counter: &Arc<AtomicU64>) -> impl FnOnce() -> Result<(), FnError> + Send + 'static {
    let counter = counter.clone();
    move || {
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Holds `v` by a function that fails once the gate is open, with a function and a clean-up after it, both counted.
fn hold(vm: &Vm, v: &Var, gate: &ClosedGate, ran: &Arc<AtomicU64>) {
    let held = (*gate).clone();
    let fails = move || {
        held.pass();
        Err("no".into())
    };
    vm.push("held", [v.write()], fails).expect("it is taken");
    vm.push("skipped", [v.update()], || panic!("it must be skipped")).expect("it is taken");
    for _ in 0..50 {
        vm.pusher().clean_up(true).push("clean", [v.update()], counts(ran)).expect("it is taken");
        vm.push("free", [], counts(ran)).expect("it is taken");
    }
    gate.wait_entered(1);
}

#[test]
fn a_closed_engine_refuses_whatever_any_thread_pushes_and_the_next_one_takes_it() {
    for ((name, vm), (_, next)) in engines().into_iter().zip(engines()) {
        let v = vm.var();
        let operator = vm.operator("operator", [v.update()], || Ok(()));
        vm.push("before", [v.write()], || Ok(())).expect("it is taken");
        assert!(!vm.is_closed(), "{name}");
        vm.close();
        vm.close();
        let refused = thread::scope(|scope| {
            let pushes = || {
                let mut bulk = vm.bulk(2);
                bulk.push("gathered", [v.update()], || Ok(())).expect("it is gathered");
                [
                    vm.push("push", [v.update()], || Ok(())).map(drop),
                    vm.push("free", [], || Ok(())).map(drop),
                    vm.push_async("later", [v.update()], |handle| handle.complete(Ok(()))).map(drop),
                    vm.push_operator(&operator).map(drop),
                    bulk.flush().map(drop),
                    vm.delete(&vm.var(), || ()).map(drop),
                    vm.from_slice(&[1.0f32], &[1]).map(drop),
                ]
            };
            scope.spawn(pushes).join().expect("no panic")
        });
        assert!(refused.iter().all(|call| matches!(call, Err(Error::Shutdown { .. }))), "{name}: {refused:?}");
        assert!(vm.is_closed(), "{name}");
        assert_eq!((v.wait(), vm.wait_all(), vm.stats().in_flight), (Ok(()), Ok(()), 0), "{name}");
        assert_eq!(vm.shutdown(PATIENCE), Ok(()), "{name}");

        let w = Var::counted();
        next.push("anew", [w.write()], || Ok(())).expect("it is taken");
        assert_eq!((w.wait(), w.version(), next.is_closed()), (Ok(()), Some(1), false), "{name}");
    }
}

#[test]
fn what_was_pushed_before_an_engine_is_closed_still_runs_and_can_be_waited_for() {
    for (name, builder) in threaded() {
        let (vm, ran, gate) = (builder.build().expect("an engine"), Arc::default(), ClosedGate::new());
        let (v, (sender, handles)) = (vm.var(), channel());
        vm.push_async("later", [], move |handle| sender.send(handle).expect("it is kept")).expect("it is taken");
        let handle: OnComplete = handles.recv().expect("it was called");
        hold(&vm, &v, &gate, &ran);
        vm.close();
        assert!(vm.stats().in_flight >= 50, "{name}: nothing was waited for");
        gate.open();
        let failure = failure_of(v.wait());
        assert_eq!((failure.what.as_str(), ran.load(Ordering::Relaxed) >= 50), ("held", true), "{name}");
        handle.complete(Ok(()));
        assert_eq!((vm.wait_all(), vm.stats().in_flight), (Ok(()), 0), "{name}");
        assert_eq!(ran.load(Ordering::Relaxed), 100, "{name}");
        assert_eq!(failure_of(v.wait()).what, "held", "{name}: also when nothing is left to run");
        assert_eq!(vm.shutdown(PATIENCE), Ok(()), "{name}: its failure was collected");
    }
}

#[test]
fn a_function_at_work_sees_that_its_engine_is_closed() {
    for (name, builder) in threaded() {
        let vm = Arc::new(builder.build().expect("an engine"));
        let (seen, (begins, begun)) = (Arc::clone(&vm), channel());
        let serve = move || {
            begins.send(()).expect("the test listens");
            until("it is closed", || seen.is_closed());
            match seen.push("too late", [], || Ok(())) {
                Err(Error::Shutdown { .. }) => Ok(()),
                other => Err(format!("{:?}", other.map(drop)).into()),
            }
        };
        vm.push("serves until the end", [], serve).expect("it is taken");
        begun.recv().expect("it runs");
        vm.close();
        assert_eq!(vm.wait_all(), Ok(()), "{name}");
    }
}

#[test]
fn a_function_may_close_its_engine() {
    for (name, vm) in engines() {
        let vm = Arc::new(vm);
        let (inner, ran) = (Arc::downgrade(&vm), Arc::default());
        let v = vm.var();
        let close = move || {
            inner.upgrade().ok_or("the engine is there while it is used")?.close();
            Ok(())
        };
        vm.push("closes", [v.write()], close).expect("it is taken");
        // Before or after the end: both are right.
        let taken = vm.push("behind", [v.update()], counts(&ran)).is_ok();
        assert_eq!(vm.wait_all(), Ok(()), "{name}");
        assert_eq!((ran.load(Ordering::Relaxed), vm.is_closed()), (u64::from(taken), true), "{name}");
        assert!(matches!(vm.push("later", [], || Ok(())).map(drop), Err(Error::Shutdown { .. })), "{name}");
    }
}

#[test]
fn who_waits_for_room_is_told_when_the_engine_is_closed() {
    for (name, builder) in threaded() {
        let (vm, gate) = (builder.max_instructions(2).build().expect("an engine"), ClosedGate::new());
        for _ in 0..2 {
            let held = (*gate).clone();
            let pass = move || {
                held.pass();
                Ok(())
            };
            vm.push("held", [], pass).expect("it is taken");
        }
        let vm = Arc::new(vm);
        let pusher = vm.clone();
        let blocked = thread::spawn(move || pusher.push("blocked", [], || Ok(())).map(drop));
        until("it is blocked", || vm.stats().blocked_submitters == 1);
        vm.close();
        assert!(matches!(within(&name, move || blocked.join().expect("no panic")), Err(Error::Shutdown { .. })));
        gate.open();
        assert_eq!(vm.wait_all(), Ok(()));
    }
}

/// Closed before or not, by a shutdown or by a drop.
#[test]
fn clean_ups_after_what_is_held_run_however_the_engine_ends() {
    for (closed, dropped) in [(false, false), (false, true), (true, false), (true, true)] {
        for (name, builder) in threaded() {
            let (vm, ran, gate) = (builder.build().expect("an engine"), Arc::default(), ClosedGate::new());
            hold(&vm, &vm.var(), &gate, &ran);
            if closed {
                vm.close();
            }
            let (door, at_the_end) = ((*gate).clone(), ran.clone());
            let ended = thread::spawn(move || {
                let failure = if dropped {
                    drop(vm);
                    "held".to_owned()
                } else {
                    failure_of(vm.shutdown(PATIENCE)).what.clone()
                };
                (failure, at_the_end.load(Ordering::Relaxed))
            });
            // So that it is nearly always waiting by then.
            thread::sleep(std::time::Duration::from_millis(5));
            assert!(
                !ended.is_finished(),
                "{name}: it ends before what it was given, closed {closed}, dropped {dropped}"
            );
            door.open();
            let (failure, ran) = within(&name, move || ended.join().expect("no panic"));
            assert_eq!((failure.as_str(), ran), ("held", 100), "{name}: closed {closed}, dropped {dropped}");
        }
    }
}

/// Nobody steps it any more, so what lies in its queues goes, and clean-ups are no exception.
#[test]
fn a_stepped_engine_that_ends_early_drops_what_is_queued() {
    for seed in 0..8 {
        let vm = Vm::builder().mode(streamvm::Mode::Simulated { seed }).build().expect("an engine");
        let (v, ran, (sender, handles)) = (vm.var(), Arc::default(), channel());
        vm.push_async("later", [v.write()], move |handle| sender.send(handle).expect("it is kept"))
            .expect("it is taken");
        vm.pusher().clean_up(true).push("clean", [v.update()], counts(&ran)).expect("it is taken");
        if seed % 2 == 0 {
            assert!(matches!(vm.shutdown(PATIENCE), Err(Error::Timeout { .. })), "seed {seed}: a handle is kept");
        } else {
            drop(vm);
        }
        drop((handles.recv().expect("it was called"), v));
        assert_eq!(
            (ran.load(Ordering::Relaxed), Arc::strong_count(&ran)),
            (0, 1),
            "seed {seed}: it is gone, and did not run"
        );
    }
}

/// Callers read results after the close, also of work that runs then, while the queue is full, and where they were blocked by it, but not after the end.
#[test]
fn a_closed_engine_gives_the_results_of_what_it_has_accepted() {
    for (name, vm) in engines() {
        let x = vm.full(CPU, DType::F32, &[2, 3], 2.0).expect("a tensor");
        let (sum, column) = (x.sum(&[]).expect("an op"), x.slice(1, 1..2).expect("a view"));
        let host = sum.to(streamvm::Place::Host).expect("a copy");
        vm.close();
        assert!(matches!(sum.neg(), Err(Error::Shutdown { .. })), "{name}");
        assert_eq!((sum.to_scalar::<f32>(), host.to_scalar::<f32>()), (Ok(12.0), Ok(12.0)), "{name}");
        assert_eq!(column.to_vec::<f32>(), Ok(vec![2.0, 2.0]), "{name}");
        assert_eq!(x.t().expect("a view").to_string(), "[[2.0 2.0]\n [2.0 2.0]\n [2.0 2.0]]", "{name}");
        vm.shutdown(PATIENCE).expect("it ends");
        assert!(matches!(sum.to_vec::<f32>(), Err(Error::Shutdown { .. })), "{name}");
    }
    let vm = Vm::builder().max_instructions(2).build().expect("an engine");
    let x = vm.full(CPU, DType::F32, &[2], 1.0).expect("a tensor");
    x.wait().expect("it passes");
    let gate = ClosedGate::new();
    for _ in 0..2 {
        let held = gate.clone();
        let hold = move || {
            held.pass();
            Ok(())
        };
        vm.push("held", [], hold).expect("it is taken");
    }
    let blocked = thread::spawn({
        let x = x.clone();
        move || x.to_vec::<f32>()
    });
    until("the reader is blocked", || vm.stats().blocked_submitters == 1);
    vm.close();
    assert_eq!(x.to_vec::<f32>(), Ok(vec![1.0; 2]));
    assert_eq!(blocked.join().expect("no panic"), Ok(vec![1.0; 2]));
    gate.open();
}
