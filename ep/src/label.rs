//! Labels: which instruction a command belongs to, for reports.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use crate::races::ActorId;

/// Which instruction a command belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Label {
    /// The engine's number of the stream.
    pub stream: u32,
    /// The instruction's number on that stream.
    pub seq: u64,
    /// What runs: an op, a function's name, a kind of instruction.
    pub what: Arc<str>,
    /// Where the caller issued it.
    pub site: &'static Location<'static>,
    /// For each operand, the life of the memory that it belongs to; empty where nobody keeps lives.
    pub lives: Arc<[u64]>,
    /// Who makes its accesses, for the race detector, where the stream is unordered.
    pub actor: Option<ActorId>,
}

impl Label {
    /// A label of an instruction whose operands' lives are not told.
    #[track_caller]
    pub fn new(stream: u32, seq: u64, what: &str) -> Label {
        Label { stream, seq, what: what.into(), site: Location::caller(), lives: Arc::from([]), actor: None }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}:{}, issued at {})", self.what, self.stream, self.seq, self.site)
    }
}
