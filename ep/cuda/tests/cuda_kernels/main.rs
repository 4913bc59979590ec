//! The PTX of the CUDA kernels, run by an interpreter beside the CPU kernels: every kernel that there is, over shapes with and
//! without elements, broadcast, permuted, sliced and stepped views, in place and not, launched as `plan` says and otherwise.

mod conditions;
mod failing;
mod fused;
mod interpreter;
mod moving;
mod no_allocation;
mod numbers;
mod otherwise;
mod parts;
mod ptx;
#[allow(
    dead_code,
    unused_imports,
    reason = "only the values are of use here: the other side of the comparison is the CPU kernels"
)]
#[path = "../../../cpu/tests/cpu_kernels/reference/mod.rs"]
mod reference;
mod refusing;
mod rounding;
mod sorting;
mod spans;
#[path = "../../../cpu/tests/cpu_kernels/tensors/mod.rs"]
mod tensors;

use reference::Value;
use streamvm_cpu::{CpuConfig, CpuDevice};
use streamvm_cuda::abi::Status;
use streamvm_cuda::{KernelName, Launch, plan};
use streamvm_ep::*;
use tensors::{Pool, Rng, Tensor, VIEWS, View};

/// One call, its operands drawn.
struct Call {
    name: KernelName,
    op: Op,
    dtype: DType,
    params: Params,
    inputs: Vec<Tensor>,
    out: Tensor,
    /// Into how many parts a reduction is divided; as planned if `None`.
    parts: Option<u32>,
}

/// Sizes of axes: mostly small, so that there can be many. `budget` is how many elements there may be, fewer with more axes,
/// as a stepped view has two places for each size.
fn dims(rng: &mut Rng, rank: usize, budget: usize) -> Vec<usize> {
    let mut left = (budget >> rank).max(16);
    let mut dims: Vec<usize> = (0..rank)
        .map(|_| {
            let size = match rng.below(12) {
                0 => 1,
                1 if rng.below(4) == 0 => 0,
                2 => 1 + rng.below(left),
                _ => 1 + rng.below(5.min(left)),
            };
            left = (left / size.max(1)).max(1);
            size
        })
        .collect();
    // The large axis anywhere.
    if rank > 0 {
        dims.rotate_left(rng.below(rank));
    }
    dims
}

/// `dims` as an input that broadcasts to them.
fn broadcasting(rng: &mut Rng, dims: &[usize]) -> Vec<usize> {
    match rng.below(4) {
        0 => {
            let from = rng.below(dims.len() + 1);
            dims[from..].iter().map(|&dim| if rng.below(3) == 0 { 1 } else { dim }).collect()
        }
        1 => dims.iter().map(|&dim| if rng.below(2) == 0 { 1 } else { dim }).collect(),
        _ => dims.to_vec(),
    }
}

