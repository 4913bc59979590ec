//! Callers' functions on a stream: what they observe, when they run, when their captures are dropped, how they fail.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use streamvm_ep::{
    Access, CallError, DType, Error, FnContext, InlineFn, LateCause, Layout, MAX_WRITES, Op, Params, Shape,
};

use super::table;
use crate::conformance::lab::{Bench, Fail, ensure, ensure_eq, ensure_matches};

table! { "call":
    reads_and_writes [Calls],
    sees_operands_in_their_order [Calls],
    updates_in_place [Calls],
    writes_bools [Calls],
    without_operands_runs [Calls],
    runs_between_commands [Calls],
    runs_once_each_in_order [Calls],
    keeps_captures_until_it_has_run [Calls],
    drops_captures_once [Calls],
    takes_the_function_out [Calls],
    drops_captures_when_it_fails [Calls],
    drops_captures_when_it_is_refused [Calls],
    takes_large_captures [Calls],
    an_error_is_told [Calls],
    a_panic_is_told [Calls],
    a_stream_goes_on_after_a_failure [Calls],
    overlapping_operands_are_refused [Calls],
    too_many_writes_are_refused [Calls],
    gives_no_slice_of_a_view_with_gaps [Calls],
    does_not_run_in_its_call [Calls Queued],
    is_over_when_its_call_returns [Calls Immediate],
}

/// Counts how often it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn reads_and_writes(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let x = lab.vector(&mut lane, &[1f32, 2.0, 3.0])?;
    let y = lab.tensor(DType::F32, &[3])?;
    lane.call(&[(&x, Access::Read), (&y, Access::Write)], |context: &mut FnContext<'_>| {
        let x = context.reads.get::<f32>(0)?;
        let y = context.writes.take::<f32>(0)?;
        y.iter_mut().zip(x).for_each(|(y, x)| *y = x * 10.0);
        Ok(())
    })?;
    lab.expect(&mut lane, &y, &[10f32, 20.0, 30.0], "what the function wrote")?;
    lab.expect(&mut lane, &x, &[1f32, 2.0, 3.0], "what the function read")
}

fn sees_operands_in_their_order(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let inputs = [1i32, 2, 3].map(|value| lab.vector(&mut lane, &[value]));
    let [a, b, c] = inputs;
    let (a, b, c) = (a?, b?, c?);
    let out = lab.vector(&mut lane, &[0i64; 5])?;
    let wide = lab.vector(&mut lane, &[0i32; 6])?.with(Layout::contiguous(Shape::new(&[2, 3])?));
    let operands =
        [(&a, Access::Read), (&out, Access::Write), (&b, Access::Read), (&wide, Access::ReadWrite), (&c, Access::Read)];
    lane.call(&operands, |context: &mut FnContext<'_>| {
        let rank = context.writes.layout(1)?.shape().rank();
        let counts = [context.reads.len() as i64, rank as i64];
        let read = [0, 1, 2].map(|index| context.reads.get::<i32>(index).map(|slice| i64::from(slice[0])));
        let [a, b, c] = read;
        context.writes.take::<i64>(0)?.copy_from_slice(&[a?, b?, c?, counts[0], counts[1]]);
        Ok(())
    })?;
    lab.expect(&mut lane, &out, &[1i64, 2, 3, 3, 2], "reads, their count and the rank of the second write")
}

fn updates_in_place(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let x = lab.vector(&mut lane, &[1i64, 2, 3])?;
    lane.call(&[(&x, Access::ReadWrite)], |context: &mut FnContext<'_>| {
        context.writes.take::<i64>(0)?.iter_mut().for_each(|x| *x = *x * *x);
        Ok(())
    })?;
    lab.expect(&mut lane, &x, &[1i64, 4, 9], "squares in place")
}

fn writes_bools(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let flags = lab.tensor(DType::Bool, &[4])?;
    lane.fill(&flags, true)?;
    let out = lab.tensor(DType::Bool, &[4])?;
    lane.call(&[(&flags, Access::Read), (&out, Access::Write)], |context: &mut FnContext<'_>| {
        let flags = context.reads.get::<bool>(0)?;
        let out = context.writes.take::<bool>(0)?;
        for (index, (out, flag)) in out.iter_mut().zip(flags).enumerate() {
            *out = *flag && index % 2 == 1;
        }
        Ok(())
    })?;
    ensure_eq!(lab.bytes(&mut lane, &out)?, [0, 1, 0, 1], "bools");
    Ok(())
}

fn without_operands_runs(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let ran = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&ran);
    lane.call(&[], move |context: &mut FnContext<'_>| {
        seen.store(context.reads.is_empty() && context.writes.is_empty(), Ordering::SeqCst);
        Ok(())
    })?;
    lane.sync()?;
    ensure!(ran.load(Ordering::SeqCst), "the function did not run, or saw operands");
    Ok(())
}

