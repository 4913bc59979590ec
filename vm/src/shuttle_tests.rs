//! Whole engines under random schedules: small programs run through the public API, while shuttle's random and PCT schedulers
//! decide the order of every lock, atomic, park and thread of the engine.
//!
//! * A missed wake-up shows as a deadlock, with the schedule that led to it. `SHUTTLE_SCHEDULE=<that schedule>` replays it,
//!   which a test with real threads cannot do.
//! * Shuttle's memory is sequentially consistent. Errors that need weaker memory are found by the loom models beside each
//!   protocol.
//! * `SHUTTLE_ROUNDS=n` sets the number of schedules of each scheduler; the default is 300.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use shuttle::{Config, Runner, scheduler};

use crate::ep::{Operation, Unfinished};
use crate::{DType, DeviceId, Error, FnError, InstructionsBuilder, Place, Ticket, Vm, VmBuilder};

const CPU: DeviceId = DeviceId::cpu(0);

/// Runs `program` under schedules of both schedulers, or replays the one in `SHUTTLE_SCHEDULE`.
fn drawn(program: fn()) {
    let rounds = std::env::var("SHUTTLE_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(300);
    let mut config = Config::new();
    // Kernels run on the threads of the engine, and need more than shuttle's default stack.
    config.stack_size = 256 << 10;
    if let Ok(schedule) = std::env::var("SHUTTLE_SCHEDULE") {
        let scheduler = scheduler::ReplayScheduler::new_from_encoded(&schedule);
        Runner::new(scheduler, config).run(program);
        return;
    }
    Runner::new(scheduler::RandomScheduler::new(rounds), config.clone()).run(program);
    Runner::new(scheduler::PctScheduler::new(3, rounds), config).run(program);
}

/// An engine, configured by `set`.
fn engine(set: fn(VmBuilder) -> VmBuilder) -> Vm {
    set(Vm::builder()).build().expect("an engine")
}

fn submit(vm: &Vm, build: impl FnOnce(&mut InstructionsBuilder)) -> Ticket<'_> {
    let mut builder = InstructionsBuilder::new();
    build(&mut builder);
    vm.submit(builder.finish()).expect("the engine takes the list")
}

/// Two lanes and a copy, and a caller that waits for them: covers device waits between contexts, the scheduler's inbox, and a
/// caller that parks.
#[test]
fn shuttle_lanes_wait_for_each_other() {
    drawn(|| {
        let vm = engine(|builder| builder.cpu_threads(2));
        let mut b = InstructionsBuilder::new();
        let x = b.full(CPU, DType::F32, &[2], 1.0).expect("a fill");
        let y = b.on_lane(1).add(&x, &x).expect("a sum");
        let z = b.add(&y, &x).expect("a sum");
        let host = b.copy(&z, Place::Host).expect("a copy");
        vm.submit(b.finish()).expect("taken").wait().expect("it passes");
        assert_eq!(host.to_vec::<f32>(), Ok(vec![3.0, 3.0]));
    });
}

/// A barrier holds its successors back in the scheduler: the right to dispatch the stream goes to the scheduler and comes back.
#[test]
fn shuttle_the_right_to_dispatch_comes_back_in_order() {
    drawn(|| {
        let vm = engine(|builder| builder.cpu_threads(2));
        let count = Arc::new(AtomicU64::new(0));
        let step = |b: &mut InstructionsBuilder, expected: u64| {
            let count = count.clone();
            b.host_fn("step", CPU, move || {
                assert_eq!(count.fetch_add(1, Ordering::SeqCst), expected);
                Ok(())
            });
        };
        submit(&vm, |b| {
            step(b, 0);
            b.barrier();
            step(b, 1);
        });
        // By now the scheduler may have dispatched everything that it holds, or not.
        for expected in 2..4 {
            submit(&vm, |b| step(b, expected));
        }
        vm.wait_all().expect("nothing fails");
        assert_eq!(count.load(Ordering::SeqCst), 4);
    });
}

