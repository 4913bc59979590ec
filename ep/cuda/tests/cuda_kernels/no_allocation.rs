//! The hot path allocates nothing: looking up a kernel, launching an elementwise op, a reduction or
//! a softmax, planning a launch on CUDA, and storing and calling a small closure.

use std::alloc::{GlobalAlloc, Layout as HeapLayout, System};
use std::cell::Cell;

use streamvm_cpu::{CpuConfig, CpuDevice};
use streamvm_ep::*;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// The system allocator, counting the allocations of each thread.
struct Counting;

// SAFETY: every call is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: HeapLayout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's duties are those of the system allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: HeapLayout) {
        // SAFETY: the caller's duties are those of the system allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn launching_allocates_nothing() {
    let kernels = streamvm_kernels::builtin();
    let device = CpuDevice::new(0, CpuConfig::default());
    let mut stream = device.create_stream().unwrap();
    let ops = [
        (Op::Add, &[8, 4][..], &[8, 4][..], &[8, 4][..]),
        (Op::Mul, &[8, 4], &[4], &[8, 4]),
        (Op::Exp, &[8, 4], &[], &[8, 4]),
        (Op::Sum, &[8, 4], &[], &[8]),
        (Op::ReduceMax, &[8, 4], &[], &[8]),
        (Op::Softmax, &[8, 4], &[], &[8, 4]),
        (Op::Pad, &[8, 4], &[], &[8, 6]),
    ];
    let mut memory = vec![1f32; 112];
    let params = Params::pad(Axes::new(&[1]).unwrap(), 1, 1, 0.5);
    for (op, left, right, result) in ops {
        let base = memory.as_mut_ptr().cast::<u8>();
        let operand = |at: usize, dims: &[usize], access| {
            let layout = Layout::contiguous(Shape::new(dims).unwrap());
            // SAFETY: each operand has at most 32 elements, the last 48, 32 apart, in a memory of 112.
            unsafe { Operand::new(base.wrapping_add(at * 128), DType::F32, layout, access) }
        };
        let found = allocations(|| {
            let (a, b) = (operand(0, left, Access::Read), operand(1, right, Access::Read));
            let out = operand(2, result, Access::Write);
            let kernel = kernels.get(op, DeviceKind::CPU, DType::F32).unwrap();
            let inputs = op.arity();
            let launched = match inputs {
                1 => stream.launch(&mut KernelCall::new(kernel, &mut [a, out], inputs, &params)),
                _ => stream.launch(&mut KernelCall::new(kernel, &mut [a, b, out], inputs, &params)),
            };
            launched.unwrap();
        });
        assert_eq!(found, 0, "{op}");
    }
}

#[test]
fn planning_a_launch_allocates_nothing() {
    let transposed = Layout::contiguous(Shape::new(&[4, 8]).unwrap()).permute(&[1, 0]).unwrap();
    let dense = |dims: &[usize]| Layout::contiguous(Shape::new(dims).unwrap());
    let (whole, over_last) = (dense(&[8, 4]), Params::pad(Axes::new(&[1]).unwrap(), 1, 1, 0.5));
    let calls = [
        (Op::Add, whole, whole, whole),
        (Op::Mul, whole, dense(&[4]), whole),
        (Op::Sub, whole, transposed, whole),
        (Op::Exp, whole, whole, whole),
        (Op::Sum, whole, whole, dense(&[8])),
        (Op::ArgMax, whole, whole, dense(&[8])),
        (Op::Softmax, transposed, whole, whole),
        (Op::Pad, transposed, whole, dense(&[8, 6])),
        (Op::MatMul, whole, transposed.permute(&[1, 0]).unwrap(), dense(&[8, 8])),
    ];
    // A plan reads no element.
    let operand = |at: usize, dtype, layout, access| {
        // SAFETY: never read or written.
        unsafe { Operand::new(std::ptr::without_provenance_mut(at << 20), dtype, layout, access) }
    };
    for (op, left, right, result) in calls {
        let found = allocations(|| {
            let out_dtype = if op == Op::ArgMax { DType::I64 } else { DType::F32 };
            let a = operand(1, DType::F32, left, Access::Read);
            let out = operand(3, out_dtype, result, Access::Write);
            let kernel = Kernel { op, device: DeviceKind::CUDA, dtype: DType::F32, run: |_| Ok(()) };
            let (inputs, params) = (op.arity(), &over_last);
            let planned = match inputs {
                1 => streamvm_cuda::plan(&KernelCall::new(kernel, &mut [a, out], inputs, params)),
                _ => {
                    let b = operand(2, DType::F32, right, Access::Read);
                    streamvm_cuda::plan(&KernelCall::new(kernel, &mut [a, b, out], inputs, params))
                }
            };
            planned.unwrap().unwrap();
        });
        assert_eq!(found, 0, "{op}");
    }
    let target = operand(1, DType::F32, transposed, Access::Write);
    let source = operand(2, DType::F32, whole, Access::Read);
    assert_eq!(allocations(|| _ = streamvm_cuda::plan_fill(&target, Scalar::F64(0.5)).unwrap().unwrap()), 0);
    assert_eq!(allocations(|| _ = streamvm_cuda::plan_copy(&source, &target).unwrap()), 0);
}

#[test]
fn a_small_closure_allocates_nothing() {
    let mut memory = [1f32; 8];
    let layout = Layout::contiguous(Shape::new(&[8]).unwrap());
    let base = memory.as_mut_ptr().cast();
    let captures = [2f32; 8];
    let found = allocations(|| {
        // SAFETY: the memory has eight elements, and only the closure touches it.
        let mut operands = [unsafe { Operand::new(base, DType::F32, layout, Access::ReadWrite) }];
        let mut f = InlineFn::new(move |context| {
            for (value, capture) in context.writes.take::<f32>(0)?.iter_mut().zip(captures) {
                *value += capture;
            }
            Ok(())
        });
        let mut context = FnContext::new(&mut operands).unwrap();
        f.call(&mut context).unwrap();
    });
    assert_eq!((found, memory), (0, [3.0; 8]));
}
