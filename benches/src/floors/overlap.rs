//! The floor of overlap: two plain threads that share nothing. On a shared machine, they may take as long as one thread for both.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use streamvm::{DType, Mode, Tensor, Vm};

use crate::harness::case::{Sample, Sizes};
use crate::harness::error::Error;
use crate::workloads::DEVICE;
use crate::workloads::overlap::{COPIED, COPIES, ORDERS, PRODUCTS, SIDE};

/// Products on two threads beside all of them on one, as often as the workload measures them; and copies on one thread beside products on the other, of the longer of the two
/// alone. The products are the engine's kernels, called by an engine that runs in the calling thread, one for each thread.
///
/// # Errors
/// An engine failed.
pub fn overlap(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let count = (PRODUCTS * sizes.small / Sizes::FULL.small).max(2);
    let (first, second) = (Products::new()?, Products::new()?);
    side_by_side(|| first.multiply(count), || second.multiply(count))?;
    let mut one = 0.0;
    let mut two_of_one = Vec::new();
    for _ in ORDERS {
        one = timed(|| first.multiply(2 * count))?;
        two_of_one.push(side_by_side(|| first.multiply(count), || second.multiply(count))? / one);
    }
    two_of_one.sort_by(f64::total_cmp);

    let copies = (COPIES * sizes.small / Sizes::FULL.small).max(1);
    let (source, mut target) = (vec![1.0f32; COPIED], vec![0.0f32; COPIED]);
    let mut copy = |count: usize| {
        (0..count).for_each(|_| std::hint::black_box(&mut target).copy_from_slice(&source));
        Ok(())
    };
    copy(1)?;
    // As many products as take about as long as the copies.
    let of_copies = timed(|| copy(copies))?;
    let count = ((of_copies * 2.0 * count as f64 / one) as usize).max(1);
    let longer = timed(|| first.multiply(count))?.max(of_copies);
    let both = side_by_side(|| first.multiply(count), || copy(copies))?;
    let ratio = |metric: &str, value| Sample { metric: metric.to_owned(), unit: "x".to_owned(), value };
    Ok(vec![
        ratio("two_threads_of_one_median", two_of_one[two_of_one.len() / 2]),
        ratio("two_threads_of_one_worst", two_of_one[two_of_one.len() - 1]),
        ratio("copies_and_products_of_the_longer", both / longer),
    ])
}

/// A factor, and the engine that multiplies it by itself in the calling thread.
struct Products {
    /// Kept for the factor.
    _vm: Vm,
    factor: Tensor,
}

impl Products {
    fn new() -> Result<Products, Error> {
        let vm = Vm::builder().mode(Mode::Inline).kernel_threads(1).build()?;
        let factor = vm.full(DEVICE, DType::F32, &[SIDE, SIDE], 1.0)?;
        Ok(Products { _vm: vm, factor })
    }

    fn multiply(&self, count: usize) -> Result<(), Error> {
        (0..count).try_for_each(|_| Ok(self.factor.matmul(&self.factor).map(drop)?))
    }
}

/// Nanoseconds of `work`.
fn timed(work: impl FnOnce() -> Result<(), Error>) -> Result<f64, Error> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_nanos() as f64)
}

/// Nanoseconds until both are over, on two threads that begin at the same time.
fn side_by_side(
    first: impl FnOnce() -> Result<(), Error>,
    second: impl FnOnce() -> Result<(), Error> + Send,
) -> Result<f64, Error> {
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            barrier.wait();
            second()
        });
        barrier.wait();
        timed(|| {
            let own = first();
            other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).and(own)
        })
    })
}
