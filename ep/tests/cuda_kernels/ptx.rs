//! Every shipped kernel, as PTX, beside the CPU kernels; and how much of the PTX was reached.

use streamvm_ep::cuda::{KernelName, Module};
use streamvm_ep::{Op, Params};

use crate::failing::{compare_failures, run_without_a_place_to_tell, tell_the_first_of_few};
use crate::moving::{compare_copies, compare_copies_of_sizes, compare_fills};
use crate::rounding::{compare_hard_casts, compare_sums_past_the_range};
use crate::tensors::{Rng, View};
use crate::{Runner, compare_call, compare_one, draw_call_of, interpreter, op_of};

/// `cases` calls of each kernel of a module, launched as planned and otherwise, and of those that take four elements at a time some that do.
fn compare(module: Module, cases: u64) {
    for name in KernelName::all().filter(|name| name.module() == module && op_of(*name).is_some()) {
        for case in 0..cases {
            let seed = name.index() as u64 * 1_000_000 + case;
            compare_one(name, seed, Runner::Ptx);
            compare_one(name, seed, Runner::PtxOtherwise);
        }
        if op_of(name).is_some_and(Op::is_elementwise) {
            compare_fours(name);
        }
    }
}

/// Calls over contiguous elements and over one element for all, in each combination.
fn compare_fours(name: KernelName) {
    let arity = op_of(name).unwrap().arity();
    for repeated in 0..1usize << arity {
        let mut rng = Rng(repeated as u64);
        let shapes = |_: &mut Rng, op: Op| (vec![vec![150, 1]; op.arity()], Params::default());
        let view = |_: &mut Rng, input: usize| if repeated >> input & 1 == 1 { View::Broadcast } else { View::Contiguous };
        let call = draw_call_of(&mut rng, name, shapes, view, |_| View::Contiguous);
        compare_call(&call, &mut rng, repeated as u64, Runner::Ptx);
    }
}

fn report(module: Module) {
    let (decoded, coverage) = interpreter::coverage(module);
    let (reached, all) = coverage.counts(decoded);
    println!("{}: {reached} of {all} instructions reached", module.name());
    for line in coverage.unreached(decoded) {
        println!("{} {} {}", line.function, line.line, line.text);
    }
}

#[test]
fn unary_ptx() {
    compare(Module::Unary, 10);
    report(Module::Unary);
}

#[test]
fn binary_ptx() {
    compare(Module::Binary, 10);
    compare_failures(20, Runner::Ptx, |name| name.module() == Module::Binary);
    compare_failures(20, Runner::PtxOtherwise, |name| name.module() == Module::Binary);
    run_without_a_place_to_tell(interpreter::run_untold);
    tell_the_first_of_few(100, Runner::Ptx);
    report(Module::Binary);
}

#[test]
fn compare_ptx() {
    compare(Module::Compare, 10);
    report(Module::Compare);
}

#[test]
fn cast_ptx() {
    compare(Module::Cast, 10);
    compare_hard_casts(Runner::Ptx);
    report(Module::Cast);
}

#[test]
fn move_ptx() {
    compare(Module::Move, 10);
    compare_failures(10, Runner::Ptx, |name| name.module() == Module::Move);
    compare_failures(10, Runner::PtxOtherwise, |name| name.module() == Module::Move);
    for how in [Runner::Ptx, Runner::PtxOtherwise] {
        compare_copies(10, how);
        compare_fills(2, how);
    }
    compare_copies_of_sizes(Runner::Ptx);
    report(Module::Move);
}

#[test]
fn reduce_ptx() {
    compare(Module::Reduce, 10);
    compare_sums_past_the_range(Runner::Ptx);
    report(Module::Reduce);
}

#[test]
fn matmul_ptx() {
    compare(Module::MatMul, 10);
    report(Module::MatMul);
}

#[test]
fn random_ptx() {
    compare(Module::Random, 10);
    report(Module::Random);
}
