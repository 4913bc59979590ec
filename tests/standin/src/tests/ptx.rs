//! Launches that run the PTX of their kernel: what it computes, and bugs planted in kernels that ship, each reported by the name of its finding.

use std::ffi::c_uint;

use streamvm_cuda::abi::Arguments;
use streamvm_cuda::kernel_ptx;
use streamvm_ep::Element;
use streamvm_ptx::plant::{self, Field, replaced_last};

use super::bench::{Bench, Result, call};
use super::kernels::arguments;
use crate::Out;
use crate::api::{copy, cublas, launch};
use crate::values::code::Code;

/// The elements of a subtraction: more than a block.
const MANY: usize = 300;

/// The PTX that the engine loads for a kernel, with a change.
fn shipped(name: &str, change: impl Fn(&str) -> String) -> String {
    let text = kernel_ptx(name.parse().unwrap()).unwrap().into_string().unwrap();
    Field::of(&text, name).unwrap().with(change)
}

/// Launches a kernel of the module of this text, on blocks of one axis each.
fn launched(
    bench: &Bench,
    (text, name): (&str, &str),
    arguments: &Arguments,
    [blocks, threads, shared_bytes]: [c_uint; 3],
    stream: usize,
) -> Result {
    let function = bench.function(bench.load(text).unwrap(), name).unwrap();
    let parameters = [(&raw const *arguments).cast()];
    let (parameters, none) = (parameters.as_ptr(), std::ptr::null());
    call!(launch::cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared_bytes, stream, parameters, none))
        .unwrap();
    bench.synchronize(stream)
}

/// The numbers of the left side of a subtraction and of the right one.
fn sides() -> [Vec<f32>; 2] {
    [1.0, 3.0].map(|factor| (0..MANY).map(|place| place as f32 * factor).collect())
}

/// `left - right`, by the kernel with this change. The result is the bytes of the output.
fn subtracted(bench: &Bench, change: impl Fn(&str) -> String) -> Result<Vec<u8>> {
    let stream = bench.stream();
    let [left, right] = sides().map(|side| bench.written(f32::as_bytes(&side), stream));
    let out = bench.device(4 * MANY);
    subtract(bench, [left, right, out], change, stream)
}

/// As [`subtracted`], over this memory.
fn subtract(
    bench: &Bench,
    [left, right, out]: [u64; 3],
    change: impl Fn(&str) -> String,
    stream: usize,
) -> Result<Vec<u8>> {
    let arguments = arguments(&[(left, &[1]), (right, &[1]), (out, &[1])], &[MANY as i64], &[]);
    launched(bench, (&shipped("sv_sub_f32", change), "sv_sub_f32"), &arguments, [2, 256, 0], stream)?;
    Ok(bench.read(out, 4 * MANY, stream))
}

/// The sum of 1000 numbers, by one block of 128 threads of the kernel with this change.
fn summed(bench: &Bench, change: impl Fn(&str) -> String) -> Result<Vec<u8>> {
    summed_in(bench, change, 128 * 8)
}

/// As [`summed`], with so many bytes of shared memory.
fn summed_in(bench: &Bench, change: impl Fn(&str) -> String, shared_bytes: c_uint) -> Result<Vec<u8>> {
    let stream = bench.stream();
    let numbers = bench.written(i32::as_bytes(&(0..1000).collect::<Vec<i32>>()), stream);
    let out = bench.device(4);
    let arguments = Arguments { lanes: 128, ..arguments(&[(numbers, &[1]), (out, &[])], &[], &[1000]) };
    launched(bench, (&shipped("sv_sum_i32", change), "sv_sum_i32"), &arguments, [1, 128, shared_bytes], stream)?;
    Ok(bench.read(out, 4, stream))
}

fn unchanged(kernel: &str) -> String {
    kernel.to_owned()
}

/// The finding, which says what stands in all of `parts`, and the code by which the context has ended.
fn found<T: std::fmt::Debug>(bench: &Bench, ran: Result<T>, kind: &str, parts: &[&str]) -> Code {
    let text = bench.found(kind);
    for part in parts {
        assert!(text.contains(part), "no `{part}` in: {text}");
    }
    ran.expect_err("the context has ended")
}

