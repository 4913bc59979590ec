use std::sync::atomic::Ordering;
use std::time::Duration;

use streamvm_ep::{Access, DType, Error, Kernel, Layout, Op, Params, Scalar, SequenceOperand, Shape};

use super::*;

fn vector(buffer: usize, offset: usize, elements: usize, access: Access) -> SequenceOperand {
    let layout = Layout::contiguous(Shape::new(&[elements]).expect("a shape"));
    let memory = SequenceMemory::Buffer { index: buffer, offset };
    SequenceOperand { memory, dtype: DType::I32, layout, access }
}

fn call(op: Op, operands: Vec<SequenceOperand>) -> SequenceStep {
    let kernel = streamvm_kernels::builtin().get(op, DeviceKind::CPU, DType::I32).expect("a kernel");
    SequenceStep { work: SequenceWork::Kernel(kernel, Params::default()), operands }
}

/// Runs a sequence over vectors of `i32`, each with its access.
fn run(sequence: &CpuSequence, data: &mut [(Vec<i32>, Access)]) -> Result<(), SequenceError> {
    let mut operands: Vec<Operand> = data
        .iter_mut()
        .map(|(elements, access)| {
            let layout = Layout::contiguous(Shape::new(&[elements.len()]).expect("a shape"));
            // SAFETY: a vector of its own for each operand, borrowed until the end of this function.
            unsafe { Operand::new(elements.as_mut_ptr().cast(), DType::I32, layout, *access) }
        })
        .collect();
    sequence.run(&mut FnContext::new(&mut operands).expect("operands that do not overlap"), 0)
}

/// `scratch = a + b; out[1..] = scratch[1..] * a[..2]; scratch = -scratch in place; out[0] = scratch[2]`.
#[test]
fn steps_run_in_order_over_views_of_the_buffers() {
    use Access::{Read, Write};
    let steps = [
        call(Op::Add, vec![vector(0, 0, 3, Read), vector(1, 0, 3, Read), vector(2, 4, 3, Write)]),
        call(Op::Mul, vec![vector(2, 8, 2, Read), vector(0, 0, 2, Read), vector(3, 4, 2, Write)]),
        call(Op::Neg, vec![vector(2, 4, 3, Read), vector(2, 4, 3, Write)]),
        SequenceStep { work: SequenceWork::Copy, operands: vec![vector(2, 12, 1, Read), vector(3, 0, 1, Write)] },
        SequenceStep { work: SequenceWork::Fill(Scalar::from(9i32)), operands: vec![vector(2, 0, 1, Write)] },
    ];
    let sequence = CpuSequence::new(&[12, 12, 16, 12], steps.to_vec(), &[]).expect("steps within their buffers");
    let mut data =
        [(vec![1, 2, 3], Read), (vec![10, 20, 30], Read), (vec![0; 4], Write), (vec![0; 3], Access::ReadWrite)];
    run(&sequence, &mut data).expect("it runs");
    assert_eq!(data[3].0, [-33, 22, 66]);
    assert_eq!(data[2].0, [9, -11, -22, -33]);
}

#[test]
fn an_operand_that_reaches_one_byte_past_its_buffer_is_refused() {
    let fill = |offset| {
        let operands = vec![vector(0, offset, 3, Access::Write)];
        CpuSequence::new(&[12], vec![SequenceStep { work: SequenceWork::Fill(Scalar::from(0i32)), operands }], &[])
    };
    assert!(fill(0).is_ok());
    let refused = fill(1).expect_err("it ends at byte 13 of 12");
    assert_eq!(refused, SequenceError::PastBuffer { step: 0, operand: 0, end: 13, buffer: 0, bytes: 12 });
    assert!(matches!(fill(usize::MAX), Err(SequenceError::PastBuffer { end: usize::MAX, .. })));
    let elsewhere = call(Op::Neg, vec![vector(0, 0, 1, Access::Read), vector(1, 0, 1, Access::Write)]);
    assert!(matches!(CpuSequence::new(&[12], vec![elsewhere], &[]), Err(SequenceError::Operands { step: 0, .. })));
}

