//! Checked steps, and the call that runs them.
//!
//! Each CPU segment of a compiled program runs as one function: its operands are *buffers*, and the operands of each step are views of these
//! buffers at fixed offsets. [`CpuSequence::new`] checks all steps once; a run only adds the addresses of the buffers.
//!
//! The calling thread runs the steps in their order. With branches ([`CpuSequence::over`]), it and helpers of the process's pool run these side by side.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use smallvec::SmallVec;
use streamvm_ep::backend::NotedRun;
use streamvm_ep::backend::sequence::{
    Buffers, MOST_OPERANDS, Part, PartTime, Parts, PreparedOperands, Rounds, Test, check_branches as check_each_branch,
    check_ordered, first_not_finite, located, params_of_run, placed,
};
use streamvm_ep::{
    DeviceKind, FnContext, OpStates, Operand, Prepared, ProgramStep, Segment, SegmentRun, SequenceBranch,
    SequenceBuffer, SequenceError, SequenceFunction, SequenceGroup, SequenceMemory, SequenceStep, SequenceTime,
    SequenceWork, StepNote,
};

use crate::sequence::group::Group;
use crate::sequence::host_lanes::HostLanes;
use crate::sequence::run_work::run_work;

/// A step that runs by itself. Its operands lie in buffers.
#[derive(Debug)]
struct Single {
    number: usize,
    work: SequenceWork,
    /// Their places among the prepared operands.
    operands: Range<usize>,
}

/// A step, or a group of steps that run together.
#[derive(Debug)]
enum Work {
    Single(Single),
    Group(Box<Group>),
    /// A step that draws random numbers, which are others in each run.
    Draw(Single),
    Function(FunctionStep),
}

/// A step that calls a function of the caller. Its operands lie in buffers.
#[derive(Debug)]
struct FunctionStep {
    number: usize,
    function: SequenceFunction,
    /// Their places among the prepared operands.
    operands: Range<usize>,
}

/// Steps that were checked: every operand lies within its buffer.
#[derive(Debug)]
pub struct CpuSequence {
    buffers: Buffers,
    /// Of the steps that run by themselves.
    operands: PreparedOperands,
    parts: Vec<Part<Work>>,
    /// Set when loops must end.
    stops: Arc<AtomicBool>,
    /// Whether a run looks for infinities and NaN in what its steps write.
    checks_finite: bool,
    /// Whether a step calls a function of the caller, or a registered op.
    calls_functions: bool,
    /// The most operands of a step that runs by itself.
    most_operands: usize,
    /// The parts of each branch, if threads run branches side by side.
    lanes: Option<HostLanes>,
    /// For each part how long it took so far, if runs are timed.
    times: Option<Box<[PartTime]>>,
    /// The labels of the steps, if the stream notes the step that it is at.
    labels: Option<Arc<[ProgramStep]>>,
    /// The states of registered ops on the device; `None` for a sequence that no device has prepared, which runs no op over tensors.
    states: Option<Arc<OpStates>>,
}

impl CpuSequence {
    /// Checks `steps`, whose operands are views of buffers of `buffers` bytes each. `groups` are runs of steps, in ascending order, that
    /// are computed together, block by block.
    ///
    /// # Errors
    /// [`SequenceError::Operands`], [`SequenceError::PastBuffer`], [`SequenceError::Group`] and [`SequenceError::Blocks`].
    pub fn new(
        buffers: &[usize],
        steps: Vec<SequenceStep>,
        groups: &[SequenceGroup],
    ) -> Result<CpuSequence, SequenceError> {
        CpuSequence::over(buffers.iter().map(|&bytes| SequenceBuffer::Bytes(bytes)).collect(), steps, groups, &[])
    }

