//! Elementwise ops: the value of an element from those of the inputs at its index.

use streamvm_ep::{DType, Op, Params};

use super::row::value_of;
use super::{Dense, Value, broadcast_dims, indices, wrapped};

pub(super) fn elementwise(op: Op, inputs: &[Dense], params: &Params) -> Dense {
    let dims = broadcast_dims(&inputs.iter().collect::<Vec<_>>());
    let own = inputs[op.key_input()].dtype;
    let dtype = if op == Op::Cast { params.to.unwrap() } else { op.elementwise_output(own) };
    let values = indices(&dims)
        .iter()
        .map(|index| {
            let at: Vec<Value> = inputs.iter().map(|input| input.at(index)).collect();
            match op {
                Op::Cast => cast(at[0], dtype),
                Op::Where => at[if at[0].truth() { 1 } else { 2 }],
                Op::Clamp => value_of(Op::Min, own, &[value_of(Op::Max, own, &at[..2]), at[2]]),
                _ => value_of(op, own, &at),
            }
        })
        .collect();
    Dense { dtype, dims, values }
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