#[test]
fn operands_that_do_not_fit_the_work_are_refused() {
    use Access::{Read, Write};
    let wrong = [
        call(Op::Add, vec![vector(0, 0, 1, Read), vector(0, 4, 1, Write)]),
        call(Op::Neg, vec![vector(0, 0, 1, Write), vector(0, 4, 1, Write)]),
        SequenceStep { work: SequenceWork::Copy, operands: vec![vector(0, 0, 1, Write)] },
        SequenceStep { work: SequenceWork::Fill(Scalar::from(0i32)), operands: vec![] },
        SequenceStep {
            work: SequenceWork::Kernel(
                Kernel { op: Op::Neg, device: DeviceKind::CUDA, dtype: DType::I32, run: |_| Ok(()) },
                Params::default(),
            ),
            operands: vec![vector(0, 0, 1, Read), vector(0, 4, 1, Write)],
        },
    ];
    for step in wrong {
        let text = format!("{step:?}");
        assert!(
            matches!(CpuSequence::new(&[8], vec![step], &[]), Err(SequenceError::Operands { step: 0, .. })),
            "{text}"
        );
    }
}

#[test]
fn a_call_with_other_buffers_runs_nothing() {
    use Access::{Read, Write};
    let fill = SequenceStep { work: SequenceWork::Fill(Scalar::from(7i32)), operands: vec![vector(1, 0, 2, Write)] };
    let sequence = CpuSequence::new(&[4, 8], vec![fill], &[]).expect("a step within its buffer");
    let right = [(vec![0; 1], Read), (vec![0; 2], Write)];
    let mut wrong = [
        vec![right[0].clone()],
        vec![(vec![0; 2], Read), right[1].clone()],
        vec![right[0].clone(), (vec![0; 2], Read)],
        vec![right[0].clone(), (vec![0; 1], Write)],
    ];
    for data in &mut wrong {
        assert!(matches!(run(&sequence, data), Err(SequenceError::Buffers(_))), "{data:?}");
        assert!(data.iter().all(|(elements, _)| elements.iter().all(|element| *element == 0)));
    }
    let mut data = right;
    run(&sequence, &mut data).expect("the buffers fit");
    assert_eq!(data[1].0, [7, 7]);
}

#[test]
fn a_buffer_that_the_function_has_taken_is_not_shared() {
    let fill =
        SequenceStep { work: SequenceWork::Fill(Scalar::from(7i32)), operands: vec![vector(0, 0, 1, Access::Write)] };
    let sequence = CpuSequence::new(&[4], vec![fill], &[]).expect("a step within its buffer");
    let mut element = [0i32];
    let layout = Layout::contiguous(Shape::new(&[1]).expect("a shape"));
    // SAFETY: a view of the array above, which is not used otherwise before the end of the test.
    let mut operands = [unsafe { Operand::new(element.as_mut_ptr().cast(), DType::I32, layout, Access::Write) }];
    let mut context = FnContext::new(&mut operands).expect("one operand");
    context.writes.take::<i32>(0).expect("it is free");
    assert!(matches!(sequence.run(&mut context, 0), Err(SequenceError::Buffers(_))));
    let mut context = FnContext::new(&mut operands).expect("one operand");
    sequence.run(&mut context, 0).expect("it is free");
    assert!(context.writes.take::<i32>(0).is_err(), "the sequence has taken it");
}

/// Division by zero in the second of three steps: the first has run, the third has not.
#[test]
fn a_step_that_fails_is_named_and_ends_the_run() {
    use Access::{Read, Write};
    let fill = |value: i32, offset| SequenceStep {
        work: SequenceWork::Fill(Scalar::from(value)),
        operands: vec![vector(1, offset, 1, Write)],
    };
    let divide = call(Op::Div, vec![vector(0, 0, 1, Read), vector(0, 4, 1, Read), vector(1, 4, 1, Write)]);
    let sequence =
        CpuSequence::new(&[8, 12], vec![fill(1, 0), divide, fill(3, 8)], &[]).expect("steps within their buffers");
    let mut data = [(vec![5, 0], Read), (vec![0; 3], Write)];
    let error = run(&sequence, &mut data).expect_err("it divides by zero");
    assert!(matches!(error, SequenceError::Step { step: 1, .. }), "{error}");
    assert_eq!(data[1].0, [1, 0, 0]);
}

