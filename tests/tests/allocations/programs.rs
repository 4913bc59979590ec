//! What compiled programs take in memory that an engine keeps.

use streamvm::program::{CompileOptions, Program};
use streamvm::{DType, Vm};
use streamvm_tests::CPU;

use crate::{growth, turn};

/// A chain of `steps` over `elements` elements, whose sum is 1. No two steps can become one.
fn chain(vm: &Vm, steps: usize, elements: usize) -> Program {
    let recorded = vm.record("chain", |r| {
        let mut x = r.feed("x", CPU, DType::F32, &[elements])?;
        for _ in 0..steps {
            x = x.softmax(0)?;
        }
        r.fetch("y", &x.sum(&[])?)
    });
    recorded.expect("it can be recorded")
}

/// What a kept program counts, without its arena, is about what it takes.
#[test]
fn a_kept_program_takes_about_as_much_host_memory_as_it_counts() {
    let _turn = turn();
    let vm = Vm::builder().build().expect("an engine");
    for steps in [1, 10, 1_000] {
        let (programs, counted, before) = (40, vm.stats().programs.bytes, growth(0));
        let compile = |elements: usize| {
            let executable = vm.compiled(chain(&vm, steps, elements), &[], &CompileOptions::default());
            executable.expect("it compiles").compiled().arena_bytes()
        };
        let arenas: usize = (1..=programs).map(compile).sum();
        let counted = (vm.stats().programs.bytes - counted) as isize - arenas as isize;
        let (taken, limit) = (growth(before), counted / 4 + 400 * programs as isize);
        assert!((taken - counted).abs() < limit, "{steps} steps: {taken} bytes were taken, {counted} counted");
    }
}

/// Shapes that change each time do not grow memory: that of plans, and that of arenas and tensors, which runs take.
#[test]
fn ten_thousand_programs_take_no_more_memory_than_the_bounds() {
    let _turn = turn();
    let vm = Vm::builder().max_cached_programs(50).build().expect("an engine");
    let mut next = 0;
    let mut run_programs = |count: usize| {
        for _ in 0..count {
            next += 1;
            let program = chain(&vm, 3, next);
            let executable = vm.compiled(&program, &[], &CompileOptions::default()).expect("it compiles");
            let x = vm.ones(CPU, DType::F32, &[next]).expect("a tensor");
            let run = executable.run(&[("x", &x)]).expect("it is submitted");
            let sum = run["y"].to_scalar::<f32>().expect("it runs");
            assert!((sum - 1.0).abs() < 1e-3, "{sum}");
        }
        let stats = vm.stats().programs;
        assert_eq!((stats.misses, stats.evictions, stats.programs), (next as u64, next as u64 - 50, 50));
        stats.bytes
    };
    run_programs(1_000);
    let before = growth(0);
    let counted = run_programs(9_000);
    assert!(counted < 50 * (2 * 4 * 10_000 + 10_000), "{counted} bytes are counted for 50 programs");
    assert!(growth(before) < 2 << 20, "{} bytes more after 9,000 further programs", growth(before));
}
