//! Fused kernels: the source that streamvm makes of the steps of a program, read line by line and run by the CPU's kernels.
//!
//! The source comes as it was given to the stand-in for NVRTC, whose PTX has it in comments. Each line of it is a load of a view, a step that names the
//! kernel which it stands for, or a store; anything else is an error. So what runs here is what the source says, and not what was meant by it.

use std::ops::Range;

use streamvm_cpu::{CpuConfig, CpuDevice};
use streamvm_cuda::{FUSED_NAME, FusedArguments, KernelName};
use streamvm_ep::{Access, DType, Device, DeviceKind, KernelCall, Layout, Op, Operand, Params, Shape, Stream};

use super::decode::{Decoding, axes, strides};

/// What the comments with the source begin with.
const COMMENT: &str = "// fused: ";

/// The comment of PTX whose kernel computes nothing.
const EMPTY: &str = "// The kernel is empty: the driver runs the lines of the source.\n";

/// A fused kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FusedCode {
    /// Whether the PTX computes what the source says.
    pub(crate) is_compiled: bool,
    views: usize,
    /// The view and the size of its elements in bytes.
    loads: Vec<(usize, usize)>,
    steps: Vec<Step>,
    /// The view, the step whose result is stored, and the size of its elements.
    stores: Vec<(usize, usize, usize)>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    bytes: usize,
    work: Work,
    inputs: Vec<Input>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Work {
    Kernel(KernelName),
    Constant(u64),
    Copy,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Input {
    View(usize),
    Step(usize),
}

/// The number of bytes of a type of the source.
fn bytes_of(name: &str) -> Option<usize> {
    name.parse::<DType>().ok().filter(|dtype| *dtype != DType::Bool).map(DType::size)
}

/// The text between `start` and `end`, if the line is these around it.
fn between<'l>(line: &'l str, start: &str, end: &str) -> Option<&'l str> {
    line.strip_prefix(start)?.strip_suffix(end)
}

fn input(text: &str) -> Option<Input> {
    match between(text, "v", ".of[i]") {
        Some(view) => view.parse().ok().map(Input::View),
        None => text.strip_prefix('r')?.parse().ok().map(Input::Step),
    }
}

impl FusedCode {
    /// Reads a source.
    ///
    /// # Errors
    ///
    /// The line that is none of a fused kernel, with its number.
    pub(crate) fn read(source: &str) -> Result<FusedCode, String> {
        let mut code =
            FusedCode { is_compiled: false, views: 0, loads: Vec::new(), steps: Vec::new(), stores: Vec::new() };
        let mut written: Vec<(usize, usize)> = Vec::new();
        let mut stored: Vec<(usize, usize)> = Vec::new();
        for (number, line) in source.lines().enumerate() {
            let line = line.trim();
            let known = code.line(line, &mut written, &mut stored);
            if known.is_none() {
                return Err(format!("fused.cu({}): `{line}` is no line of a fused kernel", number + 1));
            }
        }
        for (view, bytes) in written {
            let step = stored.iter().find(|(of, _)| *of == view).map(|(_, step)| *step);
            let step = step.ok_or_else(|| format!("view {view} is declared and not stored"))?;
            code.stores.push((view, step, bytes));
        }
        let used = code.loads.iter().map(|(view, _)| *view).chain(code.stores.iter().map(|(view, ..)| *view));
        if code.views == 0
            || used.clone().any(|view| view >= code.views)
            || !(0..code.views).all(|it| used.clone().any(|view| view == it))
        {
            return Err(format!("{} views are not those that the steps use", code.views));
        }
        Ok(code)
    }

