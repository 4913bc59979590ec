//! Groups compute what their steps compute one after the other, whatever the size of a block; steps that would not are refused.

use streamvm_ep::{
    Access, Axes, DType, DeviceKind, FnContext, Kernel, KernelCall, Layout, Op, Operand, Params, Scalar, SequenceError,
    SequenceGroup, SequenceMemory, SequenceOperand, SequenceStep, SequenceWork, Shape,
};

use crate::sequence::CpuSequence;

const ROWS: usize = 5;
const COLUMNS: usize = 6;
const BYTES: usize = ROWS * COLUMNS * 4;

fn whole() -> Layout {
    Layout::contiguous(Shape::new(&[ROWS, COLUMNS]).expect("a shape"))
}

/// The view of a `[6, 5]` storage that has the shape of the group.
fn transposed() -> Layout {
    Layout::contiguous(Shape::new(&[COLUMNS, ROWS]).expect("a shape")).permute(&[1, 0]).expect("two axes")
}

fn in_buffer(index: usize, layout: Layout, access: Access) -> SequenceOperand {
    SequenceOperand { memory: SequenceMemory::Buffer { index, offset: 0 }, dtype: DType::I32, layout, access }
}

fn scratch(piece: usize, access: Access) -> SequenceOperand {
    SequenceOperand { memory: SequenceMemory::Scratch(piece), dtype: DType::I32, layout: whole(), access }
}

fn call(op: Op, operands: Vec<SequenceOperand>) -> SequenceStep {
    let kernel = streamvm_kernels::builtin().get(op, DeviceKind::CPU, DType::I32).expect("a kernel");
    SequenceStep { work: SequenceWork::Kernel(kernel, Params::default()), operands }
}

/// Runs a sequence over buffers of `i32`, of which the first two are read.
fn run(sequence: &CpuSequence, data: &mut [Vec<i32>]) -> Result<(), SequenceError> {
    let operand = |(index, elements): (usize, &mut Vec<i32>)| {
        let layout = Layout::contiguous(Shape::new(&[elements.len()]).expect("a shape"));
        let access = if index < 2 { Access::Read } else { Access::ReadWrite };
        // SAFETY: a vector of its own for each operand, borrowed until the end of this function.
        unsafe { Operand::new(elements.as_mut_ptr().cast(), DType::I32, layout, access) }
    };
    let mut operands: Vec<Operand> = data.iter_mut().enumerate().map(operand).collect();
    sequence.run(&mut FnContext::new(&mut operands).expect("operands that do not overlap"), 0)
}

/// `a = x + row; b = a * x^T; y = -b; y = y - scalar` in place `; z = copy of y`. Buffers: x, row, y, z, then a and b, if these are not in
/// scratch memory.
fn steps(in_scratch: bool) -> Vec<SequenceStep> {
    use Access::{Read, Write};
    let local = |piece: usize, access| match in_scratch {
        true => scratch(piece, access),
        false => in_buffer(4 + piece, whole(), access),
    };
    let row = Layout::contiguous(Shape::new(&[COLUMNS]).expect("a shape"));
    let scalar = Layout::with_strides(Shape::new(&[]).expect("a shape"), &[], 3).expect("a layout");
    vec![
        call(Op::Add, vec![in_buffer(0, whole(), Read), in_buffer(1, row, Read), local(0, Write)]),
        call(Op::Mul, vec![local(0, Read), in_buffer(0, transposed(), Read), local(1, Write)]),
        call(Op::Neg, vec![local(1, Read), in_buffer(2, whole(), Write)]),
        call(Op::Sub, vec![in_buffer(2, whole(), Read), in_buffer(1, scalar, Read), in_buffer(2, whole(), Write)]),
        SequenceStep {
            work: SequenceWork::Copy,
            operands: vec![in_buffer(2, whole(), Read), in_buffer(3, whole(), Write)],
        },
    ]
}

