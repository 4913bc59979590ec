//! Ops that suites register, so that what is drawn is not made of built-in ops alone.

use std::sync::LazyLock;

use streamvm::ep::cuda::{
    CudaArgument, CudaElementCode, CudaElementwise, CudaGrid, CudaLaunch, CudaOp, CudaOpCall, CudaTensorCode, Ptx,
};
use streamvm::ep::{ElementWork, ElementwiseOp, Layout, TensorOp, TileElement};
use streamvm::{DType, Error, Op, Params, Scalar, Tensor};

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

/// The elements of `x`, an i32 tensor without gaps, each moved by so many places, and around.
///
/// # Errors
///
/// Those of the call.
pub fn turned(x: &Tensor, by: i64) -> Result<Tensor, Error> {
    x.op(turned_op(), &[], Params::default().with_number(1, by))
}

/// The op of [`turned`].
pub(crate) fn turned_op() -> Op {
    *TURNED
}

/// An op over i32 matrices, in place: the first input becomes twice itself plus the rows of the second, each from its end to its begin.
pub fn changed() -> Op {
    *CHANGED
}

static TURNED: LazyLock<Op> = LazyLock::new(|| {
    let op = TensorOp::new("drawn_turned", ["x"], |inputs, _| Ok((inputs[0].0, *inputs[0].1))).numbers(["by"]);
    let op = op.kernel(|context, call| {
        let by = whole(call.number(0))?;
        let (x, y) = (context.reads.get::<i32>(0)?, context.writes.take::<i32>(0)?);
        y.copy_from_slice(x);
        y.rotate_left(by.checked_rem_euclid(x.len() as i64).unwrap_or(0) as usize);
        Ok(())
    });
    let ptx = Ptx::new(TURNED_PTX).expect("a text");
    let plan = |call: &CudaOpCall<'_>| {
        all_i32(call, 1)?;
        let elements = call.output.layout().elements();
        let Some(by) = whole(call.number(0))?.checked_rem_euclid(elements as i64) else { return Ok(None) };
        let bytes = CudaArgument::U64(4 * elements as u64);
        let [x, y] = [&call.inputs[0], call.output].map(CudaArgument::from);
        let arguments = vec![x, bytes, y, bytes, CudaArgument::U64(elements as u64), CudaArgument::U64(by as u64)];
        Ok(Some(CudaLaunch { grid: grid(elements), arguments }))
    };
    // SAFETY: each thread reads an element of `x` and writes the one of `y` with its own number, if there is one. The arguments are those of the kernel; `all_i32` has looked at
    // the operands.
    let code = unsafe { CudaTensorCode::new(&ptx, "turned", plan) }.expect("a name");
    op.cuda(&[DType::I32], code).register().expect("a new op")
});

static CHANGED: LazyLock<Op> = LazyLock::new(|| {
    let op = TensorOp::new("drawn_changed", ["x", "y"], |inputs, _| match inputs {
        [(DType::I32, x), (DType::I32, y)] if x.rank() == 2 && x == y => Ok((DType::I32, **x)),
        _ => Err("it takes two i32 matrices of one shape".into()),
    });
    let op = op.in_place().kernel(|context, _| {
        let columns = context.reads.layout(0)?.shape().dims()[1].max(1);
        let (y, x) = (context.reads.get::<i32>(0)?, context.writes.take::<i32>(0)?);
        for (x, y) in x.chunks_mut(columns).zip(y.chunks(columns)) {
            x.iter_mut().zip(y.iter().rev()).for_each(|(x, y)| *x = x.wrapping_mul(2).wrapping_add(*y));
        }
        Ok(())
    });
    let ptx = Ptx::new(CHANGED_PTX).expect("a text");
    let plan = |call: &CudaOpCall<'_>| {
        all_i32(call, 2)?;
        let (x, y) = (call.output.layout(), call.inputs[1].layout());
        if x.shape().rank() != 2 {
            return Err("it takes matrices".into());
        }
        let number = |number: usize| CudaArgument::U64(number as u64);
        // From the first to the last element of a row.
        let bytes = |layout: &Layout| number(4 * (1 + (layout.shape().dims()[1] - 1) * layout.strides()[1]));
        let mut arguments =
            vec![CudaArgument::from(&call.inputs[1]), bytes(y), CudaArgument::from(call.output), bytes(x)];
        let rows = x.shape().dims()[0];
        arguments.extend([x.elements(), rows, rows, x.shape().dims()[1]].map(number));
        arguments.extend(x.strides().iter().chain(y.strides()).map(|stride| number(4 * stride)));
        Ok(Some(CudaLaunch { grid: grid(x.elements()), arguments }))
    };
    // SAFETY: each thread changes the element of `x` with its own number, if there is one, and reads one of `y`. The arguments are those of the kernel.
    let code = unsafe { CudaTensorCode::new(&ptx, "changed", plan) }.expect("a name").taking_gaps();
    op.cuda(&[DType::I32], code).register().expect("a new op")
});

