//! Streams of a CPU device on its threads: which thread runs which stream, and when. Decided by counting who has come while a function is
//! held at a gate, never by time.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;

use streamvm::{DType, DeviceId, FnContext, InstructionsBuilder, Lane, StreamKey, StreamType, Vm};
use streamvm_tests::{CPU, ClosedGate, PATIENCE, failure_of, submit, until, within};

fn engine(threads: usize) -> Vm {
    Vm::builder().cpu_threads(threads).build().expect("an engine")
}

/// All orders of `0..count`.
fn orders(count: usize) -> Vec<Vec<usize>> {
    let Some(last) = count.checked_sub(1) else { return vec![Vec::new()] };
    let insert = |order: Vec<usize>| {
        (0..count).map(move |at| {
            let mut longer = order.clone();
            longer.insert(at, last);
            longer
        })
    };
    orders(last).into_iter().flat_map(insert).collect()
}

/// Runs a function on a lane of the CPU. Does not wait for it.
fn call(vm: &Vm, lane: usize, function: impl FnOnce() + Send + 'static) {
    let _lane = Lane(lane as u32).enter();
    vm.call_fn("function", CPU, [], move |_| {
        function();
        Ok(())
    })
    .expect("it is taken");
}

/// Two threads run any two of four streams side by side, whatever the order in which the streams were used first.
#[test]
fn two_streams_run_side_by_side_in_every_order_of_first_use() {
    within("pairs of streams", || {
        for order in orders(4) {
            let vm = engine(2);
            order.iter().for_each(|lane| call(&vm, *lane, || {}));
            vm.wait_all().expect("nothing fails");
            for (one, other) in (0..4).flat_map(|one| (0..one).map(move |other| (one, other))) {
                // Each function waits until both have come.
                let both = Arc::new(Barrier::new(2));
                for lane in [one, other] {
                    let both = both.clone();
                    call(&vm, lane, move || _ = both.wait());
                }
                vm.wait_all().expect("nothing fails");
            }
        }
    });
}

/// As many functions as threads, each on a stream of its own and waiting for the next, run side by side, whatever the order of first use.
/// The threads are more than the cores of many machines, so this does not depend on cores.
#[test]
fn as_many_streams_run_as_there_are_threads() {
    within("four streams", || {
        for order in orders(4) {
            let vm = engine(4);
            let all = Arc::new(Barrier::new(4));
            for _ in 0..3 {
                for lane in &order {
                    let all = all.clone();
                    call(&vm, *lane, move || _ = all.wait());
                }
            }
            vm.wait_all().expect("nothing fails");
        }
    });
}

/// Copy streams and compute streams share the threads in any order of first use, too: a function on one lane is held while copies in and out
/// of pinned memory pass on the other lane's streams.
#[test]
fn copies_pass_while_a_function_is_held() {
    within("copies beside a function", || {
        for order in orders(3) {
            let vm = engine(2);
            let x = vm.from_slice_pinned(CPU, &[1.0f32, 2.0], &[2]).expect("pinned memory");
            let on_device = |lane: u32| {
                let mut b = InstructionsBuilder::new();
                let copied = b.on_lane(lane).copy(&x, CPU).expect("a copy");
                vm.submit(b.finish()).expect("it is taken");
                copied
            };
            for first in order {
                match first {
                    0 => drop(on_device(0)),
                    1 => call(&vm, 0, || {}),
                    _ => call(&vm, 1, || {}),
                }
            }
            let gate = ClosedGate::new();
            let held = gate.clone();
            call(&vm, 1, move || held.pass());
            gate.wait_entered(1);
            assert_eq!(on_device(0).to_vec::<f32>(), Ok(vec![1.0, 2.0]));
            drop(gate);
            vm.wait_all().expect("nothing fails");
        }
    });
}

/// A copy between pinned and other memory of a CPU runs on a copy stream.
#[test]
fn copies_of_pinned_memory_have_streams_of_their_own() {
    let vm = engine(1);
    let pinned = vm.from_slice_pinned(CPU, &[1.0f32], &[1]).expect("pinned memory");
    let mut b = InstructionsBuilder::new();
    let x = b.copy(&pinned, CPU).expect("a copy");
    b.copy_into(&x, &pinned).expect("a copy");
    let list = b.finish();
    let streams: Vec<StreamKey> = list.instructions().iter().map(|instruction| instruction.stream).collect();
    let key = |stream_type| StreamKey::new(CPU, stream_type, 0);
    assert_eq!(streams, [key(StreamType::HostToDevice), key(StreamType::DeviceToHost)]);
    assert_eq!(vm.submit(list).expect("it is taken").wait(), Ok(()));
}

