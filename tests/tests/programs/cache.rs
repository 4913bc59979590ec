//! The engine's cache of compiled programs. What it takes in memory is tested in `allocations`.

use std::thread;

use log::Level;
use streamvm::program::{CompileOptions, Program};
use streamvm::{DType, DeviceId, Error, InstructionsBuilder, MemoryKind, Mode, ProgramError, Tensor, Vm};
use streamvm_tests::{CPU, ClosedGate, logged, on_device, used_bytes};

fn options() -> CompileOptions {
    CompileOptions::default()
}

/// `y = relu(x * w)`, and `w` becomes `w + 1`.
fn scaled(vm: &Vm, elements: usize, w: &Tensor) -> Program {
    let recorded = vm.record("scaled", |r| {
        let (x, w) = (r.feed("x", CPU, DType::F32, &[elements])?, r.parameter("w", w)?);
        r.fetch("y", &(&x * &w)?.relu()?)?;
        let mut builder = InstructionsBuilder::new();
        builder.copy_into(&(&w + 1.0)?, &w)?;
        r.submit(builder.finish())
    });
    recorded.expect("it can be recorded")
}

fn counts(vm: &Vm) -> (u64, u64, u64) {
    let stats = vm.stats().programs;
    (stats.hits, stats.misses, stats.evictions)
}

/// Equal programs of different recordings share what was compiled; their parameters are bound by each call.
#[test]
fn equal_programs_are_compiled_once_and_bound_to_their_own_parameters() {
    for mode in [Mode::default(), Mode::Inline, Mode::Simulated { seed: 5 }] {
        let vm = Vm::builder().mode(mode).build().expect("an engine");
        let (x, weights) = (on_device(&vm, &[1.0, -2.0]), [2.0, 10.0].map(|w| on_device(&vm, &[w])));
        for round in 0..3 {
            for (w, first) in weights.iter().zip([2.0, 10.0]) {
                let program = scaled(&vm, 2, w);
                let executable = vm.compiled(&program, &[("w", w)], &options()).expect("it compiles");
                let run = executable.run(&[("x", &x)]).expect("it is submitted");
                assert_eq!(run["y"].to_vec::<f32>(), Ok(vec![first + round as f32, 0.0]));
            }
        }
        assert_eq!(counts(&vm), (5, 1, 0));
        let other = CompileOptions { in_place: false, ..options() };
        vm.compiled(scaled(&vm, 2, &weights[0]), &[("w", &weights[0])], &other).expect("it compiles");
        vm.compiled(scaled(&vm, 3, &weights[0]), &[("w", &weights[0])], &options()).expect("it compiles");
        assert_eq!(counts(&vm), (5, 3, 0), "other options and other shapes are other programs");
    }
}

#[test]
fn the_cache_keeps_no_tensor_alive() {
    let vm = Vm::builder().build().expect("an engine");
    let used = || used_bytes(&vm, CPU, MemoryKind::Device);
    let before = used();
    let w = on_device(&vm, &[1.0; 1 << 16]);
    let executable = vm.compiled(scaled(&vm, 1 << 16, &w), &[("w", &w)], &options()).expect("it compiles");
    executable.run(&[("x", &w.to(CPU).expect("a copy"))]).expect("it is submitted").wait().expect("it runs");
    assert!(used() >= before + (1 << 18));
    drop((executable, w));
    assert_eq!((used(), vm.stats().programs.programs), (before, 1));
}

