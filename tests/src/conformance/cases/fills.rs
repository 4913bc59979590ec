//! Fills: every dtype, every kind of view, and values that do not fit the dtype.

use streamvm_ep::{Access, DType, Error, Layout, MemoryKind, Scalar, Shape, bf16, f16};

use super::table;
use crate::conformance::host::{HostTensor, Pool, WRITABLE, encode};
use crate::conformance::lab::{Bench, Fail, ensure, ensure_eq, ensure_matches};
use crate::conformance::reference::Value;
use crate::support::random::Random;

table! { "fill":
    writes_every_dtype [],
    writes_ends_of_ranges [],
    takes_integers_for_floats [],
    keeps_special_floats [],
    refuses_what_does_not_fit [],
    writes_the_view_alone [],
    writes_a_scalar [],
    of_nothing_writes_nothing [],
    reaches_memory_of_every_kind [],
    writes_much_memory [],
    a_refused_fill_writes_nothing [],
}

fn value_of(dtype: DType) -> (Scalar, Value) {
    match dtype {
        DType::F32 | DType::F64 | DType::F16 | DType::BF16 => (Scalar::F64(-2.5), Value::Float(-2.5)),
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => (Scalar::I64(-7), Value::Int(-7)),
        DType::U8 => (Scalar::I64(200), Value::Int(200)),
        DType::U16 | DType::U32 => (Scalar::I64(50_000), Value::Int(50_000)),
        DType::U64 => (Scalar::U64(u64::MAX - 6), Value::Int((u64::MAX - 6).into())),
        DType::Bool => (Scalar::Bool(true), Value::Int(1)),
    }
}

fn writes_every_dtype(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    for dtype in DType::ALL {
        let buffer = lab.tensor(dtype, &[7])?;
        let (scalar, value) = value_of(dtype);
        lane.fill(&buffer, scalar)?;
        ensure_eq!(lab.bytes(&mut lane, &buffer)?, encode(dtype, value).repeat(7), "{dtype} filled with {scalar}");
    }
    Ok(())
}

fn writes_ends_of_ranges(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    macro_rules! ends {
        ($($int:ident $dtype:ident),*) => {
            [$((DType::$dtype, Scalar::from($int::MIN), i128::from($int::MIN)), (DType::$dtype, Scalar::from($int::MAX), i128::from($int::MAX))),*]
        };
    }
    for (dtype, scalar, value) in ends![i8 I8, i16 I16, i32 I32, i64 I64, u8 U8, u16 U16, u32 U32, u64 U64] {
        let buffer = lab.tensor(dtype, &[3])?;
        lane.fill(&buffer, scalar)?;
        let expected = encode(dtype, Value::Int(value)).repeat(3);
        ensure_eq!(lab.bytes(&mut lane, &buffer)?, expected, "{dtype} filled with {scalar}");
    }
    let buffer = lab.tensor(DType::Bool, &[3])?;
    lane.fill(&buffer, true)?;
    lane.fill(&buffer, false)?;
    ensure_eq!(lab.bytes(&mut lane, &buffer)?, [0; 3], "bool filled with false");
    Ok(())
}

fn takes_integers_for_floats(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let single = lab.tensor(DType::F32, &[2])?;
    lane.fill(&single, 16_777_217i64)?;
    lab.expect(&mut lane, &single, &[16_777_216f32; 2], "2^24 + 1 as f32: the nearest, ties to even")?;
    let double = lab.tensor(DType::F64, &[2])?;
    lane.fill(&double, -3i64)?;
    lab.expect(&mut lane, &double, &[-3f64; 2], "-3 as f64")?;
    lane.fill(&single, 0.1f64)?;
    lab.expect(&mut lane, &single, &[0.1f32; 2], "0.1 as f32")?;
    let half = lab.tensor(DType::F16, &[2])?;
    lane.fill(&half, 2051i64)?;
    lab.expect(&mut lane, &half, &[f16::from_f32(2052.0); 2], "2051 as f16: the nearest, ties to even")?;
    // Just above the middle between two f16 values; rounding it to f32 first would give exactly the middle.
    lane.fill(&half, 1.0 + 1.0 / 2048.0 + 1e-12)?;
    lab.expect(&mut lane, &half, &[f16::from_f32(1.0 + 1.0 / 1024.0); 2], "a double as f16: rounded once")?;
    lane.fill(&half, 1e6f64)?;
    lab.expect(&mut lane, &half, &[f16::INFINITY; 2], "a million as f16")?;
    let brain = lab.tensor(DType::BF16, &[2])?;
    lane.fill(&brain, 0.1f64)?;
    lab.expect(&mut lane, &brain, &[bf16::from_f32(0.1); 2], "0.1 as bf16")
}

