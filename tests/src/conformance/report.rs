//! Runs the cases and reports their outcomes.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;

use serde_json::{Value, json};

use super::backend::{Backend, Tag};
use super::cases::{Case, cases};
use super::lab::{Bench, Fail};

/// The outcome of one case.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The backend meets the requirement.
    Passed,
    /// The backend does not meet it, with the reason.
    Failed(String),
    /// The backend does not meet it and is exempt, with the reason.
    Exempt(String),
    /// The backend lacks a tag that the case needs.
    Unfit(Tag),
}

impl Verdict {
    /// Its name, such as `"passed"`.
    pub const fn name(&self) -> &'static str {
        match self {
            Verdict::Passed => "passed",
            Verdict::Failed(_) => "FAILED",
            Verdict::Exempt(_) => "exempt",
            Verdict::Unfit(_) => "unfit",
        }
    }

    fn detail(&self) -> String {
        match self {
            Verdict::Passed => String::new(),
            Verdict::Failed(text) | Verdict::Exempt(text) => text.clone(),
            Verdict::Unfit(tag) => format!("needs {tag}"),
        }
    }
}

/// The outcomes of all cases on one backend. `Display` prints an aligned table.
#[derive(Clone, Debug)]
pub struct Report {
    /// Name of the backend.
    pub backend: String,
    /// The outcome of each case, in the order in which they ran.
    pub verdicts: Vec<(&'static str, Verdict)>,
    /// Wrong exemptions: of cases that pass, that do not apply, or that do not exist.
    pub objections: Vec<String>,
}

impl Report {
    /// Does the backend conform, and is every exemption needed?
    pub fn is_ok(&self) -> bool {
        self.failed().next().is_none() && self.objections.is_empty()
    }

    /// The cases that failed, with the reasons.
    pub fn failed(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.verdicts.iter().filter_map(|(name, verdict)| match verdict {
            Verdict::Failed(text) => Some((*name, text.as_str())),
            _ => None,
        })
    }

    /// The number of cases that passed.
    pub fn passed(&self) -> usize {
        self.verdicts.iter().filter(|(_, verdict)| *verdict == Verdict::Passed).count()
    }

    /// The report as JSON: `{backend, ok, passed, failed, cases: [{name, verdict, detail}], objections}`.
    pub fn to_json(&self) -> Value {
        let case = |(name, verdict): &(&str, Verdict)| json!({"name": name, "verdict": verdict.name().to_lowercase(), "detail": verdict.detail()});
        json!({
            "backend": self.backend,
            "ok": self.is_ok(),
            "passed": self.passed(),
            "failed": self.failed().count(),
            "cases": self.verdicts.iter().map(case).collect::<Vec<_>>(),
            "objections": self.objections,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.verdicts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, verdict) in &self.verdicts {
            let line = format!("{name:width$}  {:6}  {}", verdict.name(), verdict.detail());
            writeln!(f, "{}", line.trim_end())?;
        }
        for objection in &self.objections {
            writeln!(f, "objection: {objection}")?;
        }
        let (passed, failed) = (self.passed(), self.failed().count());
        write!(f, "{}: {passed} of {} passed, {failed} failed", self.backend, self.verdicts.len())
    }
}

/// Runs every case on a backend.
pub fn run(backend: &Backend) -> Report {
    run_some(backend, |_| true)
}

/// Runs the cases for whose names `wanted` returns true. Exemptions are checked against all cases only if all are run.
pub fn run_some(backend: &Backend, wanted: impl Fn(&str) -> bool) -> Report {
    let mut verdicts = Vec::new();
    let mut objections = Vec::new();
    for case in cases().iter().filter(|case| wanted(case.name)) {
        let exemption = backend.exemptions().iter().find(|exemption| exemption.case == case.name);
        let lacking = case.needs.iter().find(|&&tag| !backend.has(tag));
        let verdict = match lacking {
            Some(&tag) => Verdict::Unfit(tag),
            None => match (attempt(backend, case), exemption) {
                (Err(_), Some(exemption)) => Verdict::Exempt(exemption.reason.to_owned()),
                (Err(text), None) => Verdict::Failed(text),
                (Ok(()), _) => Verdict::Passed,
            },
        };
        if let Some(exemption) = exemption
            && !matches!(verdict, Verdict::Exempt(_))
        {
            let what = if verdict == Verdict::Passed { "passes" } else { "does not apply" };
            let text = format!("{} {what}, so its exemption must go ({})", case.name, exemption.reason);
            objections.push(text);
        }
        verdicts.push((case.name, verdict));
    }
    for exemption in backend.exemptions() {
        if !cases().iter().any(|case| case.name == exemption.case) {
            objections.push(format!("there is no case {}, which is exempted", exemption.case));
        }
    }
    Report { backend: backend.name().to_owned(), verdicts, objections }
}

/// Runs one case on its own thread; a panic and a hang are failures. A thread that hangs is left behind.
fn attempt(backend: &Backend, case: &Case) -> Result<(), String> {
    let bench = Bench::new(backend.clone());
    let run = case.run;
    let (sender, receiver) = channel();
    let body = move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&bench).map_err(Fail::into_text)));
        let outcome = outcome.unwrap_or_else(|payload| {
            let text = payload.downcast_ref::<String>().cloned();
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(format!("panicked: {}", text.unwrap_or_else(|| "no text".to_owned())))
        });
        let outcome = outcome.and_then(|()| bench.audit());
        // A case is over only once its devices are dropped.
        drop(bench);
        let _ = sender.send(outcome);
    };
    let thread = thread::Builder::new().name(case.name.to_owned()).spawn(body);
    let thread = thread.map_err(|error| format!("no thread for the case: {error}"))?;
    match receiver.recv_timeout(backend.case_limit()) {
        Ok(outcome) => outcome,
        Err(RecvTimeoutError::Timeout) => Err(format!("not over after {:?}", backend.case_limit())),
        Err(RecvTimeoutError::Disconnected) => Err(format!("the case ended without a verdict: {:?}", thread.join())),
    }
}
