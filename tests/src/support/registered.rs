//! Ops that suites register, so that what is drawn is not made of built-in ops alone.

use std::sync::LazyLock;

use streamvm::ep::cuda::{CudaElementCode, CudaElementwise, Ptx};
use streamvm::ep::{ElementWork, ElementwiseOp, TileElement};
use streamvm::{DType, Op};

/// Elementwise ops of one, two and three inputs, for f32, f64 and i32, with code for CPUs, simulated devices and CUDA.
pub fn registered_ops() -> [Op; 3] {
    *OPS
}

static OPS: LazyLock<[Op; 3]> = LazyLock::new(|| {
    let softsign = ElementwiseOp::new("drawn_softsign", ["x"])
        .work(ElementWork::Long)
        .kernel(|[x]: [&[f32]; 1], y| each(y, |at| x[at] / (1.0 + x[at].abs())))
        .kernel(|[x]: [&[f64]; 1], y| each(y, |at| x[at] / (1.0 + x[at].abs())))
        .kernel(|[x]: [&[i32]; 1], y| each(y, |at| x[at].wrapping_add(7)))
        .cuda(DType::F32, code("drawn_softsign_f32", "f32", 1, "%f", FLOAT_SOFTSIGN))
        .cuda(DType::F64, code("drawn_softsign_f64", "f64", 1, "%fd", DOUBLE_SOFTSIGN))
        .cuda(DType::I32, code("drawn_softsign_i32", "u32", 1, "%r", "add.s32 %r9, %r0, 7;"));
    let scaled = ElementwiseOp::new("drawn_scaled", ["a", "b"])
        .kernel(|[a, b]: [&[f32]; 2], y| each(y, |at| a[at] * b[at] + b[at]))
        .kernel(|[a, b]: [&[f64]; 2], y| each(y, |at| a[at] * b[at] + b[at]))
        .kernel(|[a, b]: [&[i32]; 2], y| each(y, |at| a[at].wrapping_mul(b[at]).wrapping_add(b[at])))
        .cuda(
            DType::F32,
            code("drawn_scaled_f32", "f32", 2, "%f", "mul.rn.f32 %f8, %f0, %f1; add.rn.f32 %f9, %f8, %f1;"),
        )
        .cuda(
            DType::F64,
            code("drawn_scaled_f64", "f64", 2, "%fd", "mul.rn.f64 %fd8, %fd0, %fd1; add.rn.f64 %fd9, %fd8, %fd1;"),
        )
        .cuda(DType::I32, code("drawn_scaled_i32", "u32", 2, "%r", "mul.lo.s32 %r8, %r0, %r1; add.s32 %r9, %r8, %r1;"));
    // Returns in two places.
    let nearer = ElementwiseOp::new("drawn_nearer", ["a", "b", "c"])
        .kernel(|[a, b, c]: [&[f32]; 3], y| each(y, |at| if a[at] < b[at] { b[at] } else { c[at] }))
        .kernel(|[a, b, c]: [&[f64]; 3], y| each(y, |at| if a[at] < b[at] { b[at] } else { c[at] }))
        .kernel(|[a, b, c]: [&[i32]; 3], y| each(y, |at| if a[at] < b[at] { b[at] } else { c[at] }))
        .cuda(DType::F32, code("drawn_nearer_f32", "f32", 3, "%f", &chosen("f32", "%f")))
        .cuda(DType::F64, code("drawn_nearer_f64", "f64", 3, "%fd", &chosen("f64", "%fd")))
        .cuda(DType::I32, code("drawn_nearer_i32", "u32", 3, "%r", &chosen("s32", "%r")));
    [softsign.register(), scaled.register(), nearer.register()].map(|op| op.expect("a new op"))
});

const FLOAT_SOFTSIGN: &str = "abs.f32 %f7, %f0; add.rn.f32 %f8, %f7, 0f3F800000; div.rn.f32 %f9, %f0, %f8;";
const DOUBLE_SOFTSIGN: &str =
    "abs.f64 %fd7, %fd0; add.rn.f64 %fd8, %fd7, 0d3FF0000000000000; div.rn.f64 %fd9, %fd0, %fd8;";

fn chosen(of: &str, r: &str) -> String {
    let bits = &of[1..];
    format!(
        "setp.lt.{of} %p1, {r}0, {r}1; mov.b{bits} {r}9, {r}1; @%p1 bra $L__BB0_2; mov.b{bits} {r}9, {r}2; $L__BB0_2:"
    )
}

fn each<T: TileElement>(results: &mut [T], element: impl Fn(usize) -> T) {
    results.iter_mut().enumerate().for_each(|(at, result)| *result = element(at));
}

/// A function of PTX, as NVRTC writes it: `inputs` parameters are in the registers 0, 1, 2 of this name, and the result is in 9.
fn code(name: &str, of: &str, inputs: usize, register: &str, body: &str) -> CudaElementCode {
    let bits = &of[1..];
    let parameters: Vec<String> = (0..inputs).map(|it| format!("\t.param .b{bits} {name}_param_{it}")).collect();
    let loads: String =
        (0..inputs).map(|it| format!("\tld.param.{of} \t{register}{it}, [{name}_param_{it}];\n")).collect();
    let lines: String = body.split("; ").map(|line| format!("{}\n", line_of(line))).collect();
    let text = format!(
        "//\n.version 8.0\n.target sm_70\n.address_size 64\n\n\t// .globl\t{name}\n.visible .func  (.param .b{bits} func_retval0) {name}(\n{}\n)\n{{\n\
         \t.reg .pred \t%p<2>;\n\t.reg .{of} \t{register}<10>;\n\n{loads}{lines}\tst.param.{of} \t[func_retval0+0], {register}9;\n\tret;\n\n}}\n\n",
        parameters.join(",\n")
    );
    let ptx = Ptx::new(&text).expect("a text");
    // SAFETY: it computes its result from its parameters alone.
    unsafe { CudaElementCode::new(&ptx, name) }.expect("code that can be pasted")
}

fn line_of(line: &str) -> String {
    if line.ends_with(':') { line.to_owned() } else { format!("\t{};", line.trim_end_matches(';')) }
}