/// A kernel that computes something else in its PTX shows that the PTX is what runs.
#[test]
fn a_launch_runs_the_ptx_of_its_module() {
    let [left, right] = sides();
    let each = |of: fn(f32, f32) -> f32| -> Vec<f32> {
        left.iter().zip(&right).map(|(&one, &other)| of(one, other)).collect()
    };
    let adds = |kernel: &str| replaced_last(kernel, "sub.rn.f32", "add.rn.f32");
    let bench = Bench::new("");
    assert!(subtracted(&bench, unchanged).unwrap() == f32::as_bytes(&each(|one, other| one - other)));
    let last_alone = subtracted(&bench, adds).unwrap();
    // The last element is one that no vector of four has.
    let last = 4 * (MANY - 1)..;
    assert_eq!(last_alone[last.clone()], f32::as_bytes(&each(|one, other| one + other))[last]);
    assert_eq!(summed(&bench, unchanged).unwrap(), 499_500i32.to_le_bytes());
}

#[test]
fn a_bound_that_is_off_by_one_is_out_of_bounds() {
    let bench = Bench::new("");
    let ran = subtracted(&bench, plant::bound_off_by_one);
    assert_eq!(found(&bench, ran, "out of bounds", &["sv_sub_f32", "line ", "0x"]), Code::ILLEGAL_ADDRESS);
}

/// Each of the 128 threads has eight bytes.
#[test]
fn an_access_past_the_shared_memory_of_the_launch_is_out_of_bounds() {
    for shared_bytes in [0, 127 * 8] {
        let bench = Bench::new("");
        let ran = summed_in(&bench, unchanged, shared_bytes);
        let shared = format!("outside of the {shared_bytes} bytes at 0x1000000 of shared memory");
        let parts = ["sv_sum_i32", &shared, "check the bytes of shared memory of the launch"];
        assert_eq!(found(&bench, ran, "out of bounds", &parts), Code::ILLEGAL_ADDRESS);
    }
}

#[test]
fn a_write_to_a_constant_is_a_broken_kernel() {
    let bench = Bench::new("");
    let writes_constant = |kernel: &str| {
        let changed = replaced_last(kernel, "[%d32], %w20", "[table], %w20");
        format!(".const .align 4 .b8 table[4];\n{changed}")
    };
    let ran = subtracted(&bench, writes_constant);
    let parts = ["writes 4 bytes", "of table", "no kernel may write constants or parameters"];
    assert_eq!(found(&bench, ran, "broken kernel", &parts), Code::LAUNCH_FAILED);
}

/// Within an allocation the driver sees no bound, but the launch declares what it accesses.
#[test]
fn an_access_past_the_operands_within_their_allocation_is_undeclared() {
    let bench = Bench::new("");
    let stream = bench.stream();
    let all = bench.device(3 * 4096);
    bench.set(all, 0, 3 * 4096, stream).unwrap();
    let ran = subtract(&bench, [all, all + 4096, all + 8192], plant::bound_off_by_one, stream);
    let parts = ["its arguments do not say that it accesses that part of memory #1 of cuda:0"];
    assert_eq!(found(&bench, ran, "undeclared access", &parts), Code::ILLEGAL_ADDRESS);
}

/// The kernel reads what its arguments say that it writes. The memory has values, so that is no uninitialised read.
#[test]
fn operands_in_the_wrong_order_are_undeclared_accesses() {
    let bench = Bench::new("");
    let stream = bench.stream();
    let [left, right] = sides().map(|side| bench.written(f32::as_bytes(&side), stream));
    let out = bench.written(&[0; 4 * MANY], stream);
    let ran = subtract(&bench, [left, right, out], plant::operands_swapped, stream);
    found(&bench, ran, "undeclared access", &["reads", "its arguments do not say that it reads what was there before"]);
    drop(bench);
    // It writes where it must only read.
    let bench = Bench::new("");
    let ran = subtracted(&bench, |kernel| replaced_last(kernel, "[%d32], %w20", "[%d30], %w20"));
    found(&bench, ran, "undeclared access", &["writes", "operand 0", "its arguments do not say that it writes there"]);
}

