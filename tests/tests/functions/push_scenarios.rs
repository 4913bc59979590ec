//! What other engines check of themselves over functions, written anew and run on every engine. Its likes: random functions are in
//! `random_functions.rs`, bulks and clean-ups in `push_failures.rs`, handles in `push_async.rs`, forks in `fork.rs`, and processes
//! that end in the middle in `exits.rs`.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use streamvm::{Error, FnError, Lane, OnComplete, Pool, TimeLimit, Use, Var, Vm, VmBuilder};
use streamvm_tests::{ClosedGate, Gate, PATIENCE, builders, engines, failure_of, on_device, threaded, within};

/// A function that waits at the gate.
fn held(gate: &Gate) -> impl FnOnce() -> Result<(), FnError> + Send + 'static {
    let gate = gate.clone();
    move || {
        gate.pass();
        Ok(())
    }
}

fn counts(counter: &Arc<AtomicUsize>) -> impl FnOnce() -> Result<(), FnError> + Send + 'static {
    let counter = counter.clone();
    move || {
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Engines of both kinds that have threads, with ten workers.
fn with_ten_workers() -> [(bool, Vm); 2] {
    [true, false].map(|shared| (shared, Vm::builder().shared_workers(shared).workers(10).build().expect("an engine")))
}

#[test]
fn every_engine_starts_and_stops_and_starts_again() {
    for round in 0..3 {
        for (name, builder) in builders() {
            let (vm, ran) = (builder.build().expect("an engine"), Arc::new(AtomicUsize::new(0)));
            let vars: Vec<Var> = (0..4).map(|_| vm.var()).collect();
            for number in 0..100 {
                vm.push("count", [vars[number % 4].update()], counts(&ran)).expect("it is taken");
            }
            if round == 1 {
                drop(vm);
            } else {
                assert_eq!(vm.shutdown(PATIENCE), Ok(()), "{name}, round {round}");
            }
            assert_eq!(ran.load(Ordering::Relaxed), 100, "{name}, round {round}: what was queued ran");
            assert_eq!(Arc::strong_count(&ran), 1, "{name}, round {round}: and is gone");
        }
    }
}

#[test]
fn an_engine_that_is_stopped_while_its_queue_is_held_up_runs_all_of_it() {
    for (name, builder) in threaded() {
        let (vm, ran, gate) = (builder.build().expect("an engine"), Arc::new(AtomicUsize::new(0)), ClosedGate::new());
        let v = vm.var();
        vm.push("hold", [v.write()], held(&gate)).expect("it is taken");
        for number in 0..500 {
            // Ready, queued after the held one, and a clean-up.
            let uses: &[Use] = if number % 3 == 0 { &[] } else { &[v.update()] };
            let pusher = vm.pusher().clean_up(number % 3 == 2);
            pusher.push("count", uses.to_vec(), counts(&ran)).expect("it is taken");
        }
        gate.wait_entered(1);
        let door = gate.clone();
        let opener = thread::spawn(move || {
            // So that the engine is nearly always stopping by then.
            thread::sleep(Duration::from_millis(5));
            door.open();
        });
        assert_eq!(vm.shutdown(PATIENCE), Ok(()), "{name}");
        assert_eq!(ran.load(Ordering::Relaxed), 500, "{name}");
        opener.join().expect("it ends");
    }
}

/// However five things are split into those that are read and those that are written, the values are those of a loop.
#[test]
fn five_variables_split_every_way_into_reads_and_writes() {
    for (name, vm) in engines() {
        let vars: Vec<Var> = (0..5).map(|_| vm.var()).collect();
        let values: Arc<[AtomicU64]> = (0..5).map(AtomicU64::new).collect();
        let mut serial: Vec<u64> = (0..5).collect();
        // Each writes the sum of all that is read, and a number of its own, over what it overwrites.
        for split in (0..32_u64).chain((0..32).rev()) {
            let (writes, reads): (Vec<usize>, Vec<usize>) = (0..5).partition(|var| split >> var & 1 == 1);
            let sum = reads.iter().fold(split, |sum, read| sum.wrapping_add(serial[*read]));
            writes.iter().for_each(|write| serial[*write] = sum.wrapping_mul(3));
            let uses = (0..5).map(|var| if split >> var & 1 == 1 { vars[var].write() } else { vars[var].read() });
            let values = values.clone();
            let split = move || {
                let sum = reads.iter().fold(split, |sum, read| sum.wrapping_add(values[*read].load(Ordering::Relaxed)));
                writes.iter().for_each(|write| values[*write].store(sum.wrapping_mul(3), Ordering::Relaxed));
                Ok(())
            };
            vm.push("split", uses, split).expect("it is taken");
        }
        vm.wait_all().unwrap_or_else(|error| panic!("{name}: {error}"));
        let found: Vec<u64> = values.iter().map(|value| value.load(Ordering::Relaxed)).collect();
        assert_eq!(found, serial, "{name}");
    }
}

#[test]
fn ten_readers_run_side_by_side() {
    for (shared, vm) in with_ten_workers() {
        let (v, gate) = (vm.var(), ClosedGate::new());
        vm.push("write", [v.write()], || Ok(())).expect("it is taken");
        for _ in 0..10 {
            vm.push("read", [v.read()], held(&gate)).expect("it is taken");
        }
        // All ten are inside at once, or this gives up.
        gate.wait_entered(10);
        gate.open();
        assert_eq!(vm.wait_all(), Ok(()), "shared workers {shared}");
    }
}

#[test]
fn ten_writers_run_one_after_the_other() {
    for (shared, vm) in with_ten_workers() {
        let (v, inside, order) = (vm.var(), Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Vec::new())));
        for number in 0..10 {
            let (inside, order) = (inside.clone(), order.clone());
            let write = move || {
                let before = inside.fetch_add(1, Ordering::SeqCst);
                order.lock().unwrap().push(number);
                thread::sleep(Duration::from_millis(1));
                inside.fetch_sub(1, Ordering::SeqCst);
                if before == 0 { Ok(()) } else { Err("two writers at once".into()) }
            };
            vm.push("write", [v.write()], write).expect("it is taken");
        }
        assert_eq!(v.wait(), Ok(()), "shared workers {shared}");
        assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>(), "shared workers {shared}");
    }
}

