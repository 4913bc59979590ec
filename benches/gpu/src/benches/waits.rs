//! How many waits the pipeline of batches takes.

use streamvm::Stats;

use super::overlap::Pipeline;
use super::{Batches, Settings, Sizes, engine};
use crate::CUDA;
use crate::contest::Outcome;
use crate::error::Error;
use crate::hand::Cuda;

/// Device waits of streamvm in one run of the pipeline, behind a first one. Calls `at_the_start` in between, for who counts on
/// the side.
///
/// # Errors
/// There is no device.
pub fn waits_of_streamvm(sizes: Sizes, at_the_start: impl FnOnce()) -> Result<u64, Error> {
    let vm = engine()?;
    let pipeline = Pipeline::new(&vm, sizes)?;
    pipeline.run(&vm)?;
    let before = device_waits(&vm.stats());
    at_the_start();
    pipeline.run(&vm)?;
    Ok(device_waits(&vm.stats()) - before)
}

fn device_waits(stats: &Stats) -> u64 {
    let on_device = stats.streams.iter().filter(|stream| stream.stream.device == CUDA);
    on_device.map(|stream| stream.device_waits).sum()
}

/// streamvm's device waits beside those of the code by hand. Its records, and what cudarc's automatic tracking makes of the
/// same batches, are counted where the driver counts its calls: in this package's tests.
///
/// # Errors
/// There is no device.
pub fn waits(settings: &Settings) -> Result<Outcome, Error> {
    let sizes = settings.sizes;
    let work = format!("one run of {} batches of `overlap`", sizes.batches);
    let mut outcome = Outcome::new("waits", "calls", work);
    let ours = waits_of_streamvm(sizes, || {})?;
    let cuda = Cuda::open()?;
    let by_hand = Batches::new(&cuda, sizes)?;
    let before = cuda.records_and_waits();
    by_hand.three_streams()?;
    let after = cuda.records_and_waits();
    outcome.add("streamvm, waits", ours as f64);
    outcome.add("by hand, waits", (after.1 - before.1) as f64);
    outcome.add("by hand, records", (after.0 - before.0) as f64);
    outcome.compare("streamvm, waits", &["by hand, waits"]);
    Ok(outcome)
}
