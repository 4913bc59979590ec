//! The CUDA C++ of a fused kernel.
//!
//! It declares the elements of each view, reads those that are read, computes the steps in their order, one line each, and writes those that are written.
//! A function in it is named as the shipped kernel of the same work, without the prefix. Nothing but the steps decides about the text.

use std::fmt::{self, Write};

use streamvm_ep::backend::{FusedInput, FusedStep, FusedWork};
use streamvm_ep::{DType, ElementWork, Error, FusedGroup, Op};

use crate::kernel_name::KernelName;
use crate::plan::bits;

/// The name of the kernel in the source.
pub const FUSED_NAME: &str = "sv_fused";

/// The headers that the source includes, with their names.
pub fn fused_headers() -> [(&'static str, &'static str); 9] {
    [
        ("abi.cuh", include_str!("../kernels/abi.cuh")),
        ("number.cuh", include_str!("../kernels/number.cuh")),
        ("elementwise.cuh", include_str!("../kernels/elementwise.cuh")),
        ("failure.cuh", include_str!("../kernels/failure.cuh")),
        ("unary.cuh", include_str!("../kernels/unary.cuh")),
        ("binary.cuh", include_str!("../kernels/binary.cuh")),
        ("compare.cuh", include_str!("../kernels/compare.cuh")),
        ("cast.cuh", include_str!("../kernels/cast.cuh")),
        ("fused.cuh", include_str!("../kernels/fused.cuh")),
    ]
}

/// The source of the kernel that computes all steps of the group.
///
/// # Errors
///
/// A number of a fill does not fit its dtype.
pub fn fused_source(group: &FusedGroup) -> Result<String, Error> {
    let constant = |step: &FusedStep| match step.work {
        FusedWork::Fill(value) => bits(value, step.dtype),
        _ => Ok(0),
    };
    let constants = group.steps.iter().map(constant).collect::<Result<Vec<u64>, Error>>()?;
    let mut text = String::new();
    write(group, &constants, &mut text).unwrap_or_else(|_| unreachable!("a string takes what is written to it"));
    Ok(text)
}

fn write(group: &FusedGroup, constants: &[u64], out: &mut impl Write) -> fmt::Result {
    writeln!(out, "#include \"fused.cuh\"\n")?;
    writeln!(out, "struct Steps {{")?;
    writeln!(out, "    template <class Each> static __device__ __forceinline__ void run(const Each &each) {{")?;
    for (number, view) in group.views.iter().enumerate() {
        if let Some(dtype) = view.read {
            writeln!(out, "        auto v{number} = each.template load<{}>({number});", stored_as(dtype))?;
        }
        if let Some((dtype, _)) = view.written {
            writeln!(out, "        typename Each::template Values<{}> w{number};", stored_as(dtype))?;
        }
    }
    writeln!(out, "#pragma unroll")?;
    writeln!(out, "        for (int i = 0; i < Each::COUNT; ++i) {{")?;
    for (number, (step, constant)) in group.steps.iter().zip(constants).enumerate() {
        write!(out, "            {} r{number} = ", stored_as(step.dtype))?;
        write_step(step, *constant, out)?;
        writeln!(out, ";")?;
    }
    for (number, view) in group.views.iter().enumerate() {
        if let Some((_, step)) = view.written {
            writeln!(out, "            w{number}.of[i] = r{step};")?;
        }
    }
    writeln!(out, "        }}")?;
    for (number, view) in group.views.iter().enumerate() {
        if let Some((dtype, _)) = view.written {
            writeln!(out, "        each.template store<{}>({number}, w{number});", stored_as(dtype))?;
        }
    }
    writeln!(out, "    }}\n}};\n")?;
    writeln!(out, "FUSED_KERNEL({}, {})", group.views.len(), !group.steps.iter().any(is_long))
}

fn write_step(step: &FusedStep, constant: u64, out: &mut impl Write) -> fmt::Result {
    let name = match step.work {
        FusedWork::Fill(_) => return write!(out, "constant<{}>({constant:#x})", stored_as(step.dtype)),
        FusedWork::Copy => return write_inputs(&step.inputs, out),
        FusedWork::Call(Op::Cast, from) => KernelName::Cast(from, step.dtype),
        FusedWork::Call(op, dtype) => KernelName::Op(op, dtype),
    };
    let name = name.to_string();
    write!(out, "{}(", name.strip_prefix("sv_").unwrap_or(&name))?;
    write_inputs(&step.inputs, out)?;
    write!(out, ")")
}

fn write_inputs(inputs: &[FusedInput], out: &mut impl Write) -> fmt::Result {
    for (place, input) in inputs.iter().enumerate() {
        if place > 0 {
            write!(out, ", ")?;
        }
        match input {
            FusedInput::View(view) => write!(out, "v{view}.of[i]")?,
            FusedInput::Step(step) => write!(out, "r{step}")?,
        }
    }
    Ok(())
}

/// The type of an element in CUDA C. A bool is a byte, as in the shipped kernels that only move or compare it.
fn stored_as(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "u8",
        other => other.name(),
    }
}

/// Whether the code of the step is long. Then the kernel has it once, and processes one element at a time: `FOUR` in `unary.cuh` and `binary.cuh`.
fn is_long(step: &FusedStep) -> bool {
    match step.work {
        FusedWork::Call(op, dtype) => match op.element_work() {
            ElementWork::Light => false,
            ElementWork::Long => dtype == DType::F64,
            ElementWork::Call => true,
        },
        _ => false,
    }
}

#[cfg(test)]
#[path = "source_tests.rs"]
pub(super) mod tests;
