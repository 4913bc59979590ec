//! Functions pushed over variables and tensors: their order, what may be used, waiting, versions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use streamvm::{Cause, DType, DeviceId, Error, InstructionsBuilder, Mode, Place, TimeLimit, Use, Var, Vm};
use streamvm_tests::{CPU, ClosedGate, PATIENCE, block_on, engines, failure_of, threaded};

/// A read and a write of one variable in one function: MXNet's engine hangs there.
#[test]
fn the_same_variable_used_twice_is_used_once_by_the_stronger_use() {
    for (name, vm) in engines() {
        let (v, w) = (vm.var(), vm.var());
        let at = Arc::new(AtomicU64::new(0));
        let step = |uses: Vec<Use>, expected: u64| {
            let at = at.clone();
            vm.push("step", uses, move || {
                let before = at.fetch_add(1, Ordering::Relaxed);
                if before == expected { Ok(()) } else { Err(format!("step {expected} after {before}").into()) }
            })
            .expect("it is taken")
        };
        for round in 0..50 {
            let duplicates = [
                vec![v.read(), v.write()],
                vec![v.write(), v.read(), v.read()],
                vec![v.write(), v.write()],
                vec![v.read(), w.read(), v.update(), w.write(), v.read()],
                vec![w.update(), v.write(), w.read(), w.update()],
            ];
            for (place, uses) in duplicates.into_iter().enumerate() {
                step(uses, round * 5 + place as u64);
            }
        }
        v.wait().unwrap_or_else(|error| panic!("{name}: {error}"));
        vm.wait_all().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(at.load(Ordering::Relaxed), 250, "{name}");
    }
}

#[test]
fn tensors_give_order_alone_wherever_they_live_and_are_not_written_by_it() {
    for (name, vm) in engines() {
        let x = vm.from_slice(&[1.0_f32, 2.0], &[2]).expect("a tensor").to(CPU).expect("a copy");
        let seen = Arc::new(AtomicU64::new(0));
        let view = x.slice(0, 0..1).expect("a view");
        for expected in 0..20 {
            let seen = seen.clone();
            vm.push("order", [x.read(), view.write(), x.write()], move || {
                let before = seen.fetch_add(1, Ordering::Relaxed);
                if before == expected { Ok(()) } else { Err("out of order".into()) }
            })
            .expect("it is taken");
        }
        assert_eq!(x.to_vec::<f32>(), Ok(vec![1.0, 2.0]), "{name}: a read comes after all of them");
        assert_eq!(seen.load(Ordering::Relaxed), 20, "{name}");

        let mut builder = InstructionsBuilder::new();
        let fresh = builder.allocate(Place::Host, DType::F32, &[2]).expect("a tensor");
        vm.submit(builder.finish()).expect("it is taken");
        let refused = vm.push("order", [fresh.write()], || Ok(())).map(drop);
        let is_expected = matches!(&refused, Err(Error::NeverWritten { line: 0, what, .. }) if what == "order");
        assert!(is_expected, "{name}: memory that nothing wrote stays unreadable: {refused:?}");
    }
}

#[test]
fn a_list_may_hold_a_pushed_function_and_prints_it() {
    let v = Var::new();
    let mut builder = InstructionsBuilder::new();
    builder.on_workers().push("tidy up", CPU, [v.read(), v.write()], || Ok(()));
    let text = builder.list().to_string();
    assert!(text.contains("%0 push     workers@cpu:0:0       \"tidy up\" read v0 write v0"), "{text}");
    builder.release_var(&v);
    let text = builder.list().to_string();
    assert!(text.contains("release") && text.trim_end().ends_with("v0"), "{text}");
    let again: streamvm::InstructionList = text.parse().expect("it parses");
    assert_eq!(again.to_string(), text);
}

