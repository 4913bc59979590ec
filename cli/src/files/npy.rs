//! `.npy` files, by `npyz`.
//!
//! `npyz` parses the header's Python literal by recursion and multiplies the sizes unchecked, so the
//! header's text is checked first: its length, its nesting, and the product of its numbers.

use std::fs::{self, File};
use std::io::{self, BufWriter, Cursor, Read, Write};
use std::path::{Path, PathBuf};

use npyz::{NpyHeader, Order, TypeChar, WriterBuilder};

use super::{FileError, TensorFile, checked_shape};
use crate::array::{Array, Data};
use crate::engine::DType;

/// Longest header that is read, in bytes. NumPy writes 118 for anything this command can load; its own
/// reader refuses more than 10,000 by default.
const MAX_HEADER: usize = 10_000;

/// Deepest nesting of brackets in a header; a plain array's needs two.
const MAX_BRACKETS: usize = 8;

pub(super) fn read_header(path: &Path, from: &mut impl Read, length: u64) -> Result<TensorFile, FileError> {
    let fail = |reason: String| FileError::new(path, reason);
    let mut start = Vec::new();
    // The longest preamble is 12 bytes: magic, version and a length of four bytes.
    from.take(12 + MAX_HEADER as u64)
        .read_to_end(&mut start)
        .map_err(|error| FileError::io(path, "read the header", &error))?;
    check_text(&start).map_err(|reason| fail(format!("malformed .npy header: {reason}")))?;
    let mut cursor = Cursor::new(&start);
    let header =
        NpyHeader::from_reader(&mut cursor).map_err(|error| fail(format!("malformed .npy header: {error}")))?;
    let offset = cursor.position();
    let dtype = dtype(&header.dtype()).map_err(fail)?;
    let dims: Vec<usize> = header
        .shape()
        .iter()
        .map(|size| usize::try_from(*size))
        .collect::<Result<_, _>>()
        .map_err(|_| fail(format!("the shape {:?} is too large", header.shape())))?;
    let shape = checked_shape(path, &dims, dtype, length.saturating_sub(offset))?;
    Ok(TensorFile { path: path.to_path_buf(), dtype, shape, column_major: header.order() == Order::Fortran, offset })
}

/// Refuses a header that would cost its parser stack or memory.
fn check_text(start: &[u8]) -> Result<(), String> {
    if !start.starts_with(b"\x93NUMPY") {
        return Err("the file does not begin with the magic bytes of .npy".into());
    }
    let (length, text) = match start.get(6) {
        Some(1) => (start.get(8..10).map(|b| usize::from(u16::from_le_bytes([b[0], b[1]]))), 10),
        Some(2 | 3) => (start.get(8..12).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize), 12),
        Some(other) => return Err(format!("version {other} is unknown")),
        None => (None, 0),
    };
    let Some(length) = length else {
        return Err("the file ends within the header".into());
    };
    if length > MAX_HEADER {
        return Err(format!("it has {length} bytes, at most {MAX_HEADER} are read"));
    }
    let Some(text) = start.get(text..text + length) else {
        return Err("the file ends within the header".into());
    };
    let mut depth = 0_usize;
    let mut quoted = None;
    let mut product: u64 = 1;
    let mut digits = String::new();
    for byte in text.iter().copied().chain([b' ']) {
        if byte.is_ascii_digit() && quoted.is_none() {
            digits.push(char::from(byte));
            continue;
        }
        if !digits.is_empty() {
            // A zero would hide what an unchecked product overflows on its way.
            let number = digits.parse::<u64>().ok().map(|number| number.max(1));
            product = number.and_then(|number| product.checked_mul(number)).ok_or("the shape is too large")?;
            digits.clear();
        }
        match (byte, quoted) {
            (b'\'' | b'"', None) => quoted = Some(byte),
            (byte, Some(quote)) if byte == quote => quoted = None,
            (b'(' | b'[' | b'{', None) => depth += 1,
            (b')' | b']' | b'}', None) => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_BRACKETS {
            return Err("its brackets are nested too deep".into());
        }
    }
    Ok(())
}

