//! Files of the command: tensor files and their elements, and output files that appear whole or not at all.
//!
//! Layer: uses `base` and `values`; is used by `emit`, `analysis`, `execute` and `command`.
//!
//! Main types: [`TensorFile`], a tensor in a file; [`OutputFile`](output::OutputFile), a file that is being written;
//! `place::FilePlace`, the file that a path leads to.
//!
//! [`TensorFile::open`] reads only the header, and checks it against the length of the file. So a script is checked without its
//! data, and a truncated file is found before anything runs. Before a run only the elements of bools are read
//! ([`TensorFile::check_elements`]), since not every byte is a bool.
//!
//! Limits for malformed files: a header has a greatest length, and reading it takes time and memory in proportion to its length. A
//! buffer is allocated only after its length was checked against [`MAX_ELEMENT_BYTES`] and the length of the file.

mod npy;
mod npy_header;
pub mod output;
pub(crate) mod place;
mod safetensors;
mod unique_keys;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

pub use npy::{check_savable, save};

use crate::base::engine::{DType, Shape};
use crate::base::printable::printable;
use crate::values::array::{Array, Data};

/// Most bytes of elements that are read from one file: 16 GiB. The elements are copied twice on their way into the engine, and a
/// sparse file can claim any length without occupying disk space. A larger tensor would need a loader that streams.
pub const MAX_ELEMENT_BYTES: u64 = 16 << 30;

/// The file formats that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// NumPy's `.npy`: one tensor.
    Npy,
    /// Hugging Face's `.safetensors`: tensors with names.
    Safetensors,
}

impl Format {
    /// The format for the extension of `path`.
    #[must_use]
    pub fn of(path: &Path) -> Option<Format> {
        match path.extension()?.to_str()? {
            "npy" => Some(Format::Npy),
            "safetensors" => Some(Format::Safetensors),
            _ => None,
        }
    }
}

/// Why a file could not be read or written. The text begins with the path.
#[derive(thiserror::Error)]
#[error("{}: {reason}", printable(&path.display().to_string()))]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

streamvm::ep::debug_as_display!(FileError);

impl FileError {
    fn new(path: &Path, reason: impl Into<String>) -> Self {
        Self { path: path.to_path_buf(), reason: reason.into() }
    }

    fn io(path: &Path, what: &str, error: &io::Error) -> Self {
        Self::new(path, format!("cannot {what}: {error}"))
    }
}

/// A tensor in a file: its header has been read and fits the file.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorFile {
    /// The file.
    pub path: PathBuf,
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: Shape,
    /// Are the elements in column-major order?
    column_major: bool,
    /// Where the elements begin, in bytes from the start of the file.
    offset: u64,
}

impl TensorFile {
    /// Reads the header of a tensor: of a `.npy` file, or of one tensor of a `.safetensors` file.
    ///
    /// # Errors
    /// A [`FileError`] if the tensor could not be read later: the file is missing, not a regular file, of another format, malformed or
    /// truncated, or has no tensor of that name.
    pub fn open(path: &Path, tensor: Option<&str>) -> Result<Self, FileError> {
        let (mut file, length) = open(path)?;
        match Format::of(path) {
            Some(format) => Self::from_header(format, path, &mut file, length, tensor),
            None => Err(FileError::new(path, "unknown kind of file, expected .npy or .safetensors")),
        }
    }

    /// Reads the header of a tensor from the beginning of `from`, which has `length` bytes. `path` names it in errors, and is the file
    /// from which [`TensorFile::read`] reads the elements.
    ///
    /// # Errors
    /// As [`TensorFile::open`], except for the errors of opening a file.
    pub fn from_header(
        format: Format,
        path: &Path,
        from: &mut impl Read,
        length: u64,
        tensor: Option<&str>,
    ) -> Result<Self, FileError> {
        match format {
            Format::Npy if tensor.is_some() => {
                Err(FileError::new(path, "a .npy file holds one tensor without a name, leave the name out"))
            }
            Format::Npy => npy::read_header(path, from, length),
            Format::Safetensors => safetensors::read_header(path, from, length, tensor),
        }
    }

    /// The bytes of the elements.
    #[must_use]
    pub fn bytes(&self) -> usize {
        // No overflow: the size was checked against the file, and eight times the number of elements of a shape fits `isize`.
        self.shape.elements() * self.dtype.size()
    }

    /// How many bytes [`check_elements`](Self::check_elements) reads.
    #[must_use]
    pub fn bytes_to_check(&self) -> usize {
        if self.dtype == DType::Bool { self.bytes() } else { 0 }
    }

