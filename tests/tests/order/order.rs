//! Order: what runs side by side, what runs one after the other.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use streamvm::instructions::SoftSyncMode;
use streamvm::stream::Capabilities;
use streamvm::{DeviceId, Event, FnContext, FnError, StreamKey, StreamType, TimeLimit, Var, Vm};
use streamvm_tests::{CPU, ClosedGate, failure_of, on_device, submit, within};

fn vm() -> Vm {
    Vm::builder().build().expect("an engine")
}

fn lane(lane: u32) -> StreamKey {
    StreamKey::new(CPU, StreamType::Compute, lane)
}

/// The numbers of functions in the order in which they ran.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<usize>>>);

impl Log {
    fn note(
        &self,
        number: usize,
    ) -> impl for<'a, 'b> FnOnce(&'a mut FnContext<'b>) -> Result<(), FnError> + Send + 'static {
        let log = self.0.clone();
        move |_: &mut FnContext<'_>| {
            log.lock().expect("not poisoned").push(number);
            Ok(())
        }
    }

    fn numbers(&self) -> Vec<usize> {
        self.0.lock().expect("not poisoned").clone()
    }
}

/// Whether two functions on two lanes can be inside the engine at once; without, the machine has one core.
fn runs_side_by_side() -> bool {
    std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1)
}

#[test]
fn reads_of_one_variable_on_two_lanes_run_side_by_side() {
    if !runs_side_by_side() {
        return;
    }
    within("two readers that meet", || {
        let vm = vm();
        let token = Var::new();
        submit(&vm, |b| b.call_fn("write", CPU, [token.write()], |_| Ok(())));
        let meeting = Arc::new(Barrier::new(2));
        for number in 0..2 {
            let meeting = meeting.clone();
            submit(&vm, |b| {
                // Each returns only when the other is inside as well.
                b.on_lane(number).call_fn("read", CPU, [token.read()], move |_| {
                    meeting.wait();
                    Ok(())
                })
            });
        }
        vm.wait_all().expect("they met");
    });
}