/// Operands of a step over bytes of a buffer of bools and of one of numbers.
fn bool_at(offset: usize, access: Access) -> SequenceOperand {
    SequenceOperand { dtype: DType::Bool, ..vector(0, offset, 1, access) }
}

/// `while x < 11 { x = x + 1; if x < 5 { y = y + x } else { z = z + 1 } }`, for x, y and z in one buffer after 1, 11 and 5.
#[test]
fn blocks_run_as_often_as_their_conditions_say() {
    use Access::{Read, Write};
    let number = |place: usize, access| vector(1, place * 4, 1, access);
    let add = |x, y| call(Op::Add, vec![number(x, Read), number(y, Read), number(x, Write)]);
    let less = |x, y, to| call(Op::Lt, vec![number(x, Read), number(y, Read), bool_at(to, Write)]);
    let mark = |work, operands| SequenceStep { work, operands };
    let (one, eleven, five, x, y, z) = (0, 1, 2, 3, 4, 5);
    let steps = |most_rounds| {
        vec![
            less(x, eleven, 0),
            mark(SequenceWork::While { most_rounds, most_time: None }, vec![bool_at(0, Read)]),
            add(x, one),
            less(x, five, 1),
            mark(SequenceWork::If, vec![bool_at(1, Read)]),
            add(y, x),
            mark(SequenceWork::Else, vec![]),
            add(z, one),
            mark(SequenceWork::End, vec![]),
            less(x, eleven, 0),
            mark(SequenceWork::End, vec![]),
        ]
    };
    let start = |x| [(vec![0i32], Access::ReadWrite), (vec![1, 11, 5, x, 0, 0], Access::ReadWrite)];
    for (x, most_rounds, expected) in [(0, 11, [11, 10, 7]), (0, 10, [11, 10, 6]), (20, 0, [20, 0, 0])] {
        let sequence = CpuSequence::new(&[4, 24], steps(most_rounds), &[]).expect("blocks that end");
        let mut data = start(x);
        let result = run(&sequence, &mut data);
        match most_rounds {
            10 => assert_eq!(result, Err(SequenceError::Rounds { step: 1, rounds: 10 })),
            _ => {
                assert_eq!(result, Ok(()));
                assert_eq!(data[1].0[3..], expected);
            }
        }
    }
}

/// A loop that never ends, stopped by its time and from another thread.
#[test]
fn a_loop_that_does_not_end_is_stopped() {
    let steps = |most_time| {
        let repeat = SequenceWork::While { most_rounds: u64::MAX, most_time };
        vec![
            SequenceStep { work: repeat, operands: vec![bool_at(0, Access::Read)] },
            SequenceStep { work: SequenceWork::End, operands: vec![] },
        ]
    };
    let data = || [(vec![1i32], Access::Read)];
    let most = Duration::from_millis(2);
    let sequence = CpuSequence::new(&[4], steps(Some(most)), &[]).expect("blocks that end");
    let ended = run(&sequence, &mut data());
    assert!(
        matches!(ended, Err(SequenceError::LoopTime { step: 0, most: found, rounds: 1.. }) if found == most),
        "{ended:?}"
    );
    let stops = Arc::new(AtomicBool::new(false));
    let sequence = CpuSequence::new(&[4], steps(None), &[]).expect("blocks that end").stopped_by(stops.clone());
    let ended = std::thread::scope(|scope| {
        let runs = scope.spawn(|| run(&sequence, &mut data()));
        stops.store(true, Ordering::Relaxed);
        runs.join().expect("it does not panic")
    });
    assert_eq!(ended, Err(SequenceError::Stopped { step: 0 }));
}

#[test]
fn blocks_that_do_not_end_where_they_must_are_refused() {
    let mark = |work| {
        let condition = matches!(work, SequenceWork::If | SequenceWork::While { .. });
        SequenceStep { work, operands: if condition { vec![bool_at(0, Access::Read)] } else { vec![] } }
    };
    use SequenceWork::{Else, End, If, While};
    let repeat = || While { most_rounds: 1, most_time: None };
    let cases = [
        (vec![If], 1),
        (vec![repeat(), End, End], 2),
        (vec![repeat(), Else, End], 1),
        (vec![If, Else, Else, End], 2),
        (vec![Else], 0),
    ];
    for (works, place) in cases {
        let refused = CpuSequence::new(&[1], works.into_iter().map(mark).collect(), &[]).expect_err("blocks");
        assert!(matches!(refused, SequenceError::Blocks { step, .. } if step == place), "{refused}");
    }
    let operands = [vec![], vec![vector(0, 0, 1, Access::Read)], vec![bool_at(0, Access::Write)]];
    for operands in operands {
        let steps = vec![SequenceStep { work: If, operands }, mark(End)];
        assert!(matches!(CpuSequence::new(&[4], steps, &[]), Err(SequenceError::Operands { step: 0, .. })));
    }
}

