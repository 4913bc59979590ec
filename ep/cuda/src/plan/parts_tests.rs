use streamvm_ep::{Access, Axes, DType, DeviceKind, Kernel, KernelCall, Layout, Op, Operand, Params, Shape, infer};

use super::*;
use crate::plan::kernel_name::KernelName;

/// The launch of a reduction of a contiguous input over these axes; all axes if there are none.
fn planned(op: Op, dtype: DType, dims: &[usize], axes: &[usize]) -> Launch {
    planned_over(op, dtype, Layout::contiguous(Shape::new(dims).unwrap()), axes)
}

fn planned_over(op: Op, dtype: DType, layout: Layout, axes: &[usize]) -> Launch {
    let params = Params::over(Axes::new(axes).unwrap());
    let (to, shape) = infer(op, &[(dtype, layout.shape())], &params).unwrap();
    let view = |at: usize, dtype, layout, access| {
        // SAFETY: never read or written.
        unsafe { Operand::new(std::ptr::without_provenance_mut(at << 56), dtype, layout, access) }
    };
    let mut operands = [view(1, dtype, layout, Access::Read), view(9, to, Layout::contiguous(shape), Access::Write)];
    let kernel = Kernel { op, device: DeviceKind::CUDA, dtype, run: |_| Ok(()) };
    let call = KernelCall::new(kernel, &mut operands, 1, &params);
    crate::plan(&call).unwrap().unwrap()
}

/// The blocks of the fold, parts among them, the threads of one, and the elements of a part; the blocks of the join, the threads of one, and its lanes.
fn shapes(launch: &Launch) -> ([usize; 4], [usize; 3]) {
    let [fold, join] = launch.in_parts(launch.parts(), 1 << 30);
    (
        [fold.grid[0] as usize, fold.grid[1] as usize, fold.block[0] as usize, fold.arguments.value as usize],
        [join.grid[0] as usize, join.block[0] as usize, join.arguments.lanes as usize],
    )
}

#[test]
fn a_sum_of_all_fills_a_device() {
    let launch = planned(Op::Sum, DType::F32, &[8192, 8192], &[]);
    assert_eq!((launch.parts(), launch.grid[0]), (256, 1));
    assert_eq!(shapes(&launch), ([1, 256, 1024, 1 << 18], [1, 256, 256]));
    // Fewer parts of few elements: each thread loads at least four.
    let launch = planned(Op::Sum, DType::F32, &[70_000], &[]);
    assert_eq!(shapes(&launch), ([1, 17, 1024, 4118], [1, 256, 32]));
    // Of neighbouring outputs, a block folds 32.
    let launch = planned(Op::Sum, DType::F32, &[1 << 20, 100], &[0]);
    assert_eq!(shapes(&launch), ([4, 64, 1024, 1 << 14], [25, 256, 64]));
    // Rows of a matrix that are too few for a device.
    let launch = planned(Op::Sum, DType::F32, &[200, 1 << 20], &[1]);
    assert_eq!(shapes(&launch), ([200, 5, 256, 209_716], [7, 256, 8]));
}

#[test]
fn both_launches_describe_the_reduction_and_its_states() {
    let launch = planned(Op::ArgMax, DType::F16, &[3, 100_000], &[1]);
    let [fold, join] = launch.in_parts(launch.parts(), 1 << 30);
    let [from, to] = [0, 1].map(|view| launch.arguments.views[view]);
    let states = View { base: 1 << 30, strides: [0; MAX_RANK] };
    assert_eq!(fold.arguments.views[..2], [from, states]);
    assert_eq!(join.arguments.views[..2], [states, to]);
    for (pass, before) in [(&fold, Arguments::FOLD), (&join, Arguments::JOIN)] {
        let Arguments { elements, inner_elements, inner, shape, counter, .. } = pass.arguments;
        assert_eq!(
            (elements, inner_elements, inner, shape),
            (3, 100_000, launch.arguments.inner, launch.arguments.shape)
        );
        assert_eq!((pass.arguments.before, counter, pass.kernel), (before, 24, launch.kernel));
        assert_eq!(pass.shared_bytes, 16 * pass.block[0]);
    }
    assert_eq!((fold.arguments.lanes, join.arguments.lanes, join.arguments.across), (1024, 32, 0));
}