#[test]
fn waiting_for_a_variable_waits_for_its_writes_and_not_for_its_reads() {
    for (name, builder) in threaded() {
        let vm = builder.workers(2).build().expect("an engine");
        let (v, gate) = (vm.var(), ClosedGate::new());
        assert_eq!(v.wait(), Ok(()), "{name}: nothing has used it");
        let held = gate.clone();
        vm.push("read", [v.read()], move || {
            held.pass();
            Ok(())
        })
        .expect("it is taken");
        assert_eq!(v.wait(), Ok(()), "{name}: a read is not waited for");
        vm.push("write", [v.write()], || Ok(())).expect("it is taken");
        let before = Instant::now();
        let timeout = Duration::from_millis(20);
        assert!(
            matches!(TimeLimit(timeout).run(|| v.wait()), Err(Error::Timeout { after, .. }) if after == timeout),
            "{name}: the write is behind the read"
        );
        assert!(before.elapsed() >= timeout);
        {
            let _guard = TimeLimit(timeout).enter();
            assert!(matches!(v.wait(), Err(Error::Timeout { after, .. }) if after == timeout), "{name}");
        }
        let ready = v.ready().expect("a future");
        gate.open();
        assert_eq!(v.wait(), Ok(()), "{name}");
        assert_eq!(block_on(ready), Ok(()), "{name}");
    }
}

#[test]
fn who_waits_sees_a_failure_each_time_until_a_write_heals_it() {
    for (name, vm) in engines() {
        let v = vm.var();
        let line = line!() + 1;
        vm.push("breaks", [v.write()], || Err("out of luck".into())).expect("it is taken");
        vm.push("behind", [v.read()], || Ok(())).expect("it is taken");
        for _ in 0..2 {
            let failure = failure_of(v.wait());
            assert_eq!((failure.what.as_str(), failure.site.line()), ("breaks", line), "{name}");
            assert_eq!(failure.cause, Cause::Function("out of luck".to_owned()), "{name}");
            assert_eq!(block_on(v.ready().expect("a future")), Err(Error::Failed(failure)), "{name}");
        }
        let update = vm.push("skipped", [v.update()], || Ok(())).expect("it is taken");
        assert_eq!(failure_of(update.wait()).what, "breaks", "{name}: an update reads");
        let both = vm.push("skipped too", [v.write(), v.read()], || Ok(())).expect("it is taken");
        assert_eq!(failure_of(both.wait()).what, "breaks", "{name}: so do a write and a read");
        vm.push("heals", [v.write()], || Ok(())).expect("it is taken");
        assert_eq!(v.wait(), Ok(()), "{name}");
        vm.push("breaks again", [v.write()], || panic!("no luck at all")).expect("it is taken");
        let failure = failure_of(v.wait());
        assert_eq!(failure.cause, Cause::Panic("no luck at all".to_owned()), "{name}: a new failure is told");
        assert_eq!(vm.wait_all(), Ok(()), "{name}: all was collected");
    }
}

#[test]
fn a_callback_of_a_variable_is_told_what_a_wait_would_be() {
    for (name, vm) in engines() {
        let (v, (tell, told)) = (vm.var(), channel());
        let ask = |var: &Var| {
            let tell = tell.clone();
            var.on_passed(move |result| tell.send((result, thread::current().id())).expect("the test listens"))
        };
        let answer = || told.recv_timeout(PATIENCE).expect("it is called").0;
        assert!(matches!(ask(&v), Err(Error::NotSubmitted { .. })), "{name}: no submission has used it");
        vm.push("breaks", [v.write()], || Err("no".into())).expect("it is taken");
        ask(&v).expect("it was used");
        assert_eq!(failure_of(answer()).what, "breaks", "{name}");
        vm.push("heals", [v.write()], || Ok(())).expect("it is taken");
        ask(&v).expect("it was used");
        assert_eq!(answer(), Ok(()), "{name}");
        vm.delete(&v, || ()).expect("it is taken");
        assert!(matches!(ask(&v), Err(Error::Released { .. })), "{name}");
        let _ = vm.wait_all();
        assert!(told.try_recv().is_err(), "{name}: each was called once");
    }
}

