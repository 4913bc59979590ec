//! `.npy` files. Reads and writes them itself: a crate for the format brings a parser of Python literals, which takes longer to build than the rest of the command.

use std::io::{self, Read, Write};
use std::path::Path;

use streamvm::{DType, bf16, f16};

use crate::Error;
use crate::array::{Array, Data};
use crate::npy_header::{LONGEST_PREAMBLE, MAGIC, MAX_HEADER, parse};
use crate::tensor_file::{TensorFile, checked_shape};

/// Reads the header from the beginning of `from`, which has `length` bytes.
pub(crate) fn read_header(path: &Path, from: &mut impl Read, length: u64) -> Result<TensorFile, Error> {
    let fail = |reason: String| Error::refused(path, reason);
    let mut start = Vec::new();
    from.take((LONGEST_PREAMBLE + MAX_HEADER) as u64)
        .read_to_end(&mut start)
        .map_err(|error| Error::io(path, "read the header", error))?;
    let header = parse(&start).map_err(|reason| fail(format!("malformed .npy header: {reason}")))?;
    let dtype = dtype(&header.descr).map_err(fail)?;
    let offset = header.offset as u64;
    let shape = checked_shape(path, &header.shape, dtype, length.saturating_sub(offset))?;
    Ok(TensorFile { path: path.to_path_buf(), dtype, shape, column_major: header.fortran_order, offset, member: None })
}

/// The dtypes of `.npy` and their names in its headers: of several bytes `<`, for little-endian, comes first, of one byte `|`.
const NAMES: [(DType, &str); 12] = [
    (DType::F32, "<f4"),
    (DType::F64, "<f8"),
    (DType::F16, "<f2"),
    (DType::I8, "|i1"),
    (DType::I16, "<i2"),
    (DType::I32, "<i4"),
    (DType::I64, "<i8"),
    (DType::U8, "|u1"),
    (DType::U16, "<u2"),
    (DType::U32, "<u4"),
    (DType::U64, "<u8"),
    (DType::Bool, "|b1"),
];

fn dtype(found: &str) -> Result<DType, String> {
    let name = found.trim_start_matches(['<', '|']);
    if name.starts_with('>') {
        return Err(format!("big-endian elements ('{found}') cannot be loaded, save them as little-endian"));
    }
    if let Some((dtype, _)) = NAMES.into_iter().find(|(_, known)| known[1..] == *name) {
        return Ok(dtype);
    }
    // NumPy writes this type for the bf16 of its extensions.
    let hint = if name == "V2" { " (.npy has no name for bf16: use .safetensors, or cast to f4)" } else { "" };
    Err(format!(
        "elements of type '{found}' cannot be loaded, expected f2, f4, f8, i1, i2, i4, i8, u1, u2, u4, u8 or b1{hint}"
    ))
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

/// Writes an array as a `.npy` file, row-major, with the bytes of `numpy.save`. It writes a few bytes at a time: hand in a `BufWriter`.
///
/// # Errors
/// Writing fails; [`Unsupported`](io::ErrorKind::Unsupported) if the format cannot hold the dtype (see [`check_savable`]).
pub fn write_npy(file: &mut impl Write, array: &Array) -> io::Result<()> {
    file.write_all(&header(array)?)?;
    match &array.data {
        Data::F32(values) => write_words(file, values, f32::to_le_bytes),
        Data::F64(values) => write_words(file, values, f64::to_le_bytes),
        Data::F16(values) => write_words(file, values, f16::to_le_bytes),
        Data::BF16(values) => write_words(file, values, bf16::to_le_bytes),
        Data::I8(values) => write_words(file, values, i8::to_le_bytes),
        Data::I16(values) => write_words(file, values, i16::to_le_bytes),
        Data::I32(values) => write_words(file, values, i32::to_le_bytes),
        Data::I64(values) => write_words(file, values, i64::to_le_bytes),
        Data::U8(values) => write_words(file, values, u8::to_le_bytes),
        Data::U16(values) => write_words(file, values, u16::to_le_bytes),
        Data::U32(values) => write_words(file, values, u32::to_le_bytes),
        Data::U64(values) => write_words(file, values, u64::to_le_bytes),
        Data::Bool(values) => write_words(file, values, |value| [u8::from(value)]),
    }
}

/// What comes before the elements, as `numpy.save` writes it: version 1.0, and spaces up to a multiple of 64 bytes.
fn header(array: &Array) -> io::Result<Vec<u8>> {
    let dtype = array.data.dtype();
    let (_, name) = NAMES.into_iter().find(|(known, _)| *known == dtype).ok_or(io::ErrorKind::Unsupported)?;
    let sizes: Vec<String> = array.shape.iter().map(usize::to_string).collect();
    // A tuple of one has a comma.
    let comma = if sizes.len() == 1 { "," } else { "" };
    let text = format!("{{'descr': '{name}', 'fortran_order': False, 'shape': ({}{comma}), }}", sizes.join(", "));
    let preamble = MAGIC.len() + 4;
    let length = (preamble + text.len() + 1).next_multiple_of(64) - preamble;
    let mut header = MAGIC.to_vec();
    header.extend([1, 0]);
    header.extend(u16::try_from(length).map_err(io::Error::other)?.to_le_bytes());
    header.extend(format!("{text:<width$}\n", width = length - 1).bytes());
    Ok(header)
}

fn write_words<const N: usize, T: Copy>(
    file: &mut impl Write,
    values: &[T],
    bytes: impl Fn(T) -> [u8; N],
) -> io::Result<()> {
    values.iter().try_for_each(|value| file.write_all(&bytes(*value)))
}
