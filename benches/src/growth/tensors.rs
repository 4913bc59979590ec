//! Operations while many tensors are alive: each has its own memory, dependence state, and block in the allocator.

use std::time::Instant;

use streamvm::{DType, InstructionsBuilder, Op, Params, Tensor, Vm};

use crate::harness::case::Sample;
use crate::harness::error::Error;
use crate::workloads::DEVICE;
use crate::workloads::graph::LIST;

/// Elements of a tensor, f32: one block of the smallest size, so that a million tensors take 64 MB.
const ELEMENTS: [usize; 1] = [16];

/// Additions to one tensor after the other, in two forms: in place, in lists; and eager, where each takes a new tensor from the cache
/// and frees the old one.
///
/// # Errors
/// The engine failed, or a sum is wrong.
pub fn tensors(count: usize, ops: usize) -> Result<Vec<Sample>, Error> {
    let vm = Vm::builder().build()?;
    let one = vm.full(DEVICE, DType::F32, &ELEMENTS, 1)?;
    let mut tensors = zeros(&vm, count)?;
    // Whole rounds over the tensors, so that the expected sums are known.
    let (rounds, ops) = (ops.div_ceil(count), ops.next_multiple_of(count));

    let in_place = |first: usize| {
        let mut builder = InstructionsBuilder::new();
        for op in first..ops.min(first + LIST) {
            let tensor = &tensors[op % count];
            builder.op_into(Op::Add, &[tensor, &one], Params::default(), tensor)?;
        }
        vm.submit(builder.finish()).map(drop)
    };
    let mut in_lists = 0.0;
    for _warm in [false, true] {
        let start = Instant::now();
        (0..ops).step_by(LIST).try_for_each(in_place)?;
        vm.wait_all()?;
        in_lists = start.elapsed().as_nanos() as f64 / ops as f64;
    }

    let mut eager = 0.0;
    for _warm in [false, true] {
        let start = Instant::now();
        for op in 0..ops {
            let tensor = &mut tensors[op % count];
            *tensor = tensor.add(&one)?;
        }
        vm.wait_all()?;
        eager = start.elapsed().as_nanos() as f64 / ops as f64;
    }

    let (expected, last) = ((4 * rounds) as f32, tensors[count - 1].to_vec::<f32>()?);
    if last.iter().any(|sum| *sum != expected) {
        let found = format!("the last of {count} sums is {last:?}, not {expected}");
        return Err(Error::Wrong { workload: "tensors", found });
    }
    Ok(vec![Sample::ns("in place, in lists", in_lists), Sample::ns("eager", eager)])
}

fn zeros(vm: &Vm, count: usize) -> Result<Vec<Tensor>, Error> {
    let mut tensors = Vec::with_capacity(count);
    while tensors.len() < count {
        let mut builder = InstructionsBuilder::new();
        for _ in 0..LIST.min(count - tensors.len()) {
            tensors.push(builder.full(DEVICE, DType::F32, &ELEMENTS, 0)?);
        }
        vm.submit(builder.finish())?;
    }
    vm.wait_all()?;
    Ok(tensors)
}
