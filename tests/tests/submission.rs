//! Submission: all of a list or nothing, from any thread, bounded.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};

use streamvm::{
    DType, DeviceId, Error, InstructionList, InstructionsBuilder, MemoryKind, Place, StreamKey, StreamType, Var, Vm, ep,
};
use streamvm_tests::{CPU, ClosedGate, failure_of, list, on_device, submit, until, used_bytes, within};

fn vm() -> Vm {
    Vm::builder().build().expect("an engine")
}

/// Submits `bad` and checks that it left nothing behind but cached memory.
#[track_caller]
fn refused(vm: &Vm, bad: InstructionList) -> Error {
    let (before, used) = (vm.stats(), used_bytes(vm, CPU, MemoryKind::Device));
    let error = vm.submit(bad).expect_err("the list is refused");
    let after = vm.stats();
    let numbers = |stats: &streamvm::Stats| stats.streams.iter().map(|s| s.instructions).sum::<u64>();
    assert_eq!(numbers(&before), numbers(&after), "nothing was numbered");
    assert_eq!(used_bytes(vm, CPU, MemoryKind::Device), used, "all memory was given back");
    assert_eq!(after.in_flight, 0);
    error
}

/// Hole 14: out of memory at the third output of a list.
#[test]
fn out_of_memory_at_the_last_output_leaves_nothing_changed() {
    let vm = Vm::builder().cpu_memory_limit(4 << 20).build().expect("an engine");
    let x = on_device(&vm, &[1.0; 4]);
    let quarter = (1 << 20) / 4;
    let token = Var::new();
    let ran = Arc::new(AtomicBool::new(false));
    for _ in 0..3 {
        let flag = ran.clone();
        let bad = list(|b| {
            b.call_fn("never", CPU, [token.write()], move |_| {
                flag.store(true, Ordering::SeqCst);
                Ok(())
            })?;
            b.fill_into(&x, 9.0)?;
            b.fill(CPU, DType::F32, &[quarter], 1.0)?;
            b.fill(CPU, DType::F32, &[quarter], 2.0)?;
            b.fill(CPU, DType::F32, &[8 * quarter], 3.0).map(drop)
        });
        let error = refused(&vm, bad);
        assert!(matches!(error, Error::Device(ep::Error::OutOfMemory { .. })), "{error}");
    }
    assert!(!ran.load(Ordering::SeqCst));
    assert_eq!(x.to_vec::<f32>(), Ok(vec![1.0; 4]));
    // The variable is bound to no engine yet: another may take it.
    let other = Vm::builder().build().expect("an engine");
    submit(&other, |b| b.call_fn("first use", CPU, [token.write()], |_| Ok(()))).wait().expect("it passes");
    submit(&vm, |b| b.fill(CPU, DType::F32, &[quarter], 1.0).map(drop)).wait().expect("the engine goes on");
}

/// A release that was prepared is taken back with the rest.
#[test]
fn a_refused_list_releases_nothing() {
    let vm = vm();
    let x = on_device(&vm, &[1.0, 2.0]);
    let never = InstructionsBuilder::new().fill(CPU, DType::F32, &[2], 0.0).expect("well formed");
    let bad = list(|b| {
        b.release(&x);
        b.fill(CPU, DType::F32, &[2], 5.0)?;
        b.fill(CPU, DType::F32, &[2], 6.0)?;
        b.neg(&never).map(drop)
    });
    assert!(matches!(refused(&vm, bad), Error::NeverWritten { line: 3, .. }));
    assert_eq!(x.to_vec::<f32>(), Ok(vec![1.0, 2.0]));
}

#[test]
fn a_tensor_that_nothing_has_written_is_refused() {
    let vm = vm();
    let mut builder = InstructionsBuilder::new();
    let never = builder.fill(CPU, DType::F32, &[2], 0.0).expect("well formed");
    drop(builder);
    assert!(matches!(refused(&vm, list(|b| b.neg(&never).map(drop))), Error::NeverWritten { line: 0, .. }));
    let empty = list(|b| {
        let memory = b.allocate(CPU, DType::F32, &[2])?;
        b.neg(&memory).map(drop)
    });
    assert!(matches!(refused(&vm, empty), Error::NeverWritten { line: 1, .. }));
    let release = list(|b| {
        b.release(&never);
        Ok(())
    });
    assert!(matches!(refused(&vm, release), Error::NeverWritten { line: 0, .. }));
    assert_eq!(never.wait(), Err(Error::NotSubmitted));
    assert_eq!(never.neg().err(), Some(Error::NotSubmitted));
}