fn data(buffers: usize) -> Vec<Vec<i32>> {
    let x: Vec<i32> = (0..(ROWS * COLUMNS) as i32).map(|it| it * it % 41 - 20).collect();
    let row: Vec<i32> = (0..COLUMNS as i32).map(|it| 7 - 3 * it).collect();
    let mut data = vec![x, row];
    data.resize(buffers, vec![99; ROWS * COLUMNS]);
    data
}

#[test]
fn every_size_of_a_block_gives_the_same_elements() {
    let sizes = [BYTES, COLUMNS * 4, BYTES, BYTES, BYTES, BYTES];
    let alone = CpuSequence::new(&sizes, steps(false), &[]).expect("steps");
    let mut expected = data(6);
    run(&alone, &mut expected).expect("it runs");
    assert_ne!(expected[2], expected[4]);
    for block in 1..=ROWS * COLUMNS + 1 {
        for in_scratch in [true, false] {
            let buffers = if in_scratch { 4 } else { 6 };
            let groups = [SequenceGroup { steps: 0..5, block, unstored: vec![] }];
            let group = CpuSequence::new(&sizes[..buffers], steps(in_scratch), &groups).expect("a group");
            let mut found = data(buffers);
            run(&group, &mut found).expect("it runs");
            assert_eq!(found, expected[..buffers], "blocks of {block}, scratch memory: {in_scratch}");
        }
    }
}

/// Large enough that several threads compute blocks, if the machine has them.
#[test]
#[cfg_attr(miri, ignore = "Miri takes minutes for as many elements as threads divide")]
fn threads_compute_different_blocks() {
    use Access::{Read, Write};
    const LENGTH: usize = 1 << 18;
    let long = Layout::contiguous(Shape::new(&[LENGTH]).expect("a shape"));
    let piece = |access| SequenceOperand { layout: long, ..scratch(0, access) };
    let steps = vec![
        call(Op::Add, vec![in_buffer(0, long, Read), in_buffer(1, long, Read), piece(Write)]),
        call(Op::Mul, vec![piece(Read), in_buffer(0, long, Read), in_buffer(2, long, Write)]),
    ];
    let group =
        CpuSequence::new(&[LENGTH * 4; 3], steps, &[SequenceGroup { steps: 0..2, block: 1000, unstored: vec![] }]);
    let x: Vec<i32> = (0..LENGTH as i32).collect();
    let mut data = [x.clone(), x.clone(), vec![0; LENGTH]];
    streamvm_kernels::set_threads(4);
    let result = run(&group.expect("a group"), &mut data);
    streamvm_kernels::set_threads(1);
    result.expect("it runs");
    let expected: Vec<i32> = x.iter().map(|it| (it + it).wrapping_mul(*it)).collect();
    assert!(data[2] == expected);
}

