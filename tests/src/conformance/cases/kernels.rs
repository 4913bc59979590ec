//! Kernels: each op for each dtype that the device supports, over shapes and views, compared with the naive reference.

use streamvm_ep::{
    Access, Axes, DType, Error, Kernel, KernelError, LateCause, Layout, Numbers, Op, OpClass, OpError, Params, Scalar,
    Shape, infer,
};

use super::table;
use crate::conformance::Case;
use crate::conformance::host::{HostTensor, Pool, View, WRITABLE};
use crate::conformance::lab::{Bench, Buffer, Fail, Lab, ensure, ensure_eq, ensure_matches};
use crate::conformance::lane::Lane;
use crate::conformance::reference::{
    Dense, On, Value, agrees_with_exact, evaluate, extra, fitted, input_dtype, window_call,
};
use crate::support::random::Random;
use crate::support::registered::{changed, registered_ops, turned_op};

macro_rules! of_ops {
    ({$($(#[$doc:meta])* $op:ident: $name:literal, $class:ident, $dtypes:ident, $method:ident($($signature:tt)*)
        $(=> $params:expr)? $(, { $($facts:tt)* })?;)*} {$($sources:tt)*}) => {
        /// Each op that has inputs, beside the reference.
        pub(super) const OF_OPS: &[Case] = &[$(Case {
            name: concat!("kernel/", $name),
            needs: &[],
            run: |bench| against_reference(bench, Op::$op),
        }),*];
    };
}
streamvm_ep::op_table!(of_ops);

table! { "kernel":
    elementwise_in_place [],
    in_place_through_any_view [],
    others_refuse_to_run_in_place [],
    of_no_elements [],
    of_many_elements [],
    broadcasts_its_inputs [],
    registered_ops_run [],
    a_registered_kernel_runs [HostKernels],
    a_registered_kernel_fails [],
    a_panic_is_told [],
    runs_each_launch_once [],
}

/// For the ops of one form: shapes of the inputs, axes, and whether the reduced axes are kept.
type Form = (&'static [&'static [usize]], &'static [usize], bool);

fn forms(op: Op) -> &'static [Form] {
    match op {
        Op::SoftmaxBackward | Op::LogSoftmaxBackward => &[
            (&[&[5], &[5]], &[0], false),
            (&[&[3, 4], &[3, 4]], &[1], false),
            (&[&[2, 3, 4], &[2, 3, 4]], &[1], false),
        ],
        Op::Softmax | Op::LogSoftmax => {
            &[(&[&[5]], &[0], false), (&[&[3, 4]], &[1], false), (&[&[2, 3, 4]], &[1], false)]
        }
        Op::ArgMax | Op::ArgMin => &[(&[&[6]], &[0], false), (&[&[3, 4]], &[0], true), (&[&[2, 3, 4]], &[2], false)],
        _ if op.class() == OpClass::Reduction => &[
            (&[&[7]], &[], false),
            (&[&[3, 4]], &[0], false),
            (&[&[3, 4]], &[1], true),
            (&[&[2, 3, 4]], &[0, 2], false),
            (&[&[2, 3, 4]], &[], true),
            (&[&[]], &[], false),
        ],
        Op::RmsNorm => {
            &[(&[&[5], &[5]], &[], false), (&[&[3, 4], &[4]], &[], false), (&[&[2, 3, 40], &[40]], &[], false)]
        }
        Op::LayerNorm => &[
            (&[&[5], &[5], &[5]], &[], false),
            (&[&[3, 4], &[4], &[4]], &[], false),
            (&[&[2, 3, 40], &[40], &[40]], &[], false),
        ],
        Op::IndexSelect => {
            &[(&[&[9, 4], &[6]], &[], false), (&[&[12, 3], &[2, 3]], &[], false), (&[&[9, 1], &[]], &[], false)]
        }
        Op::CrossEntropy => {
            &[(&[&[5], &[]], &[], false), (&[&[6, 4], &[6]], &[], false), (&[&[2, 3, 40], &[2, 3]], &[], false)]
        }
        Op::CrossEntropyBackward => &[
            (&[&[5], &[], &[]], &[], false),
            (&[&[6, 4], &[6], &[6]], &[], false),
            (&[&[2, 3, 40], &[2, 3], &[2, 3]], &[], false),
        ],
        Op::Pad => &[
            (&[&[7]], &[], false),
            (&[&[3, 4]], &[1], false),
            (&[&[2, 3, 4]], &[0, 2], false),
            (&[&[2, 0, 3]], &[1], false),
            (&[&[]], &[], false),
        ],
        Op::Flip => &[
            (&[&[7]], &[], false),
            (&[&[3, 4]], &[1], false),
            (&[&[2, 3, 4]], &[0, 2], false),
            (&[&[2, 0, 3]], &[1], false),
            (&[&[]], &[], false),
        ],
        Op::Tril | Op::Triu => &[
            (&[&[4, 4]], &[], false),
            (&[&[2, 3, 5]], &[], false),
            (&[&[2, 2, 4, 1]], &[], false),
            (&[&[0, 2]], &[], false),
        ],
        Op::CumSum => &[(&[&[5]], &[0], false), (&[&[3, 4]], &[0], false), (&[&[2, 3, 4]], &[2], false)],
        // Rows that a CUDA device sorts in one tile, and in several.
        Op::ArgSort | Op::ArgTopK => &[
            (&[&[5]], &[0], false),
            (&[&[3, 4]], &[0], false),
            (&[&[2, 33, 3]], &[1], false),
            (&[&[4500]], &[0], false),
            (&[&[2, 0]], &[1], false),
            (&[&[0, 2]], &[1], false),
        ],
        Op::TakeAlongAxis => &[
            (&[&[9], &[4]], &[0], false),
            (&[&[3, 10], &[3, 5]], &[1], false),
            (&[&[2, 9, 3], &[2, 4, 3]], &[1], false),
            (&[&[9, 2], &[0, 2]], &[0], false),
        ],
        Op::Scatter | Op::ScatterAdd => &[
            (&[&[9], &[14], &[14]], &[0], false),
            (&[&[3, 10], &[3, 5], &[3, 5]], &[1], false),
            (&[&[2, 9, 3], &[2, 12, 3], &[2, 12, 3]], &[1], false),
            (&[&[9, 2], &[0, 2], &[0, 2]], &[0], false),
        ],
        Op::MatMul => &[
            (&[&[3, 4], &[4, 5]], &[], false),
            (&[&[1, 6], &[6, 1]], &[], false),
            (&[&[2, 3, 4], &[4, 2]], &[], false),
            (&[&[2, 1, 2, 3], &[3, 3, 2]], &[], false),
        ],
        Op::Where | Op::Clamp => &[
            (&[&[6], &[6], &[6]], &[], false),
            (&[&[3, 1], &[3, 4], &[4]], &[], false),
            (&[&[], &[2, 2], &[2, 1]], &[], false),
        ],
        _ if op.arity() == 2 => &[
            (&[&[9], &[9]], &[], false),
            (&[&[2, 3, 4], &[2, 3, 4]], &[], false),
            (&[&[3, 1], &[4]], &[], false),
            (&[&[], &[2, 3]], &[], false),
        ],
        _ => &[(&[&[11]], &[], false), (&[&[2, 3, 4]], &[], false), (&[&[]], &[], false)],
    }
}