/// Waits for `v` while another thread opens the gate, once the wait may have begun; whether the gate was open by the end.
fn waits_for_the_gate(gate: &Gate, wait: impl FnOnce() -> Result<(), Error>) -> bool {
    let opened = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(5));
            opened.store(1, Ordering::SeqCst);
            gate.open();
        });
        wait().expect("it passes");
        opened.load(Ordering::SeqCst) == 1
    })
}

/// A wait takes as long as the writes of what it is for: a long copy, nothing after a long reader, nothing for what is untouched.
#[test]
fn waits_take_as_long_as_what_they_wait_for_and_no_longer() {
    for (shared, vm) in with_ten_workers() {
        let (copied, read, untouched) = (vm.var(), vm.var(), vm.var());
        let (copy, reader) = (ClosedGate::new(), ClosedGate::new());
        vm.push("write", [read.write()], || Ok(())).expect("it is taken");
        vm.pusher().pool(Pool::CopyIn).push("long copy", [copied.write()], held(&copy)).expect("it is taken");
        vm.push("long reader", [read.read()], held(&reader)).expect("it is taken");
        copy.wait_entered(1);
        reader.wait_entered(1);
        // Both gates are closed, so neither is waited for.
        assert_eq!(TimeLimit(PATIENCE).run(|| untouched.wait()), Ok(()), "shared workers {shared}: untouched");
        assert_eq!(TimeLimit(PATIENCE).run(|| read.wait()), Ok(()), "shared workers {shared}: a long reader");
        assert!(waits_for_the_gate(&copy, || copied.wait()), "shared workers {shared}: a long copy");
        assert!(waits_for_the_gate(&reader, || vm.wait_all()), "shared workers {shared}: everything");
    }
}

thread_local! {
    /// How many functions have run on this thread.
    static RAN: Cell<u64> = const { Cell::new(0) };
}

/// What a worker's thread keeps is its own: each function finds what those before it on its thread have left.
#[test]
fn state_of_a_worker_stays_with_it() {
    for (name, builder) in threaded() {
        let vm = builder.build().expect("an engine");
        let ran = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..200 {
            let ran = ran.clone();
            let count = move || {
                RAN.set(RAN.get() + 1);
                ran.lock().unwrap().push((thread::current().id(), RAN.get()));
                Ok(())
            };
            vm.push("count", [], count).expect("it is taken");
        }
        vm.wait_all().expect("all passed");
        let ran = std::mem::take(&mut *ran.lock().unwrap());
        let mut seen = std::collections::HashMap::new();
        for (thread, count) in ran {
            let before = seen.insert(thread, count).unwrap_or(0);
            assert_eq!(count, before + 1, "{name}");
        }
        assert_eq!(seen.values().sum::<u64>(), 200, "{name}");
        assert_eq!(RAN.get(), 0, "{name}: nothing of it is the caller's");
    }
}

/// Guards change what their own thread does, not what others and workers do.
#[test]
fn guards_of_a_thread_stay_with_it() {
    for (name, builder) in threaded() {
        let vm = builder.build().expect("an engine");
        let (v, gate, lanes) = (vm.var(), ClosedGate::new(), Arc::new(Mutex::new(Vec::new())));
        let _lane = Lane(3).enter();
        let _deadline = TimeLimit(Duration::ZERO).enter();
        let (found, hold) = (lanes.clone(), held(&gate));
        let function = move || {
            found.lock().unwrap().push(Lane::current().0);
            hold()
        };
        vm.push("look", [v.write()], function).expect("it is taken");
        assert!(
            matches!(v.wait(), Err(Error::Timeout { after, .. }) if after == Duration::ZERO),
            "{name}: a deadline of this thread"
        );
        thread::scope(|scope| {
            let other = scope.spawn(|| (Lane::current().0, v.wait()));
            gate.open();
            assert_eq!(other.join().expect("no panic"), (0, Ok(())), "{name}: and of no other");
        });
        assert_eq!((Lane::current().0, &*lanes.lock().unwrap()), (3, &vec![0]), "{name}");
    }
}

