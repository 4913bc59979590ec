//! Where the steps of a block run whose segment is on a device that runs commands later: most are commands of the device, and some are the host's.
//!
//! | step | runs |
//! |---|---|
//! | a kernel or fill over memory of a CPU, a function, an inner block of such steps alone | on the host |
//! | a copy between memories that the host reaches | on the host |
//! | a copy between memory of the device and of the host | half by the device, half by the host, by way of the flag |
//! | any other, such as a copy from or to page-locked memory | on the device |

use std::ops::Range;

use streamvm_ep::DeviceId;
use streamvm_instructions::{HOST_DEVICE, Place};

use crate::ir::program::{Operand, Program, Step, Value, Work};
use crate::plan::compiled::{HostPart, HostRole};

/// The devices that run a step of a block.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum RunsOn {
    /// A device other than a CPU: the one of these operands.
    Device(DeviceId),
    /// This CPU.
    Host(DeviceId),
    /// This CPU and a device, one after the other.
    Both(DeviceId, DeviceId, HostRole),
    /// It ends a block, and does nothing.
    Nothing,
}

/// Finds which devices run a step of a block. `host` is the CPU that works with memory outside of devices.
pub(super) fn runs_on(program: &Program, step: &Step, host: DeviceId) -> RunsOn {
    if let Some(function) = step.function() {
        return RunsOn::Host(function.device());
    }
    let end = |operand: &Operand| End::of(program.value(operand.value), host);
    let Some(last) = step.operands.last().map(end) else { return RunsOn::Nothing };
    let (Work::Copy, [source, target]) = (&step.work, &step.operands[..]) else {
        return match last {
            End::Host(cpu) => RunsOn::Host(cpu),
            End::Locked(device) | End::Device(device) => RunsOn::Device(device),
        };
    };
    match (end(source), end(target)) {
        (End::Host(cpu), End::Device(device)) => RunsOn::Both(cpu, device, HostRole::Upload),
        (End::Device(device), End::Host(cpu)) => RunsOn::Both(cpu, device, HostRole::Download),
        (_, End::Host(cpu)) | (End::Host(cpu), End::Locked(_)) => RunsOn::Host(cpu),
        // Of two devices the target's; the other one is found by the check of the block.
        (_, End::Device(device) | End::Locked(device)) => RunsOn::Device(device),
    }
}

/// Where an operand is.
#[derive(Copy, Clone)]
enum End {
    /// In memory that the host reaches, with the CPU that works with it.
    Host(DeviceId),
    /// In page-locked memory of a device.
    Locked(DeviceId),
    /// In memory of a device.
    Device(DeviceId),
}

impl End {
    fn of(value: &Value, host: DeviceId) -> End {
        match value.place {
            Place::Host => End::Host(host),
            Place::Device(device) if device.kind.is_cpu() => End::Host(device),
            Place::Device(device) if value.memory.is_page_locked() => End::Locked(device),
            Place::Device(device) => End::Device(device),
        }
    }
}

/// The devices other than CPUs that a step of a block uses. Page-locked memory of a device that the host alone uses does not count.
pub(super) fn devices<'p>(program: &'p Program, step: &'p Step, host: DeviceId) -> impl Iterator<Item = DeviceId> + 'p {
    let by_host = matches!(runs_on(program, step, host), RunsOn::Host(_));
    let of_value = move |operand: &Operand| match End::of(program.value(operand.value), host) {
        End::Locked(_) if by_host => None,
        End::Host(device) | End::Locked(device) | End::Device(device) => Some(device),
    };
    let of_values = step.operands.iter().filter_map(of_value);
    of_values.chain(step.function().map(|function| function.device())).filter(|device| !device.kind.is_cpu())
}

/// The CPU that runs steps over memory of the host: the first one that a value lives on.
pub(super) fn host_device(program: &Program) -> DeviceId {
    let mut devices = program.values.iter().filter_map(|value| value.place.device());
    devices.find(|device| device.kind.is_cpu()).unwrap_or(HOST_DEVICE)
}

/// The steps at these positions of a segment on a device that runs commands later which are not, or not alone, commands of the device. `order` has the number of
/// the step at each position.
pub(super) fn parts(program: &Program, host: DeviceId, order: &[usize], positions: Range<usize>) -> Vec<HostPart> {
    let step = |position: usize| &program.steps[order[position]];
    if !positions.clone().any(|position| step(position).work.is_mark()) {
        return Vec::new();
    }
    let blocks = HostBlocks::of(positions.clone().map(step), |step| runs_on(program, step, host));
    let mut found: Vec<HostPart> = Vec::new();
    let (mut next, mut depth) = (positions.start, 0);
    // The end of steps that the next one may join. Outside of inner blocks a function is a part by itself, which a report about a run that hangs
    // names.
    let mut joined = usize::MAX;
    while next < positions.end {
        let here = next;
        next += 1;
        let calls = step(here).function().is_some();
        let mut run = |device: DeviceId, end: usize| {
            match found.last_mut() {
                Some(HostPart { steps, device: known, .. }) if joined == here && *known == device && !calls => {
                    steps.end = end;
                }
                _ => found.push(HostPart { steps: here..end, device, role: HostRole::Run }),
            }
            joined = if calls { usize::MAX } else { end };
        };
        let on = runs_on(program, step(here), host);
        match (&step(here).work, on) {
            (Work::End, _) => depth -= 1,
            (Work::If | Work::While, RunsOn::Host(device)) => match blocks.end_of(here - positions.start) {
                Some(end) if depth > 0 => {
                    next = positions.start + end;
                    run(device, next);
                }
                _ => {
                    depth += 1;
                    found.push(HostPart { steps: here..next, device, role: HostRole::Condition });
                }
            },
            (Work::If | Work::While, _) => depth += 1,
            (Work::Else, _) => {}
            // Steps outside of blocks are on the device of their segment.
            (_, RunsOn::Host(device)) if depth > 0 => run(device, next),
            (_, RunsOn::Both(device, _, role)) if depth > 0 => found.push(HostPart { steps: here..next, device, role }),
            _ => {}
        }
    }
    found
}

/// The blocks that the host runs whole.
struct HostBlocks {
    /// For each step that begins one, the step after its end.
    ends: Vec<Option<usize>>,
}

impl HostBlocks {
    fn of<'p>(steps: impl Iterator<Item = &'p Step>, runs_on: impl Fn(&Step) -> RunsOn) -> HostBlocks {
        let mut ends: Vec<Option<usize>> = Vec::new();
        // Blocks that have begun, and whether the host runs all of them so far.
        let mut open: Vec<(usize, bool)> = Vec::new();
        for (place, step) in steps.enumerate() {
            ends.push(None);
            let by_host = matches!(runs_on(step), RunsOn::Host(_) | RunsOn::Nothing);
            if matches!(step.work, Work::If | Work::While) {
                open.push((place, true));
            }
            if let Some((_, all)) = open.last_mut() {
                *all &= by_host;
            }
            if step.work == Work::End
                && let Some((begin, all)) = open.pop()
            {
                ends[begin] = all.then_some(place + 1);
                if let Some((_, around)) = open.last_mut() {
                    *around &= all;
                }
            }
        }
        HostBlocks { ends }
    }

    /// The step after the block that begins here, if the host runs it whole.
    fn end_of(&self, begin: usize) -> Option<usize> {
        self.ends[begin]
    }
}
