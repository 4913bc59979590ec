//! How much a plan holds at once, by the order in which its jobs are submitted: an engine gives memory to a job when the job is submitted, and
//! takes the memory of a value back when the last reader of the value has been submitted.
//!
//! The jobs of a plan may need more bytes together than a `usize` can tell, so sums have 128 bits; a peak that is larger than `usize::MAX` is told as that.

use streamvm::Place;

use crate::job_plan::{JobFeed, JobPlan};
use crate::programs::PlaceBytes;

/// Fills in the peaks.
pub(crate) fn find(plan: &mut JobPlan) {
    let ends = last_uses(plan);
    // The memory that is given back after each job, and the stages that have it.
    let mut ending: Vec<Vec<(usize, usize, PlaceBytes)>> = vec![Vec::new(); plan.jobs.len()];
    let mut live = vec![0_u128; plan.stages.len()];
    let mut peaks: Vec<_> = plan.stages.iter().map(|stage| stage.peak).collect();
    let (mut all, mut places) = (Usage::default(), Vec::new());
    let mut copied = hashbrown::HashSet::new();
    for (index, job) in plan.jobs.iter().enumerate() {
        let program = &plan.programs[job.program];
        let mut add = |bytes: usize, memory: PlaceBytes, end: Option<usize>| {
            live[job.stage] += bytes as u128;
            all.live += bytes as u128;
            usage(&mut places, memory.place).live += memory.bytes as u128;
            if let Some(end) = end {
                ending[end].push((job.stage, bytes, memory));
            }
        };
        // Copies of what is elsewhere: that of a value lives as long as the value, that of an input as long as the job.
        for (port, feed) in program.feeds.iter().zip(&job.feeds) {
            let end = match *feed {
                JobFeed::Input(input) if plan.inputs[input].place != port.place => Some(index),
                JobFeed::Value(value) if plan.values[value].place == port.place => continue,
                JobFeed::Value(value) if copied.insert((value, port.place)) => ends[value],
                JobFeed::Input(_) | JobFeed::Value(_) => continue,
            };
            let bytes = port.shape.elements() * port.dtype.size();
            add(bytes, PlaceBytes { place: port.place, bytes }, end);
        }
        for (buffer, &(bytes, memory)) in program.fetched.iter().enumerate() {
            let of_buffer = job.makes.clone().zip(&program.buffer_of).filter(|(_, of)| **of == buffer);
            // Views of one buffer keep it alive, each until its last use.
            let end = of_buffer.map(|(value, _)| ends[value]).max_by_key(|end| end.unwrap_or(usize::MAX));
            add(bytes, memory, end.flatten());
        }
        let peak = &mut peaks[job.stage];
        peak.value_bytes = peak.value_bytes.max(told(live[job.stage]));
        peak.bytes = peak.bytes.max(told(live[job.stage] + program.arena_bytes as u128));
        all.note(program.arena_bytes);
        program.arenas.iter().for_each(|arena| usage(&mut places, arena.place).note(arena.bytes));
        places.iter_mut().for_each(|(_, usage)| usage.note(0));
        for (stage, bytes, memory) in ending[index].drain(..) {
            live[stage] -= bytes as u128;
            all.live -= bytes as u128;
            usage(&mut places, memory.place).live -= memory.bytes as u128;
        }
    }
    let alive: Vec<usize> = (0..plan.stages.len()).map(|stage| micro_batches_alive(plan, stage)).collect();
    plan.peak_bytes = all.peak;
    let places = places.into_iter().filter(|(_, usage)| usage.peak > 0);
    plan.peaks = places.map(|(place, usage)| PlaceBytes { place, bytes: usage.peak }).collect();
    for ((stage, peak), micro_batches) in plan.stages.iter_mut().zip(peaks).zip(alive) {
        stage.peak = peak;
        stage.peak.micro_batches = micro_batches;
    }
}

/// The bytes of values that are alive, and the most so far, with the arenas of a job.
#[derive(Default)]
struct Usage {
    live: u128,
    peak: usize,
}

impl Usage {
    /// A job is submitted whose arenas have so many bytes.
    fn note(&mut self, arenas: usize) {
        self.peak = self.peak.max(told(self.live + arenas as u128));
    }
}

/// A number of bytes; `usize::MAX` for more.
fn told(bytes: u128) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Finds or adds the usage of a place. A plan has few places, so a linear search is enough.
fn usage(places: &mut Vec<(Place, Usage)>, place: Place) -> &mut Usage {
    let index = places.iter().position(|(known, _)| *known == place).unwrap_or_else(|| {
        places.push((place, Usage::default()));
        places.len() - 1
    });
    &mut places[index].1
}

/// The last job that uses each value; `None` for results, which outlive the run.
fn last_uses(plan: &JobPlan) -> Vec<Option<usize>> {
    let last = |value: &crate::JobValue| (!value.is_result).then(|| value.readers.last().copied().unwrap_or(value.job));
    plan.values.iter().map(last).collect()
}

/// The most micro-batches that have begun on a stage and are not over there.
fn micro_batches_alive(plan: &JobPlan, stage: usize) -> usize {
    let jobs = &plan.stages[stage].jobs;
    let of = |job: usize| plan.jobs[job].micro_batch;
    let mut last = vec![0; plan.micro_batches];
    for &job in jobs {
        if let Some(micro_batch) = of(job) {
            last[micro_batch] = job;
        }
    }
    let mut begun = vec![false; plan.micro_batches];
    let (mut alive, mut most) = (0, 0);
    for &job in jobs {
        let Some(micro_batch) = of(job) else { continue };
        if !std::mem::replace(&mut begun[micro_batch], true) {
            alive += 1;
            most = most.max(alive);
        }
        if last[micro_batch] == job {
            alive -= 1;
        }
    }
    most
}
