//! A naive evaluation of every op, to test kernels against: one output element at a time, by its
//! multi-index, over `f64` and `i128`. It shares nothing with the kernels but the table of ops, whose
//! rows contain the references of elementwise ops and reductions.

mod arrange;
mod elementwise;
mod rounding;
mod row;
mod samples;
mod window;

#[allow(unused_imports, reason = "not every suite that takes this file compares rounded values")]
pub(crate) use rounding::{On, agrees_with_cpu, agrees_with_exact, rounded};
#[allow(unused_imports, reason = "not every suite that takes this file asks for one function")]
pub(crate) use row::function;
use row::value_of;
#[allow(unused_imports, reason = "not every suite that takes this file draws values")]
pub(crate) use samples::draw;
use streamvm_ep::{DType, Extra, Op, Params, Scalar};
#[allow(unused_imports, reason = "not every suite that takes this file draws such calls")]
pub(crate) use window::window_call;

/// One element.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Float(f64),
    Int(i128),
}

impl Value {
    pub(crate) fn float(self) -> f64 {
        match self {
            Value::Float(value) => value,
            Value::Int(value) => value as f64,
        }
    }

    pub(crate) fn int(self) -> i128 {
        match self {
            Value::Int(value) => value,
            Value::Float(value) => panic!("{value} is no integer"),
        }
    }

    fn truth(self) -> bool {
        match self {
            Value::Float(value) => value != 0.0,
            Value::Int(value) => value != 0,
        }
    }
}

/// A tensor as a list of its elements, row-major.
#[derive(Clone, Debug)]
pub(crate) struct Dense {
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<usize>,
    pub(crate) values: Vec<Value>,
}

/// Every multi-index of a shape, in row-major order.
pub(crate) fn indices(dims: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for &dim in dims {
        all = all
            .into_iter()
            .flat_map(|head: Vec<usize>| {
                (0..dim).map(move |last| {
                    let mut index = head.clone();
                    index.push(last);
                    index
                })
            })
            .collect();
    }
    all
}

impl Dense {
    /// The element at an index of the shape that this one broadcasts to.
    fn at(&self, index: &[usize]) -> Value {
        let own = &index[index.len() - self.dims.len()..];
        let mut flat = 0;
        for (&i, &dim) in own.iter().zip(&self.dims) {
            flat = flat * dim + if dim == 1 { 0 } else { i };
        }
        self.values[flat]
    }
}

/// An integer as the dtype keeps it: its low bits.
fn wrapped(dtype: DType, value: i128) -> Value {
    Value::Int(match dtype {
        DType::I8 => i128::from(value as i8),
        DType::I16 => i128::from(value as i16),
        DType::I32 => i128::from(value as i32),
        DType::I64 => i128::from(value as i64),
        DType::U8 => i128::from(value as u8),
        DType::U16 => i128::from(value as u16),
        DType::U32 => i128::from(value as u32),
        DType::U64 => i128::from(value as u64),
        DType::Bool => value,
        _ => panic!("{dtype} does not wrap"),
    })
}

fn broadcast_dims(all: &[&Dense]) -> Vec<usize> {
    let rank = all.iter().map(|one| one.dims.len()).max().unwrap();
    let mut dims = vec![1; rank];
    for one in all {
        let new = rank - one.dims.len();
        for (axis, &dim) in one.dims.iter().enumerate() {
            if dim != 1 {
                dims[new + axis] = dim;
            }
        }
    }
    dims
}

