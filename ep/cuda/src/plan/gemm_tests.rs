use streamvm_ep::{Access, DeviceKind, Kernel, KernelCall, Layout, Op, Operand, Params, Shape};

use super::*;
use crate::plan::plan;

/// An operand over `memory`, which outlives it.
fn operand(memory: &mut [f64], layout: Layout, access: Access) -> Operand<'static> {
    assert!(layout.span_elements().end <= memory.len());
    // SAFETY: the layout is within the memory, whose elements are initialised, and nothing else uses it meanwhile.
    unsafe { Operand::new(memory.as_mut_ptr().cast(), DType::F64, layout, access) }
}

fn planned(a: Layout, b: Layout, out: Layout, memory: &mut [Vec<f64>; 3]) -> Arguments {
    let [ma, mb, mo] = memory;
    let mut operands = [operand(ma, a, Access::Read), operand(mb, b, Access::Read), operand(mo, out, Access::Write)];
    let kernel = Kernel { op: Op::MatMul, device: DeviceKind::CUDA, dtype: DType::F64, run: |_| Ok(()) };
    let params = Params::default();
    let call = KernelCall::new(kernel, &mut operands, 2, &params);
    plan(&call).unwrap().unwrap().arguments
}

/// The product of BLAS, computed element by element.
///
/// # Safety
/// * The factors are in memory that is alive and that nothing else uses.
unsafe fn multiply(gemm: &Gemm) {
    let at = |factor: &Factor, product: i32, row: i32, column: i32| {
        let (row, column) = if factor.transposed { (column, row) } else { (row, column) };
        let index = i64::from(product) * factor.stride + i64::from(column) * i64::from(factor.leading) + i64::from(row);
        (factor.base as *mut f64).wrapping_offset(index as isize)
    };
    for product in 0..gemm.count {
        for row in 0..gemm.rows {
            for column in 0..gemm.columns {
                let mut sum = 0.0;
                for k in 0..gemm.depth {
                    // SAFETY: the caller guarantees this.
                    let left = unsafe { *at(&gemm.a, product, row, k) };
                    // SAFETY: the caller guarantees this.
                    sum += left * unsafe { *at(&gemm.b, product, k, column) };
                }
                // SAFETY: the caller guarantees this.
                unsafe { *at(&gemm.c, product, row, column) = sum };
            }
        }
    }
}

fn layouts(dims: &[usize]) -> Vec<Layout> {
    let rank = dims.len();
    let mut axes: Vec<usize> = (0..rank).collect();
    axes.swap(rank - 2, rank - 1);
    let flipped: Vec<usize> = axes.iter().map(|&axis| dims[axis]).collect();
    let plain = Layout::contiguous(Shape::new(dims).unwrap());
    let transposed = Layout::contiguous(Shape::new(&flipped).unwrap()).permute(&axes).unwrap();
    // A part of a wider matrix.
    let mut wide = dims.to_vec();
    wide[rank - 1] += 3;
    let part = Layout::contiguous(Shape::new(&wide).unwrap()).slice(rank - 1, 1..1 + dims[rank - 1]).unwrap();
    vec![plain, transposed, part]
}

#[test]
fn products_of_every_layout_are_those_of_the_cpu() {
    let mut taken = 0;
    for (batch, m, n, k) in
        [(0, 3, 4, 5), (0, 1, 4, 5), (0, 3, 1, 5), (0, 3, 4, 1), (0, 1, 1, 1), (2, 3, 4, 5), (3, 1, 2, 1)]
    {
        let dims = |rows, columns| if batch == 0 { vec![rows, columns] } else { vec![batch, rows, columns] };
        for a in layouts(&dims(m, k)) {
            for b in layouts(&dims(k, n)) {
                for out in layouts(&dims(m, n)) {
                    let numbers = |layout: &Layout, from: i32| {
                        (0..layout.span_elements().end as i32).map(|i| f64::from((i * 7 + from) % 11 - 5)).collect()
                    };
                    let mut memory: [Vec<f64>; 3] = [numbers(&a, 1), numbers(&b, 4), numbers(&out, 0)];
                    let mut expected = memory.clone();
                    cpu_product(a, b, out, &mut expected);
                    let arguments = planned(a, b, out, &mut memory);
                    let gemm = Gemm::of(DType::F64, &arguments).expect("one axis of each matrix has stride 1");
                    // SAFETY: the plan is over this memory.
                    unsafe { multiply(&gemm) };
                    assert_eq!(memory[2], expected[2], "{batch} {m} {n} {k}: {a:?} {b:?} {out:?}: {gemm:?}");
                    taken += 1;
                }
            }
        }
    }
    assert_eq!(taken, 7 * 27);
}

fn cpu_product(a: Layout, b: Layout, out: Layout, memory: &mut [Vec<f64>; 3]) {
    let [ma, mb, mo] = memory;
    let mut operands = [operand(ma, a, Access::Read), operand(mb, b, Access::Read), operand(mo, out, Access::Write)];
    let kernel = *streamvm_kernels::builtin().get(Op::MatMul, DeviceKind::CPU, DType::F64).as_ref().unwrap();
    let params = Params::default();
    (kernel.run)(&mut KernelCall::new(kernel, &mut operands, 2, &params)).unwrap();
}

#[test]
fn what_blas_cannot_do_is_left_to_our_kernel() {
    let shape = |dims: &[usize]| Layout::contiguous(Shape::new(dims).unwrap());
    let mut memory = [vec![0.0; 64], vec![0.0; 64], vec![0.0; 64]];
    let square = planned(shape(&[2, 2]), shape(&[2, 2]), shape(&[2, 2]), &mut memory);
    assert!(Gemm::of(DType::F64, &square).is_some());
    assert_eq!(Gemm::of(DType::I32, &square), None, "integers");
    let no_depth = planned(shape(&[2, 0]), shape(&[0, 2]), shape(&[2, 2]), &mut memory);
    assert_eq!(Gemm::of(DType::F64, &no_depth), None, "a product of depth 0");
    let gaps = Layout::with_strides(Shape::new(&[2, 2]).unwrap(), &[8, 2], 0).unwrap();
    let gapped = planned(gaps, shape(&[2, 2]), shape(&[2, 2]), &mut memory);
    assert_eq!(Gemm::of(DType::F64, &gapped), None, "gaps along both axes");
    let broadcast = shape(&[1, 2]).broadcast_to(&Shape::new(&[2, 2]).unwrap()).unwrap();
    let repeated = planned(broadcast, shape(&[2, 2]), shape(&[2, 2]), &mut memory);
    assert_eq!(Gemm::of(DType::F64, &repeated), None, "a matrix that repeats one row");
}
