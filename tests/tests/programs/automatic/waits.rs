//! Automatic programs: threads that hold calls back keep nobody waiting, and no call that was taken is lost without an error.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use streamvm::ep::faults::{Fault, FaultPlan, Point, Rule};
use streamvm::{DType, DeviceId, Error, InstructionsBuilder, Mode, Tensor, TimeLimit, Vm};
use streamvm_tests::{CPU, ClosedGate, failure_of, on_device, until, within};

use super::{automatic, is_held};

/// `w` becomes `w / 2 + 1`; the result is `w + w` before that.
fn step(w: &Tensor) -> Result<Tensor, Error> {
    let twice = (w + w)?;
    w.copy_from(&(&(w * 0.5)? + 1.0)?)?;
    Ok(twice)
}

/// Makes steps until one is refused; returns the results of the others, and the refusal.
fn steps_until_refused(w: &Tensor) -> (Vec<Tensor>, Error) {
    let mut results = Vec::new();
    loop {
        match step(w) {
            Ok(result) => results.push(result),
            Err(error) => return (results, error),
        }
    }
}

/// An engine in which a short queue is full: another thread makes steps over `w`, behind a function that is held at a gate, until it is blocked.
/// `f` may close the engine; if not, this does. Every result that was taken has to be there once the gate is open.
fn beside_a_blocked_thread(f: impl FnOnce(Vm, &Tensor) -> Option<Vm> + Send + 'static) {
    within("a blocked thread", move || {
        let vm = automatic().max_instructions(16).build().expect("an engine");
        let w = on_device(&vm, &[8.0]);
        for _ in 0..4 {
            step(&w).expect("it is taken");
        }
        w.wait().expect("it runs");
        let gate = ClosedGate::new();
        vm.call_fn("is held", CPU, [w.update()], gate.function()).expect("it is taken");
        thread::scope(|threads| {
            let steps = threads.spawn(|| steps_until_refused(&w));
            until("the thread is blocked", || vm.stats().blocked_submitters > 0);
            let vm = f(vm, &w);
            vm.iter().for_each(Vm::close);
            let (results, refused) = steps.join().expect("no panic");
            assert_eq!(refused, Error::Shutdown);
            gate.open();
            for (number, result) in results.iter().enumerate() {
                assert_eq!(result.wait(), Ok(()), "result {number} of {}", results.len());
            }
            assert_eq!(w.wait(), Ok(()));
        });
    });
}

#[test]
fn close_rescues_a_thread_that_is_blocked_with_calls_held_back() {
    beside_a_blocked_thread(|vm, _| {
        vm.close();
        Some(vm)
    });
}

#[test]
fn shutdown_keeps_its_limit_beside_a_blocked_thread() {
    beside_a_blocked_thread(|vm, _| {
        let limit = Duration::from_millis(50);
        assert_eq!(vm.shutdown(limit), Err(Error::Timeout(limit)));
        None
    });
}

#[test]
fn nobody_waits_longer_than_asked_beside_a_blocked_thread() {
    beside_a_blocked_thread(|vm, w| {
        let mut builder = InstructionsBuilder::new();
        builder.fill(w, 1.0).expect("it fits");
        let refused = vm.try_submit(builder.finish()).map(drop);
        assert!(matches!(refused, Err(Error::WouldBlock { .. })), "{refused:?}");
        let limit = Duration::from_millis(50);
        for _ in 0..3 {
            assert_eq!(TimeLimit(limit).run(|| w.wait()), Err(Error::Timeout(limit)));
            assert_eq!(TimeLimit(limit).run(|| vm.wait_all()), Err(Error::Timeout(limit)));
            assert_eq!(TimeLimit(limit).run(|| w.fill(1.0)), Err(Error::Timeout(limit)));
        }
        assert!(format!("{vm:?}").contains("in_flight"));
        assert!(vm.profile().is_none());
        Some(vm)
    });
}

/// What a thread holds back when another one closes the engine is submitted before, or the call is refused.
#[test]
fn no_call_is_lost_when_another_thread_closes_the_engine() {
    within("closing", || {
        let mut taken = 0;
        for round in 0..150u32 {
            let vm = automatic().build().expect("an engine");
            let w = on_device(&vm, &[8.0]);
            for _ in 0..4 {
                step(&w).expect("it is taken");
            }
            thread::scope(|threads| {
                let steps = threads.spawn(|| steps_until_refused(&w));
                thread::sleep(Duration::from_micros(u64::from(round % 30) * 20));
                vm.close();
                let (results, refused) = steps.join().expect("no panic");
                assert_eq!(refused, Error::Shutdown);
                for (number, result) in results.iter().enumerate() {
                    assert_eq!(result.wait(), Ok(()), "round {round}, result {number} of {}", results.len());
                }
                assert_eq!(w.wait(), Ok(()));
                taken += results.len();
            });
        }
        assert!(taken > 150, "threads made steps while their engines were closed: {taken}");
    });
}

