//! Element types of tensors.
//!
//! [`DType`] is the run-time name, [`Element`] the Rust type for it. Memory may hold any byte, and a `bool` is valid only as 0 or 1, so a
//! slice of `bool` is made only after a check ([`Operand::slice`](crate::Operand::slice)).

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};

use crate::names::text::{ParseError, listed};

/// Element type of a tensor.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
    /// IEEE 754 half precision, "binary16": 11 significant bits, at most 65504.
    F16,
    /// The upper half of an `f32`, "bfloat16": its range with 8 significant bits.
    BF16,
    /// Signed 8-bit integer; arithmetic wraps.
    I8,
    /// Signed 16-bit integer; arithmetic wraps.
    I16,
    /// Signed 32-bit integer; arithmetic wraps.
    I32,
    /// Signed 64-bit integer; arithmetic wraps.
    I64,
    /// Unsigned 8-bit integer; arithmetic wraps.
    U8,
    /// Unsigned 16-bit integer; arithmetic wraps.
    U16,
    /// Unsigned 32-bit integer; arithmetic wraps.
    U32,
    /// Unsigned 64-bit integer; arithmetic wraps.
    U64,
    /// Truth value, stored as one byte: 0 or 1.
    Bool,
}

impl DType {
    /// Every dtype, in the order of the enum.
    pub const ALL: [DType; 13] = [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::BF16,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::Bool,
    ];

    /// The bytes of one element, which are also its alignment.
    pub const fn size(self) -> usize {
        match self {
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F64 | DType::I64 | DType::U64 => 8,
            DType::F16 | DType::BF16 | DType::I16 | DType::U16 => 2,
            DType::I8 | DType::U8 | DType::Bool => 1,
        }
    }

    /// Whether it is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
    }

    /// The dtype that two dtypes are cast to where they meet: as in the [array API standard], and in PyTorch for a float beside an integer. The larger
    /// of two floats, of two signed or two unsigned integers; `f32` of `f16` and `bf16`; the float of a float and an integer; a signed integer that holds both;
    /// the other one beside a bool. `None` for `u64` beside a signed integer.
    ///
    /// [array API standard]: https://data-apis.org/array-api/2024.12/API_specification/type_promotion.html
    pub const fn promoted(self, other: DType) -> Option<DType> {
        let larger = if self.size() >= other.size() { self } else { other };
        match (self, other) {
            (DType::Bool, other) | (other, DType::Bool) => Some(other),
            (DType::F16, DType::BF16) | (DType::BF16, DType::F16) => Some(DType::F32),
            _ if self.is_float() && !other.is_float() => Some(self),
            _ if other.is_float() && !self.is_float() => Some(other),
            _ if self.is_float()
                || self.is_signed() == other.is_signed()
                || larger.is_signed() && self.size() != other.size() =>
            {
                Some(larger)
            }
            // An unsigned integer that is as large as the signed one, or larger.
            _ => match larger.size() {
                1 => Some(DType::I16),
                2 => Some(DType::I32),
                4 => Some(DType::I64),
                _ => None,
            },
        }
    }

    const fn is_signed(self) -> bool {
        self.is_float() || matches!(self, DType::I8 | DType::I16 | DType::I32 | DType::I64)
    }

    /// The name that [`Display`](fmt::Display) prints and [`FromStr`] reads, such as `"f32"`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
            DType::Bool => "bool",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DType {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<DType, ParseError> {
        DType::ALL
            .into_iter()
            .find(|dtype| dtype.name() == text)
            .ok_or_else(|| ParseError::new("dtype", text, format!("one of {}", listed(&DType::ALL))))
    }
}

mod sealed {
    /// Seals [`super::Element`], because slices over memory rely on every bit pattern of an element but `bool` being valid.
    pub trait Sealed {}
}

