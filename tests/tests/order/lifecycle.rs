//! Starting, stopping, outliving.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use streamvm::ep::faults::FaultPlan;
use streamvm::ep::faults::{Fault, Point, Rule};
use streamvm::{DType, DeviceId, Error, Mode, TimeLimit, Var, Vm};
use streamvm_tests::{CPU, ClosedGate, PATIENCE, block_on, failure_of, on_device, submit, within};

fn vm() -> Vm {
    Vm::builder().build().expect("an engine")
}

fn vm_of(mode: Mode) -> Vm {
    Vm::builder().mode(mode).build().expect("an engine")
}

#[test]
fn many_engines_live_side_by_side() {
    let vms: Vec<Vm> = (0..16).map(|_| vm()).collect();
    let tensors: Vec<_> = vms.iter().enumerate().map(|(i, vm)| on_device(vm, &[i as f32; 8])).collect();
    let sums: Vec<_> = tensors.iter().map(|x| x.add(x).expect("submitted")).collect();
    for (i, sum) in sums.iter().enumerate() {
        assert_eq!(sum.to_vec::<f32>(), Ok(vec![2.0 * i as f32; 8]));
    }
}

#[test]
fn dropping_an_engine_waits_for_what_was_submitted() {
    let done = Arc::new(AtomicUsize::new(0));
    for mode in [Mode::Threaded, Mode::Inline] {
        done.store(0, Ordering::SeqCst);
        let vm = Vm::builder().mode(mode).build().expect("an engine");
        for lane in 0..4 {
            let _lane = streamvm::Lane(lane).enter();
            for _ in 0..50 {
                let done = done.clone();
                submit(&vm, |b| {
                    b.host_fn("count", CPU, move || {
                        done.fetch_add(1, Ordering::SeqCst);
                        Ok(())
                    });
                    Ok(())
                });
            }
        }
        drop(vm);
        assert_eq!(done.load(Ordering::SeqCst), 200, "{mode:?}");
    }
}

#[test]
fn dropping_an_engine_waits_for_work_that_is_held_back() {
    let gate = ClosedGate::new();
    let vm = Vm::builder().capabilities(streamvm::stream::Capabilities::standard().host_waits_only()).build();
    let vm = vm.expect("an engine");
    let token = Var::new();
    let ran = Arc::new(AtomicBool::new(false));
    submit(&vm, |b| b.call_fn("held", CPU, [token.write()], gate.function()));
    let _lane = streamvm::Lane(1).enter();
    let flag = ran.clone();
    submit(&vm, |b| {
        b.call_fn("after", CPU, [token.write()], move |_| {
            flag.store(true, Ordering::SeqCst);
            Ok(())
        })
    });
    let (started, dropping) = channel();
    let dropper = std::thread::spawn(move || {
        started.send(()).expect("the test listens");
        drop(vm);
    });
    dropping.recv().expect("the dropper runs");
    gate.open();
    dropper.join().expect("dropping does not panic");
    assert!(ran.load(Ordering::SeqCst));
}

#[test]
fn shutdown_past_its_deadline_says_so_and_the_work_still_ends_well() {
    let gate = ClosedGate::new();
    let vm = vm();
    let x = on_device(&vm, &[1.0, 2.0]);
    let held = gate.function();
    submit(&vm, |b| {
        b.call_fn("held", CPU, [x.update()], move |context| {
            held(context)?;
            context.writes.take::<f32>(0)?.fill(9.0);
            Ok(())
        })
    });
    let ready = x.ready().expect("submitted");
    let deadline = Duration::from_millis(20);
    assert!(matches!(vm.shutdown(deadline), Err(Error::Timeout { after, .. }) if after == deadline));
    gate.open();
    assert_eq!(block_on(ready), Ok(()));
    assert_eq!(x.wait(), Ok(()));
}

#[test]
fn shutdown_of_an_idle_engine_is_over_before_its_deadline() {
    let vm = vm();
    on_device(&vm, &[1.0]);
    let start = Instant::now();
    assert_eq!(vm.shutdown(PATIENCE), Ok(()));
    assert!(start.elapsed() < PATIENCE / 2);
}

