//! A scalar of any dtype: the value that a fill writes.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use half::{bf16, f16};

use crate::names::text::ParseError;
use crate::tensor::dtype::DType;

/// A single number or truth value.
///
/// `Display` and `FromStr` round-trip: `1.0` is a float, `1` an integer, `true` a truth value.
///
/// Two scalars are equal if a fill would write the same bits. So `0.0` and `-0.0` differ, and a NaN equals itself.
#[derive(Copy, Clone, Debug)]
pub enum Scalar {
    /// A floating-point value.
    F64(f64),
    /// An integer.
    I64(i64),
    /// An integer that may be above [`i64::MAX`]. Below, it equals the [`Scalar::I64`] of the same value.
    U64(u64),
    /// A truth value.
    Bool(bool),
}

impl Scalar {
    /// Zero in `dtype`, or false: a value that [`fits`](Scalar::fits) it.
    pub fn zero(dtype: DType) -> Scalar {
        match dtype {
            DType::Bool => Scalar::Bool(false),
            dtype if dtype.is_float() => Scalar::F64(0.0),
            _ => Scalar::I64(0),
        }
    }

    /// One in `dtype`, or true: a value that [`fits`](Scalar::fits) it.
    pub fn one(dtype: DType) -> Scalar {
        match dtype {
            DType::Bool => Scalar::Bool(true),
            dtype if dtype.is_float() => Scalar::F64(1.0),
            _ => Scalar::I64(1),
        }
    }

    /// Whether a tensor of `dtype` can be filled with this value.
    ///
    /// * A float fits every float dtype.
    /// * An integer fits an integer dtype whose range holds it, and every float dtype.
    /// * A truth value fits only [`DType::Bool`], and nothing else fits that.
    ///
    /// A value that a float dtype cannot represent is rounded once to the nearest value, ties to even: 0.1 becomes 0.0999755859375 in
    /// `f16`. A value past the range becomes an infinity.
    pub fn fits(self, dtype: DType) -> bool {
        match self {
            Scalar::F64(_) => dtype.is_float(),
            Scalar::I64(value) => fits_integer(value, dtype),
            Scalar::U64(value) => fits_integer(value, dtype),
            Scalar::Bool(_) => dtype == DType::Bool,
        }
    }
}

impl Scalar {
    /// The bits of this value as an element of `dtype`, which are the lowest ones: what a fill writes. `None` if it does not
    /// [fit](Scalar::fits).
    pub fn element_bits(self, dtype: DType) -> Option<u64> {
        if !self.fits(dtype) {
            return None;
        }
        Some(match (dtype, self) {
            (DType::F64, Scalar::F64(value)) => value.to_bits(),
            (DType::F64, Scalar::I64(value)) => (value as f64).to_bits(),
            (DType::F64, Scalar::U64(value)) => (value as f64).to_bits(),
            (DType::F32, Scalar::F64(value)) => (value as f32).to_bits().into(),
            (DType::F32, Scalar::I64(value)) => (value as f32).to_bits().into(),
            (DType::F32, Scalar::U64(value)) => (value as f32).to_bits().into(),
            (DType::F16, _) => f16::from_f32(self.rounded_to_odd()).to_bits().into(),
            (DType::BF16, _) => bf16::from_f32(self.rounded_to_odd()).to_bits().into(),
            (_, Scalar::I64(value)) => value.cast_unsigned() & (u64::MAX >> (64 - 8 * dtype.size())),
            (_, Scalar::U64(value)) => value,
            (_, Scalar::Bool(value)) => value.into(),
            (_, Scalar::F64(_)) => return None,
        })
    }

    /// The number as an `f32` that gives the same 16-bit float as the number itself: the nearest one if that is exact, else the one of the two neighbours whose
    /// last bit is 1 (Boldo and Melquiond, "When double rounding is odd", 2005). The conversions of the crate `half` from `f64` round twice on some processors.
    fn rounded_to_odd(self) -> f32 {
        let (near, size) = match self {
            Scalar::F64(value) => (value as f32, f64::from(value as f32).abs().partial_cmp(&value.abs())),
            Scalar::I64(value) => {
                (value as f32, Some(((value as f32).abs() as u128).cmp(&value.unsigned_abs().into())))
            }
            Scalar::U64(value) => (value as f32, Some((value as f32 as u128).cmp(&value.into()))),
            Scalar::Bool(value) => (f32::from(value), None),
        };
        match size {
            Some(Ordering::Less) => f32::from_bits(near.to_bits() | 1),
            // Not zero, because its magnitude is larger than another one.
            Some(Ordering::Greater) => f32::from_bits((near.to_bits() - 1) | 1),
            Some(Ordering::Equal) | None => near,
        }
    }
}

