//! Checks launches of kernels and products of cuBLAS: what they access, which the race detector is told.

use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;

use streamvm_cuda::abi::Arguments;
use streamvm_cuda::{ConditionArguments, FusedArguments, KernelName, LoopState};
use streamvm_ep::{Access, Operand};
use streamvm_sim::races::Touch;

use crate::commands::prepared::{Prepared, PreparedWork};
use crate::driver::{Driver, Module};
use crate::kernels::{
    ConditionValue, Conditions, Decoding, Extent, FusedViews, Kernel, OwnKernel, OwnMemory, Product, PtxLaunch, Region,
    decode,
};
use crate::memory::{Missing, Span};
use crate::objects::command::{Job, Work};
use crate::objects::context::Context;
use crate::objects::graph::{Numbers, Parameter};
use crate::objects::stream::Stream;
use crate::values::code::{Code, Outcome};
use crate::values::findings::Kind;

/// The driver call of launches.
pub(crate) const CALL: &str = "cuLaunchKernel";

/// The kernel of `handle`, for a launch on `stream`, and its module, which must be loaded, in the context of the stream.
pub(crate) fn kernel_of(driver: &Driver, stream: &Stream, handle: usize) -> Outcome<(Kernel, Arc<Module>)> {
    let (kernel, module) = driver.function(CALL, handle)?;
    if module.context.handle != stream.context.handle {
        let text = format!("{CALL} of a kernel of another context on {}", stream.name);
        return Err(driver.refuse(Kind::WrongContext, text, Code::INVALID_HANDLE));
    }
    Ok((kernel, module))
}

/// What a launch gives to its kernel, and what it may access.
struct Declared {
    parameters: Vec<u8>,
    regions: Vec<Region>,
    /// The number of the region to which the kernel reports failures.
    status: Option<usize>,
    /// The handle of the condition that the kernel sets, and its value.
    condition: Option<(u64, Arc<ConditionValue>)>,
}

/// Checks a launch of the kernel of the function with this handle, with this extent, in a graph with these conditions. A launch that cannot work is found
/// at the call, but ends its context only when it runs, as on a device.
pub(crate) fn prepare_kernel(
    driver: &Driver,
    stream: &Stream,
    (function, kernel, extent): (usize, &Kernel, Extent),
    parameter: Option<&Parameter>,
    conditions: &Conditions,
) -> Outcome<Prepared> {
    // A graph may outlive the module.
    let (_, module) = kernel_of(driver, stream, function)?;
    let context = &stream.context;
    let declared = match (kernel, parameter) {
        (Kernel::Ours(name) | Kernel::Registered { like: name, .. }, Some(Parameter::Ours(arguments))) => {
            ours(driver, context, *name, arguments)
        }
        (Kernel::Own(own), Some(Parameter::Own(bytes))) => declared_by_names(driver, context, own, bytes),
        (Kernel::Fused(views), Some(Parameter::Fused(arguments))) => fused(driver, context, views, arguments),
        (Kernel::Condition, Some(Parameter::Condition(arguments))) => condition(driver, context, arguments, conditions),
        _ => return Ok(prepare(driver, stream, CALL, kernel.to_string(), Job::Empty, Vec::new())),
    };
    let (job, touches) = match declared {
        Ok(Declared { parameters, regions, status, condition }) => {
            let touches = regions.iter().map(|region| region.touch.clone()).collect();
            let (code, kernel) = (Arc::clone(&module.code), kernel.to_string());
            (Job::Ptx(Box::new(PtxLaunch { code, kernel, extent, parameters, regions, status, condition })), touches)
        }
        Err(code) => (Job::Broken(code), Vec::new()),
    };
    Ok(prepare(driver, stream, CALL, kernel.to_string(), job, touches))
}

