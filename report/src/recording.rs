//! The contents of a trace: instructions with their times, the instructions that each waited for, and the times in which threads of the host were blocked.

use std::collections::BTreeMap;

use crate::pools::Pools;

/// The contents of a trace. See the crate.
#[derive(Debug, Default)]
pub struct Recording {
    pub(crate) streams: Vec<Stream>,
    /// In program order.
    pub(crate) instructions: Vec<Instruction>,
    /// The instructions that others waited for, as places in `instructions`. Each instruction has a part of this list.
    pub(crate) sources: Vec<u32>,
    /// Those that failed themselves.
    pub(crate) failed: Vec<Failed>,
    /// In the order of their ends.
    pub(crate) blocks: Vec<Block>,
    /// Devices whose times are those of their own clocks, and by how many nanoseconds they may be wrong.
    pub(crate) clocks: BTreeMap<String, u64>,
    /// The threads that submitted something, or were blocked.
    pub(crate) hosts: Vec<Host>,
    /// Of a flight recorder: instructions that had not passed when it was written.
    pub(crate) pending: Vec<Pending>,
    pub(crate) pools: Pools,
    pub(crate) texts: Vec<String>,
    /// Whether the trace ends within a packet, as that of a process that was killed may.
    pub(crate) is_cut: bool,
}

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) name: String,
    /// Whether it is one of workers, which run several of its instructions at once.
    pub(crate) is_unordered: bool,
    /// Its instructions in the order of their numbers, as places in [`Recording::instructions`].
    pub(crate) instructions: Vec<u32>,
}

/// A text of a trace: a place in its table of texts.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct Text(pub(crate) u32);

/// An instruction. Times are in nanoseconds.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Instruction {
    pub(crate) stream: u32,
    pub(crate) number: u64,
    pub(crate) order: u64,
    pub(crate) name: Text,
    pub(crate) line: Text,
    pub(crate) submitted: u64,
    pub(crate) begin: u64,
    pub(crate) end: u64,
    /// When what it waited for was over.
    pub(crate) met: Option<u64>,
    pub(crate) first_source: u32,
    pub(crate) count_of_sources: u32,
    /// The streams that it waited for only because it overwrites what instructions there use, with commas.
    pub(crate) overwrites: Text,
    /// The thread that submitted it, as a place in [`Recording::hosts`]; [`NOBODY`] if the trace does not tell.
    pub(crate) host: u32,
}

/// An instruction that failed.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) stream: u32,
    pub(crate) name: Text,
    pub(crate) line: Text,
}

/// An instruction that had not passed.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) stream: u32,
    /// Its state, such as `running`.
    pub(crate) state: Text,
    pub(crate) name: Text,
    pub(crate) line: Text,
    /// The streams that it waits for, with commas.
    pub(crate) sources: Text,
    pub(crate) begin: u64,
    pub(crate) end: u64,
}

/// A thread of the host. Times are in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Host {
    pub(crate) name: String,
    /// How many lists and single instructions it submitted, and how many instructions in all.
    pub(crate) submissions: u64,
    pub(crate) instructions: u64,
    /// How long that took, after what blocked it.
    pub(crate) submitting: u64,
}

/// No thread.
pub(crate) const NOBODY: u32 = u32::MAX;

/// An instruction by the name that traces have for it: its stream and number.
pub(crate) type At = (u32, u64);

/// A time in which a thread of the host was blocked.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Block {
    pub(crate) why: Why,
    /// The thread, as a place in [`Recording::hosts`].
    pub(crate) host: u32,
    pub(crate) line: Text,
    pub(crate) begin: u64,
    pub(crate) end: u64,
    /// The instruction that was waited for, as a place in [`Recording::instructions`]; for room and memory, the last one that ended meanwhile.
    pub(crate) source: Option<u32>,
}

/// Why a thread of the host was blocked.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Why {
    Result,
    Room,
    Memory,
    Section,
}

impl Recording {
    pub(crate) fn text(&self, Text(place): Text) -> &str {
        self.texts.get(place as usize).map_or("", String::as_str)
    }

    pub(crate) fn texts(&self) -> &[String] {
        &self.texts
    }

    /// The place of a text among all.
    pub(crate) fn place_of(&self, Text(place): Text) -> u32 {
        place
    }

    /// What an instruction waited for: instructions before it in program order.
    pub(crate) fn sources(&self, instruction: &Instruction) -> &[u32] {
        let first = instruction.first_source as usize;
        &self.sources[first..first + instruction.count_of_sources as usize]
    }

    /// Whether an instruction waited for another one only because it overwrites what that uses.
    pub(crate) fn overwrites(&self, instruction: &Instruction, source: &Instruction) -> bool {
        let name = &self.streams[source.stream as usize].name;
        // An instruction after a barrier waits for the barrier, and overwrites nothing of it.
        let is_order = matches!(self.text(source.name), "barrier" | "sync" | "begin" | "end");
        !is_order && self.text(instruction.overwrites).split(", ").any(|stream| stream == name)
    }

    /// When the first instruction was submitted, and when the last one ended.
    pub(crate) fn span(&self) -> (u64, u64) {
        let first = self.instructions.iter().map(|it| it.submitted.min(it.begin)).min().unwrap_or(0);
        (first, self.instructions.iter().map(|it| it.end).max().unwrap_or(first).max(first))
    }

    pub(crate) fn place(&self, (stream, number): At) -> Option<u32> {
        let of_stream = &self.streams.get(stream as usize)?.instructions;
        let number_of = |place: &u32| self.instructions[*place as usize].number;
        // As numbers follow one another, unless the trace leaves some out.
        let guess = of_stream.get(number.saturating_sub(of_stream.first().map(number_of)?) as usize);
        if let Some(place) = guess.filter(|place| number_of(place) == number) {
            return Some(*place);
        }
        let found = of_stream.binary_search_by_key(&number, number_of);
        found.ok().map(|found| of_stream[found])
    }
}
