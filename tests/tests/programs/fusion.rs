//! Fused steps compute what eager calls compute, bit for bit: every elementwise op, every dtype, drawn expressions, blocks of all sizes.

use std::collections::BTreeSet;

use streamvm::program::Storage;
use streamvm::{DType, Op, Vm};
use streamvm_tests::compiled::compare_expression;
use streamvm_tests::{CPU, cases, registered_ops};

#[test]
fn fused_expressions_give_the_bits_of_eager_calls() {
    let vm = Vm::builder().detect_races(true).build().expect("an engine");
    let expressions = cases(40);
    let (mut fused, mut scratch, mut ops) = (0, 0, BTreeSet::new());
    for dtype in DType::ALL {
        for seed in 1..=expressions {
            let compiled = compare_expression(&vm, CPU, dtype, seed);
            for group in compiled.fused() {
                fused += group.steps.len();
                for step in compiled.steps_of(group.steps.clone()) {
                    ops.insert(step.work.name());
                    scratch += step.operands.iter().filter(|it| matches!(it.storage, Storage::Scratch(_))).count();
                }
            }
        }
    }
    assert!(vm.races().is_empty(), "{:?}", vm.races());
    assert!(
        fused as u64 > 20 * expressions && scratch as u64 > 20 * expressions,
        "the programs are drawn so that there is something to fuse: {fused} {scratch}"
    );
    let all = Op::ALL.into_iter().chain(registered_ops());
    let missing: Vec<Op> = all.filter(|op| op.is_elementwise() && !ops.contains(op.name())).collect();
    assert!(missing.is_empty(), "no group has {missing:?}");
}
