//! Which calls are found, held back and replayed, and that they compute what eager calls compute.

use log::{Level, LevelFilter};
use streamvm::{CriticalSection, DType, DeviceId, Error, InstructionsBuilder, Lane, MemoryKind, Mode, Tensor, Var, Vm};
use streamvm_tests::compiled::play;
use streamvm_tests::{CPU, logged, no_races, on_device, used_bytes};

use super::{CALLS, automatic, doubled, is_held, modes, read, steady_modes, step, stepped};

#[test]
fn a_loop_is_replayed_from_its_third_round_on() {
    for mode in steady_modes() {
        let vm = automatic().mode(mode).build().expect("an engine");
        let w = on_device(&vm, &[8.0]);
        let mut expected = 8.0;
        for round in 0..10u64 {
            step(&w).expect("it is taken");
            expected = stepped(expected);
            w.wait().expect("it runs");
            let counted = vm.stats().automatic;
            let replays = round.saturating_sub(1);
            assert_eq!(
                (counted.replays, counted.calls_replayed),
                (replays, replays * CALLS),
                "{mode:?}, round {round}"
            );
            assert_eq!((counted.sequences, counted.fallbacks), (u64::from(round > 0), 0), "{mode:?}, round {round}");
        }
        assert_eq!(read(&w), [expected]);
        let programs = vm.stats().programs;
        assert_eq!((programs.misses, programs.hits), (1, 7), "one program was compiled, and found again");
    }
}

/// As it says; the loop has no boundary at all, and a replay is one instruction.
#[test]
fn a_replay_is_one_instruction() {
    let vm = automatic().mode(Mode::Inline).build().expect("an engine");
    let w = on_device(&vm, &[8.0]);
    let instructions = || vm.stats().streams.iter().map(|stream| stream.instructions).sum::<u64>();
    let before = instructions();
    for _ in 0..102 {
        step(&w).expect("it is taken");
    }
    w.wait().expect("it runs");
    assert_eq!(instructions() - before, 2 * CALLS + 100);
}

#[test]
fn an_engine_without_automatic_programs_holds_nothing_back() {
    let vm = Vm::builder().build().expect("an engine");
    let w = on_device(&vm, &[8.0]);
    for _ in 0..5 {
        let twice = step(&w).expect("it is taken");
        assert!(!is_held(&twice));
    }
    assert_eq!(vm.stats().automatic, streamvm::report::AutomaticStats::default());
}

#[test]
fn the_log_tells_what_was_compiled() {
    let vm = automatic().mode(Mode::Inline).build().expect("an engine");
    let w = on_device(&vm, &[8.0]);
    logged(Level::Info, "");
    log::set_max_level(LevelFilter::Info);
    for _ in 0..4 {
        step(&w).expect("it is taken");
    }
    vm.wait_all().expect("it runs");
    let told = logged(Level::Info, "automatic program: 6 calls of");
    assert!(!told.is_empty() && told.iter().all(|line| line.contains("automatic/mod.rs:")), "{told:?}");
}

/// The slices of a batch begin elsewhere each time; the weights are also used as a transposed view.
#[test]
fn a_loop_over_slices_is_replayed() {
    for mode in steady_modes() {
        let vm = automatic().mode(mode).build().expect("an engine");
        let all: Vec<f32> = (0..24).map(|it| it as f32).collect();
        let rows = vm.from_slice(&all, &[12, 2]).expect("a tensor").to(CPU).expect("a copy");
        let w = vm.from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2]).expect("a tensor").to(CPU).expect("a copy");
        let mut results = Vec::new();
        for batch in 0..12 {
            let row = rows.slice(0, batch..batch + 1).expect("a view");
            let column = row.transpose(0, 1).expect("a view").sum(&[1]).expect("it is taken");
            let pairs = rows.slice(1, batch % 2..batch % 2 + 1).expect("a view").sum(&[]).expect("it is taken");
            let forth = row.matmul(&w).expect("it is taken");
            let back = forth.matmul(&w.transpose(0, 1).expect("a view")).expect("it is taken");
            let sum = (&back + &row).expect("it is taken").neg().expect("it is taken");
            results.push((sum, column, pairs));
        }
        vm.wait_all().expect("it runs");
        let counted = vm.stats().automatic;
        assert_eq!((counted.replays, counted.fallbacks), (10, 0), "{mode:?}");
        for (batch, (result, column, pairs)) in results.iter().enumerate() {
            let [a, b] = [all[2 * batch], all[2 * batch + 1]];
            assert_eq!(read(column), [a, b], "{mode:?}, batch {batch}");
            assert_eq!(read(pairs), [132.0 + 12.0 * (batch % 2) as f32], "{mode:?}, batch {batch}");
            let [c, d] = [a + 3.0 * b, 2.0 * a + 4.0 * b];
            assert_eq!(read(result), [-(c + 2.0 * d + a), -(3.0 * c + 4.0 * d + b)], "{mode:?}, batch {batch}");
        }
    }
}

