//! A program as a trace, so that the verifier judges independently what is ordered.
//!
//! Every command, also each record and wait, becomes an instruction of the trace, so that the translation loses nothing. The two host
//! threads are streams, and each issued command waits for what its thread has done before.

use std::collections::HashMap;
use std::fmt::Write as _;

use streamvm::Access;
use streamvm_verify::{Closure, Point, Trace, verify};

use super::program::{Command, ELEMENTS, Id, Program, Use};

/// The verifier's judgement of a program.
pub(crate) struct Judged {
    closure: Closure,
    /// Number of dependences that the verifier itself finds unordered.
    pub(crate) missing: usize,
    points: HashMap<Id, Point>,
}

impl Judged {
    /// Does the verifier order `second` after `first`?
    ///
    /// # Panics
    /// If one of the two is not in the trace.
    pub(crate) fn ordered(&self, first: Id, second: Id) -> bool {
        let known = self.closure.ordered(self.points[&first], self.points[&second]);
        known.expect("each access is an instruction of the trace")
    }
}

/// Lets the verifier compute the order of a program.
///
/// # Panics
/// If the verifier rejects the trace.
pub(crate) fn judge(program: &Program) -> Judged {
    let mut writer = Writer::new(program);
    program.commands.iter().for_each(|command| writer.command(program, command));
    let text = writer.finish();
    let trace = Trace::read(text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let closure = Closure::of(&trace).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let report = verify(&trace).unwrap_or_else(|error| panic!("{error}\n{text}"));
    Judged { closure, missing: report.missing.total as usize, points: writer.points }
}

struct Writer {
    text: String,
    lines: usize,
    /// The last number of each stream; the two host threads come after the streams.
    last: Vec<u64>,
    /// The point that each event marks, and the number of its record.
    events: HashMap<usize, (Point, usize)>,
    records: usize,
    /// Further points that the next instruction of each stream waits for.
    pending: Vec<Vec<(Point, Option<usize>)>>,
    points: HashMap<Id, Point>,
}

impl Writer {
    fn new(program: &Program) -> Writer {
        let streams = program.streams.len() + 2;
        let mut writer = Writer {
            text: String::new(),
            lines: 0,
            last: vec![0; streams],
            events: HashMap::new(),
            records: 0,
            pending: vec![Vec::new(); streams],
            points: HashMap::new(),
        };
        writer.line(r#"{"streamvm_trace":1}"#);
        for id in 0..streams {
            writer.line(&format!(r#"{{"stream":{{"id":{id},"name":"stream {id}"}}}}"#));
        }
        writer
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
        self.lines += 1;
    }

    fn command(&mut self, program: &Program, command: &Command) {
        let host = program.streams.len();
        match command {
            Command::Run { id, stream, uses, .. } => {
                self.issued(host, *stream);
                let point = self.instruction(*stream, "run", &uses_text(program, uses));
                self.points.insert(*id, point);
            }
            Command::Record { stream, event } => {
                self.issued(host, *stream);
                let point = self.instruction(*stream, "record", "");
                self.records += 1;
                self.events.insert(*event, (point, self.records));
                let (Point { stream, seq }, number) = (point, self.records);
                self.line(&format!(r#"{{"record":{{"event":{number},"point":[{stream},{seq}]}}}}"#));
            }
            Command::Wait { stream, event } => {
                self.issued(host, *stream);
                self.wait(*stream, *event);
            }
            Command::HostWait { thread, event } => self.wait(host + thread, *event),
            Command::Synchronize { stream } => {
                if self.last[*stream] > 0 {
                    let all = Point { stream: *stream as u64, seq: self.last[*stream] };
                    self.pending[host].push((all, None));
                    self.instruction(host, "synchronize", "");
                }
            }
            Command::Host { id, touched } => {
                let point = self.instruction(host, "host", &uses_text(program, &[*touched]));
                self.points.insert(*id, point);
            }
            Command::Free { id, .. } => {
                let point = self.instruction(host, "free", "");
                self.points.insert(*id, point);
            }
            Command::Begin { life } => {
                let (base, bytes) = address(program, *life);
                let kind = r#""place":"sim:0","kind":"device""#;
                self.line(&format!(r#"{{"life":{{"id":{life},{kind},"base":{base},"bytes":{bytes}}}}}"#));
            }
            Command::End { life } => self.line(&format!(r#"{{"free":{{"life":{life}}}}}"#)),
            Command::ReleaseEvent { .. } => {}
        }
    }

    /// Orders the next command of the stream after everything that the issuing thread has done.
    fn issued(&mut self, host: usize, stream: usize) {
        if self.last[host] > 0 {
            self.pending[stream].push((Point { stream: host as u64, seq: self.last[host] }, None));
        }
    }

    fn wait(&mut self, waiter: usize, event: usize) {
        if let Some((point, number)) = self.events.get(&event).copied() {
            self.pending[waiter].push((point, Some(number)));
        }
        self.instruction(waiter, "wait", "");
    }

    fn instruction(&mut self, stream: usize, op: &str, uses: &str) -> Point {
        self.last[stream] += 1;
        let seq = self.last[stream];
        let mut waits = String::new();
        for (point, event) in std::mem::take(&mut self.pending[stream]) {
            if point.stream == stream as u64 {
                continue;
            }
            let comma = if waits.is_empty() { "" } else { "," };
            let _ = write!(waits, r#"{comma}{{"point":[{},{}],"by":"device""#, point.stream, point.seq);
            if let Some(event) = event {
                let _ = write!(waits, r#","event":{event}"#);
            }
            waits.push('}');
        }
        let at = format!(r#""at":[{stream},{seq}],"op":"{op}","location":"hazard:{}:1""#, self.lines + 1);
        self.line(&format!(r#"{{"instruction":{{{at},"uses":[{uses}],"waits":[{waits}]}}}}"#));
        Point { stream: stream as u64, seq }
    }

    fn finish(&mut self) -> String {
        let lines = self.lines;
        self.line(&format!(r#"{{"end":{{"lines":{lines}}}}}"#));
        std::mem::take(&mut self.text)
    }
}

/// The address of an allocation, and its size in bytes.
fn address(program: &Program, life: usize) -> (usize, usize) {
    let life = program.lives[life];
    (4096 * (life.region + 1) + 4 * life.start, 4 * life.elements)
}

fn uses_text(program: &Program, uses: &[Use]) -> String {
    let each = uses.iter().map(|touched| {
        let (region, elements) = program.elements(*touched);
        let access = match touched.access {
            Access::Read => "read",
            Access::Write => "write",
            Access::ReadWrite => "readwrite",
        };
        let address = |element: usize| 4096 * (region + 1) + 4 * element;
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for element in (0..ELEMENTS).filter(|element| elements & (1 << element) != 0) {
            match runs.last_mut() {
                Some((_, end)) if *end == address(element) => *end += 4,
                _ => runs.push((address(element), address(element) + 4)),
            }
        }
        let runs: Vec<String> = runs.iter().map(|(start, end)| format!("[{start},{end}]")).collect();
        format!(r#"{{"life":{},"access":"{access}","runs":[{}]}}"#, touched.life, runs.join(","))
    });
    each.collect::<Vec<_>>().join(",")
}
