//! Traces: a record of what an engine decided, for a checker that shares no code with the engine.
//!
//! The format is described in `docs/trace.md`: one JSON object per line, in program order. A [`Recorder`] only turns plain data into lines.
//! It may be used under the submission lock, because it calls no other code and at most allocates. A [`TraceWriter`] passes the lines to
//! the caller's writer. That is user code, so it is never called under the submission lock.
//!
//! Invariant: lines reach the writer in the order of recording, however many threads pass them on. A thread holds the writer's lock while
//! it takes lines out and writes them, so no line overtakes another.

use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::TryLockError;

use hashbrown::HashMap;
use streamvm_ep::{Access, Site};
use streamvm_stream::{Point, StreamId, StreamKey, WaitKind};

use crate::sync::{Mutex, MutexGuard, unpoisoned};

/// The version of the format, written on the first line.
const VERSION: u32 = 1;

/// A view with more runs of bytes than this is written as its hull (first to last byte), marked as such. So a reader that stores every run
/// needs at most 1 MiB per operand. Runs of one length at one distance, such as the columns of a matrix, are written as one entry, so many
/// of them do not make a long line.
const MOST_RUNS: usize = 1 << 16;

/// A view with more entries than this is written as its hull, too. So a line stays below about 100 kB per operand, whatever the strides
/// are.
const MOST_ENTRIES: usize = 1024;

/// One use of a resource by an instruction, or by the host.
#[derive(Copy, Clone, Debug)]
pub(crate) struct UseLine<'a> {
    /// The id of the allocation, or of the variable (`life` in the trace).
    pub(crate) life: u64,
    /// How the bytes are accessed. A write of a part is a write, not a read and a write.
    pub(crate) access: Access,
    /// The addresses accessed, ascending and each not empty; none for a variable.
    pub(crate) runs: &'a [Range<usize>],
}

/// One wait of an instruction.
#[derive(Copy, Clone, Debug)]
pub(crate) struct WaitLine {
    /// The point waited for.
    pub(crate) point: Point,
    /// Whether the device or the host waits.
    pub(crate) by: WaitKind,
    /// The number of the event that marks the point; `None` where the wait is for the stream's own number.
    pub(crate) event: Option<u64>,
}

/// The order that the program asked for explicitly, beyond what its uses of data imply.
#[derive(Copy, Clone, Debug)]
pub(crate) enum OrderLine {
    /// None.
    Uses,
    /// After this point.
    After(Point),
    /// After everything submitted before.
    AfterAll,
    /// After everything submitted before, and before everything submitted later.
    Barrier,
}

/// One instruction.
#[derive(Copy, Clone, Debug)]
pub(crate) struct InstructionLine<'a> {
    pub(crate) at: Point,
    /// What runs: an op, a function's name, or a kind of instruction.
    pub(crate) op: &'a str,
    pub(crate) site: Site,
    pub(crate) uses: &'a [UseLine<'a>],
    pub(crate) waits: &'a [WaitLine],
    pub(crate) order: OrderLine,
}

/// Writes trace lines into memory. See the module's documentation.
#[derive(Debug)]
pub(crate) struct Recorder {
    pending: String,
    lines: u64,
    ended: bool,
    singles: SingleNumbers,
}

/// Maps engine numbers to trace numbers. A trace numbers the instructions of every stream from 1 in program order; the engine numbers those
/// of an unordered stream differently. The map grows with the trace, and stays small beside it.
#[derive(Debug, Default)]
struct SingleNumbers {
    counts: HashMap<StreamId, u64>,
    numbers: HashMap<Point, u64>,
}

impl SingleNumbers {
    fn add(&mut self, point: Point) {
        if point.stream.is_unordered() {
            let count = self.counts.entry(point.stream).or_default();
            *count += 1;
            self.numbers.insert(point, *count);
        }
    }

    /// The point as it is written in a trace.
    fn of(&self, point: Point) -> Point {
        Point { seq: self.numbers.get(&point).copied().unwrap_or(point.seq), ..point }
    }
}

