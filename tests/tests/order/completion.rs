//! Completion of what devices run later, where something goes wrong just then: nobody hangs, and no failure is lost.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use streamvm::ep::faults::FaultPlan;
use streamvm::ep::faults::{Fault, Gate, Point, Rule};
use streamvm::{Cause, DType, DeviceId, Error, Mode, TimeLimit, Vm};
use streamvm_tests::{CPU, ClosedGate, failure_of, on_device, submit, until, within};

const SIM: DeviceId = DeviceId::sim(0);
const SIM1: DeviceId = DeviceId::sim(1);
const SHORT: Duration = Duration::from_millis(30);

fn is_lost(error: &Error) -> bool {
    matches!(error, Error::Failed(failure) if matches!(failure.cause, Cause::Device(streamvm::ep::Error::DeviceLost { .. })))
}

/// A copy was held back for the host when its device was lost, and was waited for before it could be given to the device:
/// nothing was left that would have woken the completion.
#[test]
fn what_reaches_a_lost_device_after_its_loss_passes_too() {
    within("a copy to a lost device", || {
        let plan = FaultPlan::new();
        let vm = Vm::builder().sim_devices(1).faults(plan.clone()).build().expect("an engine");
        let x = on_device(&vm, &[1.0; 8]);
        let there = x.to(SIM).expect("submitted");
        there.neg().and_then(|y| y.wait()).expect("the streams are open");
        let gate = ClosedGate::new();
        submit(&vm, |b| b.call_fn("held", CPU, [x.update()], gate.function()));
        let late = x.to(SIM).expect("it is held back");
        plan.lose(SIM, "pulled out");
        let error = there.neg().and_then(|y| y.wait()).expect_err("the engine hears of it");
        assert!(is_lost(&error), "{error}");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| late.wait());
            std::thread::sleep(SHORT);
            gate.open();
            let error = waiter.join().expect("no panic").expect_err("the device is lost");
            assert!(is_lost(&error), "{error}");
        });
        assert!(vm.wait_all().is_err_and(|error| is_lost(&error)) || vm.wait_all().is_ok());
    });
}

/// A stream cannot be asked how far it is, just when what reads from it on another stream is seen to be over: the reader
/// was taken for fine before the failure that it read was known.
#[test]
fn a_reader_is_not_fine_before_what_it_read_is_known_to_be() {
    for seed in 0..200 {
        let plan = FaultPlan::new();
        plan.add(Rule::new(Point::Call, Fault::Late).named("fails late")).expect("it fits");
        plan.add(Rule::new(Point::Query, Fault::Error).nth(seed % 5)).expect("it fits");
        let mode = if seed % 4 == 0 { Mode::Threaded } else { Mode::Simulated { seed } };
        within("a reader of what failed late", move || {
            let vm = Vm::builder().mode(mode).sim_devices(1).faults(plan).build().expect("an engine");
            let x = vm.full(SIM, DType::F32, &[8], 1.0).expect("a fill");
            x.wait().expect("it passes");
            submit(&vm, |b| b.call_fn("fails late", SIM, [x.update()], |_| Ok(())));
            let reader = {
                let _lane = streamvm::Lane(1).enter();
                x.neg().expect("submitted")
            };
            let failure = failure_of(reader.wait());
            assert_eq!(failure.what, "fails late", "seed {seed}");
        });
    }
}

/// The same for what is in flight on a device that is lost: it passes after what it waits for on another one, so that
/// nobody takes over memory that is still in use.
#[test]
fn what_is_in_flight_on_a_lost_device_passes_after_what_it_waits_for() {
    within("a copy from one device to a lost one", || {
        let plan = FaultPlan::new();
        let gate = Gate::new();
        let held = Rule::new(Point::Fill, Fault::Hold(gate.clone())).device(SIM1).nth(1);
        plan.add(held).expect("it fits");
        let vm = Vm::builder().sim_devices(2).faults(plan.clone()).build().expect("an engine");
        let there = vm.full(SIM1, DType::F32, &[8], 1.0).expect("a fill");
        there.to(SIM).and_then(|here| here.wait()).expect("the streams are open");
        submit(&vm, |b| b.fill(&there, 2.0));
        let copied = there.to(SIM).expect("submitted");
        until("the copy is in flight", || vm.stall_report().to_string().contains("launched  copy"));
        plan.lose(SIM, "pulled out");
        assert!(
            matches!(TimeLimit(SHORT).run(|| copied.wait()), Err(Error::Timeout { after, .. }) if after == SHORT),
            "what it waits for has not passed"
        );
        gate.open();
        let error = copied.wait().expect_err("its device is lost");
        assert!(is_lost(&error), "{error}");
        assert_eq!(there.wait(), Ok(()), "the other device goes on");
    });
}