#[test]
fn writers_of_one_variable_run_one_after_the_other_whatever_their_lanes() {
    for capabilities in [Capabilities::standard(), Capabilities::standard().host_waits_only()] {
        for mode in [SoftSyncMode::Minimal, SoftSyncMode::LastUsedStream] {
            let vm = Vm::builder().capabilities(capabilities.clone()).soft_sync(mode).build().expect("an engine");
            let (token, log, inside) = (Var::new(), Log::default(), Arc::new(AtomicUsize::new(0)));
            for number in 0..200 {
                let (note, inside) = (log.note(number), inside.clone());
                submit(&vm, |b| {
                    b.on_lane(number as u32 % 4).call_fn("write", CPU, [token.write()], move |context| {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two writers at once");
                        note(context)?;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        Ok(())
                    })
                });
            }
            vm.wait_all().expect("they pass");
            assert_eq!(log.numbers(), (0..200).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_writer_waits_for_readers_and_a_reader_for_the_writer() {
    let vm = vm();
    let gate = ClosedGate::new();
    let (token, log) = (Var::new(), Log::default());
    submit(&vm, |b| {
        b.on_lane(1).call_fn("read", CPU, [token.read()], gate.function())?;
        b.on_lane(2).call_fn("write", CPU, [token.write()], log.note(1))?;
        b.on_lane(3).call_fn("read", CPU, [token.read()], log.note(2))
    });
    gate.wait_entered(1);
    assert!(TimeLimit(Duration::from_millis(20)).run(|| vm.wait_all()).is_err());
    assert_eq!(log.numbers(), [0_usize; 0]);
    gate.open();
    vm.wait_all().expect("they pass");
    assert_eq!(log.numbers(), [1, 2]);
}

#[test]
fn a_variable_used_twice_by_one_function_is_used_once() {
    within("a function that reads and writes one variable", || {
        let vm = vm();
        let (token, log) = (Var::new(), Log::default());
        for number in 0..20 {
            submit(&vm, |b| {
                let uses = [token.read(), token.write(), token.read(), token.update()];
                b.on_lane(number as u32 % 3).call_fn("both", CPU, uses, log.note(number))
            });
        }
        vm.wait_all().expect("they pass");
        assert_eq!(log.numbers(), (0..20).collect::<Vec<_>>());
    });
}

#[test]
fn submissions_of_several_threads_run_in_the_order_of_their_submission() {
    let vm = vm();
    let (token, log) = (Var::new(), Log::default());
    // The lock makes the order of submission known.
    let next = Mutex::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (vm, token, log, next) = (&vm, &token, &log, &next);
            scope.spawn(move || {
                for _ in 0..100 {
                    let mut next = next.lock().expect("not poisoned");
                    submit(vm, |b| b.on_lane(thread).call_fn("write", CPU, [token.update()], log.note(*next)));
                    *next += 1;
                }
            });
        }
    });
    vm.wait_all().expect("they pass");
    assert_eq!(log.numbers(), (0..400).collect::<Vec<_>>());
}

#[test]
fn an_explicit_wait_orders_streams_that_share_nothing() {
    let vm = vm();
    let gate = ClosedGate::new();
    let log = Log::default();
    let mut mark = None;
    submit(&vm, |b| {
        b.on_lane(1).call_fn("held", CPU, [], gate.function())?;
        b.on_lane(1).call_fn("first", CPU, [], log.note(1))?;
        mark = Some(b.record(lane(1)));
        Ok(())
    });
    let mark: Event = mark.expect("recorded");
    // In another list, and twice: an event may be waited for any number of times.
    for target in [2, 3] {
        submit(&vm, |b| {
            b.wait(lane(target), lane(1), &mark);
            b.on_lane(target).call_fn("behind", CPU, [], log.note(2))
        });
    }
    gate.wait_entered(1);
    assert_eq!(log.numbers(), [0_usize; 0]);
    gate.open();
    vm.wait_all().expect("they pass");
    assert_eq!(log.numbers(), [1, 2, 2]);
}

/// Hole 20: what is submitted after a barrier starts after it, on streams old and new.
#[test]
fn a_barrier_comes_after_everything_before_it_and_before_everything_after_it() {
    for capabilities in [Capabilities::standard(), Capabilities::standard().host_waits_only()] {
        let vm = Vm::builder().cpu_devices(2).capabilities(capabilities).build().expect("an engine");
        let gate = ClosedGate::new();
        let log = Log::default();
        submit(&vm, |b| {
            b.call_fn("held", CPU, [], gate.function())?;
            b.on_lane(1).call_fn("before", CPU, [], log.note(1))
        });
        let note = log.note(2);
        let between = submit(&vm, |b| {
            b.barrier_with("between", move || note(&mut empty()));
            Ok(())
        });
        for device in 0..2 {
            submit(&vm, |b| b.on_lane(device + 1).call_fn("after", DeviceId::cpu(device), [], log.note(3)));
        }
        gate.wait_entered(1);
        assert!(TimeLimit(Duration::from_millis(20)).run(|| between.wait()).is_err());
        assert!(!log.numbers().contains(&2) && !log.numbers().contains(&3));
        gate.open();
        vm.wait_all().expect("they pass");
        assert_eq!(log.numbers(), [1, 2, 3, 3]);
    }
}

/// A context of no operands, for notes that are not taken inside a function with operands.
fn empty() -> FnContext<'static> {
    FnContext::new(&mut []).expect("nothing overlaps")
}

#[test]
fn a_barrier_runs_after_a_failed_instruction_and_is_not_poisoned() {
    let vm = vm();
    let x = on_device(&vm, &[1.0]);
    let ran = Arc::new(AtomicBool::new(false));
    let flag = ran.clone();
    submit(&vm, |b| b.call_fn("sour", CPU, [x.write()], |_| Err("no luck".into())));
    let barrier = submit(&vm, |b| {
        b.barrier_with("between", move || {
            flag.store(true, Ordering::SeqCst);
            Ok(())
        });
        Ok(())
    });
    assert_eq!(barrier.wait(), Ok(()));
    assert!(ran.load(Ordering::SeqCst));
    let after = submit(&vm, |b| b.call_fn("after", CPU, [], |_| Ok(())));
    assert_eq!(after.wait(), Ok(()));
    assert_eq!(failure_of(x.wait()).what, "sour");
}

#[test]
fn what_follows_a_failed_barrier_runs() {
    let vm = vm();
    let x = on_device(&vm, &[1.0]);
    let barrier = submit(&vm, |b| {
        b.barrier_with("between", || Err("no luck".into()));
        Ok(())
    });
    assert_eq!(x.neg().and_then(|y| y.to_vec::<f32>()), Ok(vec![-1.0]));
    assert_eq!(failure_of(barrier.wait()).what, "between");
}

#[test]
fn a_global_sync_holds_up_nobody_but_who_waits_for_it() {
    if !runs_side_by_side() {
        return;
    }
    let vm = vm();
    let gate = ClosedGate::new();
    submit(&vm, |b| b.call_fn("held", CPU, [], gate.function()));
    let sync = submit(&vm, |b| {
        b.global_sync();
        Ok(())
    });
    let after = submit(&vm, |b| b.on_lane(1).call_fn("after", CPU, [], |_| Ok(())));
    assert_eq!(after.wait(), Ok(()), "it does not wait for the sync");
    assert!(TimeLimit(Duration::from_millis(10)).run(|| sync.wait()).is_err());
    gate.open();
    assert_eq!(sync.wait(), Ok(()));
}

