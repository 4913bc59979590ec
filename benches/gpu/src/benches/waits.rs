//! How many waits the pipeline of batches takes.

use streamvm::{Stats, Vm};

use super::overlap::Pipeline;
use super::{Batches, Settings, Sizes, engine};
use crate::CUDA;
use crate::contest::Outcome;
use crate::contest::error::Error;
use crate::hand::{Cuda, Products};

const CUDARC: &str = "cudarc's automatic tracking";

/// Records and device waits of streamvm in one run of the pipeline, after a first one. Calls `at_the_start` in between, and
/// `issued` when all of it is submitted, for who counts on the side.
///
/// # Errors
/// There is no device.
pub fn calls_of_streamvm(
    vm: &Vm,
    sizes: Sizes,
    at_the_start: impl FnOnce(),
    issued: impl FnOnce(),
) -> Result<(u64, u64), Error> {
    let pipeline = Pipeline::new(vm, sizes)?;
    pipeline.run(vm)?;
    let before = records_and_waits(&vm.stats());
    at_the_start();
    let all = pipeline.issue(vm);
    // Also where that failed: what was issued may be held up until then.
    issued();
    all?;
    vm.wait_all()?;
    let after = records_and_waits(&vm.stats());
    Ok((after.0 - before.0, after.1 - before.1))
}

fn records_and_waits(stats: &Stats) -> (u64, u64) {
    let on_device = stats.streams.iter().filter(|stream| stream.stream.device == CUDA);
    on_device.fold((0, 0), |(records, waits), stream| (records + stream.records, waits + stream.device_waits))
}

/// streamvm's device waits and records, as it counts them itself, beside those of the code by hand, both on this device; and
/// those of all and of cudarc's automatic tracking as a driver counts them that stands in for the device's.
///
/// # Errors
/// There is no device.
pub fn waits(settings: &Settings) -> Result<Outcome, Error> {
    let sizes = settings.sizes;
    let work = format!("one run of {} batches of `overlap`", sizes.batches);
    let mut outcome = Outcome::new("waits", "calls", work);
    let ours = calls_of_streamvm(&engine()?, sizes, || {}, || {})?;
    let cuda = Cuda::open()?;
    let by_hand = Batches::new(&cuda, sizes, Products::find(&cuda))?;
    let before = cuda.records_and_waits();
    by_hand.three_streams()?;
    let after = cuda.records_and_waits();
    outcome.add("streamvm, waits", ours.1 as f64);
    outcome.add("streamvm, records", ours.0 as f64);
    outcome.add("by hand, waits", (after.1 - before.1) as f64);
    outcome.add("by hand, records", (after.0 - before.0) as f64);
    outcome.compare("streamvm, waits", &["by hand, waits"]);
    outcome.compare("streamvm, records", &["by hand, records"]);
    count_calls(&mut outcome, sizes);
    Ok(outcome)
}

#[cfg(target_os = "linux")]
fn count_calls(outcome: &mut Outcome, sizes: Sizes) {
    let counted = match crate::benches::calls::Counted::of_program(sizes) {
        Ok(counted) => counted,
        Err(error) => return outcome.add_missing(CUDARC, error),
    };
    let mut add = |who: &str, calls: crate::benches::calls::Calls| {
        outcome.add(&format!("{who}, waits, counted by the stand-in"), calls.waits as f64);
        outcome.add(&format!("{who}, records, counted by the stand-in"), calls.records as f64);
    };
    add("streamvm", counted.streamvm);
    add("by hand", counted.by_hand);
    add(CUDARC, counted.cudarc);
    for what in ["waits", "records"] {
        let of = |who: &str| format!("{who}, {what}, counted by the stand-in");
        outcome.compare(&of("streamvm"), &[&of("by hand"), &of(CUDARC)]);
    }
    outcome
        .notes
        .push("counted by the stand-in: the calls of the same code, over a driver that counts them".to_owned());
}

#[cfg(not(target_os = "linux"))]
fn count_calls(outcome: &mut Outcome, _: Sizes) {
    outcome.add_missing(CUDARC, "the driver that counts is one for Linux");
}
