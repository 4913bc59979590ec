//! What follows from a trace.

use std::cmp::Reverse;

use hashbrown::HashMap;
use serde::Serialize;

use crate::critical::{Part, Path};
use crate::idle::{Reason, Time, time_of};
use crate::memory::{Memory, memory};
use crate::recording::{self, Recording, Text, Why};
use crate::waits::{Waits, waits};

/// How many causes, and how many groups of the critical path, a report names: the longest.
const MOST: usize = 20;

/// How a run spent its time, and why streams were idle. Times are in nanoseconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// From the first submission to the end of the last instruction.
    pub total_ns: u64,
    /// How many instructions the trace has.
    pub instructions: u64,
    /// Whether the trace ends within a packet: then it may lack the end of the run.
    pub is_cut: bool,
    /// Each stream, in the order of their names.
    pub streams: Vec<StreamTime>,
    /// The instructions that failed themselves, the first 20.
    pub failed: Vec<Place>,
    /// Of the trace of a flight recorder: the oldest instruction of each stream that had not passed when it was written.
    pub pending: Vec<Pending>,
    /// The longest causes of idle time, the longest first.
    pub idle: Vec<Idle>,
    /// What the time of the run consists of.
    pub critical_path: Critical,
    /// Copies beside computations; `None` without copies.
    pub copies: Option<Copies>,
    /// How long instructions were queued.
    pub queue: Queue,
    /// Devices that told by their own clocks when they ran instructions.
    pub clocks: Vec<Clock>,
    /// The threads that submitted something or were blocked: the 20 with the most instructions, the most first. None if the trace does not tell who submitted what.
    pub hosts: Vec<Host>,
    /// Waits that other waits imply; `None` of traces that are too large: where instructions that are waited for, times streams, are more than 8,388,608, or instructions and waits, times streams, more than 268,435,456.
    pub waits: Option<Waits>,
    /// The memory in use of each place and kind, the highest peak first.
    pub memory: Vec<Memory>,
}

/// A device whose instructions have the times of its own clock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Clock {
    /// Its name, such as `cuda:0`.
    pub device: String,
    /// By how much these times may be wrong beside those of the host.
    pub error_ns: u64,
}

/// How a thread of the host spent the time of the run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Host {
    /// Its name.
    pub thread: String,
    /// How many lists, and instructions without a list, it submitted.
    pub submissions: u64,
    /// How many instructions these had.
    pub instructions: u64,
    /// It submitted them.
    pub submitting_ns: u64,
    /// It waited for results.
    pub waiting_ns: u64,
    /// It waited for room for more instructions, for memory, or for the end of a critical section.
    pub held_ns: u64,
}

/// An instruction that had not passed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Pending {
    /// Which; its name and line are empty where the engine did not know them.
    pub of: Place,
    /// Its state: `running`, `waiting` and others.
    pub state: String,
    /// The streams that it waited for.
    pub waits_for: Vec<String>,
    /// The time since the instruction before it had passed.
    pub ns: u64,
}

/// How a stream spent the time of the run: the parts add up to `total_ns`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct StreamTime {
    /// Its name, such as `compute@cpu:0:0`.
    pub stream: String,
    /// How many instructions it had.
    pub instructions: u64,
    /// It ran an instruction. Of a stream of workers: one or more.
    pub busy_ns: u64,
    /// Its next instruction waited for one of another stream.
    pub waiting_ns: u64,
    /// Nothing was submitted to it.
    pub not_submitted_ns: u64,
    /// Nothing was submitted to it, because a thread of the host waited for a result.
    pub host_waits_ns: u64,
    /// As above, because the host waited for room for more instructions, for memory, or for the end of a critical section: [`Report::idle`] tells where.
    pub held_ns: u64,
    /// Its next instruction could have begun, and no thread ran it yet.
    pub late_ns: u64,
}

/// A cause of idle time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Idle {
    /// The stream that was idle.
    pub stream: String,
    /// How long.
    pub ns: u64,
    /// How often.
    pub times: u64,
    /// Why.
    pub cause: Cause,
    /// What it, or the host, waited for.
    pub of: Option<Place>,
    /// The line that blocked the host; or of the instruction that ended the time; `None` where it waited, and at the end of the run.
    pub at: Option<String>,
}

/// Why a stream was idle.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cause {
    /// It waited for what an instruction of another stream computes.
    Waited,
    /// It waited for an instruction of another stream only because its own one overwrites what the other one uses: the same tensor, or memory that a tensor which is gone
    /// has left to a new one. With a tensor of its own, or with the old one kept, it would not.
    Overwrites,
    /// Nothing was submitted to it.
    NotSubmitted,
    /// The host waited for a result; in vain without [`Idle::of`].
    HostWaited,
    /// The engine had no room for more instructions: those that may be pending were.
    NoRoom,
    /// The host waited until a device had given memory, or some was free.
    NoMemory,
    /// A critical section of another thread was open.
    Section,
    /// No thread ran its next instruction yet.
    Late,
}