    /// [`new`](CpuSequence::new) over buffers of which some may have gaps. If there are `branches`, threads run them side by side: as many as kernels of
    /// the stream's thread may use. Without branches all steps run in their order.
    ///
    /// # Errors
    /// Those of [`new`](CpuSequence::new); [`SequenceError::Operands`], too, for an operand that uses other elements than its buffer has, if that has
    /// gaps; [`SequenceError::Branches`] if the branches do not have each step once and in order, if one waits for a later one, if there are blocks, if a
    /// group is in several branches, or if two branches use the same bytes, one of them writing, and neither waits for the other.
    pub fn over(
        buffers: Vec<SequenceBuffer>,
        steps: Vec<SequenceStep>,
        groups: &[SequenceGroup],
        branches: &[SequenceBranch],
    ) -> Result<CpuSequence, SequenceError> {
        let count = buffers.len();
        let calls_functions = steps.iter().any(|step| step.work.is_code_of_a_caller());
        let mut buffers = Buffers::new(buffers);
        for (number, step) in steps.iter().enumerate() {
            step.check_form(number, DeviceKind::CPU)?;
            for (place, operand) in step.operands.iter().enumerate() {
                buffers.add(number, place, operand)?;
            }
        }
        if let Some(group) = groups.iter().find(|group| group.steps.is_empty() || group.steps.end > steps.len()) {
            let what = format!("its steps {:?} are none, or are not among the {} steps", group.steps, steps.len());
            return Err(SequenceError::Group { step: group.steps.start, what });
        }
        check_branches(branches, &steps, groups, count)?;
        let mut parts = Parts::new();
        let mut operands = PreparedOperands::default();
        // For each part its first step.
        let mut begins = Vec::new();
        let mut groups = groups.iter().peekable();
        let mut steps = steps.into_iter();
        let mut number = 0;
        while let Some(step) = steps.next() {
            begins.push(number);
            match groups.next_if(|group| group.steps.start == number) {
                Some(group) => {
                    let others = steps.by_ref().take(group.steps.len() - 1);
                    let group = Group::new(number, std::iter::once(step).chain(others).collect(), group.block)?;
                    number += group.len();
                    parts.work(Work::Group(Box::new(group)));
                }
                None => {
                    match step.work {
                        _ if step.work.is_mark() => parts.mark(number, &in_buffers(number, step)?)?,
                        SequenceWork::Draw { .. } => parts.work(Work::Draw(Single::new(number, step, &mut operands)?)),
                        SequenceWork::Function(_) => {
                            parts.work(Work::Function(FunctionStep::new(number, step, &mut operands)?))
                        }
                        _ => parts.work(Work::Single(Single::new(number, step, &mut operands)?)),
                    }
                    number += 1;
                }
            }
        }
        if let Some(group) = groups.next() {
            let what = format!("its steps {:?} do not come after those of the group before", group.steps);
            return Err(SequenceError::Group { step: group.steps.start, what });
        }
        let parts = parts.finish(number)?;
        operands.finish();
        let of_functions = parts.iter().filter_map(|part| match part {
            Part::Work(Work::Function(function)) => Some(function.operands.len()),
            _ => None,
        });
        let of_steps = parts.iter().filter_map(|part| match part {
            Part::Work(Work::Single(step) | Work::Draw(step)) => Some(step.operands.len()),
            _ => None,
        });
        let of_steps = of_steps.max().unwrap_or(0);
        let most = of_functions.max();
        // Without blocks, each part is work.
        let part_of = |step: usize| begins.partition_point(|begin| *begin < step);
        let parts_of = |branch: &SequenceBranch| part_of(branch.steps.start)..part_of(branch.steps.end);
        let of_branches: Vec<Range<usize>> = branches.iter().map(parts_of).collect();
        Ok(CpuSequence {
            buffers,
            operands,
            parts,
            stops: Arc::default(),
            checks_finite: false,
            calls_functions,
            most_operands: most.unwrap_or(0).max(of_steps).max(MOST_OPERANDS),
            lanes: (!branches.is_empty()).then(|| HostLanes::new(branches, &of_branches)),
            times: None,
            labels: None,
            states: None,
        })
    }

    /// Prepares a segment, for the device with these states.
    ///
    /// # Errors
    /// Those of [`over`](CpuSequence::over).
    pub(crate) fn of_segment(segment: Segment, states: &Arc<OpStates>) -> Result<CpuSequence, SequenceError> {
        let Segment { buffers, steps, groups, branches, options, .. } = segment;
        // Only code of callers and loops can hang.
        let may_hang = |(step, _): &(SequenceStep, ProgramStep)| {
            step.work.is_code_of_a_caller() || matches!(step.work, SequenceWork::While { .. })
        };
        let may_hang = steps.iter().any(may_hang);
        let (steps, labels): (Vec<SequenceStep>, Vec<ProgramStep>) = steps.into_iter().unzip();
        let mut sequence = CpuSequence::over(buffers, steps, &groups, &branches)?;
        (sequence.stops, sequence.checks_finite) = (options.stops, options.checks_finite);
        sequence.states = Some(Arc::clone(states));
        if may_hang || options.notes_steps {
            sequence = sequence.labelled(labels.into());
        }
        Ok(if options.times_steps { sequence.timing() } else { sequence })
    }

