//! Launches of kernels and of host functions.

use std::ffi::{c_uint, c_void};
use std::fmt::Display;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

use streamvm_cuda::abi::Arguments;
use streamvm_cuda::{ConditionArguments, FUSED_NAME, FusedArguments, KernelName, LoopState};
use streamvm_ep::{Access, Operand};
use streamvm_sim::races::Touch;

use crate::code::{Code, Outcome};
use crate::command::{Command, HostFunction, Job, Work};
use crate::context::Context;
use crate::driver::{Driver, Module};
use crate::findings::Kind;
use crate::graph::{ConditionValue, Conditions, Node, Parameter, give};
use crate::interpreter::{Extent, PtxCode, PtxLaunch, Region};
use crate::kernel::{Decoded, Decoding, FusedCode, Kernel, decode};
use crate::memory::{Missing, Span};
use crate::prepared::{Prepared, PreparedWork};
use crate::stream::Stream;

/// Most threads of a block: the number that every device supports.
const MAX_BLOCK: u64 = 1024;

/// Bytes of shared memory that a block gets by default.
const MAX_SHARED: c_uint = 48 << 10;

driver_calls! {
    /// Launches a kernel. Its parameter is read before the call returns.
    #[allow(clippy::too_many_arguments, reason = "the CUDA driver's signature")]
    fn cuLaunchKernel(
        driver,
        function: usize,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: usize,
        parameters: *const *const c_void,
        extra: *const *const c_void,
    ) {
        let stream = driver.stream_here(CALL, stream)?;
        let (kernel, _) = kernel_of(driver, &stream, function)?;
        check_extent([grid_x, grid_y, grid_z], [block_x, block_y, block_z], shared_bytes)
            .map_err(|text| driver.refuse(Kind::BadArguments, format!("{CALL}: {text}"), Code::INVALID_VALUE))?;
        if !extra.is_null() {
            return Err(Code::NOT_SUPPORTED);
        }
        let missing = || {
            let text = format!("{CALL} of {kernel} without its parameter");
            driver.refuse(Kind::BadArguments, text, Code::INVALID_VALUE)
        };
        let parameter = match &kernel {
            Kernel::Empty => None,
            Kernel::Ours(_) => {
                // SAFETY: the caller passes one pointer per parameter of the kernel, which has one, of type `Arguments`.
                let arguments = unsafe { parameter::<Arguments>(parameters, size_of::<Arguments>()) };
                Some(Parameter::Ours(Box::new(arguments.ok_or_else(missing)?)))
            }
            Kernel::Fused(code) => {
                // SAFETY: as above; the parameter is a `FusedArguments` of as many views as the kernel has.
                let arguments = unsafe { parameter::<FusedArguments>(parameters, code.parameter_bytes()) };
                Some(Parameter::Fused(Box::new(arguments.ok_or_else(missing)?)))
            }
            Kernel::Condition => {
                // SAFETY: as above, for the parameter of this kernel.
                let arguments = unsafe { parameter::<ConditionArguments>(parameters, size_of::<ConditionArguments>()) };
                Some(Parameter::Condition(Box::new(arguments.ok_or_else(missing)?)))
            }
        };
        let extent = Extent { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared_bytes };
        give(driver, &stream, Node::Kernel { function, kernel, parameter, extent })
    }

    /// Calls a host function, after all commands of the stream so far and before all later ones.
    fn cuLaunchHostFunc(driver, stream: usize, function: Option<HostFunction>, data: *mut c_void) {
        let stream = driver.stream_here("cuLaunchHostFunc", stream)?;
        let function = function.ok_or(Code::INVALID_VALUE)?;
        // The CUDA driver would capture it.
        if driver.captures.status(&stream).is_some() {
            return Err(Code::NOT_SUPPORTED);
        }
        stream.give(|_| {
            driver.order.given_by_host(stream.actor);
            Command::new("cuLaunchHostFunc", Work::Host { function, data })
        });
        Ok(())
    }
}

const CALL: &str = "cuLaunchKernel";

/// The kernel of `handle`, for a launch on `stream`, and its module, which must be loaded, in the context of the stream.
fn kernel_of(driver: &Driver, stream: &Stream, handle: usize) -> Outcome<(Kernel, Arc<Module>)> {
    let (kernel, module) = driver.function(CALL, handle)?;
    if module.context.handle != stream.context.handle {
        let text = format!("{CALL} of a kernel of another context on {}", stream.name);
        return Err(driver.refuse(Kind::WrongContext, text, Code::INVALID_HANDLE));
    }
    Ok((kernel, module))
}

