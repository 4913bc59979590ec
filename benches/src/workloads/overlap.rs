//! Overlap: streams that run side by side on the threads of a CPU, as ratios within one run.
//!
//! Each kernel runs on one thread here, so that what overlaps are the streams.

use std::time::Instant;

use streamvm::{DType, InstructionsBuilder, Lane, Tensor, Vm};

use super::DEVICE;
use crate::harness::case::{Sample, Sizes};
use crate::harness::error::Error;

/// Rows and columns of the factors of one product; about 0.2 ms on one core.
pub const SIDE: usize = 192;

/// Products of one lane, and operations of `Sizes::small` for each.
pub const PRODUCTS: usize = 64;

/// Elements of a copied tensor: 8 MB.
pub const COPIED: usize = 2 << 20;

/// Copies beside products.
pub const COPIES: usize = 16;

/// Two lanes of products beside one lane with all of them, in every order in which their streams are first used; and copies out of pinned
/// memory beside products, beside the longer of the two alone.
///
/// # Errors
/// The engine failed.
pub fn overlap(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let products = (PRODUCTS * sizes.small / Sizes::FULL.small).max(2);
    let mut lanes: Vec<f64> = Vec::new();
    for order in ORDERS {
        let vm = engine()?;
        first_use(&vm, order)?;
        // Once to fault the memory in.
        products_on(&vm, &[0, 1], products)?;
        let one = products_on(&vm, &[0], 2 * products)?;
        let two = products_on(&vm, &[0, 1], products)?;
        lanes.push(two / one);
    }
    lanes.sort_by(f64::total_cmp);
    let copies = (COPIES * sizes.small / Sizes::FULL.small).max(1);
    let vm = engine()?;
    let beside = copies_beside_products(&vm, copies)?;
    let ratio = |metric: &str, value| Sample { metric: metric.to_owned(), unit: "x".to_owned(), value };
    Ok(vec![
        ratio("two_lanes_of_one_median_order", lanes[lanes.len() / 2]),
        ratio("two_lanes_of_one_worst_order", lanes[lanes.len() - 1]),
        ratio("copies_and_products_of_the_longer", beside),
    ])
}

/// Orders of first use of compute on lanes 0 and 1, and copies in on lanes 0 and 1: all that differ in how the two compute streams fall.
pub const ORDERS: [[usize; 4]; 6] =
    [[0, 1, 2, 3], [0, 2, 1, 3], [0, 2, 3, 1], [2, 0, 1, 3], [2, 0, 3, 1], [2, 3, 0, 1]];

fn engine() -> Result<Vm, Error> {
    Ok(Vm::builder().kernel_threads(1).build()?)
}

/// Uses the four streams for the first time, in this order.
fn first_use(vm: &Vm, order: [usize; 4]) -> Result<(), Error> {
    let pinned = vm.from_slice_pinned(DEVICE, &[1.0f32], &[1])?;
    for stream in order {
        let _lane = Lane(stream as u32 % 2).enter();
        let used = if stream < 2 { vm.full(DEVICE, DType::F32, &[1], 1.0)? } else { copy_in(vm, &pinned)? };
        used.wait()?;
    }
    Ok(())
}

fn copy_in(vm: &Vm, pinned: &Tensor) -> Result<Tensor, Error> {
    let mut b = InstructionsBuilder::new();
    let copy = b.copy(pinned, DEVICE)?;
    vm.submit(b.finish())?;
    Ok(copy)
}

/// Adds `count` products to a list, on the lane that it has. They do not depend on each other.
fn add_products(b: &mut InstructionsBuilder, factor: &Tensor, count: usize) -> Result<Vec<Tensor>, Error> {
    Ok((0..count).map(|_| b.matmul(factor, factor)).collect::<Result<_, _>>()?)
}

/// Nanoseconds of `count` products on each of `lanes`.
fn products_on(vm: &Vm, lanes: &[u32], count: usize) -> Result<f64, Error> {
    let factor = vm.full(DEVICE, DType::F32, &[SIDE, SIDE], 1.0)?;
    factor.wait()?;
    let mut b = InstructionsBuilder::new();
    let mut products = Vec::new();
    for lane in lanes {
        products.extend(add_products(&mut b.on_lane(*lane), &factor, count)?);
    }
    let start = Instant::now();
    vm.submit(b.finish())?;
    vm.wait_all()?;
    let ns = start.elapsed().as_nanos() as f64;
    check(&products)?;
    Ok(ns)
}

/// The time of copies and products side by side, of the time that the longer of the two takes alone.
fn copies_beside_products(vm: &Vm, copies: usize) -> Result<f64, Error> {
    let source = vm.from_slice_pinned(DEVICE, &vec![1.0f32; COPIED], &[COPIED])?;
    let target = vm.full(DEVICE, DType::F32, &[COPIED], 0.0)?;
    let factor = vm.full(DEVICE, DType::F32, &[SIDE, SIDE], 1.0)?;
    vm.wait_all()?;
    let timed = |copies: usize, products: usize| -> Result<f64, Error> {
        let mut b = InstructionsBuilder::new();
        let products = add_products(&mut b, &factor, products)?;
        for _ in 0..copies {
            b.copy_into(&source, &target)?;
        }
        let start = Instant::now();
        vm.submit(b.finish())?;
        vm.wait_all()?;
        let ns = start.elapsed().as_nanos() as f64;
        check(&products)?;
        Ok(ns)
    };
    timed(1, 1)?;
    // As many products as take about as long as the copies.
    let (of_copies, of_one) = (timed(copies, 0)?, timed(0, 8)? / 8.0);
    let products = ((of_copies / of_one) as usize).max(1);
    let longer = timed(0, products)?.max(of_copies);
    Ok(timed(copies, products)? / longer)
}

/// Every product of matrices of ones is [`SIDE`] everywhere.
fn check(products: &[Tensor]) -> Result<(), Error> {
    let Some(last) = products.last() else { return Ok(()) };
    let found = last.to_vec::<f32>()?;
    if found.iter().all(|element| *element == SIDE as f32) {
        return Ok(());
    }
    Err(Error::Wrong { workload: "overlap", found: format!("a product with other elements than {SIDE}") })
}
