//! Drawn elementwise expressions: their steps are fused, and the results are compared with those of eager calls, bit by bit.

use streamvm::program::{CompileOptions, Compiled};
use streamvm::{
    DType, DeviceId, Error, InstructionList, InstructionsBuilder, Op, Params, Scalar, Tensor, Vm, bf16, f16,
};

use crate::{Random, registered_ops};

const ROWS: usize = 5;
const COLUMNS: usize = 7;

/// Shapes of the given tensors: whole, transposed, and three that broadcast.
const SHAPES: [&[usize]; 6] = [&[ROWS, COLUMNS], &[ROWS, COLUMNS], &[COLUMNS, ROWS], &[COLUMNS], &[ROWS, 1], &[]];

/// Writes down `steps` drawn elementwise ops over tensors of `dtype`, and returns results to compare.
fn expression(
    draw: &mut Random,
    dtype: DType,
    given: &[Tensor],
    steps: usize,
    submit: &dyn Fn(InstructionList) -> Result<(), Error>,
) -> Result<Vec<Tensor>, Error> {
    let fits = |op: &Op| op.is_elementwise() && op.supports(dtype) && !op.refuses_elements(dtype);
    let ops: Vec<Op> = Op::ALL.into_iter().chain(registered_ops()).filter(fits).collect();
    let mut builder = InstructionsBuilder::new();
    // Draws numbers, apart from what else is drawn.
    let mut apart = Random::new(draw.clone().next(), 1);
    let mut numbers = given.to_vec();
    numbers[2] = given[2].permute(&[1, 0])?;
    let mut bools = vec![builder.op(Op::Le, &[&numbers[0], &numbers[1]], Params::default())?];
    for _ in 0..steps {
        let op = ops[draw.below(ops.len())];
        let number = |draw: &mut Random| {
            let back = draw.below(numbers.len().min(4));
            let place = if draw.below(2) == 0 { numbers.len() - 1 - back } else { draw.below(numbers.len()) };
            numbers[place].clone()
        };
        let (x, y, z) = (number(draw), number(draw), number(draw));
        let condition = bools[draw.below(bools.len())].clone();
        match op {
            Op::Cast => {
                let other = DType::ALL[draw.below(DType::ALL.len())];
                let cast = |to| Params { to: Some(to), ..Params::default() };
                let away = builder.op(op, &[&x], cast(other))?;
                numbers.push(builder.op(op, &[&away], cast(dtype))?);
            }
            _ => {
                let params = with_numbers(&mut apart, op, dtype);
                let inputs = if op == Op::Where { [&condition, &x, &y] } else { [&x, &y, &z] };
                let is_tensor = |input: &usize| !params.numbers().contains(*input);
                let tensors: Vec<&Tensor> = (0..op.arity()).filter(is_tensor).map(|input| inputs[input]).collect();
                let results = if op.gives_bool() { &mut bools } else { &mut numbers };
                results.push(builder.op(op, &tensors, params)?);
            }
        }
    }
    submit(builder.finish())?;
    let bool = bools[draw.below(bools.len())].clone();
    Ok(vec![numbers[numbers.len() - 1].clone(), numbers[draw.below(numbers.len())].clone(), bool])
}

/// Parameters in which drawn numbers are inputs of some ops that take them.
fn with_numbers(draw: &mut Random, op: Op, dtype: DType) -> Params {
    let mut params = Params::default();
    if draw.below(3) > 0 {
        return params;
    }
    for _ in 0..1 + draw.below(2) {
        let value = match dtype {
            DType::Bool => Scalar::Bool(draw.below(2) == 0),
            dtype if dtype.is_float() => Scalar::F64(*draw.pick(&[0.5, 3.0, -0.1, -0.0, f64::INFINITY, f64::NAN])),
            _ => Scalar::I64(draw.below(100) as i64),
        };
        let with = params.with_number(draw.below(3), value);
        if with.numbers().fit(op) {
            params = with;
        }
    }
    params
}

/// Stands for the bits of each NaN.
const NAN: u64 = f64::NAN.to_bits();

