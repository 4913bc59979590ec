//! Runs that are watched step by step, and the times of steps.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashSet;
use streamvm_ep::{SequenceTime, Site};
use streamvm_instructions::{Error, InstructionList, ProgramError, Tensor};
use streamvm_program::{CompiledStep, Costs, Located, Segment};

use crate::engine::core::Engine;
use crate::engine::submission::Full;
use crate::program_cache::function::CallTime;
use crate::program_cache::loaded::LoadedSegment;
use crate::programs::executable::{Executable, Run};
use crate::programs::fetches::Fetches;
use crate::submit::commit::Submitted;
use crate::ticket::Ticket;

/// A watched step, as the hook sees it before or after it runs.
#[derive(Debug)]
pub struct WatchedStep<'w> {
    /// The step; for a block, the step that begins it and all steps in it.
    pub steps: Vec<CompiledStep<'w>>,
    /// What it reads. The elements are those before the step.
    pub inputs: Vec<Tensor>,
    /// What it writes. Before the step, a tensor that no earlier step has written has no elements: reading them is an error.
    pub outputs: Vec<Tensor>,
    /// How long it took, from its submission until it had passed; `None` before the step.
    pub took: Option<Duration>,
}

impl WatchedStep<'_> {
    /// The number of the step in the program: the steps of a program print in this order.
    pub fn number(&self) -> usize {
        self.steps[0].number
    }

    /// The word for its work, such as the name of its op.
    pub fn name(&self) -> &'static str {
        self.steps[0].work.name()
    }
}

/// Which steps [`Executable::run_watched`] waits for.
#[derive(Copy, Clone, Debug)]
pub enum Watch<'w> {
    /// Each of them.
    All,
    /// The steps with these numbers in the program. The others are submitted without a wait. Numbers of removed or nonexistent steps are
    /// ignored.
    Steps(&'w [usize]),
}

/// How long steps took in all runs so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTime {
    /// The steps, as a range of [`Compiled::steps`](streamvm_program::Compiled::steps): one, or several that run together.
    pub steps: Range<usize>,
    /// How often they ran.
    pub runs: u64,
    /// How long all of these took together.
    pub time: Duration,
}

