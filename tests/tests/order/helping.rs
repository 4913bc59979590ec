//! Helping: a caller that waits runs built-in kernels, copies and fills that it waits for in place of the thread context, and
//! never a caller's code that does not promise to take no lock.
//!
//! Who comes first is the scheduler's choice, the system's. So these tests go on until a caller has helped, or for a long time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use streamvm::ep::{InlineFn, Operation, Unfinished};
use streamvm::instructions::{Kind, Role};
use streamvm::program::CompileOptions;
use streamvm::{
    BuildError, DType, Error, FnContext, FnError, InstructionList, Op, Params, Site, StreamKey, StreamType, Tensor,
    TimeLimit, Vm, VmBuilder,
};
use streamvm_tests::{CPU, PATIENCE, failure_of, no_races, on_device, submit, within};

/// Long enough for a thread context to fall asleep.
const PAUSE: Duration = Duration::from_millis(1);

fn vm() -> Vm {
    Vm::builder().build().expect("an engine")
}

/// Engines that submit and run in different ways.
fn engines() -> [(&'static str, VmBuilder); 3] {
    let watched = Vm::builder().detect_races(true);
    [("plain", Vm::builder()), ("watched", watched), ("profiled", Vm::builder().profile(true))]
}

/// Does `round` until callers have helped in a hundred of them.
fn until_helped(vm: &Vm, mut round: impl FnMut(usize)) {
    let mut helped = 0;
    for number in 0..20_000 {
        if number % 4 == 1 {
            std::thread::sleep(PAUSE);
        }
        let before = vm.stats().helped;
        round(number);
        helped += usize::from(vm.stats().helped > before);
        if helped >= 100 {
            return;
        }
    }
    panic!("a caller has helped {helped} times in 20,000 waits");
}

#[test]
fn a_waiter_runs_kernels_and_copies_itself() {
    for (name, builder) in engines() {
        within(name, move || {
            let vm = builder.build().expect("an engine");
            let one = on_device(&vm, &[1.0]);
            let mut sum = on_device(&vm, &[0.0]);
            let mut rounds = 0;
            until_helped(&vm, |_| {
                sum = sum.add(&one).expect("a sum");
                sum.wait().expect("it passes");
                rounds += 1;
            });
            assert_eq!(sum.to_vec::<f32>(), Ok(vec![rounds as f32]));
            let (mut filled, mut fills) = (sum.clone(), 0);
            until_helped(&vm, |round| {
                filled = vm.full(CPU, DType::F32, &[3], round as f32).expect("a fill");
                filled.wait().expect("it passes");
                fills = round;
            });
            assert_eq!(filled.to_vec::<f32>(), Ok(vec![fills as f32; 3]));
            until_helped(&vm, |_| {
                let copy = sum.to(CPU).expect("a copy");
                copy.wait().expect("it passes");
                assert_eq!(copy.to_vec::<f32>(), Ok(vec![rounds as f32]));
            });
            no_races(&vm);
        });
    }
}

/// A thousand in one list are more than a turn: who helps gives the turn back.
#[test]
fn a_waiter_and_the_context_take_turns_on_one_stream() {
    within("turns", || {
        let vm = vm();
        let (one, sum) = (on_device(&vm, &[1.0]), on_device(&vm, &[0.0]));
        let mut rounds = 0;
        until_helped(&vm, |_| {
            let ticket = submit(&vm, |b| {
                (0..1_000).try_for_each(|_| b.op_into(Op::Add, &[&sum, &one], Params::default(), &sum))
            });
            let before = vm.stats().helped;
            ticket.wait().expect("it passes");
            assert!(vm.stats().helped - before <= 64, "a caller has run more than a turn");
            rounds += 1;
            // Exact as long as it is below 2^24.
            if rounds % 1_000 == 0 {
                vm.submit(streamvm_tests::list(|b| b.fill(&sum, 0.0))).expect("taken").wait().expect("it passes");
            }
        });
        assert_eq!(sum.to_vec::<f32>(), Ok(vec![(rounds % 1_000 * 1_000) as f32]));
    });
}

/// Hole 17: whoever waits may hold a lock that a function takes.
#[test]
fn a_waiter_never_runs_a_function() {
    for (name, builder) in engines() {
        within(name, move || {
            let vm = builder.build().expect("an engine");
            let me = std::thread::current().id();
            let (one, sum) = (on_device(&vm, &[1.0]), on_device(&vm, &[0.0]));
            let mine = Arc::new(AtomicUsize::new(0));
            let count = || {
                let mine = mine.clone();
                move || mine.fetch_add(usize::from(std::thread::current().id() == me), Ordering::Relaxed)
            };
            until_helped(&vm, |round| {
                if round % 5 == 0 {
                    let called = count();
                    let ticket = submit(&vm, |b| {
                        let mut on = b.on_collective();
                        on.call_fn("before one that callers may run", CPU, [], move |_| {
                            called();
                            Ok(())
                        })?;
                        on.call_helpable("which", CPU, [], |_| Ok(()))
                    });
                    ticket.wait().expect("it passes");
                }
                // In front of what is waited for, with something to drop, and after it.
                if round % 2 == 0 {
                    let (called, dropped) = (count(), OnDrop(Some(count())));
                    let function = move || {
                        let _held = &dropped;
                        called();
                        Ok(())
                    };
                    submit(&vm, |b| b.call_fn("in front", CPU, [sum.read()], move |_| function()));
                }
                let ticket = submit(&vm, |b| b.op_into(Op::Add, &[&sum, &one], Params::default(), &sum));
                if round % 3 == 0 {
                    let called = count();
                    let function = move || {
                        called();
                        Ok(())
                    };
                    submit(&vm, |b| b.call_fn("behind", CPU, [sum.read()], move |_| function()));
                }
                ticket.wait().expect("it passes");
            });
            vm.wait_all().expect("nothing fails");
            assert_eq!(mine.load(Ordering::Relaxed), 0, "the caller's thread ran a function");
        });
    }
}

/// Over after a number of polls, counted down in each; without one it panics.
struct Polled(u32);

impl Operation for Polled {
    fn poll(&mut self) -> Result<bool, FnError> {
        self.0 = self.0.checked_sub(1).expect("a number of polls");
        Ok(self.0 == 0)
    }
}

/// Submits a function that a caller may run. It adds one to `sum`, and starts an operation that is over after `polls`.
fn add_one(vm: &Vm, sum: &Tensor, polls: u32, mine: &Arc<AtomicUsize>) -> Result<(), Error> {
    let (me, mine) = (std::thread::current().id(), mine.clone());
    let ticket = submit(vm, |b| {
        b.on_collective().call_helpable("add one", CPU, [sum.update()], move |context| {
            mine.fetch_add(usize::from(std::thread::current().id() == me), Ordering::Relaxed);
            context.writes.take::<f32>(0)?[0] += 1.0;
            Err(Box::new(Unfinished(Box::new(Polled(polls)))))
        })
    });
    ticket.wait()
}

/// Operations that are over soon end while the caller polls them, others are left to the thread of the context.
#[test]
fn a_waiter_runs_a_function_that_promises_to_take_no_lock_and_polls_its_operation() {
    for (name, builder) in engines() {
        within(name, move || {
            let vm = builder.build().expect("an engine");
            let (sum, mine, mut rounds) = (on_device(&vm, &[0.0]), Arc::default(), 0);
            until_helped(&vm, |round| {
                add_one(&vm, &sum, [1, 50, 5_000][round % 3], &mine).expect("it passes");
                rounds += 1;
            });
            assert!(mine.load(Ordering::Relaxed) >= 100, "callers ran {mine:?} functions");
            assert_eq!(sum.to_vec::<f32>(), Ok(vec![rounds as f32]));
            no_races(&vm);
        });
    }
}

/// As of kernels, a caller runs at most a turn of operations, however soon they are over.
#[test]
fn a_waiter_runs_at_most_a_turn_of_operations() {
    within("many operations", || {
        let vm = vm();
        until_helped(&vm, |_| {
            let ticket = submit(&vm, |b| {
                (0..200).try_for_each(|_| {
                    let starts = |_: &mut FnContext<'_>| -> Result<(), FnError> {
                        Err(Box::new(Unfinished(Box::new(Polled(1)))))
                    };
                    b.on_collective().call_helpable("soon over", CPU, [], starts)
                })
            });
            let before = vm.stats().helped;
            ticket.wait().expect("they pass");
            assert!(vm.stats().helped - before <= 64, "a caller has run more than a turn");
        });
    });
}