#[test]
fn a_lane_guard_moves_eager_calls_to_streams_of_their_own() {
    let vm = vm();
    let x = on_device(&vm, &[1.0]);
    {
        let _outer = streamvm::Lane(5).enter();
        x.neg().expect("submitted");
        let _inner = streamvm::Lane(6).enter();
        x.neg().expect("submitted");
    }
    x.neg().expect("submitted");
    vm.wait_all().expect("they pass");
    let counts: Vec<_> = vm
        .stats()
        .streams
        .iter()
        .filter(|counts| counts.stream.stream_type == StreamType::Compute)
        .map(|counts| (counts.stream.lane, counts.instructions))
        .collect();
    assert_eq!(counts, [(5, 1), (6, 1), (0, 1)]);
}

/// Hole 8: older work of lane 1 is held back, by its thread or by the scheduler, newer work of lane 2 that waits for it
/// comes to their one thread first, and what shares nothing with them is not held up.
#[test]
fn work_that_waits_holds_up_nobody_else_on_its_thread() {
    for capabilities in [Capabilities::standard(), Capabilities::standard().host_waits_only()] {
        waits_beside_others(capabilities);
    }
}

fn waits_beside_others(capabilities: Capabilities) {
    within("three lanes on one thread", move || {
        let builder = Vm::builder().cpu_threads(1).cpu_devices(2).capabilities(capabilities);
        let vm = builder.build().expect("an engine");
        let gate = ClosedGate::new();
        let (token, log) = (Var::new(), Log::default());
        let x = on_device(&vm, &[1.0]);
        let elsewhere = StreamKey::new(DeviceId::cpu(1), StreamType::Compute, 0);
        let mut mark = None;
        submit(&vm, |b| {
            b.call_fn("held", DeviceId::cpu(1), [], gate.function())?;
            mark = Some(b.record(elsewhere));
            Ok(())
        });
        let mark = mark.expect("recorded");
        submit(&vm, |b| {
            b.wait(lane(1), elsewhere, &mark);
            b.on_lane(1).call_fn("first", CPU, [token.write()], log.note(1))?;
            b.on_lane(2).call_fn("second", CPU, [token.write()], log.note(2))?;
            b.on_lane(1).call_fn("third", CPU, [token.write()], log.note(3))
        });
        gate.wait_entered(1);
        assert_eq!(x.neg().and_then(|y| y.to_vec::<f32>()), Ok(vec![-1.0]), "lane 0 goes on meanwhile");
        assert_eq!(log.numbers(), [0_usize; 0]);
        gate.open();
        vm.wait_all().expect("they pass");
        assert_eq!(log.numbers(), [1, 2, 3]);
    });
}

#[test]
fn a_touch_orders_its_stream_after_the_writes_of_what_it_touches() {
    let vm = vm();
    let gate = ClosedGate::new();
    let log = Log::default();
    let x = on_device(&vm, &[1.0]);
    submit(&vm, |b| {
        b.on_lane(1).call_fn("held", CPU, [x.update()], gate.function())?;
        let mut b = b.on_lane(2);
        b.touch(CPU, &[&x]);
        b.call_fn("behind the touch", CPU, [], log.note(1))
    });
    gate.wait_entered(1);
    assert!(TimeLimit(Duration::from_millis(10)).run(|| vm.wait_all()).is_err());
    assert_eq!(log.numbers(), [0_usize; 0]);
    gate.open();
    vm.wait_all().expect("they pass");
    assert_eq!(log.numbers(), [1]);
}

/// Hole 10, on the CPU: a compute waits for its own copy, not for the next prefetch, which the user must let go.
#[test]
fn a_compute_does_not_wait_for_the_next_prefetch() {
    within("a prefetch that the program lets go itself", || {
        // What holds the next input up runs on a device of its own: its function keeps a thread.
        let vm = Vm::builder().cpu_devices(2).build().expect("an engine");
        let gate = ClosedGate::new();
        let host = vm.from_slice(&[3.0f32], &[1]).expect("a host tensor");
        let next = vm.from_slice(&[4.0f32], &[1]).expect("a host tensor");
        submit(&vm, |b| b.call_fn("produces the next", DeviceId::cpu(1), [next.update()], gate.function()));
        let (first, second) = (host.to(CPU).expect("submitted"), next.to(CPU).expect("submitted"));
        assert_eq!(first.neg().and_then(|y| y.to_vec::<f32>()), Ok(vec![-3.0]));
        gate.open();
        assert_eq!(second.to_vec::<f32>(), Ok(vec![4.0]));
    });
}

