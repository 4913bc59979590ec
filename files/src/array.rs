//! Elements and their shape, outside of an engine.

use streamvm::instructions::show;
use streamvm::{DType, Scalar, bf16, f16};

/// Elements in row-major order. A `bool` is a Rust bool: the conversion from bytes refuses bytes other than 0 and 1.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// `f32`
    F32(Vec<f32>),
    /// `f64`
    F64(Vec<f64>),
    /// `f16`
    F16(Vec<f16>),
    /// `bf16`
    BF16(Vec<bf16>),
    /// `i8`
    I8(Vec<i8>),
    /// `i16`
    I16(Vec<i16>),
    /// `i32`
    I32(Vec<i32>),
    /// `i64`
    I64(Vec<i64>),
    /// `u8`
    U8(Vec<u8>),
    /// `u16`
    U16(Vec<u16>),
    /// `u32`
    U32(Vec<u32>),
    /// `u64`
    U64(Vec<u64>),
    /// `bool`
    Bool(Vec<bool>),
}

/// The values of a tensor outside of the engine: elements and their shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Sizes; their product is the number of elements.
    pub shape: Vec<usize>,
    /// The elements.
    pub data: Data,
}

impl Array {
    /// A text with dtype, shape and values, as tensors print; long axes are cut.
    #[must_use]
    pub fn show(&self) -> String {
        // It asks for indices below the number of elements alone.
        show(self.data.dtype(), &self.shape, None, |index| match self.data.get(index) {
            Some(Element::Float(value)) => Scalar::F64(value),
            Some(Element::Bool(value)) => Scalar::Bool(value),
            Some(Element::Int(value)) => i64::try_from(value).map_or(Scalar::U64(value as u64), Scalar::I64),
            None => Scalar::F64(f64::NAN),
        })
    }
}

/// One element, wide enough to compare without loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Element {
    /// `f32`, `f64`, `f16` or `bf16`
    Float(f64),
    /// An integer of any dtype.
    Int(i128),
    /// `bool`
    Bool(bool),
}

impl std::fmt::Display for Element {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // An f32 that is widened to f64 would print digits that the f32 does not have; eight decimals are enough to distinguish f32
            // values.
            Self::Float(value) if value.is_finite() && *value != 0.0 => {
                let magnitude = value.abs();
                if (1e-4..1e7).contains(&magnitude) {
                    write!(f, "{}", trim_zeros(format!("{value:.8}")))
                } else {
                    write!(f, "{value:.7e}")
                }
            }
            Self::Float(value) => write!(f, "{}", if value.is_nan() { "nan".into() } else { format!("{value}") }),
            Self::Int(value) => write!(f, "{value}"),
            Self::Bool(value) => write!(f, "{value}"),
        }
    }
}