/// Two callers wait for operations of one context, the first of which is over once the second function has run: who polls lets the other begin.
#[test]
fn a_waiter_that_polls_holds_no_other_operation_back() {
    within("operations that need each other", || {
        let vm = vm();
        for _ in 0..200 {
            let flag = Arc::new(AtomicBool::new(false));
            std::thread::scope(|scope| {
                for (lane, ends) in [(0, false), (1, true)] {
                    let (vm, flag) = (&vm, flag.clone());
                    scope.spawn(move || {
                        let _lane = streamvm::Lane(lane).enter();
                        let ticket = submit(vm, |b| {
                            b.on_collective().call_helpable("meet", CPU, [], move |_| {
                                flag.fetch_or(ends, Ordering::Release);
                                Err(Box::new(Unfinished(Box::new(Until(flag)))))
                            })
                        });
                        ticket.wait().expect("it passes");
                    });
                }
            });
        }
    });
}

/// Over once the flag is set.
struct Until(Arc<AtomicBool>);

impl Operation for Until {
    fn poll(&mut self) -> Result<bool, FnError> {
        Ok(self.0.load(Ordering::Acquire))
    }
}

#[test]
fn what_fails_while_a_waiter_runs_it_fails_its_instruction() {
    within("failures of operations", || {
        let vm = vm();
        until_helped(&vm, |round| {
            let ticket = submit(&vm, |b| {
                b.on_collective().call_helpable("fails", CPU, [], move |_| match round % 3 {
                    0 => Err("no luck".into()),
                    1 => panic!("on purpose"),
                    // Panics in its first poll.
                    _ => Err(Box::new(Unfinished(Box::new(Polled(0))))),
                })
            });
            assert_eq!(failure_of(ticket.wait()).what, "fails");
        });
    });
}