#[test]
fn a_tensor_used_after_its_release_is_refused() {
    let vm = vm();
    let x = on_device(&vm, &[1.0, 2.0]);
    let bad = list(|b| {
        b.release(&x);
        b.neg(&x).map(drop)
    });
    assert!(matches!(refused(&vm, bad), Error::Released { line: 1, .. }));
    assert_eq!(x.to_vec::<f32>(), Ok(vec![1.0, 2.0]));
}

#[test]
fn a_tensor_or_variable_of_another_engine_is_refused() {
    let (mine, other) = (vm(), vm());
    let x = on_device(&other, &[1.0]);
    let bad = list(|b| {
        b.fill(CPU, DType::F32, &[4], 0.0)?;
        b.neg(&x).map(drop)
    });
    assert!(matches!(refused(&mine, bad), Error::Foreign { line: 1, .. }));
    let token = Var::new();
    submit(&other, |b| b.call_fn("bind", CPU, [token.write()], |_| Ok(())));
    let bad = list(|b| b.call_fn("use", CPU, [token.read()], |_| Ok(())));
    assert!(matches!(refused(&mine, bad), Error::Foreign { line: 0, .. }));
    assert_eq!(x.to_vec::<f32>(), Ok(vec![1.0]));
}

#[test]
fn functions_that_were_parsed_from_text_are_refused() {
    let vm = vm();
    let built = list(|b| {
        let x = b.fill(CPU, DType::F32, &[2], 0.0)?;
        b.call_fn("mine", CPU, [x.update()], |_| Ok(()))
    });
    let parsed: InstructionList = built.to_string().parse().expect("it parses back");
    assert!(matches!(refused(&vm, parsed), Error::Placeholder { line: 1, name } if name == "mine"));
    let barrier = list(|b| {
        b.barrier_with("between", || Ok(()));
        Ok(())
    });
    let parsed: InstructionList = barrier.to_string().parse().expect("it parses back");
    assert!(matches!(refused(&vm, parsed), Error::Placeholder { line: 0, .. }));
}

#[test]
fn devices_and_streams_that_are_not_there_are_typed_errors() {
    let vm = vm();
    let x = on_device(&vm, &[1.0]);
    for device in [DeviceId::cuda(0), DeviceId::sim(0), DeviceId::cpu(1)] {
        let error = refused(&vm, list(|b| b.copy(&x, device).map(drop)));
        assert!(matches!(error, Error::Device(ep::Error::NoDevice { .. }) | Error::NoStream { .. }), "{error}");
        assert!(error.to_string().contains(&device.to_string()), "{error}");
        let error = vm.fill(device, DType::F32, &[1], 0.0).expect_err("no such device");
        assert!(matches!(error, Error::Device(ep::Error::NoDevice { .. }) | Error::NoStream { .. }), "{error}");
    }
    let bad = list(|b| {
        b.record(StreamKey::new(DeviceId::cuda(0), StreamType::Compute, 0));
        Ok(())
    });
    refused(&vm, bad);
    assert_eq!(x.to_vec::<f32>(), Ok(vec![1.0]));
}

#[test]
fn a_wait_for_what_is_not_submitted_before_it_is_refused() {
    let vm = vm();
    let (one, two) = (StreamKey::new(CPU, StreamType::Compute, 1), StreamKey::new(CPU, StreamType::Compute, 2));
    let event = streamvm::Event::new();
    let bad = list(|b| {
        b.wait(two, one, &event);
        Ok(())
    });
    assert!(matches!(refused(&vm, bad), Error::WaitsForLater { line: 0, .. }));
    // Hole 9: a number that was not given yet, in a parsed list.
    let text = format!("%0 wait {two} {one} by #1\n");
    let parsed: InstructionList = text.parse().expect("well formed");
    assert!(matches!(refused(&vm, parsed), Error::WaitsForLater { .. }));
    let mut mark = None;
    submit(&vm, |b| {
        mark = Some(b.record(one));
        Ok(())
    })
    .wait()
    .expect("it passes");
    let mark = mark.expect("recorded");
    let wrong = list(|b| {
        b.wait(one, two, &mark);
        Ok(())
    });
    assert!(matches!(refused(&vm, wrong), Error::WaitsForLater { .. }), "the event is on another stream");
    submit(&vm, |b| {
        b.wait(two, one, &mark);
        Ok(())
    })
    .wait()
    .expect("it passes");
}

