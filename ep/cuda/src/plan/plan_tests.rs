use streamvm_ep::{Access, DeviceKind, Kernel, Params, Shape};

use super::*;

/// An address without memory: a plan reads no element.
const SOMEWHERE: usize = 1 << 40;

fn view_at(address: usize, dtype: DType, layout: Layout, access: Access) -> Operand<'static> {
    // SAFETY: the test never reads or writes through the operand.
    unsafe { Operand::new(std::ptr::without_provenance_mut(address), dtype, layout, access) }
}

fn dense(dims: &[usize]) -> Layout {
    Layout::contiguous(Shape::new(dims).unwrap())
}

/// The plan of `op` for inputs and a contiguous output that do not overlap.
fn planned(op: Op, dtype: DType, inputs: &[Layout], params: &Params) -> Option<Launch> {
    let given: Vec<(DType, &Shape)> = inputs.iter().map(|layout| (dtype, layout.shape())).collect();
    let (out_dtype, shape) = streamvm_ep::infer(op, &given, params).unwrap();
    let places = (1..).map(|place| place * SOMEWHERE);
    let views = inputs.iter().zip(places).map(|(&layout, at)| view_at(at, dtype, layout, Access::Read));
    let mut operands: Vec<Operand> = views.collect();
    operands.push(view_at(100 * SOMEWHERE, out_dtype, Layout::contiguous(shape), Access::Write));
    let kernel = Kernel { op, device: DeviceKind::CUDA, dtype, run: |_| Ok(()) };
    plan(&KernelCall::new(kernel, &mut operands, inputs.len(), params)).unwrap()
}

fn add(a: Layout, b: Layout) -> Launch {
    planned(Op::Add, DType::F32, &[a, b], &Params::default()).unwrap()
}

/// Shape and strides of each view that has any.
fn axes(launch: &Launch, views: usize) -> (Vec<i64>, Vec<Vec<i64>>) {
    let Arguments { rank, inner_rank, shape, inner, ref views, .. } = {
        let arguments = launch.arguments;
        assert!(arguments.views[views..].iter().all(|view| *view == blank().views[0]));
        arguments
    };
    let (rank, all) = (rank as usize, (rank + inner_rank) as usize);
    let sizes = shape[..rank].iter().chain(&inner[..all - rank]).copied().collect();
    (sizes, views[..3].iter().map(|view| view.strides[..all].to_vec()).collect())
}

#[test]
fn contiguous_operands_are_walked_as_one_axis_four_at_a_time() {
    let launch = add(dense(&[2, 3, 500]), dense(&[2, 3, 500]));
    assert_eq!(axes(&launch, 3), (vec![3000], vec![vec![1]; 3]));
    assert_eq!((launch.arguments.vectors, launch.arguments.elements), (1, 3000));
    assert_eq!((launch.grid, launch.block, launch.shared_bytes), ([3, 1, 1], [256, 1, 1], 0));
    assert_eq!(launch.kernel.to_string(), "sv_add_f32");
    let bases = launch.arguments.views.map(|view| view.base as usize);
    assert_eq!(bases, [SOMEWHERE, 2 * SOMEWHERE, 100 * SOMEWHERE, 0]);
}

#[test]
fn one_element_is_repeated_and_a_vector_makes_two_axes() {
    let launch = add(dense(&[40, 50]), dense(&[]));
    assert_eq!(axes(&launch, 3), (vec![2000], vec![vec![1], vec![0], vec![1]]));
    assert_eq!(launch.arguments.vectors, 1);
    let launch = add(dense(&[4, 10, 50]), dense(&[50]));
    assert_eq!(axes(&launch, 3), (vec![40, 50], vec![vec![50, 1], vec![0, 1], vec![50, 1]]));
    assert_eq!(launch.arguments.vectors, 0);
}

