//! Files that the command writes: they appear whole or not at all. Tensor files are read and written by [`streamvm_files`].
//!
//! Layer: uses `base`; is used by `emit`, `analysis`, `execute` and `command`.
//!
//! Main types: [`OutputFile`], a file that is being written; `place::FilePlace`, the file that a path leads to.

pub mod output;
pub(crate) mod place;

use std::io::{BufWriter, Write};
use std::path::Path;

use streamvm_files::{Array, Error, check_savable, write_npy};

use self::output::OutputFile;

/// Writes a `.npy` file, row-major. The file appears whole or not at all: see [`OutputFile`].
///
/// # Errors
/// The format cannot hold the dtype (see [`check_savable`]), the path leads to something other than a regular file, or writing fails.
pub fn save(path: &Path, array: &Array) -> Result<(), Error> {
    let refused = |reason: &str| Error::refused(path, reason);
    check_savable(array.data.dtype()).map_err(refused)?;
    match path.metadata() {
        Ok(metadata) if metadata.is_dir() => return Err(refused("this is a directory, expected a file to write")),
        Ok(metadata) if !metadata.is_file() => return Err(refused("this is not a regular file")),
        _ => {}
    }
    let write = || {
        let output = OutputFile::create(path)?;
        let mut file = BufWriter::new(output.file()?);
        write_npy(&mut file, array)?;
        file.flush()?;
        drop(file);
        output.finish()
    };
    write().map_err(|error| Error::io(path, "write", error))
}

#[cfg(test)]
mod tests;
