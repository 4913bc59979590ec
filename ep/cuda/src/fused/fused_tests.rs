use smallvec::smallvec;
use streamvm_ep::backend::{FusedInput, FusedStep, FusedView, FusedWork};
use streamvm_ep::{DType, Op, Scalar};

use super::*;

fn step(work: FusedWork, inputs: &[FusedInput], dtype: DType) -> FusedStep {
    FusedStep { work, inputs: inputs.iter().copied().collect(), dtype }
}

/// `v1 = where(v0 > 2, cast(v0 * 2), v1)` as f16, and the comparison.
fn group() -> FusedGroup {
    use FusedInput::{Step, View};
    let (f32, f16) = (DType::F32, DType::F16);
    FusedGroup {
        views: vec![
            FusedView { read: Some(f32), written: None },
            FusedView { read: Some(f16), written: Some((f16, 4)) },
            FusedView { read: None, written: Some((DType::Bool, 5)) },
        ],
        steps: vec![
            step(FusedWork::Fill(Scalar::from(2.0)), &[], f32),
            step(FusedWork::Call(Op::Gt, f32), &[View(0), Step(0)], DType::Bool),
            step(FusedWork::Call(Op::Mul, f32), &[View(0), Step(0)], f32),
            step(FusedWork::Call(Op::Cast, f32), &[Step(2)], f16),
            FusedStep {
                work: FusedWork::Call(Op::Where, f16),
                inputs: smallvec![Step(1), Step(3), View(1)],
                dtype: f16,
            },
            step(FusedWork::Copy, &[Step(1)], DType::Bool),
        ],
    }
}

#[test]
fn a_kernel_begins_with_its_views_and_steps_line_by_line() {
    let expected = "\
// v0: reads f32
// v1: reads f16 writes f16 r4
// v2: writes bool r5
// r0: f32 = 0x40000000
// r1: bool = gt of f32: v0 r0
// r2: f32 = mul of f32: v0 r0
// r3: f16 = cast of f32: r2
// r4: f16 = where of f16: r1 r3 v1
// r5: bool = r1
.version 8.0
";
    let text = fused_ptx(&group()).unwrap();
    assert!(text.starts_with(expected), "{text}");
    assert!(text.contains(".visible .entry sv_fused(\n\t.param .align 8 .b8 arguments[296]\n)"), "{text}");
}

/// Long code is in the kernel once.
#[test]
fn long_code_takes_one_element_at_a_time() {
    let with = |op: Op, dtype: DType| {
        let mut group = group();
        group.steps.push(step(FusedWork::Call(op, dtype), &[FusedInput::View(0), FusedInput::View(0)], dtype));
        fused_ptx(&group).unwrap().contains("ld.global.v4")
    };
    assert_eq!([DType::F32, DType::F64].map(|dtype| with(Op::Exp, dtype)), [true, false]);
    assert_eq!([Op::Pow, Op::Sin, Op::Sqrt].map(|op| with(op, DType::F32)), [false, false, true]);
}

#[test]
fn a_number_that_does_not_fit_gives_no_kernel() {
    let mut group = group();
    group.steps[0] = step(FusedWork::Fill(Scalar::from(300i32)), &[], DType::U8);
    assert!(matches!(fused_ptx(&group), Err(Error::ScalarDoesNotFit { .. })));
}
