//! Labels: the instruction that a command belongs to, for reports.

use std::fmt;
use std::sync::Arc;

use crate::names::actor_id::ActorId;
use crate::names::site::Site;

/// A step of a program.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProgramStep {
    /// Its number in the program that was compiled.
    pub number: usize,
    /// Its word in printed plans, such as the name of its op.
    pub name: &'static str,
    /// Where it was recorded.
    pub site: Site,
}

/// `step 3 (add), recorded at …`.
impl fmt::Display for ProgramStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProgramStep { number, name, site } = self;
        write!(f, "step {number} ({name}), recorded at {site}")
    }
}

/// The instruction that a command belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Label {
    /// The number of the stream, given by the engine.
    pub stream: u32,
    /// The number of the instruction on that stream.
    pub seq: u64,
    /// The kind of work: an op, the name of a function, or a kind of instruction.
    pub what: Arc<str>,
    /// The step, if the instruction runs steps of a program one command each.
    pub step: Option<ProgramStep>,
    /// Where the caller issued it.
    pub site: Site,
    /// For each operand, the number of the allocation that its memory belongs to; empty where the engine does not track allocations.
    pub allocations: Arc<[u64]>,
    /// The actor that makes its accesses, for the race detector, if the stream is unordered.
    pub actor: Option<ActorId>,
}

impl Label {
    /// A label without allocations and without an actor; the site is that of the caller.
    #[track_caller]
    pub fn new(stream: u32, seq: u64, what: &str) -> Label {
        Label {
            stream,
            seq,
            what: what.into(),
            step: None,
            site: Site::caller(),
            allocations: Arc::from([]),
            actor: None,
        }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.what)?;
        if let Some(step) = &self.step {
            write!(f, ", {step}")?;
        }
        write!(f, " ({}:{}, issued at {})", self.stream, self.seq, self.site)
    }
}
