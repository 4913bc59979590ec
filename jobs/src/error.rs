//! The errors of planning jobs, and of giving a plan its executables and inputs.

use std::fmt;

use streamvm::{DType, Place, Shape};

/// Why a job plan cannot be made, or cannot run with what it is given. Jobs are named as in the printed plan: `F2 of stage 1` is the program
/// with the label `F`, on stage 1, for micro-batch 2.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum JobPlanError {
    /// Stages wait for each other in a circle: each stops at a job that needs a value of a later one.
    #[error(
        "the jobs would wait for each other for ever: {}; change the order of the jobs of one of these stages",
        joined(cycle)
    )]
    Deadlock {
        /// The stages of the circle; the last of them waits for a job of the first.
        cycle: Vec<BlockedStage>,
    },
    /// Two jobs make the same value.
    #[error("{value} is made by {first} and by {second}; give one of the fetches another name")]
    ProducedTwice {
        /// The value, and its micro-batch.
        value: String,
        /// One of the jobs.
        first: String,
        /// The other job.
        second: String,
    },
    /// A job needs a value that other jobs make for other micro-batches only.
    #[error("{job} needs {value}, and no job makes it; add the job that does")]
    NotProduced {
        /// The job.
        job: String,
        /// The value, and its micro-batch.
        value: String,
    },
    /// No job reads a value, and it is no result of the plan.
    #[error(
        "{job} makes {value}, and nobody uses it; make it a result of the plan, or remove the fetch from the program"
    )]
    NeverUsed {
        /// The job.
        job: String,
        /// The value, and its micro-batch.
        value: String,
    },
    /// A value, or a tensor that is given for an input, does not fit the feed that it is for.
    #[error("{job}: feed {name:?} needs {dtype}{expected}, and {from} is {found_dtype}{found}")]
    Mismatch {
        /// The job; for an input of a run, the batch.
        job: String,
        /// The name of the feed.
        name: String,
        /// The dtype that is needed.
        dtype: DType,
        /// The shape that is needed; for an input that is split, that of the whole batch.
        expected: Box<Shape>,
        /// Where the value comes from.
        from: String,
        /// Its dtype.
        found_dtype: DType,
        /// Its shape.
        found: Box<Shape>,
    },
    /// A tensor that is given for an input lives elsewhere.
    #[error("input {name:?} must be on {expected}, and the tensor given for it is on {found}; copy it there first")]
    Elsewhere {
        /// The input.
        name: String,
        /// Where it must be.
        expected: Place,
        /// Where the tensor is.
        found: Place,
    },
    /// A run of the plan needs more memory than its engine may have in one place.
    #[error(
        "on {place} a run of the job plan needs {} bytes at once, {values} for values and arenas and {parameters} for parameters, and {place} may have at most {limit}; use \
         smaller micro-batches, a schedule that keeps fewer of them alive, or, if the limit is a setting of the engine, a larger one",
        values + parameters
    )]
    TooMuchMemory {
        /// The device, or the host.
        place: Place,
        /// The bytes at the peak: of the values that jobs have made and others still need, and of the arena of the job that is just submitted.
        values: u64,
        /// The bytes of the parameters that live there.
        parameters: u64,
        /// The memory limit of the place, or what the device has.
        limit: u64,
    },
    /// The plan is not well formed.
    #[error("the job plan is not well formed: {what}")]
    Malformed {
        /// The mistake, and what to do.
        what: String,
    },
    /// The engine has refused a job or a plan.
    #[error(transparent)]
    Engine(#[from] streamvm::Error),
    /// An input, executable or result is named that the plan does not have, or is given twice, or is missing.
    #[error("job plan: {what}; {}", known_of(kind, known))]
    Unknown {
        /// Input, program or result.
        kind: &'static str,
        /// The mistake.
        what: String,
        /// The names that there are.
        known: Vec<String>,
    },
}

/// A stage that cannot go on, and the value that it waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockedStage {
    /// The stage.
    pub stage: usize,
    /// The job at which it stops, without its stage.
    pub job: String,
    /// The value that this job needs, and its micro-batch.
    pub value: String,
    /// The job that makes the value.
    pub producer: String,
}

impl fmt::Display for BlockedStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BlockedStage { stage, job, value, producer } = self;
        write!(f, "stage {stage} stops at {job}, which needs {value} from {producer}")
    }
}

fn joined(cycle: &[BlockedStage]) -> String {
    let stages: Vec<String> = cycle.iter().map(BlockedStage::to_string).collect();
    stages.join("; ")
}

fn known_of(kind: &str, known: &[String]) -> String {
    if known.is_empty() { format!("it has no {kind}s") } else { format!("its {kind}s are {}", known.join(", ")) }
}

impl fmt::Debug for JobPlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
