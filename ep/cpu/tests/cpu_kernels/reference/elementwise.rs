//! Elementwise ops: the value of an element from those of the inputs at its index.

use streamvm_ep::{DType, Op, Params};

use super::{Dense, Value, broadcast_dims, indices, wrapped};

pub(super) fn elementwise(op: Op, inputs: &[Dense], params: &Params) -> Dense {
    let dims = broadcast_dims(&inputs.iter().collect::<Vec<_>>());
    let dtype = match op {
        Op::Cast => params.to.unwrap(),
        Op::Where => inputs[1].dtype,
        Op::Eq | Op::Ne | Op::Lt | Op::Le | Op::Gt | Op::Ge => DType::Bool,
        Op::IsNan | Op::IsInf | Op::IsFinite => DType::Bool,
        _ => inputs[0].dtype,
    };
    let values = indices(&dims)
        .iter()
        .map(|index| {
            let at: Vec<Value> = inputs.iter().map(|input| input.at(index)).collect();
            match op {
                Op::Cast => cast(at[0], dtype),
                Op::Where => at[if at[0].truth() { 1 } else { 2 }],
                _ if at.len() == 1 => one(op, dtype, at[0]),
                Op::Clamp => two(Op::Min, dtype, two(Op::Max, dtype, at[0], at[1]), at[2]),
                _ if dtype == DType::Bool => bools(op, at[0], at[1]),
                _ => two(op, dtype, at[0], at[1]),
            }
        })
        .collect();
    Dense { dtype, dims, values }
}

fn one(op: Op, dtype: DType, value: Value) -> Value {
    match value {
        Value::Float(x) if dtype == DType::Bool => Value::Int(
            match op {
                Op::IsNan => x.is_nan(),
                Op::IsInf => x.is_infinite(),
                Op::IsFinite => x.is_finite(),
                _ => panic!("{op} gives no bool"),
            }
            .into(),
        ),
        Value::Int(x) if dtype == DType::Bool => {
            assert_eq!(op, Op::Not, "{op} gives no bool");
            Value::Int((x == 0).into())
        }
        Value::Float(x) => Value::Float(match op {
            Op::Neg => 0.0 - x,
            Op::Abs => x.abs(),
            Op::Relu if x.is_nan() => x,
            Op::Relu => x.max(0.0),
            Op::Exp => x.exp(),
            Op::Log => x.ln(),
            Op::Sqrt => x.sqrt(),
            Op::Tanh => x.tanh(),
            Op::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Op::Erf => libm::erf(x),
            Op::Gelu | Op::GeluTanh | Op::Silu if x == f64::NEG_INFINITY => 0.0,
            Op::Gelu => x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2) / 2.0,
            Op::GeluTanh => x / (1.0 + (-2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).exp()),
            Op::Silu => x / (1.0 + (-x).exp()),
            Op::Rsqrt => 1.0 / x.sqrt(),
            Op::Reciprocal => 1.0 / x,
            Op::Floor => x.floor(),
            Op::Ceil => x.ceil(),
            Op::Round => x.round_ties_even(),
            Op::Trunc => x.trunc(),
            Op::Sign if x == 0.0 || x.is_nan() => x,
            Op::Sign => x.signum(),
            Op::Sin => x.sin(),
            Op::Cos => x.cos(),
            Op::Tan => x.tan(),
            Op::Asin => x.asin(),
            Op::Acos => x.acos(),
            Op::Atan => x.atan(),
            Op::Sinh => x.sinh(),
            Op::Cosh => x.cosh(),
            Op::Log1p => x.ln_1p(),
            Op::Expm1 => x.exp_m1(),
            Op::Log2 => x.log2(),
            Op::Log10 => x.log10(),
            Op::Exp2 => x.exp2(),
            _ => panic!("{op} is not unary"),
        }),
        Value::Int(x) => wrapped(
            dtype,
            match op {
                Op::Neg => -x,
                Op::Abs => x.abs(),
                Op::Relu => x.max(0),
                Op::Sign => x.signum(),
                Op::BitNot => -1 - x,
                _ => panic!("{op} is not for integers"),
            },
        ),
    }
}