/// Checks a product of cuBLAS.
///
/// # Errors
///
/// `INVALID_VALUE` for one that cuBLAS refuses.
pub(crate) fn prepare_product(
    driver: &Driver,
    stream: &Stream,
    call: &'static str,
    product: &Product,
) -> Outcome<Prepared> {
    let refused = |text| driver.refuse(Kind::BadArguments, format!("{call}: {text}"), Code::INVALID_VALUE);
    let (dtype, operands) = (product.dtype, product.decode().map_err(refused)?);
    let name = KernelName::Op(streamvm_ep::Op::MatMul, dtype).to_string();
    let (job, touches) = match regions(driver, &stream.context, &name, &operands) {
        Ok(regions) => {
            let touches = regions.iter().flatten().map(|region| region.touch.clone()).collect();
            (Job::Product { dtype, operands, regions }, touches)
        }
        Err(code) => (Job::Broken(code), Vec::new()),
    };
    Ok(prepare(driver, stream, call, name, job, touches))
}

/// A kernel, which accesses the memory of `touches`.
fn prepare(
    driver: &Driver,
    stream: &Stream,
    call: &'static str,
    what: String,
    job: Job,
    touches: Vec<Touch>,
) -> Prepared {
    let fate = driver.faults.kernel(stream.context.device);
    Prepared { call, what, touches, work: PreparedWork::Work(Work::Kernel { job, fate }) }
}

/// A launch of one of streamvm's kernels.
fn ours(driver: &Driver, context: &Context, name: KernelName, arguments: &Arguments) -> Outcome<Declared> {
    let wrong = |text| driver.refuse(Kind::BadArguments, format!("{name}: {text}"), Code::LAUNCH_FAILED);
    let decoded = decode(name, arguments).map_err(wrong)?;
    let mut regions: Vec<Region> = regions(driver, context, &name, &decoded.operands)?.into_iter().flatten().collect();
    let status = decoded.status.map(|range| region(driver, context, &name, "the status", range, 8, Access::ReadWrite));
    let status = status.transpose()?.map(|status| {
        regions.push(status);
        regions.len() - 1
    });
    Ok(Declared { parameters: arguments.to_bytes(), regions, status, condition: None })
}

/// A launch of a caller's kernel.
fn declared_by_names(driver: &Driver, context: &Context, kernel: &OwnKernel, bytes: &[u8]) -> Outcome<Declared> {
    let name = &kernel.name;
    let wrong = |text| driver.refuse(Kind::BadArguments, format!("{name}: {text}"), Code::LAUNCH_FAILED);
    let memory = kernel.memory(bytes).map_err(wrong)?;
    let mut regions = Vec::new();
    for OwnMemory { parameter, runs, access } in memory {
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else { continue };
        let (start, range) = (first.start, first.start..last.end);
        let whole = region(driver, context, name, &parameter, range, 1, access)?;
        let begin = whole.span.range.start;
        let runs = runs.iter().map(|run| begin + run.start - start..begin + run.end - start);
        regions.push(Region { touch: Touch::new(runs, access, None), ..whole });
    }
    Ok(Declared { parameters: bytes.to_vec(), regions, status: None, condition: None })
}

/// A launch of a fused kernel.
fn fused(driver: &Driver, context: &Context, views: &FusedViews, arguments: &FusedArguments) -> Outcome<Declared> {
    let name = streamvm_cuda::FUSED_NAME;
    let wrong = |text| driver.refuse(Kind::BadArguments, format!("{name}: {text}"), Code::LAUNCH_FAILED);
    let operands = views.decode(arguments).map_err(wrong)?;
    let regions = regions(driver, context, &name, &operands)?.into_iter().flatten().collect();
    let mut parameters = arguments.to_bytes();
    parameters.truncate(views.parameter_bytes());
    Ok(Declared { parameters, regions, status: None, condition: None })
}