fn input_dims(rng: &mut Rng, op: Op) -> (Vec<Vec<usize>>, Params) {
    let mut params = Params { keep_dims: rng.below(2) == 0, ..Params::default() };
    if op == Op::MatMul {
        let rank = rng.below(4);
        let batch = dims(rng, rank, 6);
        let size = |rng: &mut Rng| [rng.below(6), 1 + rng.below(20), 60 + rng.below(80)][rng.below(3)];
        let (m, k, n) = (size(rng), size(rng), size(rng));
        let with = |rng: &mut Rng, rows, columns| {
            let mut dims = broadcasting(rng, &batch);
            dims.extend([rows, columns]);
            dims
        };
        return (vec![with(rng, m, k), with(rng, k, n)], params);
    }
    if op.moves_a_window() {
        let (shapes, extra) = reference::window_call(op, rng.next());
        return (shapes, Params { extra, ..params });
    }
    let by_index = matches!(op, Op::TakeAlongAxis | Op::Scatter | Op::ScatterAdd);
    let one_axis = matches!(op.class(), OpClass::ArgReduction | OpClass::RunningSum | OpClass::ArgSort);
    let one_axis = one_axis || op.is_softmax() || by_index;
    let rank = match op {
        Op::Tril | Op::Triu => 2 + rng.below(MAX_RANK - 1),
        Op::OneHot | Op::IndexSelect => rng.below(MAX_RANK),
        Op::LayerNorm | Op::RmsNorm | Op::CrossEntropy | Op::CrossEntropyBackward => 1 + rng.below(MAX_RANK),
        _ if one_axis => 1 + rng.below(MAX_RANK),
        _ => rng.below(MAX_RANK + 1),
    };
    let budget = if op.is_elementwise() { 6000 } else { 20_000 };
    let mut whole = dims(rng, rank, budget);
    if op.is_source() {
        return (vec![whole], params);
    }
    if matches!(op, Op::LayerNorm | Op::RmsNorm) {
        let row = vec![whole[rank - 1]];
        return (vec![whole, row.clone(), row][..op.arity()].to_vec(), params);
    }
    if matches!(op, Op::CrossEntropy | Op::CrossEntropyBackward) {
        whole[rank - 1] = whole[rank - 1].max(1);
        let rows = whole[..rank - 1].to_vec();
        return (vec![whole, rows.clone(), rows][..op.arity()].to_vec(), params);
    }
    if op == Op::IndexSelect {
        return (vec![vec![9 + rng.below(4), rng.below(6)], whole], params);
    }
    if by_index {
        let axis = rng.below(rank);
        let mut indices = whole.clone();
        indices[axis] = rng.below(12);
        // Indices are at most 8.
        whole[axis] = 9 + rng.below(4);
        params.axes = Axes::new(&[axis]).unwrap();
        let mut all = vec![whole];
        all.resize(op.arity(), indices);
        return (all, params);
    }
    if !op.is_elementwise() {
        let mut axes: Vec<usize> = (0..rank).filter(|_| rng.below(2) == 0).collect();
        if one_axis {
            axes = vec![rng.below(rank)];
        }
        if !op.reduces_no_elements() && op.is_reduction() {
            // No elements have no mean and no largest.
            for (axis, dim) in whole.iter_mut().enumerate() {
                if (axes.contains(&axis) || axes.is_empty()) && *dim == 0 {
                    *dim = 2;
                }
            }
        }
        params.axes = Axes::new(&axes).unwrap();
        return (vec![whole; op.arity()], params);
    }
    if op.arity() == 1 {
        return (vec![whole], params);
    }
    ((0..op.arity()).map(|_| broadcasting(rng, &whole)).collect(), params)
}

fn draw_view(rng: &mut Rng) -> View {
    // Half of all contiguous, as most are.
    if rng.below(2) == 0 { View::Contiguous } else { VIEWS[rng.below(VIEWS.len())] }
}

fn draw_output_view(rng: &mut Rng) -> View {
    match draw_view(rng) {
        View::Broadcast => View::Contiguous,
        view => view,
    }
}

/// The op that a kernel is for, if it is for one.
fn op_of(name: KernelName) -> Option<Op> {
    match name {
        KernelName::Op(op, _) | KernelName::WithNumbers(op, ..) => Some(op),
        KernelName::Cast(..) => Some(Op::Cast),
        KernelName::Pad(_) => Some(Op::Pad),
        KernelName::OneHot(..) => Some(Op::OneHot),
        KernelName::IndexSelect(..) => Some(Op::IndexSelect),
        KernelName::OfSize(op, _) => Some(op),
        KernelName::Copy(_) | KernelName::Fill(_) => None,
    }
}

fn draw_call(rng: &mut Rng, name: KernelName) -> Call {
    draw_call_of(rng, name, input_dims, |rng, _| draw_view(rng), draw_output_view)
}