fn against_reference(bench: &Bench, op: Op) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let mut rng = Random::new(op.index() as u64, 0);
    let dtypes = lab.kernels.dtypes(op, lab.kind());
    ensure!(!dtypes.is_empty(), "the device has no kernel for {op}");
    for dtype in dtypes {
        if op.moves_a_window() {
            for pick in 0..12 {
                let (dims, extra) = window_call(op, pick);
                let params = Params { extra, ..Params::default() };
                one_call(&lab, &mut lane, &mut rng, (op, dtype), &dims, &params, pick < 4)?;
            }
            continue;
        }
        for form in forms(op) {
            for round in 0..3 {
                let target = if takes_target(op) { DType::ALL[rng.below(DType::ALL.len())] } else { dtype };
                one_form(&lab, &mut lane, &mut rng, op, dtype, target, form, round == 0)?;
            }
        }
        for input in 0..op.arity() {
            if Numbers::NONE.with(input, Scalar::zero(dtype)).fit(op) {
                one_number(&lab, &mut lane, &mut rng, (op, dtype), input)?;
            }
        }
        if takes_target(op) {
            for target in DType::ALL {
                one_form(&lab, &mut lane, &mut rng, op, dtype, target, &forms(op)[0], true)?;
            }
        }
    }
    ensure_eq!(lab.device.take_failures(), [], "failures of calls that are right");
    Ok(())
}

/// May the output have any requested dtype?
fn takes_target(op: Op) -> bool {
    matches!(op, Op::Cast | Op::OneHot)
}