fn runs_between_commands(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let x = lab.vector(&mut lane, &[0i32; 4])?;
    let y = lab.tensor(DType::I32, &[4])?;
    lane.fill(&x, 3i32)?;
    lane.call(&[(&x, Access::ReadWrite)], |context: &mut FnContext<'_>| {
        context.writes.take::<i32>(0)?.iter_mut().for_each(|x| *x += 1);
        Ok(())
    })?;
    lane.op(Op::Mul, &[&x, &x], &y, &Params::default())?;
    lane.fill(&x, 0i32)?;
    lane.call(&[(&y, Access::ReadWrite)], |context: &mut FnContext<'_>| {
        context.writes.take::<i32>(0)?.iter_mut().for_each(|y| *y += 1);
        Ok(())
    })?;
    lab.expect(&mut lane, &y, &[17i32; 4], "(3 + 1)^2 + 1")
}

fn runs_once_each_in_order(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let order = Arc::new(Mutex::new(Vec::new()));
    for number in 0..100 {
        let order = Arc::clone(&order);
        lane.call(&[], move |_: &mut FnContext<'_>| {
            order.lock().map_err(|_| "another function panicked")?.push(number);
            Ok(())
        })?;
    }
    lane.sync()?;
    let found = order.lock().map_err(|_| "a function panicked")?.clone();
    ensure_eq!(found, (0..100).collect::<Vec<i32>>(), "the order in which functions ran");
    Ok(())
}

fn keeps_captures_until_it_has_run(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let drops = Arc::new(AtomicUsize::new(0));
    let seen = Arc::new(AtomicUsize::new(usize::MAX));
    let (counted, count, tell) = (Counted(Arc::clone(&drops)), Arc::clone(&drops), Arc::clone(&seen));
    lane.call(&[], move |_: &mut FnContext<'_>| {
        let _counted = &counted;
        tell.store(count.load(Ordering::SeqCst), Ordering::SeqCst);
        Ok(())
    })?;
    lane.sync()?;
    ensure_eq!(seen.load(Ordering::SeqCst), 0, "drops of the captures when the function ran");
    Ok(())
}

fn drops_captures_once(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let drops = Arc::new(AtomicUsize::new(0));
    for _ in 0..10 {
        let counted = Counted(Arc::clone(&drops));
        lane.call(&[], move |_: &mut FnContext<'_>| {
            let _counted = &counted;
            Ok(())
        })?;
    }
    lane.sync()?;
    ensure_eq!(drops.load(Ordering::SeqCst), 10, "drops of the captures of ten functions that have run");
    Ok(())
}

/// The caller keeps the `InlineFn`, whose contents it may drop at any time after the call.
fn takes_the_function_out(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let drops = Arc::new(AtomicUsize::new(0));
    let counted = Counted(Arc::clone(&drops));
    let mut function = InlineFn::new(move |_: &mut FnContext<'_>| {
        let _counted = &counted;
        Ok(())
    });
    lane.call_function(&[], &mut function)?;
    ensure!(!function.holds_something(), "a function that was called is with its caller still");
    lane.sync()?;
    ensure_eq!(drops.load(Ordering::SeqCst), 1, "drops of the captures while the cell lives");
    Ok(())
}

fn drops_captures_when_it_fails(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let drops = Arc::new(AtomicUsize::new(0));
    for panics in [false, true] {
        let counted = Counted(Arc::clone(&drops));
        let cause = lane.failure(|lane| {
            lane.call(&[], move |_: &mut FnContext<'_>| {
                let _counted = &counted;
                if panics {
                    std::panic::resume_unwind(Box::new("it broke"));
                }
                Err("it failed".into())
            })
        })?;
        ensure_eq!(drops.swap(0, Ordering::SeqCst), 1, "drops of the captures after {cause:?}");
    }
    Ok(())
}

fn drops_captures_when_it_is_refused(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let x = lab.vector(&mut lane, &[1i32; 2])?;
    let drops = Arc::new(AtomicUsize::new(0));
    let counted = Counted(Arc::clone(&drops));
    lane.failure(|lane| {
        lane.call(&[(&x, Access::Write), (&x, Access::Read)], move |_: &mut FnContext<'_>| {
            let _counted = &counted;
            Ok(())
        })
    })?;
    ensure_eq!(drops.load(Ordering::SeqCst), 1, "drops of the captures of a refused call");
    Ok(())
}

fn takes_large_captures(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let out = lab.vector(&mut lane, &[0i64])?;
    let numbers: [i64; 64] = std::array::from_fn(|index| index as i64);
    lane.call(&[(&out, Access::Write)], move |context: &mut FnContext<'_>| {
        context.writes.take::<i64>(0)?[0] = numbers.iter().sum();
        Ok(())
    })?;
    lab.expect(&mut lane, &out, &[64i64 * 63 / 2], "the sum of 512 bytes of captures")
}

