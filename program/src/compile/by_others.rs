//! Where the steps of a block run whose segment is on a device that runs commands later: most are commands of the device, and some are the host's or another device's.
//!
//! | step | runs |
//! |---|---|
//! | a kernel or fill over memory of a CPU, a function, an inner block of such steps alone | on the host |
//! | a copy between memories that the host reaches | on the host |
//! | a copy between memory of a device and of the host | half by that device, half by the host, by way of the flag |
//! | any other, such as a copy from or to page-locked memory | on the device of its output |
//! | an inner block of such steps of one other device alone | on that device |
//!
//! A block may use several devices of a kind: the first one has the segment, and steps of the others run between its commands.

use std::ops::Range;

use streamvm_ep::DeviceId;
use streamvm_instructions::{HOST_DEVICE, Place};

use crate::ir::program::{Operand, Program, Step, Value, Work};
use crate::plan::compiled::{OtherPart, OtherRole};

/// The devices that run a step of a block.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum RunsOn {
    /// A device other than a CPU.
    Device(DeviceId),
    /// This CPU.
    Host(DeviceId),
    /// A CPU and a device, one after the other: the CPU, and the role.
    Both(DeviceId, OtherRole),
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
        (End::Host(cpu), End::Device(device)) => RunsOn::Both(cpu, OtherRole::Upload(device)),
        (End::Device(device), End::Host(cpu)) => RunsOn::Both(cpu, OtherRole::Download(device)),
        (_, End::Host(cpu)) | (End::Host(cpu), End::Locked(_)) => RunsOn::Host(cpu),
        // Of two devices the target's, as for eager copies.
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

/// The steps at these positions of a segment of `main`, a device that runs commands later, which are not, or not alone, commands of that device. `order` has the
/// number of the step at each position.
pub(super) fn parts(
    program: &Program,
    (host, main): (DeviceId, DeviceId),
    order: &[usize],
    positions: Range<usize>,
) -> Vec<OtherPart> {
    let step = |position: usize| &program.steps[order[position]];
    if !positions.clone().any(|position| step(position).work.is_mark()) {
        return Vec::new();
    }
    let blocks = OneRunner::of(positions.clone().map(step), |step| runs_on(program, step, host));
    let mut found: Vec<OtherPart> = Vec::new();
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
                Some(OtherPart { steps, device: known, .. }) if joined == here && *known == device && !calls => {
                    steps.end = end;
                }
                _ => found.push(OtherPart { steps: here..end, device, role: OtherRole::Run }),
            }
            joined = if calls { usize::MAX } else { end };
        };
        let on = runs_on(program, step(here), host);
        let other = match on {
            RunsOn::Host(device) => Some(device),
            RunsOn::Device(device) => Some(device).filter(|device| *device != main),
            RunsOn::Both(..) | RunsOn::Nothing => None,
        };
        match (&step(here).work, on, other) {
            (Work::End, ..) => depth -= 1,
            (Work::If | Work::While, _, Some(device)) => match blocks.end_of(here - positions.start) {
                Some(end) if depth > 0 => {
                    next = positions.start + end;
                    run(device, next);
                }
                _ => {
                    depth += 1;
                    found.push(OtherPart { steps: here..next, device, role: OtherRole::Condition });
                }
            },
            (Work::If | Work::While, _, None) => depth += 1,
            (Work::Else, ..) => {}
            // Steps outside of blocks are on the device of their segment.
            (_, _, Some(device)) if depth > 0 => run(device, next),
            (_, RunsOn::Both(device, role), _) if depth > 0 => {
                found.push(OtherPart { steps: here..next, device, role });
            }
            _ => {}
        }
    }
    found
}

/// The blocks all of whose steps one runner runs: the host, or one device.
struct OneRunner {
    /// For each step that begins one, the step after its end.
    ends: Vec<Option<usize>>,
}

/// The runner of the steps of a block that has begun, as far as is known.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Runner {
    Host,
    Device(DeviceId),
    Several,
}

impl OneRunner {
    fn of<'p>(steps: impl Iterator<Item = &'p Step>, runs_on: impl Fn(&Step) -> RunsOn) -> OneRunner {
        let mut ends: Vec<Option<usize>> = Vec::new();
        let mut open: Vec<(usize, Runner)> = Vec::new();
        for (place, step) in steps.enumerate() {
            ends.push(None);
            let runner = match runs_on(step) {
                RunsOn::Host(_) => Some(Runner::Host),
                RunsOn::Device(device) => Some(Runner::Device(device)),
                RunsOn::Both(..) => Some(Runner::Several),
                RunsOn::Nothing => None,
            };
            if let (Work::If | Work::While, Some(runner)) = (&step.work, runner) {
                open.push((place, runner));
            }
            let add = |open: &mut Vec<(usize, Runner)>, runner: Runner| {
                if let Some((_, known)) = open.last_mut().filter(|(_, known)| *known != runner) {
                    *known = Runner::Several;
                }
            };
            runner.into_iter().for_each(|runner| add(&mut open, runner));
            if step.work == Work::End
                && let Some((begin, runner)) = open.pop()
            {
                ends[begin] = (runner != Runner::Several).then_some(place + 1);
                add(&mut open, runner);
            }
        }
        OneRunner { ends }
    }

    /// The step after the block that begins here, if one runner runs all of it.
    fn end_of(&self, begin: usize) -> Option<usize> {
        self.ends[begin]
    }
}