/// A call of an op on a form.
#[expect(clippy::too_many_arguments, reason = "each is one thing that the call depends on")]
fn one_form(
    lab: &Lab,
    lane: &mut Lane,
    rng: &mut Random,
    op: Op,
    dtype: DType,
    target: DType,
    &(dims, axes, keep_dims): &Form,
    plain: bool,
) -> Result<(), Fail> {
    let pick = rng.below(1 << 16) as u64;
    let to = takes_target(op).then_some(target);
    let params = Params { axes: Axes::new(axes)?, keep_dims, to, extra: extra(op, dtype, pick) };
    let dims: Vec<Vec<usize>> = dims.iter().map(|dims| dims.to_vec()).collect();
    let params = dims.first().map_or(params, |dims| fitted(params, dims));
    one_call(lab, lane, rng, (op, dtype), &dims, &params, plain)
}

/// Runs one call on new inputs, and compares the output, the bytes around it and the inputs.
fn one_call(
    lab: &Lab,
    lane: &mut Lane,
    rng: &mut Random,
    (op, dtype): (Op, DType),
    dims: &[Vec<usize>],
    params: &Params,
    plain: bool,
) -> Result<(), Fail> {
    let pick = rng.below(1 << 16) as u64;
    let mut views = Vec::new();
    let inputs: Vec<HostTensor> = (0..op.arity())
        .map(|input| {
            let all = [View::Contiguous, View::Permuted, View::Sliced, View::Stepped, View::Broadcast];
            let view = if plain { View::Contiguous } else { all[rng.below(all.len())] };
            views.push(view);
            let own = input_dtype(op, dtype, input, pick);
            HostTensor::new(rng, own, &dims[input], view, op.samples(input))
        })
        .collect();
    let given: Vec<(DType, &Shape)> = inputs.iter().map(|input| (input.dtype, input.layout.shape())).collect();
    let (out_dtype, out_shape) = infer(op, &given, params)?;
    let view = if plain { View::Contiguous } else { WRITABLE[rng.below(WRITABLE.len())] };
    views.push(view);
    let what = format!("{op} of {dtype} {dims:?}, {params:?} to {out_dtype}{out_shape}, views {views:?}");
    let before = HostTensor::new(rng, out_dtype, out_shape.dims(), view, Pool::Tame);
    let buffers = inputs.iter().map(|input| lab.upload(lane, input)).collect::<Result<Vec<_>, _>>()?;
    let output = lab.upload(lane, &before)?;
    lane.op(op, &buffers.iter().collect::<Vec<_>>(), &output, params)
        .map_err(|error| Fail::from(format!("{what}: {error}")))?;
    let bytes = lab.bytes(lane, &output)?;
    let expected = evaluate(op, &inputs.iter().map(HostTensor::dense).collect::<Vec<_>>(), params);
    let terms = given.first().map_or(0, |(_, shape)| shape.elements()) / out_shape.elements().max(1);
    compare(op, &before.read(&bytes).dense(), &expected, terms, &what)?;
    ensure!(before.same_outside(&bytes), "{what}: it wrote outside of the output's view");
    for (input, buffer) in inputs.iter().zip(&buffers) {
        ensure!(lab.bytes(lane, buffer)? == input.bytes(), "{what}: it wrote an input");
    }
    Ok(())
}

/// Runs one call in which this input is a number, and compares it with the reference over a tensor of one element.
fn one_number(
    lab: &Lab,
    lane: &mut Lane,
    rng: &mut Random,
    (op, dtype): (Op, DType),
    number: usize,
) -> Result<(), Fail> {
    let dims = |input: usize| if input == number { [].as_slice() } else { &[3, 4] };
    let inputs: Vec<HostTensor> = (0..op.arity())
        .map(|input| {
            let own = input_dtype(op, dtype, input, 0);
            HostTensor::new(rng, own, dims(input), View::Contiguous, op.samples(input))
        })
        .collect();
    let value = match inputs[number].dense().values[0] {
        Value::Float(value) => Scalar::F64(value),
        Value::Int(value) if dtype == DType::Bool => Scalar::Bool(value != 0),
        Value::Int(value) => i64::try_from(value).map_or_else(|_| Scalar::U64(value as u64), Scalar::I64),
    };
    let params = Params::default().with_number(number, value);
    let mut tensors: Vec<&HostTensor> = inputs.iter().collect();
    tensors.remove(number);
    let given: Vec<(DType, &Shape)> = tensors.iter().map(|input| (input.dtype, input.layout.shape())).collect();
    let (out_dtype, out_shape) = infer(op, &given, &params)?;
    let what = format!("{op} of {dtype} with {params:?}");
    let before = HostTensor::new(rng, out_dtype, out_shape.dims(), View::Contiguous, Pool::Tame);
    let buffers = tensors.iter().map(|input| lab.upload(lane, input)).collect::<Result<Vec<_>, _>>()?;
    let output = lab.upload(lane, &before)?;
    lane.op(op, &buffers.iter().collect::<Vec<_>>(), &output, &params)
        .map_err(|error| Fail::from(format!("{what}: {error}")))?;
    let bytes = lab.bytes(lane, &output)?;
    let expected = evaluate(op, &inputs.iter().map(HostTensor::dense).collect::<Vec<_>>(), &Params::default());
    compare(op, &before.read(&bytes).dense(), &expected, 0, &what)
}