fn two(op: Op, dtype: DType, x: Value, y: Value) -> Value {
    match (x, y) {
        (Value::Float(x), Value::Float(y)) => Value::Float(match op {
            Op::Add => x + y,
            Op::Sub => x - y,
            Op::Mul => x * y,
            Op::Div => x / y,
            Op::Pow => x.powf(y),
            Op::Atan2 => x.atan2(y),
            Op::FloorDiv => floor_div(x, y),
            Op::Remainder if y == 0.0 || x.is_infinite() => f64::NAN,
            Op::Remainder => x % y + if opposed(x % y, y) { y } else { 0.0 },
            Op::Min | Op::Max if x.is_nan() || y.is_nan() => f64::NAN,
            Op::Min => x.min(y),
            Op::Max => x.max(y),
            _ => panic!("{op} is not binary"),
        }),
        _ => {
            let (x, y) = (x.int(), y.int());
            wrapped(
                dtype,
                match op {
                    Op::Add => x + y,
                    Op::Sub => x - y,
                    Op::Mul => x.wrapping_mul(y),
                    Op::Div => x / y,
                    Op::Min => x.min(y),
                    Op::Max => x.max(y),
                    Op::FloorDiv => x.div_euclid(y) - i128::from(y < 0 && x.rem_euclid(y) != 0),
                    Op::Remainder => x.rem_euclid(y) + if y < 0 && x.rem_euclid(y) != 0 { y } else { 0 },
                    Op::BitAnd => x & y,
                    Op::BitOr => x | y,
                    Op::BitXor => x ^ y,
                    // One place at a time, so that a count may be larger than the dtype.
                    Op::Shl => (0..places(dtype, y)).fold(x, |x, _| wrapped(dtype, 2 * x).int()),
                    Op::Shr => (0..places(dtype, y)).fold(x, |x, _| x.div_euclid(2)),
                    Op::Pow => (0..y).fold(1, |power, _| wrapped(dtype, power.wrapping_mul(x)).int()),
                    _ => panic!("{op} is not binary"),
                },
            )
        }
    }
}

/// How often a value is moved by one place, for this count: a negative count empties it.
fn places(dtype: DType, count: i128) -> i128 {
    let bits = 8 * dtype.size() as i128;
    if (0..bits).contains(&count) { count } else { bits }
}

fn opposed(x: f64, y: f64) -> bool {
    x < 0.0 && y > 0.0 || x > 0.0 && y < 0.0
}

fn floor_div(x: f64, y: f64) -> f64 {
    if y == 0.0 || x.is_nan() || y.is_nan() {
        return x / y;
    }
    match (x.is_infinite(), y.is_infinite()) {
        (true, _) => f64::NAN,
        (false, true) if opposed(x, y) => -1.0,
        (false, true) => 0.0,
        // `x % y` is exact, so the quotient without it is nearly a whole number.
        (false, false) => ((x - x % y) / y).round() - f64::from(u8::from(opposed(x % y, y))),
    }
}

fn bools(op: Op, x: Value, y: Value) -> Value {
    let order = match (x, y) {
        (Value::Float(x), Value::Float(y)) => x.partial_cmp(&y),
        _ => Some(x.int().cmp(&y.int())),
    };
    let truth = match op {
        Op::Eq => order.is_some_and(|order| order.is_eq()),
        Op::Ne => order.is_none_or(|order| order.is_ne()),
        Op::Lt => order.is_some_and(|order| order.is_lt()),
        Op::Le => order.is_some_and(|order| order.is_le()),
        Op::Gt => order.is_some_and(|order| order.is_gt()),
        Op::Ge => order.is_some_and(|order| order.is_ge()),
        Op::Min | Op::And => x.truth() && y.truth(),
        Op::Max | Op::Or => x.truth() || y.truth(),
        Op::Xor => x.truth() != y.truth(),
        _ => panic!("{op} gives no bool"),
    };
    Value::Int(truth.into())
}

fn cast(value: Value, to: DType) -> Value {
    let saturated = |low: i128, high: i128| {
        let Value::Float(x) = value else {
            return wrapped(to, value.int());
        };
        Value::Int(if x.is_nan() {
            0
        } else if x >= high as f64 {
            high
        } else if x <= low as f64 {
            low
        } else {
            x.trunc() as i128
        })
    };
    match to {
        DType::F32 | DType::F64 | DType::F16 | DType::BF16 => Value::Float(value.float()),
        DType::I8 => saturated(i8::MIN.into(), i8::MAX.into()),
        DType::I16 => saturated(i16::MIN.into(), i16::MAX.into()),
        DType::I32 => saturated(i32::MIN.into(), i32::MAX.into()),
        DType::I64 => saturated(i64::MIN.into(), i64::MAX.into()),
        DType::U8 => saturated(u8::MIN.into(), u8::MAX.into()),
        DType::U16 => saturated(u16::MIN.into(), u16::MAX.into()),
        DType::U32 => saturated(u32::MIN.into(), u32::MAX.into()),
        DType::U64 => saturated(u64::MIN.into(), u64::MAX.into()),
        DType::Bool => Value::Int(value.truth().into()),
    }
}