/// A backend that panics where an instruction begins makes no record after it, and somebody on another stream waits for
/// that record.
#[test]
fn who_waits_for_a_record_that_a_panic_prevents_goes_on() {
    for mode in [Mode::Threaded, Mode::Simulated { seed: 1 }] {
        let plan = FaultPlan::new();
        plan.add(Rule::new(Point::Begin, Fault::Panic).named("never begins")).expect("it fits");
        within("a reader of what never began", move || {
            let builder = Vm::builder().mode(mode).sim_devices(1).detect_races(true).faults(plan);
            let vm = builder.build().expect("an engine");
            let x = vm.full(SIM, DType::F32, &[8], 1.0).expect("a fill");
            {
                let _lane = streamvm::Lane(1).enter();
                x.neg().and_then(|y| y.wait()).expect("the reader's stream is open");
            }
            let mut list = streamvm_tests::list(|b| b.call_fn("never begins", SIM, [x.update()], |_| Ok(())));
            list.append(streamvm_tests::list(|b| b.on_lane(1).call_fn("reads", SIM, [x.read()], |_| Ok(()))));
            let ticket = vm.submit(list).expect("taken");
            let failure = failure_of(ticket.wait());
            assert_eq!((failure.what.as_str(), matches!(failure.cause, Cause::Panic(_))), ("never begins", true));
            // Its waits count as made, so nothing after it may look unordered.
            submit(&vm, |b| b.fill(&x, 3.0));
            assert_eq!(x.to_vec::<f32>(), Ok(vec![3.0; 8]), "a full overwrite heals");
            assert_eq!(vm.races(), []);
        });
    }
}

/// An engine that nobody can wait for any more still sees what is in flight to its end, and lets go of it.
#[test]
fn an_engine_dropped_inside_its_own_function_finishes_what_is_in_flight() {
    within("the function that drops its engine", || {
        let vm = Vm::builder().sim_devices(1).build().expect("an engine");
        let (hand_over, handed_over) = std::sync::mpsc::channel::<Vm>();
        let captured = Arc::new(());
        let kept = captured.clone();
        submit(&vm, |b| {
            b.host_fn("drops its engine", CPU, move || {
                drop(handed_over.recv()?);
                Ok(())
            });
            b.host_fn("in flight", SIM, move || {
                let _kept = &kept;
                Ok(())
            });
            Ok(())
        });
        hand_over.send(vm).expect("the function listens");
        until("its captures are dropped", || Arc::strong_count(&captured) == 1);
    });
}

/// What a call was refused for keeps nothing of its function, however far the device lags behind: the thread that made the call
/// drops the captures, not whoever finds later that it is over.
#[test]
fn captures_of_a_refused_call_do_not_wait_for_the_device() {
    for fault in [Fault::Error, Fault::Panic] {
        within("a refused call behind one that is held", move || {
            let (plan, gate) = (FaultPlan::new(), Gate::new());
            plan.add(Rule::new(Point::Fill, Fault::Hold(gate.clone())).nth(0)).expect("it fits");
            plan.add(Rule::new(Point::Call, fault.clone()).named("refused")).expect("it fits");
            let vm = Vm::builder().sim_devices(1).faults(plan).build().expect("an engine");
            let captured = Arc::new(());
            let kept = captured.clone();
            let ticket = submit(&vm, |b| {
                b.full(SIM, DType::F32, &[1], 0.0)?;
                b.host_fn("refused", SIM, move || {
                    let _kept = &kept;
                    Ok(())
                });
                Ok(())
            });
            until("its captures are dropped", || Arc::strong_count(&captured) == 1);
            assert!(!ticket.is_passed());
            gate.open();
            ticket.wait().expect_err("it was refused");
        });
    }
}

