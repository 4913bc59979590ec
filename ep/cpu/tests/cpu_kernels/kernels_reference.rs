//! Every CPU kernel, for every dtype, against a naive evaluation: over shapes with and without
//! elements, scalars, broadcast, permuted, sliced and stepped views, in place and not.

mod convolutions;

use proptest::prelude::*;
use streamvm_cpu::{CpuConfig, CpuDevice};
use streamvm_ep::*;

use crate::cases::cases as drawn;
use crate::reference::{Dense, On, Value, agrees_with_exact, evaluate, extra, fitted, input_dtype, window_call};
use crate::tensors::{Pool, Rng, Tensor, VIEWS, View};

/// Shapes of the inputs of one call, and axes for the ops that take some.
#[derive(Clone, Debug)]
struct Case {
    dims: Vec<Vec<usize>>,
    axes: Vec<usize>,
    keep_dims: bool,
    /// Parameters that fit the shapes; none for those that [`extra`] picks.
    extra: Extra,
}

fn pools(op: Op) -> [Pool; 3] {
    [0, 1, 2].map(|input| op.samples(input))
}

fn same(op: Op, dtype: DType, found: Value, expected: Value, terms: usize) -> bool {
    match (found, expected) {
        (Value::Float(found), Value::Float(expected)) => agrees_with_exact(op, dtype, On::Cpu, found, expected, terms),
        _ => found == expected,
    }
}

/// `terms`: how many elements of the first input there are for each of the output.
fn check(op: Op, found: &Dense, expected: &Dense, terms: usize, what: &str) {
    assert_eq!(found.dims, expected.dims, "{what}");
    assert_eq!(found.dtype, expected.dtype, "{what}");
    for (place, (&found_at, &expected_at)) in found.values.iter().zip(&expected.values).enumerate() {
        assert!(
            same(op, found.dtype, found_at, expected_at, terms),
            "{what}: element {place} is {found_at:?}, not {expected_at:?}"
        );
    }
}

/// Whether a product of 16-bit floats, which is computed in `f32`, may be 0 or an infinity on the way, although the result is neither: the factors of all products together do not
/// fit into the range if the small ones come first, or the large ones. Such a product does not come back, and the order of factors is not promised.
fn may_leave_the_range(op: Op, dtype: DType, inputs: &[Dense]) -> bool {
    if op != Op::Prod || !dtype.is_float() || dtype.size() != 2 {
        return false;
    }
    let exponents = inputs[0].values.iter().map(|value| value.float().abs().log2()).filter(|it| it.is_finite());
    let (large, small): (Vec<f64>, Vec<f64>) = exponents.partition(|it| *it > 0.0);
    // The smallest normal number is 2^-126.
    large.iter().sum::<f64>() > 127.0 || small.iter().sum::<f64>() < -126.0
}