#[test]
fn a_callback_of_a_variable_comes_after_its_writes_on_a_thread_of_its_own() {
    for (name, builder) in threaded() {
        let (vm, gate) = (builder.build().expect("an engine"), ClosedGate::new());
        let (v, (tell, told)) = (vm.var(), channel());
        let (held, worker) = (gate.clone(), Arc::new(Mutex::new(None)));
        let note = worker.clone();
        let hold = move || {
            *note.lock().unwrap() = Some(thread::current().id());
            held.pass();
            Ok(())
        };
        vm.push("held", [v.write()], hold).expect("it is taken");
        v.on_passed(move |result| tell.send((result, thread::current().id())).expect("the test listens"))
            .expect("it was used");
        gate.wait_entered(1);
        assert!(told.try_recv().is_err(), "{name}: not before");
        gate.open();
        let (result, thread) = told.recv_timeout(PATIENCE).expect("it is called");
        assert_eq!(result, Ok(()), "{name}");
        assert!(![Some(thread::current().id()), *worker.lock().unwrap()].contains(&Some(thread)), "{name}");
    }
}

#[test]
fn a_version_counts_writes_that_passed_without_a_failure() {
    for (name, vm) in engines() {
        let (v, plain) = (Var::counted(), vm.var());
        assert_eq!((v.version(), plain.version()), (Some(0), None), "{name}");
        for _ in 0..10 {
            vm.push("read", [v.read()], || Ok(())).expect("it is taken");
        }
        vm.wait_all().expect("all passed");
        assert_eq!(v.version(), Some(0), "{name}");
        for write in 0..10 {
            let version = v.clone();
            vm.push("write", [v.write(), plain.write()], move || {
                if version.version() == Some(write) { Ok(()) } else { Err("counted too early or late".into()) }
            })
            .expect("it is taken");
        }
        assert_eq!(v.wait(), Ok(()), "{name}");
        assert_eq!(v.version(), Some(10), "{name}");
        vm.push("twice", [v.write(), v.update(), v.read()], || Ok(())).expect("it is taken");
        vm.push("fails", [v.write()], || Err("no".into())).expect("it is taken");
        vm.push("skipped", [v.update()], || Ok(())).expect("it is taken");
        assert!(v.wait().is_err(), "{name}");
        assert_eq!(v.version(), Some(11), "{name}: neither what failed nor what was skipped");
        let mut ordered = InstructionsBuilder::new();
        ordered.call_fn("on a stream", CPU, [v.write()], |_| Ok(())).expect("a function");
        vm.submit(ordered.finish()).expect("it is taken");
        assert_eq!(v.wait(), Ok(()), "{name}");
        assert_eq!(v.version(), Some(12), "{name}: whatever runs it");
    }
}

#[test]
fn a_function_may_push_and_not_wait() {
    for (name, vm) in engines() {
        let vm = Arc::new(vm);
        let (v, found) = (vm.var(), Arc::new(Mutex::new(Vec::new())));
        let (inner, var, note) = (Arc::downgrade(&vm), v.clone(), found.clone());
        let ticket = vm.push("outer", [v.write()], move || {
            let vm = inner.upgrade().ok_or("the engine is there while it is used")?;
            note.lock().unwrap().push(var.wait());
            note.lock().unwrap().push(vm.var().wait());
            note.lock().unwrap().push(vm.wait_all());
            let behind = note.clone();
            let pushed = vm.push("inner", [var.update()], move || {
                behind.lock().unwrap().push(Ok(()));
                Ok(())
            })?;
            note.lock().unwrap().push(pushed.wait());
            Ok(())
        });
        ticket.expect("it is taken").wait().unwrap_or_else(|error| panic!("{name}: {error}"));
        vm.wait_all().unwrap_or_else(|error| panic!("{name}: {error}"));
        // No engine knows a variable that no submission has used, and there is nothing to wait for.
        let found = found.lock().unwrap();
        let refused = found.iter().map(|wait| matches!(wait, Err(Error::WouldDeadlock { .. })));
        assert_eq!(refused.collect::<Vec<_>>(), [true, false, true, true, false], "{name}: {found:?}");
    }
}

