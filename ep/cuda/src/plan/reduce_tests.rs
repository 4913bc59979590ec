use streamvm_ep::{Access, DeviceKind, Kernel, KernelCall, Op, Shape, infer};

use super::*;

fn dense(dims: &[usize]) -> Layout {
    Layout::contiguous(Shape::new(dims).unwrap())
}

fn over(axes: &[usize]) -> Params {
    Params::over(streamvm_ep::Axes::new(axes).unwrap())
}

fn planned(op: Op, dtype: DType, inputs: &[Layout], params: &Params) -> Launch {
    let given: Vec<(DType, &Shape)> = inputs.iter().map(|layout| (dtype, layout.shape())).collect();
    let (out_dtype, shape) = infer(op, &given, params).unwrap();
    let view = |at: usize, dtype, layout, access| {
        // SAFETY: never read or written.
        unsafe { Operand::new(std::ptr::without_provenance_mut(at << 40), dtype, layout, access) }
    };
    let mut operands: Vec<Operand> =
        inputs.iter().enumerate().map(|(place, &layout)| view(place + 1, dtype, layout, Access::Read)).collect();
    operands.push(view(9, out_dtype, Layout::contiguous(shape), Access::Write));
    let kernel = Kernel { op, device: DeviceKind::CUDA, dtype, run: |_| Ok(()) };
    let call = KernelCall::new(kernel, &mut operands, inputs.len(), params);
    crate::plan(&call).unwrap().unwrap()
}

/// Sizes of the kept and the reduced axes, strides of the input and of the output.
fn axes(launch: &Launch) -> [Vec<i64>; 4] {
    let arguments = &launch.arguments;
    let (outer, inner) = (arguments.rank as usize, arguments.inner_rank as usize);
    [
        arguments.shape[..outer].to_vec(),
        arguments.inner[..inner].to_vec(),
        arguments.views[0].strides[..outer + inner].to_vec(),
        arguments.views[1].strides[..outer].to_vec(),
    ]
}

#[test]
fn a_sum_over_the_last_axis_has_a_warp_for_each_row() {
    let launch = planned(Op::Sum, DType::F32, &[dense(&[100, 100, 300])], &over(&[2]));
    assert_eq!(axes(&launch), [vec![10_000], vec![300], vec![300, 1], vec![1]]);
    let Arguments { elements, inner_elements, lanes, across, .. } = launch.arguments;
    assert_eq!((elements, inner_elements, lanes, across), (10_000, 300, 32, 0));
    assert_eq!((launch.grid, launch.block, launch.shared_bytes), ([1250, 1, 1], [256, 1, 1], 2048));
    // Of long rows, few are under way at once.
    let lanes = [4_096, 8_192, 100_000]
        .map(|elements| planned(Op::Softmax, DType::F32, &[dense(&[5_000, elements])], &over(&[1])).arguments.lanes);
    assert_eq!(lanes, [128, 256, 256]);
}

#[test]
fn a_sum_over_the_first_axis_reads_across_its_outputs() {
    let launch = planned(Op::Sum, DType::F32, &[dense(&[300, 5000])], &over(&[0]));
    assert_eq!(axes(&launch), [vec![5000], vec![300], vec![1, 5000], vec![1]]);
    assert_eq!((launch.arguments.lanes, launch.arguments.across, launch.block[0]), (32, 1, 1024));
    assert_eq!(launch.grid[0], 5000u32.div_ceil(32));
    // Enough outputs for a thread each.
    let launch = planned(Op::Sum, DType::F32, &[dense(&[300, 1 << 20])], &over(&[0]));
    assert_eq!((launch.arguments.lanes, launch.arguments.across, launch.grid[0]), (1, 1, 4096));
}

#[test]
fn a_sum_over_everything_has_one_output_of_many_lanes() {
    let launch = planned(Op::Sum, DType::F32, &[dense(&[100, 200, 300])], &Params::default());
    assert_eq!(axes(&launch), [vec![], vec![6_000_000], vec![1], vec![]]);
    assert_eq!((launch.grid[0], launch.block[0], launch.arguments.lanes), (1, 1024, 1024));
    // However the axes stand.
    let turned = dense(&[100, 200, 300]).permute(&[2, 0, 1]).unwrap();
    assert_eq!(axes(&planned(Op::Sum, DType::F32, &[turned], &Params::default()))[1], [6_000_000]);
}

