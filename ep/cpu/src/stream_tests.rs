use streamvm_ep::{Access, DType, Kernel, KernelError, Layout, Op, Params, Shape};

use super::*;

fn stream() -> (CpuStream, Arc<EventPool>) {
    let events = Arc::new(EventPool::new());
    (CpuStream::new(DeviceId::cpu(0), 1, events.clone(), Arc::new(OpStates::new(DeviceId::cpu(0)))), events)
}

fn dense(dims: &[usize]) -> Layout {
    Layout::contiguous(Shape::new(dims).unwrap())
}

fn over<T>(memory: &mut [T], dtype: DType, layout: Layout, access: Access) -> Operand<'static> {
    assert!(layout.span_elements().end * dtype.size() <= size_of_val(memory));
    // SAFETY: the span is within the memory, which the test keeps alive and accesses only between the stream's commands.
    unsafe { Operand::new(memory.as_mut_ptr().cast(), dtype, layout, access) }
}

#[test]
fn waiting_needs_a_record() {
    let (mut stream, events) = stream();
    let event = events.acquire();
    let device = DeviceId::cpu(0);
    assert_eq!(stream.wait(event), Err(Error::EventNotRecorded { event, device }));
    stream.record(event).unwrap();
    stream.wait(event).unwrap();
    events.release(event).unwrap();
    assert_eq!(stream.wait(event), Err(Error::StaleEvent { event }));
    assert_eq!(stream.record(event), Err(Error::StaleEvent { event }));
    stream.synchronize().unwrap();
}

#[test]
fn copies_between_any_strides() {
    let (mut stream, _) = stream();
    let mut from = [1i32, 2, 3, 4, 5, 6];
    let mut to = [0i32; 8];
    let turned = dense(&[3, 2]).permute(&[1, 0]).unwrap();
    let source = over(&mut from, DType::I32, turned, Access::Read);
    let part = dense(&[2, 4]).slice(1, 1..4).unwrap();
    let mut target = over(&mut to, DType::I32, part, Access::Write);
    stream.copy(&source, &mut target).unwrap();
    assert_eq!(to, [0, 1, 3, 5, 0, 2, 4, 6]);
}

#[test]
fn copies_of_every_size_and_of_nothing() {
    let (mut stream, _) = stream();
    for dtype in DType::ALL {
        let mut from = [0x0102_0304_0506_0708u64; 3];
        let mut to = [0u64; 3];
        let elements = 24 / dtype.size();
        let source = over(&mut from, dtype, dense(&[elements]), Access::Read);
        let mut target = over(&mut to, dtype, dense(&[elements]), Access::Write);
        stream.copy(&source, &mut target).unwrap();
        assert_eq!(to, from, "{dtype}");
        let source = over(&mut from, dtype, dense(&[0]), Access::Read);
        let mut target = over(&mut to, dtype, dense(&[0]), Access::Write);
        stream.copy(&source, &mut target).unwrap();
    }
}

#[test]
fn bad_copies_are_refused() {
    let (mut stream, _) = stream();
    let (mut from, mut to) = ([1f32; 4], [0f32; 4]);
    let source = over(&mut from, DType::F32, dense(&[4]), Access::Read);
    let mut other = over(&mut to, DType::F32, dense(&[2, 2]), Access::Write);
    let text = stream.copy(&source, &mut other).unwrap_err().to_string();
    assert!(text.contains("f32[4]") && text.contains("f32[2,2]"), "{text}");
    let mut other = over(&mut to, DType::I32, dense(&[4]), Access::Write);
    assert!(matches!(stream.copy(&source, &mut other), Err(Error::CopyMismatch { .. })));
    let mut other = over(&mut to, DType::F32, dense(&[4]), Access::Read);
    assert_eq!(stream.copy(&source, &mut other), Err(Error::NotWritable));
    let wide = dense(&[]).broadcast_to(&Shape::new(&[4]).unwrap()).unwrap();
    let mut other = over(&mut to, DType::F32, wide, Access::Write);
    assert!(matches!(stream.copy(&source, &mut other), Err(Error::OverlapsItself { .. })));
    assert_eq!(to, [0.0; 4]);
}

#[test]
fn a_copy_onto_itself_does_nothing_and_onto_part_of_itself_is_refused() {
    let (mut stream, _) = stream();
    let mut memory = [1u8, 2, 3, 4];
    let base = memory.as_mut_ptr();
    let part = |start, end, access| {
        let layout = dense(&[4]).slice(0, start..end).unwrap();
        // SAFETY: the view is within the four bytes, and the two operands are used together in one copy.
        unsafe { Operand::new(base, DType::U8, layout, access) }
    };
    stream.copy(&part(0, 3, Access::Read), &mut part(0, 3, Access::Write)).unwrap();
    let refused = stream.copy(&part(0, 3, Access::Read), &mut part(1, 4, Access::Write));
    assert!(matches!(refused, Err(Error::Overlap { .. })));
    assert_eq!(memory, [1, 2, 3, 4]);
}