    /// The sequence that [`Device::prepare`](streamvm_ep::Device::prepare) has made.
    ///
    /// # Errors
    /// [`SequenceError::Foreign`] if it has made something else.
    pub(crate) fn of(prepared: &dyn Prepared) -> Result<&CpuSequence, SequenceError> {
        let prepared: &dyn Any = prepared;
        prepared.downcast_ref().ok_or(SequenceError::Foreign)
    }

    /// Makes loops fail at their next round from the time when `stops` is set: [`SequenceError::Stopped`].
    #[must_use]
    pub fn stopped_by(mut self, stops: Arc<AtomicBool>) -> CpuSequence {
        self.stops = stops;
        self
    }

    /// Sets whether runs fail at the first step that writes an infinity or NaN while its inputs have none and none was given as a number. This reads each output
    /// once more, and inputs that a step overwrites. Steps in groups are not checked,
    /// and functions are not: their code looks itself.
    #[must_use]
    pub fn checking_finite(mut self, checks: bool) -> CpuSequence {
        self.checks_finite = checks;
        self
    }

    /// Sets that runs note how long each step takes, for which they read the clock twice a step: see [`Prepared::times`].
    #[must_use]
    pub fn timing(mut self) -> CpuSequence {
        self.times = Some(self.parts.iter().map(|_| PartTime::default()).collect());
        self
    }

    /// Sets the labels of the steps: the stream [notes](streamvm_ep::Stream::step_note) which of them it is at. With branches it does not, because several steps run
    /// at once. Of steps in a group it notes the first.
    #[must_use]
    pub fn labelled(mut self, labels: Arc<[ProgramStep]>) -> CpuSequence {
        self.labels = Some(labels).filter(|_| self.lanes.is_none());
        self
    }

    /// Runs all steps over the operands of `context`, which are the buffers in the same order. `run` is the number of the run, which decides
    /// about its random numbers. Kernels and groups use as many threads as those of the stream that calls the function. Blocks until all
    /// steps have run. Afterwards all written operands of `context` count as taken, also after an error.
    ///
    /// # Errors
    /// [`SequenceError::Buffers`], and nothing has run: the number of operands, or the size or layout of one differs, or one
    /// is written by a step and was declared as read, or was taken before. [`SequenceError::Step`], [`SequenceError::Function`] and
    /// [`SequenceError::NotFinite`] for the first step that fails;
    /// [`SequenceError::Rounds`], [`SequenceError::LoopTime`] and [`SequenceError::Stopped`] for a `While` that may not begin another round.
    pub fn run(&self, context: &mut FnContext<'_>, run: u64) -> Result<(), SequenceError> {
        self.run_noting(context, &mut SegmentRun::new(run), None)
    }

    /// [`run`](CpuSequence::run), in which `note` learns of each step, if the sequence has labels.
    pub(crate) fn run_noting(
        &self,
        context: &mut FnContext<'_>,
        run: &mut SegmentRun,
        note: Option<&StepNote>,
    ) -> Result<(), SequenceError> {
        let buffers = context.take_all().map_err(|error| SequenceError::Buffers(error.to_string()))?;
        self.buffers.check(buffers)?;
        let noted = note.zip(self.labels.as_ref()).map(|(note, labels)| note.run(labels));
        let noted = noted.as_ref();
        if self.times.is_some() {
            // SAFETY: `new` has added the operands of the steps to the buffers, and `check` has accepted those of the call. `take_all` has
            // returned them with no written one taken, and they count as taken from now on: so no slice of a written one exists.
            unsafe { self.run_parts::<true>(buffers, run, noted) }
        } else {
            // SAFETY: as above.
            unsafe { self.run_parts::<false>(buffers, run, noted) }
        }
    }

