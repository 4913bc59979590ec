//! Clean-ups, deletions and bulks: functions that run when others have failed, and who is told what.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use streamvm::{Cause, DType, Error, Priority, Var, Vm};
use streamvm_tests::{CPU, ClosedGate, engines, failure_of, threaded};

fn count(counter: &Arc<AtomicU64>) -> impl FnOnce() -> Result<(), streamvm::FnError> + Send + 'static {
    let counter = counter.clone();
    move || {
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn a_clean_up_runs_when_what_it_reads_has_failed_and_passes_it_on_unless_it_overwrites() {
    for (name, vm) in engines() {
        let (broken, kept, overwritten, both) = (Var::counted(), vm.var(), vm.var(), vm.var());
        let ran = Arc::new(AtomicU64::new(0));
        vm.push("breaks", [broken.write()], || Err("no".into())).expect("it is taken");
        let clean = vm.pusher().clean_up(true);
        let fails = |ticket: Result<streamvm::Ticket<'_>, Error>| {
            assert_eq!(failure_of(ticket.expect("it is taken").wait()).what, "breaks", "{name}");
        };
        fails(clean.push("update", [broken.update()], count(&ran)));
        fails(clean.push("keep", [broken.read(), kept.update()], count(&ran)));
        fails(clean.push("mixed", [broken.read(), both.write(), kept.update()], count(&ran)));
        clean.push("reads", [broken.read()], count(&ran)).expect("it is taken").wait().expect("nothing is left");
        let healed = clean.push("overwrite", [broken.read(), overwritten.write()], count(&ran)).expect("it is taken");
        assert_eq!(healed.wait(), Ok(()), "{name}");
        assert_eq!(ran.load(Ordering::Relaxed), 5, "{name}: each ran");
        for var in [&broken, &kept, &both] {
            assert_eq!(failure_of(var.wait()).what, "breaks", "{name}");
        }
        assert_eq!(overwritten.wait(), Ok(()), "{name}");
        assert_eq!(broken.version(), Some(0), "{name}: what failed still is no version");
        clean.push("heal", [broken.write()], count(&ran)).expect("it is taken");
        assert_eq!((broken.wait(), broken.version()), (Ok(()), Some(1)), "{name}");
        let own = clean.push("fails itself", [kept.update()], || Err("itself".into())).expect("it is taken");
        assert_eq!(failure_of(own.wait()).what, "fails itself", "{name}");
        vm.push("ordinary", [kept.read()], || panic!("it must be skipped")).expect("it is taken");
        vm.wait_all().expect("everything was collected");
    }
}

#[test]
fn a_clean_up_of_a_tensor_overwrites_nothing() {
    for (name, vm) in engines() {
        let x = vm.full(CPU, DType::F32, &[4], 1.0).expect("a tensor");
        vm.push("breaks", [x.update()], || Err("no".into())).expect("it is taken");
        vm.pusher().clean_up(true).push("cleans", [x.write()], || Ok(())).expect("it is taken");
        assert_eq!(failure_of(x.wait()).what, "breaks", "{name}");
    }
}

#[test]
fn clean_ups_and_all_that_was_pushed_run_before_the_engine_has_shut_down() {
    for (name, vm) in engines() {
        let (v, ran) = (vm.var(), Arc::new(AtomicU64::new(0)));
        vm.push("breaks", [v.write()], || Err("no".into())).expect("it is taken");
        for _ in 0..100 {
            vm.pusher().clean_up(true).push("clean", [v.update()], count(&ran)).expect("it is taken");
            vm.push("ordinary", [v.update()], || panic!("it must be skipped")).expect("it is taken");
        }
        let failure = failure_of(vm.shutdown(Duration::from_secs(60)));
        assert_eq!((failure.what.as_str(), ran.load(Ordering::Relaxed)), ("breaks", 100), "{name}");
    }
}

