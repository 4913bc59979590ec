//! [`TensorFile`], a tensor in a file.
//!
//! [`TensorFile::open`] reads only the header, and checks it against the length of the file. So a truncated file is found before anything
//! runs. [`TensorFile::check_elements`] reads the elements of bools, since not every byte is a bool.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use streamvm::{DType, Shape};

use crate::array::{Array, Data};
use crate::format::Format;
use crate::zip::Member;
use crate::{Error, npy, npz, safetensors};

/// Most bytes of elements that are read from one file: 16 GiB. The elements are copied twice on their way into the engine, and a
/// sparse file can claim any length without occupying disk space. A larger tensor would need a loader that streams.
pub const MAX_ELEMENT_BYTES: u64 = 16 << 30;

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
    pub(crate) column_major: bool,
    /// Where the elements begin, in bytes from the start of the file, or of the member of an archive.
    pub(crate) offset: u64,
    /// The member of an archive that holds the tensor.
    pub(crate) member: Option<Member>,
}

impl TensorFile {
    /// Reads the header of a tensor: of a `.npy` file, or of one tensor of a `.npz` or `.safetensors` file.
    ///
    /// # Errors
    /// A [`Error`] if the tensor could not be read later: the file is missing, not a regular file, of another format, malformed or
    /// truncated, or has no tensor of that name.
    pub fn open(path: &Path, tensor: Option<&str>) -> Result<Self, Error> {
        let (mut file, length) = open(path)?;
        Self::from_header(Format::expect(path)?, path, &mut file, length, tensor)
    }

    /// Reads the headers of all tensors of a `.npz` or `.safetensors` file, with their names, in the order of the file.
    ///
    /// # Errors
    /// As [`TensorFile::open`], for any of the tensors; the path is that of a `.npy` file.
    pub fn open_all(path: &Path) -> Result<Vec<(String, TensorFile)>, Error> {
        let (mut file, length) = open(path)?;
        match Format::expect(path)? {
            Format::Npy => Err(Error::refused(path, "a .npy file holds one tensor without a name: load it by `load`")),
            Format::Npz => npz::read_headers(path, &mut file, length),
            Format::Safetensors => safetensors::read_headers(path, &mut file, length),
        }
    }

    /// Reads the header of a tensor from `from`, which begins where the file begins, and has `length` bytes. `path` names it in errors, and is the file
    /// from which [`TensorFile::read`] reads the elements.
    ///
    /// # Errors
    /// As [`TensorFile::open`], except for the errors of opening a file.
    pub fn from_header(
        format: Format,
        path: &Path,
        from: &mut (impl Read + Seek),
        length: u64,
        tensor: Option<&str>,
    ) -> Result<Self, Error> {
        match format {
            Format::Npy if tensor.is_some() => {
                Err(Error::refused(path, "a .npy file holds one tensor without a name, leave the name out"))
            }
            Format::Npy => npy::read_header(path, from, length),
            Format::Npz => npz::read_header(path, from, length, tensor),
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
    /// A [`Error`] if an element is neither 0 nor 1, or the file cannot be read.
    pub fn check_elements(&self) -> Result<(), Error> {
        if self.dtype != DType::Bool {
            return Ok(());
        }
        let fail = |error: io::Error| Error::io(&self.path, "read the elements", error);
        let (file, _) = open(&self.path)?;
        let mut file = self.elements(file).map_err(fail)?;
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

    /// A reader that begins at the elements.
    fn elements<'a>(&self, mut from: impl Read + Seek + 'a) -> io::Result<Box<dyn Read + 'a>> {
        let Some(member) = &self.member else {
            from.seek(SeekFrom::Start(self.offset))?;
            return Ok(Box::new(from));
        };
        let mut bytes = member.open(from)?;
        io::copy(&mut bytes.by_ref().take(self.offset), &mut io::sink())?;
        Ok(Box::new(bytes))
    }

    fn was_cut(&self) -> Error {
        Error::refused(&self.path, "the file has been cut since its header was read")
    }

    fn no_bool(&self, at: usize) -> Error {
        Error::refused(&self.path, format!("element {at} is a bool that is neither 0 nor 1"))
    }

    /// Reads the elements.
    ///
    /// # Errors
    /// A [`Error`] if the file has changed since its header was read, or cannot be read.
    pub fn read(&self) -> Result<Array, Error> {
        let (file, _) = open(&self.path)?;
        self.read_from(file)
    }

    /// Reads the elements from `from`, which begins where the header begins.
    ///
    /// # Errors
    /// A [`Error`] if elements are missing, or if a bool is neither 0 nor 1.
    pub fn read_from(&self, from: impl Read + Seek) -> Result<Array, Error> {
        let fail = |error: io::Error| Error::io(&self.path, "read the elements", error);
        let bytes = self.bytes();
        let from = self.elements(from).map_err(fail)?;
        let mut buffer = Vec::new();
        buffer
            .try_reserve_exact(bytes)
            .map_err(|_| Error::refused(&self.path, format!("{bytes} bytes do not fit memory")))?;
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
pub(crate) fn open(path: &Path) -> Result<(File, u64), Error> {
    // Checked before opening, because opening a pipe would block.
    let metadata = std::fs::metadata(path).map_err(|error| Error::io(path, "open", error))?;
    if metadata.is_dir() {
        return Err(Error::refused(path, "this is a directory, expected a file"));
    }
    if !metadata.is_file() {
        return Err(Error::refused(path, "this is not a regular file"));
    }
    let file = File::open(path).map_err(|error| Error::io(path, "open", error))?;
    Ok((file, metadata.len()))
}

/// Checks the sizes of a header: they must make a shape, and the file must have exactly the bytes of its elements.
pub(crate) fn checked_shape(path: &Path, dims: &[usize], dtype: DType, found: u64) -> Result<Shape, Error> {
    let shape = Shape::new(dims).map_err(|error| Error::refused(path, format!("{error}")))?;
    let expected = shape
        .elements()
        .checked_mul(dtype.size())
        .filter(|bytes| isize::try_from(*bytes).is_ok())
        .ok_or_else(|| Error::refused(path, format!("a tensor {dtype}{shape} is too large for memory")))?
        as u64;
    if found < expected {
        return Err(Error::refused(
            path,
            format!("the file is truncated: {dtype}{shape} has {expected} bytes, {found} are there"),
        ));
    }
    if found > expected {
        return Err(Error::refused(
            path,
            format!("{} bytes follow the {expected} bytes of {dtype}{shape}", found - expected),
        ));
    }
    if expected > MAX_ELEMENT_BYTES {
        let most = MAX_ELEMENT_BYTES;
        return Err(Error::refused(path, format!("{dtype}{shape} has {expected} bytes, at most {most} are read")));
    }
    Ok(shape)
}