/// An instruction by its stream, name and line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Place {
    /// The stream.
    pub stream: Option<String>,
    /// The name of the op, function or program.
    pub name: String,
    /// The line that issued it.
    pub line: String,
}

/// The critical path: what the time of the run consists of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Critical {
    /// In which the host had not submitted what came next.
    pub host_ns: u64,
    /// In which no thread ran what could have begun.
    pub late_ns: u64,
    /// In which instructions ran.
    pub ran_ns: u64,
    /// The instructions of the path by stream, name and line: the groups that take the longest, the longest first.
    pub groups: Vec<Group>,
}

/// The instructions of the critical path that have one stream, name and line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Group {
    /// Which.
    pub of: Place,
    /// How long they take on the path.
    pub ns: u64,
    /// How many are on the path.
    pub times: u64,
    /// By how much the run would be shorter if all instructions of this stream, name and line took no time.
    pub would_save_ns: u64,
}

/// Copies beside computations.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Copies {
    /// In which streams of copies were busy: one or more.
    pub copying_ns: u64,
    /// In which a stream of computations was busy meanwhile.
    pub beside_ns: u64,
}

/// The times from the submission of instructions to their begins: so many percent took at most so long.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Queue {
    /// The median.
    pub p50_ns: u64,
    /// 99 %.
    pub p99_ns: u64,
}

impl Report {
    /// What follows from a trace.
    pub fn of(recording: &Recording) -> Report {
        let (begin, end) = recording.span();
        let (mut streams, mut idle) = (Vec::new(), Vec::new());
        for stream in recording.streams.iter().filter(|stream| !stream.instructions.is_empty()) {
            let time = time_of(recording, stream, (begin, end));
            streams.push(stream_time(&stream.name, stream.instructions.len() as u64, &time));
            idle.extend(time.idle.into_iter().map(|(reason, times)| (stream.name.as_str(), reason, times)));
        }
        streams.sort_by(|one, other| one.stream.cmp(&other.stream));
        idle.sort_unstable_by_key(|(stream, reason, (ns, _))| (Reverse(*ns), *stream, *reason));
        idle.truncate(MOST);
        let idle = idle.into_iter().map(|it| cause(recording, it)).collect();
        Report {
            total_ns: end - begin,
            instructions: recording.instructions.len() as u64,
            is_cut: recording.is_cut,
            streams,
            failed: recording.failed.iter().map(|it| place(recording, (it.stream, it.name, it.line))).collect(),
            pending: recording.pending.iter().map(|it| pending(recording, it)).collect(),
            idle,
            critical_path: critical(recording, (begin, end)),
            copies: copies(recording),
            queue: queue(recording),
            clocks: recording
                .clocks
                .iter()
                .map(|(device, error_ns)| Clock { device: device.clone(), error_ns: *error_ns })
                .collect(),
            hosts: hosts(recording, (begin, end)),
            waits: waits(recording),
            memory: memory(recording),
        }
    }
}

fn pending(recording: &Recording, it: &recording::Pending) -> Pending {
    let of = place(recording, (it.stream, it.name, it.line));
    let waits_for = recording.text(it.sources).split(", ").filter(|name| !name.is_empty()).map(str::to_owned).collect();
    Pending { of, state: recording.text(it.state).to_owned(), waits_for, ns: it.end - it.begin }
}

pub(crate) fn place(recording: &Recording, (stream, name, line): (u32, Text, Text)) -> Place {
    let text = |text: Text| recording.text(text).to_owned();
    Place { stream: Some(recording.streams[stream as usize].name.clone()), name: text(name), line: text(line) }
}

fn stream_time(name: &str, instructions: u64, time: &Time) -> StreamTime {
    let mut found = StreamTime { stream: name.to_owned(), instructions, busy_ns: time.busy, ..StreamTime::default() };
    for (reason, (ns, _)) in &time.idle {
        *match reason {
            Reason::Waited { .. } => &mut found.waiting_ns,
            Reason::NotSubmitted { .. } => &mut found.not_submitted_ns,
            Reason::Blocked { why: Why::Result, .. } => &mut found.host_waits_ns,
            Reason::Blocked { .. } => &mut found.held_ns,
            Reason::Late { .. } => &mut found.late_ns,
        } += ns;
    }
    found
}