/// "Bad input never panics": the longest duration is no deadline at all.
#[test]
fn the_longest_duration_is_a_deadline_like_any_other() {
    let vm = vm();
    let x = on_device(&vm, &[1.0]);
    let ticket = submit(&vm, |b| b.fill(&x, 1.0));
    assert_eq!(TimeLimit(Duration::MAX).run(|| ticket.wait()), Ok(()));
    assert_eq!(TimeLimit(Duration::MAX).run(|| x.wait()), Ok(()));
    assert_eq!(TimeLimit(Duration::MAX).run(|| vm.wait_all()), Ok(()));
    assert_eq!(vm.shutdown(Duration::MAX), Ok(()));
}

#[test]
fn what_outlives_its_engine_says_shutdown() {
    for mode in [Mode::Threaded, Mode::Inline] {
        let vm = Vm::builder().mode(mode).build().expect("an engine");
        let x = on_device(&vm, &[1.0, 2.0]);
        let host = vm.from_slice(&[1.0f32], &[1]).expect("a host tensor");
        drop(vm);
        assert!(matches!(x.neg().err(), Some(Error::Shutdown { .. })));
        assert!(matches!(x.to_vec::<f32>().err(), Some(Error::Shutdown { .. })));
        assert!(matches!(host.to(CPU).err(), Some(Error::Shutdown { .. })));
        assert_eq!(x.wait(), Ok(()), "what it waited for has passed");
        drop((x, host));
    }
}

#[test]
fn a_failure_can_be_asked_for_after_the_engine_is_gone() {
    let vm = vm();
    let x = on_device(&vm, &[1.0]);
    submit(&vm, |b| b.call_fn("sour", CPU, [x.write()], |_| Err("no luck".into())));
    drop(vm);
    assert_eq!(failure_of(x.wait()).what, "sour");
}

#[test]
fn a_future_made_after_the_engine_is_gone_is_ready() {
    let vm = vm();
    let x = on_device(&vm, &[1.0]);
    let before = x.ready().expect("submitted");
    drop(vm);
    assert_eq!(block_on(before), Ok(()));
    assert_eq!(block_on(x.ready().expect("submitted")), Ok(()));
}

/// A variable keeps what became of its last write, whatever the engine was.
#[test]
fn a_variable_can_be_waited_for_after_the_engine_is_gone() {
    for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 1 }] {
        let vm = Vm::builder().mode(mode).build().expect("an engine");
        let (fine, counted, sour, unused) = (vm.var(), Var::counted(), vm.var(), Var::new());
        let gone = vm.var();
        for var in [&fine, &counted, &gone] {
            vm.push("writes", [var.write()], || Ok(())).expect("it is taken");
        }
        submit(&vm, |b| b.call_fn("writes on a stream", CPU, [counted.update()], |_| Ok(())));
        vm.push("sour", [sour.write()], || Err("no luck".into())).expect("it is taken");
        vm.delete(&gone, || ()).expect("it is there");
        let before = sour.ready().expect("it is submitted");
        drop(vm);
        for _ in 0..2 {
            assert_eq!((fine.wait(), counted.wait(), unused.wait()), (Ok(()), Ok(()), Ok(())), "{mode:?}");
            assert_eq!((counted.version(), gone.wait()), (Some(2), Ok(())), "{mode:?}");
            assert_eq!(failure_of(sour.wait()).what, "sour", "{mode:?}");
            assert_eq!(failure_of(block_on(sour.ready().expect("it is submitted"))).what, "sour", "{mode:?}");
            assert_eq!(block_on(fine.ready().expect("it is submitted")), Ok(()), "{mode:?}");
        }
        assert_eq!(failure_of(block_on(before)).what, "sour", "{mode:?}");
        let (sender, outcome) = channel();
        sour.on_passed(move |result| sender.send(result).expect("it is heard")).expect("it is submitted");
        assert_eq!(failure_of(outcome.recv_timeout(PATIENCE).expect("it is called")).what, "sour", "{mode:?}");
        // Another engine takes the variable of none that lives.
        let next = vm_of(mode);
        assert!(next.push("another engine", [fine.write()], || Ok(())).is_err(), "{mode:?}");
    }
}