/// Reading a result in each round cuts the sequence there.
#[test]
fn a_loop_that_reads_is_replayed_between_the_reads() {
    for mode in steady_modes() {
        let vm = automatic().mode(mode).build().expect("an engine");
        let w = on_device(&vm, &[8.0]);
        let mut expected = 8.0;
        for _ in 0..6 {
            let twice = step(&w).expect("it is taken");
            assert_eq!(read(&twice), [2.0 * expected], "{mode:?}");
            let other = step(&w).and_then(|_| (&w * 3.0)?.neg()).expect("it is taken");
            expected = stepped(stepped(expected));
            assert_eq!(read(&other), [-3.0 * expected], "{mode:?}");
        }
        let counted = vm.stats().automatic;
        assert_eq!((counted.sequences, counted.fallbacks), (2, 0), "{mode:?}");
        assert_eq!(counted.replays, 8, "{mode:?}: both halves of the third to the sixth round");
    }
}

/// A tensor that earlier rounds dropped is kept by some rounds, and the other way round.
#[test]
fn results_are_there_if_somebody_keeps_them() {
    for mode in steady_modes() {
        let vm = automatic().mode(mode).detect_races(true).build().expect("an engine");
        let x = on_device(&vm, &[1.0, 2.0]);
        let mut kept = Vec::new();
        for round in 0..40 {
            let a = (&x + &x).expect("it is taken");
            let b = (&a * &x).expect("it is taken");
            let view = b.slice(0, 1..2).expect("a view");
            let c = (&b + &a).expect("it is taken");
            let d = c.neg().expect("it is taken");
            // Rounds keep nothing, one of them, or a view alone.
            match (round > 3).then_some(round % 5) {
                Some(1) => kept.push((a.clone(), vec![2.0, 4.0])),
                Some(2) => kept.push((view.clone(), vec![8.0])),
                Some(3) => kept.push((d.clone(), vec![-4.0, -12.0])),
                Some(4) => kept.extend([(b.clone(), vec![2.0, 8.0]), (c.clone(), vec![4.0, 12.0])]),
                _ => {}
            }
        }
        for (tensor, expected) in &kept {
            assert_eq!(&read(tensor), expected, "{mode:?}");
        }
        let counted = vm.stats().automatic;
        assert_eq!((counted.replays, counted.fallbacks), (38, 0), "{mode:?}");
        no_races(&vm);
    }
}

/// Memory of what nobody can use any more when the calls are submitted is never taken.
#[test]
fn dropped_temporaries_have_no_memory_of_their_own() {
    let vm = automatic().mode(Mode::Inline).build().expect("an engine");
    let x = vm.ones(CPU, DType::F32, &[1 << 16]).expect("a tensor");
    let mut results = Vec::new();
    for _ in 0..4 {
        results.clear();
        let mut y = x.exp().expect("it is taken");
        for _ in 0..20 {
            y = (&y - &x).expect("it is taken");
        }
        results.push(y);
    }
    vm.wait_all().expect("it runs");
    assert!(vm.stats().automatic.replays >= 2);
    assert!(used_bytes(&vm, CPU, MemoryKind::Device) <= 2 * (4 << 16) + 4_096);
}

