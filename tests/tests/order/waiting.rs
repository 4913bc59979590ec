//! Waiting: by blocking, with a deadline, by future, by callback; for submissions and for tensors.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use streamvm::{DType, Error, InstructionsBuilder, Mode, Passed, Tensor, TimeLimit, Var, Vm};
use streamvm_tests::{
    CPU, ClosedGate, Gate, PATIENCE, block_on, failure_of, list, on_device, poll_once, submit, until, within,
};

const SHORT: Duration = Duration::from_millis(10);

fn vm() -> Vm {
    Vm::builder().build().expect("an engine")
}

#[test]
fn waiting_ends_when_the_work_has_passed() {
    let vm = vm();
    let gate = ClosedGate::new();
    let x = on_device(&vm, &[1.0]);
    let ticket = submit(&vm, |b| b.call_fn("held", CPU, [x.update()], gate.function()));
    assert!(!ticket.is_passed());
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..3).map(|_| scope.spawn(|| (ticket.wait(), x.wait(), vm.wait_all()))).collect();
        gate.wait_entered(1);
        assert!(!ticket.is_passed());
        gate.open();
        for waiter in waiters {
            assert_eq!(waiter.join().expect("no panic"), (Ok(()), Ok(()), Ok(())));
        }
    });
    assert!(ticket.is_passed());
}

#[test]
fn a_deadline_ends_a_wait_and_the_next_one_succeeds() {
    let vm = vm();
    let gate = ClosedGate::new();
    let x = on_device(&vm, &[1.0]);
    let ticket = submit(&vm, |b| b.call_fn("held", CPU, [x.update()], gate.function()));
    for _ in 0..3 {
        assert!(matches!(TimeLimit(SHORT).run(|| ticket.wait()), Err(Error::Timeout { after, .. }) if after == SHORT));
        assert!(matches!(TimeLimit(SHORT).run(|| x.wait()), Err(Error::Timeout { after, .. }) if after == SHORT));
        assert!(matches!(TimeLimit(SHORT).run(|| vm.wait_all()), Err(Error::Timeout { after, .. }) if after == SHORT));
        assert!(
            matches!(TimeLimit(Duration::ZERO).run(|| ticket.wait()), Err(Error::Timeout { after, .. }) if after == Duration::ZERO)
        );
    }
    gate.open();
    assert_eq!(TimeLimit(PATIENCE).run(|| ticket.wait()), Ok(()));
    assert_eq!(TimeLimit(PATIENCE).run(|| x.wait()), Ok(()));
    assert_eq!(TimeLimit(PATIENCE).run(|| vm.wait_all()), Ok(()));
    assert_eq!(TimeLimit(Duration::ZERO).run(|| x.wait()), Ok(()), "what has passed is not waited for");
}

#[test]
fn a_wait_after_work_on_several_streams_is_for_all_of_them() {
    let vm = vm();
    let gates = [ClosedGate::new(), ClosedGate::new()];
    let ticket = submit(&vm, |b| {
        for (lane, gate) in gates.iter().enumerate() {
            b.on_lane(lane as u32).call_fn("held", CPU, [], gate.function())?;
        }
        Ok(())
    });
    let called = Arc::new(AtomicUsize::new(0));
    let count = called.clone();
    ticket.on_passed(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let mut future = pin!(ticket.future());
    for gate in &gates {
        assert!(matches!(TimeLimit(SHORT).run(|| ticket.wait()), Err(Error::Timeout { after, .. }) if after == SHORT));
        assert!(poll_once(future.as_mut()).is_pending());
        assert_eq!(called.load(Ordering::SeqCst), 0);
        gate.open();
    }
    assert_eq!(block_on(future), Ok(()));
    assert_eq!(ticket.wait(), Ok(()));
}

#[test]
fn a_future_is_pending_until_the_work_has_passed_and_wakes_its_last_poller() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let vm = vm();
    let gate = ClosedGate::new();
    let x = on_device(&vm, &[1.0]);
    let ticket = submit(&vm, |b| b.call_fn("held", CPU, [x.update()], gate.function()));
    let (mut of_ticket, mut of_tensor) = (pin!(ticket.future()), pin!(x.ready().expect("submitted")));
    let (first, second) = (Arc::new(Count(AtomicUsize::new(0))), Arc::new(Count(AtomicUsize::new(0))));
    for counter in [&first, &second] {
        let waker = Waker::from(counter.clone());
        assert_eq!(of_ticket.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Pending);
    }
    assert!(poll_once(of_tensor.as_mut()).is_pending());
    gate.open();
    streamvm_tests::until("the second waker is woken", || second.0.load(Ordering::SeqCst) == 1);
    assert_eq!(first.0.load(Ordering::SeqCst), 0);
    assert_eq!(poll_once(of_ticket.as_mut()), Poll::Ready(Ok(())));
    assert_eq!(block_on(of_tensor), Ok(()));
}