    /// Runs all parts, and notes how long they take if `TIMED`.
    ///
    /// # Safety
    ///
    /// * [`Buffers::check`] has accepted `buffers`, and no slice of a written one exists.
    unsafe fn run_parts<const TIMED: bool>(
        &self,
        buffers: &[Operand],
        run: &mut SegmentRun,
        noted: Option<&NotedRun<'_>>,
    ) -> Result<(), SequenceError> {
        // One set for many parts: to make one costs more than a short function.
        let operands = || -> SmallVec<[Operand<'_>; MOST_OPERANDS]> {
            (0..self.most_operands).map(|_| Operand::blank()).collect()
        };
        let number = run.number;
        match &self.lanes {
            None => {
                let mut rounds = Rounds::after(run.rounds, run.loops_since);
                let all = 0..self.parts.len();
                // SAFETY: the caller has the same duties.
                let ended =
                    unsafe { self.run_range::<TIMED>(buffers, (number, &mut rounds), all, &mut operands(), noted) };
                (run.rounds, run.loops_since) = (rounds.made(), rounds.since());
                ended
            }
            // There are no loops.
            Some(lanes) => lanes.run(operands, |operands, parts| {
                let run = (number, &mut Rounds::default());
                // SAFETY: as above. While these parts run, another thread may hold slices that a function got there. `check_branches` has found that a branch writes no
                // byte that a branch uses which may run at the same time.
                unsafe { self.run_range::<TIMED>(buffers, run, parts, operands, None) }
            }),
        }
    }

    /// Runs these parts, in the run of this number, whose loops have made so many rounds.
    ///
    /// # Safety
    ///
    /// * [`Buffers::check`] has accepted `buffers`, and no slice exists of bytes that these parts write, nor a mutable one of bytes that they use.
    unsafe fn run_range<'m, const TIMED: bool>(
        &self,
        buffers: &[Operand<'m>],
        (run, rounds): (u64, &mut Rounds),
        parts: Range<usize>,
        operands: &mut [Operand<'m>],
        noted: Option<&NotedRun<'_>>,
    ) -> Result<(), SequenceError> {
        let begin = |step: usize| {
            if let Some(noted) = noted {
                noted.begin(step);
            }
        };
        let mut next = parts.start;
        while let Some(part) = self.parts[..parts.end].get(next) {
            let place = next;
            next += 1;
            match part {
                Part::Work(Work::Single(single)) => {
                    let work = &single.work;
                    begin(single.number);
                    // SAFETY: the caller has the same duties.
                    self.timed::<TIMED, _>(place, || unsafe { self.run_single(single, work, buffers, operands) })?;
                }
                Part::Work(Work::Group(group)) => {
                    begin(group.steps().start);
                    // SAFETY: as above.
                    self.timed::<TIMED, _>(place, || unsafe { group.run(buffers) })?;
                }
                Part::Work(Work::Draw(single)) => {
                    let SequenceWork::Draw { kernel, params, advance, in_loop } = &single.work else {
                        unreachable!("`new` makes a draw of no other work")
                    };
                    let made = if *in_loop { rounds.made() } else { 0 };
                    let work = SequenceWork::Kernel(*kernel, params_of_run(params, (*advance, run), made));
                    begin(single.number);
                    // SAFETY: as above.
                    self.timed::<TIMED, _>(place, || unsafe { self.run_single(single, &work, buffers, operands) })?;
                }
                Part::Work(Work::Function(function)) => {
                    begin(function.number);
                    self.timed::<TIMED, _>(place, || {
                        // SAFETY: as above. The slices that a function gets end with its call, because its code takes a context of any lifetime. So
                        // no slice exists when the next part begins.
                        unsafe { function.run(self.placed(&function.operands, buffers, operands)) }
                    })?
                }
                Part::Jump(to) => next = *to,
                Part::Test(test) => {
                    begin(test.step);
                    // SAFETY: as above.
                    let is_true = unsafe { is_true(test, buffers, operands)? };
                    next = test.next(place, is_true, rounds, &self.stops)?;
                }
            }
        }
        Ok(())
    }

    /// Runs a step, whose work is `work`.
    ///
    /// # Safety
    ///
    /// * As for [`placed`].
    #[inline(always)]
    unsafe fn run_single<'m>(
        &self,
        single: &Single,
        work: &SequenceWork,
        buffers: &[Operand<'m>],
        operands: &mut [Operand<'m>],
    ) -> Result<(), SequenceError> {
        // SAFETY: the caller has the same duties.
        let set = unsafe { self.placed(&single.operands, buffers, operands) };
        // SAFETY: the operands were made above. The caller guarantees that no slice of written buffers exists.
        unsafe { single.run(work, set, self.states.as_deref(), self.checks_finite) }
    }

    /// Fills the first entries of `operands` with the operands of a step, and returns them.
    ///
    /// # Safety
    ///
    /// * As for [`placed`].
    #[inline(always)]
    unsafe fn placed<'o, 'm>(
        &self,
        places: &Range<usize>,
        buffers: &[Operand<'m>],
        operands: &'o mut [Operand<'m>],
    ) -> &'o mut [Operand<'m>] {
        // SAFETY: the caller has the same duties; `over` has added what the operands were prepared from to the buffers.
        unsafe { placed(&self.operands, places, buffers, operands) }
    }

    #[inline(always)]
    fn timed<const TIMED: bool, R>(&self, place: usize, part: impl FnOnce() -> R) -> R {
        let Some(time) = self.times.as_ref().filter(|_| TIMED).map(|times| &times[place]) else { return part() };
        let start = Instant::now();
        let result = part();
        time.add(start.elapsed());
        result
    }
}

impl Single {
    fn new(number: usize, step: SequenceStep, prepared: &mut PreparedOperands) -> Result<Single, SequenceError> {
        let step = in_buffers(number, step)?;
        let operands = prepared.add(&step.operands, &step.shared_operands(number)?);
        Ok(Single { number, work: step.work, operands })
    }

