//! Launches of kernels and of host functions.

use std::ffi::{c_uint, c_void};
use std::mem::MaybeUninit;

use streamvm_cuda::abi::Arguments;
use streamvm_cuda::{ConditionArguments, FusedArguments};

use crate::commands::graph::give;
use crate::commands::kernel::{CALL, kernel_of};
use crate::kernels::{Extent, Kernel, OwnKernel};
use crate::objects::command::{Command, HostFunction, Work};
use crate::objects::graph::{Node, Numbers, Parameter};
use crate::values::code::Code;
use crate::values::findings::Kind;

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
            Kernel::Ours(_) | Kernel::Registered { .. } => {
                // SAFETY: the caller passes one pointer per parameter of the kernel, which has one, of type `Arguments`.
                let arguments = unsafe { parameter::<Arguments>(parameters, size_of::<Arguments>()) };
                Some(Parameter::Ours(Box::new(arguments.ok_or_else(missing)?)))
            }
            Kernel::Own(own) => {
                // SAFETY: as above, for each parameter of this kernel.
                Some(Parameter::Own(unsafe { own_parameters(own, parameters) }.ok_or_else(missing)?))
            }
            Kernel::Fused(views) => {
                // SAFETY: as above; the parameter is a `FusedArguments` of as many views as the kernel has.
                let arguments = unsafe { parameter::<FusedArguments>(parameters, views.parameter_bytes()) };
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
/// The bytes of all parameters of a caller's kernel.
///
/// # Safety
///
/// * `parameters` is null or has an entry for each parameter of the kernel, which is null or points to as many bytes as the parameter has.
unsafe fn own_parameters(kernel: &OwnKernel, parameters: *const *const c_void) -> Option<Vec<u8>> {
    if parameters.is_null() {
        return None;
    }
    let mut bytes = vec![0; kernel.bytes()];
    for (place, (_, range)) in kernel.parameters.iter().enumerate() {
        // SAFETY: the caller guarantees the entry.
        let parameter = unsafe { parameters.wrapping_add(place).read() };
        if parameter.is_null() {
            return None;
        }
        // SAFETY: the caller guarantees that it points to so many bytes.
        bytes[range.clone()].copy_from_slice(unsafe { std::slice::from_raw_parts(parameter.cast(), range.len()) });
    }
    Some(bytes)
}

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