/// A list that was built and not submitted is the only holder of a result.
#[test]
fn a_list_keeps_a_held_back_result_alive() {
    for mode in steady_modes() {
        let vm = automatic().mode(mode).build().expect("an engine");
        let w = on_device(&vm, &[8.0]);
        let mut expected = 8.0;
        for _ in 0..4 {
            let twice = step(&w).expect("it is taken");
            let mut builder = InstructionsBuilder::new();
            let negated = builder.neg(&twice).expect("it is built");
            drop(twice);
            // The next call submits the sequence.
            assert_eq!(read(&w), [stepped(expected)], "{mode:?}");
            vm.submit(builder.finish()).expect("it is taken");
            assert_eq!(read(&negated), [-2.0 * expected], "{mode:?}");
            expected = stepped(expected);
        }
        assert_eq!(vm.stats().automatic.replays, 2, "{mode:?}");
        assert_eq!(vm.stats().automatic.fallbacks, 0);
    }
}

type Boundary = fn(&Vm, &Tensor, &Tensor) -> Result<(), Error>;

/// Everything that is no eager call comes behind the calls before it.
#[test]
fn boundaries_come_behind_held_back_calls() {
    let boundaries: &[(&str, Boundary)] = &[
        ("a read", |_, w, _| w.to_vec::<f32>().map(drop)),
        ("a read of a result", |_, _, twice| twice.to_vec::<f32>().map(drop)),
        ("a wait", |_, w, _| w.wait()),
        ("a wait for a result", |_, _, twice| twice.wait()),
        ("wait_all", |vm, _, _| vm.wait_all()),
        ("a list", |vm, w, _| {
            let mut builder = InstructionsBuilder::new();
            builder.fill(w, 100.0)?;
            vm.submit(builder.finish()).map(drop)
        }),
        ("a list of a result", |vm, w, twice| {
            let mut builder = InstructionsBuilder::new();
            builder.copy_into(twice, w)?;
            vm.submit(builder.finish()).map(drop)
        }),
        ("a barrier", |vm, w, _| {
            let seen = w.clone();
            let mut builder = InstructionsBuilder::new();
            builder.barrier();
            vm.submit(builder.finish())?.wait()?;
            assert!(!is_held(&seen));
            Ok(())
        }),
        ("a function", |vm, w, _| {
            vm.call_fn("negates", CPU, [w.update()], |context| {
                context.writes.take::<f32>(0)?.iter_mut().for_each(|it| *it = -*it);
                Ok(())
            })
            .map(drop)
        }),
        ("a function on a worker", |vm, w, _| vm.push("nothing", [w.update()], || Ok(())).map(drop)),
        ("a program", |vm, w, _| {
            let program = vm.record("p", |r| r.parameter("w", w)?.fill(3.0))?;
            vm.compile(&program, &[("w", w)], &Default::default())?.run(&[]).map(drop)
        }),
        ("a section", |vm, w, _| {
            let port = vm.critical("port");
            let section = vm.enter_section(&[&port], &[w])?;
            step(w)?;
            CriticalSection::end(section, &[w]).map(drop)
        }),
        ("random numbers", |vm, w, _| {
            let generator = streamvm::Generator::new(1);
            w.copy_from(&vm.rand(&generator, CPU, DType::F32, &[1])?)
        }),
        ("another device", |_, w, _| w.to(streamvm::Place::Host).and_then(|copy| w.copy_from(&copy))),
        ("joined tensors", |_, w, twice| w.copy_from(&Tensor::cat(&[twice, w], 0)?.slice(0, 0..1)?)),
        ("another lane", |_, w, _| {
            let _lane = Lane(1).enter();
            w.copy_from(&(w - 1.0)?)
        }),
        ("a future", |_, w, _| streamvm_tests::block_on(w.ready()?)),
        ("a variable", |vm, w, _| {
            let var = Var::new();
            vm.push("reads", [w.read(), var.write()], || Ok(()))?;
            var.wait()
        }),
    ];
    for mode in modes() {
        for (name, boundary) in boundaries {
            // At each place in a round; the boundary is in the fifth.
            for place in 0..3 {
                let play = |vm: Vm| {
                    let w = on_device(&vm, &[8.0]);
                    let mut last = (&w + 0.0)?;
                    for round in 0..8 {
                        let at = |here: usize, result: &Tensor| {
                            if round == 4 && here == place { boundary(&vm, &w, result) } else { Ok(()) }
                        };
                        at(0, &last)?;
                        let twice = (&w + &w)?;
                        at(1, &twice)?;
                        w.copy_from(&(&(&w * 0.5)? + 1.0)?)?;
                        at(2, &twice)?;
                        last = twice;
                    }
                    no_races(&vm);
                    Ok::<_, Error>([last.to_vec::<f32>()?, w.to_vec::<f32>()?])
                };
                let found = play(automatic().mode(mode).detect_races(true).build().expect("an engine"));
                let expected = play(Vm::builder().mode(Mode::Inline).build().expect("an engine"));
                assert_eq!(found, expected, "{name} at {place}, {mode:?}");
            }
        }
    }
}

