//! Every shipped kernel, as PTX, beside the CPU kernels; and whether every instruction of the PTX was reached.
//!
//! A test for each module runs its kernels, then prints the share of the instructions that were reached (`--nocapture` shows it). It fails if one was not reached
//! for which no reason is given here.

use half::{bf16, f16};
use streamvm_cuda::{KernelName, Module, plan};
use streamvm_ep::*;
use streamvm_ptx::Unreached;

use crate::failing::{compare_failures, run_without_a_place_to_tell, tell_the_first_of_few, tell_the_first_row_of_few};
use crate::moving::{compare_copies, compare_copies_of_sizes, compare_copy, compare_fills};
use crate::parts::{compare_drawn_parts, compare_places_across_parts, compare_planned_parts};
use crate::reference::agrees_with_cpu;
use crate::rounding::{compare_hard_casts, compare_sums_beside_ties, compare_sums_past_the_range};
use crate::sorting::{compare_bits, compare_lengths};
use crate::tensors::{Rng, View};
use crate::{Runner, compare_call, compare_one, draw_call_of, draw_view, interpreter, op_of};

/// A seed by the name of a kernel, so that a new kernel does not change what is drawn for others.
fn seed_of(name: KernelName, case: u64) -> u64 {
    let of_byte = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    name.to_string().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, of_byte).wrapping_add(case)
}

/// Whether the index of an element along one axis is the result.
fn takes_one_axis(op: Op) -> bool {
    matches!(op, Op::ArgMax | Op::ArgMin)
}

/// Which kernels a test is about.
#[derive(Copy, Clone)]
enum Kernels<'c> {
    /// Those that a module has.
    Of(Module),
    /// Those of ops of these classes.
    Classes(&'c [OpClass]),
    /// Those of the classes, and copies and fills.
    Moves(&'c [OpClass]),
}

impl Kernels<'_> {
    fn has(self, name: KernelName) -> bool {
        let is_of = |classes: &[OpClass]| op_of(name).is_some_and(|op| classes.contains(&op.class()));
        match self {
            Kernels::Of(module) => name.module() == module,
            Kernels::Classes(classes) => is_of(classes),
            Kernels::Moves(classes) => op_of(name).is_none() || is_of(classes),
        }
    }
}

