//! Random programs: what a compiled program computes equals what the same calls compute eagerly, bit for bit.

use std::cell::Cell;

use streamvm::Vm;
use streamvm::program::{CompileOptions, compile};
use streamvm_tests::compiled::compare;
use streamvm_tests::{CPU, cases};

/// Each drawn program runs eagerly, and compiled in three ways, several runs in flight over one parameter.
#[test]
fn compiled_programs_compute_what_eager_calls_compute() {
    let vm = Vm::builder().detect_races(true).build().expect("an engine");
    let (mut in_place, mut removed) = (0, 0);
    let programs = cases(60);
    for seed in 1..=programs {
        let drawn = Cell::new(Vec::new());
        let (program, compiled) = compare(&vm, seed, &[CPU], &|draw| {
            let ways = [(true, 1 + draw.below(16)), (false, 1 + draw.below(16)), (true, 4_096)];
            let options = ways.map(|(in_place, block)| CompileOptions { in_place, block, ..CompileOptions::default() });
            drawn.set(options.to_vec());
            options.to_vec()
        });
        for (options, compiled) in drawn.take().into_iter().zip(compiled) {
            removed += program.steps.len().saturating_sub(compiled.steps().len());
            let again = compile(&program, &CompileOptions { in_place: false, ..options }).expect("it compiles");
            in_place += usize::from(compiled.arena_bytes() < again.arena_bytes());
        }
    }
    assert!(vm.races().is_empty(), "{:?}", vm.races());
    let programs = programs as usize;
    assert!(
        8 * in_place > programs && removed > programs,
        "the programs are drawn so that passes have work: {in_place} {removed}"
    );
}
