//! Makes a [`Recording`] of the packets of a trace.

use std::io::{self, BufRead};

use hashbrown::HashMap;

use crate::packets::{EventType, TracePacket, TrackDescriptor, TrackEvent};
use crate::pools::{Counts, Owner};
use crate::reader::Packets;
use crate::recording::{At, Block, Failed, Host, Instruction, NOBODY, Pending, Recording, Stream, Text, Why};

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The input failed, or is no trace of Perfetto.
    #[error(transparent)]
    Input(#[from] io::Error),
    /// It is a trace, in which no stream of streamvm has an instruction.
    #[error(
        "no stream of the trace has an instruction: is it one that `streamvm run --trace FILE` or an engine with `VmBuilder::trace` wrote?"
    )]
    NoInstruction,
    /// It has too many streams.
    #[error("the trace has {streams} streams; reports are of at most {MOST_STREAMS}")]
    Streams {
        /// How many.
        streams: usize,
    },
}

/// A report looks at all that blocked the host once for each stream.
const MOST_STREAMS: usize = 1024;

/// A report names the first ones.
const MOST_FAILED: usize = 20;

/// The names of ops, lines and streams are shorter; a report repeats them.
const LONGEST_TEXT: usize = 1 << 12;

/// The contents of a track.
#[derive(Copy, Clone)]
enum Track {
    /// Instructions of a stream.
    Stream(u32),
    /// The waits of its instructions.
    Waits(u32),
    /// A counter.
    Counter(Counts),
    /// The peaks of a pool.
    Peaks(usize),
    /// Steps of programs, within instructions.
    Steps,
    /// The process.
    Process,
    /// A device or a thread, whose name is this text. Of a thread that submitted something or was blocked also its place in [`Recording::hosts`].
    Other(Text, Option<u32>),
}

/// The parts of a trace that were read so far.
#[derive(Default)]
struct Reading {
    found: Recording,
    tracks: HashMap<u64, Track>,
    streams: HashMap<String, u32>,
    texts: HashMap<String, Text>,
    /// The names of slices and arguments, and texts of arguments, by their numbers in the trace.
    names: HashMap<u64, Text>,
    argument_names: HashMap<u64, Argument>,
    argument_texts: HashMap<u64, Text>,
    /// Slices that have begun, by track.
    open: HashMap<u64, Vec<Open>>,
    /// When what instructions waited for was over.
    met: Vec<(At, u64)>,
    /// [`Instruction::overwrites`], where there are such streams.
    overwriting: Vec<(At, Text)>,
    /// Of each submission: the place of its first instruction in program order, how many it has, and its thread.
    submissions: Vec<(u64, u64, u32)>,
    /// Arrows with what they leave.
    leaving: Vec<(u64, At)>,
    /// Arrows with what they enter.
    entering: Vec<(u64, Entered)>,
}

/// The arguments that reports are made of.
#[derive(Copy, Clone)]
enum Argument {
    Number,
    Order,
    Submitted,
    Line,
    Op,
    For,
    Outcome,
    Overwrites,
    Bytes,
    Tensors,
    At,
    First,
    Count,
    Error,
    Other,
}

enum Open {
    Instruction(Instruction),
    Block(Block),
    Submission(Submission),
    Pending(Pending),
    Other,
}

/// A list, or a single instruction, that a thread of the host submitted.
#[derive(Copy, Clone)]
struct Submission {
    host: u32,
    /// The place of its first instruction in program order.
    first: u64,
    count: u64,
    begin: u64,
}

#[derive(Copy, Clone)]
enum Entered {
    Instruction(At),
    /// A place in [`Recording::blocks`], as they are read.
    Block(usize),
}

impl Recording {
    /// Reads a trace. One that was cut is read as far as it goes.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn read(input: impl BufRead) -> Result<Recording, ReadError> {
        let mut reading = Reading::default();
        // The text that is missing.
        reading.text("");
        let mut packets = Packets::new(input);
        loop {
            match packets.read() {
                Ok(Some(packet)) => reading.packet(packet),
                Ok(None) => break,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => reading.found.is_cut = true,
                Err(error) => return Err(error.into()),
            }
        }
        let found = reading.finish();
        match (found.instructions.len() + found.pending.len(), found.streams.len()) {
            (0, _) if found.is_cut => {
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the trace ends before its first instruction").into())
            }
            (0, _) => Err(ReadError::NoInstruction),
            (_, streams) if streams > MOST_STREAMS => Err(ReadError::Streams { streams }),
            _ => Ok(found),
        }
    }

    /// Notes who submitted what. In a trace that does not tell, one thread is taken for the host.
    fn submitted_by(&mut self, mut submissions: Vec<(u64, u64, u32)>) {
        if submissions.is_empty() {
            self.instructions.iter_mut().for_each(|it| it.host = 0);
            self.blocks.iter_mut().for_each(|block| block.host = 0);
        }
        submissions.sort_unstable();
        let mut submissions = submissions.into_iter().peekable();
        let mut last = (0, 0, NOBODY);
        for it in &mut self.instructions {
            while let Some(next) = submissions.next_if(|(first, ..)| *first <= it.order) {
                last = next;
            }
            let (first, count, host) = last;
            if it.order.checked_sub(first).is_some_and(|place| place < count) {
                it.host = host;
            } else if it.host == NOBODY && self.hosts.len() == 1 {
                // The trace lacks its submission: the only thread that it knows is taken for it.
                it.host = 0;
            }
        }
    }
}