/// A Rust type that tensor memory can be read and written as.
///
/// Sealed; implemented for `f32`, `f64`, [`f16`](struct@f16), [`bf16`], the integers of 8 to 64 bits, and `bool`. None has padding. All but
/// `bool` accept every bit pattern; bytes are checked before they are seen as `bool`.
pub trait Element: sealed::Sealed + Copy + Send + Sync + fmt::Debug + PartialEq + 'static {
    /// The dtype of this type.
    const DTYPE: DType;

    /// The bytes of `elements`, in the byte order of the machine.
    fn as_bytes(elements: &[Self]) -> &[u8] {
        // SAFETY: the implementing types have no padding, so every byte of the slice is initialised, and a byte has no alignment.
        unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
    }
}

macro_rules! elements {
    ($($element:ty => $dtype:ident),*) => {$(
        impl sealed::Sealed for $element {}
        impl Element for $element {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

elements!(f32 => F32, f64 => F64, f16 => F16, bf16 => BF16, bool => Bool);
elements!(i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16, u32 => U32, u64 => U64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for dtype in DType::ALL {
            assert_eq!(dtype.to_string().parse::<DType>(), Ok(dtype));
        }
    }

    #[test]
    fn dtypes_are_promoted_as_the_tables_say() {
        use DType::*;
        // Rows and columns in this order, as in the table of the array API standard; floats beside integers as in PyTorch.
        let order = [Bool, I8, I16, I32, I64, U8, U16, U32, U64, F16, BF16, F32, F64];
        let table = "b i1 i2 i4 i8 u1 u2 u4 u8 h bh f d|i1 i1 i2 i4 i8 i2 i4 i8 - h bh f d|i2 i2 i2 i4 i8 i2 i4 i8 - h bh f d|i4 i4 i4 i4 i8 i4 i4 i8 - h bh f d|\
                     i8 i8 i8 i8 i8 i8 i8 i8 - h bh f d|u1 i2 i2 i4 i8 u1 u2 u4 u8 h bh f d|u2 i4 i4 i4 i8 u2 u2 u4 u8 h bh f d|u4 i8 i8 i8 i8 u4 u4 u4 u8 h bh f d|\
                     u8 - - - - u8 u8 u8 u8 h bh f d|h h h h h h h h h h f f d|bh bh bh bh bh bh bh bh bh f bh f d|f f f f f f f f f f f f d|d d d d d d d d d d d d d";
        let short = ["b", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "h", "bh", "f", "d"];
        for (row, line) in order.into_iter().zip(table.split('|')) {
            for (column, cell) in order.into_iter().zip(line.split_whitespace()) {
                let expected = short.iter().position(|name| *name == cell).map(|at| order[at]);
                assert_eq!(row.promoted(column), expected, "{row} and {column}");
            }
        }
        assert_eq!(table.split(['|', ' ']).filter(|cell| !cell.is_empty()).count(), 169);
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = "f8".parse::<DType>().unwrap_err().to_string();
        assert!(error.contains("`f8`"), "{error}");
        assert!(error.contains("f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64, bool"), "{error}");
    }

    #[test]
    fn sizes_are_those_of_the_rust_types() {
        assert_eq!(f32::DTYPE.size(), size_of::<f32>());
        assert_eq!(f64::DTYPE.size(), size_of::<f64>());
        assert_eq!(f16::DTYPE.size(), size_of::<f16>());
        assert_eq!(bf16::DTYPE.size(), size_of::<bf16>());
        assert_eq!(i8::DTYPE.size(), size_of::<i8>());
        assert_eq!(i16::DTYPE.size(), size_of::<i16>());
        assert_eq!(i32::DTYPE.size(), size_of::<i32>());
        assert_eq!(i64::DTYPE.size(), size_of::<i64>());
        assert_eq!(u8::DTYPE.size(), size_of::<u8>());
        assert_eq!(u16::DTYPE.size(), size_of::<u16>());
        assert_eq!(u32::DTYPE.size(), size_of::<u32>());
        assert_eq!(u64::DTYPE.size(), size_of::<u64>());
        assert_eq!(bool::DTYPE.size(), size_of::<bool>());
    }
}
