//! Callers' functions: what they may touch, and when their captures go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;

use streamvm::instructions::{Kind, Role};
use streamvm::{
    BuildError, Cause, DType, DeviceId, Error, FnContext, FnError, InstructionList, InstructionsBuilder, Place, Site,
    StreamKey, StreamType, Tensor, Use, Var, Vm, ep,
};
use streamvm_tests::{CPU, ClosedGate, failure_of, list, on_device, submit};

fn vm() -> Vm {
    Vm::builder().build().expect("an engine")
}

/// Hole 22: a shared and a mutable slice of the same bytes.
#[test]
fn a_tensor_read_and_written_by_one_function_is_refused() {
    let vm = vm();
    let x = on_device(&vm, &[1.0, 2.0, 3.0, 4.0]);
    let (left, middle, right) = (x.slice(0, 0..2), x.slice(0, 1..3), x.slice(0, 2..4));
    let (left, middle, right) = (left.expect("a view"), middle.expect("a view"), right.expect("a view"));
    let overlapping = [
        vec![x.read(), x.write()],
        vec![x.write(), x.write()],
        vec![x.update(), x.read()],
        vec![left.read(), x.update()],
        vec![left.write(), middle.read()],
        vec![middle.update(), right.update()],
        vec![right.read(), left.read(), middle.write()],
    ];
    for uses in overlapping {
        let mut builder = InstructionsBuilder::new();
        let refused = builder.call_fn("both", CPU, uses, |_| Ok(()));
        assert!(matches!(refused, Err(Error::Build { error: BuildError::Overlap { .. }, .. })), "{refused:?}");
        assert!(builder.list().is_empty(), "a refused call adds nothing");
    }
    let ticket = submit(&vm, |b| {
        b.call_fn("disjoint", CPU, [left.update(), right.update(), x.slice(0, 0..0)?.read()], |context| {
            let (left, right) = (context.writes.take::<f32>(0)?, context.writes.take::<f32>(1)?);
            left.swap_with_slice(right);
            Ok(())
        })
    });
    ticket.wait().expect("disjoint views are fine");
    assert_eq!(x.to_vec::<f32>(), Ok(vec![3.0, 4.0, 1.0, 2.0]));
    let twice = submit(&vm, |b| {
        b.call_fn("read twice", CPU, [x.read(), x.read(), left.read()], |context| {
            assert_eq!(context.reads.get::<f32>(0)?, context.reads.get::<f32>(1)?);
            Ok(())
        })
    });
    twice.wait().expect("reads may overlap");
}

/// Hole 22, past the builder: a list that is put together by hand is checked too.
#[test]
fn a_list_put_together_by_hand_gives_no_function_overlapping_slices() {
    let vm = vm();
    let x = on_device(&vm, &[1.0, 2.0]);
    let ran = Arc::new(AtomicBool::new(false));
    let flag = ran.clone();
    let body = ep::InlineFn::new(move |_: &mut FnContext<'_>| {
        flag.store(true, Ordering::SeqCst);
        Ok(())
    });
    let mut list = InstructionList::new();
    let kind = Kind::Function { role: Role::Function, name: "both".into(), body: Some(body) };
    let (stream, uses) = (StreamKey::new(CPU, StreamType::Compute, 0), [x.read(), x.write()]);
    let refused = list.push(stream, kind, uses, Site::caller());
    assert!(matches!(refused, Err(Error::Build { error: BuildError::Overlap { .. }, .. })), "{refused:?}");
    vm.submit(list).expect("an empty list").wait().expect("nothing to wait for");
    assert!(!ran.load(Ordering::SeqCst));
}