impl Reading {
    fn packet(&mut self, packet: &TracePacket) {
        if let Some(track) = &packet.track {
            self.track(track);
        }
        if let Some(new) = &packet.interned {
            for name in &new.names {
                let text = self.text(name.name());
                self.names.insert(name.number(), text);
            }
            for name in &new.argument_names {
                let argument = match name.name() {
                    "number" => Argument::Number,
                    "order" => Argument::Order,
                    "submitted" => Argument::Submitted,
                    "line" => Argument::Line,
                    "op" => Argument::Op,
                    "for" => Argument::For,
                    "outcome" => Argument::Outcome,
                    "overwrites" => Argument::Overwrites,
                    "bytes" => Argument::Bytes,
                    "tensors" => Argument::Tensors,
                    "at" => Argument::At,
                    "first" => Argument::First,
                    "count" => Argument::Count,
                    "error" => Argument::Error,
                    _ => Argument::Other,
                };
                self.argument_names.insert(name.number(), argument);
            }
            for text in &new.texts {
                let known = self.text(&String::from_utf8_lossy(text.text()));
                self.argument_texts.insert(text.number(), known);
            }
        }
        if let (Some(event), Some(at)) = (&packet.event, packet.timestamp) {
            self.event(at, event);
        }
    }

    /// The number of a text, which is kept once; of a long one only the begin.
    fn text(&mut self, text: &str) -> Text {
        let text = &text[..text.floor_char_boundary(LONGEST_TEXT)];
        if let Some(known) = self.texts.get(text) {
            return *known;
        }
        let new = Text(self.found.texts.len() as u32);
        self.found.texts.push(text.to_owned());
        self.texts.insert(text.to_owned(), new);
        new
    }

    /// A track of a stream is below that of its device and named for the stream, as in `compute@cpu:0:0`; that of its waits ends with `waits`, that of steps of programs with `steps`, and those of workers are below it. Those of
    /// memory are counters, as `device memory on cpu:0`, and its peaks are below that.
    fn track(&mut self, track: &TrackDescriptor) {
        let name = track.name();
        let kind = match (self.tracks.get(&track.parent()), name.strip_suffix(" waits")) {
            _ if track.process.is_some() => Track::Process,
            _ if track.counter.is_some() => Track::Counter(self.found.pools.counter(name)),
            (Some(&Track::Counter(Counts::InUse(pool))), _) => Track::Peaks(pool),
            (Some(&Track::Counter(_)), _) => Track::Counter(Counts::Other),
            (Some(&Track::Stream(stream)), _) => {
                self.found.streams[stream as usize].is_unordered = true;
                Track::Stream(stream)
            }
            // Below a device, not below the process as threads are, whose names are anything.
            (Some(Track::Other(..)), _) if name.ends_with(" steps") => Track::Steps,
            (Some(Track::Other(..)), Some(stream)) => Track::Waits(self.stream(stream)),
            (Some(Track::Other(..)), None) => Track::Stream(self.stream(name)),
            _ => Track::Other(self.text(name), None),
        };
        self.tracks.insert(track.uuid(), kind);
    }

    fn stream(&mut self, name: &str) -> u32 {
        if let Some(known) = self.streams.get(name) {
            return *known;
        }
        let new = self.found.streams.len() as u32;
        self.found.streams.push(Stream { name: name.to_owned(), is_unordered: false, instructions: Vec::new() });
        self.streams.insert(name.to_owned(), new);
        new
    }

    fn event(&mut self, at: u64, event: &TrackEvent) {
        let Some(&track) = self.tracks.get(&event.track()) else { return };
        match event.kind() {
            EventType::SliceBegin => {
                let open = self.begin(at, track, event);
                self.open.entry(event.track()).or_default().push(open);
            }
            EventType::SliceEnd => {
                if let Some(open) = self.open.get_mut(&event.track()).and_then(Vec::pop) {
                    self.end(at, open);
                }
            }
            // A slice without a length.
            EventType::Instant => {
                let open = self.begin(at, track, event);
                self.end(at, open);
            }
            EventType::Counter => {
                if let Track::Counter(counter) = track {
                    self.found.pools.count(counter, at, u64::try_from(event.value()).unwrap_or(0));
                }
            }
            EventType::Unspecified => {}
        }
    }