#[test]
fn steps_that_cannot_run_block_by_block_are_refused() {
    use Access::{Read, Write};
    let add = || call(Op::Add, vec![in_buffer(0, whole(), Read), in_buffer(1, whole(), Read), scratch(0, Write)]);
    let neg = |from, to| call(Op::Neg, vec![from, to]);
    let part = whole().slice(0, 0..2).expect("a slice");
    let narrow = Layout::with_strides(*whole().shape(), &[1, 1], 0).expect("a layout");
    let sum = Params { axes: Axes::new(&[1]).expect("an axis"), ..Params::default() };
    let sum = SequenceStep {
        work: match call(Op::Sum, Vec::new()).work {
            SequenceWork::Kernel(kernel, _) => SequenceWork::Kernel(kernel, sum),
            other => other,
        },
        operands: vec![in_buffer(0, whole(), Read), in_buffer(2, part, Write)],
    };
    let out = || in_buffer(2, whole(), Write);
    let cases = [
        ("not elementwise", 1, vec![add(), sum]),
        ("another shape", 1, vec![add(), neg(in_buffer(0, part, Read), in_buffer(2, part, Write))]),
        (
            "through another view",
            0,
            vec![
                neg(in_buffer(0, whole(), Read), out()),
                neg(in_buffer(2, transposed(), Read), in_buffer(3, whole(), Write)),
            ],
        ),
        ("are one element", 0, vec![neg(in_buffer(0, whole(), Read), in_buffer(2, narrow, Write))]),
        ("holds no i32", 0, vec![neg(scratch(0, Read), out()), add()]),
        ("reads and writes piece 0", 1, vec![add(), neg(scratch(0, Read), scratch(0, Write))]),
        ("uses piece 2", 1, vec![add(), neg(scratch(0, Read), scratch(2, Write))]),
        (
            "view of a part",
            1,
            vec![
                add(),
                neg(
                    SequenceOperand {
                        layout: whole()
                            .slice(0, 0..5)
                            .and_then(|it| it.broadcast_to(whole().shape()))
                            .map(|it| Layout::with_strides(*it.shape(), it.strides(), 1).expect("a layout"))
                            .expect("a view"),
                        ..scratch(0, Read)
                    },
                    out(),
                ),
            ],
        ),
    ];
    for (what, place, steps) in cases {
        let groups = [SequenceGroup { steps: 0..steps.len(), block: 4, unstored: vec![] }];
        let refused = CpuSequence::new(&[BYTES * 2; 4], steps, &groups).expect_err(what);
        assert!(matches!(refused, SequenceError::Group { step, .. } if step == place), "{what}: {refused}");
        let named = refused.to_string();
        let what = if what == "another shape" { "it writes" } else { what };
        assert!(named.contains(what), "{what}: {refused}");
    }
    let alone = CpuSequence::new(&[BYTES; 3], vec![add()], &[]).expect_err("scratch memory outside groups");
    assert!(alone.to_string().contains("in no group"), "{alone}");
    for groups in [[2..4, 0..2], [0..2, 1..3], [0..2, 4..6], [0..2, 2..5], [0..2, 2..2]] {
        let groups = groups.map(|steps| SequenceGroup { steps, block: 4, unstored: vec![] });
        let steps = vec![neg(in_buffer(0, whole(), Read), out()); 4];
        let refused = CpuSequence::new(&[BYTES; 3], steps, &groups).expect_err("groups that are not in order");
        assert!(matches!(refused, SequenceError::Group { .. }), "{refused}");
    }
}

/// The compiler leaves such ops out of groups: their errors name an element, and nothing is written then.
#[test]
fn ops_say_whether_they_refuse_elements() {
    let registry = streamvm_kernels::builtin();
    for op in Op::ALL.into_iter().filter(|op| op.is_elementwise()) {
        for dtype in op.dtypes().iter().copied() {
            let kernel = registry.get(op, DeviceKind::CPU, dtype).expect("a kernel");
            let element = Layout::contiguous(Shape::new(&[1]).expect("a shape"));
            let zero_or_negative = |number: i32| match dtype {
                DType::I8 => i64::from(number as u8),
                DType::I16 => i64::from(number as u16),
                DType::I32 => i64::from(number as u32),
                DType::I64 => i64::from(number),
                _ => 0,
            };
            let fails = [0, -1].into_iter().any(|number| {
                let mut data = [[zero_or_negative(number)], [zero_or_negative(number)], [0], [0]];
                // The first input of `where` is a bool.
                data[0] = if op == Op::Where { [1] } else { data[0] };
                let mut operands: Vec<Operand> = data[..=op.arity()]
                    .iter_mut()
                    .enumerate()
                    .map(|(place, bits)| {
                        let last = place == op.arity();
                        let bool = (last && op.gives_bool()) || (place == 0 && op == Op::Where);
                        let dtype = if bool {
                            DType::Bool
                        } else if last && op == Op::Cast {
                            DType::F64
                        } else {
                            dtype
                        };
                        let access = if last { Access::Write } else { Access::Read };
                        // SAFETY: eight bytes of their own for each operand, borrowed until the end of the closure.
                        unsafe { Operand::new(bits.as_mut_ptr().cast(), dtype, element, access) }
                    })
                    .collect();
                let params = match op {
                    Op::Cast => Params { to: Some(DType::F64), ..Params::default() },
                    _ => Params::default(),
                };
                let work = SequenceWork::Kernel(kernel, params);
                super::run_work(&work, &mut operands, None).is_err()
            });
            assert_eq!(fails, op.refuses_elements(dtype), "{op} of {dtype}");
        }
    }
}

