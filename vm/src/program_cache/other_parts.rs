//! Prepares the steps of a segment on a device that runs commands later in which the host or other devices have a part.

use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use streamvm_ep::{
    self as ep, Device, DeviceCode, DeviceId, HostCode, Layout, Operand, OtherSteps, OtherWork, Prepared, ProgramStep,
    SegmentOptions, SegmentRun, SequenceError, SequenceMemory, SequenceStep, SequenceWork,
};
use streamvm_instructions::{Error, ProgramError};
use streamvm_program::{Compiled, OtherPart, OtherRole, Segment};

use crate::execute::environment::Environment;
use crate::program_cache::load::{buffers, flag, groups, not_loaded, options, place_of_flag, would_pause};

/// Steps, and how reports name them.
type Steps = [(SequenceStep, ProgramStep)];

/// The steps of a segment in which others have a part, prepared by these.
#[allow(unsafe_code, reason = "says that the host and other devices reach the memory of such steps")]
pub(super) fn other_steps(
    env: &Environment,
    compiled: &Compiled,
    segment: &Segment,
    steps: &Steps,
) -> Result<Vec<OtherSteps>, Error> {
    let parts = Parts { env, compiled, segment };
    let prepare = |OtherPart { steps: range, device, role }: &OtherPart| {
        let first = segment.steps.start;
        let of_part = range.start - first..range.end - first;
        let steps = &steps[of_part.clone()];
        let is_host = device.kind.is_run_by_host();
        let by = |device: DeviceId, end: usize| match device == segment.stream.device {
            true => Ok(None),
            false => parts.copy(&parts.through_flag(steps, end), range, device).map(Some),
        };
        let work = match *role {
            OtherRole::Run if is_host => OtherWork::Host(parts.of_host(steps, range, *device)?),
            OtherRole::Run => OtherWork::Device(parts.of_device(steps, range, *device)?),
            OtherRole::Upload(copies) => {
                let by = by(copies, 0)?;
                OtherWork::Upload(parts.of_host(&parts.through_flag(steps, 1), range, *device)?, by)
            }
            OtherRole::Download(copies) => {
                let by = by(copies, 1)?;
                OtherWork::Download(parts.of_host(&parts.through_flag(steps, 0), range, *device)?, by)
            }
            OtherRole::Condition if is_host => OtherWork::Condition,
            OtherRole::Condition => {
                OtherWork::CopiedCondition(parts.copy(&parts.condition_to_flag(steps), range, *device)?)
            }
        };
        // SAFETY: the compiler makes parts of the host of steps over memory of CPUs and page-locked memory, and the flag is page-locked; it makes those of another
        // device of steps over memory of that device, and of copies. The engine calls the rest of a segment once the device has passed what was queued before: see
        // `RestOfSegment`. The drop of a lent stream waits for its commands: see `LentStreams`.
        Ok(unsafe { OtherSteps::new(of_part, work) })
    };
    segment.others.iter().map(prepare).collect()
}

/// Prepares parts of a segment.
struct Parts<'p> {
    env: &'p Environment,
    compiled: &'p Compiled,
    segment: &'p Segment,
}

