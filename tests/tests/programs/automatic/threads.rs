//! Threads whose calls are held back, beside each other and beside uses of their tensors.

use std::sync::mpsc::channel;
use std::thread;

use streamvm::{Error, InstructionsBuilder, Mode, Tensor, Vm};
use streamvm_tests::compiled::play;
use streamvm_tests::{CPU, no_races, on_device, until, within};

use super::{automatic, doubled, ints, is_held, read, step, stepped};

/// Threads with calls of their own, which all read one tensor.
#[test]
fn drawn_calls_of_several_threads_compute_what_eager_calls_compute() {
    let (mut replays, mut fallbacks) = (0, 0);
    for seed in 1..=40u64 {
        let vm = automatic().detect_races(true).build().expect("an engine");
        let shared = |vm: &Vm| ints(vm, &[3; 16], &[4, 4]);
        let eager = Vm::builder().mode(Mode::Inline).build().expect("an engine");
        let (ours, others) = (shared(&vm), shared(&eager));
        thread::scope(|threads| {
            for number in 0..3 {
                let (vm, eager, ours, others) = (&vm, &eager, &ours, &others);
                threads.spawn(move || {
                    let expected = play(eager, seed * 10 + number, Some(others));
                    assert_eq!(play(vm, seed * 10 + number, Some(ours)), expected, "seed {seed}, thread {number}");
                });
            }
        });
        no_races(&vm);
        let counted = vm.stats().automatic;
        replays += counted.replays;
        fallbacks += counted.fallbacks;
    }
    assert!(replays > 200 && fallbacks > 50, "calls were held back and replayed: {replays} {fallbacks}");
}

/// Two loops over the same weights, in two threads: each is replayed as if it were alone.
#[test]
fn threads_do_not_disturb_each_other() {
    let vm = automatic().mode(Mode::Inline).build().expect("an engine");
    let w = on_device(&vm, &[2.0]);
    thread::scope(|threads| {
        for number in 0..2 {
            let (vm, w) = (&vm, &w);
            threads.spawn(move || {
                let x = on_device(vm, &[number as f32]);
                for _ in 0..52 {
                    let y = (&x * w).expect("it is taken");
                    let z = (&y + w).expect("it is taken");
                    match number {
                        0 => x
                            .copy_from(&z.neg().expect("it is taken").abs().expect("it is taken"))
                            .expect("it is taken"),
                        _ => x
                            .copy_from(&z.minimum(w).expect("it is taken").sqrt().expect("it is taken"))
                            .expect("it is taken"),
                    }
                }
                x.wait().expect("it runs");
            });
        }
    });
    let counted = vm.stats().automatic;
    assert_eq!((counted.sequences, counted.replays, counted.fallbacks), (2, 100, 0));
}

/// A thread holds calls back; another one, which has been told of them, uses what they use.
#[test]
fn other_threads_come_behind_held_back_calls() {
    type Use = fn(&Vm, &Tensor, &Tensor) -> Result<Vec<f32>, Error>;
    let uses: &[(&str, Use)] = &[
        ("it reads a result", |_, _, result| result.to_vec::<f32>()),
        ("it computes with a result", |_, _, result| (result + 0.0)?.to_vec::<f32>()),
        ("it waits for a result", |_, _, result| result.wait().map(|()| Vec::new())),
        ("it submits a list of a result", |vm, _, result| {
            let mut builder = InstructionsBuilder::new();
            let copy = builder.neg(result)?;
            vm.submit(builder.finish())?;
            copy.to_vec::<f32>()
        }),
        ("it overwrites an input", |_, x, _| x.fill(100.0).map(|()| Vec::new())),
        ("a function changes an input", |vm, x, _| {
            vm.call_fn("changes", CPU, [x.write()], |context| {
                context.writes.take::<f32>(0)?.fill(50.0);
                Ok(())
            })?;
            Ok(Vec::new())
        }),
        ("it waits for everything", |vm, _, result| {
            vm.wait_all()?;
            assert!(!is_held(result));
            Ok(Vec::new())
        }),
        ("it submits a barrier", |vm, _, result| {
            let mut builder = InstructionsBuilder::new();
            builder.barrier();
            vm.submit(builder.finish())?;
            assert!(!is_held(result));
            Ok(Vec::new())
        }),
    ];
    let (mut replays, mut fallbacks) = (0, 0);
    for (name, other) in uses {
        for stop in 1..=4 {
            let play = |vm: &Vm| -> Result<Vec<Vec<f32>>, Error> {
                let x = on_device(vm, &[1.0]);
                let mut seen = Vec::new();
                for round in 0..6 {
                    let mut y = (&x + &x)?;
                    for call in 1..6 {
                        if round == 4 && call == stop {
                            let (x, y) = (&x, &y);
                            seen.push(thread::scope(|threads| {
                                threads.spawn(move || other(vm, x, y)).join().expect("no panic")
                            })?);
                        }
                        y = (&y + &x)?;
                    }
                    seen.push(y.to_vec::<f32>()?);
                }
                no_races(vm);
                Ok(seen)
            };
            let vm = automatic().detect_races(true).build().expect("an engine");
            let expected = play(&Vm::builder().mode(Mode::Inline).build().expect("an engine"));
            assert_eq!(play(&vm), expected, "{name}, behind call {stop}");
            let counted = vm.stats().automatic;
            replays += counted.replays;
            fallbacks += counted.fallbacks;
        }
    }
    assert!(replays > 0 && fallbacks > 10, "uses met calls that were held back: {replays} {fallbacks}");
}

