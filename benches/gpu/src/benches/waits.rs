//! How many records and waits the pipeline of batches takes.

use streamvm::{Stats, SyncCounts};

use super::overlap::Pipeline;
use super::{Batches, Settings, Sizes, engine};
use crate::CUDA;
use crate::contest::Outcome;
use crate::error::Error;
use crate::hand::Cuda;

/// Records of events, and waits for them.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Of the device's streams.
    pub records: u64,
    /// By the device's streams.
    pub waits: u64,
}

/// What streamvm records and waits in one run of the pipeline, behind a first one.
///
/// # Errors
/// There is no device.
pub fn waits_of_streamvm(sizes: Sizes) -> Result<Counts, Error> {
    let vm = engine()?;
    let pipeline = Pipeline::new(&vm, sizes)?;
    pipeline.run(&vm)?;
    let before = counts(&vm.stats());
    pipeline.run(&vm)?;
    let after = counts(&vm.stats());
    Ok(Counts { records: after.records - before.records, waits: after.waits - before.waits })
}

fn counts(stats: &Stats) -> Counts {
    let of = |count: fn(&SyncCounts) -> u64| {
        stats.streams.iter().filter(|stream| stream.stream.device == CUDA).map(count).sum()
    };
    Counts { records: of(|stream| stream.records), waits: of(|stream| stream.device_waits) }
}

/// streamvm's records and waits beside those of the code by hand. What cudarc's automatic tracking makes is counted where
/// the driver counts its calls: in this package's tests.
///
/// # Errors
/// There is no device.
pub fn waits(settings: &Settings) -> Result<Outcome, Error> {
    let sizes = settings.sizes;
    let work = format!("one run of {} batches of `overlap`", sizes.batches);
    let mut outcome = Outcome::new("waits", "calls", work);
    let ours = waits_of_streamvm(sizes)?;
    let cuda = Cuda::open()?;
    let by_hand = Batches::new(&cuda, sizes)?;
    let before = cuda.records_and_waits();
    by_hand.three_streams()?;
    let after = cuda.records_and_waits();
    outcome.add("streamvm, records", ours.records as f64);
    outcome.add("by hand, records", (after.0 - before.0) as f64);
    outcome.add("streamvm, waits", ours.waits as f64);
    outcome.add("by hand, waits", (after.1 - before.1) as f64);
    outcome.compare("streamvm, records", &["by hand, records"]);
    outcome.compare("streamvm, waits", &["by hand, waits"]);
    Ok(outcome)
}