/// Workers, an ordered stream, and workers again: covers edges between dependence nodes, stolen tasks, waits between both kinds of
/// streams in both directions, and the idle set.
#[test]
fn shuttle_workers_and_streams_wait_for_each_other() {
    drawn(|| {
        let vm = engine(|builder| builder.workers(2).cpu_threads(1));
        let (variable, count) = (vm.var(), Arc::new(AtomicU64::new(0)));
        let step = |b: &mut InstructionsBuilder, uses, expected: std::ops::Range<u64>| {
            let count = count.clone();
            b.call_fn("step", CPU, [uses], move |_| {
                assert!(expected.contains(&count.fetch_add(1, Ordering::SeqCst)));
                Ok(())
            })
            .expect("a function");
        };
        submit(&vm, |b| {
            let b = &mut b.on_workers();
            step(b, variable.write(), 0..1);
            (0..3).for_each(|_| step(b, variable.read(), 1..4));
        });
        submit(&vm, |b| {
            step(&mut b.on_workers(), variable.update(), 4..5);
            step(b, variable.update(), 5..6);
            step(&mut b.on_workers(), variable.read(), 6..7);
        });
        vm.wait_all().expect("nothing fails");
        assert_eq!(count.load(Ordering::SeqCst), 7);
    });
}

/// Two submitters and a queue of two instructions: backpressure blocks both, and each is woken.
#[test]
fn shuttle_blocked_submitters_go_on() {
    drawn(|| {
        let vm = Arc::new(engine(|builder| builder.cpu_threads(2).max_instructions(2)));
        let count = Arc::new(AtomicU64::new(0));
        let submitters: Vec<_> = (0..2)
            .map(|lane| {
                let (vm, count) = (vm.clone(), count.clone());
                shuttle::thread::spawn(move || {
                    for _ in 0..3 {
                        let count = count.clone();
                        submit(&vm, |b| {
                            b.on_lane(lane).host_fn("count", CPU, move || {
                                count.fetch_add(1, Ordering::SeqCst);
                                Ok(())
                            });
                        });
                    }
                })
            })
            .collect();
        submitters.into_iter().for_each(|submitter| submitter.join().expect("it submits"));
        vm.wait_all().expect("nothing fails");
        assert_eq!(count.load(Ordering::SeqCst), 6);
    });
}

/// Two threads submit one instruction at a time beside a list that is larger than the bound. Once the list waits for
/// backpressure, every submission that begins later is admitted after it.
#[test]
fn shuttle_no_submission_goes_ahead_of_a_list_that_waits() {
    drawn(|| {
        const LARGE: u64 = 3;
        let vm = Arc::new(engine(|builder| builder.cpu_threads(1).max_instructions(2)));
        let functions = |b: &mut InstructionsBuilder, many| (0..many).for_each(|_| b.host_fn("f", CPU, || Ok(())));
        let small: Vec<_> = (0..2)
            .map(|_| {
                let vm = vm.clone();
                shuttle::thread::spawn(move || {
                    for _ in 0..3 {
                        let waits = vm.engine.backpressure.waits_for(LARGE);
                        submit(&vm, |b| functions(b, 1));
                        assert!(
                            !waits || !vm.engine.backpressure.waits_for(LARGE),
                            "a submission went ahead of the list"
                        );
                    }
                })
            })
            .collect();
        submit(&vm, |b| functions(b, LARGE));
        small.into_iter().for_each(|thread| thread.join().expect("it submits"));
        vm.wait_all().expect("nothing fails");
    });
}

/// Two functions become ready at once and wait for each other: the worker that makes them ready wakes another worker, whether that
/// is parked or about to park.
#[test]
fn shuttle_two_functions_that_wait_for_each_other_run_side_by_side() {
    drawn(|| {
        let vm = engine(|builder| builder.workers(2).cpu_threads(1));
        let (variable, met) = (vm.var(), Arc::new((shuttle::sync::Mutex::new(0), shuttle::sync::Condvar::new())));
        submit(&vm, |b| {
            let mut b = b.on_workers();
            b.call_fn("source", CPU, [variable.write()], |_| Ok(())).expect("a function");
            for _ in 0..2 {
                let met = met.clone();
                let meet = move || {
                    let (came, changed) = &*met;
                    let mut came = came.lock().expect("no thread panics with the lock");
                    *came += 1;
                    changed.notify_all();
                    while *came < 2 {
                        came = changed.wait(came).expect("no thread panics with the lock");
                    }
                };
                b.call_fn("meets", CPU, [variable.read()], move |_| {
                    meet();
                    Ok(())
                })
                .expect("a function");
            }
        });
        vm.wait_all().expect("nothing fails");
    });
}