#[test]
fn counters_do_not_cut_sequences() {
    let vm = automatic().mode(Mode::Inline).build().expect("an engine");
    let w = on_device(&vm, &[8.0]);
    let mut held = 0;
    for _ in 0..10 {
        let twice = (&w + &w).expect("it is taken");
        let _ = (vm.stats(), vm.profile(), format!("{vm:?}"));
        held += u32::from(is_held(&twice));
        w.copy_from(&(&(&w * 0.5).expect("it is taken") + 1.0).expect("it is taken")).expect("it is taken");
    }
    w.wait().expect("it runs");
    assert_eq!((held, vm.stats().automatic.replays, vm.stats().automatic.fallbacks), (8, 8, 0));
}

const ELEMENTS: usize = 1 << 18;

fn large(vm: &Vm) -> Tensor {
    vm.ones(CPU, DType::F32, &[ELEMENTS]).expect("there is memory")
}

/// The first call of [`write_in_place`].
fn negated(x: &Tensor) -> Result<Tensor, Error> {
    x.neg()
}

/// Computes `b` from `x`, overwrites `w` with it, and adds `x`.
fn write_in_place(x: &Tensor, w: &Tensor) -> Result<[Tensor; 3], Error> {
    let a = negated(x)?;
    let b = a.exp()?;
    w.copy_from(&b)?;
    let c = (w + x)?;
    Ok([a, b, c])
}

/// A call that is refused when it is submitted leaves no old value where it would have written, whoever submits it.
#[test]
fn what_a_refused_call_would_have_changed_has_failed() {
    type Submits = fn(&Vm, &Tensor);
    let submits: &[(&str, Submits)] = &[
        ("a read", |_, w| drop(w.to_vec::<f32>())),
        ("a wait for everything", |vm, _| assert!(matches!(vm.wait_all(), Err(Error::OutOfMemory { .. })))),
        ("a barrier of another thread", |vm, _| {
            thread::scope(|threads| {
                let mut builder = InstructionsBuilder::new();
                builder.barrier();
                let barrier = threads.spawn(move || vm.submit(builder.finish()).map(drop));
                assert_eq!(barrier.join().expect("no panic"), Ok(()), "it is no error of that thread");
            });
        }),
        ("a read by another thread", |_, w| {
            thread::scope(|threads| {
                let read = threads.spawn(|| w.to_vec::<f32>().map(drop));
                assert!(matches!(read.join().expect("no panic"), Err(Error::Failed(_))));
            });
        }),
        ("the end", |vm, _| vm.close()),
    ];
    let bytes = (ELEMENTS * 4) as u64;
    for (name, submit) in submits {
        let vm = automatic().mode(Mode::Inline).cpu_memory_limit(8 * bytes).build().expect("an engine");
        let (x, w) = (large(&vm), large(&vm));
        for _ in 0..4 {
            write_in_place(&x, &w).expect("it is taken")[2].wait().expect("it runs");
        }
        // With `x` and `w`, seven of eight are taken: there is memory for the first result.
        let kept = [(); 5].map(|()| large(&vm));
        vm.wait_all().expect("it runs");
        let [a, b, c] = write_in_place(&x, &w).expect("all of it is held back");
        assert!(is_held(&a) && is_held(&b) && is_held(&c), "{name}");
        submit(&vm, &w);
        assert_eq!(a.wait(), Ok(()), "{name}");
        let failure = failure_of(w.wait());
        let text = failure.to_string();
        assert_eq!(failure.what, "copy", "{name}: {text}");
        assert!(text.contains("automatic/waits.rs") && text.contains("out of device memory"), "{name}: {text}");
        if vm.is_closed() {
            continue;
        }
        assert_eq!(failure_of(w.to_vec::<f32>()).what, "copy", "{name}");
        assert!(matches!(b.wait(), Err(Error::OutOfMemory { .. })), "{name}");
        drop((a, b, c, kept));
        w.fill(3.0).expect("it is taken");
        assert_eq!(w.to_vec::<f32>().expect("it is written again")[0], 3.0, "{name}");
    }
}

/// A thread of the engine may not wait for memory, the thread that made the call may: so the call stays held back until that thread waits.
#[test]
fn an_idle_thread_does_not_lose_calls_for_which_there_will_be_memory() {
    within("memory", || {
        let bytes = (ELEMENTS * 4) as u64;
        let vm = automatic().cpu_memory_limit(8 * bytes).build().expect("an engine");
        let (x, w) = (large(&vm), large(&vm));
        for _ in 0..4 {
            write_in_place(&x, &w).expect("it is taken")[2].wait().expect("it runs");
        }
        let gate = ClosedGate::new();
        let kept = [(); 6].map(|()| large(&vm));
        vm.wait_all().expect("it runs");
        let passed = (*gate).clone();
        vm.push("keeps memory", [], move || {
            passed.pass();
            drop(kept);
            Ok(())
        })
        .expect("it is taken");
        let a = negated(&x).expect("it is held back");
        thread::sleep(Duration::from_millis(50));
        assert!(is_held(&a), "there is no memory for it");
        gate.open();
        assert_eq!(a.to_vec::<f32>().expect("there is memory when the function has passed")[0], -1.0);
    });
}