impl Recorder {
    /// A recorder that has written the header line.
    pub(crate) fn new() -> Recorder {
        let mut recorder =
            Recorder { pending: String::new(), lines: 0, ended: false, singles: SingleNumbers::default() };
        recorder.line(|text| write!(text, "{{\"streamvm_trace\":{VERSION}}}"));
        recorder
    }

    /// Declares a stream, before the first line that names it. Instructions of an ordered stream run one after another.
    pub(crate) fn stream(&mut self, id: StreamId, key: StreamKey) {
        self.line(|text| {
            write!(text, "{{\"stream\":{{\"id\":{},\"name\":", id.index())?;
            quoted(text, &key)?;
            text.push_str(if id.is_unordered() { ",\"ordered\":false}}" } else { "}}" });
            Ok(())
        });
    }

    /// Begins an allocation of a resource, in program order, before the first line that uses it. An `id` is never used again.
    pub(crate) fn life(
        &mut self,
        id: u64,
        place: &dyn fmt::Display,
        kind: &dyn fmt::Display,
        base: usize,
        bytes: usize,
    ) {
        self.line(|text| {
            write!(text, "{{\"life\":{{\"id\":{id},\"place\":")?;
            quoted(text, place)?;
            text.push_str(",\"kind\":");
            quoted(text, kind)?;
            write!(text, ",\"base\":{base},\"bytes\":{bytes}}}}}")
        });
    }

    /// Begins a variable: a resource without memory, ordered as a whole.
    pub(crate) fn variable(&mut self, id: u64) {
        self.line(|text| write!(text, "{{\"life\":{{\"id\":{id},\"kind\":\"var\"}}}}"));
    }

    /// Ends an allocation: the last handle is gone, or the resource was released. Its addresses may belong to a new allocation.
    pub(crate) fn free(&mut self, life: u64) {
        self.line(|text| write!(text, "{{\"free\":{{\"life\":{life}}}}}"));
    }

    /// Memory was returned to its device: from here on any other owner may get the addresses.
    pub(crate) fn unmap(&mut self, base: usize, bytes: usize) {
        self.line(|text| write!(text, "{{\"unmap\":{{\"base\":{base},\"bytes\":{bytes}}}}}"));
    }

    /// The host has observed these points as passed: all that the host does later, and all that is submitted later, is ordered after them.
    pub(crate) fn observed(&mut self, points: impl IntoIterator<Item = Point>) {
        let points: Vec<Point> = points.into_iter().map(|point| self.singles.of(point)).collect();
        if points.is_empty() {
            return;
        }
        self.line(|text| {
            text.push_str("{\"observed\":{\"points\":[");
            separated(text, points, pair)?;
            text.push_str("]}}");
            Ok(())
        });
    }

    /// An instruction, in program order.
    pub(crate) fn instruction(&mut self, instruction: &InstructionLine<'_>) {
        let InstructionLine { at, op, site, uses, waits, order } = *instruction;
        self.singles.add(at);
        let name = |point| self.singles.of(point);
        let waits: Vec<WaitLine> = waits.iter().map(|wait| WaitLine { point: name(wait.point), ..*wait }).collect();
        let (at, order) = match order {
            OrderLine::After(point) => (name(at), OrderLine::After(name(point))),
            order => (name(at), order),
        };
        self.line(|text| {
            text.push_str("{\"instruction\":{\"at\":");
            pair(text, at)?;
            described(text, op, site, uses)?;
            if !waits.is_empty() {
                text.push_str(",\"waits\":[");
                separated(text, &waits, wait)?;
                text.push(']');
            }
            match order {
                OrderLine::Uses => {}
                OrderLine::After(point) => {
                    text.push_str(",\"order\":{\"after\":");
                    pair(text, point)?;
                    text.push('}');
                }
                OrderLine::AfterAll => text.push_str(",\"order\":\"all\""),
                OrderLine::Barrier => text.push_str(",\"order\":\"barrier\""),
            }
            text.push_str("}}");
            Ok(())
        });
    }