#[test]
fn reductions_of_one_element_and_of_none_have_one_inner_axis() {
    let launch = planned(Op::Sum, DType::F32, &[dense(&[3, 0])], &over(&[1]));
    assert_eq!(axes(&launch), [vec![3], vec![0], vec![1, 0], vec![1]]);
    assert_eq!((launch.arguments.inner_elements, launch.arguments.lanes), (0, 1));
    let launch = planned(Op::ArgMax, DType::F32, &[dense(&[3, 1])], &over(&[1]));
    assert_eq!(axes(&launch), [vec![3], vec![1], vec![1, 0], vec![1]]);
    let launch = planned(Op::Sum, DType::F32, &[dense(&[])], &Params::default());
    assert_eq!(axes(&launch), [vec![], vec![1], vec![0], vec![]]);
}

#[test]
fn eight_axes_are_kept_and_reduced_ones() {
    let launch = planned(Op::Sum, DType::F64, &[dense(&[2, 3, 2, 3, 2, 3, 2, 3])], &over(&[1, 3, 5, 7]));
    assert_eq!((launch.arguments.rank, launch.arguments.inner_rank), (4, 4));
    assert_eq!(axes(&launch)[2], [648, 108, 18, 3, 216, 36, 6, 1]);
}

#[test]
fn argmax_has_room_for_an_element_and_an_index_and_softmax_walks_both_alike() {
    let launch = planned(Op::ArgMax, DType::F64, &[dense(&[50, 4])], &over(&[1]));
    assert_eq!((launch.block[0], launch.shared_bytes), (256, 256 * 16));
    let launch = planned(Op::Softmax, DType::F32, &[dense(&[50, 40])], &over(&[0]));
    assert_eq!(axes(&launch), [vec![40], vec![50], vec![1, 40], vec![1]]);
    assert_eq!(launch.arguments.views[1].strides[..2], [1, 40]);
    assert_eq!(launch.arguments.across, 1);
}

#[test]
fn every_team_fills_whole_blocks_that_a_device_can_run() {
    let mut seen = [false; 2];
    for outputs in [1, 2, 127, 128, 4095, 4096, 1 << 17, 1 << 40] {
        for elements in [0, 1, 2, 3, 31, 33, 1000, 1 << 30] {
            for (kept, reduced) in [(1, 8), (8, 1), (0, 1), (1, 0)] {
                let kept = Axis { size: outputs, strides: [1, kept] };
                let team = Team::of(outputs, elements, kept, Axis { size: elements, strides: [reduced] });
                seen[usize::from(team.across)] = true;
                assert!(team.lanes.is_power_of_two() && team.block.is_multiple_of(team.lanes), "{team:?}");
                assert!(team.block.is_multiple_of(WARP) && team.block <= LARGEST_BLOCK, "{team:?}");
                assert!(team.block * 2 * STATE <= 48 << 10, "{team:?}");
            }
        }
    }
    assert_eq!(seen, [true; 2]);
}

#[test]
fn a_batch_that_broadcasts_is_walked_with_the_strides_of_its_matrices() {
    let turned = dense(&[4, 70, 90]).permute(&[0, 2, 1]).unwrap();
    let launch = planned(Op::MatMul, DType::F32, &[dense(&[5, 1, 100, 90]), turned], &Params::default());
    let arguments = &launch.arguments;
    assert!(planned_sizes(arguments) == (vec![5, 4], [100, 70, 90]), "{arguments:?}");
    assert_eq!(arguments.views[0].strides[..4], [9000, 0, 90, 1]);
    assert_eq!(arguments.views[1].strides[..4], [0, 6300, 1, 90]);
    assert_eq!(arguments.views[2].strides[..4], [28_000, 7000, 70, 1]);
    assert_eq!((launch.grid, launch.block), ([20 * 2 * 2, 1, 1], [256, 1, 1]));
    assert_eq!(launch.shared_bytes, 2 * 16 * 65 * 4);
    let wide = planned(Op::MatMul, DType::I64, &[dense(&[2, 2]), dense(&[2, 2])], &Params::default());
    assert_eq!(wide.shared_bytes, 2 * 16 * 65 * 8);
    assert!(wide.shared_bytes <= 48 << 10);
}

fn planned_sizes(arguments: &Arguments) -> (Vec<i64>, [i64; 3]) {
    let [m, n, k, ..] = arguments.inner;
    (arguments.shape[..arguments.rank as usize].to_vec(), [m, n, k])
}