/// A launch of the kernel that sets the condition of a block.
fn condition(
    driver: &Driver,
    context: &Context,
    arguments: &ConditionArguments,
    conditions: &Conditions,
) -> Outcome<Declared> {
    let handle = arguments.handle;
    let value = conditions.get(&handle).cloned().ok_or_else(|| {
        let text = format!("{} sets {handle:#x}, which is no condition of its graph", Kernel::Condition);
        driver.refuse(Kind::BadArguments, text, Code::LAUNCH_FAILED)
    })?;
    let region = |what: &str, address: u64, bytes: usize, access| {
        let range = address as usize..(address as usize).saturating_add(bytes);
        region(driver, context, &Kernel::Condition, what, range, bytes.min(8), access)
    };
    let mut regions = vec![region("the condition", arguments.condition, 1, Access::Read)?];
    // Only a loop needs a state.
    if arguments.state != 0 || arguments.test == ConditionArguments::WHILE {
        regions.push(region("the state of loops", arguments.state, size_of::<LoopState>(), Access::ReadWrite)?);
    }
    regions.push(region("what stops loops", arguments.stop, 4, Access::Read)?);
    Ok(Declared { parameters: arguments.to_bytes(), regions, status: None, condition: Some((handle, value)) })
}

/// The memory of each operand, and the bytes that are accessed there; `None` for an operand without elements.
fn regions(
    driver: &Driver,
    context: &Context,
    name: &dyn Display,
    operands: &[Decoding],
) -> Outcome<Vec<Option<Region>>> {
    let one = |(number, operand): (usize, &Decoding)| {
        let range = operand.bytes();
        if range.is_empty() {
            return Ok(None);
        }
        let (what, address) = (format!("operand {number}"), range.start);
        let span = within(driver, context, name, &what, range, operand.is_aligned())?;
        if operand.access.writes() {
            driver.check_written(&format!("{name}: {what}"), &span);
        }
        let touch = touch(operand, &span);
        Ok(Some(Region { what, address, span, touch }))
    };
    operands.iter().enumerate().map(one).collect()
}

/// The memory at these addresses, all of which a kernel of this context may access.
pub(super) fn region(
    driver: &Driver,
    context: &Context,
    name: &dyn Display,
    what: &str,
    range: Range<usize>,
    alignment: usize,
    access: Access,
) -> Outcome<Region> {
    let (address, is_aligned) = (range.start, range.start.is_multiple_of(alignment));
    let span = within(driver, context, name, what, range, is_aligned)?;
    let touch = Touch::new([span.range.clone()], access, None);
    Ok(Region { what: what.to_owned(), address, span, touch })
}

/// The memory at these addresses, which a kernel of this context must be able to access.
fn within(
    driver: &Driver,
    context: &Context,
    name: &dyn Display,
    what: &str,
    range: Range<usize>,
    aligned: bool,
) -> Outcome<Span> {
    let at = format!("{name} on cuda:{}: {what} at {:#x}..{:#x}", context.device, range.start, range.end);
    if !aligned {
        return Err(driver.refuse(Kind::BadArguments, format!("{at} is misaligned"), Code::MISALIGNED_ADDRESS));
    }
    let given = driver.memory().heap.of_kernels(range.start);
    let Some(start) = given else {
        let text = format!("{at} is no address that kernels know pinned memory by; ask for that of the device");
        return Err(driver.refuse(Kind::WrongMemory, text, Code::ILLEGAL_ADDRESS));
    };
    let found = driver.memory().heap.find(start..start + range.len());
    let span = found.map_err(|missing| {
        let kind = match &missing {
            Missing::Freed(_) => Kind::AfterFree,
            Missing::OutOfBounds(_) => Kind::OutOfBounds,
            Missing::NeverGiven | Missing::Host => Kind::UnknownMemory,
        };
        driver.refuse(kind, format!("{at}: {missing}"), Code::ILLEGAL_ADDRESS)
    })?;
    match span.allocation.device_number() {
        Some(device) if !context.reaches(device) => {
            let text = format!("{at} lies in {}; enable peer access first", span.allocation);
            Err(driver.refuse(Kind::NoPeerAccess, text, Code::ILLEGAL_ADDRESS))
        }
        _ => Ok(span),
    }
}

/// The bytes of the elements of an operand whose memory is `span`.
fn touch(operand: &Decoding, span: &Span) -> Touch {
    let base = std::ptr::without_provenance_mut(span.range.start);
    // SAFETY: the pointer is a device address, from which only the layout of accesses is computed; it is never dereferenced.
    let operand = unsafe { Operand::new(base, operand.dtype, operand.layout, operand.access) };
    Touch::of(&operand, None)
}