/// While one thread is held by a long function, the other one runs every other stream.
#[test]
fn no_ready_stream_waits_for_a_long_function_while_a_thread_is_idle() {
    within("streams beside a held one", || {
        let vm = engine(2);
        for held in 0..8 {
            let gate = ClosedGate::new();
            let hold = gate.clone();
            call(&vm, held, move || hold.pass());
            gate.wait_entered(1);
            let (ran, behind) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let counted = behind.clone();
            call(&vm, held, move || _ = counted.fetch_add(1, Ordering::SeqCst));
            for lane in (0..8).filter(|lane| *lane != held) {
                for _ in 0..3 {
                    let ran = ran.clone();
                    call(&vm, lane, move || _ = ran.fetch_add(1, Ordering::SeqCst));
                }
            }
            until("the other streams have run", || ran.load(Ordering::SeqCst) == 21);
            assert_eq!(behind.load(Ordering::SeqCst), 0, "it is behind the function that is held");
            drop(gate);
            vm.wait_all().expect("nothing fails");
            assert_eq!(behind.load(Ordering::SeqCst), 1);
        }
    });
}

/// On one thread, a stream with much work does not keep another waiting for more than its turn of 64 instructions.
#[test]
fn a_stream_with_much_work_lets_others_have_their_turn() {
    within("turns", || {
        let vm = engine(1);
        let (gate, ran) = (ClosedGate::new(), Arc::new(AtomicUsize::new(0)));
        let hold = gate.clone();
        call(&vm, 0, move || hold.pass());
        gate.wait_entered(1);
        for _ in 0..2_000 {
            let ran = ran.clone();
            call(&vm, 0, move || _ = ran.fetch_add(1, Ordering::SeqCst));
        }
        let (sender, seen) = mpsc::channel();
        let counted = ran.clone();
        call(&vm, 1, move || sender.send(counted.load(Ordering::SeqCst)).expect("it is read"));
        drop(gate);
        let before = seen.recv_timeout(PATIENCE).expect("it ran");
        assert!(before <= 64, "{before} instructions ran before");
        vm.wait_all().expect("nothing fails");
        assert_eq!(ran.load(Ordering::SeqCst), 2_000);
    });
}

/// The same for instructions that came in one list, which the thread has taken in as a whole before another stream is ready.
#[test]
fn a_stream_with_a_long_list_lets_others_have_their_turn() {
    within("turns", || {
        let vm = engine(1);
        let (gate, ran) = (ClosedGate::new(), Arc::new(AtomicUsize::new(0)));
        submit(&vm, |b| {
            b.call_fn("held", CPU, [], gate.function())?;
            for _ in 0..500 {
                let ran = ran.clone();
                b.call_fn("counts", CPU, [], move |_| {
                    ran.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                })?;
            }
            Ok(())
        });
        gate.wait_entered(1);
        let (sender, seen) = mpsc::channel();
        let counted = ran.clone();
        call(&vm, 1, move || sender.send(counted.load(Ordering::SeqCst)).expect("it is read"));
        gate.open();
        let before = seen.recv_timeout(PATIENCE).expect("it ran");
        assert!(before <= 64, "{before} instructions ran before");
        vm.wait_all().expect("nothing fails");
        assert_eq!(ran.load(Ordering::SeqCst), 500);
    });
}

/// A stream that gets its instructions one by one, each while the one before runs, does not keep another waiting, either.
#[test]
fn a_stream_that_always_gets_one_more_instruction_lets_others_have_their_turn() {
    within("a stream that feeds itself", || {
        let vm = Arc::new(engine(1));
        let stop = Arc::new(AtomicUsize::new(0));
        // Each call of it submits the next on the same stream, before it returns.
        fn again(vm: &Arc<Vm>, stop: &Arc<AtomicUsize>) {
            let (next, stopped) = (Arc::downgrade(vm), stop.clone());
            call(vm, 0, move || {
                if stopped.load(Ordering::SeqCst) == 0
                    && let Some(vm) = next.upgrade()
                {
                    again(&vm, &stopped);
                }
            });
        }
        again(&vm, &stop);
        let (sender, ran) = mpsc::channel();
        call(&vm, 1, move || sender.send(()).expect("it is read"));
        ran.recv_timeout(PATIENCE).expect("the other stream had its turn");
        stop.store(1, Ordering::SeqCst);
        vm.wait_all().expect("nothing fails");
    });
}

/// A stream stays on its thread while it has work and no other stream is ready: its data is in the caches of that core.
#[test]
fn a_stream_stays_on_its_thread_while_it_has_work() {
    let vm = engine(4);
    let threads: Arc<Mutex<HashSet<ThreadId>>> = Arc::default();
    let mut b = InstructionsBuilder::new();
    for _ in 0..1_000 {
        let threads = threads.clone();
        let note = move |_: &mut FnContext<'_>| {
            threads.lock().expect("no thread panics with the lock").insert(thread::current().id());
            Ok(())
        };
        b.call_fn("note", CPU, [], note).expect("a function");
    }
    vm.submit(b.finish()).expect("it is taken").wait().expect("nothing fails");
    assert_eq!(threads.lock().expect("no thread panics with the lock").len(), 1);
}