impl Executable {
    /// Runs the program step by step. For each step that `watch` names, `hook` is called twice: before the step is submitted, with everything
    /// before it passed, and when it has passed. It may read and change the elements of the inputs and outputs; later steps see the changes.
    /// Blocks until all steps have passed.
    ///
    /// ```
    /// use streamvm::program::CompileOptions;
    /// use streamvm::{DType, DeviceId, Vm, Watch};
    ///
    /// # fn main() -> Result<(), streamvm::Error> {
    /// let vm = Vm::builder().build()?;
    /// let cpu = DeviceId::cpu(0);
    /// let program = vm.record("p", |r| {
    ///     let x = r.feed("x", cpu, DType::F32, &[2])?;
    ///     r.fetch("y", &(&x + &x)?.exp()?)
    /// })?;
    /// let options = CompileOptions { step_by_step: true, ..CompileOptions::default() };
    /// let executable = vm.compile(&program, &[], &options)?;
    /// let x = vm.from_slice(&[0f32, 1.0], &[2])?;
    /// let mut seen = Vec::new();
    /// executable.run_watched(&[("x", &x)], Watch::All, &mut |step| {
    ///     if step.took.is_some() {
    ///         seen.push((step.name(), step.outputs[0].to_vec::<f32>()?[0]));
    ///     }
    ///     Ok(())
    /// })?;
    /// assert_eq!(seen, [("add", 0.0), ("exp", 1.0)]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ProgramError::NotStepByStep`] if the program was not compiled with
    /// [`CompileOptions::step_by_step`](streamvm_program::CompileOptions::step_by_step); [`ProgramError::WatchedSection`] if the program has a critical
    /// section, because other holders could come between steps that are submitted one by one; those of [`run`](Executable::run); the failure of a step;
    /// the error that `hook` returns. The steps after it are not submitted then.
    #[track_caller]
    pub fn run_watched(
        &self,
        feeds: &[(&str, &Tensor)],
        watch: Watch<'_>,
        hook: &mut dyn FnMut(&WatchedStep<'_>) -> Result<(), Error>,
    ) -> Result<Fetches, Error> {
        let site = Site::caller();
        if self.inner.has_bounded_sizes() {
            let sized = self.at_sizes_of(feeds).map_err(|error| error.called_from(site))?;
            return sized.watched_run(feeds, watch, hook, site);
        }
        self.watched_run(feeds, watch, hook, site)
    }

    fn watched_run(
        &self,
        feeds: &[(&str, &Tensor)],
        watch: Watch<'_>,
        hook: &mut dyn FnMut(&WatchedStep<'_>) -> Result<(), Error>,
        site: Site,
    ) -> Result<Fetches, Error> {
        let Some(engine) = self.engine.upgrade() else { return Err(Error::shutdown()) };
        let compiled = self.compiled();
        if !compiled.is_step_by_step() {
            return Err(ProgramError::NotStepByStep { program: compiled.program().name.clone() }.into());
        }
        let section = compiled.steps().find_map(|step| Some((step.work.section()?, step.site)));
        if let Some((section, site)) = section {
            let (program, section) = (compiled.program().name.clone(), section.to_string());
            return Err(ProgramError::WatchedSection { program, section, site }.into());
        }
        let given = self.given(&engine, feeds, site).map_err(|error| error.called_from(site))?;
        let run = self.begin_submitted(&engine, None, &given, site).map_err(|error| error.called_from(site))?;
        let named: HashSet<usize> =
            if let Watch::Steps(numbers) = watch { numbers.iter().copied().collect() } else { HashSet::new() };
        let mut pending = Vec::new();
        for (number, segment) in compiled.segments().iter().enumerate() {
            let steps: Vec<CompiledStep<'_>> = compiled.steps_of(segment.steps.clone()).collect();
            let is_watched = match watch {
                Watch::All => true,
                Watch::Steps(_) => steps.iter().any(|step| named.contains(&step.number)),
            };
            let mut watched = if is_watched { Some(watched(steps, &run)?) } else { None };
            if watched.is_some() || !segment.waits.is_empty() {
                wait(&engine, &mut pending)?;
            }
            if let Some(step) = &watched {
                hook(step)?;
            }
            let mut list = InstructionList::new();
            self.push_segment(&mut list, number, &run)?;
            let started = Instant::now();
            let mut submitted = Submitted::default();
            engine.submit(&mut list, Full::Blocks, &mut submitted)?;
            if let Some(function) = compiled.function_of(segment) {
                function.note_issued();
            }
            pending.push(submitted);
            if let Some(step) = &mut watched {
                wait(&engine, &mut pending)?;
                step.took = Some(started.elapsed());
                hook(step)?;
            }
        }
        wait(&engine, &mut pending)?;
        engine.failures.log_unseen();
        self.fetches(&run, Submitted::default())
    }

    /// How long each step took in all runs so far, in the order of the plan; nothing unless the program was compiled with
    /// [`CompileOptions::time_steps`](streamvm_program::CompileOptions::time_steps). Steps that run together have one time. On devices other than CPUs a time
    /// lasts from when the step is queued until the host knows that it has run. Copies between devices and collectives of GPUs have none, nor have steps that begin or end blocks or critical
    /// sections. A program with bounded sizes has none: its times are those of the [executables for its sizes](Executable::at_sizes_of). Does not block.
    pub fn step_times(&self) -> Vec<StepTime> {
        let of_segment = |(segment, loaded): (&Segment, &LoadedSegment)| {
            let times = match loaded {
                LoadedSegment::Prepared(prepared) => prepared.times(),
                LoadedSegment::Function(function) => {
                    let time = function.time.as_ref().map(CallTime::read);
                    time.map(|(runs, time)| SequenceTime { steps: 0..1, runs, time }).into_iter().collect()
                }
                LoadedSegment::Transfer | LoadedSegment::Touch | LoadedSegment::SectionMark => Vec::new(),
            };
            let first = segment.steps.start;
            times.into_iter().map(move |SequenceTime { steps, runs, time }| StepTime {
                steps: first + steps.start..first + steps.end,
                runs,
                time,
            })
        };
        self.compiled().segments().iter().zip(&self.inner.segments).flat_map(of_segment).collect()
    }
}

impl Executable {
    /// The mean times of [`step_times`](Executable::step_times), as costs by which the compiler spreads steps of this and other programs over lanes
    /// ([`CompileOptions::costs`](streamvm_program::CompileOptions::costs)). Steps that run together have no time of their own and are left out: compile
    /// without `fuse` to measure each. Does not block.
    ///
    /// ```
    /// use streamvm::program::CompileOptions;
    /// use streamvm::{DType, DeviceId, Vm};
    ///
    /// # fn main() -> Result<(), streamvm::Error> {
    /// let vm = Vm::builder().build()?;
    /// let cpu = DeviceId::cpu(0);
    /// let program = vm.record("p", |r| {
    ///     let x = r.feed("x", cpu, DType::F32, &[64, 64])?;
    ///     r.fetch("y", &(&x.matmul(&x)? + &x.exp()?.tanh()?)?)
    /// })?;
    /// let timed = CompileOptions { time_steps: true, fuse: false, ..CompileOptions::default() };
    /// let timed = vm.compile(&program, &[], &timed)?;
    /// timed.run(&[("x", &vm.ones(cpu, DType::F32, &[64, 64])?)])?.wait()?;
    /// let options = CompileOptions { lanes: 2, costs: timed.costs(), ..CompileOptions::default() };
    /// let spread = vm.compile(&program, &[], &options)?;
    /// # assert!(spread.compiled().segments().len() <= 4);
    /// # Ok(())
    /// # }
    /// ```
    pub fn costs(&self) -> Costs {
        let mut costs = Costs::default();
        for StepTime { steps, runs, time } in self.step_times() {
            if steps.len() == 1 && runs > 0 {
                let number = self.compiled().step(steps.start).number;
                costs.add_times(self.compiled().program(), number, runs, time);
            }
        }
        costs
    }
}

/// Waits for the submissions, in order.
#[track_caller]
fn wait(engine: &Arc<Engine>, pending: &mut Vec<Submitted>) -> Result<(), Error> {
    for submitted in pending.drain(..) {
        let mut ticket = Ticket::new(engine);
        ticket.submitted = submitted;
        ticket.wait()?;
    }
    Ok(())
}

fn watched<'w>(steps: Vec<CompiledStep<'w>>, run: &Run<'_>) -> Result<WatchedStep<'w>, Error> {
    let mut known: Vec<Located<'_>> = Vec::new();
    let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
    for operand in steps.iter().flat_map(|step| &step.operands) {
        // A block uses some views again and again.
        if known.contains(operand) {
            continue;
        }
        known.push(*operand);
        let tensor = run.view(operand)?;
        if operand.access.writes() { outputs.push(tensor) } else { inputs.push(tensor) }
    }
    Ok(WatchedStep { steps, inputs, outputs, took: None })
}