/// Whether an integer fits a dtype: see [`Scalar::fits`].
fn fits_integer<I>(value: I, dtype: DType) -> bool
where
    i8: TryFrom<I>,
    i16: TryFrom<I>,
    i32: TryFrom<I>,
    i64: TryFrom<I>,
    u8: TryFrom<I>,
    u16: TryFrom<I>,
    u32: TryFrom<I>,
    u64: TryFrom<I>,
{
    match dtype {
        DType::F32 | DType::F64 | DType::F16 | DType::BF16 => true,
        DType::I8 => i8::try_from(value).is_ok(),
        DType::I16 => i16::try_from(value).is_ok(),
        DType::I32 => i32::try_from(value).is_ok(),
        DType::I64 => i64::try_from(value).is_ok(),
        DType::U8 => u8::try_from(value).is_ok(),
        DType::U16 => u16::try_from(value).is_ok(),
        DType::U32 => u32::try_from(value).is_ok(),
        DType::U64 => u64::try_from(value).is_ok(),
        DType::Bool => false,
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Scalar) -> bool {
        match (*self, *other) {
            (Scalar::F64(one), Scalar::F64(other)) => one.to_bits() == other.to_bits(),
            (Scalar::I64(one), Scalar::I64(other)) => one == other,
            (Scalar::U64(one), Scalar::U64(other)) => one == other,
            (Scalar::I64(signed), Scalar::U64(unsigned)) | (Scalar::U64(unsigned), Scalar::I64(signed)) => {
                u64::try_from(signed) == Ok(unsigned)
            }
            (Scalar::Bool(one), Scalar::Bool(other)) => one == other,
            _ => false,
        }
    }
}

impl Eq for Scalar {}

impl Hash for Scalar {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Numbers that are equal have the same bits, whatever holds them.
        match self {
            Scalar::F64(value) => (0, value.to_bits()).hash(state),
            Scalar::I64(value) => (1, value.cast_unsigned()).hash(state),
            Scalar::U64(value) => (1, value).hash(state),
            Scalar::Bool(value) => (2, u64::from(*value)).hash(state),
        }
    }
}

impl From<f32> for Scalar {
    fn from(value: f32) -> Scalar {
        Scalar::F64(f64::from(value))
    }
}

impl From<f64> for Scalar {
    fn from(value: f64) -> Scalar {
        Scalar::F64(value)
    }
}

impl From<f16> for Scalar {
    fn from(value: f16) -> Scalar {
        Scalar::F64(f64::from(value))
    }
}

impl From<bf16> for Scalar {
    fn from(value: bf16) -> Scalar {
        Scalar::F64(f64::from(value))
    }
}

macro_rules! from_integers {
    ($($int:ident),*) => {$(
        impl From<$int> for Scalar {
            fn from(value: $int) -> Scalar {
                Scalar::I64(i64::from(value))
            }
        }
    )*};
}

from_integers!(i8, i16, i32, i64, u8, u16, u32);

impl From<u64> for Scalar {
    fn from(value: u64) -> Scalar {
        Scalar::U64(value)
    }
}

impl From<bool> for Scalar {
    fn from(value: bool) -> Scalar {
        Scalar::Bool(value)
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Debug of f64 keeps the point (`1.0`), so the text stays a float when read back.
            Scalar::F64(value) => write!(f, "{value:?}"),
            Scalar::I64(value) => write!(f, "{value}"),
            Scalar::U64(value) => write!(f, "{value}"),
            Scalar::Bool(value) => write!(f, "{value}"),
        }
    }
}

