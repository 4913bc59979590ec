//! A job plan with its executables, and its runs.

use std::fmt;
use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;
use streamvm::program::in_order;
use streamvm::{Executable, MemoryKind, Place, Tensor, Vm};

use crate::error::JobPlanError;
use crate::job_plan::{Job, JobFeed, JobInput, JobPlan};
use crate::programs::{JobProgram, PlaceBytes};
use crate::results::JobResults;

/// A job plan with its executables: made by [`Jobs::new`]. `Send + Sync`, cheap to clone. It does not keep its engine alive; after
/// the engine has ended, runs give [`Error::Shutdown`](streamvm::Error::Shutdown).
#[derive(Clone)]
pub struct Jobs(Arc<Planned>);

struct Planned {
    plan: Arc<JobPlan>,
    /// In the order of the plan's programs.
    executables: Vec<Executable>,
    /// For each job, the values that no later job reads and that are no results.
    ends: Vec<Vec<usize>>,
}

impl Jobs {
    /// Gives the programs of a plan their executables, which are found by the names of their programs. Submits nothing, and does not block.
    ///
    /// # Errors
    /// An executable is missing, given twice, of no program of the plan, compiled from another program than the planned one,
    /// or by another engine; two executables of a stage have different tensors for parameters of one name; a run would need more memory in one
    /// place than its memory limit, or than the device has ([`JobPlanError::TooMuchMemory`]).
    /// A CUDA device without a memory limit is asked how much it has, for which it is opened.
    pub fn new(vm: &Vm, plan: &JobPlan, executables: &[&Executable]) -> Result<Jobs, JobPlanError> {
        let names = plan.programs().iter().map(|program| program.name.as_str());
        let given = executables.iter().map(|&it| (it.compiled().program().name.as_str(), it));
        let given: Vec<(&str, &Executable)> = given.collect();
        let executables: Vec<Executable> = by_name("program", names, &given)?.into_iter().cloned().collect();
        for (planned, executable) in plan.programs().iter().zip(&executables) {
            let name = &planned.name;
            if JobProgram::new(planned.label.as_str(), executable.compiled()) != *planned {
                let what = format!(
                    "executable {name:?} differs from the program that was planned; plan with the executable's own"
                );
                return Err(JobPlanError::Malformed { what });
            }
            if !executable.is_of(vm) {
                let what = format!("executable {name:?} was compiled by another engine; compile it by this one");
                return Err(JobPlanError::Malformed { what });
            }
        }
        check_parameters(plan, &executables)?;
        check_memory(vm, plan, &executables)?;
        let mut ends = vec![Vec::new(); plan.jobs().len()];
        for (index, value) in plan.values().iter().enumerate().filter(|(_, value)| !value.is_result) {
            ends[value.readers.last().copied().unwrap_or(value.job)].push(index);
        }
        Ok(Jobs(Arc::new(Planned { plan: Arc::new(plan.clone()), executables, ends })))
    }

    /// The plan.
    pub fn plan(&self) -> &JobPlan {
        &self.0.plan
    }

    /// Submits all jobs, and returns their results at once; these are written when the jobs have passed. `inputs` are tensors of the engine
    /// by name, with the dtype, shape and place that [`JobPlan::inputs`] says. Each micro-batch gets its part of an input that is split, as a
    /// view; nothing is copied if the input has no gaps. A value that a job needs on another device is copied there first.
    ///
    /// Each job is a run of its executable on the lane of its stage: it starts when the jobs before it on that lane have passed, and everything
    /// that wrote what it reads. Values that are no results live until their last reader has passed. A second run of the plan follows the first
    /// in the order of each lane. Blocks while the queue is full, as [`Vm::submit`] does, so the engine's bounds on pending
    /// instructions also bound the jobs in flight.
    ///
    /// If a job fails, the jobs that need its values or the parameters that it writes are skipped, with the same root cause, and all others
    /// run. The root cause names the program, the stage, the micro-batch and the step. The plan can be run again; parameters that have failed
    /// stay so until they are overwritten, as in [`Executable::run`].
    ///
    /// May be called on any thread. Threads that run plans which write the same parameters must take turns: two runs that are submitted
    /// at once may interleave job by job.
    ///
    /// # Errors
    /// An input is missing, unknown, given twice, or does not fit. Nothing is submitted then. Those of [`Executable::run`];
    /// jobs that were submitted before still run.
    #[track_caller]
    pub fn run(&self, inputs: &[(&str, &Tensor)]) -> Result<JobResults, JobPlanError> {
        let Planned { plan, executables, ends } = &*self.0;
        let names = plan.inputs().iter().map(|input| input.name.as_str());
        let given = by_name("input", names, inputs)?;
        plan.inputs().iter().zip(&given).try_for_each(|(input, tensor)| check_input(plan, input, tensor))?;
        if let Some(executable) = executables.first() {
            plan.inputs()
                .iter()
                .zip(&given)
                .try_for_each(|(input, tensor)| executable.check_owner(&input.name, tensor))?;
        }
        let mut values: Vec<Option<Tensor>> = vec![None; plan.values().len()];
        // For each value its copies elsewhere.
        let mut copies: Vec<SmallVec<[Tensor; 1]>> = vec![SmallVec::new(); plan.values().len()];
        let mut submitted = Vec::with_capacity(plan.jobs().len());
        for (job, ends) in plan.jobs().iter().zip(ends) {
            let _lane = plan.stages()[job.stage].lane.enter();
            let program = &plan.programs()[job.program];
            let mut feeds: SmallVec<[Tensor; 4]> = SmallVec::new();
            for (port, feed) in program.feeds.iter().zip(&job.feeds) {
                feeds.push(match *feed {
                    JobFeed::Input(index) => {
                        let part = part(&plan.inputs()[index], given[index], job)?;
                        if part.place() == port.place { part } else { part.to(port.place)? }
                    }
                    JobFeed::Value(index) => {
                        let made = values[index].as_ref();
                        let made =
                            made.unwrap_or_else(|| unreachable!("a plan has each job after those that it needs"));
                        match copies[index].iter().find(|copy| copy.place() == port.place) {
                            _ if made.place() == port.place => made.clone(),
                            Some(copy) => copy.clone(),
                            None => {
                                let copy = made.to(port.place)?;
                                copies[index].push(copy.clone());
                                copy
                            }
                        }
                    }
                });
            }
            let feeds: SmallVec<[(&str, &Tensor); 4]> =
                program.feeds.iter().map(|port| port.name.as_str()).zip(&feeds).collect();
            let mut run = executables[job.program].run_named(&plan.job_name(job), &feeds)?;
            let fetched = run.take();
            submitted.push(run);
            job.makes.clone().zip(fetched).for_each(|(value, tensor)| values[value] = Some(tensor));
            for &ended in ends {
                values[ended] = None;
                copies[ended].clear();
            }
        }
        Ok(JobResults::new(plan.clone(), submitted, values))
    }
}