/// A parameter that does not fit is refused also where the program is found; what cannot be compiled is not kept.
#[test]
fn refusals_are_those_of_compile() {
    let vm = Vm::builder().build().expect("an engine");
    let w = on_device(&vm, &[1.0]);
    let program = scaled(&vm, 2, &w);
    vm.compiled(&program, &[("w", &w)], &options()).expect("it compiles");
    let refused = vm.compiled(&program, &[], &options()).expect_err("a parameter is missing");
    assert!(
        matches!(&refused, Error::Program { error, .. } if matches!(**error, ProgramError::Unknown { .. })),
        "{refused}"
    );
    let wide = on_device(&vm, &[1.0, 2.0]);
    let refused = vm.compiled(&program, &[("w", &wide)], &options()).expect_err("a parameter does not fit");
    assert!(
        matches!(&refused, Error::Program { error, .. } if matches!(**error, ProgramError::Mismatch { .. })),
        "{refused}"
    );
    let kept = vm.stats().programs.programs;
    let elsewhere = vm.record("elsewhere", |r| {
        let x = r.feed("x", DeviceId::cpu(7), DType::F32, &[4])?;
        r.fetch("y", &x.relu()?)
    });
    let elsewhere = elsewhere.expect("it can be recorded");
    for _ in 0..2 {
        let (compiled, plain) =
            (vm.compiled(&elsewhere, &[], &options()), vm.compile(&elsewhere, &[], &options()).expect_err("no device"));
        assert_eq!(compiled.expect_err("no device").without_call(), plain.without_call());
    }
    assert_eq!(vm.stats().programs.programs, kept);
}

/// A program is evicted while a run of it is in flight, and another executable of it is held.
#[test]
fn evicted_programs_run_on() {
    let vm = Vm::builder().max_cached_programs(1).build().expect("an engine");
    let gate = ClosedGate::new();
    let w = on_device(&vm, &[2.0]);
    let x = on_device(&vm, &[1.0, 2.0]);
    vm.call_fn("slow", CPU, [x.update()], gate.function()).expect("it is submitted");
    let program = scaled(&vm, 2, &w);
    let held = vm.compiled(&program, &[("w", &w)], &options()).expect("it compiles");
    let run = vm
        .compiled(&program, &[("w", &w)], &options())
        .and_then(|executable| executable.run(&[("x", &x)]))
        .expect("it is submitted");
    vm.compiled(scaled(&vm, 3, &w), &[("w", &w)], &options()).expect("it compiles");
    assert_eq!(counts(&vm), (1, 2, 1));
    gate.open();
    assert_eq!(run["y"].to_vec::<f32>(), Ok(vec![2.0, 4.0]));
    assert_eq!(held.run(&[("x", &x)]).expect("it runs")["y"].to_vec::<f32>(), Ok(vec![3.0, 6.0]));
    vm.compiled(&program, &[("w", &w)], &options()).expect("it compiles");
    assert_eq!(counts(&vm), (1, 3, 2), "it was gone");
}

/// The log says why a program that counts more than the bound is compiled each time, and what to do.
#[test]
fn a_program_beyond_the_bound_is_compiled_each_time_and_the_log_says_so() {
    let told = || logged(Level::Warn, "program \"vast\" counts").len();
    assert_eq!(told(), 0);
    let vm = Vm::builder().max_cached_program_bytes(1 << 16).build().expect("an engine");
    let program = vm.record("vast", |r| {
        let x = r.feed("x", CPU, DType::F32, &[1 << 16])?;
        r.fetch("y", &x.softmax(0)?.sum(&[])?)
    });
    let program = program.expect("it can be recorded");
    for request in 1..=2 {
        vm.compiled(&program, &[], &options()).expect("it compiles");
        assert_eq!(
            (told(), counts(&vm), vm.stats().programs.programs),
            (request, (0, request as u64, request as u64), 0)
        );
    }
}

/// Threads ask for few programs at once: each is compiled once, and each thread gets what it asked for.
#[test]
fn threads_share_what_one_of_them_has_compiled() {
    let vm = &Vm::builder().build().expect("an engine");
    let (threads, rounds, programs) = (4, 100, 5);
    thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let w = on_device(vm, &[thread as f32]);
                for round in 0..rounds {
                    let elements = 1 + (round + thread) % programs;
                    let x = on_device(vm, &vec![1.0; elements]);
                    let program = scaled(vm, elements, &w);
                    let executable = vm.compiled(&program, &[("w", &w)], &options()).expect("it compiles");
                    let run = executable.run(&[("x", &x)]).expect("it is submitted");
                    assert_eq!(run["y"].to_vec::<f32>(), Ok(vec![(thread + round) as f32; elements]));
                }
            });
        }
    });
    assert_eq!(counts(vm), ((threads * rounds - programs) as u64, programs as u64, 0));
}
