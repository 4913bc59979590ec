//! Reading a trace: from text to [`Trace`], with limits, and with errors that name the line.
//!
//! A trace may come from an untrusted source. Whatever the bytes are, reading ends with a trace or an error, and uses memory in
//! proportion to what was read, within [`Limits`].

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufRead, Read};
use std::ops::Range;

use crate::trace::lines::{
    AccessLine, ByLine, Header, HostLine, InstructionLine, LifeLine, Line, OrderLine, RanLine, RunLine, StreamLine,
    UseLine, VERSION, WaitLine,
};
use crate::trace::{Action, At, Instruction, Life, Order, Stream, Text, Trace, Use, Wait, What};

/// The limits for reading a trace. A trace that exceeds them is refused, not verified in part.
#[derive(Copy, Clone, Debug)]
pub struct Limits {
    /// The most bytes of one line. Default: 16 MiB; a line that an engine writes has at most about 50 kB for each operand.
    pub line_bytes: u64,
    /// The most lines. Default: 4,194,304.
    pub lines: u64,
    /// The most streams. Default: 1,024, the limit of an engine.
    pub streams: u64,
    /// The most uses, and the most waits, points and runs of bytes. Default: 33,554,432 of each; so many runs are half a GiB in
    /// memory.
    pub entries: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { line_bytes: 16 << 20, lines: 1 << 22, streams: 1 << 10, entries: 1 << 25 }
    }
}

/// Why a trace could not be read.
#[derive(thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ReadError {
    /// The line, counted from 1.
    pub line: u64,
    /// What was found, what was expected, and what to do.
    pub what: String,
}

/// As `Display`, so that the message is a sentence also where `main` returns the error.
impl fmt::Debug for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Trace {
    /// Reads a trace within the default [`Limits`]. A trace that ends in the middle of a line is read up to there, and is not complete.
    ///
    /// # Errors
    /// The text is not a trace, contradicts itself, exceeds the limits, or the input cannot be read.
    pub fn read(input: impl BufRead) -> Result<Trace, ReadError> {
        Trace::read_within(input, Limits::default())
    }

    /// Reads a trace within `limits`.
    ///
    /// # Errors
    /// As [`Trace::read`].
    pub fn read_within(mut input: impl BufRead, limits: Limits) -> Result<Trace, ReadError> {
        let mut reader = Reader { limits, ..Reader::default() };
        let mut line = Vec::new();
        loop {
            let at = |what| ReadError { line: reader.lines + 1, what };
            match next_line(&mut input, &mut line, limits.line_bytes).map_err(at)? {
                Next::Line => {}
                // A file that does not even have a whole header is no trace.
                Next::Cut if reader.lines == 0 => {}
                Next::End => break,
                Next::Cut if reader.trace.complete => return Err(at(BEHIND_THE_END.into())),
                Next::Cut => {
                    reader.trace.cut_line = Some(reader.lines + 1);
                    break;
                }
            }
            reader.line(&line).map_err(|what| ReadError { line: reader.lines + 1, what })?;
            reader.lines += 1;
        }
        if reader.lines == 0 {
            return Err(ReadError {
                line: 1,
                what: "the file is empty; a trace starts with {\"streamvm_trace\":1}".into(),
            });
        }
        Ok(reader.trace)
    }
}

/// What stands next in a file.
enum Next {
    /// A line.
    Line,
    /// A line without its end: its writer was stopped.
    Cut,
    /// Nothing.
    End,
}

const BEHIND_THE_END: &str = "something stands behind the \"end\" line; a trace is of one engine, one file each";

/// Reads the next line into `line`, without its end.
fn next_line(input: &mut impl BufRead, line: &mut Vec<u8>, limit: u64) -> Result<Next, String> {
    line.clear();
    let read = input.take(limit + 1).read_until(b'\n', line).map_err(|error| io_error(&error))?;
    if read == 0 {
        return Ok(Next::End);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if read as u64 > limit {
        return Err(format!("the line is longer than {limit} bytes; is this a trace?"));
    } else {
        return Ok(Next::Cut);
    }
    Ok(Next::Line)
}

fn io_error(error: &io::Error) -> String {
    format!("the file cannot be read: {error}")
}

/// The message of the JSON parser with the column, but without the line, which is always 1.
fn json_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    format!("column {}: {text}", error.column())
}

#[derive(Default)]
struct Reader {
    limits: Limits,
    lines: u64,
    trace: Trace,
    streams: HashMap<u64, u32>,
    /// The last sequence number of each stream.
    last: Vec<u32>,
    /// For each stream, the last sequence number that has times, and its end time.
    ran: Vec<(u32, u64)>,
    lives: HashMap<u64, u32>,
    texts: HashMap<Box<str>, Text>,
}