/// The square root of -1 in the middle of a transposed view, and an output in place, of every float.
#[test]
fn a_step_that_writes_no_number_is_named_with_the_element() {
    use Access::{Read, Write};
    let shape = Shape::new(&[2, 3]).expect("a shape");
    let turned = Layout::contiguous(Shape::new(&[3, 2]).expect("a shape")).permute(&[1, 0]).expect("two axes");
    let cases = [
        (Layout::contiguous(shape), 0, vec![1, 1]),
        (turned, 0, vec![0, 2]),
        (Layout::contiguous(shape).slice(1, 1..3).expect("a slice"), 4, vec![1, 0]),
    ];
    for (layout, start, expected) in cases {
        let kernel = streamvm_kernels::builtin().get(Op::Sqrt, DeviceKind::CPU, DType::F64).expect("a kernel");
        let operand = |access| SequenceOperand {
            memory: SequenceMemory::Buffer { index: 0, offset: 0 },
            dtype: DType::F64,
            layout,
            access,
        };
        let step = SequenceStep {
            work: SequenceWork::Kernel(kernel, Params::default()),
            operands: vec![operand(Read), operand(Write)],
        };
        let sequence = CpuSequence::new(&[48], vec![step], &[]).expect("a step within its buffer");
        let run = |sequence: &CpuSequence| {
            let mut data = [1.0f64; 6];
            data[4] = -1.0;
            data[0] = if start == 0 { 1.0 } else { f64::NAN };
            let flat = Layout::contiguous(Shape::new(&[6]).expect("a shape"));
            // SAFETY: the array above, which is not used otherwise before the end of the closure.
            let operand = unsafe { Operand::new(data.as_mut_ptr().cast(), DType::F64, flat, Access::ReadWrite) };
            sequence.run(&mut FnContext::new(&mut [operand]).expect("one operand"), 0)
        };
        run(&sequence).expect("nobody looks");
        let failed = run(&sequence.checking_finite(true)).expect_err("a root of -1");
        let SequenceError::NotFinite { step: 0, index, value } = failed else { panic!("{failed}") };
        assert_eq!(index, expected);
        assert!(value.is_nan());
    }
}

/// A step is where an infinity or NaN comes from only if its inputs have none, and its caller gave none as a number.
#[test]
fn a_step_that_passes_infinities_on_or_is_given_them_is_no_culprit() {
    use Access::{Read, Write};
    let floats = |buffer, access| SequenceOperand { dtype: DType::F32, ..vector(buffer, 0, 2, access) };
    let of_op = |op| {
        let kernel = streamvm_kernels::builtin().get(op, DeviceKind::CPU, DType::F32).expect("a kernel");
        SequenceWork::Kernel(kernel, Params::default())
    };
    let step = |work, operands| SequenceStep { work, operands };
    let fill = |value: f32| step(SequenceWork::Fill(value.into()), vec![floats(1, Write)]);
    let add = |to| step(of_op(Op::Add), vec![floats(0, Read), floats(1, Read), floats(to, Write)]);
    let cases = [
        (vec![fill(f32::NEG_INFINITY)], [1.0, 2.0], None),
        (
            vec![fill(f32::NEG_INFINITY), add(2), step(of_op(Op::Exp), vec![floats(2, Read), floats(2, Write)])],
            [1.0, 2.0],
            None,
        ),
        (vec![fill(f32::NAN), step(SequenceWork::Copy, vec![floats(1, Read), floats(2, Write)])], [1.0, 2.0], None),
        // In place: what is overwritten was infinite.
        (vec![fill(1.0), add(0)], [f32::INFINITY, 2.0], None),
        (vec![fill(f32::INFINITY), add(1), add(0)], [1.0, 2.0], None),
        (vec![fill(3e38), add(2)], [1.0, 3e38], Some((1, 1))),
        (vec![fill(3e38), add(1)], [1.0, 3e38], Some((1, 1))),
        (vec![fill(3e38), add(0)], [1.0, 3e38], Some((1, 1))),
        (
            vec![fill(1.0), add(0), step(of_op(Op::Log), vec![floats(0, Read), floats(0, Write)])],
            [-3.0, 0.0],
            Some((2, 0)),
        ),
    ];
    for (number, (steps, first, expected)) in cases.into_iter().enumerate() {
        let sequence = CpuSequence::new(&[8; 3], steps, &[]).expect("steps within their buffers").checking_finite(true);
        let mut data = [first, [0.0; 2], [0.0; 2]];
        let layout = Layout::contiguous(Shape::new(&[2]).expect("a shape"));
        let mut operands = data.each_mut().map(|part| {
            // SAFETY: two elements each, which nothing else uses before the run has ended.
            unsafe { Operand::new(part.as_mut_ptr().cast(), DType::F32, layout, Access::ReadWrite) }
        });
        let ended = sequence.run(&mut FnContext::new(&mut operands).expect("three operands"), 0);
        let found = match ended {
            Err(SequenceError::NotFinite { step, index, .. }) => Some((step, index[0])),
            Err(error) => panic!("{number}: {error}"),
            Ok(()) => None,
        };
        assert_eq!(found, expected, "{number}");
    }
}