    /// Reads one line; `None` if it is none of a fused kernel.
    fn line(&mut self, line: &str, written: &mut Vec<(usize, usize)>, stored: &mut Vec<(usize, usize)>) -> Option<()> {
        const FRAME: [&str; 8] = [
            "",
            "#include \"fused.cuh\"",
            "struct Steps {",
            "template <class Each> static __device__ __forceinline__ void run(const Each &each) {",
            "#pragma unroll",
            "for (int i = 0; i < Each::COUNT; ++i) {",
            "}",
            "};",
        ];
        if FRAME.contains(&line) {
            return Some(());
        }
        if let Some(rest) = between(line, "auto v", ");") {
            let (view, rest) = rest.split_once(" = each.template load<")?;
            let (name, same) = rest.split_once(">(")?;
            self.loads.push((view.parse().ok().filter(|_| same == view)?, bytes_of(name)?));
        } else if let Some(rest) = between(line, "typename Each::template Values<", ";") {
            let (name, view) = rest.split_once("> w")?;
            written.push((view.parse().ok()?, bytes_of(name)?));
        } else if let Some(rest) = between(line, "each.template store<", ");") {
            let (name, rest) = rest.split_once(">(")?;
            let (view, same) = rest.split_once(", w")?;
            let declared = (view.parse().ok().filter(|_| same == view)?, bytes_of(name)?);
            written.contains(&declared).then_some(())?;
        } else if let Some(rest) = between(line, "FUSED_KERNEL(", ")") {
            let (views, four) = rest.split_once(", ")?;
            self.views = views.parse().ok().filter(|_| ["true", "false"].contains(&four))?;
        } else if let Some((view, step)) = between(line, "w", ";").and_then(|rest| rest.split_once(".of[i] = r")) {
            let (view, step) = (view.parse().ok()?, step.parse().ok().filter(|step| *step < self.steps.len())?);
            stored.push((view, step));
        } else {
            let step = self.step(line)?;
            self.steps.push(step);
        }
        Some(())
    }

    fn step(&self, line: &str) -> Option<Step> {
        let (declared, value) = line.strip_suffix(';')?.split_once(" = ")?;
        let (name, register) = declared.split_once(" r")?;
        register.parse().ok().filter(|number: &usize| *number == self.steps.len())?;
        let bytes = bytes_of(name)?;
        let (work, inputs) = if let Some(bits) = between(value, "constant<", ")") {
            let (same, bits) = bits.split_once(">(0x")?;
            (Work::Constant(u64::from_str_radix(bits, 16).ok().filter(|_| same == name)?), vec![])
        } else if let Some((function, inputs)) = value.strip_suffix(')').and_then(|value| value.split_once('(')) {
            let kernel: KernelName = format!("sv_{function}").parse().ok()?;
            (Work::Kernel(kernel), inputs.split(", ").map(input).collect::<Option<_>>()?)
        } else {
            (Work::Copy, vec![input(value)?])
        };
        let known = |input: &Input| match *input {
            Input::View(view) => self.loads.iter().any(|(loaded, _)| *loaded == view),
            Input::Step(step) => step < self.steps.len(),
        };
        inputs.iter().all(known).then_some(Step { bytes, work, inputs })
    }

    /// The size of the parameter of the kernel.
    pub(crate) fn parameter_bytes(&self) -> usize {
        let views = std::mem::offset_of!(FusedArguments, views);
        views + self.views * size_of::<streamvm_cuda::abi::View>()
    }

    /// PTX that keeps the source: that of a compiler, or, without one, that of an empty kernel of this name.
    ///
    /// # Errors
    ///
    /// As [`FusedCode::read`].
    pub(crate) fn ptx(source: &str, architecture: i32, compiled: Option<&str>) -> Result<String, String> {
        let code = FusedCode::read(source)?;
        let comments: String = source.lines().map(|line| format!("{COMMENT}{line}\n")).collect();
        if let Some(compiled) = compiled {
            return Ok(format!("{comments}{compiled}"));
        }
        Ok(format!(
            "{EMPTY}.version 8.0\n.target sm_{architecture}\n.address_size 64\n{comments}.visible .entry {FUSED_NAME}(\n\
             \t.param .align 8 .b8 {FUSED_NAME}_param_0[{}]\n)\n{{\n\tret;\n}}\n",
            code.parameter_bytes()
        ))
    }