/// `cases` calls of each of the kernels, launched as planned and otherwise, and of those that take four elements at a time some that do.
fn compare(kernels: Kernels<'_>, cases: u64) {
    for name in KernelName::all().filter(|&name| kernels.has(name) && op_of(name).is_some()) {
        // The walk of a pad or a flip has more cases than others: axes with margins and without, or that are flipped and not.
        let walks = matches!(name, KernelName::Pad(_) | KernelName::OfSize(Op::Flip, _));
        let cases = if walks { 5 * cases } else { cases };
        for case in 0..cases {
            let seed = seed_of(name, case);
            compare_one(name, seed, Runner::Planned);
            compare_one(name, seed, Runner::Otherwise);
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
        compare_call(&call, &mut rng, repeated as u64, Runner::Planned);
    }
}

/// Reductions of rows that are long for the lanes that they have, so that every part of an unrolled loop meets every case of its elements.
fn compare_rows(cases: u64) {
    for name in KernelName::all().filter(|name| name.module() == Module::Reduce) {
        for case in 0..cases {
            let seed = seed_of(name, case);
            let mut rng = Rng(seed);
            let shapes = |rng: &mut Rng, op: Op| {
                let dims = vec![6, 3, 1 + rng.below(30)];
                let row = vec![dims[2]];
                let axes =
                    if op.is_reduction() && !takes_one_axis(op) && rng.below(2) == 0 { vec![1, 2] } else { vec![2] };
                let params = Params {
                    axes: Axes::new(if op == Op::LayerNorm { &[] } else { &axes }).unwrap(),
                    ..Params::default()
                };
                let inputs = if op == Op::LayerNorm { vec![dims, row.clone(), row] } else { vec![dims; op.arity()] };
                (inputs, params)
            };
            let call = draw_call_of(&mut rng, name, shapes, |rng, _| draw_view(rng), |_| View::Contiguous);
            compare_call(&call, &mut rng, seed, Runner::Otherwise);
        }
    }
}

/// Cross entropies of logits that are far below the largest, whose exponentials are subnormal or 0.
fn compare_far_logits() {
    let logits: Vec<f64> = (0..=610).map(|step| f64::from(step) * -1.25).collect();
    for (op, target) in [(Op::CrossEntropy, 3i64), (Op::CrossEntropyBackward, 3), (Op::CrossEntropyBackward, 600)] {
        let run = |on_cpu: bool| {
            let mut out = vec![0f64; if op == Op::CrossEntropy { 1 } else { logits.len() }];
            let dims: [&[usize]; 3] = [&[1, logits.len()], &[1], &[1]];
            let out_dims = if op == Op::CrossEntropy { dims[1] } else { dims[0] };
            let (targets, dy) = ([target], [1.5f64]);
            let bases = [logits.as_ptr().cast::<u8>(), targets.as_ptr().cast(), dy.as_ptr().cast()];
            let dtypes = [DType::F64, DType::I64, DType::F64];
            let layout = |dims: &[usize]| Layout::contiguous(Shape::new(dims).unwrap());
            let view = |base: *mut u8, dtype, dims: &[usize], access| {
                // SAFETY: so many elements, in memory that outlives the call and that nothing else touches.
                unsafe { Operand::new(base, dtype, layout(dims), access) }
            };
            let mut operands: Vec<Operand> =
                (0..op.arity()).map(|at| view(bases[at].cast_mut(), dtypes[at], dims[at], Access::Read)).collect();
            operands.push(view(out.as_mut_ptr().cast(), DType::F64, out_dims, Access::Write));
            let kernel = streamvm_kernels::builtin().get(op, DeviceKind::CPU, DType::F64).unwrap();
            let params = Params::default();
            let mut call = KernelCall::new(kernel, &mut operands, op.arity(), &params);
            if on_cpu {
                (kernel.run)(&mut call).unwrap();
            } else {
                Runner::Planned.run(&plan(&call).unwrap().unwrap(), 1);
            }
            out
        };
        let (expected, found) = (run(true), run(false));
        for (place, (found, expected)) in found.into_iter().zip(expected).enumerate() {
            assert!(
                agrees_with_cpu(op, DType::F64, found, expected, 1),
                "{op} at {place}: {found:e}, not {expected:e}"
            );
        }
    }
}

/// A type of floats.
trait Float: Element + Into<f64> {
    fn of(number: f64) -> Self;
}

macro_rules! floats {
    ($($float:ty, $of:expr;)*) => {$(
        impl Float for $float {
            fn of(number: f64) -> $float {
                ($of)(number)
            }
        }
    )*};
}

floats! {
    f32, |number| number as f32;
    f64, |number| number;
    f16, f16::from_f64;
    bf16, bf16::from_f64;
}

/// An op over rows of these numbers, which are hard for it, beside the CPU kernel.
fn compare_numbers<T: Float>(op: Op, numbers: &[Vec<f64>]) {
    let elements = numbers[0].len();
    let mut inputs: Vec<Vec<T>> = numbers.iter().map(|row| row.iter().map(|&number| T::of(number)).collect()).collect();
    let layout = Layout::contiguous(Shape::new(&[1, elements]).unwrap());
    let axes: &[usize] = if op.is_softmax() { &[1] } else { &[] };
    let params = Params { axes: Axes::new(axes).unwrap(), ..Params::default() };
    let mut run = |on_cpu: bool| {
        let mut out = vec![T::of(0.0); elements];
        // SAFETY: so many elements, in memory that outlives the call and that nothing else touches.
        let view =
            |memory: &mut Vec<T>, access| unsafe { Operand::new(memory.as_mut_ptr().cast(), T::DTYPE, layout, access) };
        let mut operands: Vec<Operand> = inputs.iter_mut().map(|input| view(input, Access::Read)).collect();
        let inputs = operands.len();
        operands.push(view(&mut out, Access::Write));
        let kernel = streamvm_kernels::builtin().get(op, DeviceKind::CPU, T::DTYPE).unwrap();
        let mut call = KernelCall::new(kernel, &mut operands, inputs, &params);
        if on_cpu {
            (kernel.run)(&mut call).unwrap();
        } else {
            Runner::Planned.run(&plan(&call).unwrap().unwrap(), 1);
        }
        out
    };
    let (expected, found) = (run(true), run(false));
    for (place, (found, expected)) in found.into_iter().zip(expected).enumerate() {
        let (found, expected) = (found.into(), expected.into());
        let of: Vec<f64> = inputs.iter().map(|input| input[place].into()).collect();
        let is_near = agrees_with_cpu(op, T::DTYPE, found, expected, 1);
        assert!(is_near, "{op} {} of {of:?}: {found:e}, not {expected:e}", T::DTYPE.name());
    }
}

/// [`compare_numbers`] for each type of floats.
fn compare_floats(op: Op, numbers: &[Vec<f64>]) {
    compare_numbers::<f16>(op, numbers);
    compare_numbers::<bf16>(op, numbers);
    compare_numbers::<f32>(op, numbers);
    compare_numbers::<f64>(op, numbers);
}

/// Numbers of all sizes, of both signs: angles that have to be reduced by many digits of pi, arguments of logarithms near 1, 0 and infinity,
/// subnormal ones, NaN.
fn numbers_of_all_sizes() -> Vec<f64> {
    let powers = (-323..=308).map(|exponent| 10f64.powi(exponent) * 1.2345);
    let whole = (0..=40).flat_map(|step| [f64::from(step), f64::from(step) + 0.5, 1.0 + f64::from(step) * 1e-7]);
    let small = (-149..=-100).map(|exponent| 2f64.powi(exponent));
    let quarters = (0..=64).map(|step| f64::from(step) * std::f64::consts::FRAC_PI_4);
    let special = [f64::INFINITY, f64::NAN, 0.0, f64::MAX, f32::MAX.into(), 16_777_217.0, 9_007_199_254_740_993.0];
    let sizes = powers.chain(whole).chain(small).chain(quarters).chain(special);
    sizes.flat_map(|number| [number, -number]).collect()
}

/// Numbers over the range in which exponentials are neither 0 nor infinite, and past it.
fn numbers_of_exponentials() -> Vec<f64> {
    let wide = (-870..=870).map(|step| f64::from(step) * 1.25);
    let near = (-500..=500).map(|step| f64::from(step) * 0.051);
    wide.chain(near).collect()
}

/// A division of numbers past 32 bits, of which the compiler divides smaller ones by 32 bits.
const LONG: &str = "the number of all elements, of teams or of tiles would have to be past 2^32";
/// Drawn numbers that are special.
const SPECIAL: &str = "the logarithm of 0, of a subnormal or an infinite number and the sine of an infinite, a huge or a whole number: no number of these \
    is drawn, but for a whole one, for which 24 drawn bits have to be 0";

/// An angle that has to be reduced by many digits of pi.
const HUGE: &str = "is for angles past 105,615, and no number of 16 bits is that large";
/// A remainder is found by an approximate division.
const ONE_OFF: &str =
    "corrects a quotient that is one off, because a device divides approximately here; the interpreter divides exactly";

/// Why instructions may be left unreached: the beginning of the names of kernels, how many instructions of each, the reason.
const UNREACHED: [(&str, usize, &str); 33] = [
    ("sv_index_select_", 2, LONG),
    ("sv_one_hot_", 2, LONG),
    ("sv_sum_", 2, LONG),
    ("sv_mean_", 2, LONG),
    ("sv_reduce_", 2, LONG),
    ("sv_prod_", 2, LONG),
    ("sv_any_", 2, LONG),
    ("sv_all_", 2, LONG),
    ("sv_var_", 2, LONG),
    ("sv_std_", 2, LONG),
    ("sv_argmax_", 2, LONG),
    ("sv_argmin_", 2, LONG),
    ("sv_sin_f16", 70, HUGE),
    ("sv_cos_f16", 70, HUGE),
    ("sv_tan_f16", 70, HUGE),
    ("sv_floor_div_f32", 11, ONE_OFF),
    ("sv_floor_div_f16", 11, ONE_OFF),
    ("sv_floor_div_bf16", 11, ONE_OFF),
    ("sv_remainder_f32", 11, ONE_OFF),
    ("sv_remainder_f16", 11, ONE_OFF),
    ("sv_remainder_bf16", 11, ONE_OFF),
    ("sv_tril_", 4, LONG),
    ("sv_triu_", 4, LONG),
    ("sv_take_along_axis_", 8, LONG),
    ("sv_scatter_", 6, LONG),
    ("sv_matmul_", 8, LONG),
    ("sv_conv2d_", 10, LONG),
    ("sv_max_pool2d_", 6, LONG),
    ("sv_avg_pool2d_", 6, LONG),
    ("sv_normal_f32", 12, SPECIAL),
    ("sv_normal_f16", 12, SPECIAL),
    ("sv_normal_bf16", 12, SPECIAL),
    ("sv_normal_f64", 16, SPECIAL),
];

/// Prints which part of the kernels was reached. Fails if more instructions of one were not than there are reasons for.
#[allow(clippy::print_stdout, reason = "what was reached is for people to read")]
fn check_coverage(kernels: Kernels<'_>) {
    let (mut all_reached, mut all, mut unexplained) = (0, 0, Vec::new());
    for name in KernelName::all().filter(|&name| kernels.has(name)) {
        let (module, coverage) = interpreter::coverage(name);
        let (reached, instructions) = coverage.counts(module);
        (all_reached, all) = (all_reached + reached, all + instructions);
        let unreached: Vec<Unreached> = coverage.unreached(module);
        for instruction in &unreached {
            println!("  {name}, {}, line {}: {}", instruction.function, instruction.line, instruction.text);
        }
        let name = name.to_string();
        let reasons: Vec<_> = UNREACHED.iter().filter(|(prefix, ..)| name.starts_with(prefix)).collect();
        let known: usize = reasons.iter().map(|(_, count, _)| count).sum();
        let count = unreached.len();
        if count != known {
            unexplained.push(format!("{name}: {count} instructions were not reached, {known} have a reason"));
        }
        for (_, count, reason) in reasons {
            println!("  {name}, {count} instructions: {reason}");
        }
    }
    println!("{all_reached} of {all} instructions reached, {:.2} %", 100.0 * all_reached as f64 / all as f64);
    assert!(unexplained.is_empty(), "{unexplained:#?}");
}

#[test]
fn unary_ptx_does_what_the_cpu_does() {
    let unary = Kernels::Classes(&[OpClass::Unary, OpClass::Predicate]);
    compare(unary, 10);
    for op in Op::ALL.into_iter().filter(|op| op.class() == OpClass::Unary && op.supports(DType::F64)) {
        for numbers in [numbers_of_exponentials(), numbers_of_all_sizes()] {
            compare_floats(op, &[numbers]);
        }
    }
    check_coverage(unary);
}

#[test]
fn binary_ptx_does_what_the_cpu_does() {
    let binary = Kernels::Classes(&[OpClass::Binary, OpClass::Ternary]);
    compare(binary, 10);
    for how in [Runner::Planned, Runner::Otherwise] {
        let failed = compare_failures(25, how, |name| binary.has(name));
        assert!(failed[0] > 10 && failed[1] > 10 && failed[3] > 10, "{failed:?}");
    }
    run_without_a_place_to_tell(interpreter::run_untold);
    tell_the_first_of_few(100, Runner::Planned);
    let exponents: Vec<f64> = (-1080..=1030).map(|step| f64::from(step) - 0.1).collect();
    compare_numbers::<f64>(Op::Pow, &[vec![2.0; exponents.len()], exponents]);
    let all = numbers_of_all_sizes();
    for exponent in [0.5, -3.0, 0.0, f64::INFINITY, f64::NAN] {
        compare_numbers::<f64>(Op::Pow, &[all.clone(), vec![exponent; all.len()]]);
    }
    for op in [Op::Atan2, Op::FloorDiv, Op::Remainder] {
        for other in [3.0, -0.7, 1e-310, 1e-300, 1e300, 1e-40, 0.0, f64::INFINITY, f64::NAN] {
            let same = vec![other; all.len()];
            for inputs in [[all.clone(), same.clone()], [same, all.clone()]] {
                compare_floats(op, &inputs);
            }
        }
    }
    check_coverage(binary);
}

#[test]
fn comparisons_as_ptx_do_what_the_cpu_does() {
    let comparisons = Kernels::Classes(&[OpClass::Comparison]);
    compare(comparisons, 16);
    check_coverage(comparisons);
}

#[test]
fn cast_ptx_does_what_the_cpu_does() {
    let casts = Kernels::Classes(&[OpClass::Cast]);
    compare(casts, 14);
    compare_hard_casts(Runner::Planned);
    compare_hard_casts(Runner::Otherwise);
    check_coverage(casts);
}

#[test]
fn move_ptx_does_what_the_cpu_does() {
    let moves = Kernels::Moves(&[OpClass::Select, OpClass::Pad, OpClass::OneHot, OpClass::IndexSelect]);
    compare(moves, 16);
    for how in [Runner::Planned, Runner::Otherwise] {
        let failed = compare_failures(40, how, |name| moves.has(name));
        assert!(failed[0] > 10 && failed[2] > 10, "{failed:?}");
        compare_copies(10, how);
        compare_fills(5, how);
    }
    for dtype in DType::ALL {
        compare_copy(0, &mut Rng(0), dtype, &[150, 1], [View::Broadcast, View::Contiguous], Runner::Planned);
    }
    compare_copies_of_sizes(Runner::Planned);
    tell_the_first_row_of_few(100, Runner::Planned);
    check_coverage(moves);
}

#[test]
fn reduce_ptx_does_what_the_cpu_does() {
    compare(Kernels::Of(Module::Reduce), 6);
    compare_rows(80);
    for how in [Runner::Planned, Runner::Otherwise] {
        compare_drawn_parts(4, how);
    }
    compare_planned_parts(1, Runner::Planned);
    compare_places_across_parts(Runner::Planned);
    compare_sums_past_the_range(Runner::Planned);
    compare_sums_beside_ties(Runner::Planned);
    for op in [Op::Softmax, Op::LogSoftmax] {
        compare_numbers::<f64>(op, &[(0..=610).map(|step| f64::from(step) * -1.25).collect()]);
    }
    let numbers: Vec<f64> = (-610..=566).map(|step| f64::from(step) * 1.25).collect();
    compare_numbers::<f64>(Op::LogSoftmaxBackward, &[numbers.clone(), vec![1.5; numbers.len()]]);
    check_coverage(Kernels::Of(Module::Reduce));
}

#[test]
fn matmul_ptx_does_what_the_cpu_does() {
    compare(Kernels::Of(Module::MatMul), 10);
    // Tiles that are full, of which a thread writes every element.
    for name in KernelName::all().filter(|name| name.module() == Module::MatMul) {
        let (mut rng, shapes) = (Rng(0), |_: &mut Rng, _| (vec![vec![66, 18], vec![18, 67]], Params::default()));
        let call = draw_call_of(&mut rng, name, shapes, |rng, _| draw_view(rng), |_| View::Contiguous);
        compare_call(&call, &mut rng, 0, Runner::Planned);
    }
    check_coverage(Kernels::Of(Module::MatMul));
}

#[test]
fn arrange_ptx_does_what_the_cpu_does() {
    compare(Kernels::Of(Module::Arrange), 30);
    for how in [Runner::Planned, Runner::Otherwise] {
        let failed = compare_failures(40, how, |name| name.module() == Module::Arrange);
        assert!(failed[0] > 10 && failed[2] > 10, "{failed:?}");
    }
    check_coverage(Kernels::Of(Module::Arrange));
}

#[test]
fn window_ptx_does_what_the_cpu_does() {
    compare(Kernels::Of(Module::Window), 60);
    check_coverage(Kernels::Of(Module::Window));
}

#[test]
fn network_ptx_does_what_the_cpu_does() {
    compare(Kernels::Of(Module::Network), 60);
    compare_far_logits();
    check_coverage(Kernels::Of(Module::Network));
}

#[test]
fn sort_ptx_does_what_the_cpu_does() {
    compare(Kernels::Of(Module::Sort), 12);
    compare_lengths(Runner::Planned);
    compare_bits(Runner::Planned);
    check_coverage(Kernels::Of(Module::Sort));
}

#[test]
fn random_ptx_draws_what_the_cpu_draws() {
    compare(Kernels::Of(Module::Random), 80);
    check_coverage(Kernels::Of(Module::Random));
}