#[test]
fn an_event_is_recorded_once() {
    let vm = vm();
    let key = StreamKey::new(CPU, StreamType::Compute, 0);
    let text = format!("%0 record {key} e0\n%1 record {key} e0\n");
    let twice: InstructionList = text.parse().expect("well formed");
    assert!(matches!(refused(&vm, twice), Error::RecordedTwice { line: 1 }));
}

#[test]
fn an_empty_list_is_taken_and_has_passed() {
    let vm = vm();
    let ticket = vm.submit(InstructionList::new()).expect("nothing to refuse");
    assert!(ticket.is_passed());
    assert_eq!(ticket.wait(), Ok(()));
    let (sender, receiver) = channel();
    ticket.on_passed(move |result| sender.send(result).expect("the test listens"));
    assert_eq!(receiver.recv(), Ok(Ok(())));
}

#[test]
fn a_copy_to_the_host_is_not_a_device_of_the_host() {
    let vm = vm();
    let x = on_device(&vm, &[1.0, 2.0]);
    let host = x.to(Place::Host).expect("submitted");
    assert_eq!(host.place(), Place::Host);
    assert!(host.neg().is_err(), "kernels run on devices");
    assert_eq!(host.to_vec::<f32>(), Ok(vec![1.0, 2.0]));
}

#[test]
fn several_threads_submit_at_once() {
    let vm = vm();
    let total = on_device(&vm, &[0.0]);
    let start = Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (vm, total, start) = (&vm, &total, &start);
            scope.spawn(move || {
                let _lane = streamvm::lane(thread);
                start.wait();
                for _ in 0..500 {
                    submit(vm, |b| {
                        b.call_fn("add one", CPU, [total.update()], |context| {
                            context.writes.take::<f32>(0)?[0] += 1.0;
                            Ok(())
                        })
                    });
                }
            });
        }
    });
    assert_eq!(total.to_vec::<f32>(), Ok(vec![2000.0]));
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
                        b.set_lane(thread);
                        b.fill_into(x, value)?;
                        b.set_lane(thread + 3);
                        b.call_fn("check", CPU, [x.read()], move |context| {
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
                    let _lane = streamvm::lane(thread);
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
    let vm = Vm::builder().max_instructions(8).build().expect("an engine");
    let gates: Vec<ClosedGate> = (0..8).map(|_| ClosedGate::new()).collect();
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
        for (passed, gate) in gates.iter().enumerate().take(3) {
            gate.open();
            gates[passed + 1].wait_entered(1);
            assert!(receiver.try_recv().is_err(), "{} of 8 have passed", passed + 1);
        }
        gates[3].open();
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
    let big = || list(|b| b.fill(CPU, DType::F32, &[(1 << 20) / 4], 0.0).map(drop));
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
    let x = vm.fill(CPU, DType::F32, &[(2 << 20) / 4], 1.0).expect("there is room");
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
    assert!(matches!(second, Some(Error::Device(ep::Error::OutOfMemory { .. }))), "{second:?}");
    vm.wait_all().expect("it passes");
}

#[test]
fn a_refused_list_drops_its_functions_in_the_caller() {
    let vm = vm();
    let never = InstructionsBuilder::new().fill(CPU, DType::F32, &[2], 0.0).expect("well formed");
    let capture = Arc::new(());
    let inside = capture.clone();
    let bad = list(|b| {
        b.call_fn("never runs", CPU, [], move |_| {
            let _inside = inside;
            Ok(())
        })?;
        b.neg(&never).map(drop)
    });
    refused(&vm, bad);
    assert_eq!(Arc::strong_count(&capture), 1);
}

#[test]
fn a_kernel_that_is_missing_is_refused_before_anything_runs() {
    let vm = vm();
    let x = vm.tensor_of_bools(&[true, false], &[2]).and_then(|x| x.to(CPU)).expect("submitted");
    let error = x.exp().expect_err("no exp of bools");
    assert!(matches!(error, Error::Build(_) | Error::Device(ep::Error::MissingKernel { .. })), "{error}");
    assert_eq!(failure_of(Err::<(), _>(failed(&vm))).what, "div", "and what fails when it runs is told by its ticket");
}

fn failed(vm: &Vm) -> Error {
    let one = vm.fill(CPU, DType::I32, &[], 1).expect("a fill");
    let zero = vm.fill(CPU, DType::I32, &[], 0).expect("a fill");
    one.div(&zero).and_then(|q| q.wait()).expect_err("division by zero")
}
