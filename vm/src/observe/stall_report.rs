//! The stall report: its fields and its text form.

use std::fmt;

use streamvm_ep::{ProgramStep, Site};
use streamvm_stream::StreamKey;

/// The oldest pending instruction of each stream, and what it waits for.
///
/// Made by [`Vm::stall_report`](crate::Vm::stall_report). While nothing passes, a report is exact. A report made while instructions pass is
/// out of date when it is read, and may miss changes of that time.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StallReport {
    /// The streams with pending instructions, in order of first use.
    pub streams: Vec<StalledInstruction>,
    /// How many submitters are blocked because too much is pending.
    pub blocked_submitters: usize,
    /// The critical sections that threads of callers have open ([`Vm::enter_section`](crate::Vm::enter_section)).
    pub sections: Vec<HeldSection>,
    /// How many submitters are blocked until such a section ends.
    pub blocked_by_sections: usize,
}

/// A critical section that its thread has begun and not ended.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HeldSection {
    /// The names of its resources, in quotes.
    pub over: String,
    /// The caller's site that began it.
    pub site: Site,
}

/// The oldest instruction of one stream that has not passed.
///
/// Instructions on workers have no order. There it is, in this order of preference: an instruction that a worker runs; one that waits for
/// its handle; any other, of which the report knows neither the name nor what it waits for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StalledInstruction {
    /// The stream.
    pub stream: StreamKey,
    /// The instruction's number on the stream, from 1. On workers, which have no order: its number among all instructions submitted to the
    /// engine, or 0 where the report cannot find it.
    pub seq: u64,
    /// How many instructions of the stream have not passed, including this one.
    pub pending: u64,
    /// What the instruction is: an op, a function's name (its first 24 bytes while it runs), or a kind of instruction. `None` where the
    /// report cannot find it.
    pub what: Option<String>,
    /// The caller's site that issued it, if known.
    pub site: Option<Site>,
    /// What the instruction is doing.
    pub state: StallState,
    /// The engine's thread that runs it, if it is [running](StallState::Running). A caller that waits may run it instead of that thread.
    pub thread: Option<String>,
    /// What must pass first: (stream, number as in [`seq`](StalledInstruction::seq)). Empty for a root.
    pub waits_for: Vec<(StreamKey, u64)>,
    /// The step of a program that begins a block, if the instruction waits for its [condition](StallState::Condition); or the step whose output or time is
    /// looked at, if it waits for its end, or that the host runs once the device has completed what comes before.
    pub condition: Option<ProgramStep>,
    /// The step that the instruction is at, if it is [running](StallState::Running) a program with functions or loops on one lane of a CPU; of steps that run together,
    /// the first one.
    pub step: Option<ProgramStep>,
}

/// The state of an instruction that has not passed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StallState {
    /// The scheduler holds it back until other streams have progressed.
    HeldBack,
    /// Its thread context has received it, and it waits for other streams.
    Waiting,
    /// The threads that could run it are busy with other streams.
    Queued,
    /// Its thread context runs it.
    Running,
    /// Its function has returned, and its handle ([`OnComplete`](crate::OnComplete)) was not used yet.
    Incomplete,
    /// It was launched on its device, which has not finished it.
    Launched,
    /// It was launched up to a block, and its stream waits until the device has computed the condition of the block; up to a step whose output or time is
    /// looked at, and its stream waits for the end of the step; or up to one that the host runs, and its stream waits for what comes before.
    Condition,
    /// It waits for nothing.
    Ready,
}

impl fmt::Display for StallState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            StallState::HeldBack => "held back",
            StallState::Waiting => "waiting",
            StallState::Queued => "queued",
            StallState::Running => "running",
            StallState::Incomplete => "incomplete",
            StallState::Launched => "launched",
            StallState::Condition => "condition",
            StallState::Ready => "ready",
        })
    }
}

impl StallReport {
    pub(crate) fn new(
        streams: Vec<StalledInstruction>,
        blocked_submitters: usize,
        (sections, blocked_by_sections): (Vec<HeldSection>, usize),
    ) -> StallReport {
        StallReport { streams, blocked_submitters, sections, blocked_by_sections }
    }

