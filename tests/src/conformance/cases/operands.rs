//! Operands that a stream must refuse before it writes anything.

use streamvm_ep::{Access, DType, DeviceKind, Error, Kernel, KernelError, Layout, Op, Params, Shape};

use super::table;
use crate::conformance::lab::{Bench, Buffer, Fail, Lab, ensure, ensure_eq, ensure_matches};
use crate::conformance::lane::Lane;
use streamvm_ep::LateCause;

table! { "operand":
    odd_addresses_are_refused [],
    targets_that_overlap_themselves_are_refused [],
    an_output_over_part_of_an_input_is_refused [],
    an_output_over_another_view_of_an_input_is_refused [],
    two_inputs_may_overlap [],
    interleaved_views_of_one_buffer_are_copied [],
    another_number_of_operands_is_refused [],
    another_dtype_is_refused [],
    another_output_shape_is_refused [],
    shapes_that_do_not_broadcast_are_refused [],
    an_output_to_read_is_refused [],
    a_kernel_of_another_kind_is_refused [],
    a_refused_kernel_writes_nothing [],
}

/// The kernel error of a command that must fail.
fn refusal<E: Into<streamvm_ep::CallError>>(
    lane: &mut Lane,
    what: &str,
    command: impl FnOnce(&mut Lane) -> Result<(), E>,
) -> Result<KernelError, Fail> {
    match lane.failure(command).map_err(|fail| Fail::from(format!("{what}: {}", fail.into_text())))? {
        LateCause::Device(Error::Kernel(error)) => Ok(error),
        other => Err(format!("{what}: found {other:?}, expected a kernel's refusal").into()),
    }
}

fn odd_addresses_are_refused(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let bytes = lab.vector(&mut lane, &[0u8; 64])?;
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.size() > 1) {
        let pair = Layout::contiguous(Shape::new(&[2])?);
        let odd = bytes.seen(1, dtype, pair);
        let [even, last] = [32, 48].map(|at| bytes.seen(at, dtype, pair));
        let misaligned = |found: &Result<(), Error>| matches!(found, Err(Error::Misaligned { .. }));
        let filled = lane.fill(&odd, 1i32);
        ensure!(misaligned(&filled), "a fill of {dtype} at an odd address: {filled:?}");
        for (from, to) in [(&odd, &even), (&even, &odd)] {
            let copied = lane.copy(from, to);
            ensure!(misaligned(&copied), "a copy of {dtype} with an odd address: {copied:?}");
        }
        let what = format!("max of {dtype} at an odd address");
        let found = refusal(&mut lane, &what, |lane| lane.op(Op::Max, &[&odd, &even], &last, &Params::default()))?;
        ensure_matches!(found, KernelError::Operand { operand: 0, .. }, "{what}");
        // A view without elements touches no address, so it is accepted.
        lane.fill(&bytes.seen(1, dtype, Layout::contiguous(Shape::new(&[0])?)), 1i32)?;
    }
    lab.expect(&mut lane, &bytes, &[0u8; 64], "memory after refused commands")
}

fn targets_that_overlap_themselves_are_refused(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let source = lab.vector(&mut lane, &[1i32; 4])?;
    let target = lab.vector(&mut lane, &[0i32; 4])?;
    let shape = Shape::new(&[4])?;
    let wide = target.with(Layout::contiguous(Shape::SCALAR).broadcast_to(&shape)?);
    ensure_matches!(lane.fill(&wide, 1i32), Err(Error::OverlapsItself { .. }), "a fill of a broadcast view");
    ensure_matches!(lane.copy(&source, &wide), Err(Error::OverlapsItself { .. }), "a copy to a broadcast view");
    let what = "neg to a broadcast view";
    let found = refusal(&mut lane, what, |lane| lane.op(Op::Neg, &[&source], &wide, &Params::default()))?;
    ensure_matches!(found, KernelError::Operand { operand: 1, .. }, "{what}");
    lab.expect(&mut lane, &target, &[0i32; 4], "the target of refused commands")
}