/// Checks a launch of the kernel of the function with this handle, with this extent, in a graph with these conditions.
pub(crate) fn prepare_kernel(
    driver: &Driver,
    stream: &Stream,
    (function, kernel, extent): (usize, &Kernel, Extent),
    parameter: Option<&Parameter>,
    conditions: &Conditions,
) -> Outcome<Prepared> {
    // A graph may outlive the module.
    let (_, module) = kernel_of(driver, stream, function)?;
    let what = kernel.to_string();
    let ptx = module.code.as_ref().map(|code| (code, extent));
    Ok(match (kernel, parameter) {
        (Kernel::Ours(name), Some(Parameter::Ours(arguments))) => match decode(*name, arguments) {
            Ok(decoded) => {
                let code = code_of(driver, &module, &decoded)?;
                let (job, touches) = job(driver, &stream.context, *name, decoded);
                let job = match (job, &code) {
                    (Job::Ours { decoded, spans, status }, Some(code)) => {
                        Job::Ptx(Box::new(as_ptx((code, extent), arguments, decoded, spans, status, &touches)))
                    }
                    (job, _) => job,
                };
                prepare(driver, stream, CALL, what, job, touches)
            }
            Err(text) => {
                driver.findings.add(Kind::BadArguments, format!("{name}: {text}"));
                prepare(driver, stream, CALL, what, Job::Broken(Code::LAUNCH_FAILED), Vec::new())
            }
        },
        (Kernel::Condition, Some(Parameter::Condition(arguments))) => {
            let (job, touches) = condition(driver, &stream.context, arguments, conditions);
            let job = match (job, ptx) {
                (Job::Condition { condition, state, stop, cell, .. }, Some((code, extent))) => {
                    let launch = condition_as_ptx((code, extent), arguments, (condition, stop, state), &touches, cell);
                    Job::Ptx(Box::new(launch))
                }
                (job, _) => job,
            };
            prepare(driver, stream, CALL, what, job, touches)
        }
        (Kernel::Fused(code), Some(Parameter::Fused(arguments))) => {
            let views = code.decode(arguments).and_then(|views| FusedCode::check_overlaps(&views).map(|()| views));
            let (job, touches) = match views {
                Ok(views) => match reach_all(driver, &stream.context, kernel, &views) {
                    Ok((spans, touches)) => (Job::Fused { code: Arc::clone(code), views, spans }, touches),
                    Err(code) => (Job::Broken(code), Vec::new()),
                },
                Err(text) => {
                    driver.findings.add(Kind::BadArguments, format!("{kernel}: {text}"));
                    (Job::Broken(Code::LAUNCH_FAILED), Vec::new())
                }
            };
            let job = match (job, ptx) {
                (Job::Fused { code: fused, views, spans }, Some((code, extent))) if fused.is_compiled => {
                    let launch = fused_as_ptx((code, extent), (&fused, arguments), &views, spans, &touches);
                    Job::Ptx(Box::new(launch))
                }
                (job, _) => job,
            };
            prepare(driver, stream, CALL, what, job, touches)
        }
        _ => prepare(driver, stream, CALL, what, Job::Empty, Vec::new()),
    })
}

/// The PTX that a launch runs, if it runs some: in a driver that runs no other PTX, one that no kernel of the CPU can compute.
fn code_of(driver: &Driver, module: &Module, decoded: &Decoded) -> Outcome<Option<Arc<PtxCode>>> {
    if module.code.is_some() || !decoded.has_states {
        return Ok(module.code.clone());
    }
    let unknown = |why| driver.refuse(Kind::UnknownPtx, format!("{CALL}: {why}"), Code::INVALID_PTX);
    PtxCode::of(&module.text).map(Some).map_err(unknown)
}

/// The launch of one of streamvm's kernels as PTX; `touches` are those of the operands that have elements, and of the status.
fn as_ptx(
    (code, extent): (&Arc<PtxCode>, Extent),
    arguments: &Arguments,
    decoded: Decoded,
    spans: Vec<Option<Span>>,
    status: Option<Span>,
    touches: &[Touch],
) -> PtxLaunch {
    let operands = of_operands(&decoded.operands, spans);
    let told = status.map(|span| ("the status".to_owned(), arguments.status as usize, span));
    let has_status = told.is_some();
    let regions: Vec<Region> = regions(operands.chain(told), touches);
    let status = has_status.then(|| regions.len() - 1);
    let (code, kernel, parameters) = (Arc::clone(code), decoded.function.to_string(), bytes_of(arguments));
    PtxLaunch { code, kernel, extent, parameters, regions, status, condition: None }
}