/// Parameters that only `op` has, picked by a number: margins of 0 to 2 elements, up to 6 classes.
pub(crate) fn extra(op: Op, dtype: DType, pick: u64) -> Extra {
    let small = (pick % 3, pick / 3 % 3);
    match op {
        Op::Pad => {
            let values = match dtype {
                DType::Bool => [Scalar::Bool(false), Scalar::Bool(true)],
                dtype if dtype.is_float() => [Scalar::F64(0.1), Scalar::F64(f64::NEG_INFINITY)],
                _ => [Scalar::I64(0), Scalar::I64(101)],
            };
            Extra::Pad { before: small.0 as u32, after: small.1 as u32, value: values[pick as usize / 9 % 2] }
        }
        // Before the first column of small matrices, and after the last one.
        Op::Tril | Op::Triu => Extra::Diagonal([-2, -1, 0, 1, 3, -60, i64::MIN, i64::MAX][pick as usize % 8]),
        Op::Arange if dtype.is_float() => {
            let (first, step) =
                ([0.0, -0.3, 1e6, 1e300][pick as usize % 4], [0.1, 1.0, -2.5, 1e-20][pick as usize / 4 % 4]);
            Params::floats(first, step).extra
        }
        Op::Arange => Extra::Integers {
            first: [0, -3, 250, i64::MAX][pick as usize % 4],
            step: [1, -2, 77, 0][pick as usize / 4 % 4],
        },
        Op::OneHot => Extra::Classes(pick as usize % 7),
        Op::ArgSort => Extra::Order { descending: pick.is_multiple_of(2) },
        // More than there are, until it is fitted.
        Op::ArgTopK => Extra::Top { count: pick as usize / 2, largest: pick.is_multiple_of(2) },
        Op::LayerNorm | Op::RmsNorm => Extra::Epsilon(Scalar::F64([1e-12, 1e-5, 0.5][pick as usize % 3])),
        Op::Uniform | Op::Normal => Extra::Random { seed: pick.wrapping_mul(0x9e37_79b9_7f4a_7c15), counter: pick },
        _ => Extra::None,
    }
}

/// Parameters that fit an input of this shape: a count of elements of an axis is brought within its size.
pub(crate) fn fitted(mut params: Params, dims: &[usize]) -> Params {
    if let (Extra::Top { count, .. }, Some(axis)) = (&mut params.extra, params.axes.iter().next()) {
        *count %= dims[axis] + 1;
    }
    params
}

/// The dtype of input `input` of a call whose kernel is that of `dtype`; indices have any that there is, picked by a number.
pub(crate) fn input_dtype(op: Op, dtype: DType, input: usize, pick: u64) -> DType {
    match (op, input) {
        (Op::Where, 0) => DType::Bool,
        (Op::IndexSelect | Op::TakeAlongAxis | Op::Scatter | Op::ScatterAdd, 1) => {
            [DType::I32, DType::I64, DType::U8][pick as usize % 3]
        }
        (Op::CrossEntropy | Op::CrossEntropyBackward, 1) => DType::I64,
        _ => dtype,
    }
}

/// The output of `op`.
pub(crate) fn evaluate(op: Op, inputs: &[Dense], params: &Params) -> Dense {
    match op {
        _ if op.is_reduction() => reduction(op, &inputs[0], params),
        _ if op.is_softmax() => softmax(op, inputs, params),
        Op::MatMul => matmul(&inputs[0], &inputs[1]),
        Op::LayerNorm => layer_norm(inputs, params),
        Op::RmsNorm => rms_norm(inputs, params),
        _ if op.moves_a_window() => window::evaluate(op, inputs, params),
        Op::CrossEntropy | Op::CrossEntropyBackward => cross_entropy(op, inputs),
        Op::IndexSelect => index_select(&inputs[0], &inputs[1]),
        Op::Pad => pad(&inputs[0], params),
        Op::OneHot => one_hot(&inputs[0], params),
        Op::Flip => arrange::flip(&inputs[0], params),
        Op::Tril | Op::Triu => arrange::triangle(op, &inputs[0], params),
        Op::CumSum => arrange::cumsum(&inputs[0], params),
        Op::TakeAlongAxis => arrange::take_along_axis(&inputs[0], &inputs[1], params),
        Op::Scatter | Op::ScatterAdd => arrange::scatter(op, inputs, params),
        Op::ArgSort | Op::ArgTopK => arrange::argsort(op, &inputs[0], params),
        _ => elementwise::elementwise(op, inputs, params),
    }
}