#[test]
fn a_future_does_not_borrow_the_engine_and_ends_on_another_thread() {
    let gate = ClosedGate::new();
    let vm = vm();
    let future = submit(&vm, |b| b.call_fn("held", CPU, [], gate.function())).future();
    let waiter = std::thread::spawn(move || block_on(future));
    gate.open();
    assert_eq!(waiter.join().expect("no panic"), Ok(()));
}

#[test]
fn callbacks_run_once_on_a_thread_of_their_own_in_the_order_asked_for() {
    let vm = vm();
    let gate = ClosedGate::new();
    let x = on_device(&vm, &[1.0]);
    let ticket = submit(&vm, |b| b.call_fn("held", CPU, [x.update()], gate.function()));
    let (sender, receiver) = channel();
    for number in 0..5 {
        let sender = sender.clone();
        x.on_passed(move |result| sender.send((number, result, std::thread::current().id())).expect("listening"))
            .expect("submitted");
    }
    assert!(receiver.try_recv().is_err());
    gate.open();
    let calls: Vec<_> = (0..5).map(|_| receiver.recv().expect("called")).collect();
    assert_eq!(calls.iter().map(|call| call.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert!(calls.iter().all(|call| call.1 == Ok(()) && call.2 != std::thread::current().id()));
    ticket.on_passed(move |result| sender.send((9, result, std::thread::current().id())).expect("listening"));
    assert_eq!(receiver.recv().map(|call| call.0), Ok(9), "also when it has passed long ago");
}

/// Hole 19: a callback that blocks holds up nobody but other callbacks.
#[test]
fn a_callback_that_blocks_does_not_hold_up_the_engine() {
    let vm = vm();
    let gate = ClosedGate::new();
    let x = on_device(&vm, &[1.0]);
    let door = (*gate).clone();
    x.on_passed(move |_| door.pass()).expect("submitted");
    gate.wait_entered(1);
    let _lane = streamvm::Lane(2).enter();
    let y = x.add(&x).and_then(|y| y.neg()).expect("submitted");
    assert_eq!(y.to_vec::<f32>(), Ok(vec![-2.0]));
    gate.open();
}

/// Hole 19: a waker is user code too. It runs on no thread that others need and under no lock of the engine.
#[test]
fn a_waker_that_blocks_and_asks_the_engine_holds_nobody_up() {
    /// A waker that asks the engine, and then stands at a gate.
    struct Asks(Weak<Vm>, Gate, Mutex<Option<u64>>);
    impl Wake for Asks {
        fn wake(self: Arc<Self>) {
            let in_flight = self.0.upgrade().map(|vm| vm.stats().in_flight);
            *self.2.lock().expect("not poisoned") = in_flight;
            self.1.pass();
        }
    }
    let vm = Arc::new(vm());
    let (gate, held) = (ClosedGate::new(), ClosedGate::new());
    let x = on_device(&vm, &[1.0]);
    submit(&vm, |b| b.call_fn("held", CPU, [x.update()], held.function()));
    let asks = Arc::new(Asks(Arc::downgrade(&vm), gate.clone(), Default::default()));
    let mut future = pin!(x.ready().expect("submitted"));
    let waker = Waker::from(asks.clone());
    assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    held.open();
    gate.wait_entered(1);
    assert_eq!(*asks.2.lock().expect("not poisoned"), Some(0), "it saw the engine as it is");
    let _lane = streamvm::Lane(2).enter();
    let y = x.add(&x).and_then(|y| y.neg()).expect("submitted");
    assert_eq!(y.to_vec::<f32>(), Ok(vec![-2.0]));
    gate.open();
}

#[test]
fn a_callback_that_panics_does_not_hold_up_the_next() {
    let vm = vm();
    let x = on_device(&vm, &[1.0]);
    x.on_passed(|_| panic!("a callback's panic")).expect("submitted");
    assert_eq!(block_on(x.ready().expect("submitted")), Ok(()));
    assert_eq!(x.neg().and_then(|y| y.to_vec::<f32>()), Ok(vec![-1.0]));
}

/// A waker is dropped by a poll with another one, by the drop of the future, and after it was woken.
#[test]
fn a_waker_that_calls_the_engine_when_it_is_dropped_holds_nobody_up() {
    /// Calls the engine when it is dropped, and counts that.
    struct Calls(Tensor, Arc<AtomicUsize>);
    impl Wake for Calls {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Calls {
        fn drop(&mut self) {
            self.0.neg().and_then(|y| y.ready().map(drop)).expect("submitted");
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (vm, held, dropped) = (vm(), ClosedGate::new(), Arc::new(AtomicUsize::new(0)));
    let (x, var) = (on_device(&vm, &[1.0]), Var::new());
    let ticket = submit(&vm, |b| b.call_fn("held", CPU, [x.update(), var.write()], held.function()));
    vm.push("on workers", [x.read(), var.update()], || Ok(())).expect("a push");
    let poll = |future: &mut Passed| {
        let waker = Waker::from(Arc::new(Calls(x.clone(), dropped.clone())));
        assert!(pin!(future).poll(&mut Context::from_waker(&waker)).is_pending());
    };
    let futures = || [x.ready().expect("submitted"), var.ready().expect("used"), ticket.future()];
    let mut given_up = futures();
    given_up.iter_mut().for_each(poll);
    given_up.iter_mut().for_each(poll);
    assert_eq!(dropped.load(Ordering::SeqCst), 3, "by a poll with another one");
    drop(given_up);
    assert_eq!(dropped.load(Ordering::SeqCst), 6, "by the drop of the future");
    let mut kept = futures();
    kept.iter_mut().for_each(poll);
    held.open();
    until("they were woken", || dropped.load(Ordering::SeqCst) == 9);
    assert!(kept.iter_mut().all(|future| poll_once(pin!(future)) == Poll::Ready(Ok(()))));
}

#[test]
fn dropping_a_ticket_or_a_future_cancels_nothing() {
    let vm = vm();
    let gate = ClosedGate::new();
    let x = on_device(&vm, &[1.0]);
    let held = gate.function();
    let ticket = submit(&vm, |b| {
        b.call_fn("held", CPU, [x.update()], move |context| {
            held(context)?;
            context.writes.take::<f32>(0)?[0] = 5.0;
            Ok(())
        })
    });
    drop(ticket.future());
    let mut polled = Box::pin(x.ready().expect("submitted"));
    assert!(poll_once(polled.as_mut()).is_pending());
    drop(polled);
    let _ = ticket;
    gate.open();
    assert_eq!(x.to_vec::<f32>(), Ok(vec![5.0]));
}

#[test]
fn waiting_inside_a_function_would_deadlock_and_says_so() {
    for mode in [Mode::Threaded, Mode::Inline] {
        let vm = Vm::builder().mode(mode).build().expect("an engine");
        let x = on_device(&vm, &[1.0]);
        let inside = x.clone();
        let (sender, receiver) = channel();
        submit(&vm, |b| {
            b.call_fn("waits", CPU, [x.update()], move |_| {
                sender.send([
                    inside.wait(),
                    TimeLimit(SHORT).run(|| inside.wait()),
                    inside.to_vec::<f32>().map(drop),
                ])?;
                Ok(())
            })
        });
        let answers = receiver.recv().expect("it ran");
        assert!(
            answers.iter().all(|answer| matches!(answer, Err(Error::WouldDeadlock { .. }))),
            "{mode:?}: {answers:?}"
        );
        vm.wait_all().expect("it passes");
    }
}

#[test]
fn waiting_for_another_engine_inside_a_function_would_deadlock_as_well() {
    let (mine, other) = (vm(), vm());
    let gate = ClosedGate::new();
    let x = on_device(&other, &[1.0]);
    submit(&other, |b| b.call_fn("held", CPU, [x.update()], gate.function()));
    let (sender, receiver) = channel();
    submit(&mine, |b| b.call_fn("waits", CPU, [], move |_| Ok(sender.send(x.wait())?)));
    assert!(matches!(receiver.recv(), Ok(Err(Error::WouldDeadlock { .. }))));
}

#[test]
fn waiting_inside_a_callback_would_deadlock_and_says_so() {
    let vm = Arc::new(vm());
    let gate = ClosedGate::new();
    let (x, y) = (on_device(&vm, &[1.0]), on_device(&vm, &[1.0]));
    submit(&vm, |b| b.call_fn("held", CPU, [y.update()], gate.function()));
    let (sender, receiver) = channel();
    let inside = vm.clone();
    x.on_passed(move |_| {
        let answers = [y.wait(), inside.wait_all(), TimeLimit(SHORT).run(|| inside.wait_all())];
        drop(inside);
        sender.send(answers).expect("listening");
    })
    .expect("submitted");
    let answers = receiver.recv().expect("it runs");
    assert!(answers.iter().all(|answer| matches!(answer, Err(Error::WouldDeadlock { .. }))), "{answers:?}");
    gate.open();
}

#[test]
fn what_was_never_submitted_cannot_be_waited_for() {
    let mut builder = InstructionsBuilder::new();
    let x = builder.full(CPU, DType::F32, &[1], 0.0).expect("well formed");
    assert!(matches!(x.wait(), Err(Error::NotSubmitted { .. })));
    assert!(matches!(TimeLimit(SHORT).run(|| x.wait()), Err(Error::NotSubmitted { .. })));
    assert!(matches!(x.to_vec::<f32>(), Err(Error::NotSubmitted { .. })));
    assert!(matches!(x.ready().err(), Some(Error::NotSubmitted { .. })));
    assert!(matches!(x.on_passed(|_| ()), Err(Error::NotSubmitted { .. })));
}

#[test]
fn waiting_for_what_nothing_writes_returns_at_once() {
    let vm = vm();
    let gate = ClosedGate::new();
    let host = vm.from_slice(&[1.0f32], &[1]).expect("a host tensor");
    assert_eq!(host.wait(), Ok(()));
    let x = on_device(&vm, &[1.0]);
    submit(&vm, |b| b.call_fn("slow reader", CPU, [x.read()], gate.function()));
    gate.wait_entered(1);
    assert_eq!(x.wait(), Ok(()), "behind a slow reader there is nothing to wait for");
    assert_eq!(block_on(x.ready().expect("submitted")), Ok(()));
}

#[test]
fn wait_all_is_for_everything_submitted_before_it_by_any_thread() {
    let vm = vm();
    let done = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (vm, done) = (&vm, &done);
            scope.spawn(move || {
                let _lane = streamvm::Lane(thread).enter();
                for _ in 0..100 {
                    let done = done.clone();
                    submit(vm, |b| {
                        b.host_fn("count", CPU, move || {
                            done.fetch_add(1, Ordering::SeqCst);
                            Ok(())
                        });
                        Ok(())
                    });
                }
            });
        }
    });
    assert_eq!(vm.wait_all(), Ok(()));
    assert_eq!(done.load(Ordering::SeqCst), 400);
}

/// Hole 17: the caller holds a lock and waits; the function that takes it must run elsewhere.
#[test]
fn a_waiter_that_holds_a_lock_does_not_run_the_function_that_takes_it() {
    within("a wait under a lock", || {
        let vm = vm();
        let gate = ClosedGate::new();
        let lock = Arc::new(std::sync::Mutex::new(0));
        let (inside, held) = (lock.clone(), gate.function());
        let ticket = submit(&vm, |b| {
            b.call_fn("locks", CPU, [], move |context| {
                held(context)?;
                *inside.lock().expect("not poisoned") += 1;
                Ok(())
            })
        });
        let guard = lock.lock().expect("not poisoned");
        gate.open();
        assert!(matches!(TimeLimit(SHORT).run(|| ticket.wait()), Err(Error::Timeout { after, .. }) if after == SHORT));
        drop(guard);
        ticket.wait().expect("it passes");
        assert_eq!(*lock.lock().expect("not poisoned"), 1);
    });
}

#[test]
fn a_failure_reaches_every_way_of_waiting() {
    let vm = vm();
    let token = Var::new();
    let ticket =
        vm.submit(list(|b| b.call_fn("sour", CPU, [token.write()], |_| Err("no luck".into())))).expect("taken");
    let (sender, receiver) = channel();
    ticket.on_passed(move |result| sender.send(result).expect("listening"));
    assert_eq!(failure_of(receiver.recv().expect("called")).what, "sour");
    assert_eq!(failure_of(block_on(ticket.future())).what, "sour");
    assert_eq!(failure_of(ticket.wait()).what, "sour");
    assert_eq!(failure_of(TimeLimit(PATIENCE).run(|| ticket.wait())).what, "sour");
    let behind = submit(&vm, |b| b.call_fn("behind", CPU, [token.read()], |_| Ok(())));
    assert_eq!(failure_of(behind.wait()).what, "sour");
}

#[test]
fn many_waiters_of_many_points_all_wake() {
    within("many waiters", || {
        let vm = vm();
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let vm = &vm;
                scope.spawn(move || {
                    let _lane = streamvm::Lane(thread % 2).enter();
                    for round in 0..300 {
                        let x = vm.full(CPU, DType::F32, &[8], round as f32).expect("a fill");
                        match round % 3 {
                            0 => x.wait().expect("it passes"),
                            1 => TimeLimit(PATIENCE).run(|| x.wait()).expect("it passes"),
                            _ => block_on(x.ready().expect("submitted")).expect("it passes"),
                        }
                    }
                });
            }
        });
    });
}

