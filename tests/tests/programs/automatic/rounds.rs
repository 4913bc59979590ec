//! Short sequences that follow themselves are joined: one run stands for several rounds, wherever the loop ends.

use std::thread;

use streamvm::{DType, Error, Mode, Tensor, Vm};
use streamvm_tests::{CPU, Random, no_races, on_device};

use super::{CALLS, automatic, doubled, ints, is_held, modes, read, steady_modes, step, stepped};

/// Rounds that are replayed alone before some are joined, and how many are joined: at most 16 calls.
const ALONE: u64 = 128;
const JOINED: u64 = 16 / CALLS;

/// The rounds up to the first that is held back as a part of a joined sequence.
const BEFORE: u64 = 2 + ALONE + JOINED;

#[test]
fn a_run_stands_for_several_rounds_of_a_long_loop() {
    let vm = automatic().mode(Mode::Inline).build().expect("an engine");
    let w = on_device(&vm, &[8.0]);
    let instructions = || vm.stats().streams.iter().map(|stream| stream.instructions).sum::<u64>();
    let before = instructions();
    for _ in 0..BEFORE + 5 * JOINED {
        step(&w).expect("it is taken");
    }
    w.wait().expect("it runs");
    assert_eq!(instructions() - before, 2 * CALLS + ALONE + JOINED + 5);
    let counted = vm.stats().automatic;
    let found = (counted.sequences, counted.replays, counted.calls_replayed, counted.fallbacks);
    assert_eq!(found, (2, ALONE + JOINED + 5, CALLS * (ALONE + 6 * JOINED), 0));
}

/// The loop ends behind each call of a joined sequence, by a read, by another call, or because another thread uses a tensor.
#[test]
fn a_loop_may_end_within_a_joined_sequence() {
    type End = fn(&Vm, &Tensor) -> Result<(), Error>;
    let ends: [(&str, End); 3] = [
        ("a read", |_, w| w.wait()),
        ("another call", |_, w| w.copy_from(&w.neg()?.neg()?)),
        ("another thread", |vm, _| thread::scope(|threads| threads.spawn(|| vm.wait_all()).join().expect("no panic"))),
    ];
    for (mode, (name, end)) in steady_modes().into_iter().flat_map(|mode| ends.map(|end| (mode, end))) {
        for rounds in 0..JOINED {
            for goes_on in [false, true] {
                let vm = automatic().mode(mode).detect_races(rounds % 3 == 0).build().expect("an engine");
                let w = on_device(&vm, &[8.0]);
                let (mut expected, mut kept) = (8.0, Vec::new());
                for round in 0..BEFORE + JOINED + rounds {
                    let twice = step(&w).expect("it is taken");
                    // Some results are used behind the end, also those of rounds that are replayed by themselves.
                    if round % 3 == 0 {
                        kept.push((twice, 2.0 * expected));
                    }
                    expected = stepped(expected);
                }
                // The first call of one more round.
                let twice = goes_on.then(|| doubled(&w).expect("it is taken"));
                assert!(twice.iter().all(is_held), "{name} behind {rounds}, {mode:?}");
                end(&vm, &w).expect("it runs");
                let counted = vm.stats().automatic;
                assert_eq!(
                    counted.calls_replayed,
                    CALLS * (BEFORE + JOINED + rounds - 2),
                    "{name}, {rounds}, {mode:?}"
                );
                assert_eq!(counted.fallbacks, u64::from(goes_on), "{name}, {rounds}, {mode:?}");
                assert_eq!(read(&w), [expected], "{name} behind {rounds}, {mode:?}");
                for (tensor, expected) in kept.iter().chain(&twice.map(|it| (it, 2.0 * expected))) {
                    assert_eq!(read(tensor), [*expected], "{name} behind {rounds}, {mode:?}");
                }
                no_races(&vm);
            }
        }
    }
}

