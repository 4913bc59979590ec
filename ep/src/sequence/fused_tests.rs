use super::*;
use crate::call::kernel::Kernel;
use crate::names::device_kind::DeviceKind;
use crate::sequence::step::SequenceMemory;
use crate::tensor::layout::Layout;
use crate::tensor::op::Op;
use crate::tensor::params::Params;
use crate::tensor::scalar::Scalar;
use crate::tensor::shape::Shape;

fn view(
    buffer: usize,
    dtype: DType,
    offset: usize,
    dims: &[usize],
    strides: &[usize],
    access: Access,
) -> SequenceOperand {
    let layout = Layout::with_strides(Shape::new(dims).unwrap(), strides, 0).unwrap();
    SequenceOperand { memory: SequenceMemory::Buffer { index: buffer, offset }, dtype, layout, access }
}

fn vector(buffer: usize, access: Access) -> SequenceOperand {
    view(buffer, DType::F32, 0, &[4], &[1], access)
}

fn call(op: Op, dtype: DType, params: Params, operands: Vec<SequenceOperand>) -> SequenceStep {
    let kernel = Kernel::without_code(op, DeviceKind::CUDA, dtype);
    SequenceStep { work: SequenceWork::Kernel(kernel, params), operands }
}

/// `b = x + y`, then `c = b * x`; buffers 0 to 3.
fn two_steps() -> Vec<SequenceStep> {
    use Access::{Read, Write};
    let call = |op, operands| call(op, DType::F32, Params::default(), operands);
    vec![
        call(Op::Add, vec![vector(0, Read), vector(1, Read), vector(2, Write)]),
        call(Op::Mul, vec![vector(2, Read), vector(0, Read), vector(3, Write)]),
    ]
}

fn described(steps: &[SequenceStep], unstored: &[usize]) -> Result<(FusedGroup, Vec<SequenceOperand>), SequenceError> {
    describe(5, &steps.iter().collect::<Vec<_>>(), |step| unstored.contains(&step))
}

fn refused(steps: &[SequenceStep], unstored: &[usize]) -> (usize, String) {
    match described(steps, unstored) {
        Err(SequenceError::Group { step, what }) => (step, what),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_not_stored_is_no_view() {
    use FusedInput::{Step, View};
    let (group, operands) = described(&two_steps(), &[0]).unwrap();
    let buffers: Vec<_> = operands.iter().map(|it| (it.buffer().unwrap(), it.access)).collect();
    assert_eq!(buffers, [(0, Access::Read), (1, Access::Read), (3, Access::Write)]);
    assert_eq!(group.views[2], FusedView { read: None, written: Some((DType::F32, 1)) });
    assert_eq!([&group.steps[0].inputs[..], &group.steps[1].inputs[..]], [[View(0), View(1)], [Step(0), View(0)]]);
    let (group, operands) = described(&two_steps(), &[]).unwrap();
    assert_eq!((group.views.len(), operands[2].access), (4, Access::Write));
}

/// `x = x + y`, then `x = -x`: the kernel reads x, and stores what the last step leaves.
#[test]
fn an_output_over_an_input_is_one_view() {
    use Access::{Read, Write};
    let steps = [
        call(Op::Add, DType::F32, Params::default(), vec![vector(0, Read), vector(1, Read), vector(0, Write)]),
        call(Op::Neg, DType::F32, Params::default(), vec![vector(0, Read), vector(0, Write)]),
    ];
    let (group, operands) = described(&steps, &[]).unwrap();
    assert_eq!(group.views[0], FusedView { read: Some(DType::F32), written: Some((DType::F32, 1)) });
    assert_eq!((operands.len(), operands[0].access), (2, Access::ReadWrite));
    assert_eq!(group.steps[1].inputs[..], [FusedInput::Step(0)]);
    // Not stored, it stays as it was.
    let (group, operands) = described(&steps, &[0, 1]).unwrap();
    assert_eq!((group.views[0].written, operands[0].access), (None, Read));
}

/// Two values that are not stored may lie in the same bytes, in any way: the kernel has neither in memory.
#[test]
fn only_memory_that_the_kernel_uses_must_not_overlap() {
    use Access::{Read, Write};
    let wide = |access| view(2, DType::F64, 0, &[4], &[1], access);
    let to = |dtype| Params { to: Some(dtype), ..Params::default() };
    let mut steps = two_steps();
    steps[1] = call(Op::Cast, DType::F32, to(DType::F64), vec![vector(0, Read), wide(Write)]);
    steps.push(call(Op::Cast, DType::F64, to(DType::F32), vec![wide(Read), vector(3, Write)]));
    assert_eq!(described(&steps, &[0, 1]).unwrap().1.len(), 3);
    for stored in [0, 1] {
        assert!(refused(&steps, &[stored]).1.contains("through another view"));
    }
}

#[test]
fn steps_that_cannot_be_one_kernel_are_refused() {
    use Access::{Read, Write};
    let integers = |access| view(4, DType::I32, 0, &[4], &[1], access);
    // A view that another step writes in another order, and one that reads a part of it.
    let mut steps = two_steps();
    steps[1].operands[1] = view(2, DType::F32, 4, &[4], &[0], Read);
    assert_eq!(refused(&steps, &[]), (6, "it uses bytes that its group writes through another view".to_owned()));
    assert_eq!(refused(&steps, &[0]).0, 6);
    // An op that refuses elements.
    let divide = call(
        Op::Div,
        DType::I32,
        Params::default(),
        vec![integers(Read), integers(Read), view(5, DType::I32, 0, &[4], &[1], Write)],
    );
    assert!(refused(&[divide], &[]).1.contains("refuses some elements"));
    // Another shape.
    let mut steps = two_steps();
    steps[1].operands.iter_mut().for_each(|it| it.layout = Layout::contiguous(Shape::new(&[2]).unwrap()));
    assert_eq!(refused(&steps, &[]).0, 6);
    // The elements of one dtype read as those of another.
    let mut steps = two_steps();
    steps[1] = call(
        Op::Neg,
        DType::I32,
        Params::default(),
        vec![view(2, DType::I32, 0, &[4], &[1], Read), view(3, DType::I32, 0, &[4], &[1], Write)],
    );
    assert!(refused(&steps, &[]).1.contains("where an earlier step has or reads f32"));
    // More views than a parameter has.
    let fill =
        |buffer| SequenceStep { work: SequenceWork::Fill(Scalar::from(1.0)), operands: vec![vector(buffer, Write)] };
    let fills: Vec<SequenceStep> = (0..=MOST_FUSED_VIEWS).map(fill).collect();
    assert!(described(&fills[..MOST_FUSED_VIEWS], &[]).is_ok());
    assert!(refused(&fills, &[]).1.contains("33 views"));
}
