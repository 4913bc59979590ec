//! Waits: two lanes that take turns with one variable, so that every operation waits for the other lane.

use streamvm::{Capabilities, Vm};

use super::graph::{Graph, LIST};
use crate::case::{Sample, Sizes};
use crate::error::Error;

/// Lanes that take turns: as many threads, where there are as many cores.
const LANES: usize = 2;

/// Time from one operation to the next one on the other lane: with waits that the lane's own thread makes, and with
/// waits for which the scheduler holds the operation back.
///
/// # Errors
/// The engine failed, or waited in another way than asked.
pub fn waits(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let device = Capabilities::standard();
    let host = Capabilities::standard().host_waits_only();
    Ok(vec![
        Sample::ns("ns_per_crossing_device", crossings(sizes, device, |device, _| device)?),
        Sample::ns("ns_per_crossing_host", crossings(sizes, host, |_, host| host)?),
    ])
}

/// `of` picks the expected kind of waits from the device's and the host's.
fn crossings(sizes: &Sizes, capabilities: Capabilities, of: fn(u64, u64) -> u64) -> Result<f64, Error> {
    let graph = Graph::crossing(Vm::builder().capabilities(capabilities).build()?, LANES);
    graph.run(sizes.warm_up().trips, LIST)?;
    let waits = || {
        let streams = graph.vm().stats().streams;
        let sum = |count: fn(&streamvm::SyncCounts) -> u64| streams.iter().map(count).sum();
        of(sum(|stream| stream.device_waits), sum(|stream| stream.host_waits))
    };
    let before = waits();
    let ns = graph.run(sizes.trips, LIST)?;
    let found = waits() - before;
    // What the first of a list waits for may have passed when the list is submitted; the others cannot have.
    let fewest = (sizes.trips - sizes.trips.div_ceil(LIST)) as u64;
    if found < fewest {
        let found = format!("{found} waits of the expected kind, not at least {fewest}");
        return Err(Error::Wrong { workload: "waits", found });
    }
    Ok(ns)
}