struct OnDrop<F: FnOnce() -> usize>(Option<F>);

impl<F: FnOnce() -> usize> Drop for OnDrop<F> {
    fn drop(&mut self) {
        self.0.take().map(|f| f());
    }
}

/// A kernel is not interrupted, so a caller that must be back in time leaves it to the context.
#[test]
fn a_waiter_with_a_deadline_does_not_help() {
    within("deadlines", || {
        let vm = vm();
        for round in 0..200 {
            if round % 4 == 0 {
                std::thread::sleep(PAUSE);
            }
            let x = vm.full(CPU, DType::F32, &[1], 1.0).expect("a fill");
            TimeLimit(PATIENCE).run(|| x.wait()).expect("it passes");
        }
        assert_eq!(vm.stats().helped, 0);
    });
}

#[test]
fn a_waiter_that_skips_what_has_failed_tells_the_root_cause() {
    within("failures", || {
        let vm = vm();
        let x = on_device(&vm, &[1.0]);
        let sour = submit(&vm, |b| b.call_fn("sour", CPU, [x.update()], |_| Err("no luck".into())));
        assert_eq!(failure_of(sour.wait()).what, "sour");
        until_helped(&vm, |_| {
            let y = x.neg().expect("submitted");
            assert_eq!(failure_of(y.wait()).what, "sour");
        });
    });
}

/// What helps takes in what lies there for other lanes of the context, too, and the thread finds it.
#[test]
fn helpers_leave_nothing_behind() {
    within("many helpers", || {
        let vm = Vm::builder().cpu_threads(1).build().expect("an engine");
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let vm = &vm;
                scope.spawn(move || {
                    let _lane = streamvm::Lane(thread).enter();
                    let one = on_device(vm, &[1.0]);
                    let mut sum = on_device(vm, &[0.0]);
                    for round in 0..2_000 {
                        sum = sum.add(&one).expect("a sum");
                        if round % 3 == 0 {
                            let seen = submit(vm, |b| b.call_fn("look", CPU, [sum.read()], |_| Ok(())));
                            seen.wait().expect("it passes");
                        } else {
                            sum.wait().expect("it passes");
                        }
                    }
                    assert_eq!(sum.to_vec::<f32>(), Ok(vec![2_000.0]));
                });
            }
        });
        assert_eq!(vm.stats().in_flight, 0);
    });
}

/// Whoever helps again and again leaves the context's thread its turn, however long the kernels are.
#[test]
fn helpers_do_not_keep_other_lanes_waiting() {
    within("a lane beside a helper", || {
        let vm = Vm::builder().cpu_threads(1).build().expect("an engine");
        let x = vm.full(CPU, DType::F32, &[1 << 20], 1.0).expect("a fill");
        x.wait().expect("it passes");
        for _ in 0..20 {
            let ran = Arc::new(AtomicUsize::new(0));
            let note = ran.clone();
            let _lane = streamvm::Lane(1).enter();
            let beside = submit(&vm, |b| {
                b.call_fn("beside", CPU, [], move |_| {
                    note.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                })
            });
            let _lane = streamvm::Lane(0).enter();
            let mut rounds = 0;
            while ran.load(Ordering::Relaxed) == 0 {
                x.neg().expect("submitted").wait().expect("it passes");
                rounds += 1;
                // A busy machine may take a while to give the thread a core.
                assert!(rounds < 1_000, "a function of another lane has waited for {rounds} turns of a helper");
            }
            beside.wait().expect("it passes");
        }
    });
}

/// A run of a compiled program is an engine's own work: kernels, copies and fills.
#[test]
fn a_waiter_runs_programs_itself() {
    within("programs", || {
        let vm = vm();
        let program = vm.record("next", |r| {
            let x = r.feed("x", CPU, DType::F32, &[1])?;
            r.fetch("y", &(&x + 1.0)?)
        });
        let program = program.expect("it can be recorded");
        let next = vm.compile(&program, &[], &CompileOptions::default()).expect("it compiles");
        let (mut x, mut rounds) = (on_device(&vm, &[0.0]), 0);
        until_helped(&vm, |_| {
            x = next.run(&[("x", &x)]).expect("it is submitted")["y"].clone();
            x.wait().expect("it passes");
            rounds += 1;
        });
        assert_eq!(x.to_vec::<f32>(), Ok(vec![rounds as f32]));
    });
}

/// Else a caller that waits could run code that takes a lock which it holds.
#[test]
fn lists_take_no_code_under_the_name_of_a_program() {
    let body = Some(InlineFn::new(|_: &mut FnContext<'_>| Ok(())));
    let kind = Kind::Function { role: Role::Program, name: "mine".into(), body };
    let stream = StreamKey::new(CPU, StreamType::Compute, 0);
    let mut list = InstructionList::new();
    let refused = list.push(stream, kind, [], Site::caller());
    assert!(matches!(&refused, Err(Error::Build { error: BuildError::ProgramCode { what }, .. }) if what == "mine"));
    assert!(list.instructions().is_empty());
}
