//! Prepares the steps of a segment on a device that runs commands later in which the host has a part.

use std::sync::Arc;

use streamvm_ep::{
    self as ep, HostCode, HostSteps, HostWork, Layout, Operand, Prepared, ProgramStep, SegmentRun, SequenceError,
    SequenceMemory, SequenceOperand, SequenceStep,
};
use streamvm_instructions::Error;
use streamvm_program::{Compiled, HostPart, HostRole, Segment};

use crate::execute::environment::Environment;
use crate::program_cache::load::{buffers, groups, is_flag, not_loaded, options, would_pause};

/// The steps of a segment in which the host has a part, prepared by its CPUs.
#[allow(unsafe_code, reason = "says that the host reaches the memory of such steps")]
pub(super) fn host_steps(
    env: &Environment,
    compiled: &Compiled,
    segment: &Segment,
    steps: &[(SequenceStep, ProgramStep)],
) -> Result<Vec<HostSteps>, Error> {
    let flag = segment.uses.iter().position(|it| is_flag(compiled, it));
    let prepare = |HostPart { steps: range, device, role }: &HostPart| {
        let cpu = Arc::clone(env.devices.get(*device)?);
        let first = segment.steps.start;
        let of_part = range.start - first..range.end - first;
        let mut of_host = steps[of_part.clone()].to_vec();
        let through_flag = |operand: &mut SequenceOperand| {
            operand.memory = SequenceMemory::Buffer { index: flag.unwrap_or(usize::MAX), offset: 0 };
            operand.layout = Layout::contiguous(*operand.layout.shape());
        };
        match role {
            HostRole::Condition | HostRole::Run => {}
            HostRole::Upload => through_flag(&mut of_host[0].0.operands[1]),
            HostRole::Download => through_flag(&mut of_host[0].0.operands[0]),
        }
        let code = || -> Result<HostCode, Error> {
            let prepared = cpu.prepare(ep::Segment {
                buffers: buffers(compiled, segment),
                steps: of_host.clone(),
                groups: groups(compiled, range.clone(), |_| true),
                options: options(env, compiled),
                ..ep::Segment::default()
            });
            let prepared = prepared.map_err(|error| not_loaded(compiled, range.start, &error))?;
            if prepared.pauses() {
                return Err(would_pause(compiled, *device));
            }
            let executes = move |prepared: &dyn Prepared, operands: &mut [Operand<'static>], run: &mut SegmentRun| {
                let failed = |error| SequenceError::Step { step: 0, error };
                match cpu.create_stream().map_err(failed)?.execute(prepared, operands, run)? {
                    None => Ok(()),
                    Some(_) => unreachable!("what pauses was refused when it was loaded"),
                }
            };
            Ok(HostCode::new(&of_host, prepared, Arc::new(executes)))
        };
        let work = match role {
            HostRole::Run => HostWork::Run(code()?),
            HostRole::Upload => HostWork::Upload(code()?),
            HostRole::Download => HostWork::Download(code()?),
            HostRole::Condition => HostWork::Condition,
        };
        // SAFETY: the compiler makes parts of the host of steps over memory of CPUs and page-locked memory, and the flag is page-locked. The engine calls the rest of
        // a segment once the device has passed what was queued before: see `RestOfSegment`.
        Ok(unsafe { HostSteps::new(of_part, work) })
    };
    segment.host.iter().map(prepare).collect()
}