#[test]
fn fill_writes_the_view_alone() {
    let (mut stream, _) = stream();
    let mut memory = [0f32; 6];
    let column = dense(&[3, 2]).slice(1, 1..2).unwrap();
    let mut target = over(&mut memory, DType::F32, column, Access::Write);
    stream.fill(&mut target, Scalar::F64(1.5)).unwrap();
    stream.fill(&mut target, Scalar::I64(2)).unwrap();
    assert_eq!(memory, [0.0, 2.0, 0.0, 2.0, 0.0, 2.0]);
}

#[test]
fn fill_works_for_every_dtype_and_refuses_what_does_not_fit() {
    let (mut stream, _) = stream();
    let mut memory = [u64::MAX; 4];
    let values = [Scalar::F64(1.0), Scalar::I64(1), Scalar::Bool(true)];
    for dtype in DType::ALL {
        for value in values {
            memory.fill(u64::MAX);
            let mut target = over(&mut memory, dtype, dense(&[3]), Access::Write);
            let filled = stream.fill(&mut target, value);
            if !value.fits(dtype) {
                assert_eq!(filled, Err(Error::ScalarDoesNotFit { value, dtype }));
                assert_eq!(memory, [u64::MAX; 4]);
                continue;
            }
            let one: Vec<u8> = match dtype {
                DType::F32 => 1f32.to_ne_bytes().to_vec(),
                DType::F64 => 1f64.to_ne_bytes().to_vec(),
                DType::F16 => half::f16::ONE.to_ne_bytes().to_vec(),
                DType::BF16 => half::bf16::ONE.to_ne_bytes().to_vec(),
                DType::I16 | DType::U16 => 1u16.to_ne_bytes().to_vec(),
                DType::I32 | DType::U32 => 1u32.to_ne_bytes().to_vec(),
                DType::I64 | DType::U64 => 1u64.to_ne_bytes().to_vec(),
                DType::I8 | DType::U8 | DType::Bool => vec![1],
            };
            assert_eq!(target.bytes().unwrap(), one.repeat(3), "{dtype}");
        }
    }
    let mut target = over(&mut memory, DType::U8, dense(&[3]), Access::Read);
    assert_eq!(stream.fill(&mut target, Scalar::I64(1)), Err(Error::NotWritable));
}

fn custom(op: Op, device: DeviceKind, run: streamvm_ep::KernelFn) -> Kernel {
    Kernel { op, device, dtype: DType::U8, run }
}

#[test]
fn a_kernel_of_another_device_is_refused() {
    let (mut stream, _) = stream();
    let kernel = custom(Op::Neg, DeviceKind::CUDA, |_| panic!("must not run"));
    let refused = stream.launch(&mut KernelCall::new(kernel, &mut [], 0, &Params::default()));
    assert!(matches!(refused, Err(Error::WrongDevice { .. })));
}

#[test]
fn a_registered_kernel_gets_no_slices_of_operands_in_place() {
    let (mut stream, _) = stream();
    let mut memory = [1u8, 2, 3];
    let base = memory.as_mut_ptr();
    let all = |access| {
        // SAFETY: the view has three elements, and the operands are used together in one launch.
        unsafe { Operand::new(base, DType::U8, dense(&[3]), access) }
    };
    let mut operands = [all(Access::Read), all(Access::Write)];
    let kernel = custom(Op::Neg, DeviceKind::CPU, |call| {
        assert_eq!(call.operands[1].slice_mut::<u8>(), Err(Error::SharedOperand));
        call.operands[0].slice::<u8>()?;
        Ok(())
    });
    let refused = stream.launch(&mut KernelCall::new(kernel, &mut operands, 1, &Params::default()));
    assert!(matches!(refused, Err(Error::Kernel(KernelError::Other(_)))), "{refused:?}");
}

#[test]
fn a_registered_kernel_that_is_not_elementwise_does_not_run_in_place() {
    let (mut stream, _) = stream();
    let mut memory = [1u8, 2, 3];
    let base = memory.as_mut_ptr();
    let all = |access| {
        // SAFETY: the view has three elements, and the operands are used together in one launch.
        unsafe { Operand::new(base, DType::U8, dense(&[3]), access) }
    };
    let kernel = custom(Op::Softmax, DeviceKind::CPU, |_| panic!("must not run"));
    let mut operands = [all(Access::Read), all(Access::Write)];
    let refused = stream.launch(&mut KernelCall::new(kernel, &mut operands, 1, &Params::default()));
    assert!(matches!(refused, Err(Error::Kernel(KernelError::Overlap { .. }))));
}
