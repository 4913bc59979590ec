//! Which job makes what a job needs: by the names of fetches and feeds.
//!
//! A feed of a job is, in this order: what a job of the same micro-batch makes under its name; what a job for the whole batch makes; an
//! input of the plan.

use std::ops::Range;

use crate::error::JobPlanError;
use hashbrown::{HashMap, HashSet};
use streamvm::{DType, Shape};

use crate::builder::{JobKey, job_name};
use crate::job_plan::{JobFeed, JobInput, JobValue};
use crate::programs::{JobPort, JobProgram};

/// Inputs and values of a plan, and for each job its feeds, and the values that it makes.
pub(crate) struct Links {
    pub(crate) inputs: Vec<JobInput>,
    pub(crate) values: Vec<JobValue>,
    pub(crate) feeds: Vec<Vec<JobFeed>>,
    pub(crate) makes: Vec<Range<usize>>,
}

/// A value by its name and micro-batch.
type Key<'p> = (&'p str, Option<usize>);

pub(crate) fn link(
    micro_batches: usize,
    programs: &[JobProgram],
    jobs: &[JobKey],
    results: &[String],
    shared: &[String],
) -> Result<Links, JobPlanError> {
    let mut linking = Linking { micro_batches, programs, jobs, shared, inputs: Vec::new(), by_input: HashMap::new() };
    let Makers { mut values, made, makes } = linking.make(results)?;
    let names: HashSet<&str> = made.keys().map(|(name, _)| *name).collect();
    let mut feeds = Vec::with_capacity(jobs.len());
    for (index, job) in jobs.iter().enumerate() {
        let mut of_job = Vec::with_capacity(programs[job.program].feeds.len());
        for port in &programs[job.program].feeds {
            let name = port.name.as_str();
            let of_micro_batch = made.get(&(name, job.micro_batch));
            let found = of_micro_batch.or_else(|| made.get(&(name, None)));
            of_job.push(match found {
                Some(&(value, source)) => {
                    let made: &mut JobValue = &mut values[value];
                    if made.readers.last() != Some(&index) {
                        made.readers.push(index);
                    }
                    let from = || format!("that of {}", job_name(programs, &jobs[made.job]));
                    fits(port, (source.dtype, source.shape), || job_name(programs, job), from)?;
                    JobFeed::Value(value)
                }
                None if names.contains(name) => return Err(linking.not_made(job, name)),
                None => JobFeed::Input(linking.input(job, port)?),
            });
        }
        feeds.push(of_job);
    }
    if let Some(unused) = values.iter().find(|value| value.readers.is_empty() && !value.is_result) {
        let job = job_name(programs, &jobs[unused.job]);
        return Err(JobPlanError::NeverUsed { job, value: value_name(&unused.name, unused.micro_batch) });
    }
    linking.check_shared(&names)?;
    Ok(Links { inputs: linking.inputs, values, feeds, makes })
}

/// Values by their keys, each with its index and the fetch that makes it.
type Made<'p> = HashMap<Key<'p>, (usize, &'p JobPort)>;

/// What the jobs make.
struct Makers<'p> {
    values: Vec<JobValue>,
    made: Made<'p>,
    /// For each job, its values.
    makes: Vec<Range<usize>>,
}

struct Linking<'p> {
    micro_batches: usize,
    programs: &'p [JobProgram],
    jobs: &'p [JobKey],
    shared: &'p [String],
    inputs: Vec<JobInput>,
    by_input: HashMap<&'p str, usize>,
}