/// The bits of the elements; all NaN are alike, because a compiler may change their signs.
///
/// # Panics
/// If the elements cannot be read.
pub fn bits(tensor: &Tensor) -> Vec<u64> {
    fn of<T: streamvm::Element>(tensor: &Tensor, bits: fn(T) -> u64) -> Vec<u64> {
        tensor.to_vec::<T>().expect("it runs").into_iter().map(bits).collect()
    }
    match tensor.dtype() {
        DType::F32 => of(tensor, |it: f32| if it.is_nan() { NAN } else { it.to_bits().into() }),
        DType::F64 => of(tensor, |it: f64| if it.is_nan() { NAN } else { it.to_bits() }),
        DType::F16 => of(tensor, |it: f16| if it.is_nan() { NAN } else { it.to_bits().into() }),
        DType::BF16 => of(tensor, |it: bf16| if it.is_nan() { NAN } else { it.to_bits().into() }),
        DType::I8 => of(tensor, |it: i8| it as u64),
        DType::I16 => of(tensor, |it: i16| it as u64),
        DType::I32 => of(tensor, |it: i32| it as u64),
        DType::I64 => of(tensor, |it: i64| it as u64),
        DType::U8 => of(tensor, |it: u8| it as u64),
        DType::U16 => of(tensor, |it: u16| it as u64),
        DType::U32 => of(tensor, |it: u32| it as u64),
        DType::U64 => of(tensor, |it: u64| it),
        DType::Bool => of(tensor, |it: bool| it.into()),
    }
}

fn given(vm: &Vm, device: DeviceId, draw: &mut Random, dtype: DType) -> Vec<Tensor> {
    let element = |draw: &mut Random| match draw.below(30) {
        0 => 0.0,
        1 => f64::INFINITY,
        _ => draw.below(6_000) as f64 / 1_000.0 - 3.0,
    };
    let tensor = |shape: &&[usize]| {
        let elements: Vec<f64> = (0..shape.iter().product()).map(|_| element(draw)).collect();
        let tensor = vm.from_slice(&elements, shape).expect("a tensor").to(device).expect("a copy");
        tensor.cast(dtype).expect("every dtype can be cast to")
    };
    SHAPES.iter().map(tensor).collect()
}

/// Compares a drawn expression over tensors of `dtype` on a device: its calls run eagerly, and as a compiled program. Returns the compiled program.
///
/// # Panics
/// If a result has other bits, or the engine refuses what it must take.
pub fn compare_expression(vm: &Vm, device: DeviceId, dtype: DType, seed: u64) -> Compiled {
    let mut draw = Random::new(seed, dtype as u64);
    let steps = 2 + draw.below(20);
    let tensors = given(vm, device, &mut draw, dtype);
    let program_seed = draw.next();
    let eager = |list| vm.submit(list).map(drop);
    let results = expression(&mut Random::new(program_seed, 0), dtype, &tensors, steps, &eager);
    let expected: Vec<Vec<u64>> = results.expect("eager calls are accepted").iter().map(bits).collect();
    let names: Vec<String> = (0..SHAPES.len()).map(|place| format!("x{place}")).collect();
    let program = vm
        .record("drawn", |r| {
            let feed = |(name, shape): (&String, &&[usize])| r.feed(name.as_str(), device, dtype, shape);
            let feeds: Result<Vec<Tensor>, Error> = names.iter().zip(&SHAPES).map(feed).collect();
            let results = expression(&mut Random::new(program_seed, 0), dtype, &feeds?, steps, &|list| r.submit(list))?;
            results.iter().enumerate().try_for_each(|(place, tensor)| r.fetch(format!("f{place}"), tensor))
        })
        .expect("it can be recorded");
    let block = 1 + draw.below(ROWS * COLUMNS - 1);
    let options = CompileOptions { block, in_place: draw.below(2) == 0, ..CompileOptions::default() };
    let executable = vm.compile(&program, &[], &options).expect("it compiles");
    let compiled = executable.compiled().clone();
    let feeds: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&tensors).collect();
    let run = executable.run(&feeds).expect("it is submitted");
    let found: Vec<Vec<u64>> = run.iter().map(|(_, tensor)| bits(tensor)).collect();
    assert_eq!(found, expected, "{dtype}, seed {seed}, {options:?}\n{compiled}");
    compiled
}