impl Reader {
    fn line(&mut self, line: &[u8]) -> Result<(), String> {
        if self.lines == 0 {
            return header(line);
        }
        if self.trace.complete {
            return Err(BEHIND_THE_END.into());
        }
        if self.lines == self.limits.lines {
            return Err(format!("the trace has more than {} lines; record a shorter run", self.limits.lines));
        }
        let line: Line<'_> = serde_json::from_slice(line).map_err(|error| json_error(&error))?;
        let what = match line {
            Line::Stream(stream) => return self.stream(stream),
            Line::Ran(ran) => return self.ran(&ran),
            Line::End(end) if end.lines == self.lines => {
                self.trace.complete = true;
                return Ok(());
            }
            Line::End(end) => {
                return Err(format!("the trace was written with {} lines, and {} are here", end.lines, self.lines));
            }
            Line::Life(life) => self.life(life)?,
            Line::Free(free) => What::Free(self.find_life(free.life)?),
            Line::Unmap(unmap) => What::Unmap(range(unmap.base, unmap.bytes)?),
            Line::Observed(observed) => self.observed(&observed.points)?,
            Line::Record(record) => What::Record { event: record.event, point: self.point(record.point)? },
            Line::Instruction(instruction) => self.instruction(instruction)?,
            Line::Host(host) => self.host(host)?,
        };
        self.trace.actions.push(Action { line: self.lines + 1, what });
        let Trace { uses, runs, waits, points, .. } = &self.trace;
        let most = uses.len().max(runs.len()).max(waits.len()).max(points.len()) as u64;
        if most > self.limits.entries {
            let limit = self.limits.entries;
            return Err(format!("the trace has more than {limit} uses, waits, points or runs; record a shorter run"));
        }
        Ok(())
    }

    fn stream(&mut self, line: StreamLine<'_>) -> Result<(), String> {
        if self.streams.insert(line.id, self.trace.streams.len() as u32).is_some() {
            return Err(format!("stream {} is there already", line.id));
        }
        if self.trace.streams.len() as u64 == self.limits.streams {
            return Err(format!(
                "the trace has more than {} streams, and an engine has at most 1024",
                self.limits.streams
            ));
        }
        self.trace.streams.push(Stream { id: line.id, name: line.name.into(), ordered: line.ordered });
        self.last.push(0);
        self.ran.push((0, 0));
        Ok(())
    }

    /// Checks the times of an instruction. They are not part of the verification; impossible times are a mistake of the writer.
    fn ran(&mut self, line: &RanLine) -> Result<(), String> {
        let ((stream, seq), at) = (line.at, self.point(line.at)?);
        let last = self.last[at.stream as usize];
        if at.seq == 0 || at.seq > last {
            return Err(format!(
                "[{stream},{seq}] is said to have run, but only {last} instructions of the stream stand \
                                before this line"
            ));
        }
        if line.end < line.start {
            return Err(format!("[{stream},{seq}] is said to end at {}, before it starts at {}", line.end, line.start));
        }
        let (before, ended) = self.ran[at.stream as usize];
        if self.trace.streams[at.stream as usize].ordered && (at.seq <= before || line.start < ended) {
            return Err(format!(
                "[{stream},{seq}] is said to start at {}, behind [{stream},{before}], which ended at \
                                {ended}: a stream runs one instruction after the other",
                line.start
            ));
        }
        self.ran[at.stream as usize] = (at.seq, line.end);
        Ok(())
    }

    fn life(&mut self, line: LifeLine<'_>) -> Result<What, String> {
        let index = self.trace.lives.len() as u32;
        if self.lives.insert(line.id, index).is_some() {
            return Err(format!("life {} has begun before; each life has an id of its own", line.id));
        }
        let memory = match (&*line.kind, line.base, line.bytes) {
            ("var", None, None) => None,
            ("var", ..) => return Err("a variable has neither base nor bytes".into()),
            (_, Some(base), Some(bytes)) => Some(range(base, bytes)?),
            _ => return Err("base or bytes is missing; only a life of kind \"var\" has none".into()),
        };
        let place = line.place.unwrap_or(Cow::Borrowed(if memory.is_none() { "a variable" } else { "memory" }));
        self.trace.lives.push(Life { id: line.id, place: place.into(), memory });
        Ok(What::Life(index))
    }

    fn observed(&mut self, points: &[(u64, u64)]) -> Result<What, String> {
        let first = self.trace.points.len() as u32;
        for &(stream, seq) in points.iter().filter(|point| point.1 > 0) {
            let at = self.point((stream, seq))?;
            let last = self.last[at.stream as usize];
            if at.seq > last {
                return Err(format!(
                    "point [{stream},{seq}] is said to have passed, but only {last} instructions of the stream stand \
                     before this line"
                ));
            }
            self.trace.points.push(at);
        }
        Ok(What::Observed(first..self.trace.points.len() as u32))
    }