fn trim_zeros(text: String) -> String {
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Expands to the same expression for every element type.
macro_rules! each {
    ($data:expr, $values:ident => $body:expr) => {
        match $data {
            Data::F32($values) => $body,
            Data::F64($values) => $body,
            Data::F16($values) => $body,
            Data::BF16($values) => $body,
            Data::I8($values) => $body,
            Data::I16($values) => $body,
            Data::I32($values) => $body,
            Data::I64($values) => $body,
            Data::U8($values) => $body,
            Data::U16($values) => $body,
            Data::U32($values) => $body,
            Data::U64($values) => $body,
            Data::Bool($values) => $body,
        }
    };
}

pub(crate) use each;

impl Data {
    /// The dtype of the elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F64(_) => DType::F64,
            Self::F16(_) => DType::F16,
            Self::BF16(_) => DType::BF16,
            Self::I8(_) => DType::I8,
            Self::I16(_) => DType::I16,
            Self::I32(_) => DType::I32,
            Self::I64(_) => DType::I64,
            Self::U8(_) => DType::U8,
            Self::U16(_) => DType::U16,
            Self::U32(_) => DType::U32,
            Self::U64(_) => DType::U64,
            Self::Bool(_) => DType::Bool,
        }
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        each!(self, values => values.len())
    }

    /// Are there no elements?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element at a row-major index, if there is one.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Element> {
        Some(match self {
            Self::F32(values) => Element::Float(f64::from(*values.get(index)?)),
            Self::F64(values) => Element::Float(*values.get(index)?),
            Self::F16(values) => Element::Float(f64::from(*values.get(index)?)),
            Self::BF16(values) => Element::Float(f64::from(*values.get(index)?)),
            Self::I8(values) => Element::Int((*values.get(index)?).into()),
            Self::I16(values) => Element::Int((*values.get(index)?).into()),
            Self::I32(values) => Element::Int((*values.get(index)?).into()),
            Self::I64(values) => Element::Int((*values.get(index)?).into()),
            Self::U8(values) => Element::Int((*values.get(index)?).into()),
            Self::U16(values) => Element::Int((*values.get(index)?).into()),
            Self::U32(values) => Element::Int((*values.get(index)?).into()),
            Self::U64(values) => Element::Int((*values.get(index)?).into()),
            Self::Bool(values) => Element::Bool(*values.get(index)?),
        })
    }

    /// Elements from little-endian bytes, as `.npy` and `.safetensors` files hold them.
    ///
    /// # Errors
    /// The index of the first `bool` that is neither 0 nor 1.
    pub fn from_bytes(dtype: DType, bytes: &[u8]) -> Result<Self, usize> {
        fn words<const N: usize, T>(bytes: &[u8], make: impl Fn([u8; N]) -> T) -> Vec<T> {
            bytes.as_chunks::<N>().0.iter().map(|word| make(*word)).collect()
        }
        Ok(match dtype {
            DType::F32 => Self::F32(words(bytes, f32::from_le_bytes)),
            DType::F64 => Self::F64(words(bytes, f64::from_le_bytes)),
            DType::F16 => Self::F16(words(bytes, f16::from_le_bytes)),
            DType::BF16 => Self::BF16(words(bytes, bf16::from_le_bytes)),
            DType::I8 => Self::I8(words(bytes, i8::from_le_bytes)),
            DType::I16 => Self::I16(words(bytes, i16::from_le_bytes)),
            DType::I32 => Self::I32(words(bytes, i32::from_le_bytes)),
            DType::I64 => Self::I64(words(bytes, i64::from_le_bytes)),
            DType::U8 => Self::U8(words(bytes, u8::from_le_bytes)),
            DType::U16 => Self::U16(words(bytes, u16::from_le_bytes)),
            DType::U32 => Self::U32(words(bytes, u32::from_le_bytes)),
            DType::U64 => Self::U64(words(bytes, u64::from_le_bytes)),
            DType::Bool => {
                if let Some(at) = bytes.iter().position(|byte| *byte > 1) {
                    return Err(at);
                }
                Self::Bool(bytes.iter().map(|byte| *byte == 1).collect())
            }
        })
    }

    /// The elements as little-endian bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        fn words<const N: usize, T: Copy>(values: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
            values.iter().flat_map(|value| bytes(*value)).collect()
        }
        match self {
            Self::F32(values) => words(values, f32::to_le_bytes),
            Self::F64(values) => words(values, f64::to_le_bytes),
            Self::F16(values) => words(values, f16::to_le_bytes),
            Self::BF16(values) => words(values, bf16::to_le_bytes),
            Self::I8(values) => words(values, i8::to_le_bytes),
            Self::I16(values) => words(values, i16::to_le_bytes),
            Self::I32(values) => words(values, i32::to_le_bytes),
            Self::I64(values) => words(values, i64::to_le_bytes),
            Self::U8(values) => words(values, u8::to_le_bytes),
            Self::U16(values) => words(values, u16::to_le_bytes),
            Self::U32(values) => words(values, u32::to_le_bytes),
            Self::U64(values) => words(values, u64::to_le_bytes),
            Self::Bool(values) => words(values, |value| [u8::from(value)]),
        }
    }

    /// Reorders elements from column-major to row-major order of `shape`.
    #[must_use]
    pub fn from_column_major(self, shape: &[usize]) -> Self {
        fn gather<T: Copy>(values: &[T], shape: &[usize]) -> Vec<T> {
            let mut strides = Vec::with_capacity(shape.len());
            let mut stride = 1;
            for size in shape {
                strides.push(stride);
                stride *= size;
            }
            let mut index = vec![0; shape.len()];
            let mut from = 0;
            let mut out = Vec::with_capacity(values.len());
            for _ in 0..values.len() {
                out.push(values[from]);
                // Counts up like an odometer: the last axis changes fastest.
                for axis in (0..shape.len()).rev() {
                    index[axis] += 1;
                    from += strides[axis];
                    if index[axis] < shape[axis] {
                        break;
                    }
                    from -= strides[axis] * shape[axis];
                    index[axis] = 0;
                }
            }
            out
        }
        match self {
            Self::F32(values) => Self::F32(gather(&values, shape)),
            Self::F64(values) => Self::F64(gather(&values, shape)),
            Self::F16(values) => Self::F16(gather(&values, shape)),
            Self::BF16(values) => Self::BF16(gather(&values, shape)),
            Self::I8(values) => Self::I8(gather(&values, shape)),
            Self::I16(values) => Self::I16(gather(&values, shape)),
            Self::I32(values) => Self::I32(gather(&values, shape)),
            Self::I64(values) => Self::I64(gather(&values, shape)),
            Self::U8(values) => Self::U8(gather(&values, shape)),
            Self::U16(values) => Self::U16(gather(&values, shape)),
            Self::U32(values) => Self::U32(gather(&values, shape)),
            Self::U64(values) => Self::U64(gather(&values, shape)),
            Self::Bool(values) => Self::Bool(gather(&values, shape)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn column_major_becomes_row_major() {
        let data = Data::I32(vec![0, 3, 1, 4, 2, 5]).from_column_major(&[2, 3]);
        assert_eq!(data, Data::I32(vec![0, 1, 2, 3, 4, 5]));
        let cube: Vec<i32> = (0..24).map(|at| (at % 2) * 12 + (at / 2 % 3) * 4 + at / 6).collect();
        assert_eq!(Data::I32(cube).from_column_major(&[2, 3, 4]), Data::I32((0..24).collect()));
        assert_eq!(Data::U8(vec![]).from_column_major(&[2, 0]), Data::U8(vec![]));
        assert_eq!(Data::U8(vec![7]).from_column_major(&[]), Data::U8(vec![7]));
    }

    #[test]
    fn a_bool_is_zero_or_one() {
        assert_eq!(Data::from_bytes(DType::Bool, &[0, 1]), Ok(Data::Bool(vec![false, true])));
        assert_eq!(Data::from_bytes(DType::Bool, &[0, 1, 2]), Err(2));
    }

    #[test]
    fn elements_print_short() {
        assert_eq!(Element::Float(0.5).to_string(), "0.5");
        assert_eq!(Element::Float(f64::from(0.1_f32)).to_string(), "0.1");
        assert_eq!(Element::Float(1e-9).to_string(), "1.0000000e-9");
        assert_eq!(Element::Float(-0.0).to_string(), "-0");
        assert_eq!(Element::Float(f64::NAN).to_string(), "nan");
        assert_eq!(Element::Float(f64::NEG_INFINITY).to_string(), "-inf");
    }
}
