//! The caching allocator: blocks of several sizes are allocated and freed on one stream, all from the cache.

use std::time::Instant;

use streamvm::stream::allocator::{AccessSet, Allocator, AllocatorConfig, BlockId, Want};
use streamvm::stream::{Point, StreamId};

use crate::harness::case::{Sample, Sizes};
use crate::harness::error::Error;

/// Blocks in use at a time: the tensors of a small model.
pub const LIVE: usize = 64;

/// The requested sizes in bytes, in turn: vectors and small matrices, not all of them powers of two.
pub const BYTES: [usize; 7] = [256, 4_096, 1_000, 65_536, 512, 12_288, 2_048];

/// The stream of all blocks.
const STREAM: StreamId = StreamId(0);

/// Time to free the oldest block, with an access that is still pending, and to allocate another one.
///
/// # Errors
/// The allocator failed, or requested memory of a driver during the measurement.
pub fn allocator(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let mut allocator = Allocator::new(AllocatorConfig::default())?;
    let region = allocator.region_request(LIVE * BYTES.iter().sum::<usize>())?;
    allocator.add_region(region)?;
    let mut live = (0..LIVE).map(|turn| take(&mut allocator, turn)).collect::<Result<Vec<_>, Error>>()?;
    let mut seq = 0;
    let mut turns = |count: usize| -> Result<f64, Error> {
        let start = Instant::now();
        for turn in 0..count {
            seq += 1;
            let oldest = &mut live[turn % LIVE];
            allocator.free(*oldest, AccessSet::from_iter([Point::new(STREAM, seq)]))?;
            *oldest = take(&mut allocator, turn)?;
        }
        Ok(start.elapsed().as_nanos() as f64 / count as f64)
    };
    turns(sizes.warm_up().ops)?;
    let ns = turns(sizes.ops)?;
    let blocks = allocator.stats().blocks;
    if blocks != LIVE {
        let found = format!("{blocks} blocks are in use, not {LIVE}");
        return Err(Error::Wrong { workload: "allocator", found });
    }
    Ok(vec![Sample::ns("ns_per_pair", ns)])
}

fn take(allocator: &mut Allocator, turn: usize) -> Result<BlockId, Error> {
    let nothing_passed = |_: Point| false;
    let bytes = BYTES[turn % BYTES.len()];
    let found = allocator.alloc(bytes, Want::NoWait { stream: STREAM }, &nothing_passed);
    found.map(|found| found.block.id).ok_or_else(|| Error::Wrong {
        workload: "allocator",
        found: format!("the cache has no block of {bytes} bytes for its own stream"),
    })
}
