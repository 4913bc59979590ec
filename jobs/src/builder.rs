//! A job plan by hand.

use crate::error::JobPlanError;
use streamvm::Lane;

use crate::job_plan::{Accumulator, Job, JobPlan, JobStage, StagePeak, label};
use crate::links::{Links, link};
use crate::programs::JobProgram;
use crate::{peaks, timeline};
use streamvm::program::Compiled;

/// The most jobs and micro-batches of a plan, so that a mistaken number is an error instead of a plan that fills the memory.
const MOST_JOBS: usize = 1 << 20;

/// What a job runs, where, and for which part of the batch.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub(crate) struct JobKey {
    pub(crate) stage: usize,
    pub(crate) program: usize,
    pub(crate) micro_batch: Option<usize>,
}

/// Makes a [`JobPlan`] by hand: programs, stages, and the jobs of each stage in their order. The order between jobs of different stages
/// follows from the values that they hand each other.
///
/// ```
/// use streamvm::program::{CompileOptions, compile, record};
/// use streamvm::{DType, DeviceId, Lane};
/// use streamvm_jobs::JobPlanBuilder;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let cpu = DeviceId::cpu(0);
/// let options = CompileOptions::default();
/// let first = record("doubles", |r| {
///     let x = r.feed("x", cpu, DType::F32, &[2])?;
///     r.fetch("h", &(&x + &x)?)
/// })?;
/// let second = record("negates", |r| r.fetch("y", &r.feed("h", cpu, DType::F32, &[2])?.neg()?))?;
/// let (first, second) = (compile(&first, &options)?, compile(&second, &options)?);
///
/// let mut plan = JobPlanBuilder::new(3);
/// let (doubles, negates) = (plan.program("D", &first), plan.program("N", &second));
/// let (left, right) = (plan.stage(Lane(0)), plan.stage(Lane(1)));
/// for micro_batch in 0..3 {
///     plan.job(left, doubles, Some(micro_batch)).job(right, negates, Some(micro_batch));
/// }
/// let plan = plan.result("y").finish()?;
/// assert_eq!(plan.slots(), 4);
/// assert!(plan.to_string().contains("stage 1  .  N0 N1 N2"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct JobPlanBuilder {
    micro_batches: usize,
    programs: Vec<JobProgram>,
    lanes: Vec<Lane>,
    jobs: Vec<JobKey>,
    results: Vec<String>,
    shared: Vec<String>,
}

impl std::fmt::Debug for JobKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "program {} on stage {} for {:?}", self.program, self.stage, self.micro_batch)
    }
}

impl JobPlanBuilder {
    /// A plan without jobs, for a batch of so many micro-batches.
    pub fn new(micro_batches: usize) -> JobPlanBuilder {
        let (programs, lanes, jobs, results, shared) = Default::default();
        JobPlanBuilder { micro_batches, programs, lanes, jobs, results, shared }
    }

    /// Adds a program; its jobs are called `label` and the number of their micro-batch. Returns its index.
    pub fn program(&mut self, label: impl Into<String>, compiled: &Compiled) -> usize {
        self.programs.push(JobProgram::new(label, compiled));
        self.programs.len() - 1
    }

    /// Adds a stage, whose jobs run on this lane of the device of its programs. Returns its index.
    pub fn stage(&mut self, lane: Lane) -> usize {
        self.lanes.push(lane);
        self.lanes.len() - 1
    }

    /// Adds a job after the jobs that the stage has: a run of a program for one micro-batch, or once for the whole batch.
    pub fn job(&mut self, stage: usize, program: usize, micro_batch: Option<usize>) -> &mut JobPlanBuilder {
        self.jobs.push(JobKey { stage, program, micro_batch });
        self
    }

    /// Makes the values of this name results, which outlive a run.
    pub fn result(&mut self, name: impl Into<String>) -> &mut JobPlanBuilder {
        self.results.push(name.into());
        self
    }

    /// Gives the input of this name whole to each job that reads it. Other inputs of jobs for micro-batches are split along axis 0.
    pub fn shared(&mut self, name: impl Into<String>) -> &mut JobPlanBuilder {
        self.shared.push(name.into());
        self
    }

    /// Checks everything, and makes the plan. Takes time in proportion to the jobs and their feeds and fetches.
    ///
    /// # Errors
    /// [`JobPlanError`]: see [`JobPlanError`] for what can be wrong.
    pub fn finish(&self) -> Result<JobPlan, JobPlanError> {
        self.check()?;
        let links = self.link(&self.jobs)?;
        let mut of_stage = vec![Vec::new(); self.lanes.len()];
        self.jobs.iter().enumerate().for_each(|(index, job)| of_stage[job.stage].push(index));
        let slots = timeline::slots(&of_stage, &links, |job| self.label(&self.jobs[job]))?;
        // Sorted by slots, each job comes after those whose values it needs.
        let mut order: Vec<usize> = (0..self.jobs.len()).collect();
        order.sort_by_key(|&index| (slots[index], self.jobs[index].stage));
        let keys: Vec<JobKey> = order.iter().map(|&index| self.jobs[index]).collect();
        let Links { inputs, values, feeds, makes } = self.link(&keys)?;
        let mut jobs = Vec::with_capacity(keys.len());
        for ((feeds, makes), (&index, key)) in feeds.into_iter().zip(makes).zip(order.iter().zip(&keys)) {
            let &JobKey { stage, program, micro_batch } = key;
            jobs.push(Job { stage, program, micro_batch, slot: slots[index], feeds, makes });
        }
        let mut of_stage = vec![Vec::new(); self.lanes.len()];
        jobs.iter().enumerate().for_each(|(index, job)| of_stage[job.stage].push(index));
        let stages = self.lanes.iter().zip(of_stage).map(|(&lane, of_stage)| {
            let device = self.programs[jobs[of_stage[0]].program].device;
            JobStage { lane, device, jobs: of_stage, peak: StagePeak::default() }
        });
        let mut plan = JobPlan {
            micro_batches: self.micro_batches,
            programs: self.programs.clone(),
            stages: stages.collect(),
            accumulators: self.accumulators(&keys),
            jobs,
            inputs,
            values,
            results: self.results.clone(),
            peak_bytes: 0,
            peaks: Vec::new(),
        };
        peaks::find(&mut plan);
        Ok(plan)
    }

