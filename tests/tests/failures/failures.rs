//! Failures: root causes, and who hears of them.

use streamvm::{Cause, DType, Error, FnContext, StreamKey, StreamType, Vm};
use streamvm_tests::{CPU, ClosedGate, block_on, failure_of, on_device, submit};

fn vm() -> Vm {
    Vm::builder().build().expect("an engine")
}

/// 1 / 0 over integers, with the line that issued it.
fn divided_by_zero(vm: &Vm) -> (streamvm::Tensor, u32) {
    let ones = vm.full(CPU, DType::I64, &[4], 1i64).expect("a fill");
    let zeros = vm.full(CPU, DType::I64, &[4], 0i64).expect("a fill");
    (ones.div(&zeros).expect("submitted"), line!())
}

fn refuse(_: &mut FnContext<'_>) -> Result<(), streamvm::FnError> {
    Err("no luck".into())
}

#[test]
fn a_kernel_error_names_op_stream_and_source_line() {
    let vm = vm();
    let (quotient, line) = divided_by_zero(&vm);
    let failure = failure_of(quotient.wait());
    assert_eq!(failure.what, "div");
    assert_eq!(failure.stream, StreamKey::new(CPU, StreamType::Compute, 0));
    assert!(failure.site.file().ends_with("failures.rs"), "{}", failure.site);
    assert_eq!(failure.site.line(), line);
    assert!(matches!(failure.cause, Cause::Device(_)), "{:?}", failure.cause);
    let text = quotient.wait().expect_err("it failed").to_string();
    for part in ["div", "compute@cpu:0:0", "failures.rs", "zero"] {
        assert!(text.contains(part), "{part} is missing in: {text}");
    }
}

#[test]
fn a_function_s_error_names_the_function_and_carries_its_text() {
    let vm = vm();
    let x = on_device(&vm, &[1.0]);
    let _lane = streamvm::Lane(3).enter();
    let ticket = submit(&vm, |b| b.call_fn("sour", CPU, [x.write()], refuse));
    let failure = failure_of(ticket.wait());
    assert_eq!((failure.what.as_str(), failure.stream.lane), ("sour", 3));
    assert_eq!(failure.cause, Cause::Function("no luck".to_owned()));
    assert_eq!(failure_of(x.wait()), failure);
}

#[test]
fn a_panic_is_a_failure_with_its_message_and_the_engine_goes_on() {
    let vm = vm();
    let x = on_device(&vm, &[1.0]);
    let ticket = submit(&vm, |b| b.call_fn("bang", CPU, [x.update()], |_| panic!("it was {}", 42)));
    assert_eq!(failure_of(ticket.wait()).cause, Cause::Panic("it was 42".to_owned()));
    assert_eq!(failure_of(x.to_vec::<f32>()).what, "bang");
    let y = on_device(&vm, &[2.0]);
    assert_eq!(y.neg().and_then(|y| y.to_vec::<f32>()), Ok(vec![-2.0]));
}

/// Hole 21: a payload that panics when it is dropped.
#[test]
fn a_panic_payload_that_panics_when_dropped_is_a_failure_like_any_other() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            std::panic::panic_any(Bomb);
        }
    }
    let vm = vm();
    let x = on_device(&vm, &[1.0]);
    let ticket = submit(&vm, |b| b.call_fn("bomb", CPU, [x.update()], |_| std::panic::panic_any(Bomb)));
    assert!(matches!(failure_of(ticket.wait()).cause, Cause::Panic(_)));
    assert_eq!(failure_of(x.wait()).what, "bomb");
    assert_eq!(on_device(&vm, &[2.0]).to_vec::<f32>(), Ok(vec![2.0]));
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("a capture panics when it is dropped");
    }
}

#[test]
fn captures_that_panic_when_dropped_fail_a_function_that_ran() {
    let vm = vm();
    let x = on_device(&vm, &[1.0]);
    let capture = PanicsWhenDropped;
    let ticket = submit(&vm, |b| {
        b.call_fn("sticky", CPU, [x.update()], move |_| {
            let _used = &capture;
            Ok(())
        })
    });
    assert!(matches!(failure_of(ticket.wait()).cause, Cause::Panic(_)));
    assert_eq!(on_device(&vm, &[2.0]).to_vec::<f32>(), Ok(vec![2.0]));
}

#[test]
fn captures_that_panic_when_dropped_do_not_change_why_an_instruction_was_skipped() {
    let vm = vm();
    let (quotient, _) = divided_by_zero(&vm);
    let capture = PanicsWhenDropped;
    let ticket = submit(&vm, |b| {
        b.call_fn("skipped", CPU, [quotient.read()], move |_| {
            let _used = &capture;
            Ok(())
        })
    });
    assert_eq!(failure_of(ticket.wait()).what, "div");
    assert_eq!(on_device(&vm, &[2.0]).to_vec::<f32>(), Ok(vec![2.0]));
}