/// Run `n` of a step that draws is what the kernel draws from `n` times `advance` blocks further on.
#[test]
fn draws_are_others_in_each_run() {
    let kernel = streamvm_kernels::builtin().get(Op::Uniform, DeviceKind::CPU, DType::F32).expect("a kernel");
    let output = SequenceOperand { dtype: DType::F32, ..vector(0, 0, 8, Access::Write) };
    let run = |work: SequenceWork, run: u64| {
        let sequence = CpuSequence::new(&[32], vec![SequenceStep { work, operands: vec![output.clone()] }], &[]);
        let mut data = [0f32; 8];
        let layout = Layout::contiguous(Shape::new(&[8]).expect("a shape"));
        // SAFETY: an array of eight elements, which nothing else uses while the operand does.
        let operand = unsafe { Operand::new(data.as_mut_ptr().cast(), DType::F32, layout, Access::Write) };
        let mut operands = [operand];
        let mut context = FnContext::new(&mut operands).expect("one operand");
        sequence.expect("a step within its buffer").run(&mut context, run).expect("it runs");
        data
    };
    let draw = SequenceWork::Draw { kernel, params: Params::random(7, 5), advance: 3, in_loop: false };
    for number in [0, 1, 4] {
        assert_eq!(run(draw.clone(), number), run(SequenceWork::Kernel(kernel, Params::random(7, 5 + 3 * number)), 0));
    }
    assert_ne!(run(draw.clone(), 0), run(draw, 1));
}

/// Each step and group that ran is counted with its time; those of a block as often as the block ran.
#[test]
fn timed_runs_note_how_often_each_step_ran() {
    use Access::{Read, Write};
    let steps = [
        call(Op::Neg, vec![vector(0, 0, 2, Read), vector(1, 0, 2, Write)]),
        SequenceStep { work: SequenceWork::If, operands: vec![bool_at(0, Read)] },
        call(Op::Neg, vec![vector(1, 0, 2, Read), vector(1, 0, 2, Write)]),
        SequenceStep { work: SequenceWork::End, operands: vec![] },
        call(Op::Add, vec![vector(1, 0, 2, Read), vector(1, 0, 2, Read), vector(2, 0, 2, Write)]),
        call(Op::Neg, vec![vector(2, 0, 2, Read), vector(2, 0, 2, Write)]),
    ];
    let group = SequenceGroup { steps: 4..6, block: 1, unstored: vec![] };
    let sequence = CpuSequence::new(&[8, 8, 8], steps.to_vec(), &[group]).expect("steps within their buffers").timing();
    let run_with = |first: i32| {
        let mut data = [(vec![first, 5], Read), (vec![0; 2], Access::ReadWrite), (vec![0; 2], Access::ReadWrite)];
        run(&sequence, &mut data).expect("it runs");
        data[2].0.clone()
    };
    assert_eq!((run_with(1), run_with(0), run_with(3)), (vec![-2, -10], vec![0, 10], vec![-6, -10]));
    let times = sequence.times();
    let counts: Vec<_> = times.iter().map(|it| (it.steps.clone(), it.runs)).collect();
    assert_eq!(counts, [(0..1, 3), (2..3, 2), (4..6, 3)]);
    assert!(times.iter().any(|it| !it.time.is_zero()));
    let untimed = CpuSequence::new(&[8, 8, 8], steps.to_vec(), &[]).expect("steps within their buffers");
    assert!(untimed.times().is_empty());
}

