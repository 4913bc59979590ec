//! Submission: what is refused, typed and with nothing changed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};

use streamvm::ep::{InlineFn, Op, Params};
use streamvm::instructions::{Kind, ResourceId, Role, WaitFor};
use streamvm::stream::WaitKind;
use streamvm::{
    DType, DeviceId, Error, InstructionList, InstructionsBuilder, MemoryKind, Place, Site, StreamKey, StreamType,
    Tensor, Var, Vm, ep,
};
use streamvm_tests::{CPU, ClosedGate, Notes, failure_of, list, on_device, submit, used_bytes};

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
            b.fill(&x, 9.0)?;
            b.full(CPU, DType::F32, &[quarter], 1.0)?;
            b.full(CPU, DType::F32, &[quarter], 2.0)?;
            b.full(CPU, DType::F32, &[8 * quarter], 3.0).map(drop)
        });
        let error = refused(&vm, bad);
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    }
    assert!(!ran.load(Ordering::SeqCst));
    assert_eq!(x.to_vec::<f32>(), Ok(vec![1.0; 4]));
    // The variable is bound to no engine yet: another may take it.
    let other = Vm::builder().build().expect("an engine");
    submit(&other, |b| b.call_fn("first use", CPU, [token.write()], |_| Ok(()))).wait().expect("it passes");
    submit(&vm, |b| b.full(CPU, DType::F32, &[quarter], 1.0).map(drop)).wait().expect("the engine goes on");
}

/// A release that was prepared is taken back with the rest.
#[test]
fn a_refused_list_releases_nothing() {
    let vm = vm();
    let x = on_device(&vm, &[1.0, 2.0]);
    let never = InstructionsBuilder::new().full(CPU, DType::F32, &[2], 0.0).expect("well formed");
    let bad = list(|b| {
        b.release(&x);
        b.full(CPU, DType::F32, &[2], 5.0)?;
        b.full(CPU, DType::F32, &[2], 6.0)?;
        b.neg(&never).map(drop)
    });
    assert!(matches!(refused(&vm, bad), Error::NeverWritten { line: 3, .. }));
    assert_eq!(x.to_vec::<f32>(), Ok(vec![1.0, 2.0]));
}

