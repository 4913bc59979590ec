//! The statement that each instruction of a run came from, for traces and race reports.
//!
//! The engine records the location of an instruction in the source of this program, but the reader of a trace wants the line of the
//! script. The numbers of a stream count its instructions in the order of submission, so counting the emitted instructions of each
//! stream finds their statements. [`Issued`](crate::execute::issued::Issued) forgets instructions that have passed; here all are
//! kept, which costs little beside the trace, which grows with every instruction too.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::base::engine::{Instruction, StreamKey};
use crate::syntax::source::{Source, Span};

/// A statement's place in the script.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Origin {
    pub(crate) span: Span,
    line: u32,
    column: u32,
}

/// The statements of all instructions. The thread that submits and the writer of the trace share them under a lock.
#[derive(Clone, Debug)]
pub(crate) struct Locations(Arc<Mutex<Inner>>);

#[derive(Clone, Debug)]
struct Inner {
    script: String,
    /// The current statement.
    current: Origin,
    /// By stream, then by the number of the instruction on it, less 1.
    instructions: HashMap<StreamKey, Vec<Origin>>,
    /// The statements of loaded files whose lines of the trace are not written yet.
    loads: VecDeque<Origin>,
}

impl Locations {
    /// An empty record for a run of `source`.
    pub(crate) fn new(source: &Source) -> Locations {
        let script = source.name().to_owned();
        let (instructions, loads) = (HashMap::new(), VecDeque::new());
        Locations(Arc::new(Mutex::new(Inner { script, current: Origin::default(), instructions, loads })))
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        // A panic cannot leave the record inconsistent: no code panics between two changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `span` the current statement.
    pub(crate) fn begin(&self, source: &Source, span: Span) {
        let position = source.position(span.start);
        self.inner().current = Origin { span, line: position.line as u32, column: position.column as u32 };
    }

    /// Notes instructions that the current statement has added; they are not submitted yet.
    pub(crate) fn note(&self, added: &[Instruction]) {
        added.iter().for_each(|instruction| self.note_on(instruction.stream));
    }

    /// Notes an instruction that the current statement has added on a stream.
    pub(crate) fn note_on(&self, stream: StreamKey) {
        let mut inner = self.inner();
        let location = inner.current;
        inner.instructions.entry(stream).or_default().push(location);
    }

    /// Notes that the current statement makes a tensor of a file.
    pub(crate) fn note_load(&self) {
        let mut inner = self.inner();
        let location = inner.current;
        inner.loads.push_back(location);
    }

    /// The statement of instruction number `seq` of a stream.
    pub(crate) fn find(&self, stream: StreamKey, seq: u64) -> Option<Origin> {
        let index = usize::try_from(seq.checked_sub(1)?).ok()?;
        self.inner().instructions.get(&stream)?.get(index).copied()
    }

    fn next_load(&self) -> Option<Origin> {
        self.inner().loads.pop_front()
    }

    /// The location as text, such as `script.svm:3:1`.
    pub(crate) fn text(&self, location: Origin) -> String {
        format!("{}:{}:{}", self.inner().script, location.line, location.column)
    }
}

/// The outcome of writing a trace, final once the engine is dropped.
pub(crate) type Written = Arc<Mutex<io::Result<()>>>;

/// Writes a trace, with locations in the script in place of locations in this program.
pub(crate) struct LocationWriter<W> {
    inner: W,
    locations: Locations,
    written: Written,
    /// The beginning of a line that is not complete yet.
    begun: Vec<u8>,
    streams: HashMap<u64, StreamKey>,
}

impl<W: Write> LocationWriter<W> {
    /// A writer to `inner`; it keeps its first error in `written`.
    pub(crate) fn new(inner: W, locations: Locations, written: Written) -> LocationWriter<W> {
        LocationWriter { inner, locations, written, begun: Vec::new(), streams: HashMap::new() }
    }