    /// Runs the step, whose work is `work`, over its operands.
    ///
    /// # Safety
    ///
    /// * No slice of the operands exists, and no other operand is used that overlaps them.
    #[inline]
    unsafe fn run(
        &self,
        work: &SequenceWork,
        set: &mut [Operand],
        states: Option<&OpStates>,
        checks_finite: bool,
    ) -> Result<(), SequenceError> {
        if checks_finite {
            // SAFETY: the caller has the same duties.
            return unsafe { self.run_checking_finite(work, set, states) };
        }
        run_work(work, set, states).map_err(|error| SequenceError::Step { step: self.number, error })
    }

    /// Runs the step. Fails if it writes an infinity or NaN, and neither was in its inputs nor was given as a number.
    ///
    /// # Safety
    ///
    /// * As for [`Single::run`].
    #[inline(never)]
    unsafe fn run_checking_finite(
        &self,
        work: &SequenceWork,
        set: &mut [Operand],
        states: Option<&OpStates>,
    ) -> Result<(), SequenceError> {
        let failed = |error| SequenceError::Step { step: self.number, error };
        let inputs = set.len().saturating_sub(1);
        // An input that the step overwrites is looked at before, the others only where it matters.
        let mut is_excused = work.is_given_infinities();
        for input in set[..inputs].iter_mut().filter(|input| input.is_shared()) {
            // SAFETY: this is the only operand that is used before it is marked again, and no slice of it outlives the look.
            unsafe { input.set_alone() };
            let found = first_not_finite(input);
            input.set_shared();
            is_excused |= found.map_err(failed)?.is_some();
        }
        run_work(work, set, states).map_err(failed)?;
        let Some((output, inputs)) = set.split_last_mut().filter(|_| !is_excused) else { return Ok(()) };
        // SAFETY: the kernel has returned, and of the operands that overlap this one none is used any more.
        unsafe { output.set_alone() };
        let Some((index, value)) = first_not_finite(output).map_err(failed)? else { return Ok(()) };
        for input in inputs.iter().filter(|input| !input.is_shared()) {
            if first_not_finite(input).map_err(failed)?.is_some() {
                return Ok(());
            }
        }
        Err(SequenceError::NotFinite { step: self.number, index, value })
    }
}

impl FunctionStep {
    fn new(number: usize, step: SequenceStep, prepared: &mut PreparedOperands) -> Result<FunctionStep, SequenceError> {
        let SequenceStep { work, operands } = in_buffers(number, step)?;
        let SequenceWork::Function(function) = work else { unreachable!("the caller has looked at the work") };
        // The context of its call looks for operands that share bytes.
        let shared: SmallVec<[bool; MOST_OPERANDS]> = SmallVec::from_elem(false, operands.len());
        let operands = prepared.add(&operands, &shared);
        Ok(FunctionStep { number, function, operands })
    }

