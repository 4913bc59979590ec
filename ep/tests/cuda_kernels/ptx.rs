//! Every shipped kernel, as PTX, beside the CPU kernels; and whether every instruction of the PTX was reached.
//!
//! A test for each module runs its kernels, then prints the share of the instructions that were reached (`--nocapture` shows it). It fails if one was not reached
//! for which no reason is given here.

use std::collections::BTreeMap;

use streamvm_ep::cuda::{KernelName, Module, plan};
use streamvm_ep::*;
use streamvm_ptx::Unreached;

use crate::failing::{compare_failures, run_without_a_place_to_tell, tell_the_first_of_few, tell_the_first_row_of_few};
use crate::moving::{compare_copies, compare_copies_of_sizes, compare_copy, compare_fills};
use crate::rounding::{compare_hard_casts, compare_sums_beside_ties, compare_sums_past_the_range};
use crate::tensors::{Rng, View};
use crate::{Runner, compare_call, compare_one, draw_call_of, draw_view, interpreter, is_near, op_of, tolerance};

/// `cases` calls of each kernel of a module, launched as planned and otherwise, and of those that take four elements at a time some that do.
fn compare(module: Module, cases: u64) {
    for name in KernelName::all().filter(|name| name.module() == module && op_of(*name).is_some()) {
        // The walk of a pad has more cases than others: axes with margins and without.
        let cases = if matches!(name, KernelName::Pad(_)) { 5 * cases } else { cases };
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
        let view =
            |_: &mut Rng, input: usize| if repeated >> input & 1 == 1 { View::Broadcast } else { View::Contiguous };
        let call = draw_call_of(&mut rng, name, shapes, view, |_| View::Contiguous);
        compare_call(&call, &mut rng, repeated as u64, Runner::Ptx);
    }
}

/// Reductions of rows that are long for the lanes that they have, so that every part of an unrolled loop meets every case of its elements.
fn compare_rows(cases: u64) {
    for name in KernelName::all().filter(|name| name.module() == Module::Reduce) {
        for case in 0..cases {
            let seed = name.index() as u64 * 1_000_000 + case;
            let mut rng = Rng(seed);
            let shapes = |rng: &mut Rng, op: Op| {
                let dims = vec![6, 3, 1 + rng.below(30)];
                let row = vec![dims[2]];
                let axes =
                    if op.is_reduction() && op != Op::ArgMax && rng.below(2) == 0 { vec![1, 2] } else { vec![2] };
                let params = Params {
                    axes: Axes::new(if op == Op::LayerNorm { &[] } else { &axes }).unwrap(),
                    ..Params::default()
                };
                let inputs = if op == Op::LayerNorm { vec![dims, row.clone(), row] } else { vec![dims; op.arity()] };
                (inputs, params)
            };
            let call = draw_call_of(&mut rng, name, shapes, |rng, _| draw_view(rng), |_| View::Contiguous);
            compare_call(&call, &mut rng, seed, Runner::PtxOtherwise);
        }
    }
}

/// An op over rows of these numbers, which are hard for it, beside the CPU kernel.
fn compare_numbers(op: Op, inputs: &mut [Vec<f64>]) {
    let elements = inputs[0].len();
    let layout = Layout::contiguous(Shape::new(&[1, elements]).unwrap());
    let axes: &[usize] = if op.is_softmax() { &[1] } else { &[] };
    let params = Params { axes: Axes::new(axes).unwrap(), ..Params::default() };
    let mut run = |on_cpu: bool| {
        let mut out = vec![0f64; elements];
        // SAFETY: so many elements, in memory that outlives the call and that nothing else touches.
        let view = |memory: &mut Vec<f64>, access| unsafe {
            Operand::new(memory.as_mut_ptr().cast(), DType::F64, layout, access)
        };
        let mut operands: Vec<Operand> = inputs.iter_mut().map(|input| view(input, Access::Read)).collect();
        let inputs = operands.len();
        operands.push(view(&mut out, Access::Write));
        let kernel = KernelRegistry::builtin().get(op, DeviceKind::Cpu, DType::F64).unwrap();
        let mut call = KernelCall { kernel, operands: &mut operands, inputs, params: &params };
        if on_cpu {
            (kernel.run)(&mut call).unwrap();
        } else {
            Runner::Ptx.run(&plan(&call).unwrap().unwrap(), 1);
        }
        out
    };
    let (expected, found) = (run(true), run(false));
    // Numbers below the normal ones have fewer bits.
    let (relative, least) = tolerance(op, DType::F64);
    let tolerance = (relative, least + 4.0 * f64::from_bits(1));
    for (place, (found, expected)) in found.into_iter().zip(expected).enumerate() {
        let of: Vec<f64> = inputs.iter().map(|input| input[place]).collect();
        assert!(is_near(found, expected, tolerance), "{op} of {of:?}: {found:e}, not {expected:e}");
    }
}