/// A call whose shapes and parameters, views of inputs and view of the output are drawn by these functions.
fn draw_call_of(
    rng: &mut Rng,
    name: KernelName,
    shapes: impl Fn(&mut Rng, Op) -> (Vec<Vec<usize>>, Params),
    input_view: impl Fn(&mut Rng, usize) -> View,
    output_view: impl Fn(&mut Rng) -> View,
) -> Call {
    // Any of the dtypes of a size.
    let of_size = |rng: &mut Rng, bytes: usize| {
        let all: Vec<DType> = DType::ALL.into_iter().filter(|dtype| dtype.size() == bytes).collect();
        all[rng.below(all.len())]
    };
    let (dtype, to) = match name {
        KernelName::Op(_, dtype) | KernelName::WithNumbers(_, dtype, _) => (dtype, None),
        KernelName::Cast(from, to) => (from, Some(to)),
        KernelName::Pad(bytes) => (of_size(rng, bytes), None),
        KernelName::OneHot(from, bytes) => (from, Some(of_size(rng, bytes))),
        KernelName::IndexSelect(_, bytes) | KernelName::OfSize(_, bytes) => (of_size(rng, bytes), None),
        KernelName::Copy(_) | KernelName::Fill(_) => panic!("{name} is no op"),
    };
    let op = op_of(name).unwrap();
    let (dims, params) = shapes(rng, op);
    // One kernel for both, of which the parameters say one.
    let op = match params.extra {
        Extra::Top { .. } => Op::ArgTopK,
        Extra::None if op == Op::ArgSort && rng.below(2) == 0 => Op::ArgTopK,
        _ => op,
    };
    // The kernels of other ops that take indices are for one dtype of these, which is in the name.
    let takes_any = matches!(op, Op::TakeAlongAxis | Op::Scatter | Op::ScatterAdd);
    let of_indices = if takes_any { rng.next() } else { 0 };
    let drawn = reference::extra(op, dtype, rng.next());
    let params = Params { to, extra: if params.extra == Extra::None { drawn } else { params.extra }, ..params };
    let params = if op.arity() > 0 { reference::fitted(params, &dims[0]) } else { params };
    let inputs: Vec<Tensor> = (0..op.arity())
        .map(|input| {
            let own = match name {
                KernelName::IndexSelect(from, _) if input == 1 => from,
                _ => reference::input_dtype(op, dtype, input, of_indices),
            };
            let view = input_view(rng, input);
            // It adds in the order of the CPU, so the sums of any numbers are the same.
            let samples = if op == Op::MaxPool2dBackward { Pool::Wild } else { op.samples(input) };
            Tensor::new(rng, own, &dims[input], view, samples)
        })
        .collect();
    let given: Vec<(DType, &Shape)> = inputs.iter().map(|input| (input.dtype, input.layout.shape())).collect();
    let (out_dtype, out_shape) = match op.is_source() {
        true => (dtype, Shape::new(&dims[0]).unwrap()),
        false => infer(op, &given, &params).unwrap(),
    };
    let view = output_view(rng);
    let out = Tensor::new(rng, out_dtype, out_shape.dims(), view, Pool::Tame);
    Call { name, op, dtype, params, inputs, out, parts: None }
}

impl Call {
    /// The same call whose output is exactly its input `input`, where that may be.
    fn in_place(&self, input: usize) -> Option<Call> {
        let (own, out) = (&self.inputs[input], &self.out);
        let fits = self.op.is_elementwise()
            && own.dtype.size() == out.dtype.size()
            && own.layout.shape() == out.layout.shape()
            && !own.layout.overlaps_itself();
        fits.then(|| Call { inputs: self.inputs.clone(), out: seen_as(own, out.dtype), ..*self })
    }

    /// The operands; the output is input `in_place` if that is given.
    fn operands(&mut self, in_place: Option<usize>) -> Vec<Operand<'static>> {
        let Call { inputs, out, .. } = self;
        let mut operands: Vec<Operand> = inputs.iter_mut().map(|input| input.operand(Access::Read)).collect();
        operands.push(match in_place {
            Some(input) => {
                let own = &mut inputs[input];
                let dtype = std::mem::replace(&mut own.dtype, out.dtype);
                let operand = own.operand(Access::Write);
                own.dtype = dtype;
                operand
            }
            None => out.operand(Access::Write),
        });
        operands
    }

    fn on_cpu(&mut self, in_place: Option<usize>) -> Result<(), Error> {
        let (op, params, inputs) = (self.op, self.params, self.inputs.len());
        let kernel = streamvm_kernels::builtin().get(op, DeviceKind::CPU, self.dtype)?;
        let mut stream = CpuDevice::new(0, CpuConfig::default()).create_stream()?;
        let mut operands = self.operands(in_place);
        let result = stream.launch(&mut KernelCall::new(kernel, &mut operands, inputs, &params));
        drop(operands);
        self.take_output(in_place);
        result
    }

    /// The launch for the call.
    fn planned(&mut self, in_place: Option<usize>) -> Result<Option<Launch>, KernelError> {
        let (op, params, inputs) = (self.op, self.params, self.inputs.len());
        let kernel = Kernel { op, device: DeviceKind::CUDA, dtype: self.dtype, run: |_| Ok(()) };
        let mut operands = self.operands(in_place);
        plan(&KernelCall::new(kernel, &mut operands, inputs, &params))
    }

    fn simulated(&mut self, in_place: Option<usize>, rng: &mut Rng, how: Runner) -> Result<(), Error> {
        let result = match self.planned(in_place)? {
            Some(launch) => {
                assert_eq!(launch.kernel, self.name);
                let launch = any_grid(rng, launch);
                let status = match self.parts {
                    Some(parts) => parts::run(how, &launch, parts, rng.next()),
                    None => how.run(&launch, rng.next()),
                };
                launch.kernel.failure(&status)
            }
            None => Ok(()),
        };
        self.take_output(in_place);
        Ok(result?)
    }

    fn take_output(&mut self, in_place: Option<usize>) {
        if let Some(input) = in_place {
            self.out = seen_as(&self.inputs[input], self.out.dtype);
        }
    }
}