/// The buffer is a column of a matrix. A sequence over it takes that column alone, and its steps use no element beside it.
#[test]
fn a_buffer_with_gaps_is_used_as_the_view_that_it_is() {
    let column =
        |offset: usize| Layout::with_strides(Shape::new(&[3]).expect("a shape"), &[4], offset).expect("a view");
    let fill = |layout: Layout| {
        let memory = SequenceMemory::Buffer { index: 0, offset: 0 };
        let operand = SequenceOperand { memory, dtype: DType::I32, layout, access: Access::Write };
        // Where the view lies in its storage does not matter.
        let buffer = SequenceBuffer::View { layout: column(1), element: 4 };
        let step = SequenceStep { work: SequenceWork::Fill(Scalar::from(7i32)), operands: vec![operand] };
        CpuSequence::over(vec![buffer], vec![step], &[], &[])
    };
    let sequence = fill(column(0)).expect("the same view");
    let mut matrix = [0i32; 12];
    let mut run = |layout: Layout| {
        // SAFETY: an array that is borrowed for longer than the operand is used.
        let mut operands = [unsafe { Operand::new(matrix.as_mut_ptr().cast(), DType::I32, layout, Access::Write) }];
        let ran = sequence.run(&mut FnContext::new(&mut operands).expect("one operand"), 0);
        (ran, matrix)
    };
    let (ran, found) = run(column(2));
    ran.expect("a column");
    assert_eq!(found, [0, 0, 7, 0, 0, 0, 7, 0, 0, 0, 7, 0]);
    for other in
        [Layout::contiguous(Shape::new(&[3]).expect("a shape")), Layout::contiguous(Shape::new(&[9]).expect("a shape"))]
    {
        let (refused, left) = run(other);
        assert!(matches!(refused, Err(SequenceError::Buffers(_))), "{refused:?}");
        assert_eq!(left, found);
    }
    let others = [Layout::contiguous(Shape::new(&[3]).expect("a shape")), column(1), column(3)];
    for other in others.into_iter().chain([Layout::contiguous(Shape::new(&[9]).expect("a shape"))]) {
        let refused = fill(other).expect_err("other elements");
        let is_named =
            matches!(refused, SequenceError::Operands { step: 0, .. } | SequenceError::PastBuffer { step: 0, .. });
        assert!(is_named, "{refused}");
    }
}

fn function(
    operands: Vec<SequenceOperand>,
    code: impl for<'a, 'b> Fn(&'a mut FnContext<'b>) -> Result<(), String> + Send + Sync + 'static,
) -> SequenceStep {
    SequenceStep { work: SequenceWork::Function(SequenceFunction::new(code)), operands }
}