#[test]
fn an_error_whose_text_panics_is_still_a_failure() {
    #[derive(Debug)]
    struct Mute;
    impl std::fmt::Display for Mute {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            panic!("no text")
        }
    }
    impl std::error::Error for Mute {}
    let vm = vm();
    let x = on_device(&vm, &[1.0]);
    let ticket = submit(&vm, |b| b.call_fn("mute", CPU, [x.update()], |_| Err(Box::new(Mute))));
    assert!(matches!(failure_of(ticket.wait()).cause, Cause::Function(_)));
}

#[test]
fn independent_work_completes_beside_a_failure() {
    let vm = vm();
    let x = on_device(&vm, &[1.0, 2.0]);
    let (quotient, _) = divided_by_zero(&vm);
    let y = x.add(&x).expect("submitted");
    assert!(quotient.wait().is_err());
    assert_eq!(y.to_vec::<f32>(), Ok(vec![2.0, 4.0]));
    assert_eq!(x.to_vec::<f32>(), Ok(vec![1.0, 2.0]));
}

#[test]
fn every_waiter_sees_the_error_each_time() {
    let vm = vm();
    let x = on_device(&vm, &[1.0, 2.0]);
    let ticket = submit(&vm, |b| b.call_fn("sour", CPU, [x.write()], refuse));
    let root = failure_of(ticket.wait());
    for _ in 0..3 {
        assert_eq!(failure_of(ticket.wait()), root);
        assert_eq!(failure_of(x.wait()), root);
        assert_eq!(failure_of(x.to_vec::<f32>()), root);
        assert_eq!(failure_of(block_on(ticket.future())), root);
        assert_eq!(failure_of(block_on(x.ready().expect("submitted"))), root);
    }
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(failure_of(x.wait()), root));
        }
    });
}

/// Hole 5: failures that no written resource carries.
#[test]
fn a_failing_host_function_reaches_its_ticket_and_wait_all() {
    let vm = vm();
    let ticket = submit(&vm, |b| {
        b.host_fn("save", CPU, || Err("disk full".into()));
        Ok(())
    });
    assert_eq!(failure_of(vm.wait_all()).what, "save");
    assert_eq!(failure_of(ticket.wait()).what, "save");
    assert_eq!(vm.wait_all(), Ok(()), "it has been collected");
}

#[test]
fn wait_all_reports_what_nobody_collected() {
    let vm = vm();
    submit(&vm, |b| {
        b.barrier_with("checkpoint", || Err("disk full".into()));
        Ok(())
    });
    assert_eq!(failure_of(vm.wait_all()).what, "checkpoint");
    let collected = submit(&vm, |b| {
        b.host_fn("seen", CPU, || Err("seen".into()));
        Ok(())
    });
    assert!(collected.wait().is_err());
    assert_eq!(vm.wait_all(), Ok(()), "the ticket has collected it");
}

/// On workers and on streams, collected before or not.
#[test]
fn wait_all_tells_the_root_cause_and_nothing_of_what_was_only_skipped() {
    for workers in [false, true] {
        for told_before in [false, true] {
            let vm = vm();
            let (x, y) = (vm.var(), vm.var());
            let ticket = submit(&vm, |b| {
                let mut b = if workers { b.on_workers() } else { b.on_compute() };
                b.call_fn("root", CPU, [x.write()], refuse)
            });
            let root = told_before.then(|| failure_of(ticket.wait()));
            for skipped in ["skipped", "skipped too"] {
                submit(&vm, |b| {
                    let mut b = if workers { b.on_workers() } else { b.on_compute() };
                    b.call_fn(skipped, CPU, [x.read(), y.write()], |_| Ok(()))
                });
            }
            match root {
                None => assert_eq!(failure_of(vm.wait_all()), failure_of(ticket.wait())),
                Some(root) => assert_eq!(root.what, "root"),
            }
            assert_eq!(vm.wait_all(), Ok(()), "workers: {workers}, told before: {told_before}");
            assert_eq!(failure_of(y.wait()).what, "root");
        }
    }
}

#[test]
fn a_failing_read_only_function_fails_its_ticket_and_poisons_nothing() {
    let vm = vm();
    let x = on_device(&vm, &[3.0]);
    let ticket = submit(&vm, |b| b.call_fn("look", CPU, [x.read()], refuse));
    assert_eq!(failure_of(ticket.wait()).what, "look");
    assert_eq!(x.wait(), Ok(()));
    assert_eq!(x.to_vec::<f32>(), Ok(vec![3.0]));
}

#[test]
fn shutdown_reports_what_nobody_collected() {
    let vm = vm();
    submit(&vm, |b| {
        b.host_fn("save", CPU, || Err("disk full".into()));
        Ok(())
    });
    assert_eq!(failure_of(vm.shutdown(streamvm_tests::PATIENCE)).what, "save");
}

#[test]
fn a_ticket_tells_of_a_failure_in_the_middle_of_its_list() {
    let vm = vm();
    for failing in 0..3 {
        let ticket = submit(&vm, |b| {
            (0..3).for_each(|number| {
                let outcome = if number == failing { Err("no luck".into()) } else { Ok(()) };
                b.host_fn(format!("number {number}"), CPU, move || outcome);
            });
            Ok(())
        });
        let later = submit(&vm, |b| {
            b.host_fn("later", CPU, || Ok(()));
            Ok(())
        });
        assert_eq!(failure_of(ticket.wait()).what, format!("number {failing}"));
        assert_eq!(later.wait(), Ok(()), "another submission's failure is not its own");
    }
}

