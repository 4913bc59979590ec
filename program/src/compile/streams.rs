//! Pass: the stream that runs each unit of steps.
//!
//! A kernel or fill runs on the compute stream of the device that its output lives on. A copy between two devices, or between the memories of a
//! device and of the host, runs on the copy stream that an eager copy would use; a copy within the memory of the host or of one device runs on its
//! compute stream. A block runs on the compute stream of one CPU, because the thread that runs it reads the condition.

use std::ops::Range;

use streamvm_ep::{DeviceId, DeviceKind};
use streamvm_instructions::{Error, HOST_DEVICE, Place, ProgramError, copy_stream};
use streamvm_stream::{StreamKey, StreamType};

use crate::ir::program::{Operand, Program, Step, Work};
use crate::record::recording::DRAWN_IN_BLOCK;

/// The stream of each unit, on lane 0.
///
/// # Errors
/// [`ProgramError::NotCompiled`] if a block has steps that one CPU does not run, or if a step of a block draws random numbers.
pub(super) fn of(program: &Program, kept: &[usize], units: &[Range<usize>]) -> Result<Vec<StreamKey>, Error> {
    let host = host_device(program);
    let mut streams = Vec::with_capacity(units.len());
    for positions in units {
        let numbers = &kept[positions.clone()];
        let is_block = program.steps[numbers[0]].work.is_mark();
        let mut found: Option<StreamKey> = None;
        for &number in numbers {
            let step = &program.steps[number];
            if is_block && matches!(&step.work, Work::Call(op, _) if op.is_source()) {
                return Err(refused(program, number, step, &format!("is refused: {DRAWN_IN_BLOCK}")));
            }
            let Some(stream) = of_step(program, step, host) else { continue };
            let on_cpu = stream.device.kind == DeviceKind::Cpu && stream.stream_type == StreamType::Compute;
            if is_block && !(on_cpu && found.is_none_or(|other| other == stream)) {
                let why =
                    format!("runs on {stream}, and all steps of a block must run on the compute stream of one CPU");
                return Err(refused(
                    program,
                    number,
                    step,
                    &format!("{why}; move it in front of the block or behind it"),
                ));
            }
            found = Some(stream);
        }
        streams.push(found.unwrap_or(StreamKey::new(host, StreamType::Compute, 0)));
    }
    Ok(streams)
}

/// The CPU that runs steps over memory of the host: the first one that a value lives on.
fn host_device(program: &Program) -> DeviceId {
    let mut devices = program.values.iter().filter_map(|value| value.place.device());
    devices.find(|device| device.kind == DeviceKind::Cpu).unwrap_or(HOST_DEVICE)
}

/// The stream of a step; `None` for one that ends a block, which has no operands.
fn of_step(program: &Program, step: &Step, host: DeviceId) -> Option<StreamKey> {
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
    let what = format!("step {number} ({}) {why}", step.work.name());
    ProgramError::NotCompiled { program: program.name.clone(), what }.into()
}