/// While a submitter is blocked, a thread of the engine adds more than the bound, which nobody asked after.
#[test]
fn a_blocked_submitter_hears_of_what_others_added_meanwhile() {
    within("a blocked submitter", || {
        let (plan, held) = (FaultPlan::new(), Gate::new());
        plan.add(Rule::new(Point::Call, Fault::Hold(held.clone())).named("held").nth(0)).expect("it fits");
        let vm = Vm::builder().sim_devices(1).max_instructions(8).faults(plan).build().expect("an engine");
        let vm = Arc::new(vm);
        let gate = ClosedGate::new();
        let adds = {
            let (vm, gate) = (Arc::downgrade(&vm), gate.clone());
            move || {
                gate.pass();
                let vm = vm.upgrade().ok_or("the engine is gone")?;
                for _ in 0..5 {
                    vm.submit(streamvm_tests::list(|b| {
                        b.host_fn("added", SIM, || Ok(()));
                        Ok(())
                    }))?;
                }
                Ok(())
            }
        };
        submit(&vm, |b| {
            b.host_fn("adds", CPU, adds);
            (0..7).for_each(|_| b.host_fn("held", SIM, || Ok(())));
            Ok(())
        });
        std::thread::scope(|scope| {
            let blocked = scope.spawn(|| submit(&vm, |b| b.full(CPU, DType::F32, &[1], 0.0).map(drop)).wait());
            until("the submitter is blocked", || vm.stats().blocked_submitters == 1);
            gate.open();
            until("more is added", || vm.stats().in_flight == 12);
            held.open();
            assert_eq!(blocked.join().expect("no panic"), Ok(()));
        });
    });
}

/// In simulated mode one thread steps at a time, and may be running a function that waits for another thread's submission.
#[test]
fn a_submission_does_not_wait_for_who_steps() {
    within("a function that waits for a submitter", || {
        let vm = Vm::builder().mode(Mode::Simulated { seed: 1 }).build().expect("an engine");
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let receiver = Mutex::new(receiver);
        let entered = ClosedGate::new();
        entered.open();
        let inside = entered.clone();
        let ticket = submit(&vm, |b| {
            b.host_fn("waits", CPU, move || {
                inside.pass();
                receiver.lock().map_err(|_| "poisoned")?.recv()?;
                Ok(())
            });
            Ok(())
        });
        std::thread::scope(|scope| {
            scope.spawn(|| {
                entered.wait_entered(1);
                for _ in 0..20 {
                    submit(&vm, |b| b.full(CPU, DType::F32, &[1], 0.0).map(drop));
                }
                sender.send(()).expect("the function listens");
            });
            assert_eq!(ticket.wait(), Ok(()));
        });
    });
}

#[test]
fn a_full_queue_of_a_stepped_engine_keeps_the_deadline() {
    within("a submitter with a deadline", || {
        let plan = FaultPlan::new();
        plan.add(Rule::new(Point::Call, Fault::Hold(Gate::new()))).expect("it fits");
        let builder = Vm::builder().mode(Mode::Simulated { seed: 1 }).sim_devices(1).max_instructions(1);
        let vm = builder.faults(plan.clone()).build().expect("an engine");
        submit(&vm, |b| {
            b.host_fn("held", SIM, || Ok(()));
            Ok(())
        });
        let more = || streamvm_tests::list(|b| b.full(CPU, DType::F32, &[1], 0.0).map(drop));
        let refused = TimeLimit(SHORT).run(|| vm.submit(more())).map(drop);
        assert!(matches!(refused, Err(Error::Timeout { after, .. }) if after == SHORT));
        assert!(matches!(vm.submit(more()).map(drop), Err(Error::Stalled { .. })));
        plan.stop();
        assert_eq!(vm.wait_all(), Ok(()));
    });
}