fn text_of<T>(result: Result<T, Error>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

/// More operands than a kernel may have, in parts of buffers side by side: five reads, one update and a write.
#[test]
fn a_function_reads_writes_and_updates_views_between_other_steps() {
    use Access::{Read, ReadWrite, Write};
    let mut operands: Vec<SequenceOperand> = (0..5).map(|place| vector(0, 4 * place, 1, Read)).collect();
    operands.extend([vector(1, 0, 2, ReadWrite), vector(1, 8, 1, Write)]);
    let steps = [
        call(Op::Neg, vec![vector(1, 0, 2, Read), vector(1, 0, 2, Write)]),
        function(operands, |context| {
            let mut sum = 0;
            for place in 0..5 {
                sum += text_of(context.reads.get::<i32>(place))?[0];
            }
            text_of(context.writes.take::<i32>(0))?.iter_mut().for_each(|element| *element += sum);
            text_of(context.writes.take::<i32>(1))?[0] = sum;
            Ok(())
        }),
        call(Op::Abs, vec![vector(1, 0, 3, Read), vector(1, 0, 3, Write)]),
    ];
    let sequence = CpuSequence::new(&[20, 12], steps.to_vec(), &[]).expect("steps within their buffers");
    assert!(sequence.calls_functions());
    let mut data = [(vec![1, 2, 3, 4, 5], Read), (vec![16, 10, 0], ReadWrite)];
    run(&sequence, &mut data).expect("it runs");
    assert_eq!(data[1].0, [1, 5, 15]);
}

#[test]
fn a_function_that_fails_or_gets_operands_that_overlap_is_named_and_ends_the_run() {
    use Access::{Read, ReadWrite, Write};
    let neg = || call(Op::Neg, vec![vector(0, 0, 2, Read), vector(0, 0, 2, Write)]);
    let fails = function(vec![vector(0, 0, 2, Read)], |_| Err("on purpose".to_owned()));
    let overlaps = function(vec![vector(0, 0, 2, Read), vector(0, 4, 1, Write)], |_| Ok(()));
    let of = |step: SequenceStep| CpuSequence::new(&[8], vec![neg(), step, neg()], &[]).expect("a sequence");
    let mut data = [(vec![1, 2], ReadWrite)];
    let failed = run(&of(fails), &mut data);
    assert_eq!(failed, Err(SequenceError::Function { step: 1, error: "on purpose".to_owned() }));
    assert_eq!(data[0].0, [-1, -2], "the step behind it has not run");
    let failed = run(&of(overlaps), &mut data);
    assert_eq!(failed, Err(SequenceError::Step { step: 1, error: Error::Overlap { written: 1, other: 0 } }));
    assert_eq!(data[0].0, [1, 2]);
}

#[test]
fn a_function_is_refused_in_groups_and_on_devices() {
    let step = || function(vec![vector(0, 0, 2, Access::Write)], |_| Ok(()));
    let grouped = CpuSequence::new(&[8], vec![step()], &[SequenceGroup { steps: 0..1, block: 1, unstored: vec![] }]);
    let text = grouped.map(drop).expect_err("it cannot run block by block").to_string();
    assert!(text.contains("it is no kernel, copy or fill"), "{text}");
    let refused = step().check_form(0, DeviceKind::SIM).expect_err("the device cannot call it").to_string();
    assert!(refused.contains("a function of the caller"), "{refused}");
}

/// Two lanes: `a + 1` and `b + 1` by functions, their sum by a kernel on lane 0, and a group of two steps on lane 1.
fn two_lanes(behind: &[usize]) -> Result<CpuSequence, SequenceError> {
    use Access::{Read, Write};
    let plus_one = |offset| {
        function(vec![vector(0, offset, 2, Read), vector(1, offset, 2, Write)], |context| {
            let from = text_of(context.reads.get::<i32>(0))?;
            let to = text_of(context.writes.take::<i32>(0))?;
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from + 1);
            Ok(())
        })
    };
    let steps = vec![
        plus_one(0),
        plus_one(8),
        call(Op::Neg, vec![vector(0, 0, 4, Read), vector(3, 0, 4, Write)]),
        call(Op::Abs, vec![vector(3, 0, 4, Read), vector(3, 0, 4, Write)]),
        call(Op::Add, vec![vector(1, 0, 2, Read), vector(1, 8, 2, Read), vector(2, 0, 2, Write)]),
    ];
    let branches = [
        SequenceBranch { steps: 0..1, lane: 0, after: vec![] },
        SequenceBranch { steps: 1..4, lane: 1, after: vec![] },
        SequenceBranch { steps: 4..5, lane: 0, after: behind.to_vec() },
    ];
    let buffers = [16, 16, 8, 16].map(SequenceBuffer::Bytes).to_vec();
    CpuSequence::over(buffers, steps, &[SequenceGroup { steps: 2..4, block: 2, unstored: vec![] }], &branches)
}

