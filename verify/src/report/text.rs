//! Reports as text: short, with aligned columns, and with the verdict last.

use std::fmt::{self, Write as _};

use crate::report::{Bytes, Dependence, ExcessWait, Fault, FaultKind, Listed, Missing, Place, Reason, Report};

/// The number of entries of a list that are shown; the JSON has more.
const SHOWN: usize = 10;

/// A caller's text without control characters, so that a trace cannot send an escape sequence to a terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// The columns of a position: `line 6`, `relu`, `[0,1] on compute`, `a.rs:2:1`.
fn columns(place: &Place) -> [String; 4] {
    let at = match place.point {
        Some(point) => format!("{point} on {}", plain(&place.stream)),
        None => plain(&place.stream),
    };
    [format!("line {}", place.line), plain(&place.op), at, plain(&place.location)]
}

/// Rows of aligned columns, two spaces apart, under a title.
struct Section {
    title: String,
    rows: Vec<Vec<String>>,
    /// The number of rows that are not shown.
    more: u64,
}

impl Section {
    fn of<T>(
        title: &str,
        list: &Listed<T>,
        of: Option<(u64, &str)>,
        mut rows: impl FnMut(&T) -> Vec<Vec<String>>,
    ) -> Section {
        let of = of.map_or(String::new(), |(all, what)| format!(" of {all}{what}"));
        Section {
            title: format!("{title}: {}{of}", list.total),
            rows: list.first.iter().take(SHOWN).flat_map(&mut rows).collect(),
            more: list.total.saturating_sub(SHOWN as u64),
        }
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                write!(line, "  {cell:<width$}")?;
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        if self.more > 0 {
            writeln!(f, "  … and {} more", self.more)?;
        }
        Ok(())
    }
}

fn with(place: &Place, last: String) -> Vec<String> {
    columns(place).into_iter().chain([last]).collect()
}

fn missing(pair: &Missing) -> Vec<Vec<String>> {
    rows(pair, "")
}

fn undecided(pair: &Missing) -> Vec<Vec<String>> {
    rows(pair, "up to ")
}

fn rows(missing: &Missing, up_to: &str) -> Vec<Vec<String>> {
    let (second, first) = match missing.dependence {
        Dependence::ReadAfterWrite => ("reads", "what this writes"),
        Dependence::WriteAfterWrite => ("writes", "what this writes"),
        Dependence::WriteAfterRead => ("writes", "what this reads"),
        Dependence::GivenBack => ("gives back", "what this touches"),
        Dependence::Asked => ("was asked to wait", "for this"),
    };
    let bytes = missing.bytes.as_ref().map_or(String::new(), |bytes| format!(": {up_to}{}", bytes_of(bytes)));
    vec![with(&missing.second, second.to_owned()), with(&missing.first, format!("{first}{bytes}"))]
}

fn bytes_of(bytes: &Bytes) -> String {
    let place = plain(&bytes.place);
    let life = bytes
        .life
        .map_or(String::new(), |life| format!(" (life {life}{})", if bytes.reused { ", reused" } else { "" }));
    if bytes.total == 0 {
        return format!("{place}{life}");
    }
    let plural = if bytes.total == 1 { "" } else { "s" };
    format!("{} byte{plural} on {place} from {:#x}{life}", bytes.total, bytes.address)
}

fn fault(fault: &Fault) -> Vec<Vec<String>> {
    let what = match &fault.kind {
        FaultKind::NeverRecorded { event, point } => {
            format!("waits for {point} by event {event}, which is not recorded before: the wait orders nothing")
        }
        FaultKind::WrongEvent { event, point, shows } => {
            format!("waits for {point} by event {event}, which shows {shows}")
        }
        FaultKind::WaitForNothing { point } => format!("waits for {point}, which is never submitted"),
        FaultKind::OrderedAfterNothing { point } => {
            format!("is to come after {point}, which is submitted later or never")
        }
        FaultKind::RecordOfNothing { event, point } => {
            format!("event {event} marks {point}, which is never submitted")
        }
        FaultKind::AfterFree { life } => format!("life {life} is over"),
        FaultKind::OutOfBounds { life, start, end } => {
            format!("uses {start:#x} to {end:#x}, which life {life} does not have")
        }
        FaultKind::NeverWritten { life, address, bytes } => {
            format!("reads {bytes} bytes of life {life} from {address:#x} that nothing has written")
        }
        FaultKind::TwoOwners { life, other } => {
            format!("life {life} begins in memory of life {other}, which is not over")
        }
        FaultKind::GivenBackAlive { life } => format!("gives memory of life {life} back, which is not over"),
    };
    vec![with(&fault.at, what)]
}