    /// Reads the elements of a `bool` tensor and checks that each is 0 or 1, without keeping them. In the other dtypes every byte
    /// pattern is an element, so their elements are not read.
    ///
    /// # Errors
    /// A [`FileError`] if an element is neither 0 nor 1, or the file cannot be read.
    pub fn check_elements(&self) -> Result<(), FileError> {
        if self.dtype != DType::Bool {
            return Ok(());
        }
        let fail = |error: io::Error| FileError::io(&self.path, "read the elements", &error);
        let (mut file, _) = open(&self.path)?;
        file.seek(SeekFrom::Start(self.offset)).map_err(fail)?;
        let mut part = vec![0; 1 << 16];
        let (mut at, all) = (0, self.bytes());
        while at < all {
            let room = part.len().min(all - at);
            match file.read(&mut part[..room]).map_err(fail)? {
                0 => return Err(self.was_cut()),
                read => match part[..read].iter().position(|byte| *byte > 1) {
                    Some(bad) => return Err(self.no_bool(at + bad)),
                    None => at += read,
                },
            }
        }
        Ok(())
    }

    fn was_cut(&self) -> FileError {
        FileError::new(&self.path, "the file has been cut since its header was read")
    }

    fn no_bool(&self, at: usize) -> FileError {
        FileError::new(&self.path, format!("element {at} is a bool that is neither 0 nor 1"))
    }

    /// Reads the elements.
    ///
    /// # Errors
    /// A [`FileError`] if the file has changed since its header was read, or cannot be read.
    pub fn read(&self) -> Result<Array, FileError> {
        let (file, _) = open(&self.path)?;
        self.read_from(file)
    }

    /// Reads the elements from `from`, which begins where the header begins.
    ///
    /// # Errors
    /// A [`FileError`] if elements are missing, or if a bool is neither 0 nor 1.
    pub fn read_from(&self, mut from: impl Read + Seek) -> Result<Array, FileError> {
        let fail = |error: io::Error| FileError::io(&self.path, "read the elements", &error);
        let bytes = self.bytes();
        from.seek(SeekFrom::Start(self.offset)).map_err(fail)?;
        let mut buffer = Vec::new();
        buffer
            .try_reserve_exact(bytes)
            .map_err(|_| FileError::new(&self.path, format!("{bytes} bytes do not fit memory")))?;
        from.take(bytes as u64).read_to_end(&mut buffer).map_err(fail)?;
        if buffer.len() < bytes {
            return Err(self.was_cut());
        }
        let data = Data::from_bytes(self.dtype, &buffer).map_err(|at| self.no_bool(at))?;
        let shape = self.shape.dims().to_vec();
        let data = if self.column_major { data.from_column_major(&shape) } else { data };
        Ok(Array { shape, data })
    }
}

/// Opens a regular file and returns its length with it.
fn open(path: &Path) -> Result<(File, u64), FileError> {
    // Checked before opening, because opening a pipe would block.
    let metadata = std::fs::metadata(path).map_err(|error| FileError::io(path, "open", &error))?;
    if metadata.is_dir() {
        return Err(FileError::new(path, "this is a directory, expected a file"));
    }
    if !metadata.is_file() {
        return Err(FileError::new(path, "this is not a regular file"));
    }
    let file = File::open(path).map_err(|error| FileError::io(path, "open", &error))?;
    Ok((file, metadata.len()))
}

/// Checks the sizes of a header: they must make a shape, and the file must have exactly the bytes of its elements.
fn checked_shape(path: &Path, dims: &[usize], dtype: DType, found: u64) -> Result<Shape, FileError> {
    let shape = Shape::new(dims).map_err(|error| FileError::new(path, format!("{error}")))?;
    let expected = shape
        .elements()
        .checked_mul(dtype.size())
        .filter(|bytes| isize::try_from(*bytes).is_ok())
        .ok_or_else(|| FileError::new(path, format!("a tensor {dtype}{shape} is too large for memory")))?
        as u64;
    if found < expected {
        return Err(FileError::new(
            path,
            format!("the file is truncated: {dtype}{shape} has {expected} bytes, {found} are there"),
        ));
    }
    if found > expected {
        return Err(FileError::new(
            path,
            format!("{} bytes follow the {expected} bytes of {dtype}{shape}", found - expected),
        ));
    }
    if expected > MAX_ELEMENT_BYTES {
        let most = MAX_ELEMENT_BYTES;
        return Err(FileError::new(path, format!("{dtype}{shape} has {expected} bytes, at most {most} are read")));
    }
    Ok(shape)
}

#[cfg(test)]
mod tests;