#[test]
fn what_deletes_a_variable_runs_after_all_that_used_it_and_ahead_of_all_that_is_queued() {
    for (name, builder) in threaded() {
        let vm = builder.workers(1).build().expect("an engine");
        let (v, gate, seen) = (vm.var(), ClosedGate::new(), Arc::new(Mutex::new(Vec::new())));
        let note = |number: u32| {
            let seen = seen.clone();
            move || {
                seen.lock().unwrap().push(number);
            }
        };
        let held = gate.clone();
        vm.push("hold", [], move || {
            held.pass();
            Ok(())
        })
        .expect("it is taken");
        gate.wait_entered(1);
        let high = vm.pusher().priority(Priority::High);
        for number in 0..2 {
            let f = note(number);
            high.push("uses it", [v.read()], move || {
                f();
                Ok(())
            })
            .expect("it is taken");
        }
        for number in 10..110 {
            let f = note(number);
            let pusher = if number % 2 == 0 { high } else { vm.pusher() };
            let queued = pusher.push("queued", [], move || {
                f();
                Ok(())
            });
            queued.expect("it is taken");
        }
        let deleted = vm.delete(&v, note(5)).expect("it is taken");
        vm.delete(&vm.var(), note(6)).expect("it is taken");
        gate.open();
        assert_eq!(deleted.wait(), Ok(()), "{name}");
        vm.wait_all().expect("all passed");
        let seen = seen.lock().unwrap();
        let at = seen.iter().position(|number| *number == 5).expect("it ran");
        assert!(at >= 2 && seen[..at].contains(&0) && seen[..at].contains(&1), "{name}: {seen:?}");
        assert!(at < 10, "{name}: ahead of what is queued: {seen:?}");
        assert!(seen[..2].contains(&6), "{name}: at once where nothing uses it: {seen:?}");
    }
}

#[test]
fn many_deletions_starve_nobody() {
    const SPARED: usize = 16;
    for (name, builder) in threaded() {
        let vm = builder.workers(1).build().expect("an engine");
        let (gate, seen) = (ClosedGate::new(), Arc::new(Mutex::new(Vec::new())));
        let held = gate.clone();
        let hold = move || {
            held.pass();
            Ok(())
        };
        vm.push("hold", [], hold).expect("it is taken");
        gate.wait_entered(1);
        let note = |what: Option<Priority>| {
            let seen = seen.clone();
            move || seen.lock().unwrap().push(what)
        };
        for _ in 0..300 {
            vm.delete(&vm.var(), note(None)).expect("it is taken");
        }
        let priorities = [Priority::Low, Priority::Normal, Priority::High];
        for priority in priorities.into_iter().cycle().take(30) {
            let f = note(Some(priority));
            let function = move || {
                f();
                Ok(())
            };
            vm.pusher().priority(priority).push("queued", [], function).expect("it is taken");
        }
        gate.open();
        vm.wait_all().expect("all passed");
        let seen = seen.lock().unwrap();
        let at = priorities.map(|priority| seen.iter().position(|what| *what == Some(priority)).expect("it ran"));
        // Each deletion is two instructions, one of which runs nothing of ours.
        assert!(at.is_sorted() && at[2] < 2 * SPARED, "{name}: each in its turn: {at:?}");
        assert!(seen[..SPARED / 4].iter().all(Option::is_none), "{name}: deletions go first: {at:?}");
    }
}

#[test]
fn a_deleted_variable_is_refused() {
    for (name, vm) in engines() {
        let (v, ran) = (vm.var(), Arc::new(AtomicU64::new(0)));
        vm.push("breaks", [v.write()], || Err("no".into())).expect("it is taken");
        let counter = ran.clone();
        let deleted = vm.delete(&v, move || _ = counter.fetch_add(1, Ordering::Relaxed)).expect("it is taken");
        assert_eq!(deleted.wait(), Ok(()), "{name}: it runs failed or not");
        let calls = [
            ("later", vm.push("later", [v.read()], || Ok(())).map(drop), line!()),
            ("delete", vm.delete(&v, || ()).map(drop), line!()),
            ("wait", v.wait(), line!()),
        ];
        for (call, outcome, called) in calls {
            let Err(Error::Released { line: 0, what, site, .. }) = outcome else { panic!("{name}: {outcome:?}") };
            assert_eq!((what.as_str(), site.file(), site.line()), (call, file!(), called), "{name}");
        }
        let fresh = vm.var();
        vm.delete(&fresh, || ()).expect("also one that nothing has used").wait().expect("it ran");
        assert_eq!(ran.load(Ordering::Relaxed), 1, "{name}");
        assert_eq!(failure_of(vm.wait_all()).what, "breaks", "{name}");
    }
}