fn excess(wait: &ExcessWait) -> Vec<Vec<String>> {
    let [_, op, at, _] = columns(&wait.target);
    let by = if wait.by_host { "host" } else { "device" };
    let why = match wait.reason {
        Reason::Implied => "what else comes before comes after it",
        Reason::NotNeeded => "no dependence needs it",
    };
    vec![columns(&wait.at).into_iter().chain([format!("for {op} {at}"), by.to_owned(), why.to_owned()]).collect()]
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waits = self.device_waits + self.host_waits;
        for (name, value) in [
            ("streams", self.streams.to_string()),
            ("instructions", self.instructions.to_string()),
            ("dependences", self.dependences.to_string()),
            ("waits", format!("{waits} ({} device, {} host)", self.device_waits, self.host_waits)),
            ("records", self.records.to_string()),
        ] {
            writeln!(f, "{name:<14}{value}")?;
        }
        let sections = [
            Section::of("missing order", &self.missing, Some((self.dependences, " dependences")), missing),
            Section::of("possible races that the trace cannot decide", &self.undecided, None, undecided),
            Section::of("waiting in a circle", &self.cycles, None, |cycle| {
                let mut rows: Vec<_> =
                    cycle.places.iter().map(|place| with(place, "waits for the next".into())).collect();
                if let Some(last) = rows.last_mut().and_then(|row| row.last_mut()) {
                    *last = "waits for the first".into();
                }
                rows
            }),
            Section::of("faults", &self.faults, None, fault),
            Section::of("waits that could go", &self.excess.waits, Some((waits, "")), excess),
            Section::of("records that nobody waits for", &self.unused_records, Some((self.records, "")), |record| {
                vec![vec![
                    format!("line {}", record.line),
                    format!("event {}", record.event),
                    format!("{} on {}", record.point, plain(&record.stream)),
                ]]
            }),
        ];
        let shown = sections.iter().filter(|section| !section.rows.is_empty());
        shown.into_iter().try_for_each(|section| write!(f, "\n{section}"))?;
        writeln!(f)?;
        if self.excess.not_tried > 0 {
            writeln!(f, "{} waits were not tried for excess, because it would take too long", self.excess.not_tried)?;
        }
        if self.hulls > 0 {
            writeln!(f, "{} views of very many pieces are recorded by their first and last byte alone", self.hulls)?;
        }
        match self.cut_line {
            Some(line) => {
                writeln!(
                    f,
                    "the trace ends in the middle of line {line}: this line and what was recorded later is missing"
                )?;
            }
            None if !self.complete => {
                writeln!(f, "the trace has no \"end\" line: what was recorded later is missing")?;
            }
            None => {}
        }
        if self.is_empty() {
            writeln!(f, "the trace has no instruction and no access of the host: there is nothing to judge")?;
        }
        match (self.is_ok(), self.missing.is_empty()) {
            (false, _) if self.is_in_order() && self.is_empty() => writeln!(f, "not ok: the trace holds nothing"),
            (false, _) if self.is_in_order() => {
                writeln!(f, "not ok: the trace is partial; what is there is in order")
            }
            (true, _) if !self.undecided.is_empty() => {
                let count = self.undecided.total;
                writeln!(f, "ok: every dependence that the trace can decide is ordered; {count} cannot be decided")
            }
            (true, _) => writeln!(f, "ok: every dependence is ordered"),
            (false, true) => writeln!(f, "not ok"),
            (false, false) => writeln!(f, "not ok: there are races"),
        }
    }
}