/// A failure, an instruction on another lane that reads it, and a heal: waiters on two threads get the failure, and a waiter for
/// the healed tensor does not.
#[test]
fn shuttle_failures_are_seen_by_every_waiter() {
    drawn(|| {
        let vm = Arc::new(engine(|builder| builder.cpu_threads(2)));
        let mut b = InstructionsBuilder::new();
        let x = b.full(CPU, DType::F32, &[1], 1.0).expect("a fill");
        b.call_fn("fails", CPU, [x.update()], |_| Err("no".into())).expect("a function");
        let y = b.on_lane(1).neg(&x).expect("an op");
        b.on_lane(1).fill(&x, 2.0).expect("a fill");
        let healed = b.on_lane(1).neg(&x).expect("an op");
        let _ = vm.submit(b.finish()).expect("taken");
        let other = {
            let y = y.clone();
            shuttle::thread::spawn(move || assert!(matches!(y.wait(), Err(Error::Failed(_)))))
        };
        assert!(matches!(y.wait(), Err(Error::Failed(_))));
        assert_eq!(healed.wait(), Ok(()));
        other.join().expect("it saw the failure");
    });
}

/// Callbacks are registered and the engine shuts down: every callback runs before the shutdown returns.
#[test]
fn shuttle_callbacks_run_before_the_end() {
    drawn(|| {
        let vm = engine(|builder| builder.cpu_threads(2));
        let count = Arc::new(AtomicU64::new(0));
        for _ in 0..2 {
            let count = count.clone();
            let x = vm.full(CPU, DType::F32, &[1], 1.0).expect("a fill");
            x.on_passed(move |outcome| {
                assert_eq!(outcome, Ok(()));
                count.fetch_add(1, Ordering::SeqCst);
            })
            .expect("submitted");
        }
        vm.shutdown(Duration::MAX).expect("it ends");
        assert_eq!(count.load(Ordering::SeqCst), 2);
    });
}

/// One thread drops tensors while another submits: each memory block is freed exactly once.
#[test]
fn shuttle_dropped_handles_are_freed_once() {
    drawn(|| {
        let vm = Arc::new(engine(|builder| builder.cpu_threads(2).cpu_memory_limit(1 << 20)));
        let x = vm.full(CPU, DType::F32, &[64], 1.0).expect("a fill");
        let dropper = {
            let x = x.clone();
            shuttle::thread::spawn(move || drop(x))
        };
        let y = x.neg().expect("an op");
        drop(x);
        let z = y.neg().expect("an op");
        drop(y);
        dropper.join().expect("it drops");
        assert_eq!(z.wait(), Ok(()));
        drop(z);
        vm.wait_all().expect("nothing fails");
        let stats = vm.stats();
        assert!(stats.memory.iter().all(|pool| pool.allocator.in_use == 0), "{stats:?}");
    });
}

/// Helping callers also take in tasks for other lanes of the context, and the context's thread finds those that they do not run. A
/// helping caller never runs a function that another thread submits meanwhile, on its own stream or another.
#[test]
fn shuttle_callers_that_help_leave_nothing_behind() {
    drawn(|| {
        let vm = Arc::new(engine(|builder| builder.cpu_threads(1)));
        let (me, mine) = (shuttle::thread::current().id(), Arc::new(AtomicU64::new(0)));
        let other = {
            let (vm, mine) = (vm.clone(), mine.clone());
            shuttle::thread::spawn(move || {
                let look = || {
                    let mine = mine.clone();
                    let by_me =
                        move || mine.fetch_add(u64::from(shuttle::thread::current().id() == me), Ordering::SeqCst);
                    vm.call_fn("look", CPU, [], move |_| {
                        by_me();
                        Ok(())
                    })
                };
                let behind = look().expect("taken");
                let _lane = crate::Lane(1).enter();
                let apart = look().expect("taken");
                let x = vm.full(CPU, DType::F32, &[1], 1.0).expect("a fill");
                assert_eq!((x.wait(), behind.wait(), apart.wait()), (Ok(()), Ok(()), Ok(())));
            })
        };
        let x = vm.full(CPU, DType::F32, &[1], 1.0).expect("a fill");
        assert_eq!(x.neg().expect("an op").wait(), Ok(()));
        other.join().expect("it saw all pass");
        assert_eq!(mine.load(Ordering::SeqCst), 0, "a caller ran a function");
    });
}