/// Looks at what the kernels rely on: so many inputs of i32, of the shape of the output.
fn all_i32(call: &CudaOpCall<'_>, inputs: usize) -> Result<(), &'static str> {
    let shape = call.output.layout().shape();
    let mut operands = call.inputs.iter().chain([call.output]);
    let fit = operands.all(|operand| operand.dtype() == DType::I32 && operand.layout().shape() == shape);
    if call.inputs.len() == inputs && fit { Ok(()) } else { Err("it takes other operands") }
}

fn whole(number: Option<Scalar>) -> Result<i64, &'static str> {
    if let Some(Scalar::I64(number)) = number { Ok(number) } else { Err("`by` must be an integer") }
}

fn grid(elements: usize) -> CudaGrid {
    CudaGrid { blocks: [elements.div_ceil(64) as u32, 1, 1], threads: [64, 1, 1], shared_bytes: 0 }
}

/// `write_y[i] = read_x[(i + by) % elements]`. The stand-in driver knows from the names of the parameters what the kernel accesses.
const TURNED_PTX: &str = "
.version 8.0
.target sm_70
.address_size 64
.visible .entry turned(
	.param .u64 read_x,
	.param .u64 bytes_x,
	.param .u64 write_y,
	.param .u64 bytes_y,
	.param .u64 elements,
	.param .u64 by
)
{
	.reg .pred %p<2>;
	.reg .b32 %r<5>;
	.reg .b64 %rd<12>;
	mov.u32 %r1, %ctaid.x;
	mov.u32 %r2, %ntid.x;
	mov.u32 %r3, %tid.x;
	cvt.u64.u32 %rd1, %r3;
	mad.wide.u32 %rd2, %r1, %r2, %rd1;
	ld.param.u64 %rd3, [elements];
	setp.ge.u64 %p1, %rd2, %rd3;
	@%p1 bra $L__BB0_2;
	ld.param.u64 %rd4, [by];
	add.s64 %rd5, %rd2, %rd4;
	rem.u64 %rd6, %rd5, %rd3;
	ld.param.u64 %rd7, [read_x];
	mul.lo.s64 %rd8, %rd6, 4;
	add.s64 %rd9, %rd7, %rd8;
	ld.global.u32 %r4, [%rd9];
	ld.param.u64 %rd10, [write_y];
	mul.lo.s64 %rd11, %rd2, 4;
	add.s64 %rd11, %rd10, %rd11;
	st.global.u32 [%rd11], %r4;
$L__BB0_2:
	ret;
}
";

/// `write_x[r][c] = 2 * write_x[r][c] + read_y[r][columns - 1 - c]`, with strides in bytes.
const CHANGED_PTX: &str = "
.version 8.0
.target sm_70
.address_size 64
.visible .entry changed(
	.param .u64 read_y,
	.param .u64 bytes_y,
	.param .u64 write_x,
	.param .u64 bytes_x,
	.param .u64 elements,
	.param .u64 times_x,
	.param .u64 times_y,
	.param .u64 columns,
	.param .u64 step_x,
	.param .u64 x_column,
	.param .u64 step_y,
	.param .u64 y_column
)
{
	.reg .pred %p<2>;
	.reg .b32 %r<8>;
	.reg .b64 %rd<24>;
	mov.u32 %r1, %ctaid.x;
	mov.u32 %r2, %ntid.x;
	mov.u32 %r3, %tid.x;
	cvt.u64.u32 %rd1, %r3;
	mad.wide.u32 %rd2, %r1, %r2, %rd1;
	ld.param.u64 %rd3, [elements];
	setp.ge.u64 %p1, %rd2, %rd3;
	@%p1 bra $L__BB0_2;
	ld.param.u64 %rd4, [columns];
	div.u64 %rd5, %rd2, %rd4;
	rem.u64 %rd6, %rd2, %rd4;
	ld.param.u64 %rd7, [step_x];
	mul.lo.s64 %rd8, %rd5, %rd7;
	ld.param.u64 %rd9, [x_column];
	mul.lo.s64 %rd10, %rd6, %rd9;
	ld.param.u64 %rd11, [write_x];
	add.s64 %rd12, %rd11, %rd8;
	add.s64 %rd12, %rd12, %rd10;
	sub.s64 %rd13, %rd4, %rd6;
	sub.s64 %rd13, %rd13, 1;
	ld.param.u64 %rd14, [step_y];
	mul.lo.s64 %rd15, %rd5, %rd14;
	ld.param.u64 %rd16, [y_column];
	mul.lo.s64 %rd17, %rd13, %rd16;
	ld.param.u64 %rd18, [read_y];
	add.s64 %rd19, %rd18, %rd15;
	add.s64 %rd19, %rd19, %rd17;
	ld.global.u32 %r4, [%rd19];
	ld.global.u32 %r5, [%rd12];
	add.s32 %r6, %r5, %r5;
	add.s32 %r7, %r6, %r4;
	st.global.u32 [%rd12], %r7;
$L__BB0_2:
	ret;
}
";
