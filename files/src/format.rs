//! The formats, and their extensions.

use std::path::Path;

use crate::Error;

/// The file formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// NumPy's `.npy`: one tensor.
    Npy,
    /// NumPy's `.npz`: a ZIP archive of `.npy` files, which are tensors with names.
    Npz,
    /// Hugging Face's `.safetensors`: tensors with names.
    Safetensors,
}

impl Format {
    /// The format for the extension of `path`.
    #[must_use]
    pub fn of(path: &Path) -> Option<Format> {
        match path.extension()?.to_str()? {
            "npy" => Some(Format::Npy),
            "npz" => Some(Format::Npz),
            "safetensors" => Some(Format::Safetensors),
            _ => None,
        }
    }

    /// The format for the extension of `path`, or an error that names those that there are.
    pub(crate) fn expect(path: &Path) -> Result<Format, Error> {
        Self::of(path).ok_or_else(|| Error::refused(path, "unknown kind of file, expected .npy, .npz or .safetensors"))
    }
}
