//! Pools of workers, how they are set up, and who goes first on them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use log::Level;
use streamvm::{Mode, Pool, PoolConfig, Priority, Pusher, Vm};
use streamvm_tests::{CPU, ClosedGate, engines, logged};

const POOLS: [Pool; 5] = [Pool::Normal, Pool::Urgent, Pool::CopyIn, Pool::CopyOut, Pool::Inline];

/// The name of the thread that a function of `pool` runs on.
fn thread_of(vm: &Vm, pool: Pool) -> String {
    let name = Arc::new(Mutex::new(String::new()));
    let found = name.clone();
    let ticket = vm.pusher().device(CPU).pool(pool).push("who", [], move || {
        *found.lock().unwrap() = thread::current().name().unwrap_or_default().to_owned();
        Ok(())
    });
    ticket.expect("it is taken").wait().expect("it passed");
    let name = name.lock().unwrap();
    name.clone()
}

#[test]
fn every_pool_runs_functions_in_the_order_of_what_they_use_together() {
    for (name, vm) in engines() {
        let (v, seen) = (vm.var(), Arc::new(Mutex::new(Vec::new())));
        for step in 0..100 {
            let seen = seen.clone();
            vm.pusher()
                .pool(POOLS[step % POOLS.len()])
                .push("step", [v.update()], move || {
                    seen.lock().unwrap().push(step);
                    Ok(())
                })
                .expect("it is taken");
        }
        assert_eq!(v.wait(), Ok(()), "{name}");
        assert_eq!(*seen.lock().unwrap(), (0..100).collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn each_pool_has_workers_of_its_own_as_many_and_called_as_is_said() {
    let vm = Vm::builder()
        .shared_workers(false)
        .cpu_devices(2)
        .workers(2)
        .pool(Pool::Normal, PoolConfig::new().name("normal"))
        .pool(Pool::Urgent, PoolConfig::new().name("urgent").workers(1))
        .pool(Pool::CopyIn, PoolConfig::new().workers(1).name("copies\0in"))
        .build()
        .expect("an engine");
    let before = vm.stats().threads;
    assert!(thread_of(&vm, Pool::Normal).starts_with("normal."));
    assert_eq!(vm.stats().threads, before + 2);
    assert_eq!(thread_of(&vm, Pool::Urgent), "urgent.0");
    assert_eq!(thread_of(&vm, Pool::CopyIn), "copies.0");
    assert!(thread_of(&vm, Pool::CopyOut).starts_with("workers@cpu:0:"));
    assert!(thread_of(&vm, Pool::Inline).starts_with("normal."), "it has none of its own");
    assert_eq!(vm.stats().threads, before + 6);
    for pool in [Pool::Urgent, Pool::CopyIn] {
        vm.pusher().device(streamvm::DeviceId::cpu(1)).pool(pool).push("there", [], || Ok(())).expect("it is taken");
    }
    assert_eq!(vm.stats().threads, before + 7, "the urgent pool is for all devices, copies are each device's");
    vm.wait_all().expect("all passed");
}

#[test]
fn a_pool_that_is_full_of_long_functions_holds_up_no_other() {
    let vm = Vm::builder().shared_workers(false).workers(1).build().expect("an engine");
    let gate = ClosedGate::new();
    for pool in [Pool::Normal, Pool::CopyIn] {
        let gate = gate.clone();
        vm.pusher()
            .pool(pool)
            .push("long", [], move || {
                gate.pass();
                Ok(())
            })
            .expect("it is taken");
    }
    gate.wait_entered(2);
    for pool in [Pool::Urgent, Pool::CopyOut] {
        vm.pusher().pool(pool).push("short", [], || Ok(())).expect("it is taken").wait().expect("it passed");
    }
}

/// In which order functions run, by the number each was given, on one worker that is held until all are pushed.
fn order(functions: impl IntoIterator<Item = (u32, Priority)>) -> Vec<u32> {
    let vm = Vm::builder().workers(1).build().expect("an engine");
    let (gate, seen) = (ClosedGate::new(), Arc::new(Mutex::new(Vec::new())));
    let held = gate.clone();
    vm.push("hold", [], move || {
        held.pass();
        Ok(())
    })
    .expect("it is taken");
    gate.wait_entered(1);
    for (number, priority) in functions {
        let seen = seen.clone();
        vm.pusher()
            .priority(priority)
            .push("one", [], move || {
                seen.lock().unwrap().push(number);
                Ok(())
            })
            .expect("it is taken");
    }
    gate.open();
    vm.wait_all().expect("all passed");
    let seen = seen.lock().unwrap();
    seen.clone()
}

/// One pick in so many is of the less urgent, in turn.
const FAIR_PICK_EVERY: usize = 16;

#[test]
fn what_is_more_urgent_goes_first_among_what_can_run() {
    let order = order([
        (0, Priority::Low),
        (1, Priority::Normal),
        (2, Priority::High),
        (3, Priority::Normal),
        (4, Priority::High),
    ]);
    // One of the five picks may be a fair pick, which is for the least urgent.
    let but_low: Vec<u32> = order.into_iter().filter(|number| *number != 0).collect();
    assert_eq!(but_low, [2, 4, 1, 3]);
}

#[test]
fn what_is_least_urgent_is_passed_over_so_often_and_no_more() {
    let functions =
        (0..3).map(|number| (number, Priority::Low)).chain((10..210).map(|number| (number, Priority::High)));
    let order = order(functions);
    let low: Vec<usize> = (0..3).map(|low| order.iter().position(|number| *number == low).expect("it ran")).collect();
    for (place, at) in low.iter().enumerate() {
        assert!(*at < (place + 1) * FAIR_PICK_EVERY, "{low:?}");
        assert!(*at >= place * FAIR_PICK_EVERY, "{low:?}: it is urgent that the others go first");
    }
    let high: Vec<u32> = order.into_iter().filter(|number| *number >= 10).collect();
    assert!(high.is_sorted(), "in the order of their pushes");
}

#[test]
fn neither_what_is_least_urgent_nor_what_never_ends_keeps_the_ordinary_from_running() {
    let of = |numbers: std::ops::Range<u32>, priority| numbers.map(move |number| (number, priority));
    let functions = of(0..100, Priority::Low).chain(of(100..300, Priority::High)).chain([(300, Priority::Normal)]);
    let at = order(functions).iter().position(|number| *number == 300).expect("it ran");
    assert!((FAIR_PICK_EVERY..2 * FAIR_PICK_EVERY).contains(&at), "{at}: the second of the fair picks");
}

/// A chain of 500 functions after one that is held at a gate; how many of them have run.
fn held_chain<'vm>(vm: &'vm Vm, pusher: impl Fn() -> Pusher<'vm>) -> (ClosedGate, Arc<AtomicU64>) {
    let (chain, gate, count) = (vm.var(), ClosedGate::new(), Arc::new(AtomicU64::new(0)));
    let held = gate.clone();
    let hold = move || {
        held.pass();
        Ok(())
    };
    vm.push("hold", [chain.update()], hold).expect("it is taken");
    gate.wait_entered(1);
    for _ in 0..500 {
        let count = count.clone();
        let link = move || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        pusher().push("link", [chain.update()], link).expect("it is taken");
    }
    (gate, count)
}

#[test]
fn a_chain_of_urgent_functions_is_no_reason_to_wait_for_its_end() {
    let vm = Vm::builder().workers(1).build().expect("an engine");
    let (gate, count) = held_chain(&vm, || vm.pusher().priority(Priority::High));
    let (at, seen) = (Arc::new(AtomicU64::new(u64::MAX)), count.clone());
    let noted = at.clone();
    let low = move || {
        noted.store(seen.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(())
    };
    vm.pusher().priority(Priority::Low).push("low", [], low).expect("it is taken");
    gate.open();
    vm.wait_all().expect("all passed");
    assert!(at.load(Ordering::Relaxed) < 2 * FAIR_PICK_EVERY as u64, "{at:?}");
}

/// The worker that runs such a chain has all of its links at hand, so that it need never look for something else.
#[test]
fn a_chain_of_inline_functions_is_no_reason_to_wait_for_its_end() {
    let vm = Vm::builder().shared_workers(false).workers(1).build().expect("an engine");
    let (gate, count) = held_chain(&vm, || vm.pusher().pool(Pool::Inline));
    let priorities = [Priority::Low, Priority::Normal, Priority::High];
    let seen: Vec<_> = priorities.map(|_| Arc::new(AtomicU64::new(u64::MAX))).to_vec();
    for round in 0..10 {
        for (at, priority) in seen.iter().zip(priorities) {
            let (at, count) = (at.clone(), count.clone());
            let note = move || {
                at.fetch_min(count.load(Ordering::Relaxed), Ordering::Relaxed);
                Ok(())
            };
            vm.pusher().priority(priority).push("queued", [], note).expect("it is taken");
        }
        assert_eq!(count.load(Ordering::Relaxed), 0, "round {round}: the chain is held");
    }
    let (at, links) = (Arc::new(AtomicU64::new(u64::MAX)), count.clone());
    let noted = at.clone();
    vm.delete(&vm.var(), move || noted.store(links.load(Ordering::Relaxed), Ordering::Relaxed)).expect("it is taken");
    gate.open();
    vm.wait_all().expect("all passed");
    let seen: Vec<u64> = seen.iter().map(|at| at.load(Ordering::Relaxed)).collect();
    for (place, at) in seen.iter().enumerate() {
        assert!(*at <= (place + 1) as u64 * FAIR_PICK_EVERY as u64, "{seen:?}: each in its turn");
    }
    assert!(seen[0] >= FAIR_PICK_EVERY as u64 / 2, "{seen:?}: inline functions go first");
    assert!(at.load(Ordering::Relaxed) <= FAIR_PICK_EVERY as u64, "{at:?}: so does what deletes");
}

#[test]
fn inline_functions_that_come_free_one_after_the_other_run_in_that_order() {
    let vm = Vm::builder().shared_workers(false).workers(1).build().expect("an engine");
    let (vars, gate, seen) = ([vm.var(), vm.var()], ClosedGate::new(), Arc::new(Mutex::new(Vec::new())));
    let held = gate.clone();
    let hold = move || {
        held.pass();
        Ok(())
    };
    vm.push("hold", [vars[0].write(), vars[1].write()], hold).expect("it is taken");
    gate.wait_entered(1);
    // The first links come free at once, each of the others by the one before it.
    for number in 0..6 {
        let seen = seen.clone();
        let link = move || {
            seen.lock().unwrap().push(number);
            Ok(())
        };
        vm.pusher().pool(Pool::Inline).push("link", [vars[number % 2].update()], link).expect("it is taken");
    }
    gate.open();
    vm.wait_all().expect("all passed");
    let seen: Vec<usize> = seen.lock().unwrap().iter().map(|number| number / 2).collect();
    assert_eq!(seen, [0, 0, 1, 1, 2, 2], "by turns");
}

#[test]
fn inline_functions_run_on_the_worker_that_passes_what_they_wait_for_before_what_is_queued() {
    let vm = Vm::builder().workers(1).build().expect("an engine");
    let (v, gate, seen) = (vm.var(), ClosedGate::new(), Arc::new(Mutex::new(Vec::new())));
    let note = |number: u32| {
        let seen = seen.clone();
        move || {
            seen.lock().unwrap().push(number);
            Ok(())
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
    high.push("first", [v.write()], note(0)).expect("it is taken");
    for number in 10..15 {
        high.push("queued", [], note(number)).expect("it is taken");
        high.push("behind", [v.read()], note(number + 10)).expect("it is taken");
    }
    for number in 1..4 {
        vm.pusher().pool(Pool::Inline).push("inline", [v.read()], note(number)).expect("it is taken");
    }
    gate.open();
    vm.wait_all().expect("all passed");
    let mut seen = seen.lock().unwrap().clone();
    seen[1..4].sort_unstable();
    assert_eq!(seen[..4], [0, 1, 2, 3], "{seen:?}");
}

/// Two functions and the end of a variable become ready at once, and meet: each needs a worker of its own, whichever is woken by
/// whom.
#[test]
fn a_worker_that_takes_the_end_of_a_variable_wakes_another_for_what_else_there_is() {
    let vm = Vm::builder().workers(3).build().expect("an engine");
    for round in 0..500 {
        let (x, y, met) = (vm.var(), vm.var(), Arc::new(Mutex::new(0)));
        let gate = ClosedGate::new();
        let held = (*gate).clone();
        vm.push("held", [x.update(), y.update()], move || {
            held.pass();
            Ok(())
        })
        .expect("it is taken");
        let meet = |met: Arc<Mutex<u32>>| {
            *met.lock().unwrap() += 1;
            let late = Instant::now() + Duration::from_secs(30);
            while *met.lock().unwrap() < 3 && Instant::now() < late {
                thread::yield_now();
            }
        };
        let functions = [met.clone(), met.clone()].map(|met| {
            let meets = move || {
                meet(met);
                Ok(())
            };
            vm.push("meets", [x.read()], meets).expect("it is taken")
        });
        let end = met.clone();
        let deleted = vm.delete(&y, move || meet(end)).expect("it is taken");
        gate.wait_entered(1);
        // Until the others sleep: awake, each would find something by itself.
        thread::sleep(Duration::from_millis(1));
        let clock = Instant::now();
        gate.open();
        functions.into_iter().chain([deleted]).for_each(|ticket| ticket.wait().expect("it passed"));
        assert!(clock.elapsed() < Duration::from_secs(30), "one waited for a worker that slept, in round {round}");
    }
}

#[test]
fn an_inline_function_never_runs_in_the_thread_that_pushes() {
    let vm = Vm::builder().mode(Mode::Threaded).build().expect("an engine");
    let (me, ran) = (thread::current().id(), Arc::new(Mutex::new(None)));
    let found = ran.clone();
    let ticket = vm.pusher().pool(Pool::Inline).push("who", [], move || {
        *found.lock().unwrap() = Some(thread::current().id());
        Ok(())
    });
    ticket.expect("it is taken").wait().expect("it passed");
    assert_ne!(*ran.lock().unwrap(), Some(me));
}

/// The cores that the calling thread may run on, as Linux writes them.
#[cfg(target_os = "linux")]
fn allowed() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("Linux says what a thread is allowed");
    let line = status.lines().find(|line| line.starts_with("Cpus_allowed_list:")).expect("a line");
    line.split_whitespace().last().expect("a list").to_owned()
}

/// Needs two cores; on a machine with one all workers are pinned to that.
#[cfg(target_os = "linux")]
#[test]
fn each_worker_is_pinned_to_a_core_of_its_own_and_begins_again_where_there_are_no_more() {
    let all = allowed();
    let number = |text: &str| text.parse::<usize>().expect("the number of a core");
    let ranges = all.split(',').map(|range| range.split_once('-').unwrap_or((range, range)));
    let cores: Vec<usize> = ranges.flat_map(|(first, last)| number(first)..=number(last)).take(2).collect();
    for workers in [2, 3] {
        let config = PoolConfig::new().workers(workers).cores(cores.iter().copied()).name("pinned");
        let vm = Vm::builder().shared_workers(false).pool(Pool::Normal, config).build().expect("an engine");
        let (gate, found) = (ClosedGate::new(), Arc::new(Mutex::new(Vec::new())));
        for _ in 0..workers {
            let (held, found) = (gate.clone(), found.clone());
            let look = move || {
                found.lock().unwrap().push((thread::current().name().unwrap_or_default().to_owned(), allowed()));
                held.pass();
                Ok(())
            };
            vm.push("where", [], look).expect("it is taken");
        }
        // Each is held by one of them.
        gate.wait_entered(workers);
        gate.open();
        vm.wait_all().expect("all passed");
        let mut found = found.lock().unwrap().clone();
        found.sort();
        let pinned = (0..workers).map(|worker| (format!("pinned.{worker}"), cores[worker % cores.len()].to_string()));
        assert_eq!(found, pinned.collect::<Vec<_>>(), "{workers} workers on {cores:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn workers_are_pinned_to_their_cores_and_run_anywhere_where_that_is_impossible() {
    let mine = allowed();
    let core: usize = mine.split([',', '-']).next().and_then(|first| first.parse().ok()).expect("a core");
    let missing = 1_000_000;
    let vm = Vm::builder()
        .shared_workers(false)
        .pool(Pool::Normal, PoolConfig::new().workers(1).cores([core]))
        .pool(Pool::Urgent, PoolConfig::new().workers(1).cores([missing]).name("lost"))
        .build()
        .expect("an engine");
    let found = Arc::new(Mutex::new(Vec::new()));
    let told = || logged(Level::Warn, "thread lost.0 is not pinned to core 1000000").len();
    assert_eq!(told(), 0);
    for pool in [Pool::Normal, Pool::Urgent] {
        let found = found.clone();
        let ticket = vm.pusher().pool(pool).push("where", [], move || {
            found.lock().unwrap().push(allowed());
            Ok(())
        });
        ticket.expect("it is taken").wait().expect("it passed");
    }
    assert_eq!(*found.lock().unwrap(), [core.to_string(), mine]);
    assert_eq!(told(), 1);
}

/// The threads of a CPU device's streams, too: each is held by a function of its own stream.
#[cfg(target_os = "linux")]
#[test]
fn threads_of_streams_are_pinned_to_their_cores_in_turn() {
    let mine = allowed();
    let core: usize = mine.split([',', '-']).next().and_then(|first| first.parse().ok()).expect("a core");
    let vm = Vm::builder().cpu_threads(3).cpu_cores([core, 1_000_000]).build().expect("an engine");
    let (gate, found) = (ClosedGate::new(), Arc::new(Mutex::new(Vec::new())));
    for lane in 0..3 {
        let (held, found) = (gate.clone(), found.clone());
        let _lane = streamvm::Lane(lane).enter();
        let look = move |_: &mut streamvm::FnContext<'_>| {
            found.lock().unwrap().push((thread::current().name().unwrap_or_default().to_owned(), allowed()));
            held.pass();
            Ok(())
        };
        vm.call_fn("where", CPU, [], look).expect("it is taken");
    }
    gate.wait_entered(3);
    gate.open();
    vm.wait_all().expect("all passed");
    let mut found = found.lock().unwrap().clone();
    found.sort();
    let expected = [("cpu:0.0", core.to_string()), ("cpu:0.1", mine), ("cpu:0.2", core.to_string())];
    assert_eq!(found, expected.map(|(name, cores)| (name.to_owned(), cores)));
}