/// The given things in the order of `names`.
fn by_name<'n, T: Copy>(
    kind: &'static str,
    names: impl Iterator<Item = &'n str> + Clone,
    given: &[(&str, T)],
) -> Result<SmallVec<[T; 4]>, JobPlanError> {
    in_order(kind, names.clone(), given).map_err(|what| JobPlanError::Unknown {
        kind,
        what,
        known: names.map(str::to_owned).collect(),
    })
}

/// Checks that parameters of one name are one tensor within a stage: otherwise a sum that the plan prints would not be one tensor.
fn check_parameters(plan: &JobPlan, executables: &[Executable]) -> Result<(), JobPlanError> {
    let mut known: HashMap<(usize, &str), &Tensor> = HashMap::new();
    for job in plan.jobs() {
        for (name, tensor) in executables[job.program].parameters() {
            if !known.entry((job.stage, name)).or_insert(tensor).shares_storage(tensor) {
                let stage = job.stage;
                let what = format!(
                    "two executables of stage {stage} have different tensors for parameter {name:?}; bind one tensor, or use two names"
                );
                return Err(JobPlanError::Malformed { what });
            }
        }
    }
    Ok(())
}

/// Checks that there is room for what a run needs in each place that has a limit: what its jobs make, and the parameters. The inputs are left
/// out, because several may be views of one tensor; so is page-locked memory of devices, which a GPU's own memory does not bound.
fn check_memory(vm: &Vm, plan: &JobPlan, executables: &[Executable]) -> Result<(), JobPlanError> {
    let parameters = executables.iter().flat_map(Executable::parameters).map(|(_, tensor)| tensor);
    // Programs may share a parameter, which is a whole storage.
    let storages: HashMap<_, &Tensor> =
        parameters.map(|tensor| (std::ptr::from_ref(tensor.resource()), tensor)).collect();
    for &PlaceBytes { place, bytes } in plan.peaks() {
        let Some(limit) = vm.memory_limit(place)? else { continue };
        let values = bytes as u64;
        let is_here = |tensor: &&&Tensor| {
            tensor.place() == place && (place == Place::Host || tensor.memory() == MemoryKind::Device)
        };
        let parameters: u64 = storages.values().filter(is_here).map(|tensor| tensor.storage_bytes() as u64).sum();
        if values.saturating_add(parameters) > limit {
            return Err(JobPlanError::TooMuchMemory { place, values, parameters, limit });
        }
    }
    Ok(())
}

/// Checks that a tensor fits an input.
fn check_input(plan: &JobPlan, input: &JobInput, tensor: &Tensor) -> Result<(), JobPlanError> {
    let JobInput { name, dtype, shape, place, .. } = input;
    if (tensor.dtype(), tensor.shape()) != (*dtype, *shape) {
        let from = "the tensor that is given for it".to_owned();
        let job = format!("a batch of {} micro-batches", plan.micro_batches());
        let (found_dtype, found) = (tensor.dtype(), Box::new(tensor.shape()));
        let (name, dtype, expected) = (name.clone(), *dtype, Box::new(*shape));
        return Err(JobPlanError::Mismatch { job, name, dtype, expected, from, found_dtype, found });
    }
    if tensor.place() != *place {
        let (name, expected, found) = (name.clone(), *place, tensor.place());
        return Err(JobPlanError::Elsewhere { name, expected, found });
    }
    Ok(())
}

/// What a job gets of an input: a view of its rows, or all of it.
fn part(input: &JobInput, tensor: &Tensor, job: &Job) -> Result<Tensor, JobPlanError> {
    match (input.rows, job.micro_batch) {
        (Some(rows), Some(micro_batch)) => {
            let part = tensor.slice(0, micro_batch * rows..(micro_batch + 1) * rows);
            Ok(part?)
        }
        _ => Ok(tensor.clone()),
    }
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let programs: Vec<&str> = self.plan().programs().iter().map(|program| program.name.as_str()).collect();
        f.debug_struct("Jobs").field("programs", &programs).field("jobs", &self.plan().jobs().len()).finish()
    }
}