/// Two callers wait for operations of one context. The first is over once the function of the second has run, so a caller that polls must let go of the context.
#[test]
fn shuttle_callers_that_poll_let_others_begin() {
    struct Until(Arc<AtomicU64>);
    impl Operation for Until {
        fn poll(&mut self) -> Result<bool, FnError> {
            Ok(self.0.load(Ordering::SeqCst) > 0)
        }
    }
    fn meet(vm: &Vm, lane: u32, flag: Arc<AtomicU64>) {
        let ticket = submit(vm, |b| {
            let started = b.on_lane(lane).on_collective().call_helpable("meet", CPU, [], move |_| {
                flag.fetch_add(u64::from(lane), Ordering::SeqCst);
                Err(Box::new(Unfinished(Box::new(Until(flag)))))
            });
            started.expect("a function");
        });
        assert_eq!(ticket.wait(), Ok(()));
    }
    drawn(|| {
        let vm = Arc::new(engine(|builder| builder.cpu_threads(1)));
        let flag = Arc::new(AtomicU64::new(0));
        let other = {
            let (vm, flag) = (vm.clone(), flag.clone());
            shuttle::thread::spawn(move || meet(&vm, 1, flag))
        };
        meet(&vm, 0, flag);
        other.join().expect("it met");
    });
}

/// A caller that has only a tensor runs the last instruction while the engine ends: the threads of the engine still see the end.
#[test]
fn shuttle_the_last_instruction_may_be_a_caller_s() {
    drawn(|| {
        let vm = engine(|builder| builder.cpu_threads(1));
        let x = vm.full(CPU, DType::F32, &[1], 1.0).expect("a fill");
        let y = x.neg().expect("an op");
        let waiter = shuttle::thread::spawn(move || assert!(matches!(y.wait(), Ok(()) | Err(Error::Shutdown { .. }))));
        drop(vm);
        waiter.join().expect("it saw the end");
    });
}

/// A caller that has only a tensor opens a stream, whose context gets a thread, while the engine is shut down. The thread is woken for the
/// end, whenever it was started; else the shutdown would wait for it for ever.
#[test]
fn shuttle_a_thread_that_starts_beside_the_end_sees_it() {
    drawn(|| {
        let vm = engine(|builder| builder.cpu_threads(2));
        let x = vm.full(CPU, DType::F32, &[1], 1.0).expect("a fill");
        let opener = shuttle::thread::spawn(move || {
            let _lane = crate::Lane(1).enter();
            assert!(matches!(x.neg(), Ok(_) | Err(Error::Shutdown { .. })));
        });
        vm.shutdown(Duration::MAX).expect("it ends");
        opener.join().expect("it was taken or refused");
    });
}

/// Three lanes on two threads, each of which waits for another, beside a caller that helps: threads leave strands whose heads wait, and take
/// them up again.
#[test]
fn shuttle_strands_change_threads() {
    drawn(|| {
        let vm = engine(|builder| builder.cpu_threads(2));
        let mut b = InstructionsBuilder::new();
        let x = b.full(CPU, DType::F32, &[1], 1.0).expect("a fill");
        let mut sums = Vec::new();
        for lane in [1, 2, 0, 1] {
            let sum = b.on_lane(lane).add(sums.last().unwrap_or(&x), &x).expect("a sum");
            sums.push(sum);
        }
        vm.submit(b.finish()).expect("taken");
        let aside = vm.full(CPU, DType::F32, &[1], 2.0).expect("a fill").neg().expect("an op");
        assert_eq!(aside.wait(), Ok(()));
        assert_eq!(sums[3].to_vec::<f32>(), Ok(vec![5.0]));
    });
}

/// Proves that shuttle varies the schedule: two threads add to a number by a load and a store, which loses an update.
#[test]
#[should_panic(expected = "an update was lost")]
fn shuttle_finds_a_lost_update() {
    drawn(|| {
        let number = Arc::new(crate::sync::AtomicU64::new(0));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let number = number.clone();
                shuttle::thread::spawn(move || number.store(number.load(Ordering::SeqCst) + 1, Ordering::SeqCst))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("it adds"));
        assert_eq!(number.load(Ordering::SeqCst), 2, "an update was lost");
    });
}