/// For each index of the shape without `axes` (or with size 1 there), the elements it stands for.
fn groups(input: &Dense, axes: &[usize], keep: bool) -> (Vec<usize>, Vec<Vec<Value>>) {
    let reduced = |axis: &usize| axes.contains(axis);
    let rank = input.dims.len();
    let kept: Vec<usize> = (0..rank).filter(|axis| !reduced(axis)).collect();
    let kept_dims: Vec<usize> = kept.iter().map(|&axis| input.dims[axis]).collect();
    let gone_dims: Vec<usize> = axes.iter().map(|&axis| input.dims[axis]).collect();
    let values = indices(&kept_dims)
        .iter()
        .map(|outer| {
            let mut index = vec![0; rank];
            for (&axis, &i) in kept.iter().zip(outer) {
                index[axis] = i;
            }
            indices(&gone_dims)
                .iter()
                .map(|inner| {
                    for (&axis, &i) in axes.iter().zip(inner) {
                        index[axis] = i;
                    }
                    input.at(&index)
                })
                .collect()
        })
        .collect();
    let with_ones = |axis: usize| if reduced(&axis) { 1 } else { input.dims[axis] };
    let dims = if keep { (0..rank).map(with_ones).collect() } else { kept_dims };
    (dims, values)
}

fn reduction(op: Op, input: &Dense, params: &Params) -> Dense {
    let mut axes: Vec<usize> = params.axes.iter().collect();
    if axes.is_empty() {
        axes = (0..input.dims.len()).collect();
    }
    let (dims, groups) = groups(input, &axes, params.keep_dims);
    let gives_index = matches!(op, Op::ArgMax | Op::ArgMin);
    let values =
        groups.iter().map(|group| if gives_index { place(op, group) } else { value_of(op, input.dtype, group) });
    Dense { dtype: if gives_index { DType::I64 } else { input.dtype }, dims, values: values.collect() }
}

/// The place of the first largest or smallest, or of the first NaN.
fn place(op: Op, group: &[Value]) -> Value {
    let is_before = |x: &Value, y: &Value| match (x, y) {
        (Value::Int(x), Value::Int(y)) => x < y,
        _ => x.float() < y.float(),
    };
    let is_beaten = |x: &Value, y: &Value| if op == Op::ArgMax { is_before(x, y) } else { is_before(y, x) };
    let nan = group.iter().position(|value| value.float().is_nan());
    let first = || group.iter().position(|x| !group.iter().any(|y| is_beaten(x, y)));
    Value::Int(nan.or_else(first).unwrap() as i128)
}

/// The sum to about twice the digits of `f64`, rounded once: what each addition loses is kept, and added at the end
/// (Neumaier 1974).
fn exact_sum(terms: impl Iterator<Item = f64>) -> f64 {
    let (sum, lost) = terms.fold((0.0, 0.0), |(sum, lost): (f64, f64), term| {
        let next = sum + term;
        let (large, small) = if sum.abs() >= term.abs() { (sum, term) } else { (term, sum) };
        (next, lost + (large - next + small))
    });
    // What is lost beside an infinity or NaN is no number.
    if sum.is_finite() { sum + lost } else { sum }
}

