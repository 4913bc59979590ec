//! Why a graph has no figure.

use super::board::Place;
use super::pattern::Pattern;

/// Why a graph has no figure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An engine ran a task too early, too late, twice, or not at all.
    #[error(
        "the task at {reader} found the output of {found} where that of {expected} belongs; this is a fault of the engine or of \
         its dependences"
    )]
    Input {
        /// The task that checked; after a graph the one that would come next.
        reader: Place,
        /// The task whose output belongs there.
        expected: Place,
        /// The task whose output is there.
        found: Place,
    },
    /// streamvm refused or failed.
    #[error("streamvm failed: {0}")]
    Engine(#[from] streamvm::Error),
    /// A list could not be built.
    #[error("a list could not be built: {0}")]
    Build(#[from] streamvm::BuildError),
    /// A driver could not be started, or its pipes broke.
    #[error("a driver could not be used: {0}")]
    Driver(#[from] std::io::Error),
    /// A driver ended or answered with something else than seconds.
    #[error("the driver gave no time for {pattern:?} of width {width}: {reason}")]
    Answer {
        /// The pattern that it was asked for.
        pattern: Pattern,
        /// The width.
        width: u32,
        /// Its error, or its answer.
        reason: String,
    },
    /// The engine is far from its peak even with large tasks.
    #[error("half of the peak is not reached with tasks of {largest_us:.0} µs, which reach {efficiency:.2} of it")]
    NotReached {
        /// The largest tasks that were tried, in µs.
        largest_us: f64,
        /// The share of the peak that they reach.
        efficiency: f64,
    },
    /// What the benches share failed.
    #[error(transparent)]
    Bench(#[from] streamvm_benches::harness::error::Error),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.step {
            u32::MAX => f.write_str("no task"),
            step => write!(f, "(step {step}, column {})", self.column),
        }
    }
}
