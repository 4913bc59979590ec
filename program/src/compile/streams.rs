//! Pass: the stream that runs each unit of steps.
//!
//! A kernel or fill runs on the compute stream of the device that its output lives on. A copy between two devices, or between the memories of a
//! device and of the host, runs on the copy stream that an eager copy would use; a copy within the memory of the host or of one device runs on its
//! compute stream. A function is called on the compute stream of the device that the recording names, which is no CUDA device. Critical sections
//! begin and end on the stream for that, as those of lists do. All
//! steps of a block run on the compute stream of one device, and its conditions are in memory of that device.

use std::ops::Range;

use streamvm_ep::DeviceId;
use streamvm_instructions::{Error, HOST_DEVICE, Place, ProgramError, copy_stream};
use streamvm_stream::{StreamKey, StreamType};

use crate::ir::program::{Operand, Program, Step, Work};

/// The stream of each unit, on the lane of its steps.
///
/// # Errors
/// [`ProgramError::NotCompiled`] if a block has steps or conditions on several streams.
pub(super) fn of(program: &Program, kept: &[usize], units: &[Range<usize>]) -> Result<Vec<StreamKey>, Error> {
    let host = host_device(program);
    let mut streams = Vec::with_capacity(units.len());
    for positions in units {
        let numbers = &kept[positions.clone()];
        let is_block = program.steps[numbers[0]].work.is_mark();
        let mut found: Option<StreamKey> = None;
        let mut lane: Option<u32> = None;
        for &number in numbers {
            let step = &program.steps[number];
            if step.function().is_some_and(|function| !function.device().kind.info().runs_functions) {
                return Err(refused(program, number, step, RUNS_NONE));
            }
            let Some(stream) = of_step(program, step, host) else { continue };
            let in_one = stream.stream_type == StreamType::Compute && found.is_none_or(|other| other == stream);
            if is_block && !in_one {
                return Err(refused(program, number, step, &why_not_in_block(step, stream, found)));
            }
            found = Some(stream);
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

/// Why a step on `stream` cannot be in a block whose steps before it run on `block`.
fn why_not_in_block(step: &Step, stream: StreamKey, block: Option<StreamKey>) -> String {
    let all = "all steps of a block and its conditions must be on the compute stream of one device";
    match block {
        Some(block) if step.work.is_mark() => {
            format!(
                "has a condition on {}, and the block around it runs on {block}; {all}: compute or copy the condition there",
                stream.device
            )
        }
        Some(block) if stream.stream_type == StreamType::Compute => {
            format!(
                "runs on {stream}, and the block has a condition or steps on {block}; {all}: move the step in front of the block or behind it, or copy \
                 the condition to {} before the block",
                stream.device
            )
        }
        _ => format!("runs on {stream}; {all}: move it in front of the block or behind it"),
    }
}

/// The CPU that runs steps over memory of the host: the first one that a value lives on.
fn host_device(program: &Program) -> DeviceId {
    let mut devices = program.values.iter().filter_map(|value| value.place.device());
    devices.find(|device| device.kind.is_cpu()).unwrap_or(HOST_DEVICE)
}

/// The stream of a step; `None` for one that ends a block, which has no operands.
fn of_step(program: &Program, step: &Step, host: DeviceId) -> Option<StreamKey> {
    if let Some(function) = step.function() {
        return Some(StreamKey::new(function.device(), StreamType::Compute, 0));
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
