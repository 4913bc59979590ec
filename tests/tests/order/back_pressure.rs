//! Submitting from several threads and from functions, and the bounds on what is pending.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use streamvm::{DType, Error, FnContext, FnError, Mode, TimeLimit, Var, Vm};
use streamvm_tests::{CPU, ClosedGate, list, on_device, submit, until, within};

fn vm() -> Vm {
    Vm::builder().build().expect("an engine")
}

#[test]
fn several_threads_submit_at_once() {
    for mode in [Mode::Threaded, Mode::Inline] {
        within("four submitters", move || {
            let vm = Vm::builder().mode(mode).build().expect("an engine");
            let total = on_device(&vm, &[0.0]);
            let start = Barrier::new(4);
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let (vm, total, start) = (&vm, &total, &start);
                    scope.spawn(move || {
                        let _lane = streamvm::Lane(thread).enter();
                        start.wait();
                        for round in 0..500 {
                            let ticket = submit(vm, |b| b.call_fn("add one", CPU, [total.update()], add_one));
                            if round % 10 == 0 {
                                ticket.wait().expect("it passes");
                            }
                        }
                    });
                }
            });
            assert_eq!(total.to_vec::<f32>(), Ok(vec![2000.0]), "{mode:?}");
        });
    }
}

fn add_one(context: &mut FnContext<'_>) -> Result<(), FnError> {
    context.writes.take::<f32>(0)?[0] += 1.0;
    Ok(())
}

/// Functions submit while other threads do: nothing is left behind on any engine.
#[test]
fn functions_and_threads_submit_at_once() {
    for mode in [Mode::Threaded, Mode::Inline] {
        within("functions that submit", move || {
            let vm = Vm::builder().mode(mode).build().expect("an engine");
            let total = on_device(&vm, &[0.0]);
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    let (vm, total) = (&vm, &total);
                    scope.spawn(move || {
                        let _lane = streamvm::Lane(thread).enter();
                        for _ in 0..200 {
                            let inside = total.clone();
                            submit(vm, |b| {
                                b.call_fn("submits", CPU, [total.update()], move |context| {
                                    // Order comes from the submission, so what it reads does not matter.
                                    inside.neg().map(drop).or_else(|error| match error {
                                        Error::WouldBlock { .. } => Ok(()),
                                        other => Err(other),
                                    })?;
                                    add_one(context)
                                })
                            });
                        }
                    });
                }
            });
            vm.wait_all().expect("they pass");
            // Again, for what the functions have submitted meanwhile.
            vm.wait_all().expect("they pass");
            assert_eq!(vm.stats().in_flight, 0, "{mode:?}");
            assert_eq!(total.to_vec::<f32>(), Ok(vec![600.0]), "{mode:?}");
        });
    }
}

/// A list is taken as one: no instruction of another thread comes between two of its own on a tensor.
#[test]
fn lists_of_several_threads_do_not_interleave() {
    let vm = vm();
    let x = on_device(&vm, &[0.0]);
    let torn = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 1..=3 {
            let (vm, x, torn) = (&vm, &x, &torn);
            scope.spawn(move || {
                for round in 0..200 {
                    let (value, torn) = ((thread * 1000 + round) as f32, torn.clone());
                    submit(vm, |b| {
                        b.on_lane(thread).fill(x, value)?;
                        b.on_lane(thread + 3).call_fn("check", CPU, [x.read()], move |context| {
                            if context.reads.get::<f32>(0)?[0] != value {
                                torn.fetch_add(1, Ordering::SeqCst);
                            }
                            Ok(())
                        })
                    });
                }
            });
        }
    });
    vm.wait_all().expect("it passes");
    assert_eq!(torn.load(Ordering::SeqCst), 0);
}

#[test]
fn two_threads_with_overlapping_sets_of_variables_do_not_deadlock() {
    within("two threads over two variables", || {
        let vm = Vm::builder().max_instructions(8).build().expect("an engine");
        let (a, b) = (Var::new(), Var::new());
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (vm, a, b) = (&vm, &a, &b);
                scope.spawn(move || {
                    let _lane = streamvm::Lane(thread).enter();
                    let (first, second) = if thread == 0 { (a, b) } else { (b, a) };
                    for _ in 0..1000 {
                        submit(vm, |l| {
                            l.call_fn("both", CPU, [first.write(), second.write(), first.read()], |_| Ok(()))
                        });
                    }
                });
            }
        });
        vm.wait_all().expect("it passes");
    });
}