/// The launch of a fused kernel as PTX.
fn fused_as_ptx(
    (code, extent): (&Arc<PtxCode>, Extent),
    (fused, arguments): (&FusedCode, &FusedArguments),
    views: &[Decoding],
    spans: Vec<Option<Span>>,
    touches: &[Touch],
) -> PtxLaunch {
    let (code, kernel) = (Arc::clone(code), FUSED_NAME.to_owned());
    let mut parameters = bytes_of(arguments);
    parameters.truncate(fused.parameter_bytes());
    let regions = regions(of_operands(views, spans), touches);
    PtxLaunch { code, kernel, extent, parameters, regions, status: None, condition: None }
}

/// The operands that have elements, each with its name and the address by which the kernel accesses it.
fn of_operands(operands: &[Decoding], spans: Vec<Option<Span>>) -> impl Iterator<Item = (String, usize, Span)> {
    let named = operands.iter().zip(spans).enumerate();
    named.filter_map(|(number, (operand, span))| {
        span.map(|span| (format!("operand {number}"), operand.bytes().start, span))
    })
}

/// The launch of the kernel that sets a condition as PTX.
fn condition_as_ptx(
    (code, extent): (&Arc<PtxCode>, Extent),
    arguments: &ConditionArguments,
    (condition, stop, state): (Span, Span, Option<Span>),
    touches: &[Touch],
    value: Arc<ConditionValue>,
) -> PtxLaunch {
    // In the order of the touches.
    let mut named = vec![
        ("the condition".to_owned(), arguments.condition as usize, condition),
        ("what stops loops".to_owned(), arguments.stop as usize, stop),
    ];
    named.extend(state.map(|state| ("the state of loops".to_owned(), arguments.state as usize, state)));
    let (code, kernel, parameters) = (Arc::clone(code), Kernel::Condition.to_string(), bytes_of(arguments));
    let (regions, condition) = (regions(named.into_iter(), touches), Some((arguments.handle, value)));
    PtxLaunch { code, kernel, extent, parameters, regions, status: None, condition }
}

/// Memory, each with its name and its address for kernels, with what is accessed of it.
///
/// # Panics
///
/// If there are not as many touches.
fn regions(named: impl Iterator<Item = (String, usize, Span)>, touches: &[Touch]) -> Vec<Region> {
    let named: Vec<_> = named.collect();
    assert_eq!(named.len(), touches.len(), "one touch for each piece of memory");
    let each = named.into_iter().zip(touches);
    each.map(|((what, address, span), touch)| Region { what, address, span, touch: touch.clone() }).collect()
}

/// The bytes of a parameter.
fn bytes_of<T: Numbers>(parameter: &T) -> Vec<u8> {
    // SAFETY: a `T` has only numbers, without gaps between them, as tests of its layout show.
    unsafe { std::slice::from_raw_parts((&raw const *parameter).cast::<u8>(), size_of::<T>()) }.to_vec()
}

