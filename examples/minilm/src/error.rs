//! The errors of the package.

use std::io;
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
    /// An input that is no JSON array of texts.
    #[error("{}: {reason}. The input is a JSON array of texts, such as [\"one text\", \"another\"]", path.display())]
    Input {
        /// The file.
        path: PathBuf,
        /// The mistake in the input, with its place.
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
    #[error("{} is both the input and the output: name another file with --out", path.display())]
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
    /// An error of the engine or of an op.
    #[error(transparent)]
    Engine(#[from] streamvm::Error),
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