    fn end(&mut self, at: u64, open: Open) {
        match open {
            Open::Instruction(instruction) => {
                let end = at.max(instruction.begin);
                self.found.instructions.push(Instruction { end, ..instruction });
            }
            Open::Submission(Submission { host, first, count, begin }) => {
                self.submissions.push((first, count, host));
                let host = &mut self.found.hosts[host as usize];
                host.submissions += 1;
                host.instructions = host.instructions.saturating_add(count);
                host.submitting = host.submitting.saturating_add(at.saturating_sub(begin));
            }
            Open::Block(block) => self.found.blocks.push(Block { end: at.max(block.begin), ..block }),
            // There is one for each stream.
            Open::Pending(pending) if self.found.pending.len() < MOST_STREAMS => {
                self.found.pending.push(Pending { end: at.max(pending.begin), ..pending });
            }
            Open::Pending(_) => {}
            Open::Other => {}
        }
    }

    /// A mark on the track of a pool's peaks: a `peak`, or an `owner` of the last one.
    fn peak(&mut self, at: u64, pool: usize, event: &TrackEvent) {
        let name = self.names.get(&event.name()).copied().unwrap_or_default();
        let mut owner = Owner::default();
        // Of a flight recorder: it may have been before the trace begins.
        let mut at = at;
        for argument in &event.arguments {
            let text = self.argument_texts.get(&argument.interned_text()).copied().unwrap_or_default();
            match self.argument_names.get(&argument.name()) {
                Some(Argument::Op) => owner.name = text,
                Some(Argument::Line) => owner.line = text,
                Some(Argument::Bytes) => owner.bytes = argument.number(),
                Some(Argument::Tensors) => owner.tensors = argument.number(),
                Some(Argument::At) => at = argument.number(),
                _ => {}
            }
        }
        let is_peak = self.found.text(name) == "peak";
        self.found.pools.mark(pool, at, is_peak, owner);
    }

    /// The thread of a track.
    fn host(&mut self, track: u64) -> u32 {
        let new = self.found.hosts.len() as u32;
        let name = match self.tracks.get_mut(&track) {
            Some(Track::Other(_, Some(known))) => return *known,
            Some(Track::Other(name, unknown)) => {
                *unknown = Some(new);
                *name
            }
            _ => Text::default(),
        };
        self.found.hosts.push(Host { name: self.found.text(name).to_owned(), ..Host::default() });
        new
    }