/// Other formulas than the kernels': no largest element is subtracted, and gradients are products with the Jacobian.
fn softmax(op: Op, inputs: &[Dense], params: &Params) -> Dense {
    let axis = params.axes.iter().next().unwrap();
    let length = inputs[0].dims[axis];
    // How far the elements of a row are apart.
    let stride: usize = inputs[0].dims[axis + 1..].iter().product();
    let mut found = inputs[0].clone();
    for start in (0..found.values.len()).filter(|at| (at / stride).is_multiple_of(length)) {
        let row = |input: &Dense| -> Vec<f64> {
            (0..length).map(|place| input.values[start + place * stride].float()).collect()
        };
        let (first, second) = (row(&inputs[0]), inputs.get(1).map(row));
        let sum: f64 = first.iter().map(|x| x.exp()).sum();
        for own in 0..length {
            let share = first[own].exp();
            // The derivative of element `j` by this one.
            let derivative = |j: usize| match op {
                Op::SoftmaxBackward => first[j] * (f64::from(j == own) - first[own]),
                _ => f64::from(j == own) - share,
            };
            found.values[start + own * stride] = Value::Float(match (op, &second) {
                (Op::Softmax, _) => share / sum,
                (Op::LogSoftmax, _) => (share / sum).ln(),
                (_, second) => second.iter().flatten().enumerate().map(|(j, dy)| dy * derivative(j)).sum(),
            });
        }
    }
    found
}

/// By the sum of squares of all pairs of elements, which needs no mean.
fn layer_norm(inputs: &[Dense], params: &Params) -> Dense {
    let [input, weight, bias] = inputs else { panic!("{} inputs of layer_norm", inputs.len()) };
    let Extra::Epsilon(Scalar::F64(epsilon)) = params.extra else { panic!("layer_norm of {:?}", params.extra) };
    let length = input.dims.last().copied().unwrap_or_default();
    let row = |row: &[Value]| -> Vec<Value> {
        let row: Vec<f64> = row.iter().map(|x| x.float()).collect();
        let pairs = row.iter().flat_map(|x| row.iter().map(move |y| (x - y) * (x - y)));
        let variance = exact_sum(pairs) / (2 * length * length) as f64;
        let away = |x: &f64| exact_sum(row.iter().map(|other| x - other)) / length as f64;
        let scaled = |(at, x): (usize, &f64)| {
            away(x) / (variance + epsilon).sqrt() * weight.values[at].float() + bias.values[at].float()
        };
        row.iter().enumerate().map(scaled).map(Value::Float).collect()
    };
    let values = input.values.chunks(length.max(1)).flat_map(row).collect();
    Dense { values, ..input.clone() }
}

fn rms_norm(inputs: &[Dense], params: &Params) -> Dense {
    let [input, weight] = inputs else { panic!("{} inputs of rms_norm", inputs.len()) };
    let Extra::Epsilon(Scalar::F64(epsilon)) = params.extra else { panic!("rms_norm of {:?}", params.extra) };
    let length = input.dims.last().copied().unwrap_or_default();
    let row = |row: &[Value]| -> Vec<Value> {
        let mean = exact_sum(row.iter().map(|x| x.float().powi(2))) / length as f64;
        let scaled = |(x, weight): (&Value, &Value)| x.float() / (mean + epsilon).sqrt() * weight.float();
        row.iter().zip(&weight.values).map(scaled).map(Value::Float).collect()
    };
    let values = input.values.chunks(length.max(1)).flat_map(row).collect();
    Dense { values, ..input.clone() }
}

/// By the sum of the exponentials of the differences to the logit of the target.
fn cross_entropy(op: Op, inputs: &[Dense]) -> Dense {
    let (logits, targets) = (&inputs[0], &inputs[1]);
    let classes = logits.dims.last().copied().unwrap_or_default();
    let row = |(place, row): (usize, &[Value])| -> Vec<Value> {
        let target = usize::try_from(targets.values[place].int()).ok().filter(|&target| target < classes);
        let share = |of: usize| 1.0 / row.iter().map(|x| (x.float() - row[of].float()).exp()).sum::<f64>();
        let found: Vec<f64> = match (op, target) {
            (Op::CrossEntropy, None) => vec![0.0],
            (Op::CrossEntropy, Some(target)) => vec![-share(target).ln()],
            (_, None) => vec![0.0; classes],
            (_, Some(target)) => {
                let dy = inputs[2].values[place].float();
                (0..classes).map(|class| (share(class) - f64::from(class == target)) * dy).collect()
            }
        };
        found.into_iter().map(Value::Float).collect()
    };
    let values = logits.values.chunks(classes).enumerate().flat_map(row).collect();
    let dims = if op == Op::CrossEntropy { targets.dims.clone() } else { logits.dims.clone() };
    Dense { dtype: logits.dtype, dims, values }
}

