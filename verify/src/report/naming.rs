//! Names and places of what stands in a trace, for reports.

use crate::report::Place;
use crate::trace::{Action, Trace, What};

/// Finds the names of what stands in a trace.
#[derive(Copy, Clone)]
pub(crate) struct Naming<'a> {
    pub(crate) trace: &'a Trace,
}

impl<'a> Naming<'a> {
    pub(crate) fn of(trace: &'a Trace) -> Naming<'a> {
        Naming { trace }
    }

    pub(crate) fn action(&self, action: &Action) -> Place {
        let trace = self.trace;
        let host = |op: &str, location: &str| Place {
            line: action.line,
            point: None,
            stream: "host".into(),
            op: op.into(),
            location: location.into(),
        };
        match &action.what {
            What::Instruction(instruction) => Place {
                line: action.line,
                point: Some(trace.point(instruction.at)),
                stream: trace.streams[instruction.at.stream as usize].name.to_string(),
                op: trace.text(instruction.op).into(),
                location: trace.text(instruction.location).into(),
            },
            What::Host { op, location, .. } => host(trace.text(*op), trace.text(*location)),
            What::Observed(_) => host("observed", ""),
            What::Unmap(_) => host("unmap", ""),
            What::Life(_) => host("life", ""),
            What::Free(_) => host("free", ""),
            What::Record { .. } => host("record", ""),
        }
    }

    pub(crate) fn line(&self, line: u64) -> Place {
        let found = self.trace.actions.binary_search_by_key(&line, |action| action.line);
        let index = found.unwrap_or_else(|next| next.min(self.trace.actions.len().saturating_sub(1)));
        self.action(&self.trace.actions[index])
    }
}