/// A run of a program with blocks comes behind what uses its tensors, and not behind all calls.
#[test]
fn runs_with_blocks_do_not_submit_calls_of_threads_that_use_other_tensors() {
    // A device runs the blocks, so the run is an instruction with an order of its own.
    let sim = DeviceId::sim(0);
    let vm = automatic().mode(Mode::Simulated { seed: 7 }).sim_devices(1).build().expect("an engine");
    let (x, w) = (on_device(&vm, &[8.0]), on_device(&vm, &[8.0]));
    let count = vm.zeros(sim, DType::F32, &[1]).expect("a tensor");
    let program = vm
        .record("counts", |r| {
            let counter = r.parameter("count", &count)?;
            let three = r.full(sim, DType::F32, &[1], 3.0)?;
            let goes_on = counter.lt(&three)?;
            r.while_true(&goes_on, || {
                counter.copy_from(&(&counter + 1.0)?)?;
                goes_on.copy_from(&counter.lt(&three)?)
            })
        })
        .expect("it is recorded");
    let counts = vm.compile(&program, &[("count", &count)], &Default::default()).expect("it is compiled");
    for _ in 0..4 {
        write_in_place(&x, &w).expect("it is taken")[2].wait().expect("it runs");
    }
    let a = negated(&x).expect("it is held back");
    let run = || thread::scope(|threads| threads.spawn(|| counts.run(&[]).map(drop)).join().expect("no panic"));
    assert_eq!(run(), Ok(()));
    assert!(is_held(&a));
    assert_eq!(count.to_vec::<f32>().expect("it runs"), [3.0]);
    assert!(!is_held(&a), "a read of this thread");
}

/// A function that was submitted before is given a tensor whose call is held back.
#[test]
fn functions_come_behind_held_back_calls() {
    within("functions", || {
        let vm = automatic().build().expect("an engine");
        let w = on_device(&vm, &[8.0]);
        let (mut expected, mut met) = (8.0, 0);
        for round in 0..20 {
            let ((give, given), (tell, told)) = (channel::<Tensor>(), channel());
            vm.push("computes", [], move || {
                let tensor = given.recv()?;
                // Another thread may be submitting the calls just then.
                let sum = loop {
                    match &tensor + 1.0 {
                        Err(Error::WouldBlock { .. }) => thread::yield_now(),
                        sum => break sum?,
                    }
                };
                tell.send(sum).map_err(|_| "nobody waits")?;
                Ok(())
            })
            .expect("it is taken");
            let twice = step(&w).expect("it is taken");
            met += u32::from(is_held(&twice));
            give.send(twice).expect("the function listens");
            let sum = told.recv().expect("it is sent");
            assert_eq!(sum.to_vec::<f32>().expect("it runs"), [2.0 * expected + 1.0], "round {round}");
            expected = expected * 0.5 + 1.0;
        }
        assert!(met > 0, "calls were held back when functions were given their results");
    });
}

/// A wait that submits a call which is refused waits all the same, and then returns the error.
#[test]
fn a_wait_that_returns_a_refusal_has_waited() {
    let bytes = (ELEMENTS * 4) as u64;
    for (seed, way) in (1..=12).zip([0, 1, 2].into_iter().cycle()) {
        let faults = FaultPlan::new();
        let builder = automatic().mode(Mode::Simulated { seed }).faults(faults.clone());
        let vm = builder.cpu_memory_limit(8 * bytes).build().expect("an engine");
        let (x, w) = (large(&vm), large(&vm));
        for _ in 0..4 {
            write_in_place(&x, &w).expect("it is taken")[2].wait().expect("it runs");
        }
        let kept = [(); 6].map(|()| large(&vm));
        vm.wait_all().expect("it runs");
        // Unlike a lack of memory, for which the engine waits for everything.
        faults.add(Rule::new(Point::Allocate, Fault::Error)).expect("a rule");
        let v = vm.var();
        let push = |_| vm.push("is slow", [v.write()], || Ok(())).expect("it is taken");
        let pushes: Vec<_> = (0..30).map(push).collect();
        let last = pushes.last().expect("there are some");
        assert!(!last.is_passed(), "seed {seed}: the wait has work");
        let a = negated(&x).expect("it is held back");
        assert!(is_held(&a));
        let waited = match way {
            0 => vm.wait_all(),
            1 => last.wait(),
            _ => v.wait(),
        };
        assert!(matches!(waited, Err(Error::Device(_))), "seed {seed}: {waited:?}");
        assert!(last.is_passed(), "seed {seed}: it has waited");
        assert_eq!(a.wait(), waited, "seed {seed}: it was the call that was refused");
        faults.stop();
        drop((a, kept));
        assert_eq!(negated(&x).and_then(|a| a.to_vec::<f32>()).expect("there is memory again")[0], -1.0);
    }
}