fn index_select(table: &Dense, indices: &Dense) -> Dense {
    let row = |index: &Value| -> Vec<Value> {
        (0..table.dims[1]).map(|column| table.at(&[index.int() as usize, column])).collect()
    };
    let dims = [&indices.dims[..], &table.dims[1..]].concat();
    Dense { dtype: table.dtype, dims, values: indices.values.iter().flat_map(row).collect() }
}

fn pad(input: &Dense, params: &Params) -> Dense {
    let Extra::Pad { before, after, value } = params.extra else { panic!("pad of {:?}", params.extra) };
    let value = match value {
        Scalar::F64(value) => Value::Float(rounded(input.dtype, value)),
        Scalar::I64(value) => Value::Int(value.into()),
        Scalar::U64(value) => Value::Int(value.into()),
        Scalar::Bool(value) => Value::Int(value.into()),
    };
    let padded = |axis: usize| params.axes.is_empty() || params.axes.contains(axis);
    let margins = (before + after) as usize;
    let grown = |(axis, &dim): (usize, &usize)| if padded(axis) { dim + margins } else { dim };
    let dims: Vec<usize> = input.dims.iter().enumerate().map(grown).collect();
    let inside = |(axis, &i): (usize, &usize)| {
        let own = if padded(axis) { i.checked_sub(before as usize)? } else { i };
        (own < input.dims[axis]).then_some(own)
    };
    let element = |index: &Vec<usize>| {
        let own: Option<Vec<usize>> = index.iter().enumerate().map(inside).collect();
        own.map_or(value, |own| input.at(&own))
    };
    Dense { dtype: input.dtype, values: indices(&dims).iter().map(element).collect(), dims }
}

fn one_hot(input: &Dense, params: &Params) -> Dense {
    let Extra::Classes(classes) = params.extra else { panic!("one-hot of {:?}", params.extra) };
    let dtype = params.to.unwrap();
    let number = |hit: bool| if dtype.is_float() { Value::Float(hit.into()) } else { Value::Int(hit.into()) };
    let row = |index: &Value| (0..classes as i128).map(|class| number(class == index.int())).collect::<Vec<_>>();
    let dims = [&input.dims[..], &[classes]].concat();
    Dense { dtype, dims, values: input.values.iter().flat_map(row).collect() }
}

fn matmul(a: &Dense, b: &Dense) -> Dense {
    let batch_of = |one: &Dense| Dense { dims: one.dims[..one.dims.len() - 2].to_vec(), ..one.clone() };
    let mut dims = broadcast_dims(&[&batch_of(a), &batch_of(b)]);
    let depth = a.dims[a.dims.len() - 1];
    dims.push(a.dims[a.dims.len() - 2]);
    dims.push(b.dims[b.dims.len() - 1]);
    let values = indices(&dims)
        .iter()
        .map(|index| {
            let rank = index.len();
            let term = |k: usize| {
                let (mut left, mut right) = (index.clone(), index.clone());
                left[rank - 1] = k;
                right[rank - 2] = k;
                (a.at(&left), b.at(&right))
            };
            if a.dtype.is_float() {
                Value::Float(exact_sum((0..depth).map(term).map(|(x, y)| x.float() * y.float())))
            } else {
                let terms = (0..depth).map(term);
                terms.fold(Value::Int(0), |sum, (x, y)| {
                    wrapped(a.dtype, sum.int() + wrapped(a.dtype, x.int() * y.int()).int())
                })
            }
        })
        .collect();
    Dense { dtype: a.dtype, dims, values }
}