fn dtype(found: &npyz::DType) -> Result<DType, String> {
    let npyz::DType::Plain(found) = found else {
        return Err(format!("a structured array ({}) cannot be loaded", found.descr()));
    };
    if found.endianness() == npyz::Endianness::Big {
        return Err(format!("big-endian elements ('{found}') cannot be loaded, save them as little-endian"));
    }
    // What NumPy writes for the bf16 of its extensions.
    let hint = match (found.type_char(), found.size_field()) {
        (TypeChar::RawData, 2) => " (.npy has no name for bf16: use .safetensors, or cast to f4)",
        _ => "",
    };
    match (found.type_char(), found.size_field()) {
        (TypeChar::Float, 4) => Ok(DType::F32),
        (TypeChar::Float, 8) => Ok(DType::F64),
        (TypeChar::Float, 2) => Ok(DType::F16),
        (TypeChar::Int, 4) => Ok(DType::I32),
        (TypeChar::Int, 8) => Ok(DType::I64),
        (TypeChar::Uint, 1) => Ok(DType::U8),
        (TypeChar::Bool, 1) => Ok(DType::Bool),
        _ => Err(format!("elements of type '{found}' cannot be loaded, expected f2, f4, f8, i4, i8, u1 or b1{hint}")),
    }
}

/// Errs if `.npy` files have no elements of this dtype, which is so for `bf16`.
///
/// # Errors
/// The reason, and what to do.
pub fn check_savable(dtype: DType) -> Result<(), &'static str> {
    match dtype {
        DType::BF16 => Err(".npy has no name for bf16: save a `cast` to f32, which holds every bf16"),
        _ => Ok(()),
    }
}

/// Writes a `.npy` file, row-major. The file appears whole or not at all: it is written beside its
/// place under another name and then renamed.
///
/// # Errors
/// A [`FileError`] if the format has no such elements (see [`check_savable`]), the place is taken by something that is no regular file, or writing fails.
pub fn save(path: &Path, array: &Array) -> Result<(), FileError> {
    check_savable(array.data.dtype()).map_err(|reason| FileError::new(path, reason))?;
    let target = match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            return Err(FileError::new(path, "this is a directory, expected a file to write"));
        }
        // Renaming over a device or a pipe would replace it.
        Ok(metadata) if !metadata.is_file() => {
            return Err(FileError::new(path, "this is not a regular file"));
        }
        // A link stays a link: the file behind it is replaced.
        Ok(_) => fs::canonicalize(path).map_err(|error| FileError::io(path, "resolve", &error))?,
        Err(_) => path.to_path_buf(),
    };
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part: PathBuf = target.with_file_name(name);
    write(&part, array).and_then(|()| fs::rename(&part, &target)).map_err(|error| {
        // The first error is the one to tell; a leftover that cannot be removed changes nothing.
        let _ = fs::remove_file(&part);
        FileError::io(path, "write", &error)
    })
}

fn write(path: &Path, array: &Array) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    match &array.data {
        Data::F32(values) => write_elements(&mut file, &array.shape, values)?,
        Data::F64(values) => write_elements(&mut file, &array.shape, values)?,
        Data::F16(values) => write_elements(&mut file, &array.shape, values)?,
        Data::BF16(_) => return Err(io::Error::other("no elements of .npy")), // `save` has refused it
        Data::I32(values) => write_elements(&mut file, &array.shape, values)?,
        Data::I64(values) => write_elements(&mut file, &array.shape, values)?,
        Data::U8(values) => write_elements(&mut file, &array.shape, values)?,
        Data::Bool(values) => write_elements(&mut file, &array.shape, values)?,
    }
    file.flush()
}

fn write_elements<T: npyz::AutoSerialize + Copy>(
    file: &mut impl Write,
    shape: &[usize],
    values: &[T],
) -> io::Result<()> {
    let shape: Vec<u64> = shape.iter().map(|size| *size as u64).collect();
    let mut writer = npyz::WriteOptions::new().default_dtype().shape(&shape).writer(file).begin_nd()?;
    writer.extend(values.iter().copied())?;
    writer.finish()
}
