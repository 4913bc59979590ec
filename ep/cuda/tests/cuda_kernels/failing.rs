//! What only a device can find out: a kernel tells of the same element as the CPU kernel, whoever is first to meet one.

use streamvm_cuda::{KernelName, Launch};
use streamvm_ep::*;

use crate::tensors::{Pool, Rng, Tensor, View};
use crate::{Call, Runner, draw_call};

/// A call with right-hand sides that may be zero or negative, or with indices that may be out of range.
fn draw(rng: &mut Rng, name: KernelName) -> Call {
    let mut call = draw_call(rng, name);
    let right = &call.inputs[1];
    // Seldom, often, or everywhere.
    if rng.below(3) > 0 {
        let (dtype, dims) = (right.dtype, right.layout.shape().dims().to_vec());
        let view = crate::draw_view(rng);
        call.inputs[1] = Tensor::new(rng, dtype, &dims, view, Pool::Wild);
    }
    call
}

/// `cases` calls of each kernel that `which` picks. How many had no failure, a division by zero, a row out of range, and another failure.
pub(crate) fn compare_failures(cases: u64, how: Runner, which: impl Fn(KernelName) -> bool) -> [u32; 4] {
    let mut failed = [0; 4];
    for name in KernelName::all().filter(|&name| name.can_fail() && which(name)) {
        for case in 0..cases {
            let seed = name.index().unwrap() as u64 * 1_000_000 + case;
            let mut rng = Rng(seed);
            let call = draw(&mut rng, name);
            for in_place in [None, Some(0), Some(1)] {
                let fresh = || match in_place {
                    None => Some(Call { inputs: call.inputs.clone(), out: call.out.clone(), ..call }),
                    Some(input) => call.in_place(input),
                };
                let (Some(mut by_cpu), Some(mut by_gpu)) = (fresh(), fresh()) else { continue };
                let expected = by_cpu.on_cpu(in_place);
                let found = by_gpu.simulated(in_place, &mut rng, how);
                assert_eq!(found, expected, "{name}, seed {seed}, in place {in_place:?}");
                match found {
                    Ok(()) => failed[0] += 1,
                    Err(Error::Kernel(KernelError::DivisionByZero { .. })) => failed[1] += 1,
                    Err(Error::Kernel(KernelError::RowOutOfRange { .. })) => failed[2] += 1,
                    Err(_) => failed[3] += 1,
                }
            }
        }
    }
    failed
}

pub(crate) fn run_without_a_place_to_tell(run_untold: fn(&Launch)) {
    let (mut left, mut right, mut out) = ([7i32, -8, 9], [0i32, 2, -1], [0i32; 3]);
    for op in [Op::Div, Op::Pow] {
        let operand = |memory: &mut [i32; 3], access| {
            let layout = Layout::contiguous(Shape::new(&[3]).unwrap());
            // SAFETY: three elements of memory that outlives the call.
            unsafe { Operand::new(memory.as_mut_ptr().cast(), DType::I32, layout, access) }
        };
        let mut operands =
            [operand(&mut left, Access::Read), operand(&mut right, Access::Read), operand(&mut out, Access::Write)];
        let kernel = Kernel { op, device: DeviceKind::CUDA, dtype: DType::I32, run: |_| Ok(()) };
        let params = Params::default();
        let call = KernelCall::new(kernel, &mut operands, 2, &params);
        let launch = streamvm_cuda::plan(&call).unwrap().unwrap();
        assert_eq!(launch.arguments.status, 0);
        run_untold(&launch);
        // What has a result has it.
        let expected = if op == Op::Div { [0, -4, -9] } else { [1, 64, -1] };
        assert_eq!(out, expected, "{op}");
    }
}

pub(crate) fn tell_the_first_of_few(seeds: u64, how: Runner) {
    let (mut left, mut right, mut out) = ([2i64; 4], [1i64, -5, -6, -7], [0i64; 4]);
    let view = |memory: &mut [i64; 4], access| {
        let layout = Layout::contiguous(Shape::new(&[4]).unwrap());
        // SAFETY: four elements of memory that outlives the call.
        unsafe { Operand::new(memory.as_mut_ptr().cast(), DType::I64, layout, access) }
    };
    let mut operands = [view(&mut left, Access::Read), view(&mut right, Access::Read), view(&mut out, Access::Write)];
    let kernel = Kernel { op: Op::Pow, device: DeviceKind::CUDA, dtype: DType::I64, run: |_| Ok(()) };
    let params = Params::default();
    let call = KernelCall::new(kernel, &mut operands, 2, &params);
    let launch = streamvm_cuda::plan(&call).unwrap().unwrap();
    let expected = KernelError::NegativeExponent { op: Op::Pow, index: 1, exponent: -5 };
    for seed in 0..seeds {
        let status = how.run(&launch, seed);
        assert_eq!(launch.kernel.failure(&status), Err(expected.clone()), "seed {seed}");
    }
}

/// Index selects of 40 indices, of which few are out of range.
pub(crate) fn tell_the_first_row_of_few(seeds: u64, how: Runner) {
    let mut failed = 0;
    for name in KernelName::all().filter(|name| matches!(name, KernelName::IndexSelect(..))) {
        for seed in 0..seeds {
            let mut rng = Rng(seed);
            let shapes = |_: &mut Rng, _| (vec![vec![9, 1], vec![40]], Params::default());
            let draw =
                |rng: &mut Rng| crate::draw_call_of(rng, name, shapes, |_, _| View::Contiguous, |_| View::Contiguous);
            let (mut by_cpu, mut by_gpu) = (draw(&mut rng), draw(&mut Rng(seed)));
            // 250 and more, or negative where the dtype has such numbers.
            let indices = Tensor::new(&mut rng, by_cpu.inputs[1].dtype, &[40], View::Contiguous, Pool::Wild);
            (by_cpu.inputs[1], by_gpu.inputs[1]) = (indices.clone(), indices);
            let (expected, found) = (by_cpu.on_cpu(None), by_gpu.simulated(None, &mut rng, how));
            failed += u32::from(found.is_err());
            assert_eq!(found, expected, "{name}, seed {seed}");
        }
    }
    assert!(failed > 50, "{failed}");
}