/// Every call that can block gives up at the limit, of one call or of a scope.
#[test]
fn a_time_limit_bounds_every_blocking_call() {
    let vm = Vm::builder().max_instructions(4).build().expect("an engine");
    let gate = ClosedGate::new();
    let (x, bools) = (on_device(&vm, &[1.0]), vm.from_slice(&[true], &[1]).and_then(|b| b.to(CPU)).expect("a copy"));
    vm.wait_all().expect("it passes");
    let held = submit(&vm, |b| b.call_fn("held", CPU, [x.update(), bools.update()], gate.function()));
    let timed_out = |error: &Error, on: &str| {
        let Error::Timeout { after, waited_for, site, advice: _ } = error else { return false };
        assert!(waited_for.starts_with(on), "{error}");
        *after == SHORT && site.file() == file!()
    };
    let gave_up = |error: &Error| timed_out(error, "held, issued at tests/tests/order/waiting.rs:");
    assert!(TimeLimit(SHORT).run(|| x.to_vec::<f32>()).map(drop).is_err_and(|error| gave_up(&error)));
    assert!(TimeLimit(SHORT).run(|| bools.to_vec::<bool>()).map(drop).is_err_and(|error| gave_up(&error)));
    {
        let _guard = streamvm::TimeLimit(SHORT).enter();
        assert!(x.wait().is_err_and(|error| gave_up(&error)));
        let _guard = streamvm::TimeLimit(SHORT).enter();
        assert!(held.wait().is_err_and(|error| gave_up(&error)));
        let _guard = streamvm::TimeLimit(SHORT).enter();
        assert!(vm.wait_all().is_err_and(|error| gave_up(&error)));
    }
    // Two reads are queued by now; one more instruction fills the queue.
    submit(&vm, |b| b.call_fn("fills the queue", CPU, [], |_| Ok(())));
    let some = || list(|b| b.full(CPU, DType::F32, &[1], 1.0).map(drop));
    assert!(
        TimeLimit(SHORT).run(|| vm.submit(some())).map(drop).is_err_and(|error| timed_out(&error, "the queue is full"))
    );
    for call in [
        &|| x.neg().map(drop) as Result<(), Error>,
        &|| x.to(streamvm::Place::Host).map(drop),
        &|| x.to_vec::<f32>().map(drop),
        &|| vm.full(CPU, DType::F32, &[1], 1.0).map(drop),
        &|| vm.submit(some()).map(drop),
    ] as [&dyn Fn() -> Result<(), Error>; 5]
    {
        let _guard = streamvm::TimeLimit(SHORT).enter();
        assert!(call().is_err_and(|error| timed_out(&error, "the queue is full")));
    }
    assert!(matches!(vm.try_submit(some()), Err(Error::WouldBlock { .. })));
    gate.open();
    assert_eq!(TimeLimit(PATIENCE).run(|| x.to_vec::<f32>()), Ok(vec![1.0]));
    assert_eq!(TimeLimit(PATIENCE).run(|| bools.to_vec::<bool>()), Ok(vec![true]));
    assert!(TimeLimit(PATIENCE).run(|| vm.submit(some())).is_ok());
    vm.wait_all().expect("what gave up was not submitted, and the rest passes");
}