#[test]
fn a_ticket_of_several_failures_tells_the_first_in_program_order() {
    let vm = Vm::builder().cpu_devices(2).build().expect("an engine");
    let gate = ClosedGate::new();
    let held = gate.function();
    let ticket = submit(&vm, |b| {
        b.host_fn("fine", CPU, || Ok(()));
        b.host_fn("first", streamvm::DeviceId::cpu(1), || Err("1".into()));
        b.call_fn("second", CPU, [], move |context| {
            held(context)?;
            Err("2".into())
        })
    });
    gate.open();
    assert_eq!(failure_of(ticket.wait()).what, "first");
}

#[test]
fn poison_that_a_tensor_holds_outlives_any_number_of_later_failures() {
    let vm = vm();
    let kept = on_device(&vm, &[1.0]);
    submit(&vm, |b| b.call_fn("kept", CPU, [kept.write()], refuse));
    // Many times what the table of failures keeps, and then some submissions that forget.
    for _ in 0..140 {
        submit(&vm, |b| {
            (0..1000).for_each(|_| b.host_fn("noise", CPU, || Err("noise".into())));
            Ok(())
        });
    }
    assert!(vm.wait_all().is_err());
    for _ in 0..10 {
        let x = on_device(&vm, &[1.0]);
        assert_eq!(x.to_vec::<f32>(), Ok(vec![1.0]));
    }
    assert_eq!(failure_of(kept.to_vec::<f32>()).what, "kept");
    assert_eq!(failure_of(kept.neg().and_then(|y| y.to_vec::<f32>())).what, "kept");
}

#[test]
fn out_of_memory_names_the_line_the_op_and_the_source_line() {
    let vm = Vm::builder().cpu_memory_limit(1 << 20).host_memory_limit(1 << 20).build().expect("an engine");
    let x = vm.full(CPU, DType::F32, &[1 << 16], 1.0).expect("a quarter of it");
    let mut line = 0;
    let list = streamvm_tests::list(|b| {
        let half = b.neg(&x)?;
        let rest = b.exp(&half)?;
        line = line!() + 1;
        let _large = b.matmul(
            &rest.try_reshape(&[1 << 16, 1])?.expect("a view"),
            &x.try_reshape(&[1, 1 << 16])?.expect("a view"),
        )?;
        Ok(())
    });
    let error = vm.submit(list).map(drop).expect_err("more than there is");
    let Error::OutOfMemory { line: of_list, what, site, source } = &error else { panic!("{error:?}") };
    assert_eq!(
        (*of_list, what.as_str(), site.line()),
        (Some(2), "matmul, which makes the tensor f32[65536,65536] on cpu:0", line)
    );
    assert!(
        matches!(**source, streamvm::ep::Error::OutOfMemory { requested, .. } if requested >= 1 << 34),
        "{source:?}"
    );
    for part in ["instruction 2", "matmul", "failures.rs", "out of device memory on cpu:0", "limit"] {
        assert!(error.to_string().contains(part), "{part} is missing in: {error}");
    }
    let (eager, line) = (vm.full(CPU, DType::F32, &[1 << 20], 1.0).expect_err("more than there is"), line!());
    assert!(
        matches!(&eager, Error::OutOfMemory { what, site, .. } if what.starts_with("fill, which makes the tensor f32[1048576]") && site.line() == line),
        "{eager:?}"
    );
    let (host, line) = (vm.from_slice(&[0u8; 1 << 21], &[1 << 21]).expect_err("more than there is"), line!());
    let of_host = matches!(&host, Error::OutOfMemory { line: None, site, .. } if site.line() == line);
    assert!(of_host, "{host:?}");
    assert_eq!(x.sum(&[]).and_then(|sum| sum.to_vec::<f32>()), Ok(vec![65536.0]), "the engine goes on");
}

/// Whatever ran first, and wherever: the first in the order of uses is the root cause.
#[test]
fn of_several_inputs_that_failed_the_first_use_is_the_root_cause() {
    let vm = vm();
    for workers in [false, true] {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let inputs = [vm.var(), vm.var(), vm.var()];
            let output = vm.var();
            for (lane, (name, input)) in ["zero", "one", "two"].into_iter().zip(&inputs).enumerate() {
                submit(&vm, |b| {
                    // The first is written where all are read.
                    let mut b = b.on_lane(lane as u32);
                    let mut b = if workers { b.on_workers() } else { b.on_compute() };
                    b.call_fn(name, CPU, [input.write()], refuse)
                });
            }
            let reads = order.map(|place| inputs[place].read());
            let ticket = submit(&vm, |b| {
                let mut b = if workers { b.on_workers() } else { b.on_compute() };
                b.call_fn("reads", CPU, reads.into_iter().chain([output.write()]), |_| Ok(()))
            });
            let root = failure_of(ticket.wait()).what.clone();
            assert_eq!(root, ["zero", "one", "two"][order[0]], "workers: {workers}, order: {order:?}");
        }
    }
}