impl Parts<'_> {
    /// Steps of a CPU.
    fn of_host(&self, steps: &Steps, range: &Range<usize>, device: DeviceId) -> Result<HostCode, Error> {
        let cpu = Arc::clone(self.env.devices.get(device)?);
        let prepared = self.prepare(&*cpu, steps, range, options(self.env, self.compiled))?;
        if prepared.pauses() {
            return Err(would_pause(self.compiled, device));
        }
        let executes = move |prepared: &dyn Prepared, operands: &mut [Operand<'static>], run: &mut SegmentRun| {
            let failed = |error| SequenceError::Step { step: 0, error };
            match cpu.create_stream().map_err(failed)?.execute(prepared, operands, run)? {
                None => Ok(()),
                Some(_) => unreachable!("what pauses was refused when it was loaded"),
            }
        };
        Ok(HostCode::new(steps, prepared, Arc::new(executes)))
    }

    /// Steps of another device.
    fn of_device(&self, steps: &Steps, range: &Range<usize>, device: DeviceId) -> Result<DeviceCode, Error> {
        let smallest_graph = self.compiled.captures().then(|| self.compiled.smallest_graph());
        self.on_device(steps, range, device, SegmentOptions { smallest_graph, ..options(self.env, self.compiled) })
    }

    /// A copy from or to the flag by another device.
    fn copy(&self, steps: &Steps, range: &Range<usize>, device: DeviceId) -> Result<DeviceCode, Error> {
        // Neither looked at nor timed, so it does not pause.
        self.on_device(steps, range, device, SegmentOptions::default())
    }

    fn on_device(
        &self,
        steps: &Steps,
        range: &Range<usize>,
        device: DeviceId,
        options: SegmentOptions,
    ) -> Result<DeviceCode, Error> {
        let (own, main) = (self.env.devices.get(device)?, self.segment.stream.device);
        if !ptr::eq(own.events(), self.env.devices.get(main)?.events()) {
            let step = self.compiled.step(range.start).named();
            let what = format!(
                "uses {device} in a block of {main}, and these devices cannot wait for each other; move what uses {device} before the block or after it"
            );
            let program = self.compiled.program().name.clone();
            return Err(ProgramError::NotCompiled { program, step: Some(step), what }.into());
        }
        let prepared = self.prepare(&**own, steps, range, options)?;
        Ok(DeviceCode::new(steps, prepared, self.env.lent_streams.of(own)))
    }

    /// Prepares these steps, which `range` is of the program.
    fn prepare(
        &self,
        device: &dyn Device,
        steps: &Steps,
        range: &Range<usize>,
        options: SegmentOptions,
    ) -> Result<Box<dyn Prepared>, Error> {
        let is_by_host = device.id().kind.is_run_by_host();
        let prepared = device.prepare(ep::Segment {
            buffers: buffers(self.compiled, self.segment),
            steps: steps.to_vec(),
            groups: groups(self.compiled, range.clone(), |_| true),
            flag: flag(self.compiled, self.segment).filter(|_| !is_by_host && !self.uses_flag(steps)),
            options,
            ..ep::Segment::default()
        });
        prepared.map_err(|error| not_loaded(self.compiled, range.start, &error))
    }

    /// Whether a step has the flag as an operand.
    fn uses_flag(&self, steps: &Steps) -> bool {
        let flag = place_of_flag(self.compiled, self.segment);
        steps
            .iter()
            .flat_map(|(step, _)| &step.operands)
            .any(|operand| matches!(operand.memory, SequenceMemory::Buffer { index, .. } if Some(index) == flag))
    }

    /// A copy with the flag in the place of its source or target.
    fn through_flag(&self, steps: &Steps, end: usize) -> Vec<(SequenceStep, ProgramStep)> {
        let mut copy = steps.to_vec();
        let operand = &mut copy[0].0.operands[end];
        operand.memory = self.flag();
        operand.layout = Layout::contiguous(*operand.layout.shape());
        copy
    }

    /// A copy of the condition of a block to the flag.
    fn condition_to_flag(&self, steps: &Steps) -> Vec<(SequenceStep, ProgramStep)> {
        let (begin, label) = &steps[0];
        let source = begin.operands[0].clone();
        let layout = Layout::contiguous(*source.layout.shape());
        let target = ep::SequenceOperand { memory: self.flag(), layout, access: ep::Access::Write, ..source.clone() };
        vec![(SequenceStep { work: SequenceWork::Copy, operands: [source, target].into_iter().collect() }, *label)]
    }

    fn flag(&self) -> SequenceMemory {
        let index = place_of_flag(self.compiled, self.segment).unwrap_or(usize::MAX);
        SequenceMemory::Buffer { index, offset: 0 }
    }
}