    fn instruction(&mut self, line: InstructionLine<'_>) -> Result<What, String> {
        let at = self.point(line.at)?;
        let last = &mut self.last[at.stream as usize];
        if at.seq != *last + 1 {
            let (expected, found) = (*last + 1, at.seq);
            return Err(format!("the next instruction of stream {} is number {expected}, not {found}", line.at.0));
        }
        *last = at.seq;
        let order = match line.order {
            None => Order::Uses,
            Some(OrderLine::All) => Order::All,
            Some(OrderLine::Barrier) => Order::Barrier,
            Some(OrderLine::After(point)) => Order::After(self.point(point)?),
        };
        let uses = self.uses(line.uses)?;
        let waits = self.waits(&line.waits)?;
        let (op, location) = (self.text(line.op), self.text(line.location));
        Ok(What::Instruction(Instruction { at, op, location, uses, waits, order }))
    }

    fn host(&mut self, line: HostLine<'_>) -> Result<What, String> {
        let uses = self.uses(line.uses)?;
        Ok(What::Host { op: self.text(line.op), location: self.text(line.location), uses })
    }

    fn uses(&mut self, lines: Vec<UseLine>) -> Result<Range<u32>, String> {
        let first = self.trace.uses.len() as u32;
        for line in lines {
            let life = self.find_life(line.life)?;
            if self.trace.lives[life as usize].memory.is_none() && !line.runs.is_empty() {
                return Err(format!("life {} is a variable and has no bytes to touch", line.life));
            }
            let first_run = self.trace.runs.len();
            for run in line.runs {
                self.run(first_run, run)?;
            }
            self.trace.hulls += u64::from(line.hull);
            let (reads, writes) = match line.access {
                AccessLine::Read => (true, false),
                AccessLine::Write => (false, true),
                AccessLine::ReadWrite => (true, true),
            };
            let runs = first_run as u32..self.trace.runs.len() as u32;
            self.trace.uses.push(Use { life, reads, writes, hull: line.hull, runs });
        }
        Ok(first..self.trace.uses.len() as u32)
    }

    /// Adds a run, or a repeated run, to the runs of one use, which begin at index `first`.
    fn run(&mut self, first: usize, run: RunLine) -> Result<(), String> {
        let (start, end, count, step) = match run {
            RunLine::One(start, end) => (start, end, 1, 0),
            RunLine::Repeated(start, end, count, step) => (start, end, count, step),
        };
        let runs = &mut self.trace.runs;
        let before = runs[first..].last().map_or(0, |(_, end)| *end);
        if start >= end || start < before {
            return Err(format!("run [{start},{end}] is empty, or does not come after the run before it"));
        }
        if (runs.len() as u64).saturating_add(count) > self.limits.entries {
            return Err(format!("there are more than {} runs of bytes; record a shorter run", self.limits.entries));
        }
        let last = count.checked_sub(1).and_then(|more| step.checked_mul(more)).and_then(|far| far.checked_add(end));
        if last.is_none() || (count > 1 && step < end - start) {
            return Err(format!(
                "run [{start},{end},{count},{step}] repeats no time, overlaps itself, or ends past 2^64"
            ));
        }
        runs.extend((0..count).map(|index| (start + index * step, end + index * step)));
        Ok(())
    }

    fn waits(&mut self, lines: &[WaitLine]) -> Result<Range<u32>, String> {
        let first = self.trace.waits.len() as u32;
        for line in lines {
            let point = self.point(line.point)?;
            self.trace.waits.push(Wait { point, by_host: line.by == ByLine::Host, event: line.event });
        }
        Ok(first..self.trace.waits.len() as u32)
    }

    fn point(&self, (stream, seq): (u64, u64)) -> Result<At, String> {
        let Some(&index) = self.streams.get(&stream) else {
            return Err(format!("no line before this one introduces stream {stream}"));
        };
        match u32::try_from(seq) {
            Ok(seq) if seq > 0 => Ok(At { stream: index, seq }),
            _ => Err(format!("[{stream},{seq}] is no point: numbers on a stream go from 1 to {}", u32::MAX)),
        }
    }

    fn find_life(&self, id: u64) -> Result<u32, String> {
        self.lives.get(&id).copied().ok_or_else(|| format!("no line before this one begins life {id}"))
    }

    /// The number of a text; equal texts have the same number.
    fn text(&mut self, text: Cow<'_, str>) -> Text {
        if let Some(number) = self.texts.get(&*text) {
            return *number;
        }
        let number = self.trace.texts.len() as Text;
        let text: Box<str> = text.into();
        self.trace.texts.push(text.clone());
        self.texts.insert(text, number);
        number
    }
}

fn header(line: &[u8]) -> Result<(), String> {
    let header: Header = serde_json::from_slice(line)
        .map_err(|error| format!("a trace starts with {{\"streamvm_trace\":{VERSION}}} ({})", json_error(&error)))?;
    if header.streamvm_trace == VERSION {
        Ok(())
    } else {
        Err(format!("this is version {} of the format, and version {VERSION} can be read", header.streamvm_trace))
    }
}

fn range(base: u64, bytes: u64) -> Result<Range<u64>, String> {
    let end = base.checked_add(bytes).ok_or_else(|| format!("{bytes} bytes from {base} reach past 64 bits"))?;
    Ok(base..end)
}
