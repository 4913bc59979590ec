//! `.npy` files: reads their headers itself, and writes them with `npyz`.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use npyz::{TypeChar, TypeStr, WriterBuilder};

use super::npy_header::{LONGEST_PREAMBLE, MAX_HEADER, parse};
use super::{FileError, TensorFile, checked_shape};
use crate::base::engine::DType;
use crate::files::output::OutputFile;
use crate::values::array::{Array, Data};

pub(super) fn read_header(path: &Path, from: &mut impl Read, length: u64) -> Result<TensorFile, FileError> {
    let fail = |reason: String| FileError::new(path, reason);
    let mut start = Vec::new();
    from.take((LONGEST_PREAMBLE + MAX_HEADER) as u64)
        .read_to_end(&mut start)
        .map_err(|error| FileError::io(path, "read the header", &error))?;
    let header = parse(&start).map_err(|reason| fail(format!("malformed .npy header: {reason}")))?;
    let descr: TypeStr = header
        .descr
        .parse()
        .map_err(|error| fail(format!("malformed .npy header: {:?} is no type: {error}", header.descr)))?;
    let dtype = dtype(&descr).map_err(fail)?;
    let offset = header.offset as u64;
    let shape = checked_shape(path, &header.shape, dtype, length.saturating_sub(offset))?;
    Ok(TensorFile { path: path.to_path_buf(), dtype, shape, column_major: header.fortran_order, offset })
}

fn dtype(found: &TypeStr) -> Result<DType, String> {
    if found.endianness() == npyz::Endianness::Big {
        return Err(format!("big-endian elements ('{found}') cannot be loaded, save them as little-endian"));
    }
    // NumPy writes this type for the bf16 of its extensions.
    let hint = match (found.type_char(), found.size_field()) {
        (TypeChar::RawData, 2) => " (.npy has no name for bf16: use .safetensors, or cast to f4)",
        _ => "",
    };
    match (found.type_char(), found.size_field()) {
        (TypeChar::Float, 4) => Ok(DType::F32),
        (TypeChar::Float, 8) => Ok(DType::F64),
        (TypeChar::Float, 2) => Ok(DType::F16),
        (TypeChar::Int, 1) => Ok(DType::I8),
        (TypeChar::Int, 2) => Ok(DType::I16),
        (TypeChar::Int, 4) => Ok(DType::I32),
        (TypeChar::Int, 8) => Ok(DType::I64),
        (TypeChar::Uint, 1) => Ok(DType::U8),
        (TypeChar::Uint, 2) => Ok(DType::U16),
        (TypeChar::Uint, 4) => Ok(DType::U32),
        (TypeChar::Uint, 8) => Ok(DType::U64),
        (TypeChar::Bool, 1) => Ok(DType::Bool),
        _ => Err(format!(
            "elements of type '{found}' cannot be loaded, expected f2, f4, f8, i1, i2, i4, i8, u1, u2, u4, u8 or b1{hint}"
        )),
    }
}

/// Refuses a dtype that `.npy` cannot hold, which is `bf16`.
///
/// # Errors
/// The reason, and what to do.
pub fn check_savable(dtype: DType) -> Result<(), &'static str> {
    match dtype {
        DType::BF16 => Err(".npy has no name for bf16: save a `cast` to f32, which holds every bf16"),
        _ => Ok(()),
    }
}

/// Writes a `.npy` file, row-major. The file appears whole or not at all: see [`OutputFile`].
///
/// # Errors
/// A [`FileError`] if the format cannot hold the dtype (see [`check_savable`]), the path leads to something other than a regular
/// file, or writing fails.
pub fn save(path: &Path, array: &Array) -> Result<(), FileError> {
    check_savable(array.data.dtype()).map_err(|reason| FileError::new(path, reason))?;
    match path.metadata() {
        Ok(metadata) if metadata.is_dir() => {
            return Err(FileError::new(path, "this is a directory, expected a file to write"));
        }
        Ok(metadata) if !metadata.is_file() => return Err(FileError::new(path, "this is not a regular file")),
        _ => {}
    }
    let write = || {
        let output = OutputFile::create(path)?;
        write(output.file()?, array)?;
        output.finish()
    };
    write().map_err(|error| FileError::io(path, "write", &error))
}

fn write(file: File, array: &Array) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    match &array.data {
        Data::F32(values) => write_elements(&mut file, &array.shape, values)?,
        Data::F64(values) => write_elements(&mut file, &array.shape, values)?,
        Data::F16(values) => write_elements(&mut file, &array.shape, values)?,
        Data::BF16(_) => return Err(io::Error::other("no elements of .npy")), // `save` has refused it
        Data::I8(values) => write_elements(&mut file, &array.shape, values)?,
        Data::I16(values) => write_elements(&mut file, &array.shape, values)?,
        Data::I32(values) => write_elements(&mut file, &array.shape, values)?,
        Data::I64(values) => write_elements(&mut file, &array.shape, values)?,
        Data::U8(values) => write_elements(&mut file, &array.shape, values)?,
        Data::U16(values) => write_elements(&mut file, &array.shape, values)?,
        Data::U32(values) => write_elements(&mut file, &array.shape, values)?,
        Data::U64(values) => write_elements(&mut file, &array.shape, values)?,
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
