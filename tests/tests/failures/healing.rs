//! Poison: how a failure goes from tensor to tensor, what heals it, and what never inherits it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use streamvm::{DType, FnContext, Mode, TimeLimit, Vm};
use streamvm_tests::{CPU, ClosedGate, block_on, failure_of, on_device, submit};

fn vm() -> Vm {
    Vm::builder().build().expect("an engine")
}

fn divided_by_zero(vm: &Vm) -> streamvm::Tensor {
    let ones = vm.full(CPU, DType::I64, &[4], 1i64).expect("a fill");
    let zeros = vm.full(CPU, DType::I64, &[4], 0i64).expect("a fill");
    ones.div(&zeros).expect("submitted")
}

fn refuse(_: &mut FnContext<'_>) -> Result<(), streamvm::FnError> {
    Err("no luck".into())
}

#[test]
fn poison_is_passed_on_with_the_root_cause_and_the_skipped_work_does_not_run() {
    let vm = vm();
    let quotient = divided_by_zero(&vm);
    let ran = Arc::new(AtomicBool::new(false));
    let (sum, copy) = (quotient.add(&quotient).expect("submitted"), {
        let _lane = streamvm::Lane(1).enter();
        quotient.to(streamvm::Place::Host).expect("submitted")
    });
    let flag = ran.clone();
    let ticket = submit(&vm, |b| {
        b.call_fn("reader", CPU, [sum.read()], move |_| {
            flag.store(true, Ordering::SeqCst);
            Ok(())
        })
    });
    let root = failure_of(quotient.wait());
    assert_eq!(failure_of(sum.wait()), root);
    assert_eq!(failure_of(copy.wait()), root);
    assert_eq!(failure_of(ticket.wait()), root);
    assert_eq!(failure_of(copy.to_vec::<i64>()), root);
    assert!(!ran.load(Ordering::SeqCst), "a function that reads poison must not run");
}

#[test]
fn two_views_of_one_failed_tensor_each_show_the_failure() {
    let vm = vm();
    let x = on_device(&vm, &[1.0, 2.0, 3.0, 4.0]);
    let (left, right) = (x.slice(0, 0..2).expect("a view"), x.slice(0, 2..4).expect("a view"));
    submit(&vm, |b| b.call_fn("sour", CPU, [x.update()], refuse));
    let root = failure_of(left.wait());
    assert_eq!(failure_of(right.wait()), root);
    assert_eq!(failure_of(right.to_vec::<f32>()), root);
    assert_eq!(failure_of(left.to_vec::<f32>()), root);
}

#[test]
fn a_full_overwrite_heals_and_an_earlier_waiter_still_sees_the_error() {
    let vm = vm();
    let gate = ClosedGate::new();
    let x = on_device(&vm, &[1.0, 2.0]);
    let held = gate.function();
    let failed = submit(&vm, |b| {
        b.call_fn("sour", CPU, [x.write()], move |context| {
            held(context)?;
            Err("no luck".into())
        })
    });
    // Asked for before the healing write is submitted, woken long after it has passed.
    let early = x.ready().expect("submitted");
    let healed = submit(&vm, |b| b.fill(&x, 7.0));
    gate.open();
    healed.wait().expect("the healing write is fine");
    assert_eq!(x.to_vec::<f32>(), Ok(vec![7.0, 7.0]));
    assert_eq!(x.wait(), Ok(()));
    assert_eq!(failure_of(failed.wait()).what, "sour");
    assert_eq!(failure_of(block_on(early)).what, "sour");
}

#[test]
fn a_reader_queued_before_the_healing_write_is_skipped_all_the_same() {
    let vm = vm();
    let gate = ClosedGate::new();
    let x = on_device(&vm, &[1.0, 2.0]);
    let held = gate.function();
    submit(&vm, |b| {
        b.call_fn("sour", CPU, [x.write()], move |context| {
            held(context)?;
            Err("no luck".into())
        })
    });
    let y = x.neg().expect("submitted");
    submit(&vm, |b| b.fill(&x, 7.0));
    let z = x.neg().expect("submitted");
    gate.open();
    assert_eq!(failure_of(y.to_vec::<f32>()).what, "sour");
    assert_eq!(z.to_vec::<f32>(), Ok(vec![-7.0, -7.0]));
}

#[test]
fn a_partial_write_does_not_heal() {
    let vm = vm();
    let x = on_device(&vm, &[1.0, 2.0, 3.0, 4.0]);
    submit(&vm, |b| b.call_fn("sour", CPU, [x.write()], refuse));
    for range in [0..2, 2..4] {
        let part = x.slice(0, range).expect("a view");
        let ticket = submit(&vm, |b| b.fill(&part, 0.0));
        assert_eq!(failure_of(ticket.wait()).what, "sour");
    }
    assert_eq!(failure_of(x.wait()).what, "sour");
    let all = x.slice(0, 0..4).expect("a view of everything");
    submit(&vm, |b| b.fill(&all, 5.0)).wait().expect("a view of the whole storage heals it");
    assert_eq!(x.to_vec::<f32>(), Ok(vec![5.0; 4]));
}

