//! The results of one run of a job plan.

use std::fmt;
use std::ops::Index;
use std::sync::Arc;

use hashbrown::HashMap;
use streamvm::{Error, Fetches, Tensor};

use crate::error::JobPlanError;
use crate::job_plan::JobPlan;

/// The results of one run of a job plan, by name and micro-batch. They are ordinary tensors, which the jobs write: reading one waits for its
/// job.
#[derive(Clone)]
pub struct JobResults {
    plan: Arc<JobPlan>,
    /// The run of each job, without its results, in the order of the plan.
    runs: Vec<Fetches>,
    /// For each result of the plan its tensors, in the order of the micro-batches.
    tensors: Vec<Vec<(Option<usize>, Tensor)>>,
}

impl JobResults {
    /// `values[i]` is the tensor of `plan.values()[i]`; only those of results are left.
    pub(crate) fn new(plan: Arc<JobPlan>, runs: Vec<Fetches>, mut values: Vec<Option<Tensor>>) -> JobResults {
        let mut tensors = vec![Vec::new(); plan.results().len()];
        let places: HashMap<&str, usize> = plan.results().iter().map(String::as_str).zip(0..).collect();
        for (value, tensor) in plan.values().iter().zip(&mut values) {
            let result = places.get(value.name.as_str()).copied();
            if let (Some(result), Some(tensor)) = (result, tensor.take()) {
                tensors[result].push((value.micro_batch, tensor));
            }
        }
        drop(places);
        tensors.iter_mut().for_each(|of_result| of_result.sort_by_key(|(micro_batch, _)| *micro_batch));
        JobResults { plan, runs, tensors }
    }

    /// The result with this name for this micro-batch, also if it is made once for all of them; `None` if there is none.
    pub fn get(&self, name: &str, micro_batch: usize) -> Option<&Tensor> {
        let mut found = self.tensors_of(name)?.iter();
        found.find(|(of, _)| of.is_none_or(|of| of == micro_batch)).map(|(_, tensor)| tensor)
    }

    /// The tensors of a result, in the order of the micro-batches: one for each micro-batch for which a job makes it, or the only one if it
    /// is made once. Empty if the plan has no such result.
    pub fn iter(&self, name: &str) -> impl Iterator<Item = &Tensor> {
        self.tensors_of(name).unwrap_or_default().iter().map(|(_, tensor)| tensor)
    }

    /// The result of the whole batch: a new tensor with those of the micro-batches one after the other along axis 0, or along a new axis if
    /// they have none. The copies are submitted on the thread's current [`Lane`](streamvm::Lane). A result that is made once is returned
    /// as it is.
    ///
    /// # Errors
    /// [`JobPlanError::Unknown`] if the plan has no such result; those of [`Tensor::cat`]; [`Error::Shutdown`].
    #[track_caller]
    pub fn joined(&self, name: &str) -> Result<Tensor, JobPlanError> {
        let Some(found) = self.tensors_of(name) else {
            let (what, known) = (format!("there is no result {name:?}"), self.plan.results().to_vec());
            return Err(JobPlanError::Unknown { kind: "result", what, known });
        };
        if let [(None, tensor)] = found {
            return Ok(tensor.clone());
        }
        let tensors: Vec<&Tensor> = found.iter().map(|(_, tensor)| tensor).collect();
        let joined =
            if tensors[0].shape().dims().is_empty() { Tensor::stack(&tensors, 0) } else { Tensor::cat(&tensors, 0) };
        Ok(joined?)
    }

    /// Blocks until all jobs have passed, as [`Fetches::wait`] does.
    ///
    /// # Errors
    /// The root cause of the first job that failed or was skipped, in the order of the plan, on every call: it names the program, the stage, the
    /// micro-batch, the step of the program and the source line that recorded it. Otherwise as [`Fetches::wait`]; when the engine is gone, as
    /// [`Tensor::wait`] of each result, or [`Error::Shutdown`] without results.
    #[track_caller]
    pub fn wait(&self) -> Result<(), Error> {
        let mut first = Ok(());
        for run in &self.runs {
            match run.wait() {
                Ok(()) => {}
                // The jobs after it are waited for, too.
                Err(failed @ Error::Failed(_)) => first = first.and(Err(failed)),
                // The engine is gone: what it has left undone, the tensors say.
                Err(Error::Shutdown { .. }) if self.tensors.iter().any(|of_result| !of_result.is_empty()) => {
                    for (_, tensor) in self.tensors.iter().flatten() {
                        tensor.wait()?;
                    }
                    return Ok(());
                }
                Err(other) => return Err(other),
            }
        }
        first
    }

    fn tensors_of(&self, name: &str) -> Option<&[(Option<usize>, Tensor)]> {
        let result = self.plan.results().iter().position(|result| result == name)?;
        Some(&self.tensors[result])
    }
}

impl Index<(&str, usize)> for JobResults {
    type Output = Tensor;

    /// The result with this name for this micro-batch.
    ///
    /// # Panics
    /// If there is none; [`JobResults::get`] does not panic.
    #[track_caller]
    fn index(&self, (name, micro_batch): (&str, usize)) -> &Tensor {
        let Some(tensor) = self.get(name, micro_batch) else {
            let (count, known) = (self.plan.micro_batches(), self.plan.results().join(", "));
            panic!(
                "there is no result {name:?} of micro-batch {micro_batch}; there are {count} micro-batches, and the results are {known}"
            )
        };
        tensor
    }
}

impl fmt::Debug for JobResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.plan.results().iter().zip(&self.tensors)).finish()
    }
}
