//! Waits: two lanes use one variable in turn, so that every operation waits for the other lane.

use streamvm::Vm;
use streamvm::stream::Capabilities;

use super::graph::{Graph, LIST};
use crate::harness::case::{Sample, Sizes};
use crate::harness::error::Error;

/// Lanes that take turns; each has its own thread, where there are as many cores.
const LANES: usize = 2;

/// Time from one operation to the next one on the other lane, with two kinds of waits: those of the thread context (device waits), and
/// those for which the scheduler holds the operation back (host waits).
///
/// # Errors
/// The engine failed, or waited in another way than requested.
pub fn waits(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let device = Capabilities::standard();
    let host = Capabilities::standard().host_waits_only();
    Ok(vec![
        Sample::ns("ns_per_crossing_device", crossings(sizes, device, |device, _| device)?),
        Sample::ns("ns_per_crossing_host", crossings(sizes, host, |_, host| host)?),
    ])
}

/// `of` picks the expected kind from the numbers of device waits and host waits.
fn crossings(sizes: &Sizes, capabilities: Capabilities, of: fn(u64, u64) -> u64) -> Result<f64, Error> {
    let graph = Graph::crossing(Vm::builder().capabilities(capabilities).build()?, LANES);
    graph.run(sizes.warm_up().trips, LIST)?;
    let waits = || {
        let streams = graph.vm().stats().streams;
        let sum = |count: fn(&streamvm::report::SyncCounts) -> u64| streams.iter().map(count).sum();
        of(sum(|stream| stream.device_waits), sum(|stream| stream.host_waits))
    };
    let before = waits();
    let ns = graph.run(sizes.trips, LIST)?;
    let found = waits() - before;
    // The operation that the first of a list waits for may have passed at submission; those of the others cannot have.
    let fewest = (sizes.trips - sizes.trips.div_ceil(LIST)) as u64;
    if found < fewest {
        let found = format!("{found} waits of the expected kind, not at least {fewest}");
        return Err(Error::Wrong { workload: "waits", found });
    }
    Ok(ns)
}
