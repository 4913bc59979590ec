//! The plan: stages, jobs, the values that jobs hand each other, and what it promises.

use streamvm::{DType, DeviceId, Shape};
use streamvm::{Lane, Place};

use crate::programs::{JobProgram, PlaceBytes};

/// One run of a program, on a stage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    /// The stage, as an index into [`JobPlan::stages`].
    pub stage: usize,
    /// The program, as an index into [`JobPlan::programs`].
    pub program: usize,
    /// The micro-batch that it is for; `None` for a job that runs once for the whole batch.
    pub micro_batch: Option<usize>,
    /// The slot of the timeline in which it runs, if all jobs take the same time.
    pub slot: usize,
    /// Where each feed of the program comes from.
    pub feeds: Vec<JobFeed>,
    /// The values that it makes, one for each fetch of the program, as a range of [`JobPlan::values`].
    pub makes: std::ops::Range<usize>,
}

/// Where a feed of a job comes from.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum JobFeed {
    /// The tensor that a run of the plan is given for this input, an index into [`JobPlan::inputs`], or the job's part of it.
    Input(usize),
    /// What an earlier job has made: an index into [`JobPlan::values`].
    Value(usize),
}

/// What a run of the plan is given.
#[derive(Clone, PartialEq, Debug)]
pub struct JobInput {
    /// Its name: that of the feeds that it is for.
    pub name: String,
    /// The dtype of its elements.
    pub dtype: DType,
    /// Its shape. If it is split, this is the shape of the whole batch.
    pub shape: Shape,
    /// Where it lives: where the first job needs it. Jobs that need it elsewhere get copies.
    pub place: Place,
    /// The length of a micro-batch's part of axis 0, if each micro-batch gets one; otherwise every job gets all of it.
    pub rows: Option<usize>,
}

/// What one job makes and others need.
#[derive(Clone, PartialEq, Debug)]
pub struct JobValue {
    /// Its name: that of the fetch, and of the feeds that it is for.
    pub name: String,
    /// The micro-batch; `None` if it is made once for the whole batch.
    pub micro_batch: Option<usize>,
    /// Where it is made.
    pub place: Place,
    /// The job that makes it, as an index into [`JobPlan::jobs`].
    pub job: usize,
    /// The jobs that read it, in the order in which they are submitted. One that needs it at another place gets a copy.
    pub readers: Vec<usize>,
    /// Whether it is a result of the plan, which outlives the run.
    pub is_result: bool,
}

/// A stage: jobs that run one after the other, on one lane of one device.
#[derive(Clone, PartialEq, Debug)]
pub struct JobStage {
    /// The lane of its runs.
    pub lane: Lane,
    /// The device of its programs.
    pub device: DeviceId,
    /// Its jobs in their order, as indices into [`JobPlan::jobs`].
    pub jobs: Vec<usize>,
    /// What it takes at most.
    pub peak: StagePeak,
}

/// What a stage holds at most, by the order in which the jobs are submitted; `usize::MAX` for more bytes than that.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct StagePeak {
    /// The micro-batches that have begun on the stage and are not over there.
    pub micro_batches: usize,
    /// The bytes of the values that its jobs have made, or have copied to its device, and that are still needed or are results. Inputs and
    /// parameters are not counted: they are the caller's.
    pub value_bytes: usize,
    /// The bytes of these values, of the results of a job that is just submitted, and of its arena.
    pub bytes: usize,
}

/// A parameter to which jobs of several micro-batches write, such as a sum of gradients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accumulator {
    /// The stage whose jobs write it.
    pub stage: usize,
    /// The parameter.
    pub parameter: String,
    /// The micro-batches, in the order in which they write it.
    pub micro_batches: Vec<usize>,
}

