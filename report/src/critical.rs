//! The critical path: from the end of the last instruction back to the first submission. Each step goes back to the last event before the begin of an instruction that the instruction had to
//! come after.
//!
//! An instruction begins after the one before it on its stream, what it waited for, and its submission; what then passes until it begins is *late*. A submission comes after the results,
//! the room and the memory that its thread has waited for before it. The same rules give the times that a run would have in which some instructions take no time.

use crate::recording::{Block, Instruction, Recording};

/// The last event that an instruction had to come after.
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
    /// An instruction, and nanoseconds from its begin to its end.
    Ran(u32, u64),
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
    /// The times in which each thread of the host waited until an instruction had passed, in the order of their ends.
    waits: Vec<Vec<Block>>,
    /// Of each instruction, how many of the waits of its thread had ended when it was submitted.
    waited: Vec<u32>,
    /// When the first instruction was submitted.
    begin: u64,
}

impl Path<'_> {
    pub(crate) fn new(recording: &Recording, begin: u64) -> Path<'_> {
        let mut before = vec![None; recording.instructions.len()];
        for stream in recording.streams.iter().filter(|stream| !stream.is_unordered) {
            for pair in stream.instructions.windows(2) {
                // Later on the stream is later in program order; a damaged trace may say otherwise.
                before[pair[1] as usize] = Some(pair[0]).filter(|first| *first < pair[1]);
            }
        }
        let mut waits = vec![Vec::new(); recording.hosts.len()];
        for block in recording.blocks.iter().filter(|block| block.source.is_some()) {
            waits[block.host as usize].push(*block);
        }
        let ended = |it: &Instruction| {
            let waits: &[Block] = waits.get(it.host as usize).map_or(&[], Vec::as_slice);
            waits.partition_point(|wait| wait.end <= it.submitted) as u32
        };
        let waited = recording.instructions.iter().map(ended).collect();
        Path { recording, before, waits, waited, begin }
    }

    /// The parts of the path, last first. Their times add up to the time of the run.
    pub(crate) fn parts(&self) -> Vec<Part> {
        let all = &self.recording.instructions;
        let mut parts = Vec::new();
        let Some(mut at) = (0..all.len() as u32).max_by_key(|place| all[*place as usize].end) else { return parts };
        // The part comes before this time. A thread may note the end of an instruction a little after another one has gone on.
        let mut until = all[at as usize].end;
        let mut back_to = |time: u64| {
            let (part, time) = (until.saturating_sub(time), time.min(until));
            until = time;
            part
        };
        // Of each thread: waits from this one on come after the part.
        let mut limits: Vec<usize> = self.waits.iter().map(Vec::len).collect();
        loop {
            let instruction = &all[at as usize];
            parts.push(Part::Ran(at, back_to(instruction.begin)));
            let (after, ready) = self.after(at);
            parts.push(Part::Late(back_to(ready)));
            match after {
                After::Instruction(next) => at = next,
                After::Submission => {
                    let (host, waited) = (instruction.host as usize, self.waited[at as usize] as usize);
                    let known = self.waits.get(host).zip(limits.get_mut(host));
                    let source = known.and_then(|(waits, limit)| {
                        let last = waits[..waited.min(*limit)].iter().rposition(|wait| self.held_up(wait, at))?;
                        *limit = last;
                        waits[last].source
                    });
                    let Some(source) = source else {
                        parts.push(Part::Host(back_to(self.begin)));
                        return parts;
                    };
                    // The thread waited for a result before it submitted this.
                    at = source;
                    parts.push(Part::Host(back_to(all[at as usize].end)));
                }
            }
        }
    }

    /// Whether the host waited for an instruction before `place`, which was not over when the wait began.
    fn held_up(&self, wait: &Block, place: u32) -> bool {
        let end = |source: u32| self.recording.instructions[source as usize].end;
        wait.source.is_some_and(|source| source < place && end(source) > wait.begin)
    }

    /// The last event that an instruction had to come after, and its time.
    fn after(&self, place: u32) -> (After, u64) {
        let all = &self.recording.instructions;
        let instruction = &all[place as usize];
        let others = self.before[place as usize].iter().chain(self.recording.sources(instruction));
        let others = others.map(|other| (After::Instruction(*other), all[*other as usize].end));
        // Of equal times the submission is the last to be chosen: an instruction can be made faster.
        let submission = std::iter::once((After::Submission, instruction.submitted));
        submission.chain(others).max_by_key(|(_, end)| *end).unwrap_or((After::Submission, instruction.submitted))
    }

    /// How long the run would take if the instructions that `is_free` accepts took no time, in nanoseconds.
    pub(crate) fn time_if(&self, is_free: impl Fn(&Instruction) -> bool) -> u64 {
        let all = &self.recording.instructions;
        let mut ends: Vec<i128> = Vec::with_capacity(all.len());
        // Of each thread: how many of its waits were seen, and by how much it is earlier than it was.
        let mut hosts = vec![(0usize, 0i128); self.waits.len()];
        let mut last = i128::from(self.begin);
        for (place, instruction) in all.iter().enumerate() {
            let mut shift = 0;
            if let Some((seen, earlier)) = hosts.get_mut(instruction.host as usize) {
                let until = (self.waited[place] as usize).max(*seen);
                for wait in &self.waits[instruction.host as usize][*seen..until] {
                    let Some(source) = wait.source.filter(|source| (*source as usize) < ends.len()) else { continue };
                    let source_end = i128::from(all[source as usize].end);
                    // The thread needs as long as before to go on after a wait.
                    let rest = i128::from(wait.end) - source_end.max(i128::from(wait.begin));
                    let end = ends[source as usize].max(i128::from(wait.begin) - *earlier) + rest;
                    *earlier = i128::from(wait.end) - end;
                }
                *seen = until;
                shift = *earlier;
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