fn keeps_special_floats(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let buffer = lab.tensor(DType::F64, &[2])?;
    for value in [f64::INFINITY, f64::NEG_INFINITY, -0.0, f64::MIN_POSITIVE, f64::MAX] {
        lane.fill(&buffer, value)?;
        let bits = value.to_ne_bytes().repeat(2);
        ensure_eq!(lab.bytes(&mut lane, &buffer)?, bits, "bits of {value:?}");
    }
    lane.fill(&buffer, f64::NAN)?;
    ensure!(lab.read::<f64>(&mut lane, &buffer)?.iter().all(|value| value.is_nan()), "NaN was not written");
    Ok(())
}

fn refuses_what_does_not_fit(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let values = [
        Scalar::F64(1.0),
        Scalar::Bool(true),
        Scalar::I64(1),
        Scalar::I64(-1),
        Scalar::I64(256),
        Scalar::I64(i64::from(i32::MAX) + 1),
    ];
    for dtype in DType::ALL {
        let buffer = lab.tensor(dtype, &[3])?;
        for value in values {
            let expected = if value.fits(dtype) { Ok(()) } else { Err(Error::ScalarDoesNotFit { value, dtype }) };
            ensure_eq!(lane.fill(&buffer, value), expected, "{dtype} filled with {value}");
        }
    }
    Ok(lane.sync()?)
}

fn writes_the_view_alone(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let mut rng = Random::new(3, 0);
    for dtype in DType::ALL {
        for view in WRITABLE {
            let host = HostTensor::new(&mut rng, dtype, &[3, 2, 4], view, Pool::Tame);
            let buffer = lab.upload(&mut lane, &host)?;
            let (scalar, value) = value_of(dtype);
            lane.fill(&buffer, scalar)?;
            let mut filled = host.dense();
            filled.values.fill(value);
            let expected = host.overwritten(&filled).bytes();
            ensure_eq!(lab.bytes(&mut lane, &buffer)?, expected, "{view:?} view of {dtype}");
        }
    }
    Ok(())
}

fn writes_a_scalar(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let buffer = lab.tensor(DType::F32, &[])?;
    lane.fill(&buffer, 4.0f32)?;
    lab.expect(&mut lane, &buffer, &[4f32], "a tensor without axes")
}

fn of_nothing_writes_nothing(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let buffer = lab.vector(&mut lane, &[1u8, 2, 3])?;
    for dims in [&[0][..], &[0, 3], &[3, 0], &[1, 0, 1]] {
        lane.fill(&buffer.with(Layout::contiguous(Shape::new(dims)?)), 9u8)?;
    }
    lane.fill(&lab.tensor(DType::F64, &[0])?, 1.0f64)?;
    lab.expect(&mut lane, &buffer, &[1u8, 2, 3], "memory under views without elements")
}

fn reaches_memory_of_every_kind(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    for kind in MemoryKind::ALL {
        let buffer = lab.tensor_in(kind, DType::I32, &[5])?;
        lane.fill(&buffer, 5i32)?;
        lab.expect(&mut lane, &buffer, &[5i32; 5], &format!("{kind} memory"))?;
    }
    Ok(())
}

fn writes_much_memory(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let elements = (1 << 18) + 3;
    let buffer = lab.tensor(DType::I32, &[elements])?;
    lane.fill(&buffer, 77i32)?;
    let found = lab.read::<i32>(&mut lane, &buffer)?;
    ensure!(found.iter().all(|&value| value == 77), "an element of a mebibyte was not written");
    Ok(())
}

fn a_refused_fill_writes_nothing(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let buffer = lab.vector(&mut lane, &[1i32, 2, 3])?;
    ensure_matches!(lane.fill(&buffer, 0.5f32), Err(Error::ScalarDoesNotFit { .. }), "0.5 for i32");
    let refused = lane.fill_as(&buffer, Access::Read, 9i32);
    ensure_eq!(refused, Err(Error::NotWritable), "a fill of an operand to read");
    lab.expect(&mut lane, &buffer, &[1i32, 2, 3], "the target of refused fills")
}