    /// An event marks a point, before the first wait by this event. An event that is recorded again marks only the new point.
    pub(crate) fn record(&mut self, event: u64, point: Point) {
        self.line(|text| {
            write!(text, "{{\"record\":{{\"event\":{event},\"point\":")?;
            pair(text, point)?;
            text.push_str("}}");
            Ok(())
        });
    }

    /// When the device ran an instruction, in nanoseconds of the device's own clock.
    pub(crate) fn ran(&mut self, at: Point, time: Range<u64>) {
        self.line(|text| {
            text.push_str("{\"ran\":{\"at\":");
            pair(text, at)?;
            write!(text, ",\"start\":{},\"end\":{}}}}}", time.start, time.end)
        });
    }

    /// The host accesses memory at this place of the program. The access is over when the call returns.
    pub(crate) fn host(&mut self, op: &str, site: Site, uses: &[UseLine<'_>]) {
        self.line(|text| {
            text.push_str("{\"host\":{");
            let start = text.len();
            described(text, op, site, uses)?;
            // The first field has no comma before it.
            text.remove(start);
            text.push_str("}}");
            Ok(())
        });
    }

    /// Writes the last line, which tells a reader that the trace is complete. Lines recorded later are dropped.
    pub(crate) fn end(&mut self) {
        let lines = self.lines;
        self.line(|text| write!(text, "{{\"end\":{{\"lines\":{lines}}}}}"));
        self.ended = true;
    }

    /// Takes the lines recorded since the last call. All lines are whole.
    pub(crate) fn take(&mut self) -> String {
        std::mem::take(&mut self.pending)
    }

    fn line(&mut self, write: impl FnOnce(&mut String) -> fmt::Result) {
        if self.ended {
            return;
        }
        // Writing to a String cannot fail.
        let _ = write(&mut self.pending);
        self.pending.push('\n');
        self.lines += 1;
    }
}

fn pair(text: &mut String, point: Point) -> fmt::Result {
    write!(text, "[{},{}]", point.stream.index(), point.seq)
}

fn separated<T>(
    text: &mut String,
    items: impl IntoIterator<Item = T>,
    mut write: impl FnMut(&mut String, T) -> fmt::Result,
) -> fmt::Result {
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        write(text, item)?;
    }
    Ok(())
}

fn described(text: &mut String, op: &str, site: Site, uses: &[UseLine<'_>]) -> fmt::Result {
    text.push_str(",\"op\":");
    quoted(text, &op)?;
    text.push_str(",\"location\":");
    quoted(text, &site)?;
    if !uses.is_empty() {
        text.push_str(",\"uses\":[");
        separated(text, uses, usage)?;
        text.push(']');
    }
    Ok(())
}

fn usage(text: &mut String, u: &UseLine<'_>) -> fmt::Result {
    let access = match u.access {
        Access::Read => "read",
        Access::Write => "write",
        Access::ReadWrite => "readwrite",
    };
    write!(text, "{{\"life\":{},\"access\":\"{access}\"", u.life)?;
    let too_many = u.runs.len() > MOST_RUNS || repeats(u.runs).nth(MOST_ENTRIES).is_some();
    if let (true, Some(first), Some(last)) = (too_many, u.runs.first(), u.runs.last()) {
        write!(text, ",\"runs\":[[{},{}]],\"hull\":true", first.start, last.end)?;
    } else if !u.runs.is_empty() {
        text.push_str(",\"runs\":[");
        separated(text, repeats(u.runs), |text, (run, count, step)| match count {
            1 => write!(text, "[{},{}]", run.start, run.end),
            _ => write!(text, "[{},{},{count},{step}]", run.start, run.end),
        })?;
        text.push(']');
    }
    text.push('}');
    Ok(())
}

/// Groups runs of one length at one distance: (first run, count, distance in bytes). At least three runs make a group; others have count 1.
fn repeats(runs: &[Range<usize>]) -> impl Iterator<Item = (&Range<usize>, usize, usize)> {
    let mut rest = runs;
    std::iter::from_fn(move || {
        let first = rest.first()?;
        let step = rest.get(1).map_or(0, |second| second.start - first.start);
        let alike =
            |(index, run): &(usize, &Range<usize>)| run.len() == first.len() && run.start == first.start + index * step;
        let count = match rest.iter().enumerate().take_while(alike).count() {
            count @ 3.. => count,
            _ => 1,
        };
        rest = &rest[count..];
        Some((first, count, step))
    })
}

fn wait(text: &mut String, wait: &WaitLine) -> fmt::Result {
    text.push_str("{\"point\":");
    pair(text, wait.point)?;
    text.push_str(match wait.by {
        WaitKind::Device => ",\"by\":\"device\"",
        WaitKind::Host => ",\"by\":\"host\"",
    });
    if let Some(event) = wait.event {
        write!(text, ",\"event\":{event}")?;
    }
    text.push('}');
    Ok(())
}

/// Writes a JSON string. Function names come from the caller and may hold any character.
fn quoted(text: &mut String, value: &dyn fmt::Display) -> fmt::Result {
    struct Escaped<'a>(&'a mut String);
    impl fmt::Write for Escaped<'_> {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            for c in part.chars() {
                match c {
                    '"' => self.0.push_str("\\\""),
                    '\\' => self.0.push_str("\\\\"),
                    c if c < ' ' => write!(self.0, "\\u{:04x}", u32::from(c))?,
                    c => self.0.push(c),
                }
            }
            Ok(())
        }
    }
    text.push('"');
    write!(Escaped(text), "{value}")?;
    text.push('"');
    Ok(())
}