/// MXNet's scenario: 4 after the first waits, then 104.
#[test]
fn a_bulk_of_ten_with_waits_in_the_middle() {
    for (name, vm) in engines() {
        let (x, value) = (Var::counted(), Arc::new(Mutex::new(0)));
        let mut bulk = vm.bulk(10);
        let change = |f: fn(i32) -> i32| {
            let value = value.clone();
            move || {
                let mut value = value.lock().unwrap();
                *value = f(*value);
                Ok(())
            }
        };
        bulk.push("ones", [x.write()], change(|_| 1)).expect("it is taken");
        bulk.push("double", [x.update()], change(|x| x * 2)).expect("it is taken");
        bulk.push("add", [x.update()], change(|x| x + 1)).expect("it is taken");
        assert_eq!(vm.stats().in_flight, 0, "{name}: nothing is pushed yet");
        bulk.wait(&x).expect("they ran");
        assert_eq!(*value.lock().unwrap(), 3, "{name}");
        bulk.push("add", [x.update()], change(|x| x + 1)).expect("it is taken");
        bulk.wait(&x).expect("it ran");
        assert_eq!(*value.lock().unwrap(), 4, "{name}");
        for _ in 0..100 {
            bulk.push("add", [x.update()], change(|x| x + 1)).expect("it is taken");
        }
        drop(bulk);
        assert_eq!(x.wait(), Ok(()), "{name}");
        assert_eq!(*value.lock().unwrap(), 104, "{name}");
        assert_eq!(x.version(), Some(12), "{name}: instructions");
    }
}

#[test]
fn a_failure_in_a_bulk_has_the_name_and_the_line_of_the_function_that_failed() {
    for (name, vm) in engines() {
        let (v, w, ran) = (vm.var(), vm.var(), Arc::new(AtomicU64::new(0)));
        let mut bulk = vm.bulk(4);
        bulk.push("one", [v.update()], count(&ran)).expect("it is gathered");
        let line = line!() + 1;
        bulk.push("two", [v.update()], || Err("lost".into())).expect("it is gathered");
        bulk.push("three", [w.update()], count(&ran)).expect("it is gathered");
        let ticket = bulk.flush().expect("it is taken").expect("there was something");
        let failure = failure_of(ticket.wait());
        assert_eq!((failure.what.as_str(), failure.site.line()), ("two", line), "{name}");
        assert_eq!(failure.cause, Cause::Function("lost".to_owned()), "{name}");
        assert_eq!(ran.load(Ordering::Relaxed), 1, "{name}: what is behind it does not run");
        assert_eq!(failure_of(w.wait()).what, "two", "{name}: all that the bulk writes has failed");
        assert!(bulk.flush().expect("nothing").is_none(), "{name}");
        bulk.push("panics", [w.write()], || panic!("here")).expect("it is gathered");
        bulk.push("reads", [w.read()], count(&ran)).expect("it is gathered");
        let failure = failure_of(bulk.wait(&w));
        assert_eq!((failure.what.as_str(), &failure.cause), ("panics", &Cause::Panic("here".to_owned())), "{name}");
        // What a function of the bulk has overwritten is whole for those after it, and so is it for everybody.
        bulk.push("heals", [w.write()], count(&ran)).expect("it is gathered");
        bulk.push("reads", [w.read()], count(&ran)).expect("it is gathered");
        assert_eq!(bulk.wait(&w), Ok(()), "{name}");
        bulk.push("reads", [v.read()], count(&ran)).expect("it is gathered");
        bulk.push("writes", [v.write()], count(&ran)).expect("it is gathered");
        assert_eq!(failure_of(bulk.wait(&v)).what, "two", "{name}: it is read before it is overwritten");
        assert_eq!(ran.load(Ordering::Relaxed), 3, "{name}");
    }
}

