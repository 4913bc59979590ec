//! Numbers in place of tensors: one instruction, with the bits of a call over a tensor that is filled with the number.

use streamvm::ep::OpError;
use streamvm::{
    BuildError, DType, DeviceId, Error, InstructionList, InstructionsBuilder, Op, Params, Place, Scalar, Tensor, Vm,
};
use streamvm_tests::compiled::bits;
use streamvm_tests::{CPU, cases, on_device};

/// Numbers to compute with: some fit the dtype exactly, some are rounded, some are no finite ones.
fn values(dtype: DType) -> Vec<Scalar> {
    match dtype {
        DType::Bool => vec![Scalar::Bool(false), Scalar::Bool(true)],
        dtype if dtype.is_float() => {
            [0.5, -0.1, 0.0, -0.0, 3.0, 1e30, 1e-42, f64::NAN, f64::INFINITY, f64::NEG_INFINITY]
                .into_iter()
                .map(Scalar::F64)
                .chain([Scalar::I64((1 << 53) + 1), Scalar::I64(-7)])
                .collect()
        }
        _ => {
            let values = [0, 1, 2, 63, 127, -1, -3, 255, i64::MAX, i64::MIN].map(Scalar::I64);
            values.into_iter().chain([Scalar::U64(u64::MAX)]).filter(|value| value.fits(dtype)).collect()
        }
    }
}

/// Tensors of `dtype`: without gaps, transposed, with gaps, of one element for all, of rank 0, and without elements.
fn tensors(vm: &Vm, device: DeviceId, dtype: DType) -> Result<Vec<Tensor>, Error> {
    let elements: Vec<f64> = (0..24).map(|place| f64::from(place % 11) - 3.0).collect();
    let whole = vm.from_slice(&elements, &[4, 6])?.to(device)?.cast(dtype)?;
    Ok(vec![
        whole.clone(),
        whole.permute(&[1, 0])?,
        whole.slice(1, 1..4)?,
        whole.slice(0, 1..2)?.broadcast_to(&[3, 6])?,
        whole.slice(0, 2..3)?.slice(1, 3..4)?.squeeze(0)?.squeeze(0)?,
        whole.slice(0, 2..2)?,
    ])
}

/// The bits of a result; nothing if it failed.
fn outcome(result: Result<Tensor, Error>) -> Option<Vec<u64>> {
    let result = result.expect("it fits");
    result.wait().ok().map(|()| bits(&result))
}

/// Runs `op` over `x`, where it is no number, and a condition for a `where`.
fn call(vm: &Vm, x: &Tensor, op: Op, numbers: &[(usize, Scalar)], filled: bool) -> Result<Tensor, Error> {
    let device = x.place().device().expect("a device");
    let mut builder = InstructionsBuilder::new();
    let mut params = Params::default();
    let mut inputs = Vec::new();
    for input in 0..op.arity() {
        let number = numbers.iter().find(|(place, _)| *place == input).map(|(_, value)| *value);
        match number {
            Some(value) if filled => inputs.push(builder.full(device, x.dtype(), &[], value)?),
            Some(value) => params = params.with_number(input, value),
            None if op == Op::Where && input == 0 => inputs.push(builder.eq(x, x)?),
            None => inputs.push(x.clone()),
        }
    }
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    let result = builder.op(op, &inputs, params)?;
    vm.submit(builder.finish())?;
    Ok(result)
}

#[test]
fn numbers_have_the_bits_of_filled_tensors() -> Result<(), Error> {
    let vm = Vm::builder().sim_devices(1).build()?;
    // Of every op and dtype all numbers; of simulated devices, which run the kernels of CPUs, some.
    for (device, every) in [(CPU, 1), (DeviceId::sim(0), 1 + 60 / cases(20) as usize)] {
        let mut drawn = 0;
        for dtype in DType::ALL {
            let tensors = tensors(&vm, device, dtype)?;
            for op in Op::ALL.into_iter().filter(|op| op.supports(dtype)) {
                for value in values(dtype) {
                    for places in [&[0][..], &[1], &[2], &[0, 1], &[1, 2], &[0, 2]] {
                        let numbers: Vec<(usize, Scalar)> = places.iter().map(|&place| (place, value)).collect();
                        let params = numbers
                            .iter()
                            .fold(Params::default(), |params, (at, value)| params.with_number(*at, *value));
                        drawn += usize::from(params.numbers().fit(op));
                        if !params.numbers().fit(op) || !drawn.is_multiple_of(every) {
                            continue;
                        }
                        for x in &tensors {
                            let [with, over] = [false, true].map(|filled| outcome(call(&vm, x, op, &numbers, filled)));
                            assert_eq!(
                                with,
                                over,
                                "{op} of {dtype} with {numbers:?} over {:?} on {device}",
                                x.layout()
                            );
                        }
                    }
                }
            }
        }
        assert!(drawn / every > 50, "{drawn}");
    }
    Ok(())
}

