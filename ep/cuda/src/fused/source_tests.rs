use smallvec::smallvec;
use streamvm_ep::backend::FusedView;
use streamvm_ep::{OpClass, Scalar};

use super::*;

fn step(work: FusedWork, inputs: &[FusedInput], dtype: DType) -> FusedStep {
    FusedStep { work, inputs: inputs.iter().copied().collect(), dtype }
}

/// `v1 = where(v0 > 2, cast(v0 * 2), v1)` as f16, and the comparison.
pub(in crate::fused) fn group() -> FusedGroup {
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
fn the_source_of_a_group_is_its_steps_line_by_line() {
    let expected = r#"#include "fused.cuh"

struct Steps {
    template <class Each> static __device__ __forceinline__ void run(const Each &each) {
        auto v0 = each.template load<f32>(0);
        auto v1 = each.template load<f16>(1);
        typename Each::template Values<f16> w1;
        typename Each::template Values<u8> w2;
#pragma unroll
        for (int i = 0; i < Each::COUNT; ++i) {
            f32 r0 = constant<f32>(0x40000000);
            u8 r1 = gt_f32(v0.of[i], r0);
            f32 r2 = mul_f32(v0.of[i], r0);
            f16 r3 = cast_f32_f16(r2);
            f16 r4 = where_f16(r1, r3, v1.of[i]);
            u8 r5 = r1;
            w1.of[i] = r4;
            w2.of[i] = r5;
        }
        each.template store<f16>(1, w1);
        each.template store<u8>(2, w2);
    }
};

FUSED_KERNEL(3, true)
"#;
    assert_eq!(fused_source(&group()).unwrap(), expected);
}

/// Long code is in the kernel once: `FOUR` of the shipped kernels.
#[test]
fn long_code_takes_one_element_at_a_time() {
    let with = |op: Op, dtype: DType| {
        let mut group = group();
        group.steps.push(step(FusedWork::Call(op, dtype), &[FusedInput::View(0), FusedInput::View(0)], dtype));
        fused_source(&group).unwrap().contains("FUSED_KERNEL(3, true)")
    };
    assert_eq!([DType::F32, DType::F64].map(|dtype| with(Op::Exp, dtype)), [true, false]);
    assert_eq!([Op::Pow, Op::Sin, Op::Sqrt].map(|op| with(op, DType::F32)), [false, false, true]);
    let (unary, binary) = (include_str!("../kernels/unary.cuh"), include_str!("../kernels/binary.cuh"));
    let named = |name: &str| {
        let op = Op::ALL.into_iter().find(|op| format!("{op:?}") == name);
        op.unwrap_or_else(|| panic!("{name} is no op"))
    };
    let mut listed: Vec<Op> = Vec::new();
    assert!(unary.contains("enum { FOUR = sizeof(Wide<T>) <= bytes };"));
    for line in unary.lines().filter_map(|line| line.strip_prefix("UNARY(")?.strip_suffix(')')) {
        let words: Vec<&str> = line.split(", ").collect();
        let (op, bytes): (Op, usize) = (named(words[0]), words[2].parse().expect("a number of bytes"));
        for dtype in op.dtypes() {
            // 16-bit floats are computed in f32.
            let computed = if dtype.is_float() { dtype.size().max(4) } else { dtype.size() };
            assert_eq!(with(op, *dtype), computed <= bytes, "{op} of {dtype}");
        }
        listed.push(op);
    }
    for line in binary.lines().filter_map(|line| line.trim_start().strip_prefix("BINARY_OF_")) {
        let words: Vec<&str> = line.trim_end_matches(['\\', ' ', ')']).split(", ").collect();
        // Integer divisions are never in a fused kernel.
        if let [list, op, _, four] = words[..]
            && let (dtype, op) = (if list.starts_with("INTEGERS") { DType::I32 } else { DType::F32 }, named(op))
            && !op.refuses_elements(dtype)
        {
            assert_eq!(with(op, dtype), four == "true", "{op} of {dtype}");
            listed.push(op);
        }
    }
    // Those of bools have nothing that is long.
    let of_bools = [Op::Not, Op::And, Op::Or, Op::Xor];
    let elementwise = |op: &Op| matches!(op.class(), OpClass::Unary | OpClass::Binary) && !of_bools.contains(op);
    let missing: Vec<Op> = Op::ALL.into_iter().filter(|op| elementwise(op) && !listed.contains(op)).collect();
    assert!(missing.is_empty(), "{missing:?} are not in the lists");
}

#[test]
fn a_number_that_does_not_fit_gives_no_source() {
    let mut group = group();
    group.steps[0] = step(FusedWork::Fill(Scalar::from(300i32)), &[], DType::U8);
    assert!(matches!(fused_source(&group), Err(Error::ScalarDoesNotFit { .. })));
}

/// Whatever a header includes comes with it.
#[test]
fn the_headers_are_complete() {
    let headers = fused_headers();
    for (name, text) in headers {
        for line in text.lines().filter_map(|line| line.strip_prefix("#include \"")) {
            let included = line.trim_end_matches('"');
            assert!(headers.iter().any(|(name, _)| *name == included), "{name} includes {included}");
        }
    }
}