    fn begin(&mut self, at: u64, track: Track, event: &TrackEvent) -> Open {
        if let Track::Peaks(pool) = track {
            self.peak(at, pool, event);
            return Open::Other;
        }
        let name = self.names.get(&event.name()).copied().unwrap_or_default();
        let mut instruction = Instruction { name, begin: at, submitted: at, host: NOBODY, ..Instruction::default() };
        let (mut first, mut count, mut error) = (0, 0, 0);
        let mut outcome = Text::default();
        for argument in &event.arguments {
            match self.argument_names.get(&argument.name()) {
                Some(Argument::Number) => instruction.number = argument.number(),
                Some(Argument::Order) => instruction.order = argument.number(),
                Some(Argument::Submitted) => instruction.submitted = argument.number(),
                Some(Argument::Line) => {
                    let text = self.argument_texts.get(&argument.interned_text()).copied();
                    instruction.line = text.unwrap_or_default();
                }
                Some(Argument::Outcome) => {
                    outcome = self.argument_texts.get(&argument.interned_text()).copied().unwrap_or_default();
                }
                Some(Argument::Overwrites) => {
                    let text = self.argument_texts.get(&argument.interned_text()).copied();
                    instruction.overwrites = text.unwrap_or_default();
                }
                Some(Argument::First) => first = argument.number(),
                Some(Argument::Count) => count = argument.number(),
                Some(Argument::Error) => error = argument.number(),
                Some(
                    Argument::Op | Argument::For | Argument::Bytes | Argument::Tensors | Argument::At | Argument::Other,
                )
                | None => {}
            }
        }
        match (track, self.found.text(name)) {
            (Track::Stream(stream), _) => {
                if self.found.text(outcome) == "failed" && self.found.failed.len() < MOST_FAILED {
                    self.found.failed.push(Failed { stream, name, line: instruction.line });
                }
                Open::Instruction(Instruction { stream, ..instruction })
            }
            (Track::Waits(stream), name) => {
                let of = (stream, instruction.number);
                if name == "met" {
                    self.met.push((of, at));
                    if instruction.overwrites != Text::default() {
                        self.overwriting.push((of, instruction.overwrites));
                    }
                }
                self.leaving.extend(event.flows.iter().map(|arrow| (*arrow, of)));
                self.entering.extend(event.ending_flows.iter().map(|arrow| (*arrow, Entered::Instruction(of))));
                if matches!(name, "wait" | "met" | "record") {
                    return Open::Other;
                }
                let line = instruction.line;
                let mut pending = Pending {
                    stream,
                    state: instruction.name,
                    name: Text::default(),
                    line,
                    sources: Text::default(),
                    begin: at,
                    end: at,
                };
                for argument in &event.arguments {
                    let text = self.argument_texts.get(&argument.interned_text()).copied().unwrap_or_default();
                    match self.argument_names.get(&argument.name()) {
                        Some(Argument::Op) => pending.name = text,
                        Some(Argument::For) => pending.sources = text,
                        _ => {}
                    }
                }
                Open::Pending(pending)
            }
            (Track::Counter(_) | Track::Peaks(_) | Track::Steps | Track::Process, _) => Open::Other,
            (Track::Other(..), "submit") => {
                let host = self.host(event.track());
                Open::Submission(Submission { host, first, count, begin: at })
            }
            (Track::Other(device, _), "clock") => {
                let device = self.found.text(device).to_owned();
                // A trace tells it again when it was more.
                if self.found.clocks.len() < MOST_STREAMS {
                    let told = self.found.clocks.entry(device).or_default();
                    *told = error.max(*told);
                }
                Open::Other
            }
            (Track::Other(..), name) => {
                let why = match name {
                    "wait" => Why::Result,
                    "wait for room" => Why::Room,
                    "wait for memory" => Why::Memory,
                    "wait for a section" => Why::Section,
                    _ => {
                        // The end of the wait that was read last.
                        let block = Entered::Block(self.found.blocks.len().wrapping_sub(1));
                        self.entering.extend(event.ending_flows.iter().map(|arrow| (*arrow, block)));
                        return Open::Other;
                    }
                };
                let host = self.host(event.track());
                Open::Block(Block { why, host, line: instruction.line, begin: at, end: at, source: None })
            }
        }
    }

    fn finish(self) -> Recording {
        let Reading { mut found, met, overwriting, submissions, mut leaving, entering, .. } = self;
        found.instructions.sort_unstable_by_key(|it| (it.order, it.stream, it.number));
        found.submitted_by(submissions);
        for (place, instruction) in found.instructions.iter().enumerate() {
            found.streams[instruction.stream as usize].instructions.push(place as u32);
        }
        for stream in &mut found.streams {
            stream.instructions.sort_by_key(|place| found.instructions[*place as usize].number);
        }
        for (of, at) in met {
            if let Some(place) = found.place(of) {
                found.instructions[place as usize].met = Some(at);
            }
        }
        for (of, streams) in overwriting {
            if let Some(place) = found.place(of) {
                found.instructions[place as usize].overwrites = streams;
            }
        }
        leaving.sort_unstable();
        // What waits, and what for.
        let mut edges = Vec::with_capacity(entering.len());
        for (arrow, entered) in entering {
            let Ok(found_at) = leaving.binary_search_by_key(&arrow, |(arrow, _)| *arrow) else { continue };
            let Some(source) = found.place(leaving[found_at].1) else { continue };
            match entered {
                Entered::Instruction(of) => {
                    // An instruction waits for those before it in program order; a damaged trace may say otherwise.
                    edges.extend(found.place(of).filter(|waiting| source < *waiting).map(|waiting| (waiting, source)));
                }
                Entered::Block(block) => {
                    if let Some(block) = found.blocks.get_mut(block) {
                        block.source = Some(source);
                    }
                }
            }
        }
        edges.sort_unstable();
        edges.dedup();
        for (waiting, source) in edges {
            let instruction = &mut found.instructions[waiting as usize];
            if instruction.count_of_sources == 0 {
                instruction.first_source = found.sources.len() as u32;
            }
            instruction.count_of_sources += 1;
            found.sources.push(source);
        }
        found.blocks.sort_by_key(|block| (block.end, std::cmp::Reverse(block.begin)));
        if found.blocks.iter().any(|block| matches!(block.why, Why::Room | Why::Memory)) {
            let mut ends: Vec<(u64, u32)> = found.instructions.iter().map(|it| it.end).zip(0..).collect();
            ends.sort_unstable();
            for block in found.blocks.iter_mut().filter(|block| matches!(block.why, Why::Room | Why::Memory)) {
                let last = ends[..ends.partition_point(|(end, _)| *end <= block.end)].last();
                block.source = last.filter(|(end, _)| *end > block.begin).map(|(_, place)| *place);
            }
        }
        found
    }
}