/// Compares with what is exact, where an element has so many terms.
fn compare(op: Op, found: &Dense, expected: &Dense, terms: usize, what: &str) -> Result<(), Fail> {
    ensure_eq!((found.dtype, &found.dims), (expected.dtype, &expected.dims), "{what}");
    for (place, (&found_at, &expected_at)) in found.values.iter().zip(&expected.values).enumerate() {
        let same = match (found_at, expected_at) {
            (Value::Float(x), Value::Float(y)) => agrees_with_exact(op, found.dtype, On::AnyDevice, x, y, terms),
            (found, expected) => found == expected,
        };
        ensure!(same, "{what}: element {place} is {found_at:?}, not {expected_at:?}");
    }
    Ok(())
}

fn elementwise_in_place(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let x = lab.vector(&mut lane, &[1i32, -2, 3])?;
    let y = lab.vector(&mut lane, &[10i32, 20, 30])?;
    let none = Params::default();
    lane.op(Op::Neg, &[&x], &x, &none)?;
    lane.op(Op::Add, &[&x, &y], &x, &none)?;
    lane.op(Op::Sub, &[&y, &x], &x, &none)?;
    lab.expect(&mut lane, &x, &[1i32, -2, 3], "y - (y - x)")?;
    lane.op(Op::Mul, &[&x, &x], &x, &none)?;
    lab.expect(&mut lane, &x, &[1i32, 4, 9], "x * x onto x")?;
    lab.expect(&mut lane, &y, &[10i32, 20, 30], "the input that is not written")?;
    let float = x.seen(0, DType::F32, x.layout);
    lane.op(Op::Cast, &[&x], &float, &Params::to(DType::F32))?;
    lab.expect(&mut lane, &float, &[1f32, 4.0, 9.0], "a cast onto its input of the same size")
}

fn in_place_through_any_view(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let mut rng = Random::new(21, 0);
    for view in WRITABLE {
        let host = HostTensor::new(&mut rng, DType::I64, &[3, 4], view, Pool::Wild);
        let buffer = lab.upload(&mut lane, &host)?;
        lane.op(Op::Abs, &[&buffer], &buffer, &Params::default())?;
        let expected = host.overwritten(&evaluate(Op::Abs, &[host.dense()], &Params::default())).bytes();
        ensure_eq!(lab.bytes(&mut lane, &buffer)?, expected, "abs in place through a {view:?} view");
    }
    Ok(())
}

fn others_refuse_to_run_in_place(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let square = lab.vector(&mut lane, &[1f32, 2.0, 3.0, 4.0])?.with(Layout::contiguous(Shape::new(&[2, 2])?));
    let other = lab.vector(&mut lane, &[0f32; 4])?.with(square.layout);
    let softmax = Params::over(Axes::new(&[1])?);
    let launches: [(Op, Vec<_>, Params); 5] = [
        (Op::Softmax, vec![&square], softmax),
        (Op::SoftmaxBackward, vec![&other, &square], softmax),
        (Op::Pad, vec![&square], Params::pad(Axes::NONE, 0, 0, 0.5)),
        (Op::MatMul, vec![&square, &other], Params::default()),
        (Op::MatMul, vec![&other, &square], Params::default()),
    ];
    for (op, inputs, params) in launches {
        let cause = lane.failure(|lane| lane.op(op, &inputs, &square, &params))?;
        let told = matches!(&cause, LateCause::Device(Error::Kernel(KernelError::Overlap { .. })));
        ensure!(told, "{op} onto its input: {cause:?}");
    }
    lab.expect(&mut lane, &square, &[1f32, 2.0, 3.0, 4.0], "the input of refused kernels")
}

