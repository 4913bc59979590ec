//! Kernels over chosen values: results that are known, and elements that they refuse.

use streamvm_ep::{Axes, DType, Element, Error, KernelError, LateCause, Layout, Op, Params, Shape, bf16, f16};

use super::table;
use crate::conformance::lab::{Bench, Fail, Lab, ensure, ensure_eq};

table! {
    "value":
    random_numbers_are_the_published_ones [],
    a_sequence_is_rounded_once [],
    a_running_sum_of_negative_zeros_is_one [],
    division_by_zero_is_told [],
    a_negative_exponent_is_told [],
    an_index_out_of_range_is_told [],
    an_index_past_an_axis_is_told [],
    integers_wrap [],
    sums_on_the_way_may_be_past_the_range [],
}

fn random_numbers_are_the_published_ones(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let zero = Params::random(0, 0);
    let drawn = lab.vector(&mut lane, &[-1f32; 6])?;
    lane.op(Op::Uniform, &[], &drawn, &zero)?;
    // The words of counter 0 and key 0 of Philox; a separate program computed those of counter 1.
    let words = [0x6627_e8d5u32, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8];
    let found = lab.read::<f32>(&mut lane, &drawn)?;
    let unit = |word: u32| (word >> 8) as f32 / (1 << 24) as f32;
    ensure_eq!(found[..4], words.map(unit), "the first block of seed 0");
    let rest = lab.vector(&mut lane, &[-1f32; 2])?;
    lane.op(Op::Uniform, &[], &rest, &Params::random(0, 1))?;
    lab.expect(&mut lane, &rest, &found[4..], "the block behind it")?;
    // The same numbers through a permuted view, and for every dtype.
    let turned = Layout::contiguous(Shape::new(&[2, 3])?).permute(&[1, 0])?;
    let there = lab.vector(&mut lane, &[-1f32; 6])?;
    lane.op(Op::Uniform, &[], &there.with(turned), &zero)?;
    let expected = [0, 2, 4, 1, 3, 5].map(|index| found[index]);
    lab.expect(&mut lane, &there, &expected, "the same numbers through a permuted view")?;
    let normal = lab.vector(&mut lane, &[-9f64; 1000])?;
    lane.op(Op::Normal, &[], &normal, &zero)?;
    let normal = lab.read::<f64>(&mut lane, &normal)?;
    let mean = normal.iter().sum::<f64>() / 1000.0;
    let variance = normal.iter().map(|x| x * x).sum::<f64>() / 1000.0;
    ensure!(mean.abs() < 0.2 && (variance - 1.0).abs() < 0.3, "mean {mean} and variance {variance}");
    for dtype in lab.kernels.dtypes(Op::Normal, lab.kind()) {
        for op in [Op::Uniform, Op::Normal] {
            lane.op(op, &[], &lab.tensor(dtype, &[5, 3])?, &zero)?;
        }
    }
    ensure_eq!(lab.device.take_failures(), [], "failures of calls that are right");
    Ok(())
}

fn division_by_zero_is_told(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let x = lab.vector(&mut lane, &[7i32, 8, 9])?;
    let zero = lab.vector(&mut lane, &[1i32, 0, 0])?;
    let output = lab.tensor(DType::I32, &[3])?;
    let cause = lane.failure(|lane| lane.op(Op::Div, &[&x, &zero], &output, &Params::default()))?;
    let told = KernelError::DivisionByZero { op: Op::Div, index: 1 };
    ensure_eq!(cause, LateCause::Device(Error::Kernel(told)), "a division of i32 by zero");
    let floats = lab.vector(&mut lane, &[1f32, -1.0])?;
    let zeros = lab.vector(&mut lane, &[0f32, 0.0])?;
    lane.op(Op::Div, &[&floats, &zeros], &floats, &Params::default())?;
    lab.expect(&mut lane, &floats, &[f32::INFINITY, f32::NEG_INFINITY], "a division of f32 by zero")
}

fn a_negative_exponent_is_told(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let x = lab.vector(&mut lane, &[2i64, 2])?;
    let y = lab.vector(&mut lane, &[3i64, -3])?;
    let output = lab.tensor(DType::I64, &[2])?;
    let cause = lane.failure(|lane| lane.op(Op::Pow, &[&x, &y], &output, &Params::default()))?;
    let told = KernelError::NegativeExponent { op: Op::Pow, index: 1, exponent: -3 };
    ensure_eq!(cause, LateCause::Device(Error::Kernel(told)), "2 to the power -3");
    Ok(())
}

