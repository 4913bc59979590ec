//! The errors of a benchmark run.

use std::path::PathBuf;

use streamvm::stream::allocator::AllocatorError;

/// Why a benchmark gave no figure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine refused or failed.
    #[error("the engine failed: {0}")]
    Engine(#[from] streamvm::Error),
    /// A list could not be built.
    #[error("a list could not be built: {0}")]
    Build(#[from] streamvm::BuildError),
    /// The allocator refused.
    #[error("the allocator failed: {0}")]
    Allocator(#[from] AllocatorError),
    /// The measured work is not the requested work, so the figure would mean nothing.
    #[error("{workload} measured the wrong thing: {found}; this is a fault of the engine or of the benchmark")]
    Wrong {
        /// The workload.
        workload: &'static str,
        /// The found value and the expected value.
        found: String,
    },
    /// A child process gave no samples.
    #[error("the process measuring {case} gave no samples: {reason}")]
    Child {
        /// The case that it measured.
        case: String,
        /// What happened.
        reason: String,
    },
    /// The operating system refused something that measuring needs.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A file or folder could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file or folder holds no counts.
    #[error("{}: {reason}", path.display())]
    Counts {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A plot could not be drawn.
    #[error("cannot draw the plot of {plot}: {reason}; its figures are in the JSON file")]
    Draw {
        /// The name of the plot.
        plot: String,
        /// The error of the plotting library.
        reason: String,
    },
    /// The report could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}