fn an_output_over_part_of_an_input_is_refused(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let all = lab.vector(&mut lane, &[1i32, 2, 3, 4])?;
    let whole = Layout::contiguous(Shape::new(&[4])?);
    let (low, high) = (all.with(whole.slice(0, 0..3)?), all.with(whole.slice(0, 1..4)?));
    for (from, to) in [(&low, &high), (&high, &low)] {
        let what = "neg to a part of its input";
        let found = refusal(&mut lane, what, |lane| lane.op(Op::Neg, &[from], to, &Params::default()))?;
        ensure_matches!(found, KernelError::Overlap { .. }, "{what}");
    }
    lab.expect(&mut lane, &all, &[1i32, 2, 3, 4], "memory after refused kernels")
}

fn an_output_over_another_view_of_an_input_is_refused(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let square = lab.vector(&mut lane, &[1i32, 2, 3, 4])?.with(Layout::contiguous(Shape::new(&[2, 2])?));
    let turned = square.with(square.layout.permute(&[1, 0])?);
    let what = "neg of a matrix to its transpose in the same memory";
    let found = refusal(&mut lane, what, |lane| lane.op(Op::Neg, &[&square], &turned, &Params::default()))?;
    ensure_matches!(found, KernelError::Overlap { .. }, "{what}");
    lab.expect(&mut lane, &square, &[1i32, 2, 3, 4], "memory after a refused kernel")
}

fn two_inputs_may_overlap(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let all = lab.vector(&mut lane, &[1i32, 2, 3, 4])?;
    let whole = Layout::contiguous(Shape::new(&[4])?);
    let (low, high) = (all.with(whole.slice(0, 0..3)?), all.with(whole.slice(0, 1..4)?));
    let sum = lab.tensor(DType::I32, &[3])?;
    lane.op(Op::Add, &[&low, &high], &sum, &Params::default())?;
    lab.expect(&mut lane, &sum, &[3i32, 5, 7], "the sum of overlapping inputs")?;
    lane.op(Op::Mul, &[&low, &low], &sum, &Params::default())?;
    lab.expect(&mut lane, &sum, &[1i32, 4, 9], "an input by itself")
}

fn interleaved_views_of_one_buffer_are_copied(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let all = lab.vector(&mut lane, &[1i32, 2, 3, 4, 5])?;
    let every_second = |offset| Layout::with_strides(Shape::new(&[2]).expect("a small shape"), &[2], offset);
    let [even, odd, later] = [0, 1, 2].map(every_second);
    let (even, odd, later) = (all.with(even?), all.with(odd?), all.with(later?));
    ensure_matches!(lane.copy(&even, &later), Err(Error::Overlap { .. }), "a copy between views that share an element");
    lab.expect(&mut lane, &all, &[1i32, 2, 3, 4, 5], "memory after a refused copy")?;
    lane.copy(&even, &odd)?;
    lab.expect(&mut lane, &all, &[1i32, 1, 3, 3, 5], "memory after a copy between interleaved views")
}

fn inputs(lab: &Lab, lane: &mut Lane) -> Result<(Buffer, Buffer), Fail> {
    Ok((lab.vector(lane, &[1i32, 2, 3])?, lab.vector(lane, &[0i32; 3])?))
}

fn another_number_of_operands_is_refused(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let (input, output) = inputs(&lab, &mut lane)?;
    let (read, write) = ((&input, Access::Read), (&output, Access::Write));
    let two_inputs = [read, read, write];
    let cases = [
        (Op::Add, &two_inputs[1..], 1),
        (Op::Neg, &two_inputs[..], 2),
        (Op::Neg, &two_inputs[..0], 0),
        (Op::Neg, &two_inputs[..1], 1),
    ];
    for (op, operands, inputs) in cases {
        let kernel = lab.kernel(op, DType::I32)?;
        let what = format!("{op} with {} operands", operands.len());
        let launch = |lane: &mut Lane| lane.launch(kernel, operands, inputs, &Params::default());
        ensure_matches!(refusal(&mut lane, &what, launch)?, KernelError::Operands { .. }, "{what}");
    }
    lab.expect(&mut lane, &output, &[0i32; 3], "the output of refused kernels")
}

