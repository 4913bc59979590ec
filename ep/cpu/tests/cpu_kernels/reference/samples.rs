//! Values for the inputs of an op, as its row in the table of ops says.

use streamvm_ep::{DType, Samples};

use super::{Value, rounded};

/// The least and the largest integer of a dtype; 0 and 1 of bools.
fn range(dtype: DType) -> (i128, i128) {
    match dtype {
        DType::I8 => (i8::MIN.into(), i8::MAX.into()),
        DType::I16 => (i16::MIN.into(), i16::MAX.into()),
        DType::I32 => (i32::MIN.into(), i32::MAX.into()),
        DType::I64 => (i64::MIN.into(), i64::MAX.into()),
        DType::U8 => (u8::MIN.into(), u8::MAX.into()),
        DType::U16 => (u16::MIN.into(), u16::MAX.into()),
        DType::U32 => (u32::MIN.into(), u32::MAX.into()),
        DType::U64 => (u64::MIN.into(), u64::MAX.into()),
        _ => (0, 1),
    }
}

/// Draws a value; `below` draws a number below another one.
pub(crate) fn draw(mut below: impl FnMut(usize) -> usize, dtype: DType, samples: Samples) -> Value {
    let special = below(4) == 0;
    if dtype.is_float() {
        let wild =
            [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1e30, -3e9, 1e-40, 7e-6, 65504.0, 255.5, -1.0];
        let value = match samples {
            Samples::Small => below(9) as f64 / 2.0,
            Samples::Wild | Samples::NonZero | Samples::Exponents if special => wild[below(wild.len())],
            _ => below(1 << 30) as f64 / f64::from(1 << 27) - 4.0,
        };
        return Value::Float(rounded(dtype, value));
    }
    if matches!(samples, Samples::Small | Samples::Exponents) {
        return Value::Int(below(9) as i128);
    }
    let (low, high) = range(dtype);
    let ends = [low, high, low + 1, high - 1, 0, 1];
    let value = if special { ends[below(ends.len())] } else { (below(21) as i128 - 10).clamp(low, high) };
    if samples == Samples::NonZero && value == 0 {
        // -1 where there is one, so that MIN / -1 comes up.
        return Value::Int(if low < 0 { -1 } else { 3 });
    }
    Value::Int(value)
}