/// One thread computes from a tensor that another one overwrites in each round.
#[test]
fn threads_that_hand_tensors_over_compute_what_eager_calls_compute() {
    let vm = automatic().detect_races(true).build().expect("an engine");
    let x = on_device(&vm, &[0.0]);
    let (give, take) = channel::<Tensor>();
    let (ask, asked) = channel::<()>();
    within("handing tensors over", move || {
        thread::scope(|threads| {
            let (of_thread, x) = (&vm, &x);
            threads.spawn(move || {
                for round in 0..60 {
                    let y = take.recv().expect("it is sent");
                    let x = x.clone();
                    let sum = (&(&y + &y)? - &y)?.neg()?;
                    x.copy_from(&(&sum + 0.5)?)?;
                    if round % 7 == 0 {
                        of_thread.wait_all()?;
                    }
                    ask.send(()).expect("it is received");
                }
                Ok::<_, Error>(())
            });
            let mut expected = 0.0f32;
            for _ in 0..60 {
                let y = (&(&(x * x).expect("it is taken") + x).expect("it is taken").minimum(x).expect("it is taken")
                    + 1.0)
                    .expect("it is taken");
                expected = (expected * expected + expected).min(expected) + 1.0;
                give.send(y).expect("it is received");
                asked.recv().expect("it is sent");
                expected = -expected + 0.5;
            }
            assert_eq!(read(x), [expected]);
        });
        no_races(&vm);
        let counted = vm.stats().automatic;
        assert!(counted.replays + counted.fallbacks > 0, "calls were held back: {counted:?}");
    });
}

/// Both threads hold calls back that read `x`; then one of them writes it.
#[test]
fn a_call_that_writes_comes_behind_calls_of_another_thread_that_read() {
    within("two threads in turn", || {
        let vm = automatic().mode(Mode::Inline).build().expect("an engine");
        let x = on_device(&vm, &[8.0]);
        let (ask, asked) = channel::<()>();
        let (tell, told) = channel::<()>();
        thread::scope(|threads| {
            let of_thread = &x;
            threads.spawn(move || {
                while asked.recv().is_ok() {
                    let next = (&(of_thread * 0.5).expect("it is taken") + 1.0).expect("it is taken");
                    of_thread.copy_from(&next).expect("it is taken");
                    of_thread.wait().expect("it runs");
                    tell.send(()).expect("it is received");
                }
            });
            let mut expected = 8.0;
            for round in 0..12 {
                let twice = doubled(&x).expect("it is taken");
                ask.send(()).expect("it is received");
                told.recv().expect("it is sent");
                let four =
                    (&twice + &twice).expect("it is taken").neg().expect("it is taken").abs().expect("it is taken");
                assert_eq!(read(&four), [4.0 * expected], "round {round}: from the value before");
                expected = stepped(expected);
            }
            drop(ask);
        });
        assert!(vm.stats().automatic.sequences > 1, "{:?}", vm.stats().automatic);
    });
}

/// A thread that stops in the middle of a sequence: its calls are submitted all the same.
#[test]
fn calls_of_an_idle_thread_are_submitted() {
    let vm = automatic().build().expect("an engine");
    let w = on_device(&vm, &[8.0]);
    for _ in 0..4 {
        step(&w).expect("it is taken");
    }
    for _ in 0..3 {
        let twice = doubled(&w).expect("it is taken");
        until("an idle thread's call is submitted", || !is_held(&twice));
    }
    let fallbacks = vm.stats().automatic.fallbacks;
    assert!(fallbacks > 0, "the sequence was not complete");
}