/// A loop whose rounds were joined where they did not fit the round of a larger loop.
#[test]
fn rounds_that_are_mostly_not_whole_are_joined_anew() {
    let vm = automatic().mode(Mode::Inline).build().expect("an engine");
    let x = on_device(&vm, &[3.0]);
    let instructions = || vm.stats().streams.iter().map(|stream| stream.instructions).sum::<u64>();
    let negated = |calls: usize| (0..calls).fold(x.clone(), |y, _| y.neg().expect("it is taken"));
    // Sixteen calls are joined of which the thirteenth begins a round: such calls come once in each round.
    negated(20);
    for _ in 0..100 {
        negated(64);
    }
    x.wait().expect("it runs");
    let before = instructions();
    for round in 0..50 {
        assert_eq!(read(&negated(64)), [3.0], "round {round}");
    }
    // Four runs and a read.
    let made = instructions() - before;
    assert!(made <= 50 * 6, "{made}");
    assert_eq!(read(&negated(7)), [-3.0]);
}

/// Makes a loop of a few drawn calls, which change some tensors in place, also parts of them, and use what the round before made; then the rest of
/// a round. Returns what was read: some results of the rounds, and in the end all tensors.
fn play(vm: &Vm, seed: u64) -> Result<Vec<Vec<i32>>, Error> {
    const SHAPE: &[usize] = &[4, 2];
    let mut draw = Random::new(seed, 0);
    let mut given = || -> Result<Tensor, Error> {
        let elements: Vec<i32> = (0..8).map(|_| draw.below(9) as i32 - 4).collect();
        Ok(ints(vm, &elements, SHAPE))
    };
    let lasting = [given()?, given()?, given()?];
    let (length, body) = (3 + draw.below(3), draw.next());
    let (keeps, rounds) = (2 + draw.below(9), 150 + draw.below(60));
    let reads = if draw.once_in(2) { 20 + draw.below(40) } else { usize::MAX };
    let mut kept = Vec::new();
    let mut last = lasting[0].clone();
    for round in 0..=rounds {
        let mut calls = Random::new(body, 1);
        let mut tensors = vec![lasting[0].clone(), lasting[1].clone(), lasting[2].clone(), last.clone()];
        let ends_at = if round == rounds { draw.below(length) } else { length };
        for _ in 0..ends_at {
            let [x, y] = [calls.below(tensors.len()), calls.below(tensors.len())].map(|it| tensors[it].clone());
            let row = calls.below(3);
            match calls.below(7) {
                0 => tensors.push((&x + &y)?),
                1 => tensors.push((&x - &y)?),
                2 => tensors.push(x.minimum(&y)?),
                3 => tensors.push((&x.slice(0, row..row + 1)? + &y)?),
                4 => lasting[row].copy_from(&(&x - &y)?)?,
                5 => lasting[row].slice(0, row..4)?.copy_from(&y.neg()?.slice(0, row..4)?)?,
                _ => tensors.push(vm.full(CPU, DType::I32, SHAPE, row as i64)?),
            }
        }
        last = tensors.swap_remove(tensors.len() - 1);
        if round % keeps == 0 {
            kept.push(last.clone());
        }
        if round % reads == reads - 1 {
            last.wait()?;
        }
    }
    kept.iter().chain(&lasting).map(Tensor::to_vec).collect()
}

#[test]
fn drawn_short_loops_compute_what_eager_calls_compute() {
    let (mut runs, mut joined) = (0, 0);
    for seed in 1..=120u64 {
        let mode = modes()[seed as usize % 3];
        // Where room for instructions is short, rounds wait for it.
        let room = if seed % 2 == 0 { 16 } else { 4_096 };
        let vm = automatic().mode(mode).max_instructions(room).detect_races(seed % 5 == 0).build().expect("an engine");
        let eager = Vm::builder().mode(Mode::Inline).build().expect("an engine");
        let expected = play(&eager, seed).expect("it runs");
        assert_eq!(play(&vm, seed).expect("it runs"), expected, "seed {seed}, {mode:?}");
        no_races(&vm);
        let counted = vm.stats().automatic;
        runs += counted.replays;
        joined += u64::from(counted.sequences > 1);
    }
    assert!(runs > 1_000 && joined > 20, "the draws have work: {runs} {joined}");
}
