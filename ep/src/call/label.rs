//! Labels: the instruction that a command belongs to, for reports.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use crate::names::actor_id::ActorId;

/// The step of a program that a command belongs to.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct StepLabel {
    /// The number of the step in the program.
    pub step: usize,
    /// Its word in printed plans, such as the name of its op.
    pub what: &'static str,
    /// The source line that recorded it.
    pub location: &'static Location<'static>,
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
    pub step: Option<StepLabel>,
    /// The source line from which the caller issued it.
    pub location: &'static Location<'static>,
    /// For each operand, the number of the allocation that its memory belongs to; empty where the engine does not track allocations.
    pub allocations: Arc<[u64]>,
    /// The actor that makes its accesses, for the race detector, if the stream is unordered.
    pub actor: Option<ActorId>,
}

impl Label {
    /// A label without allocations and without an actor; the location is that of the caller.
    #[track_caller]
    pub fn new(stream: u32, seq: u64, what: &str) -> Label {
        Label {
            stream,
            seq,
            what: what.into(),
            step: None,
            location: Location::caller(),
            allocations: Arc::from([]),
            actor: None,
        }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.what)?;
        if let Some(StepLabel { step, what, location }) = &self.step {
            write!(f, ", step {step} ({what}), recorded at {location}")?;
        }
        write!(f, " ({}:{}, issued at {})", self.stream, self.seq, self.location)
    }
}
