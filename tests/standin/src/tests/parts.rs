//! Reductions in two launches, whose states lie in memory of the device: what they compute, and bugs planted in their launches, each reported by the name of its finding.

use streamvm_cuda::{Launch, SCRATCH_BYTES, kernel_ptx, plan};
use streamvm_ep::{Access, Axes, DType, DeviceKind, Element, Kernel, KernelCall, Layout, Op, Operand, Params, Shape};

use super::bench::{Bench, Result, call};
use crate::api::launch;
use crate::values::code::Code;

/// So many elements that the planner divides them, into parts that are not even.
const MANY: usize = 70_000;

/// Both launches of a reduction of a vector of so many elements.
fn launches(op: Op, dtype: DType, [from, to, scratch]: [u64; 3]) -> [Launch; 2] {
    let output = if matches!(op, Op::ArgMax) { DType::I64 } else { dtype };
    let view = |address: u64, dtype, dims: &[usize], access| {
        let layout = Layout::contiguous(Shape::new(dims).unwrap());
        // SAFETY: an address of the device, which is never dereferenced.
        unsafe { Operand::new(std::ptr::without_provenance_mut(address as usize), dtype, layout, access) }
    };
    let mut operands = [view(from, dtype, &[MANY], Access::Read), view(to, output, &[], Access::Write)];
    let params = Params::over(Axes::new(&[0]).unwrap());
    let kernel = Kernel { op, device: DeviceKind::CUDA, dtype, run: |_| Ok(()) };
    let call = KernelCall::new(kernel, &mut operands, 1, &params);
    let launch = plan(&call).unwrap().unwrap();
    assert_eq!(launch.parts(), 17);
    launch.in_parts(17, scratch)
}

/// Launches a kernel that ships.
fn queue(bench: &Bench, launch: &Launch, stream: usize) -> Result {
    let name = launch.kernel.to_string();
    let text = kernel_ptx(launch.kernel).unwrap().into_string().unwrap();
    let function = bench.function(bench.load(&text).unwrap(), &name).unwrap();
    let ([x, y, z], [threads, ..]) = (launch.grid, launch.block);
    let parameters = [(&raw const launch.arguments).cast()];
    let (parameters, none) = (parameters.as_ptr(), std::ptr::null());
    call!(launch::cuLaunchKernel(function, x, y, z, threads, 1, 1, launch.shared_bytes, stream, parameters, none))
}

/// Memory of a reduction of these elements: input, output and states.
fn memory(bench: &Bench, bytes: &[u8], stream: usize) -> [u64; 3] {
    [bench.written(bytes, stream), bench.device(8), bench.device(SCRATCH_BYTES)]
}

fn numbers() -> Vec<i32> {
    (0..MANY as i32).collect()
}

/// The sum of all `numbers`, which wraps.
fn sum() -> i32 {
    numbers().into_iter().fold(0, i32::wrapping_add)
}

#[test]
fn a_fold_and_a_join_compute_the_reduction() {
    for settings in ["", "seed=9"] {
        let bench = Bench::new(settings);
        let stream = bench.stream();
        let of = memory(&bench, i32::as_bytes(&numbers()), stream);
        launches(Op::Sum, DType::I32, of).iter().for_each(|launch| queue(&bench, launch, stream).unwrap());
        assert_eq!(bench.read(of[1], 4, stream), sum().to_le_bytes(), "{settings}");
        // States of two fields, with bytes between them that nothing writes.
        let mut floats = vec![1f32; MANY];
        (floats[30_000], floats[60_000]) = (3.0, 3.0);
        let of = memory(&bench, f32::as_bytes(&floats), stream);
        launches(Op::ArgMax, DType::F32, of).iter().for_each(|launch| queue(&bench, launch, stream).unwrap());
        assert_eq!(bench.read(of[1], 8, stream), 30_000i64.to_le_bytes(), "{settings}");
    }
}

#[test]
fn a_join_of_one_state_too_few_or_with_too_few_lanes_is_refused() {
    for (lanes, counter, part) in
        [(32, 16, "70000 elements in 16 parts of 4118"), (16, 17, "joins 17 parts by 16 lanes")]
    {
        let bench = Bench::new("");
        let stream = bench.stream();
        let [fold, mut join] = launches(Op::Sum, DType::I32, memory(&bench, i32::as_bytes(&numbers()), stream));
        (join.arguments.lanes, join.arguments.counter) = (lanes, counter);
        queue(&bench, &fold, stream).unwrap();
        queue(&bench, &join, stream).unwrap();
        let ended = bench.synchronize(stream);
        let text = bench.found("bad kernel arguments");
        assert!(text.contains(part) && ended == Err(Code::LAUNCH_FAILED), "{text}");
    }
}

#[test]
fn a_part_that_no_block_folds_is_output_that_is_not_written() {
    let bench = Bench::new("");
    let stream = bench.stream();
    let [mut fold, _] = launches(Op::Sum, DType::I32, memory(&bench, i32::as_bytes(&numbers()), stream));
    fold.grid[1] -= 1;
    queue(&bench, &fold, stream).unwrap();
    assert_eq!(bench.synchronize(stream), Err(Code::LAUNCH_FAILED));
    let text = bench.found("output not written");
    assert!(text.contains("sv_sum_i32") && text.contains("operand 1"), "{text}");
}

/// The race detector takes the states for what the fold writes and the join reads.
#[test]
fn states_that_two_streams_share_are_a_conflict() {
    let bench = Bench::new("");
    let (one, two) = (bench.stream(), bench.stream());
    let [from, to, scratch] = memory(&bench, i32::as_bytes(&numbers()), one);
    bench.synchronize(one).unwrap();
    for launch in launches(Op::Sum, DType::I32, [from, to, scratch]) {
        queue(&bench, &launch, one).unwrap();
    }
    assert_eq!(bench.findings(), [""; 0]);
    let other = bench.device(8);
    let [fold, _] = launches(Op::Sum, DType::I32, [from, other, scratch]);
    queue(&bench, &fold, two).unwrap();
    // The fold of one stream with the states that the other one reads, and with those that it writes.
    let findings = bench.findings();
    let is_named = |finding: &String| finding.starts_with("conflict: ") && finding.contains("sv_sum_i32");
    assert!(!findings.is_empty() && findings.iter().all(is_named), "{findings:#?}");
    bench.synchronize(one).unwrap();
    bench.synchronize(two).unwrap();
}

#[test]
fn a_join_before_its_fold_reads_what_was_not_written() {
    let bench = Bench::new("order=0");
    let stream = bench.stream();
    let [_, join] = launches(Op::Sum, DType::I32, memory(&bench, i32::as_bytes(&numbers()), stream));
    queue(&bench, &join, stream).unwrap();
    assert_eq!(bench.synchronize(stream), Err(Code::LAUNCH_FAILED));
    let text = bench.found("uninitialised read");
    assert!(text.contains("operand 0"), "{text}");
}

#[test]
fn states_past_their_memory_or_misaligned_are_refused() {
    for (moved, kind) in [(SCRATCH_BYTES as u64 - 8, "out of bounds"), (4, "bad kernel arguments")] {
        let bench = Bench::new("");
        let stream = bench.stream();
        let [from, to, scratch] = memory(&bench, i32::as_bytes(&numbers()), stream);
        let [fold, _] = launches(Op::Sum, DType::I32, [from, to, scratch + moved]);
        queue(&bench, &fold, stream).unwrap();
        assert!(bench.synchronize(stream).is_err());
        bench.found(kind);
    }
}