    fn link(&self, jobs: &[JobKey]) -> Result<Links, JobPlanError> {
        link(self.micro_batches, &self.programs, jobs, &self.results, &self.shared)
    }

    fn label(&self, job: &JobKey) -> String {
        label(&self.programs[job.program].label, job.micro_batch)
    }

    /// Checks numbers and names; what has to do with values is checked where they are linked.
    fn check(&self) -> Result<(), JobPlanError> {
        let refused = |what: String| Err(JobPlanError::Malformed { what });
        if self.micro_batches == 0 {
            return refused("it has no micro-batch; give it at least one".to_owned());
        }
        for (count, what) in [(self.micro_batches, "micro-batches"), (self.jobs.len(), "jobs")] {
            check_count(count, what)?;
        }
        for (index, JobProgram { label, name, .. }) in self.programs.iter().enumerate() {
            if label.is_empty()
                || label.contains(char::is_whitespace)
                || label.ends_with(|end: char| end.is_ascii_digit())
            {
                return refused(format!(
                    "the label of program {name:?} is {label:?}; use letters without spaces, and no digit at the end"
                ));
            }
            if self.programs[..index].iter().any(|other| other.name == *name) {
                return refused(format!("two of its programs are called {name:?}; give each a name of its own"));
            }
        }
        if let Some(JobProgram { name, lanes, .. }) = self.programs.iter().find(|program| program.lanes > 1) {
            return refused(format!(
                "program {name:?} runs on {lanes} lanes, and each stage has one; compile it with `lanes: 1`"
            ));
        }
        let mut seen = hashbrown::HashSet::new();
        let mut devices = vec![None; self.lanes.len()];
        for job in &self.jobs {
            let (Some(program), Some(device)) = (self.programs.get(job.program), devices.get_mut(job.stage)) else {
                return refused(format!(
                    "a job is {job:?}, which it does not have; use the numbers that the builder returns"
                ));
            };
            if let Some(number) = job.micro_batch.filter(|number| *number >= self.micro_batches) {
                let count = self.micro_batches;
                return refused(format!(
                    "a job of {:?} is for micro-batch {number}, and there are {count}",
                    program.name
                ));
            }
            if !seen.insert((job.program, job.micro_batch)) {
                return refused(format!("{} is there twice; add each job once", job_name(&self.programs, job)));
            }
            if *device.get_or_insert(program.device) != program.device {
                return refused(format!(
                    "stage {} has programs on two devices; make a stage for each device",
                    job.stage
                ));
            }
        }
        match devices.iter().position(Option::is_none) {
            Some(stage) => refused(format!("stage {stage} has no job; add one, or leave the stage out")),
            None if self.lanes.is_empty() => refused("it has no stage; add one, and jobs on it".to_owned()),
            None => Ok(()),
        }
    }

    /// The parameters that jobs of several micro-batches write. Jobs of one stage keep their order in `jobs`.
    fn accumulators(&self, jobs: &[JobKey]) -> Vec<Accumulator> {
        let mut found: Vec<Accumulator> = Vec::new();
        let mut known = hashbrown::HashMap::new();
        for &JobKey { stage, program, micro_batch } in jobs {
            let Some(micro_batch) = micro_batch else { continue };
            for parameter in &self.programs[program].written {
                let index = *known.entry((stage, parameter.as_str())).or_insert_with(|| {
                    found.push(Accumulator { stage, parameter: parameter.clone(), micro_batches: Vec::new() });
                    found.len() - 1
                });
                found[index].micro_batches.push(micro_batch);
            }
        }
        found.retain(|it| it.micro_batches.len() > 1);
        found.sort_by_key(|it| it.stage);
        found
    }
}

/// The name of a job in errors.
pub(crate) fn job_name(programs: &[JobProgram], job: &JobKey) -> String {
    format!("{} of stage {}", label(&programs[job.program].label, job.micro_batch), job.stage)
}

/// Checks that so many of something can be planned.
///
/// # Errors
/// [`JobPlanError::Malformed`].
pub(crate) fn check_count(count: usize, what: &str) -> Result<(), JobPlanError> {
    if count <= MOST_JOBS {
        return Ok(());
    }
    let what = format!("it has {count} {what}, and at most {MOST_JOBS} can be planned; use fewer micro-batches");
    Err(JobPlanError::Malformed { what })
}
