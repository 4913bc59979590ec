//! What `plan` refuses: the same as the CPU kernels, with the same errors, before anything is launched.

use streamvm_cpu::{CpuConfig, CpuDevice};
use streamvm_cuda::{KernelName, plan, plan_fill};
use streamvm_ep::*;

use crate::tensors::{Pool, Rng, Tensor, View};
use crate::{draw_call, draw_output_view};

/// One thing that is wrong with a call, by number; `None` if it does not apply.
fn spoil(rng: &mut Rng, operands: &mut Vec<Operand>, inputs: &mut usize, params: &mut Params) {
    let which = rng.below(operands.len());
    let (dtype, layout, access) = {
        let operand = &operands[which];
        (operand.dtype(), *operand.layout(), operand.access())
    };
    let ptr = operands[which].ptr();
    // SAFETY: nothing reads or writes these views: they are refused, or are views of the same memory.
    let again = |ptr, dtype, layout, access| unsafe { Operand::new(ptr, dtype, layout, access) };
    // The offset is in the pointer already.
    let here = Layout::with_strides(*layout.shape(), layout.strides(), 0).unwrap();
    let last = operands.len() - 1;
    match rng.below(9) {
        0 => operands[which] = again(ptr, DType::ALL[rng.below(DType::ALL.len())], here, access),
        1 => operands[which] = again(ptr.wrapping_add(1), dtype, here, access),
        2 => {
            let mut dims = layout.shape().dims().to_vec();
            match dims.first_mut() {
                Some(first) => *first += 1,
                None => dims.push(2),
            }
            let grown = Layout::contiguous(Shape::new(&dims).unwrap());
            operands[which] = again(ptr, dtype, grown, access);
        }
        3 => {
            operands[last] =
                again(operands[last].ptr(), operands[last].dtype(), layout_of(&operands[last]), Access::Read)
        }
        4 => {
            // The output upon an input, exactly or not.
            let shape = *operands[last].layout().shape();
            let shifted = operands[0].ptr().wrapping_add(rng.below(2) * operands[last].dtype().size());
            operands[last] = again(shifted, operands[last].dtype(), Layout::contiguous(shape), Access::Write);
        }
        5 => *inputs = rng.below(4),
        6 => {
            operands.pop();
        }
        7 => params.axes = Axes::new(&[rng.below(MAX_RANK)]).unwrap(),
        _ => {
            // Reaches elements twice.
            let shape = *operands[last].layout().shape();
            let zeros = vec![0; shape.rank()];
            let twice = Layout::with_strides(shape, &zeros, 0).unwrap();
            operands[last] = again(operands[last].ptr(), operands[last].dtype(), twice, Access::Write);
        }
    }
}

fn layout_of(operand: &Operand) -> Layout {
    Layout::with_strides(*operand.layout().shape(), operand.layout().strides(), 0).unwrap()
}

#[test]
fn bad_operands_are_refused_as_by_the_cpu() {
    let mut refused = 0;
    for name in KernelName::all() {
        if matches!(name, KernelName::Copy(_) | KernelName::Fill(_)) {
            continue;
        }
        for case in 0..60 {
            let seed = name.index().unwrap() as u64 * 1_000_000 + case;
            let mut rng = Rng(seed);
            let mut call = draw_call(&mut rng, name);
            let (op, dtype, mut params, mut inputs) = (call.op, call.dtype, call.params, call.inputs.len());
            let mut operands = call.operands(None);
            spoil(&mut rng, &mut operands, &mut inputs, &mut params);
            let cuda = Kernel { op, device: DeviceKind::CUDA, dtype, run: |_| Ok(()) };
            let planned = plan(&KernelCall::new(cuda, &mut operands, inputs, &params));
            // What is fine for one must not run on the other: it may reach anywhere.
            let Err(found) = planned else { continue };
            refused += 1;
            let cpu = streamvm_kernels::builtin().get(op, DeviceKind::CPU, dtype).unwrap();
            let by_cpu = (cpu.run)(&mut KernelCall::new(cpu, &mut operands, inputs, &params));
            assert_eq!(Err(found), by_cpu, "{name}, seed {seed}");
        }
    }
    assert!(refused > 2000, "{refused}");
}