#[test]
fn a_function_that_pushes_the_next_one_goes_on_as_long_as_it_wants() {
    fn next(vm: &Arc<Vm>, v: &Var, left: u64, at: &Arc<AtomicU64>) -> Result<(), Error> {
        let (weak, var, count) = (Arc::downgrade(vm), v.clone(), at.clone());
        vm.push("next", [v.update()], move || {
            count.fetch_add(1, Ordering::Relaxed);
            let vm = weak.upgrade().ok_or("gone")?;
            if left > 1 {
                next(&vm, &var, left - 1, &count)?;
            }
            Ok(())
        })
        .map(drop)
    }
    for (name, vm) in engines() {
        let (vm, v, at) = (Arc::new(vm), Var::new(), Arc::new(AtomicU64::new(0)));
        next(&vm, &v, 500, &at).expect("it is taken");
        while at.load(Ordering::Relaxed) < 500 {
            v.wait().unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        vm.wait_all().expect("all passed");
    }
}

#[test]
fn a_variable_of_another_engine_is_refused() {
    let (one, other) = (Vm::builder().build().expect("an engine"), Vm::builder().build().expect("an engine"));
    let v = one.var();
    one.push("mine", [v.write()], || Ok(())).expect("it is taken");
    assert!(matches!(other.push("theirs", [v.read()], || Ok(())).map(drop), Err(Error::Foreign { .. })));
}

#[test]
fn a_device_that_is_not_there_and_a_closed_engine_are_refused() {
    let vm = Vm::builder().mode(Mode::Threaded).build().expect("an engine");
    let refused = vm.pusher().device(DeviceId::cpu(7)).push("nowhere", [], || Ok(())).map(drop);
    assert!(matches!(refused, Err(Error::Device { .. })), "{refused:?}");
}

#[test]
fn an_operator_runs_each_time_that_it_is_pushed_by_any_thread() {
    for (name, vm) in engines() {
        let (v, w, at) = (Var::counted(), vm.var(), Arc::new(AtomicU64::new(0)));
        let count = at.clone();
        let step = vm.operator("step", [v.update(), w.read()], move || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..200).for_each(|_| drop(vm.push_operator(&step).expect("it is taken"))));
            }
        });
        vm.push("between", [w.write()], || Ok(())).expect("it is taken");
        assert_eq!(w.wait(), Ok(()), "{name}: the write is behind all reads");
        assert_eq!((at.load(Ordering::Relaxed), v.version()), (600, Some(600)), "{name}");
        drop(step);
        assert_eq!(Arc::strong_count(&at), 1, "{name}: what it has captured is gone with it");
    }
}

#[test]
fn an_operator_fails_where_it_is_pushed_and_goes_with_its_last_run() {
    for (name, builder) in threaded() {
        let vm = builder.workers(1).build().expect("an engine");
        let (v, gate, kept) = (vm.var(), ClosedGate::new(), Arc::new(()));
        let (held, capture) = (gate.clone(), kept.clone());
        let fails = vm.operator("fails", [v.update()], move || {
            let _ = &capture;
            held.pass();
            Err("no".into())
        });
        let line = line!() + 1;
        let ticket = vm.push_operator(&fails).expect("it is taken");
        vm.push("heals", [v.write()], || Ok(())).expect("it is taken");
        let again = vm.push_operator(&fails).expect("it is taken");
        drop(fails);
        assert_eq!(Arc::strong_count(&kept), 2, "{name}: two runs are to come");
        gate.open();
        let failure = failure_of(ticket.wait());
        assert_eq!((failure.what.as_str(), failure.site.line()), ("fails", line), "{name}");
        assert_eq!(failure_of(again.wait()).site.line(), line + 2, "{name}");
        assert_eq!(Arc::strong_count(&kept), 1, "{name}: gone before it counts as passed");
    }
}