#[test]
fn a_failed_partial_write_poisons_the_whole_tensor() {
    let vm = vm();
    let x = on_device(&vm, &[1.0, 2.0, 3.0, 4.0]);
    let part = x.slice(0, 1..3).expect("a view");
    submit(&vm, |b| b.call_fn("sour", CPU, [part.write()], refuse));
    assert_eq!(failure_of(x.to_vec::<f32>()).what, "sour");
}

#[test]
fn an_update_of_poison_is_skipped() {
    let vm = vm();
    let x = on_device(&vm, &[1.0]);
    submit(&vm, |b| b.call_fn("sour", CPU, [x.write()], refuse));
    let ran = Arc::new(AtomicBool::new(false));
    let flag = ran.clone();
    let ticket = submit(&vm, |b| {
        b.call_fn("update", CPU, [x.update()], move |_| {
            flag.store(true, Ordering::SeqCst);
            Ok(())
        })
    });
    assert_eq!(failure_of(ticket.wait()).what, "sour");
    assert!(!ran.load(Ordering::SeqCst));
}

#[test]
fn a_fresh_failure_after_a_handled_one_is_told_again() {
    let vm = vm();
    let x = on_device(&vm, &[1.0]);
    for round in 0..3 {
        let ticket = submit(&vm, |b| b.call_fn(format!("fail {round}"), CPU, [x.write()], refuse));
        assert_eq!(failure_of(x.wait()).what, format!("fail {round}"));
        assert!(ticket.wait().is_err());
        submit(&vm, |b| b.fill(&x, 1.0)).wait().expect("healed");
        assert_eq!(x.wait(), Ok(()));
    }
    assert_eq!(vm.wait_all(), Ok(()));
}

/// Hole 4: a waiter looks at the write that was the last when it was called, also where another is submitted, and passes,
/// before it wakes. The waiting thread steps this engine, so the function runs while it waits, and submits that write.
#[test]
fn a_blocking_wait_is_told_of_the_write_that_it_waits_for_and_not_of_a_later_one() {
    for patience in [None, Some(streamvm_tests::PATIENCE)] {
        let builder = Vm::builder().mode(Mode::Simulated { seed: 1 }).step_in_order();
        let vm = Arc::new(builder.build().expect("an engine"));
        let (x, v) = (on_device(&vm, &[1.0, 2.0]), vm.var());
        let (again, tensor, var) = (vm.clone(), x.clone(), v.clone());
        submit(&vm, |b| {
            b.call_fn("sour", CPU, [x.write(), v.write()], move |_| {
                submit(&again, |b| b.fill(&tensor, 7.0));
                submit(&again, |b| b.call_fn("heals", CPU, [var.write()], |_| Ok(())));
                Err("no luck".into())
            })
        });
        let _limit = patience.map(|patience| TimeLimit(patience).enter());
        // Called before the function has run.
        let waited = if patience.is_some() { v.wait() } else { x.wait() };
        assert_eq!(failure_of(waited).what, "sour");
        assert_eq!((x.wait(), v.wait()), (Ok(()), Ok(())), "whoever asks later is told of the later write");
    }
}

/// Hole 4: the handle is dropped, memory and ids are reused, and the late failure must not reach a stranger.
#[test]
fn a_late_failure_of_a_dropped_tensor_reaches_no_tensor_that_reuses_its_memory() {
    let vm = vm();
    let gate = ClosedGate::new();
    let old = on_device(&vm, &[1.0; 64]);
    let held = gate.function();
    let failed = submit(&vm, |b| {
        b.call_fn("late", CPU, [old.write()], move |context| {
            held(context)?;
            Err("too late".into())
        })
    });
    drop(old);
    let strangers: Vec<_> = (0..8).map(|i| vm.full(CPU, DType::F32, &[64], i as f32).expect("a fill")).collect();
    gate.open();
    for (i, stranger) in strangers.iter().enumerate() {
        assert_eq!(stranger.to_vec::<f32>(), Ok(vec![i as f32; 64]));
    }
    assert_eq!(failure_of(failed.wait()).what, "late");
}

/// As above, within one list: the released memory is handed on.
#[test]
fn memory_handed_on_within_a_list_brings_no_poison_along() {
    let vm = vm();
    let old = on_device(&vm, &[1.0; 64]);
    let mut fresh = None;
    submit(&vm, |b| {
        b.call_fn("sour", CPU, [old.write()], refuse)?;
        b.release(&old);
        fresh = Some(b.full(CPU, DType::F32, &[64], 2.0)?);
        Ok(())
    });
    let fresh = fresh.expect("built");
    assert_eq!(fresh.to_vec::<f32>(), Ok(vec![2.0; 64]));
}
