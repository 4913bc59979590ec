//! `.safetensors` files, read and written with the format's own crate.
//!
//! Of a file only the header is read here: its length, then its JSON, which the crate parses and validates. The crate's `read_metadata` would
//! need the whole file in memory.

use std::borrow::Cow;
use std::io::{self, Read};
use std::path::Path;

use safetensors::tensor::{Metadata, TensorInfo, serialize_to_file};
use safetensors::{Dtype, SafeTensorError, View};
use streamvm::DType;

use crate::Error;
use crate::array::Array;
use crate::spelling::{did_you_mean, list};
use crate::tensor_file::{TensorFile, checked_shape};
use crate::unique_keys::UniqueKeys;

/// Longest header that is read, in bytes: 16 MiB, enough for some 150,000 tensors (a large model has a few thousand). Parsing takes
/// up to eight times the length of the header in memory; the format's crate would accept 100 MB.
pub(crate) const MAX_HEADER: u64 = 16 << 20;

/// What the format calls a dtype.
fn name_of(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::U8 => Dtype::U8,
        DType::U16 => Dtype::U16,
        DType::U32 => Dtype::U32,
        DType::U64 => Dtype::U64,
        DType::Bool => Dtype::BOOL,
    }
}

/// The header of a file: what it says of all tensors.
struct Header {
    metadata: Metadata,
    /// Where the elements begin, in bytes from the start of the file.
    start: u64,
}

/// Reads the header of the tensor of that name, or of the only one.
pub(crate) fn read_header(
    path: &Path,
    from: &mut impl Read,
    length: u64,
    tensor: Option<&str>,
) -> Result<TensorFile, Error> {
    let header = read(path, from, length)?;
    let fail = |reason: String| Error::no_tensor(path, reason);
    let mut names = header.metadata.offset_keys();
    names.sort();
    let shown = || list(names.iter().map(String::as_str));
    let name = match tensor {
        Some(name) => name,
        None if names.len() == 1 => &names[0],
        None => return Err(fail(format!("name one of its tensors: {}", shown()))),
    };
    let Some(info) = header.metadata.info(name) else {
        let guess = did_you_mean(name, names.iter().map(String::as_str));
        return Err(fail(format!(
            "no tensor {name:?} in this file; {}",
            guess.unwrap_or_else(|| format!("it has: {}", shown()))
        )));
    };
    header.tensor(path, name, info)
}

/// Reads the headers of all tensors, in the order of their elements.
pub(crate) fn read_headers(path: &Path, from: &mut impl Read, length: u64) -> Result<Vec<(String, TensorFile)>, Error> {
    let header = read(path, from, length)?;
    let mut all = Vec::new();
    for name in header.metadata.offset_keys() {
        if let Some(info) = header.metadata.info(&name) {
            let tensor = header.tensor(path, &name, info)?;
            all.push((name, tensor));
        }
    }
    Ok(all)
}

fn read(path: &Path, from: &mut impl Read, length: u64) -> Result<Header, Error> {
    let fail = |reason: String| Error::refused(path, reason);
    let read = |error| Error::io(path, "read the header", error);
    let mut word = [0; 8];
    if length < 8 {
        return Err(fail(format!("malformed .safetensors file: {length} bytes cannot hold a header")));
    }
    from.read_exact(&mut word).map_err(read)?;
    let header = u64::from_le_bytes(word);
    if header > MAX_HEADER {
        return Err(fail(format!(
            "malformed .safetensors file: its header should have {header} bytes, at most {MAX_HEADER} are read"
        )));
    }
    if header > length - 8 {
        return Err(fail(format!(
            "malformed .safetensors file: its header should have {header} bytes, the file has {length}"
        )));
    }
    let mut text = Vec::new();
    from.take(header).read_to_end(&mut text).map_err(read)?;
    let malformed = |error: serde_json::Error| fail(format!("malformed .safetensors header: {error}"));
    serde_json::from_slice::<UniqueKeys>(&text).map_err(malformed)?;
    let metadata: Metadata = serde_json::from_slice(&text).map_err(malformed)?;
    let (data, whole) = (length - 8 - header, metadata.data_len() as u64);
    if data != whole {
        return Err(fail(format!(
            "the file is {}: its tensors have {whole} bytes, {data} are there",
            if data < whole { "truncated" } else { "too long" }
        )));
    }
    Ok(Header { metadata, start: 8 + header })
}

impl Header {
    fn tensor(&self, path: &Path, name: &str, info: &TensorInfo) -> Result<TensorFile, Error> {
        let fail = |reason: String| Error::refused(path, reason);
        let Some(dtype) = DType::ALL.into_iter().find(|known| name_of(*known) == info.dtype) else {
            return Err(fail(format!(
                "tensor {name:?} has elements of type {:?}, expected F32, F64, F16, BF16, I8, I16, I32, I64, U8, U16, U32, U64 or BOOL",
                info.dtype
            )));
        };
        let (start, end) = info.data_offsets;
        let shape = checked_shape(path, &info.shape, dtype, (end - start) as u64)?;
        let offset = self.start + start as u64;
        Ok(TensorFile { path: path.to_path_buf(), dtype, shape, column_major: false, offset, member: None })
    }
}

/// Writes arrays to the file `to`; `path` names it in errors.
pub(crate) fn write<'a>(
    path: &Path,
    to: &Path,
    arrays: impl Iterator<Item = (&'a str, &'a Array)>,
) -> Result<(), Error> {
    serialize_to_file(arrays.map(|(name, array)| (name, Viewed(array))), None, to).map_err(|error| match error {
        SafeTensorError::IoError(error) => Error::io(path, "write", error),
        other => Error::io(path, "write", io::Error::other(other)),
    })
}

struct Viewed<'a>(&'a Array);

impl View for Viewed<'_> {
    fn dtype(&self) -> Dtype {
        name_of(self.0.data.dtype())
    }

    fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.0.data.to_bytes())
    }

    fn data_len(&self) -> usize {
        self.0.data.len() * self.0.data.dtype().size()
    }
}