#[test]
fn try_submit_would_block_while_the_queue_is_full() {
    let vm = Vm::builder().max_instructions(4).build().expect("an engine");
    let gate = ClosedGate::new();
    let nothing = || list(|b| b.call_fn("behind", CPU, [], |_| Ok(())));
    submit(&vm, |b| b.call_fn("held", CPU, [], gate.function()));
    for _ in 0..3 {
        vm.try_submit(nothing()).expect("there is room");
    }
    assert!(matches!(vm.try_submit(nothing()), Err(Error::WouldBlock { instructions: 4, .. })));
    gate.open();
    vm.wait_all().expect("it passes");
    vm.try_submit(nothing()).expect("there is room again").wait().expect("it passes");
}

#[test]
fn a_full_queue_blocks_its_submitter_until_it_is_half_empty() {
    let vm = Vm::builder().max_instructions(32).build().expect("an engine");
    let gates: Vec<ClosedGate> = (0..32).map(|_| ClosedGate::new()).collect();
    for gate in &gates {
        submit(&vm, |b| b.call_fn("held", CPU, [], gate.function()));
    }
    std::thread::scope(|scope| {
        let (sender, receiver) = channel();
        let vm = &vm;
        scope.spawn(move || {
            submit(vm, |b| b.call_fn("late", CPU, [], |_| Ok(())));
            sender.send(()).expect("the test listens");
        });
        until("the submitter is blocked", || vm.stats().blocked_submitters == 1);
        for (passed, gate) in gates.iter().enumerate().take(15) {
            gate.open();
            gates[passed + 1].wait_entered(1);
            assert!(receiver.try_recv().is_err(), "{} of 32 have passed", passed + 1);
        }
        gates[15].open();
        receiver.recv().expect("at the low mark it goes on");
        until("nobody is blocked", || vm.stats().blocked_submitters == 0);
        gates.iter().for_each(|gate| gate.open());
    });
}

#[test]
fn pending_bytes_block_a_submitter_as_well() {
    let vm = Vm::builder().max_bytes(1 << 20).build().expect("an engine");
    let gate = ClosedGate::new();
    submit(&vm, |b| b.call_fn("held", CPU, [], gate.function()));
    let big = || list(|b| b.full(CPU, DType::F32, &[(1 << 20) / 4], 0.0).map(drop));
    vm.try_submit(big()).expect("one list may go past the bound");
    assert!(matches!(vm.try_submit(big()), Err(Error::WouldBlock { bytes, .. }) if bytes >= 1 << 20));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| vm.submit(big()).map(drop));
        until("the submitter is blocked", || vm.stats().blocked_submitters == 1);
        gate.open();
        assert_eq!(waiting.join().expect("no panic"), Ok(()));
    });
    vm.wait_all().expect("it passes");
}

/// While three eighths of the bound are still pending after a function.
#[test]
fn a_submitter_that_waits_for_bytes_goes_on_at_half_of_the_bound() {
    within("a submitter that waits for bytes", || {
        let vm = Vm::builder().max_bytes(1 << 20).cpu_threads(2).build().expect("an engine");
        let held = |lane, eighths: usize| {
            let gate = ClosedGate::new();
            submit(&vm, |b| {
                let mut b = b.on_lane(lane);
                b.call_fn("held", CPU, [], gate.function())?;
                b.full(CPU, DType::F32, &[eighths << 15], 0.0).map(drop)
            });
            gate
        };
        let (_stays, opened) = (held(0, 3), held(1, 6));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| vm.submit(list(|b| b.full(CPU, DType::F32, &[1], 0.0).map(drop))).map(drop));
            until("the submitter is blocked", || vm.stats().blocked_submitters == 1);
            opened.open();
            until("the submitter goes on", || vm.stats().blocked_submitters == 0);
            assert_eq!(waiting.join().expect("no panic"), Ok(()));
        });
    });
}

