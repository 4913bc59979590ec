//! What pushes do while the queue is full: a worker is told, everybody else waits, up to a deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use streamvm::{Error, Pool, TimeLimit, Var};
use streamvm_tests::{ClosedGate, PATIENCE, threaded};

/// Whoever is a worker is never blocked: it may push as much again as the queue holds, and is told then.
#[test]
fn a_function_that_pushes_past_the_overdraft_is_told_that_it_would_block() {
    const MOST: usize = 4;
    for (name, builder) in threaded() {
        let vm = Arc::new(builder.max_instructions(MOST as u64).build().expect("an engine"));
        let (v, ran) = (Var::new(), Arc::new(AtomicU64::new(0)));
        let (inner, var, count, (tell, told)) = (Arc::downgrade(&vm), v.clone(), ran.clone(), channel());
        let ticket = vm.push("pushes", [v.update()], move || {
            let vm = inner.upgrade().ok_or("the engine is there while it is used")?;
            let step = move |count: &Arc<AtomicU64>| {
                count.fetch_add(1, Ordering::Relaxed);
                Ok(())
            };
            let of_operator = count.clone();
            let operator = vm.operator("operator", [var.update()], move || step(&of_operator));
            let push = || {
                let count = count.clone();
                vm.push("behind", [var.update()], move || step(&count)).map(drop)
            };
            // None of them runs before this has.
            let taken = (0..100).take_while(|_| push().is_ok()).count();
            let mut bulk = vm.bulk(3);
            bulk.push("gathered", [var.update()], || Ok(()))?;
            let refused = [
                push(),
                vm.push_operator(&operator).map(drop),
                vm.push_async("later", [var.update()], drop).map(drop),
                bulk.flush().map(drop),
                vm.delete(&var, || ()).map(drop),
            ];
            Ok(tell.send((taken, refused)).map_err(|_| "the test listens")?)
        });
        let (taken, refused) = told.recv_timeout(PATIENCE).expect("it ran");
        // It is one of the twice as many itself.
        assert_eq!(taken, 2 * MOST - 1, "{name}");
        let full = |error: &Result<(), Error>| matches!(error, Err(Error::WouldBlock { instructions: 8, .. }));
        assert!(refused.iter().all(full), "{name}: {refused:?}");
        assert_eq!((ticket.expect("it is taken").wait(), vm.wait_all()), (Ok(()), Ok(())), "{name}");
        assert_eq!(ran.load(Ordering::Relaxed), taken as u64, "{name}: what was refused did not run");
        vm.push("after", [v.update()], || Ok(())).expect("it was not deleted").wait().expect("it passed");
    }
}

/// While the queue is full and nothing passes.
#[test]
fn every_call_that_pushes_gives_up_at_the_deadline() {
    const SHORT: Duration = Duration::from_millis(5);
    for (name, builder) in threaded() {
        let (vm, gate) = (builder.max_instructions(2).build().expect("an engine"), ClosedGate::new());
        let (v, ran) = (vm.var(), Arc::new(AtomicU64::new(0)));
        for _ in 0..2 {
            let held = gate.clone();
            let hold = move || {
                held.pass();
                Ok(())
            };
            vm.push("held", [v.update()], hold).expect("it is taken");
        }
        let count = || {
            let ran = ran.clone();
            move || _ = ran.fetch_add(1, Ordering::Relaxed)
        };
        let counts = || {
            let count = count();
            move || {
                count();
                Ok(())
            }
        };
        let (of_operator, of_handle) = (ran.clone(), ran.clone());
        let operator = vm.operator("operator", [v.read()], move || {
            of_operator.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        let calls: [&dyn Fn() -> Result<(), Error>; 9] = [
            &|| vm.push("push", [], counts()).map(drop),
            &|| vm.pusher().pool(Pool::Urgent).push("another pool", [v.read()], counts()).map(drop),
            &|| {
                let ran = of_handle.clone();
                vm.push_async("later", [], move |_| _ = ran.fetch_add(1, Ordering::Relaxed)).map(drop)
            },
            &|| vm.push_operator(&operator).map(drop),
            &|| vm.bulk(1).push("full", [], counts()),
            &|| {
                let mut bulk = vm.bulk(2);
                bulk.push("gathered", [], counts())?;
                bulk.flush().map(drop)
            },
            &|| vm.delete(&v, count()).map(drop),
            &|| v.wait(),
            &|| TimeLimit(SHORT).run(|| v.wait()),
        ];
        for (place, call) in calls.into_iter().enumerate() {
            let _guard = TimeLimit(SHORT).enter();
            assert!(matches!(call(), Err(Error::Timeout { after, .. }) if after == SHORT), "{name}: call {place}");
        }
        gate.open();
        assert_eq!((v.wait(), vm.wait_all()), (Ok(()), Ok(())), "{name}");
        assert_eq!(ran.load(Ordering::Relaxed), 0, "{name}: what gave up was not pushed");
    }
}