/// How the interpreter launches a kernel.
#[derive(Copy, Clone, Debug)]
enum Runner {
    /// As planned.
    Planned,
    /// In another way of the same meaning.
    Otherwise,
}

impl Runner {
    /// Runs a launch to its end, or two in its place if it has parts; `seed` says in which order the threads of a block take turns. Says what failed, as the
    /// device would.
    fn run(self, launch: &Launch, seed: u64) -> Status {
        let parts = launch.parts();
        if parts > 1 { parts::run(self, launch, parts, seed) } else { self.run_once(launch, seed) }
    }

    fn run_once(self, launch: &Launch, seed: u64) -> Status {
        match self {
            Runner::Planned => interpreter::run(launch, seed),
            Runner::Otherwise => interpreter::run_with(launch, &otherwise::arguments(launch, seed), seed),
        }
    }
}

/// The same memory with elements of another dtype of the same size.
fn seen_as(tensor: &Tensor, dtype: DType) -> Tensor {
    let mut seen = tensor.clone();
    seen.dtype = dtype;
    seen
}

/// A launch gives the same with fewer blocks: each goes on where another would have begun.
fn any_grid(rng: &mut Rng, mut launch: Launch) -> Launch {
    if rng.below(2) == 0 {
        launch.grid[0] = launch.grid[0].min(1 + rng.below(3) as u32);
    }
    launch
}

fn compare(call: &Call, found: &Tensor, expected: &Tensor, before: &Tensor, what: &str) {
    assert!(found.same_outside(before), "{what}: wrote outside the view");
    let terms = call.inputs.first().map_or(0, |first| first.layout.shape().elements());
    let terms = terms / found.layout.shape().elements().max(1);
    for (place, (found_at, expected_at)) in found.dense().values.into_iter().zip(expected.dense().values).enumerate() {
        let same = match (found_at, expected_at) {
            (Value::Float(x), Value::Float(y)) => reference::agrees_with_cpu(call.op, found.dtype, x, y, terms),
            _ => found_at == expected_at,
        };
        assert!(same, "{what}: element {place} is {found_at:?}, not {expected_at:?}");
    }
}

/// The interpreter notes the accesses to every byte of an output, so no call is made whose output spans more elements than this, most of them gaps.
const WIDE: usize = 1 << 20;

fn compare_one(name: KernelName, seed: u64, how: Runner) {
    let mut rng = Rng(seed);
    let call = draw_call(&mut rng, name);
    let is_wide = call.out.layout.span_elements().len() > WIDE;
    if is_wide {
        return;
    }
    compare_call(&call, &mut rng, seed, how);
}

/// A call, and what it is in place of each of its inputs, beside the CPU kernel.
fn compare_call(call: &Call, rng: &mut Rng, seed: u64, how: Runner) {
    let name = call.name;
    let shapes: Vec<&Layout> = call.inputs.iter().map(|input| &input.layout).collect();
    let what = format!("{name}, seed {seed}, {shapes:?} to {:?}, {:?}", call.out.layout, call.params);
    let places = [None].into_iter().chain((0..call.inputs.len()).map(Some));
    for in_place in places {
        let fresh = || match in_place {
            None => Some(Call { inputs: call.inputs.clone(), out: call.out.clone(), ..*call }),
            Some(input) => call.in_place(input),
        };
        let (Some(mut by_cpu), Some(mut by_gpu)) = (fresh(), fresh()) else { continue };
        let before = by_gpu.out.clone();
        let what = format!("{what}, in place {in_place:?}");
        by_cpu.on_cpu(in_place).expect(&what);
        by_gpu.simulated(in_place, rng, how).expect(&what);
        compare(call, &by_gpu.out, &by_cpu.out, &before, &what);
        for (input, (now, then)) in by_gpu.inputs.iter().zip(&call.inputs).enumerate() {
            assert!(in_place == Some(input) || now.same_bytes(then), "{what}: wrote an input");
        }
    }
}
