//! The text form of a report.

use std::borrow::Cow;
use std::fmt::{self, Display, Formatter};

use crate::memory::Owner;
use crate::report::{Cause, Idle, Place, Report};

/// A time that people read.
pub(crate) struct Ns(pub(crate) u64);

impl Display for Ns {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let ns = self.0 as f64;
        let text = match self.0 {
            0..1_000 => format!("{} ns", self.0),
            1_000..1_000_000 => format!("{:.1} µs", ns / 1e3),
            1_000_000..1_000_000_000 => format!("{:.1} ms", ns / 1e6),
            _ => format!("{:.2} s", ns / 1e9),
        };
        f.pad(&text)
    }
}

/// A number of bytes that people read.
pub(crate) struct Bytes(pub(crate) u64);

impl Display for Bytes {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        let text = match self.0 {
            0..1_024 => format!("{} B", self.0),
            1_024..0x10_0000 => format!("{:.1} KiB", bytes / 1024.0),
            0x10_0000..0x4000_0000 => format!("{:.1} MiB", bytes / f64::from(1 << 20)),
            _ => format!("{:.2} GiB", bytes / f64::from(1 << 30)),
        };
        f.pad(&text)
    }
}

/// A part of a whole, in percent.
struct Percent(u64, u64);

impl Display for Percent {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Percent(part, whole) = *self;
        f.pad(&format!("{:.0} %", 100.0 * part as f64 / whole.max(1) as f64))
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.line)?;
        self.stream.iter().try_for_each(|stream| write!(f, " on {stream}"))
    }
}

impl Display for Idle {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let at = self.at.as_deref().unwrap_or("the end of the run");
        let of = self.of.as_ref().map(Place::to_string).unwrap_or_default();
        match self.cause {
            Cause::Waited => write!(f, "waited for {of}")?,
            Cause::Overwrites => write!(f, "waited to overwrite what is used by {of}")?,
            Cause::NotSubmitted => write!(f, "nothing was submitted until {at}")?,
            Cause::HostWaited if self.of.is_none() => write!(f, "the host waited at {at} in vain")?,
            Cause::HostWaited => write!(f, "the host waited at {at} for {of}")?,
            Cause::NoRoom => write!(f, "the host waited at {at} until fewer instructions were pending")?,
            Cause::NoMemory => write!(f, "the host waited at {at} for memory")?,
            Cause::Section => write!(f, "the host waited at {at} for the end of a critical section")?,
            Cause::Late => write!(f, "no thread ran {at} yet")?,
        }
        if self.times > 1 { write!(f, ", {} times", self.times) } else { Ok(()) }
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let total = self.total_ns;
        let s = |count: u64| if count == 1 { "" } else { "s" };
        let (instructions, streams) = (self.instructions, self.streams.len() as u64);
        write!(f, "{} in {instructions} instruction{} on {streams} stream{}", Ns(total), s(instructions), s(streams))?;
        writeln!(f, "{}", if self.is_cut { "; the trace is cut" } else { "" })?;
        let width = self.streams.iter().map(|it| it.stream.chars().count()).max().unwrap_or(0).max(6);
        writeln!(
            f,
            "\n{:width$} {:>12} {:>6} {:>8} {:>14} {:>11} {:>5} {:>5}",
            "stream", "instructions", "busy", "waiting", "not submitted", "host waits", "held", "late"
        )?;
        for it in &self.streams {
            let part = |ns| Percent(ns, total);
            writeln!(
                f,
                "{:width$} {:>12} {:>6} {:>8} {:>14} {:>11} {:>5} {:>5}",
                it.stream,
                it.instructions,
                part(it.busy_ns),
                part(it.waiting_ns),
                part(it.not_submitted_ns),
                part(it.host_waits_ns),
                part(it.held_ns),
                part(it.late_ns)
            )?;
        }
        if !self.failed.is_empty() {
            writeln!(f, "\nfailed")?;
        }
        self.failed.iter().try_for_each(|it| writeln!(f, "{:15}  {it}", ""))?;
        if !self.pending.is_empty() {
            writeln!(f, "\nnot passed when the trace was written")?;
        }
        for it in &self.pending {
            let stream = it.of.stream.as_deref().unwrap_or_default();
            write!(f, "{:>9}        {stream:width$}  {}", Ns(it.ns), it.state)?;
            if !it.of.name.is_empty() {
                write!(f, ": {} ({})", it.of.name, it.of.line)?;
            }
            writeln!(f, "{}{}", if it.waits_for.is_empty() { "" } else { ", for " }, it.waits_for.join(", "))?;
        }
        let longest = |it: &&Idle| u128::from(it.ns) * 100 >= u128::from(total);
        if self.idle.iter().any(|it| longest(&it)) {
            writeln!(f, "\nwhy streams were idle, 1 % of the time or more")?;
        }
        for it in self.idle.iter().filter(longest) {
            writeln!(f, "{:>9} {:>5}  {:width$}  {it}", Ns(it.ns), Percent(it.ns, total), it.stream)?;
        }
        let path = &self.critical_path;
        writeln!(
            f,
            "\nthe critical path: {} of instructions, {} until the host had submitted, {} until threads ran",
            Percent(path.ran_ns, total),
            Percent(path.host_ns, total),
            Percent(path.late_ns, total)
        )?;
        if !path.groups.is_empty() {
            writeln!(f, "{:>9} {:>5} {:>7} {:>12}", "time", "", "times", "would save")?;
        }
        for it in path.groups.iter().take(10) {
            writeln!(
                f,
                "{:>9} {:>5} {:>7} {:>12}  {}",
                Ns(it.ns),
                Percent(it.ns, total),
                it.times,
                Ns(it.would_save_ns),
                it.of
            )?;
        }
        writeln!(f)?;
        if let Some(copies) = &self.copies {
            let beside = Percent(copies.beside_ns, copies.copying_ns);
            writeln!(f, "copies took {}, {beside} of them beside computations", Ns(copies.copying_ns))?;
        }
        writeln!(f, "from submission to begin: {} (median), {} (99 %)", Ns(self.queue.p50_ns), Ns(self.queue.p99_ns))?;
        for it in &self.clocks {
            writeln!(f, "times of {} are those of its own clock, within {} of the host's", it.device, Ns(it.error_ns))?;
        }
        self.write_hosts(f)?;
        self.write_waits(f)?;
        for pool in &self.memory {
            let peak = pool.peak_bytes;
            let (most, reserved) = (Bytes(peak), Bytes(pool.reserved_bytes));
            let at = pool.peak_at_ns.map_or("before".to_owned(), |at| format!("{} after", Ns(at)));
            writeln!(f, "\n{}: {most} in use at the peak ({at} the first submission), {reserved} reserved", pool.pool)?;
            let (shown, more) = pool.owners.split_at(pool.owners.len().min(10));
            for Owner { of, bytes, tensors } in shown {
                let (share, plural) = (Percent(*bytes, peak), s(*tensors));
                writeln!(f, "{:>9} {share:>5}  {of}, {tensors} tensor{plural}", Bytes(*bytes))?;
            }
            let others = more.iter().fold(pool.others_bytes, |sum, owner| sum.saturating_add(owner.bytes));
            if others > 0 {
                writeln!(f, "{:>9} {:>5}  others", Bytes(others), Percent(others, peak))?;
            }
        }
        Ok(())
    }
}

