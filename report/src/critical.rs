//! The critical path: from the end of the last instruction back to the first submission, always to what it began after last.
//!
//! An instruction begins after the one before it on its stream, what it waited for, and its submission; what then passes until it begins is *late*. A submission comes after the results that
//! the host has waited for before it. The same rules give the times that a run would have in which some instructions take no time.

use crate::recording::{Block, Instruction, Recording};

/// What an instruction began after last.
#[derive(Copy, Clone)]
enum After {
    /// Another instruction.
    Instruction(u32),
    /// Its submission.
    Submission,
}

/// A part of the critical path.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// An instruction, from its begin to its end.
    Ran(u32),
    /// Nanoseconds between what an instruction waited for and its begin.
    Late(u64),
    /// Nanoseconds until the host had submitted an instruction.
    Host(u64),
}

/// The constraints of a recording.
pub(crate) struct Path<'r> {
    recording: &'r Recording,
    /// Of each instruction, the one before it on its stream.
    before: Vec<Option<u32>>,
    /// The times in which the host waited for a result, in the order of their ends.
    waits: Vec<Block>,
    /// How many of these had ended when each instruction was submitted.
    waited: Vec<u32>,
    /// When the first instruction was submitted.
    begin: u64,
}

impl Path<'_> {
    pub(crate) fn new(recording: &Recording) -> Path<'_> {
        let mut before = vec![None; recording.instructions.len()];
        for stream in recording.streams.iter().filter(|stream| !stream.is_unordered) {
            for pair in stream.instructions.windows(2) {
                // Later on the stream is later in program order; a damaged trace may say otherwise.
                before[pair[1] as usize] = Some(pair[0]).filter(|first| *first < pair[1]);
            }
        }
        let waits: Vec<Block> = recording.blocks.iter().filter(|block| block.source.is_some()).copied().collect();
        let ended = |it: &Instruction| waits.partition_point(|wait| wait.end <= it.submitted) as u32;
        let waited = recording.instructions.iter().map(ended).collect();
        Path { recording, before, waits, waited, begin: recording.span().0 }
    }

    /// The parts of the path, last first. Their times add up to the time of the run.
    pub(crate) fn parts(&self) -> Vec<Part> {
        let all = &self.recording.instructions;
        let mut parts = Vec::new();
        let Some(mut at) = (0..all.len() as u32).max_by_key(|place| all[*place as usize].end) else { return parts };
        loop {
            let instruction = &all[at as usize];
            parts.push(Part::Ran(at));
            let (after, ready) = self.after(at);
            parts.push(Part::Late(instruction.begin.saturating_sub(ready)));
            match after {
                After::Instruction(next) => at = next,
                After::Submission => match self.host(at) {
                    // The host waited for a result before it submitted this.
                    Some(next) => {
                        let since = all[next as usize].end;
                        parts.push(Part::Host(instruction.submitted.saturating_sub(since)));
                        at = next;
                    }
                    None => {
                        parts.push(Part::Host(instruction.submitted.saturating_sub(self.begin)));
                        return parts;
                    }
                },
            }
        }
    }

    /// What an instruction began after last, and when that was over.
    fn after(&self, place: u32) -> (After, u64) {
        let all = &self.recording.instructions;
        let instruction = &all[place as usize];
        let others = self.before[place as usize].iter().chain(self.recording.sources(instruction));
        let others = others.map(|other| (After::Instruction(*other), all[*other as usize].end));
        // Of equal times the submission is the last to be chosen: an instruction can be made faster.
        let submission = std::iter::once((After::Submission, instruction.submitted));
        submission.chain(others).max_by_key(|(_, end)| *end).unwrap_or((After::Submission, instruction.submitted))
    }

    /// The instruction for whose result the host waited last before it submitted this one, if the wait was not over before.
    fn host(&self, place: u32) -> Option<u32> {
        let all = &self.recording.instructions;
        let of_before = &self.waits[..self.waited[place as usize] as usize];
        // Waits for what was over when they began held nothing up.
        let held_up =
            |wait: &&Block| wait.source.is_some_and(|source| source < place && all[source as usize].end > wait.begin);
        of_before.iter().rev().find(held_up).and_then(|wait| wait.source)
    }

    /// How long the run would take if the instructions that `is_free` accepts took no time, in nanoseconds.
    pub(crate) fn time_if(&self, is_free: impl Fn(&Instruction) -> bool) -> u64 {
        let all = &self.recording.instructions;
        let mut ends: Vec<i128> = Vec::with_capacity(all.len());
        let (mut waits, mut shift) = (self.waits.iter().zip(0u32..).peekable(), 0i128);
        let mut last = i128::from(self.begin);
        for (place, instruction) in all.iter().enumerate() {
            while let Some((wait, _)) = waits.next_if(|(_, number)| *number < self.waited[place]) {
                let Some(source) = wait.source.filter(|source| (*source as usize) < ends.len()) else { continue };
                let source_end = i128::from(all[source as usize].end);
                // What passed between the end of the source, or the begin of the wait, and the end of the wait stays.
                let rest = i128::from(wait.end) - source_end.max(i128::from(wait.begin));
                let end = ends[source as usize].max(i128::from(wait.begin) - shift) + rest;
                shift = i128::from(wait.end) - end;
            }
            let submitted = i128::from(instruction.submitted) - shift;
            let others = self.before[place].iter().chain(self.recording.sources(instruction));
            let (mut ready, mut was_ready) = (submitted, i128::from(instruction.submitted));
            for other in others {
                ready = ready.max(ends[*other as usize]);
                was_ready = was_ready.max(i128::from(all[*other as usize].end));
            }
            let late = i128::from(instruction.begin) - was_ready;
            let took = if is_free(instruction) { 0 } else { instruction.end - instruction.begin };
            let end = ready + late + i128::from(took);
            last = last.max(end);
            ends.push(end);
        }
        u64::try_from(last - i128::from(self.begin)).unwrap_or(0)
    }
}