/// Numbers over the range in which exponentials are neither 0 nor infinite, and past it.
fn numbers_of_exponentials() -> Vec<f64> {
    let wide = (-610..=610).map(|step| f64::from(step) * 1.25);
    let near = (-500..=500).map(|step| f64::from(step) * 0.051);
    wide.chain(near).collect()
}

/// A division of numbers past 32 bits, of which the compiler divides smaller ones by 32 bits.
const LONG: &str = "the number of all elements, of teams or of tiles would have to be past 2^32";
/// A lane of an argmax has found nothing yet.
const NOTHING_YET: &str =
    "is tested in all four parts of the unrolled loop; behind the first part a lane has found something";
/// Drawn numbers that are special.
const SPECIAL: &str = "the logarithm of 0, of a subnormal or an infinite number and the sine of an infinite, a huge or a whole number: no number of these \
    is drawn, but for a whole one, for which 24 drawn bits have to be 0";

/// Why instructions may be left unreached: the beginning of the names of kernels, how many instructions of each, the reason.
const UNREACHED: [(&str, usize, &str); 12] = [
    ("sv_index_select_", 2, LONG),
    ("sv_one_hot_", 2, LONG),
    ("sv_sum_", 2, LONG),
    ("sv_mean_", 2, LONG),
    ("sv_reduce_", 2, LONG),
    ("sv_argmax_", 2, LONG),
    ("sv_argmax_", 9, NOTHING_YET),
    ("sv_matmul_", 8, LONG),
    ("sv_normal_f32", 12, SPECIAL),
    ("sv_normal_f16", 12, SPECIAL),
    ("sv_normal_bf16", 12, SPECIAL),
    ("sv_normal_f64", 16, SPECIAL),
];

/// Prints which part of a module was reached. Fails if more instructions of a kernel were not than there are reasons for.
#[allow(clippy::print_stdout, reason = "what was reached is for people to read")]
fn check_coverage(module: Module) {
    let (decoded, coverage) = interpreter::coverage(module);
    let (reached, all) = coverage.counts(decoded);
    println!(
        "{}: {reached} of {all} instructions reached, {:.2} %",
        module.name(),
        100.0 * reached as f64 / all as f64
    );
    let mut by_function: BTreeMap<String, Vec<Unreached>> = BTreeMap::new();
    for instruction in coverage.unreached(decoded) {
        by_function.entry(instruction.function.clone()).or_default().push(instruction);
    }
    for (function, instructions) in by_function {
        for instruction in &instructions {
            println!("  {function}, line {}: {}", instruction.line, instruction.text);
        }
        let reasons: Vec<_> = UNREACHED.iter().filter(|(prefix, ..)| function.starts_with(prefix)).collect();
        let known: usize = reasons.iter().map(|(_, count, _)| count).sum();
        assert!(instructions.len() <= known, "{function}: {known} instructions may be unreached: {instructions:#?}");
        for (_, count, reason) in reasons {
            println!("  {function}: {count} because {reason}");
        }
    }
}