/// Of two functions on workers, or two handles, the one that the wait is for: the other began before it.
#[test]
fn a_timeout_names_what_was_waited_for() {
    for mode in [Mode::Threaded, Mode::Simulated { seed: 1 }] {
        let vm = Vm::builder().mode(mode).workers(2).build().expect("an engine");
        let (handles, kept) = std::sync::mpsc::channel();
        let vars = [vm.var(), vm.var()];
        for (name, var) in ["first", "second"].into_iter().zip(&vars) {
            let handles = handles.clone();
            vm.push_async(name, [var.write()], move |handle| drop(handles.send(handle))).expect("it is taken");
        }
        for (name, var) in ["first", "second"].into_iter().zip(&vars) {
            let late = TimeLimit(Duration::from_millis(300)).run(|| var.wait()).expect_err("nobody uses the handle");
            let Error::Timeout { waited_for, .. } = &late else { panic!("{late}") };
            assert!(waited_for.starts_with(&format!("{name}, issued at tests/tests/order/waiting.rs:")), "{late}");
            assert!(waited_for.contains("its handle was not used yet"), "{late}");
        }
        kept.try_iter().for_each(|handle| handle.complete(Ok(())));
        vm.wait_all().expect("both pass");
    }
    let vm = Vm::builder().workers(2).build().expect("an engine");
    let gate = ClosedGate::new();
    let tensors = [on_device(&vm, &[1.0]), on_device(&vm, &[2.0])];
    for (name, x) in ["one", "other"].into_iter().zip(&tensors) {
        vm.call_fn_on_workers(name, CPU, [x.update()], gate.function()).expect("it is taken");
    }
    gate.wait_entered(2);
    for (name, x) in ["one", "other"].into_iter().zip(&tensors) {
        let late = TimeLimit(SHORT).run(|| x.wait()).expect_err("the gate is closed");
        assert!(matches!(&late, Error::Timeout { waited_for, .. } if waited_for.starts_with(name)), "{late}");
    }
    let queued = vm.push("queued", [], || Ok(())).expect("it is taken");
    let late = TimeLimit(SHORT).run(|| queued.wait()).expect_err("both workers are held");
    let Error::Timeout { waited_for, .. } = &late else { panic!("{late}") };
    assert!(waited_for.starts_with("an instruction of workers@cpu:0:0 has not begun; o"), "{late}");
    assert!(waited_for.contains("tests/tests/order/waiting.rs:") && waited_for.ends_with("is running"), "{late}");
    gate.open();
    vm.wait_all().expect("both pass");
}