#[test]
fn drawn_calls_compute_what_eager_calls_compute() {
    let (mut replays, mut fallbacks, mut found) = (0, 0, 0);
    for seed in 1..=300u64 {
        let mode = modes()[seed as usize % 3];
        let vm = automatic().mode(mode).detect_races(true).build().expect("an engine");
        let eager = Vm::builder().mode(Mode::Inline).build().expect("an engine");
        let expected = play(&eager, seed, None).expect("it runs");
        assert_eq!(play(&vm, seed, None).expect("it runs"), expected, "seed {seed}, {mode:?}");
        no_races(&vm);
        let counted = vm.stats().automatic;
        replays += counted.replays;
        fallbacks += counted.fallbacks;
        found += counted.sequences;
    }
    assert!(replays > 500 && fallbacks > 100 && found > 200, "the draws have work: {replays} {fallbacks} {found}");
}

/// The same lines with tensors of another dtype, shape or layout are other calls.
#[test]
fn other_tensors_at_the_same_lines_are_other_sequences() {
    for mode in modes() {
        let vm = automatic().mode(mode).build().expect("an engine");
        let of = |dtype, shape: &[usize]| vm.full(CPU, dtype, shape, 8.0).expect("a tensor");
        let square = of(DType::F32, &[2, 2]);
        let kinds = [
            of(DType::F32, &[2]),
            of(DType::F64, &[2]),
            of(DType::F32, &[3]),
            of(DType::F32, &[2, 1]),
            square.slice(1, 0..1).expect("a view"),
            square.slice(0, 0..1).expect("a view").try_reshape(&[2]).expect("a shape").expect("a view"),
            of(DType::F16, &[2]),
        ];
        // In the fifth to eighth round of each, the sequences of the others are known; in the first four, some of them.
        for w in kinds.iter().chain(&kinds) {
            for _ in 0..4 {
                assert_eq!(step(w).expect("it is taken").dtype(), w.dtype());
            }
        }
        let lone = [&kinds[0], &kinds[2], &kinds[3]].map(|w| w.to_vec::<f32>().expect("it runs"));
        let expected = (0..8).fold(8.0, |w, _| stepped(w));
        assert!(lone.iter().flatten().all(|element| *element == expected), "{mode:?}: {lone:?}, {expected}");
        assert_eq!(kinds[1].to_vec::<f64>().expect("it runs"), [f64::from(expected); 2], "{mode:?}");
        assert_eq!(kinds[6].to_vec::<streamvm::f16>().expect("it runs").len(), 2);
    }
}