#[test]
fn unary_ptx_does_what_the_cpu_does() {
    compare(Module::Unary, 10);
    for op in Op::ALL
        .into_iter()
        .filter(|op| KernelName::Op(*op, DType::F64).module() == Module::Unary && op.supports(DType::F64))
    {
        if op.arity() == 1 && op.is_elementwise() && op != Op::Cast {
            compare_numbers(op, &mut [numbers_of_exponentials()]);
        }
    }
    check_coverage(Module::Unary);
}

#[test]
fn binary_ptx_does_what_the_cpu_does() {
    compare(Module::Binary, 10);
    for how in [Runner::Ptx, Runner::PtxOtherwise] {
        let failed = compare_failures(25, how, |name| name.module() == Module::Binary);
        assert!(failed[0] > 10 && failed[1] > 10 && failed[3] > 10, "{failed:?}");
    }
    run_without_a_place_to_tell(interpreter::run_untold);
    tell_the_first_of_few(100, Runner::Ptx);
    let exponents: Vec<f64> = (-1080..=1030).map(|step| f64::from(step) - 0.1).collect();
    compare_numbers(Op::Pow, &mut [vec![2.0; exponents.len()], exponents]);
    check_coverage(Module::Binary);
}

#[test]
fn comparisons_as_ptx_do_what_the_cpu_does() {
    compare(Module::Compare, 10);
    check_coverage(Module::Compare);
}

#[test]
fn cast_ptx_does_what_the_cpu_does() {
    compare(Module::Cast, 14);
    compare_hard_casts(Runner::Ptx);
    compare_hard_casts(Runner::PtxOtherwise);
    check_coverage(Module::Cast);
}

#[test]
fn move_ptx_does_what_the_cpu_does() {
    compare(Module::Move, 10);
    for how in [Runner::Ptx, Runner::PtxOtherwise] {
        let failed = compare_failures(10, how, |name| name.module() == Module::Move);
        assert!(failed[0] > 10 && failed[2] > 10, "{failed:?}");
        compare_copies(10, how);
        compare_fills(5, how);
    }
    for dtype in DType::ALL {
        compare_copy(0, &mut Rng(0), dtype, &[150, 1], [View::Broadcast, View::Contiguous], Runner::Ptx);
    }
    compare_copies_of_sizes(Runner::Ptx);
    tell_the_first_row_of_few(100, Runner::Ptx);
    check_coverage(Module::Move);
}

#[test]
fn reduce_ptx_does_what_the_cpu_does() {
    compare(Module::Reduce, 4);
    compare_rows(80);
    compare_sums_past_the_range(Runner::Ptx);
    compare_sums_beside_ties(Runner::Ptx);
    for op in [Op::Softmax, Op::LogSoftmax] {
        compare_numbers(op, &mut [(0..=610).map(|step| f64::from(step) * -1.25).collect()]);
    }
    let numbers: Vec<f64> = (-610..=566).map(|step| f64::from(step) * 1.25).collect();
    compare_numbers(Op::LogSoftmaxBackward, &mut [numbers.clone(), vec![1.5; numbers.len()]]);
    check_coverage(Module::Reduce);
}

#[test]
fn matmul_ptx_does_what_the_cpu_does() {
    compare(Module::MatMul, 6);
    // Tiles that are full, of which a thread writes every element.
    for name in KernelName::all().filter(|name| name.module() == Module::MatMul) {
        let (mut rng, shapes) = (Rng(0), |_: &mut Rng, _| (vec![vec![66, 18], vec![18, 67]], Params::default()));
        let call = draw_call_of(&mut rng, name, shapes, |rng, _| draw_view(rng), |_| View::Contiguous);
        compare_call(&call, &mut rng, 0, Runner::Ptx);
    }
    check_coverage(Module::MatMul);
}

#[test]
fn random_ptx_draws_what_the_cpu_draws() {
    compare(Module::Random, 40);
    check_coverage(Module::Random);
}
