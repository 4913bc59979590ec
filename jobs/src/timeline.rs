//! When each job can start, if all jobs take the same time: the stages run side by side, each in its own order.
//!
//! A job starts once the job before it on its stage and the jobs whose values it needs have ended. If jobs are left that never start, stages
//! wait for each other in a circle: each is held by its next job, and following what that job waits for leads around the circle.

use crate::error::{BlockedStage, JobPlanError};

use crate::job_plan::{JobFeed, JobValue};
use crate::links::{Links, value_name};

/// The slot of each job. `stages` has the jobs of each stage in their order; `label` is the short name of a job.
pub(crate) fn slots(
    stages: &[Vec<usize>],
    links: &Links,
    label: impl Fn(usize) -> String,
) -> Result<Vec<usize>, JobPlanError> {
    let mut stage_of = vec![0; links.feeds.len()];
    stages.iter().enumerate().for_each(|(stage, jobs)| jobs.iter().for_each(|&job| stage_of[job] = stage));
    let mut slots: Vec<Option<usize>> = vec![None; links.feeds.len()];
    // The index of the next job of each stage, and when the stage is free.
    let mut next = vec![(0, 0); stages.len()];
    let mut to_try: Vec<usize> = (0..stages.len()).rev().collect();
    while let Some(stage) = to_try.pop() {
        while let Some(&job) = stages[stage].get(next[stage].0) {
            let ends = needed(links, job).map(|value| slots[value.job].map(|slot| slot + 1));
            let Some(ready) = ends.collect::<Option<Vec<usize>>>() else { break };
            let slot = ready.into_iter().fold(next[stage].1, usize::max);
            slots[job] = Some(slot);
            next[stage] = (next[stage].0 + 1, slot + 1);
            let readers = links.makes[job].clone().flat_map(|value| &links.values[value].readers);
            to_try.extend(readers.map(|&reader| stage_of[reader]).filter(|&other| other != stage));
        }
    }
    let blocked = (0..stages.len()).find_map(|stage| stages[stage].get(next[stage].0).map(|_| stage));
    match blocked {
        Some(stage) => {
            let head = |stage: usize| stages[stage][next[stage].0];
            Err(JobPlanError::Deadlock { cycle: cycle(stage, head, &stage_of, &slots, links, label) })
        }
        None => Ok(slots.into_iter().flatten().collect()),
    }
}

/// The values that a job needs of other jobs.
fn needed(links: &Links, job: usize) -> impl Iterator<Item = &JobValue> {
    links.feeds[job].iter().filter_map(|feed| match feed {
        JobFeed::Value(value) => Some(&links.values[*value]),
        JobFeed::Input(_) => None,
    })
}

/// The circle in which a blocked stage waits, or to which its waiting leads. `head` is the next job of a blocked stage.
fn cycle(
    begin: usize,
    head: impl Fn(usize) -> usize,
    stage_of: &[usize],
    slots: &[Option<usize>],
    links: &Links,
    label: impl Fn(usize) -> String,
) -> Vec<BlockedStage> {
    let mut path: Vec<BlockedStage> = Vec::new();
    let mut stage = begin;
    loop {
        if let Some(first) = path.iter().position(|blocked| blocked.stage == stage) {
            return path.split_off(first);
        }
        let job = head(stage);
        let missing = needed(links, job).find(|value| slots[value.job].is_none());
        let missing = missing.unwrap_or_else(|| unreachable!("the next job of a blocked stage lacks a value"));
        let maker = stage_of[missing.job];
        path.push(BlockedStage {
            stage,
            job: label(job),
            value: value_name(&missing.name, missing.micro_batch),
            producer: format!("{} of stage {maker}", label(missing.job)),
        });
        stage = maker;
    }
}
