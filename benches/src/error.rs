//! What can go wrong in a benchmark run.

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
    /// The work that was measured is not the work that was asked for, so the figure would mean nothing.
    #[error("{workload} measured the wrong thing: {found}; this is a fault of the engine or of the benchmark")]
    Wrong {
        /// The workload.
        workload: &'static str,
        /// What was found and what should be.
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
        /// From where.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// What was read holds no counts.
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
        /// What it shows.
        plot: String,
        /// What the library said.
        reason: String,
    },
    /// The report could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// Where to.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}
