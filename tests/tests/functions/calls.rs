//! Functions that are run by a call, without a list: they are what a list of one would be, and borrow what they use.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use streamvm::{BuildError, DType, Error, FnContext, FnError, Lane, MemoryKind, Place, Tensor, Var, Vm};
use streamvm_tests::{CPU, ClosedGate, engines, failure_of, on_device, submit, used_bytes};

/// Adds to each element of what is written.
fn add(number: f32) -> impl FnOnce(&mut FnContext<'_>) -> Result<(), FnError> + Send + 'static {
    move |context| {
        context.writes.take::<f32>(0)?.iter_mut().for_each(|x| *x += number);
        Ok(())
    }
}

#[test]
fn calls_and_lists_run_in_the_order_in_which_they_were_issued() {
    for (name, vm) in engines() {
        let x = on_device(&vm, &[0.0]);
        for step in 0..40 {
            let _lane = Lane(step % 3).enter();
            let double = |context: &mut FnContext<'_>| {
                context.writes.take::<f32>(0)?[0] *= 1.5;
                Ok(())
            };
            if step % 2 == 0 {
                vm.call_fn("add", CPU, [x.update()], add(1.0)).expect("it is taken");
            } else {
                submit(&vm, |b| b.call_fn("double", CPU, [x.update()], double));
            }
        }
        let expected = (0..40).fold(0.0f32, |x, step| if step % 2 == 0 { x + 1.0 } else { x * 1.5 });
        assert_eq!(x.to_vec::<f32>(), Ok(vec![expected]), "{name}");
    }
}

#[test]
fn a_call_uses_as_much_as_it_declares() {
    for (name, vm) in engines() {
        let ones: Vec<Tensor> = (0..100).map(|_| on_device(&vm, &[1.0])).collect();
        let (sum, token) = (on_device(&vm, &[0.0]), vm.var());
        let uses = ones.iter().map(Tensor::read).chain([token.update(), sum.write()]);
        let ticket = vm.call_fn("sum", CPU, uses, |context| {
            let mut sum = 0.0;
            for read in 0..context.reads.len() {
                sum += context.reads.get::<f32>(read)?[0];
            }
            context.writes.take::<f32>(0)?[0] = sum;
            Ok(())
        });
        assert_eq!(ticket.expect("it is taken").wait(), Ok(()), "{name}");
        assert_eq!(sum.to_vec::<f32>(), Ok(vec![100.0]), "{name}");
    }
}

/// The memory of a handle that goes while the call that borrowed it has not run: the next owner comes after it.
#[test]
fn what_a_call_used_may_be_dropped_when_it_has_returned() {
    const ELEMENTS: usize = 1 << 18;
    let vm = Vm::builder().cpu_memory_limit(2 << 20).build().expect("an engine");
    let (gate, seen) = (ClosedGate::new(), Arc::new(AtomicUsize::new(0)));
    let x = vm.full(CPU, DType::F32, &[ELEMENTS + ELEMENTS / 2], 1.0).expect("there is room");
    let (held, sum) = (gate.function(), seen.clone());
    vm.call_fn("reader", CPU, [x.read()], move |context| {
        held(context)?;
        sum.store(context.reads.get::<f32>(0)?.iter().sum::<f32>() as usize, Ordering::Relaxed);
        Ok(())
    })
    .expect("it is taken");
    drop(x);
    let next = {
        let _lane = Lane(1).enter();
        vm.full(CPU, DType::F32, &[ELEMENTS + ELEMENTS / 2], 2.0).expect("the block is given out at once, with a wait")
    };
    gate.open();
    next.wait().expect("it passes once the reader has");
    assert_eq!(seen.load(Ordering::Relaxed), ELEMENTS + ELEMENTS / 2);
    drop(next);
    vm.wait_all().expect("all passes");
    assert_eq!(used_bytes(&vm, CPU, MemoryKind::Device), 0, "a call keeps nothing");
}

/// A call goes through the steps of OOM recovery as a list does: the memory that it needs is held by what has not run.
#[test]
fn a_call_waits_for_memory_that_others_give_back() {
    let vm = Vm::builder().cpu_memory_limit(1 << 20).build().expect("an engine");
    let fill = |value| vm.full(CPU, DType::F32, &[1 << 17], value).expect("there is room");
    let (x, y, gate) = (fill(1.0), fill(2.0), ClosedGate::new());
    let (held, captured) = (gate.function(), x.clone());
    vm.call_fn("holder", CPU, [x.read()], move |context| {
        held(context)?;
        drop(captured);
        Ok(())
    })
    .expect("it is taken");
    let refused = {
        let _soon = streamvm::TimeLimit(Duration::from_millis(20)).enter();
        y.add(&y).map(drop)
    };
    assert!(matches!(refused, Err(Error::Timeout { .. } | Error::OutOfMemory { .. })), "both are in use: {refused:?}");
    drop(x);
    let sum = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| y.add(&y));
        gate.open();
        waiting.join().expect("no panic")
    });
    assert_eq!(sum.expect("drained and tried again").to_vec::<f32>().map(|sum| sum[0]), Ok(4.0));
}