/// The calls of a list are public, so what they can make must not break an engine.
#[test]
fn a_malformed_list_is_an_error_and_the_engine_goes_on() {
    let add = || Kind::Call { op: streamvm::Op::Add, params: Default::default() };
    let fill = || Kind::Fill(3.0.into());
    type Uses = for<'a> fn(x: &'a Tensor, one: &'a Tensor, host: &'a Tensor, token: &'a Var) -> Vec<Use<'a>>;
    let cases: Vec<(&str, Kind, Uses)> = vec![
        ("a release of nothing", Kind::Release, |_, _, _, _| vec![]),
        ("a release of two", Kind::Release, |_, one, host, _| vec![one.write(), host.write()]),
        ("a release of a variable", Kind::Release, |_, _, _, token| vec![token.write()]),
        ("an allocation of nothing", Kind::Allocate, |_, _, _, _| vec![]),
        ("a copy of one", Kind::Copy, |x, _, _, _| vec![x.read()]),
        ("a copy of nothing", Kind::Copy, |_, _, _, _| vec![]),
        ("a copy into a read tensor", Kind::Copy, |x, _, host, _| vec![host.read(), x.read()]),
        ("a copy of another shape", Kind::Copy, |x, one, _, _| vec![x.read(), one.write()]),
        ("a fill of a read tensor", fill(), |x, _, _, _| vec![x.read()]),
        ("a fill of nothing", fill(), |_, _, _, _| vec![]),
        ("a fill that does not fit", Kind::Fill(true.into()), |_, one, _, _| vec![one.write()]),
        ("an op of nothing", add(), |_, _, _, _| vec![]),
        ("an op of too few", add(), |x, one, _, _| vec![x.read(), one.write()]),
        ("an op into a read tensor", add(), |x, _, _, _| vec![x.read(), x.read(), x.read()]),
        ("an op over variables", add(), |_, _, _, token| vec![token.read(), token.read(), token.write()]),
    ];
    let mut wrong = Vec::new();
    for (what, kind, uses) in cases {
        let vm = vm();
        let (x, one) = (on_device(&vm, &[1.0, 2.0]), on_device(&vm, &[5.0]));
        let host = vm.from_slice(&[7.0f32, 8.0], &[2]).expect("a host tensor");
        let mut list = InstructionList::new();
        let compute = StreamKey::new(CPU, StreamType::Compute, 0);
        if list.push(compute, kind, uses(&x, &one, &host, &Var::new()), Site::caller()).is_err() {
            assert!(list.is_empty(), "{what}: nothing of what is refused stays");
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| vm.submit(list).map(|t| t.wait())));
        if result.is_err() {
            // Its lock was left in the middle of something: leave the engine alone.
            std::mem::forget((vm, x, one, host));
            wrong.push(format!("{what}: panicked"));
            continue;
        }
        let kept = x.to_vec::<f32>();
        if kept != Ok(vec![1.0, 2.0]) {
            wrong.push(format!("{what}: a tensor that it only reads is now {kept:?}"));
        }
        let next = on_device(&vm, &[1.0]).neg().and_then(|y| y.to_vec::<f32>());
        if next != Ok(vec![-1.0]) {
            wrong.push(format!("{what}: the next gives {next:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The engine relies on a release having one tensor: with two, the second one's memory would get two owners.
#[test]
fn a_release_of_none_or_of_two_tensors_is_refused() {
    let vm = vm();
    let compute = StreamKey::new(CPU, StreamType::Compute, 0);
    let (x, y) = (on_device(&vm, &[1.0; 512]), on_device(&vm, &[2.0; 512]));
    let mut list = InstructionList::new();
    let site = Site::caller();
    assert!(list.push(compute, Kind::Release, [x.write(), y.write()], site).is_err());
    assert!(list.push(compute, Kind::Release, [], site).is_err());
    assert!(list.push(compute, Kind::Release, [x.read()], site).is_err());
    assert!(list.is_empty());
    list.push(compute, Kind::Release, [x.write()], site).expect("one is right");
    vm.submit(list).expect("submitted").wait().expect("it passes");
    assert_eq!(y.to_vec::<f32>(), Ok(vec![2.0; 512]));
}

/// A view of no elements may have any offset; it is still an operand, in its place.
#[test]
fn an_empty_view_with_an_offset_is_an_operand() {
    let vm = vm();
    let empty = vm.full(CPU, DType::F32, &[4, 0], 1.0).expect("a fill").slice(0, 3..4).expect("a view");
    let x = on_device(&vm, &[1.0, 2.0]);
    assert_eq!(empty.to_vec::<f32>(), Ok(vec![]));
    assert_eq!(empty.relu().and_then(|y| y.to_vec::<f32>()), Ok(vec![]));
    let ticket = submit(&vm, |b| {
        b.call_fn("look", CPU, [empty.read(), x.read()], |context| {
            assert!(context.reads.get::<f32>(0)?.is_empty());
            assert_eq!(context.reads.get::<f32>(1)?, [1.0, 2.0]);
            Ok(())
        })
    });
    ticket.wait().expect("it passes");
}

#[test]
fn a_function_gets_slices_of_the_declared_dtype_only() {
    let vm = vm();
    let x = on_device(&vm, &[1.0, 2.0]);
    let counts = vm.full(CPU, DType::I64, &[3], 7i64).expect("a fill");
    let wrong = submit(&vm, |b| b.call_fn("wrong", CPU, [x.read()], |c| Ok(c.reads.get::<f64>(0).map(drop)?)));
    let failure = failure_of(wrong.wait());
    assert!(failure.to_string().contains("f32"), "{failure}");
    let right = submit(&vm, |b| {
        b.call_fn("right", CPU, [x.read(), counts.update()], |context| {
            assert_eq!(context.reads.get::<f32>(0)?, [1.0, 2.0]);
            assert_eq!((context.reads.len(), context.writes.len()), (1, 1));
            assert_eq!(context.writes.dtype(0)?, DType::I64);
            context.writes.take::<i64>(0)?[1] = 9;
            assert!(context.writes.take::<i64>(0).is_err(), "a second &mut");
            assert!(context.reads.get::<f32>(1).is_err(), "no such operand");
            Ok(())
        })
    });
    right.wait().expect("it passes");
    assert_eq!(counts.to_vec::<i64>(), Ok(vec![7, 9, 7]));
}

#[test]
fn a_view_with_gaps_has_no_slice() {
    let vm = vm();
    let x = on_device(&vm, &[1.0, 2.0, 3.0, 4.0]).reshape(&[2, 2]).expect("a view");
    let column = x.slice(1, 0..1).expect("a view");
    let ticket = submit(&vm, |b| b.call_fn("column", CPU, [column.read()], |c| Ok(c.reads.get::<f32>(0).map(drop)?)));
    let Cause::Function(text) = &failure_of(ticket.wait()).cause else { panic!("the function fails") };
    for part in ["operand 0 to read, f32[2,1], at tests/tests/functions/closures.rs:", "without gaps", "`contiguous()`"]
    {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(column.to_vec::<f32>(), Ok(vec![1.0, 3.0]), "reading out copies");
}

/// A function that overwrites nothing of a tensor that it declared by `write()` fails: the tensor would show the elements of an earlier one in the same memory.
#[test]
fn a_function_takes_what_it_declares_to_overwrite() {
    let vm = vm();
    let untaken = "operand 0 to write, f32[4], was declared by write() and not taken";
    drop(vm.full(CPU, DType::F32, &[4], 7.0).expect("a fill"));
    let y = vm.empty(CPU, DType::F32, &[4]).expect("a tensor");
    vm.call_fn("idle", CPU, [y.write()], |_| Ok(())).expect("it is taken");
    let Cause::Function(text) = &failure_of(y.to_vec::<f32>()).cause else { panic!("the function fails") };
    assert!(text.contains(untaken), "{text}");
    let program = vm.record("idle", |r| {
        let y = r.full(CPU, DType::F32, &[4], 7.0)?;
        r.call_fn("idle", CPU, [y.write()], |_| Ok(()))?;
        r.fetch("y", &y)
    });
    let run = vm.compile(program.expect("a program"), &[], &Default::default()).expect("compiled").run(&[]);
    let failure = failure_of(run.expect("submitted").wait());
    assert!(failure.to_string().contains(untaken), "{failure}");
    // An update keeps what is there, and nothing of an empty tensor can be left.
    let z = vm.zeros(CPU, DType::F32, &[0]).expect("a tensor");
    let x = on_device(&vm, &[1.0]);
    vm.call_fn("idle", CPU, [x.update(), z.write()], |_| Ok(())).expect("it is taken");
    assert_eq!(x.to_vec::<f32>(), Ok(vec![1.0]));
    assert_eq!(z.to_vec::<f32>(), Ok(vec![]));
}

#[test]
fn a_bool_tensor_is_bools() {
    let vm = vm();
    let x = vm.from_slice(&[true, false, true], &[3]).and_then(|x| x.to(CPU)).expect("submitted");
    let ticket = submit(&vm, |b| {
        b.call_fn("flip", CPU, [x.update()], |context| {
            context.writes.take::<bool>(0)?.iter_mut().for_each(|truth| *truth = !*truth);
            Ok(())
        })
    });
    ticket.wait().expect("it passes");
    assert_eq!(x.to_vec::<bool>(), Ok(vec![false, true, false]));
    assert!(matches!(x.to_vec::<u8>(), Err(Error::WrongDType { .. })));
}

#[test]
fn a_broadcast_is_not_written() {
    let vm = vm();
    let wide = on_device(&vm, &[1.0]).broadcast_to(&[4]).expect("a view");
    let refused = InstructionsBuilder::new().call_fn("wide", CPU, [wide.write()], |_| Ok(()));
    assert!(matches!(refused, Err(Error::Build { error: BuildError::WritesBroadcast { .. }, .. })));
    assert_eq!(wide.to_vec::<f32>(), Ok(vec![1.0; 4]));
}

#[test]
fn a_function_runs_on_the_device_of_its_operands() {
    let vm = Vm::builder().cpu_devices(2).build().expect("an engine");
    let x = on_device(&vm, &[1.0]);
    let refused = InstructionsBuilder::new().call_fn("elsewhere", DeviceId::cpu(1), [x.read()], |_| Ok(()));
    assert!(matches!(refused, Err(Error::Build { error: BuildError::Place { .. }, .. })));
    let host = vm.from_slice(&[2.0f32], &[1]).expect("a host tensor");
    let ticket = submit(&vm, |b| {
        b.call_fn("host operands are fine", DeviceId::cpu(1), [host.update()], |context| {
            context.writes.take::<f32>(0)?[0] *= 2.0;
            Ok(())
        })
    });
    ticket.wait().expect("it passes");
    assert_eq!(host.to_vec::<f32>(), Ok(vec![4.0]));
}

#[test]
fn an_access_looks_at_one_tensor_in_place() {
    let vm = vm();
    let (x, seen) = (on_device(&vm, &[1.0, 2.0]), Arc::new(AtomicU64::new(0)));
    let sum = seen.clone();
    let look = move |context: &mut FnContext<'_>| -> Result<(), FnError> {
        sum.store(context.reads.get::<f32>(0)?.iter().sum::<f32>() as u64, Ordering::SeqCst);
        Ok(())
    };
    submit(&vm, |b| b.access("look", x.read(), look)).wait().expect("it passes");
    assert_eq!(seen.load(Ordering::SeqCst), 3);
}

/// Tells the thread that dropped it.
struct DropFlag(Arc<AtomicBool>, std::sync::mpsc::Sender<std::thread::ThreadId>);

impl Drop for DropFlag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
        let _ = self.1.send(std::thread::current().id());
    }
}

/// Hole 16: also when nobody submits anything afterwards.
#[test]
fn captures_are_gone_before_completion_shows_and_on_the_thread_that_ran() {
    let vm = vm();
    let x = on_device(&vm, &[1.0]);
    submit(&vm, |b| b.call_fn("sour", CPU, [x.write()], |_| Err("no luck".into())));
    for (what, poisoned) in [("ran", false), ("skipped", true)] {
        for round in 0..200 {
            let (dropped, (sender, receiver)) = (Arc::new(AtomicBool::new(false)), channel());
            let flag = DropFlag(dropped.clone(), sender);
            let uses = if poisoned { vec![x.read()] } else { vec![] };
            let ticket = submit(&vm, |b| {
                b.call_fn("flagged", CPU, uses, move |_| {
                    let _flag = &flag;
                    Ok(())
                })
            });
            // A number that has passed is seen without any lock, as early as can be.
            while !ticket.is_passed() {
                std::hint::spin_loop();
            }
            assert!(dropped.load(Ordering::SeqCst), "{what}, round {round}");
            assert_ne!(receiver.recv(), Ok(std::thread::current().id()), "{what}: on a thread of the engine");
        }
    }
}

#[test]
fn large_captures_are_boxed_and_gone_as_well() {
    let vm = vm();
    let gate = ClosedGate::new();
    let (counted, large) = (Arc::new(()), [7u8; 1000]);
    let (inside, held) = (counted.clone(), gate.function());
    let ticket = submit(&vm, |b| {
        b.call_fn("large", CPU, [], move |context| {
            let _inside = &inside;
            assert!(std::hint::black_box(&large).iter().all(|byte| *byte == 7));
            held(context)
        })
    });
    gate.wait_entered(1);
    assert_eq!(Arc::strong_count(&counted), 2);
    gate.open();
    ticket.wait().expect("it passes");
    assert_eq!(Arc::strong_count(&counted), 1);
}

/// Hole 16: one long instruction does not hold what others captured.
#[test]
fn captures_go_while_an_older_instruction_still_runs() {
    let vm = Vm::builder().cpu_devices(2).build().expect("an engine");
    let gate = ClosedGate::new();
    submit(&vm, |b| b.call_fn("long", DeviceId::cpu(1), [], gate.function()));
    let counted = Arc::new(());
    for _ in 0..100 {
        let inside = counted.clone();
        let ticket = submit(&vm, |b| {
            b.call_fn("short", CPU, [], move |_| {
                drop(inside);
                Ok(())
            })
        });
        ticket.wait().expect("it passes");
    }
    assert_eq!(Arc::strong_count(&counted), 1);
    gate.open();
}

#[test]
fn state_of_a_thread_stays_with_it() {
    let vm = Vm::builder().cpu_threads(1).build().expect("an engine");
    let (sender, receiver) = channel();
    for lane in 0..4 {
        let sender = sender.clone();
        submit(&vm, |b| {
            b.on_lane(lane).call_fn("who", CPU, [], move |_| Ok(sender.send(std::thread::current().id())?))
        });
    }
    vm.wait_all().expect("they pass");
    let threads: Vec<_> = receiver.try_iter().collect();
    assert!(threads.windows(2).all(|pair| pair[0] == pair[1]), "all lanes share the one context");
    assert_eq!(vm.full(Place::Host, DType::F32, &[1], 1.0).and_then(|x| x.to_vec::<f32>()), Ok(vec![1.0]));
    assert_eq!(list(|_| Ok(())).len(), 0);
}

/// A function over variables alone has nothing but its captures to be cleared of.
#[test]
fn the_captures_of_a_skipped_function_over_variables_are_gone_once_it_has_passed() {
    let vm = Vm::builder().build().expect("an engine");
    let token = Var::new();
    submit(&vm, |b| b.call_fn("fails", CPU, [token.write()], |_| Err("on purpose".into())))
        .wait()
        .expect_err("it fails");
    let held = Arc::new(());
    let captured = held.clone();
    let skipped = submit(&vm, |b| {
        b.call_fn("skipped", CPU, [token.read()], move |_| {
            let _ = &captured;
            Ok(())
        })
    });
    skipped.wait().expect_err("it is skipped");
    assert_eq!(Arc::strong_count(&held), 1);
}

/// A view that begins after the first element of its storage, with gaps and without. The operand of a call has the offset, and a buffer begins at its first element.
#[test]
fn a_sequence_in_a_function_writes_the_view_that_it_gets() {
    use ep::{CpuSequence, SequenceBuffer, SequenceMemory, SequenceOperand, SequenceStep, SequenceWork};
    let vm = vm();
    let x = on_device(&vm, &[0.0; 60]);
    let columns = x.reshape(&[6, 10]).and_then(|x| x.slice(1, 3..5)).expect("a view");
    for (number, view) in [x.slice(0, 10..20).expect("a view"), columns].into_iter().enumerate() {
        let layout = *view.layout();
        let from_its_first = ep::Layout::with_strides(*layout.shape(), layout.strides(), 0).expect("a layout");
        let fill = SequenceStep {
            work: SequenceWork::Fill(ep::Scalar::from(number as f32 + 1.0)),
            operands: vec![SequenceOperand {
                memory: SequenceMemory::Buffer { index: 0, offset: 0 },
                dtype: DType::F32,
                layout: from_its_first,
                access: ep::Access::Write,
            }],
        };
        let buffer = SequenceBuffer::View { layout, element: 4 };
        let sequence = CpuSequence::over(vec![buffer], vec![fill], &[], &[]).expect("a step within its buffer");
        let ticket = vm.call_fn("fill", CPU, [view.write()], move |context| Ok(sequence.run(context, 0)?));
        ticket.expect("it is taken").wait().expect("it runs");
    }
    let element = |place: usize| match (place, place % 10) {
        (_, 3..5) => 2.0,
        (10..20, _) => 1.0,
        _ => 0.0,
    };
    assert_eq!(x.to_vec::<f32>(), Ok((0..60).map(element).collect()));
}