impl Report {
    fn write_hosts(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let width = self.hosts.iter().map(|it| it.thread.chars().count()).max().unwrap_or(0).max(6);
        if !self.hosts.is_empty() {
            writeln!(
                f,
                "\n{:width$} {:>12} {:>12} {:>11} {:>8} {:>5}",
                "thread", "submissions", "instructions", "submitting", "waiting", "held"
            )?;
        }
        for it in &self.hosts {
            let part = |ns| Percent(ns, self.total_ns);
            let (submitting, waiting, held) = (part(it.submitting_ns), part(it.waiting_ns), part(it.held_ns));
            let (thread, submissions, instructions) = (&it.thread, it.submissions, it.instructions);
            writeln!(
                f,
                "{thread:width$} {submissions:>12} {instructions:>12} {submitting:>11} {waiting:>8} {held:>5}"
            )?;
        }
        Ok(())
    }

    fn write_waits(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(waits) = self.waits.as_ref().filter(|waits| waits.implied > 0) else { return Ok(()) };
        writeln!(f, "\n{} of {} waits could go: others imply them", waits.implied, waits.waits)?;
        for it in waits.groups.iter().take(10) {
            let plural = if it.times == 1 { "" } else { "s" };
            writeln!(f, "{:>9} time{plural}  {} for {}", it.times, it.of, it.source)?;
        }
        Ok(())
    }
}

/// Escapes control characters, except for ends of lines and tabs, which stay as they are: names of a trace, which anybody may have written, send no escape sequence to a terminal.
#[must_use]
pub fn without_controls(text: &str) -> Cow<'_, str> {
    let escaped = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if escaped(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    Cow::Owned(out)
}