/// A thread that waits for a variable while another thread drops the engine gets the outcome of the write.
#[test]
fn an_engine_that_goes_while_a_variable_is_waited_for_leaves_its_outcome() {
    let (vm, gate) = (vm(), ClosedGate::new());
    let (var, held) = (vm.var(), gate.clone());
    let sours = move || {
        held.pass();
        Err("no luck".into())
    };
    vm.push("sour", [var.write()], sours).expect("it is taken");
    gate.wait_entered(1);
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..3).map(|_| scope.spawn(|| var.wait())).collect();
        scope.spawn(move || drop(vm));
        std::thread::sleep(Duration::from_millis(5));
        gate.open();
        for waiter in waiters {
            assert_eq!(failure_of(waiter.join().expect("it does not panic")).what, "sour");
        }
    });
}

#[test]
fn a_callback_made_after_the_engine_is_gone_runs_on_a_thread_of_its_own() {
    let vm = vm();
    let (x, sour) = (on_device(&vm, &[1.0]), on_device(&vm, &[1.0]));
    submit(&vm, |b| b.call_fn("sour", CPU, [sour.write()], |_| Err("no luck".into())));
    drop(vm);
    x.on_passed(|_| panic!("this thread is not its caller's")).expect("submitted");
    for (tensor, fails) in [(&x, false), (&sour, true)] {
        let (sender, outcome) = channel();
        let tell =
            move |result: Result<(), Error>| sender.send((std::thread::current().id(), result)).expect("it is heard");
        tensor.on_passed(tell).expect("submitted");
        let (thread, result) = outcome.recv_timeout(PATIENCE).expect("it is called");
        assert_ne!(thread, std::thread::current().id());
        assert_eq!(result.is_err(), fails);
    }
}

#[test]
fn a_thread_of_an_engine_does_not_wait_for_one_that_is_gone_either() {
    let (vm, other) = (vm(), vm());
    let x = on_device(&other, &[1.0]);
    let found_on_a_thread_of_an_engine = || {
        let (x, (sender, found)) = (x.clone(), channel());
        submit(&vm, |b| {
            b.host_fn("wait", CPU, move || {
                sender.send(x.wait()).expect("it is heard");
                Ok(())
            });
            Ok(())
        });
        found.recv_timeout(PATIENCE).expect("it runs")
    };
    assert!(matches!(found_on_a_thread_of_an_engine(), Err(Error::WouldDeadlock { .. })));
    drop(other);
    assert!(matches!(found_on_a_thread_of_an_engine(), Err(Error::WouldDeadlock { .. })));
    assert_eq!(x.wait(), Ok(()));
}

#[test]
fn what_never_passes_says_shutdown_once_the_engine_is_gone() {
    let vm = Vm::builder().mode(Mode::Simulated { seed: 1 }).build().expect("an engine");
    let (x, (sender, handles)) = (on_device(&vm, &[1.0]), channel());
    vm.push_async("open", [x.update()], move |handle| sender.send(handle).expect("it is kept")).expect("it is taken");
    assert!(TimeLimit(Duration::from_millis(1)).run(|| vm.wait_all()).is_err());
    let handle = handles.try_recv().expect("it was called");
    drop(vm);
    assert!(matches!(x.wait(), Err(Error::Shutdown { .. })));
    drop(handle);
}

/// Whoever has nothing but tensors finds an engine that ends at any moment: what it submits is taken or refused, and its waits end.
#[test]
fn an_engine_ends_while_others_submit_and_wait_by_its_tensors() {
    for round in 0..100 {
        let vm = vm();
        let x = on_device(&vm, &[1.0; 4]);
        let start = Arc::new(std::sync::Barrier::new(3));
        let callers: Vec<_> = (0..2)
            .map(|_| {
                let (mut sum, start) = (x.clone(), start.clone());
                std::thread::spawn(move || {
                    start.wait();
                    loop {
                        match sum.add(&sum) {
                            Ok(next) => sum = next,
                            Err(error) => break (error, sum.wait()),
                        }
                    }
                })
            })
            .collect();
        start.wait();
        (0..round % 10).for_each(|_| std::thread::yield_now());
        drop(vm);
        for caller in callers {
            assert!(
                matches!(caller.join().expect("it does not panic"), (Error::Shutdown { .. }, Ok(()))),
                "round {round}"
            );
        }
        assert_eq!(x.wait(), Ok(()));
    }
}