#[test]
fn a_tensor_that_nothing_has_written_is_refused() {
    let vm = vm();
    let mut builder = InstructionsBuilder::new();
    let never = builder.full(CPU, DType::F32, &[2], 0.0).expect("well formed");
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
    assert!(matches!(never.wait(), Err(Error::NotSubmitted { .. })));
    assert!(matches!(never.neg().err(), Some(Error::NotSubmitted { .. })));
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
        b.full(CPU, DType::F32, &[4], 0.0)?;
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
        let x = b.full(CPU, DType::F32, &[2], 0.0)?;
        b.call_fn("mine", CPU, [x.update()], |_| Ok(()))
    });
    let parsed: InstructionList = built.to_string().parse().expect("it parses back");
    assert!(matches!(refused(&vm, parsed), Error::Placeholder { line: 1, name, .. } if name == "mine"));
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
    let not_there = |error: &Error| {
        let of_a_device =
            matches!(error, Error::Device { error: ep::Error::NoDevice { .. } | ep::Error::NoCuda { .. }, .. });
        of_a_device || matches!(error, Error::NoStream { .. })
    };
    // No machine has a GPU of this number.
    for device in [DeviceId::cuda(1000), DeviceId::sim(0), DeviceId::cpu(1)] {
        let error = refused(&vm, list(|b| b.copy(&x, device).map(drop)));
        assert!(not_there(&error), "{error}");
        assert!(error.to_string().contains(&device.to_string()), "{error}");
        let error = vm.full(device, DType::F32, &[1], 0.0).expect_err("no such device");
        assert!(not_there(&error), "{error}");
    }
    let bad = list(|b| {
        b.record(StreamKey::new(DeviceId::cuda(1000), StreamType::Compute, 0));
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

/// Hole 9: two lists wait by number, each for what the other submits later. Both streams are open, so the numbers alone say
/// that it is later.
#[test]
fn a_wait_by_number_for_a_point_of_an_open_stream_that_is_submitted_later_is_refused() {
    let vm = vm();
    let streams = [1, 2].map(|lane| StreamKey::new(CPU, StreamType::Compute, lane));
    let step = |lane: usize| {
        let ticket = submit(&vm, |b| {
            b.on_lane(streams[lane].lane).host_fn("step", CPU, || Ok(()));
            Ok(())
        });
        ticket.wait().expect("it passes");
    };
    let waits = |lane: usize, seq: u64| -> InstructionList {
        let text = format!("%0 wait {} {} by #{seq}\n", streams[lane], streams[1 - lane]);
        text.parse().expect("well formed")
    };
    (0..2).for_each(step);
    for (lane, other) in [(0, 1), (1, 0)] {
        for later in [0, 2, 3, u64::MAX] {
            let error = refused(&vm, waits(lane, later));
            let told = format!("instruction {later} of {}", streams[other]);
            assert!(matches!(&error, Error::WaitsForLater { line: 0, target, .. } if *target == told), "{error}");
        }
    }
    // A refused wait has taken no number; what was later is submitted by now, and can be waited for.
    step(1);
    assert_eq!(vm.submit(waits(0, 2)).expect("it is submitted before").wait(), Ok(()));
    assert!(matches!(refused(&vm, waits(0, 3)), Error::WaitsForLater { .. }));
    assert_eq!(vm.submit(waits(1, 2)).expect("the wait before has this number").wait(), Ok(()));
}

/// The last use of all is known for good at once, but only where nothing after it can be refused.
#[test]
fn what_a_list_creates_is_unknown_again_when_a_line_without_uses_is_refused() {
    let vm = vm();
    let x = on_device(&vm, &[1.0, 2.0]);
    let (one, two) = (StreamKey::new(CPU, StreamType::Compute, 1), StreamKey::new(CPU, StreamType::Compute, 2));
    let mut created = None;
    let bad = list(|b| {
        created = Some(b.neg(&x)?);
        b.wait(two, one, &streamvm::Event::new());
        Ok(())
    });
    assert!(matches!(refused(&vm, bad), Error::WaitsForLater { line: 1, .. }));
    let created = created.expect("built");
    assert!(matches!(created.wait(), Err(Error::NotSubmitted { .. })));
    assert!(matches!(created.neg().err(), Some(Error::NotSubmitted { .. })));
    // The same handle may be written by a list that is taken.
    submit(&vm, |b| b.fill(&created, 3.0)).wait().expect("it passes");
    assert_eq!(created.to_vec::<f32>(), Ok(vec![3.0; 2]));
}

#[test]
fn an_event_is_recorded_once() {
    let vm = vm();
    let key = StreamKey::new(CPU, StreamType::Compute, 0);
    let text = format!("%0 record {key} e0\n%1 record {key} e0\n");
    let twice: InstructionList = text.parse().expect("well formed");
    assert!(matches!(refused(&vm, twice), Error::RecordedTwice { line: 1, .. }));
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
fn a_refused_list_drops_its_functions_in_the_caller() {
    let vm = vm();
    let never = InstructionsBuilder::new().full(CPU, DType::F32, &[2], 0.0).expect("well formed");
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
    let x = vm.from_slice(&[true, false], &[2]).and_then(|x| x.to(CPU)).expect("submitted");
    let error = x.exp().expect_err("no exp of bools");
    assert!(
        matches!(error, Error::Build { .. } | Error::Device { error: ep::Error::MissingKernel { .. }, .. }),
        "{error}"
    );
    assert_eq!(failure_of(Err::<(), _>(failed(&vm))).what, "div", "and what fails when it runs is told by its ticket");
}

fn failed(vm: &Vm) -> Error {
    let one = vm.full(CPU, DType::I32, &[], 1).expect("a fill");
    let zero = vm.full(CPU, DType::I32, &[], 0).expect("a fill");
    one.div(&zero).and_then(|q| q.wait()).expect_err("division by zero")
}

#[test]
fn more_streams_than_an_engine_has_are_refused() {
    let vm = vm();
    let mut refused = None;
    for lane in 0..=streamvm::stream::MAX_STREAMS as u32 {
        let _lane = streamvm::Lane(lane).enter();
        if let Err(error) = vm.full(CPU, DType::F32, &[1], 0.0) {
            refused = Some((lane, error));
            break;
        }
    }
    let (lane, error) = refused.expect("streams are bounded");
    assert_eq!(lane as usize, streamvm::stream::MAX_STREAMS);
    assert!(matches!(error, Error::NoStream { .. }), "{error}");
    assert_eq!(vm.full(CPU, DType::F32, &[1], 4.0).and_then(|x| x.to_vec::<f32>()), Ok(vec![4.0]));
}

#[test]
fn the_smallest_settings_make_an_engine_that_works() {
    let builder = Vm::builder().cpu_devices(0).cpu_threads(0).max_instructions(0).max_bytes(0);
    let vm = builder.build().expect("an engine");
    let x = on_device(&vm, &[1.0, 2.0]);
    submit(&vm, |b| {
        b.barrier();
        let y = b.neg(&x)?;
        b.on_lane(3).copy_into(&y, &x)
    });
    assert_eq!(x.to_vec::<f32>(), Ok(vec![-1.0, -2.0]));
    let none = Vm::builder().host_memory_limit(0).cpu_memory_limit(0).build().expect("an engine");
    assert!(matches!(none.from_slice(&[1.0f32], &[1]), Err(Error::OutOfMemory { .. })));
    assert!(matches!(none.full(CPU, DType::F32, &[1], 1.0), Err(Error::OutOfMemory { .. })));
    assert_eq!(none.from_slice::<f32>(&[], &[0]).and_then(|x| x.to(CPU)).and_then(|x| x.to_vec::<f32>()), Ok(vec![]));
}

#[test]
fn a_function_that_writes_more_operands_than_a_function_can_is_refused() {
    let vm = vm();
    let x = on_device(&vm, &[0.0; 100]);
    let parts: Vec<_> = (0..100).map(|i| x.slice(0, i..i + 1).expect("a view")).collect();
    let mut b = streamvm::InstructionsBuilder::new();
    let refused = b.call_fn("many", CPU, parts.iter().map(|part| part.update()), |_| Ok(()));
    let too_many = |error: &streamvm::BuildError| {
        matches!(error, streamvm::BuildError::TooManyWrites { found: 100, most: 64, .. })
    };
    assert!(matches!(&refused, Err(Error::Build { error, .. }) if too_many(error)), "{refused:?}");
    b.call_fn("most", CPU, parts[..64].iter().map(|part| part.update()), |_| Ok(())).expect("64 are fine");
    vm.submit(b.finish()).expect("submitted").wait().expect("it passes");
}

/// What lies between two instructions' uses would shift all that come after.
#[test]
fn uses_that_panic_on_their_way_into_a_list_leave_nothing_there() {
    let vm = vm();
    let (a, b) = (on_device(&vm, &[1.0, 2.0]), on_device(&vm, &[3.0, 4.0]));
    let torn = |builder: &mut InstructionsBuilder| {
        let token = Var::new();
        let uses = [Some(token.write()), None].into_iter().map(|u| u.expect("on purpose"));
        let caught = catch_unwind(AssertUnwindSafe(|| builder.call_fn("torn", CPU, uses, |_| Ok(()))));
        assert!(caught.is_err());
    };
    let mut builder = InstructionsBuilder::new();
    torn(&mut builder);
    builder.fill(&a, 7.0).expect("it fits");
    torn(&mut builder);
    let mut list = builder.finish();
    let mut behind = InstructionsBuilder::new();
    torn(&mut behind);
    behind.fill(&b, 8.0).expect("it fits");
    torn(&mut behind);
    list.append(behind.finish());
    assert_eq!((list.len(), list.all_uses().len()), (2, 2));
    vm.submit(list).expect("the engine takes the list").wait().expect("it passes");
    assert_eq!(a.to_vec::<f32>(), Ok(vec![7.0, 7.0]));
    assert_eq!(b.to_vec::<f32>(), Ok(vec![8.0, 8.0]));
}

/// Its handles may go as soon as it is submitted, though nothing of it has run: the engine has taken what it needs, and who is given
/// their memory next comes after.
#[test]
fn handles_may_go_as_soon_as_their_list_is_submitted() {
    // With one core, too, copies go on while the gate is closed.
    let vm = Vm::builder().detect_races(true).cpu_threads(2).build().expect("an engine");
    let sum = vm.full(CPU, DType::F32, &[2], 0.0).expect("memory");
    for round in 1..=3u8 {
        let (gate, closed) = (ClosedGate::new(), Var::new());
        submit(&vm, |b| b.call_fn("held", CPU, [closed.write()], gate.function()));
        let (x, y) = (on_device(&vm, &[1.0, 2.0]), vm.full(CPU, DType::F32, &[2], 0.0).expect("memory"));
        let mut builder = InstructionsBuilder::new();
        builder.fill(&x, f32::from(round)).expect("it fits");
        builder.op_into(Op::Add, &[&x, &sum], Params::default(), &y).expect("they fit");
        builder.copy_into(&y, &sum).expect("they fit");
        let ticket = vm.submit(builder.finish()).expect("the engine takes the list");
        drop((x, y));
        let others: Vec<Tensor> = (0..4).map(|_| vm.full(CPU, DType::F32, &[2], 9.0).expect("memory")).collect();
        gate.open();
        ticket.wait().expect("it passes");
        assert!(others.iter().all(|other| other.to_vec::<f32>() == Ok(vec![9.0; 2])));
    }
    assert_eq!(sum.to_vec::<f32>(), Ok(vec![6.0; 2]));
    assert_eq!(vm.races(), []);
}

#[test]
fn a_list_with_a_read_of_what_was_never_written_is_refused_whole() {
    let vm = vm();
    let (x, unwritten) = (on_device(&vm, &[1.0, 2.0]), vm.var());
    let nothing = Tensor::unbound(CPU.into(), MemoryKind::Device, DType::F32, x.shape());
    let mut builder = InstructionsBuilder::new();
    builder.fill(&x, 5.0).expect("it fits");
    builder.push("late", CPU, [unwritten.write(), nothing.read()], || Ok(()));
    let refused = vm.submit(builder.finish()).map(drop);
    assert!(matches!(refused, Err(Error::NeverWritten { line: 1, .. })), "{refused:?}");
    assert_eq!(x.to_vec::<f32>(), Ok(vec![1.0, 2.0]));
    let mut builder = InstructionsBuilder::new();
    builder.fill(&nothing, 4.0).expect("it fits");
    vm.try_submit(builder.finish()).expect("there is room").wait().expect("it passes");
    assert_eq!(nothing.to_vec::<f32>(), Ok(vec![4.0; 2]), "the handle knows what the list made of it");
}

#[test]
fn memory_that_an_earlier_list_allocated_and_nothing_wrote_is_refused() {
    let vm = vm();
    let mut builder = InstructionsBuilder::new();
    let memory = builder.allocate(CPU, DType::F32, &[2]).expect("a shape");
    vm.submit(builder.finish()).expect("the engine takes the list").wait().expect("it passes");
    assert!(matches!(refused(&vm, list(|b| b.neg(&memory).map(drop))), Error::NeverWritten { line: 0, .. }));
    submit(&vm, |b| b.fill(&memory, 2.0)).wait().expect("it passes");
    assert_eq!(memory.to_vec::<f32>(), Ok(vec![2.0; 2]));
}

/// What a handle says of its resource is trusted, so only the resource's engine may say it.
#[test]
fn a_handle_takes_nothing_from_another_engine() {
    let vm = vm();
    let x = on_device(&vm, &[1.0, 2.0]);
    submit(&vm, |b| {
        b.release(&x);
        Ok(())
    })
    .wait()
    .expect("it passes");
    let y = on_device(&vm, &[5.0, 6.0]);
    let notes: &'static Notes = Box::leak(Box::default());
    let foreign = notes.me();
    let resource = x.resource();
    resource.note_written(foreign, true);
    resource.keep(foreign, ResourceId(0), true);
    resource.draft(foreign, ResourceId(0));
    resource.forget(foreign);
    assert!(matches!(x.to_vec::<f32>(), Err(Error::Released { .. })));
    assert!(matches!(refused(&vm, list(|b| b.fill(&x, 9.0))), Error::Released { line: 0, .. }));
    assert_eq!(y.to_vec::<f32>(), Ok(vec![5.0, 6.0]));
}

/// Both prepare their list while nobody owns the tensor; who claims it second has memory that no handle knows.
#[test]
fn an_engine_that_claims_a_tensor_too_late_gives_its_memory_back() {
    let mut both = 0;
    for _ in 0..200 {
        let engines = [vm(), vm()];
        for vm in &engines {
            submit(vm, |b| b.full(CPU, DType::F32, &[64], 0.0).map(drop)).wait().expect("it passes");
        }
        let start = Barrier::new(2);
        let tensor = InstructionsBuilder::new().allocate(CPU, DType::F32, &[64]).expect("a shape");
        let takes = |vm: &Vm| {
            let long = list(|b| {
                b.fill(&tensor, 1.0)?;
                // Time between the preparation of the first line and the claim.
                (0..5_000).try_for_each(|_| b.call_fn("longer", CPU, [Var::new().write()], |_| Ok(())))
            });
            start.wait();
            match vm.submit(long) {
                Ok(_) => true,
                Err(Error::Foreign { .. }) => false,
                Err(other) => panic!("{other}"),
            }
        };
        let taken = std::thread::scope(|scope| {
            let takes = &takes;
            let threads = engines.each_ref().map(|vm| scope.spawn(move || takes(vm)));
            threads.map(|thread| thread.join().expect("it does not panic"))
        });
        assert_ne!(taken, [false, false], "one of them is the first");
        both += usize::from(taken == [true, true]);
        drop(tensor);
        for vm in &engines {
            vm.wait_all().expect("nothing fails");
            assert_eq!(used_bytes(vm, CPU, MemoryKind::Device), 0);
        }
        if both == 3 {
            return;
        }
    }
    assert!(both > 0, "two engines never prepared at the same time");
}

#[test]
fn a_wait_for_a_line_of_the_same_list_is_kept() {
    let vm = vm();
    let gate = ClosedGate::new();
    let [first, second]: [StreamKey; 2] = [0, 1].map(|lane| StreamKey::new(CPU, StreamType::Compute, lane));
    let site = Site::caller();
    let held = Kind::Function { role: Role::Host, name: "held".into(), body: Some(InlineFn::new(gate.function())) };
    let wait = Kind::Wait { source: first, target: WaitFor::Line(0), kind: WaitKind::Device };
    let mut list = InstructionList::new();
    list.push(first, held, [], site).expect("well formed");
    list.push(second, wait, [], site).expect("well formed");
    let ticket = vm.submit(list).expect("the engine takes the list");
    gate.wait_entered(1);
    let stats = vm.stats();
    let counts = stats.streams.iter().find(|counts| counts.stream == second).expect("the stream was opened");
    assert_eq!((counts.instructions, counts.device_waits), (1, 1));
    gate.open();
    ticket.wait().expect("it passes");
}