/// A stream whose head waits for another stream takes no thread: beside one that is held and 31 that each wait for the one before, the second
/// thread runs another stream. With one thread, all pass once the first goes on.
#[test]
fn streams_that_wait_take_no_thread() {
    within("a chain of streams", || {
        for threads in [1, 2] {
            let vm = engine(threads);
            let hold = ClosedGate::new();
            let gate = hold.clone();
            let x = vm.full(CPU, DType::F32, &[1], 0.0).expect("a fill");
            submit(&vm, |b| {
                b.call_fn("held", CPU, [x.update()], move |_| {
                    gate.pass();
                    Ok(())
                })?;
                let one = b.full(CPU, DType::F32, &[1], 1.0)?;
                for lane in 1..32 {
                    let mut b = b.on_lane(lane);
                    let sum = b.add(&x, &one)?;
                    b.copy_into(&sum, &x)?;
                }
                Ok(())
            });
            hold.wait_entered(1);
            if threads == 2 {
                let (sender, ran) = mpsc::channel();
                call(&vm, 40, move || sender.send(()).expect("it is read"));
                ran.recv_timeout(PATIENCE).expect("it ran while the others wait");
            }
            drop(hold);
            assert_eq!(x.to_vec::<f32>(), Ok(vec![31.0]));
        }
    });
}

/// A failure on one stream reaches what reads from it on others, whatever thread runs them, and nothing else.
#[test]
fn a_failure_follows_the_data_across_threads() {
    within("a failure", || {
        let vm = engine(4);
        for _ in 0..20 {
            let x = vm.full(CPU, DType::F32, &[1], 1.0).expect("a fill");
            submit(&vm, |b| b.call_fn("fails", CPU, [x.update()], |_| Err("no".into())).map(drop));
            let dependents: Vec<_> = (1..8)
                .map(|lane| {
                    let _lane = Lane(lane).enter();
                    (x.neg().expect("it is taken"), vm.full(CPU, DType::F32, &[1], lane as f32).expect("a fill"))
                })
                .collect();
            for (dependent, other) in dependents {
                assert_eq!(failure_of(dependent.wait()).what, "fails");
                assert_eq!(other.wait(), Ok(()));
            }
        }
    });
}

/// Each CPU device has threads of its own.
#[test]
fn devices_share_no_threads() {
    within("two devices", || {
        let vm = Vm::builder().cpu_threads(1).cpu_devices(2).build().expect("an engine");
        let both = Arc::new(Barrier::new(2));
        for device in [DeviceId::cpu(0), DeviceId::cpu(1)] {
            let both = both.clone();
            vm.call_fn("meets", device, [], move |_| {
                both.wait();
                Ok(())
            })
            .expect("it is taken");
        }
        vm.wait_all().expect("nothing fails");
    });
}

/// The only thread of a device is parked while the heads of three streams wait for another thread: a worker, another device, a device that runs
/// commands later, a barrier. When these are over, the thread is woken and runs all three. No caller waits meanwhile: a caller could help.
#[test]
fn the_only_thread_is_woken_by_whatever_makes_a_stream_ready() {
    within("one thread that is woken", || {
        let vm = Vm::builder().cpu_threads(1).cpu_devices(2).sim_devices(1).build().expect("an engine");
        for source in ["a worker", "another device", "a simulated device", "a barrier"].repeat(20) {
            let (gate, token, ran) = (ClosedGate::new(), vm.var(), Arc::new(AtomicUsize::new(0)));
            let hold = gate.clone();
            let held = move || {
                hold.pass();
                Ok(())
            };
            match source {
                "a worker" => _ = vm.push(source, [token.write()], held).expect("it is taken"),
                "a barrier" => drop(submit(&vm, |b| {
                    b.barrier_with(source, held);
                    Ok(())
                })),
                _ => {
                    let device = if source == "another device" { DeviceId::cpu(1) } else { DeviceId::sim(0) };
                    vm.call_fn(source, device, [token.write()], move |_| held()).expect("it is taken");
                }
            }
            for lane in 0..3 {
                let (_lane, ran) = (Lane(lane).enter(), ran.clone());
                let counts = move |_: &mut FnContext<'_>| {
                    ran.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                };
                vm.call_fn("behind it", CPU, [token.read()], counts).expect("it is taken");
            }
            // A simulated device runs what something waits for.
            gate.wait_entered(1);
            lets_the_thread_park();
            assert_eq!(ran.load(Ordering::SeqCst), 0, "behind {source}");
            gate.open();
            until(&format!("three streams ran behind {source}"), || ran.load(Ordering::SeqCst) == 3);
        }
    });
}

/// The only thread of a device is parked, and each call goes to another stream than the last.
#[test]
fn the_only_thread_is_woken_for_each_stream() {
    within("one thread that is woken", || {
        let (vm, ran) = (engine(1), Arc::new(AtomicUsize::new(0)));
        for number in 0..60 {
            lets_the_thread_park();
            let counted = ran.clone();
            call(&vm, number % 5, move || _ = counted.fetch_add(1, Ordering::SeqCst));
            until("it ran", || ran.load(Ordering::SeqCst) == number + 1);
        }
    });
}

/// Threads spin for some microseconds before they park. A thread that has not parked yet makes a test easier, and no less right.
fn lets_the_thread_park() {
    thread::sleep(Duration::from_millis(2));
}