fn an_index_out_of_range_is_told(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let table = lab.vector(&mut lane, &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0])?.with(Layout::contiguous(Shape::new(&[3, 2])?));
    let output = lab.tensor(DType::F32, &[2, 2])?;
    for (indices, index, row) in [([2i64, 3], 1, 3), ([-1, 3], 0, -1)] {
        let indices = lab.vector(&mut lane, &indices)?;
        let cause = lane.failure(|lane| lane.op(Op::IndexSelect, &[&table, &indices], &output, &Params::default()))?;
        let told = KernelError::RowOutOfRange { op: Op::IndexSelect, index, row };
        ensure_eq!(cause, LateCause::Device(Error::Kernel(told)), "row {row} of a table of 3");
    }
    let indices = lab.vector(&mut lane, &[2i64, 0])?;
    lane.op(Op::IndexSelect, &[&table, &indices], &output, &Params::default())?;
    lab.expect(&mut lane, &output.with(Layout::contiguous(Shape::new(&[4])?)), &[5f32, 6.0, 1.0, 2.0], "rows 2 and 0")
}

fn an_index_past_an_axis_is_told(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let shape = |rows, columns| Ok::<_, Fail>(Layout::contiguous(Shape::new(&[rows, columns])?));
    let x = lab.vector(&mut lane, &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0])?.with(shape(3, 2)?);
    let source = lab.vector(&mut lane, &[7f32, 8.0, 9.0, 10.0])?.with(shape(2, 2)?);
    let (taken, put) = (lab.tensor(DType::F32, &[2, 2])?, lab.tensor(DType::F32, &[3, 2])?);
    let along = Params::over(Axes::new(&[0])?);
    // The first in row-major order, which is not the first of a column.
    for (indices, index, row) in [([2i64, 0, 3, -1], 2, 3), ([0, 5, 3, 0], 1, 5)] {
        let indices = lab.vector(&mut lane, &indices)?.with(shape(2, 2)?);
        let calls: [(Op, Vec<_>, _); 3] = [
            (Op::TakeAlongAxis, vec![&x, &indices], &taken),
            (Op::Scatter, vec![&x, &indices, &source], &put),
            (Op::ScatterAdd, vec![&x, &indices, &source], &put),
        ];
        for (op, inputs, output) in calls {
            let cause = lane.failure(|lane| lane.op(op, &inputs, output, &along))?;
            let told = KernelError::RowOutOfRange { op, index, row };
            ensure_eq!(cause, LateCause::Device(Error::Kernel(told)), "{op}, place {row} of an axis of 3");
        }
    }
    // Two elements go to one place: of a scatter the last stays, and both are added.
    let indices = lab.vector(&mut lane, &[1i64, 2, 1, 0])?.with(shape(2, 2)?);
    lane.op(Op::Scatter, &[&x, &indices, &source], &put, &along)?;
    let flat = put.with(Layout::contiguous(Shape::new(&[6])?));
    lab.expect(&mut lane, &flat, &[1f32, 10.0, 9.0, 4.0, 5.0, 8.0], "a scatter")?;
    lane.op(Op::ScatterAdd, &[&x, &indices, &source], &put, &along)?;
    lab.expect(&mut lane, &flat, &[1f32, 12.0, 19.0, 4.0, 5.0, 14.0], "a scatter_add")
}

fn a_sequence_is_rounded_once(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let x = lab.tensor(DType::F32, &[5])?;
    lane.op(Op::Arange, &[], &x, &Params::floats(-1.0, 0.1))?;
    let expected: Vec<f32> = (0..5).map(|index| (-1.0 + f64::from(index) * 0.1) as f32).collect();
    lab.expect(&mut lane, &x, &expected, "floats")?;
    let half = lab.tensor(DType::F16, &[3])?;
    // 2049 and 2051 are between two numbers of f16 each, and go to the even ones.
    lane.op(Op::Arange, &[], &half, &Params::floats(2049.0, 1.0))?;
    lab.expect(&mut lane, &half, &[2048.0, 2050.0, 2052.0].map(f16::from_f64), "numbers that f16 has not")?;
    let bytes = lab.tensor(DType::U8, &[4])?;
    lane.op(Op::Arange, &[], &bytes, &Params::integers(254, 1))?;
    lab.expect(&mut lane, &bytes, &[254u8, 255, 0, 1], "bytes that wrap")?;
    let turned = lab.tensor(DType::I64, &[2, 3])?;
    let columns = turned.with(Layout::contiguous(Shape::new(&[3, 2])?).permute(&[1, 0])?);
    lane.op(Op::Arange, &[], &columns, &Params::integers(10, -2))?;
    let flat = turned.with(Layout::contiguous(Shape::new(&[6])?));
    lab.expect(&mut lane, &flat, &[10i64, 4, 8, 2, 6, 0], "a view whose rows are columns")
}