/// A fill that fails in every block is reported for the first one, with the number of the step in the sequence.
#[test]
fn a_step_of_a_group_that_fails_is_named() {
    use Access::{Read, Write};
    let fill = SequenceStep {
        work: SequenceWork::Fill(Scalar::from(1i64 << 40)),
        operands: vec![in_buffer(2, whole(), Write)],
    };
    let neg = call(Op::Neg, vec![in_buffer(0, whole(), Read), in_buffer(3, whole(), Write)]);
    let steps = vec![neg.clone(), neg, fill];
    let group = CpuSequence::new(
        &[BYTES, 24, BYTES, BYTES],
        steps,
        &[SequenceGroup { steps: 1..3, block: 4, unstored: vec![] }],
    );
    let failed = run(&group.expect("a group"), &mut data(4)).expect_err("the value does not fit");
    assert!(matches!(failed, SequenceError::Step { step: 2, .. }), "{failed}");
}

/// No thread keeps more scratch memory than stated, however large a caller wants the blocks.
#[test]
fn scratch_memory_is_bounded() {
    use Access::Write;
    let large = |elements: usize| {
        let layout = Layout::contiguous(Shape::new(&[elements]).expect("a shape"));
        let fill = |piece| SequenceStep {
            work: SequenceWork::Fill(Scalar::from(0i32)),
            operands: vec![SequenceOperand { layout, ..scratch(piece, Write) }],
        };
        let steps = (0..4).map(fill).collect();
        CpuSequence::new(&[], steps, &[SequenceGroup { steps: 0..4, block: usize::MAX, unstored: vec![] }])
    };
    assert!(large(1 << 18).is_ok());
    for elements in [(1 << 18) + 1, 1 << 58] {
        let refused = large(elements).expect_err("more than 4 MiB").to_string();
        assert!(refused.contains("use smaller blocks"), "{refused}");
    }
}

#[test]
fn a_group_over_no_elements_runs() {
    use Access::{Read, Write};
    for dims in [&[0, 2][..], &[2, 0, 3], &[0]] {
        let none = Layout::contiguous(Shape::new(dims).expect("a shape"));
        let neg = call(Op::Neg, vec![in_buffer(0, none, Read), in_buffer(2, none, Write)]);
        let group = CpuSequence::new(
            &[4, 4, 4],
            vec![neg.clone(), neg],
            &[SequenceGroup { steps: 0..2, block: 4, unstored: vec![] }],
        );
        let mut data = [vec![1], vec![2], vec![3]];
        run(&group.expect("a group"), &mut data).expect("it runs");
        assert_eq!(data, [[1], [2], [3]]);
    }
}

/// A kernel of the caller may exchange its operands. The next block sets them anew, so it accesses the memory that the step declares.
#[test]
fn a_kernel_that_exchanges_its_operands_gets_the_declared_ones_in_each_block() {
    use Access::{Read, Write};
    let exchanges = |call: &mut KernelCall<'_, '_>| {
        let written = call.operands[1].slice_mut::<i32>()?;
        written.fill(written.len() as i32);
        call.operands.swap(0, 1);
        Ok(())
    };
    let kernel = Kernel { op: Op::Neg, device: DeviceKind::CPU, dtype: DType::I32, run: exchanges };
    let row = Layout::contiguous(Shape::new(&[COLUMNS]).expect("a shape"));
    let operands =
        vec![in_buffer(1, row.broadcast_to(whole().shape()).expect("a view"), Read), in_buffer(2, whole(), Write)];
    let step = SequenceStep { work: SequenceWork::Kernel(kernel, Params::default()), operands };
    let group = CpuSequence::new(
        &[BYTES, 24, BYTES],
        vec![step],
        &[SequenceGroup { steps: 0..1, block: COLUMNS, unstored: vec![] }],
    );
    let mut data = data(3);
    let row = data[1].clone();
    run(&group.expect("a group"), &mut data).expect("it runs");
    assert_eq!(data[1..], [row, vec![COLUMNS as i32; ROWS * COLUMNS]]);
}