fn of_no_elements(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let none = Params::default();
    let empty = lab.tensor(DType::F32, &[0, 3])?;
    let output = lab.tensor(DType::F32, &[0, 3])?;
    lane.op(Op::Exp, &[&empty], &output, &none)?;
    lane.op(Op::Add, &[&empty, &empty], &output, &none)?;
    let one = lab.vector(&mut lane, &[5f32])?;
    let scalar = one.with(Layout::contiguous(Shape::SCALAR));
    lane.op(Op::Sum, &[&empty], &scalar, &none)?;
    lab.expect(&mut lane, &one, &[0f32], "the sum of nothing")?;
    let (left, right) = (lab.tensor(DType::F32, &[2, 0])?, lab.tensor(DType::F32, &[0, 2])?);
    let product = lab.vector(&mut lane, &[9f32; 4])?.with(Layout::contiguous(Shape::new(&[2, 2])?));
    lane.op(Op::MatMul, &[&left, &right], &product, &none)?;
    lab.expect(&mut lane, &product, &[0f32; 4], "the product of [2,0] and [0,2]")
}

fn of_many_elements(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let elements: Vec<i64> = (0..100_003).map(|i| i * 7 - 300_000).collect();
    let x = lab.vector(&mut lane, &elements)?;
    let sum = lab.tensor(DType::I64, &[])?;
    let doubled = lab.tensor(DType::I64, &[elements.len()])?;
    lane.op(Op::Add, &[&x, &x], &doubled, &Params::default())?;
    lane.op(Op::Sum, &[&doubled], &sum, &Params::default())?;
    let found = lab.read::<i64>(&mut lane, &doubled)?;
    let same = found.iter().zip(&elements).all(|(found, element)| *found == 2 * element);
    ensure!(same && found.len() == elements.len(), "a hundred thousand elements came out different");
    lab.expect(&mut lane, &sum, &[2 * elements.iter().sum::<i64>()], "their sum")?;
    let (m, k, n) = (37, 65, 41);
    let a: Vec<i32> = (0..m * k).map(|i| i % 11 - 5).collect();
    let b: Vec<i32> = (0..k * n).map(|i| i % 7 - 3).collect();
    let shaped = |rows: i32, columns: i32| Shape::new(&[rows as usize, columns as usize]).map(Layout::contiguous);
    let left = lab.vector(&mut lane, &a)?.with(shaped(m, k)?);
    let right = lab.vector(&mut lane, &b)?.with(shaped(k, n)?);
    let product = lab.tensor(DType::I32, &[m as usize, n as usize])?;
    lane.op(Op::MatMul, &[&left, &right], &product, &Params::default())?;
    let at = |i: i32, j: i32| (0..k).map(|l| a[(i * k + l) as usize] * b[(l * n + j) as usize]).sum::<i32>();
    let expected: Vec<i32> = (0..m).flat_map(|i| (0..n).map(move |j| (i, j))).map(|(i, j)| at(i, j)).collect();
    ensure!(lab.read::<i32>(&mut lane, &product)? == expected, "a product of [37,65] and [65,41] came out different");
    Ok(())
}

fn broadcasts_its_inputs(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let column = lab.vector(&mut lane, &[10i32, 20])?.with(Layout::contiguous(Shape::new(&[2, 1])?));
    let row = lab.vector(&mut lane, &[1i32, 2, 3])?;
    let sum = lab.tensor(DType::I32, &[2, 3])?;
    lane.op(Op::Add, &[&column, &row], &sum, &Params::default())?;
    lab.expect(&mut lane, &sum, &[11i32, 12, 13, 21, 22, 23], "a column and a row")
}

