//! The system's allocator, for the sizes of the allocator workload. It has no streams and need not track accesses.

use std::hint::black_box;
use std::time::Instant;

use crate::harness::case::{Sample, Sizes};
use crate::harness::error::Error;
use crate::parts::allocator::{BYTES, LIVE};

/// Time to free the oldest block and allocate another one.
///
/// # Errors
/// None.
pub fn malloc(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let take = |turn: usize| black_box(Vec::<u8>::with_capacity(BYTES[turn % BYTES.len()]));
    let mut live: Vec<_> = (0..LIVE).map(take).collect();
    let mut turns = |count: usize| {
        let start = Instant::now();
        for turn in 0..count {
            let oldest = &mut live[turn % LIVE];
            drop(std::mem::take(oldest));
            *oldest = take(turn);
        }
        start.elapsed().as_nanos() as f64 / count as f64
    };
    turns(sizes.warm_up().ops);
    Ok(vec![Sample::ns("ns_per_op", turns(sizes.ops))])
}