#[test]
fn a_bulk_writes_what_any_of_its_functions_writes() {
    for (name, vm) in engines() {
        let (v, w) = (Var::counted(), Var::counted());
        let mut bulk = vm.bulk(3);
        bulk.push("reads", [v.read(), w.write()], || Ok(())).expect("it is gathered");
        bulk.push("writes", [v.write(), w.read()], || Ok(())).expect("it is gathered");
        bulk.push("reads", [w.read(), v.read()], || Ok(())).expect("it is taken");
        assert_eq!((v.wait(), w.wait()), (Ok(()), Ok(())), "{name}");
        assert_eq!((v.version(), w.version()), (Some(1), Some(1)), "{name}");
    }
}

#[test]
fn a_bulk_comes_after_all_that_any_of_its_functions_needs() {
    for (name, vm) in engines() {
        let (vars, seen) = ([vm.var(), vm.var(), vm.var()], Arc::new(Mutex::new(Vec::new())));
        let note = |number: usize| {
            let seen = seen.clone();
            move || {
                seen.lock().unwrap().push(number);
                Ok(())
            }
        };
        for (number, var) in vars.iter().enumerate() {
            vm.push("before", [var.update()], note(number)).expect("it is taken");
        }
        let mut bulk = vm.pusher().bulk(3);
        for (number, var) in vars.iter().enumerate() {
            bulk.push("inside", [var.update()], note(10 + number)).expect("it is taken");
        }
        for (number, var) in vars.iter().enumerate() {
            vm.push("behind", [var.update()], note(20 + number)).expect("it is taken");
        }
        vm.wait_all().expect("all passed");
        let mut seen = std::mem::take(&mut *seen.lock().unwrap());
        seen[..3].sort_unstable();
        seen[6..].sort_unstable();
        assert_eq!(seen, [0, 1, 2, 10, 11, 12, 20, 21, 22], "{name}");
    }
}

/// Two threads that push functions over overlapping variables: other engines deadlock there.
#[test]
fn threads_that_push_over_the_same_variables_do_not_hang() {
    for (name, vm) in engines() {
        let vars: Vec<Var> = (0..4).map(|_| vm.var()).collect();
        let inside: Arc<Vec<AtomicU64>> = Arc::new((0..4).map(|_| AtomicU64::new(0)).collect());
        std::thread::scope(|scope| {
            for thread in 0..3_usize {
                let (vm, vars, inside) = (&vm, &vars, &inside);
                scope.spawn(move || {
                    for step in 0..200 {
                        let first = (thread + step) % 4;
                        let second = (first + 1 + step % 3) % 4;
                        let inside = inside.clone();
                        vm.push("pair", [vars[first].write(), vars[second].write()], move || {
                            let alone = [first, second].map(|at| inside[at].fetch_add(1, Ordering::SeqCst) == 0);
                            let _left = [first, second].map(|at| inside[at].fetch_sub(1, Ordering::SeqCst));
                            if alone == [true, true] { Ok(()) } else { Err("not alone".into()) }
                        })
                        .expect("it is taken");
                    }
                });
            }
        });
        assert_eq!(vm.wait_all(), Ok(()), "{name}");
    }
}

#[test]
fn a_failure_that_nobody_asks_for_is_told_by_shutdown() {
    let vm = Vm::builder().build().expect("an engine");
    vm.push("alone", [], || Err("nobody looks".into())).expect("it is taken");
    assert_eq!(failure_of(vm.shutdown(Duration::from_secs(60))).what, "alone");
}
