//! The orders of pipelines.
//!
//! *FThenB*: each stage runs the forward jobs of all micro-batches, then the backward jobs (GPipe, Huang et al., NeurIPS 2019).
//!
//! *1F1B*: stage s of p first runs p - s - 1 forward jobs, then takes turns between one forward and one backward job, and ends with the
//! backward jobs that are left. So at most p - s micro-batches are alive on it. The weights change only after the last micro-batch
//! (PipeDream-Flush, Narayanan et al., ICML 2021).

use crate::error::JobPlanError;
use streamvm::Lane;

use crate::builder::{JobPlanBuilder, check_count};
use crate::job_plan::JobPlan;
use streamvm::program::Compiled;

/// The programs of one stage of a [`Pipeline`].
#[derive(Copy, Clone, Debug)]
pub struct PipelineStage<'p> {
    reset: Option<&'p Compiled>,
    forward: &'p Compiled,
    backward: Option<&'p Compiled>,
    update: Option<&'p Compiled>,
}

impl<'p> PipelineStage<'p> {
    /// A stage that runs `forward` for each micro-batch.
    pub fn new(forward: &'p Compiled) -> PipelineStage<'p> {
        PipelineStage { reset: None, forward, backward: None, update: None }
    }

    /// Runs `backward` for each micro-batch, after its forward job. It adds to the gradients, which are parameters.
    #[must_use]
    pub fn backward(self, backward: &'p Compiled) -> PipelineStage<'p> {
        PipelineStage { backward: Some(backward), ..self }
    }

    /// Runs `update` once, after all micro-batches: the optimizer.
    #[must_use]
    pub fn update(self, update: &'p Compiled) -> PipelineStage<'p> {
        PipelineStage { update: Some(update), ..self }
    }

    /// Runs `reset` once, before all micro-batches: it sets the sums of gradients to zero.
    #[must_use]
    pub fn reset(self, reset: &'p Compiled) -> PipelineStage<'p> {
        PipelineStage { reset: Some(reset), ..self }
    }
}

/// Stages that hand values to each other, from which plans are made. Values go by name: a fetch of one program is the feed of the same name of
/// others, for the same micro-batch. Feeds that no program fetches are the inputs of the plan.
///
/// In the printed plan the jobs are called `F` (forward), `B` (backward), `U` (update) and `R` (reset).
#[derive(Clone, Debug, Default)]
pub struct Pipeline<'p> {
    stages: Vec<PipelineStage<'p>>,
    first_lane: u32,
    results: Vec<String>,
    shared: Vec<String>,
}

impl<'p> Pipeline<'p> {
    /// A pipeline of these stages, on the lanes 0, 1, 2 and so on.
    pub fn new(stages: impl IntoIterator<Item = PipelineStage<'p>>) -> Pipeline<'p> {
        Pipeline { stages: stages.into_iter().collect(), ..Pipeline::default() }
    }

    /// Makes the values of this name results, which outlive a run.
    #[must_use]
    pub fn result(mut self, name: impl Into<String>) -> Pipeline<'p> {
        self.results.push(name.into());
        self
    }

    /// Gives the input of this name whole to each job that reads it. Other inputs of forward and backward jobs are split along axis 0.
    #[must_use]
    pub fn shared(mut self, name: impl Into<String>) -> Pipeline<'p> {
        self.shared.push(name.into());
        self
    }

    /// Puts the first stage on this lane, and each further stage on the next lane. Two plans on different lanes run side by side.
    #[must_use]
    pub fn first_lane(mut self, lane: Lane) -> Pipeline<'p> {
        self.first_lane = lane.0;
        self
    }

    /// One micro-batch after the other, each forward through all stages and back: gradient accumulation without a pipeline. With one
    /// micro-batch it is the whole batch at once.
    ///
    /// # Errors
    /// Those of [`JobPlanBuilder::finish`].
    pub fn in_order(&self, micro_batches: usize) -> Result<JobPlan, JobPlanError> {
        self.plan(micro_batches, |_| 0)
    }

    /// All forward jobs, then all backward jobs: every stage holds the activations of all micro-batches.
    ///
    /// # Errors
    /// Those of [`JobPlanBuilder::finish`].
    pub fn fthenb(&self, micro_batches: usize) -> Result<JobPlan, JobPlanError> {
        self.plan(micro_batches, |_| micro_batches)
    }

    /// One forward job, one backward job: stage s of p holds the activations of at most p - s micro-batches, and the bubble is that of FThenB.
    ///
    /// # Errors
    /// Those of [`JobPlanBuilder::finish`].
    pub fn one_f_one_b(&self, micro_batches: usize) -> Result<JobPlan, JobPlanError> {
        self.plan(micro_batches, |stage| self.stages.len() - stage - 1)
    }

    /// A plan in which each stage runs `ahead` forward jobs before it takes turns between forward and backward jobs.
    fn plan(&self, micro_batches: usize, ahead: impl Fn(usize) -> usize) -> Result<JobPlan, JobPlanError> {
        let mut plan = JobPlanBuilder::new(micro_batches);
        // Before the jobs are made, because a mistaken number must not fill the memory.
        let of_stage = |stage: &PipelineStage<'_>| {
            let once = usize::from(stage.reset.is_some()) + usize::from(stage.update.is_some());
            let each = 1 + usize::from(stage.backward.is_some());
            micro_batches.saturating_mul(each).saturating_add(once)
        };
        check_count(micro_batches, "micro-batches")?;
        check_count(self.stages.iter().map(of_stage).fold(0, usize::saturating_add), "jobs")?;
        let planned = micro_batches;
        for (index, stage) in self.stages.iter().enumerate() {
            let lane = self.first_lane.checked_add(index as u32).ok_or_else(|| JobPlanError::Malformed {
                what: format!("stage {index} would run on a lane behind the last one; begin at a lower lane"),
            })?;
            let number = plan.stage(Lane(lane));
            let mut add = |label: &str, compiled: Option<&Compiled>| compiled.map(|it| plan.program(label, it));
            let (reset, forward) = (add("R", stage.reset), add("F", Some(stage.forward)));
            let (backward, update) = (add("B", stage.backward), add("U", stage.update));
            let mut job = |program: Option<usize>, micro_batch: Option<usize>| {
                if let Some(program) = program {
                    plan.job(number, program, micro_batch);
                }
            };
            let ahead = ahead(index).min(planned);
            job(reset, None);
            (0..ahead).for_each(|micro_batch| job(forward, Some(micro_batch)));
            for micro_batch in 0..planned {
                if micro_batch + ahead < planned {
                    job(forward, Some(micro_batch + ahead));
                }
                job(backward, Some(micro_batch));
            }
            job(update, None);
        }
        self.results.iter().for_each(|name| _ = plan.result(name));
        self.shared.iter().for_each(|name| _ = plan.shared(name));
        plan.finish()
    }
}