#[test]
fn threads_run_branches_and_each_sees_what_it_waits_for() {
    use Access::{Read, Write};
    let sequence = two_lanes(&[1]).expect("branches that are ordered");
    assert!(sequence.calls_functions());
    // Miri cannot call what the pool of helpers asks of the operating system.
    for threads in if cfg!(miri) { 1..=1 } else { 1..=2 } {
        streamvm_kernels::set_threads(threads);
        for _ in 0..if cfg!(miri) { 3 } else { 100 } {
            let mut data = [(vec![1, 2, -30, 40], Read), (vec![0; 4], Write), (vec![0; 2], Write), (vec![0; 4], Write)];
            run(&sequence, &mut data).expect("it runs");
            assert_eq!((&data[2].0[..], &data[3].0[..]), (&[-27, 44][..], &[1, 2, 30, 40][..]), "{threads} threads");
        }
        streamvm_kernels::set_threads(1);
    }
}

#[test]
fn branches_that_could_race_or_divide_a_group_or_have_blocks_are_refused() {
    let refused = two_lanes(&[]).map(drop).expect_err("the sum reads what lane 1 writes");
    let SequenceError::Branches { step: 4, what } = &refused else { panic!("{refused}") };
    assert!(what.contains("bytes of buffer 1 that step 1 of another branch uses"), "{what}");
    let fill = |offset| SequenceStep {
        work: SequenceWork::Fill(Scalar::from(1i32)),
        operands: vec![vector(0, offset, 1, Access::Write)],
    };
    let branch = |steps, lane| SequenceBranch { steps, lane, after: vec![] };
    let halves = [branch(0..1, 0), branch(1..2, 1)];
    let over = |steps, groups: &[SequenceGroup], branches: &[SequenceBranch]| {
        CpuSequence::over(vec![SequenceBuffer::Bytes(8)], steps, groups, branches).map(drop)
    };
    assert_eq!(over(vec![fill(0), fill(4)], &[], &halves), Ok(()));
    let group = [SequenceGroup { steps: 0..2, block: 1, unstored: vec![] }];
    let text = over(vec![fill(0), fill(4)], &group, &halves).expect_err("a group is one part").to_string();
    assert!(text.contains("the steps 0..2 of its group are in several branches"), "{text}");
    let text = over(vec![fill(0), fill(4)], &[], &halves[..1]).expect_err("a step is in no branch").to_string();
    assert!(text.contains("the branches end with step 1 of 2"), "{text}");
    let condition = SequenceOperand { dtype: DType::Bool, ..vector(0, 0, 1, Access::Read) };
    let mark = |work, operands| SequenceStep { work, operands };
    let block = vec![mark(SequenceWork::If, vec![condition]), mark(SequenceWork::End, vec![])];
    let text = over(block, &[], &halves).expect_err("a block is no branch").to_string();
    assert!(text.contains("it begins or ends a block"), "{text}");
}

/// An elementwise kernel may write exactly the view that it reads; no kernel may share bytes between an input and its output in another way.
#[test]
fn an_output_that_an_input_shares_in_another_way_is_refused() {
    use Access::{Read, Write};
    let add = |input, output| call(Op::Add, vec![vector(0, 0, 2, Read), input, output]);
    let over = |step| CpuSequence::new(&[16], vec![step], &[]).map(drop);
    assert_eq!(over(add(vector(0, 8, 2, Read), vector(0, 8, 2, Write))), Ok(()));
    let text = over(add(vector(0, 8, 2, Read), vector(0, 4, 2, Write))).expect_err("it is another view").to_string();
    assert!(text.contains("needs an output that shares no bytes with an input"), "{text}");
    let SequenceStep { work: SequenceWork::Kernel(kernel, params), .. } =
        add(vector(0, 8, 2, Read), vector(0, 8, 2, Write))
    else {
        unreachable!("a kernel")
    };
    let drawn = SequenceStep {
        work: SequenceWork::Draw { kernel, params, advance: 1, in_loop: false },
        operands: vec![vector(0, 0, 2, Read), vector(0, 8, 2, Read), vector(0, 4, 2, Write)],
    };
    assert!(matches!(over(drawn), Err(SequenceError::Operands { step: 0, .. })), "a draw is no exception");
    let sum = call(Op::CumSum, vec![vector(0, 0, 2, Read), vector(0, 0, 2, Write)]);
    assert!(matches!(over(sum), Err(SequenceError::Operands { step: 0, .. })), "the op is not elementwise");
}