/// Calls that cannot be replayed, in each round.
#[test]
fn loops_with_other_calls_compute_what_eager_calls_compute() {
    for mode in modes() {
        let vm = automatic().mode(mode).build().expect("an engine");
        let w = on_device(&vm, &[8.0]);
        let port = vm.critical("port");
        let mut expected = 8.0;
        for _ in 0..6 {
            let twice = step(&w).expect("it is taken");
            let joined = Tensor::cat(&[&twice, &w], 0).expect("it is taken");
            let section = vm.enter_section(&[&port], &[&w]).expect("it begins");
            let held = is_held(&doubled(&w).expect("it is taken"));
            assert!(!held, "another thread could submit it, outside of the section");
            step(&w).expect("it is taken");
            section.end(&[&w]).expect("it ends");
            let last = Tensor::stack(&[&joined, &joined], 0).expect("it is taken");
            let after = stepped(expected);
            assert_eq!(read(&last), [2.0 * expected, after, 2.0 * expected, after], "{mode:?}");
            expected = stepped(after);
        }
        assert_eq!(read(&w), [expected], "{mode:?}");
        let counted = vm.stats().automatic;
        assert!(counted.replays + counted.fallbacks > 0, "{mode:?}: calls were held back: {counted:?}");
    }
}

/// What a thread waits for may need its calls in a way that the engine does not know.
#[test]
fn a_wait_for_anything_submits_the_calls_of_the_thread() {
    for mode in steady_modes() {
        let vm = automatic().mode(mode).build().expect("an engine");
        let (w, other) = (on_device(&vm, &[8.0]), on_device(&vm, &[1.0]));
        let waits: &[(&str, &dyn Fn())] = &[
            ("a tensor", &|| other.wait().expect("it runs")),
            ("a future", &|| streamvm_tests::block_on(other.ready().expect("it is known")).expect("it runs")),
        ];
        for (name, wait) in waits {
            for _ in 0..3 {
                step(&w).expect("it is taken");
            }
            let twice = doubled(&w).expect("it is taken");
            assert!(is_held(&twice), "{name}, {mode:?}");
            wait();
            assert!(!is_held(&twice), "{name}, {mode:?}");
        }
    }
}

/// A cache that keeps nothing would have each replay compile: the calls stay eager.
#[test]
fn without_a_cache_of_programs_calls_are_soon_eager() {
    let vm = automatic().max_cached_programs(0).build().expect("an engine");
    let w = on_device(&vm, &[8.0]);
    let mut expected = 8.0;
    for _ in 0..60 {
        step(&w).expect("it is taken");
        expected = stepped(expected);
        vm.wait_all().expect("it runs");
    }
    assert_eq!(read(&w), [expected]);
    assert!(vm.stats().programs.misses < 10, "{:?}", vm.stats().programs);
}

/// Rounds that begin as a known sequence and go on differently each time: soon nothing is held back any more.
#[test]
fn a_sequence_that_never_comes_again_is_no_longer_followed() {
    let vm = automatic().mode(Mode::Inline).build().expect("an engine");
    let w = on_device(&vm, &[8.0]);
    for round in 0..200 {
        let begin = doubled(&w).and_then(|twice| twice.neg()?.abs()).expect("it is taken");
        let factor = if round < 4 { 1.0 } else { f64::from(round) };
        assert_eq!(read(&(&begin * factor).expect("it is taken")), [16.0 * factor as f32]);
    }
    let counted = vm.stats().automatic;
    assert!(counted.replays == 2 && (10..30).contains(&counted.fallbacks), "{counted:?}");
}

/// On simulated devices, which run commands late, and whose race detector sees each access.
#[test]
fn loops_on_devices_that_run_commands_later_are_replayed() {
    let sim = DeviceId::sim(0);
    let vm = automatic().sim_devices(1).build().expect("an engine");
    let w = vm.full(sim, DType::F32, &[3], 8.0).expect("a tensor");
    let mut expected = 8.0;
    for _ in 0..10 {
        step(&w).expect("it is taken");
        expected = stepped(expected);
    }
    assert_eq!(w.to_vec::<f32>().expect("it runs"), [expected; 3]);
    assert!(vm.stats().automatic.replays >= 6, "{:?}", vm.stats().automatic);
    no_races(&vm);
}