    /// The line with its location replaced; `None` if the line has no location to replace.
    fn replaced(&mut self, line: &[u8]) -> Option<String> {
        let mut value: Value = serde_json::from_slice(line).ok()?;
        if let Some(stream) = value.get("stream") {
            let key = stream.get("name")?.as_str()?.parse().ok()?;
            self.streams.insert(stream.get("id")?.as_u64()?, key);
            return None;
        }
        let location = if let Some(instruction) = value.get("instruction") {
            let at = instruction.get("at")?;
            let stream = self.streams.get(&at.get(0)?.as_u64()?)?;
            self.locations.find(*stream, at.get(1)?.as_u64()?)?
        } else if value.get("host").is_some() {
            self.locations.next_load()?
        } else {
            return None;
        };
        let text = self.locations.text(location);
        let body = value.as_object_mut()?.values_mut().next()?;
        *body.get_mut("location")? = Value::String(text);
        Some(value.to_string())
    }

    fn line(&mut self, line: &[u8]) -> io::Result<()> {
        match self.replaced(line) {
            Some(text) => self.inner.write_all(text.as_bytes())?,
            None => self.inner.write_all(line)?,
        }
        self.inner.write_all(b"\n")
    }

    fn kept(&self, result: io::Result<()>) -> io::Result<()> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Err(error), Ok(())) = (&result, &*written) {
            *written = Err(io::Error::new(error.kind(), error.to_string()));
        }
        result
    }
}

impl<W: Write> Write for LocationWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let mut line = std::mem::take(&mut self.begun);
            line.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            let result = self.line(&line);
            self.kept(result)?;
            line.clear();
            self.begun = line;
        }
        self.begun.extend_from_slice(rest);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.inner.flush();
        self.kept(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::engine::{DeviceId, StreamType};

    #[test]
    fn locations_of_a_trace_become_lines_of_the_script_however_it_is_cut() {
        let source = Source::from_text("a.svm", "", "let a = load \"x.npy\"\n  let b = copy a to d\n");
        let locations = Locations::new(&source);
        let key = StreamKey::new(DeviceId::cpu(0), StreamType::HostToDevice, 0);
        locations.begin(&source, Span::new(0, 1));
        locations.note_load();
        locations.begin(&source, Span::new(23, 24));
        locations.note_on(key);
        let trace = "{\"streamvm_trace\":1}\n{\"stream\":{\"id\":4,\"name\":\"h2d@cpu:0:0\"}}\n\
                     {\"host\":{\"op\":\"tensor\",\"location\":\"own.rs:1:1\"}}\n\
                     {\"instruction\":{\"at\":[4,1],\"op\":\"copy\",\"location\":\"own.rs:2:2\"}}\n\
                     {\"instruction\":{\"at\":[4,2],\"op\":\"copy\",\"location\":\"own.rs:3:3\"}}\n";
        for cut in [1, 7, 1000] {
            let again = locations.inner().clone();
            let again = Locations(Arc::new(Mutex::new(again)));
            let mut writer = LocationWriter::new(Vec::new(), again, Arc::new(Mutex::new(Ok(()))));
            for part in trace.as_bytes().chunks(cut) {
                writer.write_all(part).unwrap();
            }
            let text = String::from_utf8(writer.inner).unwrap();
            let locations: Vec<&str> =
                text.lines().filter_map(|line| line.split('"').skip_while(|word| *word != "location").nth(2)).collect();
            assert_eq!(locations, ["a.svm:1:1", "a.svm:2:3", "own.rs:3:3"]);
            assert_eq!(text.lines().count(), 5);
        }
    }

    #[test]
    fn the_first_error_is_kept() {
        let written: Written = Arc::new(Mutex::new(Ok(())));
        let full: &mut [u8] = &mut [0; 4];
        let source = Source::from_text("a.svm", "", "");
        let mut writer = LocationWriter::new(full, Locations::new(&source), written.clone());
        assert!(writer.write_all(b"{\"streamvm_trace\":1}\n").is_err());
        assert_eq!(written.lock().unwrap().as_ref().unwrap_err().kind(), io::ErrorKind::WriteZero);
    }
}
