//! Taking memory of the device and giving it back.

use streamvm::DType;

use super::{LIST, Settings, engine, in_lists};
use crate::CUDA;
use crate::contest::error::Error;
use crate::contest::{Contender, Outcome};
use crate::hand::{Cuda, DeviceMemory};

/// Bytes of each.
const BYTES: usize = 1 << 20;

/// A take and a give back in the order of a stream, beside `cuMemAllocAsync` and `cuMemFreeAsync`, whose pool may keep all
/// memory, and beside `cuMemAlloc` and `cuMemFree`.
///
/// # Errors
/// There is no device.
pub fn allocator(settings: &Settings) -> Result<Outcome, Error> {
    let count = settings.sizes.takes;
    let work = format!("{count} times 1 MiB of the device taken and given back");
    let mut outcome = Outcome::new("allocator", "ns a take and give back", work);
    let vm = engine()?;
    let pair = |builder: &mut streamvm::InstructionsBuilder| {
        let taken = builder.allocate(CUDA, DType::F32, &[BYTES / 4])?;
        builder.release(&taken);
        Ok(())
    };
    let cuda = Cuda::open()?;
    let stream = cuda.stream()?;
    let asynchronous = || {
        for _ in 0..count {
            stream.take_and_give_back(BYTES)?;
        }
        Ok(stream.synchronize()?)
    };
    // Each waits for the device: a part is enough, and a driver that has no pools has these.
    let few = (count / 64).max(1);
    let blocking = || {
        let start = std::time::Instant::now();
        for _ in 0..few {
            drop(DeviceMemory::new(&cuda, BYTES)?);
        }
        Ok(start.elapsed().mul_f64(count as f64 / few as f64))
    };
    let mut contenders = vec![
        // A pair is two instructions.
        Contender::timed("streamvm, lists of 64", || in_lists(&vm, count, LIST / 2, pair)),
        Contender::timed("streamvm, one pair at a time", || in_lists(&vm, count, 1, pair)),
        Contender { name: "cuMemAlloc and cuMemFree", run: Box::new(blocking) },
    ];
    if cuda.has_pools()? {
        cuda.keep_pool()?;
        contenders.push(Contender::timed("cuMemAllocAsync and cuMemFreeAsync", asynchronous));
    } else {
        outcome.add_missing("cuMemAllocAsync and cuMemFreeAsync", "the device has no memory pools");
    }
    outcome.contest(settings.runs, count as f64, contenders);
    for of in ["streamvm, lists of 64", "streamvm, one pair at a time"] {
        outcome.compare(of, &["cuMemAllocAsync and cuMemFreeAsync", "cuMemAlloc and cuMemFree"]);
    }
    Ok(outcome)
}