fn launch(op: Op, dtype: DType, operands: &mut [Operand<'static>], params: &Params) -> Result<(), Error> {
    let kernel = streamvm_kernels::builtin().get(op, DeviceKind::CPU, dtype)?;
    let mut stream = CpuDevice::new(0, CpuConfig::default()).create_stream()?;
    let inputs = operands.len() - 1;
    stream.launch(&mut KernelCall::new(kernel, operands, inputs, params))
}

/// Runs one op on fresh inputs, out of place and in every place it may run in, and compares.
fn run_case(op: Op, dtype: DType, to: DType, case: &Case, views: &[View], seed: u64) {
    run_case_of(pools(op), op, dtype, to, case, views, seed);
}

/// As [`run_case`], on values of these pools.
fn run_case_of(pools: [Pool; 3], op: Op, dtype: DType, to: DType, case: &Case, views: &[View], seed: u64) {
    let what = format!("{op} of {dtype} to {to}, {case:?}, {views:?}, seed {seed}");
    let mut rng = Rng(seed);
    let params = Params {
        axes: Axes::new(&case.axes).unwrap(),
        keep_dims: case.keep_dims,
        to: matches!(op, Op::Cast | Op::OneHot).then_some(to),
        extra: if case.extra == Extra::None { extra(op, dtype, seed) } else { case.extra },
    };
    let params = if op.arity() > 0 { fitted(params, &case.dims[0]) } else { params };
    let mut inputs: Vec<Tensor> = (0..op.arity())
        .map(|input| {
            let own = input_dtype(op, dtype, input, seed);
            Tensor::new(&mut rng, own, &case.dims[input], views[input], pools[input])
        })
        .collect();
    let dense: Vec<Dense> = inputs.iter().map(Tensor::dense).collect();
    let given: Vec<(DType, &Shape)> = inputs.iter().map(|input| (input.dtype, input.layout.shape())).collect();
    let expected = evaluate(op, &dense, &params);
    let (out_dtype, out_shape) = infer(op, &given, &params).expect(&what);
    assert_eq!(out_shape.dims(), expected.dims, "{what}");
    let out_view = match views[3] {
        View::Broadcast => View::Contiguous,
        view => view,
    };
    let before = Tensor::new(&mut rng, out_dtype, out_shape.dims(), out_view, Pool::Tame);
    let mut out = before.clone();
    let untouched = inputs.clone();
    let mut operands: Vec<Operand> = inputs.iter_mut().map(|input| input.operand(Access::Read)).collect();
    operands.push(out.operand(Access::Write));
    launch(op, dtype, &mut operands, &params).expect(&what);
    let terms = dense.first().map_or(0, |first| first.values.len()) / expected.values.len().max(1);
    if !may_leave_the_range(op, dtype, &dense) {
        check(op, &out.dense(), &expected, terms, &what);
    }
    assert!(out.same_outside(&before), "{what}: wrote outside the view");
    for (input, before) in inputs.iter().zip(&untouched) {
        assert!(input.same_bytes(before), "{what}: wrote an input");
    }

    for (place, target) in inputs.iter().enumerate() {
        let can = op.is_elementwise()
            && target.dtype.size() == out_dtype.size()
            && target.layout.shape() == &out_shape
            && !target.layout.overlaps_itself();
        if can {
            run_in_place(op, dtype, out_dtype, place, &untouched, &params, &expected, &what);
        }
    }
}

/// Input `place` and every input that is a copy of it share the view of the output.
#[allow(clippy::too_many_arguments, reason = "one call's whole description")]
fn run_in_place(
    op: Op,
    dtype: DType,
    out_dtype: DType,
    place: usize,
    inputs: &[Tensor],
    params: &Params,
    expected: &Dense,
    what: &str,
) {
    let mut inputs = inputs.to_vec();
    let before = inputs[place].clone();
    let mut operands: Vec<Operand> = inputs.iter_mut().map(|input| input.operand(Access::Read)).collect();
    let own = inputs[place].dtype;
    inputs[place].dtype = out_dtype;
    operands.push(inputs[place].operand(Access::Write));
    launch(op, dtype, &mut operands, params).expect(what);
    // What runs in place is no reduction.
    check(op, &inputs[place].dense(), expected, 1, &format!("{what}, in place {place}"));
    inputs[place].dtype = own;
    assert!(inputs[place].same_outside(&before), "{what}: wrote outside");
}

/// Broadcast shapes of up to three inputs.
fn elementwise_cases() -> Vec<Case> {
    let shapes: [[&[usize]; 3]; 12] = [
        [&[], &[], &[]],
        [&[1], &[], &[1, 1]],
        [&[0], &[0], &[1]],
        [&[2, 0, 3], &[1, 3], &[]],
        [&[5], &[5], &[5]],
        [&[70], &[70], &[70]],
        [&[3, 20], &[20], &[3, 20]],
        [&[3, 20], &[3, 1], &[20]],
        [&[40], &[], &[40]],
        [&[], &[40], &[1]],
        [&[4, 1, 17], &[2, 1], &[4, 2, 17]],
        [&[2, 3, 4, 2], &[2, 3, 4, 2], &[3, 1, 1]],
    ];
    let case = |dims: &[&[usize]; 3]| Case {
        dims: dims.iter().map(|dims| dims.to_vec()).collect(),
        axes: vec![],
        keep_dims: false,
        extra: Extra::None,
    };
    shapes.iter().map(case).collect()
}

fn axis_cases() -> Vec<Case> {
    let shapes: [(&[usize], &[usize]); 14] = [
        (&[5], &[0]),
        (&[100], &[0]),
        (&[1], &[0]),
        (&[4, 40], &[1]),
        (&[4, 40], &[0]),
        (&[4, 150], &[0]),
        (&[0, 3], &[1]),
        (&[3, 4, 5], &[1]),
        (&[3, 4, 5], &[0, 2]),
        (&[3, 4, 5], &[]),
        (&[], &[]),
        (&[2, 1, 3, 2], &[1, 3]),
        (&[2, 3, 2, 3], &[0, 1, 2, 3]),
        (&[2, 0, 3], &[0]),
    ];
    let mut cases = Vec::new();
    for (dims, axes) in shapes {
        for keep_dims in [false, true] {
            cases.push(Case { dims: vec![dims.to_vec()], axes: axes.to_vec(), keep_dims, extra: Extra::None });
        }
    }
    cases
}

fn matmul_cases() -> Vec<Case> {
    let shapes: [[&[usize]; 2]; 10] = [
        [&[1, 1], &[1, 1]],
        [&[2, 3], &[3, 4]],
        [&[17, 33], &[33, 9]],
        [&[2, 0], &[0, 3]],
        [&[0, 2], &[2, 3]],
        [&[5, 2, 3], &[3, 4]],
        [&[2, 3], &[5, 3, 4]],
        [&[2, 1, 2, 3], &[3, 3, 2]],
        [&[0, 2, 3], &[3, 4]],
        [&[3, 1, 7], &[3, 7, 1]],
    ];
    let case = |dims: &[&[usize]; 2]| Case {
        dims: dims.iter().map(|dims| dims.to_vec()).collect(),
        axes: vec![],
        keep_dims: false,
        extra: Extra::None,
    };
    shapes.iter().map(case).collect()
}

fn shapes(all: &[&[&[usize]]]) -> Vec<Case> {
    let case = |dims: &&[&[usize]]| Case {
        dims: dims.iter().map(|dims| dims.to_vec()).collect(),
        axes: vec![],
        keep_dims: false,
        extra: Extra::None,
    };
    all.iter().map(case).collect()
}

/// Shapes of the first input, the size of the indices on the axis, and the axis. Indices are below 9.
fn indexed_cases(op: Op) -> Vec<Case> {
    let all: [(&[usize], usize, usize); 9] = [
        (&[9], 4, 0),
        (&[12], 100, 0),
        (&[3, 20], 7, 1),
        (&[20, 3], 30, 0),
        (&[2, 9, 5], 3, 1),
        (&[9, 2, 1, 2], 2, 0),
        (&[2, 9], 0, 1),
        (&[0, 9], 5, 1),
        (&[9, 0], 5, 0),
    ];
    let case = |(dims, count, axis): (&[usize], usize, usize)| {
        let mut indices = dims.to_vec();
        indices[axis] = count;
        let mut dims = vec![dims.to_vec()];
        dims.resize(op.arity(), indices);
        Case { dims, axes: vec![axis], keep_dims: false, extra: Extra::None }
    };
    all.into_iter().map(case).collect()
}

/// Whether it works along exactly one axis, and all inputs have one shape.
fn takes_one_axis(op: Op) -> bool {
    matches!(op.class(), OpClass::ArgReduction | OpClass::RunningSum | OpClass::ArgSort) || op.is_softmax()
}

fn cases(op: Op) -> Vec<Case> {
    match op {
        Op::RmsNorm => shapes(&[
            &[&[5], &[5]],
            &[&[3, 40], &[40]],
            &[&[2, 3, 150], &[150]],
            &[&[4, 1], &[1]],
            &[&[0, 3], &[3]],
            &[&[3, 0], &[0]],
        ]),
        Op::LayerNorm => shapes(&[
            &[&[5], &[5], &[5]],
            &[&[3, 40], &[40], &[40]],
            &[&[2, 3, 150], &[150], &[150]],
            &[&[4, 1], &[1], &[1]],
            &[&[0, 3], &[3], &[3]],
            &[&[3, 0], &[0], &[0]],
        ]),
        Op::IndexSelect => shapes(&[
            &[&[9, 5], &[]],
            &[&[20, 1], &[7]],
            &[&[9, 40], &[3, 2]],
            &[&[9, 3], &[0, 2]],
            &[&[9, 0], &[4]],
            &[&[9, 2], &[2, 1, 2, 3, 1, 1, 2]],
        ]),
        Op::CrossEntropy | Op::CrossEntropyBackward => {
            let rows: [&[usize]; 5] = [&[], &[7], &[0], &[2, 3], &[30]];
            let classes = [1, 6, 40, 300, 1100];
            let of = |(rows, classes): (&[usize], usize)| {
                let dims = [[rows, &[classes]].concat(), rows.to_vec(), rows.to_vec()][..op.arity()].to_vec();
                Case { dims, axes: vec![], keep_dims: false, extra: Extra::None }
            };
            rows.into_iter().flat_map(|rows| classes.map(|classes| (rows, classes))).map(of).collect()
        }
        Op::MatMul => matmul_cases(),
        Op::Tril | Op::Triu => shapes(&[
            &[&[1, 1]],
            &[&[4, 40]],
            &[&[40, 4]],
            &[&[2, 3, 5, 5]],
            &[&[3, 0]],
            &[&[0, 3]],
            &[&[0, 3, 3]],
            &[&[2, 1, 3, 1, 2]],
        ]),
        Op::TakeAlongAxis | Op::Scatter | Op::ScatterAdd => indexed_cases(op),
        _ if takes_one_axis(op) => {
            let mut cases = axis_cases();
            cases.retain(|case| case.axes.len() == 1);
            if op.is_softmax() {
                // Several blocks of a row.
                cases.push(Case { dims: vec![vec![2, 1100]], axes: vec![1], keep_dims: false, extra: Extra::None });
            }
            for case in &mut cases {
                case.dims.resize(op.arity(), case.dims[0].clone());
            }
            cases
        }
        _ if op.moves_a_window() => {
            let case = |pick| {
                let (dims, extra) = window_call(op, pick);
                Case { dims, axes: vec![], keep_dims: false, extra }
            };
            (0..60).map(case).collect()
        }
        Op::Pad | Op::Flip => axis_cases(),
        _ if op.is_reduction() => axis_cases(),
        _ => elementwise_cases(),
    }
}

/// Targets of a cast or one-hot; for other ops the dtype itself, once.
fn targets(op: Op, dtype: DType) -> Vec<DType> {
    match op {
        Op::Cast | Op::OneHot => DType::ALL.to_vec(),
        _ => vec![dtype],
    }
}

#[test]
fn every_kernel_agrees_with_the_reference() {
    let mut seed = 0;
    // Each call with two of the five views, the next call with the next two; `make test-long` takes all.
    let part = VIEWS.len().min(drawn(2) as usize);
    let mut call = 0;
    // What has no inputs has a suite of its own.
    for op in Op::ALL.into_iter().filter(|op| !op.is_source()) {
        for &dtype in op.dtypes() {
            for to in targets(op, dtype) {
                for case in cases(op) {
                    call += 1;
                    for (place, view) in VIEWS.into_iter().enumerate() {
                        seed += 1;
                        if (place + 3 * call) % VIEWS.len() >= part {
                            continue;
                        }
                        // An interpreter takes a sample.
                        if cfg!(miri) && seed % 307 != 0 {
                            continue;
                        }
                        run_case(op, dtype, to, &case, &[view; 4], seed);
                    }
                }
            }
        }
    }
}

/// A shape, and for each of three inputs which axes it has at size 1 and how many it lacks.
fn random_broadcast() -> impl Strategy<Value = Case> {
    let dims = prop::collection::vec(prop_oneof![1 => Just(0usize), 9 => 1usize..6], 0..5);
    let thin = prop::collection::vec((any::<u8>(), 0usize..5), 3);
    (dims, thin).prop_map(|(dims, thin)| {
        let mut inputs: Vec<Vec<usize>> = thin
            .iter()
            .map(|(ones, lacking)| {
                let own = dims
                    .iter()
                    .enumerate()
                    .map(|(axis, &dim)| if ones & (1 << axis) != 0 && axis % 2 == 0 { 1 } else { dim });
                own.skip(*lacking / 2).collect()
            })
            .collect();
        // The shapes broadcast to the full one only if some input has each axis in full.
        inputs[thin[0].1 % 3] = dims;
        Case { dims: inputs, axes: vec![], keep_dims: false, extra: Extra::None }
    })
}

fn random_axes() -> impl Strategy<Value = Case> {
    let dims = prop::collection::vec(1usize..7, 1..5);
    (dims, any::<u8>(), any::<bool>()).prop_map(|(dims, bits, keep_dims)| {
        let axes = (0..dims.len()).filter(|axis| bits & (1 << axis) != 0);
        Case { axes: axes.collect(), dims: vec![dims], keep_dims, extra: Extra::None }
    })
}

/// Sizes m, k and n: general ones, products of a row or of a column, and those of more rows and depth than one block has.
fn random_sizes() -> impl Strategy<Value = (usize, usize, usize)> {
    prop_oneof![
        2 => (1usize..20, 0usize..20, 1usize..20),
        1 => (Just(1), 0usize..70, 1usize..300),
        1 => (1usize..300, 0usize..70, Just(1)),
        1 => (Just(1), 0usize..300, 1usize..20),
        1 => (1usize..45, 200usize..300, 1usize..45),
    ]
}

fn random_matmul() -> impl Strategy<Value = Case> {
    let sizes = random_sizes();
    let batch = prop::collection::vec((1usize..4, 0u8..3), 0..3);
    (sizes, batch).prop_map(|((m, k, n), batch)| {
        let side = |one: u8, last: [usize; 2]| {
            let own = batch.iter().map(|&(dim, thin)| if thin == one { 1 } else { dim });
            own.chain(last).collect()
        };
        Case { dims: vec![side(1, [m, k]), side(2, [k, n])], axes: vec![], keep_dims: false, extra: Extra::None }
    })
}

fn random_views() -> impl Strategy<Value = [View; 4]> {
    prop::array::uniform4(prop::sample::select(&VIEWS))
}

/// The errors of all steps go the same way here, and add up to what a margin for few terms does not hold.
#[test]
fn sums_of_many_equal_terms_agree() {
    let case = Case { dims: vec![vec![5, 5, 4, 5]], axes: vec![0, 1, 2, 3], keep_dims: false, extra: Extra::None };
    let views = [View::Broadcast, View::Contiguous, View::Contiguous, View::Contiguous];
    for op in [Op::Sum, Op::Mean] {
        for &dtype in op.dtypes() {
            run_case(op, dtype, dtype, &case, &views, 645_820_851_843_616_404);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(drawn(24) as u32))]

    #[test]
    fn elementwise_kernels_agree_on_random_shapes(
        case in random_broadcast(), views in random_views(), seed in any::<u64>(),
    ) {
        for op in Op::ALL.into_iter().filter(|op| op.is_elementwise()) {
            // Inputs that the op has not must not take part in the shape.
            let mut case = case.clone();
            case.dims.truncate(op.arity());
            for &dtype in op.dtypes() {
                for to in targets(op, dtype) {
                    run_case(op, dtype, to, &case, &views, seed);
                }
            }
        }
    }

    #[test]
    fn ops_over_axes_agree_on_random_shapes(
        case in random_axes(), views in random_views(), seed in any::<u64>(),
    ) {
        let others = [Op::Pad, Op::OneHot, Op::Flip, Op::CumSum];
        for op in Op::ALL.into_iter().filter(|op| op.is_reduction() || op.is_softmax() || others.contains(op)) {
            let mut case = case.clone();
            case.dims.resize(op.arity(), case.dims[0].clone());
            if takes_one_axis(op) {
                case.axes = vec![(seed % case.dims[0].len() as u64) as usize];
            }
            for &dtype in op.dtypes() {
                for to in targets(op, dtype) {
                    run_case(op, dtype, to, &case, &views, seed);
                }
            }
        }
    }

    #[test]
    fn norms_and_index_select_agree_on_random_shapes(
        dims in prop::collection::vec(1usize..7, 1..5), rows in 9usize..20, views in random_views(), seed in any::<u64>(),
    ) {
        let last = dims.last().copied().unwrap_or(1);
        let norm = shapes(&[&[&dims, &[last], &[last]]]);
        let rms = shapes(&[&[&dims, &[last]]]);
        let select = shapes(&[&[&[rows, last], &dims]]);
        for (op, cases) in [(Op::LayerNorm, norm), (Op::RmsNorm, rms), (Op::IndexSelect, select)] {
            for &dtype in op.dtypes() {
                run_case(op, dtype, dtype, &cases[0], &views, seed);
            }
        }
    }

    #[test]
    fn triangles_and_ops_by_index_agree_on_random_shapes(
        dims in prop::collection::vec(1usize..7, 2..5), size in 9usize..20, count in 0usize..12, views in random_views(),
        seed in any::<u64>(),
    ) {
        let axis = (seed % dims.len() as u64) as usize;
        let (mut whole, mut indices) = (dims.clone(), dims.clone());
        (whole[axis], indices[axis]) = (size, count);
        for op in [Op::Tril, Op::Triu, Op::TakeAlongAxis, Op::Scatter, Op::ScatterAdd] {
            let mut inputs = vec![whole.clone()];
            inputs.resize(op.arity(), indices.clone());
            let axes = if op.arity() > 1 { vec![axis] } else { vec![] };
            let case = Case { dims: inputs, axes, keep_dims: false, extra: Extra::None };
            for &dtype in op.dtypes() {
                run_case(op, dtype, dtype, &case, &views, seed);
            }
        }
    }

    #[test]
    fn matmul_agrees_on_random_shapes(
        case in random_matmul(), views in random_views(), seed in any::<u64>(),
    ) {
        for &dtype in Op::MatMul.dtypes() {
            run_case(Op::MatMul, dtype, dtype, &case, &views, seed);
        }
    }
}