#[test]
fn a_submitter_that_waits_for_room_is_told_of_the_shutdown() {
    let gate = ClosedGate::new();
    let vm = Vm::builder().max_instructions(2).build().expect("an engine");
    let x = on_device(&vm, &[1.0]);
    submit(&vm, |b| b.call_fn("held", CPU, [], gate.function()));
    submit(&vm, |b| b.call_fn("behind", CPU, [], |_| Ok(())));
    let blocked = std::thread::spawn(move || x.neg().map(drop));
    streamvm_tests::until("the submitter is blocked", || vm.stats().blocked_submitters == 1);
    assert!(matches!(vm.shutdown(Duration::from_millis(5)), Err(Error::Timeout { .. })));
    assert!(matches!(
        within("the blocked submitter", move || blocked.join().expect("no panic")),
        Err(Error::Shutdown { .. })
    ));
}

/// Every callback runs, also one that is handed over while the engine ends: the runner publishes a number first and
/// wakes who waits for it then, so whoever saw the number may be faster.
#[test]
fn callbacks_that_were_asked_for_before_a_drop_all_run() {
    for _ in 0..30 {
        let vm = vm();
        let gate = ClosedGate::new();
        let x = on_device(&vm, &[1.0]);
        // The callback thread is up already, and would end as soon as its queue is closed and empty.
        block_on(x.ready().expect("submitted")).expect("it passes");
        let ticket = submit(&vm, |b| b.call_fn("held", CPU, [x.update()], gate.function()));
        // Sleepers keep the runner busy before it comes to the callback. Those that sleep too late only make the test
        // weaker.
        let sleepers: Vec<_> = (0..8)
            .map(|_| {
                let x = x.clone();
                std::thread::spawn(move || x.wait())
            })
            .collect();
        std::thread::sleep(Duration::from_millis(3));
        let ran = Arc::new(AtomicBool::new(false));
        let flag = ran.clone();
        x.on_passed(move |_| flag.store(true, Ordering::SeqCst)).expect("submitted");
        gate.open();
        while !ticket.is_passed() {
            std::hint::spin_loop();
        }
        drop(vm);
        sleepers.into_iter().for_each(|sleeper| assert_eq!(sleeper.join().expect("no panic"), Ok(())));
        streamvm_tests::until("the callback has run", || ran.load(Ordering::SeqCst));
    }
}

/// A deadline holds for all that shutdown waits for, callbacks included.
#[test]
fn shutdown_keeps_its_deadline_while_a_callback_blocks() {
    let gate = ClosedGate::new();
    let vm = vm();
    let x = on_device(&vm, &[1.0]);
    let callback = (*gate).clone();
    x.on_passed(move |_| callback.pass()).expect("submitted");
    gate.wait_entered(1);
    let (sender, receiver) = channel();
    let shutter = std::thread::spawn(move || sender.send(vm.shutdown(Duration::from_millis(20))));
    let result = receiver.recv_timeout(PATIENCE / 4);
    gate.open();
    shutter.join().expect("no panic").ok();
    assert!(matches!(result, Ok(Err(Error::Timeout { .. }))), "{result:?}");
}

#[test]
fn an_engine_dropped_inside_its_own_function_detaches() {
    let refused = within("the function that drops its engine", || {
        let vm = vm();
        let x = on_device(&vm, &[4.0]);
        let (hand_over, handed_over) = channel::<Vm>();
        submit(&vm, |b| {
            b.call_fn("drops its engine", CPU, [x.update()], move |_| {
                drop(handed_over.recv()?);
                Ok(())
            })
        });
        hand_over.send(vm).expect("the function listens");
        assert_eq!(x.wait(), Ok(()));
        x.neg().err()
    });
    assert!(matches!(refused, Some(Error::Shutdown { .. })));
}

/// Submissions that race with the end of an engine are taken whole, and pass, or are refused.
#[test]
fn what_is_submitted_while_an_engine_ends_passes_or_is_refused() {
    for round in 0..50 {
        let mode = if round % 5 == 4 { Mode::Inline } else { Mode::Threaded };
        within("submitters beside the end of an engine", move || {
            let vm = Vm::builder().mode(mode).max_instructions(64).build().expect("an engine");
            let x = on_device(&vm, &[1.0; 16]);
            std::thread::scope(|scope| {
                for thread in 0..2 {
                    let x = x.clone();
                    scope.spawn(move || {
                        let _lane = streamvm::Lane(thread).enter();
                        let last = std::iter::repeat_with(|| x.neg()).find_map(|taken| match taken {
                            Ok(y) => y.wait().err(),
                            Err(error) => Some(error),
                        });
                        assert!(matches!(last, Some(Error::Shutdown { .. })));
                    });
                }
                streamvm_tests::until("work came", || vm.stats().streams.iter().any(|s| s.instructions > 20));
                drop(vm);
            });
        });
    }
}