#[test]
fn what_one_launch_computes_soon_or_over_a_whole_device_stays_one() {
    for (dims, axes) in [
        // Less than 64 elements for each thread.
        (&[65_535][..], &[][..]),
        (&[2047, 3], &[0]),
        (&[100, 0], &[1]),
        (&[100, 1], &[1]),
        // Rows, or columns, that fill a device.
        (&[8192, 8192], &[1]),
        (&[8192, 8192], &[0]),
        (&[1024, 1 << 20], &[1]),
    ] {
        assert_eq!(planned(Op::Sum, DType::F32, dims, axes).parts(), 1, "{dims:?} over {axes:?}");
    }
    assert_ne!(planned(Op::Sum, DType::F32, &[65_536], &[]).parts(), 1);
    let softmax = planned_over(Op::Softmax, DType::F32, Layout::contiguous(Shape::new(&[2, 1 << 24]).unwrap()), &[1]);
    assert_eq!(softmax.parts(), 1);
}

/// Strides, kept and reduced axes in either order, one to many outputs, and every kernel.
#[test]
fn parts_cover_all_elements_and_states_fit_the_scratch_memory() {
    let mut most = 0;
    for kernel in KernelName::all() {
        let (KernelName::Op(op, dtype), Some(state)) = (kernel, ReductionState::of(kernel)) else { continue };
        for outputs in [1, 2, 3, 31, 32, 33, 100, 127, 128, 500, 1000, 4095, 4096, 8193, 1 << 14, 1 << 20] {
            for elements in [1, 63, 1000, 2048, 65_537, 1_000_003, 1 << 30] {
                for (dims, axis) in [([outputs, elements], 1), ([elements, outputs], 0)] {
                    let launch = planned(op, dtype, &dims, &[axis]);
                    if launch.parts() == 1 {
                        continue;
                    }
                    let [fold, join] = launch.in_parts(launch.parts(), 1 << 30);
                    let parts = fold.grid[1] as usize;
                    let Arguments { value, counter, .. } = join.arguments;
                    assert!(counter as usize == parts && parts > 1, "{launch:?}");
                    let covered = value * counter;
                    assert!((elements as u64..elements as u64 + value).contains(&covered), "{launch:?}");
                    assert!(parts <= join.arguments.lanes as usize && join.block[0] <= 1024, "{launch:?}");
                    assert!(join.shared_bytes <= 48 << 10 && fold.grid[0] <= 1 << 16, "{launch:?}");
                    most = most.max(parts * outputs * state.bytes());
                }
            }
        }
    }
    assert_eq!(most, SCRATCH_BYTES, "the states of 32 outputs in each block that a device holds");
}

#[test]
fn states_are_as_the_kernels_declare_them() {
    let of = |name: &str| {
        let state = ReductionState::of(name.parse().unwrap())?;
        Some((state.fields().to_vec(), state.bytes()))
    };
    assert_eq!(of("sv_sum_f32"), Some((vec![DType::F64], 8)));
    assert_eq!(of("sv_sum_f16"), Some((vec![DType::F32], 4)));
    assert_eq!(of("sv_mean_f64"), Some((vec![DType::F64; 2], 16)));
    assert_eq!(of("sv_prod_bf16"), Some((vec![DType::F32], 4)));
    assert_eq!(of("sv_all_bool"), Some((vec![DType::U64], 8)));
    assert_eq!(of("sv_argmax_i8"), Some((vec![DType::I64; 2], 16)));
    assert_eq!(of("sv_std_f16"), Some((vec![DType::F64; 3], 24)));
    assert_eq!((of("sv_softmax_f32"), of("sv_cast_f32_f16")), (None, None));
}