    /// Calls the function over its operands. Operands that share bytes, one of them written, are refused.
    #[inline]
    fn run(&self, set: &mut [Operand]) -> Result<(), SequenceError> {
        let mut context = FnContext::new(set).map_err(|error| SequenceError::Step { step: self.number, error })?;
        self.function.call(&mut context).map_err(|error| SequenceError::Function { step: self.number, error })
    }
}

impl Prepared for CpuSequence {
    fn pauses(&self) -> bool {
        false
    }

    fn calls_functions(&self) -> bool {
        self.calls_functions
    }

    fn times(&self) -> Vec<SequenceTime> {
        let of_part = |(part, time): (&Part<Work>, &PartTime)| {
            let steps = match part {
                Part::Work(Work::Single(single) | Work::Draw(single)) => single.number..single.number + 1,
                Part::Work(Work::Group(group)) => group.steps(),
                Part::Work(Work::Function(function)) => function.number..function.number + 1,
                Part::Test(_) | Part::Jump(_) => return None,
            };
            Some(time.read(steps))
        };
        self.parts.iter().zip(self.times.iter().flatten()).filter_map(of_part).collect()
    }

    fn heap_bytes(&self) -> usize {
        let of_part = |part: &Part<Work>| match part {
            Part::Work(Work::Group(group)) => size_of_val(&**group) + group.heap_bytes(),
            Part::Test(test) => size_of_val(&**test),
            Part::Work(Work::Single(_) | Work::Draw(_) | Work::Function(_)) | Part::Jump(_) => 0,
        };
        let parts: usize = self.parts.iter().map(of_part).sum();
        let lanes = self.lanes.as_ref().map_or(0, HostLanes::heap_bytes);
        let labels = self.labels.as_ref().map_or(0, |labels| size_of_val(&**labels));
        parts
            + labels
            + size_of_val(self.parts.as_slice())
            + lanes
            + self.operands.heap_bytes()
            + self.buffers.heap_bytes()
    }
}

/// Checks branches: they have all steps, and no blocks; each group is within one; and those that use the same bytes of the buffers, of which there are
/// `buffers`, are ordered.
///
/// # Errors
/// [`SequenceError::Branches`]
fn check_branches(
    branches: &[SequenceBranch],
    steps: &[SequenceStep],
    groups: &[SequenceGroup],
    buffers: usize,
) -> Result<(), SequenceError> {
    if branches.is_empty() {
        return Ok(());
    }
    check_each_branch(branches, steps.len())?;
    if let Some(mark) = steps.iter().position(|step| step.work.is_mark()) {
        return Err(SequenceError::Branches { step: mark, what: "it begins or ends a block".to_owned() });
    }
    for SequenceGroup { steps, .. } in groups {
        let branch = branches.partition_point(|branch| branch.steps.end <= steps.start);
        if branches[branch].steps.end < steps.end {
            let what = format!("the steps {steps:?} of its group are in several branches");
            return Err(SequenceError::Branches { step: steps.start, what });
        }
    }
    check_ordered(branches, steps, buffers)
}

/// The step, if its operands lie in buffers.
fn in_buffers(number: usize, step: SequenceStep) -> Result<SequenceStep, SequenceError> {
    if step.operands.iter().any(|operand| matches!(operand.memory, SequenceMemory::Scratch(_))) {
        let what = "it uses scratch memory, and is in no group".to_owned();
        return Err(SequenceError::Group { step: number, what });
    }
    Ok(step)
}

/// Whether the condition, a bool, is true.
///
/// # Safety
///
/// * As for [`Single::run`].
unsafe fn is_true<'m>(
    test: &Test,
    buffers: &[Operand<'m>],
    operands: &mut [Operand<'m>],
) -> Result<bool, SequenceError> {
    // SAFETY: the caller has the same duties.
    let operands = unsafe { located(std::slice::from_ref(&test.condition), buffers, operands) };
    let bytes = operands[0].bytes().map_err(|error| SequenceError::Step { step: test.step, error })?;
    Ok(bytes.iter().any(|byte| *byte != 0))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