#[test]
fn each_missing_barrier_is_a_race_or_an_uninitialised_read() {
    let bench = Bench::new("");
    let name = "sv_sum_i32";
    let barriers = plant::barriers(&Field::of(&shipped(name, unchanged), name).unwrap().kernel);
    drop(bench);
    assert!(barriers >= 3, "{barriers} barriers: the kernel has changed, and the loop below would show little");
    // All but the last, after which the next round would begin: this launch has one.
    for barrier in 0..barriers - 1 {
        let bench = Bench::new("");
        let ran = summed(&bench, |kernel| plant::barrier_missing(kernel, barrier));
        assert_eq!(ran.map(|_| ()), Err(Code::LAUNCH_FAILED));
        let findings = bench.findings();
        let [finding] = &findings[..] else { panic!("barrier {barrier}: {findings:?}") };
        let is_named = ["race of threads: ", "uninitialised read: "].iter().any(|kind| finding.starts_with(kind));
        assert!(is_named && finding.contains("shared memory"), "barrier {barrier}: {finding}");
    }
}

#[test]
fn a_barrier_that_some_threads_miss_is_divergent() {
    let bench = Bench::new("");
    let ran = summed(&bench, plant::barrier_passed_by);
    assert_eq!(found(&bench, ran, "divergent barrier", &["sv_sum_i32"]), Code::LAUNCH_FAILED);
}

#[test]
fn reads_of_what_was_not_written_are_uninitialised() {
    let bench = Bench::new("");
    let ran = subtracted(&bench, plant::register_not_written);
    assert_eq!(found(&bench, ran, "uninitialised read", &["%w18"]), Code::LAUNCH_FAILED);
    drop(bench);
    let bench = Bench::new("");
    let ran = summed(&bench, plant::shared_memory_not_written);
    found(&bench, ran, "uninitialised read", &["shared memory"]);
}

/// The race detector, which is off here, would report the operand at the call. Copies carry along that bytes have no value.
#[test]
fn operands_without_values_are_uninitialised_also_after_a_copy() {
    for is_copied in [false, true] {
        let bench = Bench::new("order=0");
        let stream = bench.stream();
        let [left, right, out] = [bench.device(4 * MANY), bench.device(4 * MANY), bench.device(4 * MANY)];
        bench.set(left, 1, 4 * MANY, stream).unwrap();
        // The last element has no value.
        bench.set(right, 1, 4 * MANY - 4, stream).unwrap();
        let right = if is_copied {
            let copied = bench.written(&[0; 4 * MANY], stream);
            call!(copy::cuMemcpyDtoDAsync_v2(copied, right, 4 * MANY, stream)).unwrap();
            copied
        } else {
            right
        };
        let last = format!("reads {:#x} of operand 1", right + 4 * MANY as u64 - 4);
        let ran = subtract(&bench, [left, right, out], unchanged, stream);
        found(&bench, ran, "uninitialised read", &[&last]);
    }
    let bench = Bench::new("order=0;unwritten=0");
    let stream = bench.stream();
    let memory = [bench.device(4 * MANY), bench.device(4 * MANY), bench.device(4 * MANY)];
    assert!(subtract(&bench, memory, unchanged, stream).is_ok(), "no finding, as is set");
}

/// The stand-in for cuBLAS computes products by a kernel of the CPU. This one has one row and two columns, with a number between them.
#[test]
fn what_lies_between_the_columns_of_a_product_has_no_value() {
    let bench = Bench::new("order=0");
    let stream = bench.stream();
    let [a, b] = [&[2.0f32][..], &[3.0, 5.0]].map(|numbers| bench.written(f32::as_bytes(numbers), stream));
    let (c, out) = (bench.device(12), bench.device(12));
    let (mut handle, alpha, beta) = (0, 1.0f32, 0.0f32);
    call!(cublas::cublasCreate_v2(Out::to(&mut handle))).unwrap();
    call!(cublas::cublasSetStream_v2(handle, stream)).unwrap();
    let (alpha, beta) = (std::ptr::from_ref(&alpha).cast(), std::ptr::from_ref(&beta).cast());
    call!(cublas::cublasGemmStridedBatchedEx(
        handle, 0, 0, 1, 2, 1, alpha, a, 0, 1, 1, b, 0, 1, 1, beta, c, 0, 2, 3, 1, 68, 0
    ))
    .unwrap();
    let read = |distance: i64| {
        let arguments = arguments(&[(c, &[distance]), (c, &[distance]), (out, &[1])], &[2], &[]);
        launched(&bench, (&shipped("sv_sub_f32", unchanged), "sv_sub_f32"), &arguments, [1, 32, 0], stream)
    };
    assert_eq!(read(2), Ok(()));
    let ran = read(1);
    found(&bench, ran, "uninitialised read", &[&format!("reads {:#x} of operand 0", c + 4)]);
}