    /// The kernel whose source is in the comments of PTX.
    pub(crate) fn of_ptx(text: &str) -> Option<FusedCode> {
        let source: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(COMMENT)).collect();
        let code = if source.is_empty() { None } else { FusedCode::read(&source.join("\n")).ok() };
        code.map(|code| FusedCode { is_compiled: !text.contains(EMPTY), ..code })
    }

    /// The views of a launch, with device addresses.
    ///
    /// # Errors
    ///
    /// The first inconsistency of the parameter, as text.
    pub(crate) fn decode(&self, arguments: &FusedArguments) -> Result<Vec<Decoding>, String> {
        let dims = axes("shape", &arguments.shape, arguments.rank)?;
        if dims.iter().product::<usize>() as u64 != arguments.elements {
            return Err(format!("elements is {}, but the axes are {dims:?}", arguments.elements));
        }
        let shape = Shape::new(&dims).map_err(|error| error.to_string())?;
        let view = |number: usize| {
            let read = self.loads.iter().find(|(view, _)| *view == number).map(|(_, bytes)| *bytes);
            let written = self.stores.iter().find(|(view, ..)| *view == number).map(|(.., bytes)| *bytes);
            let (access, bytes) = match (read, written) {
                (Some(read), Some(written)) if read == written => (Access::ReadWrite, read),
                (Some(bytes), None) => (Access::Read, bytes),
                (None, Some(bytes)) => (Access::Write, bytes),
                _ => return Err(format!("view {number} is read and written in elements of other sizes")),
            };
            let view = &arguments.views[number];
            let layout = strides(view, dims.len())
                .and_then(|strides| Layout::with_strides(shape, &strides, 0).map_err(|error| error.to_string()))
                .map_err(|error| format!("view {number}: {error}"))?;
            let dtype = super::dtype_of(bytes).ok_or("no element has that many bytes")?;
            if access.writes() && layout.overlaps_itself() {
                return Err(format!("view {number} is written and reaches elements twice"));
            }
            Ok(Decoding { base: view.base as usize, dtype, layout, access })
        };
        (0..self.views).map(view).collect()
    }

    /// Checks that no view that is written shares bytes with another one: threads would race.
    ///
    /// # Errors
    ///
    /// The two views, as text.
    pub(crate) fn check_overlaps(views: &[Decoding]) -> Result<(), String> {
        let overlaps = |one: &Range<usize>, other: &Range<usize>| one.start < other.end && other.start < one.end;
        for (number, one) in views.iter().enumerate().filter(|(_, view)| view.access.writes()) {
            for (other_number, other) in views.iter().enumerate().filter(|(other, _)| *other != number) {
                let dense = one.layout.is_contiguous() || other.layout.is_contiguous();
                if dense && overlaps(&one.bytes(), &other.bytes()) {
                    return Err(format!("view {number} is written and shares bytes with view {other_number}"));
                }
            }
        }
        Ok(())
    }

    /// Runs the kernel over its views.
    ///
    /// # Errors
    ///
    /// The error of a CPU kernel, as text.
    pub(crate) fn run(&self, views: &[Operand]) -> Result<(), String> {
        let Some(shape) = views.first().map(|view| *view.layout().shape()) else { return Ok(()) };
        let mut stream = CpuDevice::new(0, CpuConfig::default()).create_stream().map_err(|error| error.to_string())?;
        let mut loaded = vec![Vec::new(); self.views];
        for &(view, bytes) in &self.loads {
            loaded[view] = vec![0u64; (shape.elements() * bytes).div_ceil(8)];
            let mut target = whole(&mut loaded[view], bytes, shape, Access::Write);
            stream.copy(&part(&views[view], Access::Read), &mut target).map_err(|error| error.to_string())?;
        }
        let mut results: Vec<Vec<u64>> = Vec::new();
        for step in &self.steps {
            let mut result = vec![0u64; (shape.elements() * step.bytes).div_ceil(8)];
            let input = |input: &Input| match *input {
                Input::View(view) => loaded[view].clone(),
                Input::Step(step) => results[step].clone(),
            };
            let mut inputs: Vec<Vec<u64>> = step.inputs.iter().map(input).collect();
            match step.work {
                Work::Copy => result.clone_from(&inputs[0]),
                Work::Constant(bits) => {
                    let bytes = &bits.to_le_bytes()[..step.bytes];
                    let words = result.iter_mut();
                    words.for_each(|word| {
                        *word = u64::from_le_bytes(std::array::from_fn(|byte| bytes[byte % bytes.len()]))
                    });
                }
                Work::Kernel(name) => launch(&mut *stream, name, &mut inputs, &mut result, shape)?,
            }
            results.push(result);
        }
        for &(view, step, bytes) in &self.stores {
            let source = whole(&mut results[step], bytes, shape, Access::Read);
            stream.copy(&source, &mut part(&views[view], Access::Write)).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// Runs the CPU kernel of the same name.
fn launch(
    stream: &mut dyn Stream,
    name: KernelName,
    inputs: &mut [Vec<u64>],
    result: &mut Vec<u64>,
    shape: Shape,
) -> Result<(), String> {
    let (op, dtype, to) = match name {
        KernelName::Cast(from, to) => (Op::Cast, from, to),
        KernelName::Op(op, dtype) => (op, dtype, op.elementwise_output(dtype)),
        other => return Err(format!("{other} is no step of a fused kernel")),
    };
    if inputs.len() != op.arity() {
        return Err(format!("{name} of {} inputs", inputs.len()));
    }
    let kernel = streamvm_kernels::builtin().get(op, DeviceKind::Cpu, dtype).map_err(|error| error.to_string())?;
    let params = Params { to: (op == Op::Cast).then_some(to), ..Params::default() };
    let typed = |memory: &mut Vec<u64>, dtype: DType, access: Access| {
        // SAFETY: the memory has the bytes of the elements, and is neither used nor freed before the call is over.
        unsafe { Operand::new(memory.as_mut_ptr().cast(), dtype, Layout::contiguous(shape), access) }
    };
    let mut operands: Vec<Operand> = inputs
        .iter_mut()
        .enumerate()
        .map(|(input, memory)| {
            let own = if op == Op::Where && input == 0 { DType::Bool } else { dtype };
            typed(memory, own, Access::Read)
        })
        .collect();
    operands.push(typed(result, to, Access::Write));
    let (operands, inputs) = (&mut operands, op.arity());
    stream.launch(&mut KernelCall { kernel, operands, inputs, params: &params }).map_err(|error| error.to_string())
}

/// Elements of so many bytes that fill a buffer.
fn whole(memory: &mut [u64], bytes: usize, shape: Shape, access: Access) -> Operand<'static> {
    let dtype = super::dtype_of(bytes).unwrap_or(DType::U8);
    // SAFETY: the memory has these bytes, and is used by one copy only.
    unsafe { Operand::new(memory.as_mut_ptr().cast(), dtype, Layout::contiguous(shape), access) }
}

/// The same view with another access.
fn part(view: &Operand, access: Access) -> Operand<'static> {
    let base = view.ptr().wrapping_sub(view.layout().offset() * view.dtype().size());
    // SAFETY: the creator of the view promises that its bytes may be accessed in both ways that the kernel declares.
    unsafe { Operand::new(base, view.dtype(), *view.layout(), access) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "#include \"fused.cuh\"\n\nstruct Steps {\nauto v0 = each.template load<f32>(0);\n\
        typename Each::template Values<u8> w1;\nf32 r0 = constant<f32>(0x40000000);\nf32 r1 = mul_f32(v0.of[i], r0);\n\
        u8 r2 = gt_f32(r1, v0.of[i]);\nw1.of[i] = r2;\neach.template store<u8>(1, w1);\n};\nFUSED_KERNEL(2, true)\n";

    #[test]
    fn a_source_runs_line_by_line() {
        let code = FusedCode::read(SOURCE).unwrap();
        assert_eq!((code.views, code.steps.len(), code.parameter_bytes()), (2, 3, 80 + 2 * 72));
        let ptx = FusedCode::ptx(SOURCE, 80, None).unwrap();
        assert_eq!(FusedCode::of_ptx(&ptx), Some(code.clone()));
        let ptx = FusedCode::ptx(SOURCE, 80, Some(crate::EMPTY_PTX)).unwrap();
        assert_eq!(FusedCode::of_ptx(&ptx), Some(FusedCode { is_compiled: true, ..code.clone() }));
        let (mut x, mut y) = ([1.0f32, -1.0, 3.0], [7u8; 3]);
        let layout = Layout::contiguous(Shape::new(&[3]).unwrap());
        // SAFETY: the elements outlive the operands, which alone use them.
        let x = unsafe { Operand::new(x.as_mut_ptr().cast(), DType::F32, layout, Access::Read) };
        // SAFETY: as above.
        let out = unsafe { Operand::new(y.as_mut_ptr(), super::super::dtype_of(1).unwrap(), layout, Access::Write) };
        code.run(&[x, out]).unwrap();
        assert_eq!(y, [1, 0, 1]);
    }

    #[test]
    fn other_lines_are_refused() {
        for (line, other) in [
            ("mul_f32(v0.of[i], r0)", "mul_f32(v0.of[i], r7)"),
            ("mul_f32", "muladd_f32"),
            ("mul_f32(v0.of[i], r0)", "v0.of[i] * r0"),
            ("load<f32>(0)", "load<f32>(1)"),
            ("FUSED_KERNEL(2, true)", "FUSED_KERNEL(3, true)"),
            ("w1.of[i] = r2;\n", ""),
            ("u8 r2", "u8 r3"),
        ] {
            assert!(SOURCE.contains(line) && FusedCode::read(&SOURCE.replace(line, other)).is_err(), "{other}");
        }
    }
}
