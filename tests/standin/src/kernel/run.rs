//! Runs a kernel over the bytes of its operands.

use std::sync::OnceLock;

use streamvm_cpu::CpuConfig;
use streamvm_cpu::CpuDevice;
use streamvm_cuda::KernelName;
use streamvm_cuda::abi::Status;
use streamvm_ep::DType;
use streamvm_ep::{
    Access, Device, DeviceKind, Error, Kernel as CpuKernel, KernelCall, KernelError, KernelRegistry, Layout, Op,
    Operand, Params, Stream,
};

use super::{Decoded, dtype_of};

/// Runs a kernel. `operands` are those of `decoded`, over memory of this process; a failure is reported to `status`.
///
/// # Errors
///
/// The error of the CPU kernel, as text: the arguments were invalid.
///
/// # Safety
///
/// * `status`, if given, points to a [`Status`] that may be read and written.
pub(crate) unsafe fn run(
    decoded: &Decoded,
    operands: &mut [Operand<'static>],
    status: Option<*mut Status>,
) -> Result<(), String> {
    let failed = match decoded.function {
        KernelName::Copy(_) => {
            let [source, target] = operands else { return Err(String::from("a copy has two operands")) };
            stream()?.copy(source, target).err()
        }
        KernelName::Fill(_) => {
            let [target] = operands else { return Err(String::from("a fill has one operand")) };
            fill(target, decoded.value);
            None
        }
        KernelName::Pad(_) => {
            let [source, target] = operands else { return Err(String::from("a pad has two operands")) };
            fill(target, decoded.value);
            stream()?.copy(source, &mut inside(target, source, &decoded.before)?).err()
        }
        KernelName::OneHot(..) => {
            let [indices, target] = operands else { return Err(String::from("a one-hot has two operands")) };
            fill(target, 0);
            mark(indices, target, decoded.value)?;
            None
        }
        // Elements of one size are copied alike, whatever their dtype.
        KernelName::IndexSelect(_, bytes) => launch(
            Op::IndexSelect,
            dtype_of(bytes).ok_or("no element has that many bytes")?,
            operands,
            &decoded.params,
        )?,
        // The kernel of argsort is that of argtopk too, which has the same meaning if it gives all places.
        KernelName::OfSize(Op::ArgSort, _) => {
            let dtype = operands.first().ok_or("an argsort has an operand")?.dtype();
            launch(Op::ArgTopK, dtype, operands, &decoded.params)?
        }
        KernelName::OfSize(op, bytes) => {
            launch(op, dtype_of(bytes).ok_or("no element has that many bytes")?, operands, &decoded.params)?
        }
        KernelName::Cast(from, _) => launch(Op::Cast, from, operands, &decoded.params)?,
        KernelName::Op(op, dtype) => launch(op, dtype, operands, &decoded.params)?,
    };
    let found = match failed {
        None => return Ok(()),
        Some(Error::Kernel(KernelError::DivisionByZero { index, .. })) => Status { index: index as u64, value: 0 },
        Some(Error::Kernel(KernelError::NegativeExponent { index, exponent, .. })) => {
            Status { index: index as u64, value: exponent }
        }
        Some(Error::Kernel(KernelError::RowOutOfRange {
            op: Op::TakeAlongAxis | Op::Scatter | Op::ScatterAdd,
            ..
        })) => first_past_axis(operands, decoded.behind)?,
        Some(Error::Kernel(KernelError::RowOutOfRange { index, row, .. })) => {
            Status { index: index as u64, value: row }
        }
        Some(error) => return Err(error.to_string()),
    };
    if let Some(place) = status {
        // SAFETY: by the caller's duty the status may be read.
        let told = unsafe { place.read() };
        if found.index < told.index {
            // SAFETY: by the caller's duty the status may be written.
            unsafe { place.write(found) };
        }
    }
    Ok(())
}

/// A stream of the CPU, which runs commands within their calls.
fn stream() -> Result<Box<dyn Stream>, String> {
    CpuDevice::new(0, CpuConfig::default()).create_stream().map_err(|error| error.to_string())
}

fn kernel(op: Op, dtype: DType) -> Result<CpuKernel, String> {
    static KERNELS: OnceLock<KernelRegistry> = OnceLock::new();
    let kernels = KERNELS.get_or_init(streamvm_kernels::builtin);
    kernels.get(op, DeviceKind::Cpu, dtype).map_err(|error| error.to_string())
}

fn launch(op: Op, dtype: DType, operands: &mut [Operand<'static>], params: &Params) -> Result<Option<Error>, String> {
    let kernel = kernel(op, dtype)?;
    let inputs = operands.len().saturating_sub(1);
    Ok(stream()?.launch(&mut KernelCall { kernel, operands, inputs, params }).err())
}

/// Writes the low bytes of `value` to every element.
fn fill(target: &Operand, value: u64) {
    let size = target.dtype().size();
    let bits = value.to_le_bytes();
    for offset in offsets(target.layout()) {
        let element = target.ptr().wrapping_add(offset * size);
        // SAFETY: an element of the target, whose creator promises that it may be written; it has `size` bytes.
        unsafe { element.copy_from_nonoverlapping(bits.as_ptr(), size) };
    }
}

/// The part of the output of a pad that receives the input.
fn inside(target: &Operand, source: &Operand, before: &[usize]) -> Result<Operand<'static>, String> {
    let mut layout = *target.layout();
    for (axis, (&first, &size)) in before.iter().zip(source.layout().shape().dims()).enumerate() {
        layout = layout.slice(axis, first..first + size).map_err(|error| error.to_string())?;
    }
    // SAFETY: the layout is a part of the target's layout and counts from the same address. The creator of the target promises that it may
    // be written, and the target is not used meanwhile.
    Ok(unsafe { Operand::new(target.ptr(), target.dtype(), layout, Access::Write) })
}

/// Writes the low bytes of `one` to the element of each row of `target` that the row's index selects.
fn mark(indices: &Operand, target: &Operand, one: u64) -> Result<(), String> {
    let (size, layout) = (target.dtype().size(), target.layout());
    let last = layout.shape().rank() - 1;
    let (classes, step) = (layout.shape().dims()[last], layout.strides()[last]);
    let rows = layout.slice(last, 0..classes.min(1)).map_err(|error| error.to_string())?;
    let bits = one.to_le_bytes();
    for (row, from) in offsets(&rows).zip(offsets(indices.layout())) {
        let class = index_at(indices, from)?;
        if let Some(class) = usize::try_from(class).ok().filter(|&class| class < classes) {
            let marked = target.ptr().wrapping_add((row + class * step) * size);
            // SAFETY: an element of the target, whose creator promises that it may be written; it has `size` bytes.
            unsafe { marked.copy_from_nonoverlapping(bits.as_ptr(), size) };
        }
    }
    Ok(())
}

/// The index at `offset`, in elements from the first.
fn index_at(indices: &Operand, offset: usize) -> Result<i64, String> {
    let element = indices.ptr().wrapping_add(offset * indices.dtype().size());
    Ok(match indices.dtype() {
        // SAFETY: an element of this dtype, whose creator promises that it may be read.
        DType::I32 => i64::from(unsafe { element.cast::<i32>().read_unaligned() }),
        // SAFETY: an element of this dtype, whose creator promises that it may be read.
        DType::I64 => unsafe { element.cast::<i64>().read_unaligned() },
        // SAFETY: an element of this dtype, whose creator promises that it may be read.
        DType::U8 => i64::from(unsafe { element.read() }),
        dtype => return Err(format!("indices of {dtype}")),
    })
}

/// The first index of an op along an axis that is no place on it. The operands have the axis behind the others, and the first one is that of the order in which
/// `behind` rows differ in axes behind the axis.
fn first_past_axis(operands: &[Operand], behind: usize) -> Result<Status, String> {
    let [source, indices, ..] = operands else { return Err(String::from("an op by indices has at least two inputs")) };
    let along = |operand: &Operand| operand.layout().shape().dims().last().copied().unwrap_or(1);
    let (size, count) = (along(source), along(indices));
    let mut first = Status::CLEAR;
    for (number, offset) in offsets(indices.layout()).enumerate() {
        let (row, step) = (number / count, number % count);
        let index = ((row / behind * count + step) * behind + row % behind) as u64;
        let value = index_at(indices, offset)?;
        if !usize::try_from(value).is_ok_and(|place| place < size) && index < first.index {
            first = Status { index, value };
        }
    }
    Ok(first)
}

/// The offset of each element from the first, in elements, row-major.
fn offsets(layout: &Layout) -> impl Iterator<Item = usize> {
    let dims = layout.shape().dims();
    let strides = layout.strides();
    (0..layout.elements()).map(move |index| {
        let mut rest = index;
        dims.iter().zip(strides).rev().fold(0, |offset, (&dim, &stride)| {
            let at = rest % dim;
            rest /= dim;
            offset + at * stride
        })
    })
}