fn an_error_is_told(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let cause = lane.failure(|lane| lane.call(&[], |_: &mut FnContext<'_>| Err("no such luck".into())))?;
    ensure_matches!(&cause, LateCause::Function(text) if text.contains("no such luck"), "a function's error");
    Ok(())
}

fn a_panic_is_told(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let cause = lane.failure(|lane| {
        lane.call(&[], |_: &mut FnContext<'_>| std::panic::resume_unwind(Box::new("a function broke".to_owned())))
    })?;
    ensure_matches!(&cause, LateCause::Panic(text) if text.contains("a function broke"), "a function's panic");
    Ok(())
}

fn a_stream_goes_on_after_a_failure(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let x = lab.vector(&mut lane, &[0i32; 2])?;
    lane.fill(&x, 1i32)?;
    lane.failure(|lane| lane.call(&[], |_: &mut FnContext<'_>| Err("first".into())))?;
    lane.call(&[(&x, Access::ReadWrite)], |context: &mut FnContext<'_>| {
        context.writes.take::<i32>(0)?.iter_mut().for_each(|x| *x += 1);
        Ok(())
    })?;
    lab.expect(&mut lane, &x, &[2i32; 2], "what a function behind a failed one wrote")
}

fn overlapping_operands_are_refused(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let x = lab.vector(&mut lane, &[1i32, 2, 3, 4])?;
    let (low, high) = (x.with(x.layout.slice(0, 0..3)?), x.with(x.layout.slice(0, 2..4)?));
    let pairs = [
        [(&x, Access::Read), (&x, Access::Write)],
        [(&low, Access::ReadWrite), (&high, Access::Read)],
        [(&low, Access::Write), (&high, Access::Write)],
    ];
    for operands in pairs {
        let ran = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ran);
        let cause = lane.failure(|lane| {
            lane.call(&operands, move |_: &mut FnContext<'_>| {
                seen.store(true, Ordering::SeqCst);
                Ok(())
            })
        })?;
        ensure_matches!(cause, LateCause::Device(Error::Overlap { .. }), "overlapping operands");
        ensure!(!ran.load(Ordering::SeqCst), "a function with overlapping operands ran");
    }
    lane.call(&[(&low, Access::Read), (&high, Access::Read)], |_: &mut FnContext<'_>| Ok(()))?;
    lab.expect(&mut lane, &x, &[1i32, 2, 3, 4], "memory after refused calls")
}

fn too_many_writes_are_refused(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let bytes = lab.vector(&mut lane, &[0u8; MAX_WRITES + 1])?;
    let parts: Vec<_> = (0..=MAX_WRITES).map(|at| bytes.raw(at..at + 1)).collect();
    let operands: Vec<_> = parts.iter().map(|part| (part, Access::Write)).collect();
    let cause = lane.failure(|lane| lane.call(&operands, |_: &mut FnContext<'_>| Ok(())))?;
    let expected = Error::TooManyWrites { found: MAX_WRITES + 1, limit: MAX_WRITES };
    ensure_eq!(cause, LateCause::Device(expected), "one write too many");
    lane.call(&operands[1..], |context: &mut FnContext<'_>| {
        (0..context.writes.len()).try_for_each(|index| context.writes.take::<u8>(index).map(|byte| byte[0] = 1))?;
        Ok(())
    })?;
    let mut expected = [1u8; MAX_WRITES + 1];
    expected[0] = 0;
    lab.expect(&mut lane, &bytes, &expected, "as many writes as there may be")
}

fn gives_no_slice_of_a_view_with_gaps(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let x = lab.vector(&mut lane, &[1i32, 2, 3, 4])?;
    let gaps = x.with(Layout::with_strides(Shape::new(&[2])?, &[2], 0)?);
    let seen = Arc::new(Mutex::new(None));
    let tell = Arc::clone(&seen);
    lane.call(&[(&gaps, Access::Read)], move |context: &mut FnContext<'_>| {
        let found = context.reads.get::<i32>(0).map(|slice| slice.to_vec());
        *tell.lock().map_err(|_| "nobody panics under the lock")? = Some(found);
        Ok(())
    })?;
    lane.sync()?;
    let found = seen.lock().map_err(|_| "a function panicked")?.clone();
    ensure_matches!(found, Some(Err(Error::Slice { access: "read", index: 0, .. })), "a slice of every other element");
    Ok(())
}

fn does_not_run_in_its_call(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let gate = crate::support::gate::ClosedGate::new();
    // A device that ran the function within the call would wait for ever, since the gate opens only after the call.
    lane.call(&[], gate.function()).map_err(|error: CallError| Fail::from(error))?;
    let event = lab.event();
    lane.record(event)?;
    ensure_eq!(lab.device.query(event)?, false, "has a function passed that waits for its caller");
    gate.open();
    lab.wait(event)?;
    ensure_eq!(gate.entered(), 1, "times that the function ran");
    Ok(())
}

fn is_over_when_its_call_returns(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let ran = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&ran);
    lane.call(&[], move |_: &mut FnContext<'_>| {
        seen.store(true, Ordering::SeqCst);
        Ok(())
    })?;
    ensure!(ran.load(Ordering::SeqCst), "the call returned before the function had run");
    Ok(())
}
