//! Traces: what an engine decided, written down for a checker that shares no code with it.
//!
//! The format is described in `docs/trace.md`: one JSON object a line, in program order. A [`Recorder`] turns plain data
//! into lines and does nothing else, so it may be used under the submission lock: it allocates at most, and calls
//! nobody. A [`TraceWriter`] hands the lines to the caller's writer, which is user code: never under the submission lock.
//!
//! Invariant: lines reach the writer in the order in which they were recorded, however many threads pass them on. The
//! writer's lock is held while lines are taken out and written, so nothing overtakes.

use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::TryLockError;

use hashbrown::HashMap;
use streamvm_ep::Access;
use streamvm_stream::{Point, StreamId, StreamKey, WaitKind};

use crate::sync::{Mutex, MutexGuard, unpoisoned};

/// The version of the format, on the first line.
const VERSION: u32 = 1;

/// A view of more runs of bytes than this is written as its hull (first to last byte), marked as such: a reader that keeps each run
/// needs at most 1 MiB for an operand. Runs of one length at one distance, as the columns of a matrix have, are written as one
/// entry, so that many of them make no long line.
const MOST_RUNS: usize = 1 << 16;

/// A view of more entries than this is written as its hull, too: a line stays below about 100 kB for an operand whatever its strides are.
const MOST_ENTRIES: usize = 1024;

/// What an instruction, or the host, does with one resource.
#[derive(Copy, Clone, Debug)]
pub(crate) struct UseLine<'a> {
    /// The life of the memory, or of the variable.
    pub(crate) life: u64,
    /// What is done with the bytes: a write of a part is a write, not a read and a write.
    pub(crate) access: Access,
    /// The addresses touched, ascending and not empty; none for a variable.
    pub(crate) runs: &'a [Range<usize>],
}

/// One wait of an instruction.
#[derive(Copy, Clone, Debug)]
pub(crate) struct WaitLine {
    /// The point waited for.
    pub(crate) point: Point,
    /// Who waits.
    pub(crate) by: WaitKind,
    /// The number of the event that shows it; `None` where the stream's own numbers do.
    pub(crate) event: Option<u64>,
}

/// What the program asked of order, besides what the data needs.
#[derive(Copy, Clone, Debug)]
pub(crate) enum OrderLine {
    /// Nothing.
    Uses,
    /// To come after this point.
    After(Point),
    /// To come after everything submitted before.
    AfterAll,
    /// That, and everything submitted later comes after it.
    Barrier,
}

/// One instruction.
#[derive(Copy, Clone, Debug)]
pub(crate) struct InstructionLine<'a> {
    pub(crate) at: Point,
    /// What runs: an op, a function's name, a kind of instruction.
    pub(crate) op: &'a str,
    pub(crate) site: &'a Location<'a>,
    pub(crate) uses: &'a [UseLine<'a>],
    pub(crate) waits: &'a [WaitLine],
    pub(crate) order: OrderLine,
}

/// Writes lines into memory. See the module's comment.
#[derive(Debug)]
pub(crate) struct Recorder {
    pending: String,
    lines: u64,
    ended: bool,
    singles: SingleNumbers,
}

/// In a trace the instructions of every stream count from 1 in program order; the engine gives those of an unordered stream
/// other numbers. Grows with the trace, of which it is a small part.
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

    /// The point as a trace names it.
    fn of(&self, point: Point) -> Point {
        Point { seq: self.numbers.get(&point).copied().unwrap_or(point.seq), ..point }
    }
}

impl Recorder {
    /// A recorder whose first line is the header.
    pub(crate) fn new() -> Recorder {
        let mut recorder =
            Recorder { pending: String::new(), lines: 0, ended: false, singles: SingleNumbers::default() };
        recorder.line(|text| write!(text, "{{\"streamvm_trace\":{VERSION}}}"));
        recorder
    }