/// The list that a recording of these calls has.
fn listed(calls: impl FnOnce(&mut InstructionsBuilder, &Tensor) -> Result<(), Error>) -> InstructionList {
    let mut builder = InstructionsBuilder::new();
    let x = Tensor::unbound(Place::Device(CPU), streamvm::ep::MemoryKind::Device, DType::F32, streamvm::Shape::SCALAR);
    calls(&mut builder, &x).expect("they fit");
    builder.finish()
}

#[test]
fn a_call_with_numbers_is_one_instruction() {
    let list = listed(|b, x| {
        let halved = b.mul(x, 0.5)?;
        let rest = b.sub(1, &halved)?;
        let bounded = b.clamp(&rest, 0.0, f64::INFINITY)?;
        let is_small = b.lt(&bounded, 0.25f32)?;
        let chosen = b.where_(&is_small, &bounded, -0.0)?;
        let power = b.pow(&chosen, 2)?;
        b.masked_fill(&power, &is_small, f64::NAN)?;
        b.eq(&is_small, true)?;
        Ok(())
    });
    let text = list.to_string();
    let calls: Vec<String> =
        text.lines().skip(1).map(|line| line.split_whitespace().skip(3).collect::<Vec<_>>().join(" ")).collect();
    let expected = [
        "mul t0 0.5 -> t1 f32[]",
        "sub 1 t1 -> t2 f32[]",
        "clamp t2 0.0 inf -> t3 f32[]",
        "lt t3 0.25 -> t4 bool[]",
        "where t4 t3 -0.0 -> t5 f32[]",
        "pow t5 2 -> t6 f32[]",
        "where t4 NaN t6 -> t7 f32[]",
        "eq t4 true -> t8 bool[]",
    ];
    assert_eq!(calls, expected, "{text}");
    let parsed: InstructionList = text.parse().expect("it reads back");
    assert_eq!(parsed.to_string(), text);
}

#[test]
fn eager_calls_with_numbers_submit_one_instruction_each() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    let x = on_device(&vm, &[1.0, -2.0, 4.0]);
    let submitted = || vm.stats().streams.iter().map(|stream| stream.instructions).sum::<u64>();
    let before = submitted();
    let results = [
        (&x * 0.5)?,
        (2.0 - &x)?,
        x.pow(2)?,
        x.clamp(-1.0, &x)?,
        x.maximum(0.5)?,
        x.lt(0.0)?.where_(0.0, &x)?,
        x.masked_fill(&x.gt(3.0)?, 9.0)?,
    ];
    // Two of them compare first.
    assert_eq!(submitted() - before, 9);
    let expected: [[f32; 3]; 7] = [
        [0.5, -1.0, 2.0],
        [1.0, 4.0, -2.0],
        [1.0, 4.0, 16.0],
        [1.0, -2.0, 4.0],
        [1.0, 0.5, 4.0],
        [1.0, 0.0, 4.0],
        [1.0, -2.0, 9.0],
    ];
    for (result, expected) in results.iter().zip(expected) {
        assert_eq!(result.to_vec::<f32>()?, expected);
    }
    Ok(())
}

#[test]
fn numbers_that_no_tensor_or_op_takes_are_refused() {
    let vm = Vm::builder().build().expect("an engine");
    let x = on_device(&vm, &[1.0, 2.0]);
    let bools = x.lt(1.5).expect("a comparison");
    let refused = |result: Result<Tensor, Error>| result.expect_err("it is refused");
    assert!(matches!(refused(x.mul(true)), Error::Build { error: BuildError::Value { .. }, .. }));
    assert!(matches!(refused(bools.eq(1)), Error::Build { error: BuildError::Value { .. }, .. }));
    let number = Params::default().with_number(0, 1.0);
    let no_numbers =
        |error: Error| matches!(error, Error::Build { error: BuildError::Op(OpError::Numbers { .. }), .. });
    assert!(no_numbers(refused(x.op(Op::Neg, &[], number))));
    assert!(no_numbers(refused(x.op(Op::MatMul, &[], number))));
    assert!(no_numbers(refused(bools.where_(1.0, 0.0))));
    assert!(matches!(
        refused(x.op(Op::Add, &[&x], number)),
        Error::Build { error: BuildError::Op(OpError::Arity { .. }), .. }
    ));
    for (text, expected) in [
        ("%0 call compute@cpu:0:0 neg 1.0 -> t1 f32[2]", "neg takes no such numbers"),
        ("%0 call compute@cpu:0:0 mul 1.0 2.0 -> t1 f32[2]", "mul takes no such numbers"),
        ("%0 call compute@cpu:0:0 mul t0 0.5 -> t1 f32[3]", "f32[2]"),
        ("%0 call compute@cpu:0:0 mul t0 true -> t1 f32[2]", "the value true does not fit f32"),
        ("%0 copy compute@cpu:0:0 0.5 -> t1 f32[2]", "a tensor named before"),
    ] {
        let error = InstructionList::parse(&format!("t0 = tensor cpu:0 f32[2]\n{text}")).expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}