fn a_running_sum_of_negative_zeros_is_one(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let x = lab.vector(&mut lane, &[-0f32, -0.0, 0.0])?;
    let sums = lab.tensor(DType::F32, &[3])?;
    lane.op(Op::CumSum, &[&x], &sums, &Params::over(Axes::new(&[0])?))?;
    let minus = f32::NEG_INFINITY;
    lane.op(Op::Reciprocal, &[&sums], &sums, &Params::default())?;
    lab.expect(&mut lane, &sums, &[minus, minus, f32::INFINITY], "the reciprocals of -0, -0 and 0")
}

fn integers_wrap(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let none = Params::default();
    let x = lab.vector(&mut lane, &[i32::MAX, i32::MIN])?;
    let one = lab.vector(&mut lane, &[1i32, -1])?;
    let output = lab.tensor(DType::I32, &[2])?;
    lane.op(Op::Add, &[&x, &one], &output, &none)?;
    lab.expect(&mut lane, &output, &[i32::MIN, i32::MAX], "MAX + 1 and MIN - 1")?;
    lane.op(Op::Div, &[&x, &one], &output, &none)?;
    lab.expect(&mut lane, &output, &[i32::MAX, i32::MIN], "MAX / 1 and MIN / -1")?;
    lane.op(Op::Abs, &[&x], &output, &none)?;
    lab.expect(&mut lane, &output, &[i32::MAX, i32::MIN], "abs of the ends")?;
    let small = lab.vector(&mut lane, &[200u8, 3])?;
    lane.op(Op::Mul, &[&small, &small], &small, &none)?;
    lab.expect(&mut lane, &small, &[(200 * 200 % 256) as u8, 9], "200 * 200 as u8")
}

fn sums_on_the_way_may_be_past_the_range(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    sums_past_the_range(&lab, f32::MAX, -f32::MAX, 0.0)?;
    sums_past_the_range(&lab, f64::MAX, -f64::MAX, 0.0)?;
    sums_past_the_range(&lab, f16::MAX, f16::MIN, f16::ZERO)?;
    sums_past_the_range(&lab, bf16::MAX, bf16::MIN, bf16::ZERO)?;
    ensure_eq!(lab.device.take_failures(), [], "failures of calls that are right");
    Ok(())
}

/// Sums and means of the largest values of a dtype whose result is within its range: over a whole vector, and over the outer axis of a
/// matrix.
fn sums_past_the_range<T: Element + PartialEq + std::fmt::Debug>(
    lab: &Lab,
    most: T,
    least: T,
    zero: T,
) -> Result<(), Fail> {
    let mut lane = lab.lane()?;
    let dtype = T::DTYPE;
    let outer = Params::over(Axes::new(&[0])?);
    for (op, terms) in [(Op::Mean, [most; 4]), (Op::Sum, [most, most, least, zero])] {
        let row = lab.vector(&mut lane, &terms)?;
        let one = lab.vector(&mut lane, &[zero])?;
        lane.op(op, &[&row], &one.with(Layout::contiguous(Shape::SCALAR)), &Params::default())?;
        lab.expect(&mut lane, &one, &[most], &format!("{op} of {dtype}: the result is in the range"))?;
        let columns = lab.vector(&mut lane, &terms.map(|term| [term; 3]).concat())?;
        let three = lab.vector(&mut lane, &[zero; 3])?;
        let matrix = columns.with(Layout::contiguous(Shape::new(&[4, 3])?));
        lane.op(op, &[&matrix], &three, &outer)?;
        lab.expect(&mut lane, &three, &[most; 3], &format!("{op} of {dtype} over the outer axis"))?;
    }
    Ok(())
}