    /// A stream, before the first line that names it. The instructions of an ordered stream come one after the other.
    pub(crate) fn stream(&mut self, id: StreamId, key: StreamKey) {
        self.line(|text| {
            write!(text, "{{\"stream\":{{\"id\":{},\"name\":", id.index())?;
            quoted(text, &key)?;
            text.push_str(if id.is_unordered() { ",\"ordered\":false}}" } else { "}}" });
            Ok(())
        });
    }

    /// A resource gets memory, in program order: before the first line that uses it. `id` is never used again.
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

    /// A variable: a resource without memory, ordered as a whole.
    pub(crate) fn variable(&mut self, id: u64) {
        self.line(|text| write!(text, "{{\"life\":{{\"id\":{id},\"kind\":\"var\"}}}}"));
    }

    /// The last handle of a resource is gone, or it was released: its memory may get a new life.
    pub(crate) fn free(&mut self, life: u64) {
        self.line(|text| write!(text, "{{\"free\":{{\"life\":{life}}}}}"));
    }

    /// Memory goes back to its device: from here on the addresses may be anybody's.
    pub(crate) fn unmap(&mut self, base: usize, bytes: usize) {
        self.line(|text| write!(text, "{{\"unmap\":{{\"base\":{base},\"bytes\":{bytes}}}}}"));
    }

    /// The host has seen these points pass: all that it does later, and all that is submitted later, comes after them.
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

    /// An event marks a point, before the first wait by it. An event that is recorded again marks only the new point.
    pub(crate) fn record(&mut self, event: u64, point: Point) {
        self.line(|text| {
            write!(text, "{{\"record\":{{\"event\":{event},\"point\":")?;
            pair(text, point)?;
            text.push_str("}}");
            Ok(())
        });
    }

    /// When the device ran an instruction, in nanoseconds by its own clock.
    pub(crate) fn ran(&mut self, at: Point, time: Range<u64>) {
        self.line(|text| {
            text.push_str("{\"ran\":{\"at\":");
            pair(text, at)?;
            write!(text, ",\"start\":{},\"end\":{}}}}}", time.start, time.end)
        });
    }

    /// The host itself touches memory, at this place of the program, and is over with it when the call returns.
    pub(crate) fn host(&mut self, op: &str, site: &Location<'_>, uses: &[UseLine<'_>]) {
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

    /// The last line, which tells a reader that nothing is missing. Later lines are dropped.
    pub(crate) fn end(&mut self) {
        let lines = self.lines;
        self.line(|text| write!(text, "{{\"end\":{{\"lines\":{lines}}}}}"));
        self.ended = true;
    }

    /// Takes out what was recorded since the last call: whole lines.
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

fn described(text: &mut String, op: &str, site: &Location<'_>, uses: &[UseLine<'_>]) -> fmt::Result {
    text.push_str(",\"op\":");
    quoted(text, &op)?;
    text.push_str(",\"site\":");
    quoted(text, site)?;
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

/// Runs that repeat at one distance as one entry: the first, how many there are, and the distance. At least three make one.
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

/// A JSON string. Names of functions are a caller's and may hold anything.
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

/// The caller's writer. See the module's comment.
pub(crate) struct TraceWriter {
    out: Mutex<Out>,
}

struct Out {
    writer: Box<dyn Write + Send>,
    /// The first error; nothing is written after it, as a trace with a hole would be judged wrongly.
    failed: Option<io::Error>,
}

impl TraceWriter {
    pub(crate) fn new(writer: Box<dyn Write + Send>) -> TraceWriter {
        TraceWriter { out: Mutex::new(Out { writer, failed: None }) }
    }

    /// Writes what `take` gives, until it gives nothing. A thread that finds another one writing leaves its lines to
    /// it; so does the writer itself when it submits to the engine that it writes for. `take` may lock the recorder;
    /// whoever holds that lock does not call this.
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
            // Between the last look and giving the lock back another thread may have left lines here.
            if !wrote {
                return;
            }
        }
    }

    /// Writes what is left and flushes. Waits for another thread that is writing.
    ///
    /// # Errors
    /// The first error of the writer since the beginning, once.
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
            Err(payload) => Some(io::Error::other(format!("the writer panicked: {}", crate::run::panic_text(payload)))),
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