#[test]
fn an_engine_dropped_inside_its_own_callback_detaches() {
    within("the callback that drops its engine", || {
        let vm = vm();
        let x = on_device(&vm, &[4.0]);
        let (sender, receiver) = channel();
        x.on_passed(move |_| {
            drop(vm);
            sender.send(()).expect("the test listens");
        })
        .expect("submitted");
        receiver.recv().expect("it ran");
        assert!(matches!(x.neg().err(), Some(Error::Shutdown { .. })));
    });
}

#[test]
fn shutdown_inside_a_function_closes_and_says_that_it_cannot_wait() {
    let vm = vm();
    let (sender, receiver) = channel();
    let x = on_device(&vm, &[4.0]);
    let slot = Arc::new(std::sync::Mutex::new(None));
    let inside = slot.clone();
    let gate = ClosedGate::new();
    let held = gate.function();
    submit(&vm, |b| {
        b.call_fn("shuts its engine down", CPU, [], move |context| {
            held(context)?;
            let vm: Vm = inside.lock().expect("not poisoned").take().expect("handed over");
            sender.send(vm.shutdown(PATIENCE)).expect("the test listens");
            Ok(())
        })
    });
    *slot.lock().expect("not poisoned") = Some(vm);
    gate.open();
    assert!(matches!(receiver.recv(), Ok(Err(Error::WouldDeadlock { .. }))));
    assert!(matches!(x.neg().err(), Some(Error::Shutdown { .. })));
}

/// An engine is never left with work that nobody runs: not even when the thread that submits belongs to another one.
#[test]
fn an_inline_engine_runs_what_the_function_of_another_engine_submits() {
    within("what an inline engine was given", || {
        let inline = Vm::builder().mode(Mode::Inline).build().expect("an engine");
        let threaded = vm();
        let x = on_device(&inline, &[4.0]);
        let (sender, receiver) = channel();
        let submitted = x.clone();
        submit(&threaded, |b| {
            b.call_fn("submits elsewhere", CPU, [], move |_| {
                sender.send(submitted.neg()).expect("the test listens");
                Ok(())
            })
        });
        let y = receiver.recv().expect("it ran").expect("submitted");
        assert_eq!(y.wait(), Ok(()));
        assert_eq!(y.to_vec::<f32>(), Ok(vec![-4.0]));
    });
}

#[test]
fn an_inline_engine_runs_what_its_own_callback_submits() {
    within("what an inline engine was given", || {
        let inline = Vm::builder().mode(Mode::Inline).build().expect("an engine");
        let x = on_device(&inline, &[4.0]);
        let (sender, receiver) = channel();
        let submitted = x.clone();
        x.on_passed(move |_| sender.send(submitted.neg()).expect("the test listens")).expect("submitted");
        let y = receiver.recv().expect("it ran").expect("submitted");
        assert_eq!(y.wait(), Ok(()));
    });
}

#[test]
fn a_stale_handle_is_not_mistaken_for_one_of_a_new_engine() {
    let old = vm();
    let x = on_device(&old, &[1.0]);
    drop(old);
    let new = vm();
    let list = streamvm_tests::list(|b| b.full(CPU, DType::F32, &[1], 0.0).map(drop).and(b.neg(&x).map(drop)));
    assert!(matches!(new.submit(list), Err(Error::Foreign { line: 1, .. })));
}

/// A stream that was opened and never had a job goes with its engine: the device sees its memory and streams come back.
#[test]
fn a_stream_that_was_never_used_goes_with_its_engine() {
    let plan = FaultPlan::new();
    let vm = Vm::builder().sim_devices(1).faults(plan.clone()).build().expect("an engine");
    plan.add(Rule::new(Point::Allocate, Fault::OutOfMemory)).expect("it fits");
    assert!(matches!(vm.full(DeviceId::sim(0), DType::F32, &[8], 1.0).err(), Some(Error::OutOfMemory { .. })));
    drop(vm);
    assert_eq!(Arc::strong_count(&plan), 1, "streams and devices hold the plan");
}