    /// Whether nothing is pending, and no critical section is open.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty() && self.sections.is_empty()
    }

    /// The instructions that wait for no other instruction of this report. All others wait for these, directly or through others.
    pub fn roots(&self) -> impl Iterator<Item = &StalledInstruction> {
        self.streams.iter().filter(|stalled| self.blockers(stalled).next().is_none())
    }

    /// The instructions of this report that `stalled` waits for, each the oldest of its stream.
    pub fn blockers<'a>(&'a self, stalled: &'a StalledInstruction) -> impl Iterator<Item = &'a StalledInstruction> {
        let first = move |(stream, seq): &(StreamKey, u64)| {
            let before = |other: u64| other <= *seq || stream.stream_type.is_unordered();
            self.streams.iter().find(|other| other.stream == *stream && before(other.seq))
        };
        stalled.waits_for.iter().filter_map(first)
    }

    /// The path from `stalled` to a root: an instruction that it waits for, one that this waits for, and so on. Ends early where the path
    /// comes back to an instruction; a report made while instructions pass may contain such a cycle.
    pub fn chain<'a>(&'a self, stalled: &'a StalledInstruction) -> Vec<&'a StalledInstruction> {
        let mut chain: Vec<&StalledInstruction> = Vec::new();
        let mut at = stalled;
        while let Some(next) = self.blockers(at).next()
            && !std::ptr::eq(next, stalled)
            && !chain.iter().any(|met| std::ptr::eq(*met, next))
        {
            chain.push(next);
            at = next;
        }
        chain
    }
}

impl StalledInstruction {
    /// The instruction, its caller and its state, in words.
    pub(crate) fn in_words(&self) -> String {
        let what = self.what.as_deref().unwrap_or("an instruction");
        let site = self.site.map_or_else(String::new, |site| format!(", issued at {site},"));
        let named: Vec<String> = self.waits_for.iter().map(|(key, number)| Named(*key, *number).to_string()).collect();
        let others = if named.is_empty() { "other work".to_owned() } else { named.join(", ") };
        let state = match (self.state, self.condition) {
            (StallState::Running, _) => "is running".to_owned(),
            (StallState::Incomplete, _) => "has returned, and its handle was not used yet".to_owned(),
            (StallState::Launched, _) => "was launched, and its device has not finished it".to_owned(),
            (StallState::Condition, Some(step)) => format!("waits for {step}"),
            (StallState::Ready, _) => "is ready to run".to_owned(),
            (StallState::Queued, _) => format!("waits for a thread, which runs {others}"),
            (StallState::HeldBack | StallState::Waiting | StallState::Condition, _) => format!("waits for {others}"),
        };
        format!("{what}{site} on {} {state}", Named(self.stream, self.seq))
    }
}

impl fmt::Display for StallReport {
    /// One line per stream with pending instructions: the oldest, and how many more there are; after it what the instruction waits for, and the root of that path. Then one line
    /// per open critical section.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing is pending");
        }
        let (count, pending) = (self.streams.len(), self.streams.iter().map(|stalled| stalled.pending).sum::<u64>());
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        write!(f, "{pending} instruction{} on {count} stream{}", plural(pending), plural(count as u64))?;
        if self.blocked_submitters > 0 {
            let blocked = self.blocked_submitters as u64;
            write!(f, ", {blocked} submitter{} blocked by the full queue", plural(blocked))?;
        }
        let rows: Vec<[String; 4]> = self.streams.iter().map(row).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths = [width(0), width(1), width(2)];
        for (stalled, row) in self.streams.iter().zip(&rows) {
            write!(f, "\n  ")?;
            for (text, width) in row.iter().zip(widths) {
                write!(f, "{text:width$}  ")?;
            }
            write!(f, "{}", row[3])?;
            self.write_waits(f, stalled)?;
        }
        for HeldSection { over, site } in &self.sections {
            write!(f, "\n  the critical section over {over} is open since {site}")?;
        }
        if self.blocked_by_sections > 0 {
            let blocked = self.blocked_by_sections as u64;
            write!(f, "\n  {blocked} submitter{} blocked until a section ends", plural(blocked))?;
        }
        Ok(())
    }
}

impl StallReport {
    fn write_waits(&self, f: &mut fmt::Formatter<'_>, stalled: &StalledInstruction) -> fmt::Result {
        if stalled.pending > 1 {
            write!(f, "; {} more pending", stalled.pending - 1)?;
        }
        if let Some(thread) = &stalled.thread {
            write!(f, "; on thread {thread}")?;
        }
        if let Some(step) = stalled.step {
            write!(f, "; at {step}")?;
        }
        for (index, (stream, seq)) in stalled.waits_for.iter().enumerate() {
            let word = match (index, stalled.state) {
                (0, StallState::Queued) => "; after",
                (0, _) => "; for",
                _ => ",",
            };
            write!(f, "{word} {}", Named(*stream, *seq))?;
        }
        if let Some(step) = stalled.condition {
            match step.name {
                "if" | "while" => write!(f, "; for the condition of {step}")?,
                _ => write!(f, "; for the device, at {step}")?,
            }
        }
        let chain = self.chain(stalled);
        if let [_, .., root] = chain.as_slice() {
            write!(f, "; in the end for {}", Named(root.stream, root.seq))?;
        }
        Ok(())
    }
}

/// Displays an instruction by its stream, and by its number where that is known.
struct Named(StreamKey, u64);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Named(stream, 0) => write!(f, "{stream}"),
            Named(stream, number) => write!(f, "{stream} #{number}"),
        }
    }
}