#[test]
fn an_access_to_freed_memory_is_a_use_after_free() {
    let bench = Bench::new("");
    let stream = bench.stream();
    let [left, right] = sides().map(|side| bench.written(f32::as_bytes(&side), stream));
    let (out, freed) = (bench.device(4 * MANY), bench.device(4 * MANY));
    bench.free(freed).unwrap();
    let reads_freed = |kernel: &str| {
        let from = format!("%w19, [%d31+{}]", freed.wrapping_sub(right));
        replaced_last(kernel, "%w19, [%d31]", &from)
    };
    let ran = subtract(&bench, [left, right, out], reads_freed, stream);
    assert_eq!(found(&bench, ran, "use after free", &["sv_sub_f32", "memory #"]), Code::ILLEGAL_ADDRESS);
}

#[test]
fn a_wrong_size_of_elements_is_out_of_bounds_or_misaligned() {
    for (bits, kind, code) in
        [(3, "out of bounds", Code::ILLEGAL_ADDRESS), (1, "misaligned access", Code::MISALIGNED_ADDRESS)]
    {
        let bench = Bench::new("");
        let ran = subtracted(&bench, |kernel| plant::element_size(kernel, bits));
        assert_eq!(found(&bench, ran, kind, &["sv_sub_f32"]), code);
    }
}

#[test]
fn output_that_a_kernel_does_not_write_is_found() {
    let bench = Bench::new("");
    let ran = subtracted(&bench, |kernel| replaced_last(kernel, "st.global.u32 [%d32], %w20;", ""));
    let parts = ["sv_sub_f32 has ended and has not written 0x", "operand 2"];
    assert_eq!(found(&bench, ran, "output not written", &parts), Code::LAUNCH_FAILED);
}

#[test]
fn a_loop_that_does_not_end_is_a_broken_kernel() {
    let bench = Bench::new("");
    let ran = subtracted(&bench, |kernel| replaced_last(kernel, "add.s64 %d2, %d2, %d1;", ""));
    found(&bench, ran, "broken kernel", &["its loop does not end"]);
}

/// The parameter is taken as the PTX declares it.
#[test]
fn parameters_that_the_ptx_declares_otherwise_are_refused() {
    let bench = Bench::new("");
    let ran = subtracted(&bench, |kernel| replaced_last(kernel, "arguments[480]", "arguments[472]"));
    found(&bench, ran, "bad kernel arguments", &["480 bytes of parameters are given and 472 are declared"]);
}

/// The refusal is that of a driver which is older than the PTX. An engine may go on without the module, so the refusal is a finding too.
#[test]
fn ptx_that_the_interpreter_does_not_know_is_refused() {
    let bench = Bench::new("");
    let unknown = shipped("sv_sub_f32", |kernel| replaced_last(kernel, "sub.rn.f32", "tanh.approx.f32"));
    assert_eq!(bench.load(&unknown), Err(Code::INVALID_PTX));
    let (line, _) = (1..).zip(unknown.lines()).find(|(_, line)| line.contains("tanh.approx.f32")).unwrap();
    let text = bench.found("unknown PTX");
    assert!(text.contains(&format!("line {line} of the PTX is not understood")), "{text}");
}

#[test]
fn what_was_reached_is_told_for_each_kernel() {
    let bench = Bench::new("");
    subtracted(&bench, unchanged).unwrap();
    let text = crate::kernels::coverage();
    // Other tests have launched kernels of this name too.
    let lines: Vec<&str> = text.lines().filter(|line| line.ends_with(" sv_sub_f32")).collect();
    for line in &lines {
        let counts: Vec<usize> = line.split(' ').take(2).map(|count| count.parse().unwrap()).collect();
        assert!(counts[0] > 30 && counts[0] < counts[1] && counts[1] < 170, "{line}");
    }
    assert!(!lines.is_empty(), "{text}");
}
