//! The small op: eager additions of 1,024 elements, each into a new tensor, each reading the one before.

use std::time::Instant;

use streamvm::{Tensor, Vm};

use super::DEVICE;
use crate::harness::case::{Sample, Sizes};
use crate::harness::error::Error;

/// Elements of each tensor, f32.
pub const ELEMENTS: usize = 1_024;

/// Time of one addition.
///
/// # Errors
/// The engine failed, or the sum is wrong.
pub fn small_op(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let vm = Vm::builder().build()?;
    let ones = vm.from_slice(&[1.0f32; ELEMENTS], &[ELEMENTS])?.to(DEVICE)?;
    let zeros = vm.from_slice(&[0.0f32; ELEMENTS], &[ELEMENTS])?.to(DEVICE)?;
    let (warm, _) = additions(&zeros, &ones, sizes.warm_up().small)?;
    let (sum, ns) = additions(&warm, &ones, sizes.small)?;
    // f32 counts exactly up to 2^24.
    let expected = (sizes.warm_up().small + sizes.small) as f32;
    if sum.to_vec::<f32>()?.iter().any(|element| *element != expected) {
        return Err(Error::Wrong { workload: "small_op", found: format!("a sum is not {expected}") });
    }
    Ok(vec![Sample::ns("ns_per_op", ns)])
}

fn additions(start: &Tensor, ones: &Tensor, count: usize) -> Result<(Tensor, f64), Error> {
    let mut sum = start.clone();
    let clock = Instant::now();
    for _ in 0..count {
        sum = sum.add(ones)?;
    }
    sum.wait()?;
    Ok((sum, clock.elapsed().as_nanos() as f64 / count as f64))
}