#[test]
fn no_error_is_told_until_somebody_asks_and_then_at_each_wait() {
    for (name, vm) in engines() {
        let (v, w, other) = (vm.var(), vm.var(), vm.var());
        vm.push("breaks", [v.write()], || Err("no".into())).expect("a push tells nothing");
        vm.push("consumes", [v.read(), w.write()], || panic!("it is skipped")).expect("a push tells nothing");
        vm.push("has nothing to do with it", [other.write()], || Ok(())).expect("a push tells nothing");
        assert_eq!(other.wait(), Ok(()), "{name}");
        assert_eq!(failure_of(vm.wait_all()).what, "breaks", "{name}: everything");
        assert_eq!(failure_of(w.wait()).what, "breaks", "{name}: the consumer");
        assert_eq!(failure_of(v.wait()).what, "breaks", "{name}: also after two were told");
        vm.push("heals", [v.write()], || Ok(())).expect("it is taken");
        vm.push("heals", [w.write()], || Ok(())).expect("it is taken");
        assert_eq!((v.wait(), w.wait(), vm.wait_all()), (Ok(()), Ok(()), Ok(())), "{name}");
        vm.push("breaks again", [v.write()], || Err("no".into())).expect("it is taken");
        assert_eq!(failure_of(vm.wait_all()).what, "breaks again", "{name}: a fresh one");
    }
}

#[test]
fn two_views_of_what_a_function_has_failed_each_show_it() {
    for (name, vm) in engines() {
        let x = on_device(&vm, &[1.0, 2.0, 3.0, 4.0]);
        let views = [x.slice(0, 0..2), x.slice(0, 2..4)].map(|view| view.expect("a view"));
        vm.push("breaks", [x.update()], || Err("no".into())).expect("it is taken");
        for asker in [&views[0], &views[1], &x, &views[1]] {
            assert_eq!(failure_of(asker.to_vec::<f32>()).what, "breaks", "{name}");
        }
    }
}

/// Sync and async, a clean-up or not, after a failure or not: who runs, and what comes of it.
#[test]
fn functions_of_every_kind_run_or_are_skipped_as_is_promised() {
    for (name, vm) in engines() {
        for (asynchronous, clean_up, behind_failure) in (0..8).map(|bits| (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0))
        {
            let (source, result, ran) = (vm.var(), vm.var(), Arc::new(AtomicUsize::new(0)));
            let fails = move || if behind_failure { Err("no".into()) } else { Ok(()) };
            vm.push("source", [source.write()], fails).expect("it is taken");
            let (pusher, uses, function) =
                (vm.pusher().clean_up(clean_up), [source.read(), result.update()], counts(&ran));
            let ticket = if asynchronous {
                pusher.push_async("later", uses, move |handle: OnComplete| handle.complete(function()))
            } else {
                pusher.push("now", uses, function)
            };
            let passed = ticket.expect("it is taken").wait();
            let case = format!("{name}: asynchronous {asynchronous}, clean-up {clean_up}, failed {behind_failure}");
            assert_eq!(ran.load(Ordering::Relaxed), usize::from(clean_up || !behind_failure), "{case}");
            assert_eq!(passed.is_err(), behind_failure, "{case}");
            assert_eq!(result.wait().is_err(), behind_failure, "{case}");
        }
        vm.wait_all().expect("everything was collected");
    }
}

/// Two threads that push functions over the same several variables in opposite orders, again and again: other engines deadlock there.
#[test]
fn two_threads_with_overlapping_functions_come_to_an_end() {
    for (name, builder) in builders() {
        let run = move |builder: VmBuilder| {
            let vm = builder.max_instructions(64).build().expect("an engine");
            let (vars, count) = (Vec::from_iter((0..6).map(|_| vm.var())), Arc::new(AtomicUsize::new(0)));
            thread::scope(|scope| {
                for backwards in [false, true] {
                    let (vm, vars, count) = (&vm, &vars, &count);
                    scope.spawn(move || {
                        for step in 0..300 {
                            let three = [step, step + 1, step + 3].map(|at| &vars[at % 6]);
                            let mut uses = vec![three[0].write(), three[1].read(), three[2].update(), three[0].read()];
                            if backwards {
                                uses.reverse();
                            }
                            vm.push("three", uses, counts(count)).expect("it is taken");
                        }
                    });
                }
            });
            vm.wait_all().expect("all passed");
            count.load(Ordering::Relaxed)
        };
        assert_eq!(within(&name, move || run(builder)), 600);
    }
}