#[test]
fn a_call_is_refused_for_the_reasons_of_a_list_and_leaves_nothing() {
    for (name, vm) in engines() {
        let (x, captured) = (on_device(&vm, &[1.0, 2.0]), Arc::new(()));
        let never = || {
            let captured = captured.clone();
            move |_: &mut FnContext<'_>| -> Result<(), FnError> { unreachable!("it was refused: {captured:?}") }
        };
        let before: u64 = vm.stats().streams.iter().map(|stream| stream.instructions).sum();

        let overlap = vm.call_fn("f", CPU, [x.read(), x.write()], never()).map(drop);
        assert!(matches!(overlap, Err(Error::Build { error: BuildError::Overlap { .. }, .. })), "{name}: {overlap:?}");
        let wide = x.slice(0, 0..1).and_then(|part| part.broadcast_to(&[3])).expect("a view");
        let broadcast = vm.call_fn("f", CPU, [wide.update()], never()).map(drop);
        assert!(matches!(broadcast, Err(Error::Build { .. })), "{name}: {broadcast:?}");

        let mut b = streamvm::InstructionsBuilder::new();
        let unwritten = b.allocate(CPU, DType::F32, &[2]).expect("a shape");
        let early = vm.call_fn("f", CPU, [unwritten.read()], never()).map(drop);
        assert!(matches!(early, Err(Error::NeverWritten { line: 0, .. })), "{name}: {early:?}");
        let other = Vm::builder().build().expect("another engine");
        let foreign = vm.call_fn("f", CPU, [on_device(&other, &[1.0]).read()], never()).map(drop);
        assert!(matches!(foreign, Err(Error::Foreign { line: 0, .. })), "{name}: {foreign:?}");
        let gone = Var::new();
        vm.delete(&gone, || ()).expect("it is taken");
        let released = vm.push("f", [gone.read()], || unreachable!("it was refused")).map(drop);
        assert!(matches!(released, Err(Error::Released { line: 0, .. })), "{name}: {released:?}");
        let absent = vm.call_fn("f", streamvm::DeviceId::cpu(77), [], never()).map(drop);
        assert!(absent.is_err(), "{name}: there is no such device");

        let after: u64 = vm.stats().streams.iter().map(|stream| stream.instructions).sum();
        assert_eq!(
            (Arc::strong_count(&captured), after - before),
            (1, 2),
            "{name}: the deletion alone ran, and its release"
        );
        assert_eq!(x.to_vec::<f32>(), Ok(vec![1.0, 2.0]), "{name}");
        vm.call_fn("f", CPU, [unwritten.write()], add(0.0)).expect("a first write is in order");
    }
}

#[test]
fn uses_that_panic_when_they_are_listed_leave_nothing() {
    for (name, vm) in engines() {
        let x = on_device(&vm, &[1.0]);
        let uses = || [x.update()].into_iter().chain(std::iter::from_fn(|| panic!("no more")));
        let panicked = catch_unwind(AssertUnwindSafe(|| vm.call_fn("f", CPU, uses(), add(1.0)).map(drop)));
        assert!(panicked.is_err(), "{name}");
        vm.call_fn("f", CPU, [x.update()], add(2.0)).expect("it is taken");
        assert_eq!(x.to_vec::<f32>(), Ok(vec![3.0]), "{name}");
    }
}

#[test]
fn a_failure_of_a_call_tells_its_name_and_line() {
    for (name, vm) in engines() {
        let (x, token) = (on_device(&vm, &[1.0]), vm.var());
        let line = line!() + 1;
        let ticket = vm.call_fn("fails", CPU, [x.update(), token.update()], |_| Err("on purpose".into()));
        let failure = failure_of(ticket.expect("it is taken").wait());
        assert_eq!((&*failure.what, failure.site.line()), ("fails", line), "{name}");
        assert_eq!(failure_of(x.wait()).what, "fails", "{name}");
        let line = line!() + 1;
        let ticket = vm.push("pushed", [token.write()], || Err("on purpose".into()));
        assert_eq!(failure_of(ticket.expect("it is taken").wait()).site.line(), line, "{name}");
        x.to(Place::Host).expect("it is taken").wait().expect_err("it reads what has failed");
    }
}
