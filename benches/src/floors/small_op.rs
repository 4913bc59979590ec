//! The floor of the small op: a plain loop over memory that is allocated already.

use std::hint::black_box;
use std::time::Instant;

use crate::harness::case::{Sample, Sizes};
use crate::harness::error::Error;
use crate::workloads::small_op::ELEMENTS;

/// Adds one to each of 1,024 elements, from one buffer into the other and back.
///
/// # Errors
/// The sum is wrong.
pub fn small_op(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let ones = vec![1.0f32; ELEMENTS];
    let (mut source, mut target) = (vec![0.0f32; ELEMENTS], vec![0.0f32; ELEMENTS]);
    let mut run = |count: usize| {
        let start = Instant::now();
        for _ in 0..count {
            add(&source, &ones, black_box(&mut target));
            std::mem::swap(&mut source, &mut target);
        }
        start.elapsed().as_nanos() as f64 / count as f64
    };
    run(sizes.warm_up().small);
    let ns = run(sizes.small);
    let expected = (sizes.warm_up().small + sizes.small) as f32;
    if source.iter().any(|element| *element != expected) {
        return Err(Error::Wrong { workload: "floor/small_op", found: format!("a sum is not {expected}") });
    }
    Ok(vec![Sample::ns("ns_per_op", ns)])
}

/// Not inlined, so that the compiler cannot merge two operations, as an engine cannot either.
#[inline(never)]
fn add(left: &[f32], right: &[f32], sum: &mut [f32]) {
    for ((sum, left), right) in sum.iter_mut().zip(left).zip(right) {
        *sum = left + right;
    }
}