/// The caller's writer. See the module's documentation.
pub(crate) struct TraceWriter {
    out: Mutex<Out>,
}

struct Out {
    writer: Box<dyn Write + Send>,
    /// The first error. Nothing is written after it, because a checker would judge a trace with a gap wrongly.
    failed: Option<io::Error>,
}

impl TraceWriter {
    pub(crate) fn new(writer: Box<dyn Write + Send>) -> TraceWriter {
        TraceWriter { out: Mutex::new(Out { writer, failed: None }) }
    }

    /// Writes what `take` returns until it returns nothing.
    ///
    /// A thread that finds the writer's lock taken returns at once, and the holder writes its lines. The same happens if the user's writer
    /// itself submits to the engine that it writes for. `take` may lock the recorder, so the caller must not hold the recorder's lock.
    pub(crate) fn pass_on(&self, mut take: impl FnMut() -> String) {
        loop {
            let mut out = match self.out.try_lock() {
                Ok(out) => out,
                Err(TryLockError::Poisoned(out)) => out.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            let mut wrote = false;
            loop {
                let lines = take();
                if lines.is_empty() {
                    break;
                }
                out.write(lines.as_bytes());
                wrote = true;
            }
            drop(out);
            // Another thread may have left lines between the last look and the unlock: look again.
            if !wrote {
                return;
            }
        }
    }

    /// Writes what is left, and flushes. Blocks while another thread is writing.
    ///
    /// # Errors
    /// The first error of the writer since the beginning, reported once.
    pub(crate) fn finish(&self, take: impl FnOnce() -> String) -> io::Result<()> {
        let mut out: MutexGuard<'_, Out> = unpoisoned(self.out.lock());
        let lines = take();
        out.write(lines.as_bytes());
        out.attempt(|writer| writer.flush());
        out.failed.take().map_or(Ok(()), Err)
    }
}

impl Out {
    fn write(&mut self, bytes: &[u8]) {
        self.attempt(|writer| writer.write_all(bytes));
    }

    fn attempt(&mut self, act: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
        if self.failed.is_some() {
            return;
        }
        let result = catch_unwind(AssertUnwindSafe(|| act(&mut self.writer)));
        let failed = match result {
            Ok(result) => result.err(),
            Err(payload) => {
                Some(io::Error::other(format!("the writer panicked: {}", crate::sync::panics::panic_text(payload))))
            }
        };
        if let Some(error) = failed {
            log::error!("the trace ends here, because it cannot be written: {error}");
            self.failed = Some(error);
        }
    }
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;