/// Memory that is only given back once pending work has passed is waited for up to the deadline.
#[test]
fn waiting_for_memory_ends_at_the_deadline() {
    let vm = Vm::builder().cpu_memory_limit(1 << 20).build().expect("an engine");
    let gate = ClosedGate::new();
    let large = vm.full(CPU, DType::U8, &[1 << 19], 1u8).expect("a fill");
    // The handle that the function keeps goes when it has run.
    let kept = large.clone();
    let held = gate.function();
    submit(&vm, |b| {
        b.call_fn("held", CPU, [large.read()], move |context| {
            held(context)?;
            drop(kept);
            Ok(())
        })
    });
    drop(large);
    let _guard = streamvm::TimeLimit(SHORT).enter();
    assert!(
        matches!(vm.full(CPU, DType::U8, &[1 << 19 | 1], 1u8).map(drop), Err(Error::Timeout { after, .. }) if after == SHORT)
    );
    drop(_guard);
    gate.open();
    vm.full(CPU, DType::U8, &[1 << 19 | 1], 1u8).and_then(|y| y.wait()).expect("it is given back by then");
}

#[test]
fn a_read_that_may_not_be_waited_for_is_not_queued() {
    for mode in [Mode::Threaded, Mode::Inline] {
        let vm = Arc::new(Vm::builder().mode(mode).build().expect("an engine"));
        let x = on_device(&vm, &[1.0]);
        let square = on_device(&vm, &[1.0, 2.0, 3.0, 4.0]).reshape(&[2, 2]).expect("a view");
        let column = square.slice(1, 0..1).expect("a view with gaps, so that a copy would be queued too");
        let count = |vm: &Vm| vm.stats().streams.iter().map(|stream| stream.instructions).sum::<u64>();
        let (inside, (sender, receiver)) = (vm.clone(), channel());
        let ticket = submit(&vm, |b| {
            b.call_fn("reads", CPU, [], move |_| {
                let before = count(&inside);
                let answers = [x.to_vec::<f32>().map(drop), TimeLimit(SHORT).run(|| column.to_vec::<f32>()).map(drop)];
                let queued = count(&inside) - before;
                drop(inside);
                Ok(sender.send((answers, queued))?)
            })
        });
        let (answers, queued) = receiver.recv().expect("it ran");
        assert!(
            answers.iter().all(|answer| matches!(answer, Err(Error::WouldDeadlock { .. }))),
            "{mode:?}: {answers:?}"
        );
        assert_eq!(queued, 0, "{mode:?}: a read that nobody can wait for was queued");
        ticket.wait().expect("it passes");
    }
}