fn row(stalled: &StalledInstruction) -> [String; 4] {
    let StalledInstruction { stream, seq, what, site, state, .. } = stalled;
    let site = site.map_or_else(|| "issued where is not known".to_owned(), |site| site.to_string());
    [Named(*stream, *seq).to_string(), state.to_string(), what.clone().unwrap_or_else(|| "?".to_owned()), site]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stalled(stream: &str, seq: u64, state: StallState, waits_for: &[(&str, u64)]) -> StalledInstruction {
        let key = |stream: &str| stream.parse::<StreamKey>().expect("a stream");
        let waits_for = waits_for.iter().map(|(stream, seq)| (key(stream), *seq)).collect();
        let what = (state != StallState::Queued).then(|| format!("op {seq}"));
        let thread = (state == StallState::Running).then(|| "cpu:0.1".to_owned());
        let stream = key(stream);
        let (pending, site, condition, step) = (3, None, None, None);
        StalledInstruction { stream, seq, pending, what, site, state, thread, waits_for, condition, step }
    }

    fn report() -> StallReport {
        let streams = vec![
            stalled("compute@cpu:0:0", 7, StallState::Running, &[]),
            stalled("compute@cpu:0:1", 12, StallState::Queued, &[("compute@cpu:0:0", 7)]),
            stalled("d2h@cpu:0:0", 1, StallState::HeldBack, &[("compute@cpu:0:1", 14), ("h2d@cpu:0:0", 2)]),
        ];
        StallReport::new(streams, 1, (Vec::new(), 0))
    }

    #[test]
    fn a_report_is_printed_in_columns_with_the_way_to_the_root() {
        let text = report().to_string();
        let expected = "\
9 instructions on 3 streams, 1 submitter blocked by the full queue
  compute@cpu:0:0 #7   running    op 7  issued where is not known; 2 more pending; on thread cpu:0.1
  compute@cpu:0:1 #12  queued     ?     issued where is not known; 2 more pending; after compute@cpu:0:0 #7
  d2h@cpu:0:0 #1       held back  op 1  issued where is not known; 2 more pending; for compute@cpu:0:1 #14, h2d@cpu:0:0 #2; \
in the end for compute@cpu:0:0 #7";
        assert_eq!(text, expected);
        assert_eq!(StallReport::new(Vec::new(), 0, (Vec::new(), 0)).to_string(), "nothing is pending");
        let site = Site::caller();
        let held = HeldSection { over: "\"port\"".to_owned(), site };
        let text = StallReport::new(Vec::new(), 0, (vec![held], 2)).to_string();
        let expected = format!(
            "0 instructions on 0 streams\n  the critical section over \"port\" is open since {site}\n  2 submitters blocked until a section ends"
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn a_stream_that_is_held_after_a_step_names_it() {
        let site = Site::caller();
        for (what, of) in [("while", "the condition of"), ("if", "the condition of"), ("add", "the device, at")] {
            let condition = Some(ProgramStep { number: 3, name: what, site });
            let held = StalledInstruction { condition, ..stalled("compute@sim:0:0", 1, StallState::Condition, &[]) };
            let text = StallReport::new(vec![held], 0, (Vec::new(), 0)).to_string();
            assert!(text.ends_with(&format!("; for {of} step 3 ({what}), recorded at {site}")), "{text}");
        }
    }

    #[test]
    fn a_program_names_the_step_that_it_is_at() {
        let site = Site::caller();
        let step = Some(ProgramStep { number: 3, name: "fn", site });
        let running = StalledInstruction { step, ..stalled("compute@cpu:0:0", 1, StallState::Running, &[]) };
        let text = StallReport::new(vec![running], 0, (Vec::new(), 0)).to_string();
        assert!(text.ends_with(&format!("; on thread cpu:0.1; at step 3 (fn), recorded at {site}")), "{text}");
    }

    #[test]
    fn roots_wait_for_no_pending_instruction() {
        let report = report();
        let roots: Vec<u64> = report.roots().map(|root| root.seq).collect();
        assert_eq!(roots, [7]);
        let chain: Vec<u64> = report.chain(&report.streams[2]).iter().map(|stalled| stalled.seq).collect();
        assert_eq!(chain, [12, 7]);
    }

    #[test]
    fn a_circle_of_outdated_notes_is_walked_once() {
        let streams = vec![
            stalled("compute@cpu:0:0", 1, StallState::Waiting, &[("compute@cpu:0:1", 1)]),
            stalled("compute@cpu:0:1", 1, StallState::Waiting, &[("compute@cpu:0:0", 1)]),
        ];
        let report = StallReport::new(streams, 0, (Vec::new(), 0));
        assert_eq!(report.chain(&report.streams[0]).len(), 1);
        assert_eq!(report.roots().count(), 0);
        assert!(report.to_string().contains("for compute@cpu:0:1 #1"));
    }
}
