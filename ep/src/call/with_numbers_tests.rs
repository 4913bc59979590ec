use super::*;
use crate::call::kernel::Kernel;
use crate::names::device_kind::DeviceKind;
use crate::tensor::op::Op;
use crate::tensor::shape::Shape;

/// A kernel of `i32` that writes to the output's elements what it gets as inputs, one digit each.
fn digits(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    assert_eq!(call.params, &Params::default());
    let (output, inputs) = call.operands.split_last_mut().unwrap();
    assert_eq!(inputs.len(), call.inputs);
    for (place, element) in output.slice_mut::<i32>().unwrap().iter_mut().enumerate() {
        *element = inputs.iter().fold(0, |number, input| {
            let elements = input.slice::<i32>().unwrap();
            10 * number + elements[place % elements.len()]
        });
    }
    Ok(())
}

fn run(op: Op, inputs: &mut [i32], params: &Params) -> Result<[i32; 2], KernelError> {
    let kernel = Kernel { op, device: DeviceKind::CPU, dtype: DType::I32, run: digits };
    let mut output = [0; 2];
    let row = Layout::contiguous(Shape::new(&[2]).unwrap());
    let mut operands: Vec<Operand<'_>> = inputs
        .iter_mut()
        // SAFETY: one element each, borrowed until this function returns.
        .map(|input| unsafe { Operand::new((&raw mut *input).cast(), DType::I32, Layout::SCALAR, Access::Read) })
        .collect();
    // SAFETY: as above, two elements.
    operands.push(unsafe { Operand::new(output.as_mut_ptr().cast(), DType::I32, row, Access::Write) });
    let inputs = operands.len() - 1;
    KernelCall::new(kernel, &mut operands, inputs, params).run(None)?;
    drop(operands);
    Ok(output)
}

#[test]
fn kernels_get_numbers_as_operands_of_one_element() {
    let with = |numbers: &[(usize, i64)]| {
        numbers.iter().fold(Params::default(), |params, &(input, value)| params.with_number(input, value))
    };
    assert_eq!(run(Op::Add, &mut [1, 2], &with(&[])), Ok([12; 2]));
    assert_eq!(run(Op::Add, &mut [1], &with(&[(1, 5)])), Ok([15; 2]));
    assert_eq!(run(Op::Add, &mut [1], &with(&[(0, 5)])), Ok([51; 2]));
    assert_eq!(run(Op::Clamp, &mut [1], &with(&[(1, 5), (2, 7)])), Ok([157; 2]));
    assert_eq!(run(Op::Clamp, &mut [1], &with(&[(2, 7), (0, 5)])), Ok([517; 2]));
    assert_eq!(run(Op::Clamp, &mut [1, 2], &with(&[(1, 5)])), Ok([152; 2]));
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    let number = |value: Scalar| Params::default().with_number(1, value);
    let half = Scalar::F64(0.5);
    let value = OpError::Value { op: Op::Add, value: half, dtype: DType::I32 };
    assert_eq!(run(Op::Add, &mut [1], &number(half)), Err(value.into()));
    let operands = KernelError::Operands { op: Op::Add, inputs: 3, outputs: 1 };
    assert_eq!(run(Op::Add, &mut [1, 2], &number(Scalar::I64(1))), Err(operands));
    assert_eq!(run(Op::Neg, &mut [1], &number(Scalar::I64(1))), Err(OpError::Numbers { op: Op::Neg }.into()));
}

#[test]
fn an_element_has_the_bytes_that_a_fill_writes() {
    let number = NumberElement::new(Scalar::F64(-0.5), DType::F32).unwrap();
    // SAFETY: an element of `f32`, which is alive.
    assert_eq!(unsafe { number.address().cast::<f32>().read() }, -0.5);
    let number = NumberElement::new(Scalar::I64(-2), DType::I16).unwrap();
    // SAFETY: as above, of `i16`.
    assert_eq!(unsafe { number.address().cast::<i16>().read() }, -2);
    assert!(NumberElement::new(Scalar::I64(-2), DType::U16).is_none());
}