/// Checks a launch of a kernel with decoded operands.
pub(crate) fn prepare_decoded(driver: &Driver, stream: &Stream, call: &'static str, decoded: Decoded) -> Prepared {
    let name = decoded.function;
    let (job, touches) = job(driver, &stream.context, name, decoded);
    prepare(driver, stream, call, name.to_string(), job, touches)
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

/// The job of the kernel that sets the condition of a block, and the bytes that it accesses.
fn condition(
    driver: &Driver,
    context: &Context,
    arguments: &ConditionArguments,
    conditions: &Conditions,
) -> (Job, Vec<Touch>) {
    let Some(cell) = conditions.get(arguments.handle) else {
        let text = format!("{} sets {:#x}, which is no condition of its graph", Kernel::Condition, arguments.handle);
        driver.findings.add(Kind::BadArguments, text);
        return (Job::Broken(Code::LAUNCH_FAILED), Vec::new());
    };
    let reach = |what: &str, address: u64, bytes: usize| {
        let range = address as usize..(address as usize).saturating_add(bytes);
        let aligned = range.start.is_multiple_of(bytes.min(8));
        within(driver, context, &Kernel::Condition, what, range, aligned)
    };
    let reached = reach("the condition", arguments.condition, 1).and_then(|condition| {
        // Only a loop needs a state.
        let has_state = arguments.state != 0 || arguments.test == ConditionArguments::WHILE;
        let state = has_state.then(|| reach("the state of loops", arguments.state, size_of::<LoopState>()));
        Ok((condition, state.transpose()?, reach("what stops loops", arguments.stop, 4)?))
    });
    match reached {
        Ok((condition, state, stop)) => {
            let of = |span: &Span, access| Touch::new([span.range.clone()], access, None);
            let mut touches = vec![of(&condition, Access::Read), of(&stop, Access::Read)];
            touches.extend(state.iter().map(|state| of(state, Access::ReadWrite)));
            (Job::Condition { arguments: *arguments, condition, state, stop, cell }, touches)
        }
        Err(code) => (Job::Broken(code), Vec::new()),
    }
}

/// Refuses launch dimensions that no device supports.
fn check_extent(grid: [c_uint; 3], block: [c_uint; 3], shared_bytes: c_uint) -> Result<(), String> {
    let threads = block.iter().map(|&axis| u64::from(axis)).product::<u64>();
    if grid.contains(&0) || grid[0] > i32::MAX as u32 || grid[1] > 65535 || grid[2] > 65535 {
        return Err(format!("no device has a grid of {grid:?} blocks"));
    }
    if threads == 0 || threads > MAX_BLOCK || block[2] > 64 {
        return Err(format!("no device has blocks of {block:?} threads; at most {MAX_BLOCK} fit, 64 on the last axis"));
    }
    if shared_bytes > MAX_SHARED {
        return Err(format!("{shared_bytes} bytes of shared memory were not asked for; {MAX_SHARED} are given"));
    }
    Ok(())
}

/// Reads the one parameter of a kernel, of so many bytes; the rest is zeros. `None` if it is missing.
///
/// # Safety
///
/// * `parameters` is null or has an entry, which is null or points to the kernel's parameter, which has these bytes.
unsafe fn parameter<T: Numbers>(parameters: *const *const c_void, bytes: usize) -> Option<T> {
    if parameters.is_null() {
        return None;
    }
    // SAFETY: `parameters` is not null, so by the caller's duty it has an entry.
    let first = unsafe { parameters.read() };
    if first.is_null() {
        return None;
    }
    let mut arguments = MaybeUninit::<T>::zeroed();
    // SAFETY: the entry is not null, so by the caller's duty it points to so many bytes of a `T`. A C caller may align it less than Rust, which a
    // copy of bytes allows.
    unsafe { first.cast::<u8>().copy_to_nonoverlapping(arguments.as_mut_ptr().cast(), bytes.min(size_of::<T>())) };
    // SAFETY: all bytes are zeros or were written, and every bit pattern is a valid `T`, which has only numbers.
    Some(unsafe { arguments.assume_init() })
}

/// The types of parameters.
trait Numbers {}
impl Numbers for Arguments {}
impl Numbers for FusedArguments {}
impl Numbers for ConditionArguments {}

/// The job of a launch, and the bytes that it accesses. A launch that cannot work is found at the call, but ends its context only when it
/// runs, as on a device.
fn job(driver: &Driver, context: &Context, name: KernelName, decoded: Decoded) -> (Job, Vec<Touch>) {
    let (spans, mut touches) = match reach_all(driver, context, &name, &decoded.operands) {
        Ok(reached) => reached,
        Err(code) => return (Job::Broken(code), Vec::new()),
    };
    let status = match decoded.status.clone().map(|range| {
        let aligned = range.start.is_multiple_of(8);
        within(driver, context, &name, "the status", range, aligned)
    }) {
        None => None,
        Some(Ok(span)) => {
            touches.push(Touch::new([span.range.clone()], Access::ReadWrite, None));
            Some(span)
        }
        Some(Err(code)) => return (Job::Broken(code), Vec::new()),
    };
    (Job::Ours { decoded, spans, status }, touches)
}

/// The memory of each operand, and the bytes that it accesses there.
fn reach_all(
    driver: &Driver,
    context: &Context,
    name: &dyn Display,
    operands: &[Decoding],
) -> Outcome<(Vec<Option<Span>>, Vec<Touch>)> {
    let (mut spans, mut touches) = (Vec::new(), Vec::new());
    for (number, operand) in operands.iter().enumerate() {
        let span = reach(driver, context, name, &format!("operand {number}"), operand)?;
        if let Some(span) = &span {
            if operand.access.writes() {
                driver.check_written(&format!("{name}: operand {number}"), span);
            }
            touches.push(touch(operand, span));
        }
        spans.push(span);
    }
    Ok((spans, touches))
}

/// The memory of an operand; `None` if it has no elements.
fn reach(
    driver: &Driver,
    context: &Context,
    name: &dyn Display,
    what: &str,
    operand: &Decoding,
) -> Outcome<Option<Span>> {
    let bytes = operand.bytes();
    if bytes.is_empty() {
        return Ok(None);
    }
    within(driver, context, name, what, bytes, operand.is_aligned()).map(Some)
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
pub(crate) fn touch(operand: &Decoding, span: &Span) -> Touch {
    let base = std::ptr::without_provenance_mut(span.range.start);
    // SAFETY: the pointer is a device address, from which only the layout of accesses is computed; it is never dereferenced.
    let operand = unsafe { Operand::new(base, operand.dtype, operand.layout, operand.access) };
    Touch::of(&operand, None)
}