#[test]
fn scalars_are_one_element_and_no_elements_are_no_launch() {
    let launch = add(dense(&[]), dense(&[1, 1]));
    assert_eq!((launch.arguments.elements, launch.grid, launch.arguments.vectors), (1, [1; 3], 0));
    for (a, b) in [(&[2, 0][..], &[2, 1][..]), (&[0], &[0])] {
        assert_eq!(planned(Op::Add, DType::F32, &[dense(a), dense(b)], &Params::default()), None);
    }
    let (source, target) = (dense(&[3, 0]), dense(&[3, 0]));
    let source = view_at(SOMEWHERE, DType::F32, source, Access::Read);
    let target = view_at(2 * SOMEWHERE, DType::F32, target, Access::Write);
    assert_eq!(plan_copy(&source, &target), None);
    assert_eq!(plan_fill(&target, Scalar::I64(1)), Ok(None));
}

#[test]
fn eight_axes_that_cannot_merge_are_eight() {
    let dims = [2; 8];
    let strides: Vec<usize> = (0..8).rev().map(|axis| 3usize.pow(axis)).collect();
    let gaps = Layout::with_strides(Shape::new(&dims).unwrap(), &strides, 0).unwrap();
    let launch = add(gaps, dense(&dims));
    assert_eq!(launch.arguments.rank, 8);
    assert_eq!(axes(&launch, 3).1[0], strides.iter().map(|&stride| stride as i64).collect::<Vec<_>>());
}

#[test]
fn what_cannot_fail_is_walked_in_the_order_of_memory_and_what_can_in_that_of_its_indices() {
    let turned = dense(&[3, 2]).permute(&[1, 0]).unwrap();
    let run = |op, dtype| {
        let (a, b) =
            (view_at(SOMEWHERE, dtype, turned, Access::Read), view_at(2 * SOMEWHERE, dtype, turned, Access::Read));
        let mut operands = [a, b, view_at(3 * SOMEWHERE, dtype, turned, Access::Write)];
        let kernel = Kernel { op, device: DeviceKind::CUDA, dtype, run: |_| Ok(()) };
        plan(&KernelCall::new(kernel, &mut operands, 2, &Params::default())).unwrap().unwrap()
    };
    assert_eq!(axes(&run(Op::Add, DType::I32), 3), (vec![6], vec![vec![1]; 3]));
    assert_eq!(axes(&run(Op::Div, DType::F32), 3), (vec![6], vec![vec![1]; 3]));
    for op in [Op::Div, Op::Pow] {
        assert_eq!(axes(&run(op, DType::I32), 3), (vec![2, 3], vec![vec![1, 2]; 3]));
    }
}

#[test]
fn misaligned_vectors_are_walked_one_by_one() {
    let launch_at = |dtype: DType, offset: usize| {
        let layout = dense(&[100]);
        let source = view_at(SOMEWHERE + offset * dtype.size(), dtype, layout, Access::Read);
        plan_copy(&source, &view_at(2 * SOMEWHERE, dtype, layout, Access::Write)).unwrap()
    };
    for (dtype, aligned) in [(DType::U8, 4), (DType::F32, 4), (DType::F64, 2)] {
        for offset in 0..8 {
            let launch = launch_at(dtype, offset);
            assert_eq!(launch.arguments.vectors == 1, offset % aligned == 0, "{dtype} at {offset}");
        }
    }
    assert_eq!(launch_at(DType::F32, 0).kernel, KernelName::Copy(4));
}

#[test]
fn a_huge_tensor_has_as_many_blocks_as_there_may_be() {
    let huge = 1 << 40;
    let launch = add(dense(&[huge]), dense(&[huge]));
    assert_eq!((launch.grid, launch.arguments.elements), ([MAX_BLOCKS as u32, 1, 1], huge as u64));
    const { assert!(MAX_BLOCKS < 1 << 31) };
    let launch =
        planned(Op::Sum, DType::U8, &[dense(&[huge, 4])], &Params::over(streamvm_ep::Axes::new(&[1]).unwrap()));
    assert_eq!(launch.unwrap().grid[0] as usize, MAX_BLOCKS);
    let (a, b) = (dense(&[1 << 26, 1]), dense(&[1, 1 << 26]));
    let launch = planned(Op::MatMul, DType::F32, &[a, b], &Params::default()).unwrap();
    assert_eq!(launch.grid, [MAX_BLOCKS as u32, 1, 1]);
}

