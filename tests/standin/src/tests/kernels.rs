//! Kernels, found by name, over device memory.

use streamvm_cuda::abi::{Arguments, Status, View};
use streamvm_ep::{Element, MAX_RANK};

use super::bench::{Bench, call};
use crate::api::{context, event, launch};
use crate::values::code::Code;

/// The parameter of a kernel with these views, each an address and its strides.
pub(super) fn arguments(views: &[(u64, &[i64])], shape: &[i64], inner: &[i64]) -> Arguments {
    let padded = |values: &[i64], with| std::array::from_fn(|at| values.get(at).copied().unwrap_or(with));
    let view = |at: usize| match views.get(at) {
        Some((base, strides)) => View { base: *base, strides: padded(strides, 0) },
        None => View { base: 0, strides: [0; MAX_RANK] },
    };
    Arguments {
        views: std::array::from_fn(view),
        shape: padded(shape, 1),
        inner: padded(inner, 1),
        rank: shape.len() as u32,
        inner_rank: inner.len() as u32,
        elements: shape.iter().product::<i64>() as u64,
        // For a reduction; a matmul has three inner axes.
        inner_elements: if inner.len() == 1 { inner[0] as u64 } else { 0 },
        value: 0,
        counter: 0,
        status: 0,
        vectors: 0,
        lanes: 1,
        across: 0,
        before: 0,
    }
}

/// Device memory that holds these numbers.
fn given<T: Element>(bench: &Bench, stream: usize, numbers: &[T]) -> u64 {
    bench.written(T::as_bytes(numbers), stream)
}

/// Runs a kernel and returns the bytes of its output at `output`.
fn ran(bench: &Bench, stream: usize, name: &str, arguments: &Arguments, output: u64, bytes: usize) -> Vec<u8> {
    let function = bench.function(bench.module(name).unwrap(), name).unwrap();
    bench.launch(function, stream, arguments).unwrap();
    bench.read(output, bytes, stream)
}

#[test]
fn ops_compute_over_memory_of_the_device() {
    let bench = Bench::new("");
    let stream = bench.stream();
    let (x, row) = (given(&bench, stream, &[1f32, 2.0, 3.0, 4.0]), given(&bench, stream, &[10f32, 20.0]));
    let y = bench.device(16);
    let sum = arguments(&[(x, &[2, 1]), (row, &[0, 1]), (y, &[2, 1])], &[2, 2], &[]);
    assert_eq!(ran(&bench, stream, "sv_add_f32", &sum, y, 16), f32::as_bytes(&[11.0, 22.0, 13.0, 24.0]));
    let cast = bench.device(32);
    let casting = arguments(&[(x, &[1]), (cast, &[1])], &[4], &[]);
    assert_eq!(ran(&bench, stream, "sv_cast_f32_i64", &casting, cast, 32), i64::as_bytes(&[1, 2, 3, 4]));
}

#[test]
fn copies_and_fills_move_bits_with_gaps_between() {
    let bench = Bench::new("");
    let stream = bench.stream();
    let x = given(&bench, stream, &[1i32, 2, 3, 4, 5, 6]);
    let y = given(&bench, stream, &[0i32; 6]);
    let turned = arguments(&[(x, &[1, 2]), (y, &[3, 1])], &[2, 3], &[]);
    assert_eq!(ran(&bench, stream, "sv_copy_4", &turned, y, 24), i32::as_bytes(&[1, 3, 5, 2, 4, 6]));
    let column = Arguments { value: 0xFFFF_FFFF, ..arguments(&[(y + 4, &[3])], &[2], &[]) };
    assert_eq!(ran(&bench, stream, "sv_fill_4", &column, y, 24), i32::as_bytes(&[1, -1, 5, 2, -1, 6]));
}