impl FromStr for Scalar {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Scalar, ParseError> {
        if let Ok(value) = text.parse::<bool>() {
            return Ok(Scalar::Bool(value));
        }
        if let Ok(value) = text.parse::<i64>() {
            return Ok(Scalar::I64(value));
        }
        if let Ok(value) = text.parse::<u64>() {
            return Ok(Scalar::U64(value));
        }
        text.parse::<f64>()
            .map(Scalar::F64)
            .map_err(|_| ParseError::new("scalar", text, "a number such as 1.5 or -3, or true or false"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip() {
        for scalar in [
            Scalar::F64(1.0),
            Scalar::F64(-0.0),
            Scalar::F64(1e300),
            Scalar::F64(f64::INFINITY),
            Scalar::I64(i64::MIN),
            Scalar::U64(u64::MAX),
            Scalar::U64(7),
            Scalar::Bool(true),
            Scalar::Bool(false),
        ] {
            assert_eq!(scalar.to_string().parse(), Ok(scalar));
        }
        assert!("one".parse::<Scalar>().is_err());
    }

    #[test]
    fn scalars_with_the_same_bits_are_equal() {
        let nan = Scalar::F64(f64::NAN);
        assert!(nan == nan && Scalar::F64(0.0) != Scalar::F64(-0.0) && Scalar::F64(1.0) != Scalar::I64(1));
        let hash = |scalar: Scalar| {
            let mut hasher = std::hash::DefaultHasher::new();
            scalar.hash(&mut hasher);
            hasher.finish()
        };
        assert_eq!(hash(nan), hash(Scalar::F64(f64::NAN)));
        assert_ne!(hash(Scalar::F64(0.0)), hash(Scalar::F64(-0.0)));
        let (signed, unsigned) = (Scalar::I64(7), Scalar::U64(7));
        assert_eq!([signed, unsigned], [unsigned, signed]);
        assert_eq!(hash(signed), hash(unsigned));
        assert!(Scalar::I64(-1) != Scalar::U64(u64::MAX) && Scalar::U64(u64::MAX) != Scalar::I64(-1));
    }

    #[test]
    fn sixteen_bit_floats_are_taken_as_they_are() {
        assert_eq!(Scalar::from(f16::MAX), Scalar::F64(65504.0));
        assert_eq!(Scalar::from(bf16::from_f32(0.1)), Scalar::F64(0.10009765625));
        assert!(Scalar::F64(0.1).fits(DType::F16) && Scalar::F64(1e300).fits(DType::BF16));
    }

    #[test]
    fn elements_are_rounded_once() {
        let bits = |value: Scalar, dtype| value.element_bits(dtype);
        assert_eq!(bits(Scalar::F64(0.1), DType::F32), Some(0.1f32.to_bits().into()));
        assert_eq!(bits(Scalar::F64(-0.0), DType::F64), Some(1 << 63));
        assert_eq!(bits(Scalar::F64(0.1), DType::F16), Some(f16::from_f32(0.1).to_bits().into()));
        assert_eq!(bits(Scalar::F64(1e300), DType::F16), Some(f16::INFINITY.to_bits().into()));
        // Just above the middle of two neighbours, and just below it: an `f32` would be the middle.
        let above = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        assert_eq!(bits(Scalar::F64(above), DType::F16), Some(u64::from(f16::ONE.to_bits()) + 1));
        let below = 1.0 + 3.0 * 2f64.powi(-11) - 2f64.powi(-40);
        assert_eq!(bits(Scalar::F64(below), DType::F16), Some(u64::from(f16::ONE.to_bits()) + 1));
        let middle = (1i64 << 40) + (1 << 32);
        let exact = bits(Scalar::I64(1 << 40), DType::BF16).unwrap();
        assert_eq!(bits(Scalar::I64(middle), DType::BF16), Some(exact));
        assert_eq!(bits(Scalar::I64(middle + 1), DType::BF16), Some(exact + 1));
        assert_eq!(bits(Scalar::I64(-middle - 1), DType::BF16), Some(0x8000 | (exact + 1)));
        assert_eq!(bits(Scalar::U64(u64::MAX), DType::BF16), Some(0x5f80));
        assert_eq!(bits(Scalar::I64(-1), DType::I16), Some(0xffff));
        assert_eq!(bits(Scalar::I64(-1), DType::I64), Some(u64::MAX));
        assert_eq!(bits(Scalar::U64(200), DType::U8), Some(200));
        assert_eq!(bits(Scalar::Bool(true), DType::Bool), Some(1));
        assert_eq!(bits(Scalar::Bool(true), DType::F32), None);
        assert_eq!(bits(Scalar::F64(1.0), DType::I32), None);
        let nan = f32::from_bits(bits(Scalar::F64(f64::NAN), DType::F32).unwrap() as u32);
        assert!(nan.is_nan());
    }

    #[test]
    fn every_dtype_has_a_zero_and_a_one() {
        for dtype in DType::ALL {
            assert!(Scalar::zero(dtype).fits(dtype) && Scalar::one(dtype).fits(dtype), "{dtype}");
        }
        assert_eq!((Scalar::zero(DType::U8), Scalar::one(DType::BF16)), (Scalar::I64(0), Scalar::F64(1.0)));
    }

    #[test]
    fn integers_fit_where_their_value_does() {
        assert!(Scalar::I64(255).fits(DType::U8));
        assert!(!Scalar::I64(256).fits(DType::U8));
        assert!(!Scalar::I64(-1).fits(DType::U8));
        assert!(!Scalar::I64(1 << 31).fits(DType::I32));
        assert!(Scalar::I64(1 << 31).fits(DType::U32) && Scalar::I64(-128).fits(DType::I8));
        assert!(!Scalar::I64(128).fits(DType::I8) && !Scalar::I64(1 << 16).fits(DType::U16));
        assert!(!Scalar::I64(1 << 15).fits(DType::I16) && !Scalar::I64(-1).fits(DType::U64));
        assert!(Scalar::U64(1 << 63).fits(DType::U64) && Scalar::U64(1 << 63).fits(DType::F32));
        assert!(!Scalar::U64(1 << 63).fits(DType::I64) && Scalar::U64(7).fits(DType::U8));
        assert!(Scalar::I64(1 << 31).fits(DType::F32));
        assert!(Scalar::I64(1 << 31).fits(DType::F16));
        assert!(Scalar::I64(1 << 31).fits(DType::BF16));
        assert!(!Scalar::F64(1.0).fits(DType::I64));
        assert!(!Scalar::Bool(true).fits(DType::U8));
        assert!(!Scalar::I64(1).fits(DType::Bool));
    }
}