/// The first submitter waits for 59 instructions, so the thread that runs them looks for it once in many, and gives up. The second one waits
/// for 4: that thread looks anew.
#[test]
fn a_submitter_that_waits_for_few_instructions_goes_on_after_one_that_waited_for_many() {
    within("two submitters, one after the other", || {
        let vm = Vm::builder().max_instructions(64).cpu_threads(1).build().expect("an engine");
        let many = |count| list(|b| (0..count).try_for_each(|_| b.call_fn("quick", CPU, [], |_| Ok(()))));
        let held = || {
            let gate = ClosedGate::new();
            submit(&vm, |b| b.call_fn("held", CPU, [], gate.function()));
            gate
        };
        let (first, second) = (held(), held());
        vm.submit(many(62)).expect("there is room");
        std::thread::scope(|scope| {
            let gives_up = || TimeLimit(Duration::from_millis(300)).run(|| vm.submit(many(60)).map(drop));
            let waiting = scope.spawn(gives_up);
            until("it is blocked", || vm.stats().blocked_submitters == 1 || waiting.is_finished());
            first.open();
            second.wait_entered(1);
            assert!(matches!(waiting.join().expect("no panic"), Err(Error::Timeout { .. })));
        });
        second.open();
        vm.wait_all().expect("they pass");
        let third = held();
        vm.submit(many(7)).expect("there is room");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| vm.submit(many(60)).map(drop));
            until("the submitter is blocked", || vm.stats().blocked_submitters == 1);
            third.open();
            until("the submitter goes on", || vm.stats().blocked_submitters == 0);
            assert_eq!(waiting.join().expect("no panic"), Ok(()));
        });
    });
}

#[test]
fn a_list_larger_than_the_bound_is_let_in_alone() {
    let vm = Vm::builder().max_instructions(4).build().expect("an engine");
    let x = on_device(&vm, &[0.0]);
    for _ in 0..3 {
        submit(&vm, |b| {
            (0..100).try_for_each(|_| {
                b.call_fn("add one", CPU, [x.update()], |context| {
                    context.writes.take::<f32>(0)?[0] += 1.0;
                    Ok(())
                })
            })
        });
    }
    assert_eq!(x.to_vec::<f32>(), Ok(vec![300.0]));
}

#[test]
fn a_function_may_submit() {
    let vm = vm();
    let x = on_device(&vm, &[3.0]);
    let (sender, receiver) = channel();
    let inside = x.clone();
    submit(&vm, |b| {
        b.call_fn("submits", CPU, [], move |_| {
            sender.send(inside.neg()).expect("the test listens");
            Ok(())
        })
    });
    let y = receiver.recv().expect("it ran").expect("submitted");
    assert_eq!(y.to_vec::<f32>(), Ok(vec![-3.0]));
}

/// Hole 15: a function submits into a full queue.
#[test]
fn a_function_that_submits_past_the_overdraft_is_told_that_it_would_block() {
    let vm = Vm::builder().max_instructions(4).build().expect("an engine");
    let x = on_device(&vm, &[3.0]);
    let inside = x.clone();
    let (sender, receiver) = channel();
    let ticket = submit(&vm, |b| {
        b.call_fn("submits", CPU, [], move |_| {
            let taken = (0..100).take_while(|_| inside.neg().is_ok()).count();
            sender.send((taken, inside.neg().err())).expect("the test listens");
            Ok(())
        })
    });
    let (taken, error) = receiver.recv().expect("it ran");
    // Its own instruction is one of the eight: the bound of 4, and an overdraft of as much again.
    assert_eq!(taken, 7);
    assert!(matches!(error, Some(Error::WouldBlock { .. })), "{error:?}");
    ticket.wait().expect("it passes");
    vm.wait_all().expect("it passes");
}

/// Hole 15: a function that runs out of memory does not wait for itself.
#[test]
fn a_function_that_runs_out_of_memory_is_told_so() {
    let vm = Vm::builder().cpu_memory_limit(4 << 20).build().expect("an engine");
    let x = vm.full(CPU, DType::F32, &[(2 << 20) / 4], 1.0).expect("there is room");
    let inside = x.clone();
    let (sender, receiver) = channel();
    submit(&vm, |b| {
        b.call_fn("submits", CPU, [], move |_| {
            let (first, second) = (inside.neg(), inside.neg());
            sender.send((first.is_ok(), second.err())).expect("the test listens");
            Ok(())
        })
    });
    let (first, second) = receiver.recv().expect("it ran");
    assert!(first);
    assert!(matches!(second, Some(Error::OutOfMemory { .. })), "{second:?}");
    vm.wait_all().expect("it passes");
}