#[test]
fn a_fill_carries_the_bits_of_its_dtype() {
    let bits = |dtype, value| {
        let target = view_at(SOMEWHERE, dtype, dense(&[5]), Access::Write);
        let launch = plan_fill(&target, value).unwrap().unwrap();
        (launch.kernel.to_string(), launch.arguments.value)
    };
    assert_eq!(bits(DType::F32, Scalar::F64(1.5)), (String::from("sv_fill_4"), u64::from(1.5f32.to_bits())));
    assert_eq!(bits(DType::F64, Scalar::I64(-2)), (String::from("sv_fill_8"), (-2f64).to_bits()));
    assert_eq!(bits(DType::I32, Scalar::I64(-2)), (String::from("sv_fill_4"), 0xffff_fffe));
    assert_eq!(bits(DType::Bool, Scalar::Bool(true)), (String::from("sv_fill_1"), 1));
}

#[test]
fn arguments_of_one_kind_of_call_are_small_enough_for_a_launch_and_leave_the_status_to_the_device() {
    // Every driver takes 4 KiB.
    assert!(size_of::<Arguments>() <= 4096);
    let launch = planned(Op::Div, DType::I32, &[dense(&[4]), dense(&[4])], &Params::default()).unwrap();
    assert!(launch.kernel.can_fail());
    assert_eq!(launch.arguments.status, 0);
}

/// The threads of a block and its shared memory, for a row of this length of which so many places are asked for.
fn sort_of(dtype: DType, length: usize, count: usize) -> ([u32; 3], [u32; 3], u32) {
    let params = Params::top(streamvm_ep::Axes::new(&[1]).unwrap(), count, true);
    let launch = planned(Op::ArgTopK, dtype, &[dense(&[3, length])], &params).unwrap();
    assert_eq!(launch.arguments.inner[..2], [length as i64, count as i64]);
    assert_eq!(launch.kernel, KernelName::OfSize(Op::ArgSort, dtype.size()));
    (launch.grid, launch.block, launch.shared_bytes)
}

#[test]
fn a_row_is_sorted_by_a_block_with_a_tile_in_shared_memory() {
    let rows = [3, 1, 1];
    assert_eq!(sort_of(DType::F32, 1, 1), (rows, [32, 1, 1], 32 * 8));
    assert_eq!(sort_of(DType::F32, 65, 3), (rows, [64, 1, 1], 128 * 8));
    assert_eq!(sort_of(DType::F64, 2048, 2048), (rows, [512, 1, 1], 2048 * 12));
    assert_eq!(sort_of(DType::U8, 2049, 2049), (rows, [512, 1, 1], 2048 * 5));
    // The first few of a row that is longer than a tile are selected before.
    assert_eq!(sort_of(DType::U8, 2049, 2), (rows, [512, 1, 1], 16 * 512 * 4));
    let none = Params::top(streamvm_ep::Axes::new(&[1]).unwrap(), 0, true);
    assert_eq!(planned(Op::ArgTopK, DType::F32, &[dense(&[3, 5])], &none), None);
}

#[test]
fn an_axis_that_32_bits_cannot_count_is_refused() {
    let long = Layout::with_strides(Shape::new(&[1 << 32]).unwrap(), &[0], 0).unwrap();
    let mut operands = [
        view_at(SOMEWHERE, DType::U8, long, Access::Read),
        view_at(2 * SOMEWHERE, DType::I64, dense(&[1]), Access::Write),
    ];
    let kernel = Kernel { op: Op::ArgTopK, device: DeviceKind::CUDA, dtype: DType::U8, run: |_| Ok(()) };
    let params = Params::top(streamvm_ep::Axes::new(&[0]).unwrap(), 1, true);
    let refused = plan(&KernelCall::new(kernel, &mut operands, 1, &params)).unwrap_err();
    assert!(matches!(refused, KernelError::Op(OpError::SortLength { op: Op::ArgTopK, axis: 0, .. })), "{refused}");
    let text = "argtopk along axis 0 of [4294967296]: a CUDA device sorts at most 4294967295 elements of an axis; sort it on a CPU, or in parts";
    assert_eq!(refused.to_string(), text);
}
