//! Idle: the processor time of an engine without work, and of one whose work is blocked by the program.
//!
//! Processor time belongs to the process, so this workload needs its own process.

use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use streamvm::{InstructionsBuilder, Vm};

use super::DEVICE;
use super::graph::{Graph, LIST, blocked};
use crate::harness::case::{Sample, Sizes};
use crate::harness::error::Error;

/// Lanes that have worked before, so that every kind of thread exists and has been busy.
const LANES: usize = 4;

/// Processor time that parking may take: a thread spins for tens of µs before it parks, and the wake-up of the measuring thread counts
/// too. The bound is many times the measured value (under 0.2 ms), and far below that of one thread that polls.
const ONCE: Duration = Duration::from_millis(2);

/// The share of the time that may be used besides, as one part in this many: a thread that woke a thousand times a second to poll, at
/// 5 µs each, would use five times as much.
const PART: u32 = 1_000;

/// Processor time per second of an idle engine: with nothing pending, and with a blocked instruction for which others wait on other
/// lanes.
///
/// # Errors
/// The engine failed, or used more than the two bounds together.
pub fn idle(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let vm = Vm::builder().build()?;
    let graph = Graph::crossing(vm, LANES);
    graph.run(sizes.warm_up().ops, LIST)?;
    let empty = used_during(sizes.idle)?;

    let (vm, variable) = (graph.vm(), graph.vm().var());
    let mut builder = InstructionsBuilder::new();
    let release = blocked(&mut builder, variable.write())?;
    for lane in 1..LANES as u32 {
        builder.on_lane(lane).call_fn("waiting", DEVICE, [variable.read()], |_| Ok(()))?;
    }
    vm.submit(builder.finish())?;
    let blocked = used_during(sizes.idle);
    let pending = vm.stats().in_flight;
    drop(release);
    vm.wait_all()?;
    if pending != LANES as u64 {
        let found = format!("{pending} instructions were pending, not {LANES}");
        return Err(Error::Wrong { workload: "idle", found });
    }
    let sample = |metric: &str, value| Sample { metric: metric.to_owned(), unit: "ms/s".to_owned(), value };
    Ok(vec![sample("cpu_nothing_pending", empty), sample("cpu_blocked", blocked?)])
}

/// Processor time of this process while this thread sleeps for `time`, in ms per s.
fn used_during(time: Duration) -> Result<f64, Error> {
    let (clock, before) = (Instant::now(), processor_time());
    thread::sleep(time);
    let (used, elapsed) = (processor_time().saturating_sub(before), clock.elapsed());
    let allowed = ONCE + elapsed / PART;
    if used > allowed {
        let found = format!("{used:?} of processor time in {elapsed:?} without work, past the bound of {allowed:?}");
        return Err(Error::Wrong { workload: "idle", found });
    }
    Ok(used.as_secs_f64() * 1e3 / elapsed.as_secs_f64())
}

/// Processor time of all threads of this process.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