impl<'p> Linking<'p> {
    /// The values that the jobs make.
    fn make(&self, results: &[String]) -> Result<Makers<'p>, JobPlanError> {
        let mut values: Vec<JobValue> = Vec::new();
        let mut made: Made<'p> = HashMap::new();
        let mut makes = Vec::with_capacity(self.jobs.len());
        for (index, job) in self.jobs.iter().enumerate() {
            let begin = values.len();
            for port in &self.programs[job.program].fetches {
                let (name, micro_batch) = (port.name.as_str(), job.micro_batch);
                if let Some((other, _)) = made.insert((name, micro_batch), (values.len(), port)) {
                    return Err(self.twice(name, micro_batch, values[other].job, index));
                }
                let is_result = results.contains(&port.name);
                let (readers, name) = (Vec::new(), port.name.clone());
                values.push(JobValue { name, micro_batch, place: port.place, job: index, readers, is_result });
            }
            makes.push(begin..values.len());
        }
        // A name that is made both for micro-batches and for the whole batch would have two meanings.
        for value in &values {
            if let Some((other, _)) = made.get(&(value.name.as_str(), None)).filter(|_| value.micro_batch.is_some()) {
                return Err(self.twice(&value.name, value.micro_batch, values[*other].job, value.job));
            }
        }
        for (place, name) in results.iter().enumerate() {
            if results[..place].contains(name) {
                return Err(JobPlanError::Malformed { what: format!("result {name:?} is named twice; name it once") });
            }
            if !values.iter().any(|value| value.name == *name) {
                let mut known: Vec<String> = made.keys().map(|(name, _)| (*name).to_owned()).collect();
                known.sort_unstable();
                known.dedup();
                let what = format!("no job makes the result {name:?}");
                return Err(JobPlanError::Unknown { kind: "value", what, known });
            }
        }
        Ok(Makers { values, made, makes })
    }

    fn twice(&self, name: &str, micro_batch: Option<usize>, first: usize, second: usize) -> JobPlanError {
        let job = |index: usize| job_name(self.programs, &self.jobs[index]);
        JobPlanError::ProducedTwice { value: value_name(name, micro_batch), first: job(first), second: job(second) }
    }

    fn not_made(&self, job: &JobKey, name: &str) -> JobPlanError {
        let job_name = job_name(self.programs, job);
        match job.micro_batch {
            Some(_) => JobPlanError::NotProduced { job: job_name, value: value_name(name, job.micro_batch) },
            None => JobPlanError::Malformed {
                what: format!(
                    "{job_name} runs once and needs {name:?}, which is made for each micro-batch; sum it up in a parameter instead"
                ),
            },
        }
    }

    /// The input for a feed that no job makes.
    fn input(&mut self, job: &JobKey, port: &'p JobPort) -> Result<usize, JobPlanError> {
        let job_name = || job_name(self.programs, job);
        let splits = job.micro_batch.is_some() && !self.shared.contains(&port.name);
        let rows = splits.then(|| port.shape.dims().first().copied());
        let (shape, rows) = match rows {
            None => (port.shape, None),
            Some(Some(rows)) => (self.whole(port, rows).ok_or_else(|| self.too_large(port))?, Some(rows)),
            Some(None) => {
                let (job, name) = (job_name(), &port.name);
                return Err(JobPlanError::Malformed {
                    what: format!(
                        "input {name:?} of {job} has no axis to split; make it a shared input, or feed a vector"
                    ),
                });
            }
        };
        let known = *self.by_input.entry(port.name.as_str()).or_insert(self.inputs.len());
        match self.inputs.get_mut(known) {
            None => {
                let (name, dtype, place) = (port.name.clone(), port.dtype, port.place);
                self.inputs.push(JobInput { name, dtype, shape, place, rows });
            }
            Some(input) => {
                let whole = JobPort { shape, ..port.clone() };
                fits(&whole, (input.dtype, input.shape), job_name, || "the same input of another job".to_owned())?;
                input.rows = input.rows.or(rows);
            }
        }
        Ok(known)
    }

    /// The shape of the whole batch.
    fn whole(&self, port: &JobPort, rows: usize) -> Option<Shape> {
        let mut dims = port.shape.dims().to_vec();
        dims[0] = rows.checked_mul(self.micro_batches)?;
        Shape::new(&dims).ok()
    }

    fn too_large(&self, port: &JobPort) -> JobPlanError {
        let (name, count, shape) = (&port.name, self.micro_batches, port.shape);
        let what = format!("input {name:?}, {count} parts of {shape}, is too large; use fewer micro-batches");
        JobPlanError::Malformed { what }
    }

    /// Each shared name is that of an input.
    fn check_shared(&self, made: &HashSet<&str>) -> Result<(), JobPlanError> {
        match self.shared.iter().find(|name| !self.by_input.contains_key(name.as_str())) {
            None => Ok(()),
            Some(name) => {
                let why = if made.contains(name.as_str()) { "a job makes" } else { "no job needs" };
                let known = self.inputs.iter().map(|input| input.name.clone()).collect();
                Err(JobPlanError::Unknown { kind: "input", what: format!("{why} the shared input {name:?}"), known })
            }
        }
    }
}

/// Checks that what is found fits a feed. Places may differ: values are copied.
fn fits(
    port: &JobPort,
    (found_dtype, found): (DType, Shape),
    job: impl FnOnce() -> String,
    from: impl FnOnce() -> String,
) -> Result<(), JobPlanError> {
    if (found_dtype, found) == (port.dtype, port.shape) {
        return Ok(());
    }
    Err(JobPlanError::Mismatch {
        job: job(),
        name: port.name.clone(),
        dtype: port.dtype,
        expected: Box::new(port.shape),
        from: from(),
        found_dtype,
        found: Box::new(found),
    })
}

/// The name of a value in errors.
pub(crate) fn value_name(name: &str, micro_batch: Option<usize>) -> String {
    micro_batch.map_or_else(|| name.to_owned(), |micro_batch| format!("{name} of micro-batch {micro_batch}"))
}
