//! An engine beside another pool of threads in one process: each has a thread for each core, and neither may spin for what the other
//! computes.
//!
//! Processor time belongs to the process, so each of these workloads needs a process of its own.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use rayon::prelude::*;
use rustix::time::{ClockId, clock_gettime};
use streamvm::{DType, Tensor, Vm};

use super::DEVICE;
use crate::harness::case::{Sample, Sizes};
use crate::harness::error::Error;

/// Rows and columns of a factor: each product is divided among all cores.
const SIDE: usize = 512;

/// Products, for as many operations as `Sizes::small` of the full sizes.
const PRODUCTS: usize = 40;

/// Pieces of a round of rayon, and steps of each: about as long as a part of a product.
const PIECES: usize = 64;
const STEPS: usize = 20_000;

/// Products of large matrices and work of rayon at the same time, as [`beside`].
///
/// # Errors
/// The engine failed, or a product is wrong.
pub fn beside_rayon(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    beside(sizes, &compute_by_rayon)
}

/// Products of large matrices and `other` at the same time, beside the sum of what both take alone: time and processor time. 1.0 says that
/// each leaves the cores to the other where it has nothing to compute. `other` gets a number of rounds, which take some milliseconds each.
///
/// # Errors
/// The engine failed, or a product is wrong.
pub fn beside(sizes: &Sizes, other: &(dyn Fn(usize) + Sync)) -> Result<Vec<Sample>, Error> {
    let products = (PRODUCTS * sizes.small / Sizes::FULL.small).max(1);
    let vm = Vm::builder().build()?;
    let factor = vm.full(DEVICE, DType::F32, &[SIDE, SIDE], 1.0)?;
    let others = |rounds: usize| {
        other(rounds);
        Ok(())
    };
    multiply(&factor, 2)?;
    others(1)?;
    let alone = used(|| multiply(&factor, products))?;
    let of_one = used(|| others(4))?.0 / 4.0;
    let rounds = ((alone.0 / of_one) as usize).max(1);
    let other_alone = used(|| others(rounds))?;
    let both = used(|| {
        thread::scope(|scope| {
            let other = scope.spawn(|| others(rounds));
            multiply(&factor, products)?;
            other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })?;
    let ratio = |metric: &str, value| Sample { metric: metric.to_owned(), unit: "x".to_owned(), value };
    Ok(vec![
        ratio("time_of_both_of_sum", both.0 / (alone.0 + other_alone.0)),
        ratio("processor_time_of_both_of_sum", both.1 / (alone.1 + other_alone.1)),
    ])
}

/// Products one after the other: each needs the one before.
fn multiply(factor: &Tensor, count: usize) -> Result<(), Error> {
    let mut last = factor.clone();
    for _ in 0..count {
        // The elements stay 1.
        last = (last.matmul(factor)? * (1.0 / SIDE as f64))?;
    }
    let found = last.to_vec::<f32>()?;
    if found.iter().all(|element| (element - 1.0).abs() < 1e-3) {
        return Ok(());
    }
    Err(Error::Wrong { workload: "beside", found: "a product with elements that are not 1".to_owned() })
}

/// Work of rayon, divided among all cores; rounds follow each other.
fn compute_by_rayon(rounds: usize) {
    for _ in 0..rounds {
        let sum: u64 = (0..PIECES as u64)
            .into_par_iter()
            .map(|piece| (0..STEPS as u64).fold(piece, |sum, step| black_box(sum.rotate_left(5) ^ step)))
            .reduce(|| 0, u64::wrapping_add);
        black_box(sum);
    }
}

/// Seconds, and seconds of processor time, that `work` takes.
fn used(work: impl FnOnce() -> Result<(), Error>) -> Result<(f64, f64), Error> {
    let processor_time = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let (clock, before) = (Instant::now(), processor_time());
    work()?;
    Ok((clock.elapsed().as_secs_f64(), processor_time() - before))
}