fn cause(recording: &Recording, (stream, reason, (ns, times)): (&str, Reason, (u64, u64))) -> Idle {
    let text = |text: Text| recording.text(text).to_owned();
    let (cause, of, at) = match reason {
        Reason::Waited { stream, name, line, overwrites } => {
            let cause = if overwrites { Cause::Overwrites } else { Cause::Waited };
            (cause, Some(place(recording, (stream, name, line))), None)
        }
        Reason::NotSubmitted { until } => (Cause::NotSubmitted, None, until.map(text)),
        Reason::Late { line } => (Cause::Late, None, Some(text(line))),
        Reason::Blocked { why, at, name, line } => {
            let cause = match why {
                Why::Result => Cause::HostWaited,
                Why::Room => Cause::NoRoom,
                Why::Memory => Cause::NoMemory,
                Why::Section => Cause::Section,
            };
            let of = Place { stream: None, name: text(name), line: text(line) };
            (cause, Some(of).filter(|of| !of.name.is_empty()), Some(text(at)))
        }
    };
    Idle { stream: stream.to_owned(), ns, times, cause, of, at }
}

fn critical(recording: &Recording, (begin, end): (u64, u64)) -> Critical {
    let path = Path::new(recording, begin);
    let mut found = Critical { host_ns: 0, late_ns: 0, ran_ns: 0, groups: Vec::new() };
    let mut groups: HashMap<(u32, Text, Text), (u64, u64)> = HashMap::new();
    for part in path.parts() {
        match part {
            Part::Host(ns) => found.host_ns += ns,
            Part::Late(ns) => found.late_ns += ns,
            Part::Ran(place, took) => {
                let it = &recording.instructions[place as usize];
                let (ns, times) = groups.entry((it.stream, it.name, it.line)).or_default();
                *ns += took;
                found.ran_ns += took;
                *times += 1;
            }
        }
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|((stream, name, line), (ns, _))| {
        (Reverse(*ns), *stream, recording.text(*name), recording.text(*line))
    });
    groups.truncate(MOST);
    found.groups.extend(groups.into_iter().map(|((stream, name, line), (ns, times))| {
        let would_take = path.time_if(|it| (it.stream, it.name, it.line) == (stream, name, line));
        let of = place(recording, (stream, name, line));
        Group { of, ns, times, would_save_ns: (end - begin).saturating_sub(would_take) }
    }));
    found
}

/// What a stream does, by its type.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Does {
    Compute,
    Copy,
    Other,
}

fn does(stream: &str) -> Does {
    match stream.split('@').next() {
        Some("compute") => Does::Compute,
        Some("h2d" | "d2h") => Does::Copy,
        _ => Does::Other,
    }
}

fn copies(recording: &Recording) -> Option<Copies> {
    let does: Vec<Does> = recording.streams.iter().map(|it| does(&it.name)).collect();
    // Begins and ends of instructions: how many run, on streams of computations and of copies.
    let mut changes = Vec::with_capacity(2 * recording.instructions.len());
    for it in &recording.instructions {
        let does = does[it.stream as usize];
        if does != Does::Other {
            changes.push((it.begin, 1, does));
            changes.push((it.end, -1, does));
        }
    }
    changes.sort_unstable();
    let (mut running, mut since) = ([0i64; 2], 0);
    let mut found = Copies { copying_ns: 0, beside_ns: 0 };
    for (at, change, does) in changes {
        let [computing, copying] = running;
        if copying > 0 {
            found.copying_ns += at - since;
            found.beside_ns += if computing > 0 { at - since } else { 0 };
        }
        since = at;
        running[usize::from(does == Does::Copy)] += change;
    }
    (found.copying_ns > 0).then_some(found)
}

fn hosts(recording: &Recording, (begin, end): (u64, u64)) -> Vec<Host> {
    let host = |it: &recording::Host| Host {
        thread: it.name.clone(),
        submissions: it.submissions,
        instructions: it.instructions,
        submitting_ns: it.submitting.min(end - begin),
        waiting_ns: 0,
        held_ns: 0,
    };
    let mut hosts: Vec<Host> = recording.hosts.iter().map(host).collect();
    for block in &recording.blocks {
        let Some(host) = hosts.get_mut(block.host as usize) else { continue };
        let ns = if block.why == Why::Result { &mut host.waiting_ns } else { &mut host.held_ns };
        *ns = ns.saturating_add(block.end.min(end).saturating_sub(block.begin.max(begin)));
    }
    // A trace that does not tell who submitted what.
    if recording.hosts.iter().all(|host| host.submissions == 0) {
        return Vec::new();
    }
    hosts.sort_by(|one, other| (other.instructions, &one.thread).cmp(&(one.instructions, &other.thread)));
    hosts.truncate(MOST);
    hosts
}

fn queue(recording: &Recording) -> Queue {
    let mut times: Vec<u64> = recording.instructions.iter().map(|it| it.begin.saturating_sub(it.submitted)).collect();
    times.sort_unstable();
    let at = |percent: usize| {
        times.get((times.len() * percent / 100).min(times.len().saturating_sub(1))).copied().unwrap_or(0)
    };
    Queue { p50_ns: at(50), p99_ns: at(99) }
}