/// An order of runs of compiled programs, which was checked: every job's values are made before it, whatever the timing. Made by a
/// [`Pipeline`](crate::Pipeline), or by hand with a [`JobPlanBuilder`](crate::JobPlanBuilder). Plain data: `Send`, `Sync`, and tied to no
/// engine.
#[derive(Clone, PartialEq, Debug)]
pub struct JobPlan {
    pub(crate) micro_batches: usize,
    pub(crate) programs: Vec<JobProgram>,
    pub(crate) stages: Vec<JobStage>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) inputs: Vec<JobInput>,
    pub(crate) values: Vec<JobValue>,
    pub(crate) results: Vec<String>,
    pub(crate) accumulators: Vec<Accumulator>,
    pub(crate) peak_bytes: usize,
    pub(crate) peaks: Vec<PlaceBytes>,
}

impl JobPlan {
    /// How many micro-batches the batch has.
    pub fn micro_batches(&self) -> usize {
        self.micro_batches
    }

    /// The programs.
    pub fn programs(&self) -> &[JobProgram] {
        &self.programs
    }

    /// The stages.
    pub fn stages(&self) -> &[JobStage] {
        &self.stages
    }

    /// All jobs in the order in which they are submitted: by their slots, then by their stages.
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// What a run of the plan is given.
    pub fn inputs(&self) -> &[JobInput] {
        &self.inputs
    }

    /// What jobs make.
    pub fn values(&self) -> &[JobValue] {
        &self.values
    }

    /// The names of the values that outlive a run.
    pub fn results(&self) -> &[String] {
        &self.results
    }

    /// The parameters to which jobs of several micro-batches write. The order of the micro-batches is that of the sums, so two plans with
    /// the same order leave the same bits.
    pub fn accumulators(&self) -> &[Accumulator] {
        &self.accumulators
    }

    /// The most bytes that values and the arena of the job that is just submitted take together, over all stages. It is exact but for the
    /// rounding of the allocator; `usize::MAX` if it is more. Inputs and parameters are not counted.
    pub fn peak_bytes(&self) -> usize {
        self.peak_bytes
    }

    /// As [`peak_bytes`](JobPlan::peak_bytes), for each place in which the plan has memory. Of a program over several devices the bytes are counted where they are,
    /// and not at the device of its stage. Page-locked memory that belongs to a device is left out.
    pub fn peaks(&self) -> &[PlaceBytes] {
        &self.peaks
    }

    /// How many slots the timeline has.
    pub fn slots(&self) -> usize {
        self.jobs.iter().map(|job| job.slot + 1).max().unwrap_or_default()
    }

    /// The ideal bubble: the share of time in which a stage runs no job of a micro-batch, between the first and the last of these jobs of all
    /// stages, if all take the same time. For FThenB and 1F1B with p stages and m micro-batches it is (p - 1) / (m + p - 1).
    pub fn bubble(&self) -> f64 {
        let busy = || self.jobs.iter().filter(|job| job.micro_batch.is_some()).map(|job| job.slot);
        match (busy().min(), busy().max()) {
            (Some(first), Some(last)) => 1.0 - busy().count() as f64 / ((last - first + 1) * self.stages.len()) as f64,
            _ => 0.0,
        }
    }

    /// The short name of a job within its stage, such as `F2`.
    pub fn job_label(&self, job: &Job) -> String {
        label(&self.programs[job.program].label, job.micro_batch)
    }

    /// Which job it is, for errors and reports: its program, stage and micro-batch.
    pub fn job_name(&self, job: &Job) -> String {
        let (program, stage) = (&self.programs[job.program].name, job.stage);
        match job.micro_batch {
            Some(micro_batch) => format!("{program}, stage {stage}, micro-batch {micro_batch}"),
            None => format!("{program}, stage {stage}"),
        }
    }
}

/// The short name of a job.
pub(crate) fn label(program: &str, micro_batch: Option<usize>) -> String {
    micro_batch.map_or_else(|| program.to_owned(), |micro_batch| format!("{program}{micro_batch}"))
}
