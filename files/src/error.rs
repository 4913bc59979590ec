//! The error of all functions of this crate.

use std::io;
use std::path::{Path, PathBuf};

use streamvm::Site;

use crate::printable::printable;

/// Why a file could not be read or written. The text begins with the path, and has no control characters.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an operation on the file, or a compressed member of an archive is damaged.
    #[error("{}: cannot {doing}: {}{}", shown(.path), printable(&.error.to_string()), called_at(*.site))]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        error: io::Error,
        /// The line of the caller of [`load`](crate::load) and its like.
        site: Option<Site>,
    },
    /// The file has no tensor of that name, or has several and none was named. The reason lists names that there are.
    #[error("{}: {}{}", shown(.path), printable(.reason), called_at(*.site))]
    NoTensor {
        /// The file.
        path: PathBuf,
        /// What was looked for, and what there is.
        reason: String,
        /// The line of the caller of [`load`](crate::load) and its like.
        site: Option<Site>,
    },
    /// The file is malformed, truncated or too large, or the format has no such tensors.
    #[error("{}: {}{}", shown(.path), printable(.reason), called_at(*.site))]
    Refused {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
        /// The line of the caller of [`load`](crate::load) and its like.
        site: Option<Site>,
    },
    /// The engine refused the tensor, or a tensor that was to be saved has failed.
    #[error(transparent)]
    Engine(#[from] streamvm::Error),
}

streamvm::ep::debug_as_display!(Error);

fn shown(path: &Path) -> String {
    printable(&path.display().to_string())
}

fn called_at(site: Option<Site>) -> String {
    site.map_or_else(String::new, |site| format!(" (called at {site})"))
}

impl Error {
    /// [`Error::Refused`], without a line.
    #[doc(hidden)]
    pub fn refused(path: &Path, reason: impl Into<String>) -> Self {
        Self::Refused { path: path.to_path_buf(), reason: reason.into(), site: None }
    }

    pub(crate) fn no_tensor(path: &Path, reason: impl Into<String>) -> Self {
        Self::NoTensor { path: path.to_path_buf(), reason: reason.into(), site: None }
    }

    /// [`Error::Io`], without a line.
    #[doc(hidden)]
    pub fn io(path: &Path, doing: &'static str, error: io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), doing, error, site: None }
    }

    /// The same error, told of the line of the caller.
    pub(crate) fn called_from(mut self, caller: Site) -> Self {
        match &mut self {
            Self::Io { site, .. } | Self::NoTensor { site, .. } | Self::Refused { site, .. } => *site = Some(caller),
            Self::Engine(_) => {}
        }
        self
    }
}

/// So that `?` works in a function that also calls the engine. The text keeps the path and the line.
impl From<Error> for streamvm::Error {
    fn from(error: Error) -> streamvm::Error {
        match error {
            Error::Engine(error) => error,
            other => streamvm::Error::Caller(other.to_string()),
        }
    }
}
