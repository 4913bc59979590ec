//! Pass: the stream that runs each unit of steps.
//!
//! A kernel or fill runs on the compute stream of the device that its output lives on. A copy between two devices, or between the memories of a
//! device and of the host, runs on the copy stream that an eager copy would use; a copy within the memory of the host or of one device runs on its
//! compute stream. A function is called on the compute stream of the device that the recording names, which is no CUDA device. Critical sections
//! begin and end on the stream for that, as those of lists do.
//!
//! All steps of a block run in the order of one compute stream: that of the first device that they use beside CPUs, or of a CPU if they use none. Steps of other
//! devices of its kind, and of CPUs, run between its commands ([`by_others`]).

use std::ops::Range;

use streamvm_ep::DeviceId;
use streamvm_instructions::{Error, HOST_DEVICE, Place, ProgramError, Role, copy_stream};
use streamvm_stream::{StreamKey, StreamType};

use crate::compile::by_others::{self, RunsOn};
use crate::ir::function::FunctionOrder;
use crate::ir::program::{Operand, Program, Step, Work};

/// The stream of each unit, on the lane of its steps.
///
/// # Errors
/// [`ProgramError::NotCompiled`] if a block uses devices of several kinds beside CPUs, or several lanes.
pub(super) fn of(program: &Program, kept: &[usize], units: &[Range<usize>]) -> Result<Vec<StreamKey>, Error> {
    let host = by_others::host_device(program);
    let mut streams = Vec::with_capacity(units.len());
    for positions in units {
        let numbers = &kept[positions.clone()];
        let is_block = program.steps[numbers[0]].work.is_mark();
        let mut found: Option<StreamKey> = None;
        let mut lane: Option<u32> = None;
        for &number in numbers {
            let step = &program.steps[number];
            if step
                .function()
                .is_some_and(|function| function.role() != Role::Cuda && !function.device().kind.info().runs_functions)
            {
                return Err(refused(program, number, step, RUNS_NONE));
            }
            if is_block && step.work.section().is_none() {
                found =
                    of_step_in_block(program, step, host, found).map_err(|why| refused(program, number, step, &why))?;
            } else {
                let Some(stream) = of_step(program, step, host) else { continue };
                if is_block {
                    return Err(refused(program, number, step, &format!("runs on {stream}, which no block does")));
                }
                found = Some(stream);
            }
            if !step.work.is_mark() && *lane.get_or_insert(step.lane) != step.lane {
                return Err(refused(program, number, step, ON_TWO_LANES));
            }
        }
        let stream = found.unwrap_or(StreamKey::new(host, StreamType::Compute, 0));
        streams.push(StreamKey { lane: lane.unwrap_or(0), ..stream });
    }
    Ok(streams)
}

/// Why a block cannot have steps on several lanes.
const ON_TWO_LANES: &str = "is on another lane than the steps before it in the same block, all of which run on one";

/// Why a function cannot be called on a device such as a CUDA device.
const RUNS_NONE: &str =
    "is called on a device whose streams run no code of the host; call it on a CPU, over tensors that are copied there";

/// The stream of a block after one more step, if it was `block` before: the first device other than a CPU takes it over from a CPU.
///
/// # Errors
/// Why the step cannot be in the block.
fn of_step_in_block(
    program: &Program,
    step: &Step,
    host: DeviceId,
    block: Option<StreamKey>,
) -> Result<Option<StreamKey>, String> {
    let mut found = block;
    for device in by_others::devices(program, step, host) {
        match found.map(|stream| stream.device) {
            Some(known) if known == device || known.kind == device.kind && !device.kind.is_run_by_host() => {}
            Some(known) if !known.kind.is_cpu() || device.kind.is_run_by_host() => {
                return Err(two_devices(step, device, known));
            }
            _ => found = Some(StreamKey::new(device, StreamType::Compute, 0)),
        }
    }
    let cpu = match by_others::runs_on(program, step, host) {
        RunsOn::Host(cpu) | RunsOn::Both(cpu, _) => Some(cpu),
        RunsOn::Device(_) | RunsOn::Nothing => None,
    };
    if let (Some(cpu), Some(block)) = (cpu, found)
        && !block.device.kind.is_cpu()
        && block.device.kind.is_run_by_host()
    {
        return Err(two_devices(step, cpu, block.device));
    }
    Ok(found.or(cpu.map(|cpu| StreamKey::new(cpu, StreamType::Compute, 0))))
}

/// Why a step cannot use `device` in a block that uses `block`.
fn two_devices(step: &Step, device: DeviceId, block: DeviceId) -> String {
    let uses = if step.work.is_mark() { "has a condition on" } else { "uses" };
    let beside = match block.kind.is_run_by_host() {
        true => "no other device".to_owned(),
        false => format!("CPUs and {} devices", block.kind),
    };
    format!(
        "{uses} {device}, and the block uses {block}; beside {block} it can use {beside}: move what uses {device} before the block or after it, or copy \
         what the block needs of it before the block"
    )
}

/// The stream of a step; `None` for one that ends a block, which has no operands.
fn of_step(program: &Program, step: &Step, host: DeviceId) -> Option<StreamKey> {
    if let Some(function) = step.function() {
        // On a CPU the compute stream calls functions whose uses alone order them, too.
        let stream_type = match function.order() {
            FunctionOrder::Collective => StreamType::Collective,
            FunctionOrder::Compute | FunctionOrder::Workers => StreamType::Compute,
        };
        return Some(StreamKey::new(function.device(), stream_type, 0));
    }
    if let Work::Touch(device) = step.work {
        return Some(StreamKey::new(device, StreamType::Compute, 0));
    }
    if step.work.section().is_some() {
        return Some(StreamKey::new(HOST_DEVICE, StreamType::Critical, 0));
    }
    let last = step.operands.last()?;
    let device = |operand: &Operand| program.value(operand.value).place.device().unwrap_or(host);
    if let (Work::Copy, [source, target]) = (&step.work, &step.operands[..]) {
        let ends = [source, target].map(|end| program.value(end.value)).map(|value| (value.place, value.memory));
        if !ends.iter().all(|(place, _)| [Place::Host, Place::Device(host)].contains(place)) {
            let (device, stream_type) = copy_stream(ends[0], ends[1], StreamType::Compute);
            return Some(StreamKey::new(device, stream_type, 0));
        }
    }
    Some(StreamKey::new(device(last), StreamType::Compute, 0))
}

fn refused(program: &Program, number: usize, step: &Step, why: &str) -> Error {
    let (program, step) = (program.name.clone(), Some(step.named(number)));
    ProgramError::NotCompiled { program, step, what: why.to_owned() }.into()
}
