//! `.safetensors` files, read with the format's own crate.
//!
//! Only the header is read here: its length, then its JSON, which the crate parses and validates. The crate's `read_metadata` would
//! need the whole file in memory.

use std::io::Read;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::unique_keys::UniqueKeys;
use super::{FileError, TensorFile, checked_shape};
use crate::base::engine::DType;
use crate::base::spelling::did_you_mean;

/// Longest header that is read, in bytes: 16 MiB, enough for some 150,000 tensors (a large model has a few thousand). Parsing takes
/// up to eight times the length of the header in memory; the format's crate would accept 100 MB.
pub(super) const MAX_HEADER: u64 = 16 << 20;

/// Most names of tensors that a message lists.
const NAMES_SHOWN: usize = 8;

pub(super) fn read_header(
    path: &Path,
    from: &mut impl Read,
    length: u64,
    tensor: Option<&str>,
) -> Result<TensorFile, FileError> {
    let fail = |reason: String| FileError::new(path, reason);
    let read = |error| FileError::io(path, "read the header", &error);
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

    let mut names = metadata.offset_keys();
    names.sort();
    let name = match tensor {
        Some(name) => name,
        None if names.len() == 1 => &names[0],
        None => return Err(fail(format!("name one of its tensors: {}", list(&names)))),
    };
    let Some(info) = metadata.info(name) else {
        let guess = did_you_mean(name, names.iter().map(String::as_str));
        return Err(fail(format!(
            "no tensor {name:?} in this file; {}",
            guess.unwrap_or_else(|| format!("it has: {}", list(&names)))
        )));
    };
    let dtype = match info.dtype {
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::I8 => DType::I8,
        Dtype::I16 => DType::I16,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        Dtype::U8 => DType::U8,
        Dtype::U16 => DType::U16,
        Dtype::U32 => DType::U32,
        Dtype::U64 => DType::U64,
        Dtype::BOOL => DType::Bool,
        other => {
            return Err(fail(format!(
                "tensor {name:?} has elements of type {other:?}, expected F32, F64, F16, BF16, I8, I16, I32, I64, U8, U16, U32, U64 or BOOL"
            )));
        }
    };
    let data = length - 8 - header;
    let whole = metadata.data_len() as u64;
    if data != whole {
        return Err(fail(format!(
            "the file is {}: its tensors have {whole} bytes, {data} are there",
            if data < whole { "truncated" } else { "too long" }
        )));
    }
    let (start, end) = info.data_offsets;
    let shape = checked_shape(path, &info.shape, dtype, (end - start) as u64)?;
    let offset = 8 + header + start as u64;
    Ok(TensorFile { path: path.to_path_buf(), dtype, shape, column_major: false, offset })
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        return "nothing, it is empty".into();
    }
    let shown: Vec<String> = names.iter().take(NAMES_SHOWN).map(|name| format!("{name:?}")).collect();
    let more = names.len().saturating_sub(NAMES_SHOWN);
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}
