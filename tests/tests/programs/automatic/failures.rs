//! Calls and runs that fail, and the end of the engine.

use streamvm::{BuildError, DType, Error, Mode, Tensor};
use streamvm_tests::{CPU, failure_of, on_device};

use super::{automatic, doubled, ints, is_held, modes, read, steady_modes, step, stepped};

#[test]
fn a_call_that_does_not_fit_is_refused_at_once() {
    for mode in steady_modes() {
        let vm = automatic().mode(mode).build().expect("an engine");
        let (w, other) = (on_device(&vm, &[8.0]), on_device(&vm, &[1.0, 2.0, 3.0]));
        let pair = on_device(&vm, &[1.0, 2.0]);
        let mut expected = 8.0;
        for round in 0..6 {
            let twice = (&w + &w).expect("it is taken");
            if round > 2 {
                assert!(matches!(&pair + &other, Err(Error::Build(BuildError::Op(_)))), "{mode:?}");
                assert!(w.fill(true).is_err());
            }
            w.copy_from(&(&(&w * 0.5).expect("it is taken") + 1.0).expect("it is taken")).expect("it is taken");
            assert_eq!(read(&twice), [2.0 * expected], "{mode:?}");
            expected = stepped(expected);
        }
        assert_eq!(vm.stats().automatic.fallbacks, 0, "{mode:?}: the refused calls were never made");
    }
}

/// The division by zero is in a replay, or in calls that are submitted one by one: the error names it and its line.
#[test]
fn a_failure_names_the_call_and_its_line() {
    for whole in [true, false] {
        for mode in modes() {
            let vm = automatic().mode(mode).build().expect("an engine");
            let mut line = 0;
            for round in 0..6 {
                let divisor = if round == 4 { 0 } else { 2 };
                let (x, by) = (ints(&vm, &[6, 8], &[2]), ints(&vm, &[divisor, 1], &[2]));
                vm.wait_all().expect("it runs");
                let twice = (&x + &x).expect("it is taken");
                line = line!() + 1;
                let quotient = (&twice / &by).expect("it is taken");
                let behind =
                    if whole || round < 4 { quotient.neg().expect("it is taken").abs() } else { doubled(&quotient) };
                let behind = behind.expect("it is taken");
                if round == 4 {
                    let failure = failure_of(behind.to_vec::<i32>());
                    let text = failure.to_string();
                    for part in ["div", &format!("automatic/failures.rs:{line}"), "zero"] {
                        assert!(text.contains(part), "{mode:?}: {part}: {text}");
                    }
                    x.wait().expect("it was only read");
                    let _ = vm.wait_all();
                } else {
                    let expected = if whole || round < 4 { [6, 16] } else { [12, 32] };
                    assert_eq!(behind.to_vec::<i32>().expect("it runs"), expected);
                }
            }
            assert!(line > 0);
        }
    }
}

/// A failed input: what reads it is skipped, and what does not is computed, as by eager calls.
#[test]
fn poison_is_that_of_eager_calls() {
    for mode in steady_modes() {
        let vm = automatic().mode(mode).build().expect("an engine");
        let (good, bad) = (on_device(&vm, &[1.0]), on_device(&vm, &[2.0]));
        for round in 0..6 {
            if round == 4 {
                vm.call_fn("breaks", CPU, [bad.update()], |_| Err("on purpose".into())).expect("it is taken");
                assert!(bad.wait().is_err());
            }
            let a = (&good + &good).expect("it is taken");
            let b = (&bad + &bad).expect("it is taken");
            let c = (&a + &a).expect("it is taken");
            let d = (&c + &b).expect("it is taken");
            assert_eq!(read(&c), [4.0], "{mode:?}");
            match round {
                ..4 => assert_eq!(read(&d), [8.0]),
                _ => assert_eq!(failure_of(d.to_vec::<f32>()).what, "breaks"),
            }
        }
        assert_eq!(vm.stats().automatic.replays, 2, "{mode:?}: the third and the fourth round");
    }
}