#[test]
fn what_cannot_be_computed_is_told_in_the_status() {
    let bench = Bench::new("");
    let stream = bench.stream();
    let (x, y) = (given(&bench, stream, &[6i32, 6, 6]), given(&bench, stream, &[2i32, 0, 0]));
    let out = bench.device(12);
    let clear = [u64::MAX, 0].map(|word| word as i64);
    let status = given(&bench, stream, &clear);
    let division = arguments(&[(x, &[1]), (y, &[1]), (out, &[1])], &[3], &[]);
    let told = Arguments { status, ..division };
    assert_eq!(ran(&bench, stream, "sv_div_i32", &told, status, 16), i64::as_bytes(&[1, 0]));
    // A later kernel that fails at a later element does not replace the status.
    let later = Arguments { status, ..arguments(&[(x, &[0]), (y + 8, &[0]), (out, &[1])], &[3], &[]) };
    let earlier = ran(&bench, stream, "sv_div_i32", &later, status, 16);
    assert_eq!(earlier, i64::as_bytes(&[0, 0]), "the first element of all divides by zero here");
    assert_eq!(ran(&bench, stream, "sv_div_i32", &told, status, 16), i64::as_bytes(&[0, 0]));
    let (power, exponent) = (given(&bench, stream, &clear), given(&bench, stream, &[1i32, -3, 1]));
    let raised = Arguments { status: power, ..arguments(&[(x, &[1]), (exponent, &[1]), (out, &[1])], &[3], &[]) };
    assert_eq!(ran(&bench, stream, "sv_pow_i32", &raised, power, 16), i64::as_bytes(&[1, -3]));
    assert_eq!(size_of::<Status>(), 16);
}

/// Launches `sv_neg_f32` with these arguments, which must end its context with `code`.
fn breaks(bench: &Bench, arguments: &Arguments, kind: &str, code: Code) {
    let stream = bench.stream();
    let function = bench.function(bench.module("sv_neg_f32").unwrap(), "sv_neg_f32").unwrap();
    bench.launch(function, stream, arguments).unwrap();
    bench.found(kind);
    assert_eq!(bench.synchronize(stream), Err(code));
}

#[test]
fn a_kernel_stays_within_live_memory() {
    let outside = |bench: &Bench, x, y| arguments(&[(x, &[1]), (y, &[1])], &[bench.context().min(3) as i64], &[]);
    let bench = Bench::new("unwritten=0");
    let (x, y) = (bench.device(12), bench.device(8));
    breaks(&bench, &outside(&bench, x, y), "out of bounds", Code::ILLEGAL_ADDRESS);
    drop(bench);
    let bench = Bench::new("unwritten=0");
    let (x, y) = (bench.device(12), bench.device(12));
    bench.free(x).unwrap();
    breaks(&bench, &outside(&bench, x, y), "use after free", Code::ILLEGAL_ADDRESS);
    drop(bench);
    let bench = Bench::new("unwritten=0");
    let y = bench.device(12);
    breaks(&bench, &outside(&bench, 4096, y), "unknown memory", Code::ILLEGAL_ADDRESS);
    drop(bench);
    let bench = Bench::new("unwritten=0");
    let (x, y) = (bench.device(16), bench.device(12));
    breaks(&bench, &outside(&bench, x + 2, y), "bad kernel arguments", Code::MISALIGNED_ADDRESS);
}

#[test]
fn arguments_that_make_no_sense_end_the_context() {
    let bench = Bench::new("unwritten=0");
    let (x, y) = (bench.device(12), bench.device(12));
    let broken = Arguments { rank: 9, ..arguments(&[(x, &[1]), (y, &[1])], &[3], &[]) };
    breaks(&bench, &broken, "bad kernel arguments", Code::LAUNCH_FAILED);
}

#[test]
fn operands_that_overlap_are_found_when_the_kernel_runs() {
    let bench = Bench::new("unwritten=0");
    let (stream, x) = (bench.stream(), bench.device(16));
    let function = bench.function(bench.module("sv_neg_f32").unwrap(), "sv_neg_f32").unwrap();
    // An output in place of the input is allowed.
    bench.launch_block(function, stream, &arguments(&[(x, &[1]), (x, &[1])], &[3], &[]), 3).unwrap();
    assert_eq!(bench.synchronize(stream), Ok(()));
    bench.launch_block(function, stream, &arguments(&[(x, &[1]), (x + 4, &[1])], &[3], &[]), 3).unwrap();
    assert_eq!(bench.synchronize(stream), Err(Code::LAUNCH_FAILED));
    bench.found("race of threads");
}

