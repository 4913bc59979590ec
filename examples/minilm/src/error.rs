//! The errors of the package.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// An error of the command or of the model; its text says what the user can do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the model is missing.
    #[error(
        "there is no model: {} is missing. Run `make model`, which fetches it to target/model, or name its folder with --model",
        path.display()
    )]
    NoModel {
        /// The file.
        path: PathBuf,
    },
    /// A file of the model that is not what it should be.
    #[error("{}: {reason}. If the file is damaged, remove its folder and run `make model`", path.display())]
    Model {
        /// The file.
        path: PathBuf,
        /// The mistake in the file.
        reason: String,
    },
    /// A file that cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An input that is not a JSON array of texts.
    #[error("{}: {reason}. The input is a JSON array of texts, such as [\"one text\", \"another\"]", path.display())]
    Input {
        /// The file.
        path: PathBuf,
        /// The mistake in the input, with its place.
        reason: String,
    },
    /// A file that has no lines to search.
    #[error("{}: {reason}. The input is a text file in UTF-8 whose lines are searched", path.display())]
    Lines {
        /// The file.
        path: PathBuf,
        /// The mistake in the file.
        reason: String,
    },
    /// The file of an index is something else, which is not replaced.
    #[error("{}: {reason}. Name another file with --index; if this is a damaged index, remove it, and it is made again", path.display())]
    Index {
        /// The file.
        path: PathBuf,
        /// What the file is.
        reason: String,
    },
    /// A file that cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The result would replace the input.
    #[error("{} is both the input and the output: name another file as the output", path.display())]
    SameFile {
        /// The file.
        path: PathBuf,
    },
    /// A text that the tokenizer refuses.
    #[error("text {number}, counted from 0, cannot be cut into tokens: {reason}")]
    Text {
        /// The place of the text in the input.
        number: usize,
        /// What the tokenizer says.
        reason: String,
    },
    /// An address that the server cannot listen at.
    #[error("cannot listen at {address}: {source}. Name another address with --listen")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A server that cannot start.
    #[error("the server cannot start, because the system refuses a thread, a signal handler or its event queue: {0}")]
    Start(io::Error),
    /// A server that has ended before all requests were answered.
    #[error(
        "the server has ended with {connections} open connections, whose requests may not be answered. A smaller --queue drains sooner"
    )]
    NotDrained {
        /// The connections.
        connections: usize,
    },
    /// A thread that computes has ended with a panic.
    #[error("the thread that computes has panicked, which is a bug of streamvm: report its message, which is above")]
    Panicked,
    /// An error of the engine or of an op.
    #[error(transparent)]
    Engine(#[from] streamvm::Error),
    /// The ranks of the job cannot communicate.
    #[error(transparent)]
    Ranks(#[from] streamvm_ranks::RankError),
}

impl Error {
    /// The error for a file of the model that cannot be read.
    pub(crate) fn of_model(path: &Path, source: io::Error) -> Error {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => Error::NoModel { path },
            _ => Error::Read { path, source },
        }
    }
}