#[test]
fn waits_are_counted_and_none_is_made_twice() {
    let vm = vm();
    let gate = ClosedGate::new();
    let x = on_device(&vm, &[1.0]);
    submit(&vm, |b| b.call_fn("held", CPU, [x.update()], gate.function()));
    submit(&vm, |b| {
        let mut b = b.on_lane(1);
        (0..10).try_for_each(|_| b.call_fn("read", CPU, [x.read()], |_| Ok(())))
    });
    gate.open();
    vm.wait_all().expect("they pass");
    let counts = vm.stats().streams.into_iter().find(|counts| counts.stream == lane(1)).expect("used");
    assert_eq!((counts.instructions, counts.device_waits, counts.host_waits), (10, 1, 0));
}

/// While a lane has a long queue, its thread looks for what comes to its other lanes, however few came at the last look.
#[test]
fn a_long_queue_keeps_nothing_from_another_lane() {
    const LONG: usize = 2_000;
    let vm = Vm::builder().cpu_threads(1).build().expect("an engine");
    let [start, one, two] = std::array::from_fn(|_| ClosedGate::new());
    let (done, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(LONG)));
    submit(&vm, |b| {
        b.call_fn("start", CPU, [], start.function())?;
        for _ in 0..LONG {
            let done = done.clone();
            b.host_fn("long", CPU, move || {
                done.fetch_add(1, Ordering::Relaxed);
                Ok(())
            });
        }
        Ok(())
    });
    start.wait_entered(1);
    let behind = |gate: &ClosedGate| {
        let (held, done, seen) = (gate.function(), done.clone(), seen.clone());
        submit(&vm, |b| {
            b.on_lane(1).call_fn("behind", CPU, [], move |context| {
                seen.store(done.load(Ordering::Relaxed), Ordering::Relaxed);
                held(context)
            })
        });
    };
    behind(&one);
    start.open();
    one.wait_entered(1);
    behind(&two);
    one.open();
    // Nobody waits for the engine: it would look more often.
    two.wait_entered(1);
    assert!(seen.load(Ordering::Relaxed) < LONG, "it ran behind all that was queued on the other lane");
    two.open();
    vm.wait_all().expect("it passes");
}

/// Each lane runs in order, whether instructions come singly, in lists or after a barrier.
#[test]
fn what_is_submitted_singly_and_in_lists_keeps_the_order_of_its_lane() {
    for (lists, barriers) in [(usize::MAX, usize::MAX), (1_500, usize::MAX), (7, usize::MAX), (900, 1_700), (5, 64)] {
        within("single submissions, lists and barriers", move || {
            // One context for both lanes, and all of it after a closed gate.
            let vm = Vm::builder().cpu_threads(1).build().expect("an engine");
            let gate = ClosedGate::new();
            let logs: [Log; 2] = Default::default();
            submit(&vm, |b| b.call_fn("held", CPU, [], gate.function()));
            gate.wait_entered(1);
            for number in 0..4_000 {
                let lane = number / 3 % 2;
                let _lane = streamvm::Lane(lane as u32).enter();
                let note = logs[lane].note(number);
                if number % barriers == barriers - 1 {
                    submit(&vm, |b| {
                        b.barrier();
                        b.call_fn("behind a barrier", CPU, [], note)
                    });
                } else if number % lists == lists - 1 {
                    submit(&vm, |b| b.call_fn("of a list", CPU, [], note));
                } else {
                    vm.call_fn("single", CPU, [], note).expect("taken");
                }
                if number == 3_000 {
                    gate.open();
                }
            }
            vm.wait_all().expect("nothing fails");
            for (lane, log) in logs.iter().enumerate() {
                let expected: Vec<usize> = (0..4_000).filter(|number| number / 3 % 2 == lane).collect();
                assert_eq!(log.numbers(), expected, "lane {lane}");
            }
        });
    }
}

/// The race detector gives the address of a variable to another one once no access of the first is still to be told. The first
/// detector that did so freed the address before it had forgotten the accesses there, and reported races that were none.
#[test]
fn variables_that_live_for_a_moment_are_no_races() {
    let vm = Vm::builder().detect_races(true).workers(2).build().expect("an engine");
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for round in 0..3_000 {
                    let (one, two) = (vm.var(), vm.var());
                    vm.push("first", [one.write()], || Ok(())).expect("there is room");
                    vm.push("second", [one.read(), two.write()], || Ok(())).expect("there is room");
                    if round % 3 == 0 {
                        vm.call_fn("third", CPU, [two.update()], |_| Ok(())).expect("there is room");
                    }
                }
            });
        }
    });
    vm.wait_all().expect("all is well");
    assert_eq!(vm.races(), []);
}