#[test]
fn memory_of_another_device_is_reached_by_peers_alone() {
    let bench = Bench::new("devices=2;unwritten=0");
    let x = bench.device(12);
    let there = bench.retain(1).unwrap();
    call!(context::cuCtxSetCurrent(there)).unwrap();
    let y = bench.device(12);
    call!(context::cuCtxEnablePeerAccess(bench.context(), 0)).unwrap();
    let stream = bench.stream();
    let arguments = arguments(&[(x, &[1]), (y, &[1])], &[3], &[]);
    ran(&bench, stream, "sv_neg_f32", &arguments, y, 12);
    call!(context::cuCtxSetCurrent(bench.context())).unwrap();
    breaks(&bench, &arguments, "no peer access", Code::ILLEGAL_ADDRESS);
}

#[test]
fn kernels_race_like_copies_do() {
    let bench = Bench::new("");
    let (one, two) = (bench.stream(), bench.stream());
    let x = given(&bench, one, &[1f32, 2.0]);
    let y = bench.device(8);
    let function = bench.function(bench.module("sv_neg_f32").unwrap(), "sv_neg_f32").unwrap();
    let arguments = arguments(&[(x, &[1]), (y, &[1])], &[2], &[]);
    let written = bench.event();
    call!(event::cuEventRecord(written, one)).unwrap();
    bench.wait(two, written).unwrap();
    bench.launch(function, two, &arguments).unwrap();
    bench.launch(function, one, &arguments).unwrap();
    assert!(bench.found("conflict").contains("sv_neg_f32"));
}

#[test]
fn gaps_of_a_strided_operand_are_not_touched() {
    let bench = Bench::new("");
    let (one, two) = (bench.stream(), bench.stream());
    let x = given(&bench, one, &[1f32, 2.0, 3.0, 4.0]);
    bench.synchronize(one).unwrap();
    let function = bench.function(bench.module("sv_neg_f32").unwrap(), "sv_neg_f32").unwrap();
    let column = |at: u64| arguments(&[(x + 4 * at, &[2]), (x + 4 * at, &[2])], &[2], &[]);
    bench.launch(function, one, &column(0)).unwrap();
    bench.launch(function, two, &column(1)).unwrap();
    bench.synchronize(two).unwrap();
    assert_eq!(bench.read(x, 16, one), f32::as_bytes(&[-1.0, -2.0, -3.0, -4.0]));
}

#[test]
fn launches_that_no_device_takes_are_refused() {
    let bench = Bench::new("");
    let stream = bench.stream();
    let function = bench.function(bench.load(crate::EMPTY_PTX).unwrap(), crate::EMPTY).unwrap();
    let launch = |grid: [u32; 3], block: [u32; 3], shared| {
        let ([x, y, z], [a, b, c]) = (grid, block);
        let null = std::ptr::null();
        call!(launch::cuLaunchKernel(function, x, y, z, a, b, c, shared, stream, null, null))
    };
    assert_eq!(launch([1 << 20, 65535, 1], [32, 32, 1], 48 << 10), Ok(()));
    for (grid, block, shared) in [
        ([0, 1, 1], [1, 1, 1], 0),
        ([1, 65536, 1], [1, 1, 1], 0),
        ([1, 1, 1], [32, 33, 1], 0),
        ([1, 1, 1], [1, 1, 65], 0),
        ([1, 1, 1], [1, 0, 1], 0),
        ([1, 1, 1], [1, 1, 1], (48 << 10) + 1),
    ] {
        assert_eq!(launch(grid, block, shared), Err(Code::INVALID_VALUE));
        bench.found("bad kernel arguments");
    }
    let function = bench.function(bench.module("sv_neg_f32").unwrap(), "sv_neg_f32").unwrap();
    let null = std::ptr::null();
    let without = call!(launch::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, null, null));
    assert_eq!(without, Err(Code::INVALID_VALUE));
    bench.found("bad kernel arguments");
}