fn another_dtype_is_refused(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let (input, output) = inputs(&lab, &mut lane)?;
    let kernel = lab.kernel(Op::Neg, DType::I32)?;
    let float = |buffer: &Buffer| buffer.seen(0, DType::F32, buffer.layout);
    for (operand, from, to) in [(0, float(&input), output.clone()), (1, input.clone(), float(&output))] {
        let what = format!("neg of i32 with operand {operand} of f32");
        let operands = [(&from, Access::Read), (&to, Access::Write)];
        let launch = |lane: &mut Lane| lane.launch(kernel, &operands, 1, &Params::default());
        let found = refusal(&mut lane, &what, launch)?;
        let told = matches!(found, KernelError::DType { operand: at, .. } if at == operand);
        ensure!(told, "{what}: found {found:?}");
    }
    lab.expect(&mut lane, &output, &[0i32; 3], "the output of refused kernels")
}

fn another_output_shape_is_refused(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let (input, output) = inputs(&lab, &mut lane)?;
    let params = Params::default();
    for (op, dims) in [(Op::Neg, &[1, 3][..]), (Op::Neg, &[2]), (Op::Sum, &[1]), (Op::Sum, &[3])] {
        let other = output.with(Layout::contiguous(Shape::new(dims)?));
        let what = format!("{op} of [3] to {dims:?}");
        let found = refusal(&mut lane, &what, |lane| lane.op(op, &[&input], &other, &params))?;
        ensure_matches!(found, KernelError::OutputShape { .. }, "{what}");
    }
    lab.expect(&mut lane, &output, &[0i32; 3], "the output of refused kernels")
}

fn shapes_that_do_not_broadcast_are_refused(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let (input, output) = inputs(&lab, &mut lane)?;
    let pair = lab.vector(&mut lane, &[1i32, 2])?;
    let what = "add of [3] and [2]";
    let found = refusal(&mut lane, what, |lane| lane.op(Op::Add, &[&input, &pair], &output, &Params::default()))?;
    ensure_matches!(found, KernelError::Op(_), "{what}");
    let matrix = lab.vector(&mut lane, &[0i32; 6])?.with(Layout::contiguous(Shape::new(&[2, 3])?));
    let square = lab.vector(&mut lane, &[0i32; 4])?.with(Layout::contiguous(Shape::new(&[2, 2])?));
    let what = "matmul of [2,3] and [2,3]";
    let product = |lane: &mut Lane| lane.op(Op::MatMul, &[&matrix, &matrix], &square, &Params::default());
    ensure_matches!(refusal(&mut lane, what, product)?, KernelError::Op(_), "{what}");
    lab.expect(&mut lane, &output, &[0i32; 3], "the output of refused kernels")
}

fn an_output_to_read_is_refused(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let (input, output) = inputs(&lab, &mut lane)?;
    let kernel = lab.kernel(Op::Neg, DType::I32)?;
    let operands = [(&input, Access::Read), (&output, Access::Read)];
    let what = "neg with an output that is not declared to be written";
    let launch = |lane: &mut Lane| lane.launch(kernel, &operands, 1, &Params::default());
    ensure_matches!(refusal(&mut lane, what, launch)?, KernelError::Operand { operand: 1, .. }, "{what}");
    lab.expect(&mut lane, &output, &[0i32; 3], "the output of a refused kernel")
}

fn a_kernel_of_another_kind_is_refused(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let (input, output) = inputs(&lab, &mut lane)?;
    for device in DeviceKind::all().filter(|&kind| kind != lab.kind()) {
        let kernel = Kernel { op: Op::Neg, device, dtype: DType::I32, run: |_| panic!("it ran") };
        let operands = [(&input, Access::Read), (&output, Access::Write)];
        let refused = lane.launch(kernel, &operands, 1, &Params::default());
        ensure_eq!(refused, Err(Error::WrongDevice { kernel: device, device: lab.device.id() }), "a {device} kernel");
    }
    Ok(lane.sync()?)
}

fn a_refused_kernel_writes_nothing(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let input = lab.vector(&mut lane, &[1i32, 2, 3, 4])?;
    let output = lab.vector(&mut lane, &[7i32; 4])?;
    let part = output.with(output.layout.slice(0, 0..3)?);
    let what = "neg of [4] to [3]";
    refusal(&mut lane, what, |lane| lane.op(Op::Neg, &[&input], &part, &Params::default()))?;
    // The stream goes on after a refused command.
    lane.op(Op::Abs, &[&input], &input, &Params::default())?;
    lab.expect(&mut lane, &output, &[7i32; 4], "the output of a refused kernel")?;
    lab.expect(&mut lane, &input, &[1i32, 2, 3, 4], "a kernel behind a refused one")
}
