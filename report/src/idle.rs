//! How each stream spent the time of a run: busy, or idle for a reason.

use hashbrown::HashMap;

use crate::recording::{Instruction, NOBODY, Recording, Stream, Text, Why};

/// Why a stream was idle.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Reason {
    /// It waited for an instruction of another stream: for what that computes, or only to overwrite what that uses.
    Waited { stream: u32, name: Text, line: Text, overwrites: bool },
    /// Nothing was submitted to it, because the thread that submits next was blocked at a line, for a result if the line and name of one are known.
    Blocked { why: Why, at: Text, name: Text, line: Text },
    /// Nothing was submitted to it until this line, or the end of the run.
    NotSubmitted { until: Option<Text> },
    /// Its next instruction, of this line, could have begun: no thread ran it yet.
    Late { line: Text },
}

/// The time of a stream, in nanoseconds. The parts add up to the time of the run.
#[derive(Debug, Default)]
pub(crate) struct Time {
    pub(crate) busy: u64,
    /// For each reason, how long and how often.
    pub(crate) idle: HashMap<Reason, (u64, u64)>,
}

impl Time {
    fn add(&mut self, reason: Reason, from: u64, to: u64) {
        if from < to {
            let (time, times) = self.idle.entry(reason).or_default();
            *time += to - from;
            *times += 1;
        }
    }
}

/// How a stream spent the time of the run, from its begin to its end.
pub(crate) fn time_of(recording: &Recording, stream: &Stream, (begin, end): (u64, u64)) -> Time {
    let mut time = Time::default();
    let mut since = begin;
    let mut instructions: Vec<_> =
        stream.instructions.iter().map(|place| &recording.instructions[*place as usize]).collect();
    if stream.is_unordered {
        instructions.sort_by_key(|it| it.begin);
    }
    for instruction in instructions {
        let begins = instruction.begin.max(since);
        let submitted = instruction.submitted.clamp(since, begins);
        not_submitted(recording, &mut time, (since, submitted), Some(instruction));
        let met = match (instruction.met, recording.sources(instruction)) {
            (Some(met), sources @ [_, ..]) => {
                let ends = sources.iter().map(|source| &recording.instructions[*source as usize]);
                let last = ends.max_by_key(|source| source.end);
                let met = met.clamp(submitted, begins);
                if let Some(last) = last {
                    let overwrites = recording.overwrites(instruction, last);
                    let reason = Reason::Waited { stream: last.stream, name: last.name, line: last.line, overwrites };
                    time.add(reason, submitted, met);
                }
                met
            }
            _ => submitted,
        };
        time.add(Reason::Late { line: instruction.line }, met, begins);
        let ends = instruction.end.max(begins);
        time.busy += ends - begins;
        since = ends;
    }
    not_submitted(recording, &mut time, (since, end.max(since)), None);
    time
}

/// Adds a time in which nothing was submitted to a stream, until this instruction or the end of the run: the parts in which its thread was blocked, or any thread if it is not known, and the rest.
fn not_submitted(recording: &Recording, time: &mut Time, (from, to): (u64, u64), until: Option<&Instruction>) {
    let rest = Reason::NotSubmitted { until: until.map(|it| it.line) };
    let host = until.map(|it| it.host).filter(|host| *host != NOBODY);
    let ended = recording.blocks.partition_point(|block| block.end <= from);
    let begun = recording.blocks.partition_point(|block| block.end <= to);
    let mut to = to;
    // A thread that is still blocked at the end of the time blocks none of its submissions. Of nested blocks the outer one comes last.
    for block in recording.blocks[ended..begun].iter().rev() {
        if block.begin >= to || block.end <= from || host.is_some_and(|host| host != block.host) {
            continue;
        }
        let end = block.end.min(to);
        time.add(rest, end, to);
        // Whichever instruction made room or freed memory: the line of the host that waited for it is the cause.
        let source = block.source.filter(|_| block.why == Why::Result);
        let source = source.map(|place| &recording.instructions[place as usize]);
        let (name, line) = source.map_or_else(Default::default, |source| (source.name, source.line));
        to = block.begin.max(from);
        time.add(Reason::Blocked { why: block.why, at: block.line, name, line }, to, end);
    }
    time.add(rest, from, to);
}