/// A run needs memory for all of its results at once; where there is not enough, the calls are submitted one by one.
#[test]
fn little_memory_falls_back_to_eager_calls() {
    const ELEMENTS: usize = 1 << 18;
    let bytes = (ELEMENTS * 4) as u64;
    let vm = automatic().mode(Mode::Inline).cpu_memory_limit(7 * bytes).build().expect("an engine");
    let x = vm.ones(CPU, DType::F32, &[ELEMENTS]).expect("a tensor");
    let mut kept = Vec::new();
    for round in 0..6 {
        if round == 4 {
            // Four of seven are taken, and a round needs one at a time beside its result.
            kept = (0..3).map(|_| vm.ones(CPU, DType::F32, &[ELEMENTS]).expect("a tensor")).collect();
            vm.wait_all().expect("it runs");
        }
        let mut y = (&x + &x).expect("it is taken");
        for _ in 0..5 {
            y = (&y - &x).expect("it is taken");
        }
        assert_eq!(y.to_vec::<f32>().expect("it runs")[ELEMENTS - 1], -3.0, "round {round}");
    }
    assert_eq!(kept.len(), 3);
}

/// A call that was held back and finds no memory is refused when it is submitted: the next call says so, and so does its result.
#[test]
fn a_held_back_call_that_is_refused_is_told() {
    const ELEMENTS: usize = 1 << 18;
    let bytes = (ELEMENTS * 4) as u64;
    let vm = automatic().mode(Mode::Inline).cpu_memory_limit(8 * bytes).build().expect("an engine");
    let x = vm.ones(CPU, DType::F32, &[ELEMENTS]).expect("a tensor");
    let round = || -> Result<Vec<Tensor>, Error> {
        let a = x.neg()?;
        let b = a.exp()?;
        let c = (&a + &b)?;
        let d = (&c * &b)?;
        Ok(vec![a, b, c, d])
    };
    for _ in 0..3 {
        round().expect("it is taken")[3].wait().expect("it runs");
    }
    let kept: Vec<Tensor> = (0..5).map(|_| vm.ones(CPU, DType::F32, &[ELEMENTS]).expect("a tensor")).collect();
    vm.wait_all().expect("it runs");
    let results = round().expect("all of it is held back");
    let refused = vm.wait_all();
    let text = format!("{refused:?}");
    assert!(text.contains("add, issued at") && text.contains("out of device memory"), "{text}");
    assert_eq!(results[0].to_vec::<f32>().expect("there was memory for it")[0], -1.0);
    assert_eq!(results[2].wait(), refused, "it was the call that was refused");
    assert_eq!(results[3].to_vec::<f32>().map(drop), refused, "it needs the call that was refused");
    assert_eq!((&results[3] + &x).map(drop), refused, "the call is refused, too");
    drop((results, kept));
    assert_eq!(round().expect("it is taken")[0].to_vec::<f32>().expect("there is memory again")[0], -1.0);
}

#[test]
fn calls_of_a_closed_engine_are_refused() {
    let vm = automatic().build().expect("an engine");
    let w = on_device(&vm, &[8.0]);
    for _ in 0..4 {
        step(&w).expect("it is taken");
    }
    let twice = doubled(&w).expect("it is taken");
    vm.close();
    assert_eq!(doubled(&w).map(drop), Err(Error::Shutdown));
    twice.wait().expect("it was taken before");
    drop(vm);
    twice.wait().expect("its outcome is kept");
    assert!(twice.to_vec::<f32>().is_err());
}

/// An engine that ends runs the calls that it holds back.
#[test]
fn calls_are_submitted_before_the_engine_ends() {
    for mode in modes() {
        let vm = automatic().mode(mode).build().expect("an engine");
        let w = on_device(&vm, &[8.0]);
        for _ in 0..4 {
            step(&w).expect("it is taken");
        }
        let twice = doubled(&w).expect("it is taken");
        assert!(mode == Mode::Threaded || is_held(&twice), "{mode:?}");
        drop(vm);
        twice.wait().expect("it has run");
    }
}
