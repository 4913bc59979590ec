//! The error of all functions of this crate.

use std::io;
use std::path::{Path, PathBuf};

use crate::printable::printable;

/// Why a file could not be read or written. The text begins with the path, and has no control characters.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an operation on the file, or a compressed member of an archive is damaged.
    #[error("{}: cannot {doing}: {}", shown(.path), printable(&.error.to_string()))]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        error: io::Error,
    },
    /// The file has no tensor of that name, or has several and none was named. The reason lists names that there are.
    #[error("{}: {}", shown(.path), printable(.reason))]
    NoTensor {
        /// The file.
        path: PathBuf,
        /// What was looked for, and what there is.
        reason: String,
    },
    /// The file is malformed, truncated or too large, or the format has no such tensors.
    #[error("{}: {}", shown(.path), printable(.reason))]
    Refused {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The engine refused the tensor, or a tensor that was to be saved has failed.
    #[error(transparent)]
    Engine(#[from] streamvm::Error),
}

streamvm::ep::debug_as_display!(Error);

fn shown(path: &Path) -> String {
    printable(&path.display().to_string())
}

impl Error {
    pub(crate) fn refused(path: &Path, reason: impl Into<String>) -> Self {
        Self::Refused { path: path.to_path_buf(), reason: reason.into() }
    }

    pub(crate) fn no_tensor(path: &Path, reason: impl Into<String>) -> Self {
        Self::NoTensor { path: path.to_path_buf(), reason: reason.into() }
    }

    pub(crate) fn io(path: &Path, doing: &'static str, error: io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), doing, error }
    }
}