#[test]
fn what_the_cpu_refuses_is_refused() {
    // The other way round, where the CPU's refusal comes before any access: one spoiled call of each kind.
    let (mut memory, params) = ([0u64; 64], Params::default());
    let layout = Layout::contiguous(Shape::new(&[8]).unwrap());
    let base = memory.as_mut_ptr().cast::<u8>();
    // SAFETY: eight elements of at most eight bytes in 64 words, used in one thread.
    let view = |at: usize, dtype, access| unsafe { Operand::new(base.wrapping_add(at), dtype, layout, access) };
    let (read, write) = (Access::Read, Access::Write);
    let calls = [
        [view(0, DType::F32, read), view(64, DType::I32, read), view(128, DType::F32, write)],
        [view(0, DType::F32, read), view(64, DType::F32, read), view(128, DType::F32, read)],
        [view(0, DType::F32, read), view(64, DType::F32, read), view(68, DType::F32, write)],
        [view(2, DType::F32, read), view(64, DType::F32, read), view(128, DType::F32, write)],
        [view(0, DType::F32, read), view(64, DType::F32, read), view(128, DType::F64, write)],
    ];
    for mut operands in calls {
        let run = streamvm_kernels::builtin().get(Op::Add, DeviceKind::CPU, DType::F32).unwrap();
        let mut call = KernelCall::new(run, &mut operands, 2, &params);
        let planned = plan(&call);
        assert!(planned.is_err());
        assert_eq!((run.run)(&mut call).unwrap_err(), planned.unwrap_err());
    }
}

#[test]
fn an_op_of_a_dtype_that_it_does_not_take_is_refused() {
    let (params, mut memory) = (Params::default(), [0i32; 8]);
    let layout = Layout::contiguous(Shape::new(&[4]).unwrap());
    let base = memory.as_mut_ptr();
    // SAFETY: four elements each, in a memory of eight, used in one thread.
    let view = |at: usize, access| unsafe { Operand::new(base.wrapping_add(at).cast(), DType::I32, layout, access) };
    let kernel = Kernel { op: Op::Exp, device: DeviceKind::CUDA, dtype: DType::I32, run: |_| Ok(()) };
    let mut operands = [view(0, Access::Read), view(4, Access::Write)];
    let refused = plan(&KernelCall::new(kernel, &mut operands, 1, &params)).unwrap_err();
    assert!(matches!(refused, KernelError::Op(OpError::DType { op: Op::Exp, dtype: DType::I32, .. })), "{refused}");
}

#[test]
fn bad_fills_are_refused_as_by_the_cpu() {
    let mut rng = Rng(3);
    for dtype in DType::ALL {
        let view = draw_output_view(&mut rng);
        let mut tensor = Tensor::new(&mut rng, dtype, &[3, 4], view, Pool::Tame);
        let mut repeated = Tensor::new(&mut rng, dtype, &[3, 4], View::Broadcast, Pool::Tame);
        let mut cpu = CpuDevice::new(0, CpuConfig::default()).create_stream().unwrap();
        let mut check = |target: &mut Operand<'static>, value| {
            let refused = plan_fill(target, value).unwrap_err();
            assert_eq!(cpu.fill(target, value), Err(refused));
        };
        let fine = if dtype == DType::Bool { Scalar::Bool(true) } else { Scalar::I64(1) };
        let unfit = if dtype == DType::Bool { Scalar::I64(1) } else { Scalar::Bool(true) };
        check(&mut tensor.operand(Access::Read), fine);
        check(&mut tensor.operand(Access::Write), unfit);
        check(&mut repeated.operand(Access::Write), fine);
    }
}