/// Ops of a caller's own: elementwise, over tensors with a number, and in place.
fn registered_ops_run(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let none = Params::default();
    let x = lab.vector(&mut lane, &[1i32, -2, 3, 4])?;
    let y = lab.vector(&mut lane, &[10i32, 20, 30, 40])?;
    let scaled = registered_ops()[1];
    lane.op(scaled, &[&x, &y], &x, &none)?;
    lab.expect(&mut lane, &x, &[20i32, -20, 120, 200], "x * y + y onto x")?;
    lane.op(scaled, &[&x], &x, &none.with_number(1, 2))?;
    lab.expect(&mut lane, &x, &[42i32, -38, 242, 402], "x * 2 + 2 onto x")?;
    let z = lab.tensor(DType::I32, &[4])?;
    lane.op(turned_op(), &[&x], &z, &none.with_number(1, -1))?;
    lab.expect(&mut lane, &z, &[402i32, 42, -38, 242], "elements in other places")?;
    let matrix = |buffer: &Buffer| {
        let layout = Layout::contiguous(Shape::new(&[2, 2])?);
        Ok::<Buffer, Error>(buffer.seen(0, DType::I32, layout))
    };
    let (x, y, z) = (matrix(&x)?, matrix(&y)?, matrix(&z)?);
    lane.op(changed(), &[&x, &y], &z, &none)?;
    lab.expect(&mut lane, &z, &[104i32, -66, 524, 834], "an op in place onto another tensor")?;
    lab.expect(&mut lane, &x, &[42i32, -38, 242, 402], "the input that is not written")?;
    lane.op(changed(), &[&x, &y], &x, &none)?;
    lab.expect(&mut lane, &x, &[104i32, -66, 524, 834], "an op in place")?;
    let short = lab.tensor(DType::I32, &[1, 2])?;
    let cause = lane.failure(|lane| lane.op(changed(), &[&x, &y], &short, &none))?;
    let is_shape = matches!(cause, LateCause::Device(Error::Kernel(KernelError::OutputShape { .. })));
    ensure!(is_shape, "an output that the rule does not give: {cause:?}");
    let cause = lane.failure(|lane| lane.op(changed(), &[&x, &short], &z, &none))?;
    let is_rule = matches!(cause, LateCause::Device(Error::Kernel(KernelError::Op(OpError::Rule { .. }))));
    ensure!(is_rule, "inputs that the rule refuses: {cause:?}");
    let refused = lane.op(changed(), &[&x, &y], &y, &none);
    ensure_matches!(refused, Err(Error::Kernel(KernelError::Overlap { .. })), "onto an input that is not the first");
    Ok(())
}

fn a_registered_kernel_runs(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let input = lab.vector(&mut lane, &[1i32, 2, 3])?;
    let output = lab.tensor(DType::I32, &[3])?;
    let run = |call: &mut streamvm_ep::KernelCall<'_, '_>| {
        let (inputs, outputs) = call.operands.split_at_mut(call.inputs);
        let input = inputs[0].slice::<i32>()?;
        for (to, from) in outputs[0].slice_mut::<i32>()?.iter_mut().zip(input) {
            *to = from * 100;
        }
        Ok(())
    };
    let kernel = Kernel { op: Op::Neg, device: lab.kind(), dtype: DType::I32, run };
    lane.launch(kernel, &[(&input, Access::Read), (&output, Access::Write)], 1, &Params::default())?;
    lab.expect(&mut lane, &output, &[100i32, 200, 300], "the output of a kernel of one's own")
}

fn a_registered_kernel_fails(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let output = lab.vector(&mut lane, &[0i32])?;
    let refuse = |_: &mut streamvm_ep::KernelCall<'_, '_>| Err(KernelError::Other("not today".to_owned()));
    let kernel = Kernel { op: Op::Neg, device: lab.kind(), dtype: DType::I32, run: refuse };
    let cause = lane.failure(|lane| lane.launch(kernel, &[(&output, Access::Write)], 0, &Params::default()))?;
    let expected = LateCause::Device(Error::Kernel(KernelError::Other("not today".to_owned())));
    ensure_eq!(cause, expected, "a kernel that returns an error");
    lane.fill(&output, 3i32)?;
    lab.expect(&mut lane, &output, &[3i32], "a command behind it")
}

fn a_panic_is_told(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let output = lab.vector(&mut lane, &[0i32])?;
    let panics = |_: &mut streamvm_ep::KernelCall<'_, '_>| -> Result<(), KernelError> {
        std::panic::resume_unwind(Box::new("a kernel broke".to_owned()))
    };
    let kernel = Kernel { op: Op::Neg, device: lab.kind(), dtype: DType::I32, run: panics };
    let cause = lane.failure(|lane| lane.launch(kernel, &[(&output, Access::Write)], 0, &Params::default()))?;
    ensure_matches!(&cause, LateCause::Panic(text) if text.contains("a kernel broke"), "a kernel that panics");
    lane.fill(&output, 3i32)?;
    lab.expect(&mut lane, &output, &[3i32], "a command behind it")
}

fn runs_each_launch_once(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let x = lab.vector(&mut lane, &[0i64, 100])?;
    let one = lab.vector(&mut lane, &[1i64, 1])?;
    for _ in 0..500 {
        lane.op(Op::Add, &[&x, &one], &x, &Params::default())?;
    }
    lab.expect(&mut lane, &x, &[500i64, 600], "after five hundred times adding one")
}
